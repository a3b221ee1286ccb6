// client/models/states.h: size of the state of one layer without keys and values, by the family's config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace kv {

/// Elements: the last inputs of the convolution, and the recurrence.
struct StateSize {
  std::uint64_t convolution = 0, recurrence = 0;
};
using ReadState = StateSize (*)(const nlohmann::json& config);

/// All throw std::runtime_error that names the missing entry. As transformers keeps states: a convolution with as many
/// inputs as its kernel is long.
StateSize mamba_state(const nlohmann::json& config);
StateSize mamba_state_of_inner(const nlohmann::json& config);  ///< Jamba's names.
StateSize mamba2_state(const nlohmann::json& config);
StateSize delta_net_state(const nlohmann::json& config);  ///< Qwen3-Next, Qwen3.5, OLMo hybrid
StateSize kimi_delta_state(const nlohmann::json& config);
StateSize short_convolution_state(const nlohmann::json& config);  ///< LFM2

}  // namespace kv
