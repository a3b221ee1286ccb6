// store/node/log/log_limit.h: keeps a client from filling the log.
#pragma once

#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"

namespace kv {

/// Kinds of lines that a client can cause. Separate limits, so that a flood of one kind hides no other.
enum class LogKind : std::uint8_t {
  kBadFrame,
  kBadMessage,
  kLane,
  kRefusedSession,
  kSlow,
  kHandshake,
  kDenied,
  kContext
};
inline constexpr std::size_t kLogKindCount = 8;

/// Admits at most kLinesPerSecond lines of each kind. The next admitted line reports how many were dropped. Thread
/// safety: all calls from any thread. Time: passed in.
class LogLimit {
 public:
  static constexpr std::uint32_t kLinesPerSecond = 10;

  /// Whether a line of this kind may be written now. If so, `*suppressed` is how many were dropped before it.
  bool admit(LogKind kind, TimePoint now, std::uint64_t* suppressed) {
    KV_ASSERT(static_cast<std::size_t>(kind) < kLogKindCount);
    const std::lock_guard lock(mutex_);
    Window& window = windows_[static_cast<std::size_t>(kind)];
    if (!window.began || now - window.since >= 1s)
      window = {.since = now, .began = true, .suppressed = window.suppressed};
    if (window.written == kLinesPerSecond) {
      ++window.suppressed;
      ++suppressed_count_;
      return false;
    }
    ++window.written;
    *suppressed = std::exchange(window.suppressed, 0);
    return true;
  }
  /// Writes a warning, or counts it as dropped. `make` is only called if its text is written.
  template <class Make>
  void warn(LogKind kind, TimePoint now, Make&& make) {
    std::uint64_t suppressed = 0;
    if (!admit(kind, now, &suppressed)) return;
    std::string text = make();
    if (suppressed > 0) text += fmt::format(" ({} lines like this one were not written)", suppressed);
    spdlog::warn("{}", text);
  }
  std::uint64_t suppressed_count() const { return suppressed_count_; }

 private:
  struct Window {
    TimePoint since{};
    bool began = false;
    std::uint32_t written = 0;
    std::uint64_t suppressed = 0;
  };
  std::mutex mutex_;
  std::array<Window, kLogKindCount> windows_;
  std::atomic<std::uint64_t> suppressed_count_{0};
};

}  // namespace kv
