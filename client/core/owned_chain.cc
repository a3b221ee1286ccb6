#include "client/core/owned_chain.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

/// Positions and hashes by node, in order of arrival.
class Parts {
 public:
  explicit Parts(std::size_t node_count) : parts_(node_count) {}

  void add(std::size_t node, std::size_t position, Hashes hashes) {
    OwnedChain& part = parts_[node];
    KV_ASSERT(part.own_positions.empty() || part.own_positions.back() < position);  // in the order of the chain
    part.own_hashes.insert(part.own_hashes.end(), hashes.begin(), hashes.end());
    for (std::size_t i = 0; i < hashes.size(); ++i)
      part.own_positions.push_back(static_cast<std::uint32_t>(position + i));
  }
  void add_group(std::size_t node, std::size_t position, Hashes names) {
    add(node, position, names);
    parts_[node].own_group_counts.push_back(static_cast<std::uint32_t>(names.size()));
  }
  /// The non-empty ones, in node order.
  std::vector<OwnedChain> take() {
    std::vector<OwnedChain> owned;
    owned.reserve(parts_.size());
    for (std::size_t node = 0; node < parts_.size(); ++node) {
      if (parts_[node].own_hashes.empty()) continue;
      OwnedChain& part = owned.emplace_back(std::move(parts_[node]));
      part.node = node;
      part.hashes = part.own_hashes;
      part.positions = part.own_positions;
      part.group_counts = part.own_group_counts;
    }
    return owned;
  }

 private:
  std::vector<OwnedChain> parts_;
};

}  // namespace

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
  std::vector<OwnedChain> owned;
  if (map.node_count() == 1) {
    owned.emplace_back().hashes = blocks;
    owned.back().group_counts = group_counts;
    return owned;
  }
  Parts parts(map.node_count());
  for_each_group(group_counts, blocks.size(), [&](std::size_t first, std::size_t count) {
    const std::size_t owner = map.owner(blocks[first]);
    if (group_counts.empty()) {
      parts.add(owner, first, blocks.subspan(first, count));
    } else {
      parts.add_group(owner, first, blocks.subspan(first, count));
    }
  });
  return parts.take();
}

}  // namespace kv
