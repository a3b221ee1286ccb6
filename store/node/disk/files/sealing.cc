#include "store/node/disk/files/sealing.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <cstring>
#include <limits>
#include <memory>

#include "base/assert.h"

namespace kv {
namespace {

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }  // wipes the key schedule
};
using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

/// Looked up once: OpenSSL 3 searches its providers for each name, under a lock.
const EVP_CIPHER* aes_256_gcm() {
  static const EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  return cipher;
}

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const void* bytes) { return static_cast<const unsigned char*>(bytes); }

int as_int(std::size_t bytes) {
  KV_ASSERT(bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max()));
  return static_cast<int>(bytes);
}

/// An OpenSSL error here means a lack of memory or a library without AES; callers could not handle either.
CipherContext begin_cipher(const Secret& key, const SealNonce& nonce, std::string_view associated, bool seals) {
  KV_ASSERT(key.text().size() == kSealKeyBytes && aes_256_gcm() != nullptr);
  CipherContext context(EVP_CIPHER_CTX_new());
  KV_ASSERT(context != nullptr);
  KV_ASSERT(EVP_CipherInit_ex(context.get(), aes_256_gcm(), nullptr, raw(key.text().data()), raw(nonce.data()),
                              seals ? 1 : 0) == 1);
  int ignored = 0;
  KV_ASSERT(EVP_CipherUpdate(context.get(), nullptr, &ignored, raw(associated.data()), as_int(associated.size())) == 1);
  return context;
}

void draw(std::span<std::byte> bytes) { KV_ASSERT(RAND_bytes(raw(bytes.data()), as_int(bytes.size())) == 1); }

}  // namespace

Secret random_key() {
  std::array<std::byte, kSealKeyBytes> bytes;
  draw(bytes);
  Secret key(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  ::explicit_bzero(bytes.data(), bytes.size());
  return key;
}

SealNonce random_nonce() {
  SealNonce nonce;
  draw(nonce);
  return nonce;
}

std::uint64_t random_word() {
  std::array<std::byte, 8> bytes;
  draw(bytes);
  std::uint64_t word;
  std::memcpy(&word, bytes.data(), sizeof word);
  return word;
}

void seal(const Secret& key, const SealNonce& nonce, std::string_view associated,
          std::span<const std::span<const std::byte>> parts, std::span<std::byte> out) {
  const CipherContext context = begin_cipher(key, nonce, associated, /*seals=*/true);
  for (const std::span<const std::byte> part : parts) {
    KV_ASSERT(out.size() >= part.size() + kSealTagBytes);
    if (part.empty()) continue;
    int written = 0;
    KV_ASSERT(EVP_CipherUpdate(context.get(), raw(out.data()), &written, raw(part.data()), as_int(part.size())) == 1);
    KV_ASSERT(static_cast<std::size_t>(written) == part.size());  // GCM buffers no bytes
    out = out.subspan(part.size());
  }
  KV_ASSERT(out.size() == kSealTagBytes);
  int none = 0;
  KV_ASSERT(EVP_CipherFinal_ex(context.get(), raw(out.data()), &none) == 1 && none == 0);
  KV_ASSERT(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, kSealTagBytes, out.data()) == 1);
}

bool unseal(const Secret& key, const SealNonce& nonce, std::string_view associated, std::span<const std::byte> sealed,
            std::span<std::byte> out) {
  KV_ASSERT(sealed.size() >= kSealTagBytes && out.size() == sealed.size() - kSealTagBytes);
  const CipherContext context = begin_cipher(key, nonce, associated, /*seals=*/false);
  int written = 0;
  if (!out.empty())
    KV_ASSERT(EVP_CipherUpdate(context.get(), raw(out.data()), &written, raw(sealed.data()), as_int(out.size())) == 1);
  KV_ASSERT(static_cast<std::size_t>(written) == out.size());
  std::array<std::byte, kSealTagBytes> tag;  // OpenSSL's parameter is not const
  std::memcpy(tag.data(), sealed.data() + out.size(), tag.size());
  KV_ASSERT(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, kSealTagBytes, tag.data()) == 1);
  std::array<unsigned char, 16> rest;
  int none = 0;
  if (EVP_CipherFinal_ex(context.get(), rest.data(), &none) == 1) return true;
  if (!out.empty()) std::memset(out.data(), 0, out.size());  // bytes that fail authentication must not be used
  return false;
}

}  // namespace kv
