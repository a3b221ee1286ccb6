#include "client/cluster_map.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/assert.h"

namespace kv {

ClusterMap::ClusterMap(std::span<const Node> nodes) {
  if (nodes.empty()) throw std::invalid_argument("nodes: at least one is needed");
  std::vector<std::string> names;
  for (const Node& node : nodes) {
    if (node.name.empty()) throw std::invalid_argument("nodes: a node has an empty name");
    if (!(node.weight > 0) || !std::isfinite(node.weight)) {
      throw std::invalid_argument("nodes: weight of '" + node.name + "' must be a positive number");
    }
    names.push_back(node.name);
    seeds_.push_back(XXH3_64bits(node.name.data(), node.name.size()));
    weights_.push_back(node.weight);
    equal_weights_ = equal_weights_ && node.weight == nodes[0].weight;
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    throw std::invalid_argument("nodes: name '" + *twice + "' is given twice");
  }
  for (const Node& node : nodes) {
    ranks_.push_back(
        static_cast<std::uint32_t>(std::lower_bound(names.begin(), names.end(), node.name) - names.begin()));
  }
}

/// Weighted rendezvous hashing: each node draws a number from the block's hash and its own name, and the highest wins.
/// So a node that leaves or joins moves only its own share, and all clients agree without talking. Ties are broken by
/// the rank of the names, since the order of the configuration may differ between clients.
std::size_t ClusterMap::owner(const BlockHash& block) const {
  KV_ASSERT(!seeds_.empty() && weights_.size() == seeds_.size() && ranks_.size() == seeds_.size());
  if (seeds_.size() == 1) return 0;
  std::size_t best = 0;
  double best_score = -1;
  for (std::size_t node = 0; node < seeds_.size(); ++node) {
    const std::uint64_t hash = XXH3_64bits_withSeed(block.bytes.data(), block.bytes.size(), seeds_[node]);
    const double u = (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;  // 53 bits and a half: never 0, never 1
    // -1 / ln(u) grows with u: among equal weights u itself gives the same order.
    const double score = equal_weights_ ? u : -weights_[node] / std::log(u);
    if (score > best_score || (score == best_score && ranks_[node] < ranks_[best])) {
      best = node;
      best_score = score;
    }
  }
  return best;
}

std::vector<std::vector<std::uint32_t>> ClusterMap::split(std::span<const BlockHash> chain) const {
  std::vector<std::vector<std::uint32_t>> positions(node_count());
  for (auto& list : positions) list.reserve(chain.size() / node_count() + 8);  // an even share, and some more
  for (std::size_t i = 0; i < chain.size(); ++i) positions[owner(chain[i])].push_back(static_cast<std::uint32_t>(i));
  return positions;
}

}  // namespace kv
