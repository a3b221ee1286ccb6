// store/node/listen/handshake_rate.h: limits how many connections begin a handshake.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <string>

#include "base/clock.h"
#include "base/rate_bucket.h"

namespace kv {

/// A handshake costs two milliseconds of a processor before the peer is identified.
///   1. In any time t at most rate * (t + 1 s) begin; from one address at most half of that, but at least one.
///   2. At most three times as many addresses are kept as may begin in a second (for rates of 2 and more).
/// Thread safety: set() any, the rest one thread.
class HandshakeRate {
 public:
  enum class Verdict : unsigned char { kBegin, kTooMany, kTooManyOfPeer };

  explicit HandshakeRate(double per_second) : rate_(per_second) {}
  void set(double per_second) { rate_ = per_second; }    ///< 0: unlimited.
  Verdict take(const std::string& peer, TimePoint now);  ///< kBegin takes one from the allowance.
  std::size_t peer_count() const { return peers_.size(); }

 private:
  void forget(double peer_rate, TimePoint now);

  std::atomic<double> rate_;
  RateBucket all_;
  std::map<std::string, RateBucket> peers_;
  TimePoint forgot_{};
};

}  // namespace kv
