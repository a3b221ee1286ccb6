// client/hot/hot_roots_call.h: asks one node for its hot blocks.
#pragma once

#include <string>

#include "client/hot/hot_sets.h"
#include "client/link/call.h"

namespace kv {

/// Runs in the background: its result goes to the sets, and a failure is ignored, since the next answer with another
/// version asks again. One at a time per node; owned by the client.
class HotRootsCall final : public Call {
 public:
  static constexpr Duration kDeadline = 2s;

  HotRootsCall(HotSets& sets, std::size_t node_index) : sets_(sets), node_(node_index) { type = FrameType::kHotRoots; }

 private:
  error_code send(CallSession& session) override;
  std::string on_last(const FrameReader::Frame& frame) override;

  HotSets& sets_;
  const std::size_t node_;
  const Clock* clock_ = nullptr;
};

}  // namespace kv
