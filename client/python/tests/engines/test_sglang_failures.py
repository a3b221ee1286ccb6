"""SGLang's host pools and a store that is away, stopped, slow, full or wrong; and calls from many threads, and many of them."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import pytest

pytest.importorskip("sglang")

import sglang_pools
import torch
from conftest import Node, free_port, resident_bytes
from proxy import Proxy
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang_cpu import shared_files
from sglang_pools import PAGES, Backend, emptied, filled, keys_of, mha_pool, page_of, put, tokens_of, wait_for_node

from kvstore.sglang import KVStoreHiCache

backend, salt, sglang_context = sglang_pools.backend, sglang_pools.salt, sglang_pools.sglang_context  # fixtures


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
    was = resident_bytes()
    calls(3000)
    gc.collect()
    assert resident_bytes() - was < 8 << 20


def test_no_file_is_left_in_shared_memory(backend: Backend) -> None:
    was = shared_files(os.getpid())
    pool = mha_pool("layer_first")
    storage = backend(pool)
    put(storage, keys_of(4), [0, 1, 2, 3])
    assert storage.batch_exists(keys_of(4)) == 4
    assert shared_files(os.getpid()) <= was
    storage.close()
