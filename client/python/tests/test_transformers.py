"""``generate()`` from stored blocks: the same tokens, and only new ones are computed."""

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
        assert cache.cached_token_count == 299  # nine blocks, and those of the tenth that belong to the prompt
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


def found(model, client, prompt) -> int:
    """How many stored tokens of a prompt a model finds."""
    return PrefixStore(model, client).cache(prompt).cached_token_count


def test_one_element_of_one_matrix_keeps_weights_apart(client):
    """One of 100,000: a sample of each matrix would miss it."""
    prompt = ids(100, seed=20)
    PrefixStore(llama(seed=20), client).generate(prompt, **OPTIONS)
    changed = llama(seed=20)
    assert found(changed, client, prompt) == 96
    with torch.no_grad():
        changed.model.layers[1].mlp.up_proj.weight[77, 31] += 1
    assert found(changed, client, prompt) == 0


def test_neither_paths_nor_what_a_release_adds_keep_models_apart(client):
    prompt = ids(100, seed=21)
    PrefixStore(llama(seed=21, _name_or_path="/here/model"), client).generate(prompt, **OPTIONS)
    other_place = llama(seed=21, _name_or_path="/there/model")
    assert found(other_place, client, prompt) == 96
    other_place.config.architectures = ["LlamaForCausalLM"]
    assert found(other_place, client, prompt) == 96
    inner = transformers.LlamaConfig.to_dict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.LlamaConfig, "to_dict", lambda self: inner(self) | {"a_new_field": False})
        assert found(llama(seed=21, _name_or_path="model"), client, prompt) == 96
    assert found(llama(seed=21, _name_or_path="/here/model", rms_norm_eps=1e-5), client, prompt) == 0


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_a_rotation_by_the_length_of_the_sequence_is_refused_by_name(client, rope):
    model = llama(rope_parameters=rope)
    prompt = ids(150, seed=22)
    with torch.no_grad():  # keys of the same tokens, alone and in a longer prompt
        alone = model(prompt[:, :32]).past_key_values.layers[1].keys
        beside = model(torch.cat([prompt, ids(2000, seed=23)], dim=1)).past_key_values.layers[1].keys[:, :, :32]
    assert not torch.allclose(alone, beside, atol=1e-2)
    with pytest.raises(kvstore.Unsupported, match=rf"its rotation \({rope['rope_type']}\) depends on the length"):
        PrefixStore(model, client)


def test_tables_of_rotations_count_by_their_values(client):
    prompt = ids(100, seed=24)
    PrefixStore(llama(seed=24), client).generate(prompt, **OPTIONS)
    turned = llama(seed=24)
    turned.model.rotary_emb.inv_freq *= 1.01  # by any means: the configuration does not show it
    assert found(turned, client, prompt) == 0


class Adapted(torch.nn.Module):
    """A layer with adapters, as PEFT makes it."""

    def __init__(self, base: torch.nn.Linear, seeds: dict[str, int]) -> None:
        super().__init__()
        self.base_layer = base
        self.active_adapters = [next(iter(seeds))]
        self.merged_adapters: list[str] = []
        self.disable_adapters = False
        self.scaling = dict.fromkeys(seeds, 2.0)
        self.lora_A, self.lora_B = torch.nn.ModuleDict(), torch.nn.ModuleDict()
        for name, seed in seeds.items():
            torch.manual_seed(seed)
            self.lora_A[name] = torch.nn.Linear(base.in_features, 4, bias=False)
            self.lora_B[name] = torch.nn.Linear(4, base.out_features, bias=False)

    def forward(self, x):
        out = self.base_layer(x)
        for name in [] if self.disable_adapters else self.active_adapters:
            out = out + self.lora_B[name](self.lora_A[name](x)) * self.scaling[name]
        return out


def adapted(seeds: dict[str, int]):
    model = llama(seed=25)
    attention = model.model.layers[0].self_attn
    attention.v_proj = Adapted(attention.v_proj, seeds)
    model.peft_config = dict.fromkeys(seeds)
    return model.eval()


def test_adapters_are_told_apart_by_their_weights_and_not_by_their_names(client):
    prompt = ids(100, seed=25)
    model = adapted({"style": 1, "other": 2})
    store = PrefixStore(model, client)
    store.generate(prompt, **OPTIONS)
    assert found(adapted({"renamed": 1}), client, prompt) == 96
    assert found(adapted({"style": 2}), client, prompt) == 0  # trained further
    louder = adapted({"style": 1})
    louder.model.layers[0].self_attn.v_proj.scaling["style"] = 3.0
    assert found(louder, client, prompt) == 0
    assert found(llama(seed=25), client, prompt) == 0
    model.model.layers[0].self_attn.v_proj.active_adapters = ["other"]
    with pytest.raises(kvstore.BadRequest, match="its weights or its active adapters have changed"):
        store.cache(prompt)
    assert found(model, client, prompt) == 0
    assert found(adapted({"q_proj": 2}), client, prompt) == 0
    PrefixStore(model, client).generate(prompt, **OPTIONS)
    assert found(adapted({"v_proj": 2}), client, prompt) == 96  # a name that a part of the model has too


def test_weights_that_change_under_a_store_are_an_error(client):
    model, prompt = llama(seed=26), ids(100, seed=26)
    store = PrefixStore(model, client)
    cache = store.cache(prompt)
    out = model.generate(prompt, past_key_values=cache, attention_mask=torch.ones_like(prompt), **OPTIONS)
    with torch.no_grad():
        model.model.norm.weight[3] += 1
    for call in (lambda: store.cache(prompt), lambda: cache.store(out)):
        with pytest.raises(kvstore.BadRequest, match="model: its weights"):
            call()


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
            want = model(prompt).logits[:, again.cached_token_count :]
            assert float((got - want).abs().max()) <= 1e-5 * float(want.abs().max())


def test_a_block_that_began_inside_another_is_stored_with_its_own_tokens(client):
    model = llama(seed=52)
    store, first = PrefixStore(model, client), ids(100, seed=52)
    store.generate(first, **OPTIONS)
    prompt = torch.cat([first[:, :80], ids(40, seed=53)], 1)
    prompt[:, 80] = first[:, 80] % 400 + 101
    out = store.generate(prompt, **OPTIONS)  # from 80 on
    cache = store.cache(out)
    assert cache.cached_token_count == 128  # all four full blocks
