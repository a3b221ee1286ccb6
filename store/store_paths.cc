// store/store_paths.cc: paths of blocks, for passing them on to another node.
//
// A block enters as a part of a path, which list_paths() names by its end, and leaves pinned, to be read. These calls
// do not count as uses: passed-on blocks keep their age.
#include <algorithm>

#include "store/store_impl.h"

namespace kv {
namespace {

/// Per call: some 100 us.
constexpr std::uint32_t kIdsPerCall = 1024;

}  // namespace

void Store::list_paths(PathCursor& cursor, TimePoint since, std::vector<PathEnd>& ends) const {
  const PrefixIndex& index = impl_->pool.index();
  const std::uint32_t end = std::min(index.block_id_end(), cursor.next + std::min(kIdsPerCall, ~cursor.next));
  for (; cursor.next < end; ++cursor.next) {
    const BlockId block{cursor.next};
    if (!index.is_leaf_end(block)) continue;
    const TimePoint used = BlockPool::time_of(index.recency(block));
    if (used < since || index.is_set(index.tree(block)) || !index.is_attached(block)) continue;
    ends.push_back({impl_->spaces.find(index.tree(block))->id, block, index.hash(block), used});
  }
  cursor.is_done = cursor.next >= index.block_id_end();
}

Result<std::vector<BlockId>> Store::Impl::path(const PathEnd& end) const {
  const PrefixIndex& index = pool.index();
  const Space* const space = spaces.find(end.space);
  if (space == nullptr || !index.is_attached(end.block) || index.tree(end.block) != space->tree ||
      index.hash(end.block) != end.hash) {
    return Errc::kNotFound;
  }
  std::vector<BlockId> blocks;
  for (BlockId block = end.block; block != kNoBlock; block = index.parent(block)) {
    if (blocks.size() >= config.chain_blocks_max) return Errc::kTooLarge;
    blocks.push_back(block);
  }
  std::ranges::reverse(blocks);
  return blocks;
}

Result<std::vector<BlockHash>> Store::path_of(const PathEnd& end) const {
  const auto blocks = impl_->path(end);
  if (!blocks) return blocks.error();
  std::vector<BlockHash> hashes;
  hashes.reserve(blocks->size());
  for (const BlockId block : *blocks) hashes.push_back(impl_->pool.index().hash(block));
  return hashes;
}

Result<std::size_t> Store::path_uses(const PathEnd& end, std::size_t skipped) const {
  const auto blocks = impl_->path(end);
  if (!blocks) return blocks.error();
  std::size_t most = 0;
  for (std::size_t i = skipped; i < blocks->size(); ++i)
    most = std::max<std::size_t>(most, impl_->pool.index().usage((*blocks)[i]).use_count);
  return most;
}

Result<Store::PinnedPrefix> Store::pin_path(const PathEnd& end) {
  const auto blocks = impl_->path(end);
  if (!blocks) return blocks.error();
  return impl_->pin_blocks(*blocks);
}

}  // namespace kv
