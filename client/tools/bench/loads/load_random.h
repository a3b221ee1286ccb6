// client/tools/bench/loads/load_random.h: random numbers that are equal on every machine.
#pragma once

#include <bit>
#include <cstdint>

#include "base/assert.h"

namespace kv {

/// Integers only. Standard distributions differ from library to library, and exp() and log() in the last bit from
/// processor to processor, which would change the load. Approximations here are off by less than 1 %.
class LoadRandom {
 public:
  explicit LoadRandom(std::uint64_t seed) : state_(seed) {}

  /// SplitMix64.
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return (next() >> 32) * bound >> 32; }  ///< 0 < bound <= 2^32.
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + below(most - least + 1); }
  bool chance(std::uint64_t percent) { return below(100) < percent; }

  /// Exponential, rounded down. mean < 2^31.
  std::uint64_t exponential(std::uint64_t mean) {
    const std::uint64_t u = (next() >> 32) + 1;  // of 2^32: never 0, which has no logarithm
    const std::uint64_t natural = ((std::uint64_t{32} << 16) - log2(u)) * kLn2 >> 16;
    return mean * natural >> 16;
  }
  /// Log-normal, rounded down: half of the values lie below the median, two thirds within a factor e^(sigma_percent /
  /// 100). median < 2^31, sigma_percent <= 200.
  std::uint64_t lognormal(std::uint64_t median, std::int64_t sigma_percent) {
    KV_ASSERT(median < std::uint64_t{1} << 31 && sigma_percent >= 0 && sigma_percent <= 200);
    std::int64_t normal = -6 * kOne;  // the sum of twelve uniform ones has deviation 1, and ends at 6
    for (int i = 0; i < 12; ++i) normal += static_cast<std::int64_t>(next() >> 48);
    const std::int64_t exponent = normal * sigma_percent / 100 * kLog2E >> 16;
    const std::int64_t whole = exponent >> 16;
    const std::uint64_t scaled = median * exp2(static_cast<std::uint64_t>(exponent & (kOne - 1)));
    return (whole >= 0 ? scaled << whole : scaled >> -whole) >> 16;
  }
  /// Zipf-like ranks from 0 up to rank_max: the chance of k or more is 1 / (k + 1).
  std::uint64_t rank(std::uint64_t rank_max) {
    const std::uint64_t u = (next() >> 32) + 1;
    const std::uint64_t rank = (std::uint64_t{1} << 32) / u - 1;
    return rank < rank_max ? rank : rank_max;
  }

 private:
  static constexpr std::int64_t kOne = 1 << 16;  ///< Fixed point, 16 bits behind the point.
  static constexpr std::uint64_t kLn2 = 45426;
  static constexpr std::int64_t kLog2E = 94548;

  /// Of an integer from 1 up: a parabola between powers of two.
  static std::uint64_t log2(std::uint64_t value) {
    const auto whole = static_cast<std::uint64_t>(std::bit_width(value) - 1);
    const std::uint64_t part = (value << (63 - whole)) >> 47 & 0xFFFF;
    return (whole << 16) + part + ((part * (0x10000 - part) >> 16) * 22484 >> 16);
  }
  /// 2^part, for a part below 1.
  static std::uint64_t exp2(std::uint64_t part) { return 0x10000 + (part * (43024 + (22512 * part >> 16)) >> 16); }

  std::uint64_t state_;
};

}  // namespace kv
