// store/node/session/core/session_limits.h: the bounds and timeouts of one session; an operator may change them
// meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

#include "base/clock.h"

namespace kv {

/// Sent to the client at hello as far as it needs them.
struct SessionLimits {
  std::uint32_t table_bytes_max = 4 << 20;
  std::uint64_t payload_bytes_max = 1ull << 30;  ///< Of one PutData; and so of a block.
  std::uint32_t requests_max = 1024;             ///< Gets being moved and puts, in flight.
  std::uint64_t region_bytes_max = 64ull << 30;  ///< Lent by one session.
  std::uint32_t region_count_max = 256;
  std::uint64_t queued_bytes_max = 64 << 20;  ///< Answers not yet taken by the client; then reading stops.
  Duration hello_timeout = 10s;
  Duration frame_timeout = 5s;   ///< For a header and table to arrive, and for each further 64 KiB of payload.
  Duration write_timeout = 30s;  ///< Without the client taking a byte.
  /// Bytes per second: a client that takes queued bytes more slowly over write_timeout loses its session; 0: off.
  std::uint64_t read_rate_min = 1 << 20;
  /// After the client's certificate has expired: until then the session ends when it is idle, then at once.
  Duration certificate_grace = 300s;
  Duration get_timeout = 120s;  ///< From request to last byte; then it ends as if cancelled.
  // For an inline get: the bytes in one frame, queued ahead of the socket, and pinned ahead.
  std::uint64_t inline_frame_bytes = 8 << 20;  ///< At least one block.
  std::uint64_t inline_ahead_bytes = 16 << 20;
  std::uint64_t inline_window_bytes = 64 << 20;  ///< Or 1/16 of the request, if that is more.
  Duration put_timeout = 30s;                    ///< From offer to last byte; then its memory is freed.
  Duration put_wait_max = 5s;                    ///< The longest wait for memory.
  Duration spill_wait = 50ms;  ///< How long a put waits for the disk before it evicts unwritten blocks.
  Duration drop_wait = 2s;  ///< For the disk to keep a drop; then the answer says that it holds until the next start.
  Duration disk_timeout = 2s;  ///< For each block on disk; then the get's answer ends before it.
};

/// Each read of a session sees the limits in force: one load. Values sent to a client at hello stay as they are; if
/// they exceed the present limits, its requests are refused like any over a limit.
///   1. Old limits are kept, since a thread may be reading them: some 200 bytes for each change by an operator.
/// Thread safety: all calls from any thread.
class LiveLimits {
 public:
  LiveLimits() : LiveLimits(SessionLimits{}) {}
  LiveLimits(const SessionLimits& limits) { set(limits); }  // NOLINT: so that a NodeContext can be made with limits

  const SessionLimits* operator->() const { return now_.load(std::memory_order_acquire); }
  const SessionLimits& operator*() const { return *now_.load(std::memory_order_acquire); }
  void set(const SessionLimits& limits) {
    const std::lock_guard lock(mutex_);
    all_.push_back(limits);
    now_.store(&all_.back(), std::memory_order_release);
  }

 private:
  std::mutex mutex_;
  std::deque<SessionLimits> all_;  // a deque, since it never moves its elements
  std::atomic<const SessionLimits*> now_{nullptr};
};

}  // namespace kv
