#include "client/c/c_status.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string_view>
#include <utility>

namespace kv::c_api {
namespace {
// Per thread, like errno: threads that fail at once do not read each other's text.
thread_local char text_of_last_error[512] = "";
}  // namespace

const char* last_error() noexcept { return text_of_last_error; }

int fail(int status, const char* text) noexcept {
  std::snprintf(text_of_last_error, sizeof text_of_last_error, "%s", text);
  return status;
}
int fail(int status, const std::string& text) noexcept { return fail(status, text.c_str()); }
void refuse(int status, const std::string& text) { throw Refused{fail(status, text)}; }
void refuse(error_code error) { throw Refused{fail(error)}; }
int fail(error_code error) { return fail(status_of(error), error.message()); }

int status_of(error_code error) {
  if (!error) return KVS_OK;
  // The one Asio error that callers act upon. All others come from the system, for people to read.
  if (error == asio::error::timed_out) return KVS_TIMED_OUT;
  // Errc's numbers are the statuses: kvstore.h and base/result.h give each the same.
  if (error.category() == errc_category()) return error.value();
  return KVS_SYSTEM;
}

int write_text(const std::string& text, char* to, std::size_t capacity, std::size_t* length) {
  if (length == nullptr || (to == nullptr && capacity > 0)) return fail(KVS_BAD_REQUEST, "a pointer is NULL");
  // Without the zero byte; also set if the text does not fit.
  *length = text.size();
  if (text.size() + 1 > capacity) return fail(KVS_TOO_LARGE, "capacity is too small");
  std::memcpy(to, text.c_str(), text.size() + 1);
  return KVS_OK;
}

Result<NamespaceRecord, Failure> parse_record(const char* text) {
  const std::string_view all(text);
  // parse() wants the canonical form, byte for byte. Unless a field comes twice, lines in any order are turned into it.
  auto record = NamespaceRecord::parse(all);
  if (record) return record;
  std::map<std::string, std::string> fields;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    const std::string_view line = all.substr(at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || !fields.emplace(line.substr(0, equals), line.substr(equals + 1)).second) {
      return record;  // parse()'s own error is clearer
    }
  }
  return NamespaceRecord::from_fields(std::move(fields));
}

}  // namespace kv::c_api
