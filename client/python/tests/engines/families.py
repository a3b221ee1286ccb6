"""Models of 25 and more families, as small as possible: configurations alone, which vLLM fills with seeded random weights
(``load_format="dummy"``). Those that write into their configuration while they are loaded are marked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers

COMMON: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "num_key_value_heads": 4,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 1024,
}


def long_rope(size: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * (size // 2),
        "long_factor": [1.0 + i for i in range(size // 2)],
        "original_max_position_embeddings": 2048,
    }


def _of(name: str, architecture: str, **more: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        config = getattr(transformers, name)(**(COMMON | more))
        said = config.to_dict()
        said["architectures"] = [architecture]
        said["dtype"] = "bfloat16"
        return dict(said)

    return make


FAMILIES: dict[str, Callable[[], dict[str, Any]]] = {
    "llama": _of("LlamaConfig", "LlamaForCausalLM"),
    "mistral": _of("MistralConfig", "MistralForCausalLM", sliding_window=None),
    "mixtral": _of("MixtralConfig", "MixtralForCausalLM", num_local_experts=4),
    "qwen2": _of("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen2-moe": _of("Qwen2MoeConfig", "Qwen2MoeForCausalLM", **MOE, shared_expert_intermediate_size=64),
    "qwen3": _of("Qwen3Config", "Qwen3ForCausalLM", head_dim=32),
    "qwen3-moe": _of("Qwen3MoeConfig", "Qwen3MoeForCausalLM", **MOE, head_dim=32),
    "gemma": _of("GemmaConfig", "GemmaForCausalLM", head_dim=32),
    "gemma2": _of("Gemma2Config", "Gemma2ForCausalLM", head_dim=32, sliding_window=128),
    "gemma3": _of("Gemma3TextConfig", "Gemma3ForCausalLM", head_dim=32, sliding_window=128, num_hidden_layers=6),
    "phi": _of("PhiConfig", "PhiForCausalLM", partial_rotary_factor=0.5),
    # Its rotation is chosen by max_model_len.
    "phi3": _of("Phi3Config", "Phi3ForCausalLM", rope_parameters=long_rope(32), original_max_position_embeddings=2048),
    # These write into their configuration while they are loaded.
    "falcon": _of("FalconConfig", "FalconForCausalLM", new_decoder_architecture=True, num_kv_heads=2, alibi=False),
    "deepseek-yarn": _of(
        "DeepseekV2Config", "DeepseekV2ForCausalLM", **(LATENT | {"rope_parameters": YARN, "q_lora_rank": None})
    ),
    "minimax-m2": _of(
        "MiniMaxM2Config",
        "MiniMaxM2ForCausalLM",
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=32,
        rotary_dim=16,
        scoring_func="softmax",  # vLLM's kernels for a CPU have no other
    ),
    "llama4": _of("Llama4TextConfig", "Llama4ForCausalLM", num_local_experts=4, head_dim=32, intermediate_size_mlp=256),
    "falcon-h1": _of(
        "FalconH1Config", "FalconH1ForCausalLM", head_dim=32, mamba_d_ssm=128, mamba_n_heads=4, mamba_d_head=32
    ),
    "gpt-neox": _of("GPTNeoXConfig", "GPTNeoXForCausalLM"),
    "gpt2": _of("GPT2Config", "GPT2LMHeadModel", n_positions=4096, n_embd=128, n_layer=2, n_head=4),
    "opt": _of("OPTConfig", "OPTForCausalLM", ffn_dim=256, word_embed_proj_dim=128),
    "bloom": _of("BloomConfig", "BloomForCausalLM", n_head=4, n_layer=2),
    "starcoder2": _of("Starcoder2Config", "Starcoder2ForCausalLM", sliding_window=None),
    "stablelm": _of("StableLmConfig", "StableLmForCausalLM"),
    "cohere": _of("CohereConfig", "CohereForCausalLM"),
    "olmo2": _of("Olmo2Config", "Olmo2ForCausalLM"),
    "granite": _of("GraniteConfig", "GraniteForCausalLM"),
    "granite-moe": _of("GraniteMoeConfig", "GraniteMoeForCausalLM", num_local_experts=4),
    "glm4": _of("Glm4Config", "Glm4ForCausalLM", head_dim=32),
    "exaone4": _of("Exaone4Config", "Exaone4ForCausalLM", sliding_window=None, layer_types=["full_attention"] * 2),
    "smollm3": _of("SmolLM3Config", "SmolLM3ForCausalLM"),
    "nemotron": _of("NemotronConfig", "NemotronForCausalLM"),
    "persimmon": _of("PersimmonConfig", "PersimmonForCausalLM"),
    "gpt-oss": _of("GptOssConfig", "GptOssForCausalLM", num_local_experts=4, head_dim=32, sliding_window=128),
}


def make(family: str, folder: Path) -> Path:
    path = folder / family
    path.mkdir()
    (path / "config.json").write_text(json.dumps(FAMILIES[family](), default=str))
    return path
