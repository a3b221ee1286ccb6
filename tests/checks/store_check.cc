// tests/checks/store_check.cc: the check of a Store's invariants: recounts every stored sum from the blocks up.

#include <unordered_set>

#include "store/store_impl.h"

namespace kv {

std::string Store::check() const {
  const BlockPool& pool = impl_->pool;
  const PrefixIndex& index = pool.index();
  const Arena& arena = pool.arena();
  for (const std::string& broken : {index.check(), arena.check(), impl_->leases.check(), impl_->evictor.check()})
    if (!broken.empty()) return broken;

  if (impl_->curve && !impl_->curve->check()) return "curve: its blocks, their order or a small cache is broken";
  if (impl_->counters.work_steps_call_max > kStepsMax) return "store: a call took more steps than it may";

  // The blocks that should be pinned, and how often. Moves are left out: callers hold their pins.
  std::unordered_map<BlockId, std::uint64_t> pins;
  impl_->leases.for_each([&](BlockId block) { ++pins[block]; });
  if (std::string broken = impl_->check_leased(); !broken.empty()) return broken;
  for (const auto& [block, retention] : pool.retained()) ++pins[block];
  if (std::string broken = impl_->check_contexts(); !broken.empty()) return broken;
  std::size_t bytes = 0, pinned_count = 0, pin_count = 0, retained_bytes = 0;
  if (std::string broken = impl_->check_puts(&bytes, &pins); !broken.empty()) return broken;

  if (std::string broken = impl_->check_tenants(); !broken.empty()) return broken;
  if (impl_->tier) {
    if (std::string broken = impl_->tier->check(); !broken.empty()) return broken;
    for (const BlockId block : impl_->spiller->taken()) ++pins[block];
  }

  std::string broken;
  const auto check_block = [&](BlockId block, std::size_t block_bytes) {
    const SlotId slot = index.slot(block);
    if (!arena.is_allocated(slot) || arena.owner(slot) != block) {  // so each block has its own slot
      broken = "store: a block's slot is not its own";
      return;
    }
    if (arena.block_bytes(slot) != block_bytes) broken = "store: a block lies in a slot of another size";
    if (arena.is_held(slot) != (index.pin_count(block) > 0))
      broken = "store: held slots are not those of pinned blocks";
    if (const auto it = pins.find(block); it != pins.end() && it->second > index.pin_count(block))
      broken = "store: a block lacks a pin";
    bytes += block_bytes;
    pin_count += index.pin_count(block);
    pinned_count += index.pin_count(block) > 0;
    if (pool.is_retained(block)) retained_bytes += block_bytes;
  };
  std::unordered_map<std::size_t, std::size_t> spaces_of_size;
  std::unordered_map<const Space*, std::size_t> put_counts;
  for (const auto& [id, put] : impl_->puts) ++put_counts[put.space];
  for (const auto& of_put : impl_->unwanted) ++put_counts[of_put.space];
  impl_->spaces.for_each([&](const Space& space) {
    const std::size_t block_bytes = space.record->block_bytes();
    const bool is_set = space.record->is_set();
    index.for_each(space.tree, [&](BlockId block) {
      if (!is_set) return check_block(block, block_bytes);
      const std::size_t slot_bytes = impl_->slot_bytes(space, index.position(block));
      if (!space.slot_sizes.contains(slot_bytes)) broken = "store: a set does not know the size of a block";
      check_block(block, slot_bytes);
      if (impl_->tier) {
        const BlockId disk = impl_->tier->copy_on_disk(block);
        if (disk != kNoBlock && impl_->tier->block_bytes(disk) != index.position(block))
          broken = "store: copies of a set's block differ in length";  // invariant 7
      }
    });
    for (const std::size_t slot_bytes : space.slot_sizes) ++spaces_of_size[slot_bytes];
    if (!is_set && space.slot_sizes != std::set<std::size_t>{block_bytes}) broken = "store: a chain has one size";
    if (put_counts[&space] != space.put_count) broken = "store: a namespace miscounts its puts";
  });
  index.for_each_detached([&](BlockId block) { check_block(block, pool.block_bytes(block)); });
  if (spaces_of_size != impl_->spaces_of_size) return "store: namespaces of a size are miscounted";
  impl_->take_emptied();
  if (std::string of_spaces = impl_->spaces.check([this](const Space& space) { return impl_->is_idle(space); });
      !of_spaces.empty())
    return of_spaces;
  for (const BlockId block : pool.unlinked()) {
    if (index.is_linked(block) || index.pin_count(block) == 0)
      return "store: an unlinked block is linked or not pinned";
    check_block(block, pool.block_bytes(block));
  }
  if (!broken.empty()) return broken;
  if (bytes != arena.allocated_bytes()) return "store: allocated_bytes is not the sum of its blocks";  // invariant 5
  if (pinned_count != pool.pinned_count()) return "store: pinned_count is wrong";
  if (retained_bytes != pool.retained_bytes()) return "store: retained_bytes is wrong";
  for (const auto& [block, count] : pins) pin_count -= count;
  if (pin_count != impl_->move_pin_count) return "store: a pin has no owner";
  return "";
}

std::string Store::Impl::check_tenants() const {
  if (!tenants) return pool.staged_for().empty() ? "" : "store: a staged slot has a tenant";
  if (pool.staged_for().size() != pool.staged_count()) return "store: a staged slot has no tenant";
  const PrefixIndex& index = pool.index();
  std::map<TenantId, TenantUsage> usages;
  for (const auto& [slot, tenant] : pool.staged_for())
    usages[tenant].memory_bytes += tenants->charge(pool.arena().block_bytes(slot));
  const auto count = [&](BlockId block) {
    TenantUsage& usage = usages[tenants->of(index.tree(block))];
    usage.memory_bytes += tenants->charge(pool.block_bytes(block));
    if (pool.is_retained(block)) usage.pinned_bytes += pool.block_bytes(block);
  };
  spaces.for_each([&](const Space& space) {
    if (tenants->of(space.tree) != space.owner) usages[space.owner].evicted_blocks = 1;  // reported below
    ++usages[space.owner].namespace_count;
    index.for_each(space.tree, count);
    if (!tier) return;
    tier->index().for_each(space.tree, [&](BlockId block) {
      if (tier->copy_in_memory(block) == kNoBlock) usages[space.owner].disk_bytes += tier->block_bytes(block);
    });
  });
  index.for_each_detached(count);
  for (const BlockId block : pool.unlinked()) count(block);
  leases.for_each([&](BlockId block) { ++usages[tenants->of(index.tree(block))].lease_count; });
  for (const auto& [tenant, due] : usages) {
    const TenantUsage& usage = tenants->usage(tenant);
    if (due.evicted_blocks > 0) return "store: a namespace's tree is another tenant's";
    if (usage.memory_bytes != due.memory_bytes || usage.disk_bytes != due.disk_bytes ||
        usage.pinned_bytes != due.pinned_bytes || usage.lease_count != due.lease_count ||
        usage.namespace_count != due.namespace_count)
      return "store: what a tenant holds is miscounted";
  }
  return tenants->check();
}

/// Recounts the blocks that leases keep (invariant 6).
std::string Store::Impl::check_leased() const {
  std::unordered_map<BlockId, std::uint32_t> counts;
  leases.for_each([&](BlockId block) { ++counts[block]; });
  if (counts != pool.leased()) return "store: leased blocks are not those of the leases";
  std::unordered_set<BlockId> kept;
  std::size_t bytes = 0;
  for (const auto& [leased, count] : counts) {
    for (BlockId block = leased; block != kNoBlock && kept.insert(block).second;) {
      bytes += pool.block_bytes(block);
      block = pool.index().is_linked(block) ? pool.index().parent(block) : kNoBlock;
    }
  }
  if (bytes != pool.leased_bytes())
    return "store: leased_bytes is " + std::to_string(pool.leased_bytes()) + " and should be " + std::to_string(bytes);
  if (!limits_fell &&
      static_cast<double>(bytes) > config.leased_fraction_max * static_cast<double>(pool.arena().capacity_bytes()))
    return "store: leases keep more than leased_fraction_max";
  return "";
}

/// Adds the puts' staged bytes and pins to the given ones.
std::string Store::Impl::check_puts(std::size_t* staged_bytes, std::unordered_map<BlockId, std::uint64_t>* pins) const {
  std::unordered_set<SlotId> staged;
  std::size_t ids_bytes = 0;
  for (const auto& [id, put] : puts) ids_bytes += put.token_ids.size() * sizeof(put.token_ids[0]);
  if (ids_bytes != put_ids_bytes) return "store: the token ids of puts are miscounted";
  for (const Unwanted& of_put : unwanted) {
    for (const BlockId block : of_put.pinned) ++(*pins)[block];
    for (const SlotId slot : of_put.slots) {
      if (!staged.insert(slot).second) return "store: a slot is to be freed twice";
      *staged_bytes += pool.arena().block_bytes(slot);
    }
  }
  if (puts_by_session.size() != puts.size()) return "store: a put is not listed with its session";
  for (const auto& [id, put] : puts) {
    if (!puts_by_session.contains({put.session, id})) return "store: a put is listed with another session";
    if (put.tail != kNoBlock) ++(*pins)[put.tail];
    for (const BlockId block : std::span(put.pinned).subspan(put.committed_group().pinned_end)) ++(*pins)[block];
    if (put.committed_count > put.told_count || put.told_count > put.usable_count())
      return "store: a put has told of slots that cannot be filled";
    for (std::size_t i = put.committed_count; i < put.slots.size(); ++i) {
      const SlotId slot = put.slots[i];
      if (!pool.arena().is_allocated(slot) || !pool.arena().is_held(slot) || pool.arena().owner(slot) != kNoBlock)
        return "store: a staged slot is not the put's own";
      if (pool.arena().block_bytes(slot) != slot_bytes(put, i)) return "store: a staged slot is of another size";
      if (!staged.insert(slot).second) return "store: a slot is staged twice";
      *staged_bytes += pool.arena().block_bytes(slot);
    }
  }
  for (const auto& [slot, block] : relocating) {
    if (!staged.insert(slot).second) return "store: a block is relocated to a slot that is staged";
    ++(*pins)[block];
    *staged_bytes += pool.arena().block_bytes(slot);
  }
  return staged.size() == pool.staged_count() ? "" : "store: staged_count is wrong";
}

std::string Store::Impl::check_contexts() const {
  if (std::string broken = contexts.check(); !broken.empty()) return broken;
  std::unordered_map<BlockId, std::uint32_t> counts;
  const auto count = [&](const Context::Kept& kept) { counts[kept.block] += pool.is_kept(kept.block, kept.retention); };
  std::unordered_map<const Space*, std::size_t> ends;
  std::string broken;
  contexts.for_each([&](const Context& context) {
    std::size_t kept_count = 0;
    for (const Context::Chain& chain : context.chains) {
      kept_count += chain.kept.size();
      if (chain.kept.size() > chain.count) broken = "store: a context keeps more than it names";
      if (const Space* const space = spaces.find(context.space); space != nullptr && !chain.kept.empty()) ++ends[space];
      for (std::size_t i = 0; i < chain.kept.size(); ++i) {
        const Context::Kept& kept = chain.kept[i];
        count(kept);
        if (pool.is_kept(kept.block, kept.retention) &&
            pool.index().hash(kept.block) != context.hashes[chain.first + i])
          broken = "store: a context keeps another block than it names";
      }
    }
    if (kept_count != context.kept_count) broken = "store: a context miscounts what it keeps";
  });
  for (const auto& kept : unkept) std::ranges::for_each(kept, count);
  spaces.for_each([&](const Space& space) {
    if ((space.context_ends == nullptr ? 0 : space.context_ends->count()) != ends[&space])
      broken = "store: ends of contexts are missing, or left over";
  });
  for (const auto& [block, retention] : pool.retained()) {
    if (!retention.is_on_request && retention.context_count == 0) broken = "store: a block is retained for nobody";
    if (counts[block] != retention.context_count) broken = "store: a block miscounts the contexts that keep it";
  }
  return broken;
}

}  // namespace kv
