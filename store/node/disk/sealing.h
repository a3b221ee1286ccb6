// store/node/disk/sealing.h: AES-256-GCM: what is sealed can be read with its key alone, and a changed bit shows. Pure
// functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/secret.h"

namespace kv {

inline constexpr std::size_t kSealKeyBytes = 32, kSealNonceBytes = 12, kSealTagBytes = 16;

/// With one key no nonce may come twice: two texts under one nonce give away their difference, and with it the means to
/// forge. Each caller says why its nonces differ.
using SealNonce = std::array<std::byte, kSealNonceBytes>;

Secret random_key();       ///< kSealKeyBytes of them, from the system's generator.
SealNonce random_nonce();  ///< For fewer than 2^32 texts under one key.
std::uint64_t random_word();

/// Writes what the parts hold, one behind the other, sealed, and then the tag. `associated` is not in it, but must be
/// the same when it is opened. Requires: out.size() = all parts + kSealTagBytes; a key of kSealKeyBytes. Cost: one
/// pass.
void seal(const Secret& key, const SealNonce& nonce, std::string_view associated,
          std::span<const std::span<const std::byte>> parts, std::span<std::byte> out);

/// The reverse. False: not what was sealed under this key, nonce and associated text; `out` is then zeros. Requires:
/// out.size() = sealed.size() - kSealTagBytes.
[[nodiscard]] bool unseal(const Secret& key, const SealNonce& nonce, std::string_view associated,
                          std::span<const std::byte> sealed, std::span<std::byte> out);

}  // namespace kv
