// client/core/client_core.h: the state shared by a client's calls (client/calls, client/client.cc): its nodes, their
// map, and where a chain lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/assert.h"
#include "client/cluster/cluster_map.h"
#include "client/cluster/cluster_map_call.h"
#include "client/cluster/map_votes.h"
#include "client/core/client_leases.h"
#include "client/core/owned_chain.h"
#include "client/hedge/hedger.h"
#include "client/hot/hot_roots_call.h"
#include "client/hot/hot_sets.h"
#include "client/hot/known_chains.h"
#include "client/link/lifeline.h"
#include "client/link/request_parts.h"
#include "client/link/session/node_link.h"
#include "client/types/call_types.h"
#include "client/types/client_config.h"
#include "client/types/node_status.h"

namespace kv {

struct ClientCore {
  ClientCore(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock,
             verbs::Provider* verbs);
  ~ClientCore();

  const ClientShared::SpaceInfo* find_space(Space space) const;
  /// Checks before a call begins: kBadRequest, kCancelled or kBusy.
  error_code refuses(std::chrono::microseconds deadline, const CallControl& control) const;
  error_code refuses(Space space, std::chrono::microseconds deadline, const CallControl& control) const;
  TimePoint deadline_after(std::chrono::microseconds deadline) const { return shared->clock.now() + deadline; }
  /// Splits by kind: a chain at its place behind its hot root.
  std::vector<OwnedChain> split(Space space, Hashes hashes) const;
  /// For a chain: at the place found by a match, else at its present place.
  std::vector<OwnedChain> split_found(Space space, Hashes hashes);
  /// For a chain, or a set's blocks: every place of a copy, also those from before a change of the map. Several for
  /// one node, if a copy may lie there in different parts.
  std::vector<OwnedChain> split_copies(Space space, Hashes hashes) const;
  bool has_hot_roots() const { return map->node_count() > 1; }
  /// The map for lookups and puts now: without the nodes that do not answer, which it probes. Others stand in for
  /// those as if they had left, so every client that sees the same nodes finds the same owners.
  std::shared_ptr<const ClusterMap> reachable_map();
  HotSets::Roots hot_roots(Space space, Hashes chain) const;
  /// Asks all nodes for their hot roots, once per space.
  void meet_hot_roots(Space space);
  void ask_hot_roots(Space space, std::size_t node, bool at_once);
  /// A node reported this version of its hot roots: fetches their blocks if it is new.
  void hear_hot_version(Space space, std::size_t node, std::uint64_t version);
  /// The node to ask for `chain` if its owner is late: the second node, which also stands in for it. Empty if there
  /// is none or it is away.
  std::optional<std::size_t> second_node(const ClusterMap& on, const OwnedChain& chain) const;
  /// Chooses among equal holders of `block`: one in this client's zone if possible, and by hash, so that each has its
  /// share; unless another one answers much sooner.
  std::size_t nearest(const ClusterMap& on, const BlockHash& block, std::size_t except);
  /// Whether the owner of the block at `position` is replaced by a stand-in.
  bool is_owner_away(Hashes chain, std::size_t position, std::size_t hot_blocks) const;
  /// `bundle` is notified of the end. The call may have ended on return.
  void start(Call& call, std::size_t node, CallBundle& bundle, TimePoint until) {
    call.bundle = &bundle;
    links[node]->start(call, until);
  }
  void start(Call& call, std::size_t node, Space space, CallBundle& bundle, TimePoint until) {
    call.space = static_cast<std::uint32_t>(space);
    start(call, node, bundle, until);
  }
  /// One call to each member, in their order.
  template <class C>
  void start_on_each(std::vector<C>& calls, CallBundle& bundle, TimePoint until) {
    KV_ASSERT(calls.size() == members.size());
    for (std::size_t i = 0; i < calls.size(); ++i) start(calls[i], members[i], bundle, until);
  }
  // The cluster's map (cluster/follow.cc).
  void follow(const NodeLink& node,
              std::uint64_t epoch);  ///< The node has a later map, or a check is due: asks soon.
  std::vector<MapVotes::Voter> map_voters() const;
  void begin_round(std::size_t number, bool is_awaited);
  void ask_for_map(std::size_t number);
  void hear_map(std::size_t number);
  asio::awaitable<void> wait_for_map(TimePoint until);
  void node_failed();
  void adopt(ClusterStatus status);
  void adopt_list();
  std::shared_ptr<const ClusterMap> list_map() const;  ///< Over all numbers; what is not in the list owns nothing.
  void set_link(std::size_t node, const ClusterStatus::Node& member);
  std::shared_ptr<ClientShared> shared;
  /// Nodes are numbered. A number belongs to its node while that is in the cluster; later another node may get it. At
  /// worst, a waiting call then meets a node that does not know its lease, or another node than it chose.
  std::vector<std::unique_ptr<NodeLink>> links;  ///< By number. A node that left keeps its link until then.
  std::vector<std::size_t> members;              ///< The numbers of the cluster's, or the list's, nodes.
  std::shared_ptr<const ClusterMap> map;         ///< Over all numbers. Waiting calls hold the map they began with.
  /// The last result of reachable_map().
  struct {
    std::shared_ptr<const ClusterMap> whole, rest;
    std::vector<std::size_t> away;
  } reachable;
  ClusterStatus cluster;
  ClusterMapCall map_call;
  MapVotes votes;
  bool is_map_asked = false;    ///< Nodes are being asked for their maps; map_event signals the end.
  bool is_map_awaited = false;  ///< Calls that need the map wait for that end.
  TimePoint round_began{}, next_round{};
  std::size_t round_count = 0;  ///< Nodes asked in this round.
  Event map_event;
  TimePoint next_question{};  ///< Earliest time for a question caused by a failure.
  std::size_t question_count = 0;
  ClientLeases leases;
  HotSets hot_sets;
  Hedger hedger;  ///< Nodes by number.
  KnownChains known_chains;
  std::vector<std::unique_ptr<HotRootsCall>> hot_calls;  ///< By node. They end with the links.
  Lifeline lifeline;                                     ///< For work posted on the executor.
};

/// Counts a call in progress. Holds the shared part, since a coroutine may be destroyed after its client.
class CallInProgress {
 public:
  explicit CallInProgress(const std::shared_ptr<ClientShared>& shared) : shared_(shared) { ++shared_->call_count; }
  /// For a call with metrics, recorded by done().
  CallInProgress(const std::shared_ptr<ClientShared>& shared, FrameType call)
      : shared_(shared), call_(call), began_(shared->clock.now()) {
    ++shared_->call_count;
  }
  ~CallInProgress() { --shared_->call_count; }
  void done(error_code why) const { shared_->metrics.ended(call_, shared_->clock.now() - began_, why); }
  CallInProgress(const CallInProgress&) = delete;
  CallInProgress& operator=(const CallInProgress&) = delete;

 private:
  std::shared_ptr<ClientShared> shared_;
  FrameType call_{};
  TimePoint began_{};
};

}  // namespace kv
