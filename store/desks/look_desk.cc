#include "store/desks/look_desk.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/assert.h"
#include "index/steps.h"

namespace kv {
namespace {

/// Per call: some 25 us, and 100 on cold memory. A list also keeps a table of the visited edges.
constexpr std::size_t kLookSteps = Shelf::kStepsPerCall, kListSteps = Shelf::kStepsPerCall / 4;
/// A listed edge: its first and its last block's hash, use and place, all in different places.
constexpr std::size_t kViewSteps = 2 * Steps::kBlock;
/// Blocks below more edges are not sampled: a call would take too long.
constexpr std::size_t kClimbMax = 1024;

LookDesk::EdgeView view_of(const PrefixIndex& index, const SpaceTable::Space& space, const PrefixIndex::Edge& edge) {
  const bool is_set = space.record->is_set();
  const std::uint64_t bytes =
      is_set ? index.position(edge.first) : std::uint64_t{edge.block_count} * space.record->block_bytes();
  return {.space = space.id,
          .first = edge.first,
          .name = short_hash(index.hash(edge.first)),
          .block_count = edge.block_count,
          .child_count = edge.child_count,
          .position = is_set ? 0 : index.position(edge.first),
          .bytes = bytes,
          .used = BlockPool::time_of(index.recency(edge.last)),
          .use_count = index.usage(edge.last).use_count};
}

/// Per call, some 100 us: a block's hash and its parent's are cache misses, an entry of the log is not.
constexpr std::size_t kChangesPerCall = 2048;
constexpr std::uint32_t kListedPerCall = 512;
constexpr std::uint32_t kIdsPerCall = 1024;  ///< Per call to list paths.

}  // namespace

void LookDesk::list_paths(PathCursor& cursor, TimePoint since, std::vector<PathEnd>& ends) const {
  const PrefixIndex& index = shelf_.pool.index();
  const std::uint32_t end = std::min(index.block_id_end(), cursor.next + std::min(kIdsPerCall, ~cursor.next));
  for (; cursor.next < end; ++cursor.next) {
    const BlockId block{cursor.next};
    if (!index.is_leaf_end(block)) continue;
    const TimePoint used = BlockPool::time_of(index.recency(block));
    if (used < since || index.is_set(index.tree(block)) || !index.is_attached(block)) continue;
    ends.push_back({spaces_.find(index.tree(block))->id, block, index.hash(block), used});
  }
  cursor.is_done = cursor.next >= index.block_id_end();
}

Result<std::vector<BlockHash>> LookDesk::path_of(const PathEnd& end) const {
  const auto blocks = path(end);
  if (!blocks) return blocks.error();
  std::vector<BlockHash> hashes;
  hashes.reserve(blocks->size());
  for (const BlockId block : *blocks) hashes.push_back(shelf_.pool.index().hash(block));
  return hashes;
}

Result<std::size_t> LookDesk::path_uses(const PathEnd& end, std::size_t skipped) const {
  const auto blocks = path(end);
  if (!blocks) return blocks.error();
  std::size_t most = 0;
  for (std::size_t i = skipped; i < blocks->size(); ++i)
    most = std::max<std::size_t>(most, shelf_.pool.index().usage((*blocks)[i]).use_count);
  return most;
}

Result<PinnedPrefix> LookDesk::pin_path(const PathEnd& end) {
  const auto blocks = path(end);
  if (!blocks) return blocks.error();
  return reads_.pin_blocks(*blocks);
}

Result<std::vector<BlockId>> LookDesk::path(const PathEnd& end) const {
  const PrefixIndex& index = shelf_.pool.index();
  const Space* const space = spaces_.find(end.space);
  if (space == nullptr || !index.is_attached(end.block) || index.tree(end.block) != space->tree ||
      index.hash(end.block) != end.hash) {
    return Errc::kNotFound;
  }
  std::vector<BlockId> blocks;
  for (BlockId block = end.block; block != kNoBlock; block = index.parent(block)) {
    if (blocks.size() >= shelf_.config.chain_blocks_max) return Errc::kTooLarge;
    blocks.push_back(block);
  }
  std::ranges::reverse(blocks);
  return blocks;
}

Result<bool> LookDesk::list_edges(const TreeScope& scope, std::vector<EdgeView>& edges) const {
  KV_ASSERT(scope.space);
  const Space* const space = spaces_.find(*scope.space);
  if (space == nullptr) return Errc::kNoNamespace;
  const PrefixIndex* const index = shelf_.index_of(scope.tier);
  if (index == nullptr) return Errc::kNotFound;
  if (scope.top != kNoBlock) {
    if (!index->is_attached(scope.top) || index->tree(scope.top) != space->tree ||
        short_hash(index->hash(scope.top)) != scope.top_name || index->edge(scope.top).first != scope.top) {
      return Errc::kNotFound;
    }
  }
  const std::size_t before = edges.size();
  std::unordered_map<BlockId, std::uint32_t> of_last;  // index in the list, by the edge's last block
  Steps steps(kListSteps);
  const bool is_whole = index->visit_edges(space->tree, scope.top, steps, [&](const PrefixIndex::Edge& edge) {
    steps.take(kViewSteps);
    EdgeView& view = edges.emplace_back(view_of(*index, *space, edge));
    if (const auto above = of_last.find(index->parent(edge.first)); above != of_last.end()) view.parent = above->second;
    if (edge.child_count > 0) of_last.emplace(edge.last, static_cast<std::uint32_t>(edges.size() - 1));
    view.weight = edge.block_count;
    if (has_copy(scope.tier, edge.last)) view.copied = edge.block_count;
    return true;
  });
  if (!is_whole) edges.resize(before);
  return is_whole;
}

LookDesk::SampleCursor LookDesk::sample_cursor(BlockTier tier, std::uint32_t looks, std::uint64_t random) const {
  KV_ASSERT(looks > 0);
  const PrefixIndex* const index = shelf_.index_of(tier);
  if (index == nullptr) return {.is_done = true};
  const std::uint32_t stride = index->block_id_end() / looks + 1;
  return {.next = static_cast<std::uint32_t>(random % stride), .stride = stride};
}

void LookDesk::sample_edges(const TreeScope& scope, SampleCursor& cursor, std::vector<EdgeView>& edges) const {
  const PrefixIndex* const index = shelf_.index_of(scope.tier);
  const Space* const only = scope.space ? spaces_.find(*scope.space) : nullptr;
  const bool has_top = scope.top != kNoBlock;
  if (index == nullptr || (scope.space && only == nullptr) ||
      (has_top && (!index->is_attached(scope.top) || short_hash(index->hash(scope.top)) != scope.top_name))) {
    cursor.is_done = true;
    return;
  }
  Steps steps(kLookSteps);
  std::array<PrefixIndex::Edge, kClimbMax> path;  // the block's own edge first
  for (; cursor.next < index->block_id_end() && steps.are_left();
       cursor.next += std::min(cursor.stride, ~cursor.next)) {
    steps.take(Steps::kGranule);
    const BlockId block{cursor.next};
    if (!index->is_linked(block)) continue;
    steps.take(Steps::kBlock);
    const TreeId tree = index->tree(block);
    if (only != nullptr && only->tree != tree) continue;
    std::size_t count = 0;
    bool is_in_scope = !has_top;
    BlockId above = block;
    while (above != kNoBlock && count < kClimbMax) {
      steps.take(Steps::kBlock);
      path[count] = index->edge(above);
      is_in_scope = is_in_scope || path[count].first == scope.top;
      above = index->parent(path[count].first);
      if (path[count++].first == scope.top) above = kNoBlock;
    }
    if (above != kNoBlock || !is_in_scope) continue;
    if (!has_top && !index->is_attached(path[count - 1].first)) continue;
    const Space& space = *spaces_.find(tree);
    const std::size_t kept = std::min(count, kEdgesAboveMax);
    steps.take(kept * kViewSteps);
    for (std::size_t i = 0; i < kept; ++i) {
      EdgeView& view = edges.emplace_back(view_of(*index, space, path[count - 1 - i]));
      if (i > 0) view.parent = static_cast<std::uint32_t>(edges.size() - 2);
    }
    EdgeView& own = edges.back();
    own.weight = cursor.stride;
    if (has_copy(scope.tier, block)) own.copied = cursor.stride;
    const BlockId leaf = index->leaf_end_below(block, steps);
    own.used = std::max(own.used, BlockPool::time_of(index->recency(leaf)));
  }
  cursor.is_done = cursor.next >= index->block_id_end();
}

bool LookDesk::has_copy(BlockTier of, BlockId block) const {
  return of == BlockTier::kMemory ? shelf_.pool.is_on_disk(block) : shelf_.tier->copy_in_memory(block) != kNoBlock;
}

void LookDesk::read_events(std::uint64_t from, EventPage& page) const {
  KV_ASSERT(shelf_.events != nullptr);
  shelf_.events->read(from, kChangesPerCall, page);
}

void LookDesk::list_blocks(BlockCursor& cursor, EventPage& page) const {
  if (shelf_.events) page.next = shelf_.events->next();
  const PrefixIndex* const index = shelf_.index_of(cursor.tier);
  if (index != nullptr) {
    const std::uint32_t end = std::min(index->block_id_end(), cursor.next + std::min(kListedPerCall, ~cursor.next));
    const bool has_detached = index->has_detached();
    for (; cursor.next < end; ++cursor.next) {
      const BlockId block{cursor.next};
      if (!index->is_linked(block) || (has_detached && !index->is_attached(block))) continue;
      const TreeId tree = index->tree(block);
      const BlockId parent = index->parent(block);
      EventPage::Event& event = page.events.emplace_back();
      event.is_stored = true;
      event.tier = cursor.tier;
      event.space = page.index_of(spaces_.find(tree)->record);
      event.hash = index->hash(block);
      if (parent != kNoBlock) event.parent = index->hash(parent);
      event.position = index->position(block);
    }
    if (cursor.next < index->block_id_end()) return;
  }
  cursor.is_done = cursor.tier == BlockTier::kDisk;
  cursor.tier = BlockTier::kDisk;
  cursor.next = 0;
}

Result<LookDesk::Miss> LookDesk::explain(SpaceId id, std::span<const BlockHash> hashes, TimePoint now) {
  const Space* const space = spaces_.find(id);
  if (space != nullptr && space->record->is_set()) return explain_in_set(id, hashes, now);
  const auto found = spaces_.find_chain(id, hashes);
  if (!found) return found.error();
  Miss miss{.memory_block_count = found->prefix.block_count,
            .disk_block_count = found->disk_block_count(),
            .traffic = found->space->traffic};
  const std::size_t found_count = miss.memory_block_count + miss.disk_block_count;
  if (found_count == hashes.size()) return miss;
  if (miss.disk_block_count == 0 && puts_.is_storing_next(*found, hashes)) {
    miss.why = MissKind::kBeingStored;
    return miss;
  }
  explain_departure(found->space->tree, hashes[found_count], now, miss);
  return miss;
}

/// In the given order of the names.
Result<LookDesk::Miss> LookDesk::explain_in_set(SpaceId id, std::span<const BlockHash> hashes, TimePoint now) {
  const auto found = spaces_.find_in_set(id, hashes);
  if (!found) return found.error();
  Miss miss{.traffic = found->space->traffic};
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (found->memory[i] != kNoBlock) {
      ++miss.memory_block_count;
    } else if (found->disk[i] != kNoBlock) {
      ++miss.disk_block_count;
    } else {
      explain_departure(found->space->tree, hashes[i], now, miss);
      break;
    }
  }
  return miss;
}

void LookDesk::explain_departure(TreeId tree, const BlockHash& missed, TimePoint now, Miss& miss) {
  const auto known = shelf_.departed.find(tree, missed, now);
  if (known.departed) {
    miss.why = known.departed->why;
    miss.left = known.departed->ago;
    miss.idle = known.departed->idle;
  } else {
    miss.why = MissKind::kNotRemembered;
    miss.remembers = known.remembers;
  }
}

bool LookDesk::look_in_spaces(bool are_sets, std::span<const BlockHash> chain, const std::string* owner,
                              std::optional<NamespaceId>& after, std::vector<SpaceLook>& looks) const {
  KV_ASSERT(chain.size() <= kLookedForMax);
  std::vector<BlockId> found(chain.size());
  std::size_t count = 0;
  spaces_.visit_next(after ? &*after : nullptr, kLookedInPerCall, [&](const Space& space) {
    ++count;
    after = space.name;  // visit_next() has read it by now
    if (space.record->is_set() != are_sets || (owner != nullptr && space.record->owner() != *owner)) return;
    const auto has = [&](const PrefixIndex& index) {
      if (chain.empty()) return false;
      if (!are_sets) return index.match(space.tree, chain).block_count == chain.size();
      index.find_each(space.tree, chain, found);
      return std::ranges::find(found, kNoBlock) == found.end();
    };
    looks.push_back({.name = space.name,
                     .record = space.record,
                     .has_chain = has(shelf_.pool.index()) || (shelf_.tier && has(shelf_.tier->index())),
                     .block_count = shelf_.pool.index().block_count(space.tree) +
                                    (shelf_.tier ? shelf_.tier->index().block_count(space.tree) : 0),
                     .traffic = space.traffic});
  });
  return count == kLookedInPerCall;
}

}  // namespace kv
