"""Small models with seeded random weights, made on the spot. An initialiser of 0.2 makes greedy tokens vary."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

#: Of ``llava``: the token that stands for an image in a prompt, and how many it becomes.
IMAGE_TOKEN, IMAGE_TOKENS, IMAGE_SIDE = 1000, 16, 56


def make(kind: str, folder: Path, seed: int = 1) -> Path:
    """``kind``: llama (GQA), gemma3 (windows beside full attention), deepseek (MLA) or llava (a llama with an encoder of images)."""
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
    elif kind == "llava":
        text = transformers.LlamaConfig(
            num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=32, **common
        )
        vision = transformers.CLIPVisionConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=IMAGE_SIDE,
            patch_size=14,
            initializer_factor=5.0,  # with 1.0 images make no difference
        )
        config = transformers.LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, vision_feature_layer=-1
        )
        model = transformers.LlavaForConditionalGeneration(config)
    else:
        raise ValueError(kind)
    path = folder / f"{kind}-{seed}"
    model.to(torch.bfloat16).save_pretrained(path)
    if kind == "llava":
        _add_processor(path)
    return path


def _add_processor(path: Path) -> None:
    """What a model of images needs besides: vLLM 0.32.0 makes a prompt of tokens and images with the model's own processor, and
    knows the weights of the encoder by their older names.
    """
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    weights = {
        name if "vision_model" in name else name.replace("vision_tower.", "vision_tower.vision_model."): each
        for name, each in load_file(path / "model.safetensors").items()
    }
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    special = {1: "<s>", 2: "</s>", 3: "<pad>", IMAGE_TOKEN: "<image>"}
    words = Tokenizer(models.WordLevel({special.get(i, f"t{i}"): i for i in range(1024)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(list(special.values()))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": IMAGE_SIDE}, crop_size={"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    )
    transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    ).save_pretrained(path)
