#include "base/checksum.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

// xxh_x86dispatch.h makes XXH3_64bits_withSeed choose AVX-512 or AVX2 at run time: 43 GB/s in cache, where the plain
// entry point, which Debian builds for SSE2, gives less than half. Other processors have and need no such header.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace kv {
namespace {

/// Calls visit(index, offset, bytes) for each stripe of a block. One stripe stays in the L2 cache between a copy and
/// its checksum; that is why every caller goes stripe by stripe.
template <class Visit>
void for_each_stripe(std::size_t block_bytes, Visit visit) {
  for (std::size_t i = 0, offset = 0; offset < block_bytes; ++i, offset += kStripeBytes) {
    visit(i, offset, std::min(kStripeBytes, block_bytes - offset));
  }
}

}  // namespace

std::uint64_t stripe_checksum(std::uint64_t seed, std::size_t stripe_index, std::span<const std::byte> stripe) {
  KV_ASSERT(stripe.size() <= kStripeBytes);
  return XXH3_64bits_withSeed(stripe.data(), stripe.size(), seed + stripe_index * kStripeStep);
}

void block_checksums(std::uint64_t seed, std::span<const std::byte> block, std::span<std::uint64_t> sums) {
  KV_ASSERT(sums.size() == stripe_count(block.size()));
  for_each_stripe(block.size(), [&](std::size_t i, std::size_t offset, std::size_t bytes) {
    sums[i] = stripe_checksum(seed, i, block.subspan(offset, bytes));
  });
}

/// Compared stripe by stripe: a block damaged at its front costs one stripe.
bool verify_block(std::uint64_t seed, std::span<const std::byte> block, std::span<const std::uint64_t> sums) {
  if (sums.size() != stripe_count(block.size())) return false;  // not an assert: the sums came from a peer
  bool is_equal = true;  // once false, later stripes are not read: one bad stripe condemns the block
  for_each_stripe(block.size(), [&](std::size_t i, std::size_t offset, std::size_t bytes) {
    is_equal = is_equal && stripe_checksum(seed, i, block.subspan(offset, bytes)) == sums[i];
  });
  return is_equal;
}

void copy_with_checksums(std::uint64_t seed, std::span<std::byte> to, std::span<const std::byte> from,
                         std::span<std::uint64_t> sums) {
  KV_ASSERT(to.size() == from.size() && sums.size() == stripe_count(to.size()));
  KV_ASSERT(to.data() + to.size() <= from.data() || from.data() + from.size() <= to.data());
  for_each_stripe(to.size(), [&](std::size_t i, std::size_t offset, std::size_t bytes) {
    // The copy is summed, not the source: the source's owner may still write to it.
    std::memcpy(to.data() + offset, from.data() + offset, bytes);
    sums[i] = stripe_checksum(seed, i, to.subspan(offset, bytes));
  });
}

}  // namespace kv
