"""Layouts of real tensors, and moving blocks between them, against NumPy's own indexing."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvstore
from kvstore import Layout, Move, Part, Rotation, copy_blocks, gather, relayout, scatter, table_slots


def paged(blocks=6, tokens=4, heads=2, size=8, layers=3, dtype=np.float32, seed=1):
    """vLLM's older order, [2, blocks, tokens, heads, size], one tensor for each layer."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, blocks, tokens, heads, size)).astype(dtype) for _ in range(layers)]


def store_of(layout, count):
    store = layout.store_block(count)
    memory = np.zeros((count, layout.store_block_bytes), np.uint8)
    return store.bind(memory), memory


def test_a_layout_is_read_off_a_tensor():
    layers = paged()
    layout = Layout.of(layers, "cbthf")
    assert (layout.block_count, layout.block_tokens, layout.layer_count) == (6, 4, 3)
    assert layout.store_block_bytes == 3 * 2 * 4 * 2 * 8 * 4
    assert [each["role"] for each in layout.components] == ["key", "value"]
    assert layout.components[0]["element"] == "fp32"
    assert "fp32" in str(layout)
    assert layout.tensor_bytes() == layers[0].nbytes
    heads_first = Layout.of(layers[0].transpose(0, 1, 3, 2, 4), "cbhtf")
    assert heads_first.components == Layout.of(layers[0], "cbthf").components
    named = Layout.named(
        "kv_first_nhd", block_count=6, block_tokens=4, heads=2, key_size=8, layer_count=3, element="fp32"
    )
    assert named.store_block_bytes == layout.store_block_bytes


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=30)
def test_gather_then_scatter_brings_everything_back(chosen, seed):
    layers = paged(seed=seed)
    layout = Layout.of(layers, "cbthf")
    store, memory = store_of(layout, len(chosen))
    gather(store, layout.bind(layers), blocks=chosen)
    # The store's block is [layer][component][token][head][feature] with one head group.
    view = memory.view(np.float32).reshape(len(chosen), 3, 2, 4, 2, 8)
    for layer in range(3):
        assert (view[:, layer] == layers[layer][:, chosen].transpose(1, 0, 2, 3, 4)).all()
    other = [np.zeros_like(each) for each in layers]
    scatter(Layout.of(other, "cbthf").bind(other), store, blocks=chosen)
    for layer in range(3):
        assert (other[layer][:, chosen] == layers[layer][:, chosen]).all()
        left = [i for i in range(6) if i not in chosen]
        assert not other[layer][:, left].any()


def test_engines_of_two_layouts_share_blocks():
    nhd = paged(layers=2)
    hnd = [np.zeros((6, 2, 4, 16), np.float32) for _ in range(2)]  # packed: K then V inside a head's row
    source, target = Layout.of(nhd, "cbthf"), Layout.of([t.reshape(6, 2, 4, 2, 8) for t in hnd], "bhtcf")
    relayout(target.bind([t.reshape(6, 2, 4, 2, 8) for t in hnd]), [5, 0], source.bind(nhd), [1, 2])
    for layer in range(2):
        assert (hnd[layer][5, :, :, :8] == nhd[layer][0, 1].transpose(1, 0, 2)).all()
        assert (hnd[layer][0, :, :, 8:] == nhd[layer][1, 2].transpose(1, 0, 2)).all()


def test_slots_skip_and_count():
    layers = paged(layers=1)
    layout = Layout.of(layers, "cbthf")
    store, memory = store_of(layout, 2)
    slots = np.array([3, -1, 7, 8, 20, 21, 22, 23], np.int32)
    gather(store, layout.bind(layers), slots=slots)
    view = memory.view(np.float32).reshape(2, 2, 4, 2, 8)
    flat = layers[0].reshape(2, 24, 2, 8)
    assert (view[0, :, 0] == flat[:, 3]).all()
    assert not view[0, :, 1].any()
    assert (view[1, :, 0] == flat[:, 20]).all()
    with pytest.raises(kvstore.BadRequest, match="beyond"):
        gather(store, layout.bind(layers), slots=[24])
    with pytest.raises(kvstore.BadRequest, match="count"):
        gather(store, layout.bind(layers), slots=[1], count=2)
    with pytest.raises(kvstore.BadRequest, match="one of them"):
        gather(store, layout.bind(layers))


def test_copy_blocks():
    layers = paged(layers=2)
    want = [each[:, 1].copy() for each in layers]
    copy_blocks(Layout.of(layers, "cbthf").bind(layers), [1, 1], [4, 5])
    for layer in range(2):
        assert (layers[layer][:, 4] == want[layer]).all()
        assert (layers[layer][:, 5] == want[layer]).all()


def rotated(keys: np.ndarray, delta: int, base: float) -> np.ndarray:
    half = keys.shape[-1] // 2
    angle = delta * base ** (-2.0 * np.arange(half) / (2 * half))
    one, two = keys[..., :half].astype(np.float64), keys[..., half:].astype(np.float64)
    return np.concatenate(
        [one * np.cos(angle) - two * np.sin(angle), two * np.cos(angle) + one * np.sin(angle)], axis=-1
    )


@pytest.mark.parametrize("delta", [0, 1, 100, -37])
def test_a_rotation_turns_keys_and_leaves_values(delta):
    layers = paged(layers=1)
    layout = Layout.of(layers, "cbthf")
    store, memory = store_of(layout, 2)
    gather(store, layout.bind(layers), blocks=[0, 1], move=Rotation(8, delta=delta, base=100.0))
    view = memory.view(np.float32).reshape(2, 2, 4, 2, 8)
    assert np.allclose(view[:, 0], rotated(layers[0][0, :2], delta, 100.0), atol=1e-4)
    assert (view[:, 1] == layers[0][1, :2]).all()
    by_row = Rotation(8, deltas=np.full(8, delta), frequencies=100.0 ** (-2.0 * np.arange(4) / 8))
    again = np.zeros_like(memory)
    gather(layout.store_block(2).bind(again), layout.bind(layers), blocks=[0, 1], move=by_row)
    assert (again == memory).all()


def test_casts_and_roles():
    layers = paged(layers=1)
    halves = [np.zeros((2, 6, 4, 2, 8), np.float16)]
    target = Layout.of(halves, "cbthf")
    with pytest.raises(kvstore.Mismatch):
        relayout(target.bind(halves), [0], Layout.of(layers, "cbthf").bind(layers), [1])
    relayout(target.bind(halves), [0], Layout.of(layers, "cbthf").bind(layers), [1], move=Move("cast", roles=["key"]))
    assert (halves[0][0, 0] == layers[0][0, 1].astype(np.float16)).all()
    assert not halves[0][1].any()


def test_ranks_read_their_heads():
    layers = paged(layers=2, heads=4)
    layout = Layout.of(layers, "cbthf")
    whole = layout.store_block(1, head_groups=2)
    memory = np.zeros((1, layout.store_block_bytes), np.uint8)
    gather(whole.bind(memory), layout.bind(layers), blocks=[3])
    part = np.zeros((1, layout.store_block_bytes // 2), np.uint8)
    gather(layout.slice_heads(2, 2).store_block(1).bind(part), layout.bind(layers).slice_heads(2, 2), blocks=[3])
    assert (memory[0, layout.store_block_bytes // 2 :] == part[0]).all()
    one = layout.bind(layers).slice_layers(1, 1)
    single = np.zeros((1, layout.store_block_bytes // 2), np.uint8)
    gather(one.layout.store_block(1).bind(single), one, blocks=[3])
    assert (single.view(np.float32).reshape(2, 4, 4, 8) == layers[1][:, 3]).all()
    for first, count in (
        (-1, 1),
        (0, 0),
        (0, 3),
        (2, 1),
        (1, 2),
        (2**63 - 1, 1),
        (2**63 - 1, 2**63 - 1),
        (2, 2**63 - 1),
    ):
        with pytest.raises(kvstore.BadRequest, match="layers"):
            layout.bind(layers).slice_layers(first, count)


def test_what_is_wrong_is_named():
    layers = paged(layers=1)
    layout = Layout.of(layers, "cbthf")
    with pytest.raises(kvstore.BadRequest, match="roles"):
        Layout.of(layers, "cbthf", roles=("key", "wrong"))
    with pytest.raises(kvstore.BadRequest):
        Layout.of(layers, "cbth")
    with pytest.raises(kvstore.BadRequest, match="element"):
        Layout.of(layers, "cbthf", element="bf16")
    with pytest.raises(kvstore.BadRequest, match="type"):
        Layout.of(layers[0].astype(np.float64), "cbthf")
    with pytest.raises(kvstore.BadRequest, match="layer 0"):
        Layout.of([layers[0], layers[0][:, :3]], "cbthf")
    with pytest.raises(kvstore.BadRequest, match="bytes"):
        layout.bind(layers[0][:, :3].copy())
    with pytest.raises(kvstore.BadRequest, match="the layout has 1"):
        layout.bind(layers * 2)
    with pytest.raises(kvstore.BadRequest, match="misaligned"):
        layout.bind(np.zeros(layers[0].nbytes + 1, np.uint8)[1:])
    frozen = layers[0].copy()
    frozen.flags.writeable = False
    store, _ = store_of(layout, 1)
    gather(store, layout.bind(frozen), blocks=[0])
    with pytest.raises(kvstore.BadRequest, match="read-only"):
        scatter(layout.bind(frozen), store, blocks=[0])
    with pytest.raises(kvstore.BadRequest, match="rotary_size"):
        gather(store, layout.bind(layers), blocks=[0], move=Rotation(7))
    with pytest.raises(kvstore.BadRequest, match="named layout"):
        Layout.named("unheard-of", block_count=1)


def test_parts_of_their_own():
    keys, values = np.random.rand(1, 2, 20, 8).astype(np.float32), np.random.rand(1, 2, 20, 6).astype(np.float32)
    layout = Layout.of_parts([Part(keys, "bhtf", ("key",)), Part(values, "bhtf", ("value",))])
    store = layout.store_block(2, block_tokens=8)
    memory = np.zeros((2, 8 * 2 * (8 + 6) * 4), np.uint8)
    gather(store.bind(memory), layout.bind([keys, values]), slots=np.arange(16))
    back = np.zeros_like(keys), np.zeros_like(values)
    scatter(layout.bind(list(back)), store.bind(memory), slots=np.arange(16))
    assert (back[0][:, :, :16] == keys[:, :, :16]).all()
    assert (back[1][:, :, :16] == values[:, :, :16]).all()
    assert not back[0][:, :, 16:].any()


def test_slots_of_a_block_table():
    table = np.array([[3, 1, 7], [2, -1, 0]], np.int32)
    got = table_slots(table, [10, 6], block_tokens=4)
    assert got.tolist() == [12, 13, 14, 15, 4, 5, 6, 7, 28, 29, 8, 9, 10, 11, -1, -1]
    assert table_slots(table, [2, 1], block_tokens=4, starts=[3, 0]).tolist() == [15, 4, 8]
    assert table_slots(table, [10, 6], block_tokens=4, drop_missing=True).tolist()[-1] == 11
    with pytest.raises(kvstore.BadRequest):
        table_slots(table, [13, 1], block_tokens=4)


@pytest.mark.parametrize("module", ["/nowhere/libkvstore_cuda.so", ""])
def test_without_a_module_all_but_the_device_works(module):
    code = """
import numpy as np, kvstore
from kvstore.device import Stream, device_count, why_no_device
assert device_count() == 0 and "libkvstore_cuda.so" in why_no_device()
class There:
    __cuda_array_interface__ = {"shape": (4, 4, 2, 8), "typestr": "<f4", "data": (1 << 40, False), "version": 3}
layout = kvstore.Layout.of(There(), "bthf", roles=("key",))
for call in (Stream, lambda: layout.bind(There()), lambda: kvstore.Client("unix:///x").allocate(4096, page_locked=True)):
    try:
        call()
    except kvstore.Unavailable as error:
        assert "CUDA: " in str(error), error
    else:
        raise SystemExit(f"{call} works")
"""
    environment = {**os.environ, "KV_CUDA_MODULE": module, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
