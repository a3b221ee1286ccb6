// gpu/device/device_checksum.h: the name-bound checksums of base/checksum.h in a kernel: XXH3-64 with a seed, of each
// stripe of 64 KiB, bit for bit. As gpu/device/device_body.h, for CUDA and for tests on the host.
//
// XXH3 of more than 240 bytes has eight accumulators of 64 bits. Within a KiB they only add, so 64 * 8 threads may add
// side by side; after each KiB they are scrambled, by eight threads in order, from shared memory. One block of threads
// takes a stripe, in four steps with a barrier after each:
//
//     begin   the secret, seeded             24 words
//     add     sums of each KiB, each lane    all threads; reads each byte once, neighbours in a row
//     fold    scramble KiB by KiB            eight threads
//     end     merge                          one thread
//
// Bound by HBM in `add`, by latency in `fold` (64 multiplications in a row): enough stripes hide it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checksum.h"
#include "gpu/device/device_body.h"

namespace kv {

/// Checksums of blocks in device memory: written to `sums`, or compared with `expected`.
struct DeviceChecksum {
  const std::byte* blocks = nullptr;
  std::int64_t block_bytes = 0;
  std::int64_t block_count = 0;
  const std::uint64_t* seeds = nullptr;     ///< [block_count]
  std::uint64_t* sums = nullptr;            ///< [block_count][stripes]; null: compare.
  const std::uint64_t* expected = nullptr;  ///< [block_count][stripes]
  std::uint32_t* verdicts = nullptr;        ///< [block_count] Of a comparison: 0, or 1 for a mismatch.
};

}  // namespace kv

namespace kv::device {

inline constexpr std::uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
inline constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
                               kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
                               kPrime64_5 = 0x27D4EB2F165667C5;

inline constexpr int kLanes = 8;         // accumulators
inline constexpr int kSecretWords = 24;  // 192 bytes
inline constexpr int kKibsMax = 64;      // in a stripe
inline constexpr int kLaneBytes = 64;    // one step of all lanes
inline constexpr int kKibBytes = 1024;   // 16 steps: the secret moves on by 8 bytes for each
inline constexpr int kScrambleAt = 128;  // in the secret
inline constexpr int kLastAt = 121;      // for the last 64 bytes
inline constexpr int kMergeAt = 11;
inline constexpr std::int64_t kShortMax = 240;

/// A word of XXH3's secret; start of an accumulator. (Compilers would put a table into every thread's memory.)
constexpr std::uint64_t secret_word(int index) {
  switch (index) {
    case 0: return 0xBE4BA423396CFEB8;
    case 1: return 0x1CAD21F72C81017C;
    case 2: return 0xDB979083E96DD4DE;
    case 3: return 0x1F67B3B7A4A44072;
    case 4: return 0x78E5C0CC4EE679CB;
    case 5: return 0x2172FFCC7DD05A82;
    case 6: return 0x8E2443F7744608B8;
    case 7: return 0x4C263A81E69035E0;
    case 8: return 0xCB00C391BB52283C;
    case 9: return 0xA32E531B8B65D088;
    case 10: return 0x4EF90DA297486471;
    case 11: return 0xD8ACDEA946EF1938;
    case 12: return 0x3F349CE33F76FAA8;
    case 13: return 0x1D4F0BC7C7BBDCF9;
    case 14: return 0x3159B4CD4BE0518A;
    case 15: return 0x647378D9C97E9FC8;
    case 16: return 0xC3EBD33483ACC5EA;
    case 17: return 0xEB6313FAFFA081C5;
    case 18: return 0x49DAF0B751DD0D17;
    case 19: return 0x9E68D429265516D3;
    case 20: return 0xFCA1477D58BE162B;
    case 21: return 0xCE31D07AD1B8F88F;
    case 22: return 0x280416958F3ACB45;
    default: return 0x7E404BBBCAFBD7AF;
  }
}
constexpr std::uint64_t lane_start(int lane) {
  switch (lane) {
    case 0: return kPrime32_3;
    case 1: return kPrime64_1;
    case 2: return kPrime64_2;
    case 3: return kPrime64_3;
    case 4: return kPrime64_4;
    case 5: return kPrime32_2;
    case 6: return kPrime64_5;
    default: return kPrime32_1;
  }
}

/// 64 bits from any byte of the secret, whose words are `word(index)`.
template <class Word>
constexpr std::uint64_t secret_at(Word word, int offset) {
  const int index = offset / 8, shift = offset % 8 * 8;
  return shift == 0 ? word(index) : word(index) >> shift | word(index + 1) << (64 - shift);
}

constexpr std::uint64_t read_bytes(const std::byte* at, int count) {
  std::uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return value;
}
inline constexpr auto is_word_aligned = [](const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 8 == 0;
};
inline constexpr auto read_word = [](const std::byte* at) {
  return is_word_aligned(at) ? load<std::uint64_t>(at) : read_bytes(at, 8);
};

constexpr std::uint64_t rotate_left(std::uint64_t value, int count) { return value << count | value >> (64 - count); }
constexpr std::uint64_t swap_bytes(std::uint64_t value, int count) {
  std::uint64_t swapped = 0;
  for (int i = 0; i < count; ++i) swapped |= (value >> (8 * i) & 0xFF) << (8 * (count - 1 - i));
  return swapped;
}
/// Both halves of the 128-bit product, folded.
constexpr std::uint64_t multiply_fold(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t low_a = a & 0xFFFFFFFF, high_a = a >> 32, low_b = b & 0xFFFFFFFF, high_b = b >> 32;
  const std::uint64_t middle = high_a * low_b + (low_a * low_b >> 32);  // cannot overflow
  const std::uint64_t carry = (middle & 0xFFFFFFFF) + low_a * high_b;
  const std::uint64_t high = high_a * high_b + (middle >> 32) + (carry >> 32);
  return (a * b) ^ high;
}
constexpr std::uint64_t avalanche(std::uint64_t hash) {
  hash = (hash ^ hash >> 37) * 0x165667919E3779F9;  // not kPrime64_3
  return hash ^ hash >> 32;
}
constexpr std::uint64_t avalanche64(std::uint64_t hash) {
  hash = (hash ^ hash >> 33) * kPrime64_2;
  hash = (hash ^ hash >> 29) * kPrime64_3;
  return hash ^ hash >> 32;
}

/// XXH3 of at most 240 bytes, a block's last stripe. `word(i)` is the seeded secret's i-th word.
template <class Word>
constexpr std::uint64_t short_checksum(const std::byte* data, std::int64_t bytes, std::uint64_t seed, Word word) {
  const auto plain = [&](int index) { return index % 2 == 0 ? word(index) - seed : word(index) + seed; };
  const auto secret = [&](int offset) { return secret_at(plain, offset); };
  const auto length = static_cast<std::uint64_t>(bytes);
  const auto mix = [&](std::int64_t at, int offset) {
    return multiply_fold(read_bytes(data + at, 8) ^ (secret(offset) + seed),
                         read_bytes(data + at + 8, 8) ^ (secret(offset + 8) - seed));
  };
  if (bytes == 0) return avalanche64(seed ^ secret(56) ^ secret(64));
  if (bytes <= 3) {
    const std::uint64_t combined = read_bytes(data, 1) << 16 | read_bytes(data + bytes / 2, 1) << 24 |
                                   read_bytes(data + bytes - 1, 1) | length << 8;
    return avalanche64(combined ^ (((secret(0) ^ secret(4)) & 0xFFFFFFFF) + seed));
  }
  if (bytes <= 8) {
    const std::uint64_t flip = (secret(8) ^ secret(16)) - (seed ^ swap_bytes(seed & 0xFFFFFFFF, 4) << 32);
    std::uint64_t hash = (read_bytes(data + bytes - 4, 4) + (read_bytes(data, 4) << 32)) ^ flip;
    hash ^= rotate_left(hash, 49) ^ rotate_left(hash, 24);
    hash *= 0x9FB21C651E98DF25;
    hash = (hash ^ ((hash >> 35) + length)) * 0x9FB21C651E98DF25;
    return hash ^ hash >> 28;
  }
  if (bytes <= 16) {
    const std::uint64_t low = read_bytes(data, 8) ^ ((secret(24) ^ secret(32)) + seed);
    const std::uint64_t high = read_bytes(data + bytes - 8, 8) ^ ((secret(40) ^ secret(48)) - seed);
    return avalanche(length + swap_bytes(low, 8) + high + multiply_fold(low, high));
  }
  std::uint64_t hash = length * kPrime64_1;
  if (bytes <= 128) {
    for (int i = static_cast<int>((bytes - 1) / 32); i >= 0; --i) {
      hash += mix(16 * i, 32 * i) + mix(bytes - 16 * (i + 1), 32 * i + 16);
    }
    return avalanche(hash);
  }
  for (int i = 0; i < 8; ++i) hash += mix(16 * i, 16 * i);
  hash = avalanche(hash) + mix(bytes - 16, 136 - 17);
  for (int i = 8; i < static_cast<int>(bytes / 16); ++i) hash += mix(16 * i, 16 * (i - 8) + 3);
  return avalanche(hash);
}

/// Shared by the threads of one block while they sum a stripe: 8.4 KiB.
struct StripeScratch {
  std::uint64_t secret[kSecretWords];
  std::uint64_t products[kKibsMax][kLanes];
  std::uint64_t words[kKibsMax][kLanes];
  std::uint64_t lanes[kLanes];
};

/// One stripe of the job. (Stripes of all blocks, in order.)
struct Stripe {
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;
  std::int64_t block = 0;
  std::uint64_t seed = 0;

  /// Whole KiBs that are followed by a byte, and so scrambled.
  constexpr int kibs() const { return static_cast<int>((bytes - 1) / kKibBytes); }
  constexpr bool is_short() const { return bytes <= kShortMax; }
};
constexpr std::int64_t stripes_of(const DeviceChecksum& job) {
  return (job.block_bytes + static_cast<std::int64_t>(kStripeBytes) - 1) / static_cast<std::int64_t>(kStripeBytes);
}
constexpr Stripe stripe_of(const DeviceChecksum& job, std::int64_t index) {
  const std::int64_t block = index / stripes_of(job), stripe = index % stripes_of(job);
  const std::int64_t start = stripe * static_cast<std::int64_t>(kStripeBytes);
  const std::int64_t rest = job.block_bytes - start;
  return {job.blocks + block * job.block_bytes + start,
          rest < static_cast<std::int64_t>(kStripeBytes) ? rest : static_cast<std::int64_t>(kStripeBytes), block,
          job.seeds[block] + static_cast<std::uint64_t>(stripe) * kStripeStep};
}

constexpr void checksum_begin(const Stripe& stripe, StripeScratch& scratch, const Worker& worker) {
  for (int i = 0; i < kSecretWords; ++i) {  // unrolled, so that the words are constants
    if (i % worker.thread_count != worker.thread) continue;
    scratch.secret[i] = i % 2 == 0 ? secret_word(i) + stripe.seed : secret_word(i) - stripe.seed;
    if (i < kLanes) scratch.lanes[i] = lane_start(i);
  }
}

constexpr std::uint64_t lane_product(std::uint64_t keyed) { return (keyed & 0xFFFFFFFF) * (keyed >> 32); }

constexpr void checksum_add(const Stripe& stripe, StripeScratch& scratch, const Worker& worker) {
  if (stripe.is_short()) return;
  constexpr int kRounds = kKibBytes / kLaneBytes;
  const bool is_aligned = is_word_aligned(stripe.data);
  const int kibs = stripe.kibs();
  const auto rest = static_cast<int>((stripe.bytes - 1 - std::int64_t{kibs} * kKibBytes) / kLaneBytes);
  for (int item = worker.thread; item < (kibs + 1) * kLanes; item += worker.thread_count) {
    const int kib = item / kLanes, lane = item % kLanes;
    const std::byte* data = stripe.data + kib * kKibBytes + lane * 8;
    std::uint64_t products = 0, words = 0;
    const auto add = [&](int i, std::uint64_t word) {
      products += lane_product(word ^ scratch.secret[i + lane]);
      words += word;
    };
    if (kib < kibs && is_aligned) {  // nearly all: as many loads in flight as possible
      for (int i = 0; i < kRounds; ++i) add(i, load<std::uint64_t>(data + i * kLaneBytes));
    } else {
      for (int i = 0; i < (kib < kibs ? kRounds : rest); ++i) add(i, read_word(data + i * kLaneBytes));
    }
    scratch.products[kib][lane] = products;
    scratch.words[kib][lane] = words;
  }
}

constexpr void checksum_fold(const Stripe& stripe, StripeScratch& scratch, const Worker& worker) {
  if (stripe.is_short()) return;
  const auto secret = [&](int offset) { return secret_at([&](int index) { return scratch.secret[index]; }, offset); };
  for (int lane = worker.thread; lane < kLanes; lane += worker.thread_count) {
    std::uint64_t sum = scratch.lanes[lane];
    for (int kib = 0; kib < stripe.kibs(); ++kib) {
      sum += scratch.products[kib][lane] + scratch.words[kib][lane ^ 1];
      sum = (sum ^ sum >> 47 ^ secret(kScrambleAt + 8 * lane)) * kPrime32_1;
    }
    sum += scratch.products[stripe.kibs()][lane] + scratch.words[stripe.kibs()][lane ^ 1];
    const std::byte* last = stripe.data + stripe.bytes - kLaneBytes;
    sum += read_word(last + (lane ^ 1) * 8) + lane_product(read_word(last + lane * 8) ^ secret(kLastAt + 8 * lane));
    scratch.lanes[lane] = sum;
  }
}

/// Run by one thread: writes or compares the checksum.
constexpr void checksum_end(const DeviceChecksum& job, std::int64_t index, const Stripe& stripe,
                            const StripeScratch& scratch) {
  std::uint64_t sum = static_cast<std::uint64_t>(stripe.bytes) * kPrime64_1;
  const auto word = [&](int at) { return scratch.secret[at]; };
  const auto secret = [&](int offset) { return secret_at(word, offset); };
  for (int i = 0; !stripe.is_short() && i < kLanes; i += 2) {
    sum +=
        multiply_fold(scratch.lanes[i] ^ secret(kMergeAt + 8 * i), scratch.lanes[i + 1] ^ secret(kMergeAt + 8 * i + 8));
  }
  sum = stripe.is_short() ? short_checksum(stripe.data, stripe.bytes, stripe.seed, word) : avalanche(sum);
  if (job.sums) {
    job.sums[index] = sum;
  } else if (sum != job.expected[index]) {
    job.verdicts[stripe.block] = 1;  // other threads may write the same
  }
}

}  // namespace kv::device
