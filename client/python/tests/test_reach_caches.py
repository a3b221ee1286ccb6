"""Caches for transformers, against what a model computes without them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from test_transformers import OPTIONS, ids, llama, other  # noqa: E402
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb  # noqa: E402

import kvstore  # noqa: E402
from kvstore.transformers import (  # noqa: E402
    GrowingCache,
    QuantisedCache,
    SinkCache,
    SlidingCache,
    StaticCache,
)
from kvstore.transformers.rotations import rotation_of  # noqa: E402

torch.set_num_threads(1)  # models of this size gain nothing from more, and other tests run beside


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
        assert cache.layers[0].is_croppable
    assert cache.layers[0].get_max_length() == 90
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
    assert cache.layers[0].get_max_length() == window
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
    assert (rotation_of(model)[1].style == "gptj") == interleaved
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
        (qwen2_vl, r"several positions each \(mrope_section\)"),
        (
            lambda: transformers.GPT2LMHeadModel(
                transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64, bos_token_id=1, eos_token_id=2)
            ),
            r"GPT2LMHeadModel: values of layer 0 change with positions",
        ),
        (
            lambda: transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(**SMALL | {"num_hidden_layers": 4})),
            r"no known rotation, the same in all layers",
        ),
        (with_peft_prompt, r"puts tokens of its own before the prompt"),
    ],
)
def test_a_model_whose_keys_cannot_be_moved_is_refused_by_name(make, text):
    with pytest.raises(kvstore.Unsupported, match=text):
        SinkCache(make(), 32)


def test_frequencies_that_change_are_tried_again():
    model = llama()
    _, first = rotation_of(model)
    model.model.rotary_emb.inv_freq *= 0.5
    _, second = rotation_of(model)
    assert tuple(second.frequencies) == tuple(each / 2 for each in first.frequencies)
    inner = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: inner(x, position_ids * 3)
    model.model.rotary_emb.inv_freq *= 0.5
    with pytest.raises(kvstore.Unsupported, match="no known rotation, the same in all layers"):
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
        assert not cache.layers[0].is_croppable
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
                cache.crop(0)
            assert each.get_seq_length() == 0
            logits_of(model, [prompt], each)
            each.crop(-8)
            assert each.get_seq_length() == 22
            if not isinstance(cache, StaticCache):
                each.batch_repeat_interleave(2)
                each.batch_select_indices(torch.tensor([3, 0, 1]))
                each.reorder_cache(torch.tensor([2, 2, 0]))
            else:
                each.reorder_cache(torch.tensor([1, 1]))
        rows = ids(9, seed=36, rows=2 if isinstance(cache, StaticCache) else 3)
        expect_close(logits_of(model, rows.split(3, 1), cache), logits_of(model, rows.split(3, 1), own))
        assert cache.layers[0].batch_size == rows.shape[0]
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


def test_sizes_that_no_cache_has_are_refused_by_name():
    for call, error, text in (
        (lambda: QuantisedCache(5), kvstore.BadRequest, r"bits: 5"),
        (lambda: StaticCache(0), kvstore.BadRequest, r"capacity: 0"),
        (lambda: SinkCache(llama(), 4, 9), kvstore.BadRequest, r"sink_tokens: 9"),
        (lambda: SlidingCache(llama()), kvstore.Unsupported, r"no layer has a sliding window"),
    ):
        with pytest.raises(error, match=text):
            call()


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
