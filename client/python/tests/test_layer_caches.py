"""The core's caches by layer, from Python: against lists of all tokens, and against their papers' definitions."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import kvstore  # noqa: E402
from kvstore import layer_caches  # noqa: E402


class Tokens:
    """Keys and values as a plain list of all tokens has them."""

    def __init__(self, random: np.random.Generator, kind: str) -> None:
        self.random, self.kind = random, kind
        self.batch, self.heads = int(random.integers(1, 4)), int(random.integers(1, 4))
        self.sizes = [8 * int(random.integers(1, 4)) for _ in range(2)]
        self.keys, self.values = (self.made(0, size) for size in self.sizes)

    def made(self, count: int, size: int):
        # As models make them: heads behind tokens, so that a [batch, heads, tokens, features] view has gaps.
        shape = (self.batch, count, self.heads, size)
        numbers = self.random.standard_normal(shape).astype(np.float32)
        if self.kind == "numpy float16":
            return numbers.astype(np.float16).transpose(0, 2, 1, 3)
        if self.kind == "numpy bfloat16":
            return torch.from_numpy(numbers).bfloat16().view(torch.int16).numpy().view(np.uint16).transpose(0, 2, 1, 3)
        if self.kind == "numpy float32":
            return numbers.transpose(0, 2, 1, 3)
        return torch.from_numpy(numbers).to(getattr(torch, self.kind.split()[1])).transpose(1, 2)

    def add(self, count: int):
        added = [self.made(count, size) for size in self.sizes]
        join = (
            (lambda pair: torch.cat(pair, 2))
            if self.kind.startswith("torch")
            else (lambda pair: np.concatenate(pair, 2))
        )
        self.keys, self.values = join((self.keys, added[0])), join((self.values, added[1]))
        return added

    @property
    def count(self) -> int:
        return int(self.keys.shape[2])

    def crop(self, count: int) -> None:
        self.keys, self.values = self.keys[:, :, :count], self.values[:, :, :count]

    def select(self, sequences: list[int]) -> None:
        self.keys, self.values = self.keys[sequences], self.values[sequences]
        self.batch = len(sequences)

    def expect(self, seen, begin: int) -> None:
        for got, want in zip(seen, (self.keys, self.values), strict=True):
            assert type(got) is type(want)
            assert got.dtype == want.dtype
            assert got.shape == want[:, :, begin:].shape
            assert bool((got == want[:, :, begin:]).all())


KINDS = [
    "numpy float32",
    "numpy float16",
    "numpy bfloat16",
    "torch float32",
    "torch float16",
    "torch bfloat16",
]


@pytest.mark.parametrize("kind", KINDS)
def test_growing_and_static_caches_return_all_tokens_bit_for_bit(random, kind):
    for make in (layer_caches.GrowingCache, lambda: layer_caches.StaticCache(400)):
        tokens, cache = Tokens(random, kind), make()
        for _ in range(60):
            dice = random.integers(10)
            if dice < 7 or tokens.count == 0:
                seen = cache.update(*tokens.add(int(random.integers(1, 7))))
                tokens.expect(seen, 0)
            elif dice < 9:
                keep = int(random.integers(1, tokens.count + 1))
                is_negative = keep < tokens.count and random.integers(2)
                cache.crop(keep - tokens.count if is_negative else keep)
                tokens.crop(keep)
            else:
                grows = isinstance(cache, layer_caches.GrowingCache)
                count = int(random.integers(1, 5)) if grows else tokens.batch
                chosen = random.integers(0, tokens.batch, count)
                cache.select(chosen)
                tokens.select(chosen.tolist())
            assert cache.token_count == cache.next_position(1) == tokens.count
        each = tokens.batch * tokens.heads * sum(tokens.sizes) * tokens.keys[:1, :1, :1, :1].itemsize
        assert cache.memory_bytes >= tokens.count * each


@pytest.mark.parametrize("kind", KINDS)
def test_a_sliding_cache_returns_the_whole_window_of_each_new_token(random, kind):
    for _ in range(6):
        tokens, window = Tokens(random, kind), int(random.integers(1, 9))
        cache = layer_caches.SlidingCache(window)
        for _ in range(12):
            before = tokens.count
            seen = cache.update(*tokens.add(int(random.integers(1, 7))))
            first = tokens.count - seen[0].shape[2]
            assert first <= max(0, before + 1 - window)
            assert seen[0].shape[2] <= max(window, window - 1 + tokens.count - before)
            tokens.expect(seen, first)


def rotated(keys: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, interleaved: bool) -> np.ndarray:
    """By the paper's definition: each pair of features is a complex number, multiplied by e^(i * position * frequency)."""
    size = 2 * len(frequencies)
    pairs = np.reshape(np.arange(size), (-1, 2)) if interleaved else np.arange(size).reshape(2, -1).T
    complex_keys = keys[..., pairs[:, 0]] + 1j * keys[..., pairs[:, 1]]
    complex_keys = complex_keys * np.exp(1j * positions[:, None] * frequencies)
    out = keys.astype(np.float64)
    out[..., pairs[:, 0]], out[..., pairs[:, 1]] = complex_keys.real, complex_keys.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_sink_cache_returns_the_kept_keys_at_positions_that_count_from_0(random, interleaved):
    window, sinks, features = 16, 3, 12
    frequencies = 0.5 ** np.arange(4)  # 8 of 12 features turn
    # An iterable without a length or an index, as a model's tensor is to the extension.
    cache = layer_caches.SinkCache(window, sinks, frequencies=iter(frequencies), interleaved=interleaved)
    plain = np.zeros((2, 1, 0, features))
    kept: list[int] = []
    for _ in range(80):
        count = int(random.integers(1, 6)) if random.integers(12) else int(random.integers(14, 30))
        new = random.standard_normal((2, 1, count, features))
        plain = np.concatenate([plain, new], 2)
        excess = max(0, len(kept) + count - window)
        if count <= window - sinks:
            kept[sinks : sinks + excess] = []
        position = cache.next_position(count)
        assert position == len(kept)
        kept += range(plain.shape[2] - count, plain.shape[2])
        added = rotated(new, position + np.arange(count), frequencies, interleaved).astype(np.float32)
        keys, values = cache.update(added, new.astype(np.float32))
        np.testing.assert_allclose(
            keys, rotated(plain[:, :, kept], np.arange(len(kept)), frequencies, interleaved), atol=1e-5
        )
        np.testing.assert_array_equal(values, plain[:, :, kept].astype(np.float32))
        if count > window - sinks:
            kept[sinks : sinks + excess] = []
        assert len(kept) <= window
    assert cache.token_count == plain.shape[2] > 200


@pytest.mark.parametrize("kind", ["numpy float32", "torch bfloat16"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_quantised_cache_is_within_half_a_step_of_old_tokens_and_exact_for_recent_ones(random, bits, kind):
    group, residual = 8, int(random.integers(0, 20))
    tokens = Tokens(random, kind)
    cache = layer_caches.QuantisedCache(bits, group_size=group, residual_tokens=residual)
    for _ in range(30):
        before = tokens.count
        seen = cache.update(*tokens.add(int(random.integers(1, 9))))
        old = max(0, before - residual) // group * group  # quantised by the updates before this one
        got, want = (
            [
                np.asarray(torch.as_tensor(np.array(each)).float() if isinstance(each, np.ndarray) else each.float())
                for each in pair
            ]
            for pair in (seen, (tokens.keys, tokens.values))
        )
        for a, b in zip(got, want, strict=True):
            assert (a[:, :, old:] == b[:, :, old:]).all()
        if old:
            keys = want[0][:, :, :old].reshape(
                tokens.batch, tokens.heads, -1, group, tokens.sizes[0]
            )  # groups of tokens
            values = want[1][:, :, :old].reshape(tokens.batch, tokens.heads, old, -1, group)  # groups of features
            for a, b, axis in (
                (got[0][:, :, :old].reshape(keys.shape), keys, 3),
                (got[1][:, :, :old].reshape(values.shape), values, 4),
            ):
                step = (b.max(axis, keepdims=True) - b.min(axis, keepdims=True)) / (2**bits - 1)
                # zero and step have 11 bits; bfloat16 rounds the result to 8
                rounding = (np.abs(b).max() + 2**bits * step) * 2.0 ** (-11 if "float32" in kind else -8)
                assert (np.abs(a - b) <= step / 2 + rounding).all()
    assert old > 0


def test_a_view_is_memory_of_the_cache_and_outlives_it():
    keys = np.arange(24, dtype=np.float32).reshape(1, 1, 3, 8)
    cache = layer_caches.StaticCache(8)
    seen, _ = cache.update(keys, keys)
    assert not seen.flags.writeable
    later, _ = cache.update(keys, keys)
    assert later.ctypes.data == seen.ctypes.data  # no copy: the same memory, which has grown into its capacity
    growing = layer_caches.GrowingCache()
    view, _ = growing.update(torch.from_numpy(keys), torch.from_numpy(keys))
    for _ in range(6):
        growing.update(torch.from_numpy(keys), torch.from_numpy(keys))
    del growing, cache
    gc.collect()
    assert (view.numpy() == keys).all()
    assert (seen == keys).all()


def test_quantised_tokens_take_their_bits(random):
    keys = random.standard_normal((1, 4, 512, 64)).astype(np.float32)
    whole = layer_caches.GrowingCache()
    whole.update(keys, keys)
    for bits in (2, 4, 8):
        cache = layer_caches.QuantisedCache(bits, residual_tokens=0)
        cache.update(keys, keys)
        assert cache.memory_bytes == whole.memory_bytes * (bits + 32 / 64) / 32


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: layer_caches.StaticCache(0), kvstore.BadRequest, r"capacity: 0, not 1 to"),
        (lambda: layer_caches.SlidingCache(-3), kvstore.BadRequest, r"window_tokens: -3"),
        (
            lambda: layer_caches.SinkCache(4, 4, frequencies=[1.0]),
            kvstore.BadRequest,
            r"sink_tokens: 4, not 0 to below",
        ),
        (lambda: layer_caches.SinkCache(4, 1, frequencies=[]), kvstore.BadRequest, r"frequencies: 0 of them"),
        (lambda: layer_caches.QuantisedCache(3), kvstore.BadRequest, r"bits: 3, not 2, 4 or 8"),
        (lambda: layer_caches.QuantisedCache(group_size=12), kvstore.BadRequest, r"group_size: 12"),
        (lambda: layer_caches.QuantisedCache(residual_tokens=-1), kvstore.BadRequest, r"residual_tokens: -1"),
    ],
)
def test_sizes_that_no_cache_has_are_refused_by_name(call, error, text):
    with pytest.raises(error, match=text):
        call()


def zeros(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("keys", "values", "text"),
    [
        (zeros(1, 2, 8), zeros(1, 2, 3, 8), r"keys: has 3 axes"),
        (zeros(1, 2, 3, 8), zeros(1, 2, 4, 8), r"values: shape \[1, 2, 4, 8\] beside keys of \[1, 2, 3, 8\]"),
        (zeros(1, 2, 0, 8), zeros(1, 2, 0, 8), r"keys: tokens: 0"),
        (
            zeros(1, 2, 3, 8, dtype=np.float64),
            zeros(1, 2, 3, 8, dtype=np.float64),
            r"keys: the elements are not float32",
        ),
        (zeros(1, 2, 3, 8), zeros(1, 2, 3, 8, dtype=np.float16), r"values: of another type"),
        (zeros(2, 2, 3, 8), zeros(2, 2, 3, 8), r"the cache has \[1, 2, -1, 8\]"),
        (torch.zeros(1, 2, 3, 8, requires_grad=True), torch.zeros(1, 2, 3, 8), r"require gradients"),
        (torch.zeros(1, 2, 3, 8), zeros(1, 2, 3, 8), r"values: ndarray beside keys of Tensor"),
        (torch.zeros(1, 2, 3, 8, device="meta"), torch.zeros(1, 2, 3, 8, device="meta"), r"keys: on the device meta"),
    ],
)
def test_tokens_that_do_not_fit_are_refused_by_name_and_change_nothing(keys, values, text):
    cache = layer_caches.GrowingCache()
    cache.update(zeros(1, 2, 3, 8), zeros(1, 2, 3, 8))
    with pytest.raises(kvstore.BadRequest, match=text):
        cache.update(keys, values)
    assert cache.token_count == 3


def test_what_a_cache_cannot_do_is_refused_by_name():
    keys = zeros(1, 1, 5, 8)
    static = layer_caches.StaticCache(7)
    static.update(keys, keys)
    with pytest.raises(kvstore.TooLarge, match="exceed the capacity, 7"):
        static.update(keys, keys)
    assert static.token_count == 5
    with pytest.raises(kvstore.BadRequest, match="fixed size"):
        static.select([0, 0])
    for call, text in ((lambda: static.crop(6), "token_count: 6"), (lambda: static.select([1]), "sequences: 1")):
        with pytest.raises(kvstore.BadRequest, match=text):
            call()
    sliding = layer_caches.SlidingCache(4)
    sliding.update(keys, keys)
    with pytest.raises(kvstore.Unsupported, match="left the window"):
        sliding.crop(4)
    narrow = layer_caches.SinkCache(4, 1, frequencies=[1.0] * 5)
    with pytest.raises(kvstore.BadRequest, match="frequencies: 5 of them, not at most half of 8"):
        narrow.update(keys, keys)
    odd = layer_caches.QuantisedCache(group_size=64)
    with pytest.raises(kvstore.BadRequest, match="values: features: 12"):
        odd.update(zeros(1, 1, 5, 12), zeros(1, 1, 5, 12))
    with pytest.raises(kvstore.BadRequest, match="added_count: 0"):
        static.next_position(0)
    with pytest.raises(kvstore.BadRequest, match="sequences: the cache is empty"):
        layer_caches.GrowingCache().select([0])
