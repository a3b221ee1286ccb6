#include "client/models/states.h"

#include "base/assert.h"
#include "client/models/config_fields.h"

namespace kv {
namespace {

using namespace config;

/// Of numbers up to kNumberMax, so that the product of any with the bound fits 64 bits.
std::uint64_t product(std::initializer_list<std::uint64_t> factors) {
  std::uint64_t result = 1;
  for (const std::uint64_t factor : factors) {
    result *= factor;
    if (result > std::uint64_t{1} << 40) throw std::runtime_error("the sizes of states are no model's");
  }
  return result;
}

StateSize mamba_state_named(const json& config, std::string_view inner_name) {
  const std::uint64_t expand = number(config, {"mamba_expand", "expand"}, 2);
  const std::uint64_t inner = number(config, inner_name, product({expand, needed(config, "hidden_size")}));
  return {.convolution = product({inner, number(config, {"mamba_d_conv", "conv_kernel"}, 4)}),
          .recurrence = product({inner, number(config, {"mamba_d_state", "state_size"}, 16)})};
}

/// Some families write "auto" for the size of a head.
std::uint64_t mamba2_head_size(const json& config, std::uint64_t heads) {
  for (const char* const name : {"mamba_d_head", "mamba_head_dim", "head_dim"}) {
    const json* const value = find(config, name);
    if (value != nullptr && value->is_number()) return number(config, name, 0);
    if (value != nullptr) break;
  }
  KV_ASSERT(heads > 0);  // by needed()
  return product({number(config, {"mamba_expand", "expand"}, 2), needed(config, "hidden_size")}) / heads;
}

}  // namespace

StateSize mamba_state(const json& config) { return mamba_state_named(config, "intermediate_size"); }
StateSize mamba_state_of_inner(const json& config) { return mamba_state_named(config, "mamba_d_inner"); }

StateSize mamba2_state(const json& config) {
  const std::uint64_t state = number(config, {"mamba_d_state", "ssm_state_size", "state_size"}, 128);
  const std::uint64_t heads = needed(config, {"mamba_n_heads", "mamba_num_heads", "num_heads"});
  const std::uint64_t inner = product({heads, mamba2_head_size(config, heads)});
  const std::uint64_t groups = number(config, {"mamba_n_groups", "n_groups"}, 1);
  const std::uint64_t kernel = number(config, {"mamba_d_conv", "conv_kernel"}, 4);
  return {.convolution = product({inner, kernel}) + product({2, groups, state, kernel}),
          .recurrence = product({inner, state})};
}

StateSize delta_net_state(const json& config) {
  const std::uint64_t key_heads = needed(config, "linear_num_key_heads");
  const std::uint64_t value_heads = needed(config, "linear_num_value_heads");
  const std::uint64_t key_size = needed(config, "linear_key_head_dim");
  const std::uint64_t value_size = needed(config, "linear_value_head_dim");
  const std::uint64_t kernel = number(config, "linear_conv_kernel_dim", 4);
  return {.convolution = product({2, key_heads, key_size, kernel}) + product({value_heads, value_size, kernel}),
          .recurrence = product({value_heads, key_size, value_size})};
}

/// Published files have linear_attn_config; transformers writes names of its own.
StateSize kimi_delta_state(const json& config) {
  const json published = object(config, "linear_attn_config");
  const auto either = [&](std::string_view theirs, std::string_view own) {
    return find(published, theirs) != nullptr ? needed(published, theirs) : needed(config, own);
  };
  const std::uint64_t heads = either("num_heads", "linear_num_heads"), size = either("head_dim", "linear_head_dim");
  const std::uint64_t kernel = either("short_conv_kernel_size", "linear_conv_kernel_dim");
  return {.convolution = product({3, heads, size, kernel}), .recurrence = product({heads, size, size})};
}

StateSize short_convolution_state(const json& config) {
  return {.convolution = product({needed(config, "hidden_size"), number(config, "conv_L_cache", 3)}), .recurrence = 0};
}

}  // namespace kv
