"""Small models with seeded random weights, made on the spot. An initialiser of 0.2 makes greedy tokens vary."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers


def make(kind: str, folder: Path, seed: int = 1) -> Path:
    """``kind``: llama (GQA), gemma3 (windows beside full attention) or deepseek (MLA)."""
    torch.manual_seed(seed)
    common = {"vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.2}
    common["max_position_embeddings"] = 8192
    if kind == "llama":
        config = transformers.LlamaConfig(
            num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=32, **common
        )
        model = transformers.LlamaForCausalLM(config)
    elif kind == "gemma3":
        config = transformers.Gemma3TextConfig(
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=32,
            sliding_window=128,
            tie_word_embeddings=False,  # tied, random weights repeat one token
            **common,
        )
        model = transformers.Gemma3ForCausalLM(config)
    elif kind == "deepseek":
        config = transformers.DeepseekV2Config(
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            q_lora_rank=None,
            kv_lora_rank=512,  # with 64 of the rotary part: what vLLM's kernel for the CPU takes
            qk_nope_head_dim=32,
            qk_rope_head_dim=64,
            v_head_dim=32,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=3,
            moe_intermediate_size=64,
            **common,
        )
        model = transformers.DeepseekV2ForCausalLM(config)
    else:
        raise ValueError(kind)
    path = folder / f"{kind}-{seed}"
    model.to(torch.bfloat16).save_pretrained(path)
    return path
