#include "transport/token.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/text/printable.h"
#include "transport/stream.h"

namespace kv {

std::string check_token(std::string_view token) {
  if (token.size() < kTokenBytesMin || token.size() > kTokenBytesMax) {
    return std::to_string(token.size()) + " characters, allowed are " + std::to_string(kTokenBytesMin) + " to " +
           std::to_string(kTokenBytesMax);
  }
  const bool is_visible = std::ranges::all_of(token, [](char c) { return c > ' ' && c < 127; });
  return is_visible ? "" : "has a character that is no visible ASCII character";
}

Result<Secret, Failure> read_token_file(const std::string& path) {
  const auto fail = [&](error_code code, const std::string& what) {
    return Failure(code, "token file " + printable(path) + ": " + what);
  };
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    const error_code why = last_errno();
    return fail(why, why.message());
  }
  std::array<char, 2 * kTokenBytesMax> bytes;
  std::size_t count = 0;
  error_code failed;
  while (count < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + count, bytes.size() - count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) failed = last_errno();
    if (got <= 0) break;
    count += static_cast<std::size_t>(got);
  }
  std::string_view text(bytes.data(), count);
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  const std::string wrong = failed ? failed.message() : check_token(text);
  Secret token(wrong.empty() ? text : std::string_view());
  ::explicit_bzero(bytes.data(), bytes.size());
  if (!wrong.empty()) return fail(failed ? failed : make_error_code(Errc::kBadRequest), wrong);
  return token;
}

}  // namespace kv
