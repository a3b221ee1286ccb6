// store/curve/shadow_cache.h: a small cache over a sample of blocks, run like a node's large cache of all blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "index/prefix_index.h"
#include "store/policy/eviction_policy.h"

namespace kv {

/// A block of the sample, shared by all caches of one shadow.
struct ShadowBlock {
  static constexpr std::uint16_t kNone = 0xFFFF;

  std::uint64_t name = 0;
  std::uint32_t used_at = 0;  ///< By the policy's clock.
  std::uint32_t weight = 0;   ///< Blocks that it stands for.
  std::uint16_t parent = kNone;
  std::uint8_t parent_life = 0;  ///< The parent's `life` then; detects a reused number.
  std::uint8_t life = 0;
  std::uint16_t trait = 0;  ///< As in Usage, for the latest use.
  std::uint8_t passed = 0;  ///< The same.
  bool is_busy = false;     ///< In the request in work: as good as pinned.
  bool is_heavy = false;
  bool is_known = false;  ///< False: the number is free.
};

/// Evicts and refuses by the node's own policy, with its present classes and worth: this cache does not learn. Of a
/// chain the sample has some blocks; the nearest one before is a block's parent, and only blocks without children here
/// may go. The victim is chosen among random leaf ends, without queues.
///
///   1. leaf_ends_ has each block here without children here, once.
///   2. held_ is the weight of all blocks here.
/// Not thread-safe. Cost: O(1); an eviction examines kLookedAt blocks.
class ShadowCache {
 public:
  ShadowCache(const std::vector<ShadowBlock>& blocks, std::uint64_t seed);

  void set_capacity(std::uint64_t block_count) { capacity_ = block_count; }
  bool has(std::uint16_t block) const { return states_[block].is_here; }

  void use(std::uint16_t block);  ///< Requires: has(block). The shared block has this use already.
  /// Stores an absent block if it fits or is worth more than its victims; `forced`: always. Returns whether it is here.
  bool offer(std::uint16_t block, const EvictionPolicy& policy, std::uint32_t now, bool forced);
  void forget(std::uint16_t block);                            ///< Frees its number.
  void set_parent(std::uint16_t block, std::uint16_t parent);  ///< Before the shared block is updated.
  void set_weight(std::uint16_t block, std::uint32_t weight);  ///< The same.

  std::size_t memory_bytes() const;
  bool check() const;  ///< Whether the invariants hold; for tests.

 private:
  static constexpr std::size_t kLookedAt = 32;
  static constexpr std::size_t kEvictedAtOnce = 8;

  struct State {
    std::uint16_t leaf_end = ShadowBlock::kNone;  ///< Index in leaf_ends_.
    std::uint16_t children = 0;                   ///< Blocks here whose parent it is.
    std::uint8_t use_count = 0;                   ///< Kept when the block goes.
    bool is_here = false;
  };
  struct Victim {
    std::uint16_t block = ShadowBlock::kNone;
    double worth = 0;
  };

  Victim next_victim(const EvictionPolicy& policy, std::uint32_t now);
  void evict(std::uint16_t block);
  bool has_parent(const ShadowBlock& block) const;
  void add_child(std::uint16_t parent);
  void remove_child(std::uint16_t parent);
  void add_leaf_end(std::uint16_t block);
  void remove_leaf_end(std::uint16_t block);

  const std::vector<ShadowBlock>& blocks_;
  std::vector<State> states_;
  std::vector<std::uint16_t> leaf_ends_;
  std::uint64_t capacity_ = 0, held_ = 0;
  std::uint64_t random_;
};

}  // namespace kv
