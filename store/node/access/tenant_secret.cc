#include "store/node/access/tenant_secret.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/printable.h"
#include "index/block_hash.h"
#include "transport/stream.h"

namespace kv {
namespace {

std::string octal(mode_t mode) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), mode & 07777, 8).ptr;
  return "0" + std::string(digits.data(), end);
}

}  // namespace

Result<TenantSecret, Failure> TenantSecret::parse(std::string_view digits) {
  std::array<unsigned char, kBytes> key{};
  bool is_good = digits.size() == 2 * kBytes;
  for (std::size_t i = 0; is_good && i < key.size(); ++i) {
    const char* const at = digits.data() + 2 * i;
    const auto [end, error] = std::from_chars(at, at + 2, key[i], 16);
    is_good = error == std::errc() && end == at + 2;
  }
  if (!is_good) {
    ::explicit_bzero(key.data(), key.size());
    return Failure(Errc::kBadRequest, std::to_string(digits.size()) +
                                          " characters, allowed are 64 hexadecimal digits (openssl rand -hex 32)");
  }
  TenantSecret secret;
  secret.key_ = Secret(std::string_view(reinterpret_cast<const char*>(key.data()), key.size()));
  ::explicit_bzero(key.data(), key.size());
  const std::string told = secret.hmac("epoch", "");
  std::from_chars(told.data(), told.data() + 16, secret.epoch_, 16);
  if (secret.epoch_ == 0) secret.epoch_ = 1;
  return secret;
}

Result<TenantSecret, Failure> TenantSecret::read(const std::string& file) {
  const auto fail = [&](error_code why, const std::string& what) {
    return Failure(why, "tenant-secret-file: " + printable(file) + ": " + what);
  };
  const Descriptor opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened) {
    const error_code why = last_errno();
    return fail(why, "cannot be read: " + why.message());
  }
  struct stat status {};
  if (::fstat(opened.get(), &status) != 0) {
    const error_code why = last_errno();
    return fail(why, "cannot be read: " + why.message());
  }
  if (!S_ISREG(status.st_mode)) return fail(Errc::kBadRequest, "is no file");
  if (status.st_uid != ::geteuid() && status.st_uid != 0)
    return fail(Errc::kBadRequest, "belongs to user " + std::to_string(status.st_uid) +
                                       ", who could replace it; allowed are the node's own user and root");
  // A group may read what root owns, as with keys that a package lays out for a service's group.
  const mode_t closed = status.st_uid == 0 ? mode_t{S_IWGRP | S_IRWXO} : mode_t{S_IRWXG | S_IRWXO};
  if ((status.st_mode & closed) != 0)
    return fail(Errc::kBadRequest, "has mode " + octal(status.st_mode) + ", so others may read or write it; chmod 400");
  std::array<char, 4 * kBytes> bytes;
  std::size_t count = 0;
  error_code failed;
  while (count < bytes.size()) {
    const ssize_t got = ::read(opened.get(), bytes.data() + count, bytes.size() - count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) failed = last_errno();
    if (got <= 0) break;
    count += static_cast<std::size_t>(got);
  }
  std::string_view text(bytes.data(), count);
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  auto secret = failed ? Result<TenantSecret, Failure>(Failure(failed, failed.message())) : parse(text);
  ::explicit_bzero(bytes.data(), bytes.size());
  if (!secret) return fail(secret.error().code, secret.error().text);
  return secret;
}

std::string TenantSecret::hmac(std::string_view kind, std::string_view name) const {
  // The kind ends with a byte that no name has.
  std::string text(kind);
  text += '\0';
  text += name;
  std::array<unsigned char, EVP_MAX_MD_SIZE> made{};
  unsigned int bytes = 0;
  const std::string_view key = key_.text();
  const unsigned char* const done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), made.data(), &bytes);
  KV_ASSERT(done != nullptr && bytes == 32);
  return to_hex(std::as_bytes(std::span(made).first(bytes)));
}

std::string TenantSecret::salt_of_tenant(std::string_view tenant) const { return hmac("tenant", tenant); }
std::string TenantSecret::salt_of_share(std::string_view share) const { return hmac("share", share); }

}  // namespace kv
