// store/node/handshake_rate.h: how many connections may begin to prove who they are in a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <string>

#include "base/clock.h"
#include "base/rate_bucket.h"

namespace kv {

/// A handshake costs two milliseconds of a processor before anybody knows for whom.
///   1. In any time t at most rate * (t + 1 s) begin, and half of that from one address, of each at least one.
///   2. At most three times as many addresses are known as may begin in a second (of rates of 2 and more).
/// Thread safety: set() any, the rest one thread.
class HandshakeRate {
 public:
  enum class Verdict : unsigned char { kBegin, kTooMany, kTooManyOfPeer };

  explicit HandshakeRate(double per_second) : rate_(per_second) {}
  void set(double per_second) { rate_ = per_second; }  ///< 0: no bound.
  double rate() const { return rate_; }
  Verdict take(const std::string& peer, TimePoint now);  ///< kBegin counts as one.
  std::size_t peer_count() const { return peers_.size(); }

 private:
  void forget(double peer_rate, TimePoint now);

  std::atomic<double> rate_;
  RateBucket all_;
  std::map<std::string, RateBucket> peers_;
  TimePoint forgot_{};
};

}  // namespace kv
