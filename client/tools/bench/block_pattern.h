// client/tools/bench/block_pattern.h: what a block must hold, computed from its name alone, so that any wrong byte is
// seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "index/block_hash.h"

namespace kv {

/// Folds a block's whole name into a seed: equal prefixes in two namespaces have different bytes, as in real life.
std::uint64_t pattern_seed(const NamespaceId& space, const BlockHash& block);

/// The pattern is splitmix64(seed + i) for the i-th 8 bytes, little endian. About 8 GB/s, fill and count alike.
void fill_pattern(std::uint64_t seed, std::span<std::byte> block);
std::size_t count_wrong_bytes(std::uint64_t seed, std::span<const std::byte> block);

}  // namespace kv
