#include "client/python/src/caches/device_call.h"

#include <nanobind/stl/shared_ptr.h>

#include <functional>
#include <span>
#include <string>
#include <utility>

#include "client/python/src/caches/moves.h"
#include "client/python/src/errors.h"
#include "client/python/src/without_gil.h"
#include "gpu/permute.h"
#include "gpu/plans/verified_plan.h"

namespace kv::python {
namespace {

/// How many ids a call of so many rows uses.
std::int64_t used_ids(const Side& side, std::int64_t row_count) {
  if (side.block_tokens == 0 || row_count == 0) return row_count;
  return (row_count - 1) / side.block_tokens + 1;
}

/// The device skips an id beyond a cache silently; ids on the host are checked here.
void check_ids(const Side& side, std::int64_t row_count) {
  const Layout& layout = side.cache.bound().layout;
  const bool is_blocks = side.block_tokens > 0;
  const std::int64_t limit = is_blocks ? layout.block_count : layout.slot_count();
  if (!side.ids.is_given()) {
    if (row_count > limit)
      throw bad_request("count: " + std::to_string(row_count) + " rows, " + side.name + " has " +
                        std::to_string(limit));
    return;
  }
  if (side.ids.is_on_device()) return;
  const auto ids = side.ids.values().first(static_cast<std::size_t>(used_ids(side, row_count)));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= limit)
      throw bad_request(side.ids.name() + "[" + std::to_string(i) + "]: " + std::to_string(ids[i]) + " is beyond the " +
                        std::to_string(limit) + (is_blocks ? " blocks of " : " slots of ") + side.name);
  }
}

std::size_t room_for(const Side& side, std::int64_t row_count) {
  if (!side.ids.is_given() || side.ids.is_on_device()) return 0;
  return Scratch::room_for(static_cast<std::size_t>(used_ids(side, row_count)) * sizeof(std::int64_t));
}

Rows rows_of(const Side& side, std::int64_t row_count, Scratch& scratch) {
  if (!side.ids.is_given()) return Rows::range();
  if (side.ids.is_on_device()) return side.ids.rows(side.ids.address(), side.block_tokens);
  const auto used = static_cast<std::size_t>(used_ids(side, row_count));
  return side.ids.rows(scratch.keep(side.ids.values().first(used)), side.block_tokens);
}

/// The same arrays where a kernel reaches them.
VerifiedBlocks verified_of(const Checksums& checksums, Scratch& scratch) {
  VerifiedBlocks verified;
  verified.block_count = static_cast<std::int64_t>(checksums.seeds.size());
  verified.seeds = scratch.keep(checksums.seeds);
  verified.sums = checksums.made.data();
  verified.expected = scratch.keep(checksums.expected);
  verified.verdicts = checksums.verdicts.data();
  return verified;
}

std::string device_text(int device) { return "CUDA device " + std::to_string(device); }

/// The device of a call. Throws unless it has all memory of the call, or reaches the host's.
int device_of(const CudaModule& module, const Cache& to, const char* to_name, const Cache& from,
              const char* from_name) {
  const int device = to.device() >= 0 ? to.device() : from.device();
  for (const auto& [cache, name] : {std::pair(&to, to_name), std::pair(&from, from_name)}) {
    if (cache->device() < 0) {
      cache->check_reachable(module, name);
    } else if (cache->device() != device) {
      throw bad_request(std::string(name) + ": on " + device_text(cache->device()) + ", " + to_name + " is on " +
                        device_text(device));
    }
  }
  return device;
}

/// Enqueues by `launch(stream, grid_max)`, and keeps what the device reads until the returned event has passed.
/// `on_mismatch` throws.
std::shared_ptr<DeviceEvent> launch_and_keep(std::shared_ptr<const CudaModule> module, int device, const Where& where,
                                             Scratch scratch, std::vector<nb::object> holds,
                                             const std::function<Result<void>(void*, int)>& launch,
                                             const std::function<void()>& on_mismatch) {
  void* const stream = *where.stream;
  const int grid_max = where.grid_max > 0 ? where.grid_max : CudaModule::kBlockCountMax;
  const auto launched = run_without_gil([&] { return launch(stream, grid_max); });  // a full queue makes it wait
  if (!launched && launched.error() == Errc::kMismatch) on_mismatch();
  // Also after a failed launch: others may have been enqueued before it.
  const std::shared_ptr<DeviceEvent> event = DeviceEvent::record(std::move(module), device, stream);
  keep_until(event, std::move(scratch), std::move(holds));
  check_cuda(launched, "stream");
  return event;
}

}  // namespace

bool is_for_device(const Where& where, const Cache& to, const char* to_name, const Cache& from, const char* from_name) {
  const bool is_device = to.device() >= 0 || from.device() >= 0;
  const char* const name = to.device() >= 0 ? to_name : from_name;
  if (is_device && !where.stream)
    throw bad_request("stream: none is given, and " + std::string(name) + " is on " +
                      device_text(to.device() >= 0 ? to.device() : from.device()) +
                      ": say on which of its streams, torch.cuda.current_stream() for instance");
  if (!is_device && where.stream)
    throw bad_request("stream: one is given, and both " + std::string(to_name) + " and " + from_name +
                      " are the host's");
  if (where.grid_max < 0) throw bad_request("grid_max: " + std::to_string(where.grid_max) + " is not 0 or more");
  return is_device;
}

std::shared_ptr<DeviceEvent> enqueue(const Where& where, const Side& to, const Side& from, std::int64_t row_count,
                                     const Operation& operation, std::vector<nb::object> holds,
                                     const Checksums* checksums) {
  const auto module = cuda();
  let_go();
  const int device = device_of(*module, to.cache, to.name, from.cache, from.name);
  for (const Side* side : {&to, &from}) check_ids(*side, row_count);
  const BoundLayout& target = to.cache.writable(to.name);
  const BoundLayout& source = from.cache.bound();
  const bool is_rotation = operation.kind == Operation::Kind::kRotate;
  const std::span frequencies(operation.rotation.frequencies,
                              is_rotation ? static_cast<std::size_t>(operation.rotation.rotary_size / 2) : 0);
  const std::span deltas(operation.rotation.deltas,
                         is_rotation && operation.rotation.deltas != nullptr ? static_cast<std::size_t>(row_count) : 0);
  Scratch scratch(*module, room_for(to, row_count) + room_for(from, row_count) +
                               Scratch::room_for(frequencies.size_bytes()) + Scratch::room_for(deltas.size_bytes()) +
                               (checksums == nullptr ? 0
                                                     : Scratch::room_for(checksums->seeds.size_bytes()) +
                                                           Scratch::room_for(checksums->expected.size_bytes())));
  const Rows to_rows = rows_of(to, row_count, scratch), from_rows = rows_of(from, row_count, scratch);
  Operation enqueued = operation;
  if (!frequencies.empty()) enqueued.rotation.frequencies = scratch.keep(frequencies);
  if (!deltas.empty()) enqueued.rotation.deltas = scratch.keep(deltas);
  const VerifiedBlocks verified = checksums == nullptr ? VerifiedBlocks() : verified_of(*checksums, scratch);
  const auto launch = [&](void* stream, int grid_max) {
    if (checksums == nullptr)
      return module->permute(target, to_rows, source, from_rows, row_count, enqueued, stream, grid_max);
    return checksums->is_scatter
               ? module->scatter_verified(target, to_rows, source, verified, enqueued, stream, grid_max)
               : module->gather_with_checksums(target, source, from_rows, verified, enqueued, stream, grid_max);
  };
  const auto on_mismatch = [&] { check_moved(Errc::kMismatch, target.layout, source.layout, enqueued); };
  return launch_and_keep(module, device, where, std::move(scratch), std::move(holds), launch, on_mismatch);
}

nb::object move_rows(const Where& where, const Side& to, const Side& from, std::int64_t row_count,
                     const Operation& operation, std::vector<nb::object> holds) {
  if (is_for_device(where, to.cache, to.name, from.cache, from.name))
    return nb::cast(enqueue(where, to, from, row_count, operation, std::move(holds)));
  const BoundLayout& target = to.cache.writable(to.name);
  const BoundLayout& source = from.cache.bound();
  const Rows to_rows = to.ids.on_host(to.block_tokens), from_rows = from.ids.on_host(from.block_tokens);
  const auto moved = run_without_gil([&] { return permute(target, to_rows, source, from_rows, row_count, operation); });
  check_moved(moved, target.layout, source.layout, operation);
  return nb::none();
}

std::shared_ptr<DeviceEvent> enqueue_kept(const Where& where, const Cache& cache, std::span<const KeepRow> rows,
                                          const Cache& source, std::vector<nb::object> holds) {
  const auto module = cuda();
  let_go();
  const int device = device_of(*module, cache, "cache", source, "source");
  const BoundLayout& target = cache.writable("cache");
  Scratch scratch(*module, Scratch::room_for(rows.size_bytes()));
  const std::span kept(rows.empty() ? nullptr : scratch.keep(rows), rows.size());
  const auto launch = [&](void* stream, int grid_max) {
    return module->scatter_kept(target, kept, source.bound(), stream, grid_max);
  };
  const auto on_mismatch = [] { throw failure_of(Errc::kMismatch); };
  return launch_and_keep(module, device, where, std::move(scratch), std::move(holds), launch, on_mismatch);
}

}  // namespace kv::python
