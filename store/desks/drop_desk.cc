#include "store/desks/drop_desk.h"

namespace kv {

Result<std::size_t> DropDesk::drop(SpaceId id, std::span<const BlockHash> hashes, DiskDrop* kept) {
  BlockPool& pool = shelf_.pool;
  std::size_t count = 0;
  if (hashes.empty()) {
    const SpaceTable::Space* const space = spaces_.find(id);
    if (space == nullptr) return Errc::kNoNamespace;
    spaces_.use(*space);
    count = disk_.drop(*space, {}, kept);
    pool.detach_all(space->tree, BlockPool::Removal::kDrop);
  } else {
    const auto found = spaces_.find_chain(id, hashes);
    if (!found) return found.error();
    count = disk_.drop(*found->space, hashes, kept);
    if (found->prefix.block_count == hashes.size()) pool.detach(found->prefix.last, BlockPool::Removal::kDrop);
  }
  return count + drop_more(BlockPool::time_of(pool.last_tick()));
}

Result<std::size_t> DropDesk::erase(SpaceId set, std::span<const BlockHash> hashes, std::vector<DiskDrop>* kept,
                                    TimePoint now) {
  const auto found = spaces_.set_for(set, hashes.size());
  if (!found) return found.error();
  if (hashes.empty()) return Errc::kBadRequest;
  const SpaceTable::Space& space = **found;
  BlockPool& pool = shelf_.pool;
  std::size_t count = 0;
  for (const BlockHash& hash : hashes) {
    count += disk_.drop(space, {&hash, 1}, kept == nullptr ? nullptr : &kept->emplace_back());
    const BlockId block = pool.index().find_child(space.tree, kNoBlock, hash);
    if (block == kNoBlock) continue;
    if (pool.index().pin_count(block) > 0) {  // hidden now, freed with its last pin
      pool.detach(block, BlockPool::Removal::kDrop);
    } else {
      shelf_.departed.add(space.tree, hash, MissKind::kDropped, now);
      pool.remove_leaf_end(block);
      ++shelf_.counters.dropped_blocks;
      ++count;
    }
  }
  return count + drop_more(now);
}

std::size_t DropDesk::drop_more(TimePoint now) {
  Shelf::Call call(shelf_);
  return shelf_.evictor.reap(call.steps, now);
}

}  // namespace kv
