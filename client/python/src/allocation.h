// client/python/src/allocation.h: memory lent to nodes, allocated on a thread of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "client/python/src/io_client.h"
#include "gpu/device/cuda_module.h"

namespace kv::python {

/// A client's allocation. After it was taken back from the client, this alone keeps it mapped. Thread safety: all,
/// since a client can be closed while the last view of its memory goes.
class LentMemory {
 public:
  LentMemory(std::shared_ptr<IoClient> io, std::span<std::byte> bytes) : io_(std::move(io)), bytes_(bytes) {}

  const std::shared_ptr<IoClient>& io() const { return io_; }
  std::span<std::byte> bytes() const { return bytes_; }
  /// Takes it back from the client; it stays mapped as long as this lives. Without the GIL.
  void take_back();
  /// The same, and unmaps it: 0.1 s per GiB. Views must be gone.
  void unmap();
  /// Page-locks it until it is unmapped, so that GPUs reach it. Without the GIL.
  Result<void> lock_pages(std::shared_ptr<const CudaModule> module);

 private:
  const std::shared_ptr<IoClient> io_;
  const std::span<std::byte> bytes_;
  std::mutex mutex_;  ///< Not taken in a child of fork(), where it may be held for ever.
  std::shared_ptr<const void> mapping_;
  std::shared_ptr<const CudaModule> locked_by_;
};

/// Memory being allocated. All pages are touched first, 0.3 s per GiB and more on slow machines, and this cannot be
/// interrupted: so a thread of its own does it, and the waiting caller may leave.
///   1. call() ends once: with the memory, or with an error.
///   2. Abandoned memory goes back to the client; until then it counts against the client's limit.
/// Thread safety: all. The GIL is not needed.
class Allocation {
 public:
  /// Throws StatusError if the thread cannot be started. Requires that the client is this process's.
  static std::shared_ptr<Allocation> begin(std::shared_ptr<IoClient> io, std::size_t bytes);
  Allocation(std::shared_ptr<IoClient> io, std::size_t bytes) : io_(std::move(io)), bytes_(bytes) {}

  const Call& call() const { return *call_; }
  /// Requires that call() has ended without an error.
  std::shared_ptr<LentMemory> memory() const;
  void abandon();

 private:
  void make();
  /// Allocates; on success the client owns the memory.
  error_code make_memory(std::span<std::byte>& made);

  const std::shared_ptr<IoClient> io_;
  const std::size_t bytes_;
  const CallPtr call_ = std::make_shared<Call>();
  enum class State : std::uint8_t { kWaitedFor, kMade, kAbandoned };
  std::atomic<State> state_{State::kWaitedFor};
};

}  // namespace kv::python
