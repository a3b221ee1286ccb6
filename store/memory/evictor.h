// store/memory/evictor.h: chooses the block that goes when a slot is wanted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "index/steps.h"
#include "store/memory/arena.h"
#include "store/memory/block_pool.h"
#include "store/policy/eviction_policy.h"
#include "store/tables/departed_table.h"
#include "store/tables/tenant_table.h"

namespace kv {

/// Finds a slot of a size, evicting for it. In this order:
///   1. a free slot of the class, or free granules for a new slab;
///   2. the slot of the class's leaf end that the policy gives least worth. But if the class has no leaf end, or the
///      least recently used leaf end of another class is kAgeRatio times as old as that of this class:
///   3. memory moves between the classes: the run of granules used longest ago is cleared, with all blocks below those
///      that lie in it (which were used no later). A run is left alone if it holds an incoming or pinned block, or a
///      block with a pinned block below. If every run is left alone: 2.
/// Blocks already cut off, by 3 or by a drop, are freed before any eviction.
/// A call does what its steps allow, and the next one goes on from there. In a small arena the cleared run is the
/// oldest of all. In a large arena one search pays for many runs (Arena::Search): each was among the oldest when the
/// search came by, and was not used since.
/// With one block size this is exact: a call finds a slot as long as some block is unpinned, and so are all below. With
/// several sizes it may be refused although such a block exists, when pins are scattered over every run of granules
/// that is long enough.
/// With a disk tier, a class that had to evict is *short*. Free bytes do not mean room for the class, since all of them
/// may be free slots of others. write_victims() has the class's next victims by 2 or 3 written in advance; the class is
/// short until all of these are on disk.
///   4. Without `may_lose` only blocks on disk go. Of the windows that the last search found, the oldest one whose
///      blocks are all on disk is cleared. Without one, the call finds no slot and the class is short.
///   5. While the victims of a class are being written, calls without `may_lose` skip other windows. Since the victims
///      are pinned meanwhile, each retry would have another window written.
///   6. A class that is short is listed once, in short_ or in being_written_; other classes are not.
/// With tenants (tenant_table.h), 2 takes the leaf ends of a class's band; if the band is empty, those of the asker
/// itself. For an asker at its maximum, blocks of its own go, of any class, before it takes memory. A window of 3 is
/// also left alone if it holds a block that may not go for the asker. With several sizes in use guaranteed memory may
/// therefore be found late, as with pins: when guaranteed blocks of others are scattered over every run of granules.
/// Why not always the oldest leaf end of all: clearing a run evicts young blocks along with old ones. With two sizes in
/// equal use that cost a fifth of all hits, because hardly any block was then evicted singly. Thread safety: the
/// Store's lock. Cost: 2: O(log leaf ends + classes); 3: the granules visited, the blocks of a run, those
/// evicted. Independent of the number of leases.
class Evictor {
 public:
  static constexpr std::uint64_t kAgeRatio = 2;

  struct Stats {
    std::uint64_t evicted_blocks = 0, evicted_bytes = 0, slab_moves = 0;
    std::uint64_t unspilled_blocks = 0;  ///< Evicted blocks that were not on disk.
    std::uint64_t dropped_blocks = 0;    ///< Freed after a drop.
    std::array<std::uint64_t, 32> age_log2_ms{};
  };

  struct Found {
    std::optional<SlotId> slot;  ///< Taken from the pool.
    bool again = false;          ///< Not found because the steps were used up: another call can go on.
    bool is_worth_less = false;  ///< Not found because 2 would take a leaf end of higher worth.
    bool is_over_quota = false;  ///< Not found because the asker is at its maximum and all its blocks are pinned.
  };

  /// `departed` records blocks that leave both tiers. With `tenants`, find_slot() and next_victim() act for its asker.
  Evictor(BlockPool& pool, EvictionPolicy& policy, DepartedTable& departed, TenantTable* tenants = nullptr)
      : pool_(pool), policy_(policy), departed_(departed), tenants_(tenants), queues_(policy.queues()) {}

  /// `may_lose`: whether a block that is not on disk may go (4).
  /// `may_rest`: the caller was refused before, and asks periodically. After a failed search of a large arena, the next
  /// one may wait twenty times as long as the last one took.
  /// `worth`: the worth of the slot's new block, as EvictionPolicy::worth; 2 spares blocks worth more.
  Found find_slot(std::size_t block_bytes, Steps& steps, TimePoint now, bool may_lose = true, bool may_rest = false,
                  double worth = std::numeric_limits<double>::infinity());
  /// A class's leaf end that goes first, and its worth. kNoBlock: none, or out of steps.
  struct Victim {
    BlockId block = kNoBlock;
    double worth = 0;
  };
  BlockId next_victim(Steps& steps);  ///< From the class with the least recently used leaf end.
  BlockId next_spared(Steps& steps);  ///< The same among blocks that may go for any tenant.
  BlockId any_victim(Steps& steps);   ///< The same among all blocks, guaranteed or not.
  /// EvictionPolicy::chance of a leaf end in memory.
  double chance(BlockId leaf_end, std::uint64_t blocks) const;
  const EvictionPolicy& policy() const { return policy_; }

  // -- for the disk tier
  bool has_short_class() const { return !short_.empty(); }  ///< Some short class that write_victims() has not visited.
  /// Hands to `write` the next victims of the short classes that are not on disk; the class that is short the longest
  /// comes first. Victims are a window with all blocks below, or up to `own_bytes_max` of the class's leaf ends.
  /// `write` pins the block, and returns false when full. Stops there, or without steps; the next call goes on.
  /// Requires: !has_detached(), and end_writes() after the previous call.
  void write_victims(std::size_t own_bytes_max, Steps& steps, TimePoint now, const std::function<bool(BlockId)>& write);
  void end_writes();  ///< The handed-out blocks are on disk, or could not be written.

  void evict(BlockId leaf_end, TimePoint now);  ///< Requires: unpinned.
  /// Frees cut-off blocks, as long as there are steps. Returns how many of these were dropped.
  std::size_t reap(Steps& steps, TimePoint now);
  const Stats& stats() const { return stats_; }
  std::string check() const;  ///< Invariant 6; for tests. Empty, or the broken invariant.

 private:
  enum class Short : std::uint8_t { kNo, kYes, kBeingWritten };
  /// The progress of one size class in taking memory from the others.
  struct Hunt {
    TenantId asker{};             ///< The last one. With tenants.
    bool may_take_own = false;    ///< No spare blocks: the asker's own may go for it.
    std::size_t block_bytes = 0;  ///< Shows whether the class's number was another size's before.
    std::optional<Arena::Search> search;
    std::vector<Arena::Window> found;      ///< Results of the last search; the oldest last.
    std::vector<Arena::Window> unwritten;  ///< From `found`, with blocks not on disk. Oldest first.
    std::optional<Arena::Window> window;
    bool has_block = false;
    bool is_checked = false;  ///< All blocks in and below the window are unpinned.
    bool is_begun = false;    ///< The eviction of its blocks has begun.
    Arena::Cursor at;
    Arena::Cursor written_to;  ///< The progress of write_victims() in the window.
    Short is_short = Short::kNo;
    bool is_last_look = false;  ///< A search found only shielded windows.
    std::size_t search_steps = 0;
    std::uint64_t change_count = 0;        ///< The arena's change_count() when the search began.
    std::optional<std::uint64_t> none_at;  ///< The same for a search without a result.
    TimePoint rest_until{};
  };
  enum class Cleared : std::uint8_t { kSome, kNone, kUnfinished, kUnwritten };

  Cleared clear_oldest_window(Hunt& hunt, bool may_lose, Steps& steps, TimePoint now, bool may_rest);
  Cleared find_window(Hunt& hunt, bool may_lose, Steps& steps, TimePoint now, bool may_rest);
  Cleared evict_singly(BlockId top, Hunt& hunt, bool may_lose, Steps& steps, TimePoint now);
  Cleared next_found(Hunt& hunt, Steps& steps);
  Cleared choose_window(Hunt& hunt, Steps& steps, TimePoint now, bool may_rest);
  void set_window(Hunt& hunt, const Arena::Window& window);
  void begin_window(Hunt& hunt);
  void recheck_window(Hunt& hunt, Steps& steps);
  void take_back_unwritten(Hunt& hunt);
  bool is_kept(const Hunt& hunt, SlotId slot, Steps& steps);
  bool may_go(const Hunt& hunt, BlockId block) const;
  void set_short(std::uint32_t size_class);
  Cleared write_victims(std::uint32_t size_class, std::size_t own_bytes_max, Steps& steps, TimePoint now,
                        const std::function<bool(BlockId)>& write);
  Cleared write_window(Hunt& hunt, Steps& steps, const std::function<bool(BlockId)>& write);
  void end_shields(TimePoint now);
  bool takes_window(Hunt& hunt, std::uint32_t size_class, Steps& steps);
  /// The leaf ends considered together: a cohort's, or a band's.
  struct Lane {
    std::uint32_t number;
    bool is_band = false;
  };
  Victim next_in(Lane lane, Steps& steps);
  Victim next_for(const Hunt& hunt, std::uint32_t size_class, Steps& steps);
  struct Oldest {
    BlockId block = kNoBlock;
    Lane lane{};
  };
  Oldest oldest_spared(Steps& steps);
  Oldest oldest_of(TenantId tenant, Steps& steps);
  bool is_much_older(BlockId block, BlockId than) const;
  void count_eviction(BlockId block, TimePoint now);

  /// The worth of a queue's first block, as last computed.
  struct Head {
    Tick used{};
    std::uint32_t version = 0;
    bool is_known = false;
    double worth = 0;
    std::uint64_t until = 0;  ///< By the policy's clock.
  };

  BlockPool& pool_;
  EvictionPolicy& policy_;
  DepartedTable& departed_;
  TenantTable* const tenants_;
  const LeafQueues queues_;
  std::vector<std::vector<Head>> heads_;  ///< By cohort and queue; without tenants a class is a cohort.
  std::vector<std::vector<Head>> band_heads_;
  std::vector<Hunt> hunts_;
  std::deque<std::uint32_t> short_;  ///< Size classes, in the order in which they became short.
  std::vector<std::uint32_t> being_written_;
  TimePoint shielded_since_{};
  Stats stats_;
};

}  // namespace kv
