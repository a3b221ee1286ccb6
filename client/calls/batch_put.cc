#include "client/calls/batch_put.h"

#include <algorithm>
#include <utility>

namespace kv {

void BatchPut::send_data(std::size_t block_count, std::size_t bytes) {
  KV_ASSERT(has_want_ && block_count > 0 && block_count <= asked_);
  auto& builder = session()->shared().new_request();
  const auto sums = builder.CreateVector(sums_);
  builder.Finish(wire::CreatePutData(builder, static_cast<std::uint32_t>(block_count), sums));
  session()->shared().metrics.sent(session()->path_of(region.get()), bytes);
  if (region) {
    session()->send_frame(FrameType::kPutData, request_id(), builder);
  } else {
    unsent_bytes_ += bytes;
    const auto sent = [this, bytes](bool) {
      unsent_bytes_ -= std::min(bytes, unsent_bytes_);  // 0 once the call has left the session
      bundle->event.set();
    };
    session()->send_lent(FrameType::kPutData, *this, builder, payload_, sent);
  }
  session()->flush();
}

std::string BatchPut::note_refusal(std::uint32_t refused_why, bool has_refused) {
  if (refused_why >= kErrcLocal) return "put: refused_why " + std::to_string(refused_why);
  if (has_refused)
    refused_why_ = make_error_code(refused_why != 0 ? static_cast<Errc>(refused_why) : Errc::kOutOfMemory);
  return {};
}

/// The caller gets its memory back now, but a started frame must be completed: the writer copies the rest.
void BatchPut::on_leave(CallSession& session) {
  forget_unsent();
  if (std::exchange(unsent_bytes_, 0) == 0) return;
  if (!session.take_back(*this, kOwnedBytesMax)) session.give_up("a put ended in the middle of a large payload");
}

}  // namespace kv
