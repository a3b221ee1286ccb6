"""Caches by layer: the core's against lists of tokens, and those for transformers against what a model computes without them."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from test_transformers import OPTIONS, ids, llama, other  # noqa: E402
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb  # noqa: E402

import kvstore  # noqa: E402
from kvstore import layer_caches  # noqa: E402
from kvstore.transformers import (  # noqa: E402
    GrowingCache,
    PrefixStore,
    QuantisedCache,
    SinkCache,
    SlidingCache,
    StaticCache,
)
from kvstore.transformers.rotations import rotation_of  # noqa: E402

torch.set_num_threads(1)  # models of this size gain nothing from more, and other tests run beside


@pytest.fixture
def random() -> np.random.Generator:
    """KV_SEED repeats a run."""
    seed = int(os.environ.get("KV_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"KV_SEED={seed}")
    return np.random.default_rng(seed)


# -- the core's caches, with arrays and tensors


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
    cache = layer_caches.SinkCache(window, sinks, frequencies=frequencies, interleaved=interleaved)
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
        (lambda: QuantisedCache(5), kvstore.BadRequest, r"bits: 5"),
        (lambda: StaticCache(0), kvstore.BadRequest, r"capacity: 0"),
        (lambda: SinkCache(llama(), 4, 9), kvstore.BadRequest, r"sink_tokens: 9"),
        (lambda: SlidingCache(llama()), kvstore.Unsupported, r"no layer has a sliding window"),
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


# -- the caches for transformers


def mistral(window: int, **more: object):
    torch.manual_seed(2)
    config = transformers.MistralConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=window, initializer_range=0.2, **more,
    )  # fmt: skip
    return transformers.MistralForCausalLM(config).eval()


def chunked(random: np.random.Generator, tokens: torch.Tensor, most: int = 9) -> list[torch.Tensor]:
    """In calls of random lengths, most of them of one token."""
    chunks, at = [], 0
    while at < tokens.shape[1]:
        count = 1 if random.integers(3) else int(random.integers(1, most + 1))
        chunks.append(tokens[:, at : at + count])
        at += chunks[-1].shape[1]
    return chunks


def logits_of(model, chunks, cache) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(each, past_key_values=cache).logits for each in chunks], 1)


def expect_close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal up to the rounding of sums in another order."""
    bound = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.006}[want.dtype]
    assert float((got - want).abs().max()) <= bound * float(want.abs().max())


def model_of(kind: str):
    return llama() if kind == "llama" else mistral(16) if kind == "mistral" else other(kind)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3", "qwen3", "deepseek_v2"])
def test_growing_and_static_caches_have_the_logits_of_the_models_own(random, kind):
    model, prompt = model_of(kind), ids(90, seed=int(random.integers(1 << 30)), rows=2)
    chunks = chunked(random, prompt, most=30)
    want = logits_of(model, chunks, transformers.DynamicCache())
    for cache in (GrowingCache(), StaticCache(90)):
        assert float((logits_of(model, chunks, cache) - want).abs().max()) <= 1e-6 * float(want.abs().max())
        assert cache.get_seq_length() == 90
        assert len(cache) == len(cache.layers) == model.config.num_hidden_layers
        assert not cache.is_compileable
        assert cache.is_croppable
    assert cache.get_max_length() == 90
    assert GrowingCache().get_seq_length() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_caches_of_16_bits_have_the_logits_of_the_models_own(random, dtype):
    model, prompt = llama().to(dtype), ids(60, seed=int(random.integers(1 << 30)))
    chunks = chunked(random, prompt)
    want = logits_of(model, chunks, transformers.DynamicCache())
    for cache in (GrowingCache(), StaticCache(60), SinkCache(model, 60), QuantisedCache(8, residual_tokens=60)):
        expect_close(logits_of(model, chunks, cache), want)
        assert cache.layers[0].dtype == dtype


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_a_sliding_cache_has_the_logits_of_the_models_window(random, kind):
    """The reference has no cache: the whole text at once, under the mask of the window."""
    model, prompt = model_of(kind), ids(150, seed=int(random.integers(1 << 30)), rows=2)
    with torch.no_grad():
        want = model(prompt, use_cache=False).logits
        model.config.sliding_window, window = 1000, model.config.sliding_window
        assert (model(prompt, use_cache=False).logits - want).abs().max() > 0.1  # the window matters
        model.config.sliding_window = window
    cache = SlidingCache(model)
    expect_close(logits_of(model, chunked(random, prompt, most=2 * window), cache), want)
    assert cache.get_seq_length() == 150
    assert window in (cache.get_max_length(0), cache.get_max_length(1))
    assert cache.layers[0].cache.memory_bytes == 2 * 2 * window * 2 * 16 * 4  # rows, heads, tokens, K and V
    out = model.generate(prompt, past_key_values=SlidingCache(model.config), **OPTIONS)
    assert (out == model.generate(prompt, use_cache=False, **OPTIONS)).all()


def streaming_logits(model, chunks, window: int, sinks: int) -> torch.Tensor:
    """StreamingLLM on a Llama, by its definition: the cache holds keys before their rotation. The first `sinks` and the last tokens stay,
    and attention places the kept ones at 0, 1, 2, ... A chunk too long for the window beside the sinks is computed before tokens go.
    """
    layers, rotary = model.model.layers, model.model.rotary_emb
    held = [None] * len(layers)
    kept, out = 0, []
    for chunk in chunks:
        count = chunk.shape[1]
        excess, is_long = max(0, kept + count - window), count > window - sinks
        if not is_long:
            held = [
                pair and tuple(torch.cat([t[:, :, :sinks], t[:, :, sinks + excess :]], 2) for t in pair)
                for pair in held
            ]
            kept -= excess
        hidden = model.model.embed_tokens(chunk)
        cos, sin = rotary(hidden, torch.arange(kept + count)[None])
        mask = torch.arange(kept + count)[None] <= torch.arange(kept, kept + count)[:, None]
        for i, layer in enumerate(layers):
            attention, x = layer.self_attn, layer.input_layernorm(hidden)
            q, k, v = (
                p(x).unflatten(2, (-1, attention.head_dim)).transpose(1, 2)
                for p in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            if held[i] is not None:
                k, v = torch.cat([held[i][0], k], 2), torch.cat([held[i][1], v], 2)
            held[i] = (k, v)
            q = apply_rotary_pos_emb(q, q, cos[:, kept:], sin[:, kept:])[0]
            k = apply_rotary_pos_emb(k, k, cos, sin)[0]
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
            scores = (q @ k.transpose(2, 3) * attention.scaling).masked_fill(~mask, -torch.inf)
            hidden = hidden + attention.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        kept += count
        if is_long:
            held = [tuple(torch.cat([t[:, :, :sinks], t[:, :, sinks + excess :]], 2) for t in pair) for pair in held]
            kept -= excess
        out.append(model.lm_head(model.model.norm(hidden)))
    return torch.cat(out, 1)


@pytest.mark.parametrize("rope", [{}, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}])  # fmt: skip
def test_a_sink_cache_has_the_logits_of_streaming_llm(random, rope):
    model = llama(rope_parameters={"rope_theta": 10000.0, "rope_type": "default", **rope})
    for _ in range(3):
        window = int(random.integers(8, 40))
        sinks = int(random.integers(0, 5))
        prompt = ids(150, seed=int(random.integers(1 << 30)), rows=2)
        chunks = chunked(random, prompt, most=int(1.5 * window))
        with torch.no_grad():
            want = streaming_logits(model, chunks, window, sinks)
        cache = SinkCache(model, window, sinks)
        expect_close(logits_of(model, chunks, cache), want)
        assert cache.get_seq_length() == 150
        assert cache.next_position(1) == window - 1
    assert (want - model(prompt).logits).abs().max() > 0.1  # dropped tokens matter


def test_generate_goes_on_past_the_window_at_positions_within_it():
    model, prompt, window = llama(max_position_embeddings=64), ids(40, seed=31), 64
    positions: list[tuple[int, int]] = []
    hook = model.model.rotary_emb.register_forward_pre_hook(
        lambda _module, args, kwargs: positions.append(
            (int((at := kwargs.get("position_ids", args[-1])).min()), int(at.max()))
        ),
        with_kwargs=True,
    )
    options = OPTIONS | {"max_new_tokens": 400}
    cache = SinkCache(model, window)
    positions.clear()  # those of the trial
    out = model.generate(prompt, past_key_values=cache, attention_mask=torch.ones_like(prompt), **options)
    assert positions == [(0, 39)] + [(min(at, window - 1),) * 2 for at in range(40, 439)]
    assert cache.get_seq_length() == 439
    with torch.no_grad():
        want = streaming_logits(model, [prompt, *out[:, 40:-1].split(1, 1)], window, 4)
    assert (want[:, 39:].argmax(-1) == out[:, 40:]).all()
    # The conversation goes on in the same cache.
    more = torch.cat([out, ids(7, seed=32)], 1)
    positions.clear()
    longer = model.generate(more, past_key_values=cache, attention_mask=torch.ones_like(more), **OPTIONS)
    assert positions[0] == (window - 8, window - 1)
    assert longer.shape[1] == more.shape[1] + 24
    # A prompt beyond the window, in parts, is never computed beyond it either.
    positions.clear()
    long_prompt = ids(300, seed=33)
    chunks = OPTIONS | {"prefill_chunk_size": 20}
    model.generate(
        long_prompt, past_key_values=SinkCache(model, window), attention_mask=torch.ones_like(long_prompt), **chunks
    )
    assert max(last for _, last in positions) == window - 1
    hook.remove()


SMALL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


class Recording(SinkCache):
    """Keeps the keys that the first layer has read last."""

    def update(self, keys, values, layer_idx, *args, **kwargs):
        read = super().update(keys, values, layer_idx, *args, **kwargs)
        if layer_idx == 0:
            self.read = read[0].clone()
        return read


@pytest.mark.parametrize(
    ("make", "interleaved"),
    [
        (lambda: transformers.CohereForCausalLM(transformers.CohereConfig(**SMALL)), True),
        (lambda: transformers.GlmForCausalLM(transformers.GlmConfig(**SMALL, head_dim=16)), True),
        (lambda: transformers.PhiForCausalLM(transformers.PhiConfig(**SMALL)), False),
        (lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SMALL)), False),
        (lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL, rope_parameters=YARN)), False),
    ],
)
def test_kept_keys_are_those_that_the_model_computes_at_their_new_positions(random, make, interleaved):
    """Of the first layer, whose keys depend on nothing but a token and its position."""
    torch.manual_seed(3)
    model, window, sinks = make().eval(), 20, 3
    prompt = ids(75, seed=int(random.integers(1 << 30)), rows=2) % 60 + 3
    cache = Recording(model, window, sinks)
    assert rotation_of(model).interleaved == interleaved
    logits_of(model, chunked(random, prompt), cache)
    kept = torch.cat([prompt[:, :sinks], prompt[:, 75 - window + sinks :]], 1)
    own = transformers.DynamicCache()
    logits_of(model, [kept], own)
    expect_close(cache.read[:, :, -window:], own.layers[0].keys)


def qwen2_vl():
    config = transformers.Qwen2VLTextConfig(
        **SMALL, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    )
    model = llama()
    model.config = config
    return model


def with_peft_prompt():
    model = llama()
    model.peft_config = {"default": type("Prompt", (), {"is_prompt_learning": True})()}
    return model


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            r"LlamaForCausalLM: its rotation \(dynamic\)",
        ),
        (
            lambda: llama(
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 8,
                    "long_factor": [2.0] * 8,
                    "original_max_position_embeddings": 64,
                }
            ),
            r"its rotation \(longrope\)",
        ),
        (lambda: other("deepseek_v2"), r"DeepseekV2ForCausalLM: its attention \(MLA\)"),
        (lambda: other("gemma3"), r"Gemma3ForCausalLM: it has layers with a sliding window"),
        (qwen2_vl, r"its rotation \(M-RoPE\)"),
        (
            lambda: transformers.GPT2LMHeadModel(
                transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64, bos_token_id=1, eos_token_id=2)
            ),
            r"GPT2LMHeadModel: its keys are not rotated",
        ),
        (
            lambda: transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(**SMALL | {"num_hidden_layers": 4})),
            r"in all layers alike",
        ),
        (with_peft_prompt, r"puts tokens of its own before the prompt"),
    ],
)
def test_a_model_whose_keys_cannot_be_moved_is_refused_by_name(make, text):
    with pytest.raises(kvstore.Unsupported, match=text):
        SinkCache(make(), 32)


def test_frequencies_that_change_are_tried_again():
    model = llama()
    first = rotation_of(model)
    model.model.rotary_emb.inv_freq *= 0.5
    assert rotation_of(model).frequencies == tuple(each / 2 for each in first.frequencies)
    inner = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: inner(x, position_ids * 3)
    model.model.rotary_emb.inv_freq *= 0.5
    with pytest.raises(kvstore.Unsupported, match="do not turn by their positions as its inv_freq says"):
        SinkCache(model, 32)


def test_a_sink_cache_refuses_padding_and_leaves_other_caches_alone():
    model, prompt = llama(), ids(20, seed=35, rows=2)
    cache, mask = SinkCache(model, 32), torch.ones_like(prompt)
    mask[0, :3] = 0
    with pytest.raises(kvstore.BadRequest, match="attention_mask: hides tokens"):
        model(prompt, attention_mask=mask, past_key_values=cache)
    fresh = llama()
    want = fresh.generate(prompt, attention_mask=mask, **OPTIONS)
    assert (model.generate(prompt, attention_mask=mask, **OPTIONS) == want).all()
    with torch.no_grad():
        positions = torch.arange(20)[None] * 3
        assert torch.equal(model(prompt, position_ids=positions).logits, fresh(prompt, position_ids=positions).logits)
        # Positions that are given are replaced, and arguments may come without their names.
        want = model(prompt, past_key_values=SinkCache(model, 32)).logits
        given = model.model(prompt, None, positions, SinkCache(model, 32)).last_hidden_state
        assert torch.equal(model.lm_head(given), want)
    assert len(model.model._forward_pre_hooks) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_quantised_cache_loses_less_with_more_bits(random, dtype):
    model, prompt = llama(head_dim=64).to(dtype), ids(200, seed=int(random.integers(1 << 30)))
    want = logits_of(model, prompt.split(40, 1), transformers.DynamicCache()).float()
    lost = {}
    for bits in (2, 4, 8):
        cache = QuantisedCache(bits, group_size=32, residual_tokens=32)
        got = logits_of(model, prompt.split(40, 1), cache).float()
        expect_close(got[:, :40].to(dtype), want[:, :40].to(dtype))  # whose tokens were read as they came
        lost[bits] = float((got - want).abs().mean() / want.abs().mean())
        assert cache.memory_bytes < 200 * 3 * 2 * 2 * 64 * dtype.itemsize
        assert not cache.is_croppable
    assert lost[8] < 0.05
    assert lost[8] < lost[4] / 4 < lost[2] / 8


def test_beams_and_crops_and_batches_are_those_of_a_growing_text(random):
    model, prompt = llama(), ids(30, seed=int(random.integers(1 << 30)), rows=2)
    options = OPTIONS | {"num_beams": 3, "attention_mask": torch.ones_like(prompt)}
    want = model.generate(prompt, **options)
    for cache in (GrowingCache(), StaticCache(54), SinkCache(model, 60), QuantisedCache(residual_tokens=60)):
        assert (model.generate(prompt, past_key_values=cache, **options) == want).all()
        own = transformers.DynamicCache()
        for each in (own, cache):
            if each is cache:
                cache.reset()
            assert each.get_seq_length() == 0
            logits_of(model, [prompt], each)
            each.crop(-8)
            assert each.get_seq_length() == 22
            each.crop(0)
            if not isinstance(cache, StaticCache):
                each.batch_repeat_interleave(2)
                each.batch_select_indices(torch.tensor([3, 0, 1]))
                each.reorder_cache(torch.tensor([2, 2, 0]))
            else:
                each.reorder_cache(torch.tensor([1, 1]))
        rows = ids(9, seed=36, rows=2 if isinstance(cache, StaticCache) else 3)
        expect_close(logits_of(model, rows.split(3, 1), cache), logits_of(model, rows.split(3, 1), own))
        assert cache.batch_size == rows.shape[0]
    assert GrowingCache().memory_bytes == 0


def test_padded_prompts_are_masked_as_ever():
    model, prompt = llama(), ids(20, seed=37, rows=2)
    mask = torch.ones_like(prompt)
    mask[0, :7] = 0
    want = model.generate(prompt, attention_mask=mask, **OPTIONS)
    for cache in (GrowingCache(), StaticCache(44), QuantisedCache(residual_tokens=60)):
        assert (model.generate(prompt, attention_mask=mask, past_key_values=cache, **OPTIONS) == want).all()


def test_assisted_generation_crops_the_cache():
    model, assistant, prompt = llama(), llama(seed=4, num_hidden_layers=1), ids(30, seed=38)
    options = OPTIONS | {"attention_mask": torch.ones_like(prompt)}
    want = model.generate(prompt, **options)
    for cache in (GrowingCache(), StaticCache(80)):
        assert (model.generate(prompt, assistant_model=assistant, past_key_values=cache, **options) == want).all()


def test_a_full_cache_and_a_dropped_prefix_are_refused_by_name():
    model, prompt = llama(), ids(20, seed=39)
    with pytest.raises(kvstore.TooLarge, match="exceed the capacity, 25"):
        model.generate(prompt, past_key_values=StaticCache(25), attention_mask=torch.ones_like(prompt), **OPTIONS)
    for cache in (SinkCache(model, 16), SlidingCache(mistral(16))):
        logits_of(model if isinstance(cache, SinkCache) else mistral(16), [prompt], cache)
        with pytest.raises(kvstore.Unsupported, match="left the window"):
            cache.crop(-1)
    cache = QuantisedCache(group_size=8, residual_tokens=0)
    logits_of(model, [prompt], cache)
    with pytest.raises(kvstore.Unsupported, match="quantised block"):
        cache.crop(-6)
    config = transformers.Llama4TextConfig(**SMALL, attention_chunk_size=8)
    with pytest.raises(kvstore.Unsupported, match="chunked_attention"):
        SlidingCache(config)


# -- a prefix that ends inside a block


def computed_counts(model) -> list[int]:
    """Fills with how many tokens each call computes."""
    counts: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _module, args, kwargs: counts.append((args[0] if args else kwargs["input_ids"]).shape[1]),
        with_kwargs=True,
    )
    return counts


def test_a_prompt_begins_inside_a_stored_sibling_of_its_block(client, random):
    model = llama(seed=51)
    store, counts = PrefixStore(model, client), computed_counts(model)
    first = ids(100, seed=int(random.integers(1 << 30)))
    assert store.cache(first).store(store.generate(first, **OPTIONS)) == 0  # stored already
    for shared in [*random.integers(1, 100, 12).tolist(), 8, 7, 63, 64, 72]:
        prompt = torch.cat([first[:, :shared], ids(60, seed=int(random.integers(1 << 30))) % 400 + 1], 1)
        prompt[:, shared] = (first[:, shared] if shared < 100 else prompt[:, shared]) % 400 + 101
        cache = store.cache(prompt)
        whole, rest = divmod(shared, 32)
        assert cache.cached_token_count == whole * 32 + (rest if rest >= 8 else 0)
        assert cache.why is None
        counts.clear()
        out = model.generate(prompt, past_key_values=cache, attention_mask=torch.ones_like(prompt), **OPTIONS)
        assert counts[0] == prompt.shape[1] - cache.cached_token_count
        assert (out == model.generate(prompt, attention_mask=torch.ones_like(prompt), **OPTIONS)).all()
        with torch.no_grad():
            again = store.cache(prompt)
            got = model(prompt[:, again.cached_token_count :], past_key_values=again).logits
            expect_close(got, model(prompt).logits[:, again.cached_token_count :])


def test_a_block_that_began_inside_another_is_stored_with_its_own_tokens(client):
    model = llama(seed=52)
    store, first = PrefixStore(model, client), ids(100, seed=52)
    store.generate(first, **OPTIONS)
    prompt = torch.cat([first[:, :80], ids(40, seed=53)], 1)
    prompt[:, 80] = first[:, 80] % 400 + 101
    out = store.generate(prompt, **OPTIONS)  # from 80 on
    cache = store.cache(out)
    assert cache.cached_token_count == 128  # all four full blocks
