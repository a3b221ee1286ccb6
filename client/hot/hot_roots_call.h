// client/hot/hot_roots_call.h: asks one node which blocks it takes for hot.
#pragma once

#include <string>

#include "client/hot/hot_sets.h"
#include "client/link/call.h"

namespace kv {

/// Nobody waits for it. What it learns goes to the sets, and a failure nowhere: the next answer that names another
/// version asks again. One at a time for each node; it belongs to the client.
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
