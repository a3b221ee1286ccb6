#include "store/node/log/log_format.h"

#include <spdlog/common.h>
#include <spdlog/details/log_msg.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "base/text/printable.h"

namespace kv {
namespace {

constexpr const char* kTimePattern = "%Y-%m-%dT%H:%M:%S.%e%z";

std::string json_line(std::string_view time, std::string_view level, std::size_t thread, std::string_view message) {
  // Replaces invalid UTF-8: a log collector refuses a line that is not JSON.
  const nlohmann::ordered_json line = {{"time", time}, {"level", level}, {"thread", thread}, {"message", message}};
  return line.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string_view view(const auto& text) { return {text.data(), text.size()}; }

}  // namespace

LogFormatter::LogFormatter(bool json) : json_(json), time_(kTimePattern, spdlog::pattern_time_type::local, "") {}

/// One message is one line, in either form. Identities and namespaces come from clients, and must not add log lines.
void LogFormatter::format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) {
  spdlog::memory_buf_t time;
  time_.format(message, time);
  const std::string_view level = view(spdlog::level::to_string_view(message.level));
  std::string text;
  if (json_) {
    text = json_line(view(time), level, message.thread_id, view(message.payload));
  } else {
    text.append(view(time)).append(" ").append(level).append(" [").append(std::to_string(message.thread_id));
    text.append("] ").append(printable(view(message.payload)));
  }
  KV_ASSERT(text.find('\n') == std::string::npos);  // even with line ends in a client's names
  text += '\n';
  line.append(text.data(), text.data() + text.size());
}

std::unique_ptr<spdlog::formatter> LogFormatter::clone() const { return std::make_unique<LogFormatter>(json_); }

}  // namespace kv
