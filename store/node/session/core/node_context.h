// store/node/session/core/node_context.h: state shared by all sessions of a node.
#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/node/access/access.h"
#include "store/node/access/security.h"
#include "store/node/disk_worker/disk_worker.h"
#include "store/node/hot_roots.h"
#include "store/node/locked_store.h"
#include "store/node/log/log_limit.h"
#include "store/node/log/slow_log.h"
#include "store/node/membership/cluster_view.h"
#include "store/node/membership/exchange_board.h"
#include "store/node/membership/move_board.h"
#include "store/node/metrics.h"
#include "store/node/session/core/admin_part.h"
#include "store/node/session/core/session_limits.h"
#include "store/node/session/tables/lent_regions.h"
#include "store/node/session/tables/space_handles.h"
#include "store/node/session/tables/table_budget.h"

namespace kv {

class TenantEraser;
class VerbsNode;

/// Outlives the sessions.
struct NodeContext {
  LockedStore& store;
  Clock& clock;
  NodeMetrics& metrics;
  LiveLimits limits;
  std::uint32_t chain_blocks_max = 65536;
  Duration lease_duration = 10s;
  std::string node_id;    ///< For people: the same in every life.
  InstanceId instance{};  ///< Of this life.
  TimePoint started{};
  std::atomic<bool> draining{false};
  DiskWorker* disk_worker = nullptr;       ///< nullptr: without a disk tier.
  std::atomic<VerbsNode*> verbs{nullptr};  ///< nullptr: without RDMA, so far.
  LogLimit log;
  std::unique_ptr<LentRegions> lent = std::make_unique<LentRegions>();
  /// Memory of sessions for received requests, for transfers in flight, and for answers not yet taken: each of the
  /// three has a bound for the whole node, since thousands of sessions at their own bounds would be too much.
  std::unique_ptr<TableBudget> tables = std::make_unique<TableBudget>();
  std::unique_ptr<TableBudget> requests = std::make_unique<TableBudget>();
  std::uint64_t queued_bytes_max = TableBudget::kBytesMaxLeast;
  std::atomic<std::uint64_t> queued_bytes{0};
  std::unique_ptr<HotRoots> hot_roots = std::make_unique<HotRoots>();
  ClusterBoard cluster{};            ///< Epoch 0 outside a cluster.
  NodeSecurity* security = nullptr;  ///< nullptr: unused by all listeners.
  AccessControl* access = nullptr;   ///< nullptr: all peers have all rights.
  TenantEraser* eraser = nullptr;    ///< nullptr: erasing by tenant is off.
  MoveBoard moves{};
  std::vector<std::pair<std::string, double>> settings{};  ///< Should be equal on all nodes of a cluster.
  ExchangeBoard exchange{};
  SlowLog slow{SlowLogConfig{.threshold = Duration::zero()}};  ///< Off until it is configured.
  /// Answer further questions of people and tools, by the first word of the path: "/status", "/config", "/events".
  /// Filled before the first session.
  std::map<std::string, AdminPart, std::less<>> admin_parts{};
  std::unique_ptr<boost::asio::thread_pool> aside{};  ///< Makes slow answers; nullptr: they are refused on the wire.
};

}  // namespace kv
