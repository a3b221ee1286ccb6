"""The host side of a paged cache, plans for prefixes that a batch shares, and masks (docs/paged-cache.md). NumPy in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _kvstore
from ._arrays import Buffer, Hashes, Numbers
from ._kvstore import PagedCache, PagePool

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
