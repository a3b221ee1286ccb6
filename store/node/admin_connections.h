// store/node/admin_connections.h: who holds the admin server's connections, and which ends when another one comes.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <string>

namespace kv {

/// A health probe comes as a new connection, so a new one always finds room.
///   1. size() <= count_max.
///   2. Where there is no room, a connection of the peer that has most of them ends, of these the one that did nothing
///      for longest: it said nothing, or does not take its answer. So whoever holds many loses one, and a peer that
///      comes with one request keeps it, as long as somebody else has two.
/// Thread safety: none. Cost: O(connections) where one ends, else O(log peers).
class AdminConnections {
 public:
  explicit AdminConnections(std::size_t count_max) : count_max_(count_max) {}

  struct Connection {
    std::string peer;           ///< Its address.
    std::function<void()> end;  ///< Closes it. Not called again, and the connection still has to leave().
    bool is_in = true;
  };
  using Place = std::list<Connection>::iterator;

  /// Takes it in. May end another one first.
  Place enter(std::string peer, std::function<void()> end);
  void did_something(Place place);
  void leave(Place place);
  /// Ends one for whoever needs a descriptor. False: there is none.
  bool end_one();
  std::size_t size() const { return size_; }

 private:
  void take_out(Connection& connection);

  const std::size_t count_max_;
  std::list<Connection> all_;  ///< That did nothing for longest first. Those that were ended until they leave.
  std::map<std::string, std::size_t> peers_;
  std::size_t size_ = 0;
};

}  // namespace kv
