// store/node/log/log_format.h: the form of a log line.
#pragma once

#include <spdlog/formatter.h>
#include <spdlog/pattern_formatter.h>

#include <memory>

namespace kv {

/// One line for each message, in valid UTF-8. Messages contain names that came through a socket, so their text cannot
/// end a line, begin another field or move a terminal's cursor.
///   text: time level [thread] message; the message as printable() writes it
///   JSON: {"time": ..., "level": ..., "thread": ..., "message": ...}; invalid UTF-8 becomes U+FFFD
/// Thread safety: none; the sink's lock covers it, as for every spdlog::formatter.
class LogFormatter final : public spdlog::formatter {
 public:
  explicit LogFormatter(bool json);
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override;
  std::unique_ptr<spdlog::formatter> clone() const override;

 private:
  const bool json_;
  spdlog::pattern_formatter time_;
};

}  // namespace kv
