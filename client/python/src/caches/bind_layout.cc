// Layouts of tensors, bound to their memory, and moving blocks between any two of them, on the host or on a GPU.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/caches/cache.h"
#include "client/python/src/caches/call_rows.h"
#include "client/python/src/caches/device_call.h"
#include "client/python/src/caches/moves.h"
#include "client/python/src/errors.h"
#include "gpu/layout.h"
#include "gpu/named_layouts.h"

namespace kv::python {
namespace {

Element element_from(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(Element::kFp32); ++i) {
    if (element_name(static_cast<Element>(i)) == name) return static_cast<Element>(i);
  }
  throw bad_request("element: '" + name + "' is none of byte, int8, e4m3, e5m2, e2m1x2, fp16, bf16, fp32");
}

/// Engines keep 16-bit and wider integers beside the cache, and name the element of 4-bit or 8-bit floats in uint8.
Element element_of(const Array& array) {
  switch (array.kind()) {
    case 'b': return Element::kBf16;
    case '4': return Element::kE4M3;
    case '5': return Element::kE5M2;
    case 'f':
      if (array.item_bytes() == 2) return Element::kFp16;
      if (array.item_bytes() == 4) return Element::kFp32;
      break;
    case 'i':
      if (array.item_bytes() == 1) return Element::kInt8;
      break;
    case 'u':
      if (array.item_bytes() == 1) return Element::kByte;
      break;
    default: break;
  }
  throw bad_request(array.name() +
                    ": elements of this type are no cache's; name the element, such as element=\"bf16\"");
}

/// One tensor, or a list of them.
std::vector<nb::object> tensors_from(const nb::object& given) {
  if (nb::isinstance<nb::list>(given) || nb::isinstance<nb::tuple>(given))
    return nb::cast<std::vector<nb::object>>(given);
  return {given};
}

/// A Part of kvstore/layouts.py: tensors, axes, roles, element or "".
using Part = std::tuple<nb::object, std::string, std::vector<std::string>, std::string>;

Layout layout_of(const std::vector<Part>& parts, const std::string& name) {
  if (parts.empty()) throw bad_request("parts: none");
  std::vector<Tensor> tensors;
  std::size_t layer_count = 1;
  for (const auto& [given, axes, roles, element] : parts) {
    const std::vector<nb::object> objects = tensors_from(given);
    if (objects.empty()) throw bad_request("tensors: none");
    if (!tensors.empty() && objects.size() != layer_count)
      throw bad_request("tensors: parts have different numbers of layers");
    layer_count = objects.size();
    Tensor tensor;
    tensor.axes = axes;
    for (const std::string& role : roles) tensor.roles.push_back(role_from(role));
    for (std::size_t i = 0; i < objects.size(); ++i) {
      // Device arrays too: only the description is read.
      const Array array(objects[i], "tensors[" + std::to_string(i) + "]", /*is_written=*/false, Place::kHostOrCuda);
      const auto item = static_cast<std::int64_t>(array.item_bytes());
      std::vector<std::int64_t> strides;
      // Our strides are in elements, Python's in bytes. A view into a structured array may have one in between.
      for (const std::int64_t bytes : array.strides()) {
        if (bytes % item != 0) throw bad_request(array.name() + ": misaligned: a stride is not whole elements");
        strides.push_back(bytes / item);
      }
      // All layers of one kind have one description; only their addresses differ.
      if (i == 0) {
        tensor.element = element.empty() ? element_of(array) : element_from(element);
        if (element_bytes(tensor.element) != item)
          throw bad_request("element: " + std::string(element_name(tensor.element)) + " is not " +
                            std::to_string(item) + " bytes");
        tensor.shape = array.shape();
        tensor.strides = std::move(strides);
      } else if (tensor.shape != array.shape() || tensor.strides != strides) {
        throw bad_request(array.name() + ": another shape or strides than layer 0");
      }
    }
    tensors.push_back(std::move(tensor));
  }
  return value_of(make_layout(name, tensors, static_cast<std::int64_t>(layer_count)));
}

Layout named(const std::string& name, const CacheShape& shape) {
  const auto made = layouts::named(name, shape);
  if (!made) throw bad_request("name: '" + name + "' is no named layout; use Layout.of()");
  return value_of(*made);
}

void check_block_tokens(const Layout& to, const Layout& from) {
  if (to.block_tokens != from.block_tokens)
    throw StatusError{static_cast<int>(Errc::kMismatch), "token axis: blocks of " + std::to_string(from.block_tokens) +
                                                             " tokens go to blocks of " +
                                                             std::to_string(to.block_tokens)};
}

void check_disjoint(const Ids& sources, const Ids& targets) {
  std::unordered_set<std::int64_t> written;
  for (const std::int64_t target : targets.values()) {
    if (target >= 0 && !written.insert(target).second)
      throw bad_request("targets: " + std::to_string(target) + " is there twice");
  }
  for (const std::int64_t source : sources.values()) {
    if (written.contains(source)) throw bad_request("sources: " + std::to_string(source) + " is a target too");
  }
}

nb::object scatter(const nb::object& cache, const nb::object& source, nb::handle slots, nb::handle blocks,
                   std::optional<std::int64_t> count, nb::handle move, nb::handle stream, int grid_max) {
  const Cache& to = nb::cast<const Cache&>(cache);
  const NamedRows named(slots, blocks, to.bound().layout.block_tokens, count);
  const auto moves = moves_from(move);
  check_deltas(*moves, named.count());
  return move_rows({stream, grid_max}, {to, "cache", named.ids(), named.block_tokens()},
                   {nb::cast<const Cache&>(source), "source", Ids::none()}, named.count(), moves->operation,
                   {cache, source, nb::borrow(slots), nb::borrow(blocks)});
}

nb::object gather(const nb::object& target, const nb::object& cache, nb::handle slots, nb::handle blocks,
                  std::optional<std::int64_t> count, nb::handle move, nb::handle stream, int grid_max) {
  const Cache& from = nb::cast<const Cache&>(cache);
  const NamedRows named(slots, blocks, from.bound().layout.block_tokens, count);
  const auto moves = moves_from(move);
  check_deltas(*moves, named.count());
  return move_rows({stream, grid_max}, {nb::cast<const Cache&>(target), "target", Ids::none()},
                   {from, "cache", named.ids(), named.block_tokens()}, named.count(), moves->operation,
                   {target, cache, nb::borrow(slots), nb::borrow(blocks)});
}

nb::object relayout(const nb::object& to, nb::handle to_blocks, const nb::object& source, nb::handle from_blocks,
                    nb::handle move, nb::handle stream, int grid_max) {
  const Cache& target = nb::cast<const Cache&>(to);
  const Cache& from = nb::cast<const Cache&>(source);
  const Ids targets(to_blocks, "to_blocks"), sources(from_blocks, "from_blocks");
  if (targets.count() != sources.count()) throw bad_request("to_blocks and from_blocks: of different lengths");
  check_block_tokens(target.bound().layout, from.bound().layout);
  const std::int64_t tokens = target.bound().layout.block_tokens;
  const auto moves = moves_from(move);
  check_deltas(*moves, targets.count() * tokens);
  return move_rows({stream, grid_max}, {target, "to", targets, tokens}, {from, "source", sources, tokens},
                   targets.count() * tokens, moves->operation,
                   {to, source, nb::borrow(to_blocks), nb::borrow(from_blocks)});
}

nb::object copy_blocks(const nb::object& object, nb::handle sources, nb::handle targets, nb::handle stream,
                       int grid_max) {
  const Cache& cache = nb::cast<const Cache&>(object);
  const Ids from(sources, "sources"), to(targets, "targets");
  if (from.count() != to.count()) throw bad_request("sources and targets: of different lengths");
  // A device copies in any order, so a block must not be both read and written, nor written twice.
  if (cache.device() >= 0) check_disjoint(from, to);
  const std::int64_t tokens = cache.bound().layout.block_tokens;
  return move_rows({stream, grid_max}, {cache, "cache", to, tokens}, {cache, "cache", from, tokens},
                   to.count() * tokens, Operation(), {object, nb::borrow(sources), nb::borrow(targets)});
}

nb::list components_of(const Layout& layout) {
  nb::list list;
  for (const Component& each : layout.components) {
    nb::dict entry;
    const std::string_view element = element_name(each.element);
    entry["role"] = public_name(each.role);
    entry["element"] = nb::str(element.data(), element.size());
    entry["heads"] = each.heads();
    entry["features"] = each.features();
    entry["tensor"] = each.tensor;
    list.append(entry);
  }
  return list;
}

void bind_layout_class(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Layout>(module, "Layout")
      .def_static(
          "of",
          [](const nb::object& tensors, const std::string& axes, const std::vector<std::string>& roles,
             const std::string& element, const std::string& name) {
            return layout_of({{tensors, axes, roles, element}}, name);
          },
          "tensors"_a, "axes"_a, nb::kw_only(), "roles"_a = std::vector<std::string>{"key", "value"}, "element"_a = "",
          "name"_a = "tensor")
      .def_static("of_parts", &layout_of, "parts"_a, nb::kw_only(), "name"_a = "tensors")
      .def_static(
          "named",
          [](const std::string& name, std::int64_t block_count, std::int64_t block_tokens, std::int64_t heads,
             std::int64_t key_size, std::int64_t value_size, std::int64_t layer_count, const std::string& element) {
            return named(name, {.block_count = block_count,
                                .block_tokens = block_tokens,
                                .heads = heads,
                                .key_size = key_size,
                                .value_size = value_size,
                                .layer_count = layer_count,
                                .element = element_from(element)});
          },
          "name"_a, nb::kw_only(), "block_count"_a, "block_tokens"_a = 16, "heads"_a = 1, "key_size"_a = 128,
          "value_size"_a = 0, "layer_count"_a = 1, "element"_a = "bf16")
      .def(
          "store_block",
          [](const Layout& layout, std::int64_t block_count, std::int64_t head_groups,
             std::optional<std::int64_t> block_tokens) {
            const std::int64_t tokens = block_tokens.value_or(0) > 0 ? *block_tokens : layout.block_tokens;
            return value_of(layouts::store_block(layout, head_groups, block_count, tokens));
          },
          "block_count"_a, nb::kw_only(), "head_groups"_a = 1, "block_tokens"_a = nb::none())
      .def_prop_ro(
          "store_block_bytes",
          [](const Layout& layout) { return layouts::store_block_bytes(value_of(layouts::store_block(layout, 1, 1))); })
      .def(
          "slice_heads",
          [](const Layout& layout, std::int64_t first, std::int64_t count) {
            return value_of(slice_heads(layout, first, count));
          },
          "first"_a, "count"_a)
      .def(
          "tensor_bytes",
          [](const Layout& layout, int tensor) {
            if (tensor < 0 || tensor >= layout.tensor_count) throw bad_request("tensor: no such one");
            return layout.tensor_bytes(tensor);
          },
          "tensor"_a = 0)
      .def(
          "bind", [](const Layout& layout, const nb::object& tensors) { return Cache(layout, tensors_from(tensors)); },
          "tensors"_a)
      .def_ro("name", &Layout::name)
      .def_ro("block_tokens", &Layout::block_tokens)
      .def_ro("block_count", &Layout::block_count)
      .def_ro("layer_count", &Layout::layer_count)
      .def_prop_ro("components", &components_of)
      .def("__str__", [](const Layout& layout) { return to_string(layout); })
      .def("__repr__", [](const Layout& layout) { return "<kvstore.Layout " + to_string(layout) + ">"; });
}

void bind_cache_class(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Cache>(module, "Cache")
      .def_prop_ro("layout", [](const Cache& cache) { return cache.bound().layout; })
      .def_prop_ro("device",
                   [](const Cache& cache) {
                     return cache.device() < 0 ? nb::object(nb::none()) : nb::object(nb::int_(cache.device()));
                   })
      .def(
          "slice_layers",
          [](const Cache& cache, std::int64_t first, std::int64_t count) {
            const std::int64_t layer_count = cache.bound().layout.layer_count;
            if (first < 0 || count < 1 || count > layer_count || first > layer_count - count)
              throw bad_request("first, count: not layers of this cache");
            return Cache(slice_layers(cache.bound(), first, count), cache);
          },
          "first"_a, "count"_a, nb::keep_alive<0, 1>())
      .def(
          "slice_heads",
          [](const Cache& cache, std::int64_t first, std::int64_t count) {
            return Cache(value_of(slice_heads(cache.bound(), first, count)), cache);
          },
          "first"_a, "count"_a, nb::keep_alive<0, 1>());
}

}  // namespace

void bind_layout(nb::module_& module) {
  using namespace nb::literals;
  bind_layout_class(module);
  bind_cache_class(module);
  module.def("scatter", &scatter, "cache"_a, "source"_a, nb::kw_only(), "slots"_a = nb::none(), "blocks"_a = nb::none(),
             "count"_a = nb::none(), "move"_a = nb::none(), "stream"_a = nb::none(), "grid_max"_a = 0);
  module.def("gather", &gather, "target"_a, "cache"_a, nb::kw_only(), "slots"_a = nb::none(), "blocks"_a = nb::none(),
             "count"_a = nb::none(), "move"_a = nb::none(), "stream"_a = nb::none(), "grid_max"_a = 0);
  module.def("relayout", &relayout, "to"_a, "to_blocks"_a, "source"_a, "from_blocks"_a, nb::kw_only(),
             "move"_a = nb::none(), "stream"_a = nb::none(), "grid_max"_a = 0);
  module.def("copy_blocks", &copy_blocks, "cache"_a, "sources"_a, "targets"_a, nb::kw_only(), "stream"_a = nb::none(),
             "grid_max"_a = 0);
}

}  // namespace kv::python
