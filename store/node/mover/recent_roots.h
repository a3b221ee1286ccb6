// store/node/mover/recent_roots.h: the present and recent lengths, in blocks, of a chain's hot root.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "client/hot/hot_sets.h"
#include "index/block_hash.h"

namespace kv {

/// A root changes while blocks lie where it placed them: it grows with use, and is lost with the node that counted it.
/// Clients look in both places for a while (HotSets, 2). A mover that used the present root only would leave behind the
/// blocks placed by the other one, and clients would look for them where they never arrived.
///   1. roots() has the root as last reported, and the one before if it ended less than kTime ago.
///   2. The first root reported for a namespace counts as unchanged.
///   3. Bounded: kRootsMax roots of a chain. Beyond kBlocksMax blocks, the ones that are no longer hot are forgotten.
/// For each block only the latest change to hot or not hot is kept: a root that changed several times within kTime may
/// have had more lengths than roots() returns.
/// Thread safety: none. Time: passed in, steady. Cost of roots(): one lookup for each block that is or was hot.
class RecentRoots {
 public:
  static constexpr Duration kTime = HotSets::kChangeTime;
  static constexpr std::size_t kRootsMax = 4;
  static constexpr std::size_t kBlocksMax = 1 << 17;

  /// Reports all blocks that are hot now. Requires: no block twice.
  void hear(const NamespaceId& space, std::span<const BlockHash> hot, TimePoint now);
  /// Lengths of `path`'s root: the present one first, then earlier ones, the latest first. Never empty.
  std::vector<std::size_t> roots(const NamespaceId& space, std::span<const BlockHash> path, TimePoint now) const;

  std::size_t kept_block_count() const { return block_count_; }

 private:
  struct Block {
    bool is_hot = true;
    TimePoint changed = TimePoint::min();  ///< Start of the present state, hot or not; min: it has always been so.
    std::size_t heard = 0;                 ///< The space's hear_count when the block was last reported hot.
  };
  struct Space {
    std::unordered_map<BlockHash, Block> blocks;
    TimePoint heard{};
    std::size_t hear_count = 0;
  };
  void forget(TimePoint now);

  std::map<NamespaceId, Space> spaces_;
  std::size_t block_count_ = 0;
  TimePoint next_forgetting_{};
};

}  // namespace kv
