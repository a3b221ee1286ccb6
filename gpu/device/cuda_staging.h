// gpu/device/cuda_staging.h: staging's lines and marks on an NVIDIA device: two streams of its own, and events.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/numa.h"
#include "gpu/device/cuda_module.h"
#include "gpu/staging_device.h"

namespace kv {

/// Marks are events from a ring per line. If a mark's event was recorded again, waits use the later recording, which
/// passes no earlier: a mark never goes stale. Thread safety: none. Time: the steady clock.
class CudaStagingDevice final : public StagingDevice {
 public:
  /// On that device, from any thread; -1: this thread's. Page-locked memory is allocated where `numa` says.
  static Result<std::unique_ptr<CudaStagingDevice>> create(std::shared_ptr<const CudaModule> module, int device = -1,
                                                           NumaChoice numa = {});
  ~CudaStagingDevice() override;  ///< Waits for both lines.

  /// Later work of the caller's stream waits for `mark`: how an engine's layer waits for its pages.
  Result<void> wait_on_stream(void* stream, Mark mark);
  /// The line waits for the caller's stream's work so far: pages still being computed.
  Result<void> wait_for_stream(Line line, void* stream);

  std::byte* allocate(StagingMemory kind, std::size_t bytes) override;
  void free(StagingMemory kind, std::byte* memory) override;
  Result<void> copy(const Copy2d& copy) override;
  Result<void> permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from, const Rows& from_rows,
                       std::int64_t row_count, const Operation& operation, int block_count_max) override;
  Result<void> clear(std::byte* device_memory, std::size_t bytes) override;
  Result<Mark> mark(Line line) override;
  Result<void> wait_on_line(Line line, Mark mark) override;
  Result<void> wait(Mark mark, TimePoint deadline) const override;
  TimePoint now() const override { return std::chrono::steady_clock::now(); }

 private:
  static constexpr std::size_t kEvents = 256;
  struct Queue {
    void* stream = nullptr;
    std::vector<void*> events = {};
    std::uint64_t marked = 0;
  };

  CudaStagingDevice(std::shared_ptr<const CudaModule> module, int device, NumaChoice numa)
      : module_(std::move(module)), device_(device), numa_(std::move(numa)) {}
  Queue& queue(Line line) { return queues_[static_cast<std::size_t>(line)]; }
  void* event_of(Mark mark) const { return queues_[static_cast<std::size_t>(mark.line)].events[mark.number % kEvents]; }

  std::shared_ptr<const CudaModule> module_;
  int device_;
  NumaChoice numa_;
  std::array<Queue, 2> queues_;
  void* borrowed_event_ = nullptr;  ///< Recorded on the caller's streams.
};

}  // namespace kv
