// store/node/mover/recent_roots.h: how many blocks a chain's hot root has, and had a while ago.
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

/// A root changes while blocks lie where it put them: it grows with use, and is forgotten with the node that counted
/// it. Clients look in both places for a while (HotSets, 2), so a mover that went by the root of the moment would leave
/// behind what lies by the other one, and clients would look for it where it never came.
///   1. roots() has the root as it was heard last, and the one before that if it ended less than kTime ago.
///   2. What was heard first of a namespace was always so: nobody knows of a change.
///   3. Bounded: kRootsMax roots of a chain. Beyond kBlocksMax blocks those that are hot no more are forgotten.
/// Of a block the last time that it became hot, or ceased to be, is kept, and no more: a root that has changed several
/// times within kTime may have had more lengths than roots() tells.
/// Thread safety: none. Time: handed in, steady. Cost of roots(): one search for each block that is or was hot.
class RecentRoots {
 public:
  static constexpr Duration kTime = HotSets::kChangeTime;
  static constexpr std::size_t kRootsMax = 4;
  static constexpr std::size_t kBlocksMax = 1 << 17;

  /// All that is hot now. Requires: no block twice.
  void hear(const NamespaceId& space, std::span<const BlockHash> hot, TimePoint now);
  /// Lengths of `path`'s root: that of now first, then others, the latest first. Never empty.
  std::vector<std::size_t> roots(const NamespaceId& space, std::span<const BlockHash> path, TimePoint now) const;

  std::size_t kept_block_count() const { return block_count_; }

 private:
  struct Block {
    bool is_hot = true;
    TimePoint changed = TimePoint::min();  ///< Since when it is hot, or not any more; min: it always was.
    std::size_t heard = 0;                 ///< The last time that it was among those that are hot.
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
