// client/python/src/device_call.h: one call of Python's that moves rows on a GPU: checked, enqueued, and kept alive
// until its event has passed.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/python/src/cache.h"
#include "client/python/src/call_rows.h"
#include "client/python/src/device.h"
#include "gpu/operation.h"

namespace kv::python {

/// Where a call runs: what its `stream` and `grid_max` say.
struct Where {
  std::optional<std::uintptr_t> stream;  ///< A cudaStream_t; 0 is the default one. None: on the host.
  int grid_max = 0;                      ///< CUDA blocks of a launch; 0: as many as help.
};

/// One side of a call. `ids`: which rows of it; none are given: the first ones.
struct Side {
  const Cache& cache;
  const char* name;  ///< The argument's.
  const Ids& ids;
  std::int64_t block_tokens = 0;  ///< Of blocks that `ids` names; 0: slots.
};

/// Whether a call runs on a device. Throws where caches and stream do not say the same.
bool is_for_device(const Where& where, const Cache& to, const char* to_name, const Cache& from, const char* from_name);

/// Enqueues it. `operation`'s arrays are the host's, and copied; so are ids of the host's, which are looked at. What
/// `holds` has stays until the event has passed, and so does what the sides refer to, if it is in `holds`. Throws
/// kMismatch without a text where the layouts do not fit.
std::shared_ptr<DeviceEvent> enqueue(const Where& where, const Side& to, const Side& from, std::int64_t row_count,
                                     const Operation& operation, std::vector<nb::object> holds);

}  // namespace kv::python
