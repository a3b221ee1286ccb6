// store/name_sample.h: which blocks of a request are of the samples that are chosen by their own hashes.
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

/// Looks for a sample's blocks. Each request is looked through whole, also what is not here of it, so no branch depends
/// on a hash: one that is hardly ever taken costs more than the looks in between.
struct SampleLook {
  static constexpr std::size_t kAtOnce = 1024;
  using Positions = std::array<std::uint32_t, kAtOnce>;

  /// Where in `hashes`, at most kAtOnce, the blocks of the sample are, in order, into the beginning of `positions`.
  /// Returns how many. Cost: some cycles for four blocks.
  template <class Sample>
  static std::size_t find(const Sample& sample, std::span<const BlockHash> hashes, Positions& positions) {
    KV_ASSERT(hashes.size() <= kAtOnce);
    const BlockHash* const all = hashes.data();
    const Sample own = sample;  // where no store can change it
    const auto one = [&](std::size_t i) { return static_cast<unsigned>(own.has(all[i])); };
    std::array<std::uint16_t, kAtOnce / 4> fours;  // those that have one
    std::size_t four_count = 0, i = 0;
    for (; i + 4 <= hashes.size(); i += 4) {
      fours[four_count] = static_cast<std::uint16_t>(i);
      four_count += one(i) | one(i + 1) | one(i + 2) | one(i + 3);
    }
    // Each is written where the next is to be, and stays if it is of the sample. The last may be written behind the end
    // of those that are, never behind that of `positions`: no more are written than were looked at.
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
  /// The same of any number: `each(position)`, from `first` on, as long as that is true.
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

/// The policy's: one block in `mask` + 1, which is a power of two.
struct NameSample {
  std::uint32_t mask = 0, wanted = 0;
  friend bool operator==(const NameSample&, const NameSample&) = default;

  /// A word of the hash that shadow and curve make no names of: else the table of a sample would use a part of its
  /// slots only.
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

/// The samples' blocks of a request, found before the Store's lock is asked for. Thread safety: none.
class SampledNames {
 public:
  /// As the Store said of late. If that is not what it goes by when the request comes, it looks by itself.
  void set(const std::optional<NameSample>& sample, const std::optional<PrintSample>& curve = {}) {
    of_policy_.sample = sample;
    of_curve_.sample = curve;
  }
  /// `hashes` stay as they are until the request is over.
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
