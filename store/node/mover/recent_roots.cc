#include "store/node/mover/recent_roots.h"

#include <algorithm>
#include <optional>

namespace kv {
namespace {

bool is_recent(TimePoint changed, TimePoint now) {
  return changed != TimePoint::min() && now - changed < RecentRoots::kTime;
}

}  // namespace

void RecentRoots::hear(const NamespaceId& id, std::span<const BlockHash> hot, TimePoint now) {
  if (now >= next_forgetting_ || block_count_ > kBlocksMax) forget(now);
  const auto [entry, is_first] = spaces_.try_emplace(id);
  Space& space = entry->second;
  space.heard = now;
  ++space.hear_count;
  for (const BlockHash& hash : hot) {
    const auto [found, is_new] = space.blocks.try_emplace(hash);
    Block& block = found->second;
    block_count_ += is_new;
    if ((is_new && !is_first) || !block.is_hot) block.changed = now;
    block.is_hot = true;
    block.heard = space.hear_count;
  }
  for (auto& [hash, block] : space.blocks) {
    if (block.heard == space.hear_count || !block.is_hot) continue;
    block.is_hot = false;
    block.changed = now;
  }
}

/// Forgets blocks that cooled so long ago that clients no longer look there, and namespaces without later reports.
void RecentRoots::forget(TimePoint now) {
  const bool is_full = block_count_ > kBlocksMax;
  next_forgetting_ = now + kTime / 8;
  block_count_ = 0;
  for (auto entry = spaces_.begin(); entry != spaces_.end();) {
    auto& [id, space] = *entry;
    std::erase_if(space.blocks, [&](const auto& each) {
      return !each.second.is_hot && (is_full || !is_recent(each.second.changed, now));
    });
    if (now - space.heard >= kTime) {
      entry = spaces_.erase(entry);
      continue;
    }
    block_count_ += space.blocks.size();
    ++entry;
  }
}

/// Neighbours that became hot or cooled at the same time belong together: a root ended where two neighbours differ.
std::vector<std::size_t> RecentRoots::roots(const NamespaceId& id, std::span<const BlockHash> path,
                                            TimePoint now) const {
  std::vector<std::size_t> roots = {0};
  const auto found = spaces_.find(id);
  if (found == spaces_.end()) return roots;
  const auto& blocks = found->second.blocks;
  struct End {
    TimePoint changed;
    std::size_t block_count;
  };
  std::vector<End> ends;
  std::optional<Block> before;  // always hot, in front of the first one
  bool is_root = true;
  for (std::size_t i = 0; i <= path.size(); ++i) {
    const auto entry = i < path.size() ? blocks.find(path[i]) : blocks.end();
    std::optional<Block> block;
    if (entry != blocks.end() && (entry->second.is_hot || is_recent(entry->second.changed, now))) block = entry->second;
    is_root = is_root && block && block->is_hot;
    if (is_root) roots[0] = i + 1;
    TimePoint changed = TimePoint::min();
    for (const auto& side : {before, block}) {
      if (side && is_recent(side->changed, now)) changed = std::max(changed, side->changed);
    }
    const bool differs = !before || !block || before->changed != block->changed || before->is_hot != block->is_hot;
    if (differs && changed != TimePoint::min()) ends.push_back({changed, i});
    if (!block) break;
    before = block;
  }
  std::ranges::stable_sort(ends, std::ranges::greater(), &End::changed);
  for (const End& end : ends) {
    if (roots.size() == kRootsMax) break;
    if (std::ranges::find(roots, end.block_count) == roots.end()) roots.push_back(end.block_count);
  }
  return roots;
}

}  // namespace kv
