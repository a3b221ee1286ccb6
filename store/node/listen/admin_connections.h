// store/node/listen/admin_connections.h: the admin server's connections, and which one ends to make room.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <string>

namespace kv {

/// A health probe comes as a new connection, so a new one always gets room.
///   1. size() <= count_max.
///   2. At the limit, the peer with the most connections loses the one that was inactive longest: it sent no request,
///      or does not take its answer. So a peer with a single connection keeps it while another peer has two.
/// Thread safety: none. Cost: O(connections) if one ends, else O(log peers).
class AdminConnections {
 public:
  explicit AdminConnections(std::size_t count_max) : count_max_(count_max) {}

  struct Connection {
    std::string peer;           ///< Its address.
    std::function<void()> end;  ///< Closes it. Called once at most; leave() must still follow.
    bool is_in = true;
  };
  using Place = std::list<Connection>::iterator;

  /// May end another connection first.
  Place enter(std::string peer, std::function<void()> end);
  void did_something(Place place);
  void leave(Place place);
  /// Ends one to free a descriptor. False: all have ended.
  bool end_one();
  std::size_t size() const { return size_; }

 private:
  void take_out(Connection& connection);

  const std::size_t count_max_;
  std::list<Connection> all_;  ///< The longest inactive first. Ended ones stay until they leave.
  std::map<std::string, std::size_t> peers_;
  std::size_t size_ = 0;
};

}  // namespace kv
