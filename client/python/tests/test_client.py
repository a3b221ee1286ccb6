"""Blocking calls against a real node."""

from __future__ import annotations

import gc
import pickle
import threading

import numpy as np
import pytest
from conftest import Node, namespace, pattern, tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvstore


def test_what_is_put_is_got(space):
    hashes = space.hash_chain(tokens(16 * 20))
    assert space.match(hashes).block_count == 0
    blocks = pattern(20)
    put = space.put(hashes, blocks)
    assert (put.stored, put.already_stored, put.refused, put.why) == (20, 0, 0, None)
    assert space.put(hashes, blocks).already_stored == 20
    got = np.zeros_like(blocks)
    assert space.get(hashes, got).block_count == 20
    assert (got == blocks).all()


@pytest.mark.parametrize("reuse", [None, "never", "later", 0, 15, 240.5, 1e9])
def test_a_hint_changes_nothing_but_what_is_kept(space, reuse):
    hashes = space.hash_chain(tokens(160))
    blocks = pattern(10)
    assert space.match(hashes, reuse=reuse).block_count == 0
    assert space.put(hashes, blocks, reuse=reuse).stored == 10
    got = np.zeros_like(blocks)
    assert space.load(hashes, got, reuse=reuse).block_count == 10
    assert (got == blocks).all()


@pytest.mark.parametrize("reuse", [-1, "soon", True, float("nan"), b"never"])
def test_a_hint_that_says_nothing_is_refused_by_name(space, reuse):
    hashes = space.hash_chain(tokens(16))
    for call in (space.match, space.submit_match):
        with pytest.raises(kvstore.BadRequest, match="reuse is"):
            call(hashes, reuse=reuse)
    with pytest.raises(kvstore.BadRequest, match="reuse is"):
        space.put(hashes, pattern(1), reuse=reuse)


def test_a_second_client_finds_what_the_first_stored(node, space):
    hashes = space.hash_chain(tokens(64))
    space.put(hashes, pattern(4))
    with kvstore.Client(node.endpoint) as other:
        assert other.open(space.namespace).match(hashes).block_count == 4


def test_a_hit_is_a_prefix(space):
    ids = tokens(16 * 10)
    hashes = space.hash_chain(ids)
    space.put(hashes[:6], pattern(6))
    assert space.match(hashes).block_count == 6
    branch = ids.copy()
    branch[16 * 3] += 1
    assert space.match(space.hash_chain(branch)).block_count == 3


def test_lent_memory_is_used_and_outlives_the_client(node):
    client = kvstore.Client(node.endpoint, deadline=10)
    space = client.open(namespace())
    blocks = client.empty((8, 4096))
    blocks[:] = pattern(8)
    hashes = space.hash_chain(tokens(16 * 8))
    assert space.put(hashes, blocks).stored == 8
    back = client.empty((8, 4096))
    assert space.get(hashes, back).block_count == 8
    assert client.nodes()[0]["transport"] == "unix+memfd"
    client.tell_prefill_speed(1000.0)
    lines = client.metrics_text().splitlines()
    assert "kvstore_client_prefill_tokens_per_second 1000" in lines
    assert 'kvstore_client_call_errors_total{call="get",error_type="deadline_exceeded"} 0' in lines
    client.close()
    assert (back == blocks).all()
    del client, space
    gc.collect()
    assert (back == blocks).all()


def test_memory_is_given_back(node):
    with kvstore.Client(node.endpoint, region_bytes_max=1 << 20) as client:
        for _ in range(5):
            memory = client.allocate(1 << 20)
            assert memory.nbytes == len(memory) == 1 << 20
            assert client.lend(memory, deadline=5) >= 0
            assert not client.is_quarantined(memory)
            with pytest.raises(kvstore.Busy):
                client.allocate(1)
            array = memory.array((2, 4), np.float32, 64)
            assert array.shape == (2, 4)
            assert array.ctypes.data == memory.address + 64
            del memory, array
            gc.collect()


def test_rows_pick_blocks_of_a_pool(space):
    pool = pattern(10)
    hashes = space.hash_chain(tokens(16 * 3))
    assert space.put(hashes, pool, rows=[7, 0, 4]).stored == 3
    into = np.zeros((6, 4096), np.uint8)
    assert space.get(hashes, into, rows=np.array([5, 1, 2])).block_count == 3
    assert (into[5] == pool[7]).all()
    assert (into[1] == pool[0]).all()
    assert (into[2] == pool[4]).all()
    assert not into[0].any()


def test_a_lease_keeps_and_releases(space):
    hashes = space.hash_chain(tokens(16 * 4))
    space.put(hashes, pattern(4))
    with space.lease(hashes) as lease:
        assert lease.block_count == 4
        assert lease.id != 0
        assert space.client.stats()[0]["values"]["leases"] >= 1
        assert space.get(hashes, np.zeros((4, 4096), np.uint8), lease=lease).block_count == 4
    assert space.client.stats()[0]["values"]["leases"] == 0


def test_a_partial_block_is_found_by_its_tokens(space):
    ids = tokens(32)
    hashes = space.hash_chain(ids)
    space.put(hashes, pattern(2), token_ids=ids)
    other = ids.copy()
    other[20] += 1
    match = space.match(space.hash_chain(other)[:1], token_ids=other)
    assert (match.block_count, match.partial_token_count) == (1, 4)
    assert match.partial_block == hashes[1].tobytes()


def test_retention_calls(space):
    hashes = space.hash_chain(tokens(16 * 4))
    space.put(hashes, pattern(4))
    assert space.touch(hashes) == 4
    assert space.retain(hashes) == 4
    assert space.unretain(hashes) == 4
    assert space.drop(hashes).block_count == 1
    assert space.match(hashes).block_count == 3
    with pytest.raises(kvstore.BadRequest, match="everything"):
        space.drop(hashes[:0])
    assert space.drop(everything=True).block_count == 3


def test_several_nodes_share_blocks(own_node, node):
    with kvstore.Client([own_node.endpoint, kvstore.Node(node.endpoint, "second", 2.0)], deadline=10) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(16 * 600))
        assert space.put(hashes, pattern(600)).stored == 600
        assert space.match(hashes).block_count == 600
        assert len(client.ping()) == 2
        assert sum(sum(n["block_count"] for n in each["namespaces"]) for each in client.stats()) >= 600


def test_an_engine_brings_its_own_hashes(space):
    own = [bytes([i]) * 8 for i in range(1, 5)]
    array = kvstore.hashes(own)
    assert array.shape == (4, 32)
    assert space.put(own, pattern(4)).stored == 4
    assert space.match(array).block_count == 4


def test_hash_chain_goes_on_from_a_block():
    space = namespace()
    ids = tokens(160)
    whole = space.hash_chain(ids)
    rest = space.hash_chain(ids[64:], after=whole[3].tobytes())
    assert (rest == whole[4:]).all()
    assert (space.hash_chain(ids.tolist()) == whole).all()
    assert (space.hash_chain(ids.astype(np.int64)) == whole).all()
    assert not (space.hash_chain(ids, extra=b"image") == whole).all(axis=1).any()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=100), st.integers(1, 7))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_hash_chain_is_the_documented_one(ids, block_size):
    import hashlib
    import struct

    space = kvstore.Namespace(model="m", block_size=block_size, block_bytes=1)
    before, expected = hashlib.sha256(space.text.encode()).digest(), []
    for i in range(0, len(ids) - block_size + 1, block_size):
        before = hashlib.sha256(before + struct.pack(f"<{block_size}I", *ids[i : i + block_size])).digest()
        expected.append(before)
    assert [bytes(row) for row in space.hash_chain(ids)] == expected


def test_a_namespace_is_its_text():
    one = kvstore.Namespace({"model": "m", "x.mine": 3}, block_size=16, block_bytes=64, dtype=None)
    assert one.text == "block_bytes=64\nblock_size=16\nmodel=m\nx.mine=3\n"
    assert one == kvstore.Namespace(model="m", block_size="16", block_bytes=64, x_mine="3")
    assert one == kvstore.Namespace.from_text(one.text) == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(kvstore.Namespace.from_text(one.text))
    assert one.fields["model"] == "m"
    assert len(one.id) == 16
    with pytest.raises(kvstore.BadRequest, match="modle"):
        kvstore.Namespace(modle="m", block_size=16, block_bytes=64)
    with pytest.raises(kvstore.BadRequest, match="block_size"):
        kvstore.Namespace(model="m", block_size=0, block_bytes=64)


def test_a_client_that_is_closed_says_so(node):
    client = kvstore.Client(node.endpoint)
    space = client.open(namespace())
    client.close()
    client.close()
    assert client.is_closed
    with pytest.raises(kvstore.BadRequest, match="closed"):
        space.match(space.hash_chain(tokens(32)))
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(client)


def test_wrong_arguments_are_named(node, space):
    with pytest.raises(kvstore.BadRequest, match="endpoint"):
        kvstore.Client("nonsense")
    hashes = space.hash_chain(tokens(32))
    with pytest.raises(kvstore.BadRequest, match="hashes"):
        space.match(hashes.astype(np.float32))
    with pytest.raises(kvstore.BadRequest, match="hashes"):
        space.match(hashes[:, :16])
    with pytest.raises(kvstore.BadRequest, match="3 for 2"):
        space.put(hashes, pattern(3))
    with pytest.raises(kvstore.BadRequest, match="rows"):
        space.put(hashes, pattern(3), rows=[0, 3])
    with pytest.raises(kvstore.BadRequest, match="token_ids"):
        space.put(hashes, pattern(2), token_ids=[-1] * 32)
    with pytest.raises(kvstore.BadRequest):
        space.put(hashes, pattern(2), token_ids=[1, 2, 3])


def test_without_a_node_lookups_say_why_at_once(tmp_path):
    with kvstore.Client(f"unix://{tmp_path}/none", deadline=5) as client:
        space = client.open(namespace(), wait=False)
        match = space.match(space.hash_chain(tokens(32)), deadline=0.3)
        assert match.block_count == 0
        assert isinstance(match.why, (kvstore.Unavailable, kvstore.TimedOut))
        with pytest.raises(kvstore.Error):
            space.wait_open(deadline=0.3)
        assert client.ping(deadline=0.3) == [None]
        assert client.nodes()[0]["last_error"]


def test_a_time_that_is_no_number_is_refused(node, space):
    hashes = space.hash_chain(tokens(32))
    nan = float("nan")
    for wrong in (
        lambda: space.match(hashes, deadline=nan),
        lambda: space.submit_put(hashes, pattern(2), deadline=nan),
        lambda: kvstore.Client(node.endpoint, connect_timeout=nan),
        lambda: kvstore.Client(node.endpoint, busy_poll=nan),
    ):
        with pytest.raises(kvstore.BadRequest, match="not a number"):
            wrong()


def test_many_threads_use_one_client(client):
    space = client.open(namespace())
    failures = []

    def work(seed: int) -> None:
        try:
            for turn in range(10):
                hashes = space.hash_chain(tokens(16 * 8, seed * 100 + turn))
                blocks, got = pattern(8, seed=seed * 100 + turn), np.zeros((8, 4096), np.uint8)
                assert space.put(hashes, blocks).refused == 0
                assert space.get(hashes, got).block_count == 8
                assert (got == blocks).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_full_node_refuses_with_a_reason():
    small = Node(capacity="64MiB")
    try:
        with kvstore.Client(small.endpoint, deadline=10) as client:
            space = client.open(namespace(block_bytes=1 << 20))
            hashes = space.hash_chain(tokens(16 * 100))
            put = space.put(hashes, [pattern(1, 1 << 20)[0]] * 100)
            assert 0 < put.stored < 100
            assert put.stored + put.refused == 100
            assert isinstance(put.why, kvstore.OutOfMemory)
    finally:
        small.close()


def test_a_load_moves_only_what_is_found_and_only_if_it_is_enough(client):
    space = client.open(namespace(block_bytes=2 * 65536))
    hashes = space.hash_chain(tokens(16 * 6))
    blocks = pattern(6, 2 * 65536)
    assert space.put(hashes[:4], blocks[:4]).stored == 4
    into = np.full_like(blocks, 0xEE)
    few = space.load(hashes, into, block_count_min=5)
    assert (few.found_count, few.block_count, few.why) == (4, 0, None)
    assert (into == 0xEE).all()
    loaded = space.load(hashes, into, block_count_min=4)
    assert (loaded.found_count, loaded.disk_block_count, loaded.block_count, loaded.corrupt_count) == (4, 0, 4, 0)
    assert loaded.why is None
    assert (into[:4] == blocks[:4]).all()
    pool = np.zeros((8, 2 * 65536), np.uint8)
    future = space.submit_load(hashes, pool, rows=[7, 5, 3, 1, 0, 2], segment_ends=[65536, 2 * 65536])
    assert future.result().block_count == 4
    assert future.segments == [4, 4]
    assert (pool[[7, 5, 3, 1]] == blocks[:4]).all()
    nothing = space.load(space.hash_chain(tokens(32, seed=5)), into[:2])
    assert (nothing.found_count, nothing.block_count, nothing.why) == (0, 0, None)
    with pytest.raises(kvstore.BadRequest, match="block_count_min"):
        space.load(hashes, into, block_count_min=0)
    with pytest.raises(kvstore.BadRequest, match="read-only"):
        space.load(hashes, blocks.tobytes())


def test_a_load_of_a_node_that_hangs_ends_by_its_deadline_and_when_it_is_cancelled(own_node):
    with kvstore.Client(own_node.endpoint, deadline=60) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        space.put(hashes, pattern(4))
        into = np.zeros((4, 4096), np.uint8)
        own_node.pause()
        late, cancelled = space.submit_load(hashes, into, deadline=0.1), space.submit_load(hashes, into.copy())
        assert isinstance(late.result().why, kvstore.TimedOut)
        cancelled.cancel()
        assert isinstance(cancelled.result().why, kvstore.Cancelled)
        own_node.resume()
        assert space.load(hashes, into).block_count == 4
