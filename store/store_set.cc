// store/store_set.cc: namespaces of blocks that stand alone. In the index such a block hangs directly below the root,
// and acts as a chain of one: pins, leases, order of use, eviction, copies on disk. This file adds the lookup of single
// names, lengths, and groups of names. store_set_put.cc has their puts.

#include <algorithm>
#include <utility>

#include "base/assert.h"
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
  auto found = impl_->find_set(set, hashes);
  if (!found) return found.error();
  if (!are_groups_of(options.group_counts, hashes.size())) return Errc::kBadRequest;
  Impl::keep_whole_groups(*found, options.group_counts);
  BlockPool& pool = impl_->pool;
  const auto is_here = [](BlockId block) { return block != kNoBlock; };
  const auto found_count = static_cast<std::size_t>(std::ranges::count_if(found->memory, is_here) +
                                                    std::ranges::count_if(found->disk, is_here));
  const std::uint16_t trait =
      impl_->tell_asked({.tree = found->space->tree,
                         .hashes = hashes,
                         .found_count = found_count,
                         .block_size = found->space->record->block_size(),
                         .is_set = true,
                         .hint = options.hint,
                         .tenant = found->space->tenant},
                        static_cast<std::size_t>(std::ranges::count_if(found->memory, is_here)), now);
  ++found->space->traffic.lookups;
  found->space->traffic.empty_lookups += found_count == 0;
  const Tick tick = pool.tick(now);
  SetMatch match{.held = std::vector<Held>(hashes.size(), Held::kNowhere),
                 .lengths = std::vector<std::uint32_t>(hashes.size(), 0)};
  std::size_t memory_count = 0, disk_count = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (const BlockId block = found->memory[i]; block != kNoBlock) {
      match.held[i] = Held::kInMemory;
      match.lengths[i] = pool.index().position(block);
      pool.use(block, tick, Usage{.use_count = 1, .trait = trait});
      ++memory_count;
    } else if (const BlockId disk = found->disk[i]; disk != kNoBlock) {
      match.held[i] = Held::kOnDisk;
      match.lengths[i] = static_cast<std::uint32_t>(impl_->tier->block_bytes(disk));
      impl_->tier->touch(disk, tick);
      ++disk_count;
    }
  }
  const auto missed = std::ranges::find(match.held, Held::kNowhere) - match.held.begin();
  if (memory_count + disk_count < hashes.size())
    impl_->count_miss(*found->space, found_count, hashes[static_cast<std::size_t>(missed)], now);
  impl_->counters.match_hit_blocks += memory_count;
  impl_->counters.match_disk_blocks += disk_count;
  impl_->counters.match_miss_blocks += hashes.size() - memory_count - disk_count;
  match.lease = options.rest;
  const auto promised = options.lease ? Impl::leasable(*found, options.group_counts) : std::vector<BlockId>();
  if (!promised.empty()) {
    const auto lease = impl_->grant_set(options, promised, now);
    // All or none.
    if (!lease && options.rest != LeaseId{}) static_cast<void>(release(options.session, options.rest));
    match.lease = lease ? *lease : LeaseId{};
    match.lease_error = lease ? Errc{} : static_cast<Errc>(lease.error().value());
    if (!lease) {
      ++impl_->counters.leases_refused;
    } else if (options.rest == LeaseId{}) {
      ++impl_->counters.leases_granted;
    }
  }
  return match;
}

/// Each block once, without groups that lie partly on disk: leases do not cover the disk, and half a group is useless.
std::vector<BlockId> Store::Impl::leasable(const FoundSet& found, GroupCounts group_counts) {
  std::vector<BlockId> blocks;
  for_each_group(group_counts, found.memory.size(), [&](std::size_t first, std::size_t count) {
    const auto group = std::span(found.memory).subspan(first, count);
    if (std::ranges::find(group, kNoBlock) == group.end()) blocks.insert(blocks.end(), group.begin(), group.end());
  });
  std::ranges::sort(blocks);  // a name may come twice, and one lease on it is enough
  blocks.erase(std::ranges::unique(blocks).begin(), blocks.end());
  return blocks;
}

Result<LeaseId> Store::Impl::grant_set(const SetMatchOptions& options, std::span<const BlockId> blocks, TimePoint now) {
  std::size_t added = 0;
  for (const BlockId block : blocks) added += pool.unleased_bytes(block);
  const double bytes_max = config.leased_fraction_max * static_cast<double>(pool.arena().capacity_bytes());
  if (added > 0 && static_cast<double>(pool.leased_bytes() + added) > bytes_max) return Errc::kBusy;
  if (tenants && !blocks.empty() && !tenants->may_lease(tenants->of(pool.index().tree(blocks[0])), blocks.size()))
    return Errc::kOverQuota;
  const auto lease = leases.grant(options.session, blocks, now, options.rest);
  if (!lease) return lease.error();
  for (const BlockId block : blocks) pool.lease(block);
  return lease;
}

// -- groups

/// Removes incomplete groups from `found`: requests do not see parts (invariant 8), and do not count as uses of them.
void Store::Impl::keep_whole_groups(FoundSet& found, GroupCounts group_counts) {
  for_each_group(group_counts, found.memory.size(), [&](std::size_t first, std::size_t count) {
    const auto memory = std::span(found.memory).subspan(first, count),
               disk = std::span(found.disk).subspan(first, count);
    bool is_whole = true;
    for (std::size_t i = 0; i < count; ++i) is_whole = is_whole && (memory[i] != kNoBlock || disk[i] != kNoBlock);
    if (is_whole) return;
    std::ranges::fill(memory, kNoBlock);
    std::ranges::fill(disk, kNoBlock);
  });
}

// -- get

class Store::SetPinning {
 public:
  SetPinning(Impl& impl, const Space& space, std::span<const BlockHash> hashes, const SetGetOptions& options, Tick tick)
      : impl_(impl), space_(space), hashes_(hashes), options_(options), tick_(tick) {
    // A member of a group counts as here in either tier, though only `disk` may have it read.
    const bool asks_disk = options.disk || !options.group_counts.empty();
    has_disk_ = asks_disk && impl.tier && !impl.tier->index().is_empty(space.tree);
  }

  void pin_group(std::size_t first, std::size_t count) {
    look_up(first, count);
    const auto is_missing = [](const Member& member) { return member.memory == kNoBlock && member.disk == kNoBlock; };
    if (std::ranges::any_of(members_, is_missing)) {
      miss_count_ += count;
      return;
    }
    bool fits = true, is_readable = true;
    for (std::size_t i = 0; i < count; ++i) {
      use(members_[i]);
      is_readable = is_readable && (members_[i].memory != kNoBlock || options_.disk);
      fits = has_room(first + i, members_[i]) && fits;
    }
    if (!is_readable) miss_count_ += count;
    if (!is_readable || !fits) return;
    for (std::size_t i = 0; i < count; ++i) pin(static_cast<std::uint32_t>(first + i), members_[i]);
  }

  std::uint64_t bytes() const { return bytes_; }  ///< Pinned, and to be read from disk.
  std::size_t miss_count() const { return miss_count_; }
  PinnedSet take() { return std::move(result_); }

 private:
  struct Member {
    BlockId memory, disk;  ///< disk only where memory has none.
  };

  /// One by one: a window of a long list ends early, and the next one looks up the rest again.
  void look_up(std::size_t first, std::size_t count) {
    members_.clear();
    for (const BlockHash& hash : hashes_.subspan(first, count)) {
      const BlockId block = impl_.pool.index().find_child(space_.tree, kNoBlock, hash);
      const bool asks_disk = block == kNoBlock && has_disk_;
      members_.push_back({block, asks_disk ? impl_.tier->index().find_child(space_.tree, kNoBlock, hash) : kNoBlock});
    }
  }
  void use(const Member& member) {
    if (member.memory != kNoBlock) {
      impl_.pool.use(member.memory, tick_);
    } else {
      impl_.tier->touch(member.disk, tick_);
    }
  }
  bool has_room(std::size_t i, const Member& member) {
    const std::size_t length =
        member.memory != kNoBlock ? impl_.pool.length(member.memory) : impl_.tier->block_bytes(member.disk);
    if (options_.rooms.empty() || length <= options_.rooms[i]) return true;
    result_.too_long.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(length)});
    return false;
  }
  void pin(std::uint32_t i, const Member& member) {
    PinnedPrefix& pinned = result_.pinned;
    if (member.memory != kNoBlock) {
      // Until unpin(), its slot is not reused; the spans stay valid without the lock.
      impl_.pool.pin(member.memory);
      pinned.blocks.push_back({member.memory, i, impl_.pool.bytes(member.memory), impl_.pool.checksums(member.memory)});
      bytes_ += pinned.blocks.back().bytes.size();
    } else {
      pinned.spilled.push_back(impl_.pin_on_disk(space_, member.disk, hashes_[i], i));
      bytes_ += pinned.spilled.back().block_bytes;
    }
  }

  Impl& impl_;
  const Space& space_;
  const std::span<const BlockHash> hashes_;
  const SetGetOptions& options_;
  const Tick tick_;
  bool has_disk_ = false;
  std::vector<Member> members_;
  std::uint64_t bytes_ = 0;
  std::size_t miss_count_ = 0;
  PinnedSet result_{.pinned = {.blocks = {}, .spilled = {}, .kind = SpaceKind::kSet}};
};

Result<Store::PinnedSet> Store::pin_set(SpaceId set, std::span<const BlockHash> hashes, const SetGetOptions& options,
                                        TimePoint now) {
  Impl::Call call(*impl_);
  const auto found = impl_->set_space(set, hashes.size());
  if (!found) return found.error();
  if (!are_groups_of(options.group_counts, hashes.size())) return Errc::kBadRequest;
  KV_ASSERT(options.rooms.empty() || options.rooms.size() == hashes.size());
  const Tick tick = impl_->pool.tick(now);
  SetPinning pinning(*impl_, **found, hashes, options, tick);
  std::size_t looked = 0, group = 0;
  while (looked < hashes.size() && pinning.bytes() < options.bytes_max) {
    const std::size_t count = options.group_counts.empty() ? 1 : options.group_counts[group];
    // Groups are never cut: the first members could be gone before the next window asks for the others.
    if (looked + count > options.count_max && looked > 0) break;
    pinning.pin_group(looked, count);
    looked += count;
    ++group;
  }
  PinnedSet result = pinning.take();
  result.looked_count = looked;
  result.looked_group_count = options.group_counts.empty() ? 0 : group;
  const std::size_t memory_count = result.pinned.blocks.size(), disk_count = result.pinned.spilled.size();
  impl_->move_pin_count += memory_count;
  impl_->counters.get_hit_blocks += memory_count;
  impl_->counters.get_disk_blocks += disk_count;
  impl_->counters.get_miss_blocks += pinning.miss_count();
  if (options.lease != LeaseId{} && looked == hashes.size())
    // After pinning, so that the blocks stay protected. An ended lease is not an error: the pins count now.
    static_cast<void>(release(options.session, options.lease));
  return result;
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
  // All or nothing: the bound is checked for all blocks before the first is retained.
  std::vector<BlockId> here;
  std::ranges::copy_if(found->memory, std::back_inserter(here), [](BlockId block) { return block != kNoBlock; });
  const std::size_t count = here.size();
  std::ranges::sort(here);
  here.erase(std::ranges::unique(here).begin(), here.end());
  std::erase_if(here, [&](BlockId block) { return pool.is_retained(block); });  // contexts do not keep a set's blocks
  std::size_t bytes = 0;
  for (const BlockId block : here) bytes += pool.block_bytes(block);
  if (bytes > 0 && is_over_retained(bytes)) return Errc::kBusy;
  if (tenants && !tenants->may_retain(found->space->owner, bytes)) return Errc::kOverQuota;
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
    if (pool.index().pin_count(block) > 0) {  // hidden now, freed with its last pin
      pool.detach(block, BlockPool::Removal::kDrop);
    } else {
      impl_->departed.add(space.tree, hash, MissKind::kDropped, now);
      pool.remove_leaf_end(block);
      ++impl_->counters.dropped_blocks;
      ++count;
    }
  }
  Impl::Call call(*impl_);
  return count + impl_->evictor.reap(call.steps, now);
}

}  // namespace kv
