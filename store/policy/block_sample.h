// store/policy/block_sample.h: the blocks that stand for all, chosen by hash, and where a request has them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "base/assert.h"
#include "index/block_hash.h"
#include "index/prefix_index.h"

namespace kv {

/// One block in so many, for the policy (ReuseShadow) and the curve (HitCurve); RootSample goes by the same print.
///   1. A print depends on hash and seed alone: requests and puts sample the same blocks.
///   2. Of two samples with one seed the sparser is a part of the denser.
/// The print is of the first and the last 8 bytes: an engine's own 64 bits have zeros behind or before them.
struct BlockSample {
  static constexpr std::size_t kAtOnce = 1024;
  using Positions = std::array<std::uint32_t, kAtOnce>;

  std::uint64_t seed = 0;
  std::uint32_t print_max = ~std::uint32_t{0};  ///< Of the sample's blocks.

  void take_one_in(std::uint64_t count) {
    print_max = static_cast<std::uint32_t>((std::uint64_t{1} << 32) / count - 1);
  }
  friend bool operator==(const BlockSample&, const BlockSample&) = default;

  static std::uint64_t last_word(const BlockHash& hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, hash.bytes.data() + hash.bytes.size() - sizeof word, sizeof word);
    return word;
  }
  std::uint32_t print(const BlockHash& hash) const {
    return static_cast<std::uint32_t>((hash_prefix(hash) ^ last_word(hash) ^ seed) >> 32);
  }
  bool has(const BlockHash& hash) const { return print(hash) <= print_max; }
  bool is_part_of(const BlockSample& other) const { return seed == other.seed && print_max <= other.print_max; }
  /// A block's name in the tables of the sample's users. Even, also for the blocks of one print.
  std::uint64_t name_of(TreeId tree, const BlockHash& hash) const {
    return multiply_fold(hash_prefix(hash) ^ seed ^ 0x9E3779B97F4A7C15,
                         (last_word(hash) + static_cast<std::uint64_t>(tree)) ^ 0xD1B54A32D192ED03);
  }

  /// Writes the positions in `hashes`, at most kAtOnce, of the sample's blocks, in order, to the beginning of
  /// `positions`. Returns how many. Cost: some cycles for four blocks. Searches a whole request, including absent
  /// blocks, so branches do not depend on a hash: a rarely taken branch costs more than the lookups in between.
  std::size_t find(std::span<const BlockHash> hashes, Positions& positions) const {
    KV_ASSERT(hashes.size() <= kAtOnce);
    const BlockHash* const all = hashes.data();
    const BlockSample own = *this;  // a local copy, which stores cannot change
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
  /// The same for any length, from `first` on: calls `each` with some positions at a time, while it returns true.
  template <class Each>
  void visit(std::span<const BlockHash> hashes, std::size_t first, Each&& each) const {
    Positions positions;
    for (std::size_t at = first; at < hashes.size(); at += kAtOnce) {
      const auto some =
          std::span(positions).first(find(hashes.subspan(at, std::min(hashes.size() - at, kAtOnce)), positions));
      for (std::uint32_t& position : some) position += static_cast<std::uint32_t>(at);
      if (!each(std::span<const std::uint32_t>(some))) return;
    }
  }
};

/// The samples' blocks of a request, found before the Store's lock is taken. Not thread-safe.
class SampledNames {
 public:
  enum Whose : std::uint8_t { kPolicy, kCurve };
  using Samples = std::array<std::optional<BlockSample>, 2>;  ///< By Whose.

  /// The Store's latest samples. If they differ when the request comes, the Store searches itself.
  void set(const Samples& samples) { samples_ = samples; }
  /// `hashes` must stay unchanged until the request is over.
  void look(std::span<const BlockHash> hashes) {
    looked_ = hashes;
    looked_as_ = samples_;
    const auto& [policy, curve] = samples_;
    for (auto& each : positions_) each.clear();
    if (policy) look(*policy, positions_[0]);
    if (policy && curve && curve->is_part_of(*policy)) {
      std::ranges::copy_if(positions_[0], std::back_inserter(positions_[1]),
                           [&](std::uint32_t at) { return curve->has(hashes[at]); });
    } else if (curve) {
      look(*curve, positions_[1]);
    }
  }
  /// The positions of the sample's blocks, in order; nullptr: look() has not searched these hashes for them.
  const std::vector<std::uint32_t>* find(Whose whose, const BlockSample& sample,
                                         std::span<const BlockHash> hashes) const {
    const bool is_it = looked_.data() == hashes.data() && looked_.size() == hashes.size();
    return is_it && looked_as_[whose] == sample ? &positions_[whose] : nullptr;
  }

 private:
  void look(const BlockSample& sample, std::vector<std::uint32_t>& positions) {
    sample.visit(looked_, 0, [&](std::span<const std::uint32_t> some) {
      positions.insert(positions.end(), some.begin(), some.end());
      return true;
    });
  }

  Samples samples_, looked_as_;
  std::array<std::vector<std::uint32_t>, 2> positions_;
  std::span<const BlockHash> looked_;
};

}  // namespace kv
