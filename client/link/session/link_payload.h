// client/link/session/link_payload.h: where the payload of the frame at hand goes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/block_sink.h"

namespace kv {

class Call;

/// A frame is given to its call, which says where the payload lands, or that nobody wants it; then the bytes arrive
/// over many reads, and meanwhile the call may end.
///   1. The call is told once of each payload that it wanted: when it has arrived, or by stop() of what had landed.
///   2. After stop() and forget() nothing is written to its memory. What still comes is swallowed.
///   3. One payload arrives at a time: a session has one reader.
/// Thread safety: none.
class LinkPayload {
 public:
  void begin_frame();  ///< Nobody wants its payload, unless somebody says so.
  std::vector<BlockTarget>& land();
  void swallow() { is_swallowed_ = true; }

  /// After the call was given the frame. Returns an empty string, or what is wrong with the payload's size.
  std::string begin_payload(Call& call, std::uint64_t payload_bytes);
  bool is_landing() const { return is_landing_; }
  BlockSink& sink();  ///< Requires is_landing(), and a payload.

  bool is_of(const Call& call) const { return call_ == &call; }
  void arrived();                 ///< All of it.
  void stop();                    ///< If one is arriving: its call is to end, and told of what has landed.
  void forget(const Call& call);  ///< It is being destroyed.

 private:
  std::vector<BlockTarget> targets_;
  std::optional<BlockSink> sink_;
  Call* call_ = nullptr;  ///< Whose payload is arriving.
  bool is_landing_ = false, is_swallowed_ = false;
};

}  // namespace kv
