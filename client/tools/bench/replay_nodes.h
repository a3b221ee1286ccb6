// client/tools/bench/replay_nodes.h: a replay over several nodes: the simulated death of one, and each one's share.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "client/tools/node_stats.h"

namespace kv {

/// The replay stops talking to a node before request `request`, as if it had died with all its blocks. It stays in the
/// list of nodes, so blocks keep their owners: this simulates the time until a new map. The node itself is not touched.
struct PlayedDeath {
  std::size_t node = 0;  ///< Index into the endpoints.
  std::size_t request = 0;
};
/// Parses "NODE@N": NODE is an index into `endpoints`, or one of them. Throws CLI::ValidationError.
std::optional<PlayedDeath> parse_death(const std::string& text, const std::vector<std::string>& endpoints,
                                       std::size_t request_count);

/// Requests reported separately: "FIRST" or "FIRST+COUNT".
struct RequestWindow {
  std::size_t first = 0, count = 200;
  bool begins_at(std::size_t request) const { return request == first; }
  bool ends_at(std::size_t request) const { return request == first + count; }
};
/// Throws CLI::ValidationError, also when the trace ends before the window.
RequestWindow parse_window(const std::string& text, std::size_t request_count);

/// A TCP port of this host that refuses connections during its lifetime, as that of a killed process does.
class RefusingPort {
 public:
  RefusingPort();  ///< Throws boost::system::system_error.
  std::string endpoint() const;

 private:
  asio::io_context context_;
  asio::ip::tcp::socket socket_;
};

/// Each node's share of a replay, from the counters of the nodes before and after it.
class NodeShares {
 public:
  explicit NodeShares(std::vector<NodeStats> before) : before_(std::move(before)) {}
  void end(std::vector<NodeStats> after, const std::optional<PlayedDeath>& death);

  nlohmann::json json() const;
  void print(std::ostream& out) const;  ///< A table; empty for a single node.

 private:
  struct Share {
    std::string name;
    bool answers = true, is_dead = false;
    double blocks = 0;        ///< Held now.
    double got = 0, put = 0;  ///< Blocks, of this replay.
  };
  /// The largest of the answering nodes' values over their mean; 0 if all are 0.
  double imbalance(double Share::*value) const;

  std::vector<NodeStats> before_;
  std::vector<Share> shares_;
};

}  // namespace kv
