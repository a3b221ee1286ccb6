#include "store/node/session/core/session_rdma.h"

#include <utility>

#include "base/assert.h"
#include "transport/frames/frame_message.h"
#include "transport/verbs/verbs_wire.h"

namespace kv {

SessionRdma::SessionRdma(SessionCore& session, std::shared_ptr<VerbsThread> thread, MessageHandler on_message)
    : session_(session) {
  if (!thread) return;
  SessionLanes::Listener listener;
  listener.on_broken = [this](std::uint32_t lane, error_code why) { on_broken(lane, why); };
  listener.on_message = std::move(on_message);
  lanes_ = std::make_unique<SessionLanes>(std::move(thread), session.executor, std::move(listener));
}

bool SessionRdma::takes_messages() const { return lanes_ && lanes_->config().message_count_max > 0; }

std::uint32_t SessionRdma::width() const { return lanes_ ? lanes_->config().lane_count_max : 0; }

void SessionRdma::on_broken(std::uint32_t lane, error_code why) {
  const bool carried_messages = lane == lanes_->message_lane();
  session_.warn(LogKind::kLane, [&] {
    return fmt::format(
        "lane {} broke: {}; {}", lane, why.message(),
        carried_messages ? "requests were on it, so the session ends" : "the client is told, and may offer it again");
  });
  // An answer on the lane is lost, and the client would wait until its deadline. Ending the session informs it now.
  if (carried_messages && !session_.is_ending) session_.terminate(SessionEnd::kBroken);
}

// -- lanes and memory

void SessionRdma::on_connect(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const auto fail = [&](Errc code, const std::string& message) {
    session_.refuse(frame, code, "verbs_connect: " + message);
  };
  const auto* request = read_table<wire::VerbsConnectRequest>(frame.table);
  if (request == nullptr || request->lanes() == nullptr || request->lanes()->size() == 0)
    return fail(Errc::kBadRequest, "the table fails verification or has no lane");
  if (!lanes_) return fail(Errc::kUnsupported, "this node has no RDMA");
  // Connecting blocks a separate thread for a while, so at most one call of each session waits there.
  if (lanes_->is_connecting()) return fail(Errc::kBusy, "another is in progress");
  const std::uint32_t lane_count_max = lanes_->config().lane_count_max;
  std::vector<SessionLanes::Offer> offers;
  for (const wire::LaneOffer* each : *request->lanes()) {
    const std::string field = fmt::format("lanes[{}].", offers.size());
    const bool has_messages = lanes_->config().message_count_max > 0;
    const std::uint32_t lane_max = has_messages ? lane_count_max : lane_count_max - 1;
    if (each->lane() > lane_max || offers.size() > lane_max)
      return fail(Errc::kBadRequest, field + count_text("lane", each->lane(), lane_max));
    // The lane for messages has the number behind all others; it alone posts RECVs.
    if ((each->lane() == lane_count_max) != (each->messages() > 0) || each->messages() > kMessageCountMax)
      return fail(Errc::kBadRequest,
                  fmt::format("{}{}; at least 1 on lane {}, 0 on others", field,
                              count_text("messages", each->messages(), kMessageCountMax), lane_count_max));
    for (const SessionLanes::Offer& other : offers) {
      if (other.lane == each->lane())
        return fail(Errc::kBadRequest, fmt::format("{}lane: {}, twice", field, each->lane()));
    }
    const auto end = verbs::decode(each->end());
    if (!end) return fail(Errc::kBadRequest, field + end.error().text);
    offers.push_back({each->lane(), *end, each->messages()});
  }
  // The session outlives the call: its end waits until every job has ended.
  const auto job = std::make_shared<SessionJob>(session_.shared_from_this());
  lanes_->connect(std::move(offers), [this, id, job](const std::vector<SessionLanes::Answer>& answers) {
    answer_connect(id, answers);
    session_.writer.flush();
    job->end();
  });
}

void SessionRdma::answer_connect(std::uint64_t request_id, const std::vector<SessionLanes::Answer>& answers) {
  for (const SessionLanes::Answer& each : answers) {
    const std::string refusal = each.end ? "" : each.why;
    const bool is_new = std::exchange(refusals_[each.lane], refusal) != refusal;
    if (is_new && !refusal.empty())  // a client asks every few seconds
      session_.warn(LogKind::kLane, [&] { return fmt::format("lane {}: {}", each.lane, refusal); });
  }
  session_.replies.reply(FrameType::kVerbsConnect, request_id, 0, [&](FlatBufferBuilder& builder) {
    std::vector<flatbuffers::Offset<wire::LaneAnswer>> lanes;
    for (const SessionLanes::Answer& each : answers) {
      lanes.push_back(each.end ? wire::CreateLaneAnswer(builder, each.lane, verbs::encode(builder, *each.end), 0,
                                                        each.message_count)
                               : wire::CreateLaneAnswerDirect(builder, each.lane, 0, each.why.c_str()));
    }
    return wire::CreateVerbsConnectResponseDirect(builder, &lanes);
  });
}

std::optional<RemoteMemory> SessionRdma::read_memory(const Frame& frame, const wire::RegionAddRequest& request) {
  constexpr std::size_t kSliceCountMax = 4096;
  constexpr std::uint64_t kSliceBytesMin = 64 * 1024;  // or a block could take a request for each of its bytes
  KV_ASSERT(lanes_ && request.slices() != nullptr && request.slices()->size() > 0);
  const auto fail = [&](Errc code, const std::string& message) -> std::optional<RemoteMemory> {
    session_.refuse(frame, code, message);
    return std::nullopt;
  };
  const auto& given = *request.slices();
  if (given.size() > kSliceCountMax) return fail(Errc::kTooLarge, count_text("slices", given.size(), kSliceCountMax));
  RemoteMemory memory;
  std::vector<RemoteSlice>& slices = memory.slices;
  std::uint64_t total = 0;
  for (const wire::RegionSlice* each : given) {
    const auto rkeys = numbers_of(each->rkeys());
    const std::string field = fmt::format("slices[{}].", slices.size());
    if (rkeys.empty() || rkeys.size() > width() || (!slices.empty() && rkeys.size() != slices[0].rkeys.size())) {
      return fail(Errc::kBadRequest,
                  fmt::format("{}rkeys: {}, the same count, 1..{}, is due in each", field, rkeys.size(), width()));
    }
    const bool is_last = slices.size() + 1 == given.size();
    // The last of these tests excludes an address so high that the slice would wrap round to 0.
    if (each->bytes() < (is_last ? 1 : kSliceBytesMin) || each->bytes() > request.bytes() - total ||
        each->address() > ~each->bytes()) {
      return fail(Errc::kBadRequest,
                  fmt::format("{}bytes: {} at {}, with {} of the region left; all but the last have at least 65536",
                              field, each->bytes(), each->address(), request.bytes() - total));
    }
    slices.push_back({total, each->address(), each->bytes(), std::vector<std::uint32_t>(rkeys.begin(), rkeys.end())});
    total += each->bytes();
  }
  if (total != request.bytes())
    return fail(Errc::kBadRequest, fmt::format("bytes: {}, the slices have {}", request.bytes(), total));
  // One bit for each lane that has a key. Fewer keys than lanes are allowed: the other lanes cannot reach the memory.
  memory.reach = static_cast<std::uint32_t>((std::uint64_t{1} << slices[0].rkeys.size()) - 1);
  return memory;
}

// -- moves

void SessionRdma::move(verbs::Direction direction, std::span<const Placement> placements, const RemoteMemory& memory,
                       std::uint32_t reach, Owner owner, std::function<void(const MoveOutcome&)> ended) {
  KV_ASSERT(up(reach) != 0 && owner && (reach & ~memory.reach) == 0);
  const RemoteSlice& last = memory.slices.back();
  for (const Placement& each : placements) {
    // The device is given addresses: beyond the region lies foreign memory.
    KV_ASSERT(each.region_offset <= last.offset + last.bytes &&
              each.slot.size() <= last.offset + last.bytes - each.region_offset);
  }
  lanes_->move(direction, placements, memory.slices, reach, std::move(owner), std::move(ended));
}

void SessionRdma::verify(std::function<void()> call, std::function<void()> then) {
  KV_ASSERT(lanes_);
  lanes_->verifiers().run(std::move(call), session_.executor, std::move(then));
}

void SessionRdma::send_message(std::span<const std::byte> message, MessageCargo cargo) {
  KV_ASSERT(has_room() && message.size() <= kMessageBytesMax);
  const bool sent = lanes_->send_message(message, std::move(cargo));
  if (!sent) session_.terminate(SessionEnd::kBroken);  // the device refused
}

std::optional<std::vector<verbs::Stretch>> SessionRdma::cargo(std::span<const Placement> placements,
                                                              const RemoteMemory& memory, std::uint32_t reach) const {
  // Cargo and answer are posted as one chain. Beyond a few blocks the other lanes are faster, despite an extra round.
  if (!has_room() || placements.size() > kCargoBlocksMax || (reach & 1) == 0)  // lane 0's keys are good for messages
    return std::nullopt;
  auto stretches = lanes_->stretches_before_message(placements, memory.slices);
  if (stretches.size() > SessionLanes::kCargoStretchesMax) return std::nullopt;
  return stretches;
}

void SessionRdma::fail_all() {
  if (lanes_) lanes_->fail_all();
}

}  // namespace kv
