"""Pools beside that of keys and values: a window's pages, a draft's, states and an indexer's. With SGLang's own."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("sglang")

import sglang_pools
import torch
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost, make_dsa_indexer_pool_decl
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang_pools import PAGE, PAGES, Backend, emptied, filled, keys_of, mha_pool, mla_pool, page_of, put, tokens_of

backend, salt, sglang_context = sglang_pools.backend, sglang_pools.salt, sglang_pools.sglang_context  # fixtures


def mamba_pool() -> Any:
    states = MambaStateBufferInfo(
        temporal=torch.zeros((2, 12, 4, 8), dtype=torch.float32),
        conv=(torch.zeros((2, 12, 6, 3), dtype=torch.bfloat16),),
    )
    pool = MambaPoolHost(states, 1.0, 0, device_capacity=12, pin_memory=False, layout="page_first")
    pool.temporal_buffer.copy_(torch.randn(pool.temporal_buffer.shape))
    for each in pool.conv_buffer:
        each.copy_(torch.randn(each.shape))
    return pool


def test_side_pools_move_with_the_pages_and_limit_the_hit(backend: Backend) -> None:
    """A window's pages, states, and an indexer's pages, as hybrid models have them."""
    pool = mha_pool("page_first_direct")
    window, draft, states = mha_pool("layer_first", heads=2), mha_pool("page_first_direct", layers=1), mamba_pool()
    storage = backend(pool)
    side = {PoolName.SWA: window, PoolName.DRAFT: draft, PoolName.MAMBA: states}
    for name, each in side.items():
        storage.register_mem_host_pool_v2(each, name)
    keys = keys_of(8)
    put(storage, keys, list(range(8)))

    def transfers(**of: list[int]) -> list[PoolTransfer]:
        policy = PoolHitPolicy.TRAILING_PAGES
        made = []
        for name, pages in of.items():
            size = side[PoolName(name)].page_size
            made.append(
                PoolTransfer(
                    PoolName(name),
                    host_indices=tokens_of(list(range(len(pages))), size),
                    keys=[keys[page] for page in pages],
                    hit_policy=PoolHitPolicy.ALL_PAGES if name == "draft" else policy,
                )
            )
        return made

    whole = transfers(swa=[6, 7], draft=list(range(8)), mamba=[7])
    nothing = storage.batch_exists_v2(keys, whole)
    assert (nothing.kv_hit_pages, nothing.restorable_prefix_pages) == (0, [])
    assert nothing.extra_pool_hit_pages == {PoolName.KV: 8}
    stored = storage.batch_set_v2(transfers(swa=[2, 3, 4], draft=list(range(7)), mamba=[3, 4]))
    assert stored == {PoolName.SWA: [True] * 3, PoolName.DRAFT: [True] * 7, PoolName.MAMBA: [True] * 2}
    hit = storage.batch_exists_v2(keys, whole)
    # Windows of two pages end at 4 and 5 pages, states at 4 and 5, and the draft has seven.
    assert hit.kv_hit_pages == 5 and hit.restorable_prefix_pages == [4, 5]
    assert hit.extra_pool_hit_pages == {PoolName.KV: 8, PoolName.SWA: 5, PoolName.DRAFT: 7, PoolName.MAMBA: 5}

    expected = [page_of(window, i) for i in range(3)]
    temporal = states.temporal_buffer[:2].clone()
    conv = [each[:2].clone() for each in states.conv_buffer]
    emptied(window), emptied(draft)
    states.temporal_buffer.zero_()
    for each in states.conv_buffer:
        each.zero_()
    loaded = storage.batch_get_v2(transfers(swa=[2, 3, 4], mamba=[3, 4, 5]))
    assert loaded == {PoolName.SWA: [True] * 3, PoolName.MAMBA: [True, True, False]}
    assert all(torch.equal(page_of(window, i), expected[i]) for i in range(3))
    assert torch.equal(states.temporal_buffer[:2], temporal) and not states.temporal_buffer[2:].any()
    assert all(torch.equal(each[:2], other) for each, other in zip(states.conv_buffer, conv, strict=True))

    short = PoolTransfer(PoolName.SWA, host_indices=tokens_of([0]), keys=keys[:2])
    unknown = PoolTransfer(PoolName.INDEXER, host_indices=tokens_of([0, 1]), keys=keys[:2])
    assert storage.batch_get_v2([short, unknown]) == {PoolName.SWA: [False] * 2, PoolName.INDEXER: [False] * 2}
    assert storage.batch_exists_v2(keys, [unknown]).kv_hit_pages == 0
    assert storage.batch_exists_v2(keys).kv_hit_pages == 8
    assert (
        storage.batch_exists_v2(
            keys, [PoolTransfer(PoolName.SWA, keys=None, hit_policy=PoolHitPolicy.BLOCK_GROUPS)]
        ).kv_hit_pages
        == 8
    )


def test_states_are_each_ranks_own_also_where_latents_are_shared(backend: Backend) -> None:
    pools, states = [mla_pool("page_first") for _ in range(2)], [mamba_pool() for _ in range(2)]
    ranks = [backend(pool, tp_rank=i, tp_size=2) for i, pool in enumerate(pools)]
    keys = keys_of(3)
    for rank, state in zip(ranks, states, strict=True):
        rank.register_mem_host_pool_v2(state, PoolName.MAMBA)
    put(ranks[0], keys, [0, 1, 2])
    transfer = PoolTransfer(
        PoolName.MAMBA, host_indices=torch.tensor([5]), keys=keys[2:], hit_policy=PoolHitPolicy.TRAILING_PAGES
    )
    assert ranks[0].batch_set_v2([transfer]) == {PoolName.MAMBA: [True]}
    assert ranks[0].batch_exists_v2(keys, [transfer]).kv_hit_pages == 3
    assert ranks[1].batch_exists(keys) == 3
    assert ranks[1].batch_exists_v2(keys, [transfer]).kv_hit_pages == 0
    assert ranks[1].batch_get_v2([transfer]) == {PoolName.MAMBA: [False]}


@pytest.mark.parametrize("layout", ("layer_first", "page_first", "page_first_direct"))
def test_an_indexers_pages_go_with_the_latents(layout: str, backend: Backend) -> None:
    device = DSATokenToKVPool(20 * 64, 64, 32, torch.bfloat16, 16, 2, "cpu", 128, False, 48)
    latents = MLATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        1.0,
        0,
        64,
        layout,
        pin_memory=False,
        device_capacity_tokens=20 * 64,
        start_layer=0,
        end_layer=2,
        target_layer_num=2,
    )
    indexer = DSAIndexerPoolHost(make_dsa_indexer_pool_decl(device), filled(latents), pin_memory=False)
    keys_and_scales = indexer.index_k_with_scale_buffer
    keys_and_scales.copy_(torch.randint(0, 256, keys_and_scales.shape, dtype=torch.uint8))
    storage = backend(latents, tp_rank=0, tp_size=2)
    storage.register_mem_host_pool_v2(indexer, PoolName.INDEXER)
    keys = keys_of(5)
    here, there = tokens_of([0, 1, 2, 3, 4], 64), tokens_of([9, 8, 7, 6, 5], 64)
    stored = PoolTransfer(PoolName.INDEXER, host_indices=here[: 4 * 64], keys=keys[:4])
    assert storage.batch_set_v1(keys, here) == [True] * 5
    assert storage.batch_set_v2([stored]) == {PoolName.INDEXER: [True] * 4}
    other = backend(latents, tp_rank=1, tp_size=2)
    other.register_mem_host_pool_v2(indexer, PoolName.INDEXER)
    wanted = PoolTransfer(PoolName.INDEXER, host_indices=there, keys=keys)
    assert other.batch_exists_v2(keys, [wanted]).kv_hit_pages == 4
    assert other.batch_get_v2([wanted]) == {PoolName.INDEXER: [True] * 4 + [False]}
    for i in range(4):
        assert torch.equal(indexer.get_data_page((9 - i) * 64), indexer.get_data_page(i * 64))


def test_a_pool_without_memory_of_its_own_is_what_its_side_pools_are(backend: Backend) -> None:
    side = mha_pool("page_first_direct")
    storage = backend(LogicalHostPool(PAGES * PAGE, PAGE))
    storage.register_mem_host_pool_v2(side, PoolName.DEEPSEEK_V4_C4)
    keys = keys_of(5)
    transfer = PoolTransfer(PoolName.DEEPSEEK_V4_C4, host_indices=tokens_of(list(range(3))), keys=keys[:3])
    assert storage.batch_set_v1(keys, tokens_of(list(range(5)))) == [True] * 5
    assert storage.batch_exists_v2(keys, [transfer]).kv_hit_pages == 0
    assert storage.batch_exists(keys) == 0 and storage.batch_exists_v2(keys).kv_hit_pages == 0
    assert storage.batch_set_v2([transfer]) == {PoolName.DEEPSEEK_V4_C4: [True] * 3}
    assert storage.batch_exists_v2(keys, [transfer]).kv_hit_pages == 3
    assert storage.batch_get_v1(keys[:3], tokens_of([0, 1, 2])) == [True] * 3
