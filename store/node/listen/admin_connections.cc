#include "store/node/listen/admin_connections.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {

AdminConnections::Place AdminConnections::enter(std::string peer, std::function<void()> end) {
  while (size_ >= count_max_) KV_ASSERT(end_one());
  ++size_;
  ++peers_[peer];
  return all_.insert(all_.end(), {.peer = std::move(peer), .end = std::move(end)});
}

void AdminConnections::did_something(Place place) { all_.splice(all_.end(), all_, place); }

void AdminConnections::leave(Place place) {
  if (place->is_in) take_out(*place);
  all_.erase(place);
}

bool AdminConnections::end_one() {
  std::size_t most = 0;
  for (const auto& [peer, count] : peers_) most = std::max(most, count);
  const auto found =
      std::ranges::find_if(all_, [&](const Connection& each) { return each.is_in && peers_.at(each.peer) == most; });
  if (found == all_.end()) return false;
  take_out(*found);
  found->end();
  return true;
}

void AdminConnections::take_out(Connection& connection) {
  connection.is_in = false;
  --size_;
  const auto found = peers_.find(connection.peer);
  if (--found->second == 0) peers_.erase(found);
}

}  // namespace kv
