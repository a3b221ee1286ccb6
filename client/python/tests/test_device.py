"""Layouts in a GPU's memory: equal to the host's to the byte, in the order set by streams and events."""

from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest
from simulated import ORDERS, Device, DeviceArray, DlpackArray

import kvstore
from kvstore import (
    KeptRows,
    Layout,
    Move,
    Rotation,
    copy_blocks,
    gather,
    plan_keep_rows,
    relayout,
    scatter,
    scatter_kept,
)
from kvstore.device import Stream, device_count, record, stream_handle, why_no_device


@pytest.fixture(scope="module")
def device():
    return Device()


@pytest.fixture(params=ORDERS)
def order(request, device):
    if not device.is_simulated and request.param != ORDERS[0]:
        pytest.skip("a real device has an order of its own")
    with device.runs(request.param):
        yield request.param


@pytest.fixture
def client():
    with kvstore.Client("unix:///nowhere/kvstore.sock") as made:
        yield made


def random_of(shape, dtype, seed=1):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


#: Name, shape of a layer, its axes, roles, type, element: of engines' pages, by generation and kind.
LAYOUTS = [
    ("K and V apart, tokens first", (2, 9, 16, 2, 32), "cbthf", ("key", "value"), np.uint16, "bf16"),
    ("blocks first", (9, 2, 16, 2, 32), "bcthf", ("key", "value"), np.float16, ""),
    ("heads first", (9, 2, 2, 16, 32), "bchtf", ("key", "value"), np.float32, ""),
    ("K and V in a row", (9, 2, 16, 2, 32), "bhtcf", ("key", "value"), np.uint16, "bf16"),
    ("MLA", (9, 16, 576), "btf", ("latent",), np.uint16, "bf16"),
    ("fp8", (2, 9, 16, 2, 48), "cbthf", ("key", "value"), np.uint8, "e4m3"),
    ("opaque pages of odd bytes", (9, 1, 1, 1237), "bthf", ("key",), np.uint8, ""),
]


@pytest.mark.parametrize(
    ("shape", "axes", "roles", "dtype", "element"), [each[1:] for each in LAYOUTS], ids=[each[0] for each in LAYOUTS]
)
def test_what_a_device_moves_is_what_the_host_moves(device, client, order, shape, axes, roles, dtype, element):
    layers = [random_of(shape, dtype, seed) for seed in range(3)]
    layout = Layout.of(layers, axes, roles=roles, element=element)
    on_device = [DeviceArray(device, each) for each in layers]
    assert str(Layout.of(on_device, axes, roles=roles, element=element)) == str(layout)
    pages = layout.bind(on_device)
    assert pages.device == 0 and layout.bind(layers).device is None
    chosen = [7, 0, -1, 3]
    store = layout.store_block(len(chosen))
    expected = np.full((len(chosen), layout.store_block_bytes), 0xEE, np.uint8)
    gather(store.bind(expected), layout.bind(layers), blocks=chosen)

    memory = client.allocate(expected.nbytes, page_locked=True)
    rows = memory.array(expected.shape)
    rows[:] = 0xEE
    stream = Stream()
    event = gather(store.bind(rows), pages, blocks=chosen, stream=stream)
    assert event.wait(10) and event.is_passed
    assert (rows == expected).all()

    # Back to other pages, by slots in device memory.
    target = [DeviceArray(device, np.zeros_like(each)) for each in layers]
    tokens = layout.block_tokens
    slots = np.concatenate(
        [np.arange(tokens) + block * tokens if block >= 0 else np.full(tokens, -1) for block in chosen]
    )
    for width in (np.int64, np.int32):
        there = DeviceArray(device, slots.astype(width))
        event = scatter(layout.bind(target), store.bind(rows), slots=there, stream=stream.handle)
    assert event.wait(10)
    on_host = [np.zeros_like(each) for each in layers]
    scatter(layout.bind(on_host), store.bind(expected), slots=slots)
    for made, wanted in zip(target, on_host, strict=True):
        assert (made.numpy() == wanted).all()


def test_parts_casts_and_turns(device, client, order):
    half = [random_of((2, 6, 8, 4, 16), np.float16, seed) for seed in range(2)]
    layout = Layout.of(half, "cbthf")
    pages = layout.bind([DeviceArray(device, each) for each in half])
    stream, kept = Stream(), []
    for move in (Move("cast"), Rotation(16, delta=7), Rotation(8, deltas=list(range(24)), style="gptj")):
        wanted = [np.zeros((2, 3, 8, 2, 16), np.float32)]
        made = client.allocate(wanted[0].nbytes, page_locked=True).array(wanted[0].shape, np.float32)
        made[:] = 0
        kept.append(made)
        to = Layout.of(wanted, "cbthf")
        of_host = layout.bind(half).slice_layers(1, 1).slice_heads(2, 2)
        of_device = pages.slice_layers(1, 1).slice_heads(2, 2)
        gather(to.bind(wanted), of_host, blocks=[5, 1, 2], move=move)
        assert gather(to.bind([made]), of_device, blocks=[5, 1, 2], move=move, stream=stream).wait(10)
        # Rounded to floats from sums that a device may order differently.
        assert np.abs(made - wanted[0]).max() <= (0 if isinstance(move, Move) else 1e-6)


def test_blocks_between_devices_memories_and_within(device, order):
    first, second = random_of((5, 4, 2, 8), np.float32), np.zeros((7, 4, 2, 8), np.float32)
    stream = Stream()
    one, two = DeviceArray(device, first), DeviceArray(device, second)
    source, target = Layout.of(one, "bthf", roles=("key",)), Layout.of(two, "bthf", roles=("key",))
    relayout(target.bind(two), [6, 0], source.bind(one), [1, 4], stream=stream)
    event = copy_blocks(target.bind(two), [6, 0], [2, 3], stream=stream)  # the stream has one order
    assert event.wait(10)
    got = two.numpy()
    assert (got[[6, 0, 2, 3]] == first[[1, 4, 1, 4]]).all() and not got[[1, 4, 5]].any()


def test_dlpack_is_taken_without_waiting(device, order):
    values = random_of((4, 4, 2, 8), np.float32)
    exported = DlpackArray(DeviceArray(device, values))
    layout = Layout.of(exported, "bthf", roles=("key",))
    other = DeviceArray(device, np.zeros_like(values))
    assert relayout(layout.bind(other), [0, 1], layout.bind(exported), [2, 3], stream=Stream()).wait(10)
    assert (other.numpy()[:2] == values[2:]).all()
    assert set(exported.streams) == {-1}


def test_nothing_has_moved_before_the_event(device, client):
    if not device.is_simulated:
        pytest.skip("a real device may be done already")
    values = random_of((8, 4, 2, 8), np.float32)
    layout = Layout.of(values, "bthf", roles=("key",))
    rows = client.allocate(layout.store_block_bytes, page_locked=True).array((1, layout.store_block_bytes))
    rows[:] = 0
    with device.runs("lazy"):
        event = gather(
            layout.store_block(1).bind(rows), layout.bind(DeviceArray(device, values)), blocks=[3], stream=Stream()
        )
        assert not rows.any()
        assert not event.is_passed  # asked last: asking makes the simulated device go on
        assert event.wait(10)
        assert (rows.view(np.float32).ravel() == values[3].ravel()).all()


@pytest.mark.parametrize("seed", range(8))
def test_one_stream_waits_for_another_on_the_device(device, client, seed):
    values, zeros = random_of((8, 4, 2, 8), np.float32), np.zeros((8, 4, 2, 8), np.float32)
    layout = Layout.of(values, "bthf", roles=("key",))
    store = layout.store_block(2)
    rows = client.allocate(2 * layout.store_block_bytes, page_locked=True).array((2, layout.store_block_bytes))
    rows[:] = 0
    for order in ("lazy", "random"):
        with device.runs(order, seed):
            pages, middle = layout.bind(DeviceArray(device, values)), layout.bind(DeviceArray(device, zeros))
            one, two, three = Stream(), Stream(), Stream()
            moved = relayout(middle, [5, 6], pages, [1, 2], stream=one)
            two.wait(moved)  # by the call's own event
            again = relayout(middle, [0, 1], middle, [5, 6], stream=two)
            record(two).hold(three)  # by one of the stream's
            assert gather(store.bind(rows), middle, blocks=[0, 1], stream=three).wait(10)
            assert again.is_passed
            assert (rows.view(np.float32).reshape(2, -1) == values[[1, 2]].reshape(2, -1)).all()
            two.synchronise()


def test_what_a_call_uses_stays_until_its_event(device, client):
    values = random_of((8, 4, 2, 8), np.float32)
    layout = Layout.of(values, "bthf", roles=("key",))
    store = layout.store_block(1)
    with device.runs("lazy" if device.is_simulated else ORDERS[0]):
        memory = client.allocate(layout.store_block_bytes, page_locked=True)
        address = memory.address
        array, other = DeviceArray(device, values), DeviceArray(device, values)
        gone = weakref.ref(array)
        event = gather(store.bind(memory), layout.bind(array), blocks=[3], stream=Stream())
        del array, memory
        gc.collect()
        if device.is_simulated:
            assert gone() is not None and device.place_of(address) == 1
        assert event.wait(10)
        # The next call releases objects kept by earlier ones.
        relayout(layout.bind(other), [0], layout.bind(other), [1], stream=Stream()).wait(10)
        gc.collect()
        assert gone() is None


def test_memory_of_the_package_is_page_locked_where_asked(device, client):
    plain, locked = client.allocate(1 << 16), client.allocate(1 << 16, page_locked=True)
    assert not plain.is_page_locked and locked.is_page_locked
    assert (device.place_of(plain.address), device.place_of(locked.address)) == (0, 1)
    view, address = locked.array(1 << 16), locked.address
    client.close()
    del locked
    gc.collect()
    assert device.place_of(address) == 1, "unlocked under a view"
    del view
    gc.collect()
    assert device.place_of(address) == 0


def test_what_cannot_run_is_refused_by_name(device, client):
    values = random_of((8, 4, 2, 8), np.float32)
    layout = Layout.of(values, "bthf", roles=("key",))
    array = DeviceArray(device, values)
    pages = layout.bind(array)
    store = layout.store_block(2)
    rows = client.allocate(2 * layout.store_block_bytes, page_locked=True).array((2, layout.store_block_bytes))
    locked, plain = store.bind(rows), store.bind(np.zeros_like(rows))
    stream = Stream()

    def refuses(text, call, *arguments, **more):
        with pytest.raises(kvstore.BadRequest, match=text):
            call(*arguments, **more)

    refuses("^stream: none is given, and cache is on CUDA device 0", scatter, pages, locked, blocks=[1])
    refuses("^stream: none is given, and source is on", relayout, layout.bind(values), [0], pages, [0])
    refuses(
        "^stream: one is given, and both target and cache",
        gather,
        plain,
        layout.bind(values),
        blocks=[1],
        stream=stream,
    )
    refuses("^target: host memory that is not page-locked", gather, plain, pages, blocks=[1], stream=stream)
    refuses("^source: host memory that is not page-locked", scatter, pages, plain, blocks=[1], stream=stream)
    refuses(r"^blocks\[1\]: 8 is beyond the 8 blocks of cache", gather, locked, pages, blocks=[1, 8], stream=stream)
    refuses(r"^slots\[0\]: 32 is beyond the 32 slots of cache", scatter, pages, locked, slots=[32], stream=stream)
    refuses(r"^from_blocks\[0\]: 9 is beyond", relayout, pages, [0], pages, [9], stream=stream)
    refuses(r"^to_blocks\[0\]: 2 is beyond the 2 blocks of to", relayout, locked, [2], pages, [0], stream=stream)
    refuses("^count: 9 rows, target has 8", gather, locked, pages, slots=list(range(9)), stream=stream)
    refuses("^targets: 1 is there twice", copy_blocks, pages, [2, 3], [1, 1], stream=stream)
    refuses("^sources: 1 is a target too", copy_blocks, pages, [2, 1], [1, 0], stream=stream)
    refuses("^stream: 'fast' is no stream", gather, locked, pages, blocks=[1], stream="fast")
    refuses("^stream: True is no stream", stream_handle, True)
    refuses("^grid_max: -1", gather, locked, pages, blocks=[1], stream=stream, grid_max=-1)
    refuses(r"^device: 99 is not one of", Stream, 99)
    refuses(
        "^slots: on a device only int32 and int64",
        gather,
        locked,
        pages,
        slots=DeviceArray(device, np.zeros(4, np.int16)),
        stream=stream,
    )
    refuses(
        "^blocks: on a CUDA device, and the caches are the host's",
        gather,
        plain,
        layout.bind(values),
        blocks=DeviceArray(device, np.zeros(1, np.int64)),
    )
    two = Layout.of([values, values], "bthf", roles=("key",))
    refuses(r"^tensors\[1\]: in host memory, unlike tensors\[0\]", two.bind, [array, values])
    refuses(r"^tensors\[1\]: in a CUDA device's memory, unlike", two.bind, [values, array])
    refuses(
        "^blocks: the memory lies on a CUDA device",
        client.open(kvstore.Namespace(model="m", block_size=16, block_bytes=256)).put,
        np.zeros((8, 32), np.uint8),
        array,
    )
    refuses("DLPack type 10.; this call takes host memory and CUDA's", layout.bind, DlpackArray(array, 10))

    interface = {"shape": values.shape, "typestr": "<f4", "data": (values.ctypes.data, False), "version": 3}
    lies = type("Lies", (), {"__cuda_array_interface__": interface})()
    refuses(r"^tensors\[0\]: the CUDA driver knows of no device memory there", layout.bind, lies)
    with pytest.raises(kvstore.Mismatch):
        relayout(pages, [0], store.bind(rows).slice_heads(0, 1), [0], stream=stream)
    # A target that its exporter marks as read-only.
    read_only = type(
        "ReadOnly", (), {"__cuda_array_interface__": {**array.__cuda_array_interface__, "data": (array.address, True)}}
    )()
    refuses("^cache: the memory is read-only", scatter, layout.bind(read_only), locked, blocks=[1], stream=stream)


def test_ids_on_the_device_beyond_the_cache_are_skipped(device, client):
    values = random_of((4, 4, 2, 8), np.float32)
    layout = Layout.of(values, "bthf", roles=("key",))
    array = DeviceArray(device, values)
    rows = client.allocate(3 * layout.store_block_bytes, page_locked=True).array((3, layout.store_block_bytes))
    rows[:] = 0
    ids = DeviceArray(device, np.array([2, 400, -1], np.int32))
    assert gather(layout.store_block(3).bind(rows), layout.bind(array), blocks=ids, stream=Stream()).wait(10)
    assert (rows[0].view(np.float32) == values[2].ravel()).all() and not rows[1:].any()


@pytest.mark.parametrize("mode", ["last", "mean", "drop"])
def test_a_pruned_cache_on_a_device_is_the_hosts(device, client, order, mode):
    plan = plan_keep_rows(
        mode,
        head_count=2,
        seq_lens=[9, 4],
        windows=[5, 2, 0, 4],
        offsets=None if mode == "last" else [1, -1, 0, 0],
        first_slots=[0, 10, -1, 20],
    )
    new = [random_of((13, 2, 40), np.float16, seed) for seed in range(4)]
    ragged = Layout.named("ragged", block_count=1, block_tokens=13, heads=2, key_size=40, layer_count=2, element="fp16")
    layout = Layout.named("head_folded", block_count=8, block_tokens=4, key_size=40, layer_count=2, element="fp16")
    kept = [np.full((8, 4, n), 7, t) for n, t in ((40, np.float16), (40, np.float16), (1, np.float32))] * 2
    on_device = [DeviceArray(device, each) for each in kept]
    kept = [each.copy() for each in kept]
    scatter_kept(layout.bind(kept), plan, ragged.bind(new))
    event = scatter_kept(
        layout.bind(on_device), plan, ragged.bind([DeviceArray(device, each) for each in new]), stream=Stream()
    )
    del plan  # the rows were copied
    assert event.wait(10)
    for made, wanted in zip(on_device, kept, strict=True):
        assert (made.numpy() == wanted).all()


def test_a_pruned_cache_on_a_device_refuses_what_the_hosts_refuses(device, client):
    new = [random_of((4, 2, 8), np.float16, seed) for seed in range(2)]
    ragged = Layout.named("ragged", block_count=1, block_tokens=4, heads=2, key_size=8, element="fp16")
    layout = Layout.named("head_folded", block_count=2, block_tokens=4, key_size=8, element="fp16")
    kept = [np.zeros((2, 4, n), t) for n, t in ((8, np.float16), (8, np.float16), (1, np.float32))]
    cache, source = (
        one.bind([DeviceArray(device, each) for each in arrays]) for one, arrays in ((layout, kept), (ragged, new))
    )
    stream, row = Stream(), KeptRows.of([0], [0], [0])
    for rows, text in (
        (KeptRows.of([8], [0], [0]), r"rows\[0\]: slot 8"),
        (KeptRows.of([0], [3], [0], [2]), r"rows\[0\]: token_count 2"),
    ):
        with pytest.raises(kvstore.BadRequest, match=text):
            scatter_kept(cache, rows, source, stream=stream)
    with pytest.raises(kvstore.BadRequest, match=r"^stream: none is given, and cache"):
        scatter_kept(cache, row, source)
    with pytest.raises(kvstore.BadRequest, match=r"^source: host memory that is not page-locked"):
        scatter_kept(cache, row, ragged.bind(new), stream=stream)
    assert scatter_kept(cache, KeptRows.of([], [], []), source, stream=stream).wait(10)


def test_a_child_of_fork_is_told(device):
    event = Stream().record()
    child = os.fork()
    if child == 0:
        try:
            event.is_passed  # noqa: B018
        except kvstore.Unavailable as error:
            os._exit(0 if "child" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_module_says_what_there_is():
    assert device_count() >= 1 and why_no_device() == ""
