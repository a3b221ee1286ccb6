"""SGLang's own host pools and its HiCache controller with the backend, without a model.

The backend is called as SGLang calls it: many pages at once, from several threads. Pages hold random bytes, so that a wrong one shows.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("sglang")

import torch
from conftest import Node
from proxy import SET_GET, Proxy
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost, make_dsa_indexer_pool_decl
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang_cpu import allow_little_memory, shared_files

import kvstore
from kvstore.errors import BadRequest, Unsupported
from kvstore.sglang import KVStoreHiCache, compat
from kvstore.sglang.figures import COUNTERS

PAGE, LAYERS, HEADS, SIZE, PAGES = 16, 3, 4, 16, 40
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head", "page_unified")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_unified")
RANKS: dict[str, int] = {
    f"{name}_{what}": int(what == "size")
    for name in ("tp", "pp", "attn_tp", "attn_cp", "attn_dp", "attn_dcp")
    for what in ("rank", "size")
}


@pytest.fixture(scope="module", autouse=True)
def sglang_context() -> Iterator[None]:
    # A small extension for page hashes is compiled at first use, and ninja may be the environment's own.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    allow_little_memory()
    set_global_server_args_for_scheduler(
        ServerArgs(model_path="dummy", load_format="dummy", device="cpu", page_size=PAGE)
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    with get_parallel().override(**RANKS):
        yield
    torch.distributed.destroy_process_group()


def mha_pool(
    layout: str, heads: int = HEADS, dtype: Any = torch.bfloat16, layers: int = LAYERS, pages: int = PAGES
) -> Any:
    device = MHATokenToKVPool(pages * PAGE, PAGE, dtype, heads, SIZE, layers, "cpu", False)
    pool = MHATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=pages * PAGE,
        start_layer=0,
        end_layer=layers,
    )
    return filled(pool)


def mla_pool(layout: str, layers: int = LAYERS) -> Any:
    device = MLATokenToKVPool(PAGES * PAGE, PAGE, torch.bfloat16, 32, 16, layers, "cpu", False)
    pool = MLATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=PAGES * PAGE,
        start_layer=0,
        end_layer=layers,
        target_layer_num=layers,
    )
    return filled(pool)


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


def buffers(pool: Any) -> list[torch.Tensor]:
    buffer = pool.kv_buffer
    return list(buffer) if isinstance(buffer, (list, tuple)) else [buffer]


def filled(pool: Any) -> Any:
    for buffer in buffers(pool):
        raw = buffer.view(torch.uint8)
        raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8))
    return pool


def emptied(pool: Any) -> Any:
    for buffer in buffers(pool):
        buffer.view(torch.uint8).zero_()
    return pool


def page_of(pool: Any, page: int) -> torch.Tensor:
    """A page's elements as ``[layer, K and V, token, head, bytes]``, from any layout."""
    layout = pool.layout
    tokens = slice(page * PAGE, (page + 1) * PAGE)
    if isinstance(pool, AsymmetricMHATokenToKVPoolHost):
        both = [page_of_one(each.view(torch.uint8), layout, page, tokens) for each in (pool.k_buffer, pool.v_buffer)]
        return torch.cat(both, dim=-1)
    raw = pool.kv_buffer.view(torch.uint8)
    if isinstance(pool, MLATokenToKVPoolHost):
        if layout == "page_unified":
            return raw[page].unsqueeze(2).unsqueeze(1).clone()
        return page_of_one(raw, layout, page, tokens).unsqueeze(1)
    if layout == "page_unified":
        _, groups, layers, _, _, heads, nbytes = raw.shape
        return raw[page].permute(1, 2, 3, 0, 4, 5).reshape(layers, 2, PAGE, groups * heads, nbytes).clone()
    return torch.stack([page_of_one(raw[c], layout, page, tokens) for c in (0, 1)], dim=1)


def page_of_one(raw: torch.Tensor, layout: str, page: int, tokens: slice) -> torch.Tensor:
    """``[layer, token, head, bytes]``"""
    if layout == "layer_first":
        return raw[:, tokens].clone()
    if layout == "page_first":
        return raw[tokens].transpose(0, 1).clone()
    if layout == "page_first_direct":
        return raw[page].clone()
    assert layout == "page_head"
    return raw[page].permute(2, 1, 0, 3).clone()  # from [head, token, layer, bytes]


def keys_of(count: int, seed: str = "") -> list[str]:
    return [hashlib.sha256(f"{seed} {i}".encode()).hexdigest() for i in range(count)]


def tokens_of(pages: list[int], page_size: int = PAGE) -> torch.Tensor:
    return torch.cat([torch.arange(page * page_size, (page + 1) * page_size) for page in pages])


_seeds = iter(range(10**9))


@pytest.fixture
def salt() -> str:
    """Makes a test's pages unique."""
    return f"test-{os.getpid()}-{next(_seeds)}"


Backend = Callable[..., KVStoreHiCache]


@pytest.fixture
def backend(node: Node, salt: str) -> Iterator[Backend]:
    """Makes backends of one engine, or of others like it."""
    made: list[KVStoreHiCache] = []

    def make(
        pool: Any, endpoint: str | None = None, *, more: dict[str, Any] | None = None, **config: Any
    ) -> KVStoreHiCache:
        options = {"endpoints": endpoint or node.endpoint, "salt": salt, "lookup_timeout": 5.0, "load_timeout": 5.0}
        values = {
            "tp_rank": 0,
            "tp_size": 1,
            "pp_rank": 0,
            "pp_size": 1,
            "attn_cp_rank": 0,
            "attn_cp_size": 1,
            "is_mla_model": isinstance(pool, MLATokenToKVPoolHost),
            "enable_storage_metrics": True,
            "is_page_first_layout": False,
            "model_name": "dummy",
            "extra_config": {"backend_name": "kvstore", "interface_v1": 1, **options, **(more or {})},
        }
        storage = KVStoreHiCache(HiCacheStorageConfig(**(values | config)), {})
        storage.register_mem_pool_host(pool)
        storage.register_mem_host_pool_v2(pool, PoolName.KV)
        storage.on_host_pools_registered()
        made.append(storage)
        if endpoint is None:
            wait_for_node(storage)
        return storage

    yield make
    for each in made:
        each.close()


def wait_for_node(storage: KVStoreHiCache) -> None:
    until = time.monotonic() + 10
    while storage._client.ping()[0] is None:
        assert time.monotonic() < until
        time.sleep(0.01)


def put(storage: KVStoreHiCache, keys: list[str], pages: list[int]) -> None:
    assert storage.batch_set_v1(keys, tokens_of(pages)) == [True] * len(keys)


def check_loaded(storage: KVStoreHiCache, pool: Any, keys: list[str], expected: list[torch.Tensor]) -> None:
    """Loads into pages in another order, and checks that all others stay."""
    assert storage.batch_exists(keys) == len(keys)
    pages = list(range(len(keys) - 1, -1, -1))
    free = page_of(pool, len(keys))
    assert storage.batch_get_v1(keys, tokens_of(pages)) == [True] * len(keys)
    for page, bytes_ in zip(pages, expected, strict=True):
        assert torch.equal(page_of(pool, page), bytes_)
    assert torch.equal(page_of(pool, len(keys)), free)


# -- sharing


@pytest.mark.parametrize("layout", LAYOUTS)
def test_engines_of_all_host_layouts_read_what_one_has_stored(layout: str, backend: Backend) -> None:
    pool = mha_pool(layout)
    keys = keys_of(20)
    put(backend(pool), keys, list(range(5, 25)))
    expected = [page_of(pool, page) for page in range(5, 25)]
    for other in LAYOUTS:
        target = emptied(mha_pool(other))
        check_loaded(backend(target), target, keys, expected)


@pytest.mark.parametrize("layout", MLA_LAYOUTS)
def test_latents_are_stored_once_and_read_by_all_ranks_in_all_layouts(
    layout: str, backend: Backend, node: Node
) -> None:
    pool = mla_pool(layout)
    keys = keys_of(20)
    writer = backend(pool, tp_rank=0, tp_size=4)
    put(writer, keys, list(range(5, 25)))
    expected = [page_of(pool, page) for page in range(5, 25)]
    again = backend(pool, tp_rank=1, tp_size=4)
    with kvstore.Client(node.endpoint) as client:
        was = client.stats()[0]["values"]["stored_blocks"]
        put(again, keys, list(range(5, 25)))
        assert client.stats()[0]["values"]["stored_blocks"] == was
    for i, other in enumerate(MLA_LAYOUTS):
        target = emptied(mla_pool(other))
        check_loaded(backend(target, tp_rank=i, tp_size=4), target, keys, expected)


@pytest.mark.parametrize("layout", ("layer_first", "page_first_direct", "page_unified"))
def test_engines_of_other_tensor_parallel_sizes_read_their_heads(layout: str, backend: Backend) -> None:
    whole = mha_pool("page_first_direct")
    keys = keys_of(10)
    put(backend(whole, more={"head_groups": 4}), keys, list(range(10)))
    expected = [page_of(whole, page) for page in range(10)]
    for size in (1, 2, 4):
        for rank in range(size):
            heads = HEADS // size
            target = emptied(mha_pool(layout, heads))
            mine = [page[:, :, :, rank * heads : (rank + 1) * heads] for page in expected]
            storage = backend(target, more={"head_groups": 4}, tp_rank=rank, tp_size=size)
            check_loaded(storage, target, keys, mine)


def test_what_several_ranks_have_stored_is_whole_when_all_have(backend: Backend) -> None:
    pools = [mha_pool("layer_first", 2) for _ in range(2)]
    keys = keys_of(6)
    target = emptied(mha_pool("page_first"))
    reader = backend(target, more={"head_groups": 2})
    for rank, pool in enumerate(pools):
        assert reader.batch_exists(keys) == 0
        put(backend(pool, more={"head_groups": 2}, tp_rank=rank, tp_size=2), keys, list(range(6)))
    expected = [torch.cat([page_of(pool, page) for pool in pools], dim=3) for page in range(6)]
    check_loaded(reader, target, keys, expected)


def test_keys_and_values_of_different_sizes_are_shared_by_both_layouts(backend: Backend) -> None:
    def pool(layout: str) -> Any:
        device = MHATokenToKVPool(PAGES * PAGE, PAGE, torch.bfloat16, HEADS, SIZE, LAYERS, "cpu", False, v_head_dim=8)
        return filled(
            AsymmetricMHATokenToKVPoolHost(
                device.get_device_pool_infos()[0].buffer_info,
                1.0,
                0,
                PAGE,
                layout,
                pin_memory=False,
                device_capacity_tokens=PAGES * PAGE,
                start_layer=0,
                end_layer=LAYERS,
            )
        )

    source, target = pool("page_first"), emptied(pool("page_first_direct"))
    keys = keys_of(5)
    put(backend(source), keys, list(range(5)))
    check_loaded(backend(target), target, keys, [page_of(source, page) for page in range(5)])


def test_what_shapes_the_bytes_keeps_engines_apart(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(4)
    put(backend(mha_pool("page_first_direct")), keys, list(range(4)))
    pool = mha_pool("page_first_direct")
    others: list[tuple[Any, dict[str, Any]]] = [
        (mha_pool("page_first_direct", dtype=torch.float16), {}),
        (mha_pool("page_first_direct", dtype=torch.float32), {}),
        (mha_pool("page_first_direct", layers=2), {}),
        (mha_pool("page_first_direct", heads=2), {}),
        (mha_pool("page_first_direct", heads=2), {"tp_rank": 0, "tp_size": 2}),
        (mha_pool("page_first_direct", heads=2), {"tp_rank": 1, "tp_size": 2}),
        (pool, {"more": {"salt": "other"}}),
        (pool, {"more": {"model": "other"}}),
        (pool, {"more": {"weights_epoch": 7}}),
        (pool, {"more": {"head_groups": 2}}),
        (pool, {"pp_rank": 0, "pp_size": 2}),
        (pool, {"attn_cp_rank": 0, "attn_cp_size": 2}),
    ]
    for other, config in others:
        storage = backend(other, **config)
        before = page_of(other, 0)
        assert storage.batch_exists(keys) == 0, config
        assert storage.batch_get_v1(keys, tokens_of([0, 1, 2, 3])) == [False] * 4, config
        assert torch.equal(page_of(other, 0), before)
    assert backend(pool, dp_rank=1).batch_exists(keys) == 4  # the same bytes
    monkeypatch.setattr(compat, "VERSION", "0.5.24")
    assert backend(pool).batch_exists(keys) == 0


def test_the_weights_keep_models_of_one_name_apart(
    backend: Backend, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "get_server_args", lambda: (_ for _ in ()).throw(ValueError("not published")))
    folders = []
    for i in range(2):
        folder = tmp_path / str(i) / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"hidden_size": 8}')
        (folder / "model.safetensors").write_bytes(bytes([i]) * 1000)
        folders.append(str(folder))
    keys, pool = keys_of(3), mha_pool("layer_first")
    put(backend(pool, model_name=folders[0]), keys, [0, 1, 2])
    assert backend(pool, model_name=folders[0]).batch_exists(keys) == 3
    assert backend(pool, model_name=folders[1]).batch_exists(keys) == 0


def test_what_cannot_be_served_is_refused_at_the_start_by_name(backend: Backend, caplog: Any, monkeypatch: Any) -> None:
    pool = mha_pool("layer_first")
    with pytest.raises(Unsupported, match="dcp_size"):
        backend(mla_pool("layer_first"), tp_rank=0, tp_size=2, dcp_size=2, dcp_rank=0, logical_page_size=32)
    with pytest.raises(BadRequest, match="'endpoint' is none of endpoints"):
        backend(pool, more={"endpoint": "unix:///x"})
    with pytest.raises(BadRequest, match="load_timeout is 0"):
        backend(pool, more={"load_timeout": 0})
    with pytest.raises(BadRequest, match="head_groups is 3"):
        backend(pool, more={"head_groups": 3})
    with pytest.raises(BadRequest, match="head_groups is 8"):
        backend(pool, more={"head_groups": 8})
    monkeypatch.setattr(compat, "VERSION", "0.9.0")
    with caplog.at_level(logging.WARNING):
        backend(pool)
    assert "SGLang 0.9.0 was not tried" in caplog.text


# -- the interfaces


def test_a_hit_ends_at_the_first_page_that_is_missing(backend: Backend) -> None:
    pool = mha_pool("page_first_direct")
    storage = backend(pool)
    keys = keys_of(8)
    put(storage, keys[:3] + keys[5:], [0, 1, 2, 5, 6, 7])
    assert storage.batch_exists(keys) == 3
    assert storage.batch_exists([]) == 0
    assert [storage.exists(key) for key in keys] == [True] * 3 + [False] * 2 + [True] * 3
    before = page_of(pool, 13)
    got = storage.batch_get_v1(keys, tokens_of(list(range(10, 18))))
    assert got == [True] * 3 + [False] * 2 + [True] * 3
    assert torch.equal(page_of(pool, 13), before)
    assert storage.batch_get_v1([], torch.empty(0, dtype=torch.int64)) == []


def test_a_batch_is_one_call_and_more_than_fits_is_several(backend: Backend, node: Node) -> None:
    port = free_port()
    with_tcp = Node("--listen", f"tcp://127.0.0.1:{port}")
    proxy = Proxy(("127.0.0.1", port))
    try:
        pool = mha_pool("layer_first", pages=160)
        storage = backend(pool, proxy.endpoint)
        wait_for_node(storage)
        keys = keys_of(128)
        put(storage, keys, list(range(128)))
        assert storage.batch_exists(keys) == 128
        assert storage.batch_get_v1(keys, tokens_of(list(range(128)))) == [True] * 128
        assert proxy.seen[SET_GET, False] == 1
        little = backend(pool, proxy.endpoint, more={"staging_bytes": 1})
        wait_for_node(little)
        assert little.batch_get_v1(keys[:10], tokens_of(list(range(10)))) == [True] * 10
        assert proxy.seen[SET_GET, False] == 11
    finally:
        proxy.close()
        with_tcp.close()


@pytest.mark.parametrize("layout", ("layer_first", "page_first", "page_first_direct", "page_head"))
def test_the_copying_interface_shares_pages_with_the_other(layout: str, backend: Backend) -> None:
    pool = mha_pool(layout)
    storage = backend(pool)
    keys = keys_of(6)
    values = [pool.get_data_page(page * PAGE) for page in range(6)]
    assert storage.batch_set(keys, values) is True
    targets = [pool.get_dummy_flat_data_page() for _ in range(6)]
    got = storage.batch_get(keys, targets)
    assert all(
        one is not None and torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        for one, other in zip(got, values, strict=True)
    )
    target = emptied(mha_pool("page_first_direct" if layout == "layer_first" else "layer_first"))
    check_loaded(backend(target), target, keys, [page_of(pool, page) for page in range(6)])
    more = keys_of(2, "single")
    assert storage.set(more[0], values[0]) is True
    assert storage.get(more[0], targets[1]) is targets[1]
    assert torch.equal(targets[1].view(torch.uint8), values[0].view(torch.uint8))
    assert storage.get(more[1], targets[1]) is None
    assert storage.batch_get([more[1], more[0]], targets[:2])[0] is None
    assert storage.get(more[0]) is None and storage.set(more[1]) is False


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


def test_clear_leaves_the_store_to_others(backend: Backend) -> None:
    pool = mha_pool("page_first_direct")
    one, rank, other = backend(pool), backend(pool), backend(pool)
    keys = keys_of(4)
    put(one, keys, list(range(4)))
    for each in (one, rank):
        each.clear()
        assert each.batch_exists(keys) == 0
        assert each.batch_get_v1(keys, tokens_of(list(range(4)))) == [False] * 4
    assert other.batch_exists(keys) == 4
    put(one, keys[:2], [0, 1])
    assert one.batch_exists(keys) == 2
    assert rank.batch_exists(keys) == 2  # a rank of the same engine
    one.clear()
    assert one.batch_exists(keys) == 0
    assert other.batch_exists(keys) == 4


def test_statistics_are_told_once(backend: Backend) -> None:
    pool = mha_pool("page_first_direct")
    storage = backend(pool)
    keys = keys_of(10)
    put(storage, keys, list(range(10)))
    assert storage.batch_get_v1(keys[:4], tokens_of([0, 1, 2, 3])) == [True] * 4
    stats = storage.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([10], [4])
    assert stats.backup_bandwidth[0] > 0 and stats.prefetch_bandwidth[0] > 0
    assert storage.get_stats().backup_pgs == []
    page = LAYERS * 2 * PAGE * HEADS * SIZE * 2
    assert storage.counters["stored_bytes"] == 10 * page and storage.counters["loaded_bytes"] == 4 * page


def test_sglangs_metrics_have_what_the_door_has_seen(backend: Backend) -> None:
    from prometheus_client import REGISTRY

    storage = backend(mha_pool("page_first_direct"), model_name="seen")
    labels = {"model_name": storage._facts.model, "tp_rank": "0", "pp_rank": "0"}

    def value(name: str, **more: str) -> float:
        return REGISTRY.get_sample_value(f"sglang:kvstore_{name}", labels | more) or 0.0

    storage.get_stats()
    before = {name: value(f"{name}_total") for name in COUNTERS}
    keys = keys_of(10)
    put(storage, keys, list(range(10)))
    assert storage.batch_exists(keys[:4]) == 4
    assert storage.batch_get_v1(keys[:4], tokens_of([0, 1, 2, 3])) == [True] * 4
    for _ in range(2):  # each change is reported once
        storage.get_stats()
    added = {name: value(f"{name}_total") - before[name] for name in COUNTERS}
    assert (added["stored_pages"], added["hit_pages"], added["loaded_pages"], added["failures"]) == (10, 4, 4, 0)
    assert value("paused", calls="loads") == 0


# -- failures


def everything(storage: KVStoreHiCache, pool: Any, keys: list[str]) -> float:
    """Makes every call, all failing. Returns their duration."""
    count = len(keys)
    indices = tokens_of(list(range(count)))
    transfer = PoolTransfer(PoolName.KV, host_indices=indices, keys=keys)
    before = [page_of(pool, page) for page in range(count)]
    targets = [pool.get_dummy_flat_data_page() for _ in keys]
    began = time.monotonic()
    assert storage.exists(keys[0]) is False
    assert storage.batch_exists(keys) == 0
    assert storage.batch_exists_v2(keys, [transfer]).kv_hit_pages == 0
    assert storage.batch_get_v1(keys, indices) == [False] * count
    assert storage.batch_set_v1(keys, indices) == [False] * count
    assert storage.batch_get_v2([transfer]) == {PoolName.KV: [False] * count}
    assert storage.batch_set_v2([transfer]) == {PoolName.KV: [False] * count}
    assert storage.batch_get(keys, targets) == [None] * count
    assert storage.batch_set(keys, targets) is False
    assert storage.get(keys[0], targets[0]) is None
    assert storage.set(keys[0], targets[0]) is False
    took = time.monotonic() - began
    assert storage.get_stats() is not None
    assert all(torch.equal(page_of(pool, page), before[page]) for page in range(count))
    return took


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_without_a_node_everything_is_a_miss_at_once(backend: Backend, tmp_path: Any) -> None:
    pool = mha_pool("page_first_direct")
    storage = backend(pool, f"unix://{tmp_path}/nobody")
    assert everything(storage, pool, keys_of(10)) < 3
    storage.clear()
    storage.close()
    storage.close()
    assert everything(storage, pool, keys_of(10)) < 1


def test_a_stopped_node_costs_the_timeouts_and_then_nothing(own_node: Node, backend: Backend) -> None:
    pool = mha_pool("page_first_direct")
    timeouts = {"lookup_timeout": 0.2, "load_timeout": 0.3, "save_timeout": 0.4}
    storage = backend(pool, own_node.endpoint, more=timeouts)
    wait_for_node(storage)
    keys = keys_of(10)
    put(storage, keys, list(range(10)))
    own_node.pause()
    assert everything(storage, pool, keys) < 2 * (0.2 + 0.3 + 0.4) * 3
    began = time.monotonic()
    for _ in range(100):
        assert storage.batch_exists(keys) == 0
        assert storage.batch_get_v1(keys, tokens_of(list(range(10)))) == [False] * 10
    assert time.monotonic() - began < 2
    own_node.resume()
    until = time.monotonic() + 20
    while storage.batch_get_v1(keys, tokens_of(list(range(10)))) != [True] * 10:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_node_that_wakes_up_writes_into_nobodys_page(own_node: Node, backend: Backend) -> None:
    """Its get has timed out, and SGLang has reused the pages for another request."""
    pool = mha_pool("page_first_direct")
    storage = backend(pool, own_node.endpoint, more={"load_timeout": 0.2})
    wait_for_node(storage)
    keys = keys_of(20)
    put(storage, keys, list(range(20)))
    own_node.pause()
    assert storage.batch_get_v1(keys, tokens_of(list(range(20)))) == [False] * 20
    filled(pool)
    expected = [page_of(pool, page) for page in range(PAGES)]
    own_node.resume()
    until = time.monotonic() + 20
    kv = storage._pools["kv"]
    assert kv is not None and kv._load_rows is not None
    while kv._load_rows.free_count < kv._load_rows.count:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert all(torch.equal(page_of(pool, page), expected[page]) for page in range(PAGES))


def test_a_node_that_dies_and_comes_back_empty_is_used_again(own_node: Node, backend: Backend) -> None:
    pool = mha_pool("layer_first")
    storage = backend(pool, own_node.endpoint)
    wait_for_node(storage)
    keys = keys_of(10)
    put(storage, keys, list(range(10)))
    own_node.kill()
    everything(storage, pool, keys)
    own_node.start()
    until = time.monotonic() + 60
    while storage.batch_set_v1(keys, tokens_of(list(range(10)))) != [True] * 10:
        assert time.monotonic() < until
        time.sleep(0.1)
    while storage.batch_exists(keys) != 10:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert storage.batch_get_v1(keys, tokens_of(list(range(10)))) == [True] * 10


def test_wrong_bytes_never_reach_a_page(backend: Backend) -> None:
    port = free_port()
    node = Node("--listen", f"tcp://127.0.0.1:{port}")
    proxy = Proxy(("127.0.0.1", port))
    try:
        pool = mha_pool("page_first_direct")
        storage = backend(pool, proxy.endpoint)
        wait_for_node(storage)
        keys, new = keys_of(10), keys_of(10, "new")
        put(storage, keys, list(range(10)))
        proxy.flips = True
        before = [page_of(pool, page) for page in range(20, 30)]
        got = storage.batch_get_v1(keys, tokens_of(list(range(20, 30))))
        assert proxy.flipped > 0 and not all(got)
        for i, is_here in enumerate(got):
            assert torch.equal(page_of(pool, 20 + i), page_of(pool, i) if is_here else before[i])
        flipped = proxy.flipped
        storage.batch_set_v1(new, tokens_of(list(range(10))))
        assert proxy.flipped > flipped
        proxy.flips = False
        until = time.monotonic() + 20
        while storage.batch_get_v1(keys, tokens_of(list(range(20, 30)))) != [True] * 10:
            assert time.monotonic() < until
            time.sleep(0.1)
        emptied_pages = tokens_of(list(range(20, 30)))
        for i, is_here in enumerate(storage.batch_get_v1(new, emptied_pages)):
            assert not is_here or torch.equal(page_of(pool, 20 + i), page_of(pool, i))
    finally:
        proxy.close()
        node.close()


def test_a_slow_node_is_waited_for_up_to_the_timeout(backend: Backend) -> None:
    port = free_port()
    node = Node("--listen", f"tcp://127.0.0.1:{port}")
    proxy = Proxy(("127.0.0.1", port))
    try:
        pool = mha_pool("page_first_direct")
        storage, hasty = backend(pool, proxy.endpoint), backend(pool, proxy.endpoint, more={"load_timeout": 0.05})
        wait_for_node(storage)
        wait_for_node(hasty)
        keys = keys_of(10)
        put(storage, keys, list(range(10)))
        proxy.delay = 0.2
        assert storage.batch_exists(keys) == 10
        assert storage.batch_get_v1(keys, tokens_of(list(range(10, 20)))) == [True] * 10
        began = time.monotonic()
        assert hasty.batch_get_v1(keys, tokens_of(list(range(20, 30)))) == [False] * 10
        assert time.monotonic() - began < 2
        assert all(torch.equal(page_of(pool, 10 + i), page_of(pool, i)) for i in range(10))
    finally:
        proxy.close()
        node.close()


def test_a_full_store_says_what_it_has_not_taken(backend: Backend) -> None:
    node = Node(capacity="16MiB")
    try:
        pool = mha_pool("page_first_direct", heads=16, layers=16)  # pages of 256 KiB
        storage = backend(pool, node.endpoint)
        wait_for_node(storage)
        keys = [keys_of(PAGES, f"full {i}") for i in range(6)]
        for each in keys:
            assert storage.batch_set_v1(each, tokens_of(list(range(PAGES)))).count(True) > 0
        expected = [page_of(pool, page) for page in range(PAGES)]
        there = 0
        for each in keys:
            target = list(range(PAGES - 1, -1, -1))
            emptied(pool)
            for i, is_here in enumerate(storage.batch_get_v1(each, tokens_of(target))):
                there += is_here
                assert not is_here or torch.equal(page_of(pool, target[i]), expected[i])
        assert 0 < there < 6 * PAGES
    finally:
        node.close()


def test_arguments_that_make_no_sense_are_misses(backend: Backend) -> None:
    pool = mha_pool("page_first_direct")
    storage = backend(pool)
    keys = keys_of(3)
    put(storage, keys, [0, 1, 2])
    before = [page_of(pool, page) for page in range(PAGES)]
    assert storage.batch_get_v1(keys, tokens_of([0, 1])) == [False] * 3
    assert storage.batch_get_v1(keys, tokens_of([0, 1, 2]) + 1) == [False] * 3
    assert storage.batch_get_v1(keys, tokens_of([0, 1, PAGES + 5])) == [False] * 3
    assert storage.batch_set_v1(keys, tokens_of([0, 1])) == [False] * 3
    assert storage.batch_get(keys, []) == [None] * 3
    assert storage.batch_get(keys, [torch.empty(5)] * 3) == [None] * 3
    assert storage.batch_set(keys, [torch.empty(5)] * 3) is False
    assert all(torch.equal(page_of(pool, page), before[page]) for page in range(PAGES))
    assert storage.batch_get_v1(keys, tokens_of([3, 4, 5])) == [True] * 3
    kv = storage._pools["kv"]
    assert kv is not None and kv._load_rows is not None and kv._save_rows is not None
    assert kv._load_rows.free_count == kv._load_rows.count and kv._save_rows.free_count == kv._save_rows.count


def test_eight_threads_move_pages_at_once(backend: Backend) -> None:
    pool = mha_pool("layer_first", pages=80)
    storage = backend(pool, more={"staging_bytes": 1 << 20})
    keys = [keys_of(5, f"thread {i}") for i in range(8)]
    wrong: list[str] = []

    def work(i: int) -> None:
        own = list(range(10 * i, 10 * i + 5))
        loaded = [page + 5 for page in own]
        expected = [page_of(pool, page) for page in own]
        for _ in range(30):
            if storage.batch_set_v1(keys[i], tokens_of(own)) != [True] * 5:
                wrong.append("set")
            if storage.batch_exists(keys[i]) != 5:
                wrong.append("exists")
            if storage.batch_get_v1(keys[i], tokens_of(loaded)) != [True] * 5:
                wrong.append("get")
            elif not all(torch.equal(page_of(pool, page), each) for page, each in zip(loaded, expected, strict=True)):
                wrong.append("bytes")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert not wrong


def test_memory_stays_flat_over_many_calls(backend: Backend) -> None:
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    pool = mha_pool("page_first_direct")
    storage = backend(pool)
    keys = keys_of(4)
    put(storage, keys, [0, 1, 2, 3])
    indices = tokens_of([4, 5, 6, 7])

    def calls(count: int) -> None:
        for _ in range(count):
            storage.batch_exists(keys)
            storage.batch_get_v1(keys, indices)
            storage.batch_set_v1(keys, indices)

    calls(1000)
    gc.collect()
    was = resident()
    calls(3000)
    gc.collect()
    assert resident() - was < 8 << 20


def test_no_file_is_left_in_shared_memory(backend: Backend) -> None:
    was = shared_files(os.getpid())
    pool = mha_pool("layer_first")
    storage = backend(pool)
    put(storage, keys_of(4), [0, 1, 2, 3])
    assert storage.batch_exists(keys_of(4)) == 4
    assert shared_files(os.getpid()) <= was
    storage.close()


# -- SGLang's own controller


@pytest.mark.parametrize("layouts", (("page_first_direct", "layer_first"), ("layer_first", "page_first_direct")))
@pytest.mark.parametrize("interface_v1", (1, 0))
def test_sglangs_controller_stores_and_prefetches(
    layouts: tuple[str, str], interface_v1: int, node: Node, salt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One controller backs pages up, another with another host layout prefetches some of them."""
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = {
        "backend_name": "kvstore",
        "module_path": "kvstore.sglang",
        "class_name": "KVStoreHiCache",
        "interface_v1": interface_v1,
        "endpoints": node.endpoint,
        "salt": salt,
        "lookup_timeout": 5.0,
        "load_timeout": 5.0,
    }

    def controller(host: Any) -> Any:
        device = MHATokenToKVPool(PAGES * PAGE, PAGE, torch.bfloat16, HEADS, SIZE, LAYERS, "cpu", False)
        allocator = PagedTokenToKVPoolAllocator(PAGES * PAGE, PAGE, torch.bfloat16, "cpu", device, False)
        return HiCacheController(
            allocator,
            host,
            PAGE,
            torch.distributed.group.WORLD,
            threading.Event(),
            io_backend="direct",
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            model_name="dummy",
            storage_backend_extra_config=dict(options),
        )

    source, target = mha_pool(layouts[0]), emptied(mha_pool(layouts[1]))
    one, other = controller(source), controller(target)
    tokens = list(range(1000, 1000 + 12 * PAGE))
    hashes = get_storage_hash_str(tokens, None, page_size=PAGE)
    wait_for_node(one.storage_backend)
    wait_for_node(other.storage_backend)
    indices = tokens_of(list(range(12)))
    one.write_storage(indices[: 10 * PAGE], tokens[: 10 * PAGE], hashes[:10])
    operation = one.ack_backup_queue.get(timeout=20)
    assert operation.completed_tokens == 10 * PAGE
    wanted = other.prefetch("request", tokens, None, [])
    found = other.prefetch_hit_queue.get(timeout=20)
    assert found is wanted and found.storage_hit_count == 10 * PAGE
    found.host_indices = other.alloc_prefetch_host_buffers(found, found.storage_hit_count)
    other.prefetch_buffer.put(found)
    completed = 0
    while True:
        ack = other.ack_prefetch_queue.get(timeout=20)
        if ack.completed_req:
            break
        completed = ack.completed_tokens
    assert completed == 10 * PAGE
    for i in range(10):
        page = int(found.host_indices[i * PAGE]) // PAGE
        assert torch.equal(page_of(target, page), page_of(source, i))
    for each in (one, other):
        each.detach_storage_backend()
        assert each.storage_backend is None
