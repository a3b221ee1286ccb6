"""The scheduler half's gets: what the store has of the requests' prompts, and which of that is loaded."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..doors.door import Door
from ..doors.groups import usable
from ..errors import Busy, Error
from ..namespaces import Namespace
from ..sets import SetMatchResult, SetSpace
from .compat import CacheHitSource
from .estimate import Estimate
from .messages import Block, Blocks, Load, Report, first_of
from .model import Model
from .modules import module_namespace
from .requests import NULL_PAGE, KnownRequest, LoadUnderWay, Lookup
from .told import Told

#: A value in SetMatchResult.held.
_ON_DISK = 2
#: How many of the prompt's last hashes are tried for a hit inside a page: the names of all would slow every lookup.
_TAILS_MAX = 64
#: After this many failed loads, a request is computed.
_FAILED_LOADS_MAX = 2
#: Blocks of a finished request that are marked as used: a call for more takes the scheduler's thread over 50 us.
_TOUCHED_NAMES_MAX = 256


class SchedulerLoads:
    """Asks the store, plans loads, and follows them. No call waits for a node.

    1. A load names every page that the engine treats as loaded, even without a stored block: an unfilled page is reported, never read.
    2. A load ends when every worker has reported: a block missing on one worker is missing for the request.
    3. Of prompt modules all are loaded, or none.
    """

    def __init__(
        self, model: Model, door: Door, told: Told, requests: Mapping[str, KnownRequest], *, is_used: bool
    ) -> None:
        """``requests``: all unfinished ones. ``is_used``: whether this engine loads."""
        self._model, self._options, self._told = model, model.options, told
        self._requests, self._is_used = requests, is_used
        self._door, self._gate, self._counters = door, door.lookups, door.counters
        #: One per pipeline stage: of exact prefixes, and of modules, if the workers serve them.
        self._spaces: list[SetSpace] = []
        self._module_spaces: list[SetSpace] = []
        self._block_bytes: list[npt.NDArray[np.int64]] = []
        self._estimate = Estimate()
        self._jobs = itertools.count(1)
        self._under_way: dict[int, LoadUnderWay] = {}
        #: For the next step.
        self._begun: list[Load] = []
        is_local = all(node["endpoint"].startswith("unix:") for node in door.client.nodes())
        #: Source of hits in a node's memory. vLLM has no value for another machine's.
        self._memory = CacheHitSource.HOST if is_local else CacheHitSource.EXTERNAL_UNSPECIFIED

    def open(self) -> None:
        """Opens the namespaces that the workers have reported."""
        for each in self._told.stages:
            namespace = Namespace.from_text(each.namespace)
            self._spaces.append(self._door.open(namespace, "blocks", patience=self._options.load_timeout))
            self._block_bytes.append(np.array(each.block_bytes))
            if not self._told.why_no_modules:
                self._module_spaces.append(self._door.open(module_namespace(namespace)))

    def _spaces_of(self, known: KnownRequest) -> list[SetSpace]:
        return self._spaces if known.modules is None else self._module_spaces

    def _names_of(self, known: KnownRequest, hashes: Sequence[bytes]) -> list[bytes]:
        return self._model.part_names(hashes, known.ending or b"")

    def _names(self, known: KnownRequest, count: int) -> list[bytes]:
        """Names of the leading blocks, as [group, part, block]."""
        modules = known.modules
        return self._names_of(
            known, self._model.hashes(known.blocks, 0, count) if modules is None else modules.hashes[:count]
        )

    # -- lookups

    def look_up(self, known: KnownRequest) -> Lookup:
        """Asks for all of the prompt's blocks except the last token's: that token has to be computed."""
        request, size = known.request, self._model.block_size
        tails: list[int] = []
        if known.modules is not None:
            count = known.modules.needed_count
        else:
            count = min(self._model.hash_count(known.blocks), (request.num_tokens - 1) // size)
            tails = self._tails_of(known.blocks)
        lookup = known.lookup = Lookup(count, time.monotonic(), tails)
        if not self._is_used or known.ending is None or self._is_too_little(max([count * size, *tails[-1:]])):
            return lookup
        if known.failed_loads >= _FAILED_LOADS_MAX or request.skip_reading_prefix_cache or not self._gate.allows():
            return lookup
        names = self._names(known, count)
        if tails:
            names += self._names_of(known, [self._model.tail_hash(known.blocks, tokens) for tokens in tails])
        try:
            for space in self._spaces_of(known):
                lookup.futures.append(
                    space.submit_match(
                        names, deadline=self._options.load_timeout, lease=True, prefetch=True, reuse=known.reuse
                    )
                )
            self._counters["lookups"] += 1
        except Error as error:
            lookup.give_up()
            self._gate.failed(error)
        return lookup

    def _tails_of(self, request: Any) -> list[int]:
        """Token counts inside pages where a hit may end: there another prompt ended, such as that of the turn before."""
        if not self._model.has_tails:
            return []
        size, step = self._model.block_size, self._model.hash_tokens
        end = min(len(request.block_hashes), (request.num_tokens - 1) // step)
        return [n * step for n in range(max(1, end - _TAILS_MAX + 1), end + 1) if n * step % size != 0]

    def _is_too_little(self, tokens: int) -> bool:
        return -(-tokens // self._model.block_size) < max(1, self._options.load_blocks_min)

    def _look_for_answer(self, lookup: Lookup) -> None:
        """Takes the answer if it has come; cancels the lookup after its timeout."""
        if not lookup.is_open:
            return
        if not all(future.done() for future in lookup.futures):
            if time.monotonic() - lookup.asked < self._options.lookup_timeout:
                return
            lookup.give_up()
            self._counters["lookups_timed_out"] += 1
            self._gate.failed(f"no answer within {self._options.lookup_timeout} s")
            return
        futures, lookup.futures = lookup.futures, []
        try:
            matches = [future.result(0) for future in futures]
        except Error as error:
            self._gate.failed(error)
            return
        # Busy: the answer is valid without a lease.
        why = next((each.why for each in matches if each.why is not None and not isinstance(each.why, Busy)), None)
        self._gate.ended(why)
        lookup.is_known = why is None
        self._answer(lookup, matches)

    def _answer(self, lookup: Lookup, matches: list[SetMatchResult]) -> None:
        """Takes the answers for all blocks' names, [group, part, block], then all tails: a match per pipeline stage."""
        groups, size = self._model.groups, self._model.block_size
        lookup.leases = [match.lease for match in matches]
        lookup.asked = time.monotonic()  # the leases' time counts from here
        held, on_disk = self._held(matches, 0, lookup.block_count)
        lookup.on_disk, lookup.hit = on_disk, usable(groups, size, held)
        lookup.memory_hit = usable(groups, size, held & ~on_disk) if on_disk[: lookup.hit].any() else lookup.hit
        if not lookup.tails:
            return
        tail_held, on_disk = self._held(matches, lookup.block_count, len(lookup.tails))
        pages = held[[not group.is_state for group in groups]].all(axis=0)
        leading = lookup.block_count if pages.all() else int(np.argmin(pages))
        for i in range(len(lookup.tails) - 1, -1, -1):
            tokens = lookup.tails[i]
            if tokens <= lookup.hit * size:
                return
            if tokens // size <= leading and tail_held[:, i].all():
                lookup.tail_hit, lookup.is_tail_on_disk = tokens, bool(on_disk[i])
                return

    def _held(
        self, matches: list[SetMatchResult], before: int, count: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """For ``count`` names after ``before``: [group, block], whether all stages hold all parts; and per block, whether any is on a disk."""
        shape = (len(self._model.groups), self._model.part_count, count)
        names = slice(shape[0] * shape[1] * before, shape[0] * shape[1] * (before + count))
        held = np.ones((shape[0], count), bool)
        on_disk = np.zeros(count, bool)
        for match, of_groups in zip(matches, self._block_bytes, strict=True):
            states = np.asarray(match.held)[names].reshape(shape)
            is_right = np.asarray(match.block_bytes)[names].reshape(shape) == of_groups[:, None, None]
            held &= ((states != 0) & is_right).all(axis=1)
            on_disk |= states.max(axis=(0, 1), initial=0) == _ON_DISK
        return held, on_disk

    def matched_tokens(self, known: KnownRequest, computed_tokens: int) -> int | None:
        """How many tokens to load after those that the engine has. None: the store has not answered yet."""
        lookup = known.lookup
        if lookup is None or lookup.is_stale:
            self.release(known)
            lookup = self.look_up(known)
        self._look_for_answer(lookup)
        if lookup.is_open:
            return None
        known.computed = computed_tokens // self._model.block_size
        modules = known.modules
        if modules is not None:  # measurements do not count: computed modules are others, each after those before
            return modules.token_count if lookup.hit == modules.needed_count and computed_tokens == 0 else 0
        more = self._worth_loading(lookup, known.computed)
        return 0 if self._is_too_little(more) else more

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

    def release(self, known: KnownRequest) -> None:
        """Gives up the lookup's or the ended load's leases."""
        lookup, known.lookup = known.lookup, None
        with contextlib.suppress(Error):  # they expire anyway
            for leases in (known.leases, [] if lookup is None else lookup.leases):
                for space, lease in zip(self._spaces_of(known), leases, strict=False):
                    if lease:
                        space.release(lease)
        known.leases = []
        if lookup is not None:
            lookup.give_up()

    # -- loads

    def admitted(self, known: KnownRequest, pages: tuple[list[int], ...], external_tokens: int) -> None:
        """The request has its pages; ``external_tokens`` after the local ones are to be loaded into them."""
        lookup = known.lookup
        if lookup is not None:
            known.admit(lookup)
            self._count_hit(known, lookup, external_tokens)
        if external_tokens == 0:
            self.release(known)
            return
        assert lookup is not None
        size, modules = self._model.block_size, known.modules
        tokens = known.computed * size + external_tokens
        blocks: Blocks
        if modules is None:
            blocks, end = self._blocks_to_load(known, lookup, pages, tokens), tokens // size
            known.load_disk_tokens = lookup.disk_tokens(known.computed, tokens, size)
        else:
            names = known.piece_names(self._model, modules, 0, modules.needed_count)
            blocks, end = modules.pieces_to_load(names, pages[0], size), len(modules.blocks)
            known.load_disk_tokens = modules.tokens_of(lookup.on_disk)
        job = next(self._jobs)
        self._under_way[job] = LoadUnderWay(known, self._model.rank_count * self._model.stage_count)
        self._begun.append(Load(job, known.request.request_id, blocks, modules is not None))
        known.leases, known.lookup = lookup.leases, None
        known.saved = max(known.saved, end)
        known.is_loading, known.load_tokens = True, external_tokens
        self._counters["loads"] += 1

    def take_begun(self) -> list[Load]:
        begun, self._begun = self._begun, []
        return begun

    def _count_hit(self, known: KnownRequest, lookup: Lookup, external_tokens: int) -> None:
        modules = known.modules
        if modules is None:
            size = self._model.block_size
            left = max(0, (lookup.tail_hit or lookup.hit * size) - known.computed * size - external_tokens)
            self._counters["hit_tokens"] += external_tokens + left
            self._counters["computed_hit_tokens"] += left
        elif external_tokens > 0:
            self._counters["hit_tokens"] += external_tokens
            self._counters["modules_loaded"] += modules.module_count
        elif modules.token_count > 0:
            self._counters["modules_computed"] += modules.module_count

    def _blocks_to_load(
        self, known: KnownRequest, lookup: Lookup, pages: tuple[list[int], ...], tokens: int
    ) -> list[Block]:
        """The blocks after the local ones, up to the leading ``tokens``, which may end inside a block."""
        model = self._model
        end, tail = divmod(tokens, model.block_size)
        assert tail in (0, lookup.tail_hit % model.block_size), (tokens, lookup)
        # If a hit ends inside a page, the state there is needed too.
        needed = [
            0 if not group.is_state else end if tail else group.first_needed(end, model.block_size)
            for group in model.groups
        ]
        hashes = model.hashes(known.blocks, known.computed, end)
        if tail:
            hashes.append(model.tail_hash(known.blocks, tokens))
        return known.blocks_in(model, hashes, known.computed, lambda g, i: pages[g][i] if i >= needed[g] else NULL_PAGE)

    def hit_sources(self, request: Any, external_tokens: int) -> dict[CacheHitSource, int]:
        """The sources of the tokens in the load just admitted."""
        known = self._requests.get(request.request_id)
        disk = 0 if known is None else known.load_disk_tokens
        memory = external_tokens - disk
        return {source: n for source, n in ((self._memory, memory), (CacheHitSource.DISK, disk)) if n > 0}

    def received(self, report: Report) -> None:
        """Takes the workers' reports of loads, and their measurements."""
        self._estimate.computed(*report.computed)
        for job, (count, index) in report.loaded.items():
            load = self._under_way[job]
            measured = report.load_seconds.get(job)
            load.seconds = None if measured is None or load.seconds is None else max(load.seconds, measured)
            assert 0 < count <= load.left, (job, count, load.left)
            load.left -= count
            load.missing = first_of(load.missing, index)
            if load.left > 0:
                continue  # the pages count as loaded only after all reports
            del self._under_way[job]
            if self._requests.get(load.of.request.request_id) is load.of:  # otherwise aborted during its load
                self._end(load.of, load)

    def _end(self, known: KnownRequest, load: LoadUnderWay) -> None:
        known.is_loading = False
        self.release(known)
        missing, tokens = load.missing, known.load_tokens
        if missing is not None:  # with several groups the request is computed from its first token
            is_one = len(self._model.groups) == 1
            tokens = (missing - known.load_begin) * self._model.block_size if is_one else 0
            known.saved = min(known.saved, missing)
            known.failed_loads += 1
            self._counters["loads_failed"] += 1
        elif load.seconds is not None and known.modules is None:
            self._estimate.loaded(tokens, known.load_disk_tokens, load.seconds)
        self._counters["loaded_tokens"] += tokens

    # -- the end of a request

    def touch(self, known: KnownRequest, count: int) -> None:
        """Marks the request's leading blocks as used, also those the engine had itself. The store evicts single blocks, and a chain is lost
        with its beginning: the first half is marked once more, to go last.
        """
        model, modules = self._model, known.modules
        has = model.hash_count(known.blocks) if modules is None else len(modules.blocks)
        count = min(count, has, _TOUCHED_NAMES_MAX // (len(model.groups) * model.part_count))
        if known.ending is None or known.is_mixed or not self._gate.allows():
            return
        with contextlib.suppress(Error):  # it is a hint
            for part in (count, count // 2):
                if part > 0:
                    names = self._names(known, part)
                    for space in self._spaces_of(known):
                        space.submit_touch(names, deadline=self._options.load_timeout)
