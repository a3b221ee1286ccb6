#include "client/link/session/link_payload.h"

#include <utility>

#include "base/assert.h"
#include "client/link/call.h"

namespace kv {

void LinkPayload::begin_frame() {
  KV_ASSERT(call_ == nullptr);  // 3
  is_landing_ = is_swallowed_ = false;
  targets_.clear();
}

std::vector<BlockTarget>& LinkPayload::land() {
  KV_ASSERT(call_ == nullptr);  // the arriving payload's sink reads this list
  is_landing_ = true;
  return targets_;
}

/// The call has chosen the destinations; the header gives the size. They must agree before the first byte is read,
/// because from then on the stream writes into the caller's memory.
std::string LinkPayload::begin_payload(Call& call, std::uint64_t payload_bytes) {
  KV_ASSERT(call_ == nullptr);  // 3
  if (is_swallowed_) return {};
  std::uint64_t wanted_bytes = 0;
  for (const BlockTarget& target : targets_) wanted_bytes += target.bytes.size();
  if (payload_bytes != wanted_bytes) {
    return "payload of " + std::to_string(payload_bytes) + " bytes, not " + std::to_string(wanted_bytes);
  }
  if (wanted_bytes > 0) {
    sink_.emplace(targets_);
    call_ = &call;
  }
  return {};
}

BlockSink& LinkPayload::sink() {
  KV_ASSERT(is_landing_ && sink_);  // after the call's end the sink swallows
  return *sink_;
}

void LinkPayload::arrived() {
  if (Call* const call = std::exchange(call_, nullptr)) call->payload_came(*sink_);
}

/// The call ends within its payload. The landed part counts; the rest is read from the stream and discarded.
void LinkPayload::stop() {
  if (call_ == nullptr) return;
  sink_->cancel();
  arrived();
}

void LinkPayload::forget(const Call& call) {
  if (!is_of(call)) return;
  sink_->cancel();
  call_ = nullptr;
}

}  // namespace kv
