"""Page pools, sequences and plans, against reference computations."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvstore
from kvstore import PagedCache, PagePool, plan_cascade, plan_chunks

SPACE = kvstore.Namespace(model="m", block_size=4, block_bytes=64)


def hashes_of(tokens):
    return SPACE.hash_chain(np.asarray(tokens, np.uint32))


def test_a_sequence_finds_what_another_named():
    pool = PagePool(16, keep_removed=True)
    cache = PagedCache(pool, 4)
    tokens = list(range(14))
    first, cached = cache.open(hashes_of(tokens), 14)
    assert cached == 0
    assert len(cache.page_table(first)) == 4
    cache.name_blocks(first, hashes_of(tokens))
    second, cached = cache.open(hashes_of([*tokens[:8], 99, 98, 97]), 11)
    assert cached == 8
    assert (cache.page_table(first)[:2] == cache.page_table(second)[:2]).all()
    assert cache.slot_mapping(second, 8).tolist() == [int(cache.page_table(second)[2]) * 4 + i for i in range(3)]
    assert cache.find(hashes_of(tokens), 14)[1] == 12
    assert cache.pages_needed(hashes_of(tokens), 14) == 1
    cache.close(first)
    cache.close(second)
    assert pool.free_count == 15
    assert pool.find(hashes_of(tokens)[0].tobytes()) is not None
    taken = pool.take(15)
    assert sorted(taken) == list(range(1, 16))
    assert {name for name, _ in pool.take_removed()} == {row.tobytes() for row in hashes_of(tokens)}
    with pytest.raises(kvstore.OutOfMemory):
        cache.open(None, 4)
    pool.release(taken)


def test_copy_on_write_after_a_fork():
    pool = PagePool(16)
    cache = PagedCache(pool, 4)
    one, _ = cache.open(None, 6)
    two = cache.fork(one)
    copies = cache.append(two, 1)
    assert copies.shape == (1, 2)
    assert copies[0, 0] == cache.page_table(one)[1]
    assert copies[0, 1] == cache.page_table(two)[1]
    assert cache.append(one, 1).shape == (0, 2)
    cache.crop(one, 3)
    assert cache.token_count(one) == 3
    with pytest.raises(kvstore.BadRequest):
        cache.crop(one, 9)


def test_windows_leave_pages_behind():
    pool = PagePool(32)
    cache = PagedCache(pool, 4, window_tokens=8)
    sequence, _ = cache.open(None, 4)
    for _ in range(6):
        cache.append(sequence, 4)
    assert cache.slot_mapping(sequence)[0] == -1
    assert cache.page_table(sequence)[0] == 0


def test_wrong_numbers_are_refused():
    pool = PagePool(8)
    cache = PagedCache(pool, 4)
    for wrong in (
        lambda: cache.append(7, 1),
        lambda: cache.close(7),
        lambda: pool.release([3]),
        lambda: pool.release([0]),
        lambda: pool.touch([99]),
        lambda: pool.set_name(3, b"x" * 32),
        lambda: PagedCache(pool, 0),
        lambda: PagePool(0),
        lambda: plan_cascade([[1]], [hashes_of([])], [9], block_size=4),
        lambda: plan_cascade([[0]], [hashes_of([])], [3], block_size=4),
        lambda: plan_cascade([[1]], [hashes_of([])], [3], block_size=4, query_counts=[4]),
        lambda: plan_cascade([[1]], [hashes_of([])], [3], block_size=4, level_count_max=0),
    ):
        with pytest.raises(kvstore.BadRequest):
            wrong()


def test_numbers_that_would_wrap_are_too_many_tokens():
    pool = PagePool(8)
    cache = PagedCache(pool, 4)
    sequence, _ = cache.open(None, 10)
    for many in (2**64 - 1, 2**64 - 3, 2**64 - 10, 2**63):
        with pytest.raises(kvstore.OutOfMemory):
            cache.open(None, many)
        with pytest.raises(kvstore.OutOfMemory):
            cache.append(sequence, many)
        assert cache.pages_needed(hashes_of([]), many) > 8
    assert cache.token_count(sequence) == 10
    assert len(cache.slot_mapping(sequence)) == 10
    for many in (2**31 - 1, 2**31, 2**63):
        with pytest.raises(kvstore.BadRequest):
            PagePool(many)


def test_a_cache_keeps_its_pool():
    cache = PagedCache(PagePool(8), 4)
    gc.collect()
    sequence, _ = cache.open(None, 5)
    assert cache.token_count(sequence) == 5
    cache.append(sequence, 4)


def batch(lengths, shared):
    """Sequences that share their first blocks, each with pages of its own."""
    tables, hashes, page = [], [], 1
    for i, length in enumerate(lengths):
        tokens = [*range(shared), *range(1000 * (i + 1), 1000 * (i + 1) + max(0, length - shared))][:length]
        count = (length + 3) // 4
        tables.append(list(range(page, page + count)))
        page += count
        hashes.append(hashes_of(tokens))
    return tables, hashes


@given(st.lists(st.integers(9, 40), min_size=1, max_size=6), st.integers(0, 8))
@settings(deadline=None, max_examples=40)
def test_a_cascade_reads_every_token_of_every_sequence(lengths, shared):
    shared = shared // 4 * 4
    tables, hashes = batch(lengths, shared)
    plan = plan_cascade(tables, hashes, lengths, block_size=4)
    assert sorted(plan.order.tolist()) == list(range(len(lengths)))
    tokens = np.zeros(len(lengths), int)
    for level in plan.levels:
        assert level.query_indptr[-1] == len(lengths)
        for i in range(len(level.query_indptr) - 1):
            pages = level.page_indptr[i + 1] - level.page_indptr[i]
            size = 0 if pages == 0 else (pages - 1) * 4 + level.last_page_tokens[i]
            tokens[level.query_indptr[i] : level.query_indptr[i + 1]] += size
    assert tokens.tolist() == [lengths[i] for i in plan.order]
    if shared and len(lengths) > 1:
        assert len(plan.levels) > 1
        assert plan.levels[0].page_indptr[-1] == shared // 4


def test_chunks():
    tables, hashes = batch([20, 22, 9], 8)
    plan = plan_chunks(tables, hashes, [20, 22, 9], block_size=4)
    shared = len(plan.begins)
    assert shared == 2
    assert plan.partial_row_count == 6
    assert (plan.ends - plan.begins).tolist() == [3, 3]
    assert plan.sequence_tokens.tolist() == [[20, 22, 9][i] for i in plan.order]
    assert plan.sequence_chunks.shape[0] == 3
    limited = plan_cascade(tables, hashes, [20, 22, 9], block_size=4, level_count_max=1, query_counts=[2, 1, 1])
    assert len(limited.levels) == 1
