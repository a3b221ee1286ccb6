"""Small models with seeded random weights, made on the spot. An initialiser of 0.2 makes greedy tokens vary."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

#: For ``llava`` and ``qwen2vl``: the token that stands for an image in a prompt, and those around it.
IMAGE_TOKEN, BEFORE_IMAGE, AFTER_IMAGE, VIDEO_TOKEN = 1000, 1001, 1002, 1004
#: ``llava`` scales every image to this size, 16 tokens; in ``qwen2vl`` it gives 4.
IMAGE_SIDE = 56


def make(kind: str, folder: Path, seed: int = 1) -> Path:
    """``kind``: llama (GQA), gemma3 (windows beside full attention), deepseek (MLA), llava or qwen2vl (with image encoders)."""
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
            tie_word_embeddings=False,  # tied random weights repeat one token
            **common,
        )
        model = transformers.Gemma3ForCausalLM(config)
    elif kind == "deepseek":
        config = transformers.DeepseekV2Config(
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            q_lora_rank=None,
            kv_lora_rank=512,  # with 64 rotary: the size of vLLM's CPU kernel
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
    elif kind == "qwen2vl":
        turns = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
        model = transformers.Qwen2VLForConditionalGeneration(
            transformers.Qwen2VLConfig(
                text_config={
                    "num_hidden_layers": 4,
                    "num_attention_heads": 8,
                    "num_key_value_heads": 4,
                    "bos_token_id": 1,
                    "eos_token_id": 2,
                    "rope_parameters": turns,
                }
                | common,
                vision_config={
                    "depth": 2,
                    "embed_dim": 64,
                    "hidden_size": 256,
                    "num_heads": 2,
                    "mlp_ratio": 2,
                    "patch_size": 14,
                },
                tie_word_embeddings=False,
                image_token_id=IMAGE_TOKEN,
                vision_start_token_id=BEFORE_IMAGE,
                vision_end_token_id=AFTER_IMAGE,
                video_token_id=VIDEO_TOKEN,
            )
        )
        with torch.no_grad():  # by default images make no difference
            for name, each in model.named_parameters():
                if "visual" in name and each.ndim > 1:
                    each.normal_(0, 0.2)
    else:
        raise ValueError(kind)
    path = folder / f"{kind}-{seed}"
    model.to(torch.bfloat16).save_pretrained(path)
    if kind in ("llava", "qwen2vl"):
        _add_processor(kind, path)
    return path


def _add_processor(kind: str, path: Path) -> None:
    """vLLM makes a prompt of tokens and images with the model's own processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = {1: "<s>", 2: "</s>", 3: "<pad>", IMAGE_TOKEN: "<|image_pad|>", VIDEO_TOKEN: "<|video_pad|>"}
    special |= {BEFORE_IMAGE: "<|vision_start|>", AFTER_IMAGE: "<|vision_end|>"}
    words = Tokenizer(models.WordLevel({special.get(i, f"t{i}"): i for i in range(1024)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(list(special.values()))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    if kind == "qwen2vl":
        images = transformers.Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=64 * 28 * 28)
        videos = transformers.Qwen2VLVideoProcessor()
        transformers.Qwen2VLProcessor(images, tokenizer, videos).save_pretrained(path)
        return
    _rename_weights(path / "model.safetensors")
    size = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(size={"shortest_edge": IMAGE_SIDE}, crop_size=size),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<|image_pad|>",
        num_additional_image_tokens=1,
    ).save_pretrained(path)


def _rename_weights(file: Path) -> None:
    """vLLM 0.32.0 uses older names for LLaVA's encoder weights."""
    from safetensors.torch import load_file, save_file

    weights = {
        name if "vision_model" in name else name.replace("vision_tower.", "vision_tower.vision_model."): each
        for name, each in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})
