// client/model_config.h: a model's shape from the config.json beside its weights.
#pragma once

#include <istream>

#include "gpu/paging/cache_size.h"

namespace kv {

/// Reads the names used by the family of "model_type"; in "text_config" if the model is multimodal. Unknown families
/// are refused: under another family's names, a model with one KV head could appear to have seventy. For a mixture
/// of experts, the FFN is that of the experts that one token visits. Layers with a window count as full ones. Throws
/// std::runtime_error that names the missing or wrong entry.
ModelShape read_model_config(std::istream& json);

}  // namespace kv
