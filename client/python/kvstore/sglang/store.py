"""One host pool's pages in the store: lookups, loads and saves of many pages in one call."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import torch

from ..doors.door import Door
from ..doors.results import landed, stored
from ..errors import BadRequest, Error, Unsupported
from ..futures import Future
from ..namespaces import Namespace
from ..sets import SetSpace
from .compat import page_bytes
from .model import Options, PoolText, Ranks
from .pools import View, bytes_of, page_ids, view_of
from .rows import Rows

#: Keys are hashes of pages; other keys become names too.
_PAGE_HASH = re.compile("[0-9a-f]{64}")
#: SGLang's batch size for its storage.
_BATCH_PAGES = 128
#: A node takes at least twice as many in one lookup; only lookups with side pools, which have no bound, are longer.
_NAMES_MAX = 1 << 14
#: Bytes per call for pages without lent memory.
_LOOSE_BYTES = 64 << 20

#: Yields while a call is under way; returns whether each page was moved.
Move = Generator[None, None, "list[bool]"]
#: The same for the leading pages, with the reason why not all was moved.
Step = Generator[None, None, "tuple[list[bool], object]"]
#: Pages of the pool itself, or of the copying interface.
Where = "torch.Tensor | Sequence[torch.Tensor]"


def together(moves: Sequence[Move]) -> list[list[bool]]:
    """Runs all moves to their end; their first calls are under way at once."""
    results: list[list[bool] | None] = [None] * len(moves)
    for is_first in (True, False):
        for i, move in enumerate(moves):
            try:
                while results[i] is None:
                    next(move)
                    if is_first:
                        break
            except StopIteration as stop:
                results[i] = stop.value
    return [each if each is not None else [] for each in results]


def _whole(parts: Any) -> list[bool]:
    """For each page, whether all parts are set."""
    return [bool(each) for each in parts.all(axis=1)]


def _end(future: Future[Any] | None) -> None:
    """Cancels an unneeded call and waits for its memory."""
    if future is not None and not future.done():
        future.cancel()
        future.wait()


class Pool:
    """Pages of one host pool, under names of their own. Any thread may call any method.

    1. A page is moved as a whole: True means that all its parts have come, verified, or are stored.
    2. Each call ends at its deadline at the latest.
    3. A pool that ``view_of`` supports is stored in the store's layout, in parts of some heads each, so that engines of other host layouts
       and tensor-parallel sizes can read it. Other pools' pages are stored as they are.
    """

    def __init__(
        self,
        door: Door,
        options: Options,
        ranks: Ranks,
        name: str,
        pool: Any,
        namespace: Callable[[PoolText], Namespace],
    ) -> None:
        self._door = door
        self._options = options
        self._pool = pool
        self.page_size = int(getattr(pool, "page_size", 1) or 1)
        if getattr(pool, "kv_buffer", pool) is None:
            raise Unsupported(f"pool {name}: {type(pool).__name__} has no memory of its own")
        self.view = view_of(pool)
        if self.view is None:
            self.text = self._opaque_text(ranks, name)
            self._parts = range(1)
        else:
            self.text = self._view_text(ranks, name, self.view)
        self.namespace = namespace(self.text)
        self._space: SetSpace = door.open(self.namespace)
        self._load_rows: Rows | None = None
        self._save_rows: Rows | None = None
        self._part_caches: list[Any] = []
        if self.view is not None:
            heads = self.view.heads // len(self._parts)
            self._part_caches = [self.view.cache.slice_heads(i * heads, heads) for i in range(len(self._parts))]
            part = self.view.layout.slice_heads(0, heads)
            # The first pool gets the largest share; side pools move windows and states.
            share = options.staging_bytes // (2 if name == "kv" else 16)
            held = len(self._parts)
            most = min(share // part.store_block_bytes, _BATCH_PAGES * held, int(pool.page_num) * held)
            count = max(held, most // held * held)
            self._load_rows, self._save_rows = Rows(door.client, part, count), Rows(door.client, part, count)

    @property
    def page_bytes(self) -> int:
        return self.text.block_bytes * len(self._parts)

    def is_of(self, pool: Any) -> bool:
        return pool is self._pool

    def _dtype(self) -> str:
        return str(self._pool.dtype).removeprefix("torch.")

    def _tagged(self, text: str) -> str:
        """Adds SGLang's own page format tag, if the pool has one."""
        tag = getattr(self._pool, "storage_format_tag", None)
        return text if tag is None else f"{text} {tag}"

    def _layers(self) -> tuple[int, int]:
        first = int(getattr(self._pool, "start_layer", 0) or 0)
        return first, max(first + 1, int(getattr(self._pool, "end_layer", 0) or 0))

    def _opaque_text(self, ranks: Ranks, name: str) -> PoolText:
        nbytes = page_bytes(self._pool.get_dummy_flat_data_page())
        # States are divided among ranks even if the rest is replicated.
        is_ranked = ranks.tp_size > 1 and (not ranks.is_replicated or name == "mamba")
        return PoolText(
            name,
            f"sglang-{getattr(self._pool, 'layout', '')}",
            self._dtype(),
            self.page_size,
            self._tagged(f"{type(self._pool).__name__} {getattr(self._pool, 'layer_num', '')}x{nbytes}"),
            nbytes,
            1,
            f"{ranks.tp_rank} of {ranks.tp_size}" if is_ranked else None,
            self._layers(),
        )

    def _view_text(self, ranks: Ranks, name: str, view: View) -> PoolText:
        is_latent = "latent" in view.text
        shards = 1 if is_latent else ranks.tp_size
        parts = 1 if is_latent else (self._options.head_groups or shards)
        if parts % shards != 0:
            raise BadRequest(f"head_groups is {parts}, which {shards} tensor-parallel ranks do not divide")
        held = parts // shards
        if view.heads % held != 0:
            raise BadRequest(
                f"head_groups is {parts}: {view.heads} kv heads of a rank cannot be divided into {held} parts"
            )
        rank = 0 if is_latent else ranks.tp_rank
        self._parts = range(rank * held, (rank + 1) * held)
        nbytes = view.layout.slice_heads(0, view.heads // held).store_block_bytes
        # With more ranks than kv heads, ranks hold the same head: the count of "heads" is that of ranks, and other sizes do not share.
        text = self._tagged(f"{view.heads * shards} heads of {view.text}")
        return PoolText(name, "store", self._dtype(), self.page_size, text, nbytes, parts, None, self._layers())

    # -- names

    def names(self, keys: Sequence[str], epoch: bytes) -> list[bytes]:
        """Names of the keys' parts on this rank, as [key, part]."""
        made = []
        for key in keys:
            raw = bytes.fromhex(key) if _PAGE_HASH.fullmatch(key) else b"key " + key.encode()
            raw += epoch
            if self.text.part_count == 1:
                made.append(raw)
            else:
                made += [raw + b"/" + part.to_bytes(4, "big") for part in self._parts]
        return made

    # -- calls

    def look(self, keys: Sequence[str], epoch: bytes, until: float) -> Generator[None, None, list[bool]]:
        """Which of the pages are held."""
        gate = self._door.lookups
        left = until - time.monotonic()
        if not keys or left <= 0 or not gate.allows():
            return [False] * len(keys)
        names = self.names(keys, epoch)
        futures = [
            self._space.submit_match(names[i : i + _NAMES_MAX], deadline=left, prefetch=True)
            for i in range(0, len(names), _NAMES_MAX)
        ]
        yield
        matches = [future.result() for future in futures]
        gate.ended(next((match.why for match in matches if match.why is not None), None))
        held = _whole(np.concatenate([np.asarray(match.held) for match in matches]).reshape(len(keys), -1) > 0)
        self._door.count("hit_pages", sum(held))
        return held

    def load(self, keys: Sequence[str], where: Any, epoch: bytes, until: float) -> Move:
        done = yield from self._step_by_step("loads", self._load_step, keys, where, epoch, until)
        self._door.count("loaded_pages", sum(done))
        self._door.count("loaded_bytes", sum(done) * self.page_bytes)
        self._door.count("missing_pages", len(keys) - sum(done))
        return done

    def _step_by_step(
        self, kind: str, step: Callable[..., Step], keys: Sequence[str], where: Any, epoch: bytes, until: float
    ) -> Move:
        """Takes steps until all pages are moved, or one falls short."""
        done: list[bool] = []
        gate = self._door.gates[kind]
        is_whole = True
        while is_whole and len(done) < len(keys) and gate.allows():
            try:
                moved, why = yield from step(keys[len(done) :], where, len(done), epoch, until)
            except Error as error:
                gate.ended(error)
                break
            if not moved:
                break
            gate.ended(why)
            is_whole = why is None
            done += moved
        return done + [False] * (len(keys) - len(done))

    def _load_step(self, keys: Sequence[str], where: Any, first: int, epoch: bytes, until: float) -> Step:
        """Loads as many pages as lent memory allows; returns which have come, and why others have not."""
        rows = self._load_rows
        if rows is None:
            return (yield from self._load_loose(keys, where, first, epoch, until))
        held = len(self._parts)
        taken = rows.take(held, held * len(keys), until)
        count = len(taken) // held
        if count == 0:
            return [], None
        is_doubtful = True
        future: Future[Any] | None = None
        try:
            left = max(until - time.monotonic(), 0.001)
            future = self._space.submit_get(self.names(keys[:count], epoch), rows.rows, rows=taken, deadline=left)
            yield
            got = future.result()
            is_doubtful = got.why is not None
            are_here = _whole(landed(got, self.text.block_bytes).reshape(count, held))
            mine = [i for i, is_here in enumerate(are_here) if is_here]
            self._scatter(rows, taken, mine, where, first, count)
            return are_here, got.why
        finally:
            _end(future)
            rows.give(taken, is_doubtful=is_doubtful)

    def _scatter(self, rows: Rows, taken: list[int], mine: list[int], where: Any, first: int, count: int) -> None:
        held = len(self._parts)
        if not mine:
            return
        if isinstance(where, torch.Tensor):
            tokens = self.page_size
            ids = page_ids(self._pool, where[first * tokens : (first + count) * tokens], count)
            for k, pages in enumerate(self._part_caches):
                rows.scatter(pages, [ids[i] for i in mine], [taken[i * held + k] for i in mine])
            return
        for i in mine:
            for k, pages in enumerate(self._page_parts(where[first + i])):
                rows.scatter(pages, [0], [taken[i * held + k]])

    def _page_parts(self, page: torch.Tensor) -> list[Any]:
        assert self.view is not None
        if page_bytes(page) != self.page_bytes or not page.is_contiguous():
            raise ValueError(f"a page of {page_bytes(page)} bytes, the pool's have {self.page_bytes}")
        cache = self.view.page(page)
        heads = self.view.heads // len(self._parts)
        return [cache.slice_heads(i * heads, heads) for i in range(len(self._parts))]

    def _load_loose(self, keys: Sequence[str], where: Any, first: int, epoch: bytes, until: float) -> Step:
        """The same for pages stored as they are: into separate memory first, so that a page is written whole."""
        count = max(1, min(len(keys), _LOOSE_BYTES // self.text.block_bytes))
        is_pool = isinstance(where, torch.Tensor)
        pages = [self._pool.get_dummy_flat_data_page() if is_pool else where[first + i] for i in range(count)]
        self._check_loose(pages)
        left = max(until - time.monotonic(), 0.001)
        views = [bytes_of(page).numpy() for page in pages]
        future = self._space.submit_get(self.names(keys[:count], epoch), views, deadline=left)
        try:
            yield
            got = future.result()
        finally:
            _end(future)
        are_here = [bool(each) for each in landed(got, self.text.block_bytes)]
        if is_pool:
            self._check_indices(where, first, count)
            for i in np.flatnonzero(are_here):
                self._pool.set_from_flat_data_page(int(where[(first + int(i)) * self.page_size]), pages[int(i)])
        return are_here, got.why

    def _check_loose(self, pages: Sequence[torch.Tensor]) -> None:
        for page in pages:
            if page_bytes(page) != self.text.block_bytes:
                raise ValueError(f"a page of {page_bytes(page)} bytes, the pool's have {self.text.block_bytes}")

    def _check_indices(self, where: torch.Tensor, first: int, count: int) -> None:
        if where.numel() < (first + count) * self.page_size:
            raise ValueError(f"{where.numel()} host indices of {first + count} pages of {self.page_size} tokens")

    def save(self, keys: Sequence[str], where: Any, epoch: bytes, until: float) -> Move:
        done = yield from self._step_by_step("saves", self._save_step, keys, where, epoch, until)
        self._door.count("stored_pages", sum(done))
        self._door.count("stored_bytes", sum(done) * self.page_bytes)
        self._door.count("refused_pages", len(keys) - sum(done))
        return done

    def _save_step(self, keys: Sequence[str], where: Any, first: int, epoch: bytes, until: float) -> Step:
        rows, held = self._save_rows, len(self._parts)
        taken: list[int] = []
        blocks: Any
        if rows is not None:
            taken = rows.take(held, held * len(keys), until)
            count = len(taken) // held
            if count == 0:
                return [], None
            blocks = rows.rows
        else:
            count = max(1, min(len(keys), _LOOSE_BYTES // self.text.block_bytes))
            blocks = self._loose_pages(where, first, count)
        future: Future[Any] | None = None
        try:
            if rows is not None:
                self._gather(rows, taken, where, first, count)
            left = max(until - time.monotonic(), 0.001)
            names = self.names(keys[:count], epoch)
            future = self._space.submit_put(names, blocks, rows=taken if rows is not None else None, deadline=left)
            yield
            put = future.result()
            are_there = _whole(stored(put).reshape(count, held))
            return are_there, None if any(are_there) else put.why
        finally:
            _end(future)
            if rows is not None:
                rows.give(taken)

    def _gather(self, rows: Rows, taken: list[int], where: Any, first: int, count: int) -> None:
        held = len(self._parts)
        if isinstance(where, torch.Tensor):
            tokens = self.page_size
            ids = page_ids(self._pool, where[first * tokens : (first + count) * tokens], count)
            for k, pages in enumerate(self._part_caches):
                rows.gather([taken[i * held + k] for i in range(count)], pages, ids)
            return
        for i in range(count):
            for k, pages in enumerate(self._page_parts(where[first + i].contiguous())):
                rows.gather([taken[i * held + k]], pages, [0])

    def _loose_pages(self, where: Any, first: int, count: int) -> list[Any]:
        if isinstance(where, torch.Tensor):
            self._check_indices(where, first, count)
            pages = [
                self._pool.get_data_page(int(where[(first + i) * self.page_size]), flat=True) for i in range(count)
            ]
        else:
            pages = list(where[first : first + count])
        self._check_loose(pages)
        return [bytes_of(page.contiguous()).numpy() for page in pages]
