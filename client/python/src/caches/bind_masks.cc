// Attention masks of a batch as bits (gpu/paging/packed_mask.h). Users see kvstore/paging.py.
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/errors.h"
#include "client/python/src/numpy_arrays.h"
#include "client/python/src/without_gil.h"
#include "gpu/paging/packed_mask.h"

namespace kv::python {
namespace {

/// Bits of all requests. Throws by name what pack_masks() refuses by a code.
std::int64_t mask_bits(const MaskShape& shape) {
  if (shape.kv_counts.size() != shape.query_counts.size())
    throw bad_request("kv_counts: " + std::to_string(shape.kv_counts.size()) + " for " +
                      std::to_string(shape.query_counts.size()) + " query_counts");
  std::int64_t bits = 0;
  for (std::size_t r = 0; r < shape.query_counts.size(); ++r) {
    for (const auto& [name, count] :
         {std::pair("query_counts", shape.query_counts[r]), std::pair("kv_counts", shape.kv_counts[r])}) {
      if (count < 0)
        throw bad_request(std::string(name) + "[" + std::to_string(r) + "]: " + std::to_string(count) +
                          " is not 0 or more");
    }
    bits += std::int64_t{shape.query_counts[r]} * shape.kv_counts[r];
    if (bits > std::numeric_limits<std::int32_t>::max())
      throw bad_request("query_counts, kv_counts: over 2^31 - 1 bits, which kernels count in 32 bits");
  }
  return bits;
}

nb::object packed_masks_of(nb::handle query_counts, nb::handle kv_counts, nb::handle mask) {
  const Numbers<std::int32_t> queries(query_counts, "query_counts"), keys(kv_counts, "kv_counts");
  const MaskShape shape{queries.values(), keys.values()};
  const std::int64_t bits = mask_bits(shape);
  std::optional<Array> given;
  std::span<const std::uint8_t> flags;
  if (!mask.is_none()) {
    given.emplace(mask, "mask", /*is_written=*/false);
    if (given->item_bytes() != 1)
      throw bad_request("mask: elements of " + std::to_string(given->item_bytes()) + " bytes, not bool or uint8");
    const std::span<const std::byte> bytes = given->all_bytes();
    if (static_cast<std::int64_t>(bytes.size()) != bits)
      throw bad_request("mask: " + std::to_string(bytes.size()) + " elements, " + std::to_string(bits) +
                        " pairs of a query and a key");
    flags = {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  }
  std::vector<std::uint8_t> packed(value_of(packed_mask_bytes(shape)));
  std::vector<std::int32_t> bit_indptr(shape.query_counts.size() + 1), byte_indptr(bit_indptr.size());
  const auto done = run_without_gil([&] { return pack_masks(packed, shape, flags, bit_indptr, byte_indptr); });
  if (!done) throw failure_of(done.error());
  return nb::module_::import_("kvstore.paging")
      .attr("PackedMasks")(numpy_of<std::uint8_t>(std::move(packed)), numpy_of<std::int32_t>(std::move(bit_indptr)),
                           numpy_of<std::int32_t>(std::move(byte_indptr)));
}

}  // namespace

void bind_masks(nb::module_& module) {
  using namespace nb::literals;
  module.def("pack_masks", &packed_masks_of, "query_counts"_a, "kv_counts"_a, "mask"_a = nb::none());
}

}  // namespace kv::python
