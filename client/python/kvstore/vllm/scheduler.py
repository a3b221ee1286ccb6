"""The connector's half in the scheduler's process: decides lookups, loads and saves, and tracks which save holds which page."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.logger import init_logger

from ..doors.door import Door
from ..errors import Busy, Error
from ..namespaces import Namespace
from ..sets import SetSpace
from .adapters import Adapters, Named
from .compat import CacheHitSource, preempted_of, set_apart, states_of, tokens_in_flight
from .estimate import Estimate
from .lookup import Lookup, tail_hashes, tails_of
from .messages import Block, Load, Piece, Report, Save, Stage, Step, first_of
from .model import Model
from .modules import REFUSED, Modules, Refused, module_namespace, modules_of
from .requests import KnownRequest, LoadUnderWay, reuse_of, weights_epoch_of
from .stats import KVStoreStats
from .told import Told

logger = init_logger("vllm.kvstore")

#: vLLM's page for a missing block, such as one that a window has left behind.
_NULL_PAGE = 0
#: A lookup's answer is valid for this long: shorter than the node's lease.
_ANSWER_SECONDS = 4.0
#: After this many failed loads, a request is computed.
_FAILED_LOADS_MAX = 2
#: Blocks of a finished request that are marked as used: a call for more takes the scheduler's thread over 50 us.
_TOUCHED_NAMES_MAX = 256
#: How long a request that needs a page waits for stalled saves before vLLM preempts another one.
_STUCK_SAVES_SECONDS = 0.02
#: Share of the engine's pages that saves may hold.
_HELD_FRACTION = 0.25


def _page_of(table: list[int], index: int) -> int:
    return table[index] if index < len(table) else _NULL_PAGE


class SchedulerSide:
    """Runs on the scheduler's thread, which all requests share: no call here waits for a node.

    1. Each save references its pages until every worker has reported the job, whatever happens to the request: jobs have own numbers.
    2. A block is given to at most one save of a request, and only after the step that fills it was scheduled.
    3. A load names every page that the engine treats as loaded, even without a stored block: an unfilled page is reported, never read.
    4. Blocks loaded by another connector are stored only after a step that read them has ended and reported failures.
    5. A load ends when every worker has reported: a block missing on one worker is missing for the request.
    6. Saves hold at most a quarter of the engine's pages. Blocks beyond that are not stored.
    7. Of a request with prompt modules nothing is looked up or stored under the names of exact prefixes, here or in vLLM's own cache.
    """

    def __init__(self, model: Model, *, loads: bool, saves: bool) -> None:
        self._model = model
        self._options = model.options
        self._does_load, self._does_save = loads, saves
        self._door = Door(model.options, "vllm-scheduler", logger, deadline=model.options.load_timeout)
        #: The workers' reports about the weights; lookups, loads and saves wait for them.
        self._told = Told(model.rank_count, model.stage_count)
        #: One per pipeline stage: of exact prefixes, and of modules, if the workers serve them.
        self._spaces: list[SetSpace] = []
        self._module_spaces: list[SetSpace] = []
        self._has_told_of_modules = False
        self._block_bytes: list[npt.NDArray[np.int64]] = []
        self._worker_count = model.rank_count * model.stage_count
        self._adapters = Adapters(self._worker_count)
        self._lookups = self._door.lookups
        self._estimate = Estimate()
        #: Requests with blocks loaded by other connectors, until a step with them has ended.
        self._doubtful: dict[str, KnownRequest] = {}
        self._requests: dict[str, KnownRequest] = {}
        #: Whether any request has set a weights_epoch; the epoch of each page filled since.
        self._has_epochs = False
        self._page_epochs: dict[int, bytes | None] = {}
        self._manager: Any = None
        self._last_job = 0
        self._step = Step()
        self._loads: dict[int, LoadUnderWay] = {}
        self._has_states = any(group.is_state for group in model.groups)
        #: For each save job: its pages, and how many workers have yet to report.
        self._held: dict[int, tuple[list[Any], int]] = {}
        self._held_count = 0
        #: When a worker last gave pages back, or the only save began.
        self._saves_moved = 0.0
        self._held_max = int(model.page_count * _HELD_FRACTION)
        self.counters = self._door.counters
        is_local = all(node["endpoint"].startswith("unix:") for node in self._door.client.nodes())
        #: Source of hits in a node's memory. vLLM has no value for another machine's.
        self._memory = CacheHitSource.HOST if is_local else CacheHitSource.EXTERNAL_UNSPECIFIED

    def bind(self, manager: Any) -> None:
        self._manager = manager

    def told(self, stages: dict[int, Stage]) -> None:
        """By worker number. With pipeline parallelism, all stages have to hold a block."""
        if not self._told.take(stages):
            return
        self._model.namespace = Namespace.from_text(self._told.stages[0].namespace)
        for each in self._told.stages:
            namespace = Namespace.from_text(each.namespace)
            self._spaces.append(self._door.open(namespace, "blocks", patience=self._options.load_timeout))
            self._block_bytes.append(np.array(each.block_bytes))
            if not self._told.why_no_modules:
                self._module_spaces.append(self._door.open(module_namespace(namespace)))

    # -- lookups

    def on_new_request(self, request: Any) -> None:
        self._look_up(self._meet(request))

    def _meet(self, request: Any) -> KnownRequest:
        known = self._requests[request.request_id] = KnownRequest(
            request, reuse=reuse_of(request), own_epoch=weights_epoch_of(request)
        )
        if known.adapter is not None:
            known.named = Named(request, self._model.hasher)
            self._adapters.met(request)
        self._name(known)
        self._has_epochs |= known.epoch != b""
        self._take_modules(known)
        return known

    def _take_modules(self, known: KnownRequest) -> None:
        """Reads the request's modules. A model's refusal is logged once, a list's for each request."""
        request = known.request
        try:
            known.modules = modules_of(request, self._model.block_size)
            if known.modules is not None and self._told.why_no_modules:
                raise Refused("model", f"prompt modules of this model are not served: {self._told.why_no_modules}")
        except Refused as why:
            known.modules = REFUSED
            self.counters[f"modules_refused_{why.reason}"] += 1
            if why.reason != "model" or not self._has_told_of_modules:
                self._has_told_of_modules |= why.reason == "model"
                logger.warning("kvstore: request %s is computed: %s", request.request_id, why)
        if known.modules is not None and known.modules.blocks:
            set_apart(request)

    def _name(self, known: KnownRequest) -> None:
        """Sets the epoch from the adapter's identity, as far as it is known."""
        adapter = b"" if known.adapter is None else self._adapters.epoch(known.adapter)
        known.epoch = None if adapter is None or known.own_epoch is None else known.own_epoch + adapter

    def _known(self, request: Any) -> KnownRequest:
        return self._requests.get(request.request_id) or self._meet(request)

    def _look_up(self, known: KnownRequest) -> None:
        """Asks for all of the prompt's blocks except the last token's: that token has to be computed."""
        request = known.request
        tails: list[int] = []
        if known.modules is not None:
            count = known.modules.needed_count
        else:
            count = min(self._model.hash_count(known.blocks), (request.num_tokens - 1) // self._model.block_size)
            tails = tails_of(self._model, known.blocks)
        known.lookup = Lookup(count, time.monotonic(), tails)
        if (
            self._ending(known) is None
            or not self._does_load
            or self._is_too_little(max([count * self._model.block_size, *known.lookup.tails[-1:]]))
        ):
            return
        if known.failed_loads >= _FAILED_LOADS_MAX or request.skip_reading_prefix_cache or not self._lookups.allows():
            return
        names = self._names(known, count)
        if tails:
            names += self._names_of(known, tail_hashes(self._model, known.blocks, tails))
        try:
            for space in self._spaces_of(known):
                known.lookup.futures.append(
                    space.submit_match(
                        names, deadline=self._options.load_timeout, lease=True, prefetch=True, reuse=known.reuse
                    )
                )
            self.counters["lookups"] += 1
        except Error as error:
            self._give_up(known.lookup)
            self._lookups.failed(error)

    def _is_too_little(self, tokens: int) -> bool:
        return -(-tokens // self._model.block_size) < max(1, self._options.load_blocks_min)

    @staticmethod
    def _give_up(lookup: Lookup) -> None:
        for future in lookup.futures:
            future.cancel()
        lookup.futures = []

    def _names(self, known: KnownRequest, count: int) -> list[bytes]:
        """Names of the leading blocks, as [group, part, block]."""
        if known.modules is not None:
            return self._names_of(known, known.modules.hashes[:count])
        return self._names_of(known, self._model.hashes(known.blocks, 0, count))

    def _spaces_of(self, known: KnownRequest) -> list[SetSpace]:
        return self._spaces if known.modules is None else self._module_spaces

    def _names_of(self, known: KnownRequest, hashes: list[bytes]) -> list[bytes]:
        return self._model.part_names(hashes, self._ending(known) or b"")

    def _ending(self, known: KnownRequest) -> bytes | None:
        """Suffix of the request's block names: the weights, if not the namespace's, and the adapter. None: unknown."""
        weights = self._told.epoch
        return None if weights is None or known.epoch is None else weights + known.epoch

    def _answer(self, lookup: Lookup) -> None:
        """Takes the answer if it has come; cancels the lookup after its timeout."""
        if not lookup.futures:
            return
        if not all(future.done() for future in lookup.futures):
            if time.monotonic() - lookup.asked < self._options.lookup_timeout:
                return
            self._give_up(lookup)
            self.counters["lookups_timed_out"] += 1
            self._lookups.failed(f"no answer within {self._options.lookup_timeout} s")
            return
        futures, lookup.futures = lookup.futures, []
        try:
            matches = [future.result(0) for future in futures]
        except Error as error:
            self._lookups.failed(error)
            return
        lookup.leases = [match.lease for match in matches]
        lookup.asked = time.monotonic()  # the leases' time counts from here
        # Busy: the answer is valid without a lease.
        why = next((each.why for each in matches if each.why is not None and not isinstance(each.why, Busy)), None)
        self._lookups.ended(why)
        lookup.is_known = why is None
        lookup.answer(self._model, matches, self._block_bytes)

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        known = self._known(request)
        lookup = known.lookup
        is_stale = (
            lookup is not None
            and not lookup.is_open
            and lookup.hit > 0
            and time.monotonic() - lookup.asked > _ANSWER_SECONDS
        )
        if lookup is None or is_stale:
            self._release(known)
            self._look_up(known)
            lookup = known.lookup
        assert lookup is not None
        self._answer(lookup)
        if lookup.is_open:
            return None, False
        known.computed = computed_tokens // self._model.block_size
        if known.modules is not None:
            tokens = self._modules_to_load(known.modules, lookup, computed_tokens)
            return tokens, tokens > 0
        more = self._worth_loading(lookup, known.computed)
        if self._is_too_little(more):
            return 0, False
        return more, True

    @staticmethod
    def _modules_to_load(modules: Modules, lookup: Lookup, computed_tokens: int) -> int:
        """All tokens of the modules, or none. Measurements do not count: computed modules are others, each after those before."""
        return modules.token_count if lookup.hit == modules.needed_count and computed_tokens == 0 else 0

    def _worth_loading(self, lookup: Lookup, computed: int) -> int:
        """How many tokens after ``computed`` blocks to load: all in the store, or fewer where the engine computes the rest in less time."""
        size = self._model.block_size
        ends = dict.fromkeys((lookup.tail_hit or lookup.hit * size, lookup.hit * size, lookup.memory_hit * size))
        hits = [
            (end - computed * size, lookup.disk_tokens(computed, end, size)) for end in ends if end > computed * size
        ]
        if not self._options.compute_cheap_hits:
            return hits[0][0] if hits else 0
        return self._estimate.choose(hits)

    def _release(self, known: KnownRequest) -> None:
        """Gives up the lookup's or the ended load's leases."""
        lookup, known.lookup = known.lookup, None
        with contextlib.suppress(Error):  # they expire anyway
            for leases in (known.leases, [] if lookup is None else lookup.leases):
                for space, lease in zip(self._spaces_of(known), leases, strict=False):
                    if lease:
                        space.release(lease)
        known.leases = []
        if lookup is not None:
            self._give_up(lookup)

    # -- loads

    def admitted(self, request: Any, pages: tuple[list[int], ...], external_tokens: int) -> None:
        """The request has its pages; ``external_tokens`` after the local ones are to be loaded into them."""
        known = self._known(request)
        block_size = self._model.block_size
        lookup = known.lookup
        if lookup is not None:
            # Local blocks that the store lacks are stored again: it may have been restarted.
            known.saved = lookup.hit if lookup.is_known else known.computed
            known.is_admitted = known.is_fresh = True
            known.load_begin, known.load_tokens = known.computed, 0
            known.doubtful_tokens = -1
            known.noted, known.is_mixed = known.computed, False
        if lookup is not None:
            self._count_hit(known, lookup, external_tokens)
        if external_tokens == 0:
            self._release(known)
            return
        assert lookup is not None
        tokens = known.computed * block_size + external_tokens
        modules = known.modules
        blocks: Sequence[Block] | Sequence[Piece]
        if modules is None:
            blocks, end = self._blocks_to_load(known, lookup, pages, tokens), tokens // block_size
            known.load_disk_tokens = lookup.disk_tokens(known.computed, tokens, block_size)
        else:
            end = len(modules.blocks)
            blocks = modules.pieces_to_load(self._piece_names(known, 0, modules.needed_count), pages[0], block_size)
            known.load_disk_tokens = modules.tokens_of(lookup.on_disk)
        self._last_job += 1
        self._loads[self._last_job] = LoadUnderWay(known, self._worker_count)
        self._step.loads.append(Load(self._last_job, request.request_id, blocks, modules is not None))
        known.leases = lookup.leases
        known.lookup = None
        known.saved = max(known.saved, end)
        known.is_loading = True
        self.counters["loads"] += 1
        known.load_begin, known.load_tokens = known.computed, external_tokens

    def _count_hit(self, known: KnownRequest, lookup: Lookup, external_tokens: int) -> None:
        modules = known.modules
        if modules is None:
            size = self._model.block_size
            left = max(0, (lookup.tail_hit or lookup.hit * size) - known.computed * size - external_tokens)
            self.counters["hit_tokens"] += external_tokens + left
            self.counters["computed_hit_tokens"] += left
        elif external_tokens > 0:
            self.counters["hit_tokens"] += external_tokens
            self.counters["modules_loaded"] += modules.module_count
        elif modules.token_count > 0:
            self.counters["modules_computed"] += modules.module_count

    def _blocks_to_load(
        self, known: KnownRequest, lookup: Lookup, pages: tuple[list[int], ...], tokens: int
    ) -> list[Block]:
        """The blocks after the local ones, up to the leading ``tokens``, which may end inside a block."""
        block_size = self._model.block_size
        end, tail = divmod(tokens, block_size)
        assert tail in (0, lookup.tail_hit % block_size), (tokens, lookup)
        hashes = self._model.hashes(known.blocks, known.computed, end)
        # If a hit ends inside a page, the state there is needed too.
        needed = [
            0 if not group.is_state else end if tail else group.first_needed(end, block_size)
            for group in self._model.groups
        ]
        epoch = self._ending(known) or b""
        blocks = [
            Block(self._model.name(block_hash, g, epoch), g, table[i], i)
            for i, block_hash in enumerate(hashes, known.computed)
            for g, table in enumerate(pages)
            if i >= needed[g] and table[i] != _NULL_PAGE
        ]
        if tail:
            block_hash = self._model.tail_hash(known.blocks, tokens)
            blocks += [
                Block(self._model.name(block_hash, g, epoch), g, table[end], end) for g, table in enumerate(pages)
            ]
        return blocks

    def _piece_names(self, known: KnownRequest, first: int, end: int) -> list[bytes]:
        """Names of the blocks of modules, without their parts."""
        assert known.modules is not None
        epoch = self._ending(known) or b""
        return [self._model.name(block.hash, 0, epoch) for block in known.modules.blocks[first:end]]

    def hit_sources(self, request: Any, external_tokens: int) -> dict[CacheHitSource, int]:
        """The sources of the tokens in the load just admitted."""
        known = self._requests.get(request.request_id)
        disk = 0 if known is None else known.load_disk_tokens
        memory = external_tokens - disk
        return {source: n for source, n in ((self._memory, memory), (CacheHitSource.DISK, disk)) if n > 0}

    # -- saves

    def build_step(self, output: Any) -> Step:
        scheduled = [
            (self._requests[request_id], token_count)
            for request_id, token_count in output.num_scheduled_tokens.items()
            if request_id in self._requests
        ]
        states = states_of(output) if self._has_states else {}
        self._doubt([known for known, _ in scheduled if known.is_fresh])
        if self._has_epochs:
            self._note_epochs(scheduled)
        self._part_again(output)
        for known, token_count in scheduled:
            known.is_fresh = False
            kept = states.get(known.request.request_id, [])
            self._save(known, known.request.num_computed_tokens + token_count, None, kept)
            if self._model.has_tails and kept:
                self._save_tails(known, self._manager.get_block_ids(known.request.request_id), kept)
        step, self._step = self._step, Step()
        step.token_count = sum(output.num_scheduled_tokens.values())
        if step.token_count > 0:  # sleeping workers have no weights: they check in a step that computes
            step.reset = self._told.resets if self._told.is_asking else 0
            step.adapters = {
                known.adapter: self._adapters.epoch(known.adapter) is None
                for known, _ in scheduled
                if known.adapter is not None
            }
        return step

    def _part_again(self, output: Any) -> None:
        """Preempted requests with modules would go on with what vLLM's cache still has of them, and compute the rest behind that."""
        for request_id in preempted_of(output):
            known = self._requests.get(request_id)
            if known is not None and known.modules is not None and known.modules.blocks:
                set_apart(known.request)

    def _doubt(self, fresh: list[KnownRequest]) -> None:
        """Blocks of a request in its first step that neither the engine had nor this connector loaded come from another connector, which
        reports failures only at the step's end. Until then any request may share these blocks.
        """
        for request_id, known in list(self._doubtful.items()):
            if self._is_settled(known) or self._requests.get(request_id) is not known:
                del self._doubtful[request_id]
        others = [each for each in fresh if self._has_others_tokens(each)]
        if others or self._doubtful:
            for known in fresh:
                known.doubtful_tokens = known.request.num_computed_tokens
            self._doubtful.update((each.request.request_id, each) for each in others)

    def _has_others_tokens(self, known: KnownRequest) -> bool:
        request, size = known.request, self._model.block_size
        own = known.load_begin * size
        if not self._model.has_tails:
            return bool((request.num_computed_tokens - known.load_tokens) // size > known.load_begin)
        # The engine's own hit may end inside a page, which this half is not told.
        if request.prefill_stats is not None and request.num_preemptions == 0:
            own = max(own, request.prefill_stats.num_local_cached_tokens)
        return bool(request.num_computed_tokens > own + known.load_tokens)

    def _note_epochs(self, scheduled: list[tuple[KnownRequest, int]]) -> None:
        """Records the epoch of each page that a request fills, since vLLM's own cache ignores a request's weights_epoch. A request that
        begins with other requests' pages of another epoch stores no blocks.
        """
        for known, token_count in scheduled:
            end = (known.request.num_computed_tokens + token_count) // self._model.block_size
            if end > known.noted:
                for table in self._manager.get_block_ids(known.request.request_id):
                    self._page_epochs.update(dict.fromkeys(table[known.noted : end], known.epoch))
                known.noted = end
        for known, _ in scheduled:
            if known.is_fresh:
                tables = self._manager.get_block_ids(known.request.request_id)
                # A page in which the request began is a copy without a recorded epoch.
                begins_inside = (
                    self._model.has_tails and known.request.num_computed_tokens % self._model.block_size != 0
                )
                known.is_mixed = (begins_inside and known.load_tokens == 0) or any(
                    page != _NULL_PAGE and self._page_epochs.get(page, b"") != known.epoch
                    for table in tables
                    for page in table[: known.load_begin]
                )

    @staticmethod
    def _is_settled(known: KnownRequest) -> bool:
        request = known.request
        return bool(request.num_computed_tokens - tokens_in_flight(request) > known.doubtful_tokens)

    def _save(
        self,
        known: KnownRequest,
        token_count: int,
        pages: tuple[list[int], ...] | None,
        states: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Stores the blocks of ``token_count`` known tokens, computed once this step has run. ``states``: left behind by the step."""
        request = known.request
        if not self._may_save(known):
            return
        if known.modules is not None:
            self._save_module(known, known.modules, token_count, pages)
            return
        blocks_of = known.blocks
        end = min(self._model.hash_count(blocks_of), token_count // self._model.block_size)
        if not self._options.save_decode:
            end = min(end, request.num_prompt_tokens // self._model.block_size)
        if end <= known.saved:
            return
        if pages is None:
            pages = self._manager.get_block_ids(request.request_id)
        first, known.saved = known.saved, end
        kept = {(g, tokens): page for g, page, tokens in states}
        groups, size = self._model.groups, self._model.block_size
        epoch = self._ending(known) or b""
        blocks = [
            Block(self._model.name(block_hash, g, epoch), g, page, i)
            for i, block_hash in enumerate(self._model.hashes(blocks_of, first, end), first)
            for g, table in enumerate(pages)
            if (page := kept.get((g, (i + 1) * size), _NULL_PAGE) if groups[g].is_state else _page_of(table, i))
            != _NULL_PAGE
        ]
        room = self._save_room
        self.counters["unsaved_blocks"] += max(0, len(blocks) - room)
        blocks = blocks[:room]
        if blocks:
            self._begin_save(known, blocks, len({block.block_index for block in blocks}) * size)

    def _save_module(
        self, known: KnownRequest, modules: Modules, token_count: int, pages: tuple[list[int], ...] | None
    ) -> None:
        """Stores the first module's blocks. Those of later modules were computed after others, unless they were loaded."""
        if known.saved >= modules.own_count or not self._module_spaces:
            return
        size = self._model.block_size
        end = modules.computed_count(token_count, size)
        if end <= known.saved:
            return
        table = (pages or self._manager.get_block_ids(known.request.request_id))[0]
        first, known.saved = known.saved, end
        names = self._piece_names(known, first, end)
        pieces = [block.piece(name, table, size) for name, block in zip(names, modules.blocks[first:end], strict=True)]
        room = self._save_room
        self.counters["unsaved_blocks"] += max(0, len(pieces) - room)
        pieces = pieces[:room]
        if pieces:
            self._begin_save(known, pieces, sum(piece.token_count for piece in pieces))

    def _may_save(self, known: KnownRequest) -> bool:
        if not self._does_save or not known.is_admitted or known.is_fresh or known.is_loading:
            return False
        return self._is_settled(known) and self._ending(known) is not None and not known.is_mixed

    @property
    def _save_room(self) -> int:
        """How many more pages may wait to be stored."""
        return max(0, self._held_max - self._held_count) if self._lookups.allows() else 0

    def _save_tails(
        self, known: KnownRequest, pages: tuple[list[int], ...], states: Sequence[tuple[int, int, int]]
    ) -> None:
        """Stores states that end inside a page, where the engine has kept the states of all groups: the states, and the page of each other
        group as it is. Only that page's leading tokens count; the content after them is arbitrary.
        """
        if not self._may_save(known):
            return
        groups, size = self._model.groups, self._model.block_size
        epoch = self._ending(known) or b""
        for tokens in dict.fromkeys(each for _, _, each in states if each % size != 0):
            if not self._options.save_decode and tokens > known.request.num_prompt_tokens:
                continue
            kept = {g: page for g, page, each in states if each == tokens}
            block_hash = self._model.tail_hash(known.blocks, tokens)
            at = [
                kept.get(g, _NULL_PAGE) if group.is_state else _page_of(pages[g], tokens // size)
                for g, group in enumerate(groups)
            ]
            if _NULL_PAGE in at:
                continue  # a load needs all groups
            blocks = [
                Block(self._model.name(block_hash, g, epoch), g, page, tokens // size) for g, page in enumerate(at)
            ]
            if len(blocks) > self._save_room:
                self.counters["unsaved_blocks"] += len(blocks)
                continue
            self._begin_save(known, blocks, tokens % size)

    def _begin_save(self, known: KnownRequest, blocks: Sequence[Block] | Sequence[Piece], token_count: int) -> None:
        """Adds the save to the next step. It holds references to its pages."""
        self._last_job += 1
        pool = self._manager.block_pool
        held = [pool.blocks[block.page] for block in blocks]
        pool.touch(held)
        if not self._held:
            self._saves_moved = time.monotonic()
        self._held[self._last_job] = held, self._worker_count
        self._held_count += len(held)
        adapter = None if known.adapter is None else self._adapters.tag(known.adapter)
        self._step.saves.append(Save(self._last_job, blocks, known.reuse, adapter, known.modules is not None))
        self.counters["saved_blocks"] += len(blocks)
        self.counters["saved_tokens"] += token_count

    def received(self, report: Report) -> None:
        """Takes the workers' report."""
        self.told(report.stages)
        self._told.take_weights(report.weights)
        self._named(self._adapters.told(report.adapters))
        if report.gathered:
            self._saves_moved = time.monotonic()
        for job, count in report.gathered.items():
            held, left = self._held[job]
            assert 0 < count <= left, (job, count, left)
            if count < left:
                self._held[job] = held, left - count
                continue
            del self._held[job]
            self._held_count -= len(held)
            self._manager.block_pool.free_blocks(reversed(held))  # a chain's end is reused first
        self._estimate.computed(*report.computed)
        for job, (count, index) in report.loaded.items():
            load = self._loads[job]
            measured = report.load_seconds.get(job)
            load.seconds = None if measured is None or load.seconds is None else max(load.seconds, measured)
            assert 0 < count <= load.left, (job, count, load.left)
            load.left -= count
            load.missing = missing = first_of(load.missing, index)
            if load.left > 0:
                continue  # the pages count as loaded only after all reports
            del self._loads[job]
            known = load.of
            if self._requests.get(known.request.request_id) is not known:
                continue  # aborted during its load
            known.is_loading = False
            self._release(known)
            if missing is None:
                tokens = known.load_tokens
            elif len(self._model.groups) == 1:
                tokens = (missing - known.load_begin) * self._model.block_size
            else:
                tokens = 0  # computed from its first token
            self.counters["loaded_tokens"] += tokens
            if missing is None and load.seconds is not None and known.modules is None:
                self._estimate.loaded(tokens, known.load_disk_tokens, load.seconds)
            if missing is not None:
                known.saved = min(known.saved, missing)
                known.failed_loads += 1
                self.counters["loads_failed"] += 1

    def _named(self, adapters: list[int]) -> None:
        """These adapters' identities are now known, so their requests' blocks can be stored."""
        for known in self._requests.values() if adapters else ():
            if known.adapter in adapters:
                was = known.epoch
                self._name(known)
                if was is None:
                    known.noted = known.load_begin  # those pages are of this epoch
                elif known.epoch != was:
                    known.is_mixed = True

    @property
    def has_pending_saves(self) -> bool:
        return bool(self._held)

    @property
    def will_free_pages(self) -> bool:
        """Whether waiting for saves is better than preempting. A stalled node must not stop running requests."""
        return bool(self._held) and time.monotonic() - self._saves_moved < _STUCK_SAVES_SECONDS

    def finished_inside(
        self, request: Any, pages: tuple[list[int], ...], states: Sequence[tuple[int, int, int]]
    ) -> None:
        """Called before ``finished``, with the states that the request has left where it ends inside a page."""
        known = self._requests.get(request.request_id)
        if known is not None and self._model.has_tails:
            self._save_tails(known, pages, states)

    def finished(self, request: Any, pages: tuple[list[int], ...]) -> None:
        """Called before the request's pages are freed: its last save takes references of its own."""
        known = self._requests.pop(request.request_id, None)
        if known is None:
            return
        self._release(known)
        # Steps under way have not filled their pages yet.
        token_count = request.num_computed_tokens - tokens_in_flight(request)
        self._save(known, token_count, pages)
        if known.is_admitted:
            self._touch(known, token_count // self._model.block_size)

    def _touch(self, known: KnownRequest, count: int) -> None:
        """Marks the request's leading blocks as used, also those the engine had itself. The store evicts single blocks, and a chain is lost
        with its beginning: the first half is marked once more, to go last.
        """
        model, modules = self._model, known.modules
        has = model.hash_count(known.blocks) if modules is None else len(modules.blocks)
        count = min(count, has, _TOUCHED_NAMES_MAX // (len(model.groups) * model.part_count))
        if self._ending(known) is None or known.is_mixed or not self._lookups.allows():
            return
        with contextlib.suppress(Error):  # it is a hint
            for part in (count, count // 2):
                if part > 0:
                    names = self._names(known, part)
                    for space in self._spaces_of(known):
                        space.submit_touch(names, deadline=self._options.load_timeout)

    # -- life

    def take_stats(self) -> KVStoreStats | None:
        return KVStoreStats.of(self._door)

    def reset(self) -> None:
        """The weights may have changed: workers check in the next step that computes. Until then blocks have no names."""
        self._told.reset()
        for known in self._requests.values():
            self._release(known)
            known.saved = 0
            known.is_mixed = True  # its pages are of the old weights, unless it gets others

    def close(self) -> None:
        self._door.close()
