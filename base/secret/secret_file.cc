#include "base/secret/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "base/assert.h"
#include "base/descriptor.h"
#include "base/text/printable.h"

namespace kv {
namespace {

std::string octal(mode_t mode) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), mode & 07777, 8).ptr;
  return "0" + std::string(digits.data(), end);
}

/// Why a file with this owner and mode is refused, or empty.
std::string refusal(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return "is no file";
  if (status.st_uid != ::geteuid() && status.st_uid != 0)
    return "belongs to user " + std::to_string(status.st_uid) +
           ", who could replace it; allowed are the node's own user and root";
  const mode_t closed = status.st_uid == 0 ? mode_t{S_IWGRP | S_IRWXO} : mode_t{S_IRWXG | S_IRWXO};
  if ((status.st_mode & closed) != 0)
    return "has mode " + octal(status.st_mode) + ", so others may read or write it; chmod 400";
  return "";
}

}  // namespace

Result<Secret, Failure> read_secret_file(const std::string& file, std::size_t bytes_max) {
  const auto fail = [&](error_code why, const std::string& what) {
    return Failure(why, printable(file) + ": " + what);
  };
  const auto fail_by_system = [&] {
    const error_code why = last_errno();
    return fail(why, "cannot be read: " + why.message());
  };
  const Descriptor opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!opened || ::fstat(opened.get(), &status) != 0) return fail_by_system();
  if (const std::string refused = refusal(status); !refused.empty()) return fail(Errc::kBadRequest, refused);
  std::string bytes(bytes_max, '\0');
  std::size_t count = 0;
  while (count < bytes.size()) {
    const ssize_t got = ::read(opened.get(), bytes.data() + count, bytes.size() - count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const Failure failed = fail_by_system();
      wipe(bytes);
      return failed;
    }
    if (got == 0) break;
    count += static_cast<std::size_t>(got);
  }
  KV_ASSERT(count <= bytes_max);
  const std::string_view text(bytes.data(), count);
  Secret secret(text.substr(0, text.find_last_not_of(" \t\r\n") + 1));
  wipe(bytes);
  return secret;
}

bool is_secret_file_exposed(const std::string& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 && !refusal(status).empty();
}

}  // namespace kv
