// store/node/log/log_writer.h: the thread that writes the log.
#pragma once

#include <spdlog/async.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kv {

class LogSink;

/// Writes the lines of spdlog's default logger to a descriptor, on a thread of its own: whoever reads the log may
/// stall, go away or run out of disk without a request or the end of the process waiting for it.
///   1. At most kLinesMax lines wait. One more replaces the oldest.
///   2. A line is written whole or counted in lost_count(). Once writing goes on, a line of the log tells the number.
///   3. The destructor writes waiting lines for kEndPatience at most.
/// A process has one at a time. Thread safety: lost_count() from any thread, finish() from one.
class LogWriter {
 public:
  static constexpr std::size_t kLinesMax = 8192;
  static constexpr std::chrono::milliseconds kEndPatience{500};

  /// `fd` stays open and the caller's.
  explicit LogWriter(int fd, std::unique_ptr<spdlog::formatter> form);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  std::uint64_t lost_count() const;
  /// Before an exit without destructors: writes waiting lines, as the destructor does.
  void finish();

 private:
  std::shared_ptr<LogSink> sink_;
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::async_logger> logger_;
};

}  // namespace kv
