// A model's cache by its config.json, and its size (gpu/paging/cache_size.h).
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sstream>

#include "client/model_config.h"
#include "client/python/src/bind.h"
#include "client/python/src/errors.h"
#include "gpu/paging/cache_size.h"

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

}  // namespace

void bind_model(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<ModelShape>(module, "ModelShape")
      .def(nb::init<>())
      .def_static(
          "from_config",
          [](const std::string& json) {
            std::istringstream text(json);
            try {
              return read_model_config(text);
            } catch (const std::runtime_error& error) {
              throw StatusError{static_cast<int>(Errc::kUnsupported), error.what()};
            }
          },
          "json"_a)
      .def_rw("layer_count", &ModelShape::layer_count)
      .def_rw("kv_head_count", &ModelShape::kv_head_count)
      .def_rw("head_size", &ModelShape::head_size)
      .def_rw("latent_size", &ModelShape::latent_size)
      .def_rw("rope_size", &ModelShape::rope_size)
      .def_rw("has_sparse_index", &ModelShape::has_sparse_index)
      .def_rw("query_head_count", &ModelShape::query_head_count)
      .def_rw("hidden_size", &ModelShape::hidden_size)
      .def_rw("ffn_size", &ModelShape::ffn_size)
      .def_rw("has_gated_ffn", &ModelShape::has_gated_ffn)
      .def_rw("vocabulary_size", &ModelShape::vocabulary_size)
      .def(
          "bytes_per_token",
          [](const ModelShape& shape, const std::string& format) {
            const auto bytes = cache_bytes_per_token(shape, format_from(format));
            if (bytes) return *bytes;
            if (bytes.error() == Errc::kUnsupported)
              throw StatusError{static_cast<int>(Errc::kUnsupported),
                                "format: '" + format + "' does not fit this model"};
            throw bad_request("the shape has no layers, heads or head size, or a member out of range");
          },
          "format"_a = "fp16")
      .def("parameter_count",
           [](const ModelShape& shape) {
             const bool is_known =
                 shape.latent_size == 0 && shape.query_head_count > 0 && shape.hidden_size > 0 && shape.ffn_size > 0;
             return is_known ? layer_parameter_count(shape) : 0.0;
           })
      .def(
          "attention_flops",
          [](const ModelShape& shape, double tokens, double context) {
            return attention_flops(shape, tokens, context);
          },
          "tokens"_a, "context"_a = 0);
  std::vector<std::string> formats;
  for (const CacheFormat each : kCacheFormats) formats.emplace_back(cache_format_name(each));
  module.attr("CACHE_FORMATS") = nb::cast(formats);
}

}  // namespace kv::python
