"""The connector's half in a worker: moves blocks between the engine's pages and lent memory, and between that and the store."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.logger import init_logger

from ..device import Event, warm_up
from ..doors.door import FLUSH_SECONDS, Door, take_ended, wait_for
from ..doors.results import STORED, landed
from ..errors import Error
from ..futures import Future
from ..sets import SetGetResult, SetPutResult
from . import compat
from .adapters import LoadedAdapters
from .estimate import DeviceClock, HostClock
from .identity import Loaded, is_named
from .messages import Blocks, Load, Report, Save, Stage, Step, first_of
from .model import Model
from .module_pages import pages_of_modules
from .modules import module_namespace
from .pages import Line, Staging, bind_pages, device_of
from .stats import KVStoreStats

logger = init_logger("vllm.kvstore")


#: The end of a load shows only between steps: it is measured if steps took at most this share of its time.
_COMPUTED_SHARE_MAX = 0.25


@dataclass
class _Load:
    """A load under way. ``unsent`` is the index of the first block not yet asked for, ``missing`` is the first that will not come."""

    load: Load
    began: float
    #: Seconds the worker had spent on the model until then.
    computed_before: float = 0.0
    #: On a GPU: the engine's work enqueued before the load. It may still use the pages, to zero them or for their last request.
    after: Event | None = None
    unsent: int = 0
    parts: int = 0
    missing: int | None = None

    def miss(self, blocks: Blocks) -> None:
        missing = min((block.block_index for block in blocks), default=None)
        if missing is not None and self.load.are_pieces:
            missing = self.load.blocks[0].block_index  # of modules all are loaded, or none
        self.missing = first_of(self.missing, missing)

    @property
    def is_over(self) -> bool:
        return self.parts == 0 and self.unsent == len(self.load.blocks)


@dataclass
class _Part:
    """A get of some of a load's blocks: all, unless the lent memory is too small."""

    of: _Load
    blocks: Blocks
    rows: list[int]
    future: Future[SetGetResult]


@dataclass
class _Scatter:
    """Rows that a GPU copies into pages until ``event``; None: the copy is done."""

    event: Event | None
    rows: list[int]
    is_doubtful: bool


@dataclass
class _Save:
    """A save: ``sent`` leading blocks were given to gathers, and ``gathers`` are under way."""

    save: Save
    began: float
    sent: int = 0
    gathers: int = 0


@dataclass
class _Gather:
    """Pages that a GPU copies into rows until ``event``; None: the copy is done."""

    of: _Save
    blocks: Blocks
    rows: list[int]
    event: Event | None


@dataclass
class _Put:
    rows: list[int]
    sizes: npt.NDArray[np.int64]
    future: Future[SetPutResult]


class WorkerSide:
    """Runs on the worker's thread. Bytes move between lent memory and nodes on the client's own thread, without the GIL; between lent
    memory and pages on this thread between two steps, or, for a GPU's pages, on the GPU.

    1. Only this thread reads and writes pages, and never while the model runs: a step's blocks are gathered after it, and the scheduler
       gave the scattered pages to the load. On a GPU, events keep this order: a gather follows all the engine had enqueued at its step's
       end, a scatter all it had enqueued when the load began, and work enqueued after a load's report follows the load's scatters.
    2. A load is reported once, a little after its timeout at the latest, with its first missing block.
    3. A save is reported once: gathered, or given up. Its timeout bounds both. Pages that a GPU still reads are never reported.
    4. Without the store, calls do not raise: loads are missing, saves are given up.
    5. A row has one user until its copy is over: nodes get no row that a GPU still writes, and rows it still reads are not lent.
    """

    def __init__(
        self, model: Model, rank: int, tensors: dict[str, torch.Tensor], worker: Any, number: int, config: Any
    ) -> None:
        """``worker``: vLLM's, with the model; ``number`` counts all workers of the engine, ``rank`` those of its stage."""
        assert model.namespace is not None
        self._options, self._groups, self._number = model.options, model.groups, number
        self._weights = Loaded(worker)
        self._adapters = LoadedAdapters(worker)
        self._is_named = is_named(model.namespace.fields)
        if not self._is_named and not self._weights.is_seen:
            logger.warning(
                "kvstore: weights are no files on this machine, and this processor's kernels hide them: no engine shares with this one"
            )
        modules, why_no_modules = pages_of_modules(model, tensors, worker, config)
        #: Sent to the scheduler's half before any lookup.
        self.stage = Stage(
            model.namespace.text,
            tuple(group.block_bytes for group in model.groups),
            self._weights.digest(self._is_named),
            self._is_named,
            why_no_modules,
        )
        pages, options = bind_pages(model, tensors), model.options
        device = device_of(pages)
        self._door = Door(options, f"vllm-worker-{rank}", logger, numa_nodes=options.numa_nodes, device=device)
        self.counters = self._door.counters
        #: Of exact prefixes, and of pieces.
        self._spaces = {False: self._door.open(model.namespace, patience=options.load_timeout)}
        if modules is not None:  # opens in the background: few engines ever need it
            self._spaces[True] = self._door.open(module_namespace(model.namespace))
        if device is not None:
            warm_up(device)  # otherwise the first load pays for it
        #: One for each direction, with a line of its own: a gather waits for the end of a step, which loads need not.
        self._load_rows, self._save_rows = (
            Staging(self._door.client, model, rank, pages, modules, Line(device)) for _ in range(2)
        )
        for staging in (self._load_rows, self._save_rows):
            try:
                staging.lend(options.load_timeout)
            except Error as error:
                logger.info("kvstore: memory will be lent later: %s", error)
        self._does_save = rank % model.replicas == 0
        self._loads: deque[_Load] = deque()
        self._parts: list[_Part] = []
        #: Pages that ended loads have left unfilled.
        self._bad_pages: set[int] = set()
        self._scatters: deque[_Scatter] = deque()
        #: Saves with blocks that wait for a gather.
        self._saves: deque[_Save] = deque()
        self._gathers: deque[_Gather] = deque()
        self._puts: list[_Put] = []
        self._report = Report(stages={number: self.stage})
        self._clock = HostClock() if device is None else DeviceClock(compat.timed_event)
        self._computed_seconds = 0.0

    def begin_step(self, step: Step) -> None:
        if step.reset:
            self._report.weights[self._number] = step.reset, self._weights.digest(self._is_named)
        self._clock.begin(step.token_count)

    # -- loads

    def start_step(self, step: Step) -> None:
        now = time.monotonic()
        after = self._load_rows.line.now() if step.loads else None
        computed = self._computed_seconds + self._clock.so_far()
        self._loads.extend(_Load(load, now, computed, after) for load in step.loads)
        self._send_loads()
        self._clock.leave_out(time.monotonic() - now)

    def _send_loads(self) -> None:
        """Asks for as many blocks as the lent memory holds, load after load."""
        now = time.monotonic()
        self._end_scatters()
        for each in self._loads:
            blocks = each.load.blocks
            while each.unsent < len(blocks):
                left = each.began + self._options.load_timeout - now
                free = self._load_rows.free_blocks
                is_stuck = free == 0 and not self._parts and not self._scatters
                if left <= 0 or not self._door.loads.allows() or is_stuck:
                    each.miss(blocks[each.unsent :])
                    each.unsent = len(blocks)
                    break
                if free == 0:
                    return  # the parts under way give theirs back
                self._ask(each, blocks[each.unsent : each.unsent + free], left)

    def _ask(self, load: _Load, blocks: Blocks, deadline: float) -> None:
        load.unsent += len(blocks)
        rows, get = self._load_rows.take_for(blocks), self._spaces[load.load.are_pieces].submit_get
        names = self._load_rows.names(blocks)
        future = self._door.loads.begin(partial(get, names, self._load_rows.rows, rows=rows, deadline=deadline))
        if future is None:
            self._load_rows.give(rows, is_doubtful=True)
            load.miss(blocks)
        else:
            self._parts.append(_Part(load, blocks, rows, future))
            load.parts += 1

    def end_loads(self) -> KVConnectorTransferResults:
        """Scatters landed blocks into their pages. Returns the requests whose loads have ended since the last call, and those that failed
        where page numbers alone do not identify the request: with several groups.
        """
        for part in take_ended(self._parts):
            self._end_part(part)
        self._send_loads()
        ended = KVConnectorTransferResults()
        for each in [each for each in self._loads if each.is_over]:
            self._loads.remove(each)
            request = each.load.request_id
            ended.finished_recving.add(request)
            self._report.loaded[each.load.job] = 1, each.missing
            if each.missing is None:
                seconds = time.monotonic() - each.began
                if self._computed_seconds - each.computed_before <= seconds * _COMPUTED_SHARE_MAX:
                    self._report.load_seconds[each.load.job] = seconds
            elif len(self._groups) > 1:
                ended.failed_recving.add(request)
            else:
                blocks = each.load.blocks
                self._bad_pages |= {
                    page for block in blocks if block.block_index >= each.missing for page in block.pages
                }
        return ended

    def take_bad_pages(self) -> set[int]:
        pages, self._bad_pages = self._bad_pages, set()
        return pages

    def _end_part(self, part: _Part) -> None:
        part.of.parts -= 1
        got = self._door.loads.begin(part.future.result)
        if got is None:
            self._lose(part)
            self.counters["missing_blocks"] += len(part.blocks)
            return
        sizes = self._load_rows.sizes(part.blocks)
        are_here = self._load_rows.whole(landed(got, sizes))
        try:
            event = self._scatter(part, are_here)
        except Error as error:  # from the GPU
            self._lose(part)
            self._door.loads.failed(error)
            return
        part.of.miss([block for block, is_here in zip(part.blocks, are_here, strict=True) if not is_here])
        self.counters["loaded_blocks"] += sum(are_here)
        self.counters["loaded_bytes"] += int(sizes.reshape(len(are_here), -1)[are_here].sum())
        self.counters["missing_blocks"] += len(are_here) - sum(are_here)
        self._door.loads.ended(got.why)
        self._scatters.append(_Scatter(event, part.rows, is_doubtful=got.why is not None))
        self._end_scatters()

    def _lose(self, part: _Part) -> None:
        self._load_rows.give(part.rows, is_doubtful=True)
        part.of.miss(part.blocks)

    def _scatter(self, part: _Part, are_here: list[bool]) -> Event | None:
        """Scatters the landed blocks into their pages. On a GPU this is enqueued, with the engine's next step behind it."""
        line = self._load_rows.line
        line.wait(part.of.after)
        count = len(part.rows) // len(part.blocks)
        mine = [i for i, is_here in enumerate(are_here) if is_here]
        rows = [row for i in mine for row in part.rows[i * count : (i + 1) * count]]
        try:
            self._load_rows.scatter([part.blocks[i] for i in mine], rows)
        finally:  # also after work that was enqueued before an error
            event = line.record()
            line.hold_engine(event)
        return event

    def _end_scatters(self) -> None:
        """Returns the rows of finished scatters. They end in stream order."""
        while self._scatters and (self._scatters[0].event is None or self._scatters[0].event.is_passed):
            over = self._scatters.popleft()
            self._load_rows.give(over.rows, is_doubtful=over.is_doubtful)

    # -- saves

    def end_step(self, step: Step) -> None:
        """The step is computed: gathers its blocks, and those left over from earlier steps."""
        now = time.monotonic()
        seconds, measured = self._clock.end(step.token_count)
        self._computed_seconds += seconds
        if measured:  # only some steps are reported: each report costs the scheduler time
            self._report.computed = measured[-1]
        self._report.adapters.update((each, {self._number: now}) for each, now in self._adapters.news(step.adapters))
        self._end_puts()
        self._end_gathers()
        self._saves.extend(_Save(save, now, self._sent_before(save)) for save in step.saves)
        computed = self._save_rows.line.now() if self._saves else None
        while self._saves:
            each = self._saves[0]
            blocks = each.save.blocks
            if not self._does_save:
                each.sent = len(blocks)
            elif not self._door.saves.allows() or now - each.began > self._options.save_timeout:
                self.counters["dropped_blocks"] += len(blocks) - each.sent
                each.sent = len(blocks)
            elif each.sent < len(blocks):
                free = self._save_rows.free_blocks
                if free == 0:
                    break
                self._gather(each, blocks[each.sent : each.sent + free], computed)
                continue
            self._saves.popleft()
            self._report_gathered(each)
        self._end_gathers()

    def _sent_before(self, save: Save) -> int:
        """All of the save's blocks, if their names have an adapter other than the one that computed them; else 0."""
        if save.adapter is None:
            return 0
        number, expected = save.adapter
        if self._adapters.digest(number) == expected.get(self._number):
            return 0
        self.counters["dropped_blocks"] += len(save.blocks)
        return len(save.blocks)

    def _report_gathered(self, save: _Save) -> None:
        if save.gathers == 0 and save.sent == len(save.save.blocks):
            self._report.gathered[save.save.job] = 1

    def _gather(self, of: _Save, blocks: Blocks, computed: Event | None) -> None:
        """Gathers blocks into rows. On a GPU this is enqueued after ``computed``, the step's end."""
        line = self._save_rows.line
        of.sent += len(blocks)
        rows = self._save_rows.take_for(blocks)
        try:
            line.wait(computed)
            event = self._save_rows.gather(blocks, rows)
        except Error as error:  # from the GPU
            self._save_rows.give(rows, is_doubtful=True)
            self._door.saves.failed(error)
            self.counters["refused_blocks"] += len(rows)
            return
        if any(self._groups[block.group].is_state for block in blocks):
            line.hold_engine(event)  # a step overwrites the previous step's state
        of.gathers += 1
        self._gathers.append(_Gather(of, blocks, rows, event))

    def _end_gathers(self) -> None:
        """Sends complete rows to the store. Gathers end in stream order."""
        while self._gathers and (self._gathers[0].event is None or self._gathers[0].event.is_passed):
            over = self._gathers.popleft()
            over.of.gathers -= 1
            self._put(over.of.save, over.blocks, over.rows)
            self._report_gathered(over.of)

    def _put(self, save: Save, blocks: Blocks, rows: list[int]) -> None:
        put, names, sizes = (
            self._spaces[save.are_pieces].submit_put,
            self._save_rows.names(blocks),
            self._save_rows.sizes(blocks),
        )
        timeout, reuse = self._options.save_timeout, save.reuse
        if len(self._groups) == 1:
            put_it = partial(put, names, self._save_rows.rows, rows=rows, deadline=timeout, reuse=reuse)
        else:
            views = [self._save_rows.rows[row, :size] for row, size in zip(rows, sizes, strict=True)]
            put_it = partial(put, names, views, deadline=timeout, reuse=reuse)
        future = self._door.saves.begin(put_it)
        if future is None:
            self._save_rows.give(rows)
            self.counters["refused_blocks"] += len(rows)
        else:
            self._puts.append(_Put(rows, sizes, future))

    def _end_puts(self) -> None:
        for each in take_ended(self._puts):
            self._save_rows.give(each.rows)
            put = self._door.saves.result(each.future)
            if put is None:
                self.counters["refused_blocks"] += len(each.rows)
                continue
            self.counters["stored_blocks"] += put.stored
            self.counters["stored_bytes"] += int(each.sizes[put.states == STORED].sum())
            self.counters["already_stored_blocks"] += put.already_stored + put.conflicts
            self.counters["refused_blocks"] += put.refused

    def take_report(self) -> Report | None:
        report, self._report = self._report, Report()
        has_news = report.gathered or report.loaded or report.stages or report.weights or report.adapters
        return report if has_news or report.computed[0] > 0 else None

    # -- life

    def take_stats(self) -> KVStoreStats | None:
        return KVStoreStats.of(self._door)

    def close(self) -> None:
        """Gathered blocks get up to one more second to reach the store."""
        until = time.monotonic() + FLUSH_SECONDS
        wait_for((gather.event for gather in self._gathers if gather.event is not None), until)
        self._end_gathers()
        wait_for((each.future for each in self._puts), until)
        self._end_puts()
        self._door.close()
