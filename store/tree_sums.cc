#include "store/tree_sums.h"

#include <algorithm>
#include <queue>

#include "base/assert.h"

namespace kv {

std::size_t TreeSums::find_or_add(std::size_t above, const LookDesk::EdgeView& edge, bool is_space) {
  const Key key{above, static_cast<std::uint64_t>(edge.space), is_space ? 0 : edge.name};
  const auto [at, is_new] = index_.try_emplace(key, parts_.size());
  if (is_new) {
    Node& node = parts_.emplace_back();
    node.above = above;
    node.part.is_space = is_space;
    node.part.edge.space = edge.space;
    if (above != Part::kNone) parts_[above].children.push_back(at->second);
  }
  return at->second;
}

void TreeSums::add(std::span<const LookDesk::EdgeView> edges) {
  std::vector<std::size_t> part_of(edges.size());
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const LookDesk::EdgeView& edge = edges[i];
    KV_ASSERT(edge.parent == LookDesk::EdgeView::kNoParent || edge.parent < i);
    const std::size_t above =
        edge.parent == LookDesk::EdgeView::kNoParent ? find_or_add(Part::kNone, edge, true) : part_of[edge.parent];
    part_of[i] = find_or_add(above, edge, false);
    Part& part = parts_[part_of[i]].part;
    const TimePoint used = std::max(part.edge.used, edge.used);
    part.edge = edge;
    part.edge.used = used;
    if (edge.weight == 0) continue;
    KV_ASSERT(edge.block_count > 0);
    part.block_count += edge.weight;
    part.copied_count += edge.copied;
    part.bytes += edge.bytes / edge.block_count * edge.weight;
    part.uses += static_cast<double>(edge.use_count) * edge.weight / edge.block_count;
  }
}

std::vector<TreeSums::Part> TreeSums::select(std::size_t count_max) const {
  std::vector<Part> sums;
  sums.reserve(parts_.size());
  for (const Node& node : parts_) sums.push_back(node.part);
  for (std::size_t i = parts_.size(); i-- > 0;) {
    if (parts_[i].above == Part::kNone) continue;
    Part& above = sums[parts_[i].above];
    above.block_count += sums[i].block_count;
    above.bytes += sums[i].bytes;
    above.copied_count += sums[i].copied_count;
    above.uses += sums[i].uses;
    above.edge.used = std::max(above.edge.used, sums[i].edge.used);
  }
  // The largest part whose parent is in the result comes next. Equal sizes: in order of first visit.
  struct Candidate {
    std::uint64_t bytes;
    std::size_t part, parent;
    bool operator<(const Candidate& other) const {
      return bytes != other.bytes ? bytes < other.bytes : part > other.part;
    }
  };
  std::priority_queue<Candidate> candidates;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].above == Part::kNone) candidates.push({sums[i].bytes, i, Part::kNone});
  }
  std::vector<Part> result;
  while (!candidates.empty() && result.size() < count_max) {
    const Candidate next = candidates.top();
    candidates.pop();
    Part& part = result.emplace_back(sums[next.part]);
    part.parent = next.parent;
    part.hidden_count = static_cast<std::uint32_t>(parts_[next.part].children.size());
    if (next.parent != Part::kNone) --result[next.parent].hidden_count;
    for (const std::size_t child : parts_[next.part].children)
      candidates.push({sums[child].bytes, child, result.size() - 1});
  }
  return result;
}

}  // namespace kv
