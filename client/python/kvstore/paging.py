"""The host side of a paged cache, plans for prefixes that a batch shares, and masks (docs/paged-cache.md). NumPy in and out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._kvstore import PagedCache, PagePool, pack_masks, plan_cascade, plan_chunks, plan_shared_prefixes

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


class PackedMasks(NamedTuple):
    """``packed``: uint8. Pair i of request r, row after row, is bit ``i % 8`` of ``packed[byte_indptr[r] + i // 8]``. ``bit_indptr`` counts
    pairs without the padding. The indptrs are int32 [batch + 1].
    """

    packed: npt.NDArray[np.uint8]
    bit_indptr: Ints
    byte_indptr: Ints
