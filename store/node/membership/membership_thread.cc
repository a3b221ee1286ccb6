#include "store/node/membership/membership_thread.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "store/node/threads/thread_border.h"

namespace kv {

MembershipThread::MembershipThread(EtcdConfig etcd, MembershipConfig config, Clock& clock, ClusterBoard& board)
    : board_(board),
      keys_(context_.get_executor(), std::move(etcd)),
      membership_(context_.get_executor(), keys_, clock, board, std::move(config)) {
  asio::co_spawn(context_, membership_.run(), BorderOf{NodeThread::kMembership});
  thread_ = std::thread([this] { run_within_border(NodeThread::kMembership, context_); });
}

MembershipThread::~MembershipThread() {
  asio::post(context_, [this] { membership_.stop(); });
  thread_.join();
}

void MembershipThread::tell(Member::State state, Member::Phase phase) {
  asio::post(context_, [this, state, phase] { membership_.tell(state, phase); });
}

std::vector<NodeMetrics::Value> MembershipThread::stats() const {
  const Membership::Status status = membership_.status();
  const auto view = board_.view();
  const auto serving = std::ranges::count(view->members, Member::State::kServing, &Member::state);
  return {
      {"cluster_epoch", view->epoch, false, "Epoch of the cluster map that this node tells; 0: none yet"},
      {"cluster_members", view->members.size(), false, "Nodes on that map"},
      {"cluster_members_serving", serving, false, "Of them: that take new blocks"},
      {"cluster_etcd_is_reachable", status.is_reachable, false, "Whether etcd answered the last time"},
      {"cluster_etcd_is_writable", status.is_writable, false,
       "0: etcd answers and refuses this node's changes: the log has the reason"},
      {"cluster_etcd_failures", status.failures, true, "Rounds of calls to etcd that failed"},
      {"cluster_joins", status.joins, true, "Leases: one, and one more for each that ended"},
      {"cluster_is_replaced", status.is_replaced, false, "1: another process has this node's id"},
      {"cluster_bad_entries", status.bad_entries, true, "Entries in etcd that were left out, counted at each look"},
  };
}

}  // namespace kv
