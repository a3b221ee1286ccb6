// client/tools/ctl/model_config.h: a model's shape from the config.json that lies beside its weights.
#pragma once

#include <istream>

#include "gpu/paging/cache_size.h"

namespace kv {

/// Reads the names that the family of "model_type" uses; in "text_config" if the model is multimodal. A family that is
/// not in the table is refused: by another family's names, a model with one KV head would be taken for one with
/// seventy. Of a mixture of experts, the FFN is that of the experts that one token visits. Layers that read only a
/// window count as full ones. Throws std::runtime_error that says what is missing or wrong.
ModelShape read_model_config(std::istream& json);

}  // namespace kv
