#include "store/node/listen/handshake_rate.h"

#include <chrono>

namespace kv {

HandshakeRate::Verdict HandshakeRate::take(const std::string& peer, TimePoint now) {
  const double rate = rate_, peer_rate = rate / 2;
  if (rate <= 0) {
    peers_.clear();
    return Verdict::kBegin;
  }
  forget(peer_rate, now);
  all_.fill(rate, now);
  const auto known = peers_.find(peer);
  if (known != peers_.end()) {
    known->second.fill(peer_rate, now);
    if (known->second.left < 1) return Verdict::kTooManyOfPeer;
  }
  if (all_.left < 1) return Verdict::kTooMany;
  RateBucket& bucket = known != peers_.end() ? known->second : peers_[peer];
  bucket.fill(peer_rate, now);
  bucket.left -= 1;
  all_.left -= 1;
  return Verdict::kBegin;
}

/// Once a second, drops addresses whose bucket is full again.
void HandshakeRate::forget(double peer_rate, TimePoint now) {
  if (now - forgot_ < std::chrono::seconds(1)) return;
  forgot_ = now;
  for (auto& each : peers_) each.second.fill(peer_rate, now);
  std::erase_if(peers_, [&](const auto& each) { return each.second.left >= RateBucket::full(peer_rate); });
}

}  // namespace kv
