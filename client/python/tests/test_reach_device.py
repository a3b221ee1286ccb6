"""Blocks between nodes and a GPU's memory, past the host: a simulated GPU's, which a Soft-RoCE device fills and drains, in the virtual
machine of deploy/test.sh --rdma-loop. Times there are not this machine's, so deadlines are long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import Node, free_port
from lent_pages import CHOSEN, COUNT, Paged, refuses
from simulated import Device, DeviceArray

import kvstore


@pytest.fixture(scope="module")
def device():
    return Device()


@pytest.fixture(scope="module")
def rdma_node(device) -> Iterator[tuple[Node, str, str]]:
    devices = os.environ.get("KV_VERBS_TEST_DEVICES")
    if not devices:
        pytest.skip("KV_VERBS_TEST_DEVICES names no RDMA devices (deploy/test.sh --rdma-loop has some)")
    if not device.is_simulated:
        pytest.skip("a simulated device stands in for nvidia-peermem here")
    theirs, ours = devices.split(",")
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    made = Node("--listen", endpoint, "--rdma", "on", "--rdma-device", theirs)
    yield made, endpoint, ours
    made.close()


@pytest.fixture
def reaching(rdma_node) -> Iterator[kvstore.Client]:
    _, endpoint, ours = rdma_node
    with kvstore.Client(
        endpoint, deadline=300, rdma_devices=[ours], connections_per_node=1, connect_timeout=60
    ) as made:
        yield made


def lend(device: Device, client: kvstore.Client, array: DeviceArray) -> kvstore.DeviceMemory:
    device.open_to_peers(array.address, array.nbytes)
    lent = client.lend_device(array, deadline=300)
    device.close_to_host(array.address, array.nbytes)
    return lent


def bytes_by_rdma(client: kvstore.Client) -> dict[str, float]:
    found = {}
    for line in client.metrics_text().splitlines():
        if line.startswith("kvstore_client_io_bytes_total{") and 'transport="verbs"' in line:
            found[line.split('direction="')[1].split('"')[0]] = float(line.rsplit(" ", 1)[1])
    return found


def test_blocks_go_from_a_devices_pages_to_the_node_and_back_past_the_host(device, reaching):
    paged = Paged(device, reaching)
    lent = lend(device, reaching, paged.rows)
    assert reaching.lend(lent) == 1
    total = COUNT * paged.space.block_bytes
    with device.runs("random"):
        paged.gather()
        put = paged.space.put(paged.hashes, paged.rows, checksums=paged.sums)
        assert put.stored == COUNT, put.why
        assert bytes_by_rdma(reaching)["transmit"] == total

        rows, sums = paged.expected()
        told = np.zeros_like(paged.sums)
        paged.rows.fill(np.full(paged.rows.shape, 0xEE, np.uint8))
        got = paged.space.get(paged.hashes, paged.rows, checksums=told)
        assert got.block_count == COUNT, got.why
        assert bytes_by_rdma(reaching)["receive"] == total
        assert (told == sums).all() and (paged.rows.numpy() == rows).all()
        landed = paged.scatter(told)
    assert not paged.verdicts.any()
    for made, wanted in zip(landed, paged.values, strict=True):
        assert (made[:, CHOSEN] == wanted[:, CHOSEN]).all()
    reaching.take_back(lent)


def test_any_rows_of_the_memory_take_blocks_and_a_load_is_a_get(device, reaching):
    paged = Paged(device, reaching)
    lent = lend(device, reaching, paged.rows)
    paged.gather()
    rows = paged.rows.numpy()
    assert paged.space.put(paged.hashes, paged.rows, checksums=paged.sums).stored == COUNT
    rng = np.random.default_rng(11)
    for _ in range(5):
        order = rng.permutation(COUNT)
        told = np.zeros_like(paged.sums)
        paged.rows.fill(np.full(paged.rows.shape, 0xEE, np.uint8))
        half = paged.space.block_bytes // 2
        future = paged.space.submit_load(
            paged.hashes, paged.rows, rows=order, checksums=told, segment_ends=[half, paged.space.block_bytes]
        )
        assert future.result().block_count == COUNT
        assert (paged.rows.numpy()[order] == rows).all() and (told == paged.sums).all()
    reaching.take_back(lent)


def test_a_put_of_bytes_that_changed_after_their_checksums_is_refused(device, reaching):
    paged = Paged(device, reaching)
    lent = lend(device, reaching, paged.rows)
    paged.gather()
    damaged = paged.rows.numpy()
    damaged[2, 70_000] ^= 1
    paged.rows.fill(damaged)
    put = paged.space.put(paged.hashes, paged.rows, checksums=paged.sums)
    assert isinstance(put.why, kvstore.CorruptBlock) and "block 2" in str(put.why), put.why
    assert paged.space.match(paged.hashes).block_count == 2
    reaching.take_back(lent)


def test_nothing_reaches_memory_that_was_taken_back(device, reaching):
    paged = Paged(device, reaching)
    lent = lend(device, reaching, paged.rows)
    paged.gather()
    assert paged.space.put(paged.hashes, paged.rows, checksums=paged.sums).stored == COUNT
    rng = np.random.default_rng(3)
    print("seed 3")
    for _ in range(10):
        # Ended in its midst, or before, or after.
        paged.space.get(paged.hashes, paged.rows, checksums=paged.sums, deadline=rng.integers(3000) / 1e6)
        reaching.take_back(lent)
        paged.rows.fill(np.full(paged.rows.shape, 0x5A, np.uint8))
        reaching.ask("/stats.json", deadline=10)  # the node has heard of it by now
        assert (paged.rows.numpy() == 0x5A).all()
        refuses(
            "^blocks: the memory lies on a CUDA device", paged.space.get, paged.hashes, paged.rows, checksums=paged.sums
        )
        lent = lend(device, reaching, paged.rows)
    told = np.zeros_like(paged.sums)
    assert paged.space.get(paged.hashes, paged.rows, checksums=told).block_count == COUNT
    reaching.take_back(lent)


def test_memory_that_is_being_taken_back_is_not_named(device, reaching):
    paged = Paged(device, reaching)
    lent = lend(device, reaching, paged.rows)
    with pytest.raises(kvstore.TimedOut):
        reaching.take_back(lent, deadline=0)
    for call in (paged.space.get, paged.space.load, paged.space.put):
        with pytest.raises(kvstore.Quarantined, match=r"^blocks: their memory is being taken back"):
            call(paged.hashes, paged.rows, checksums=paged.sums)
    reaching.take_back(lent)
    reaching.take_back(lend(device, reaching, paged.rows))


def test_memory_of_a_call_under_way_is_busy(device, reaching, rdma_node):
    node, _, _ = rdma_node
    paged = Paged(device, reaching)
    lent = lend(device, reaching, paged.rows)
    paged.gather()
    assert paged.space.put(paged.hashes, paged.rows, checksums=paged.sums).stored == COUNT
    node.pause()
    try:
        future = paged.space.submit_get(paged.hashes, paged.rows, checksums=paged.sums)
        with pytest.raises(kvstore.Busy):
            reaching.take_back(lent)
        assert not future.done()
    finally:
        node.resume()
    assert future.result().block_count == COUNT
    told = np.zeros_like(paged.sums)  # still lent
    assert paged.space.get(paged.hashes, paged.rows, checksums=told).block_count == COUNT
    reaching.take_back(lent)


def test_memory_of_a_get_that_missed_its_deadline_can_be_taken_back_at_once(device, reaching, rdma_node):
    node, _, _ = rdma_node
    paged = Paged(device, reaching)
    lent = lend(device, reaching, paged.rows)
    paged.gather()
    assert paged.space.put(paged.hashes, paged.rows, checksums=paged.sums).stored == COUNT
    node.pause()
    try:
        got = paged.space.get(paged.hashes, paged.rows, checksums=paged.sums, deadline=0.05)
        assert got.block_count == 0 and isinstance(got.why, kvstore.TimedOut), got.why
        assert reaching.is_quarantined(lent)
        with pytest.raises(kvstore.Quarantined):
            paged.space.get(paged.hashes, paged.rows, checksums=paged.sums)
        reaching.take_back(lent)
        paged.rows.fill(np.full(paged.rows.shape, 0x5A, np.uint8))
    finally:
        node.resume()
    with kvstore.Client(node.endpoint, deadline=300) as other:
        other.ask("/stats.json")
    assert (paged.rows.numpy() == 0x5A).all()


def test_a_closed_client_leaves_nothing_registered(device, rdma_node):
    _, endpoint, ours = rdma_node
    with kvstore.Client(
        endpoint, deadline=300, rdma_devices=[ours], connections_per_node=1, connect_timeout=60
    ) as client:
        paged = Paged(device, client)
        lend(device, client, paged.rows)
        paged.gather()
        assert paged.space.put(paged.hashes, paged.rows, checksums=paged.sums).stored == COUNT
        future = paged.space.submit_get(paged.hashes, paged.rows, checksums=paged.sums)
    assert future.done()
    paged.rows.fill(np.full(paged.rows.shape, 0x5A, np.uint8))
    with kvstore.Client(endpoint, deadline=10) as other:
        other.ask("/stats.json")
    assert (paged.rows.numpy() == 0x5A).all()
