"""Pruned caches, against NumPy written from the definitions of Ascend's operators and of RazorAttention. Random cases print their seed."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from codes import ELEMENTS, FLOATS, decode, encode, positive_values, random_codes
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import (
    BadRequest,
    KeptRows,
    Layout,
    Mismatch,
    Part,
    gather,
    plan_keep_rows,
    scatter,
    scatter_kept,
)


def test_the_numbers_of_these_tests_are_numpys():
    halves = np.arange(0x7C00, dtype=np.uint16)
    assert (positive_values("fp16") == halves.view(np.float16).astype(np.float64)).all()
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    assert (encode(values, "fp16") == values.astype(np.float16).view(np.uint16)).all()
    for element in FLOATS:
        codes = encode(values, element)
        assert (encode(decode(codes, element), element) == codes).all()


NAMES = {"last": "KVHEAD", "mean": "KVHEAD_ROPE", "drop": "OMNI"}


def kept_tokens(mode, length, window, offset):
    """(first token, how many become one) of each kept row, as the operator's page defines its three modes."""
    if mode == "last":
        return [(j, 1) for j in range(length - window, length)]
    if offset == -1 or window == 0:
        return [(j, 1) for j in range(length)]
    middle = [(offset, window)] if mode == "mean" else []
    return [
        *((j, 1) for j in range(offset)),
        *middle,
        *((j, 1) for j in range(offset + window, length)),
    ]


def mean_of(codes, element):
    """In fp32 and in token order, rounded once."""
    total = np.zeros(codes.shape[1:], np.float32)
    for row in decode(codes, element):
        total = total + row
    return encode(total / np.float32(len(codes)), element)


class Request:
    """A random batch to prune: each sequence and head gets blocks of its own, or none."""

    def __init__(self, rng, mode, block_tokens):
        self.mode, self.block_tokens = mode, block_tokens
        self.heads, batch = int(rng.integers(1, 5)), int(rng.integers(0, 4))
        self.seq_lens = rng.integers(0, 12, batch).astype(np.int32)
        windows, offsets, first_slots, block = [], [], [], int(rng.integers(0, 3))
        for length in self.seq_lens.tolist():
            for _ in range(self.heads):
                windows.append(int(rng.choice([0, min(1, length), length, rng.integers(0, length + 1)])))
                last = length - windows[-1]
                offsets.append(int(rng.choice([-1, 0, last, rng.integers(0, last + 1)])))
                first_slots.append(-1 if rng.random() < 0.2 else block * block_tokens)
                block += -(-length // block_tokens) + int(rng.integers(0, 2))
        self.windows, self.offsets = np.array(windows, np.int32), np.array(offsets, np.int32)
        self.first_slots, self.block_count = np.array(first_slots, np.int64), max(block, 1)

    def plan(self, mode=None):
        return plan_keep_rows(
            mode or self.mode,
            head_count=self.heads,
            seq_lens=self.seq_lens,
            windows=self.windows,
            first_slots=self.first_slots,
            offsets=None if self.mode == "last" else self.offsets,
        )

    def rows(self):
        """(slot, token of the packed source, head, tokens) of each row."""
        start = 0
        for b, length in enumerate(self.seq_lens.tolist()):
            for head in range(self.heads):
                i = b * self.heads + head
                if self.first_slots[i] < 0:
                    continue
                kept = kept_tokens(self.mode, length, int(self.windows[i]), int(self.offsets[i]))
                for place, (token, count) in enumerate(kept):
                    yield int(self.first_slots[i]) + place, start + token, head, count
            start += length


@pytest.mark.parametrize("mode", list(NAMES))
@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_a_plan_has_the_rows_of_the_definition(mode, seed):
    request = Request(np.random.default_rng(seed), mode, block_tokens=4)
    rows, wanted = request.plan(), list(request.rows())
    assert len(rows) == len(wanted)
    assert list(zip(rows.slots, rows.tokens, rows.heads, rows.token_counts, strict=True)) == wanted
    named = request.plan(NAMES[mode])
    assert (named.slots == rows.slots).all() and (named.tokens == rows.tokens).all()


@pytest.mark.parametrize(("mode", "element"), [(m, e) for m in NAMES for e in ELEMENTS if (m, e) != ("mean", "int8")])
def test_a_pruned_cache_is_that_of_the_definition(mode, element):
    for seed in range(12):
        print(f"seed {seed}")
        rng = np.random.default_rng(seed)
        block_tokens, layers = int(rng.choice([1, 4, 16])), int(rng.integers(1, 4))
        request = Request(rng, mode, block_tokens)
        key_size, value_size = int(rng.choice([1, 3, 8, 40])), int(rng.choice([1, 16, 24]))
        tokens = max(int(request.seq_lens.sum()), 1)
        code = {} if element in ("fp32", "int8") else {"element": element}

        def random_rows(size, rng=rng, tokens=tokens, heads=request.heads):
            return random_codes(rng, (tokens, heads, size), element, any_bits=mode != "mean")

        new = [(random_rows(key_size), random_rows(value_size)) for _ in range(layers)]
        parts = [Part([each[i] for each in new], "thf", (role,), **code) for i, role in enumerate(("key", "value"))]
        source = Layout.of_parts(parts).bind([tensor for each in new for tensor in each])

        def canary(size, dtype, blocks=request.block_count, tokens=block_tokens):
            return np.full((blocks, tokens, size * np.dtype(dtype).itemsize), 0xA5, np.uint8).view(dtype)

        dtype = new[0][0].dtype
        pages = [(canary(key_size, dtype), canary(value_size, dtype), canary(1, np.float32)) for _ in new]
        axes = zip(("btf", "btf", "btf"), ("key", "value", "log_count"), (code, code, {}), strict=True)
        layout = Layout.of_parts([Part([each[i] for each in pages], a, (r,), **c) for i, (a, r, c) in enumerate(axes)])
        expected = [[tensor.copy() for tensor in each] for each in pages]
        for slot, token, head, count in request.rows():
            for layer, tensors in enumerate(new):
                for i, tensor in enumerate(tensors):
                    some = tensor[token : token + count, head]
                    expected[layer][i].reshape(-1, some.shape[-1])[slot] = (
                        some[0] if count == 1 else mean_of(some, element)
                    )
                expected[layer][2].reshape(-1)[slot] = math.log(count)
        assert scatter_kept(layout.bind([t for each in pages for t in each]), request.plan(), source) is None
        for made, wanted in zip(pages, expected, strict=True):
            for one, other in zip(made, wanted, strict=True):
                assert one.tobytes() == other.tobytes(), f"seed {seed}"


def counted(lengths, heads=2):
    """Keys 10 * token + head of each sequence, as fp16, and values minus that."""
    tokens = np.concatenate([np.arange(n) for n in lengths])
    keys = (10 * tokens[:, None] + np.arange(heads))[:, :, None].astype(np.float16)
    layout = Layout.named("ragged", block_count=1, block_tokens=len(tokens), heads=heads, key_size=1, element="fp16")
    return layout.bind([keys, -keys])


def folded(blocks, block_tokens):
    layout = Layout.named("head_folded", block_count=blocks, block_tokens=block_tokens, key_size=1, element="fp16")
    keys, values, log_counts = (np.full((blocks, block_tokens), -1, t) for t in (np.float16, np.float16, np.float32))
    return layout.bind([keys, values, log_counts]), keys.reshape(-1), log_counts.reshape(-1)


def test_the_worked_examples_of_the_three_modes():
    cache, keys, log_counts = folded(5, 2)
    plan = plan_keep_rows("last", head_count=2, seq_lens=[3, 2], windows=[2, 3, 1, 2], first_slots=[0, 2, 6, 8])
    scatter_kept(cache, plan, counted([3, 2]))
    assert keys.tolist() == [10, 20, 1, 11, 21, -1, 10, -1, 1, 11]
    assert log_counts.tolist() == [0, 0, 0, 0, 0, -1, 0, -1, 0, 0]

    arguments = {
        "head_count": 2,
        "seq_lens": np.array([5, 3]),
        "windows": np.array([[3, 0], [2, 1]]),
        "offsets": np.array([[1, 1], [0, -1]]),
        "first_slots": np.array([[0, 4], [10, 12]]),
    }
    cache, keys, log_counts = folded(8, 2)
    scatter_kept(cache, plan_keep_rows("mean", **arguments), counted([5, 3]))
    assert keys.tolist() == [0, 20, 40, -1, 1, 11, 21, 31, 41, -1, 5, 20, 1, 11, 21, -1]
    assert log_counts[[1, 10]].tolist() == [np.float32(math.log(3)), np.float32(math.log(2))]
    assert log_counts[[0, 2, 4, 11]].tolist() == [0, 0, 0, 0]

    cache, keys, log_counts = folded(8, 2)
    scatter_kept(cache, plan_keep_rows("drop", **arguments), counted([5, 3]))
    assert keys.tolist() == [0, 40, -1, -1, 1, 11, 21, 31, 41, -1, 20, -1, 1, 11, 21, -1]
    assert not log_counts[keys >= 0].any()


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def test_a_mean_with_its_log_count_weighs_as_much_as_its_tokens():
    """RazorAttention's compensation token: exact where the averaged keys are equal."""
    rng = np.random.default_rng(7)
    keys, values = rng.standard_normal((2, 20, 1, 16)).astype(np.float32)
    keys[5:15] = keys[5]
    layout = Layout.named("ragged", block_count=1, block_tokens=20, key_size=16, element="fp32")
    folded_layout = Layout.named("head_folded", block_count=1, block_tokens=16, key_size=16, element="fp32")
    kept = [np.zeros((16, n), np.float32) for n in (16, 16, 1)]
    plan = plan_keep_rows("mean", head_count=1, seq_lens=[20], windows=[10], offsets=[5], first_slots=[0])
    assert len(plan) == 11
    scatter_kept(folded_layout.bind(kept), plan, layout.bind([keys, values]))
    query, scale = rng.standard_normal(16), 16**-0.5
    few_keys, few_values, log_counts = (each[:11].astype(np.float64) for each in kept)
    few = softmax(few_keys @ query * scale + log_counts[:, 0]) @ few_values
    assert np.allclose(few, softmax(keys[:, 0] @ query * scale) @ values[:, 0], atol=1e-5)


def test_a_policy_of_the_callers_own_chooses_rows():
    rng = np.random.default_rng(11)
    keys, values = rng.standard_normal((2, 30, 3, 8)).astype(np.float16)
    layout = Layout.named("ragged", block_count=1, block_tokens=30, heads=3, key_size=8, element="fp16")
    heavy = np.sort(np.argsort(rng.random((3, 30)))[:, :5])  # the five heaviest tokens of each head
    slots = np.arange(3)[:, None] * 8 + np.arange(5)
    rows = KeptRows.of(slots.reshape(-1), heavy.reshape(-1), np.repeat(np.arange(3), 5))
    assert rows.token_counts.tolist() == [1] * 15
    assert repr(rows) == "<kvstore.KeptRows of 15 rows>"
    kept = [np.zeros((3, 8, n), t) for n, t in ((8, np.float16), (8, np.float16), (1, np.float32))]
    named = Layout.named("head_folded", block_count=3, block_tokens=8, key_size=8, element="fp16")
    scatter_kept(named.bind(kept), rows, layout.bind([keys, values]))
    for head in range(3):
        assert (kept[0][head, :5] == keys[heavy[head], head]).all()
        assert (kept[1][head, :5] == values[heavy[head], head]).all()
    assert not kept[0][:, 5:].any()
    means = KeptRows.of([23], [4], [1], [6])
    scatter_kept(named.bind(kept), means, layout.bind([keys, values]))
    assert kept[2][2, 7, 0] == np.float32(math.log(6))


def test_rows_are_views_that_outlive_their_object():
    slots = plan_keep_rows("last", head_count=1, seq_lens=[3], windows=[3], first_slots=[5]).slots
    assert slots.tolist() == [5, 6, 7]
    with pytest.raises(ValueError):
        slots[0] = 1
    empty = plan_keep_rows("last", head_count=1, seq_lens=[], windows=[], first_slots=[])
    assert len(empty) == 0 and empty.slots.tolist() == [] and empty.heads.dtype == np.int32


def test_a_pruned_cache_passes_through_the_stores_blocks_with_its_log_counts():
    cache, keys, log_counts = folded(4, 4)
    plan = plan_keep_rows("mean", head_count=1, seq_lens=[12], windows=[4], offsets=[2], first_slots=[0])
    scatter_kept(cache, plan, counted([12], heads=1))
    blocks = np.zeros((3, cache.layout.store_block_bytes), np.uint8)
    store = cache.layout.store_block(3).bind(blocks)
    gather(store, cache, blocks=[0, 1, 2])
    other, other_keys, other_log_counts = folded(4, 4)
    scatter(other, store, blocks=[1, 2, 3])
    assert (other_keys[4:] == keys[:12]).all() and (other_log_counts[4:] == log_counts[:12]).all()
    assert other_log_counts[6] == np.float32(math.log(4))


def test_torch_tensors_are_pruned_in_place():
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2):
        new = [torch.randn(10, 2, 16, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(2)]
        source = Layout.of_parts([Part(new[0], "thf", ("key",)), Part(new[1], "thf", ("value",))]).bind(new)
        kept = [torch.zeros(8, 4, 16, dtype=dtype), torch.zeros(8, 4, 16, dtype=dtype), torch.zeros(8, 4)]
        roles = (("key", "btf"), ("value", "btf"), ("log_count", "bt"))
        layout = Layout.of_parts([Part(t, axes, (role,)) for t, (role, axes) in zip(kept, roles, strict=True)])
        rows = plan_keep_rows(
            "mean",
            head_count=2,
            seq_lens=torch.tensor([10]),
            windows=torch.tensor([[3, 0]]),
            offsets=torch.tensor([[4, -1]]),
            first_slots=torch.tensor([[0, 12]]),
        )
        scatter_kept(layout.bind(kept), rows, source)
        flat = kept[0].view(-1, 16)
        mean = (new[0][4, 0].float() + new[0][5, 0].float() + new[0][6, 0].float()) / 3
        assert torch.equal(flat[4].float(), mean.to(dtype).float())
        assert torch.equal(flat[12:22].float(), new[0][:, 1].float())
        assert kept[2].view(-1)[4].item() == np.float32(math.log(3))


PLAN = {"head_count": 2, "seq_lens": [5, 3], "windows": [3, 0, 2, 1], "first_slots": [0, 8, 16, 24]}


@pytest.mark.parametrize(
    ("mode", "wrong", "text"),
    [
        ("first", {}, "mode: 'first' is none of last, mean, drop"),
        ("last", {"head_count": 0}, r"head_count: 0 is not in \[1, 65536\]"),
        ("last", {"windows": [3, 0, 2]}, "windows: 3 for 2 sequences of 2 heads"),
        ("last", {"first_slots": [3]}, "first_slots: 1 for 2 sequences of 2 heads"),
        ("last", {"seq_lens": [5, -3]}, r"seq_lens\[1\]: -3 is not 0 or more"),
        ("last", {"seq_lens": [5.5, 3.0]}, "seq_lens: the elements are no whole numbers"),
        ("last", {"seq_lens": 7}, "seq_lens: an object of type int"),
        ("last", {"windows": [3, 0, 4, 1]}, r"windows\[2\]: 4 is not in \[0, 3\], sequence 1 having 3 tokens"),
        ("last", {"windows": [3, 2**31, 2, 1]}, r"windows\[1\]: 2147483648 is out of range"),
        ("last", {"windows": np.zeros((4, 1), int)}, r"windows: of shape \[4, 1\], not \[2, 2\]"),
        ("last", {"first_slots": [0, 2**62 + 1, 2, 3]}, r"first_slots\[1\]: 4611686018427387905 is over 2\^62"),
        ("last", {"offsets": [0, 0, 0, 0]}, "offsets: given, and mode 'last' has none"),
        ("mean", {}, "offsets: 0 for 2 sequences of 2 heads"),
        ("mean", {"offsets": [3, 0, 0, 0]}, r"offsets\[0\]: 3 is neither -1 nor in \[0, 2\], sequence 0 having 5"),
        ("drop", {"offsets": [-2, 0, 0, 0]}, r"offsets\[0\]: -2 is neither -1 nor in \[0, 2\]"),
        (
            "drop",
            {"seq_lens": [2**31 - 1, 3], "offsets": [-1] * 4},
            r"seq_lens, windows: over 2\^31 rows",
        ),
    ],
)
def test_a_wrong_plan_is_refused_by_name(mode, wrong, text):
    with pytest.raises(BadRequest, match=text):
        plan_keep_rows(mode, **{**PLAN, **wrong})


def test_wrong_rows_are_refused_by_name_before_any_is_written():
    source = counted([5, 3])
    good = ([0], [0], [0], [1])
    for wrong, text in (
        (([10], [0], [0], [1]), r"rows\[1\]: slot 10 is not in \[0, 10\), the cache's slots"),
        (([-1], [0], [0], [1]), r"rows\[1\]: slot -1 is not in"),
        (([0], [8], [0], [1]), r"rows\[1\]: token 8 is not in \[0, 8\), the source's tokens"),
        (([0], [0], [2], [1]), r"rows\[1\]: head 2 is not in \[0, 2\), the source's heads"),
        (([0], [6], [0], [3]), r"rows\[1\]: token_count 3 is not in \[1, 2\], from token 6 on"),
        (([0], [6], [0], [0]), r"rows\[1\]: token_count 0"),
        (([0], [2**63 - 1], [0], [2**31 - 1]), r"rows\[1\]: token 9223372036854775807"),
    ):
        cache, keys, _ = folded(5, 2)
        rows = KeptRows.of(*(one + other for one, other in zip(good, wrong, strict=True)))
        with pytest.raises(BadRequest, match=text):
            scatter_kept(cache, rows, source)
        assert (keys == -1).all()
    for name, arrays in (
        ("tokens", ([1], [], [1])),
        ("heads", ([1], [1], [1, 2])),
        ("token_counts", ([1], [1], [1], [])),
    ):
        with pytest.raises(BadRequest, match=f"{name}: . for 1 slots"):
            KeptRows.of(*arrays)


def test_caches_that_do_not_fit_are_refused_by_component():
    cache, _, _ = folded(5, 2)
    rows = KeptRows.of([0], [0], [0])
    means = KeptRows.of([0], [0], [0], [2])

    def ragged(**more):
        layout = Layout.named(
            "ragged", **{"block_count": 1, "block_tokens": 4, "key_size": 1, "element": "fp16", **more}
        )
        return layout.bind([np.zeros(64, np.uint8) for _ in range(2 * layout.layer_count)])

    latent = Layout.named("mla", block_count=1, block_tokens=4, key_size=8, value_size=4).bind(np.zeros(96, np.uint8))
    for source, text in (
        (ragged(layer_count=2), "layers: the cache has 1, the source 2"),
        (ragged(key_size=2), "features"),
        (ragged(element="bf16"), "bf16 goes to fp16, and rows are not converted"),
        (latent, "the source has none"),
    ):
        with pytest.raises(Mismatch, match=text):
            scatter_kept(cache, rows, source)
    with pytest.raises(Mismatch, match="2 heads a slot, not one: it is not head-folded"):
        scatter_kept(ragged(heads=2), rows, ragged(heads=2))
    whole = Layout.named("head_folded", block_count=2, block_tokens=4, key_size=4, element="int8")
    eight = whole.bind([np.zeros(32, np.uint8), np.zeros(32, np.uint8), np.zeros(8, np.float32)])
    scatter_kept(eight, rows, ragged(element="int8", key_size=4))
    with pytest.raises(Mismatch, match="int8"):
        scatter_kept(eight, means, ragged(element="int8", key_size=4))
    frozen = [np.zeros(20, np.uint8), np.zeros(20, np.uint8), np.zeros(10, np.float32)]
    frozen[0].flags.writeable = False
    with pytest.raises(BadRequest, match="cache: the memory is read-only"):
        scatter_kept(cache.layout.bind(frozen), rows, counted([4], heads=1))
    with pytest.raises(BadRequest, match="stream: one is given"):
        scatter_kept(cache, rows, counted([4], heads=1), stream=0)


def test_every_layout_of_the_c_interface_has_its_name_in_python():
    header = ROOT / "client/kvstore_gpu.h"
    if not header.exists():
        pytest.skip("without the repository")
    text = re.search(r"`name`: ([\w\s*]+)\.", header.read_text())
    assert text is not None
    names = text[1].replace("*", " ").split()
    assert len(names) > 20 and "head_folded" in names
    for name in names:
        element = "int8" if name == "inline_scales_nhd" else "bf16"
        blocks = 1 if name == "ragged" else 4
        layout = Layout.named(
            name, block_count=blocks, block_tokens=16, heads=2, key_size=64, value_size=64, element=element
        )
        assert layout.block_count == blocks, name
