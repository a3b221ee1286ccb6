"""A model's cache by its config.json, compared with its real cache."""

from __future__ import annotations

import json

import pytest

import kvstore
from kvstore.models import cache_groups, known_config, load_config

LLAMA = {
    "model_type": "llama",
    "_name_or_path": "meta-llama/Llama-3.1-8B",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
}


def test_a_namespace_from_a_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    one = kvstore.models.namespace_of(tmp_path, revision="abc")
    assert one == kvstore.models.namespace_of(tmp_path / "config.json", revision="abc")
    assert one == kvstore.models.namespace_of(LLAMA, revision="abc")
    assert one.block_bytes == 32 * 2 * 8 * 128 * 2 * 16
    assert one.fields["model"] == "meta-llama/Llama-3.1-8B"
    assert one.fields["dtype"] == "bfloat16"
    assert "cache_group" not in one.fields
    assert one != kvstore.models.namespace_of(LLAMA | {"rope_theta": 10000.0}, revision="abc")
    half = kvstore.models.namespace_of(LLAMA, tensor_parallel=(1, 2), dtype="float8_e4m3", block_size=32)
    assert half.fields["head_range"] == "4-7"
    assert half.block_bytes == 32 * 2 * 4 * 128 * 32
    with pytest.raises(kvstore.Unsupported, match="3 ranks"):
        kvstore.models.namespace_of(LLAMA, tensor_parallel=(0, 3))
    with pytest.raises(kvstore.BadRequest, match="rank 2"):
        kvstore.models.namespace_of(LLAMA, tensor_parallel=(2, 2))


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, [("full", 32, 131072, 0)]),
        ({"num_key_value_heads": 32}, [("full", 32, 524288, 0)]),
        ({"model_type": "gpt_bigcode", "n_layer": 4, "n_embd": 512, "n_head": 8}, [("full", 4, 4 * 2 * 64 * 2, 0)]),
        (
            {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
            [("full", 32, 32 * 576 * 2, 0)],
        ),
        ({"model_type": "mistral", "sliding_window": 4096}, [("window-4096", 32, 131072, 0)]),
        ({"model_type": "mistral", "sliding_window": None}, [("full", 32, 131072, 0)]),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, [("full", 32, 131072, 0)]),
        (
            {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 8},
            [("full", 8, 32768, 0), ("window-4096", 24, 98304, 0)],
        ),
        (
            {"model_type": "gemma2", "sliding_window": 4096, "head_dim": 128},
            [("full", 16, 65536, 0), ("window-4096", 16, 65536, 0)],
        ),
        (
            {"model_type": "gpt_oss", "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16, "head_dim": 64},
            [("full", 16, 32768, 0), ("window-128", 16, 32768, 0)],
        ),
        (
            {"model_type": "llama4_text", "attention_chunk_size": 8192},
            [("full", 8, 32768, 0), ("chunk-8192", 24, 98304, 0)],
        ),
        (
            {"model_type": "gemma3n_text", "sliding_window": 512, "num_kv_shared_layers": 12, "head_dim": 128},
            [("full", 4, 16384, 0), ("window-512", 16, 65536, 0)],
        ),
        (
            {"model_type": "kimi_linear", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
             "linear_attn_config": {"full_attn_layers": [4, 8], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}},
            [("full", 2, 2 * 576 * 2, 0), ("state", 30, 0, 30 * (3 * 32 * 128 * 4 * 2 + 32 * 128 * 128 * 4))],
        ),
        (
            {"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4},
            [("full", 4, 16384, 0), ("state", 28, 0, 28 * (8192 * 4 * 2 + 8192 * 16 * 4))],
        ),
        (
            {
                "model_type": "qwen3_next", "head_dim": 256, "num_key_value_heads": 2, "linear_num_key_heads": 16,
                "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
            },
            [("full", 8, 8 * 2 * 2 * 256 * 2, 0), ("state", 24, 0, 24 * (8192 * 4 * 2 + 32 * 128 * 128 * 4))],
        ),
    ],
)  # fmt: skip
def test_families(change, kept):
    groups = cache_groups(LLAMA | change)
    assert [(g.name, len(g.layers), g.bytes_per_token, g.state_bytes) for g in groups] == kept
    for group in groups:
        if group.kind == "chunk":
            with pytest.raises(kvstore.Unsupported, match="chunk-8192"):
                group.namespace()
            continue
        space = group.namespace(block_size=16)
        assert space.block_bytes == (group.state_bytes or group.bytes_per_token * 16)
        assert ("cache_group" in space.fields) == (group.name != "full" or len(groups) > 1)


def test_multimodal_models_are_their_text_part():
    whole = {"model_type": "qwen2_5_vl", "_name_or_path": "q", "text_config": LLAMA | {"model_type": "qwen2_5_vl_text"}}
    assert cache_groups(whole)[0].bytes_per_token == 131072


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model_type": "never_heard_of"}, "never_heard_of"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "cross-attention"),
        ({"model_type": "mllama_text_model", "cross_attention_layers": [3, 8]}, "cross_attention_layers"),
        ({"layer_types": ["chunked_attention"] * 32}, "chunked_attention"),
        ({"model_type": "bamba", "layer_types": ["cross_attention"]}, "cross_attention"),
        ({"model_type": "granitemoehybrid"}, "layer_types"),
        ({"model_type": "gemma4_text"}, "'gemma4_text' is not counted"),
        ({"model_type": "gemma3n_text", "sliding_window": 512}, "num_kv_shared_layers is missing"),
        ({"num_kv_shared_layers": 15}, "num_kv_shared_layers"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change, why):
    with pytest.raises(kvstore.Unsupported, match=why):
        cache_groups(LLAMA | change)


def test_a_namespace_needs_one_group():
    with pytest.raises(kvstore.Unsupported, match="window-4096"):
        kvstore.models.namespace_of(LLAMA | {"model_type": "gemma2", "sliding_window": 4096})
    assert (
        cache_groups(LLAMA | {"model_type": "gemma2", "sliding_window": 4096, "head_dim": 128}, windows=False)[0].name
        == "full"
    )
    with pytest.raises(kvstore.BadRequest, match="dtype"):
        cache_groups(LLAMA, dtype="int4")


def test_files_that_are_none(tmp_path):
    with pytest.raises(kvstore.BadRequest, match=r"config\.json"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(kvstore.BadRequest, match="no JSON object"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(kvstore.BadRequest, match="no JSON"):
        load_config(tmp_path)


SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

REAL = {
    "Llama": {},
    "Mistral": {"sliding_window": 16},
    "Qwen3": {"head_dim": 32},
    "Gemma2": {"head_dim": 32, "sliding_window": 16},
    "Phi3": {},
    "Bamba": {
        "attn_layer_indices": [1, 3], "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1,
        "mamba_expand": 2,
    },
    "Jamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "use_mamba_kernels": False, "num_experts": 2,
        "mamba_dt_rank": 4,
    },
    "Qwen3Next": {
        "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "Lfm2": {"full_attn_idxs": [1, 3], "block_auto_adjust_ff_dim": False},
    "Ernie4_5_Moe": {"moe_num_experts": 2, "moe_k": 1, "moe_intermediate_size": 16, "moe_num_shared_experts": 1},
    "Gemma3nText": {
        "head_dim": 16, "sliding_window": 16, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16, "laurel_rank": 8, "activation_sparsity_pattern": [0.0] * 4,
    },
    "KimiLinear": {
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "linear_head_dim": 16, "linear_num_heads": 2,
        "moe_intermediate_size": 16, "num_local_experts": 2, "num_experts_per_tok": 1, "num_key_value_heads": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    },
    "Llama4Text": {"head_dim": 16, "attention_chunk_size": 16, "num_local_experts": 2, "intermediate_size_mlp": 64},
    "MiniMaxM2": {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1},
    "Mamba2": {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "expand": 2},
}  # fmt: skip


@pytest.mark.parametrize("family", REAL)
def test_the_model_itself_keeps_as_much(family):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    try:
        config = getattr(transformers, family + "Config")(**(SMALL | REAL[family]))
        model = getattr(transformers, family.removesuffix("Text") + "ForCausalLM")(config).to(torch.float32).eval()
    except AttributeError:
        pytest.skip(f"this transformers has no {family}")
    with torch.no_grad():
        out = model(torch.ones((1, 12), dtype=torch.long), use_cache=True)
    cache = getattr(out, "past_key_values", None) or out.cache_params
    tokens = states = 0
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            tokens += (layer.keys.numel() + layer.values.numel()) // 12 * 4
        for each in (*getattr(layer, "conv_states", {}).values(), *getattr(layer, "recurrent_states", {}).values()):
            states += 0 if each is None else each.numel() * 4
    groups = cache_groups(config.to_dict(), dtype="float32")
    assert sum(group.bytes_per_token for group in groups) == tokens
    assert sum(group.state_bytes for group in groups) == states


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("DeepseekV3", "deepseek-v3"),
        ("Ernie4_5_Moe", "ernie-4.5-21b-a3b"),
        ("Gemma3nText", "gemma-3n-e4b"),
        ("GptOss", "gpt-oss-120b"),
        ("Llama", "llama-2-7b"),
        ("Llama4Text", "llama-4-scout"),
        ("MiniMaxM2", "minimax-m2"),
        ("Mixtral", "mixtral-8x7b"),
        ("Qwen3Next", "qwen3-next-80b-a3b"),
    ],
)
def test_a_common_models_facts_are_those_of_its_class(family, name):
    """The defaults of these classes are that model's numbers."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    if not hasattr(transformers, family + "Config"):
        pytest.skip(f"this transformers has no {family}")
    config = getattr(transformers, family + "Config")().to_dict()
    ours, theirs = (
        [(group.name, group.layers, group.bytes_per_token, group.state_bytes) for group in cache_groups(each)]
        for each in (known_config(name), config)
    )
    assert ours == theirs
    for field in ("hidden_size", "num_attention_heads", "intermediate_size", "num_experts_per_tok"):
        if field in known_config(name):
            assert known_config(name)[field] == config[field]
