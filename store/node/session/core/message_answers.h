// store/node/session/core/message_answers.h: answers to requests by RDMA's SEND, returned as one message if they fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "store/node/rdma/remote_memory.h"
#include "transport/frames/frame.h"
#include "transport/frames/frame_writer.h"

namespace kv {

/// The output for messages.
class MessageChannel {
 public:
  virtual ~MessageChannel() = default;
  virtual bool has_room() const = 0;                    ///< For one message, at this moment.
  virtual std::uint32_t message_count_max() const = 0;  ///< As agreed: requests without an answer.
  /// `cargo` lands at the client before the message. Requires room. A device that refuses the message ends the session.
  virtual void send_message(std::span<const std::byte> message, MessageCargo cargo) = 0;
};

/// An answer may have several frames; a message carries all of them. So frames are kept until the last one.
///   1. All frames of an answer go the same way, in order: as one message, or by the stream from the first misfit on.
///   2. pending() counts requests whose answers have not left, and answers sent by the stream until the client has
///      taken their bytes: otherwise a client that reads no stream could queue answers without bound.
/// Thread safety: none; on the session's executor.
class MessageAnswers {
 public:
  MessageAnswers(MessageChannel& channel, FrameWriter& writer) : channel_(channel), writer_(writer) {}

  bool empty() const { return by_id_.empty(); }
  bool contains(std::uint64_t request_id) const { return by_id_.contains(request_id); }
  std::size_t pending();
  bool has_room() const { return channel_.has_room(); }

  void expect(std::uint64_t request_id);  ///< A request came as a message. Requires an id that is not yet expected.
  void forget(std::uint64_t request_id) { by_id_.erase(request_id); }
  /// Blocks that go right before the message. Requires contains().
  void add_cargo(std::uint64_t request_id, MessageCargo cargo);
  /// Sends the answer by the stream, its kept frames now. Requires contains().
  void stream(std::uint64_t request_id);
  /// Takes a frame that answers a message. False: send it by the stream, where the kept frames just went.
  bool take(const FrameHeader& header, std::span<const std::byte> table, bool has_payload);

 private:
  struct Answer {
    std::vector<std::byte> frames;  ///< So far.
    MessageCargo cargo;
    bool goes_by_stream = false;
  };
  void stream(Answer& answer);

  MessageChannel& channel_;
  FrameWriter& writer_;
  std::unordered_map<std::uint64_t, Answer> by_id_;
  std::deque<std::uint64_t> streamed_;  ///< Where each answer sent by the stream ends, in bytes from its start.
};

}  // namespace kv
