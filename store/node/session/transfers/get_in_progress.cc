#include "store/node/session/transfers/get_in_progress.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kv {

GetInProgress::GetInProgress(std::shared_ptr<SessionCore> session, const OpenSpace& space, FrameType type,
                             const GetOrder& order, BlockPath path)
    : session_(std::move(session)),
      node_(session_->node),
      space_(space.id),
      space_name_(space.name),
      type_(type),
      order_(order),
      path_(std::move(path)),
      began_(node_.clock.now()),
      is_inline_(path_.way() == Path::kInline),
      in_flight_(std::make_shared<GetInFlight>(session_, began_, type_)) {
  // Unmeasured time counts as its main cause: inline bytes wait for the client, others for a copy or a device.
  in_flight_->about = {.space = space_,
                       .space_name = space.shown_name,
                       .type = type_,
                       .block_count = order.block_count,
                       .trace = order.trace,
                       .rest = is_inline_ ? &RequestPhases::client : &RequestPhases::move};
}

error_code GetInProgress::first_pinned(error_code error) {
  // From here on it counts as a get in flight, successful or not.
  in_flight_->is_pinned = !error;
  if (error) in_flight_.reset();
  return error;
}

std::uint64_t GetInProgress::ahead_bytes_max() const {
  // At most half of the session's queue: a get that filled it would stop the reading of requests, of cancels too.
  return std::min<std::uint64_t>(node_.limits->inline_ahead_bytes, node_.limits->queued_bytes_max / 2);
}

bool GetInProgress::goes_at_once(std::uint64_t bytes) const {
  constexpr std::uint64_t kCopiedBytesMax = 256 * 1024;
  if (path_.has_region()) return path_.is_shared_memory() && bytes <= kCopiedBytesMax;
  return bytes <= node_.limits->inline_frame_bytes && session_->writer.queued_bytes() < ahead_bytes_max();
}

std::function<void(bool)> GetInProgress::kept(std::span<const ReadyBlock> blocks) const {
  std::vector<Owner> owners;
  for (const ReadyBlock& block : blocks) {
    if (block.owner) owners.push_back(block.owner);
  }
  return [window = window_, owners = std::move(owners)](bool sent) {
    window->get->has_failed = window->get->has_failed || !sent;
  };
}

/// glibc moves pieces of this size with `rep movsb`, which does not read the lines it is about to overwrite. 1.2 times
/// as fast as one call for 2 MiB, at no cost to a reader on another core.
void GetInProgress::copy_in_pieces(std::span<std::byte> to, std::span<const std::byte> from) {
  constexpr std::size_t kPieceBytes = 256 * 1024;
  KV_ASSERT(to.size() == from.size());
  for (std::size_t at = 0; at < from.size(); at += kPieceBytes)
    std::memcpy(to.data() + at, from.data() + at, std::min(kPieceBytes, from.size() - at));
}

void GetInProgress::cancel() {
  is_cancelled_ = true;
  stop_moves();
  // Withdraws queued blocks. The frame being written is completed: half a frame would end the session.
  if (in_flight_) session_->writer.withdraw(OwnerId(in_flight_.get()));
  if (wake_ != nullptr) wake_->set();
}

void GetInProgress::cancel_late() {
  is_late_ = true;
  cancel();
}

std::optional<Failure> GetInProgress::why_unfinished() const {
  if (outcome_.error && !(is_cancelled_ && outcome_.error == Errc::kCancelled))
    return Failure{Errc::kUnavailable, "the transfer broke: " + outcome_.error.message()};
  if (is_late_) return Failure{Errc::kStaleLease, "took longer than get-seconds; what was sent so far is good"};
  if (met_hole_) return Failure{Errc::kNoRegion, "region: memory was taken out of the memfd after it was lent"};
  if (is_cancelled_) return Failure{Errc::kCancelled, "cancelled"};
  return std::nullopt;
}

void GetInProgress::finish() {
  KV_ASSERT(in_flight_ && !is_moving());
  in_flight_->has_failed = in_flight_->has_failed || is_cancelled_ || outcome_.error;
  // Pins end before the answer: a client may use the end at once to ask for blocks that the pins kept from eviction.
  window_.reset();
  in_flight_.reset();
  if (const LeaseId lease = unused_lease(); lease != LeaseId{})
    node_.store.with([&](Store& store) { static_cast<void>(store.release(session_->id, lease)); });
  const std::uint32_t broken = outcome_.broken | path_.broken();
  if (const auto why = why_unfinished()) {
    const std::string op = type_ == FrameType::kSetGet ? "set_get: " : "get: ";
    session_->replies.refuse(type_, request_id(), why->code, op + why->text, broken);
  } else {
    answer(broken);
  }
  path_ = {};  // after the answer: a pending removal of the region is answered next
}

}  // namespace kv
