// client/core/owned_chain.h: the parts of a chain or of a set's blocks, each for one request to one node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/cluster/cluster_map.h"
#include "client/link/request_parts.h"
#include "index/block_hash.h"
#include "index/name_groups.h"

namespace kv {

/// The part of a chain, or of a set's blocks, in one request to a node. Of a chain: one extent, borrowed, which the
/// node treats as a chain of its own. So its blocks do not depend on the node's other extents, and a change of the map
/// affects only the extents it moves. Of a set: all the node's blocks.
struct OwnedChain {
  std::size_t node = 0;
  Hashes hashes;
  std::span<const std::uint32_t> positions;  ///< Of a set's blocks in the caller's list; empty: first, first + 1, ...
  std::size_t first = 0;
  std::size_t anchor = 0;  ///< Of an extent: the index in `hashes` of the one that determines the owner.
  std::size_t position(std::size_t i) const { return positions.empty() ? first + i : positions[i]; }

  std::span<const std::uint32_t> group_counts;  ///< For a set with groups: how they cut the names.

  std::vector<BlockHash> own_hashes;
  std::vector<std::uint32_t> own_positions, own_group_counts;
};
OwnedChain extent_of(Hashes chain, const ClusterMap::Extent& extent);
/// The requests for `chain`, a chain from its first block on. Borrows it; the elements must not be copied afterwards.
std::vector<OwnedChain> split_chain(const ClusterMap& map, Hashes chain, std::size_t hot_blocks = 0);
/// The same for blocks that stand alone, or groups cut by `group_counts`. A group goes whole to the owner of its first
/// name, so that one node can report whether all of it is held.
std::vector<OwnedChain> split_set(const ClusterMap& map, Hashes blocks,
                                  std::span<const std::uint32_t> group_counts = {});

/// The same for a set's names, in whole groups.
inline GroupPart groups_in_request(const LinkTerms& terms, const OwnedChain& part, std::size_t bytes_per_block) {
  const std::size_t per_group = part.group_counts.empty() ? 0 : sizeof(std::uint32_t);
  const std::size_t count_max = blocks_in_request(terms, part.hashes.size(), bytes_per_block + per_group);
  return leading_part(part.group_counts, part.hashes.size(), count_max);
}
/// Group counts as in requests; absent without groups.
inline flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> wire_groups(flatbuffers::FlatBufferBuilder& builder,
                                                                           const OwnedChain& part,
                                                                           std::size_t group_count) {
  if (part.group_counts.empty()) return 0;
  KV_ASSERT(group_count <= part.group_counts.size());
  return builder.CreateVector(part.group_counts.data(), group_count);
}

}  // namespace kv
