// Moves between a cache and the store's blocks that compute or verify the blocks' checksums on the way.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/caches/cache.h"
#include "client/python/src/caches/call_rows.h"
#include "client/python/src/caches/device.h"
#include "client/python/src/caches/device_call.h"
#include "client/python/src/caches/moves.h"
#include "client/python/src/errors.h"
#include "client/python/src/without_gil.h"
#include "gpu/verified.h"

namespace kv::python {
namespace {

/// One side of a call, the store's blocks, and the arguments beside it.
class VerifiedCall {
 public:
  VerifiedCall(const Cache& blocks, const char* name, const Cache& cache, nb::handle slots, nb::handle block_ids,
               std::optional<std::int64_t> count, nb::handle seeds, nb::handle move)
      : rows(slots, block_ids, cache.bound().layout.block_tokens, count),
        moves(moves_from(move)),
        seeds_(seeds, "seeds") {
    const Layout& layout = blocks.bound().layout;
    const std::int64_t block_bytes = dense_block_bytes(layout);
    if (block_bytes == 0)
      throw StatusError{static_cast<int>(Errc::kMismatch), std::string(name) + ": not bound to store_block()'s layout"};
    if (rows.count() > layout.slot_count())
      throw bad_request("count: " + std::to_string(rows.count()) + " rows, " + name + " has " +
                        std::to_string(layout.slot_count()));
    if (rows.count() % layout.block_tokens != 0)
      throw bad_request("count: " + std::to_string(rows.count()) + " rows are not whole blocks of " +
                        std::to_string(layout.block_tokens) + " tokens");
    if (!rows.ids().is_given() || rows.block_tokens() == 0 || layout.block_tokens % rows.block_tokens() == 0) {
      block_count = static_cast<std::size_t>(rows.count() / layout.block_tokens);
    } else {
      throw bad_request("blocks: of " + std::to_string(rows.block_tokens()) + " tokens, which do not divide the " +
                        std::to_string(layout.block_tokens) + " of " + name);
    }
    if (seeds_.values().size() != block_count)
      throw bad_request("seeds: " + std::to_string(seeds_.values().size()) + " for " + std::to_string(block_count) +
                        " blocks");
    stripes = stripe_count(static_cast<std::size_t>(block_bytes));
    check_deltas(*moves, rows.count());
  }

  std::span<const std::uint64_t> seeds() const { return seeds_.values(); }

  /// `count` numbers of T. On a device, kernels write those that are `is_written`, so they must be page-locked.
  template <class T>
  std::span<T> array(Holds& holds, nb::handle object, const char* name, std::size_t count, bool is_written,
                     bool is_for_device) const {
    const std::span<T> values = integers_of<T>(holds.emplace_back(object, name, is_written));
    if (values.size() != count)
      throw bad_request(std::string(name) + ": " + std::to_string(values.size()) + ", " + std::to_string(block_count) +
                        " blocks have " + std::to_string(count));
    if (is_for_device && is_written && !values.empty()) {
      for (const T* const at : {&values.front(), &values.back()}) {
        if (cuda()->place_of(at).kind == CudaModule::MemoryKind::kHost)
          throw bad_request(std::string(name) + ": host memory that is not page-locked, which a device does not reach");
      }
    }
    return values;
  }

  const NamedRows rows;
  const std::unique_ptr<Moves> moves;
  std::size_t block_count = 0, stripes = 0;

 private:
  Numbers<std::uint64_t> seeds_;
};

nb::object gather_summed(const nb::object& target, const nb::object& cache, nb::handle seeds, const nb::object& sums,
                         nb::handle slots, nb::handle blocks, std::optional<std::int64_t> count, nb::handle move,
                         nb::handle stream, int grid_max) {
  const Where where(stream, grid_max);
  const Cache& to = nb::cast<const Cache&>(target);
  const Cache& from = nb::cast<const Cache&>(cache);
  const VerifiedCall call(to, "target", from, slots, blocks, count, seeds, move);
  const bool is_device = is_for_device(where, to, "target", from, "cache");
  Holds holds;
  const auto made = call.array<std::uint64_t>(holds, sums, "checksums", call.block_count * call.stripes,
                                              /*is_written=*/true, is_device);
  if (is_device) {
    const Checksums checksums{.is_scatter = false, .seeds = call.seeds(), .made = made, .expected = {}, .verdicts = {}};
    return nb::cast(enqueue(where, {to, "target", Ids::none()},
                            {from, "cache", call.rows.ids(), call.rows.block_tokens()}, call.rows.count(),
                            call.moves->operation, {target, cache, nb::borrow(slots), nb::borrow(blocks), sums},
                            &checksums));
  }
  const BoundLayout& written = to.writable("target");
  const Rows rows = call.rows.ids().on_host(call.rows.block_tokens());
  const Operation& operation = call.moves->operation;
  const auto done = run_without_gil(
      [&] { return gather_with_checksums(written, from.bound(), rows, call.seeds(), made, operation); });
  check_moved(done, written.layout, from.bound().layout, operation);
  return nb::none();
}

nb::object scatter_checked(const nb::object& cache, const nb::object& source, nb::handle seeds, const nb::object& sums,
                           const nb::object& verdicts, nb::handle slots, nb::handle blocks,
                           std::optional<std::int64_t> count, nb::handle move, nb::handle stream, int grid_max) {
  const Where where(stream, grid_max);
  const Cache& to = nb::cast<const Cache&>(cache);
  const Cache& from = nb::cast<const Cache&>(source);
  const VerifiedCall call(from, "source", to, slots, blocks, count, seeds, move);
  const bool is_device = is_for_device(where, to, "cache", from, "source");
  Holds holds;
  const std::span<const std::uint64_t> expected = call.array<std::uint64_t>(
      holds, sums, "checksums", call.block_count * call.stripes, /*is_written=*/false, is_device);
  const auto judged =
      call.array<std::uint32_t>(holds, verdicts, "verdicts", call.block_count, /*is_written=*/true, is_device);
  if (is_device) {
    const Checksums checksums{
        .is_scatter = true, .seeds = call.seeds(), .made = {}, .expected = expected, .verdicts = judged};
    return nb::cast(enqueue(where, {to, "cache", call.rows.ids(), call.rows.block_tokens()},
                            {from, "source", Ids::none()}, call.rows.count(), call.moves->operation,
                            {cache, source, nb::borrow(slots), nb::borrow(blocks), verdicts}, &checksums));
  }
  const BoundLayout& target = to.writable("cache");
  const Rows rows = call.rows.ids().on_host(call.rows.block_tokens());
  const Operation& operation = call.moves->operation;
  const auto done =
      run_without_gil([&] { return scatter_verified(target, rows, from.bound(), call.seeds(), expected, operation); });
  check_moved(done ? Result<void>() : Result<void>(done.error()), target.layout, from.bound().layout, operation);
  std::ranges::fill(judged.first(static_cast<std::size_t>(*done)), 0U);
  std::ranges::fill(judged.subspan(static_cast<std::size_t>(*done)), 1U);
  return nb::none();
}

}  // namespace

void bind_verified(nb::module_& module) {
  using namespace nb::literals;
  module.def("gather_with_checksums", &gather_summed, "target"_a, "cache"_a, nb::kw_only(), "seeds"_a, "checksums"_a,
             "slots"_a = nb::none(), "blocks"_a = nb::none(), "count"_a = nb::none(), "move"_a = nb::none(),
             "stream"_a = nb::none(), "grid_max"_a = 0);
  module.def("scatter_verified", &scatter_checked, "cache"_a, "source"_a, nb::kw_only(), "seeds"_a, "checksums"_a,
             "verdicts"_a, "slots"_a = nb::none(), "blocks"_a = nb::none(), "count"_a = nb::none(),
             "move"_a = nb::none(), "stream"_a = nb::none(), "grid_max"_a = 0);
}

}  // namespace kv::python
