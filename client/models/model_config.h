// client/models/model_config.h: a model's cache from the config.json beside its weights. Start here.
//
//   model_config.cc   the numbers that all layers share
//   families.h        by which names each family's numbers go; those that are refused, and why
//   layers.h          which layers keep what: full attention, windows, chunks, states
//   states.h          sizes of states
//   config_fields.h   entries of the file, and errors that name them
//   known_models.h    facts of common models, by name
#pragma once

#include <istream>

#include "gpu/paging/cache_size.h"

namespace kv {

/// Reads the names used by the family of "model_type"; in "text_config" if the model is multimodal, and of a model that
/// also speaks in its thinker's. Unknown families are refused: under another family's names, a model with one KV head
/// could appear to have seventy. For a mixture of experts, the FFN is that of the experts that one token visits. Throws
/// std::runtime_error that names the missing or wrong entry.
ModelCache read_model(std::istream& file);

/// The shape of a model whose layers all keep keys and values; layers with a window count as full ones. Throws as
/// read_model(), and for layers that keep a state, share another's keys or keep nothing.
ModelShape read_model_config(std::istream& file);

}  // namespace kv
