"""The host side of a paged cache, plans for prefixes that a batch shares, and masks (docs/paged-cache.md). NumPy in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _kvstore
from ._arrays import Buffer, Hashes, Numbers

__all__ = [
    "CascadeLevel",
    "CascadePlan",
    "ChunkPlan",
    "PackedMasks",
    "PagePool",
    "PagedCache",
    "SharedPrefixes",
    "SharedRuns",
    "pack_masks",
    "plan_cascade",
    "plan_chunks",
    "plan_shared_prefixes",
]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


class PagePool:
    """The pages of one device: users, names and the order of reuse. Page 0 is reserved. Not for several threads at once."""

    def __init__(self, page_count: int, *, keep_removed: bool = False) -> None:
        self._native = _kvstore.PagePool(page_count, keep_removed)

    @property
    def page_count(self) -> int:
        return self._native.page_count

    @property
    def free_count(self) -> int:
        return self._native.free_count

    @property
    def free_pages(self) -> Ints:
        """In the order of their reuse."""
        return self._native.free_pages

    def take(self, count: int) -> Ints:
        """The next free pages, each with one user. Raises OutOfMemory without taking any."""
        return self._native.take(count)

    def touch(self, pages: Numbers) -> None:
        """Adds a user to each page."""
        self._native.touch(pages)

    def release(self, pages: Numbers) -> None:
        """Removes a user from each page, from the last to the first."""
        self._native.release(pages)

    def user_count(self, page: int) -> int:
        return self._native.user_count(page)

    def find(self, block: bytes, group: int = 0) -> int | None:
        """The page with the block of this hash."""
        return self._native.find(block, group)

    def set_name(self, page: int, block: bytes, group: int = 0) -> None:
        """Marks the page as complete and findable."""
        self._native.set_name(page, block, group)

    def forget_name(self, page: int) -> None:
        self._native.forget_name(page)

    def forget_all_names(self) -> bool:
        """Forgets all names (the weights changed). False while any page is used."""
        return self._native.forget_all_names()

    def take_removed(self) -> list[tuple[bytes, int]]:
        """Hash and group of the blocks removed from all pages since the last call (with ``keep_removed``)."""
        return self._native.take_removed()


class PagedCache:
    """The sequences of one cache group and the pages that hold their tokens. Several may share a pool."""

    def __init__(
        self,
        pool: PagePool,
        block_size: int,
        *,
        window_tokens: int = 0,
        drop_last_block: bool = False,
        group: int = 0,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self._native = _kvstore.PagedCache(pool._native, block_size, window_tokens, drop_last_block, group)

    def find(self, hashes: Hashes, token_count: int) -> tuple[Ints, int]:
        """Pages of the longest cached prefix of a sequence of so many tokens, and its token count."""
        return self._native.find(hashes, token_count)

    def pages_needed(self, hashes: Hashes, token_count: int) -> int:
        """Free pages that :meth:`open` takes."""
        return self._native.pages_needed(hashes, token_count)

    def open(self, hashes: Hashes | None, token_count: int) -> tuple[int, int]:
        """Opens a sequence that begins with the longest cached prefix. Returns its number and the cached tokens. Raises OutOfMemory."""
        return self._native.open(hashes, token_count)

    def append(self, sequence: int, token_count: int) -> npt.NDArray[np.int64]:
        """Makes room for more tokens. The returned pages, [n, 2] from and to, have to be copied before they are written."""
        return self._native.append(sequence, token_count)

    def fork(self, sequence: int) -> int:
        """A second sequence with the same tokens in the same pages."""
        return self._native.fork(sequence)

    def crop(self, sequence: int, token_count: int) -> None:
        """Cuts the sequence to its first tokens (a rejected draft)."""
        self._native.crop(sequence, token_count)

    def close(self, sequence: int) -> None:
        """Ends the sequence."""
        self._native.close(sequence)

    def name_blocks(self, sequence: int, hashes: Hashes) -> None:
        """Makes the sequence's computed full blocks findable under these hashes."""
        self._native.name_blocks(sequence, hashes)

    def token_count(self, sequence: int) -> int:
        return self._native.token_count(sequence)

    def page_table(self, sequence: int) -> Ints:
        return self._native.page_table(sequence)

    def slot_mapping(self, sequence: int, begin: int = 0, end: int | None = None) -> npt.NDArray[np.int64]:
        """page * block_size + offset of tokens [begin, end); -1 where the window has left the page behind."""
        return self._native.slot_mapping(sequence, begin, end)

    @property
    def sequence_count(self) -> int:
        return self._native.sequence_count


class SharedRuns(NamedTuple):
    """Blocks that several sequences share, int64 [n] each: run r is blocks ``block_begins[r]`` to ``block_ends[r] - 1`` of sequences
    ``sequence_begins[r]`` to ``sequence_ends[r] - 1`` in the plan's order. ``levels[r]``: how many runs these sequences have before it.
    """

    levels: Longs
    sequence_begins: Longs
    sequence_ends: Longs
    block_begins: Longs
    block_ends: Longs


class SharedPrefixes(NamedTuple):
    """``order[i]``: the batch index of the i-th sequence. ``tail_begins[i]``: its first block behind all of its runs."""

    order: Longs
    runs: SharedRuns
    tail_begins: Longs


class CascadeLevel(NamedTuple):
    """One attention call over all queries: compressed rows, all int32 as the kernels take them."""

    query_indptr: Ints
    page_indptr: Ints
    page_indices: Ints
    last_page_tokens: Ints


class CascadePlan(NamedTuple):
    """``order[i]``: the batch index of the i-th sequence in all other arrays."""

    order: npt.NDArray[np.int64]
    levels: list[CascadeLevel]


class ChunkPlan(NamedTuple):
    """Shared chunks first, then each sequence's own, as ChunkAttention takes them."""

    order: npt.NDArray[np.int64]
    pages: Ints
    token_counts: Ints
    begins: Ints
    ends: Ints
    offsets: Ints
    partial_row_count: int
    sequence_chunks: Ints
    sequence_tokens: Ints


def plan_shared_prefixes(
    hashes: Sequence[Hashes],
    *,
    block_size: int,
    token_counts: Numbers | None = None,
    query_counts: Numbers | None = None,
    sequence_count_min: int = 2,
) -> SharedPrefixes:
    """The order in which requests share most: those with a common beginning are neighbours, and closer the more they share. It is a
    depth-first walk of the tree of their prefixes, which RadixAttention calls longest shared prefix first. In this order a cache that
    holds the longest request computes each shared block once. Requests and branches otherwise keep their order.

    ``hashes[i]``: of sequence i's full blocks of ``block_size`` tokens. ``token_counts`` None: all of them can be shared, as suits requests
    that wait (no pages are needed). For a batch to attend to, ``token_counts[i]`` are its tokens, and the last ``query_counts[i]`` of them,
    by default one, are queries, whose blocks are not shared. Runs of fewer than ``sequence_count_min`` sequences are not listed. Raises
    BadRequest that names the argument: lists of unequal lengths, a sequence without tokens, more queries than tokens.
    """
    order, runs, tail_begins = _kvstore.plan_shared_prefixes(
        hashes, token_counts, block_size, query_counts, sequence_count_min
    )
    return SharedPrefixes(order, SharedRuns(*runs), tail_begins)


def plan_cascade(
    page_tables: Sequence[Numbers],
    hashes: Sequence[Hashes],
    token_counts: Numbers,
    *,
    block_size: int,
    query_counts: Numbers | None = None,
    sequence_count_min: int = 2,
    level_count_max: int | None = None,
) -> CascadePlan:
    """Page tables level by level for cascade attention: shared pages are read once. Sequence i has ``token_counts[i]`` tokens in
    ``page_tables[i]``, its full blocks have ``hashes[i]``, and its last ``query_counts[i]`` tokens ask (by default one).
    """
    order, levels = _kvstore.plan_cascade(
        page_tables, hashes, token_counts, block_size, query_counts, sequence_count_min, level_count_max
    )
    return CascadePlan(order, [CascadeLevel(*level) for level in levels])


def plan_chunks(
    page_tables: Sequence[Numbers],
    hashes: Sequence[Hashes],
    token_counts: Numbers,
    *,
    block_size: int,
    sharing_threshold: int = 1,
) -> ChunkPlan:
    """The same for decoding, chunk first and sequence second. A chunk is shared if more than ``sharing_threshold`` sequences contain it."""
    plan: dict[str, Any] = _kvstore.plan_chunks(page_tables, hashes, token_counts, block_size, sharing_threshold)
    return ChunkPlan(**plan)


class PackedMasks(NamedTuple):
    """``packed``: uint8. Pair i of request r, row after row, is bit ``i % 8`` of ``packed[byte_indptr[r] + i // 8]``. ``bit_indptr`` counts
    pairs without the padding. The indptrs are int32 [batch + 1].
    """

    packed: npt.NDArray[np.uint8]
    bit_indptr: Ints
    byte_indptr: Ints


def pack_masks(query_counts: Numbers, kv_counts: Numbers, mask: Buffer | None = None) -> PackedMasks:
    """Attention masks as bits, as FlashInfer's kernels take them (``packed_custom_mask``). Request r has ``query_counts[r]`` rows of
    ``kv_counts[r]`` keys, and begins in a new byte; its first pair is the lowest bit. ``mask`` is bool or uint8, all requests' pairs
    end to end, true where the query reads the key; it is not copied. None: causal, the queries being the last tokens.

    Raises BadRequest that names the argument: a negative count, a mask of another size, 2^31 pairs or more.
    """
    return PackedMasks(*_kvstore.pack_masks(query_counts, kv_counts, mask))
