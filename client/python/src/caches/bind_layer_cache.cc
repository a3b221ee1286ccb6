// Caches that a model calls layer by layer (gpu/layer_caches). NumPy arrays or torch tensors in, views of the cache
// out.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/errors.h"
#include "client/python/src/numpy_arrays.h"
#include "client/python/src/without_gil.h"
#include "gpu/layer_caches/growing_cache.h"
#include "gpu/layer_caches/quantised_cache.h"
#include "gpu/layer_caches/sink_cache.h"
#include "gpu/layer_caches/static_cache.h"

namespace kv::python {
namespace {

constexpr std::size_t kAxes = 4;  // batch, heads, tokens, features
constexpr std::int64_t kTokensMax = std::int64_t{1} << 31;

enum class LayerKind : std::uint8_t { kGrowing, kStatic, kSliding, kSink, kQuantised };

struct LayerOptions {
  LayerKind kind = LayerKind::kGrowing;
  std::int64_t capacity = 0;             ///< kStatic, kSliding, kSink.
  std::int64_t sink_tokens = 0;          ///< kSink, as the next two.
  std::vector<double> frequencies = {};  ///< Radians per position.
  RopeStyle rope_style = RopeStyle::kNeox;
  QuantisedCache::Config quantised = {};
};

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& allowed) {
  throw bad_request(name + ": " + value + ", not " + allowed);
}
[[noreturn]] void refuse(const std::string& name, std::int64_t value, const std::string& allowed) {
  refuse(name, std::to_string(value), allowed);
}

std::string axes_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

/// Numbers of 16 bits without a type of their own are bfloat16, which NumPy lacks.
Element number_element(const Array& array) {
  if (array.kind() == 'f' && array.item_bytes() == 4) return Element::kFp32;
  if (array.kind() == 'f' && array.item_bytes() == 2) return Element::kFp16;
  if (array.kind() == 'b' || (array.kind() == 'u' && array.item_bytes() == 2)) return Element::kBf16;
  throw bad_request(array.name() + ": the elements are not float32, float16 or bfloat16 (in NumPy: uint16)");
}

TokenShape shape_of(const Array& keys, const Array& values) {
  for (const Array* each : {&keys, &values}) {
    if (each->dimensions() != kAxes)
      throw bad_request(each->name() + ": has " + std::to_string(each->dimensions()) +
                        " axes, not the four of [batch, heads, tokens, features]");
  }
  const auto &k = keys.shape(), &v = values.shape();
  if (!std::equal(k.begin(), k.begin() + 3, v.begin()))
    throw bad_request("values: shape " + axes_text(v) + " beside keys of " + axes_text(k));
  if (k[2] < 1 || k[2] > kTokensMax) refuse("keys: tokens", k[2], "1 to 2^31");
  const TokenShape shape{k[0], k[1], k[3], v[3], number_element(keys)};
  if (number_element(values) != shape.element) throw bad_request("values: of another type than the keys");
  return shape;
}

/// The model's tensors are often transposed views, so rows are copied one by one where they are apart.
void copy_in(const Array& from, std::byte* to) {
  const auto& shape = from.shape();
  const auto& strides = from.strides();
  const auto item = static_cast<std::int64_t>(from.item_bytes());
  const bool has_whole_rows = shape[3] == 1 || strides[3] == item;
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      for (std::int64_t t = 0; t < shape[2]; ++t) {
        const std::byte* row = from.data() + b * strides[0] + h * strides[1] + t * strides[2];
        const std::int64_t count = has_whole_rows ? 1 : shape[3], bytes = item * shape[3] / count;
        for (std::int64_t i = 0; i < count; ++i, to += bytes)
          std::memcpy(to, row + i * strides[3], static_cast<std::size_t>(bytes));
      }
    }
  }
}

/// Whether both are torch's, of the host and outside of training, or else neither is.
bool are_tensors(nb::handle keys, nb::handle values) {
  const auto is_tensor = [](nb::handle array) { return nb::hasattr(array, "requires_grad"); };
  const auto type_name = [](nb::handle array) { return nb::cast<std::string>(array.type().attr("__name__")); };
  if (is_tensor(keys) != is_tensor(values))
    throw bad_request("values: " + type_name(values) + " beside keys of " + type_name(keys));
  if (!is_tensor(keys)) return false;
  for (const auto& [name, tensor] : {std::pair("keys", keys), std::pair("values", values)}) {
    if (nb::cast<bool>(tensor.attr("requires_grad")))
      throw bad_request(std::string(name) + ": require gradients, which a cache cannot pass on; use torch.no_grad()");
    const nb::object device = tensor.attr("device");
    if (nb::cast<std::string>(device.attr("type")) != "cpu")
      throw bad_request(std::string(name) + ": on the device " + nb::str(device).c_str() +
                        ", not in the host's memory");
  }
  return true;
}

void check_tokens(const TokenShape& shape, std::int64_t token_count) {
  value_of(layouts::batched({.block_count = shape.batch_count,
                             .block_tokens = token_count,
                             .heads = shape.heads,
                             .key_size = shape.key_size,
                             .value_size = shape.value_size,
                             .element = shape.element}));
}

/// Views keep their memory alive, whatever becomes of the cache: a caller may hold them too long.
template <class... Framework>
nb::object view_array(const KvView& view, std::byte* base, std::int64_t features, nb::dlpack::dtype type) {
  const TokenShape& shape = view.tensor->shape();
  const std::int64_t capacity = view.tensor->token_count();
  const std::size_t extents[] = {static_cast<std::size_t>(shape.batch_count), static_cast<std::size_t>(shape.heads),
                                 static_cast<std::size_t>(view.token_count()), static_cast<std::size_t>(features)};
  const std::int64_t strides[] = {shape.heads * capacity * features, capacity * features, features, 1};
  auto memory = std::make_unique<std::shared_ptr<const void>>(view.tensor->memory());
  const nb::capsule owner(memory.get(),
                          [](void* held) noexcept { delete static_cast<std::shared_ptr<const void>*>(held); });
  memory.release();
  std::byte* const data = base + view.begin * features * (type.bits / 8);
  return nb::cast(nb::ndarray<Framework...>(data, kAxes, extents, owner, strides, type));
}

nb::object view_array(const KvView& view, std::size_t component, std::int64_t features, bool is_torch) {
  std::byte* const base = view.tensor->layout().base(0, component);
  const Element element = view.tensor->shape().element;
  const auto bits = static_cast<std::uint8_t>(element == Element::kFp32 ? 32 : 16);
  const auto code = static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float);
  if (element != Element::kBf16) {
    const nb::dlpack::dtype type{code, bits, 1};
    return is_torch ? view_array<nb::pytorch>(view, base, features, type)
                    : view_array<nb::numpy, nb::ro>(view, base, features, type);
  }
  if (!is_torch) return view_array<nb::numpy, nb::ro>(view, base, features, nb::dtype<std::uint16_t>());
  return view_array<nb::pytorch>(view, base, features,
                                 {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), bits, 1});
}

/// A cache that takes its shape from the first tokens. The lock is taken without the GIL held, or for moments.
class PyLayerCache {
 public:
  explicit PyLayerCache(LayerOptions options) : options_(std::move(options)) {}

  nb::tuple update(nb::handle given_keys, nb::handle given_values) {
    const bool is_torch = are_tensors(given_keys, given_values);
    const Array keys(given_keys, "keys", /*is_written=*/false), values(given_values, "values", /*is_written=*/false);
    const TokenShape shape = shape_of(keys, values);
    const std::unique_lock lock = locked();
    if (cache_ && shape != shape_)
      throw bad_request("keys, values: shapes " + axes_text(keys.shape()) + " and " + axes_text(values.shape()) +
                        ", but the cache has " + shape_text());
    check_tokens(shape, keys.shape()[2]);
    const KvView view = run_without_gil([&] {
      if (!cache_) make(shape);
      KvTensor added(shape, keys.shape()[2]);
      copy_in(keys, added.layout().base(0, 0));
      copy_in(values, added.layout().base(0, 1));
      const Result<KvView> seen = cache_->update(added);
      if (!seen && seen.error() == Errc::kTooLarge)
        throw StatusError{seen.error().value(), "keys: " + std::to_string(added.token_count()) + " tokens more than " +
                                                    std::to_string(cache_->token_count()) + " exceed the capacity, " +
                                                    std::to_string(options_.capacity)};
      return value_of(seen);
    });
    nb::tuple views =
        nb::make_tuple(view_array(view, 0, shape.key_size, is_torch), view_array(view, 1, shape.value_size, is_torch));
    cache_->drop_view();
    return views;
  }

  std::int64_t token_count() const {
    const std::unique_lock lock = locked();
    return cache_ ? cache_->token_count() : 0;
  }
  std::int64_t memory_bytes() const {
    const std::unique_lock lock = locked();
    return cache_ ? cache_->memory_bytes() : 0;
  }
  std::int64_t next_position(std::int64_t added_count) const {
    if (added_count < 1 || added_count > kTokensMax) refuse("added_count", added_count, "1 to 2^31");
    const std::unique_lock lock = locked();
    if (!cache_) return 0;
    return sink_ != nullptr ? sink_->next_position(added_count) : cache_->token_count();
  }
  void crop(std::int64_t count) {
    const std::unique_lock lock = locked();
    const std::int64_t held = cache_ ? cache_->token_count() : 0;
    if (count < -held || count > held)
      refuse("token_count", count, std::to_string(-held) + " to " + std::to_string(held));
    if (!cache_) return;
    const Result<void> cropped = cache_->crop(count);
    if (!cropped)
      throw StatusError{status_of(cropped.error()), "token_count: " + std::to_string(count) + " of " +
                                                        std::to_string(held) +
                                                        ": tokens that are then read have left the window, or a "
                                                        "quantised block would be cut"};
  }
  void select(nb::handle given) {
    const Numbers<std::int64_t> sequences(given, "sequences");
    const std::unique_lock lock = locked();
    if (!cache_) throw bad_request("sequences: the cache is empty");
    const bool keeps_count = options_.kind == LayerKind::kStatic || options_.kind == LayerKind::kSliding;
    const auto count = static_cast<std::int64_t>(sequences.values().size());
    if (count < 1 || (keeps_count && count != shape_.batch_count))
      refuse("sequences", std::to_string(count) + " of them",
             keeps_count ? std::to_string(shape_.batch_count) + ": the memory of this cache has a fixed size"
                         : "1 or more");
    for (const std::int64_t each : sequences.values()) {
      if (each < 0 || each >= shape_.batch_count)
        refuse("sequences", each, "in [0, " + std::to_string(shape_.batch_count) + ")");
    }
    TokenShape selected = shape_;
    selected.batch_count = count;
    check_tokens(selected, 1);
    run_without_gil([&] { cache_->select(sequences.values()); });
    shape_ = selected;
  }

 private:
  std::unique_lock<std::mutex> locked() const {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) throw bad_request("the cache is in use by another thread");
    return lock;
  }
  std::string shape_text() const {
    return axes_text({shape_.batch_count, shape_.heads, -1, shape_.key_size}) + " and " +
           axes_text({shape_.batch_count, shape_.heads, -1, shape_.value_size}) + " of " +
           std::string(element_name(shape_.element));
  }
  void make(const TokenShape& shape) {
    if (options_.kind != LayerKind::kGrowing && options_.kind != LayerKind::kQuantised)
      check_tokens(shape, options_.capacity);
    const auto rotary_size = static_cast<std::int64_t>(2 * options_.frequencies.size());
    if (options_.kind == LayerKind::kSink && rotary_size > shape.key_size)
      refuse("frequencies", std::to_string(rotary_size / 2) + " of them",
             "at most half of " + std::to_string(shape.key_size) + ", the keys' features");
    const std::int64_t group = std::min(options_.quantised.group_size, shape.value_size);
    if (options_.kind == LayerKind::kQuantised && (group % 8 != 0 || shape.value_size % group != 0))
      refuse("values: features", shape.value_size,
             "a multiple of group_size (" + std::to_string(options_.quantised.group_size) +
                 "), or smaller and a multiple of 8");
    switch (options_.kind) {
      case LayerKind::kGrowing: cache_ = std::make_unique<GrowingCache>(); break;
      case LayerKind::kStatic: cache_ = std::make_unique<StaticCache>(shape, options_.capacity); break;
      case LayerKind::kSliding: cache_ = std::make_unique<SlidingCache>(shape, options_.capacity); break;
      case LayerKind::kQuantised: cache_ = std::make_unique<QuantisedCache>(shape, options_.quantised); break;
      case LayerKind::kSink: {
        const Rotation rotation{options_.rope_style, rotary_size, options_.frequencies.data(), nullptr, 0};
        auto sink = std::make_unique<SinkCache>(shape, options_.sink_tokens, options_.capacity, rotation);
        sink_ = sink.get();
        cache_ = std::move(sink);
        break;
      }
    }
    shape_ = shape;
  }

  LayerOptions options_;  // before the cache, which borrows the frequencies
  TokenShape shape_;
  std::unique_ptr<LayerCache> cache_;
  const SinkCache* sink_ = nullptr;  // the same object, if it is one
  mutable std::mutex mutex_;
};

LayerOptions bounded(LayerKind kind, const char* name, std::int64_t capacity) {
  if (capacity < 1 || capacity > kTokensMax) refuse(name, capacity, "1 to 2^31");
  return {.kind = kind, .capacity = capacity};
}

struct PyGrowingCache : PyLayerCache {
  PyGrowingCache() : PyLayerCache({}) {}
};

struct PyStaticCache : PyLayerCache {
  explicit PyStaticCache(std::int64_t capacity) : PyLayerCache(bounded(LayerKind::kStatic, "capacity", capacity)) {}
};

struct PySlidingCache : PyLayerCache {
  explicit PySlidingCache(std::int64_t window_tokens)
      : PyLayerCache(bounded(LayerKind::kSliding, "window_tokens", window_tokens)) {}
};

struct PySinkCache : PyLayerCache {
  PySinkCache(std::int64_t window_tokens, std::int64_t sink_tokens, std::vector<double> frequencies, bool interleaved)
      : PyLayerCache(checked(window_tokens, sink_tokens, std::move(frequencies), interleaved)) {}

  static LayerOptions checked(std::int64_t window_tokens, std::int64_t sink_tokens, std::vector<double> frequencies,
                              bool interleaved) {
    LayerOptions options = bounded(LayerKind::kSink, "window_tokens", window_tokens);
    if (sink_tokens < 0 || sink_tokens >= window_tokens)
      refuse("sink_tokens", sink_tokens, "0 to below window_tokens (" + std::to_string(window_tokens) + ")");
    if (frequencies.empty() || frequencies.size() > kRotarySizeMax / 2)
      refuse("frequencies", std::to_string(frequencies.size()) + " of them",
             "1 to " + std::to_string(kRotarySizeMax / 2));
    options.sink_tokens = sink_tokens;
    options.frequencies = std::move(frequencies);
    options.rope_style = interleaved ? RopeStyle::kGptj : RopeStyle::kNeox;
    return options;
  }
};

struct PyQuantisedCache : PyLayerCache {
  PyQuantisedCache(int bits, std::int64_t group_size, std::int64_t residual_tokens)
      : PyLayerCache(checked(bits, group_size, residual_tokens)) {}

  static LayerOptions checked(int bits, std::int64_t group_size, std::int64_t residual_tokens) {
    if (bits != 2 && bits != 4 && bits != 8) refuse("bits", bits, "2, 4 or 8");
    if (group_size < 8 || group_size % 8 != 0 || group_size > kHeadFeaturesMax)
      refuse("group_size", group_size, "a multiple of 8 up to " + std::to_string(kHeadFeaturesMax));
    if (residual_tokens < 0 || residual_tokens > kTokensMax) refuse("residual_tokens", residual_tokens, "0 to 2^31");
    return {.kind = LayerKind::kQuantised, .quantised = {bits, group_size, residual_tokens}};
  }
};

}  // namespace

void bind_layer_cache(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PyLayerCache>(module, "LayerCache")
      .def("update", &PyLayerCache::update, "keys"_a, "values"_a)
      .def("next_position", &PyLayerCache::next_position, "added_count"_a)
      .def("crop", &PyLayerCache::crop, "token_count"_a)
      .def("select", &PyLayerCache::select, "sequences"_a)
      .def_prop_ro("token_count", &PyLayerCache::token_count)
      .def_prop_ro("memory_bytes", &PyLayerCache::memory_bytes);
  nb::class_<PyGrowingCache, PyLayerCache>(module, "GrowingCache").def(nb::init<>());
  nb::class_<PyStaticCache, PyLayerCache>(module, "StaticCache").def(nb::init<std::int64_t>(), "capacity"_a);
  nb::class_<PySlidingCache, PyLayerCache>(module, "SlidingCache").def(nb::init<std::int64_t>(), "window_tokens"_a);
  nb::class_<PySinkCache, PyLayerCache>(module, "SinkCache")
      .def(
          "__init__",
          [](PySinkCache* self, std::int64_t window_tokens, std::int64_t sink_tokens, const nb::iterable& frequencies,
             bool interleaved) {
            std::vector<double> values;  // of any iterable: a model's inv_freq is a tensor, which is no sequence
            for (const nb::handle each : frequencies) values.push_back(nb::cast<double>(nb::float_(each)));
            new (self) PySinkCache(window_tokens, sink_tokens, std::move(values), interleaved);
          },
          "window_tokens"_a, "sink_tokens"_a = 4, nb::kw_only(), "frequencies"_a, "interleaved"_a = false);
  nb::class_<PyQuantisedCache, PyLayerCache>(module, "QuantisedCache")
      .def(nb::init<int, std::int64_t, std::int64_t>(), "bits"_a = 4, nb::kw_only(), "group_size"_a = 64,
           "residual_tokens"_a = 128);
}

}  // namespace kv::python
