// store/block_pool.h: the blocks that are here: what they are called (index) and where they lie (arena), kept in step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "index/prefix_index.h"
#include "index/steps.h"
#include "store/arena.h"
#include "store/disk_tier.h"
#include "store/event_log.h"
#include "store/tenant_table.h"

namespace kv {

/// A block is staged, linked or unlinked. Whatever changes index or arena goes through here; questions may go to
/// either.
///
///     stage() -> staged ------ link() -----> linked ---- eviction, or a drop without pins ----> slot freed
///                  | a slot that a put       | in the index, can be found                        ^
///                  | fills, in no index      | dropped while pinned                              |
///                  +- unstage(): slot freed  +-> unlinked ------------- last pin ends -----------+
///
///   1. A slot is held in the arena iff it is staged or its block is pinned. So no pinned block is cleared for another
///      size class.
///   2. A block's slot is freed when it is out of the index and its last pin has ended, not before and not later.
///   3. Once there are two size classes, a slab's last use is the latest use of any block in it. Before, nobody asks.
///   4. Retained blocks are pinned, and take at most what the Store allows.
/// Thread safety: none, the Store's lock covers it.
class BlockPool {
 public:
  /// `disk`: told when a block leaves memory; may be nullptr.
  explicit BlockPool(std::unique_ptr<Arena> arena, DiskTier* disk = nullptr, std::uint64_t hash_seed = 0,
                     LeafQueues queues = {})
      : arena_(std::move(arena)), disk_(disk), index_(hash_seed, queues) {}

  /// Before the first block: told of all that comes and goes. What is staged is its asker's.
  void use_tenants(TenantTable* tenants) { tenants_ = tenants; }
  void use_events(EventLog* events) { events_ = events; }  ///< Told of what a match finds, and finds no more.

  PrefixIndex& index() { return index_; }
  const PrefixIndex& index() const { return index_; }
  Arena& arena() { return *arena_; }
  const Arena& arena() const { return *arena_; }

  // -- recency
  /// A tick for a use at `now`: the time in nanoseconds, or one more than the last tick if that is later. So time_of()
  /// is the inverse, but for uses within one nanosecond.
  Tick tick(TimePoint now);
  Tick tick(TimePoint now, Duration idle);  ///< For a use that was so long before `now`. Not later than tick(now).
  Tick last_tick() const { return Tick{static_cast<std::uint64_t>(last_tick_)}; }
  static TimePoint time_of(Tick tick) { return TimePoint(std::chrono::nanoseconds(static_cast<std::int64_t>(tick))); }
  // `how`: of a use that counts (PrefixIndex::use, its own count aside); without, only the order of use changes.
  void use(const PrefixIndex::Prefix& prefix, Tick tick, std::optional<Usage> how = {});  ///< The whole prefix.
  void use(BlockId block, Tick tick, std::optional<Usage> how = {});  ///< A block that stands alone.
  std::vector<BlockId> blocks_of(const PrefixIndex::Prefix& prefix) const;

  // -- pins
  void pin(BlockId block);
  void unpin(BlockId block);
  void pin(std::span<const BlockId> prefix);    ///< As PrefixIndex::pin of a prefix.
  void unpin(std::span<const BlockId> prefix);  ///< The blocks given to pin().
  void move_pin(BlockId from, BlockId to);      ///< As PrefixIndex::move_pin.
  // A lease pins the last block of a prefix. What leases keep is counted: all blocks of these prefixes, shared ones
  // once. After a drop a block counts until it is freed, and the leased block itself until its leases end.
  std::size_t unleased_bytes(BlockId block) const;  ///< By how much lease() would raise leased_bytes().
  void lease(BlockId block);                        ///< Pins it.
  void end_lease(BlockId block, Steps* steps = nullptr);
  std::size_t leased_bytes() const { return leased_bytes_; }
  const std::unordered_map<BlockId, std::uint32_t>& leased() const { return leased_; }  ///< With how many leases.
  // Retention has two sides, and pins once for both: whoever asked to retain the block, and named contexts that keep
  // it. It ends with the last of them. A drop ends it at once; the number tells whether that has happened.
  enum class RetentionId : std::uint64_t {};  ///< Never used again.
  bool is_retained(BlockId block) const { return retained_.contains(block); }
  bool is_retained_on_request(BlockId block) const;
  void retain(BlockId block);       ///< Requires: !is_retained_on_request(block).
  bool unretain(BlockId block);     ///< Whether it was retained on request.
  RetentionId keep(BlockId block);  ///< For one context more.
  bool is_kept(BlockId block, RetentionId retention) const;
  void end_keep(BlockId block, RetentionId retention);  ///< For one context less, unless a drop has ended it.

  // -- life of a block
  std::optional<SlotId> stage(std::size_t block_bytes, Arena::Place place);  ///< A held slot, or nullopt: evict first.
  void unstage(SlotId slot);                                                 ///< Frees it.
  BlockId link(TreeId tree, BlockId parent, const PrefixIndex::NewBlock& block, Tick tick);  ///< block.slot is staged.
  /// Its bytes were copied to the slot, which is staged. Requires: the block is pinned by the caller, and nobody else
  /// knows where its bytes lie.
  void move(BlockId block, SlotId to);
  void remove_leaf_end(BlockId block);
  /// Why blocks are removed many at a time: they are cut off first (PrefixIndex::detach), so that nobody finds them,
  /// and then freed by reap().
  enum class Removal : std::uint32_t { kEviction, kDrop };
  void detach(BlockId block, Removal why);
  void detach_all(TreeId tree, Removal why);
  /// Frees what was cut off, ending retention, as long as there are steps. Each is handed to `removed` while it is
  /// still known (children first).
  void reap(Steps& steps, const std::function<void(BlockId, Removal)>& removed);

  bool has_disk() const { return disk_ != nullptr; }
  bool is_on_disk(BlockId block) const { return disk_ != nullptr && disk_->copy_on_disk(block) != kNoBlock; }
  /// Of its slot: what is accounted. A set's block may be shorter.
  std::size_t block_bytes(BlockId block) const { return arena_->block_bytes(index_.slot(block)); }
  std::size_t length(BlockId block) const;                        ///< Of what it holds.
  std::span<std::byte> bytes(BlockId block) const;                ///< length() of them.
  std::span<const std::uint64_t> checksums(BlockId block) const;  ///< Of the stripes of bytes().
  std::size_t staged_count() const { return staged_count_; }
  std::size_t pinned_count() const { return pinned_count_; }                              ///< Blocks.
  const std::unordered_map<SlotId, TenantId>& staged_for() const { return staged_for_; }  ///< With tenants.
  std::size_t retained_bytes() const { return retained_bytes_; }
  struct Retention {
    RetentionId id{};
    std::uint32_t context_count = 0;
    bool is_on_request = false;
  };
  const std::unordered_map<BlockId, Retention>& retained() const { return retained_; }
  const std::unordered_set<BlockId>& unlinked() const { return unlinked_; }

 private:
  std::unique_ptr<Arena> arena_;
  DiskTier* disk_;
  TenantTable* tenants_ = nullptr;
  EventLog* events_ = nullptr;
  std::unordered_map<SlotId, TenantId> staged_for_;
  PrefixIndex index_;
  std::int64_t last_tick_ = 0;
  std::size_t staged_count_ = 0, pinned_count_ = 0, retained_bytes_ = 0, leased_bytes_ = 0;
  std::unordered_map<BlockId, Retention> retained_;
  std::uint64_t retention_count_ = 0;  ///< Ever: the last RetentionId.
  std::unordered_map<BlockId, std::uint32_t> leased_;
  std::unordered_set<BlockId> unlinked_;  ///< And still pinned.
  std::vector<BlockId> scratch_;

  Retention& retention_of(BlockId block);
  void end_retention(std::unordered_map<BlockId, Retention>::iterator ended);
  void use_in_index(BlockId block, Tick tick, std::optional<Usage> how);
  void hold(BlockId block);
  void end_hold(BlockId block);
  void count_freed(BlockId block);
  bool is_found(BlockId block) const { return !index_.has_detached() || index_.is_attached(block); }
  void tell_cut(BlockId block);
};

}  // namespace kv
