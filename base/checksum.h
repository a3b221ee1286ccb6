// base/checksum.h: the checksum that travels with every block, bound to the block's name.
//
// A block is cut into stripes of 64 KiB (the last may be shorter). The checksum of stripe i is
//     XXH3_64bits_withSeed(bytes of stripe i, seed + i * kStripeStep)       (xxHash specification 0.8, little endian)
// where `seed` is a hash of the block's whole name (index/block_hash.h, checksum_seed). A stripe from another block, at
// another place of its block, cut short or torn fails like random data: 1 in 2^64 goes undetected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kv {

inline constexpr std::size_t kStripeBytes = 64 * 1024;
inline constexpr std::uint64_t kStripeStep = 0x9E3779B97F4A7C15;  ///< Odd: the stripes of a block have different seeds.

/// Stripes of a block of `block_bytes` bytes.
constexpr std::size_t stripe_count(std::size_t block_bytes) { return (block_bytes + kStripeBytes - 1) / kStripeBytes; }

/// The checksum of one stripe of at most kStripeBytes. Cost: about 20 us per MiB in cache.
std::uint64_t stripe_checksum(std::uint64_t seed, std::size_t stripe_index, std::span<const std::byte> stripe);

/// All stripe checksums of `block`, into `sums` of exactly stripe_count(block.size()) elements.
void block_checksums(std::uint64_t seed, std::span<const std::byte> block, std::span<std::uint64_t> sums);

/// Whether every stripe of `block` has its given checksum.
[[nodiscard]] bool verify_block(std::uint64_t seed, std::span<const std::byte> block,
                                std::span<const std::uint64_t> sums);

/// Copies `from` to `to` and computes the checksums of the copy, stripe by stripe while it is in cache. Requires: equal
/// sizes, no overlap, sums as for block_checksums.
void copy_with_checksums(std::uint64_t seed, std::span<std::byte> to, std::span<const std::byte> from,
                         std::span<std::uint64_t> sums);

}  // namespace kv
