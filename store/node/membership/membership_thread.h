// store/node/membership/membership_thread.h: membership at work in a daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <thread>
#include <vector>

#include "store/node/membership/etcd.h"
#include "store/node/membership/membership.h"
#include "store/node/metrics.h"

namespace kv {

/// Membership on etcd, on a thread of its own: a node whose I/O threads are busy keeps its lease, and an etcd that
/// hangs holds up nobody. Thread safety: one thread makes and destroys it; the rest from any.
class MembershipThread {
 public:
  MembershipThread(EtcdConfig etcd, MembershipConfig config, Clock& clock, ClusterBoard& board);
  ~MembershipThread();  ///< Leaves the cluster, within two requests to etcd.

  void tell(Member::State state, Member::Phase phase);  ///< As Membership. Any thread.
  Membership::Status status() const { return membership_.status(); }
  std::vector<NodeMetrics::Value> stats() const;

 private:
  asio::io_context context_{1};
  const ClusterBoard& board_;
  EtcdKeyStore keys_;
  Membership membership_;
  std::thread thread_;
};

}  // namespace kv
