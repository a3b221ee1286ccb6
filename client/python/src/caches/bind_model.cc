// A model's cache by its config.json or its name, its size (gpu/paging/cache_size.h), and the work of generating
// (gpu/paging/generation_work.h).
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <sstream>

#include "client/models/known_models.h"
#include "client/models/model_config.h"
#include "client/python/src/bind.h"
#include "client/python/src/errors.h"
#include "gpu/paging/cache_size.h"
#include "gpu/paging/generation_work.h"

namespace kv::python {
namespace {

CacheFormat format_from(const std::string& name) {
  const auto format = cache_format_from_name(name);
  if (format) return *format;
  std::string names;
  for (const CacheFormat each : kCacheFormats)
    names += (names.empty() ? "" : ", ") + std::string(cache_format_name(each));
  throw bad_request("format: '" + name + "' is none of " + names);
}

template <class Read>
auto read_config(const std::string& json, Read read) {
  std::istringstream text(json);
  try {
    return read(text);
  } catch (const std::runtime_error& error) {
    throw StatusError{static_cast<int>(Errc::kUnsupported), error.what()};
  }
}

std::uint64_t bytes_or_throw(const Result<std::uint64_t>& bytes, const std::string& format) {
  if (bytes) return *bytes;
  if (bytes.error() == Errc::kUnsupported)
    throw StatusError{static_cast<int>(Errc::kUnsupported), "format: '" + format + "' does not fit this model"};
  throw bad_request(
      "the shape has no layers, heads or head size, or a member out of range, or there are too many tokens");
}

Generation generation_of(std::uint64_t batch, std::uint64_t prompt_tokens, std::uint64_t new_tokens) {
  const Generation generation{batch, prompt_tokens, new_tokens};
  if (!check_generation(generation))
    throw bad_request("batch " + std::to_string(batch) + ", prompt_tokens " + std::to_string(prompt_tokens) +
                      ", new_tokens " + std::to_string(new_tokens) +
                      ": at least 1, 1 and 0, and batch * (prompt + new) at most 2^31");
  return generation;
}

using Both = std::tuple<double, double>;  // with a cache, without

Both both(const Work& work) { return {work.with_cache, work.without_cache}; }

void bind_shape(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<ModelShape>(module, "ModelShape")
      .def(nb::init<>())
      .def_static(
          "from_config", [](const std::string& json) { return read_config(json, read_model_config); }, "json"_a)
      .def_rw("layer_count", &ModelShape::layer_count)
      .def_rw("kv_head_count", &ModelShape::kv_head_count)
      .def_rw("head_size", &ModelShape::head_size)
      .def_rw("latent_size", &ModelShape::latent_size)
      .def_rw("rope_size", &ModelShape::rope_size)
      .def_rw("has_sparse_index", &ModelShape::has_sparse_index)
      .def_rw("query_head_count", &ModelShape::query_head_count)
      .def_rw("value_head_size", &ModelShape::value_head_size)
      .def_rw("query_latent_size", &ModelShape::query_latent_size)
      .def_rw("hidden_size", &ModelShape::hidden_size)
      .def_rw("ffn_size", &ModelShape::ffn_size)
      .def_rw("has_gated_ffn", &ModelShape::has_gated_ffn)
      .def_rw("vocabulary_size", &ModelShape::vocabulary_size)
      .def(
          "bytes_per_token",
          [](const ModelShape& shape, const std::string& format) {
            return bytes_or_throw(cache_bytes_per_token(shape, format_from(format)), format);
          },
          "format"_a = "fp16")
      .def("parameter_count", [](const ModelShape& shape) { return layer_parameter_count(shape); })
      .def(
          "attention_flops",
          [](const ModelShape& shape, double tokens, double context) {
            return attention_flops(shape, tokens, context);
          },
          "tokens"_a, "context"_a = 0);
}

void bind_groups(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<LayerGroup>(module, "LayerGroup")
      .def_prop_ro("kind", [](const LayerGroup& group) { return std::string(layer_kind_name(group.kind)); })
      .def_ro("token_limit", &LayerGroup::token_limit)
      .def_ro("layers", &LayerGroup::layers)
      .def_ro("sharing_layer_count", &LayerGroup::sharing_layer_count);
  nb::class_<ModelCache>(module, "ModelCache")
      .def_static(
          "from_config", [](const std::string& json) { return read_config(json, read_model); }, "json"_a)
      .def_ro("shape", &ModelCache::shape)
      .def_ro("groups", &ModelCache::groups)
      .def("without_windows", [](const ModelCache& model) { return without_windows(model); })
      .def("parameter_count", [](const ModelCache& model) { return layer_parameter_count(model); })
      .def(
          "group_bytes_per_token",
          [](const ModelCache& model, const LayerGroup& group, const std::string& format) {
            return bytes_or_throw(group_bytes_per_token(model.shape, group, format_from(format)), format);
          },
          "group"_a, "format"_a = "fp16")
      .def(
          "group_state_bytes",
          [](const ModelCache&, const LayerGroup& group, const std::string& format) {
            return group_state_bytes(group, format_from(format));
          },
          "group"_a, "format"_a = "fp16")
      .def(
          "peak_bytes",
          [](const ModelCache& model, std::uint64_t batch, std::uint64_t prompt, std::uint64_t added,
             const std::string& format) {
            const Generation generation = generation_of(batch, prompt, added);
            return bytes_or_throw(peak_cache_bytes(model, format_from(format), generation), format);
          },
          "batch"_a, "prompt_tokens"_a, "new_tokens"_a, "format"_a = "fp16");
}

void bind_work(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<GenerationWork>(module, "GenerationWork")
      .def(nb::init<ModelCache, double>(), "model"_a, "parameter_count"_a)
      .def("masked_pass", &GenerationWork::masked_pass, "tokens"_a)
      .def(
          "figures",
          [](const GenerationWork& work, std::uint64_t batch, std::uint64_t prompt, std::uint64_t added) {
            const Generation generation = generation_of(batch, prompt, added);
            if (added == 0) throw bad_request("new_tokens: 0; 1 or more");
            nb::dict figures;
            figures["prompt"] = Both{work.prompt(generation), work.prompt(generation)};
            figures["last_step"] = both(work.last_step(generation));
            figures["steps"] = both(work.steps(generation));
            figures["last_step_logits"] = both(work.step_logits(generation));
            figures["logits"] = both(work.all_logits(generation));
            return figures;
          },
          "batch"_a, "prompt_tokens"_a, "new_tokens"_a);
}

}  // namespace

void bind_model(nb::module_& module) {
  bind_shape(module);
  bind_groups(module);
  bind_work(module);
  std::vector<std::string> formats;
  for (const CacheFormat each : kCacheFormats) formats.emplace_back(cache_format_name(each));
  module.attr("CACHE_FORMATS") = nb::cast(formats);
  module.def("known_models", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> models;  // name, source, config.json
    for (const KnownModel& each : known_models()) models.emplace_back(each.name, each.source, each.config);
    return models;
  });
}

}  // namespace kv::python
