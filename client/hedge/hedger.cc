#include "client/hedge/hedger.h"

#include "client/link/request_parts.h"
#include "transport/frame_message.h"

namespace kv {

/// Sent as a match of a chain that belongs elsewhere, so that it does not count for hot roots.
error_code HoldsCall::send(CallSession& session) {
  found_ = 0;
  if (blocks_in_request(session.terms(), hashes.size(), sizeof(BlockHash)) < hashes.size()) return Errc::kTooLarge;
  auto& builder = session.shared().new_request();
  const auto list = builder.CreateVectorOfStructs(wire_hashes(hashes), hashes.size());
  wire::MatchRequestBuilder request(builder);
  request.add_space(space_handle());
  request.add_hashes(list);
  request.add_namespace_check(space_check());
  request.add_elsewhere(true);
  builder.Finish(request.Finish());
  session.send_small(type, request_id(), builder, kSmallAnswerBytes);
  return {};
}

std::string HoldsCall::on_last(const FrameReader::Frame& frame) {
  const auto* response = read_table<wire::MatchResponse>(frame.table);
  if (response == nullptr) return "match: malformed";
  if (response->host_blocks() > hashes.size()) return "match: more blocks than it was asked for";
  map_epoch = response->epoch();
  found_ = response->host_blocks();  // blocks on its disk would take even longer
  return {};
}

}  // namespace kv
