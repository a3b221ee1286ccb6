// store/node/membership/membership.h: keeps this node on the cluster's list, and knows who else is on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/event.h"
#include "store/node/membership/cluster_view.h"
#include "store/node/membership/key_store.h"

namespace kv {

struct MembershipConfig {
  Member self;
  std::string prefix = "/kvstore";    ///< Of all keys of this cluster.
  std::chrono::seconds lease{10};     ///< A node that says nothing for so long is off the list. At least 2 s.
  Duration poll = 1s;                 ///< Between two looks at the list.
  std::uint32_t extent_blocks = 256;  ///< For a cluster that has none yet; else the cluster's counts.
  /// Of the clock on the wall, since 1970. Looked at where a cluster begins in etcd.
  std::function<std::uint64_t()> wall_seconds = {};
};

/// The list is in etcd: PREFIX/nodes/ID is a member (member_text.h), kept by the node's lease; PREFIX/extent_blocks is
/// the owner rule's constant, set by the first node, as is PREFIX/epoch_base. No request waits for any of it.
///   1. What was heard last stays in force while etcd is away. A list without this node is not taken: then etcd has
///      lost the list, or this node was away for longer than its lease, and it puts itself there first.
///   2. A later state has a larger epoch, whichever nodes tell them, and one epoch is one list: it is the revision of
///      etcd at which the state was first read, and PREFIX/epoch_base, the time at which the cluster began there. So
///      where etcd is made anew epochs go on, for nodes and clients of before. An older revision is not taken, as a
///      member of etcd has it that was cut off; but if nothing else comes for as long as a lease, etcd was set back,
///      and each node counts on from where it was.
///   3. Of two processes with one id the one that started last is the member. The other learns of it, gives its place
///      up and says so.
///   4. A lease that ended while this process was stopped, or etcd away, is replaced: the node joins anew. For one
///      lease more no list is taken that lacks a node known until then: its lease may have ended likewise.
///      Nor where etcd was away for as long as another's lease may take to end, though this node's own has not.
/// No node does anything with another's blocks because of this list. It tells clients where to look, and blocks are
/// named by content, so that a list that is old, or differs between two nodes, costs misses.
/// Thread safety: none; on one executor. status() and the board: any thread.
class Membership {
 public:
  Membership(asio::any_io_executor executor, KeyStore& keys, Clock& clock, ClusterBoard& board,
             MembershipConfig config);

  /// Looks after the list until stop(), which it outlasts by one call of the key store at most.
  asio::awaitable<void> run();
  void tell(Member::State state, Member::Phase phase);  ///< To all: what this node is about.
  void stop();  ///< run() gives up the lease and returns: the node is off the list.

  struct Status {
    bool is_reachable = false;      ///< The last try succeeded.
    bool is_joined = false;         ///< This node was on the list when that was last read.
    bool is_replaced = false;       ///< 3
    std::uint64_t failures = 0;     ///< Of calls to etcd.
    std::uint64_t joins = 0;        ///< Leases: 1, and one more for each that ended.
    std::uint64_t bad_entries = 0;  ///< Left out, each time the list was read.
  };
  Status status() const;

 private:
  using Step = KeyStore::Reply<bool>;
  Step step();
  asio::awaitable<void> step_into(Result<bool, Failure>& to);
  Step keep_lease();
  Step announce();
  void adopt(const KeyStore::Listing& listing);
  bool is_coming_back(const ClusterView& known, const ClusterView& view) const;
  std::uint64_t epoch_base() const;
  void note(const Result<bool, Failure>& stepped);
  asio::awaitable<void> pause();
  std::string node_key() const { return config_.prefix + "/nodes/" + config_.self.id; }

  KeyStore& keys_;
  Clock& clock_;
  ClusterBoard& board_;
  MembershipConfig config_;
  Event wake_;
  std::unique_ptr<Alarm> alarm_;
  KeyStore::Lease lease_ = 0;
  TimePoint kept_{};           ///< When the lease was last known to run.
  TimePoint rejoined_{};       ///< When a lease last took the place of one that had ended.
  TimePoint failing_since_{};  ///< TimePoint{}: the last step went well.
  TimePoint came_back_{};      ///< When etcd last answered after so long that leases may have ended meanwhile.
  bool must_put_ = true, has_constant_ = false, stops_ = false;
  std::string last_bad_;         ///< Each bad entry is told once in a row.
  std::uint64_t revision_ = 0;   ///< The latest that was read.
  std::size_t older_count_ = 0;  ///< Reads in a row that were older.

  std::atomic<bool> is_reachable_{false}, is_joined_{false}, is_replaced_{false};
  std::atomic<std::uint64_t> failures_{0}, joins_{0}, bad_entries_{0};
};

}  // namespace kv
