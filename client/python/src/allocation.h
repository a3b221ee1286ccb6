// client/python/src/allocation.h: memory that is lent to nodes, made on a thread that nobody has to wait for.
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

/// What a client allocated. Once it was taken back from the client, this alone keeps it mapped.
/// Thread safety: all, since a client can be closed while the last view of its memory goes.
class LentMemory {
 public:
  LentMemory(std::shared_ptr<IoClient> io, std::span<std::byte> bytes) : io_(std::move(io)), bytes_(bytes) {}

  const std::shared_ptr<IoClient>& io() const { return io_; }
  std::span<std::byte> bytes() const { return bytes_; }
  /// Takes it back from the client; it stays mapped as long as this lives. Without the GIL.
  void take_back();
  /// The same, and unmaps it: 0.1 s a GiB. Nobody may look at it any more.
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

/// Memory on its way. All of it is touched first, 0.3 s a GiB and more on slow machines, and nothing can stop that: so
/// a thread of its own does it, and who waits may leave.
///   1. call() ends once: with the memory, or with why there is none.
///   2. Memory that nobody waits for any longer goes back to the client; until then it counts against its limit.
/// Thread safety: all. None needs the GIL.
class Allocation {
 public:
  /// Throws StatusError if no thread can be had. Requires that the client is this process's.
  static std::shared_ptr<Allocation> begin(std::shared_ptr<IoClient> io, std::size_t bytes);
  Allocation(std::shared_ptr<IoClient> io, std::size_t bytes) : io_(std::move(io)), bytes_(bytes) {}

  const Call& call() const { return *call_; }
  /// Requires that call() has ended without an error.
  std::shared_ptr<LentMemory> memory() const;
  void abandon();

 private:
  void make();
  /// Makes it, unless there is an error; the client owns what was made.
  error_code make_memory(std::span<std::byte>& made);

  const std::shared_ptr<IoClient> io_;
  const std::size_t bytes_;
  const CallPtr call_ = std::make_shared<Call>();
  enum class State : std::uint8_t { kWaitedFor, kMade, kAbandoned };
  std::atomic<State> state_{State::kWaitedFor};
};

}  // namespace kv::python
