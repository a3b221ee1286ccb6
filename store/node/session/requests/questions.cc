#include "store/node/session/requests/questions.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

boost::asio::awaitable<AdminAnswer> make(NodeContext& node, const AdminQuestion& question, PeerAccess& peer) {
  co_return answer_admin(node, question, peer);
}

}  // namespace

void Questions::on_admin(const SessionCore::Frame& frame) {
  const auto* request = read_request<wire::AdminRequest>(session_, frame);
  if (request == nullptr) return;
  const auto text = [](const flatbuffers::String* of) { return of == nullptr ? std::string() : of->str(); };
  AdminQuestion question{.path = text(request->path()), .query = text(request->query())};
  if (const std::size_t bytes = question.path.size() + question.query.size(); bytes > kAdminQuestionBytesMax)
    return session_.refuse(frame, Errc::kTooLarge, "admin: " + count_text("bytes", bytes, kAdminQuestionBytesMax));
  question.from = fmt::format("peer={} session={} ", session_.stream->peer(), static_cast<std::uint64_t>(session_.id));
  const std::uint64_t request_id = frame.header.request_id;
  if (!is_slow(question.path)) return reply(request_id, answer_admin(session_.node, question, session_.access));
  if (session_.node.aside == nullptr)
    return session_.refuse(frame, Errc::kUnsupported, "admin: this node answers that over HTTP alone");
  if (session_.node.draining) return session_.refuse(frame, Errc::kDraining, "the node is shutting down");
  if (aside_count_ >= kAsideMax)
    return session_.refuse(frame, Errc::kBusy, count_text("admin: slow questions", aside_count_, kAsideMax));
  ++aside_count_;
  boost::asio::co_spawn(session_.executor,
                        answer_aside(SessionJob(session_.shared_from_this()), request_id, std::move(question)),
                        BorderOf{NodeThread::kIo});
}

/// The answer is made by a separate coroutine there: one that changes its thread could continue with the other thread's
/// thread-local variables.
boost::asio::awaitable<void> Questions::answer_aside([[maybe_unused]] SessionJob job, std::uint64_t request_id,
                                                     AdminQuestion question) {
  const std::unique_ptr<PeerAccess> peer = session_.access.again();
  const AdminAnswer answer = co_await boost::asio::co_spawn(*session_.node.aside, make(session_.node, question, *peer),
                                                            boost::asio::use_awaitable);
  --aside_count_;
  if (session_.is_ending) co_return;
  reply(request_id, answer);
  session_.writer.flush();
}

void Questions::reply(std::uint64_t request_id, const AdminAnswer& answer) {
  if (answer.json.empty()) {
    if (answer.why == make_error_code(Errc::kPermissionDenied))
      session_.warn(LogKind::kDenied, [&] { return answer.why.text; });
    return session_.replies.refuse(FrameType::kAdmin, request_id, answer.why.code, answer.why.text);
  }
  session_.replies.reply(FrameType::kAdmin, request_id, 0, [&](FlatBufferBuilder& builder) {
    return wire::CreateAdminResponse(builder, builder.CreateString(answer.json));
  });
}

}  // namespace kv
