// tests/node/limits_change.h: sets some limits of a node's sessions.
#pragma once

#include "store/node/session/core/session_limits.h"

namespace kv {

/// The limits are in force at the end of the expression: `change(node->limits)->requests_max = 4;`
class LimitsChange {
 public:
  explicit LimitsChange(LiveLimits& live) : live_(live), limits_(*live) {}
  ~LimitsChange() { live_.set(limits_); }
  LimitsChange(const LimitsChange&) = delete;
  LimitsChange& operator=(const LimitsChange&) = delete;

  SessionLimits* operator->() { return &limits_; }

 private:
  LiveLimits& live_;
  SessionLimits limits_;
};
inline LimitsChange change(LiveLimits& live) { return LimitsChange(live); }

}  // namespace kv
