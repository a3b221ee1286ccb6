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

/// With one node and no extents, the common case, the chain is borrowed without copying or allocating.
std::vector<OwnedChain> split_chain(const ClusterMap& map, Hashes chain, std::size_t hot_blocks) {
  std::vector<OwnedChain> owned;
  if (map.node_count() == 1 && !map.has_extents()) {
    owned.emplace_back().hashes = chain;
    return owned;
  }
  std::vector<OwnedChain> parts = split_extents(map, chain, map.extents(chain, hot_blocks));
  if (map.has_extents() && !parts.empty()) {
    parts.front().anchor = std::min(hot_blocks, parts.front().hashes.size() - 1);
  }
  return parts;
}

std::vector<OwnedChain> split_extents(const ClusterMap& map, Hashes chain,
                                      std::span<const ClusterMap::Extent> extents) {
  std::vector<OwnedChain> owned;
  Parts parts(map.has_extents() ? 0 : map.node_count());
  for (const ClusterMap::Extent& extent : extents) {
    KV_ASSERT(extent.begin < extent.end && extent.end <= chain.size());
    const auto hashes = chain.subspan(extent.begin, extent.end - extent.begin);
    if (!map.has_extents()) {
      parts.add(extent.node, extent.begin, hashes);
      continue;
    }
    OwnedChain& part = owned.emplace_back();
    part.node = extent.node;
    part.hashes = hashes;
    part.first = extent.begin;
  }
  return map.has_extents() ? std::move(owned) : parts.take();
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
