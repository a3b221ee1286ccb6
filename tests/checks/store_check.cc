// tests/checks/store_check.cc: the check of a Store's invariants: recounts every stored sum from the blocks up, desk by
// desk.

#include <unordered_set>

#include "store/contexts/context_ends.h"
#include "store/store.h"

namespace kv {
namespace {

/// Recounts what each tenant holds.
std::string check_tenants(const Shelf& shelf, const SpaceDesk& spaces, const Shelf::Tally& tally) {
  const BlockPool& pool = shelf.pool;
  const TenantTable* const tenants = shelf.tenants.get();
  if (tenants == nullptr) return pool.incoming_for().empty() ? "" : "store: a put's slot has a tenant";
  if (pool.incoming_for().size() != pool.incoming_count()) return "store: a put's slot has no tenant";
  const PrefixIndex& index = pool.index();
  std::map<TenantId, TenantUsage> usages;
  for (const auto& [slot, tenant] : pool.incoming_for())
    usages[tenant].memory_bytes += tenants->charge(pool.arena().block_bytes(slot));
  const auto count = [&](BlockId block) {
    TenantUsage& usage = usages[tenants->of(index.tree(block))];
    usage.memory_bytes += tenants->charge(pool.block_bytes(block));
    if (pool.is_retained(block)) usage.retained_bytes += pool.block_bytes(block);
  };
  spaces.for_each([&](const SpaceTable::Space& space) {
    if (tenants->of(space.tree) != space.owner) usages[space.owner].evicted_blocks = 1;  // reported below
    ++usages[space.owner].namespace_count;
    index.for_each(space.tree, count);
    if (!shelf.tier) return;
    shelf.tier->index().for_each(space.tree, [&](BlockId block) {
      if (shelf.tier->copy_in_memory(block) == kNoBlock)
        usages[space.owner].disk_bytes += shelf.tier->block_bytes(block);
    });
  });
  index.for_each_detached(count);
  for (const BlockId block : pool.unlinked()) count(block);
  for (const auto& [block, leases] : tally.leased) usages[tenants->of(index.tree(block))].lease_count += leases;
  for (const auto& [tenant, due] : usages) {
    const TenantUsage& usage = tenants->usage(tenant);
    if (due.evicted_blocks > 0) return "store: a namespace's tree is another tenant's";
    if (usage.memory_bytes != due.memory_bytes || usage.disk_bytes != due.disk_bytes ||
        usage.retained_bytes != due.retained_bytes || usage.lease_count != due.lease_count ||
        usage.namespace_count != due.namespace_count)
      return "store: what a tenant holds is miscounted";
  }
  return tenants->check();
}

}  // namespace

std::string Store::check() {
  const BlockPool& pool = shelf_.pool;
  const PrefixIndex& index = pool.index();
  const Arena& arena = pool.arena();
  if (shelf_.counters.work_steps_call_max > Shelf::kStepsMax) return "store: a call took more steps than it may";
  // The pins that blocks should have. Those of moves are only counted: callers hold them.
  Shelf::Tally tally;
  for (const auto& [block, retention] : pool.retained()) ++tally.pins[block];
  for (const std::string& broken :
       {index.check(), arena.check(), shelf_.evictor.check(), learning_.check(), capacity_.check(tally),
        disk_.check(tally), contexts_.check(), reads_.check(tally), puts_.check(tally), spaces_.check()})
    if (!broken.empty()) return broken;
  if (std::string of_tenants = check_tenants(shelf_, spaces_, tally); !of_tenants.empty()) return of_tenants;
  if (tally.incoming.size() != pool.incoming_count()) return "store: incoming_count is wrong";

  std::size_t bytes = tally.incoming_bytes, pinned_count = 0, pin_count = 0, retained_bytes = 0;
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
    if (const auto it = tally.pins.find(block); it != tally.pins.end() && it->second > index.pin_count(block))
      broken = "store: a block lacks a pin";
    bytes += block_bytes;
    pin_count += index.pin_count(block);
    pinned_count += index.pin_count(block) > 0;
    if (pool.is_retained(block)) retained_bytes += block_bytes;
  };
  spaces_.for_each([&](const SpaceTable::Space& space) {
    const std::size_t block_bytes = space.record->block_bytes();
    const bool is_set = space.record->is_set();
    index.for_each(space.tree, [&](BlockId block) {
      if (!is_set) return check_block(block, block_bytes);
      const std::size_t slot_bytes = spaces_.slot_bytes(space, index.position(block));
      if (!space.slot_sizes.contains(slot_bytes)) broken = "store: a set does not know the size of a block";
      check_block(block, slot_bytes);
      if (!shelf_.tier) return;
      const BlockId disk = shelf_.tier->copy_on_disk(block);
      if (disk != kNoBlock && shelf_.tier->block_bytes(disk) != index.position(block))
        broken = "store: copies of a set's block differ in length";  // invariant 5
    });
  });
  index.for_each_detached([&](BlockId block) { check_block(block, pool.block_bytes(block)); });
  for (const BlockId block : pool.unlinked()) {
    if (index.is_linked(block) || index.pin_count(block) == 0)
      return "store: an unlinked block is linked or not pinned";
    check_block(block, pool.block_bytes(block));
  }
  if (!broken.empty()) return broken;
  if (bytes != arena.allocated_bytes()) return "store: allocated_bytes is not the sum of its blocks";  // invariant 4
  if (pinned_count != pool.pinned_count()) return "store: pinned_count is wrong";
  if (retained_bytes != pool.retained_bytes()) return "store: retained_bytes is wrong";
  for (const auto& [block, count] : tally.pins) pin_count -= count;
  if (pin_count != reads_.move_pin_count()) return "store: a pin has no owner";
  return "";
}

std::string SpaceDesk::check() {
  std::unordered_map<std::size_t, std::size_t> spaces_of_size;
  std::string broken;
  table_.for_each([&](const Space& space) {
    for (const std::size_t slot_bytes : space.slot_sizes) ++spaces_of_size[slot_bytes];
    if (!space.record->is_set() && space.slot_sizes != std::set<std::size_t>{space.record->block_bytes()})
      broken = "spaces: a chain has one size";
  });
  if (!broken.empty()) return broken;
  if (spaces_of_size != spaces_of_size_) return "spaces: namespaces of a size are miscounted";
  take_emptied();
  return table_.check([this](const Space& space) { return is_idle(space); });
}

std::string LearningDesk::check() const {
  return curve_ && !curve_->check() ? "curve: its blocks, their order or a small cache is broken" : "";
}

std::string DiskDesk::check(Shelf::Tally& tally) const {
  if (!shelf_.tier) return "";
  for (const BlockId block : spiller_->taken()) ++tally.pins[block];
  return shelf_.tier->check();
}

std::string ContextDesk::check() const {
  if (std::string broken = table_.check(); !broken.empty()) return broken;
  return blocks_.check();
}

std::string ContextBlocks::check() const {
  const BlockPool& pool = shelf_.pool;
  std::unordered_map<BlockId, std::uint32_t> counts;
  const auto count = [&](const Context::Kept& kept) { counts[kept.block] += pool.is_kept(kept.block, kept.retention); };
  std::unordered_map<const Space*, std::size_t> ends;
  std::string broken;
  contexts_.for_each([&](const Context& context) {
    std::size_t kept_count = 0;
    for (const Context::Chain& chain : context.chains) {
      kept_count += chain.kept.size();
      if (chain.kept.size() > chain.count) broken = "store: a context keeps more than it names";
      if (const Space* const space = spaces_.find(context.space); space != nullptr && !chain.kept.empty())
        ++ends[space];
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
  for (const auto& kept : unkept_) std::ranges::for_each(kept, count);
  spaces_.for_each([&](const Space& space) {
    if ((space.context_ends == nullptr ? 0 : space.context_ends->count()) != ends[&space])
      broken = "store: ends of contexts are missing, or left over";
  });
  for (const auto& [block, retention] : pool.retained()) {
    if (!retention.is_on_request && retention.context_count == 0) broken = "store: a block is retained for nobody";
    if (counts[block] != retention.context_count) broken = "store: a block miscounts the contexts that keep it";
  }
  return broken;
}

std::string ReadDesk::check(Shelf::Tally& tally) const {
  if (std::string broken = leases_.check(); !broken.empty()) return broken;
  const BlockPool& pool = shelf_.pool;
  leases_.for_each([&](BlockId block) { ++tally.pins[block]; });
  leases_.for_each([&](BlockId block) { ++tally.leased[block]; });
  if (tally.leased != pool.leased()) return "store: leased blocks are not those of the leases";
  std::unordered_set<BlockId> kept;  // invariant 2
  std::size_t bytes = 0;
  for (const auto& [leased, count] : tally.leased) {
    for (BlockId block = leased; block != kNoBlock && kept.insert(block).second;) {
      bytes += pool.block_bytes(block);
      block = pool.index().is_linked(block) ? pool.index().parent(block) : kNoBlock;
    }
  }
  if (bytes != pool.leased_bytes())
    return "store: leased_bytes is " + std::to_string(pool.leased_bytes()) + " and should be " + std::to_string(bytes);
  if (!tally.limits_fell && shelf_.is_over_leased(0)) return "store: leases keep more than leased_fraction_max";
  return "";
}

std::string PutDesk::check(Shelf::Tally& tally) const {
  const Arena& arena = shelf_.pool.arena();
  std::unordered_map<const Space*, std::size_t> put_counts;
  std::size_t ids_bytes = 0;
  for (const auto& [id, put] : puts_) ids_bytes += put.ids_bytes();
  if (ids_bytes != slots_.ids_bytes()) return "store: the token ids of puts are miscounted";
  for (const Unwanted& of_put : unwanted_) {
    ++put_counts[of_put.space];
    for (const BlockId block : of_put.pinned) ++tally.pins[block];
    for (const SlotId slot : of_put.slots) {
      if (!tally.incoming.insert(slot).second) return "store: a slot is to be freed twice";
      tally.incoming_bytes += arena.block_bytes(slot);
    }
  }
  if (puts_by_session_.size() != puts_.size()) return "store: a put is not listed with its session";
  for (const auto& [id, put] : puts_) {
    ++put_counts[put.space];
    if (!puts_by_session_.contains({put.session, id})) return "store: a put is listed with another session";
    if (put.tail != kNoBlock) ++tally.pins[put.tail];
    for (const BlockId block : std::span(put.pinned).subspan(put.committed_group().pinned_end)) ++tally.pins[block];
    if (put.committed_count > put.told_count || put.told_count > put.usable_count())
      return "store: a put has told of slots that cannot be filled";
    for (std::size_t i = put.committed_count; i < put.slots.size(); ++i) {
      const SlotId slot = put.slots[i];
      if (!arena.is_allocated(slot) || !arena.is_held(slot) || arena.owner(slot) != kNoBlock)
        return "store: a put's slot is not the put's own";
      if (arena.block_bytes(slot) != slots_.slot_bytes(put, i)) return "store: a put's slot is of another size";
      if (!tally.incoming.insert(slot).second) return "store: a slot is taken twice";
      tally.incoming_bytes += arena.block_bytes(slot);
    }
  }
  std::string broken;
  spaces_.for_each([&](const Space& space) {
    if (put_counts[&space] != space.put_count) broken = "store: a namespace miscounts its puts";
  });
  return broken;
}

std::string CapacityDesk::check(Shelf::Tally& tally) const {
  tally.limits_fell = limits_fell_;
  for (const auto& [slot, block] : relocating_) {
    if (!tally.incoming.insert(slot).second) return "store: a block is relocated to a slot that is taken";
    ++tally.pins[block];
    tally.incoming_bytes += shelf_.pool.arena().block_bytes(slot);
  }
  return "";
}

}  // namespace kv
