#include "client/cluster/map_votes.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <utility>

namespace kv {
namespace {

/// Digest of a map without its epoch: each node reads the same state at its own revision.
std::uint64_t digest_of(const ClusterStatus& map) {
  if (map.epoch == 0) return 0;
  std::vector<std::string> lines;
  for (const ClusterStatus::Node& node : map.nodes) {
    std::string line = node.id + "\n" + node.zone + "\n" + std::to_string(std::bit_cast<std::uint64_t>(node.weight)) +
                       (node.is_serving ? "s" : "d") + (node.is_joining ? "j" : "") + (node.is_leaving ? "l" : "");
    for (const std::string& endpoint : node.endpoints) line += "\n" + endpoint;
    lines.push_back(std::move(line));
  }
  std::ranges::sort(lines);
  std::string text = std::to_string(map.extent_blocks);
  for (const std::string& line : lines) text += "\n\n" + line;
  return std::max<std::uint64_t>(1, XXH3_64bits(text.data(), text.size()));
}

/// Whether `after` is `before`, except for nodes on their way out that have stopped serving or are gone.
bool only_ends_leaving(ClusterStatus before, ClusterStatus after) {
  std::set<std::string> going;
  for (const ClusterStatus::Node& node : before.nodes) {
    if (node.is_leaving || !node.is_serving) going.insert(node.id);
  }
  const auto is_going = [&](const ClusterStatus::Node& node) { return going.contains(node.id); };
  const auto is_back = [&](const ClusterStatus::Node& node) { return is_going(node) && node.is_serving; };
  if (std::ranges::any_of(after.nodes, is_back)) return false;
  std::erase_if(before.nodes, is_going);
  std::erase_if(after.nodes, is_going);
  return !after.nodes.empty() && digest_of(before) == digest_of(after);
}

}  // namespace

std::string MapVotes::tell(std::size_t node, ClusterStatus map, TimePoint now) {
  if (map.epoch > kEpochMax || (epoch_ > 0 && map.epoch > epoch_ + kEpochStepMax)) {
    silent(node, now);
    return "cluster_map: epoch " + std::to_string(map.epoch) + " is beyond all that can follow " +
           std::to_string(epoch_);
  }
  Vote& vote = votes_[node];
  const std::uint64_t digest = digest_of(map);
  const TimePoint begun = vote.has_map && vote.digest == digest ? vote.begun : now;
  vote = {.map = std::move(map),
          .digest = digest,
          .begun = begun,
          .at = now,
          .has_map = true,
          .silent_since = TimePoint::min()};
  return "";
}

void MapVotes::silent(std::size_t node, TimePoint now) { votes_[node].silent_since = now; }

void MapVotes::took(const ClusterStatus& map, TimePoint now) {
  epoch_ = map.epoch;
  in_force_ = map;
  const std::uint64_t digest = digest_of(map);
  if (std::exchange(digest_, digest) != digest) since_ = now;  // else its epoch alone has grown
}

bool MapVotes::is_known(std::size_t node, std::uint64_t epoch) const {
  const auto vote = votes_.find(node);
  return vote != votes_.end() && vote->second.has_map && vote->second.map.epoch == epoch;
}

bool MapVotes::agrees(std::size_t node) const {
  const auto vote = votes_.find(node);
  return vote != votes_.end() && vote->second.has_map && vote->second.digest == digest_ &&
         vote->second.map.epoch <= epoch_;
}

/// The largest epoch reached by two of them.
std::uint64_t MapVotes::Votes::epoch() const {
  auto sorted = epochs;
  std::ranges::sort(sorted, std::ranges::greater());
  return sorted.size() > 1 ? sorted[1] : sorted.front();
}

bool MapVotes::is_silent(std::size_t node, TimePoint now) const {
  const auto vote = votes_.find(node);
  return vote != votes_.end() && vote->second.silent_since != TimePoint::min() &&
         now - vote->second.silent_since <= kSilence;
}

bool MapVotes::is_later(const Votes& votes) const { return votes.map->epoch > 0 && votes.epoch() > epoch_; }

bool MapVotes::has_left(const std::string& id, const ClusterStatus& map) const {
  const auto own = std::ranges::find(map.nodes, id, &ClusterStatus::Node::id);
  const bool is_going = own != map.nodes.end() && (own->is_leaving || !own->is_serving);
  return is_going && epoch_ > 0 &&
         std::ranges::find(in_force_.nodes, id, &ClusterStatus::Node::id) == in_force_.nodes.end();
}

MapVotes::Poll MapVotes::take_poll(std::span<const Voter> voters, TimePoint now) const {
  Poll poll;
  for (const Voter& voter : voters) {
    if (voter.is_away || is_silent(voter.node, now)) {
      ++poll.silent_count;
      continue;
    }
    const auto found = votes_.find(voter.node);
    const bool has_voted = found != votes_.end() && found->second.has_map && now - found->second.at <= kVoteTime;
    if (!has_voted) {
      ++poll.unheard;
      continue;
    }
    if (has_left(voter.id, found->second.map)) continue;
    Elector& elector = poll.electors[voter.id.empty() ? " " + std::to_string(voter.node) : voter.id];
    if (elector.vote == nullptr || elector.vote->at < found->second.at) elector.vote = &found->second;
    elector.is_own |= voter.is_own;
  }
  for (const auto& [id, elector] : poll.electors) {
    Votes& votes = poll.counted[elector.vote->digest];
    // A node that has just started has not read the list yet: it says "no map" for a second or two.
    const bool is_starting = elector.vote->digest == 0 && elector.vote->at < elector.vote->begun + kSettling;
    const bool is_fresh = !is_starting && elector.vote->at >= since_ + kSettling;
    if (votes.map == nullptr) votes.map = &elector.vote->map;
    votes.epochs.push_back(elector.vote->map.epoch);
    ++votes.count;
    votes.own += elector.is_own;
    votes.fresh_own += elector.is_own && is_fresh;
    votes.fresh_count += is_fresh;
  }
  for (auto& [digest, votes] : poll.counted) {
    for (const ClusterStatus::Node& node : votes.map->nodes)
      votes.named += votes.map->weight_of(node) > 0 && poll.electors.contains(node.id);
  }
  return poll;
}

const MapVotes::Votes* MapVotes::agreed(const Poll& poll) {
  const auto& counted = poll.counted;
  const auto in_force = counted.find(digest_);
  const std::size_t own_in_force = in_force == counted.end() ? 0 : in_force->second.own;
  const std::size_t count_in_force = in_force == counted.end() ? 0 : in_force->second.count;
  const Votes* best = nullptr;
  const auto take_where = [&](auto is_wanted) {
    if (best != nullptr) return;
    for (const auto& [digest, votes] : counted) {
      if (is_wanted(digest, votes) && (best == nullptr || votes.epoch() > best->epoch())) best = &votes;
    }
  };
  // The map in force may win too: its epoch then follows its voters.
  take_where([&](std::uint64_t, const Votes& votes) { return is_later(votes) && votes.own >= 2; });  // 1
  take_where([&](std::uint64_t digest, const Votes& votes) {                                         // 4
    return digest != digest_ && !is_later(votes) && votes.fresh_own >= 2 && own_in_force < 2;
  });
  if (best != nullptr && !is_later(*best)) {
    overruled_ = std::max(overruled_, epoch_);
    if (in_force != counted.end()) overruled_ = std::max(overruled_, std::ranges::max(in_force->second.epochs));
  }
  take_where([&](std::uint64_t, const Votes& votes) {  // 1
    const bool is_overruled = votes.epoch() <= overruled_ && own_in_force > 0 && own_in_force >= votes.own;
    return is_later(votes) && votes.count >= 2 && !is_overruled;
  });
  take_where([&](std::uint64_t digest, const Votes& votes) {  // 4
    const bool is_earlier = digest != digest_ && votes.map->epoch > 0 && !is_later(votes);
    return is_earlier && votes.fresh_count >= 2 && count_in_force < 2;
  });
  constexpr std::uint64_t kStepsMax = 1000;                   // each change of a cluster is one
  take_where([&](std::uint64_t digest, const Votes& votes) {  // 5; the epoch of the map in force needs two (1)
    return digest != digest_ && is_later(votes) && votes.epoch() > overruled_ && votes.epoch() <= epoch_ + kStepsMax &&
           only_ends_leaving(in_force_, *votes.map);
  });
  return best;
}

const MapVotes::Votes* MapVotes::alone(const Poll& poll) const {
  if (poll.electors.size() != 1 || (poll.unheard > 0 && poll.silent_count < 2)) return nullptr;
  const auto& [digest, votes] = *poll.counted.begin();
  const bool is_fresh = votes.fresh_count > 0;
  return is_later(votes) || (digest != digest_ && votes.map->epoch > 0 && is_fresh) ? &votes : nullptr;
}

const MapVotes::Votes* MapVotes::best_named(const Poll& poll) const {
  const auto& counted = poll.counted;
  const bool is_split =
      poll.electors.size() > 1 && std::ranges::all_of(counted, [](const auto& each) { return each.second.count == 1; });
  if (!is_split || poll.unheard > 0) return nullptr;
  const Votes* best = nullptr;
  const auto in_force = counted.find(digest_);
  std::size_t most = in_force == counted.end() ? 0 : in_force->second.named;
  if (epoch_ == 0) most = poll.electors.size();
  for (const auto& [digest, votes] : counted) {
    if (digest == digest_ || votes.map->epoch == 0 || votes.named <= most) continue;
    if (!is_later(votes) && votes.fresh_count == 0) continue;  // the node may not have looked yet
    most = votes.named;
    best = &votes;
  }
  // All report a cluster and none is in force: any of their maps is an improvement.
  const bool all_know = std::ranges::all_of(counted, [](const auto& each) { return each.first != 0; });
  if (best == nullptr && epoch_ == 0 && all_know) {
    best = &std::ranges::max_element(counted, {}, [](const auto& each) {
              return std::pair(each.second.named, each.second.epoch());
            })->second;
  }
  return best;
}

const ClusterStatus* MapVotes::choose(std::span<const Voter> voters, TimePoint now) {
  const Poll poll = take_poll(voters, now);
  const Votes* best = agreed(poll);
  if (best == nullptr) best = alone(poll);
  if (best == nullptr) best = best_named(poll);
  if (best == nullptr) return nullptr;
  chosen_ = *best->map;
  chosen_.epoch = best->epoch();
  return &chosen_;
}

std::size_t MapVotes::next_to_ask(std::span<const Voter> voters, TimePoint asked_since, TimePoint now) const {
  std::size_t next = voters.size();
  TimePoint oldest = TimePoint::max();
  for (std::size_t i = 0; i < voters.size(); ++i) {
    if (is_silent(voters[i].node, now)) continue;  // asking nodes that are away rediscovers them
    const auto vote = votes_.find(voters[i].node);
    const TimePoint at = vote == votes_.end() || !vote->second.has_map ? TimePoint::min() : vote->second.at;
    if (at != TimePoint::min() && at >= asked_since) continue;  // in this round
    if (at < oldest) {
      oldest = at;
      next = i;
    }
  }
  return next;
}

}  // namespace kv
