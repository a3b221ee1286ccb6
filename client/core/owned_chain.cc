#include "client/core/owned_chain.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

OwnedChain extent_of(Hashes chain, const ClusterMap::Extent& extent) {
  OwnedChain part;
  part.node = extent.node;
  part.hashes = chain.subspan(extent.begin, extent.end - extent.begin);
  part.first = extent.begin;
  part.anchor = extent.anchor - extent.begin;
  return part;
}

std::vector<OwnedChain> split_chain(const ClusterMap& map, Hashes chain, std::size_t hot_blocks) {
  const std::vector<ClusterMap::Extent> extents = map.extents(chain, hot_blocks);
  std::vector<OwnedChain> owned;
  owned.reserve(extents.size());
  for (const ClusterMap::Extent& extent : extents) owned.push_back(extent_of(chain, extent));
  return owned;
}

std::vector<OwnedChain> split_set(const ClusterMap& map, Hashes blocks, std::span<const std::uint32_t> group_counts) {
  KV_ASSERT(are_groups_of(group_counts, blocks.size()));
  if (map.node_count() == 1) {  // borrowed
    std::vector<OwnedChain> whole(1);
    whole[0].hashes = blocks;
    whole[0].group_counts = group_counts;
    return whole;
  }
  std::vector<OwnedChain> parts(map.node_count());
  for_each_group(group_counts, blocks.size(), [&](std::size_t first, std::size_t count) {
    OwnedChain& part = parts[map.owner(blocks[first])];
    for (std::size_t i = first; i < first + count; ++i) {
      part.own_hashes.push_back(blocks[i]);
      part.own_positions.push_back(static_cast<std::uint32_t>(i));
    }
    if (!group_counts.empty()) part.own_group_counts.push_back(static_cast<std::uint32_t>(count));
  });
  for (std::size_t node = 0; node < parts.size(); ++node) {
    OwnedChain& part = parts[node];
    part.node = node;
    part.hashes = part.own_hashes;
    part.positions = part.own_positions;
    part.group_counts = part.own_group_counts;
  }
  std::erase_if(parts, [](const OwnedChain& part) { return part.hashes.empty(); });
  return parts;
}

}  // namespace kv
