// client/cluster/map_votes.h: which of the maps that nodes tell a client goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/client.h"

namespace kv {

/// A map is a node's word, and a node may lie, be broken, or be cut off from the others. What a node tells is its vote,
/// its last one counts, and the voters are the client's own list and the members of the map in force, as far as they
/// answer. Maps are equal that say the same, whatever their epochs.
///   1. A map is taken up that is later than the one in force and that two of the own list, or two members, tell alike.
///      Its epoch is the one that two of them reach, so that no node alone makes an epoch great.
///   2. One node alone is believed where no other answers: there is no other, or two that were asked did not.
///   3. Where no two tell the same, a map that names more of those who answer is preferred to one that names fewer.
///   4. An epoch goes back where a majority tells an earlier one: two tell alike, kSettling after the map was taken up
///      or later, what hardly anybody else contradicts: of the own list, unless two of that tell the map in force; of
///      the members, unless two in all do. What the own list has overruled does not come again by members alone.
///      "No map" (epoch 0) is a vote like another, of the own list alone: then the client goes by its list.
///   5. A step of an epoch by more than kEpochStepMax is nonsense, and so is one beyond kEpochMax.
/// Thread safety: none. Cost: O(voters), when a node has told something.
class MapVotes {
 public:
  static constexpr std::uint64_t kEpochMax = std::uint64_t{1} << 63;
  /// A cluster's epochs begin with seconds times 1,024 and grow more slowly than that: 34 years.
  static constexpr std::uint64_t kEpochStepMax = std::uint64_t{1} << 40;
  static constexpr Duration kSettling = 5s;   ///< Nodes hear of a change within a second or two of one another.
  static constexpr Duration kVoteTime = 60s;  ///< A vote counts for so long.
  static constexpr Duration kSilence = 10s;   ///< Who did not answer when asked is no voter for so long.

  struct Voter {
    std::size_t node = 0;  ///< The link's number.
    std::string id;        ///< As the node says; empty: it was not reached yet. Links to one node are one voter.
    bool is_own = false, is_member = false;
    bool is_away = false;  ///< Its breaker is open.
  };

  /// What a node told, asked for its map. Empty, or why it is nonsense.
  std::string tell(std::size_t node, ClusterStatus map, TimePoint now);
  void silent(std::size_t node, TimePoint now);          ///< It was asked and did not answer.
  void forget(std::size_t node) { votes_.erase(node); }  ///< The number is to be another node's.

  /// The map to be taken up, with its epoch; nothing: the one in force stays. One without an epoch: the own list.
  const ClusterStatus* choose(std::span<const Voter> voters, TimePoint now);
  void took(const ClusterStatus& map, TimePoint now);  ///< It is in force.
  /// Whether it has told the map of that epoch: a question would tell nothing new.
  bool is_known(std::size_t node, std::uint64_t epoch) const;
  /// Its vote is for the map in force, or the own list, and of no later epoch.
  bool agrees(std::size_t node) const;
  /// Who of the voters is to be asked next: who did not vote, else whose vote is the oldest. voters.size(): nobody.
  std::size_t next_to_ask(std::span<const Voter> voters, TimePoint asked_since, TimePoint now) const;

 private:
  struct Vote {
    ClusterStatus map;
    std::uint64_t digest = 0;
    TimePoint at{};
    bool has_map = false;
    TimePoint silent_since = TimePoint::min();
  };
  struct Group {
    const ClusterStatus* map = nullptr;
    std::vector<std::uint64_t> epochs;
    std::size_t own = 0, members = 0, count = 0;
    std::size_t fresh_own = 0, fresh_members = 0;  ///< Of votes given kSettling after the map in force was taken up.
    std::size_t named = 0;                         ///< Of those who answer: that own something by this map.
    std::uint64_t epoch() const;
  };
  bool is_silent(std::size_t node, TimePoint now) const;
  bool is_later(const Group& group) const;

  std::map<std::size_t, Vote> votes_;  ///< By node.
  ClusterStatus chosen_;
  std::uint64_t epoch_ = 0, digest_ = 0;  ///< Of the map in force.
  std::uint64_t overruled_ = 0;           ///< Maps up to this epoch were overruled by the own list.
  TimePoint since_ = TimePoint::min();
};

}  // namespace kv
