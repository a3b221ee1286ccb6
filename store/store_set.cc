// store/store_set.cc: namespaces of blocks that stand alone. In the index such a block hangs directly below the root,
// and what is known of chains holds of a chain of one: pins, leases, order of use, eviction, copies on disk. What is
// left to do here is to look for each name alone, and to keep lengths.

#include <algorithm>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/store_impl.h"

namespace kv {

Result<Store::Space*> Store::Impl::set_space(SpaceId id, std::size_t hash_count) const {
  Space* const space = spaces.find(id);
  if (space == nullptr) return Errc::kNoNamespace;
  spaces.use(*space);
  if (hash_count > config.chain_blocks_max) return Errc::kTooLarge;
  if (!space->record->is_set()) return Errc::kUnsupported;
  return space;
}

Result<Store::Impl::FoundSet> Store::Impl::find_set(SpaceId id, std::span<const BlockHash> hashes) const {
  const auto space = set_space(id, hashes.size());
  if (!space) return space.error();
  FoundSet found{*space, std::vector<BlockId>(hashes.size(), kNoBlock), std::vector<BlockId>(hashes.size(), kNoBlock)};
  pool.index().find_each((*space)->tree, hashes, found.memory);
  if (!tier || tier->index().is_empty((*space)->tree)) return found;
  std::vector<BlockHash> missing;
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (found.memory[i] == kNoBlock) missing.push_back(hashes[i]);
  std::vector<BlockId> on_disk(missing.size());
  tier->index().find_each((*space)->tree, missing, on_disk);
  for (std::size_t i = 0, next = 0; i < hashes.size(); ++i)
    if (found.memory[i] == kNoBlock) found.disk[i] = on_disk[next++];
  return found;
}

// -- match

Result<Store::SetMatch> Store::match_set(SpaceId set, std::span<const BlockHash> hashes, const SetMatchOptions& options,
                                         TimePoint now) {
  Impl::Call call(*impl_);
  impl_->expire_leases(now, call.steps);
  const auto found = impl_->find_set(set, hashes);
  if (!found) return found.error();
  BlockPool& pool = impl_->pool;
  const Tick tick = pool.tick(now);
  SetMatch match{.held = std::vector<Held>(hashes.size(), Held::kNowhere),
                 .lengths = std::vector<std::uint32_t>(hashes.size(), 0)};
  std::vector<BlockId> in_memory;  // for a lease
  std::size_t memory_count = 0, disk_count = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (const BlockId block = found->memory[i]; block != kNoBlock) {
      match.held[i] = Held::kInMemory;
      match.lengths[i] = pool.index().position(block);
      pool.use(block, tick);
      ++memory_count;
      if (options.lease) in_memory.push_back(block);
    } else if (const BlockId disk = found->disk[i]; disk != kNoBlock) {
      match.held[i] = Held::kOnDisk;
      match.lengths[i] = static_cast<std::uint32_t>(impl_->tier->block_bytes(disk));
      impl_->tier->touch(disk, tick);
      ++disk_count;
    }
  }
  impl_->counters.match_hit_blocks += memory_count;
  impl_->counters.match_disk_blocks += disk_count;
  impl_->counters.match_miss_blocks += hashes.size() - memory_count - disk_count;
  match.lease = options.rest;
  if (options.lease && !in_memory.empty()) {
    std::ranges::sort(in_memory);  // a name may come twice, and one lease on it is enough
    in_memory.erase(std::ranges::unique(in_memory).begin(), in_memory.end());
    const auto lease = impl_->grant_set(options, in_memory, now);
    // Half a promise is none.
    if (!lease && options.rest != LeaseId{}) static_cast<void>(release(options.session, options.rest));
    match.lease = lease ? *lease : LeaseId{};
    match.lease_error = lease ? Errc{} : Errc::kBusy;
    if (!lease) {
      ++impl_->counters.leases_refused;
    } else if (options.rest == LeaseId{}) {
      ++impl_->counters.leases_granted;
    }
  }
  return match;
}

Result<LeaseId> Store::Impl::grant_set(const SetMatchOptions& options, std::span<const BlockId> blocks, TimePoint now) {
  std::size_t added = 0;
  for (const BlockId block : blocks) added += pool.unleased_bytes(block);
  const double bytes_max = config.leased_fraction_max * static_cast<double>(pool.arena().capacity_bytes());
  if (added > 0 && static_cast<double>(pool.leased_bytes() + added) > bytes_max) return Errc::kBusy;
  const auto lease = leases.grant(options.session, blocks, now, options.rest);
  if (!lease) return lease.error();
  for (const BlockId block : blocks) pool.lease(block);
  return lease;
}

// -- get

Result<Store::PinnedSet> Store::pin_set(SpaceId set, std::span<const BlockHash> hashes, const SetGetOptions& options,
                                        TimePoint now) {
  const auto found = impl_->set_space(set, hashes.size());
  if (!found) return found.error();
  const Space& space = **found;
  BlockPool& pool = impl_->pool;
  const Tick tick = pool.tick(now);
  PinnedSet result{.pinned = {.blocks = {}, .spilled = {}, .kind = SpaceKind::kSet}};
  KV_ASSERT(options.rooms.empty() || options.rooms.size() == hashes.size());
  std::uint64_t bytes = 0;
  std::size_t miss_count = 0;
  std::uint32_t i = 0;
  const auto has_room = [&](std::size_t length) {
    if (options.rooms.empty() || length <= options.rooms[i]) return true;
    result.too_long.push_back({i, static_cast<std::uint32_t>(length)});
    return false;
  };
  // Looked up one by one: a window of a long list ends early, and the next one looks again at what is left.
  const bool has_disk = options.disk && impl_->tier && !impl_->tier->index().is_empty(space.tree);
  const auto on_disk = [&](const BlockHash& hash) {
    return has_disk ? impl_->tier->index().find_child(space.tree, kNoBlock, hash) : kNoBlock;
  };
  const std::size_t end = std::min(hashes.size(), options.count_max);
  for (; i < end && bytes < options.bytes_max; ++i) {
    if (const BlockId block = pool.index().find_child(space.tree, kNoBlock, hashes[i]); block != kNoBlock) {
      pool.use(block, tick);
      if (!has_room(pool.length(block))) continue;
      pool.pin(block);  // from here to unpin() its slot is not reused; the spans stay good without the lock
      result.pinned.blocks.push_back({block, i, pool.bytes(block), pool.checksums(block)});
      bytes += result.pinned.blocks.back().bytes.size();
    } else if (const BlockId disk = on_disk(hashes[i]); disk != kNoBlock) {
      impl_->tier->touch(disk, tick);
      if (!has_room(impl_->tier->block_bytes(disk))) continue;
      result.pinned.spilled.push_back(impl_->pin_on_disk(space, disk, hashes[i], i));
      bytes += result.pinned.spilled.back().block_bytes;
    } else {
      ++miss_count;
    }
  }
  result.looked_count = i;
  const std::size_t memory_count = result.pinned.blocks.size(), disk_count = result.pinned.spilled.size();
  impl_->move_pin_count += memory_count;
  impl_->counters.get_hit_blocks += memory_count;
  impl_->counters.get_disk_blocks += disk_count;
  impl_->counters.get_miss_blocks += miss_count;
  if (options.lease != LeaseId{} && i == hashes.size())
    // After pinning, so that nothing is let go in between. A lease that has ended is no error: the pins count now.
    static_cast<void>(release(options.session, options.lease));
  return result;
}

// -- put

Result<Store::OfferPlan> Store::offer_set(SpaceId set, std::span<const BlockHash> hashes,
                                          const SetOfferOptions& options, TimePoint now) {
  Impl::Call call(*impl_);
  impl_->expire_leases(now, call.steps);
  const auto found = impl_->find_set(set, hashes);
  if (!found) return found.error();
  const std::size_t length_max = found->space->record->block_bytes();
  if (hashes.empty() || options.lengths.size() != hashes.size()) return Errc::kBadRequest;
  for (const std::uint32_t length : options.lengths)
    if (length == 0 || length > length_max) return Errc::kBadRequest;

  BlockPool& pool = impl_->pool;
  const Tick tick = pool.tick(now);
  OfferPlan plan;
  for (std::uint32_t i = 0; i < hashes.size(); ++i) {
    if (found->memory[i] != kNoBlock) {
      pool.use(found->memory[i], tick);
    } else if (found->disk[i] != kNoBlock && !options.promote) {
      // Its bytes are not at hand to be compared; but what is there is whole, and stays (invariant 7).
      impl_->tier->touch(found->disk[i], tick);
    } else {
      plan.wanted.push_back(i);
    }
  }
  plan.stored_count = hashes.size() - plan.wanted.size();
  plan.put = options.put;
  if (plan.wanted.empty() && plan.put == PutId{}) {
    impl_->counters.already_stored_blocks += plan.stored_count;
    return plan;
  }
  const auto of_list = impl_->set_put(*found->space, options);
  if (!of_list) return of_list.error();
  impl_->counters.already_stored_blocks += plan.stored_count;
  Put& put = **of_list;
  plan.put = options.put != PutId{} ? options.put : PutId{impl_->put_count};
  put.stored_count += plan.stored_count;
  for (std::uint32_t& i : plan.wanted) {
    put.hashes.push_back(hashes[i]);
    put.lengths.push_back(options.lengths[i]);
    put.indices.push_back(i += options.first);
  }
  if (options.is_part) return plan;
  impl_->tidy(now, call.steps);
  impl_->stage(put, plan, options.may_lose, now, call.steps);
  return plan;
}

/// The put of the parts before; or a new one, which has the last id.
Result<Store::Put*> Store::Impl::set_put(Space& set, const SetOfferOptions& options) {
  if (options.put != PutId{}) {
    const auto of_list = puts.find(options.put);
    const bool is_ours = of_list != puts.end() && of_list->second.session == options.session &&
                         of_list->second.space == &set && of_list->second.slots.empty();
    if (!is_ours) return Errc::kBadRequest;
    return &of_list->second;
  }
  const PutId id{++put_count};
  Put& put = puts[id];
  puts_by_session.emplace(options.session, id);
  put.session = options.session;
  put.space = &set;
  ++set.put_count;
  put.stored_count = 0;
  put.tail = kNoBlock;  // nothing is above a block that stands alone
  return &put;
}

/// The part of Store::commit that concerns hashes[i] of a put to a set.
Store::CommitStatus Store::Impl::commit_set(Put& put, std::size_t i, std::span<const std::uint64_t> checksums,
                                            TimePoint now) {
  const SlotId slot = put.slots[i];
  const std::uint32_t length = put.lengths[i];
  KV_ASSERT(checksums.size() == stripe_count(length) && length <= pool.arena().block_bytes(slot));
  const TreeId tree = put.space->tree;
  const Tick tick = pool.tick(now);
  const BlockId block = pool.index().find_child(tree, kNoBlock, put.hashes[i]);
  if (block != kNoBlock) {
    // Checksums of two lengths have two seeds; but so short a list as theirs is not compared beyond its end.
    const bool is_same = pool.length(block) == length && std::ranges::equal(pool.checksums(block), checksums);
    pool.unstage(slot);
    pool.use(block, tick);
    ++(is_same ? counters.already_stored_blocks : counters.put_conflict_blocks);
    return is_same ? CommitStatus::kAlreadyStored : CommitStatus::kConflict;
  }
  const BlockId disk = tier ? tier->index().find_child(tree, kNoBlock, put.hashes[i]) : kNoBlock;
  if (disk != kNoBlock && tier->block_bytes(disk) != length) {  // a load has found it since the offer
    pool.unstage(slot);
    ++counters.put_conflict_blocks;
    return CommitStatus::kConflict;
  }
  // Checksums first: from link() on a match finds the block, and its readers verify by them.
  std::ranges::copy(checksums, pool.arena().checksums(slot).begin());
  const std::uint32_t group = pool.arena().add_class(slot_bytes(put, i));
  const BlockId linked =
      pool.link(tree, kNoBlock, {.hash = put.hashes[i], .slot = slot, .position = length, .group = group}, tick);
  ++counters.stored_blocks;
  if (tier) {
    add_copy(tree, linked, kNoBlock);
    spiller->stored(linked, tick);
  }
  return CommitStatus::kStored;
}

// -- retention

Result<std::size_t> Store::Impl::touch_set(SpaceId id, std::span<const BlockHash> hashes, TimePoint now) {
  const auto found = find_set(id, hashes);
  if (!found) return found.error();
  const Tick tick = pool.tick(now);
  std::size_t count = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (found->disk[i] != kNoBlock) tier->touch(found->disk[i], tick);
    if (found->memory[i] == kNoBlock) continue;
    pool.use(found->memory[i], tick);
    ++count;
  }
  return count;
}

Result<std::size_t> Store::Impl::retain_set(SpaceId id, std::span<const BlockHash> hashes,
                                            std::vector<BlockHash>* fresh) {
  const auto found = find_set(id, hashes);
  if (!found) return found.error();
  // All or nothing: the bound is checked for all of them before the first is retained.
  std::vector<BlockId> here;
  std::ranges::copy_if(found->memory, std::back_inserter(here), [](BlockId block) { return block != kNoBlock; });
  const std::size_t count = here.size();
  std::ranges::sort(here);
  here.erase(std::ranges::unique(here).begin(), here.end());
  std::erase_if(here, [&](BlockId block) { return pool.is_retained(block); });
  std::size_t bytes = pool.retained_bytes();
  for (const BlockId block : here) bytes += pool.block_bytes(block);
  const double bytes_max = config.retained_fraction_max * static_cast<double>(pool.arena().capacity_bytes());
  if (!here.empty() && static_cast<double>(bytes) > bytes_max) return Errc::kBusy;
  for (const BlockId block : here) {
    pool.retain(block);
    if (fresh != nullptr) fresh->push_back(pool.index().hash(block));
  }
  return count;
}

Result<std::size_t> Store::Impl::unretain_set(SpaceId id, std::span<const BlockHash> hashes) {
  const auto found = find_set(id, hashes);
  if (!found) return found.error();
  std::size_t count = 0;
  for (const BlockId block : found->memory) count += block != kNoBlock && pool.unretain(block);
  return count;
}

Result<std::size_t> Store::erase(SpaceId set, std::span<const BlockHash> hashes, std::vector<DiskDrop>* kept,
                                 TimePoint now) {
  const auto found = impl_->set_space(set, hashes.size());
  if (!found) return found.error();
  if (hashes.empty()) return Errc::kBadRequest;
  const Space& space = **found;
  BlockPool& pool = impl_->pool;
  std::size_t count = 0;
  for (const BlockHash& hash : hashes) {
    // The disk first, as in drop().
    const std::size_t on_disk = impl_->tier ? impl_->drop_spilled(space.tree, {&hash, 1}) : 0;
    if (impl_->loader) impl_->loader->drop(space.tree, {&hash, 1});
    impl_->counters.dropped_blocks += on_disk;
    count += on_disk;
    if (kept != nullptr) kept->push_back(impl_->disk_drop(space, hash));
    const BlockId block = pool.index().find_child(space.tree, kNoBlock, hash);
    if (block == kNoBlock) continue;
    if (pool.index().pin_count(block) > 0) {  // out of sight now, freed with its last pin
      pool.detach(block, BlockPool::Removal::kDrop);
    } else {
      pool.remove_leaf_end(block);
      ++impl_->counters.dropped_blocks;
      ++count;
    }
  }
  Impl::Call call(*impl_);
  return count + impl_->evictor.reap(call.steps, now);
}

}  // namespace kv
