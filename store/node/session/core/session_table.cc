#include "store/node/session/core/session_table.h"

#include <utility>

#include "base/assert.h"

namespace kv {

/// How many sessions allow a peer another one, while `free` seats are free.
std::size_t SessionTable::allowed(std::size_t free) const {
  if (config_.peer_share_max >= 1) return SIZE_MAX;
  // With a share s and f free seats, a peer that has some may have s / (1 - s) * f. This shrinks as others come, and
  // alone it cannot fill the table. The small addend below keeps 0.999.. from costing a whole seat.
  const double ratio = config_.peer_share_max / (1 - config_.peer_share_max);
  return static_cast<std::size_t>(ratio * static_cast<double>(free) + 1e-9);
}

Result<std::shared_ptr<SessionTable::Seat>, SessionTable::Refusal> SessionTable::admit(const std::string& peer,
                                                                                       TimePoint now) {
  const std::lock_guard lock(mutex_);
  const auto own = [&] {
    const auto found = peers_.find(peer);
    return found == peers_.end() ? 0 : found->second;
  };
  // A seat being vacated counts as free at once: otherwise two newcomers would end two sessions for one seat.
  while (size_ >= config_.count_max) {  // more than once where count_max was lowered
    if (!end_one_idle(nullptr, now)) return Refusal::kFull;
  }
  if (own() > 0 && own() >= allowed(config_.count_max - size_) && !end_one_idle(&peer, now)) return Refusal::kPeer;
  const auto place = std::make_shared<Place>();
  place->peer = peer;
  place->set_idle(now);
  // At the end, so the list is in order of arrival: among sessions idle for equally long, the oldest goes.
  place->at = places_.insert(places_.end(), place);
  ++peers_[peer];
  ++size_;
  return std::shared_ptr<Seat>(place);
}

bool SessionTable::end_one_idle(const std::string* peer, TimePoint now) {
  std::shared_ptr<Place> oldest;
  Duration::rep oldest_since = Seat::kBusy;
  for (const auto& place : places_) {
    // Without `end` the session was admitted, but its coroutine has not begun.
    if (place->is_leaving || !place->end || (peer != nullptr && place->peer != *peer)) continue;
    const Duration::rep since = place->idle_since();  // once: the session may become busy meanwhile
    if (since >= oldest_since) continue;
    const Duration needed = place->is_greeted() ? config_.idle_min : config_.hello_min;
    if (now.time_since_epoch() - Duration(since) < needed) continue;
    oldest = place;
    oldest_since = since;
  }
  if (!oldest) return false;
  oldest->is_leaving = true;
  take_off(*oldest);
  // Under the lock, since it only posts to the session, which checks again whether it is idle, and may stay().
  oldest->end();
  return true;
}

void SessionTable::take_off(const Place& place) {
  --size_;
  const auto found = peers_.find(place.peer);
  KV_ASSERT(found != peers_.end());
  if (--found->second == 0) peers_.erase(found);
}

void SessionTable::set_end(const std::shared_ptr<Seat>& seat, std::function<void()> end) {
  const std::lock_guard lock(mutex_);
  place_of(seat).end = std::move(end);
}

void SessionTable::stay(const std::shared_ptr<Seat>& seat) {
  const std::lock_guard lock(mutex_);
  Place& place = place_of(seat);
  // Counted again: for a moment the table may hold one more than its bound.
  if (!std::exchange(place.is_leaving, false)) return;
  ++size_;
  ++peers_[place.peer];
}

void SessionTable::leave(const std::shared_ptr<Seat>& seat) {
  const std::lock_guard lock(mutex_);
  Place& place = place_of(seat);
  if (!place.is_leaving) take_off(place);
  place.end = nullptr;
  places_.erase(place.at);
}

void SessionTable::set_limits(const SessionTableConfig& config) {
  const std::lock_guard lock(mutex_);
  config_ = config;
}

std::size_t SessionTable::peer_size(const std::string& peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second;
}

}  // namespace kv
