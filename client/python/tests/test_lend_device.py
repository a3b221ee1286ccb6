"""A GPU's memory that is lent to nodes: checksums by its kernels, who owns it, what is refused. test_reach_device.py moves blocks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from lent_pages import CHOSEN, OTHERS, Paged, refuses
from simulated import ORDERS, Device, DeviceArray, DlpackArray

import kvstore


@pytest.fixture(scope="module")
def device():
    return Device()


@pytest.fixture
def away() -> Iterator[kvstore.Client]:
    with kvstore.Client("unix:///nowhere/kvstore.sock") as made:
        yield made


# -- kernels


@pytest.mark.parametrize("order", ORDERS)
def test_a_device_computes_the_checksums_that_the_host_computes(device, away, order):
    if not device.is_simulated and order != ORDERS[0]:
        pytest.skip("a real device has an order of its own")
    paged = Paged(device, away)
    with device.runs(order):
        paged.gather()
        rows, sums = paged.expected()
        assert (paged.sums == sums).all() and (paged.rows.numpy() == rows).all()
        landed = paged.scatter(sums)
    assert not paged.verdicts.any()
    for made, wanted in zip(landed, paged.values, strict=True):
        assert (made[:, CHOSEN] == wanted[:, CHOSEN]).all() and not made[:, OTHERS].any()


def test_a_device_leaves_out_only_the_blocks_that_are_damaged(device, away):
    paged = Paged(device, away)
    with device.runs("lazy"):
        paged.gather()
        damaged = paged.rows.numpy()
        damaged[1, -1] ^= 1
        damaged[3, 0] ^= 0x80
        paged.rows.fill(damaged)
        landed = paged.scatter(np.array(paged.sums))
    assert paged.verdicts.tolist() == [0, 1, 0, 1]
    good = [page for page, verdict in zip(CHOSEN, paged.verdicts, strict=True) if not verdict]
    for made, wanted in zip(landed, paged.values, strict=True):
        assert (made[:, good] == wanted[:, good]).all() and not made[:, [0, 5]].any()


def test_a_get_that_landed_nothing_is_verified_too(device, away):
    paged = Paged(device, away)
    with device.runs("lazy"):
        event = kvstore.scatter_verified(
            paged.cache,
            paged.blocks,
            blocks=[],
            seeds=paged.seeds[:0],
            checksums=paged.sums[:0],
            verdicts=paged.verdicts[:0],
            stream=paged.stream,
        )
        assert event is not None and event.wait(30)
    for page, values in zip(paged.pages, paged.values, strict=True):
        assert (page.numpy() == values).all()


# -- refusals


def test_what_cannot_be_lent_is_refused_by_name(device, away):
    array = DeviceArray(device, np.zeros((4, 4096), np.uint8))
    lend = away.lend_device
    refuses("^memory: lies in host memory; Client.allocate", lend, np.zeros(4096, np.uint8))
    refuses("^memory: lies in host memory", lend, away.allocate(4096, page_locked=True))
    refuses("^memory: the CUDA driver knows of no device memory there", lend, (np.zeros(64).ctypes.data, 512))
    refuses("^memory: the CUDA driver knows of no device memory there", lend, (array.address, array.nbytes + (1 << 30)))
    refuses("^memory: a tuple is .address, bytes.", lend, (array.address,))
    refuses("^memory: is empty", lend, (array.address, 0))
    refuses("^memory: is empty", lend, (0, 4096))
    interface = {**array.__cuda_array_interface__, "strides": (8192, 1), "shape": (2, 4096)}
    refuses("^memory: the array is strided", lend, type("Strided", (), {"__cuda_array_interface__": interface})())
    interface = {**array.__cuda_array_interface__, "data": (array.address, True)}
    refuses("^memory: the memory is read-only", lend, type("ReadOnly", (), {"__cuda_array_interface__": interface})())
    refuses("^memory: an object of type int has neither", lend, 7)
    refuses("^checksums: host memory that is not page-locked", gather_to_pageable, device, away)


def gather_to_pageable(device, client):
    paged = Paged(device, client)
    paged.sums = np.zeros(paged.sums.shape, np.uint64)
    paged.gather()


def test_memory_that_no_node_reaches_is_not_lent_and_the_reason_is_said(device, node):
    array = DeviceArray(device, np.zeros((4, 4096), np.uint8))
    gone = weakref.ref(array)
    with kvstore.Client(node.endpoint, deadline=10) as client:
        for _ in range(2):  # not "a part of it is lent already"
            with pytest.raises(kvstore.Unavailable) as refused:
                client.lend_device(array)
            assert str(refused.value).startswith(f"memory: no node can reach it by RDMA: {node.endpoint}: ")
            assert "over a Unix socket memory is shared instead" in str(refused.value)
        del array, refused  # its traceback has the array too
        gc.collect()
        assert gone() is None, "kept after the refusal"


def test_memory_stays_until_it_is_taken_back_or_the_client_closes(device, away):
    # By the extension's own call: lend_device() would take the memory back, since there is no node.
    add = away._native.add_device_memory
    array = DlpackArray(DeviceArray(device, np.zeros(8192, np.uint8)))
    lent = add(array)
    assert (lent.nbytes, lent.device, lent.address) == (8192, 0, array._array.address)
    assert device.is_simulated is False or lent.has_dmabuf
    refuses("^memory: a part of it is lent already", add, (lent.address + 4096, 4096))
    second = DeviceArray(device, np.zeros(4096, np.uint8))
    gone, other = weakref.ref(second), add(second)
    del second
    gc.collect()
    assert gone() is not None
    with kvstore.Client("unix:///nowhere/kvstore.sock") as another:
        refuses("^memory: another client's, or taken back already", another.take_back, other)
    assert not away.is_quarantined(other)
    away.take_back(other)
    gc.collect()
    assert gone() is None
    for call in (away.take_back, away.lend, away.is_quarantined):
        refuses("^memory: another client's, or taken back already", call, other)
    away.take_back(lent)
    third = DeviceArray(device, np.zeros(4096, np.uint8))
    gone, kept = weakref.ref(third), add(third)
    del third
    away.close()
    gc.collect()
    assert gone() is None and kept.nbytes == 4096


def test_device_memory_beyond_the_limit_is_busy_and_not_kept(device):
    array = DeviceArray(device, np.zeros(8192, np.uint8))
    gone = weakref.ref(array)
    with kvstore.Client("unix:///nowhere/kvstore.sock", region_bytes_max=4096) as client:
        with pytest.raises(kvstore.Busy, match="region_bytes_max"):
            client.lend_device(array)
        del array
        gc.collect()
        assert gone() is None


def test_calls_name_one_lent_part_and_bring_checksums(device, node):
    with kvstore.Client(node.endpoint, deadline=10) as client:
        paged = Paged(device, client)
        space, hashes, rows, sums = paged.space, paged.hashes, paged.rows, paged.sums
        lone = "^blocks: the memory lies on a CUDA device, and is not in one part that Client.lend_device"
        calls = (space.get, space.load, space.put, space.submit_get, space.submit_load, space.submit_put)
        for call in calls:
            refuses("^blocks: the memory lies on a CUDA device.*Client.lend_device", call, hashes, rows, checksums=sums)
        lent = client._native.add_device_memory((rows.address, rows.nbytes // 2))  # no node has it
        for call in calls:
            refuses(lone, call, hashes, rows, checksums=sums)
            refuses("^checksums: none are given", call, hashes[:2], rows, rows=[0, 1])
        mixed = [np.zeros(space.block_bytes, np.uint8), DeviceArray(device, np.zeros(space.block_bytes, np.uint8))]
        refuses("^blocks: some lie in host memory and some on", space.put, hashes[:2], mixed, checksums=sums[:2])

        # Here blocks cannot come or go: results, not exceptions.
        got = space.get(hashes[:2], rows, rows=[1, 0], checksums=sums[:2])
        assert got.block_count == 0 and isinstance(got.why, kvstore.NoRegion), got.why
        put = space.put(hashes[:2], rows, rows=[1, 0], checksums=sums[:2])
        assert (put.stored, put.refused) == (0, 2) and isinstance(put.why, kvstore.NoRegion), put.why
        states = client.open_set(kvstore.Namespace(model="states", kind="set", block_bytes_max=space.block_bytes))
        refuses("^blocks: the memory lies on a CUDA device", states.put, [b"a"], rows, rows=[0])
        client.take_back(lent)
