"""One host pool's pages in the store: lookups, loads and saves of many pages in one call."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from ..doors.door import Door
from ..doors.identity import short
from ..doors.results import landed, stored
from ..errors import BadRequest, Error, Unsupported
from ..futures import Future
from ..layouts import Cache
from ..namespaces import Namespace
from ..sets import SetSpace
from .compat import page_bytes
from .model import Options
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
Where: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"


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


#: Some of a batch's pages: which, the caches of their parts, and the pages' numbers in these.
_Place: TypeAlias = "tuple[range, list[Cache], list[int]]"


class _InRows:
    """A batch of pages that goes through lent memory, in the store's layout. Rows are taken as [page, part]."""

    def __init__(self, lent: Rows, taken: list[int], count: int, places: Iterator[_Place]) -> None:
        self._lent, self._places = lent, places
        self.blocks, self.rows, self.count = lent.rows, taken, count

    def _rows_of(self, pages: Iterable[int], part: int) -> list[int]:
        held = len(self.rows) // self.count
        return [self.rows[page * held + part] for page in pages]

    def gather(self) -> None:
        for pages, caches, numbers in self._places:
            for part, cache in enumerate(caches):
                self._lent.gather(self._rows_of(pages, part), cache, numbers)

    def scatter(self, landed: Collection[int]) -> None:
        for pages, caches, numbers in self._places if landed else ():
            mine = [i for i in pages if i in landed]
            for part, cache in enumerate(caches if mine else ()):
                self._lent.scatter(cache, [numbers[i - pages.start] for i in mine], self._rows_of(mine, part))

    def end(self, is_doubtful: bool) -> None:
        self._lent.give(self.rows, is_doubtful=is_doubtful)


class _Loose:
    """A batch of pages that are stored as they are. Those of the pool are loaded into memory of their own, and then written whole."""

    rows = None

    def __init__(self, pool: Any, where: Where, first: int, count: int, size: int, nbytes: int, is_load: bool) -> None:
        """``size``: tokens of a page."""
        self._pool, self.count = pool, count
        #: Each page's first slot in the pool; none: the pages are not the pool's.
        self._slots: list[int] = []
        if isinstance(where, torch.Tensor):
            self._slots = where[first * size : (first + count) * size : size].tolist()
            pages = [
                pool.get_dummy_flat_data_page() if is_load else pool.get_data_page(slot, flat=True)
                for slot in self._slots
            ]
        else:
            pages = list(where[first : first + count])
        for page in pages:
            if page_bytes(page) != nbytes:
                raise ValueError(f"a page of {page_bytes(page)} bytes, the pool's have {nbytes}")
        self._pages = pages if is_load else [page.contiguous() for page in pages]
        self.blocks = [bytes_of(page).numpy() for page in self._pages]

    def gather(self) -> None:
        """They are where they are put from."""

    def scatter(self, landed: Collection[int]) -> None:
        for i in landed if self._slots else ():
            self._pool.set_from_flat_data_page(self._slots[i], self._pages[i])

    def end(self, is_doubtful: bool) -> None:
        """Nothing was taken."""


class Pool:
    """Pages of one host pool, under names of their own. Any thread may call any method.

    1. A page is moved as a whole: True means that all its parts have come, verified, or are stored.
    2. Each call ends at its deadline at the latest.
    3. A pool that ``view_of`` supports is stored in the store's layout, in parts of some heads each, so that engines of other host layouts
       and tensor-parallel sizes can read it. Other pools' pages are stored as they are.
    """

    def __init__(
        self, door: Door, options: Options, config: Any, name: str, pool: Any, fields: Mapping[str, object]
    ) -> None:
        """``config``: SGLang's own for this rank. ``fields``: of the namespaces of all pools."""
        self._door = door
        self.name, self._pool = name, pool
        self.page_size = int(getattr(pool, "page_size", 1) or 1)
        if getattr(pool, "kv_buffer", pool) is None:
            raise Unsupported(f"pool {name}: {type(pool).__name__} has no memory of its own")
        #: Parts of a page on all ranks, and those on this rank.
        self._part_count, self._parts = 1, range(1)
        self.view = view_of(pool)
        text, own = (
            self._as_it_is(config, name)
            if self.view is None
            else self._in_heads(config, self.view, options.head_groups)
        )
        first = int(getattr(pool, "start_layer", 0) or 0)
        last = max(first + 1, int(getattr(pool, "end_layer", 0) or 0)) - 1
        tag = getattr(pool, "storage_format_tag", None)  # SGLang's own of the pages' format, if the pool has one
        #: With these equal, equal names mean equal bytes.
        self.namespace = Namespace(
            {
                **fields,
                **own,
                "dtype": str(pool.dtype).removeprefix("torch."),
                "cache_group": name,
                "x.page_size": self.page_size,
                "x.pool": short(text if tag is None else f"{text} {tag}"),
                "x.parts": self._part_count if self._part_count > 1 else None,
                "layer_range": f"{first}-{last}" if config.pp_size > 1 else None,
            }
        )
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
        return self.namespace.block_bytes * len(self._parts)

    def is_of(self, pool: Any) -> bool:
        return pool is self._pool

    def _as_it_is(self, config: Any, name: str) -> tuple[str, dict[str, object]]:
        """The pages in words, and the namespace's fields."""
        nbytes = page_bytes(self._pool.get_dummy_flat_data_page())
        # States are divided among ranks even if the rest is replicated.
        is_ranked = config.tp_size > 1 and (not config.is_mla_model or name == "mamba")
        return f"{type(self._pool).__name__} {getattr(self._pool, 'layer_num', '')}x{nbytes}", {
            "layout": f"sglang-{getattr(self._pool, 'layout', '')}",
            "block_bytes_max": nbytes,
            "x.rank": f"{config.tp_rank} of {config.tp_size}" if is_ranked else None,
        }

    def _in_heads(self, config: Any, view: View, head_groups: int) -> tuple[str, dict[str, object]]:
        """The same for pages in the store's layout, in parts of some heads each."""
        is_latent = "latent" in view.text
        rank, shards = (0, 1) if is_latent else (config.tp_rank, config.tp_size)
        parts = 1 if is_latent else (head_groups or shards)
        if parts % shards != 0:
            raise BadRequest(f"head_groups is {parts}, which {shards} tensor-parallel ranks do not divide")
        held = parts // shards
        if view.heads % held != 0:
            raise BadRequest(
                f"head_groups is {parts}: {view.heads} kv heads of a rank cannot be divided into {held} parts"
            )
        self._part_count, self._parts = parts, range(rank * held, (rank + 1) * held)
        nbytes = view.layout.slice_heads(0, view.heads // held).store_block_bytes
        # With more ranks than kv heads, ranks hold the same head: the count of "heads" is that of ranks, and other sizes do not share.
        return f"{view.heads * shards} heads of {view.text}", {"layout": "store", "block_bytes_max": nbytes}

    # -- names

    def names(self, keys: Sequence[str], epoch: bytes) -> list[bytes]:
        """Names of the keys' parts on this rank, as [key, part]."""
        made = []
        for key in keys:
            raw = bytes.fromhex(key) if _PAGE_HASH.fullmatch(key) else b"key " + key.encode()
            raw += epoch
            if self._part_count == 1:
                made.append(raw)
            else:
                made += [raw + b"/" + part.to_bytes(4, "big") for part in self._parts]
        return made

    # -- calls

    def has_pages(self, where: Where | None, count: int) -> bool:
        """Whether these are as many pages; else the log has how many."""
        size = self.page_size
        tokens = where.numel() if isinstance(where, torch.Tensor) else len(where or ()) * size
        if tokens != count * size:
            self._door.logger.error(
                "kvstore: pool %s: %d tokens, %d pages have %d each", self.name, tokens, count, size
            )
        return tokens == count * size

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

    def move(self, kind: str, keys: Sequence[str], where: Where, epoch: bytes, until: float) -> Move:
        """Loads or saves pages, step by step, until all are moved, or one step falls short."""
        done: list[bool] = []
        gate = self._door.gates[kind]
        is_whole = True
        while is_whole and len(done) < len(keys) and gate.allows():
            try:
                moved, why = yield from self._step(kind == "loads", keys[len(done) :], where, len(done), epoch, until)
            except Error as error:
                gate.ended(error)
                break
            if not moved:
                break
            gate.ended(why)
            is_whole = why is None
            done += moved
        done += [False] * (len(keys) - len(done))
        done_name, missed = ("loaded", "missing") if kind == "loads" else ("stored", "refused")
        self._door.count(f"{done_name}_pages", sum(done))
        self._door.count(f"{done_name}_bytes", sum(done) * self.page_bytes)
        self._door.count(f"{missed}_pages", len(keys) - sum(done))
        return done

    def _step(self, is_load: bool, keys: Sequence[str], where: Where, first: int, epoch: bytes, until: float) -> Step:
        """Moves as many pages as lent memory allows; returns which were moved, and why others were not."""
        batch = self._batch(is_load, where, first, len(keys), until)
        if batch.count == 0:
            return [], None
        space, is_doubtful = self._space, is_load
        future: Future[Any] | None = None
        try:
            if not is_load:
                batch.gather()
            left = max(until - time.monotonic(), 0.001)
            submit = space.submit_get if is_load else space.submit_put
            future = submit(self.names(keys[: batch.count], epoch), batch.blocks, rows=batch.rows, deadline=left)
            yield
            result: Any = future.result()
            parts = landed(result, self.namespace.block_bytes) if is_load else stored(result)
            moved = _whole(parts.reshape(batch.count, -1))
            if not is_load:
                return moved, None if any(moved) else result.why
            is_doubtful = result.why is not None
            batch.scatter({i for i, is_here in enumerate(moved) if is_here})
            return moved, result.why
        finally:
            _end(future)
            batch.end(is_doubtful)

    def _batch(self, is_load: bool, where: Where, first: int, count: int, until: float) -> _InRows | _Loose:
        rows = self._load_rows if is_load else self._save_rows
        if rows is None:
            count = max(1, min(count, _LOOSE_BYTES // self.namespace.block_bytes))
            return _Loose(self._pool, where, first, count, self.page_size, self.namespace.block_bytes, is_load)
        taken = rows.take_until(until, len(self._parts), len(self._parts) * count)
        count = len(taken) // len(self._parts)
        return _InRows(rows, taken, count, self._places(is_load, where, first, count))

    def _places(self, is_load: bool, where: Where, first: int, count: int) -> Iterator[_Place]:
        if isinstance(where, torch.Tensor):
            tokens = self.page_size
            ids = page_ids(self._pool, where[first * tokens : (first + count) * tokens], count)
            yield range(count), self._part_caches, ids
            return
        assert self.view is not None
        heads = self.view.heads // len(self._parts)
        for i in range(count):
            page = where[first + i] if is_load else where[first + i].contiguous()
            if page_bytes(page) != self.page_bytes or not page.is_contiguous():
                raise ValueError(f"a page of {page_bytes(page)} bytes, the pool's have {self.page_bytes}")
            cache = self.view.page(page)
            yield range(i, i + 1), [cache.slice_heads(part * heads, heads) for part in range(len(self._parts))], [0]
