"""The scheduler half's puts: which computed blocks are stored, and which pages these saves hold."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from ..doors.door import Door
from .adapters import Adapters
from .messages import Blocks, Report, Save
from .model import Model
from .requests import NULL_PAGE, KnownRequest

#: How long a request that needs a page waits for stalled saves before vLLM preempts another one.
_STUCK_SECONDS = 0.02
#: Share of the engine's pages that saves may hold.
_HELD_FRACTION = 0.25

#: Groups' states that a step has left behind: (group, page, tokens before), and the pages by the other two.
States: TypeAlias = "Sequence[tuple[int, int, int]]"
Kept: TypeAlias = "dict[tuple[int, int], int]"


class SchedulerSaves:
    """Plans saves, and holds their pages. vLLM's own cache, and other connectors, put pages before a request's own.

    1. Each save references its pages until every worker has reported the job, whatever happens to the request.
    2. A block is given to at most one save of a request, and only after the step that fills it was scheduled.
    3. Saves hold at most a quarter of the engine's pages. Blocks beyond that are not stored.
    4. Blocks loaded by another connector are stored only after a step that read them has ended and reported failures.
    5. A request that begins with pages of other weights, or of unknown ones, stores no blocks.
    """

    def __init__(
        self, model: Model, door: Door, adapters: Adapters, requests: Mapping[str, KnownRequest], *, is_used: bool
    ) -> None:
        """``requests``: all unfinished ones. ``is_used``: whether this engine stores."""
        self._model, self._adapters = model, adapters
        self._requests, self._is_used = requests, is_used
        self._save_decode, self._gate, self._counters = model.options.save_decode, door.lookups, door.counters
        self._manager: Any = None
        self._jobs = itertools.count(1)
        #: For the next step.
        self._begun: list[Save] = []
        #: For each job: its pages, and how many workers have yet to report.
        self._held: dict[int, tuple[list[Any], int]] = {}
        self._held_count = 0
        self._held_max = int(model.page_count * _HELD_FRACTION)
        #: When a worker last gave pages back, or the only save began.
        self._moved = 0.0
        #: Requests with blocks loaded by other connectors, until a step with them has ended.
        self._doubtful: dict[str, KnownRequest] = {}
        #: Whether any request has set a weights_epoch; the epoch of each page filled since.
        self.has_epochs = False
        self._page_epochs: dict[int, bytes | None] = {}

    def bind(self, manager: Any) -> None:
        self._manager = manager

    # -- pages

    @property
    def _room(self) -> int:
        """How many more pages may wait to be stored."""
        return max(0, self._held_max - self._held_count) if self._gate.allows() else 0

    @property
    def has_pending(self) -> bool:
        return bool(self._held)

    @property
    def will_free_pages(self) -> bool:
        """Whether waiting for saves is better than preempting. A stalled node must not stop running requests."""
        return self.has_pending and time.monotonic() - self._moved < _STUCK_SECONDS

    def _begin(self, known: KnownRequest, blocks: Blocks, token_count: int) -> None:
        """Adds the save to the next step. It holds references to its pages."""
        job = next(self._jobs)
        pool = self._manager.block_pool
        held = [pool.blocks[block.page] for block in blocks]
        pool.touch(held)
        if not self._held:
            self._moved = time.monotonic()
        self._held[job] = held, self._model.rank_count * self._model.stage_count
        self._held_count += len(held)
        adapter = None if known.adapter is None else self._adapters.tag(known.adapter)
        self._begun.append(Save(job, blocks, known.reuse, adapter, known.modules is not None))
        self._counters["saved_blocks"] += len(blocks)
        self._counters["saved_tokens"] += token_count

    def take_begun(self) -> list[Save]:
        begun, self._begun = self._begun, []
        return begun

    def received(self, report: Report) -> None:
        """Frees the pages that no worker needs any more."""
        if report.gathered:
            self._moved = time.monotonic()
        for job, count in report.gathered.items():
            held, left = self._held[job]
            assert 0 < count <= left, (job, count, left)
            if count < left:
                self._held[job] = held, left - count
                continue
            del self._held[job]
            self._held_count -= len(held)
            self._manager.block_pool.free_blocks(reversed(held))  # a chain's end is reused first

    # -- where a request's pages are from

    def note(self, scheduled: list[tuple[KnownRequest, int]]) -> None:
        """The next step's requests, and how many tokens of each it computes."""
        self._doubt([known for known, _ in scheduled if known.is_fresh])
        if self.has_epochs:
            self._note_epochs(scheduled)

    def _doubt(self, fresh: list[KnownRequest]) -> None:
        """Blocks of a request in its first step that neither the engine had nor this connector loaded come from another connector, which
        reports failures only at the step's end. Until then any request may share these blocks.
        """
        for request_id, known in list(self._doubtful.items()):
            if _is_settled(known) or self._requests.get(request_id) is not known:
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
        """Records the epoch of each page that a request fills, since vLLM's own cache ignores a request's weights_epoch."""
        size = self._model.block_size
        for known, token_count in scheduled:
            end = (known.request.num_computed_tokens + token_count) // size
            if end > known.noted:
                for table in self._manager.get_block_ids(known.request.request_id):
                    self._page_epochs.update(dict.fromkeys(table[known.noted : end], known.epoch))
                known.noted = end
        for known, _ in scheduled:
            if known.is_fresh:
                # A page in which the request began is a copy without a recorded epoch.
                begins_inside = self._model.has_tails and known.request.num_computed_tokens % size != 0
                known.is_mixed = (begins_inside and known.load_tokens == 0) or any(
                    page != NULL_PAGE and self._page_epochs.get(page, b"") != known.epoch
                    for table in self._manager.get_block_ids(known.request.request_id)
                    for page in table[: known.load_begin]
                )

    # -- blocks

    def _may_save(self, known: KnownRequest) -> bool:
        if not self._is_used or not known.is_admitted or known.is_fresh or known.is_loading:
            return False
        return _is_settled(known) and known.ending is not None and not known.is_mixed

    def save(
        self, known: KnownRequest, token_count: int, pages: tuple[list[int], ...] | None = None, states: States = ()
    ) -> None:
        """Stores the blocks of ``token_count`` known tokens, computed once this step has run. ``states``: left behind by the step."""
        end = self._end(known, token_count) if self._may_save(known) else 0
        if end <= known.saved:
            return
        tables = pages or self._manager.get_block_ids(known.request.request_id)
        first, known.saved = known.saved, end
        model, modules, room = self._model, known.modules, self._room
        blocks: Blocks
        if modules is None:
            kept, size = _kept(states), model.block_size
            hashes = model.hashes(known.blocks, first, end)
            blocks = known.blocks_in(model, hashes, first, lambda g, i: self._page(tables, kept, g, i, (i + 1) * size))
            tokens = len({block.block_index for block in blocks[:room]}) * model.block_size
        else:
            names = known.piece_names(model, modules, first, end)
            blocks = modules.pieces(names, first, tables[0], model.block_size)
            tokens = sum(piece.token_count for piece in blocks[:room])
        self._counters["unsaved_blocks"] += max(0, len(blocks) - room)
        if blocks[:room]:
            self._begin(known, blocks[:room], tokens)

    def _end(self, known: KnownRequest, token_count: int) -> int:
        """How many leading blocks may be stored. Blocks of modules behind the first were computed after others, unless they were loaded."""
        size = self._model.block_size
        if known.modules is not None:
            return 0 if known.told.why_no_modules else known.modules.computed_count(token_count, size)
        end = min(self._model.hash_count(known.blocks), token_count // size)
        return end if self._save_decode else min(end, known.request.num_prompt_tokens // size)

    def _page(self, tables: tuple[list[int], ...], kept: Kept, group: int, index: int, tokens: int) -> int:
        """The page of a group's block, or where the step has left the group's state after ``tokens``."""
        if self._model.groups[group].is_state:
            return kept.get((group, tokens), NULL_PAGE)
        table = tables[group]
        return table[index] if index < len(table) else NULL_PAGE

    def save_tails(self, known: KnownRequest, states: States, pages: tuple[list[int], ...] | None = None) -> None:
        """Stores states that end inside a page, where the engine has kept the states of all groups: the states, and the page of each other
        group as it is. Only that page's leading tokens count; the content after them is arbitrary.
        """
        model, size, request = self._model, self._model.block_size, known.request
        if not model.has_tails or not states or not self._may_save(known):
            return
        tables = pages or self._manager.get_block_ids(request.request_id)
        kept = _kept(states)
        for tokens in dict.fromkeys(each for _, _, each in states if each % size != 0):
            if not self._save_decode and tokens > request.num_prompt_tokens:
                continue
            page_of = partial(self._page, tables, kept, tokens=tokens)
            blocks = known.blocks_in(model, [model.tail_hash(known.blocks, tokens)], tokens // size, page_of)
            if len(blocks) < len(model.groups):
                continue  # a load needs all groups
            if len(blocks) > self._room:
                self._counters["unsaved_blocks"] += len(blocks)
                continue
            self._begin(known, blocks, tokens % size)


def _is_settled(known: KnownRequest) -> bool:
    """Whether a step has ended that read the blocks which another connector may have loaded."""
    request = known.request
    return bool(request.num_computed_tokens - request.num_in_flight_tokens > known.doubtful_tokens)


def _kept(states: States) -> Kept:
    return {(group, tokens): page for group, page, tokens in states}
