// store/store_look.cc: views for people: namespaces, and the edges of their trees.
//
// Bounded for any store: a list of edges where one call can visit all of them, else a sample of blocks.
#include <algorithm>
#include <array>

#include "store/store_impl.h"

namespace kv {
namespace {

/// Per call: some 25 us, and 100 on cold memory. A list also keeps a table of the visited edges.
constexpr std::size_t kLookSteps = Store::kStepsPerCall, kListSteps = Store::kStepsPerCall / 4;
/// A listed edge: its first and its last block's hash, use and place, all in different places.
constexpr std::size_t kViewSteps = 2 * Steps::kBlock;
/// Blocks below more edges are not sampled: a call would take too long.
constexpr std::size_t kClimbMax = 1024;

Store::EdgeView view_of(const PrefixIndex& index, const SpaceTable::Space& space, const PrefixIndex::Edge& edge) {
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

}  // namespace

std::vector<Store::SpaceView> Store::list_spaces(const NamespaceId* after) const {
  std::vector<SpaceView> views;
  impl_->spaces.visit_next(after, kSpacesPerCall, [&](const Space& space) {
    const PrefixIndex& index = impl_->pool.index();
    const std::uint64_t count = index.block_count(space.tree);
    const bool is_set = space.record->is_set();
    const std::uint64_t bytes = is_set ? index.total_bytes(space.tree) : count * space.record->block_bytes();
    const std::uint64_t on_disk = impl_->tier ? impl_->tier->index().block_count(space.tree) : 0;
    views.push_back({space.id, space.name, space.record, count, bytes, on_disk, space.traffic, space.roots.counts()});
  });
  return views;
}

const PrefixIndex* Store::Impl::index_of(Tier of) const {
  if (of == Tier::kMemory) return &pool.index();
  return tier ? &tier->index() : nullptr;
}

bool Store::Impl::has_copy(Tier of, BlockId block) const {
  return of == Tier::kMemory ? pool.is_on_disk(block) : tier->copy_in_memory(block) != kNoBlock;
}

Result<bool> Store::list_edges(const TreeScope& scope, std::vector<EdgeView>& edges) const {
  KV_ASSERT(scope.space);
  const Space* const space = impl_->spaces.find(*scope.space);
  if (space == nullptr) return Errc::kNoNamespace;
  const PrefixIndex* const index = impl_->index_of(scope.tier);
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
    if (impl_->has_copy(scope.tier, edge.last)) view.copied = edge.block_count;
    return true;
  });
  if (!is_whole) edges.resize(before);
  return is_whole;
}

Store::SampleCursor Store::sample_cursor(Tier tier, std::uint32_t looks, std::uint64_t random) const {
  KV_ASSERT(looks > 0);
  const PrefixIndex* const index = impl_->index_of(tier);
  if (index == nullptr) return {.is_done = true};
  const std::uint32_t stride = index->block_id_end() / looks + 1;
  return {.next = static_cast<std::uint32_t>(random % stride), .stride = stride};
}

void Store::sample_edges(const TreeScope& scope, SampleCursor& cursor, std::vector<EdgeView>& edges) const {
  const PrefixIndex* const index = impl_->index_of(scope.tier);
  const Space* const only = scope.space ? impl_->spaces.find(*scope.space) : nullptr;
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
    const Space& space = *impl_->spaces.find(tree);
    const std::size_t kept = std::min(count, kEdgesAboveMax);
    steps.take(kept * kViewSteps);
    for (std::size_t i = 0; i < kept; ++i) {
      EdgeView& view = edges.emplace_back(view_of(*index, space, path[count - 1 - i]));
      if (i > 0) view.parent = static_cast<std::uint32_t>(edges.size() - 2);
    }
    EdgeView& own = edges.back();
    own.weight = cursor.stride;
    if (impl_->has_copy(scope.tier, block)) own.copied = cursor.stride;
    const BlockId leaf = index->leaf_end_below(block, steps);
    own.used = std::max(own.used, BlockPool::time_of(index->recency(leaf)));
  }
  cursor.is_done = cursor.next >= index->block_id_end();
}

}  // namespace kv
