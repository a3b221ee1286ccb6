#include "store/node/session/core/greeting.h"

#include <spdlog/spdlog.h>

#include <string_view>
#include <utility>

#include "transport/token.h"

namespace kv {
namespace {

constexpr std::size_t kIdentityBytesMax = 128;

/// Keeps only the hash of hello's token, and overwrites the frame.
Failure take_token(FrameReader& reader, const FrameReader::Frame& frame, const wire::HelloRequest& request,
                   PeerIdentity& peer) {
  if (request.token() == nullptr) return {};
  const std::string_view token = request.token()->string_view();
  const std::string wrong = check_token(token);
  const bool is_heard = peer.protection == Stream::Protection::kNone;
  if (wrong.empty()) peer.token = token_hash(token);
  reader.wipe_table(frame);
  if (is_heard) {  // even if tokens are not required here: its owner has to know
    return {
        Errc::kPermissionDenied,
        "hello.token: came in plain text over a network, where others may have read it. Replace it, and use tls://, "
        "unix:// or loopback"};
  }
  return wrong.empty() ? Failure() : Failure(Errc::kBadRequest, "hello.token: " + wrong);
}

/// Who the client is and may be, as far as the node knows. Wipes the frame: `request` is unreadable afterwards.
Failure identify(SessionCore& session, FrameReader& reader, const FrameReader::Frame& frame,
                 const wire::HelloRequest& request) {
  PeerAccess& access = session.access;
  PeerIdentity peer = PeerIdentity::of(*session.stream);
  Failure bad_token = take_token(reader, frame, request, peer);
  const bool has_token = peer.token.has_value();
  access.identify(std::move(peer));
  // A client with a token wants to be known by it: continuing under another identity would hide the mistake.
  if (!bad_token.code && has_token && access.is_watched() && access.grant().section.empty())
    bad_token = {Errc::kPermissionDenied, "hello.token: the node's policy does not have it"};
  if (bad_token.code) {
    if (session.node.access != nullptr) session.node.access->token_refused();
    session.warn(LogKind::kDenied, [&] { return bad_token.text; });
    return bad_token;
  }
  const std::string why = access.begin_session();
  if (why.empty()) return {};
  session.warn(LogKind::kDenied, [&] { return why; });
  return {Errc::kOverQuota, "hello: " + why};
}

}  // namespace

bool greet(SessionCore& session, FrameReader& reader, const SessionRdma& rdma, const FrameReader::Frame& frame) {
  const auto fail = [&](const Failure& why) {
    session.refuse(frame, why);
    return false;
  };
  const auto* request = read_request<wire::HelloRequest>(session, frame);
  if (request == nullptr) return false;
  const auto* name = request->identity();
  if (name != nullptr && name->size() > kIdentityBytesMax)
    return fail({Errc::kBadRequest, count_text("hello.identity bytes", name->size(), kIdentityBytesMax)});
  if (request->version_min() > kWireVersion || request->version_max() < kWireVersion) {
    return fail({Errc::kUnsupported, fmt::format("hello.version: {}..{}, spoken here: {}", request->version_min(),
                                                 request->version_max(), kWireVersion)});
  }
  if (name != nullptr) {
    for (const char c : *name) session.identity += c >= ' ' && c < 127 ? c : '?';  // it goes to the log
  }
  if (const Failure why = identify(session, reader, frame, *request); why.code) return fail(why);
  NodeContext& node = session.node;
  const SessionLimits& limits = *node.limits;
  reader.set_limits({limits.table_bytes_max, limits.payload_bytes_max});
  session.replies.reply(FrameType::kHello, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    const auto node_id = builder.CreateString(node.node_id);
    const auto instance = create_bytes(builder, node.instance);
    return wire::CreateHelloResponse(builder, kWireVersion, node_id, node.cluster.epoch(), limits.table_bytes_max,
                                     node.chain_blocks_max, limits.requests_max, limits.region_bytes_max, rdma.width(),
                                     rdma.takes_messages(), instance);
  });
  spdlog::debug("session {} of '{}' ({}) opened", static_cast<std::uint64_t>(session.id), session.identity,
                session.stream->peer());
  return true;
}

}  // namespace kv
