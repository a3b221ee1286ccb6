#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace kv {
namespace {

constexpr std::uint64_t kSeed = 0x0123456789ABCDEF;

/// Bytes that anyone can make again, in any language: byte i of the sequence is bits 56..63 of (i + 1) * kStripeStep.
std::vector<std::byte> golden_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = std::byte((i + 1) * kStripeStep >> 56);
  return bytes;
}

std::vector<std::uint64_t> sums_of(std::uint64_t seed, std::span<const std::byte> block) {
  std::vector<std::uint64_t> sums(stripe_count(block.size()));
  block_checksums(seed, block, sums);
  return sums;
}

// A stored checksum outlives the program that wrote it: these values never change, on any processor.
TEST(ChecksumTest, GoldenValuesOfOneStripeHold) {
  struct Golden {
    std::size_t bytes;
    std::uint64_t seed;
    std::size_t stripe_index;
    std::uint64_t sum;
  };
  const Golden table[] = {
#include "golden/stripe_checksums.inc"
  };
  for (const Golden& golden : table) {
    const auto bytes = golden_bytes(golden.bytes);
    EXPECT_EQ(stripe_checksum(golden.seed, golden.stripe_index, bytes), golden.sum)
        << "{" << golden.bytes << ", 0x" << std::hex << golden.seed << ", " << std::dec << golden.stripe_index
        << "} gave 0x" << std::hex << stripe_checksum(golden.seed, golden.stripe_index, bytes);
  }
}

TEST(ChecksumTest, BlockIsCutIntoStripesWhoseSeedsStepByIndex) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, kStripeBytes - 1, kStripeBytes, kStripeBytes + 1, 3 * kStripeBytes + 17}) {
    const auto block = golden_bytes(size);
    const auto sums = sums_of(kSeed, block);
    ASSERT_EQ(sums.size(), (size + kStripeBytes - 1) / kStripeBytes);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto stripe = std::span(block).subspan(i * kStripeBytes, std::min(kStripeBytes, size - i * kStripeBytes));
      EXPECT_EQ(sums[i], stripe_checksum(kSeed, i, stripe)) << "size " << size << " stripe " << i;
      EXPECT_EQ(sums[i], stripe_checksum(kSeed + i * kStripeStep, 0, stripe)) << "size " << size << " stripe " << i;
    }
  }
}

class CorruptionTest : public testing::Test {
 protected:
  std::vector<std::byte> block = golden_bytes(4 * kStripeBytes + 1000);
  const std::vector<std::uint64_t> sums = sums_of(kSeed, block);
};

TEST_F(CorruptionTest, IntactBlockVerifies) { EXPECT_TRUE(verify_block(kSeed, block, sums)); }

TEST_F(CorruptionTest, AnyFlippedBitIsSeen) {
  for (std::size_t bit = 0; bit < block.size() * 8; bit += 65537) {
    block[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_FALSE(verify_block(kSeed, block, sums)) << "bit " << bit;
    block[bit / 8] ^= std::byte(1 << bit % 8);
  }
  block.back() ^= std::byte{0x80};
  EXPECT_FALSE(verify_block(kSeed, block, sums)) << "last bit";
}

TEST_F(CorruptionTest, SwappedStripesAreSeen) {
  std::swap_ranges(block.begin(), block.begin() + kStripeBytes, block.begin() + kStripeBytes);
  EXPECT_FALSE(verify_block(kSeed, block, sums));
}

TEST_F(CorruptionTest, SwappedStripesAreSeenEvenWithTheirChecksums) {
  auto swapped = sums;
  std::swap(swapped[0], swapped[1]);
  std::swap_ranges(block.begin(), block.begin() + kStripeBytes, block.begin() + kStripeBytes);
  EXPECT_FALSE(verify_block(kSeed, block, swapped));
}

TEST_F(CorruptionTest, BlockUnderAnotherNameIsSeen) {
  EXPECT_FALSE(verify_block(kSeed + 1, block, sums));
  EXPECT_FALSE(verify_block(kSeed + kStripeStep, block, sums));
}

TEST_F(CorruptionTest, StripeShiftedByOnePlaceIsSeen) {
  const std::vector<std::byte> shifted(block.begin() + kStripeBytes, block.begin() + 2 * kStripeBytes);
  EXPECT_FALSE(verify_block(kSeed, shifted, std::span(sums).subspan(1, 1)));
}

TEST_F(CorruptionTest, TruncatedBlockIsSeen) {
  const auto one_less = std::span(block).first(block.size() - 1);
  EXPECT_FALSE(verify_block(kSeed, one_less, sums));
  const auto whole_stripes = std::span(block).first(4 * kStripeBytes);
  EXPECT_FALSE(verify_block(kSeed, whole_stripes, sums));  // the count of checksums differs
}

TEST_F(CorruptionTest, ZeroedTailIsSeen) {  // a torn write: the end never arrived
  std::memset(block.data() + block.size() - 512, 0, 512);
  EXPECT_FALSE(verify_block(kSeed, block, sums));
}

TEST_F(CorruptionTest, CopyGivesTheSameBytesAndChecksums) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kStripeBytes, block.size()}) {
    std::vector<std::byte> copy(size + 1, std::byte{0xEE});
    std::vector<std::uint64_t> copy_sums(stripe_count(size));
    const auto from = std::span<const std::byte>(block).first(size);
    copy_with_checksums(kSeed, std::span(copy).first(size), from, copy_sums);
    EXPECT_TRUE(std::equal(from.begin(), from.end(), copy.begin()));
    EXPECT_EQ(copy.back(), std::byte{0xEE}) << "wrote past the end";
    EXPECT_EQ(copy_sums, sums_of(kSeed, from));
  }
}

}  // namespace
}  // namespace kv
