// store/node/membership/membership_thread.h: runs membership in a daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <thread>
#include <vector>

#include "store/node/membership/etcd.h"
#include "store/node/membership/membership.h"
#include "store/node/metrics.h"

namespace kv {

/// Membership on etcd, on its own thread: a node with busy I/O threads keeps its lease, and a hanging etcd delays only
/// this thread. Thread safety: one thread makes and destroys it; the rest from any.
class MembershipThread {
 public:
  MembershipThread(EtcdConfig etcd, MembershipConfig config, Clock& clock, ClusterBoard& board);
  ~MembershipThread();  ///< Leaves the cluster, within two requests to etcd.

  void tell(Member::State state, Member::Phase phase);  ///< As in Membership.
  Membership::Status status() const { return membership_.status(); }
  std::string why_not_written() const { return membership_.why_not_written(); }
  std::vector<NodeMetrics::Value> stats() const;

 private:
  asio::io_context context_{1};
  const ClusterBoard& board_;
  EtcdKeyStore keys_;
  Membership membership_;
  std::thread thread_;
};

}  // namespace kv
