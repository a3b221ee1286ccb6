// client/cluster/map_votes.h: chooses between the maps that nodes report to a client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/types/node_status.h"

namespace kv {

/// A map is a node's report, and a node may lie, be broken, or be cut off from the others. A node's latest report is
/// its vote; voters are the client's own list and the members of the map in force, if they answer. Maps with equal
/// content are equal, whatever their epochs.
///   1. A later map than the one in force is adopted if two voters report it alike; two of the own list come first. Its
///      epoch is one that two of them reach, so that a single node cannot inflate an epoch.
///   2. A single node's answer is believed once all other voters, or at least two, are silent.
///   3. If all reports differ, a map that names more of the answering nodes is preferred to one that names fewer.
///   4. The client returns to an earlier map if two nodes report it alike, at least kSettling after the present one was
///      adopted: two of the own list, unless two of the list report the map in force; or any two, unless two report the
///      map in force. Voters cannot restore a map overruled by the own list while as many of the list report the map in
///      force as report the overruled one. "No map" (epoch 0) is a vote too, valid only from the own list and once
///      it has been reported for kSettling: the client then uses its list.
///   5. A single node's report is enough for a later map that differs only in nodes which the map in force shows as
///      leaving or draining, and which have stopped serving or are gone. A liar gains nothing by it. A node that is
///      gone from the map in force, and reports itself as on its way out, has no vote: it no longer reads the list.
///   6. An epoch that grows by more than kEpochStepMax, or exceeds kEpochMax, is rejected.
/// Thread safety: none. Cost: O(voters), per report.
class MapVotes {
 public:
  static constexpr std::uint64_t kEpochMax = std::uint64_t{1} << 63;
  /// A cluster's epochs begin with seconds times 1,024 and grow more slowly than that: 34 years.
  static constexpr std::uint64_t kEpochStepMax = std::uint64_t{1} << 40;
  static constexpr Duration kSettling = 5s;   ///< Nodes learn of a change within a second or two of each other.
  static constexpr Duration kVoteTime = 60s;  ///< A vote counts for this long.
  static constexpr Duration kSilence = 10s;   ///< A node that did not answer is not a voter for this long.

  struct Voter {
    std::size_t node = 0;  ///< The link's number.
    std::string id;        ///< As the node reports; empty: not reached yet. Links to one node are one voter.
    bool is_own = false;
    bool is_away = false;  ///< It cannot be reached.
  };

  /// Records a node's map. Returns an empty string, or why it is rejected.
  std::string tell(std::size_t node, ClusterStatus map, TimePoint now);
  void silent(std::size_t node, TimePoint now);          ///< It was asked and did not answer.
  void forget(std::size_t node) { votes_.erase(node); }  ///< The number will belong to another node.

  /// The map to adopt, with its epoch; nullptr: keep the one in force. Without an epoch: the own list.
  const ClusterStatus* choose(std::span<const Voter> voters, TimePoint now);
  void took(const ClusterStatus& map, TimePoint now);
  /// Whether the node has reported the map of that epoch, so that asking again is useless.
  bool is_known(std::size_t node, std::uint64_t epoch) const;
  /// The node votes for the map in force, or the own list, with no later epoch.
  bool agrees(std::size_t node) const;
  /// The voter to ask next: one without a vote, else the one with the oldest vote. voters.size(): all are done.
  std::size_t next_to_ask(std::span<const Voter> voters, TimePoint asked_since, TimePoint now) const;

 private:
  struct Vote {
    ClusterStatus map;
    std::uint64_t digest = 0;
    TimePoint begun{}, at{};  ///< The first and the latest of the reports that are alike.
    bool has_map = false;
    TimePoint silent_since = TimePoint::min();
  };
  struct Votes {
    const ClusterStatus* map = nullptr;
    std::vector<std::uint64_t> epochs;
    std::size_t own = 0, count = 0;              ///< Voters: of the own list, and all.
    std::size_t fresh_own = 0, fresh_count = 0;  ///< Votes at least kSettling after the present map's adoption.
    std::size_t named = 0;                       ///< Answering nodes that own something by this map.
    std::uint64_t epoch() const;
  };
  struct Elector {
    const Vote* vote = nullptr;
    bool is_own = false;
  };
  struct Poll {
    std::map<std::string, Elector> electors;  ///< By id. Links to one node are one voter, by its latest vote.
    std::map<std::uint64_t, Votes> counted;   ///< By digest.
    std::size_t unheard = 0, silent_count = 0;
  };
  Poll take_poll(std::span<const Voter> voters, TimePoint now) const;
  const Votes* agreed(const Poll& poll);            ///< 1, 4 and 5.
  const Votes* alone(const Poll& poll) const;       ///< 2.
  const Votes* best_named(const Poll& poll) const;  ///< 3.
  bool is_silent(std::size_t node, TimePoint now) const;
  bool is_later(const Votes& votes) const;
  bool has_left(const std::string& id, const ClusterStatus& map) const;

  std::map<std::size_t, Vote> votes_;  ///< By node.
  ClusterStatus chosen_, in_force_;
  std::uint64_t epoch_ = 0, digest_ = 0;  ///< Of the map in force.
  std::uint64_t overruled_ = 0;           ///< Maps up to this epoch were overruled by the own list.
  TimePoint since_ = TimePoint::min();
};

}  // namespace kv
