// client/types/node_status.h: what a client tells of its nodes, and what people and tools ask of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kv {

struct NodeStatus {
  /// peer_transport: "tcp", "tcp+verbs", "tls", "tls+verbs", "unix", "unix+memfd", "sim".
  std::string name, endpoint, node_id, peer_transport;
  std::size_t rdma_lanes = 0;  ///< Queue pairs that are up.
  std::string rdma_text;       ///< Why there is no RDMA, or only some. Empty: not tried yet.
  bool connected = false, breaker_open = false;
  std::uint64_t calls = 0, failures = 0, timeouts = 0, reconnects = 0, breaker_openings = 0;
  std::uint64_t hedges = 0,
                hedge_wins = 0;  ///< Reads sent to another node because this one was late; those answered there.
  error_code last_error;
  std::string last_error_text;
};
/// The members of the cluster, as of one epoch.
struct ClusterStatus {
  std::uint64_t epoch = 0;  ///< 0: a static list, or no map received yet.
  std::size_t extent_blocks = 256;
  struct Node {
    std::string id, zone;
    std::vector<std::string> endpoints;
    double weight = 0;
    bool is_serving = true;   ///< False: new blocks are not placed there.
    bool is_joining = false;  ///< Not serving yet: it is receiving its blocks.
    bool is_leaving = false;  ///< Still serving: it is handing over its blocks.
  };
  std::vector<Node> nodes;  ///< Empty with epoch 0.
  /// A node's weight in the owner rule: 0 while it drains, unless all nodes drain.
  double weight_of(const Node& node) const {
    const auto serves = [](const Node& each) { return each.is_serving; };
    return node.is_serving || std::ranges::none_of(nodes, serves) ? node.weight : 0;
  }
};
/// A question of people and tools; docs/wire.md lists the paths, their queries and answers.
struct NodeQuestion {
  std::string path;        ///< "/stats.json", ...
  std::string query = {};  ///< "name=value&...", percent-encoded.
  std::string node = {};   ///< The only node to ask, by its name or its id in the cluster. Empty: all.
};
struct NodeAnswer {
  std::string name;  ///< As NodeStatus::name.
  error_code error;  ///< Of a node that did not answer, or refused:
  std::string why;   ///< its words, if it did.
  std::string json;  ///< As the node said it: ASCII, and perhaps not JSON. Empty after an error.
};

}  // namespace kv
