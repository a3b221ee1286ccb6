// client/python/src/caches/device_call.h: a Python call that moves rows on a GPU: checked, enqueued, kept until its
// event.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/python/src/caches/cache.h"
#include "client/python/src/caches/call_rows.h"
#include "client/python/src/caches/device.h"
#include "gpu/compress.h"
#include "gpu/operation.h"

namespace kv::python {

/// Where a call runs.
struct Where {
  Where(nb::handle given, int most) : grid_max(most) {
    if (!given.is_none()) stream = stream_from(given);
  }
  std::optional<void*> stream;  ///< A cudaStream_t; null is the default one. Unset: on the host.
  int grid_max;                 ///< CUDA blocks of a launch; 0: as many as help.
};

/// One side of a call. `ids`: its rows; if not given, the first ones.
struct Side {
  const Cache& cache;
  const char* name;  ///< The argument's.
  const Ids& ids;
  std::int64_t block_tokens = 0;  ///< Tokens of the blocks that `ids` names; 0: slots.
};

/// Of a call between the store's blocks and a cache: checksums for each stripe of each block, on the host.
struct Checksums {
  bool is_scatter;
  std::span<const std::uint64_t> seeds;     ///< One per block. Copied.
  std::span<std::uint64_t> made;            ///< Of a gather; page-locked.
  std::span<const std::uint64_t> expected;  ///< Of a scatter. Copied.
  std::span<std::uint32_t> verdicts;        ///< Of a scatter, one per block; page-locked.
};

/// Whether a call runs on a device. Throws if caches and stream disagree.
bool is_for_device(const Where& where, const Cache& to, const char* to_name, const Cache& from, const char* from_name);

/// Enqueues it. Copies `operation`'s arrays, which are the host's, and checks and copies host ids. Keeps `holds`, which
/// may own the sides' memory, until the event has passed. With `checksums` one side, the one without ids, is blocks.
std::shared_ptr<DeviceEvent> enqueue(const Where& where, const Side& to, const Side& from, std::int64_t row_count,
                                     const Operation& operation, std::vector<nb::object> holds,
                                     const Checksums* checksums = nullptr);

/// Moves the rows: here and now, or on a device, and then returns its event. As enqueue().
nb::object move_rows(const Where& where, const Side& to, const Side& from, std::int64_t row_count,
                     const Operation& operation, std::vector<nb::object> holds);

/// The same as enqueue() for the rows of a pruned cache. They are the host's, in range, and copied.
std::shared_ptr<DeviceEvent> enqueue_kept(const Where& where, const Cache& cache, std::span<const KeepRow> rows,
                                          const Cache& source, std::vector<nb::object> holds);

}  // namespace kv::python
