"""Blocks that stand alone, and LMCache's native plugin over them."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from conftest import namespace, pattern, tokens

import kvstore
from kvstore.lmcache import Connector


@pytest.fixture
def store(client):
    return client.open_set(kvstore.Namespace(model=f"set-{os.urandom(4).hex()}", kind="set", block_bytes_max=1 << 20))


def names(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32), dtype=np.uint8)


def test_blocks_of_all_sizes_come_in_any_order(store):
    hashes = names(5)
    blocks = [os.urandom(n) for n in (1, 100, 65536, 70000, 4096)]
    put = store.put(hashes, blocks)
    assert (put.stored, put.states.tolist(), put.why) == (5, [1] * 5, None)
    assert store.put(hashes[:2], blocks[:2]).states.tolist() == [2, 2]
    assert store.put(hashes[:1], [b"other"]).states[0] in (2, 3)  # it stays as it is
    assert store.put(hashes[:2], blocks[:2], reuse="never").already_stored == 2
    assert store.match(hashes, reuse=60).held.all()
    order = [3, 0, 4]
    asked = np.concatenate([hashes[order], names(1, seed=2)])
    match = store.match(asked)
    assert match.held.tolist() == [1, 1, 1, 0]
    assert match.block_bytes.tolist() == [70000, 1, 4096, 0]
    into = [bytearray(80000), bytearray(1), bytearray(10), bytearray(10)]
    got = store.get(asked, into)
    assert got.landed.tolist() == [True, True, False, False]
    assert got.block_bytes.tolist()[:3] == [70000, 1, 4096]
    assert isinstance(got.why_of(2), kvstore.TooLarge)
    assert got.why_of(3) is None
    assert bytes(into[0][:70000]) == blocks[3]
    assert not any(into[0][70000:])
    assert bytes(into[1]) == blocks[0]
    with pytest.raises(IndexError):
        got.why_of(9)


def test_rows_futures_and_retention(store, client):
    hashes = names(8, seed=3)
    pool = client.empty((10, 4096))
    pool[:] = pattern(10)
    rows = [9, 8, 7, 6, 5, 4, 3, 2]

    async def main() -> None:
        assert (await store.submit_put(hashes, pool, rows=rows)).stored == 8
        assert (await store.submit_match(hashes)).held_count == 8
        into = np.zeros((8, 4096), np.uint8)
        assert (await store.submit_get(hashes, into)).landed_count == 8
        assert (into == pool[rows]).all()

    asyncio.run(main())
    assert store.touch(hashes) == 8
    assert store.retain(hashes[:3]) == 3
    assert store.unretain(hashes[:3]) == 3
    assert store.drop(hashes[2:4]).block_count == 2
    assert store.match(hashes).held.tolist() == [1, 1, 0, 0, 1, 1, 1, 1]
    with pytest.raises(kvstore.BadRequest, match="everything"):
        store.drop([])
    store.drop(everything=True)
    assert store.match(hashes).held_count == 0


def test_groups_are_put_matched_and_got_as_a_whole(store):
    hashes = names(6, seed=4)
    groups = [3, 1, 2]
    blocks = [os.urandom(100 * n) for n in range(1, 7)]
    assert store.put(hashes, blocks, groups=groups).states.tolist() == [1] * 6
    assert store.match(hashes, groups=groups).held.tolist() == [1] * 6
    store.drop(hashes[1:2])
    match = store.match(hashes, groups=np.array(groups), lease=True)
    assert match.held.tolist() == [0, 0, 0, 1, 1, 1]
    assert match.held_count == 3
    assert store.match(hashes).held.tolist() == [1, 0, 1, 1, 1, 1]  # individually they are there
    into = [bytearray(1000) for _ in hashes]
    got = store.get(hashes, into, groups=groups, lease=match.lease)
    assert got.landed.tolist() == [False] * 3 + [True] * 3
    assert got.why_of(0) is None
    assert bytes(into[5][:600]) == blocks[5]
    into[5] = bytearray(599)  # a byte too short: the other block of its group does not count either
    got = store.get(hashes, into, groups=groups)
    assert got.landed.tolist() == [False, False, False, True, False, False]
    assert isinstance(got.why_of(4), kvstore.TooLarge)

    async def main() -> None:
        assert (await store.submit_put(hashes, blocks, groups=groups)).states.tolist() == [2, 1, 2, 2, 2, 2]
        assert (await store.submit_match(hashes, groups=groups)).held_count == 6
        whole = [bytearray(1000) for _ in hashes]
        assert (await store.submit_get(hashes, whole, groups=groups)).landed_count == 6

    asyncio.run(main())
    assert store.submit_match(hashes, groups=[6]).result().held_count == 6


def test_groups_that_do_not_cut_the_hashes_are_refused(store):
    hashes = names(66)
    blocks = [b"x"] * 66
    calls = (
        lambda groups: store.match(hashes, groups=groups),
        lambda groups: store.submit_get(hashes, [bytearray(1) for _ in hashes], groups=groups),
        lambda groups: store.put(hashes, blocks, groups=groups),
    )
    for call in calls:
        for groups, why in (
            ([65, 1], r"^groups\[0\]: 65, 1\.\.64 are allowed"),
            ([64, 0, 2], r"^groups\[1\]: 0, 1\.\.64 are allowed"),
            ([64, 1], "65 names in all, 66 are given"),
            ([-1, 67], "groups"),
            ([], "^groups: 0 names in all, 66 are given"),
        ):
            with pytest.raises(kvstore.BadRequest, match=why):
                call(groups)
    with pytest.raises(kvstore.BadRequest, match="has a name twice"):
        store.match(np.concatenate([hashes[:2], hashes[:1]]), groups=[3])


def test_both_kinds_share_one_class_and_its_submit_forms(store, space):
    chain = space.hash_chain(tokens(64))
    space.put(chain, pattern(4))
    store.put(names(4), pattern(4))
    for opened, hashes in ((space, chain), (store, names(4))):
        assert type(opened).submit_retain is kvstore.spaces.OpenedNamespace.submit_retain
        assert opened.client is space.client
        opened.wait_open()

        async def main(opened=opened, hashes=hashes) -> None:
            assert await opened.submit_touch(hashes) == 4
            assert await opened.submit_retain(hashes) == 4
            assert await opened.submit_unretain(hashes) == 4
            lease = (await opened.submit_match(hashes, lease=True)).lease
            assert lease
            opened.release(lease)
            await opened.submit_drop(hashes[:1])

        asyncio.run(main())
        assert opened.submit_touch(hashes).result() == (0 if opened is space else 3)
        for drop in (opened.drop, opened.submit_drop):
            with pytest.raises(kvstore.BadRequest, match="everything"):
                drop([])
        assert not opened.submit_drop(everything=True).result().until_restart
    opened = store.client.submit_open_set(store.namespace).result()
    assert isinstance(opened, kvstore.SetSpace)
    with pytest.raises(kvstore.BadRequest, match="open"):
        store.client.submit_open_set(space.namespace)
    with pytest.raises(kvstore.BadRequest, match="open_set"):
        store.client.submit_open(store.namespace)


def test_without_a_node_what_is_submitted_to_a_set_is_answered_at_once(tmp_path):
    with kvstore.Client(f"unix://{tmp_path}/none", deadline=3600) as client:
        store = client.open_set(kvstore.Namespace(model="away", kind="set", block_bytes_max=4096), wait=False)
        into = np.zeros((2, 4096), np.uint8)
        for future in (
            store.submit_match(names(2)),
            store.submit_get(names(2), into),
            store.submit_put(names(2), into),
        ):
            assert isinstance(future.result(60).why, kvstore.Unavailable)
        for submit in (store.submit_touch, store.submit_retain, store.submit_unretain, store.submit_drop):
            with pytest.raises(kvstore.Unavailable):
                submit(names(2)).result(60)


def test_sets_and_chains_are_kept_apart(client, store):
    with pytest.raises(kvstore.BadRequest, match="open_set"):
        client.open(store.namespace)
    with pytest.raises(kvstore.BadRequest, match="open"):
        client.open_set(namespace())
    with pytest.raises(kvstore.BadRequest, match="chain"):
        store.namespace.hash_chain([1, 2, 3])
    with pytest.raises(kvstore.BadRequest, match="2 for 3"):
        store.put(names(3), [b"a", b"b"])


def drained(connector: Connector, count: int) -> dict[int, tuple]:
    poller = select.poll()
    poller.register(connector.event_fd(), select.POLLIN)
    found: dict[int, tuple] = {}
    while len(found) < count:
        assert poller.poll(10_000)
        for number, ok, error, flags in connector.drain_completions():
            assert number not in found
            found[number] = (ok, error, flags)
    return found


def test_the_native_plugin_does_what_lmcache_asks(node):
    connector = Connector(endpoints=node.endpoint, weights_epoch=1, model=f"lm-{os.urandom(4).hex()}")
    keys = [f"model@0000000{i}@0@{os.urandom(8).hex()}" for i in range(20)]
    blocks = [memoryview(bytearray(os.urandom(65536))) for _ in keys]
    exists = connector.submit_batch_exists(keys)
    assert drained(connector, 1)[exists] == (True, "", [False] * 20)
    stored = connector.submit_batch_set(keys[:15], blocks[:15])
    assert drained(connector, 1)[stored] == (True, "", [True] * 15)
    into = [memoryview(bytearray(65536)) for _ in keys]
    get, exists = connector.submit_batch_get(keys, into), connector.submit_batch_exists(keys)
    done = drained(connector, 2)
    assert done[get] == (True, "", [True] * 15 + [False] * 5)
    assert done[exists] == (True, "", [True] * 15 + [False] * 5)
    assert [bytes(each) for each in into[:15]] == [bytes(each) for each in blocks[:15]]
    short = connector.submit_batch_get(keys[:1], [memoryview(bytearray(100))])
    assert drained(connector, 1)[short][2] == [False]
    deleted = connector.submit_batch_delete(keys[:5])
    assert drained(connector, 1)[deleted][0]
    exists = connector.submit_batch_exists(keys)
    assert drained(connector, 1)[exists][2] == [False] * 5 + [True] * 10 + [False] * 5
    with pytest.raises(kvstore.BadRequest, match="1 for 2"):
        connector.submit_batch_set(keys[:2], blocks[:1])
    with pytest.raises(kvstore.BadRequest, match="read-only"):
        connector.submit_batch_get(keys[:1], [memoryview(b"1")])
    assert connector.drain_completions() == []
    connector.close()
    connector.close()
    with pytest.raises(kvstore.BadRequest, match="closed"):
        connector.submit_batch_exists(keys)


def test_cancel_and_close_end_calls_of_sets_soon(own_node):
    client = kvstore.Client(own_node.endpoint, deadline=120)
    store = client.open_set(kvstore.Namespace(model="away", kind="set", block_bytes_max=65536))
    connector = Connector(endpoints=own_node.endpoint, weights_epoch=1, deadline=120)
    keys = ["a", "b"]
    connector.submit_batch_exists(keys)
    drained(connector, 1)
    own_node.pause()
    hashes = names(2)
    calls = [
        store.submit_match(hashes),
        store.submit_get(hashes, np.zeros((2, 4096), np.uint8)),
        store.submit_put(hashes, pattern(2)),
    ]
    for call in calls:
        assert not call.wait(0.02)
        call.cancel()
    for call in calls:
        assert isinstance(call.result(60).why, kvstore.Cancelled)
    last = store.submit_match(hashes)
    client.close()
    assert isinstance(last.result(0).why, kvstore.Cancelled)
    views = [memoryview(bytearray(4096)) for _ in keys]
    connector.submit_batch_get(keys, views)
    connector.submit_batch_set(keys, views)
    connector.submit_batch_exists(keys)
    connector.submit_batch_delete(keys)
    began = time.monotonic()
    connector.close()
    assert time.monotonic() - began < 60


def test_the_native_plugin_starts_without_a_node(tmp_path):
    connector = Connector(endpoints=[f"unix://{tmp_path}/none"], weights_epoch=1, deadline=0.2)
    exists = connector.submit_batch_exists(["a", "b"])
    _ok, error, flags = drained(connector, 1)[exists]
    assert error
    assert flags == [False, False]
    stored = connector.submit_batch_set(["a"], [memoryview(b"x")])
    assert not drained(connector, 1)[stored][0]


class Noisy(bytearray):
    """Memory that reports its release by the last batch."""

    told: Callable[[], None]

    def __del__(self) -> None:
        self.told()


def noisy_views(count: int, told: Callable[[], None]) -> list[memoryview]:
    made = [Noisy(4096) for _ in range(count)]
    for each in made:
        each.told = told
    return [memoryview(each) for each in made]


@pytest.mark.parametrize("closes", [False, True])
def test_the_native_plugin_can_be_called_while_it_drains(node, closes):
    connector = Connector(endpoints=node.endpoint, weights_epoch=1, model=os.urandom(4).hex())
    told: list[int] = []
    ended = 0

    def again() -> None:
        nonlocal ended
        ended += 1
        told.extend(number for number, *_ in connector.drain_completions())
        if closes:
            connector.close()
            connector.close()

    numbers = [connector.submit_batch_set([str(i), f"{i}b"], noisy_views(2, again)) for i in range(20)]
    until = time.monotonic() + 60
    while len(told) < len(numbers):
        assert time.monotonic() < until
        select.select([connector.event_fd()], [], [], 1)
        told.extend(number for number, *_ in connector.drain_completions())
    assert sorted(told) == numbers
    assert ended == 40
    assert connector.drain_completions() == []
    connector.close()


def test_the_native_plugin_can_be_called_while_it_closes(own_node):
    connector = Connector(endpoints=own_node.endpoint, weights_epoch=1, deadline=60)
    connector.submit_batch_exists(["a"])
    drained(connector, 1)
    own_node.pause()
    told: list[tuple] = []

    def again() -> None:
        told.extend(connector.drain_completions())
        connector.close()

    numbers = [connector.submit_batch_set([f"{i}", f"{i}b"], noisy_views(2, again)) for i in range(10)]
    numbers += [connector.submit_batch_get([f"{i}"], noisy_views(1, again)) for i in range(10)]
    numbers += [connector.submit_batch_exists(["a", "b"]), connector.submit_batch_delete(["a"])]
    connector.close()
    connector.close()
    told.extend(connector.drain_completions())
    assert sorted(number for number, *_ in told) == numbers
    for _number, ok, error, flags in told:
        assert not ok
        assert error
        assert not any(flags)
    assert connector.drain_completions() == []


def test_the_native_plugin_survives_close_while_it_looks_at_its_arguments(node):
    connector = Connector(endpoints=node.endpoint, weights_epoch=1, model=os.urandom(4).hex())
    kept = connector.submit_batch_exists(["a"])

    class Closes:
        def __dlpack_device__(self) -> tuple[int, int]:
            connector.close()
            return (1, 0)

        def __dlpack__(self, **_: object) -> object:
            return np.zeros(4096, np.uint8).__dlpack__()

    with pytest.raises(kvstore.BadRequest, match="closed"):
        connector.submit_batch_set(["b"], [Closes()])
    assert [number for number, *_ in connector.drain_completions()] == [kept]


def test_lmcaches_own_check(node):
    pytest.importorskip("lmcache", reason="lmcache is not installed")
    adapter = {
        "type": "native_plugin",
        "module_path": "kvstore.lmcache",
        "class_name": "Connector",
        "adapter_params": {"endpoints": node.endpoint, "model": os.urandom(4).hex(), "weights_epoch": 1},
    }
    arguments = ["-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--num-keys", "8", "--obj-size", "65536"]
    done = subprocess.run(
        [sys.executable, *arguments, "--l2-adapter", json.dumps(adapter)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LMCACHE_TRACK_USAGE": "false"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "8/8" in done.stdout + done.stderr
