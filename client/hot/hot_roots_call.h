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
  error_code send(CallSession& session) override {
    clock_ = &session.shared().clock;
    auto& builder = session.shared().new_request();
    return send_table(session, wire::CreateHotRootsRequest(builder, space_handle(), space_check()));
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::HotRootsResponse>(frame.table);
    if (response == nullptr) return "hot_roots: malformed";
    const std::size_t count = response->blocks() == nullptr ? 0 : response->blocks()->size();
    if (count > kHotBlocksMax) {
      return "hot_roots: " + std::to_string(count) + " blocks, at most " + std::to_string(kHotBlocksMax);
    }
    Hashes blocks;
    if (count > 0) blocks = {reinterpret_cast<const BlockHash*>(response->blocks()->data()), count};
    sets_.learn(space, node_, response->version(), blocks, clock_->now());
    return {};
  }

  HotSets& sets_;
  const std::size_t node_;
  const Clock* clock_ = nullptr;
};

}  // namespace kv
