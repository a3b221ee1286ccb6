"""``generate()`` from stored blocks: the same tokens, and only what is new is computed."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import kvstore  # noqa: E402

torch.set_num_threads(1)  # models of this size gain nothing from more, and other tests run beside
from kvstore.transformers import PrefixStore, StoredCache, weights_digest  # noqa: E402


def llama(seed: int = 1, **more: object):
    torch.manual_seed(seed)
    options = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(options | more))).eval()


def other(kind: str):
    torch.manual_seed(1)
    small = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.2,
    }
    if kind == "gemma3":
        config = transformers.Gemma3TextConfig(
            **small, sliding_window=64, layer_types=["sliding_attention", "full_attention"] * 2
        )
        return transformers.Gemma3ForCausalLM(config).eval()
    if kind == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**small)).eval()
    if kind == "deepseek_v2":
        config = transformers.DeepseekV2Config(
            vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=None, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
            n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=2, initializer_range=0.2, head_dim=8,
        )  # fmt: skip
        return transformers.DeepseekV2ForCausalLM(config).eval()
    raise AssertionError(kind)


def ids(count: int, seed: int = 1, rows: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(1, 500, (rows, count)))


OPTIONS = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def test_a_second_client_computes_only_what_is_new(node, client):
    model, prompt = llama(), ids(300)
    plain = model.generate(prompt, attention_mask=torch.ones_like(prompt), **OPTIONS)
    first = PrefixStore(model, client)
    cache = first.cache(prompt)
    assert isinstance(cache, StoredCache)
    assert cache.cached_token_count == 0
    assert (
        model.generate(prompt, past_key_values=cache, attention_mask=torch.ones_like(prompt), **OPTIONS) == plain
    ).all()
    assert cache.store(plain) == (300 + 24 - 1) // 32
    with kvstore.Client(node.endpoint, deadline=10) as other_client:
        second = PrefixStore(llama(), other_client)
        cache = second.cache(prompt)
        assert cache.cached_token_count == 288
        out = model.generate(prompt, past_key_values=cache, attention_mask=torch.ones_like(prompt), **OPTIONS)
        assert (out == plain).all()
        # The next turn of the conversation begins with all of this one.
        longer = torch.cat([plain, ids(50, seed=2)], dim=1)
        cache = second.cache(longer)
        assert cache.cached_token_count == 320
        seen = []
        hook = model.model.register_forward_pre_hook(
            lambda _module, _args, kwargs: seen.append(
                kwargs["inputs_embeds"].shape[1]
                if kwargs.get("inputs_embeds") is not None
                else kwargs["input_ids"].shape[1]
            ),
            with_kwargs=True,
        )
        out = model.generate(longer, past_key_values=cache, attention_mask=torch.ones_like(longer), **OPTIONS)
        hook.remove()
        assert seen[0] == longer.shape[1] - 320
        assert (out == model.generate(longer, attention_mask=torch.ones_like(longer), **OPTIONS)).all()
        assert cache.store(out) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_the_same_to_the_last_bit(client, dtype):
    model, prompt = llama(seed=3).to(dtype), ids(200, seed=3)
    store = PrefixStore(model, client)
    with torch.no_grad():
        cache = store.cache(prompt)
        model(prompt[:, :192], past_key_values=cache)  # as a prefill that ends there
        want = model(prompt[:, 192:], past_key_values=cache).logits
        assert cache.store(prompt) == 6
        cache = store.cache(prompt)
        assert cache.cached_token_count == 192
        got = model(prompt[:, 192:], past_key_values=cache).logits
    assert torch.equal(got, want)


@pytest.mark.parametrize("kind", ["gemma3", "qwen3", "deepseek_v2"])
def test_other_families(client, kind):
    model, prompt = other(kind), ids(200, seed=4)
    store = PrefixStore(model, client)
    first = store.generate(prompt, **OPTIONS)
    cache = store.cache(prompt)
    assert cache.cached_token_count == 192
    out = model.generate(prompt, past_key_values=cache, attention_mask=torch.ones_like(prompt), **OPTIONS)
    assert (out == first).all()
    assert (out == model.generate(prompt, attention_mask=torch.ones_like(prompt), **OPTIONS)).all()


def test_several_prompts_of_one_length(client):
    model = llama(seed=5)
    store = PrefixStore(model, client)
    prompts = torch.cat([ids(100, seed=5), ids(100, seed=6)])
    plain = model.generate(prompts, attention_mask=torch.ones_like(prompts), **OPTIONS)
    assert (store.generate(prompts, **OPTIONS) == plain).all()
    cache = store.cache(prompts)
    assert cache.cached_token_count == 96
    out = model.generate(prompts, past_key_values=cache, attention_mask=torch.ones_like(prompts), **OPTIONS)
    assert (out == plain).all()
    half_new = torch.cat([prompts[:1], ids(100, seed=7)])
    assert store.cache(half_new).cached_token_count == 0


def test_other_weights_find_nothing(client):
    prompt = ids(100, seed=8)
    PrefixStore(llama(seed=8), client).generate(prompt, **OPTIONS)
    assert PrefixStore(llama(seed=8), client).cache(prompt).cached_token_count == 96
    assert PrefixStore(llama(seed=9), client).cache(prompt).cached_token_count == 0
    assert (
        PrefixStore(llama(seed=8, rope_parameters={"rope_type": "default", "rope_theta": 5e5}), client)
        .cache(prompt)
        .cached_token_count
        == 0
    )
    assert weights_digest(llama(seed=8)) != weights_digest(llama(seed=9))


def test_without_a_node_everything_is_computed(tmp_path):
    model, prompt = llama(), ids(100)
    with kvstore.Client(f"unix://{tmp_path}/none", deadline=0.2) as client:
        store = PrefixStore(model, client)
        plain = model.generate(prompt, attention_mask=torch.ones_like(prompt), **OPTIONS)
        assert (store.generate(prompt, **OPTIONS) == plain).all()
        cache = store.cache(prompt)
        assert cache.cached_token_count == 0
        assert cache.store(plain) == 0


def test_what_is_no_such_cache_is_refused_by_name(client):
    config = transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4)
    model = transformers.MambaForCausalLM(config)
    with pytest.raises(kvstore.Unsupported, match="Mamba"):
        PrefixStore(model, client)
    store = PrefixStore(llama(), client)
    with pytest.raises(kvstore.BadRequest, match="input_ids"):
        store.cache(torch.zeros(5, dtype=torch.long))
