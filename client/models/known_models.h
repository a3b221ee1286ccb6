// client/models/known_models.h: facts of common models by name, so that no config.json is needed.
#pragma once

#include <span>
#include <string_view>

namespace kv {

struct KnownModel {
  std::string_view name;    ///< "llama-3.1-8b"
  std::string_view source;  ///< The model card, or the paper, whose facts these are.
  std::string_view config;  ///< Those entries of its config.json that decide about the cache and the work.
};

std::span<const KnownModel> known_models();            ///< By name.
const KnownModel* known_model(std::string_view name);  ///< Null if there is none. Case does not matter.

}  // namespace kv
