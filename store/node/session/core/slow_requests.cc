#include "store/node/session/core/slow_requests.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "store/node/session/core/session_wire.h"
#include "store/node/session/core/space_door.h"

namespace kv {
namespace {

/// The part common to requests with hashes.
template <class Table>
const Table* note_hashes(const SessionCore::Frame& frame, SpaceDoor& door, TransferDetails& details) {
  const auto* const request = read_table<Table>(frame.table);
  if (request == nullptr) return nullptr;  // it was refused
  details.block_count = hashes_of(request->hashes()).size();
  if (const OpenSpace* const space = door.known(request->space())) {
    details.space = space->id;
    details.space_name = space->shown_name;
  }
  return request;
}

}  // namespace

TransferDetails details_of(const SessionCore::Frame& frame, SpaceDoor& door, const RequestPhases& phases) {
  TransferDetails details{.type = frame.header.type, .phases = phases};
  switch (frame.header.type) {
    case FrameType::kMatch:
      if (const auto* request = note_hashes<wire::MatchRequest>(frame, door, details))
        details.trace = trace_of(request->trace());
      break;
    case FrameType::kSetMatch:
      if (const auto* request = note_hashes<wire::SetMatchRequest>(frame, door, details))
        details.trace = trace_of(request->trace());
      break;
    case FrameType::kTouch:
    case FrameType::kRetain:
    case FrameType::kUnretain:
    case FrameType::kDrop: note_hashes<wire::PrefixRequest>(frame, door, details); break;
    default: break;
  }
  return details;
}

void tell_slow(SessionCore& session, const TransferDetails& details, Duration took, bool has_failed) {
  NodeContext& node = session.node;
  SlowRequest request{
      .began = std::chrono::system_clock::now() - std::chrono::duration_cast<std::chrono::system_clock::duration>(took),
      .took = took,
      .phases = details.phases,
      .type = details.type,
      .block_count = details.block_count,
      .moved_bytes = details.moved_bytes,
      .has_failed = has_failed,
      .space = details.space_name,
      .asker = session.access.tenant(),
      .session = static_cast<std::uint64_t>(session.id),
      .identity = session.identity,
      .peer = session.stream->peer(),
      .trace = details.trace};
  if (details.rest != nullptr) request.phases.*details.rest += std::max(Duration::zero(), took - request.phases.sum());
  if (details.space_name) {
    const auto record = node.store.with([&](Store& store) { return store.find_namespace(details.space); });
    if (record) request.model = record->field("model");
    if (record) request.tenant = record->owner();
  }
  node.metrics.request_was_slow(details.type);
  session.warn(LogKind::kSlow, [&] { return slow_request_text(request); });
  node.slow.add(std::move(request));
}

}  // namespace kv
