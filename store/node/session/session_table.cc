#include "store/node/session/session_table.h"

#include <utility>

#include "base/assert.h"

namespace kv {

/// How many a peer may hold for another to be given, while so many are free.
std::size_t SessionTable::allowed(std::size_t free) const {
  if (config_.peer_share_max >= 1) return SIZE_MAX;
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
  if (size_ >= config_.count_max && !end_one_idle(nullptr, now)) return Refusal::kFull;
  if (own() > 0 && own() >= allowed(config_.count_max - size_) && !end_one_idle(&peer, now)) return Refusal::kPeer;
  const auto seat = std::make_shared<Seat>();
  seat->peer_ = peer;
  seat->idle_since_ = now.time_since_epoch().count();
  seat->at_ = seats_.insert(seats_.end(), seat);
  ++peers_[peer];
  ++size_;
  return seat;
}

bool SessionTable::end_one_idle(const std::string* peer, TimePoint now) {
  std::shared_ptr<Seat> oldest;
  for (const auto& seat : seats_) {
    if (seat->is_leaving_ || !seat->end_ || (peer != nullptr && seat->peer_ != *peer)) continue;
    const Duration::rep since = seat->idle_since_;
    if (since == Seat::kBusy) continue;
    const Duration needed = seat->is_greeted_ ? config_.idle_min : config_.hello_min;
    if (now.time_since_epoch() - Duration(since) < needed) continue;
    if (!oldest || since < oldest->idle_since_) oldest = seat;
  }
  if (!oldest) return false;
  oldest->is_leaving_ = true;
  take_off(*oldest);
  oldest->end_();
  return true;
}

void SessionTable::take_off(Seat& seat) {
  --size_;
  const auto found = peers_.find(seat.peer_);
  KV_ASSERT(found != peers_.end());
  if (--found->second == 0) peers_.erase(found);
}

void SessionTable::set_end(const std::shared_ptr<Seat>& seat, std::function<void()> end) {
  const std::lock_guard lock(mutex_);
  seat->end_ = std::move(end);
}

void SessionTable::stay(const std::shared_ptr<Seat>& seat) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(seat->is_leaving_, false)) return;
  ++size_;
  ++peers_[seat->peer_];
}

void SessionTable::leave(const std::shared_ptr<Seat>& seat) {
  const std::lock_guard lock(mutex_);
  if (!seat->is_leaving_) take_off(*seat);
  seat->end_ = nullptr;
  seats_.erase(seat->at_);
}

std::size_t SessionTable::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

std::size_t SessionTable::peer_size(const std::string& peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second;
}

}  // namespace kv
