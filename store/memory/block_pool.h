// store/memory/block_pool.h: the blocks in memory: their names (index) and their slots (arena), kept in step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "index/prefix_index.h"
#include "index/steps.h"
#include "store/disk/disk_tier.h"
#include "store/memory/arena.h"
#include "store/tables/event_log.h"
#include "store/tables/tenant_table.h"

namespace kv {

/// A block is incoming, linked or unlinked. All changes to index and arena go through here; queries may go to either.
///
///     take_slot() -> incoming ------ link() -----> linked ---- eviction, or a drop without pins ----> slot freed
///                  | a slot that a put       | in the index, can be found                        ^
///                  | fills, in no index      | dropped while pinned                              |
///                  +- return_slot(): slot freed  +-> unlinked ------------- last pin ends -----------+
///
///   1. A slot is held in the arena iff its block is incoming or pinned. So pinned blocks are never cleared.
///   2. A block's slot is freed exactly when it is out of the index and its last pin has ended.
///   3. With two size classes or more, a slab's last use is the latest use of its blocks.
///   4. Retained blocks are pinned, and take at most the share that the Store allows.
/// Thread safety: the Store's lock.
class BlockPool {
 public:
  /// `disk`: receives departures from memory; may be nullptr.
  explicit BlockPool(std::unique_ptr<Arena> arena, DiskTier* disk = nullptr, std::uint64_t hash_seed = 0,
                     LeafQueues queues = {})
      : arena_(std::move(arena)), disk_(disk), index_(hash_seed, queues) {}

  /// Before the first block. The table counts all slots; the slot of an incoming block belongs to the asker.
  void use_tenants(TenantTable* tenants) { tenants_ = tenants; }
  void use_events(EventLog* events) { events_ = events; }  ///< Records gains and losses of matches.

  PrefixIndex& index() { return index_; }
  const PrefixIndex& index() const { return index_; }
  Arena& arena() { return *arena_; }
  const Arena& arena() const { return *arena_; }

  // -- recency
  /// A tick for a use at `now`: the time in nanoseconds, or one more than the last tick if that is later. So time_of()
  /// is the inverse, except for uses within one nanosecond.
  Tick tick(TimePoint now);
  Tick tick(TimePoint now, Duration idle);  ///< For a use `idle` before `now`. Not later than tick(now).
  Tick last_tick() const { return Tick{static_cast<std::uint64_t>(last_tick_)}; }
  static TimePoint time_of(Tick tick) { return TimePoint(std::chrono::nanoseconds(static_cast<std::int64_t>(tick))); }
  // `how`: for a use that counts (PrefixIndex::use, without its own count); else only the order of use changes.
  void use(const PrefixIndex::Prefix& prefix, Tick tick, std::optional<Usage> how = {});
  void use(BlockId block, Tick tick, std::optional<Usage> how = {});  ///< A block of a set.
  std::vector<BlockId> blocks_of(const PrefixIndex::Prefix& prefix) const;

  // -- pins
  void pin(BlockId block);
  void unpin(BlockId block);
  void pin(std::span<const BlockId> prefix);  ///< As PrefixIndex::pin of a prefix.
  void unpin(std::span<const BlockId> prefix);
  void move_pin(BlockId from, BlockId to);
  // A lease pins the last block of a prefix. leased_bytes() counts all blocks of leased prefixes, shared ones once.
  // After a drop a block counts until it is freed, and the leased block itself until its leases end.
  std::size_t unleased_bytes(BlockId block) const;  ///< The amount that lease() would add to leased_bytes().
  void lease(BlockId block);                        ///< Pins it.
  void end_lease(BlockId block, Steps* steps = nullptr);
  std::size_t leased_bytes() const { return leased_bytes_; }
  const std::unordered_map<BlockId, std::uint32_t>& leased() const { return leased_; }
  // Retention has two sides, and pins once for both: requests to retain the block, and named contexts that keep it. It
  // ends with the last of them. A drop ends it at once; the number shows whether that has happened.
  enum class RetentionId : std::uint64_t {};  ///< Never reused.
  bool is_retained(BlockId block) const { return retained_.contains(block); }
  bool is_retained_on_request(BlockId block) const;
  void retain(BlockId block);       ///< Requires: !is_retained_on_request(block).
  bool unretain(BlockId block);     ///< Whether it was retained on request.
  RetentionId keep(BlockId block);  ///< For one more context.
  bool is_kept(BlockId block, RetentionId retention) const;
  void end_keep(BlockId block, RetentionId retention);  ///< For one context less, unless a drop has ended it.

  // -- life of a block
  std::optional<SlotId> take_slot(std::size_t block_bytes,
                                  Arena::Place place);  ///< A held slot, or nullopt: evict first.
  void return_slot(SlotId slot);                        ///< Frees it.
  BlockId link(TreeId tree, BlockId parent, const PrefixIndex::NewBlock& block, Tick tick);  ///< block.slot was taken.
  /// Moves the block to a taken slot that has a copy of its bytes. Requires: the caller has pinned the block, and has
  /// the only pointer to its bytes.
  void move(BlockId block, SlotId to);
  void remove_leaf_end(BlockId block);
  /// Reasons for removing many blocks: PrefixIndex::detach hides them from lookups, then reap() frees them.
  enum class Removal : std::uint32_t { kEviction, kDrop };
  void detach(BlockId block, Removal why);
  void detach_all(TreeId tree, Removal why);
  /// Frees cut-off blocks, children first, and ends their retention, within the steps. Calls `removed` before each.
  void reap(Steps& steps, const std::function<void(BlockId, Removal)>& removed);

  bool has_disk() const { return disk_ != nullptr; }
  bool is_on_disk(BlockId block) const { return disk_ != nullptr && disk_->copy_on_disk(block) != kNoBlock; }
  /// The length of its slot, which is accounted. A set's block may be shorter.
  std::size_t block_bytes(BlockId block) const { return arena_->block_bytes(index_.slot(block)); }
  std::size_t length(BlockId block) const;                        ///< The content's length.
  std::span<std::byte> bytes(BlockId block) const;                ///< length() bytes.
  std::span<const std::uint64_t> checksums(BlockId block) const;  ///< For the stripes of bytes().
  std::size_t incoming_count() const { return incoming_count_; }
  std::size_t pinned_count() const { return pinned_count_; }
  const std::unordered_map<SlotId, TenantId>& incoming_for() const { return incoming_for_; }  ///< With tenants.
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
  std::unordered_map<SlotId, TenantId> incoming_for_;
  PrefixIndex index_;
  std::int64_t last_tick_ = 0;
  std::size_t incoming_count_ = 0, pinned_count_ = 0, retained_bytes_ = 0, leased_bytes_ = 0;
  std::unordered_map<BlockId, Retention> retained_;
  std::uint64_t retention_count_ = 0;  ///< Since the start: the last RetentionId.
  std::unordered_map<BlockId, std::uint32_t> leased_;
  std::unordered_set<BlockId> unlinked_;
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
