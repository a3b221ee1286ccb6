// store/name_sample.h: finds a request's blocks in samples that are chosen by hash.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/assert.h"
#include "index/block_hash.h"

namespace kv {

/// Searches a whole request, including absent blocks, so branches do not depend on a hash: a rarely taken branch costs
/// more than the lookups in between.
struct SampleLook {
  static constexpr std::size_t kAtOnce = 1024;
  using Positions = std::array<std::uint32_t, kAtOnce>;

  /// Writes the positions in `hashes`, at most kAtOnce, of the sample's blocks, in order, to the beginning of
  /// `positions`. Returns how many. Cost: some cycles for four blocks.
  template <class Sample>
  static std::size_t find(const Sample& sample, std::span<const BlockHash> hashes, Positions& positions) {
    KV_ASSERT(hashes.size() <= kAtOnce);
    const BlockHash* const all = hashes.data();
    const Sample own = sample;  // a local copy, which stores cannot change
    const auto one = [&](std::size_t i) { return static_cast<unsigned>(own.has(all[i])); };
    std::array<std::uint16_t, kAtOnce / 4> fours;  // those with a sampled block
    std::size_t four_count = 0, i = 0;
    for (; i + 4 <= hashes.size(); i += 4) {
      fours[four_count] = static_cast<std::uint16_t>(i);
      four_count += one(i) | one(i + 1) | one(i + 2) | one(i + 3);
    }
    // Each position is written at the next free place, and stays if it is sampled. The last write may lie behind the
    // result, never behind `positions`: there are at most as many writes as candidates.
    std::size_t count = 0;
    const auto keep = [&](std::size_t at) {
      positions[count] = static_cast<std::uint32_t>(at);
      count += one(at);
    };
    for (std::size_t k = 0; k < four_count; ++k)
      for (std::size_t at = fours[k]; at < fours[k] + std::size_t{4}; ++at) keep(at);
    for (; i < hashes.size(); ++i) keep(i);
    return count;
  }
  /// The same for any length: calls `each(position)`, from `first` on, while it returns true.
  template <class Sample, class Each>
  static void visit(const Sample& sample, std::span<const BlockHash> hashes, std::size_t first, Each&& each) {
    Positions positions;
    for (std::size_t at = first; at < hashes.size(); at += kAtOnce) {
      const std::size_t count = find(sample, hashes.subspan(at, std::min(hashes.size() - at, kAtOnce)), positions);
      for (std::size_t i = 0; i < count; ++i)
        if (!each(at + positions[i])) return;
    }
  }
};

/// The policy's sample: one block in `mask` + 1, which is a power of two.
struct NameSample {
  std::uint32_t mask = 0, wanted = 0;
  friend bool operator==(const NameSample&, const NameSample&) = default;

  /// A word of the hash outside the names in shadow and curve, or their tables would use only part of their slots.
  static std::uint32_t word(const BlockHash& hash) {
    std::uint32_t word = 0;
    std::memcpy(&word, hash.bytes.data() + 16, sizeof word);
    return word;
  }
  bool has(const BlockHash& hash) const { return (word(hash) & mask) == wanted; }
};

/// The hit curve's: any share of the blocks, by a print of the hash.
struct PrintSample {
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0;
  friend bool operator==(const PrintSample&, const PrintSample&) = default;

  std::uint32_t print(const BlockHash& hash) const {
    std::uint64_t word = 0;
    std::memcpy(&word, hash.bytes.data() + hash.bytes.size() - sizeof word, sizeof word);
    return static_cast<std::uint32_t>(((word ^ seed) * 0x9E3779B97F4A7C15) >> 32);
  }
  bool has(const BlockHash& hash) const { return print(hash) <= threshold; }
};

/// The samples' blocks of a request, found before the Store's lock is taken. Not thread-safe.
class SampledNames {
 public:
  /// The Store's latest samples. If they differ when the request comes, the Store searches itself.
  void set(const std::optional<NameSample>& sample, const std::optional<PrintSample>& curve = {}) {
    of_policy_.sample = sample;
    of_curve_.sample = curve;
  }
  /// `hashes` must stay unchanged until the request is over.
  void look(std::span<const BlockHash> hashes) {
    looked_ = hashes;
    of_policy_.look(hashes);
    of_curve_.look(hashes);
  }
  bool fits(const NameSample& sample, std::span<const BlockHash> hashes) const {
    return of_policy_.looked_as == sample && has_looked_at(hashes);
  }
  bool fits(const PrintSample& sample, std::span<const BlockHash> hashes) const {
    return of_curve_.looked_as == sample && has_looked_at(hashes);
  }
  std::span<const std::uint32_t> positions() const { return of_policy_.positions; }  ///< In order.
  std::span<const std::uint32_t> curve_positions() const { return of_curve_.positions; }

 private:
  template <class Sample>
  struct Found {
    std::optional<Sample> sample, looked_as;
    std::vector<std::uint32_t> positions;

    void look(std::span<const BlockHash> hashes) {
      looked_as = sample;
      positions.clear();
      if (!sample) return;
      SampleLook::visit(*sample, hashes, 0, [&](std::size_t i) {
        positions.push_back(static_cast<std::uint32_t>(i));
        return true;
      });
    }
  };
  bool has_looked_at(std::span<const BlockHash> hashes) const {
    return looked_.data() == hashes.data() && looked_.size() == hashes.size();
  }

  Found<NameSample> of_policy_;
  Found<PrintSample> of_curve_;
  std::span<const BlockHash> looked_;
};

}  // namespace kv
