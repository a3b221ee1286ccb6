// store/node/session/core/replies.h: how answers leave a session.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/owner.h"
#include "store/node/access/audit.h"
#include "store/node/metrics.h"
#include "store/node/session/core/message_answers.h"
#include "store/node/session/core/session_wire.h"
#include "transport/frames/frame.h"
#include "transport/frames/frame_writer.h"

namespace kv {

/// Builds the table of an answer and queues its frame.
///   1. An answer to a message goes back as a message, if it fits; others go by the stream, in the order of the calls.
///   2. Queuing does not write. After a batch the caller calls flush(), so that many answers leave in one system call.
/// Thread safety: none; on the session's executor.
class Replies {
 public:
  Replies(NodeMetrics& metrics, FrameWriter& writer) : metrics_(metrics), writer_(writer) {}
  void use(MessageAnswers& messages) { messages_ = &messages; }
  void use(Audit& audit) { audit_ = &audit; }  ///< Receives the results of audited requests.

  /// `build` makes the table with the given builder. `payload`, `done` and `owner` as in FrameWriter::send.
  template <class Build>
  void reply(FrameType type, std::uint64_t request_id, std::uint16_t flags, Build&& build,
             std::span<const std::span<const std::byte>> payload = {}, std::function<void(bool)> done = nullptr,
             OwnerId owner = {}) {
    flatbuffers::FlatBufferBuilder& builder = cleared_builder();
    builder.Finish(build(builder));
    FrameHeader header;
    header.type = type;
    header.flags = static_cast<std::uint16_t>(kFrameResponse | flags);
    header.request_id = request_id;
    const auto table = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
    if (messages_ != nullptr && !messages_->empty() && messages_->take(header, table, !payload.empty())) return;
    writer_.send(header, table, payload, std::move(done), -1, owner);
  }
  void reply_count(FrameType type, std::uint64_t request_id, std::uint64_t count, bool until_restart = false) {
    if (is_audited(type, request_id)) {
      audit_->answered(type, request_id,
                       fmt::format("ok count={}{}", count, until_restart ? " until-restart=true" : ""));
    }
    reply(type, request_id, 0,
          [&](FlatBufferBuilder& builder) { return wire::CreateCountResponse(builder, count, until_restart); });
  }
  void reply_empty(FrameType type, std::uint64_t request_id) {
    if (is_audited(type, request_id)) audit_->answered(type, request_id, "ok");
    reply(type, request_id, 0, [](FlatBufferBuilder& builder) { return wire::CreateEmptyResponse(builder); });
  }
  /// Queues an error as the last answer. A foreign error (a system call's errno, for example) goes out as kBadRequest:
  /// its number is meaningless on another machine.
  void refuse(FrameType type, std::uint64_t request_id, error_code code, const std::string& message,
              std::uint32_t broken = 0) {
    const auto value = code.category() == errc_category() ? code.value() : static_cast<int>(Errc::kBadRequest);
    metrics_.request_refused(static_cast<Errc>(value));
    if (is_audited(type, request_id)) audit_->answered(type, request_id, "refused why='" + message + "'");
    reply(type, request_id, kFrameError, [&](FlatBufferBuilder& builder) {
      return wire::CreateErrorDirect(builder, static_cast<std::uint16_t>(value), message.c_str(), broken);
    });
  }

 private:
  bool is_audited(FrameType type, std::uint64_t request_id) const {
    return audit_ != nullptr && audit_->has(type, request_id);
  }

  NodeMetrics& metrics_;
  FrameWriter& writer_;
  MessageAnswers* messages_ = nullptr;  ///< nullptr: only the stream is used.
  Audit* audit_ = nullptr;
};

}  // namespace kv
