// client/hot/hot_sets.h: the hot blocks reported by the nodes, and the resulting place of a chain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "index/block_hash.h"

namespace kv {

/// A block is hot if a node reports it (store/node/hot_roots.h), until that node's next report, so clients that ask the
/// same nodes soon agree. Until then they place a chain differently, which costs misses.
///   1. A chain's hot root is its leading hot blocks.
///   2. For kChangeTime after a change, an affected chain has a second place: its former one. The first report of a
///      node counts as unchanged for a client that has just begun, since the age of its state is unknown. A later first
///      report is a change: until then this client, like others, placed chains without it.
///   3. Memory is bounded: per node, kBlocksPerNodeMax blocks over all spaces; a report beyond that counts as empty.
/// Errors here cannot make a hit wrong: they affect which node is asked, never its answer.
/// Thread safety: none; on the client's executor. Cost of roots(): one search per hot block of the chain.
class HotSets {
 public:
  static constexpr Duration kChangeTime = 5min;
  static constexpr Duration kMeetTime = 2s;  ///< For a new client, all nodes answer within this time.
  static constexpr std::size_t kBlocksPerNodeMax = 4 * 4096;
  static constexpr std::size_t kFoundMax = 1024;

  explicit HotSets(std::size_t node_count) : kept_counts_(node_count) {}

  /// True once for each space: then ask every node. Otherwise a client whose chains, taken without roots, all lie on
  /// a node that is away would never learn the roots.
  bool meet(std::uint32_t space);
  /// A node's answer gave this version. True: it differs from the known one, so ask the node for its blocks.
  bool hear(std::uint32_t space, std::size_t node, std::uint64_t version, TimePoint now);
  /// The node's reported blocks. The version counts as known, even for a report that counts as empty.
  void learn(std::uint32_t space, std::size_t node, std::uint64_t version, Hashes blocks, TimePoint now);

  /// Number of blocks in a chain's hot root.
  struct Roots {
    std::size_t now = 0;
    std::optional<std::size_t> before;  ///< 2: if different.
  };
  Roots roots(std::uint32_t space, Hashes chain, TimePoint now) const;
  /// Of all nodes, unordered; without those that the node `unless` alone reports.
  std::vector<BlockHash> hot_blocks(std::uint32_t space, std::optional<std::size_t> unless = std::nullopt) const;

  void add_node() { kept_counts_.push_back(0); }
  /// The node has left: its reports no longer count. A later node with its number starts afresh.
  void forget_node(std::size_t node, TimePoint now);

  struct Place {
    std::size_t hot_blocks = 0;                      ///< Size of the root before it.
    std::optional<std::size_t> node = std::nullopt;  ///< The holder of its beginning; for a root alone, any.
  };
  /// Records the place of a prefix that ends with `last`; the latest kFoundMax are kept.
  void found(std::uint32_t space, const BlockHash& last, Place place);
  /// The prefix was put or dropped since: discards its place.
  void forget(const BlockHash& last);
  void forget_places();  ///< The owner rule has changed.
  /// The place to get `chain` from: its recorded one, if any.
  Place place_of(std::uint32_t space, Hashes chain, TimePoint now) const;

 private:
  struct Hash {
    std::size_t operator()(const BlockHash& hash) const { return static_cast<std::size_t>(short_hash(hash)); }
  };
  struct Block {
    std::uint32_t node_count = 0;  ///< Nodes that report it hot.
    std::uint64_t change = 0;      ///< Its latest change to or from hot. 0: always hot, for this client.
    TimePoint changed{};
  };
  struct NodeWord {
    bool was_heard = false;
    std::uint64_t version = 0;
    std::vector<BlockHash> blocks;  ///< Sorted.
  };
  struct SpaceSet {
    bool was_met = false;
    std::unordered_map<BlockHash, Block, Hash> blocks;
    std::vector<NodeWord> nodes;
    TimePoint first_heard{};
  };
  struct Found {
    std::uint32_t space;
    BlockHash last;
    Place place;
  };
  SpaceSet& heard(std::uint32_t space, std::size_t node, TimePoint now);
  void take_word(SpaceSet& set, std::size_t node, std::vector<BlockHash> blocks, bool is_change, TimePoint now);

  std::vector<std::size_t> kept_counts_;  ///< By node: blocks of its reports.
  std::map<std::uint32_t, SpaceSet> spaces_;
  std::uint64_t last_change_ = 0;
  std::unordered_map<BlockHash, std::size_t, Hash> found_index_;  ///< Into found_, by last block.
  std::vector<Found> found_;                                      ///< A ring.
  std::size_t found_next_ = 0;
};

}  // namespace kv
