// client/link/ping_call.h: asks one node whether it is alive.
#pragma once

#include <chrono>
#include <string>

#include "client/link/call.h"

namespace kv {

/// With a space it ends once the namespace is open on the node.
class PingCall final : public Call {
 public:
  PingCall() { type = FrameType::kPing; }
  std::chrono::nanoseconds round_trip{-1};

 private:
  error_code send(CallSession& session) override {
    clock_ = &session.shared().clock;
    sent_ = clock_->now();
    return send_table(session, wire::CreatePingRequest(session.shared().new_request()));
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    if (read_table<wire::EmptyResponse>(frame.table) == nullptr) return "ping: malformed";
    round_trip = clock_->now() - sent_;
    return {};
  }

  const Clock* clock_ = nullptr;
  TimePoint sent_{};
};

}  // namespace kv
