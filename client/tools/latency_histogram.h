// client/tools/latency_histogram.h: durations of calls, in bounded memory and to within 1 %.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"

namespace kv {

/// Counts durations in buckets that are 1/128 of their power of two wide: within 1 %, and 58 KiB for a run of any
/// length. Storing all durations would fill the memory, and a sample would miss the slowest calls, which matter most.
/// Thread safety: none; one per thread, then add().
class LatencyHistogram {
 public:
  void record(std::chrono::nanoseconds duration) {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 0));
    const std::size_t bucket = bucket_of(value);
    KV_ASSERT(bucket < buckets_.size());
    ++buckets_[bucket];
    ++count_;
    max_ = std::max(max_, value);
  }
  void add(const LatencyHistogram& other) {
    for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    max_ = std::max(max_, other.max_);
  }

  std::uint64_t count() const { return count_; }
  /// The smallest duration that at least `fraction` of the calls did not exceed, to within a bucket; 0 without calls.
  std::chrono::nanoseconds quantile(double fraction) const {
    KV_ASSERT(fraction >= 0 && fraction <= 1);
    const auto rank = static_cast<std::uint64_t>(fraction * static_cast<double>(count_));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      seen += buckets_[i];
      if (seen > rank || (seen == count_ && count_ > 0)) return std::chrono::nanoseconds(std::min(middle_of(i), max_));
    }
    return std::chrono::nanoseconds(0);
  }
  double max_us() const { return static_cast<double>(max_) / 1000; }
  double quantile_us(double fraction) const { return static_cast<double>(quantile(fraction).count()) / 1000; }

 private:
  static constexpr unsigned kSubBits = 7;

  // Values under 128 have a bucket each. Above that, the leading bit and the 7 bits after it choose the bucket.
  static std::size_t bucket_of(std::uint64_t value) {
    if (value < (1u << kSubBits)) return value;
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - kSubBits - 1;
    return ((shift + 1ull) << kSubBits) + ((value >> shift) & ((1u << kSubBits) - 1));
  }
  static std::uint64_t middle_of(std::size_t bucket) {
    if (bucket < (1u << kSubBits)) return bucket;
    const std::size_t shift = (bucket >> kSubBits) - 1;
    const std::uint64_t low = ((1ull << kSubBits) + (bucket & ((1u << kSubBits) - 1))) << shift;
    return low + ((1ull << shift) >> 1);
  }

  std::array<std::uint64_t, (64 - kSubBits + 1) << kSubBits> buckets_{};
  std::uint64_t count_ = 0, max_ = 0;
};

}  // namespace kv
