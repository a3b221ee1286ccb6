#include "client/cluster/cluster_map.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/assert.h"

namespace kv {

namespace {

/// "anchor" in ASCII. Differs from nodes' seeds, save by chance, so that anchors are independent of owners.
constexpr std::uint64_t kAnchorSeed = 0x726F68636E61;

}  // namespace

ClusterMap::ClusterMap(std::span<const Node> nodes, std::size_t extent_blocks) : extent_blocks_(extent_blocks) {
  if (nodes.empty()) throw std::invalid_argument("nodes: at least one is needed");
  if (extent_blocks < 1 || extent_blocks > kExtentBlocksLimit) {
    throw std::invalid_argument("extent_blocks: is " + std::to_string(extent_blocks) + ", must be 1.." +
                                std::to_string(kExtentBlocksLimit));
  }
  std::vector<std::string> names;
  for (const Node& node : nodes) {
    if (node.name.empty()) throw std::invalid_argument("nodes: a node has an empty name");
    if (!(node.weight >= 0) || !std::isfinite(node.weight)) {
      throw std::invalid_argument("nodes: weight of '" + node.name + "' must be 0 or a positive number");
    }
    if (node.weight > 0) owners_.push_back(names.size());
    names.push_back(node.name);
    seeds_.push_back(XXH3_64bits(node.name.data(), node.name.size()));
    weights_.push_back(node.weight);
  }
  if (owners_.empty()) throw std::invalid_argument("nodes: at least one needs a positive weight");
  equal_weights_ = have_equal_weights();
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    throw std::invalid_argument("nodes: name '" + *twice + "' is given twice");
  }
  for (const Node& node : nodes) {
    ranks_.push_back(
        static_cast<std::uint32_t>(std::lower_bound(names.begin(), names.end(), node.name) - names.begin()));
  }
}

bool ClusterMap::have_equal_weights() const {
  return std::ranges::all_of(owners_, [&](std::size_t node) { return weights_[node] == weights_[owners_[0]]; });
}

ClusterMap ClusterMap::without(std::span<const std::size_t> nodes) const {
  ClusterMap rest = *this;
  std::erase_if(rest.owners_, [&](std::size_t owner) { return std::ranges::find(nodes, owner) != nodes.end(); });
  if (rest.owners_.empty()) return *this;
  rest.equal_weights_ = rest.have_equal_weights();
  return rest;
}

ClusterMap ClusterMap::uncut() const {
  ClusterMap whole = *this;
  whole.is_cut_ = false;
  return whole;
}

/// A block is owned by the owner of its *anchor*, the nearest block at or before it that begins an extent:
///   - the chain's first block, or the first one behind its hot root; if the chain ends in its root, its last block;
///   - a natural anchor: a block whose hash, hashed again, is 0 mod extent_blocks;
///   - a forced one: the block extent_blocks_max() blocks behind an anchor, without a natural one before.
/// This is content-defined chunking (Muthitacharoen, Chen, Mazieres: A Low-bandwidth Network File System, SOSP 2001):
/// clients agree on the cuts without communicating. A natural extent is longer than 4 x extent_blocks once in e^4 = 55
/// times. Without the forced cut, a client that chooses hashes could put a chain of any length on one node. Refused:
/// extents counted from the chain's start, which leave everything behind a shared system prompt on one node. Refused
/// too: the root in front of every extent. A node then could not find an extent after the root changed its length, and
/// a get would have several nodes write one block.
std::vector<ClusterMap::Extent> ClusterMap::extents(Hashes chain, std::size_t hot_blocks) const {
  std::vector<Extent> extents;
  if (chain.empty()) return extents;
  std::size_t begin = 0, anchor = std::min(hot_blocks, chain.size() - 1);
  if (!is_cut_) return {{begin, chain.size(), owner(chain[anchor]), anchor}};
  extents.reserve(chain.size() / extent_blocks_ + 8);
  for (std::size_t i = anchor + 1; i <= chain.size(); ++i) {
    if (i < chain.size() && i - anchor < extent_blocks_max() && !is_anchor(chain[i])) continue;
    extents.push_back({begin, i, owner(chain[anchor]), anchor});
    begin = anchor = i;
  }
  KV_ASSERT(extents.back().end == chain.size());
  return extents;
}

/// Hashes the whole hash again, because engines' own hashes may be short, padded with zeros before or behind.
bool ClusterMap::is_anchor(const BlockHash& block) const {
  return XXH3_64bits_withSeed(block.bytes.data(), block.bytes.size(), kAnchorSeed) % extent_blocks_ == 0;
}

/// Weighted rendezvous hashing: each node draws a number from the anchor's hash and its own name, and the highest wins.
/// So a node that leaves or joins moves only its own share, and all clients agree without communicating. The rank of
/// the names breaks ties, since the order of the configuration may differ between clients. (Thaler, Ravishankar: Using
/// Name-Based Mappings to Increase Hit Rates, 1998; the weights: Resch: New Hashing Algorithms for Data Storage, 2015.)
std::size_t ClusterMap::owner(const BlockHash& anchor, std::size_t except) const {
  KV_ASSERT(!owners_.empty() && weights_.size() == seeds_.size() && ranks_.size() == seeds_.size());
  if (owners_.size() == 1) return owners_[0];
  std::size_t best = 0;
  double best_score = -1;
  for (const std::size_t node : owners_) {
    if (node == except) continue;
    const std::uint64_t hash = XXH3_64bits_withSeed(anchor.bytes.data(), anchor.bytes.size(), seeds_[node]);
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

}  // namespace kv
