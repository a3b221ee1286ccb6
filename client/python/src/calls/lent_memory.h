// client/python/src/calls/lent_memory.h: host memory that nodes fill and drain, kept mapped for Python's arrays.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "client/python/src/calls/client_core.h"
#include "gpu/device/cuda_module.h"

namespace kv::python {

/// A client's allocation. After it was taken back from the client, this alone keeps it mapped. Thread safety: all,
/// since a client can be closed while the last view of its memory goes.
class LentMemory {
 public:
  LentMemory(std::shared_ptr<ClientCore> core, std::span<std::byte> bytes) : core_(std::move(core)), bytes_(bytes) {}

  const std::shared_ptr<ClientCore>& core() const { return core_; }
  std::span<std::byte> bytes() const { return bytes_; }
  /// Takes it back from the client; it stays mapped as long as this lives. Without the GIL.
  void take_back(BlockingClient& client);
  /// The same, and unmaps it: 0.1 s per GiB. Views must be gone.
  void unmap();
  /// Page-locks it until it is unmapped, so that GPUs reach it. Without the GIL.
  Result<void> lock_pages(std::shared_ptr<const CudaModule> module);

 private:
  const std::shared_ptr<ClientCore> core_;
  const std::span<std::byte> bytes_;
  std::mutex mutex_;  ///< Not taken in a child of fork(), where it may be held for ever.
  std::shared_ptr<const void> mapping_;
  std::shared_ptr<const CudaModule> locked_by_;
};

/// All pages are touched first, 0.3 s per GiB and more on slow machines, and this cannot be interrupted: so a thread of
/// its own does it, and after Ctrl-C the caller leaves. The unfinished memory then goes back by itself; until it has,
/// it counts against the client's limit. Requires the GIL. Throws StatusError.
std::shared_ptr<LentMemory> allocate(const std::shared_ptr<ClientCore>& core, std::size_t bytes);

}  // namespace kv::python
