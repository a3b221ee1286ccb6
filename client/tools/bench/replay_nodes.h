// client/tools/bench/replay_nodes.h: what a replay does with several nodes: it plays the death of one, and tells each
// one's share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "client/tools/tool_client.h"

namespace kv {

/// The replay stops talking to a node before request `request`, as if it had died with all it holds. It stays in the
/// list of nodes, so nobody's blocks move: the time until a new map is played. The node itself is not touched.
struct PlayedDeath {
  std::size_t node = 0;  ///< Index into the endpoints.
  std::size_t request = 0;
};
/// Of "NODE@N": NODE is an index into `endpoints`, or one of them. Throws CLI::ValidationError.
std::optional<PlayedDeath> parse_death(const std::string& text, const std::vector<std::string>& endpoints,
                                       std::size_t request_count);

/// Requests looked at on their own: "FIRST" or "FIRST+COUNT".
struct RequestWindow {
  std::size_t first = 0, count = 200;
  bool begins_at(std::size_t request) const { return request == first; }
  bool ends_at(std::size_t request) const { return request == first + count; }
};
/// Throws CLI::ValidationError, also when the trace ends before the window does.
RequestWindow parse_window(const std::string& text, std::size_t request_count);

/// A TCP port of this host that refuses connections for as long as this lives, as that of a killed process does.
class RefusingPort {
 public:
  RefusingPort();  ///< Throws std::system_error.
  ~RefusingPort();
  RefusingPort(const RefusingPort&) = delete;
  RefusingPort& operator=(const RefusingPort&) = delete;
  std::string endpoint() const;

 private:
  int socket_ = -1;
};

/// Each node's share of a replay, from the counters of the nodes before and after it.
class NodeShares {
 public:
  explicit NodeShares(std::vector<NodeStats> before) : before_(std::move(before)) {}
  void end(std::vector<NodeStats> after, const std::optional<PlayedDeath>& death);

  nlohmann::json json() const;
  void print(std::ostream& out) const;  ///< A table; nothing of a single node.

 private:
  struct Share {
    std::string name;
    bool answers = true, is_dead = false;
    double blocks = 0;        ///< Held now.
    double got = 0, put = 0;  ///< Blocks, of this replay.
  };
  /// The largest of the nodes' values over their mean, of those that answer; 0: there is nothing.
  double imbalance(double Share::*value) const;

  std::vector<NodeStats> before_;
  std::vector<Share> shares_;
};

}  // namespace kv
