#include "client/models/known_models.h"

#include <algorithm>

namespace kv {
namespace {

// Sorted by name.
constexpr KnownModel kModels[] = {
    {"deepseek-v3", "model card of deepseek-ai/DeepSeek-V3",
     R"({"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
         "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
         "num_experts_per_tok": 8, "n_shared_experts": 1, "vocab_size": 129280})"},
    {"ernie-4.5-21b-a3b", "model card of baidu/ERNIE-4.5-21B-A3B-PT",
     R"({"model_type": "ernie4_5_moe", "num_hidden_layers": 28, "hidden_size": 2560, "num_attention_heads": 20,
         "num_key_value_heads": 4, "intermediate_size": 12288, "moe_intermediate_size": 1536, "moe_k": 6,
         "moe_num_shared_experts": 2, "vocab_size": 103424})"},
    {"gemma-2-9b", "model card of google/gemma-2-9b",
     R"({"model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 14336, "sliding_window": 4096,
         "vocab_size": 256000})"},
    {"gemma-3-27b", "model card of google/gemma-3-27b-pt",
     R"({"model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32,
         "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504, "sliding_window": 1024,
         "sliding_window_pattern": 6, "vocab_size": 262208})"},
    {"gemma-3n-e4b", "model card of google/gemma-3n-E4B",
     R"({"model_type": "gemma3n_text", "num_hidden_layers": 35, "hidden_size": 2048, "num_attention_heads": 8,
         "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512, "num_kv_shared_layers": 15,
         "vocab_size": 262400})"},
    {"gpt-oss-120b", "model card of openai/gpt-oss-120b",
     R"({"model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64,
         "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_experts_per_tok": 4,
         "sliding_window": 128, "vocab_size": 201088})"},
    {"gpt-oss-20b", "model card of openai/gpt-oss-20b",
     R"({"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
         "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_experts_per_tok": 4,
         "sliding_window": 128, "vocab_size": 201088})"},
    {"gpt3-175b", "Brown et al. 2020, table 2.1, counted with full attention in all layers",
     R"({"model_type": "gpt2", "n_layer": 96, "n_embd": 12288, "n_head": 96, "vocab_size": 50257})"},
    {"kimi-k2", "model card of moonshotai/Kimi-K2-Instruct",
     R"({"model_type": "kimi_k2", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 64,
         "num_key_value_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
         "num_experts_per_tok": 8, "n_shared_experts": 1, "vocab_size": 163840})"},
    {"kimi-linear-48b-a3b", "model card of moonshotai/Kimi-Linear-48B-A3B-Base",
     R"({"model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32,
         "num_key_value_heads": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
         "v_head_dim": 128, "vocab_size": 163840,
         "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32, "head_dim": 128,
                                "short_conv_kernel_size": 4}})"},
    {"llama-2-7b", "model card of meta-llama/Llama-2-7b-hf",
     R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000})"},
    {"llama-3.1-8b", "model card of meta-llama/Llama-3.1-8B",
     R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256})"},
    {"llama-3.3-70b", "model card of meta-llama/Llama-3.3-70B-Instruct",
     R"({"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64,
         "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256})"},
    {"llama-4-scout", "model card of meta-llama/Llama-4-Scout-17B-16E",
     R"({"model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "num_experts_per_tok": 1,
         "attention_chunk_size": 8192, "vocab_size": 202048})"},
    {"minimax-m2", "model card of MiniMaxAI/MiniMax-M2",
     R"({"model_type": "minimax_m2", "num_hidden_layers": 62, "hidden_size": 3072, "num_attention_heads": 48,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536, "num_experts_per_tok": 8,
         "vocab_size": 200064})"},
    {"mistral-7b", "model card of mistralai/Mistral-7B-v0.3 (without v0.1's window)",
     R"({"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "sliding_window": null, "vocab_size": 32768})"},
    {"mixtral-8x7b", "model card of mistralai/Mixtral-8x7B-v0.1",
     R"({"model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "num_experts_per_tok": 2, "sliding_window": null,
         "vocab_size": 32000})"},
    {"phi-4", "model card of microsoft/phi-4",
     R"({"model_type": "phi3", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40,
         "num_key_value_heads": 10, "intermediate_size": 17920, "sliding_window": null, "vocab_size": 100352})"},
    {"qwen2.5-7b", "model card of Qwen/Qwen2.5-7B",
     R"({"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
         "num_key_value_heads": 4, "intermediate_size": 18944, "use_sliding_window": false, "vocab_size": 152064})"},
    {"qwen3-30b-a3b", "model card of Qwen/Qwen3-30B-A3B",
     R"({"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
         "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
         "use_sliding_window": false, "vocab_size": 151936})"},
    {"qwen3-8b", "model card of Qwen/Qwen3-8B",
     R"({"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "use_sliding_window": false,
         "vocab_size": 151936})"},
    {"qwen3-next-80b-a3b", "model card of Qwen/Qwen3-Next-80B-A3B-Instruct",
     R"({"model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16,
         "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
         "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
         "linear_conv_kernel_dim": 4, "vocab_size": 151936})"},
};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::span<const KnownModel> known_models() { return kModels; }

const KnownModel* known_model(std::string_view name) {
  const auto* const found = std::ranges::find_if(
      kModels, [&](const KnownModel& each) { return std::ranges::equal(each.name, name, {}, {}, lower); });
  return found == std::ranges::end(kModels) ? nullptr : found;
}

}  // namespace kv
