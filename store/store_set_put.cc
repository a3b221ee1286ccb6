// store/store_set_put.cc: puts of blocks that stand alone. store_put.cc extends one prefix; here each name is looked up
// alone. For names in groups, the offer pins the members that are here. A group is committed when its last block has
// come: as a whole or not at all (invariant 8).

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/store_impl.h"

namespace kv {

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
  if (!are_groups_of(options.group_counts, hashes.size())) return Errc::kBadRequest;
  if (!impl_->could_hold_groups(*found->space, options)) return Errc::kTooLarge;

  BlockPool& pool = impl_->pool;
  const Tick tick = pool.tick(now);
  OfferPlan plan;
  for (std::uint32_t i = 0; i < hashes.size(); ++i) {
    if (found->memory[i] != kNoBlock) {
      pool.use(found->memory[i], tick);
    } else if (found->disk[i] != kNoBlock && !options.promote) {
      // Its bytes are not in memory for comparison; but the stored block is whole, and stays (invariant 7).
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
  const std::size_t before = put.hashes.size();
  impl_->add_wanted(put, *found, hashes, options, plan.wanted);
  impl_->tell_capacity(length_max);
  put.trait = impl_->tell_offered({.tree = found->space->tree,
                                   .hashes = std::span(put.hashes).subspan(before),
                                   .found_count = 0,
                                   .block_size = found->space->record->block_size(),
                                   .is_set = true,
                                   .hint = options.hint,
                                   .tenant = found->space->tenant},
                                  {}, tick);
  for (std::uint32_t& i : plan.wanted) i += options.first;
  if (options.is_part) return plan;
  impl_->tidy(now, call.steps);
  impl_->stage(put, plan, options.may_lose, now, call.steps);
  return plan;
}

/// Whether each group fits an empty arena. Else everything would be evicted for a group that never fits.
bool Store::Impl::could_hold_groups(const Space& set, const SetOfferOptions& options) const {
  if (options.group_counts.empty()) return true;  // a single name is within the set's bound, which fits
  bool could = true;
  for_each_group(options.group_counts, options.lengths.size(), [&](std::size_t first, std::size_t count) {
    std::size_t bytes = 0;
    for (const std::uint32_t length : options.lengths.subspan(first, count)) bytes += slot_bytes(set, length);
    could = could && bytes <= pool.arena().capacity_bytes();
  });
  return could;
}

/// The put of the earlier parts; or a new one, with the latest id.
Result<Store::Put*> Store::Impl::set_put(Space& set, const SetOfferOptions& options) {
  if (options.put != PutId{}) {
    const auto of_list = puts.find(options.put);
    const bool is_ours = of_list != puts.end() && of_list->second.session == options.session &&
                         of_list->second.space == &set && of_list->second.slots.empty() &&
                         of_list->second.groups.empty() == options.group_counts.empty();
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
  put.tail = kNoBlock;  // it stands alone
  return &put;
}

/// `wanted`: indices of `hashes`, increasing.
void Store::Impl::add_wanted(Put& put, const FoundSet& found, std::span<const BlockHash> hashes,
                             const SetOfferOptions& options, std::span<const std::uint32_t> wanted) {
  std::size_t next = 0;
  for_each_group(options.group_counts, hashes.size(), [&](std::size_t first, std::size_t count) {
    const std::size_t before = next, pinned_before = put.pinned.size(), on_disk_before = put.on_disk.size();
    for (std::size_t i = first; i < first + count; ++i) {
      if (next < wanted.size() && wanted[next] == i) {
        put.hashes.push_back(hashes[i]);
        put.lengths.push_back(options.lengths[i]);
        put.indices.push_back(static_cast<std::uint32_t>(i) + options.first);
        ++next;
      } else if (options.group_counts.empty()) {
        continue;  // a single name does not wait
      } else if (found.memory[i] != kNoBlock) {
        put.pinned.push_back(found.memory[i]);
      } else {
        put.on_disk.push_back(hashes[i]);
      }
    }
    if (options.group_counts.empty()) return;
    if (next == before) {  // the whole group is here
      put.pinned.resize(pinned_before);
      put.on_disk.resize(on_disk_before);
      return;
    }
    // Pinned, or staging the others might evict it.
    for (const BlockId block : std::span(put.pinned).subspan(pinned_before)) pool.pin(block);
    put.groups.push_back({put.hashes.size(), put.pinned.size(), put.on_disk.size()});
  });
  KV_ASSERT(next == wanted.size());
}

bool Store::Impl::is_here(TreeId set, const BlockHash& hash) const {
  return pool.index().find_child(set, kNoBlock, hash) != kNoBlock ||
         (tier && tier->index().find_child(set, kNoBlock, hash) != kNoBlock);
}

std::vector<Store::CommitStatus> Store::commit_group(PutId id, std::span<const std::uint64_t> checksums,
                                                     TimePoint now) {
  const auto of_group = impl_->puts.find(id);
  KV_ASSERT(of_group != impl_->puts.end());
  Put& put = of_group->second;
  KV_ASSERT(put.committed_groups < put.groups.size());
  const Put::Group before = put.committed_group();
  const Put::Group& group = put.groups[put.committed_groups++];
  const auto pinned = std::span(put.pinned).first(group.pinned_end).subspan(before.pinned_end);
  const auto on_disk = std::span(put.on_disk).first(group.on_disk_end).subspan(before.on_disk_end);
  const std::size_t first = std::exchange(put.committed_count, group.end);
  KV_ASSERT(first < group.end && group.end <= put.told_count);
  std::vector<std::span<const std::uint64_t>> sums;
  for (std::size_t i = first; i < group.end; ++i) {
    KV_ASSERT(stripe_count(put.lengths[i]) <= checksums.size());
    sums.push_back(checksums.first(stripe_count(put.lengths[i])));
    checksums = checksums.subspan(sums.back().size());
  }
  KV_ASSERT(checksums.empty());

  const auto is_here = [&](const BlockHash& hash) { return impl_->is_here(put.space->tree, hash); };
  const PrefixIndex& index = impl_->pool.index();
  // Pins prevent eviction, not drops.
  bool is_whole = std::ranges::all_of(on_disk, is_here) &&
                  std::ranges::all_of(pinned, [&](BlockId block) { return is_here(index.hash(block)); });
  std::vector<CommitStatus> statuses;
  for (std::size_t i = first; i < group.end; ++i) {
    statuses.push_back(impl_->status_in_set(put, i, sums[i - first]));
    is_whole = is_whole && statuses.back() != CommitStatus::kConflict;
  }
  // All is decided before the first is linked, and the lock is held to the end: readers never see a part.
  for (std::size_t i = first; i < group.end; ++i) {
    CommitStatus& status = statuses[i - first];
    if (status == CommitStatus::kStored && !is_whole) {
      impl_->pool.unstage(put.slots[i]);
      ++impl_->counters.refused_blocks;
      status = CommitStatus::kRefused;
    } else {
      status = impl_->commit_set(put, i, status, sums[i - first], now);
    }
  }
  const Tick tick = impl_->pool.tick(now);  // used together
  for (const BlockId block : pinned) {
    if (is_whole && index.is_linked(block)) impl_->pool.use(block, tick);
    impl_->pool.unpin(block);
  }
  for (const BlockHash& hash : on_disk) {
    const BlockId disk = is_whole ? impl_->tier->index().find_child(put.space->tree, kNoBlock, hash) : kNoBlock;
    if (disk != kNoBlock) impl_->tier->touch(disk, tick);
  }
  return statuses;
}

/// The present result of committing hashes[i].
Store::CommitStatus Store::Impl::status_in_set(const Put& put, std::size_t i,
                                               std::span<const std::uint64_t> checksums) const {
  const std::uint32_t length = put.lengths[i];
  KV_ASSERT(checksums.size() == stripe_count(length) && length <= pool.arena().block_bytes(put.slots[i]));
  const TreeId tree = put.space->tree;
  if (const BlockId block = pool.index().find_child(tree, kNoBlock, put.hashes[i]); block != kNoBlock) {
    // Checksums of two lengths have different seeds; but std::ranges::equal() also ends at different list lengths.
    const bool is_same = pool.length(block) == length && std::ranges::equal(pool.checksums(block), checksums);
    return is_same ? CommitStatus::kAlreadyStored : CommitStatus::kConflict;
  }
  const BlockId disk = tier ? tier->index().find_child(tree, kNoBlock, put.hashes[i]) : kNoBlock;
  // A load has found it since the offer.
  return disk != kNoBlock && tier->block_bytes(disk) != length ? CommitStatus::kConflict : CommitStatus::kStored;
}

/// The part of Store::commit for hashes[i] of a put to a set. Returns `status`, which comes from status_in_set().
Store::CommitStatus Store::Impl::commit_set(Put& put, std::size_t i, CommitStatus status,
                                            std::span<const std::uint64_t> checksums, TimePoint now) {
  const SlotId slot = put.slots[i];
  const std::uint32_t length = put.lengths[i];
  const TreeId tree = put.space->tree;
  const Tick tick = pool.tick(now);
  if (status != CommitStatus::kStored) {
    const BlockId block = pool.index().find_child(tree, kNoBlock, put.hashes[i]);
    pool.unstage(slot);
    if (block != kNoBlock) pool.use(block, tick);
    ++(status == CommitStatus::kAlreadyStored ? counters.already_stored_blocks : counters.put_conflict_blocks);
    return status;
  }
  // Checksums first: after link() a match finds the block, and its readers verify by them.
  std::ranges::copy(checksums, pool.arena().checksums(slot).begin());
  const std::uint32_t group = group_of(*put.space, slot_bytes(put, i));
  const BlockId linked = pool.link(
      tree, kNoBlock,
      {.hash = put.hashes[i], .slot = slot, .position = length, .group = group, .usage = first_usage(put, i)}, tick);
  ++counters.stored_blocks;
  ++put.space->traffic.stored_blocks;
  if (tier) {
    add_copy(tree, linked, kNoBlock);
    spiller->stored(linked, tick);
  }
  return status;
}

}  // namespace kv
