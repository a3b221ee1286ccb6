// store/node/membership/membership.h: keeps this node on the cluster's list, and reads the other members.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/event.h"
#include "base/text/told_reasons.h"
#include "store/node/membership/cluster_view.h"
#include "store/node/membership/key_store.h"

namespace kv {

struct MembershipConfig {
  Member self;
  std::string prefix = "/kvstore";    ///< Of all keys of this cluster.
  std::chrono::seconds lease{10};     ///< A silent node is off the list after this time. At least 2 s.
  Duration poll = 1s;                 ///< Between two reads of the list.
  std::uint32_t extent_blocks = 256;  ///< For a new cluster; an existing cluster's value wins.
  /// Wall clock, seconds since 1970. Used where a cluster begins in etcd.
  std::function<std::uint64_t()> wall_seconds = {};
};

/// The list is in etcd: PREFIX/nodes/ID is a member (member_text.h), kept by the node's lease; PREFIX/extent_blocks is
/// the owner rule's constant, set by the first node, as is PREFIX/epoch_base. Client requests never wait for it.
///   1. While etcd is away, the list last read stays in force. A list without this node is ignored: either etcd lost
///      the list, or this node was away for longer than its lease, and it registers itself first.
///   2. A later state has a larger epoch, whichever node reports it, and one epoch is one list: it is the sum of the
///      etcd revision at which the state was first read and PREFIX/epoch_base, the time at which the cluster began
///      there. So epochs keep growing for old nodes and clients when etcd is set up anew. An older revision, as from an
///      etcd member that was cut off, is ignored; but if only older ones come for as long as a lease, from an etcd that
///      takes this node's changes, etcd was set back, and each node counts on from its last epoch.
///   3. Of two processes with one id the one that started last is the member. The other notices, gives up and logs it.
///   4. A lease that ended while this process was stopped, or etcd away, is replaced: the node joins again. For one
///      more lease time it ignores lists that lack a known node, whose lease may have ended likewise; also after etcd
///      was away for as long as another's lease may take to end, even if this node's own lasted.
///   5. Reads do not depend on writes: etcd may refuse these alone (out of space, no right to write), and the list goes
///   on
///      being read. What etcd refuses is tried again in each step.
/// Nodes never touch another node's blocks because of this list. It tells clients where to look, and blocks are named
/// by content, so an old list, or one that differs between two nodes, costs misses only.
/// Thread safety: none; on one executor. status() and the board: any thread.
class Membership {
 public:
  Membership(asio::any_io_executor executor, KeyStore& keys, Clock& clock, ClusterBoard& board,
             MembershipConfig config);

  /// Maintains the list until stop(); returns at most one call of the key store later.
  asio::awaitable<void> run();
  void tell(Member::State state, Member::Phase phase);  ///< Publishes this node's state and phase.
  void stop();  ///< run() gives up the lease and returns: the node is off the list.

  struct Status {
    bool is_reachable = false;      ///< The last read succeeded.
    bool is_writable = true;        ///< No change of this node waits for an etcd that refuses it.
    bool is_joined = false;         ///< This node was on the list at the last read.
    bool is_replaced = false;       ///< 3
    std::uint64_t failures = 0;     ///< Of calls to etcd.
    std::uint64_t joins = 0;        ///< Leases: 1, and one more for each that ended.
    std::uint64_t bad_entries = 0;  ///< Counted at each read of the list.
  };
  Status status() const;
  /// Why etcd takes no change of this node; empty: it does. Any thread.
  std::string why_not_written() const;

 private:
  using Step = KeyStore::Reply<bool>;
  struct Stepped {
    Result<bool, Failure> written, read;
  };
  asio::awaitable<void> step(Stepped& to);
  Step keep_lease();
  Step announce();
  void adopt(const KeyStore::Listing& listing, bool is_written);
  bool is_coming_back(const ClusterView& known, const ClusterView& view) const;
  std::uint64_t epoch_base() const;
  void note(const Stepped& stepped);
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
  TimePoint rejoined_{};       ///< When a lease last replaced one that had ended.
  TimePoint failing_since_{};  ///< TimePoint{}: the last step succeeded.
  TimePoint came_back_{};      ///< When etcd last answered after a time in which leases may have ended.
  bool must_put_ = true, has_constant_ = false, stops_ = false;
  std::string last_bad_;         ///< Equal bad entries in a row are logged once.
  ToldReasons told_;             ///< Of failed reads and writes.
  std::uint64_t revision_ = 0;   ///< The latest read.
  std::size_t older_count_ = 0;  ///< Older revisions read in a row.

  mutable std::mutex mutex_;
  std::string why_not_written_;  ///< By mutex_.
  std::atomic<bool> is_reachable_{false}, is_joined_{false}, is_replaced_{false};
  std::atomic<std::uint64_t> failures_{0}, joins_{0}, bad_entries_{0};
};

}  // namespace kv
