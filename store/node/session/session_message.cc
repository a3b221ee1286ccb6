// store/node/session/session_message.cc: a small request comes over the message lane and its answer goes back there, so
// that a lookup crosses no kernel; what does not fit goes by the stream.

#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/node/session/session.h"
#include "transport/frame_message.h"

namespace kv {
namespace {

/// Requests whose answers are short and whose order among others does not matter.
bool goes_by_message(FrameType type) {
  return type == FrameType::kMatch || type == FrameType::kGet || type == FrameType::kTouch;
}

}  // namespace

/// A request that came over the message lane. One that breaks a rule ends the session: who does that may have posted no
/// RECV for its answer.
void Session::on_message(std::span<const std::byte> message) {
  if (ending_) return;
  const auto bad = [&](FrameType type, std::uint64_t id, const std::string& why) {
    warn(LogKind::kBadMessage, [&] { return "by SEND: " + why; });
    by_message_.erase(id);
    refuse(type, id, Errc::kBadFrame, "by SEND: " + why);
    writer_.flush();
    terminate(SessionEnd::kBadFrame);
  };
  std::string why;
  const auto frame = take_frame(message, &why);
  if (!frame) return bad(FrameType::kHello, 0, why);
  const FrameType type = frame->header.type;
  const std::uint64_t id = frame->header.request_id;
  if (frame->header.flags != 0)
    return bad(type, id, "flags: " + std::to_string(frame->header.flags) + ", a request has none");
  if (!message.empty()) return bad(type, id, std::to_string(message.size()) + " bytes after the request");
  if (!goes_by_message(type)) return bad(type, id, std::string(frame_type_name(type)) + ": goes by the stream only");
  while (!streamed_answers_.empty() && streamed_answers_.front() <= writer_.bytes_written())
    streamed_answers_.pop_front();
  const std::size_t pending = by_message_.size() + streamed_answers_.size();
  if (pending >= lanes_->message_count_max() || by_message_.contains(id)) {
    return bad(
        type, id,
        count_text("requests without an answer", pending + 1, lanes_->message_count_max()) + ", and no id twice");
  }
  by_message_.try_emplace(id);
  serve(*frame);
  writer_.flush();  // an answer that was too long for a message
}

bool Session::answer_by_message(const FrameHeader& header, std::span<const std::byte> table, bool has_payload) {
  const auto found = by_message_.find(header.request_id);
  if (found == by_message_.end()) return false;
  MessageAnswer& answer = found->second;
  const bool is_last = (header.flags & kFrameMore) == 0;
  const bool fits = !has_payload && answer.frames.size() + message_frame_bytes(table.size()) <= kMessageBytesMax;
  if (fits && !answer.goes_by_stream) {
    if (!is_last) {
      append_frame(answer.frames, header, table);
      return true;
    }
    if (lanes_->has_room_for_message()) {
      append_frame(answer.frames, header, table);
      const bool sent = lanes_->send_message(answer.frames, std::move(answer.cargo));
      by_message_.erase(found);
      if (!sent) terminate(SessionEnd::kBroken);  // the device refused
      return true;
    }
  }
  stream_answer(answer);
  if (is_last) {
    by_message_.erase(found);
    // It counts against the client's requests until he has taken it, or these answers would be bounded by nothing.
    streamed_answers_.push_back(writer_.bytes_written() + writer_.queued_bytes());
  }
  return false;
}

/// What was kept of it goes now; what comes follows.
void Session::stream_answer(MessageAnswer& answer) {
  answer.goes_by_stream = true;
  const std::vector<std::byte> frames = std::exchange(answer.frames, {});
  for (std::span<const std::byte> kept = frames; !kept.empty();) {
    std::string why;
    const auto frame = take_frame(kept, &why);
    KV_ASSERT(frame);
    writer_.send(frame->header, frame->table);
  }
}

/// Also says that an answer which takes a while, for it waits for the disk, goes by the stream: a part that has landed
/// counts at the client's deadline if he was told of it.
bool Session::send_with_answer(const std::shared_ptr<GetJob>& job) {
  const auto found = by_message_.find(job->request_id);
  if (found == by_message_.end()) return false;
  if (!job->is_complete) stream_answer(found->second);
  if (!job->is_complete || !job->region || job->region->mapped) return false;
  const std::uint64_t count = job->blocks.size();
  if (count == 0 || count > SessionLanes::kCargoStretchesMax || count * job->block_bytes > kMessageGetBytesMax ||
      job->segment_ends.size() > 1 || (job->lanes & 1) == 0 || !lanes_->has_room_for_message())
    return false;
  const std::uint64_t sums_bytes = count * stripe_count(job->block_bytes) * sizeof(std::uint64_t);
  if (sums_bytes > kMessageBytesMax / 2) return false;  // the rest is ample for two tables
  const Part part{.segment = 0, .first = 0, .count = count, .is_inline = false};
  auto stretches = lanes_->stretches_before_message(placements(*job, part), job->region->slices);
  if (stretches.size() > SessionLanes::kCargoStretchesMax) return false;

  // Held until the device has sent the bytes: then the slots may be used again, and the region given back.
  struct Owner {
    std::shared_ptr<Session> session;
    std::shared_ptr<GetJob> job;
    std::shared_ptr<void> pins;  ///< Tell of the job, and so end first.
    ~Owner() {
      pins.reset();
      session->release(job->region);
      session->writer_.flush();
    }
  };
  ++job->region->user_count;
  found->second.cargo = {std::move(stretches), std::make_shared<Owner>(shared_from_this(), job, job->pins)};
  tell_of(job, part);
  finish_get(job);
  return true;
}

}  // namespace kv
