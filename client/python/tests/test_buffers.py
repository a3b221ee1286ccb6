"""Memory arguments of calls, and their refusals by name."""

from __future__ import annotations

import array
import contextlib

import numpy as np
import pytest
from conftest import pattern, tokens

import kvstore

torch = None
with contextlib.suppress(ImportError):
    import torch


@pytest.fixture
def hashes(space):
    made = space.hash_chain(tokens(16 * 4))
    space.put(made, pattern(4))
    return made


def test_any_buffer_will_do(space, hashes):
    want = pattern(4)
    for into in (
        bytearray(4 * 4096),
        memoryview(bytearray(4 * 4096)),
        array.array("I", [0]) * 4096,
        np.zeros((4, 8, 128), np.float32),
        np.zeros((8, 4096), np.uint8)[::2],
        np.zeros((4, 8192), np.uint8)[:, 4096:],
        np.zeros((4, 4096), np.uint8)[::-1],
    ):
        assert space.get(hashes, into).block_count == 4
        got = into if isinstance(into, np.ndarray) else np.frombuffer(into, np.uint8)
        assert (np.ascontiguousarray(got).view(np.uint8).reshape(4, 4096) == want).all()


def test_a_list_of_blocks_will_do(space, hashes):
    into = [bytearray(4096), np.zeros(4096, np.uint8), np.zeros((2, 1024), np.uint16), memoryview(bytearray(4096))]
    assert space.get(hashes, into).block_count == 4
    for got, want in zip(into, pattern(4), strict=True):
        assert bytes(got) == want.tobytes()


def test_bytes_can_be_stored(space):
    own = space.hash_chain(tokens(64, seed=9))
    assert space.put(own, pattern(4).tobytes()).stored == 4


def test_what_cannot_be_used_is_refused_by_name(space, hashes):
    cases = [
        (b"\0" * 4 * 4096, "read-only"),
        (np.zeros((4, 4096), np.uint8)[:, ::2], "2048 bytes"),
        (np.zeros((4, 8192), np.uint8)[:, ::2], "strided inside a block"),
        (np.zeros(8 * 4096, np.uint8)[::2], "strided"),
        (np.zeros((3, 4096), np.uint8), "3 for 4"),
        (np.zeros(100, np.uint8), "whole blocks"),
        (np.broadcast_to(np.zeros(4096, np.uint8), (4, 4096)), "read-only"),
        ([bytearray(4096)] * 3, "3 for 4"),
        ([bytearray(4095)] * 4, "4095 bytes"),
        ("text", "str"),
        (7, "int"),
    ]
    for into, why in cases:
        with pytest.raises(kvstore.BadRequest, match=why) as caught:
            space.get(hashes, into)
        assert "blocks" in str(caught.value)
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(8192, np.uint8), (4, 4096), (16, 1))
    with pytest.raises(kvstore.BadRequest, match="overlap"):
        space.get(hashes, overlapping)


def test_two_blocks_that_would_land_in_one_place_are_refused(space, hashes, client):
    pool, one, flat = np.zeros((6, 4096), np.uint8), bytearray(4096), np.zeros(4 * 4096, np.uint8)
    askew = [flat[at : at + 4096] for at in (8192, 0, 4095, 12288)]  # the third begins in the second's last byte
    cases = [
        (lambda: space.get(hashes, pool, rows=[5, 1, 3, 1]), "rows: two blocks"),
        (lambda: space.load(hashes, pool, rows=[0, 0, 1, 2]), "rows: two blocks"),
        (lambda: space.get(hashes, [one, bytearray(4096), bytearray(4096), one]), "blocks: two blocks"),
        (lambda: space.get(hashes, askew), "blocks: two blocks"),
    ]
    for call, why in cases:
        with pytest.raises(kvstore.BadRequest, match=why):
            call()
    askew[2] = flat[4096:8192]
    assert space.get(hashes, askew).block_count == 4
    assert space.get(hashes, pool, rows=[5, 1, 3, 0]).block_count == 4
    store = client.open_set(kvstore.Namespace(model="overlap", kind="set", block_bytes_max=4096))
    assert store.put(hashes, [one] * 4).stored == 4  # reading from one place is harmless
    with pytest.raises(kvstore.BadRequest, match="blocks: two blocks"):
        store.get(hashes, [one] * 4)
    with pytest.raises(kvstore.BadRequest, match="rows: two blocks"):
        store.get(hashes, pool, rows=[1, 2, 3, 3])
    assert store.get(hashes, [flat[:4096], flat[:0], flat[4096:4096], flat[4096:]]).landed_count == 2


def test_memory_that_no_client_made_is_refused():
    with pytest.raises(BufferError, match="allocate"):
        memoryview(kvstore.Memory.__new__(kvstore.Memory))


def test_memory_of_a_device_is_refused_by_name(space, hashes):
    class OnDevice:
        def __init__(self, kind: int) -> None:
            self.kind = kind

        def __dlpack_device__(self) -> tuple[int, int]:
            return (self.kind, 0)

        def __dlpack__(self, **_: object) -> object:
            raise AssertionError("not to be asked for")

    class OfNumba:
        __cuda_array_interface__ = {"shape": (4, 4096), "typestr": "|u1", "data": (4096, False), "version": 3}  # noqa: RUF012

    for blocks, why in ((OnDevice(2), "a CUDA device"), (OnDevice(10), "type 10"), (OfNumba(), "a CUDA device")):
        for given in (blocks, [blocks] * 4):
            with pytest.raises(kvstore.BadRequest, match=rf"blocks.*: the memory lies on .*{why}.*host memory"):
                space.get(hashes, given)
            with pytest.raises(kvstore.BadRequest, match="host memory"):
                space.put(hashes, given)


@pytest.mark.skipif(not kvstore.device.why_no_device(), reason="there is a GPU: test_lend_device.py lends its memory")
def test_without_a_gpu_no_memory_of_one_is_lent(client):
    for memory in (np.zeros(4096, np.uint8), (4096, 4096), object()):
        with pytest.raises(kvstore.Unavailable, match=r"^CUDA: ") as refused:
            client.lend_device(memory)
        assert str(refused.value) == f"CUDA: {kvstore.device.why_no_device()}"


def test_misaligned_numbers_are_taken_as_copies():
    space = kvstore.Namespace(model="m", block_size=4, block_bytes=64)
    ids = tokens(16)
    shifted = np.zeros(16 * 4 + 1, np.uint8)[1:].view(np.uint32)
    shifted[:] = ids
    assert not shifted.flags.aligned
    assert (space.hash_chain(shifted) == space.hash_chain(ids)).all()
    assert (space.hash_chain(np.repeat(ids, 2)[::2]) == space.hash_chain(ids)).all()
    with pytest.raises(kvstore.BadRequest, match="tokens"):
        space.hash_chain(ids.astype(np.float32))
    with pytest.raises(kvstore.BadRequest, match=r"tokens\[1\]: -1 is out of range"):
        space.hash_chain(np.array([1, -1]))
    with pytest.raises(kvstore.BadRequest, match="axes"):
        space.hash_chain(ids.reshape(2, 8))


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_torch_tensors(client, space, hashes):
    into = torch.zeros((4, 2048), dtype=torch.bfloat16)
    assert space.get(hashes, into).block_count == 4
    assert (into.view(torch.uint8).numpy() == pattern(4)).all()
    lent = client.empty_tensor((4, 1024), torch.float32)
    assert space.get(hashes, lent).block_count == 4
    assert lent.numpy().tobytes() == pattern(4).tobytes()
    assert space.get(hashes, [torch.zeros(4096, dtype=torch.uint8) for _ in range(4)]).block_count == 4
    with pytest.raises(kvstore.BadRequest, match="strided"):
        space.get(hashes, torch.zeros((4096, 4), dtype=torch.uint8).T)
    with pytest.raises(BufferError):
        space.get(hashes, torch.zeros((4, 1024), requires_grad=True))
    with pytest.raises((kvstore.BadRequest, ValueError), match="device"):
        space.get(hashes, torch.zeros((4, 1024), device="meta"))
    assert (space.hash_chain(torch.arange(64)) == space.hash_chain(np.arange(64))).all()
