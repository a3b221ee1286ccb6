#include "index/block_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace kv {
namespace {

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<std::uint32_t> golden_tokens(std::size_t count) {
  std::vector<std::uint32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = std::uint32_t((i + 1) * 0x9E3779B97F4A7C15 >> 32);
  return tokens;
}

// A block hash is how every other program finds our blocks: these values never change.
/// Engines bring 64 bits, padded at either end, or counted up: nothing may depend on a few of the bytes alone.
TEST(BlockHashTest, AShortHashDependsOnEveryByte) {
  std::set<std::uint64_t> seen;
  std::array<std::size_t, 16> low{}, high{};
  std::size_t count = 0;
  for (std::size_t at = 0; at <= 24; at += 8) {
    for (std::uint64_t number = 1; number <= 4096; ++number) {
      for (const std::uint64_t word : {number, number << 48, number * 0x9E3779B97F4A7C15}) {
        BlockHash hash;
        std::memcpy(hash.bytes.data() + at, &word, sizeof word);
        const std::uint64_t value = short_hash(hash);
        seen.insert(value);
        ++low[value % 16];
        ++high[value >> 60];
        ++count;
      }
    }
  }
  EXPECT_GT(seen.size(), count - 8) << "no more than the few words that occur twice";
  for (const std::size_t each : low) EXPECT_NEAR(static_cast<double>(each), static_cast<double>(count) / 16, 300);
  for (const std::size_t each : high) EXPECT_NEAR(static_cast<double>(each), static_cast<double>(count) / 16, 300);
}

TEST(BlockHashTest, GoldenChainsHold) {
  struct Golden {
    const char* root;
    std::size_t block_size, token_count;
    const char* extra;
    std::size_t block_count;
    const char *first, *last;
  };
  const Golden table[] = {
#include "golden/hash_chains.inc"
  };
  for (const Golden& golden : table) {
    const auto chain = hash_chain(*block_hash_from_hex(golden.root), golden_tokens(golden.token_count),
                                  golden.block_size, from_hex(golden.extra));
    ASSERT_EQ(chain.size(), golden.block_count);
    EXPECT_EQ(to_hex(chain.front().bytes), golden.first) << golden.block_size << " x " << golden.block_count;
    EXPECT_EQ(to_hex(chain.back().bytes), golden.last) << golden.block_size << " x " << golden.block_count;
  }
}

TEST(BlockHashTest, EachBlockIsTheHashOfTheOneBeforeItsTokensAndTheExtra) {
  const BlockHash root = sha256({});
  const auto extra = from_hex("c0ffee");
  for (std::size_t block_size = 1; block_size < 40; ++block_size) {  // every length of padding
    const auto tokens = golden_tokens(3 * block_size);
    const auto chain = hash_chain(root, tokens, block_size, extra);
    BlockHash previous = root;
    for (std::size_t i = 0; i < 3; ++i) {
      std::vector<std::byte> message(previous.bytes.begin(), previous.bytes.end());
      const auto ids = std::as_bytes(std::span(tokens).subspan(i * block_size, block_size));
      message.insert(message.end(), ids.begin(), ids.end());
      message.insert(message.end(), extra.begin(), extra.end());
      previous = sha256(message);
      EXPECT_EQ(chain[i], previous) << "block size " << block_size << " block " << i;
    }
  }
}

TEST(BlockHashTest, OnlyFullBlocksAreHashed) {
  const auto tokens = golden_tokens(100);
  const BlockHash root{};
  EXPECT_TRUE(hash_chain(root, std::span(tokens).first(15), 16).empty());
  EXPECT_EQ(hash_chain(root, std::span(tokens).first(16), 16).size(), 1u);
  EXPECT_EQ(hash_chain(root, std::span(tokens).first(33), 16).size(), 2u);
  EXPECT_TRUE(hash_chain(root, tokens, std::size_t{1} << 60).empty());
}

TEST(BlockHashTest, ChangedTokenChangesItsBlockAndAllAfterItAndNoneBefore) {
  auto tokens = golden_tokens(64);
  const auto chain = hash_chain({}, tokens, 16);
  tokens[20] ^= 1;
  const auto other = hash_chain({}, tokens, 16);
  EXPECT_EQ(chain[0], other[0]);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_NE(chain[i], other[i]);
}

TEST(BlockHashTest, ChecksumSeedsAreThoseOfTheDocument) {
  NamespaceId space;
  BlockHash block;
  for (std::size_t i = 0; i < 16; ++i) space.bytes[i] = static_cast<std::byte>(i + 1);
  for (std::size_t i = 0; i < 32; ++i) block.bytes[i] = static_cast<std::byte>(i * 16);
  EXPECT_EQ(checksum_seed(space, block), 0x42FADEC2DD4D05AF);
  BlockHash padded;  // 64 bits of an engine, in front of which are zeros
  padded.bytes[31] = std::byte{1};
  EXPECT_EQ(checksum_seed(space, padded), 0x873D571F31961D7C);
}

/// The length is part of what a set's checksums bind: a block that is cut at a stripe is another block.
TEST(BlockHashTest, ASetsSeedDependsOnTheLengthAndIsNeverAChains) {
  NamespaceId space;
  BlockHash block;
  for (std::size_t i = 0; i < 16; ++i) space.bytes[i] = static_cast<std::byte>(i + 1);
  for (std::size_t i = 0; i < 32; ++i) block.bytes[i] = static_cast<std::byte>(i * 16);
  EXPECT_EQ(set_checksum_seed(space, block, 65536), 0xB63B9F0417F0BA14);
  std::set<std::uint64_t> seen{checksum_seed(space, block)};
  std::size_t count = 1;
  for (std::uint64_t length = 1; length <= 1 << 20; length *= 2, count += 2) {
    seen.insert(set_checksum_seed(space, block, length));
    seen.insert(set_checksum_seed(space, block, length + (1ull << 40)));
  }
  EXPECT_EQ(seen.size(), count);
}

/// Of two blocks whose names differ in one bit, wherever it is, neither passes for the other.
TEST(BlockHashTest, AChecksumSeedDependsOnEveryBitOfTheName) {
  NamespaceId space;
  const BlockHash block;
  const std::uint64_t seed = checksum_seed(space, block);
  for (std::size_t bit = 0; bit < 256; ++bit) {
    BlockHash other = block;
    other.bytes[bit / 8] ^= std::byte(1u << bit % 8);
    EXPECT_NE(checksum_seed(space, other), seed) << bit;
  }
  for (std::size_t bit = 0; bit < 64; ++bit) {
    NamespaceId other = space;
    other.bytes[bit / 8] ^= std::byte(1u << bit % 8);
    EXPECT_NE(checksum_seed(other, block), seed) << bit;
  }
}

/// Engines' 64 bits, padded at either end or counted up, in two namespaces: the seeds are as different as random ones.
TEST(BlockHashTest, ChecksumSeedsOfPaddedHashesDiffer) {
  std::set<std::uint64_t> seen;
  std::size_t count = 0;
  for (const auto of_space : {std::byte{0}, std::byte{1}}) {
    NamespaceId space;
    space.bytes[0] = of_space;
    for (std::size_t at = 0; at <= 24; at += 8) {
      for (std::uint64_t number = 1; number <= 4096; ++number) {
        for (const std::uint64_t word : {number, number << 48, number * 0x9E3779B97F4A7C15}) {
          BlockHash hash;
          std::memcpy(hash.bytes.data() + at, &word, sizeof word);
          seen.insert(checksum_seed(space, hash));
          ++count;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), count);
}

TEST(BlockHashTest, HexGoesBothWaysAndRefusesAnythingElse) {
  const std::string hex = "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef";
  EXPECT_EQ(to_hex(block_hash_from_hex(hex)->bytes), hex);
  EXPECT_EQ(block_hash_from_hex("AB" + hex.substr(2))->bytes[0], std::byte{0xAB});
  EXPECT_EQ(block_hash_from_hex(hex.substr(1)).error(), Errc::kBadRequest);
  EXPECT_EQ(block_hash_from_hex(hex + "0").error(), Errc::kBadRequest);
  EXPECT_EQ(block_hash_from_hex("g" + hex.substr(1)).error(), Errc::kBadRequest);
  EXPECT_EQ(block_hash_from_hex("").error(), Errc::kBadRequest);
}

TEST(BlockHashTest, EngineHashOf32BytesIsTakenAsItIsAndOthersAreHashed) {
  const auto bytes = from_hex("00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef");
  EXPECT_EQ(to_hex(block_hash_from_engine(bytes)->bytes), to_hex(bytes));
  for (const std::size_t size : {std::size_t{1}, std::size_t{8}, std::size_t{31}}) {
    const auto part = std::span(bytes).first(size);
    EXPECT_EQ(*block_hash_from_engine(part), sha256(part));
  }
  EXPECT_EQ(block_hash_from_engine({}).error(), Errc::kBadRequest);
}

TEST(BlockHashTest, TheDigestOfAnExtraIsTheBeginningOfItsSha256AndZeroForNone) {
  const auto abc = std::as_bytes(std::span("abc", 3));
  EXPECT_EQ(to_hex(extra_digest(abc).bytes), "ba7816bf8f01cfea414140de5dae2223");
  EXPECT_EQ(extra_digest({}), ExtraDigest());
}

}  // namespace
}  // namespace kv
