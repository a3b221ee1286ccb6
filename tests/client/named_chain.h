// tests/client/named_chain.h: chains of made-up hashes, for tests that look at names alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "index/block_hash.h"

namespace kv {

/// Chains of different names share no block.
inline std::vector<BlockHash> chain_of(std::uint64_t name, std::size_t count) {
  std::vector<BlockHash> chain(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t words[] = {name, i};
    std::memcpy(chain[i].bytes.data(), words, sizeof words);
  }
  return chain;
}

}  // namespace kv
