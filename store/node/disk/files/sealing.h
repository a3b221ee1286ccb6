// store/node/disk/files/sealing.h: AES-256-GCM, as pure functions: a text opens only with its key, and changed bits
// show.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/secret/secret.h"

namespace kv {

inline constexpr std::size_t kSealKeyBytes = 32, kSealNonceBytes = 12, kSealTagBytes = 16;

/// A nonce must not repeat under one key: two texts under one nonce reveal their difference, and with it the means to
/// forge. Each caller documents why its nonces differ.
using SealNonce = std::array<std::byte, kSealNonceBytes>;

Secret random_key();       ///< kSealKeyBytes, from the system's generator.
SealNonce random_nonce();  ///< For fewer than 2^32 texts under one key.
std::uint64_t random_word();

/// Writes the concatenated parts, sealed, and then the tag. `associated` is not written, but must be the same when
/// opening. Requires: out.size() = all parts + kSealTagBytes; a key of kSealKeyBytes. Cost: one pass.
void seal(const Secret& key, const SealNonce& nonce, std::string_view associated,
          std::span<const std::span<const std::byte>> parts, std::span<std::byte> out);

/// The reverse. False: not sealed with this key, nonce and associated text; `out` is then zeros. Requires: out.size() =
/// sealed.size() - kSealTagBytes.
[[nodiscard]] bool unseal(const Secret& key, const SealNonce& nonce, std::string_view associated,
                          std::span<const std::byte> sealed, std::span<std::byte> out);

}  // namespace kv
