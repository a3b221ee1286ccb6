// store/name_sample.h: which blocks of a request are of a sample that is chosen by their own hashes.
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

/// One block in `mask` + 1, which is a power of two. Each request is looked through whole, also what is not here of it,
/// so no branch depends on a hash: one that is hardly ever taken costs more than the looks in between.
struct NameSample {
  static constexpr std::size_t kAtOnce = 1024;
  using Positions = std::array<std::uint32_t, kAtOnce>;

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

  /// Where in `hashes`, at most kAtOnce, the blocks of the sample are, in order, into the beginning of `positions`.
  /// Returns how many. Cost: some cycles for four blocks.
  std::size_t find(std::span<const BlockHash> hashes, Positions& positions) const {
    KV_ASSERT(hashes.size() <= kAtOnce);
    const BlockHash* const all = hashes.data();
    const NameSample own = *this;  // where no store can change it
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
};

/// The sample's blocks of a request, found before the Store's lock is asked for. Thread safety: none.
class SampledNames {
 public:
  /// As the Store said of late. If that is not what it goes by when the request comes, it looks by itself.
  void set(const std::optional<NameSample>& sample) { sample_ = sample; }
  /// `hashes` stay as they are until the request is over.
  void look(std::span<const BlockHash> hashes) {
    looked_ = hashes;
    looked_as_ = sample_;
    positions_.clear();
    if (!sample_) return;
    NameSample::Positions some;
    for (std::size_t at = 0; at < hashes.size(); at += NameSample::kAtOnce) {
      const auto part = hashes.subspan(at, std::min(hashes.size() - at, NameSample::kAtOnce));
      const std::size_t count = sample_->find(part, some);
      for (std::size_t i = 0; i < count; ++i) positions_.push_back(static_cast<std::uint32_t>(at) + some[i]);
    }
  }
  bool fits(const NameSample& sample, std::span<const BlockHash> hashes) const {
    return looked_as_ == sample && looked_.data() == hashes.data() && looked_.size() == hashes.size();
  }
  std::span<const std::uint32_t> positions() const { return positions_; }  ///< In order.

 private:
  std::optional<NameSample> sample_, looked_as_;
  std::span<const BlockHash> looked_;
  std::vector<std::uint32_t> positions_;
};

}  // namespace kv
