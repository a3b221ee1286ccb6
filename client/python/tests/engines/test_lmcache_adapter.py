"""LMCache's L2 by both adapters, a real node, and LMCache's own checks, serdes and fault injector."""

from __future__ import annotations

import argparse
import gc
import os
import random
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

os.environ["LMCACHE_TRACK_USAGE"] = "false"  # on by default
pytest.importorskip("lmcache")

import json
import logging

import numpy as np
import torch
from conftest import Node
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
from lmcache.v1.distributed.internal_api import L2AdapterListener
from lmcache.v1.distributed.l1_manager import L1Manager
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper
from lmcache.v1.distributed.serde import create_serde_processor
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd
from proxy import PUT_DATA, SET_GET, SET_MATCH, Proxy

import kvstore
from kvstore.lmcache import compat
from kvstore.lmcache.adapter import Adapter

SIZE = 1 << 16
_models = iter(range(10**9))


def spec(endpoint: str, door: str = "plugin", model: str | None = None, **params: Any) -> dict[str, Any]:
    given = {"endpoints": endpoint, "model": model or f"m{os.getpid()}-{next(_models)}", "weights_epoch": 1} | params
    name = {"plugin": "Adapter", "native_plugin": "Connector"}[door]
    return {"type": door, "module_path": "kvstore.lmcache", "class_name": name, "adapter_params": given}


def made(config: dict[str, Any]) -> Any:
    """As LMCache makes it."""
    parsed = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(config)]))
    return create_l2_adapter(parsed.adapters[0], l1_memory_desc=None)


@pytest.fixture
def adapters() -> Iterator[Any]:
    opened: list[Any] = []

    def make(config: dict[str, Any]) -> Any:
        opened.append(made(config))
        if isinstance(opened[-1], Adapter):
            ready(opened[-1])
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def ready(adapter: Adapter) -> None:
    """Waits for a connection, if its node listens. A ping does not wait for the next attempt to connect."""
    until = time.monotonic() + 10
    while adapter._door.client.ping(deadline=0.1) == [None] and time.monotonic() < until:
        if not any(Path(each["endpoint"].removeprefix("unix://")).exists() for each in adapter._door.client.nodes()):
            return
        time.sleep(0.01)


def key_of(name: int | str, model: str = "llama", salt: str = "") -> ObjectKey:
    return ObjectKey(random.Random(str(name)).randbytes(32), model, ObjectKey.ComputeKVRank(1, 0, 1, 0), 0, salt)


def object_of(value: int | None = None, nbytes: int = SIZE) -> TensorMemoryObj:
    data = torch.zeros(nbytes, dtype=torch.uint8)
    if value is not None:
        data[:] = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(value))
    metadata = MemoryObjMetadata(
        shape=torch.Size([nbytes]),
        dtype=torch.uint8,
        address=data.data_ptr(),
        phy_size=nbytes,
        fmt=MemoryFormat.KV_2LTD,
        ref_count=1,
    )
    return TensorMemoryObj(data, metadata, parent_allocator=None)


def wait_fd(fd: int, seconds: float = 15) -> bool:
    """As LMCache's controllers do it."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(seconds * 1000):
        return False
    consume_fd(fd)
    return True


def bits(bitmap: Any, count: int) -> list[bool]:
    assert bitmap.size() == count if hasattr(bitmap, "size") else len(bitmap) == count
    return [bool(bitmap.test(i)) for i in range(count)]


def result(query: Any, fd: int, task: int, seconds: float = 15) -> Any:
    until = time.monotonic() + seconds
    while (answer := query(task)) is None:
        assert wait_fd(fd, until - time.monotonic()), "nobody tells that the task has ended"
    return answer


def store(adapter: Any, keys: list[ObjectKey], objects: list[Any]) -> Any:
    task = adapter.submit_store_task(keys, objects)
    until = time.monotonic() + 15
    while task not in (done := adapter.pop_completed_store_tasks()):
        assert wait_fd(adapter.get_store_event_fd(), until - time.monotonic())
    return done[task]


def look(adapter: Any, keys: list[ObjectKey], hints: Any = None) -> list[bool]:
    task = adapter.submit_lookup_and_lock_task(keys, hints or {})
    return bits(result(adapter.query_lookup_and_lock_result, adapter.get_lookup_and_lock_event_fd(), task), len(keys))


def load(adapter: Any, keys: list[ObjectKey], objects: list[Any]) -> list[bool]:
    task = adapter.submit_load_task(keys, objects)
    return bits(result(adapter.query_load_result, adapter.get_load_event_fd(), task), len(keys))


def same(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a.raw_data, b.raw_data) for a, b in zip(one, other, strict=True))


# -- batches


def test_what_was_stored_is_found_and_loaded(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    keys, objects = [key_of(i) for i in range(9)], [object_of(i) for i in range(8)]
    assert look(adapter, keys) == [False] * 9
    assert store(adapter, keys[:8], objects).bytes_transferred() == 8 * SIZE
    assert store(adapter, keys[:8], objects).bytes_transferred() == 0  # is there already
    assert look(adapter, keys[::-1]) == [False] + [True] * 8
    targets = [object_of() for _ in keys]
    assert load(adapter, keys, targets) == [True] * 8 + [False]
    assert same(targets[:8], objects)
    adapter.submit_unlock(keys)
    assert adapter.report_status()["leases"] == 0


def test_a_batch_is_one_call(adapters: Any, proxied: tuple[Node, Proxy]) -> None:
    _, proxy = proxied
    adapter = adapters(spec(proxy.endpoint))
    keys, objects = [key_of(i) for i in range(64)], [object_of(i, 4096) for i in range(64)]
    assert store(adapter, keys, objects).is_successful()
    before = proxy.seen[SET_MATCH, False], proxy.seen[SET_GET, False]
    assert all(look(adapter, keys))
    assert all(load(adapter, keys, [object_of(None, 4096) for _ in keys]))
    assert (proxy.seen[SET_MATCH, False], proxy.seen[SET_GET, False]) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("doors", [("plugin", "native_plugin"), ("native_plugin", "plugin")])
def test_both_doors_name_objects_alike(adapters: Any, node: Node, doors: tuple[str, str]) -> None:
    model = f"alike-{doors[0]}"
    one, other = (adapters(spec(node.endpoint, door, model)) for door in doors)
    keys = [key_of(1), key_of(2, salt="tenant"), ObjectKey(b"\1\2\3\4", "org/model", 7, 3)]
    objects = [object_of(i, 4096 * (i + 1)) for i in range(3)]
    assert store(one, keys, objects).is_successful()
    targets = [object_of(None, 4096 * (i + 1)) for i in range(3)]
    assert look(other, keys) == [True] * 3
    assert load(other, keys, targets) == [True] * 3
    assert same(targets, objects)


@pytest.mark.parametrize("door", ["plugin", "native_plugin"])
def test_objects_of_every_format_are_what_they_were(adapters: Any, node: Node, door: str) -> None:
    """Full attention, latents, windows and states in groups of their own: bytes as LMCache has them."""
    adapter = adapters(spec(node.endpoint, door))
    keys, objects, targets = [], [], []
    for i, fmt in enumerate(each for each in MemoryFormat if each.name != "UNDEFINED"):
        for group, (dtype, shape) in enumerate(
            [(torch.bfloat16, (2, 4, 32, 64)), (torch.float8_e4m3fn, (4, 32, 576)), (torch.float32, (3, 17))]
        ):
            keys.append(ObjectKey(key_of(f"{door} {fmt.name}").chunk_hash, "llama", 7, group))
            for made, value in ((objects, 100 + 3 * i + group), (targets, None)):
                nbytes = int(np.prod(shape)) * dtype.itemsize
                each = object_of(value, nbytes)
                each.metadata.fmt, each.metadata.dtype, each.metadata.shape = fmt, dtype, torch.Size(shape)
                made.append(each)
    assert len(keys) >= 9
    assert store(adapter, keys, objects).is_successful()
    assert look(adapter, keys) == [True] * len(keys)
    assert load(adapter, keys, targets) == [True] * len(keys)
    assert same(targets, objects)


def test_hints_of_layouts_change_nothing(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    assert store(adapter, [key_of(1)], [object_of(1)]).is_successful()
    real = {0: MemoryLayoutDesc([torch.Size([4, 256, 256])], [torch.bfloat16])}
    for hints in ({}, {0: MemoryLayoutDesc([], [])}, real, None):
        assert look(adapter, [key_of(1), key_of(2)], hints) == [True, False]


def test_an_object_of_another_size_is_not_loaded(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    keys = [key_of(1), key_of(2)]
    assert store(adapter, keys, [object_of(1), object_of(2)]).is_successful()
    targets = [object_of(None, SIZE // 2), object_of(None, SIZE * 2)]
    assert load(adapter, keys, targets) == [False, False]


def test_models_are_apart(adapters: Any, node: Node) -> None:
    one, other = adapters(spec(node.endpoint)), adapters(spec(node.endpoint))
    assert store(one, [key_of(1)], [object_of(1)]).is_successful()
    assert look(other, [key_of(1)]) == [False]


def test_nothing_asked_is_nothing_found(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    assert look(adapter, []) == []
    assert load(adapter, [], []) == []
    assert store(adapter, [], []).is_successful()


# -- reports of ends


def test_each_kind_has_a_descriptor_of_its_own_and_ends_are_told_by_it_alone(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    fds = [adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()]
    assert len(set(fds)) == 3
    adapter.submit_lookup_and_lock_task([key_of(1)], {})
    assert wait_fd(fds[1])
    assert not wait_fd(fds[0], 0)
    assert not wait_fd(fds[2], 0)


def test_every_end_is_told_however_tasks_overlap(adapters: Any, node: Node) -> None:
    """Also for a task queried after another's end was read off the descriptor; some results are never fetched."""
    adapter = adapters(spec(node.endpoint))
    fd = adapter.get_lookup_and_lock_event_fd()
    dice = random.Random(3)
    pending: list[int] = []
    for i in range(600):
        for _ in range(dice.randrange(1, 4)):
            task = adapter.submit_lookup_and_lock_task([key_of(i)], {})
            if dice.random() < 0.9:
                pending.append(task)
        if dice.random() < 0.5:
            time.sleep(dice.random() * 0.0005)
        if dice.random() < 0.6:
            until = time.monotonic() + 10
            while pending:  # as a controller: only after a wake-up
                assert wait_fd(fd, until - time.monotonic())
                pending = [each for each in pending if adapter.query_lookup_and_lock_result(each) is None]


def test_an_end_that_was_read_with_another_is_told_again(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    fd = adapter.get_lookup_and_lock_event_fd()
    one, other = (adapter.submit_lookup_and_lock_task([key_of(i)], {}) for i in range(2))
    select.select([fd], [], [], 5)
    time.sleep(0.05)
    assert wait_fd(fd)
    assert adapter.query_lookup_and_lock_result(one) is not None
    assert wait_fd(fd, 1)
    assert adapter.query_lookup_and_lock_result(other) is not None


def test_a_result_is_given_once(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    task = adapter.submit_lookup_and_lock_task([key_of(1)], {})
    result(adapter.query_lookup_and_lock_result, adapter.get_lookup_and_lock_event_fd(), task)
    assert adapter.query_lookup_and_lock_result(task) is None
    assert adapter.query_load_result(12345) is None


# -- locks


def test_what_a_lookup_has_found_stays_until_it_is_unlocked(adapters: Any) -> None:
    node = Node(capacity="16MiB")
    try:
        adapter = adapters(spec(node.endpoint, object_bytes_max=1 << 20))
        keys, objects = [key_of(i) for i in range(4)], [object_of(i, 1 << 20) for i in range(4)]
        assert store(adapter, keys, objects).is_successful()
        assert look(adapter, keys) == [True] * 4
        fillers = [key_of(f"filler {i}") for i in range(64)]
        for key in fillers:
            store(adapter, [key], [object_of(7, 1 << 20)])
        targets = [object_of(None, 1 << 20) for _ in keys]
        assert load(adapter, keys, targets) == [True] * 4
        assert same(targets, objects)
        adapter.submit_unlock(keys)
        assert adapter.report_status()["leases"] == 0
        for key in [key_of(f"more {i}") for i in range(64)]:
            store(adapter, [key], [object_of(7, 1 << 20)])
        assert False in look(adapter, keys)
    finally:
        node.close()


def test_locks_of_two_lookups_end_one_by_one(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    keys = [key_of(1), key_of(2)]
    assert store(adapter, keys, [object_of(1), object_of(2)]).is_successful()
    assert look(adapter, keys) == look(adapter, keys) == [True] * 2
    assert adapter.report_status()["leases"] == 2
    adapter.submit_unlock(keys[:1])
    assert adapter.report_status()["leases"] == 2
    adapter.submit_unlock(keys[1:])
    assert adapter.report_status()["leases"] == 1
    adapter.submit_unlock([*keys, key_of(3)])
    assert adapter.report_status()["leases"] == 0


# -- a store that is away, dies, is slow, wrong or full


@pytest.fixture
def proxied() -> Iterator[tuple[Node, Proxy]]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    node = Node("--listen", f"tcp://127.0.0.1:{port}")
    proxy = Proxy(("127.0.0.1", port))
    yield node, proxy
    proxy.close()
    node.close()


def none_of_it(adapter: Any) -> None:
    keys = [key_of(i) for i in range(5)]
    assert look(adapter, keys) == [False] * 5
    assert load(adapter, keys, [object_of() for _ in keys]) == [False] * 5
    assert not store(adapter, keys, [object_of(1) for _ in keys]).is_successful()


def test_without_a_node_nothing_is_found_and_later_everything_works(adapters: Any, own_node: Node) -> None:
    own_node.kill()
    adapter = adapters(spec(own_node.endpoint))
    none_of_it(adapter)
    own_node.start()
    ready(adapter)
    until = time.monotonic() + 20
    while not store(adapter, [key_of(1)], [object_of(1)]).is_successful():
        assert time.monotonic() < until
        time.sleep(0.1)
    assert look(adapter, [key_of(1)]) == [True]


def test_a_killed_node_is_not_found_and_a_restarted_one_is_empty(adapters: Any, own_node: Node) -> None:
    adapter = adapters(spec(own_node.endpoint))
    assert store(adapter, [key_of(1)], [object_of(1)]).is_successful()
    own_node.kill()
    none_of_it(adapter)
    own_node.start()
    ready(adapter)
    assert look(adapter, [key_of(1)]) == [False]
    assert store(adapter, [key_of(1)], [object_of(1)]).is_successful()
    assert look(adapter, [key_of(1)]) == [True]


def test_a_stopped_node_costs_the_deadline_and_writes_nothing_later(adapters: Any, own_node: Node) -> None:
    patient, adapter = (adapters(spec(own_node.endpoint, model="stopped", **more)) for more in ({}, {"deadline": 0.3}))
    keys, objects = [key_of(i) for i in range(5)], [object_of(i) for i in range(5)]
    assert store(patient, keys, objects).is_successful()
    own_node.pause()
    targets = [object_of() for _ in keys]
    began = time.monotonic()
    assert load(adapter, keys, targets) == [False] * 5
    assert time.monotonic() - began < 2
    for each in targets:
        each.raw_data.fill_(7)
    own_node.resume()
    time.sleep(0.5)
    assert all(bool((each.raw_data == 7).all()) for each in targets)


def test_after_three_failures_the_store_is_not_asked_for_a_while(adapters: Any, own_node: Node) -> None:
    adapter = adapters(spec(own_node.endpoint, deadline=0.1))
    own_node.pause()
    for _ in range(3):
        assert look(adapter, [key_of(1)]) == [False]
    began = time.monotonic()
    assert look(adapter, [key_of(1)]) == [False]
    assert time.monotonic() - began < 0.08
    own_node.resume()


def test_wrong_bytes_are_not_loaded(adapters: Any, proxied: tuple[Node, Proxy]) -> None:
    _, proxy = proxied
    adapter = adapters(spec(proxy.endpoint))
    keys = [key_of(i) for i in range(3)]
    assert store(adapter, keys, [object_of(i) for i in range(3)]).is_successful()
    proxy.flips = True
    assert not all(load(adapter, keys, [object_of() for _ in keys]))
    assert proxy.flipped


def test_a_slow_node_is_waited_for(adapters: Any, proxied: tuple[Node, Proxy]) -> None:
    _, proxy = proxied
    adapter = adapters(spec(proxy.endpoint))
    proxy.delay = 0.2
    assert store(adapter, [key_of(1)], [object_of(1)]).is_successful()
    target = [object_of()]
    assert look(adapter, [key_of(1)]) == [True]
    assert load(adapter, [key_of(1)], target) == [True]
    assert same(target, [object_of(1)])


@pytest.mark.parametrize("kind", [SET_GET, PUT_DATA])
def test_a_node_killed_in_the_middle_of_a_batch_ends_it(adapters: Any, proxied: tuple[Node, Proxy], kind: int) -> None:
    node, proxy = proxied
    adapter = adapters(spec(proxy.endpoint, deadline=2))
    keys, objects = [key_of(i) for i in range(5)], [object_of(i) for i in range(5)]
    if kind == SET_GET:
        assert store(adapter, keys, objects).is_successful()
    sprung = proxy.trap(kind, node.kill, response=kind == SET_GET, middle=True)
    if kind == SET_GET:
        targets = [object_of() for _ in keys]
        landed = load(adapter, keys, targets)  # all may be under way already
        for is_here, target, stored in zip(landed, targets, objects, strict=True):
            assert not is_here or same([target], [stored])
    else:
        assert not store(adapter, keys, objects).is_successful()
    assert sprung.wait(10)


def test_what_is_too_large_fails_alone(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint, object_bytes_max=SIZE))
    assert not store(adapter, [key_of(1)], [object_of(1, 2 * SIZE)]).is_successful()
    assert store(adapter, [key_of(2)], [object_of(2)]).is_successful()


def test_nonsense_ends_tasks_and_raises_nothing(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    keys = [key_of(1), key_of(2)]
    nonsense = [[object(), object()], [object_of(1)], [None, None]]
    for objects in nonsense:
        assert not store(adapter, keys, objects).is_successful()
        assert load(adapter, keys, objects) == [False, False]
    adapter._door.saves.succeeded()
    adapter._door.loads.succeeded()
    assert store(adapter, keys, [object_of(1), object_of(2)]).is_successful()


def test_a_closed_adapter_ends_its_tasks(own_node: Node) -> None:
    adapter = made(spec(own_node.endpoint, deadline=20))
    ready(adapter)
    own_node.pause()
    target = object_of()
    task = adapter.submit_load_task([key_of(1)], [target])
    adapter.close()
    assert bits(result(adapter.query_load_result, adapter.get_load_event_fd(), task), 1) == [False]
    none_of_it(adapter)
    adapter.close()
    assert not adapter.report_status()["is_healthy"]
    adapter.delete([key_of(1)])
    assert adapter.list_l2_keys().entries == ()


def test_eight_threads(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                keys = [key_of(f"{number} {i} {j}") for j in range(4)]
                objects = [object_of(hash((number, i, j)) % 2**31, 4096) for j in range(4)]
                put = adapter.submit_store_task(keys, objects)
                while put not in stored:
                    with lock:
                        stored.update(adapter.pop_completed_store_tasks())
                    time.sleep(0.0005)
                lookup = adapter.submit_lookup_and_lock_task(keys, {})
                while (found := adapter.query_lookup_and_lock_result(lookup)) is None:
                    time.sleep(0.0005)
                assert all(bits(found, 4))
                targets = [object_of(None, 4096) for _ in keys]
                get = adapter.submit_load_task(keys, targets)
                while (landed := adapter.query_load_result(get)) is None:
                    time.sleep(0.0005)
                assert all(bits(landed, 4))
                assert same(targets, objects)
                adapter.submit_unlock(keys)
        except BaseException as problem:
            problems.append(problem)

    stored: dict[int, Any] = {}
    lock = threading.Lock()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert not problems, problems
    assert all(each.is_successful() for each in stored.values())
    assert adapter.report_status()["leases"] == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_stays_flat(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))
    keys, objects = [key_of(i) for i in range(4)], [object_of(i, 4096) for i in range(4)]
    targets = [object_of(None, 4096) for _ in keys]

    def one_round() -> None:
        assert store(adapter, keys, objects).is_successful()
        assert all(look(adapter, keys))
        assert all(load(adapter, keys, targets))
        adapter.submit_unlock(keys)

    for _ in range(300):
        one_round()
    gc.collect()
    before = resident_bytes()
    for _ in range(int(os.environ.get("KV_LMCACHE_ROUNDS", "1500"))):
        one_round()
    gc.collect()
    assert resident_bytes() - before < 4 << 20


# -- the optional calls


class Listener(L2AdapterListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def on_l2_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        self.told.append(("stored", len(keys), sum(sizes)))

    def on_l2_keys_accessed(self, keys: list[Any]) -> None:
        self.told.append(("accessed", len(keys), 0))

    def on_l2_keys_deleted(self, keys: list[Any]) -> None:
        self.told.append(("deleted", len(keys), 0))


def test_sizes_are_counted_and_told(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint, max_capacity_gb=1))
    listener = Listener()
    adapter.register_listener(listener)
    keys = [key_of(i, salt=f"s{i % 2}") for i in range(4)]
    objects = [object_of(i) for i in range(4)]
    assert adapter.supports_global_eviction
    assert store(adapter, keys, objects).is_successful()
    assert store(adapter, keys, objects).is_successful()
    assert load(adapter, keys, [object_of() for _ in keys]) == [True] * 4
    usage = adapter.get_usage()
    assert usage.total_bytes_used == 4 * SIZE
    assert dict(usage.bytes_by_cache_salt) == {"s0": 2 * SIZE, "s1": 2 * SIZE}
    adapter.delete([*keys[:3], key_of("unknown")])
    assert look(adapter, keys) == [False] * 3 + [True]
    assert adapter.get_usage().total_bytes_used == SIZE
    assert listener.told == [
        ("stored", 4, 4 * SIZE),
        ("stored", 4, 0),
        ("accessed", 4, 0),
        ("deleted", 3, 0),
    ]


def test_a_listener_that_raises_costs_nothing(adapters: Any, node: Node) -> None:
    adapter = adapters(spec(node.endpoint))

    class Raises(Listener):
        def on_l2_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
            raise RuntimeError("no")

    adapter.register_listener(Raises())
    assert store(adapter, [key_of(1)], [object_of(1)]).is_successful()


def test_keys_are_listed_in_pages_as_long_as_the_store_has_them(adapters: Any, node: Node) -> None:
    model = f"listed-{os.getpid()}"
    adapter = adapters(spec(node.endpoint, model=model))
    keys = [key_of(i, model=f"m{i % 2}") for i in range(10)]
    for i, key in enumerate(keys):
        assert store(adapter, [key], [object_of(i, 4096 + i)]).is_successful()
    adapter.delete([keys[4]])
    adapters(spec(node.endpoint, model=model)).delete([keys[6]])  # by another adapter

    def listed(model_name: str | None, page_size: int) -> list[tuple[str, int]]:
        found, cursor = [], None
        while True:
            page = adapter.list_l2_keys(model_name, page_size, cursor)
            found += [(each.key.chunk_hash_hex, each.size_bytes) for each in page.entries]
            cursor = page.next_page_token
            if cursor is None:
                return found

    expected = [(key.chunk_hash.hex(), 4096 + i) for i, key in enumerate(keys) if i not in (4, 6)]
    for page_size in (1, 3, 500):
        assert listed(None, page_size) == expected
    assert listed("m1", 2) == [each for i, each in enumerate(expected) if i in (1, 3, 4, 5, 7)]
    assert listed("none", 5) == []
    for page_size, cursor in ((0, None), (5, "x")):
        with pytest.raises(ValueError, match=r"page_size|cursor"):
            adapter.list_l2_keys(None, page_size, cursor)


def test_the_status_names_the_nodes(adapters: Any, own_node: Node) -> None:
    status = adapters(spec(own_node.endpoint)).report_status()
    assert status["is_healthy"]
    assert status["nodes"][0]["endpoint"] == own_node.endpoint
    json.dumps(status)


# -- refusals


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"endpoints": ""}, "endpoints is ''"),
        ({"endpoint": "unix:///x"}, "'endpoint' is none of"),
        ({"deadline": 0}, "deadline is 0"),
        ({"max_capacity_gb": -1}, "max_capacity_gb is -1"),
        ({"weights_epoch": "new"}, "weights_epoch is 'new', allowed is a whole number"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], text: str) -> None:
    with pytest.raises(kvstore.errors.BadRequest, match=text):
        Adapter({"endpoints": "unix:///nowhere"} | params)


def test_a_release_that_was_not_tried_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, node: Node
) -> None:
    monkeypatch.setattr(compat, "VERSION", "0.9.9")
    monkeypatch.setattr(logging.getLogger("lmcache.kvstore"), "propagate", True)  # LMCache's loggers do not propagate
    adapter = Adapter({"endpoints": node.endpoint, "weights_epoch": 1})
    adapter.close()
    assert "LMCache 0.9.9 was not tried" in caplog.text


def test_a_release_without_what_is_used_is_refused_by_name() -> None:
    program = (
        "import sys, lmcache.v1.distributed.api as api; del api.KeyListPage\n"
        "import kvstore.lmcache; kvstore.lmcache.Connector\n"
        "try: kvstore.lmcache.Adapter\n"
        "except kvstore.errors.Unsupported as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "is not served" in done.stdout
    assert "Tried were" in done.stdout


# -- LMCache's own


@pytest.mark.parametrize("door", ["plugin", "native_plugin"])
def test_lmcaches_basic_check(node: Node, door: str) -> None:
    """Its exit status is always 0: its text counts."""
    arguments = ["-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--num-keys", "8", "--obj-size", "65536"]
    done = subprocess.run(
        [sys.executable, *arguments, "--l2-adapter", json.dumps(spec(node.endpoint, door))],
        capture_output=True,
        text=True,
        check=True,
    )
    counts = re.findall(r"Validation.*: (\d+)/8|Batch store (OK)", done.stdout)
    assert counts == [("8", ""), ("", "OK"), ("8", ""), ("8", ""), ("8", "")], done.stdout[-3000:]


def test_lmcaches_check_of_its_older_interface(own_node: Node, tmp_path: Path) -> None:
    """Without the engine's own memory in between: each chunk comes from the store."""
    (tmp_path / "config.yaml").write_text(
        "chunk_size: 256\nlocal_cpu: false\nmax_local_cpu_size: 0.25\nremote_serde: naive\n"
        "remote_storage_plugins: [kvstore]\n"
        "extra_config: {remote_storage_plugin.kvstore.module_path: kvstore.lmcache, "
        f"remote_storage_plugin.kvstore.class_name: Remote, kvstore.endpoints: '{own_node.endpoint}', "
        "kvstore.weights_epoch: 1}\n"
    )
    for again in (False, True):  # another process finds the stored chunks
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "lmcache.v1.basic_check",
                "--mode",
                "test_storage_manager",
                "--num-keys",
                "8",
                "--model",
                "m",
                "--obj-size",
                "512",  # of the 256 tokens in its chunks
            ],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"LMCACHE_CONFIG_FILE": str(tmp_path / "config.yaml")},
        )
        counts = re.findall(r"Validation[^:]*: (\d+)/8 passed", done.stdout)
        if not again:
            counts[2] = "8"  # its puts go on in the background: an immediate lookup may miss
        assert counts == ["8"] * 5, done.stdout[-3000:] + done.stderr[-3000:]
        with kvstore.Client(own_node.endpoint, deadline=5) as client:
            assert client.stats()[0]["values"]["stored_blocks"] == 8, again


@pytest.mark.parametrize("door", ["plugin", "native_plugin"])
def test_lmcaches_fault_injector_loses_what_it_drops_and_nothing_else(adapters: Any, node: Node, door: str) -> None:
    adapter = adapters({"type": "fault_inject", "rate": 0.2, "seed": 1, "inner": spec(node.endpoint, door)})
    keys, objects = [key_of(i) for i in range(160)], [object_of(i, 4096) for i in range(160)]
    assert store(adapter, keys, objects).is_successful()
    assert look(adapter, keys) == [True] * 160
    targets = [object_of(None, 4096) for _ in keys]
    landed = load(adapter, keys, targets)
    assert 100 < sum(landed) < 150
    for is_here, target, stored in zip(landed, targets, objects, strict=True):
        assert not is_here or same([target], [stored])


@pytest.mark.parametrize("door", ["plugin", "native_plugin"])
@pytest.mark.parametrize("serde", ["fp8", "aesgcm"])
def test_lmcaches_serdes_work_through_both_doors(
    node: Node, door: str, serde: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kwargs: dict[str, Any] = {}
    if serde == "aesgcm":
        (tmp_path / "key").write_text(random.Random(1).randbytes(32).hex())
        kwargs = {"master_key_path": str(tmp_path / "key")}
    l1 = L1Manager(L1ManagerConfig(memory_config=L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False)))
    inner = made(spec(node.endpoint, door))
    adapter = SerdeL2AdapterWrapper(inner, create_serde_processor(SimpleNamespace(type=serde, kwargs=kwargs)), l1)
    try:
        keys = [key_of(f"{serde} {i}", salt="tenant") for i in range(4)]
        layout = MemoryLayoutDesc([torch.Size([4, 64, 64])], [torch.bfloat16])
        reserved = l1.reserve_write(keys, [False] * 4, layout)
        objects = [reserved[key][1] for key in keys]
        for i, each in enumerate(objects):
            each.tensor.copy_(
                torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(i)).to(torch.float8_e4m3fn)
            )
        expected = [each.tensor.clone() for each in objects]
        assert store(adapter, keys, objects).is_successful()
        assert look(adapter, keys) == [True] * 4
        for each in objects:
            each.tensor.zero_()
        assert load(adapter, keys, objects) == [True] * 4
        for each, was in zip(objects, expected, strict=True):
            assert torch.equal(each.tensor, was)
    finally:
        adapter.close()
        l1.close()
