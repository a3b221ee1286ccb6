// client/models/layers.h: which layers of a model keep what, by its config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "client/models/families.h"
#include "gpu/paging/cache_size.h"

namespace kv {

struct ModelLayers {
  std::uint64_t count = 0;         ///< Also of those that keep nothing.
  std::vector<LayerGroup> groups;  ///< Full attention, windows and chunks from small to large, states.
};
/// Throws std::runtime_error that names a missing or wrong entry, or a kind of layer that is not known.
ModelLayers read_layers(const nlohmann::json& config, const Family& family);

}  // namespace kv
