// client/hot/hot_sets.h: which blocks the nodes take for hot, and where a chain lies therefore.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "index/block_hash.h"

namespace kv {

/// A block is hot if a node says so (store/node/hot_roots.h): what any of them says counts until it says otherwise, so
/// clients that ask the same nodes agree before long. Until then they place a chain differently, which costs misses.
///   1. A chain's hot root is its leading hot blocks.
///   2. For kChangeTime after a change a chain that it concerns has another place as well: where it lay before. What
///      the first answer of a node says is no change where this client has just begun: nobody knows how long it has
///      been so. Of one that comes later it is: until then this client placed chains without it, and so did others.
///   3. What is kept is bounded: of a node, kBlocksPerNodeMax blocks over all spaces; what would be more counts for
///   none.
/// Nothing of this can make a hit wrong: it decides whom to ask, never what an answer is.
/// Thread safety: none; on the client's executor. Cost of roots(): one search for each hot block of the chain.
class HotSets {
 public:
  static constexpr Duration kChangeTime = 5min;
  static constexpr Duration kMeetTime = 2s;  ///< Within which all nodes answer whom a client begins with.
  static constexpr std::size_t kBlocksPerNodeMax = 4 * 4096;
  static constexpr std::size_t kFoundMax = 1024;

  explicit HotSets(std::size_t node_count) : kept_counts_(node_count) {}

  /// True once for each space: then every node is to be asked. Else a client whose chains all lie, without their roots,
  /// on a node that is away would never hear of them.
  bool meet(std::uint32_t space);
  /// An answer of `node` named this version. True: another one than is known, so the node is to be asked for its
  /// blocks.
  bool hear(std::uint32_t space, std::size_t node, std::uint64_t version, TimePoint now);
  /// What it said then. The version is believed, whatever the blocks.
  void learn(std::uint32_t space, std::size_t node, std::uint64_t version, std::span<const BlockHash> blocks,
             TimePoint now);

  /// How many blocks a chain's hot root has.
  struct Roots {
    std::size_t now = 0;
    std::optional<std::size_t> before;  ///< 2: another number.
  };
  Roots roots(std::uint32_t space, std::span<const BlockHash> chain, TimePoint now) const;
  std::vector<BlockHash> hot_blocks(std::uint32_t space) const;  ///< That any node takes for hot, in no order.

  void add_node() { kept_counts_.push_back(0); }
  /// It has left: what it said counts no more. Whoever has its number next begins anew.
  void forget_node(std::size_t node, TimePoint now);

  /// Where a prefix was found.
  struct Place {
    std::size_t hot_blocks = 0;                      ///< Of the root behind which it lies.
    std::optional<std::size_t> node = std::nullopt;  ///< That has its beginning. Of what lies in a root, any may.
  };
  /// Of a prefix that ends with `last`. The latest kFoundMax are known.
  void found(std::uint32_t space, const BlockHash& last, Place place);
  /// It was put or dropped since: found() says nothing any more.
  void forget(const BlockHash& last);
  void forget_places();  ///< All of them: the owner rule has changed.
  /// Where to get `chain`: where it was found, if that is known.
  Place place_of(std::uint32_t space, std::span<const BlockHash> chain, TimePoint now) const;

  std::size_t kept_block_count() const;  ///< Entries, hot or not any more.

 private:
  struct Hash {
    std::size_t operator()(const BlockHash& hash) const { return static_cast<std::size_t>(short_hash(hash)); }
  };
  struct Block {
    std::uint32_t node_count = 0;  ///< That say that it is hot.
    std::uint64_t change = 0;      ///< The latest by which it became hot, or ceased to be. 0: it always was, for us.
    TimePoint changed{};
  };
  struct NodeWord {
    bool was_heard = false;
    std::uint64_t version = 0;
    std::vector<BlockHash> blocks;
  };
  struct SpaceSet {
    bool was_met = false;
    std::unordered_map<BlockHash, Block, Hash> blocks;
    std::vector<NodeWord> nodes;
    TimePoint first_heard{};  ///< Of any node.
  };
  struct Found {
    std::uint32_t space;
    BlockHash last;
    Place place;
  };
  SpaceSet& heard(std::uint32_t space, std::size_t node, TimePoint now);  ///< The node has said something of it.
  void take_word(SpaceSet& set, std::size_t node, std::vector<BlockHash> blocks, bool is_change, TimePoint now);

  std::vector<std::size_t> kept_counts_;  ///< By node: blocks of its words.
  std::map<std::uint32_t, SpaceSet> spaces_;
  std::uint64_t last_change_ = 0;
  std::unordered_map<BlockHash, std::size_t, Hash> found_index_;  ///< Into found_, by last block.
  std::vector<Found> found_;                                      ///< A ring.
  std::size_t found_next_ = 0;
};

}  // namespace kv
