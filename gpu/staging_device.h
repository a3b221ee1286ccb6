// gpu/staging_device.h: a device for staging: memory of both kinds, two lines of work in order, and marks between them.
// On CUDA streams and events (gpu/device/cuda_staging.h); in tests, a random scheduler runs the lines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/result.h"
#include "gpu/permute.h"

namespace kv {

/// Work on one line runs in the order of enqueueing; lines run side by side.
enum class Line : std::uint8_t {
  kCopy,    ///< The copy engine's: long transfers.
  kKernel,  ///< Scatter and gather.
};

/// All work enqueued on a line up to some moment. Number 0: no work, already passed.
struct Mark {
  Line line = Line::kCopy;
  std::uint64_t number = 0;
};

/// `height` rows of `width_bytes`, each side's rows `pitch` apart.
struct Copy2d {
  std::byte* to = nullptr;
  std::size_t to_pitch = 0;
  const std::byte* from = nullptr;
  std::size_t from_pitch = 0;
  std::size_t width_bytes = 0;
  std::size_t height = 0;
};

enum class StagingMemory : std::uint8_t { kDevice, kPageLocked };

/// Thread safety: none. Enqueuing never waits.
class StagingDevice {
 public:
  virtual ~StagingDevice() = default;

  virtual std::byte* allocate(StagingMemory kind, std::size_t bytes) = 0;  ///< Null: out of memory.
  virtual void free(StagingMemory kind, std::byte* memory) = 0;            ///< Null is allowed.

  /// Enqueues a copy on Line::kCopy. Host memory is page-locked, and stays until the line has passed.
  virtual Result<void> copy(const Copy2d& copy) = 0;
  /// Enqueues permute() on Line::kKernel, with at most `block_count_max` blocks per component and layer.
  virtual Result<void> permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                               const Rows& from_rows, std::int64_t row_count, const Operation& operation,
                               int block_count_max) = 0;

  /// Enqueues zeros on Line::kKernel.
  virtual Result<void> clear(std::byte* device_memory, std::size_t bytes) = 0;

  virtual Result<Mark> mark(Line line) = 0;                            ///< After the work enqueued there so far.
  virtual Result<void> wait_on_line(Line line, Mark mark) = 0;         ///< The line goes on once `mark` is passed.
  virtual Result<void> wait(Mark mark, TimePoint deadline) const = 0;  ///< Blocks. Errors: timed_out; the device's own.
  virtual TimePoint now() const = 0;
};

}  // namespace kv
