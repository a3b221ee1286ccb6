"""SGLang's own HiCache controller with the backend, without a model."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("sglang")

import sglang_pools
import torch
from conftest import Node
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang_pools import HEADS, LAYERS, PAGE, PAGES, SIZE, emptied, mha_pool, page_of, tokens_of, wait_for_node

backend, salt, sglang_context = sglang_pools.backend, sglang_pools.salt, sglang_pools.sglang_context  # fixtures


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
