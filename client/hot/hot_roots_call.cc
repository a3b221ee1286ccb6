#include "client/hot/hot_roots_call.h"

namespace kv {

error_code HotRootsCall::send(CallSession& session) {
  clock_ = &session.shared().clock;
  auto& builder = session.shared().new_request();
  builder.Finish(wire::CreateHotRootsRequest(builder, space_handle(), space_check()));
  session.send_frame(type, request_id(), builder);
  return {};
}

std::string HotRootsCall::on_last(const FrameReader::Frame& frame) {
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

}  // namespace kv
