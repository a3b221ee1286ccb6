#include "store/desks/set_pinning.h"

#include <algorithm>
#include <utility>

namespace kv {

SetPinning::SetPinning(Shelf& shelf, DiskDesk& disk, const SpaceTable::Space& space, std::span<const BlockHash> hashes,
                       const Options& options, Tick tick)
    : shelf_(shelf), disk_(disk), space_(space), hashes_(hashes), options_(options), tick_(tick) {
  // A member of a group counts as here in either tier, though only `disk` may have it read.
  const bool asks_disk = options.disk || !options.group_counts.empty();
  has_disk_ = asks_disk && shelf.tier && !shelf.tier->index().is_empty(space.tree);
}

SetPinning::Pinned SetPinning::pin() {
  std::size_t looked = 0, group = 0;
  while (looked < hashes_.size() && bytes_ < options_.bytes_max) {
    const std::size_t count = options_.group_counts.empty() ? 1 : options_.group_counts[group];
    if (looked + count > options_.count_max && looked > 0) break;
    pin_group(looked, count);
    looked += count;
    ++group;
  }
  result_.looked_count = looked;
  result_.looked_group_count = options_.group_counts.empty() ? 0 : group;
  return std::move(result_);
}

void SetPinning::pin_group(std::size_t first, std::size_t count) {
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

/// One by one: a window of a long list ends early, and the next one looks up the rest again.
void SetPinning::look_up(std::size_t first, std::size_t count) {
  members_.clear();
  for (const BlockHash& hash : hashes_.subspan(first, count)) {
    const BlockId block = shelf_.pool.index().find_child(space_.tree, kNoBlock, hash);
    const bool asks_disk = block == kNoBlock && has_disk_;
    members_.push_back({block, asks_disk ? shelf_.tier->index().find_child(space_.tree, kNoBlock, hash) : kNoBlock});
  }
}

void SetPinning::use(const Member& member) {
  if (member.memory != kNoBlock) {
    shelf_.pool.use(member.memory, tick_);
  } else {
    shelf_.tier->touch(member.disk, tick_);
  }
}

bool SetPinning::has_room(std::size_t i, const Member& member) {
  const std::size_t length =
      member.memory != kNoBlock ? shelf_.pool.length(member.memory) : shelf_.tier->block_bytes(member.disk);
  if (options_.rooms.empty() || length <= options_.rooms[i]) return true;
  result_.too_long.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(length)});
  return false;
}

void SetPinning::pin(std::uint32_t i, const Member& member) {
  BlockPool& pool = shelf_.pool;
  PinnedPrefix& pinned = result_.pinned;
  if (member.memory != kNoBlock) {
    // Until unpin(), its slot is not reused; the spans stay valid without the lock.
    pool.pin(member.memory);
    pinned.blocks.push_back({member.memory, i, pool.bytes(member.memory), pool.checksums(member.memory)});
    bytes_ += pinned.blocks.back().bytes.size();
  } else {
    pinned.on_disk.push_back(disk_.pin(space_, member.disk, hashes_[i], i));
    bytes_ += pinned.on_disk.back().block_bytes;
  }
}

}  // namespace kv
