#include "store/memory/block_pool.h"

#include <algorithm>

#include "base/assert.h"
#include "base/checksum.h"

namespace kv {
namespace {

/// Blocks cut off at once that are reported singly, which takes some 50 us under the lock; a larger number is reported
/// as a gap. Freeing a block also happens under the lock, at a multiple of that cost.
constexpr std::size_t kToldMax = 512;

}  // namespace

Tick BlockPool::tick(TimePoint now) {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  last_tick_ = std::max<std::int64_t>(last_tick_ + 1, nanoseconds);
  return Tick{static_cast<std::uint64_t>(last_tick_)};
}

std::vector<BlockId> BlockPool::blocks_of(const PrefixIndex::Prefix& prefix) const {
  std::vector<BlockId> blocks(prefix.block_count);
  index_.blocks_of(prefix, blocks);
  return blocks;
}

Tick BlockPool::tick(TimePoint now, Duration idle) {
  KV_ASSERT(idle >= Duration::zero());
  return Tick{
      static_cast<std::uint64_t>(std::max<std::int64_t>(static_cast<std::int64_t>(tick(now)) - idle.count(), 1))};
}

/// The index needs only the last block (PrefixIndex, invariant 3); slabs need every one.
void BlockPool::use(const PrefixIndex::Prefix& prefix, Tick tick, std::optional<Usage> how) {
  if (prefix.block_count == 0) return;
  use_in_index(prefix.last, tick, how);
  if (arena_->class_count() < 2) return;  // slabs are compared only to give them to another class
  scratch_.resize(prefix.block_count);
  index_.blocks_of(prefix, scratch_);
  for (const BlockId block : scratch_) arena_->use(index_.slot(block), tick);
}

void BlockPool::use(BlockId block, Tick tick, std::optional<Usage> how) {
  use_in_index(block, tick, how);
  if (arena_->class_count() >= 2) arena_->use(index_.slot(block), tick);
}

void BlockPool::use_in_index(BlockId block, Tick tick, std::optional<Usage> how) {
  if (how) {
    index_.use(block, tick, how->trait, how->passed);
  } else {
    index_.touch(block, tick);
  }
}

std::size_t BlockPool::length(BlockId block) const {
  if (!index_.is_set(index_.tree(block))) return block_bytes(block);
  KV_ASSERT(index_.position(block) <= block_bytes(block));
  return index_.position(block);
}

std::span<std::byte> BlockPool::bytes(BlockId block) const {
  return arena_->bytes(index_.slot(block)).first(length(block));
}

std::span<const std::uint64_t> BlockPool::checksums(BlockId block) const {
  return arena_->checksums(index_.slot(block)).first(stripe_count(length(block)));
}

// Around a pin: hold() reads the count before, end_hold() the count after. So they enclose the index's pin and unpin.

void BlockPool::pin(BlockId block) {
  hold(block);
  index_.pin(block);
}

void BlockPool::unpin(BlockId block) {
  index_.unpin(block);
  end_hold(block);
}

void BlockPool::pin(std::span<const BlockId> prefix) {
  for (const BlockId block : prefix) hold(block);
  index_.pin(prefix);
}

void BlockPool::unpin(std::span<const BlockId> prefix) {
  index_.unpin(prefix);
  for (const BlockId block : prefix) end_hold(block);
}

void BlockPool::move_pin(BlockId from, BlockId to) {
  hold(to);  // before `from` is unpinned: the chain always has a pin
  index_.move_pin(from, to);
  end_hold(from);
}

/// Before a pin: the first one holds the slot (1).
void BlockPool::hold(BlockId block) {
  if (index_.pin_count(block) > 0) return;
  arena_->hold(index_.slot(block));
  ++pinned_count_;
}

/// After an unpin: the last one releases the slot, and frees it if the block was dropped meanwhile (2).
void BlockPool::end_hold(BlockId block) {
  if (index_.pin_count(block) > 0) return;
  const SlotId slot = index_.slot(block);
  KV_ASSERT(pinned_count_ > 0);
  arena_->end_hold(slot);
  --pinned_count_;
  if (index_.is_linked(block)) return;
  KV_ASSERT(unlinked_.erase(block) == 1);
  count_freed(block);
  index_.forget(block);
  arena_->free(slot);
}

/// Counts a slot about to be freed, before the index forgets its block.
void BlockPool::count_freed(BlockId block) {
  if (tenants_ != nullptr) tenants_->went(tenants_->of(index_.tree(block)), block_bytes(block));
}

std::size_t BlockPool::unleased_bytes(BlockId block) const {
  return leased_.contains(block) ? 0 : index_.uncovered_count(block) * block_bytes(block);
}

void BlockPool::lease(BlockId block) {
  pin(block);
  if (tenants_ != nullptr) tenants_->leased(index_.tree(block));
  if (leased_[block]++ == 0) leased_bytes_ += index_.cover(block) * block_bytes(block);
}

void BlockPool::end_lease(BlockId block, Steps* steps) {
  const auto leases = leased_.find(block);
  KV_ASSERT(leases != leased_.end() && leases->second > 0);
  if (tenants_ != nullptr) tenants_->lease_ended(index_.tree(block));
  if (--leases->second == 0) {
    leased_.erase(leases);
    // A dropped block counts alone by now: reap() has subtracted those above.
    const std::size_t bytes = (index_.is_linked(block) ? index_.uncover(block, steps) : 1) * block_bytes(block);
    KV_ASSERT(leased_bytes_ >= bytes);
    leased_bytes_ -= bytes;
  }
  unpin(block);
}

void BlockPool::detach(BlockId block, Removal why) {
  if (events_ != nullptr) tell_cut(block);
  // Blocks above the cut that only leases below it kept stop counting.
  const std::size_t bytes = block_bytes(block);
  const std::size_t uncovered_bytes = index_.detach(block, static_cast<std::uint32_t>(why)) * bytes;
  KV_ASSERT(leased_bytes_ >= uncovered_bytes);
  leased_bytes_ -= uncovered_bytes;
}

void BlockPool::detach_all(TreeId tree, Removal why) {
  if (events_ != nullptr && index_.block_count(tree) > kToldMax) {
    events_->lose(tree);
  } else if (events_ != nullptr) {
    index_.for_each(tree, [&](BlockId block) { events_->removed(BlockTier::kMemory, tree, index_.hash(block)); });
  }
  index_.detach_all(tree, static_cast<std::uint32_t>(why));
}

/// Reports that the block and all below it are cut off, which hides them from lookups. Readers of the log do not need
/// reap()'s later removals: by then blocks of the same names may be here again.
void BlockPool::tell_cut(BlockId block) {
  if (!is_found(block)) return;
  const TreeId tree = index_.tree(block);
  events_->removed(BlockTier::kMemory, tree, index_.hash(block));
  Steps steps(kToldMax * Steps::kBlock);
  index_.visit_below(block, steps, [&](BlockId below) {
    events_->removed(BlockTier::kMemory, tree, index_.hash(below));
    return true;
  });
  if (!steps.are_left()) events_->lose(tree);
}

/// The entry of a retained block, made if it is new.
BlockPool::Retention& BlockPool::retention_of(BlockId block) {
  const auto [place, is_new] = retained_.try_emplace(block);
  if (is_new) {
    place->second.id = RetentionId{++retention_count_};
    retained_bytes_ += block_bytes(block);
    if (tenants_ != nullptr) tenants_->retained(index_.tree(block), block_bytes(block));
    pin(block);
  }
  return place->second;
}

void BlockPool::end_retention(std::unordered_map<BlockId, Retention>::iterator ended) {
  const BlockId block = ended->first;
  retained_.erase(ended);
  KV_ASSERT(retained_bytes_ >= block_bytes(block));
  retained_bytes_ -= block_bytes(block);
  if (tenants_ != nullptr) tenants_->unretained(index_.tree(block), block_bytes(block));
  unpin(block);
}

bool BlockPool::is_retained_on_request(BlockId block) const {
  const auto found = retained_.find(block);
  return found != retained_.end() && found->second.is_on_request;
}

void BlockPool::retain(BlockId block) {
  Retention& retention = retention_of(block);
  KV_ASSERT(!retention.is_on_request);
  retention.is_on_request = true;
}

bool BlockPool::unretain(BlockId block) {
  const auto found = retained_.find(block);
  if (found == retained_.end() || !found->second.is_on_request) return false;
  found->second.is_on_request = false;
  if (found->second.context_count == 0) end_retention(found);
  return true;
}

BlockPool::RetentionId BlockPool::keep(BlockId block) {
  Retention& retention = retention_of(block);
  KV_ASSERT(retention.context_count < 0xFFFFFFFF);
  ++retention.context_count;
  return retention.id;
}

bool BlockPool::is_kept(BlockId block, RetentionId retention) const {
  const auto found = retained_.find(block);
  return found != retained_.end() && found->second.id == retention;
}

void BlockPool::end_keep(BlockId block, RetentionId retention) {
  const auto found = retained_.find(block);
  if (found == retained_.end() || found->second.id != retention) return;  // dropped: the id may be another block's
  KV_ASSERT(found->second.context_count > 0);
  if (--found->second.context_count == 0 && !found->second.is_on_request) end_retention(found);
}

std::optional<SlotId> BlockPool::take_slot(std::size_t block_bytes, Arena::Place place) {
  const std::optional<SlotId> slot = arena_->allocate(block_bytes, place);
  if (!slot) return std::nullopt;
  KV_ASSERT(arena_->block_bytes(*slot) == block_bytes && arena_->owner(*slot) == kNoBlock);
  arena_->hold(*slot);  // a put writes there without the lock: the slab must not be cleared meanwhile
  ++incoming_count_;
  if (tenants_ != nullptr) {
    incoming_for_.emplace(*slot, tenants_->asker());
    tenants_->came(tenants_->asker(), block_bytes);
  }
  return slot;
}

void BlockPool::return_slot(SlotId slot) {
  KV_ASSERT(incoming_count_ > 0 && arena_->owner(slot) == kNoBlock);  // never the slot of a linked block
  if (tenants_ != nullptr) {
    const auto whose = incoming_for_.find(slot);
    KV_ASSERT(whose != incoming_for_.end());
    tenants_->went(whose->second, arena_->block_bytes(slot));
    incoming_for_.erase(whose);
  }
  arena_->end_hold(slot);
  arena_->free(slot);
  --incoming_count_;
}

BlockId BlockPool::link(TreeId tree, BlockId parent, const PrefixIndex::NewBlock& block, Tick tick) {
  KV_ASSERT(incoming_count_ > 0 && arena_->is_held(block.slot) && arena_->owner(block.slot) == kNoBlock);
  if (tenants_ != nullptr) {
    const auto whose = incoming_for_.find(block.slot);
    KV_ASSERT(whose != incoming_for_.end() && whose->second == tenants_->of(tree));
    incoming_for_.erase(whose);
  }
  const BlockId linked = index_.insert(tree, parent, block, tick);
  arena_->set_owner(block.slot, linked);
  arena_->use(block.slot, tick);
  arena_->end_hold(block.slot);
  --incoming_count_;
  // Below a cut, matches do not find it.
  if (events_ != nullptr && is_found(linked)) {
    const BlockHash* const above = parent == kNoBlock ? nullptr : &index_.hash(parent);
    events_->stored(BlockTier::kMemory, tree, block.hash, above, block.position);
  }
  return linked;
}

void BlockPool::move(BlockId block, SlotId to) {
  const SlotId from = index_.slot(block);
  KV_ASSERT(from != to && index_.is_linked(block) && index_.pin_count(block) > 0);
  KV_ASSERT(incoming_count_ > 0 && arena_->is_held(to) && arena_->owner(to) == kNoBlock);
  KV_ASSERT(arena_->block_bytes(from) == arena_->block_bytes(to));
  std::ranges::copy(arena_->checksums(from), arena_->checksums(to).begin());
  arena_->set_owner(to, block);
  arena_->use(to, index_.recency(block));
  index_.set_slot(block, to);
  // The pins move from the old slot to the new one, which was held as taken.
  arena_->end_hold(from);
  if (tenants_ != nullptr) {
    const TenantId whose = tenants_->of(index_.tree(block));
    const auto incoming = incoming_for_.find(to);
    KV_ASSERT(incoming != incoming_for_.end() && incoming->second == whose);
    incoming_for_.erase(incoming);
    tenants_->went(whose, arena_->block_bytes(from));
  }
  arena_->free(from);
  --incoming_count_;
}

void BlockPool::remove_leaf_end(BlockId block) {
  const SlotId slot = index_.slot(block);
  KV_ASSERT(arena_->owner(slot) == block);
  if (events_ != nullptr && is_found(block))
    events_->removed(BlockTier::kMemory, index_.tree(block), index_.hash(block));
  // While the index still has the block's recency: on disk that decides its turn.
  if (disk_ != nullptr) disk_->remove_copy(block, index_.recency(block));
  count_freed(block);
  index_.remove_leaf_end(block);
  arena_->free(slot);
}

void BlockPool::reap(Steps& steps, const std::function<void(BlockId, Removal)>& removed) {
  index_.reap(steps, [&](BlockId block, std::uint32_t label) {
    removed(block, Removal{label});
    if (leased_.contains(block)) {  // the block itself counts until its leases end, those above do not
      leased_bytes_ -= (index_.uncover(block, &steps) - 1) * block_bytes(block);
    }
    if (disk_ != nullptr) disk_->remove_copy(block, index_.recency(block));
    if (index_.pin_count(block) > 0 && retained_.erase(block) > 0) {  // a drop ends retention
      KV_ASSERT(retained_bytes_ >= block_bytes(block));
      retained_bytes_ -= block_bytes(block);
      if (tenants_ != nullptr) tenants_->unretained(index_.tree(block), block_bytes(block));
      index_.unpin(block);
      if (index_.pin_count(block) == 0) {
        arena_->end_hold(index_.slot(block));
        --pinned_count_;
      }
    }
    // Unpinned: free the slot now. Pinned by a move or a lease: end_hold() frees it.
    if (index_.pin_count(block) == 0) {
      count_freed(block);
      arena_->free(index_.slot(block));
    } else {
      unlinked_.insert(block);
    }
  });
}

}  // namespace kv
