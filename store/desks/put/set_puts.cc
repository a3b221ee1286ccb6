#include "store/desks/put/set_puts.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "index/name_groups.h"

namespace kv {

error_code SetPuts::check(const Space& set, std::span<const BlockHash> hashes, const OfferOptions& options) const {
  const std::size_t length_max = set.record->block_bytes();
  if (hashes.empty() || options.lengths.size() != hashes.size()) return Errc::kBadRequest;
  for (const std::uint32_t length : options.lengths)
    if (length == 0 || length > length_max) return Errc::kBadRequest;
  if (!are_groups_of(options.group_counts, hashes.size())) return Errc::kBadRequest;
  return could_hold_groups(set, options) ? error_code() : Errc::kTooLarge;
}

/// Whether each group fits an empty arena. Else everything would be evicted for a group that never fits.
bool SetPuts::could_hold_groups(const Space& set, const OfferOptions& options) const {
  if (options.group_counts.empty()) return true;  // a single name is within the set's bound, which fits
  bool could = true;
  for_each_group(options.group_counts, options.lengths.size(), [&](std::size_t first, std::size_t count) {
    std::size_t bytes = 0;
    for (const std::uint32_t length : options.lengths.subspan(first, count)) bytes += spaces_.slot_bytes(set, length);
    could = could && bytes <= shelf_.pool.arena().capacity_bytes();
  });
  return could;
}

OfferPlan SetPuts::plan(const FoundSet& found, std::span<const BlockHash> hashes, const OfferOptions& options,
                        TimePoint now) {
  BlockPool& pool = shelf_.pool;
  const Tick tick = pool.tick(now);
  OfferPlan plan;
  for (std::uint32_t i = 0; i < hashes.size(); ++i) {
    if (found.memory[i] != kNoBlock) {
      pool.use(found.memory[i], tick);
    } else if (found.disk[i] != kNoBlock && !options.promote) {
      // Its bytes are not in memory for comparison; but the stored block is whole, and stays (PutDesk, invariant 1).
      shelf_.tier->touch(found.disk[i], tick);
    } else {
      plan.wanted.push_back(i);
    }
  }
  plan.stored_count = hashes.size() - plan.wanted.size();
  return plan;
}

void SetPuts::add(OpenPut& put, OfferPlan& plan, const FoundSet& found, std::span<const BlockHash> hashes,
                  const OfferOptions& options) {
  put.stored_count += plan.stored_count;
  const std::size_t before = put.hashes.size();
  add_wanted(put, found, hashes, options, plan.wanted);
  learning_.tell_capacity(found.space->record->block_bytes());
  put.trait = learning_.offered({.tree = found.space->tree,
                                 .hashes = std::span(put.hashes).subspan(before),
                                 .found_count = 0,
                                 .block_size = found.space->record->block_size(),
                                 .is_set = true,
                                 .hint = options.hint,
                                 .tenant = found.space->tenant},
                                {}, shelf_.pool.last_tick());
  for (std::uint32_t& i : plan.wanted) i += options.first;
}

/// `wanted`: indices of `hashes`, increasing.
void SetPuts::add_wanted(OpenPut& put, const FoundSet& found, std::span<const BlockHash> hashes,
                         const OfferOptions& options, std::span<const std::uint32_t> wanted) {
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
    // Pinned, or taking slots for the others might evict it.
    for (const BlockId block : std::span(put.pinned).subspan(pinned_before)) shelf_.pool.pin(block);
    put.groups.push_back({put.hashes.size(), put.pinned.size(), put.on_disk.size()});
  });
  KV_ASSERT(next == wanted.size());
}

CommitStatus SetPuts::commit(OpenPut& put, std::size_t i, std::span<const std::uint64_t> checksums, TimePoint now) {
  return link(put, i, status_of(put, i, checksums), checksums, now);
}

std::vector<CommitStatus> SetPuts::commit_group(OpenPut& put, std::span<const std::uint64_t> checksums, TimePoint now) {
  KV_ASSERT(put.committed_groups < put.groups.size());
  const OpenPut::Group before = put.committed_group();
  const OpenPut::Group& group = put.groups[put.committed_groups++];
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

  const auto is_member = [&](const BlockHash& hash) { return is_here(put.space->tree, hash); };
  const PrefixIndex& index = shelf_.pool.index();
  // Pins prevent eviction, not drops.
  bool is_whole = std::ranges::all_of(on_disk, is_member) &&
                  std::ranges::all_of(pinned, [&](BlockId block) { return is_member(index.hash(block)); });
  std::vector<CommitStatus> statuses;
  for (std::size_t i = first; i < group.end; ++i) {
    statuses.push_back(status_of(put, i, sums[i - first]));
    is_whole = is_whole && statuses.back() != CommitStatus::kConflict;
  }
  // All is decided before the first is linked, and the lock is held to the end: readers never see a part.
  for (std::size_t i = first; i < group.end; ++i) {
    CommitStatus& status = statuses[i - first];
    if (status == CommitStatus::kStored && !is_whole) {
      shelf_.pool.return_slot(put.slots[i]);
      ++shelf_.counters.refused_blocks;
      status = CommitStatus::kRefused;
    } else {
      status = link(put, i, status, sums[i - first], now);
    }
  }
  const Tick tick = shelf_.pool.tick(now);  // used together
  for (const BlockId block : pinned) {
    if (is_whole && index.is_linked(block)) shelf_.pool.use(block, tick);
    shelf_.pool.unpin(block);
  }
  for (const BlockHash& hash : on_disk) {
    const BlockId disk = is_whole ? shelf_.tier->index().find_child(put.space->tree, kNoBlock, hash) : kNoBlock;
    if (disk != kNoBlock) shelf_.tier->touch(disk, tick);
  }
  return statuses;
}

/// The present result of committing hashes[i].
CommitStatus SetPuts::status_of(const OpenPut& put, std::size_t i, std::span<const std::uint64_t> checksums) const {
  const std::uint32_t length = put.lengths[i];
  KV_ASSERT(checksums.size() == stripe_count(length) && length <= shelf_.pool.arena().block_bytes(put.slots[i]));
  const TreeId tree = put.space->tree;
  if (const BlockId block = shelf_.pool.index().find_child(tree, kNoBlock, put.hashes[i]); block != kNoBlock) {
    // Checksums of two lengths have different seeds; but std::ranges::equal() also ends at different list lengths.
    const bool is_same =
        shelf_.pool.length(block) == length && std::ranges::equal(shelf_.pool.checksums(block), checksums);
    return is_same ? CommitStatus::kAlreadyStored : CommitStatus::kConflict;
  }
  const BlockId disk = shelf_.tier ? shelf_.tier->index().find_child(tree, kNoBlock, put.hashes[i]) : kNoBlock;
  // A load has found it since the offer.
  return disk != kNoBlock && shelf_.tier->block_bytes(disk) != length ? CommitStatus::kConflict : CommitStatus::kStored;
}

/// Makes hashes[i] visible if `status`, which comes from status_of(), is kStored; else frees its slot. Returns
/// `status`.
CommitStatus SetPuts::link(OpenPut& put, std::size_t i, CommitStatus status, std::span<const std::uint64_t> checksums,
                           TimePoint now) {
  const SlotId slot = put.slots[i];
  const std::uint32_t length = put.lengths[i];
  const TreeId tree = put.space->tree;
  const Tick tick = shelf_.pool.tick(now);
  if (status != CommitStatus::kStored) {
    const BlockId block = shelf_.pool.index().find_child(tree, kNoBlock, put.hashes[i]);
    shelf_.pool.return_slot(slot);
    if (block != kNoBlock) shelf_.pool.use(block, tick);
    ++(status == CommitStatus::kAlreadyStored ? shelf_.counters.already_stored_blocks
                                              : shelf_.counters.put_conflict_blocks);
    return status;
  }
  // Checksums first: after link() a match finds the block, and its readers verify by them.
  std::ranges::copy(checksums, shelf_.pool.arena().checksums(slot).begin());
  const std::uint32_t cohort = spaces_.cohort_of(*put.space, slots_.slot_bytes(put, i));
  const BlockId linked = shelf_.pool.link(
      tree, kNoBlock,
      {.hash = put.hashes[i], .slot = slot, .position = length, .cohort = cohort, .usage = slots_.first_usage(put, i)},
      tick);
  ++shelf_.counters.stored_blocks;
  ++put.space->traffic.stored_blocks;
  if (shelf_.tier) disk_.stored(tree, linked, kNoBlock, tick);
  return status;
}

bool SetPuts::is_here(TreeId set, const BlockHash& hash) const {
  return shelf_.pool.index().find_child(set, kNoBlock, hash) != kNoBlock ||
         (shelf_.tier && shelf_.tier->index().find_child(set, kNoBlock, hash) != kNoBlock);
}

}  // namespace kv
