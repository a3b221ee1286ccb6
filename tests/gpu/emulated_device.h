// tests/gpu/emulated_device.h: a device whose lines run as late and in as odd an order as marks allow, on virtual time.
// Whoever reads or overwrites a buffer too early gets wrong bytes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "gpu/staging_device.h"

namespace kv {

/// What things cost, in nanoseconds and bytes per nanosecond.
struct DeviceCosts {
  double launch = 1000;         ///< Of the caller, for anything it enqueues.
  double copy_start = 8000;     ///< A copy, before its first byte.
  double bus = 50;              ///< Its bytes.
  double kernel_start = 4000;   ///< A kernel.
  double device_memory = 2000;  ///< A kernel's bytes in device memory,
  double host_memory = 20;      ///< and in the host's.
};

class EmulatedDevice final : public StagingDevice {
 public:
  explicit EmulatedDevice(std::uint64_t seed, DeviceCosts costs = {}) : random_(seed), costs_(costs) {}
  ~EmulatedDevice() override;

  /// Host memory that the device may touch.
  void lock_pages(const std::byte* memory, std::size_t bytes) { memory_[memory] = {bytes, false}; }
  /// Memory of a test's that plays the device's.
  void map_device(const std::byte* memory, std::size_t bytes) { memory_[memory] = {bytes, true}; }
  void fail_allocations_after(int count) { allocations_left_ = count; }
  void advance(Duration by) { now_ += by; }
  int copy_count() const { return copy_count_; }
  int kernel_count() const { return kernel_count_; }
  std::size_t live_allocations() const { return owned_.size(); }
  /// Whether the mark was passed by now.
  bool is_passed(Mark mark) const;

  std::byte* allocate(StagingMemory kind, std::size_t bytes) override;
  void free(StagingMemory kind, std::byte* memory) override;
  Result<void> copy(const Copy2d& copy) override;
  Result<void> permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from, const Rows& from_rows,
                       std::int64_t row_count, const Operation& operation, int block_count_max) override;
  Result<void> clear(std::byte* device_memory, std::size_t bytes) override;
  Result<Mark> mark(Line line) override;
  Result<void> wait_on_line(Line line, Mark mark) override;
  Result<void> wait(Mark mark, TimePoint deadline) const override;
  TimePoint now() const override { return now_; }

 private:
  struct Task {
    std::function<void()> run;
    Duration cost;
    Mark after;  ///< For a wait.
    TimePoint enqueued;
  };
  struct Queue {
    std::deque<Task> tasks;
    std::uint64_t enqueued = 0;
    std::vector<TimePoint> finished = {TimePoint()};  ///< By number.
  };
  struct Memory {
    std::size_t bytes;
    bool is_device;
  };

  Queue& queue(Line line) const { return queues_[static_cast<std::size_t>(line)]; }
  bool run_one(Line line) const;
  void run_some() const;
  void enqueue(Line line, std::function<void()> run, double nanoseconds, Mark after = {});
  /// Whether [at, at + bytes) is in device memory; fails the test if the device cannot touch it.
  bool is_in_device(const std::byte* at, std::size_t bytes) const;

  mutable std::mt19937_64 random_;
  DeviceCosts costs_;
  mutable TimePoint now_{Duration{1'000'000'000}};
  mutable std::array<Queue, 2> queues_;
  std::map<const std::byte*, Memory> memory_;
  std::map<const std::byte*, std::vector<std::byte>> owned_;
  int allocations_left_ = 1 << 30;
  int copy_count_ = 0, kernel_count_ = 0;
};

}  // namespace kv
