#include "client/tools/bench/block_pattern.h"

#include <array>
#include <cstring>

namespace kv {
namespace {

/// The last steps of splitmix64: a change of any bit of `value` changes about half of the result's.
std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 30;
  value *= 0xBF58476D1CE4E5B9;
  value ^= value >> 27;
  value *= 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

std::uint64_t word(std::uint64_t seed, std::size_t index) { return mix(seed + (index + 1) * 0x9E3779B97F4A7C15); }

}  // namespace

std::uint64_t pattern_seed(const NamespaceId& space, const BlockHash& block) {
  std::array<std::uint64_t, 6> words;
  std::memcpy(words.data(), space.bytes.data(), 16);
  std::memcpy(words.data() + 2, block.bytes.data(), 32);
  std::uint64_t seed = 0;
  for (const std::uint64_t part : words) seed = mix(seed ^ part) + 0x9E3779B97F4A7C15;
  return seed;
}

/// Words are independent, so that the processor computes several at a time instead of waiting for a chain.
void fill_pattern(std::uint64_t seed, std::span<std::byte> block) {
  const std::size_t words = block.size() / 8, rest = block.size() % 8;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t value = word(seed, i);
    std::memcpy(block.data() + i * 8, &value, 8);
  }
  const std::uint64_t last = word(seed, words);  // the block need not be whole words
  std::memcpy(block.data() + words * 8, &last, rest);
}

/// Counts bytes, to distinguish a lost stripe from a flipped bit. Only wrong words take the slow path.
std::size_t count_wrong_bytes(std::uint64_t seed, std::span<const std::byte> block) {
  const std::size_t words = block.size() / 8, rest = block.size() % 8;
  std::size_t wrong = 0;
  const auto compare = [&](std::size_t index, std::size_t bytes) {
    const std::uint64_t expected = word(seed, index);
    std::uint64_t found = expected;
    std::memcpy(&found, block.data() + index * 8, bytes);
    if (found == expected) return;
    for (std::size_t b = 0; b < bytes; ++b) wrong += ((found ^ expected) >> (8 * b) & 0xFF) != 0;
  };
  for (std::size_t i = 0; i < words; ++i) compare(i, 8);
  if (rest > 0) compare(words, rest);
  return wrong;
}

}  // namespace kv
