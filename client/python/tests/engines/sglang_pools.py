"""SGLang's own host pools, without a model, and backends of them. Pages hold random bytes, so that a wrong one shows."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import Node, free_port
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang_cpu import allow_little_memory

from kvstore.sglang import KVStoreHiCache

PAGE, LAYERS, HEADS, SIZE, PAGES = 16, 3, 4, 16, 40
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
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
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
    while storage._door.client.ping()[0] is None:
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
