#include "store/node/session/core/message_answers.h"

#include <utility>

#include "base/assert.h"
#include "transport/frames/frame_message.h"

namespace kv {

std::size_t MessageAnswers::pending() {
  // A streamed answer is complete once its last byte was written; only then may its client send another request.
  while (!streamed_.empty() && streamed_.front() <= writer_.bytes_written()) streamed_.pop_front();
  return by_id_.size() + streamed_.size();
}

void MessageAnswers::expect(std::uint64_t request_id) {
  const bool is_new = by_id_.try_emplace(request_id).second;
  KV_ASSERT(is_new);
}

void MessageAnswers::add_cargo(std::uint64_t request_id, MessageCargo cargo) {
  const auto found = by_id_.find(request_id);
  KV_ASSERT(found != by_id_.end() && !found->second.goes_by_stream && found->second.cargo.stretches.empty());
  found->second.cargo = std::move(cargo);
}

bool MessageAnswers::take(const FrameHeader& header, std::span<const std::byte> table, bool has_payload) {
  const auto found = by_id_.find(header.request_id);
  if (found == by_id_.end()) return false;
  Answer& answer = found->second;
  const bool is_last = (header.flags & kFrameMore) == 0;
  // A RECV has room for one message: all frames of an answer go in it together, or all by the stream.
  const bool fits = !has_payload && answer.frames.size() + message_frame_bytes(table.size()) <= kMessageBytesMax;
  if (fits && !answer.goes_by_stream) {
    if (!is_last) {
      append_frame(answer.frames, header, table);
      return true;
    }
    if (channel_.has_room()) {
      append_frame(answer.frames, header, table);
      // Removed before sending, which may break the lane and thereby the session.
      Answer whole = std::move(answer);
      by_id_.erase(found);
      channel_.send_message(whole.frames, std::move(whole.cargo));
      return true;
    }
  }
  // Kept frames first, then the rest: an answer never splits over both ways, where its frames could change order.
  stream(answer);
  if (is_last) {
    by_id_.erase(found);
    streamed_.push_back(writer_.bytes_written() + writer_.queued_bytes());  // invariant 2
  }
  return false;
}

void MessageAnswers::stream(std::uint64_t request_id) {
  const auto found = by_id_.find(request_id);
  KV_ASSERT(found != by_id_.end());
  stream(found->second);
}

void MessageAnswers::stream(Answer& answer) {
  answer.goes_by_stream = true;
  const std::vector<std::byte> frames = std::exchange(answer.frames, {});
  for (std::span<const std::byte> kept = frames; !kept.empty();) {
    const auto frame = take_frame(kept);
    KV_ASSERT(frame);  // append_frame() wrote it
    writer_.send(frame->header, frame->table);
  }
}

}  // namespace kv
