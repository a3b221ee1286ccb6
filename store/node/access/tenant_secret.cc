#include "store/node/access/tenant_secret.h"

#include <spdlog/fmt/fmt.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>  // explicit_bzero

#include <array>
#include <charconv>
#include <span>

#include "base/assert.h"
#include "base/secret/secret_file.h"
#include "base/text/hex.h"
#include "base/text/printable.h"
#include "index/block_hash.h"

namespace kv {

Result<TenantSecret, Failure> TenantSecret::parse(std::string_view digits) {
  std::array<unsigned char, kBytes> key{};
  if (!from_hex(digits, std::as_writable_bytes(std::span(key)))) {
    ::explicit_bzero(key.data(), key.size());
    return Failure(
        Errc::kBadRequest,
        fmt::format("{} characters, allowed are 64 hexadecimal digits (openssl rand -hex 32)", digits.size()));
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
  const auto text = read_secret_file(file, 4 * kBytes);
  if (!text) return Failure(text.error().code, "tenant-secret-file: " + text.error().text);
  auto secret = parse(text->text());
  if (!secret)
    return Failure(secret.error().code, "tenant-secret-file: " + printable(file) + ": " + secret.error().text);
  return secret;
}

std::string TenantSecret::hmac(std::string_view kind, std::string_view name) const {
  // The kind ends with a byte that names cannot contain.
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
