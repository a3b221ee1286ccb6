// index/block_hash.h: a block's name. A block hash names the block's tokens and, by chaining, its whole prefix.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/text/hex.h"

namespace kv {

/// Hash of a block's tokens chained on the block before it. Equal hash (within one namespace) means equal prefix.
struct BlockHash {
  std::array<std::byte, 32> bytes{};
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
  friend auto operator<=>(const BlockHash&, const BlockHash&) = default;
};
static_assert(sizeof(BlockHash) == 32);
using Hashes = std::span<const BlockHash>;  ///< The blocks of a chain, from its beginning, or those of a set.

/// First 16 bytes of the SHA-256 of a namespace record.
struct NamespaceId {
  std::array<std::byte, 16> bytes{};
  friend bool operator==(const NamespaceId&, const NamespaceId&) = default;
  friend auto operator<=>(const NamespaceId&, const NamespaceId&) = default;
};

/// The first 8 bytes. A request carries them beside its namespace handle, to detect a handle of another namespace.
inline std::uint64_t namespace_check(const NamespaceId& space) {
  std::uint64_t value;
  std::memcpy(&value, space.bytes.data(), sizeof value);
  return value;
}

/// Content of a block's hash besides its tokens and the blocks before: the image behind placeholder tokens, for
/// instance. The first 16 bytes of the SHA-256 of the hash's `extra`; all zero without an extra. Travels with token
/// ids, since equal ids with different extras are different content.
struct ExtraDigest {
  std::array<std::byte, 16> bytes{};
  friend bool operator==(const ExtraDigest&, const ExtraDigest&) = default;
  friend auto operator<=>(const ExtraDigest&, const ExtraDigest&) = default;
};
static_assert(sizeof(ExtraDigest) == 16);
ExtraDigest extra_digest(std::span<const std::byte> extra);

/// The first 8 bytes. Not uniform: an engine's own hashes may all begin alike (64 bits, padded in front). Use
/// short_hash() where uniform bits are needed.
inline std::uint64_t hash_prefix(const BlockHash& hash) {
  std::uint64_t value;
  std::memcpy(&value, hash.bytes.data(), sizeof value);
  return value;
}

/// Both halves of the product, folded.
inline std::uint64_t multiply_fold(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

/// 64 bits that depend on all 32 bytes, for hash tables and for choosing one of several. Equal in every build.
inline std::uint64_t short_hash(const BlockHash& hash) {
  std::uint64_t word[4];
  std::memcpy(word, hash.bytes.data(), sizeof word);
  const std::uint64_t low = multiply_fold(word[0] ^ 0x9E3779B97F4A7C15, word[1] ^ 0xD1B54A32D192ED03);
  const std::uint64_t high = multiply_fold(word[2] ^ 0x8CB92BA72F3D8DD7, word[3] ^ 0xABC98388FB8FAC03);
  return multiply_fold(low ^ 0xA0761D6478BD642F, high ^ 0xE7037ED1A0B428DB);
}

/// The checksum seed of a block: XXH3_64bits_withSeed(all 32 bytes of its hash, the first 8 bytes of its namespace id,
/// little endian). All 32 bytes count, because an engine's own hash may have its 64 bits anywhere among zeros.
std::uint64_t checksum_seed(const NamespaceId& space, const BlockHash& block);
/// The checksum seed of a block of `length` bytes that stands alone: as checksum_seed(), over the hash and then the
/// length (64 bits, little endian). A set's blocks differ in length, so the checksums bind the length: a block that is
/// cut short at a stripe, or continued by zeros, fails as a whole.
std::uint64_t set_checksum_seed(const NamespaceId& space, const BlockHash& block, std::uint64_t length);

BlockHash sha256(std::span<const std::byte> bytes);

Result<BlockHash> block_hash_from_hex(std::string_view hex);  ///< Exactly 64 hex digits; else Errc::kBadRequest.

/// An engine's own block hash of any length, as a BlockHash: 32 bytes are used unchanged, any other length is hashed
/// with SHA-256. Errors: kBadRequest for zero bytes.
Result<BlockHash> block_hash_from_engine(std::span<const std::byte> hash);

/// The store's own chain: h[i] = SHA256(h[i-1] || le32 token ids of block i || extra), h[-1] = `root` (the SHA-256 of
/// the namespace record, NamespaceRecord::digest). Returns tokens.size() / block_size hashes, for full blocks only.
/// `extra` (for example a multimodal digest) applies to every block of this call; a caller that passes these blocks'
/// token ids passes extra_digest(extra) for each. Requires block_size > 0.
std::vector<BlockHash> hash_chain(const BlockHash& root, std::span<const std::uint32_t> tokens, std::size_t block_size,
                                  std::span<const std::byte> extra = {});

}  // namespace kv

template <>
struct std::hash<kv::BlockHash> {
  std::size_t operator()(const kv::BlockHash& block) const noexcept { return kv::short_hash(block); }
};
