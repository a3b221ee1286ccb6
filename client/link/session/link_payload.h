// client/link/session/link_payload.h: the destinations of the current frame's payload.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/frames/block_sink.h"

namespace kv {

class Call;

/// A call receives each frame, and chooses where the payload lands or discards it; the bytes then arrive over many
/// reads, during which the call may end.
///   1. The call is notified once of each wanted payload: on arrival, or by stop() with the landed part.
///   2. After stop() and forget() the call's memory is not written; further bytes are swallowed.
///   3. One payload arrives at a time: a session has one reader.
/// Thread safety: none.
class LinkPayload {
 public:
  void begin_frame();  ///< Its payload is unwanted until land() or swallow().
  std::vector<BlockTarget>& land();
  void swallow() { is_swallowed_ = true; }

  /// After the call received the frame. Returns an empty string, or the fault in the payload's size.
  std::string begin_payload(Call& call, std::uint64_t payload_bytes);
  bool is_landing() const { return is_landing_; }
  BlockSink& sink();  ///< Requires is_landing(), and a payload.

  bool is_of(const Call& call) const { return call_ == &call; }
  void arrived();                 ///< In full.
  void stop();                    ///< Reports the landed part of an arriving payload, whose call is about to end.
  void forget(const Call& call);  ///< The call is being destroyed.

 private:
  std::vector<BlockTarget> targets_;
  std::optional<BlockSink> sink_;
  Call* call_ = nullptr;  ///< Receives the arriving payload.
  bool is_landing_ = false, is_swallowed_ = false;
};

}  // namespace kv
