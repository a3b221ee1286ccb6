// client/hedge/latencies.h: a node's times to the beginning of its answers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace kv {

/// The latest times of one kind of request to one node, as counts in buckets an eighth wide.
///   1. The counts stay bounded and recent: at kWindow entries, each is halved.
///   2. A quantile is the upper end of its bucket: at most an eighth above the true time.
/// Thread safety: none. Cost: add() some nanoseconds; a quantile visits each bucket once.
class Latencies {
 public:
  static constexpr std::uint32_t kWindow = 1024;
  static constexpr std::uint32_t kEnough = 100;  ///< Too few below that for a 99th percentile.

  void add(Duration time) {
    ++counts_[bucket_of(time)];
    if (++total_ < kWindow) return;
    total_ = 0;
    for (std::uint32_t& count : counts_) total_ += count /= 2;
  }
  /// Empty before kEnough were added.
  std::optional<Duration> p99() const { return quantile(100); }
  std::optional<Duration> p50() const { return quantile(2); }

 private:
  static constexpr std::size_t kParts = 8, kOctaves = 32;  ///< From a microsecond to an hour.

  static std::size_t bucket_of(Duration time) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(us, 1)) * kParts;
    const auto octave = static_cast<std::size_t>(std::bit_width(value)) - 4;  // 8 has 4 bits
    return std::min(octave * kParts + (value >> octave) % kParts, kParts * kOctaves - 1);
  }
  static Duration end_of(std::size_t bucket) {
    const std::uint64_t eighths = (kParts + bucket % kParts + 1) << bucket / kParts;
    return std::chrono::microseconds((eighths + kParts - 1) / kParts);
  }
  /// The time exceeded by one in `one_in`.
  std::optional<Duration> quantile(std::uint32_t one_in) const {
    if (total_ < kEnough) return std::nullopt;
    std::uint32_t longer = 0;
    for (std::size_t bucket = counts_.size(); bucket-- > 0;) {
      longer += counts_[bucket];
      if (longer * one_in > total_) return end_of(bucket);
    }
    return end_of(0);
  }

  std::array<std::uint32_t, kParts * kOctaves> counts_{};
  std::uint32_t total_ = 0;
};

}  // namespace kv
