// client/calls/get.cc: the whole read. A block enters as a hash and leaves as verified bytes in the caller's memory.
//
// get() asks the owner of each part of the chain, all at once. An answer comes in pieces, each some blocks of one
// segment. Their bytes follow in the same frame and are verified while they land (inline), or are already in the lent
// region and are verified there (memfd, RDMA). The result is cut at the first missing block of the whole chain. A node
// that is late and has not begun to answer is replaced by the second node, if that has all of the part; two nodes never
// write to one place. Blocks in a device's memory are verified by the caller, on that device.
#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "client/calls/match_call.h"
#include "client/client.h"
#include "client/core/client_core.h"
#include "transport/frames/frame_message.h"

namespace kv {
namespace {

constexpr std::uint8_t kTierMemory = 1, kTierDisk = 2;  ///< In wire terms.

/// Shared by all parts of one get.
struct GetPlan {
  TargetBlocks blocks;  ///< By position in the whole chain.
  NamespaceId space_id;
  std::size_t block_bytes = 0;
  bool verify = true;
  bool memory_only = false;
  std::size_t first_block = 0;         ///< In the whole chain: earlier blocks are not sent.
  std::span<std::uint64_t> checksums;  ///< For the caller, by position in the whole chain; or empty.
  TimePoint until;
  /// End of each wire segment: whole stripes but the last, strictly increasing.
  boost::container::small_vector<std::uint64_t, 8> ends;
  std::shared_ptr<LentMemory::Region> region;  ///< Holds all destinations; or null.
};

/// Leading blocks of a node's part before first_block.
std::size_t skipped_of(const GetPlan& plan, const OwnedChain& chain) {
  return std::min(plan.first_block - std::min(plan.first_block, chain.first), chain.hashes.size());
}

/// The part of a get that one node answers, landing.
///   1. Pieces come in order: segment by segment, and block by block in each. Any other order is a violation.
///   2. A block counts as good only if it passed in this segment and all earlier ones, and so did all blocks before it.
///   3. unfinished_destinations(): next_block_ and later ones in the current segment, and all later segments.
class GetCall final : public Call {
 public:
  GetCall() { type = FrameType::kGet; }

  const GetPlan* plan = nullptr;
  const OwnedChain* chain = nullptr;
  std::uint64_t lease = 0;  ///< Valid in session_wanted.

  /// Resets the answer before each sending, to this node or another.
  void forget_answer() {
    answered_ = {};
    asked_ = limit_ = segment_ = next_block_ = good_ = part_blocks_ = corrupt_count_ = 0;
    row_broken_ = is_cut_ = false;
    segment_good_.clear();
  }

  /// Leading blocks of the node's part that have all segments, verified.
  std::size_t good() const { return good_until(plan->ends.size() - 1); }
  /// The same, up to this segment. Final once the segment is done or the call has ended.
  std::size_t good_until(std::size_t segment) const {
    if (segment < segment_) return segment_good_[segment];
    return segment == segment_ ? good_ : 0;
  }
  /// Arrival of the answer's first piece. TimePoint{}: not yet.
  TimePoint answered() const { return answered_; }
  /// Whether the node may write to the destinations, even after this call was given up. Until its last frame.
  bool has_lent() const { return region && (is_sent() || (has_ended() && send_count() > 0 && !was_answered())); }
  /// Whether the caller may have seen a segment of this call's blocks.
  bool may_be_told_of() const { return segment_ > 0; }
  bool segment_done(std::size_t segment) const { return has_ended() || segment < segment_; }
  std::size_t corrupt_count() const { return corrupt_count_; }
  /// Why good() is less than the whole part.
  error_code reason() const {
    if (corrupt_count_ > 0) return Errc::kCorruptBlock;
    // Only the caller reports a cancellation: a node asked to stop for a second one may do so too late for it.
    if (is_cut_ || (error() == Errc::kCancelled && was_answered())) return Errc::kUnavailable;
    if (error()) return error();
    return asked_ < chain->hashes.size() && good() == asked_ ? make_error_code(Errc::kTooLarge) : error_code();
  }

 private:
  error_code send(CallSession& session) override;
  std::string on_more(CallSession& session, const FrameReader::Frame& frame) override;
  void on_payload(const BlockSink& sink) override;
  std::string on_last(const FrameReader::Frame& frame) override;
  std::vector<std::span<const std::byte>> unfinished_destinations() const override;

  std::size_t segment_begin(std::size_t segment) const {
    return segment == 0 ? 0 : static_cast<std::size_t>(plan->ends[segment - 1]);
  }
  std::size_t segment_bytes(std::size_t segment) const {
    return static_cast<std::size_t>(plan->ends[segment]) - segment_begin(segment);
  }
  std::string check(const wire::GetPart& part) const;  ///< Empty, or a violation of 1.
  /// Destination of block `own` of the node's part in the current segment, and how its bytes are verified.
  BlockTarget target(std::size_t own, std::span<const std::uint64_t> sums) const;
  void tell(std::size_t own, std::span<const std::uint64_t> sums) const;
  void next_segment();
  void landed(std::size_t good, std::size_t count);  ///< Of `count` blocks after next_block_, the first `good` passed.

  void note_answer() {
    if (answered_ == TimePoint{}) answered_ = session()->shared().clock.now();
  }

  TimePoint answered_{};
  std::size_t asked_ = 0;        ///< Blocks in the request: at most the node's limit.
  std::size_t limit_ = 0;        ///< Blocks expected per segment: asked_, later the first segment's number.
  std::size_t segment_ = 0;      ///< The arriving one; ends.size() after the last.
  std::size_t next_block_ = 0;   ///< In that segment.
  std::size_t good_ = 0;         ///< Leading blocks that passed in this segment and all earlier ones.
  std::size_t part_blocks_ = 0;  ///< Of the piece whose payload is arriving.
  bool row_broken_ = false;      ///< A block of this segment failed: later ones do not count.
  bool is_cut_ = false;          ///< Bytes for a device's memory came inline, and were discarded.
  std::size_t corrupt_count_ = 0;
  boost::container::small_vector<std::size_t, 8> segment_good_;  ///< Of finished segments.
};

error_code GetCall::send(CallSession& session) {
  forget_answer();
  const LinkTerms& terms = session.terms();
  const std::size_t per_block = sizeof(BlockHash) + (region ? sizeof(std::uint64_t) : 0);
  asked_ = blocks_in_request(terms, chain->hashes.size(), per_block, plan->ends.size() * sizeof(std::uint64_t));
  const std::size_t skip = skipped_of(*plan, *chain);
  if (asked_ <= skip) return Errc::kTooLarge;
  limit_ = asked_;
  next_block_ = good_ = skip;

  auto& builder = session.shared().new_request();
  const auto hashes = builder.CreateVectorOfStructs(wire_hashes(chain->hashes), asked_);
  const NamedRegion named = name_region(session, builder, region.get(), asked_,
                                        [this](std::size_t i) { return plan->blocks[chain->position(i)]; });
  flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>> ends;
  if (plan->ends.size() > 1) ends = builder.CreateVector(plan->ends.data(), plan->ends.size());
  // A lease is valid in its session only, not in another one after a reconnect.
  const std::uint64_t own_lease = session_wanted.get() == &session ? lease : 0;
  wire::Trace trace;
  builder.Finish(wire::CreateGetRequest(builder, space_handle(), hashes, own_lease, named.handle, named.offsets, ends,
                                        plan->memory_only ? kTierMemory : kTierDisk,
                                        time_left_us(plan->until, session.shared().clock), named.lanes, space_check(),
                                        wire_trace(trace), static_cast<std::uint32_t>(skip)));
  // A message is a whole answer, while a larger get verifies blocks during the transfer of others.
  if (region && plan->ends.size() == 1 && asked_ * plan->block_bytes <= kMessageGetBytesMax) {
    const std::size_t sums_bytes = asked_ * stripe_count(plan->block_bytes) * sizeof(std::uint64_t);
    session.send_small(type, request_id(), builder, sums_bytes + kTableOverheadBytes);
  } else {
    session.send_frame(type, request_id(), builder);
  }
  return {};
}

std::string GetCall::on_more(CallSession& session, const FrameReader::Frame& frame) {
  note_answer();
  const auto* part = read_table<wire::GetPart>(frame.table);
  if (part == nullptr || part->block_count() == 0) return "get: a part without blocks";
  // A first segment that ends early means that the node holds fewer blocks than requested. Only the first: all later
  // ones have the same number of blocks.
  if (part->segment() == segment_ + 1 && part->first_block() == 0 && segment_ == 0 && next_block_ > 0) next_segment();
  std::string what = check(*part);
  if (!what.empty()) return what;

  const std::size_t first = next_block_, count = part->block_count();  // landed() moves next_block_ on
  const std::size_t bytes = segment_bytes(segment_), stripes = stripe_count(bytes);
  const std::span<const std::uint64_t> sums(part->checksums()->data(), count * stripes);  // little endian, as this host
  const auto sums_of = [&](std::size_t i) { return sums.subspan(i * stripes, stripes); };
  // A node sends inline the blocks that it cannot move into the region: those on disk, when it moves by RDMA.
  const bool is_inline = !region || frame.header.payload_bytes > 0;
  const bool is_device = region && region->is_device();

  if (is_inline && is_device) {  // the node lost its lanes; this side must not write there
    if (frame.header.payload_bytes != count * bytes) return "get: a payload of another size";
    if (!is_cut_) session.send_cancel(request_id());
    is_cut_ = true;
    session.swallow();
    landed(0, count);
    return {};
  }
  session.shared().metrics.received(session.path_of(is_inline ? nullptr : region.get()), count * bytes);
  if (is_inline) {
    std::vector<BlockTarget>& targets = session.land();
    for (std::size_t i = 0; i < count; ++i) {
      tell(first + i, sums_of(i));
      targets.push_back(target(first + i, sums_of(i)));
    }
    part_blocks_ = count;
    return {};
  }
  // The bytes are in the region: verify them while the node copies the next piece.
  for (std::size_t i = 0; i < count; ++i) {
    tell(first + i, sums_of(i));
    landed(is_device || passes(target(first + i, sums_of(i))) ? 1 : 0, 1);
  }
  // Verifying takes I/O thread time: the session yields after a number of bytes, so that deadlines are kept.
  if (plan->verify && !is_device) session.verified(count * bytes);
  return {};
}

std::string GetCall::check(const wire::GetPart& part) const {
  if (part.segment() != segment_ || segment_ >= plan->ends.size() || part.first_block() != next_block_) {
    return "get: part of segment " + std::to_string(part.segment()) + " block " + std::to_string(part.first_block()) +
           " out of order";
  }
  if (part.block_count() > limit_ - next_block_) {
    return "get: " + std::to_string(part.block_count()) + " blocks in a part, " + std::to_string(limit_ - next_block_) +
           " are left";
  }
  const std::size_t sum_count = part.checksums() == nullptr ? 0 : part.checksums()->size();
  const std::size_t wanted = part.block_count() * stripe_count(segment_bytes(segment_));
  if (sum_count != wanted) {
    return "get: " + std::to_string(sum_count) + " checksums for " + std::to_string(wanted) + " stripes";
  }
  return {};
}

BlockTarget GetCall::target(std::size_t own, std::span<const std::uint64_t> sums) const {
  const std::size_t begin = segment_begin(segment_), bytes = segment_bytes(segment_);
  const std::span<std::byte> block = plan->blocks[chain->position(own)];
  KV_ASSERT(own < limit_ && begin + bytes <= block.size());  // before anything lands there
  BlockTarget target;
  target.bytes = block.subspan(begin, bytes);
  target.seed = checksum_seed(plan->space_id, chain->hashes[own]);
  target.first_stripe = begin / kStripeBytes;
  if (plan->verify) target.checksums = sums;
  return target;
}

/// Hands the checksums to the caller, who may verify bytes that this processor cannot read.
void GetCall::tell(std::size_t own, std::span<const std::uint64_t> sums) const {
  if (plan->checksums.empty()) return;
  const std::size_t block = chain->position(own) * stripe_count(plan->block_bytes);
  const std::size_t first_stripe = segment_begin(segment_) / kStripeBytes;
  KV_ASSERT(block + first_stripe + sums.size() <= plan->checksums.size());
  std::ranges::copy(sums, plan->checksums.begin() + static_cast<std::ptrdiff_t>(block + first_stripe));
}

void GetCall::on_payload(const BlockSink& sink) {
  const std::size_t count = std::exchange(part_blocks_, 0);
  KV_ASSERT(sink.good_count() <= count);
  // After a deadline in the middle of a payload, only the landed blocks count, and none as corrupt.
  if (sink.failed() || sink.good_count() == count) {
    landed(sink.good_count(), count);
  } else {
    landed(sink.good_count(), sink.good_count());
  }
}

void GetCall::landed(std::size_t good, std::size_t count) {
  KV_ASSERT(good <= count && count <= limit_ - next_block_);
  next_block_ += count;
  if (!row_broken_) {  // 2
    // A block that failed in an earlier segment stays bad.
    const std::size_t bound = segment_ == 0 ? limit_ : segment_good_[segment_ - 1];
    good_ = std::min(good_ + good, bound);
    row_broken_ = good < count;
    if (row_broken_ && !is_cut_) ++corrupt_count_;
  }
  if (next_block_ == limit_) next_segment();
}

void GetCall::next_segment() {
  KV_ASSERT(segment_good_.size() == segment_ && segment_ < plan->ends.size());
  if (segment_ == 0) limit_ = next_block_;
  segment_good_.push_back(good_);
  ++segment_;
  next_block_ = 0;
  if (segment_ < plan->ends.size()) {
    good_ = 0;
    row_broken_ = false;
    // Wakes get(), which reports the segment to the caller if all nodes have it.
    if (bundle != nullptr) bundle->event.set();
  }
}

std::string GetCall::on_last(const FrameReader::Frame& frame) {
  note_answer();
  const auto* response = read_table<wire::GetResponse>(frame.table);
  if (response == nullptr) return "get: malformed";
  session()->cut_lanes(response->broken_lanes());
  const std::size_t last = plan->ends.size() - 1;
  // With one segment, a following piece cannot show that the node holds fewer blocks than requested.
  if (last == 0 && segment_ == 0 && next_block_ > 0) next_segment();
  const std::size_t delivered = segment_ > last ? limit_ : 0;
  if (response->block_count() > delivered) {
    return "get: says " + std::to_string(response->block_count()) + " blocks, sent " + std::to_string(delivered);
  }
  // The node's final count decides: it may be lower than the number of blocks sent.
  if (segment_ > last) segment_good_[last] = std::min<std::size_t>(segment_good_[last], response->block_count());
  return {};
}

std::vector<std::span<const std::byte>> GetCall::unfinished_destinations() const {
  std::vector<std::span<const std::byte>> ranges;
  if (!region || segment_ >= plan->ends.size()) return ranges;
  // Before the last segment every block is unfinished, so the node may still write to any.
  const std::size_t first = segment_ + 1 == plan->ends.size() ? next_block_ : 0;
  for (std::size_t i = first; i < limit_; ++i) {
    append_range(ranges, plan->blocks[chain->position(i)]);
  }
  return ranges;
}

/// Cuts at the first gap of the whole chain, given each part's segments up to `segment`. A hit is a prefix of the whole
/// chain: blocks behind another node's gap are discarded.
GetResult cut_at_gap(std::span<const GetCall> calls, std::size_t segment, std::size_t block_count) {
  GetResult result;
  result.block_count = block_count;
  for (const GetCall& call : calls) {
    result.corrupt_count += call.corrupt_count();
    const std::size_t good = call.good_until(segment);
    if (good >= call.chain->hashes.size()) continue;
    const std::size_t gap = call.chain->position(good);
    KV_ASSERT(gap < block_count);
    if (gap < result.block_count) {
      result.block_count = gap;
      result.why = call.reason();
    }
  }
  return result;
}

/// Reports to the caller each of its segments that all nodes have finished.
class SegmentReport {
 public:
  SegmentReport(const GetPlan& plan, const GetOptions& options, std::size_t block_count)
      : plan_(plan), options_(options), block_count_(block_count) {}

  void run(std::span<const GetCall> calls) {
    if (options_.on_segment.call == nullptr) return;
    for (; next_ < std::max<std::size_t>(1, options_.segment_ends.size()); ++next_) {
      // The caller's segment is complete with the wire segment that holds its end.
      while (next_ < options_.segment_ends.size() && plan_.ends[wire_segment_] < options_.segment_ends[next_]) {
        KV_ASSERT(wire_segment_ + 1 < plan_.ends.size());  // the last one ends with the block
        ++wire_segment_;
      }
      const auto has_it = [this](const GetCall& call) { return call.segment_done(wire_segment_); };
      if (!std::ranges::all_of(calls, has_it)) return;
      const GetResult so_far = cut_at_gap(calls, wire_segment_, block_count_);
      // This segment and all later ones have no good block.
      if (so_far.block_count == 0) return;
      options_.on_segment.call(options_.on_segment.context, next_, so_far.block_count);
    }
  }

 private:
  const GetPlan& plan_;
  const GetOptions& options_;
  std::size_t block_count_, next_ = 0, wire_segment_ = 0;
};

/// The second nodes of a get's parts. Two nodes must not write to one place: the later one's bytes might be wrong,
/// after the other's were verified. So the second node is first asked whether it has the part, which costs no bytes. If
/// it has, and the first has still not begun, the first call is given up; bytes that arrive inline are swallowed. In
/// lent memory the first node could still write: it is asked to stop, and the second one starts after its confirmation.
/// Without that, or if the first has begun and a segment was reported, the get waits for the first.
class GetHedges {
 public:
  GetHedges(ClientCore& core, Space space, const GetPlan& plan, std::span<GetCall> calls, CallBundle& bundle)
      : core_(core),
        space_(space),
        plan_(plan),
        calls_(calls),
        bundle_(bundle),
        alarm_(core.shared->deadlines, bundle),
        tries_(calls.size()) {
    sent_ = core.shared->clock.now();
    for (std::size_t i = 0; i < tries_.size(); ++i)
      tries_[i].late = sent_ + core.hedger.begin(calls[i].chain->node, Hedger::Kind::kGet);
    arm();
  }

  /// Call this whenever the bundle's event was set.
  void look() {
    const TimePoint now = core_.shared->clock.now();
    for (std::size_t i = 0; i < tries_.size(); ++i) {
      Try& each = tries_[i];
      if (each.is_stopping) {
        go_on(each, calls_[i], now);
      } else if (each.probe) {
        settle(each, calls_[i], now);
      } else if (now >= each.late) {
        each.late = TimePoint::max();
        if (is_silent(calls_[i])) probe(each, calls_[i], now);
      }
    }
    arm();
  }
  /// Call this after the last call has ended.
  void count() {
    const TimePoint now = core_.shared->clock.now();
    for (std::size_t i = 0; i < tries_.size(); ++i) {
      const GetCall& call = calls_[i];
      Hedger::Node& node = core_.hedger.node(call.chain->node);
      if (tries_[i].is_switched) {
        node.wins += call.good() == call.chain->hashes.size();
      } else if (call.answered() != TimePoint{}) {
        node.get.add(call.answered() - sent_);
      } else if (call.error() == asio::error::timed_out || call.error() == Errc::kCancelled) {
        node.get.add(now - sent_);
      }
    }
  }

 private:
  struct Try {
    TimePoint late{};  ///< max: already handled.
    std::size_t second = 0;
    std::unique_ptr<MatchCall> probe;
    bool is_settled = false, is_stopping = false, is_switched = false;
  };

  static bool is_silent(const GetCall& call) { return !call.has_ended() && !call.has_begun(); }
  bool is_over(TimePoint now) const { return now >= plan_.until || bundle_.control.is_cancelled(); }

  void probe(Try& each, const GetCall& call, TimePoint now) {
    const auto second = core_.second_node(*core_.reachable_map(), *call.chain);
    if (!second || now >= plan_.until || !core_.hedger.take(call.chain->node, now)) return;
    each.second = *second;
    each.probe = std::make_unique<MatchCall>();
    each.probe->chain.hashes = call.chain->hashes;
    each.probe->is_elsewhere = true;  // so that it does not count for hot roots
    core_.start(*each.probe, *second, space_, bundle_, plan_.until);
  }
  void settle(Try& each, GetCall& call, TimePoint now) {
    if (each.is_settled) return;
    const bool is_answered = call.has_begun() || (call.has_ended() && !call.error());
    if (!each.probe->has_ended()) {
      if (is_answered) each.probe->cancel();
      return;
    }
    each.is_settled = true;
    const std::size_t found = each.probe->in_memory();  // blocks on its disk would take even longer
    if (!each.probe->error()) core_.hedger.answered(found > 0, now);
    if (is_answered || found < call.chain->hashes.size() || is_over(now)) return;
    if (call.has_lent()) {
      if (call.has_ended()) return;  // its connection broke, and the node may still write
      each.is_stopping = true;
      call.ask_to_stop();
      return;
    }
    if (!call.has_ended()) call.cancel();
    ask_second(each, call, now);
  }
  /// The first node was asked to stop, and may have ended meanwhile.
  void go_on(Try& each, GetCall& call, TimePoint now) {
    if (!call.has_ended()) return;
    each.is_stopping = false;
    if (!call.error() || call.has_lent() || call.may_be_told_of() || is_over(now)) return;
    ask_second(each, call, now);
  }
  void ask_second(Try& each, GetCall& call, TimePoint now) {
    core_.hedger.node(call.chain->node).get.add(now - sent_);
    each.is_switched = true;
    call.lease = 0;
    call.session_wanted.reset();
    call.region = plan_.region;
    call.forget_answer();
    core_.start(call, each.second, space_, bundle_, plan_.until);
  }
  void arm() {
    TimePoint next = TimePoint::max();
    for (std::size_t i = 0; i < tries_.size(); ++i) {
      if (is_silent(calls_[i])) next = std::min(next, tries_[i].late);
    }
    alarm_.arm(next);
  }

  ClientCore& core_;
  const Space space_;
  const GetPlan& plan_;
  const std::span<GetCall> calls_;
  CallBundle& bundle_;
  LateAlarm alarm_;
  TimePoint sent_{};
  boost::container::small_vector<Try, 2> tries_;
};

/// Fills plan.ends with the wire's segments: whole stripes, because checksums are per stripe. Several of the caller's
/// segments may end in one of the wire's. Errors: kBadRequest.
error_code plan_segments(GetPlan& plan, std::span<const std::uint64_t> segment_ends) {
  std::uint64_t before = 0;
  for (const std::uint64_t end : segment_ends) {
    if (end <= before || end > plan.block_bytes) return Errc::kBadRequest;
    before = end;
    const std::uint64_t rounded = (end + kStripeBytes - 1) / kStripeBytes * kStripeBytes;
    const std::uint64_t wire_end = std::min<std::uint64_t>(rounded, plan.block_bytes);
    if (plan.ends.empty() || plan.ends.back() < wire_end) plan.ends.push_back(wire_end);
  }
  if (segment_ends.empty()) plan.ends.push_back(plan.block_bytes);
  const bool is_whole = segment_ends.empty() || before == plan.block_bytes;
  if (!is_whole) return Errc::kBadRequest;
  KV_ASSERT(plan.ends.back() == plan.block_bytes);
  return {};
}

/// Checks the destinations and chooses their region. Errors: kBadRequest, kQuarantined.
error_code plan_destinations(GetPlan& plan, const LentMemory& memory, std::size_t block_count) {
  if (plan.blocks.size() != block_count) return Errc::kBadRequest;
  if (!plan.checksums.empty() && plan.checksums.size() != block_count * stripe_count(plan.block_bytes)) {
    return Errc::kBadRequest;
  }
  if (plan.first_block > 0 && (plan.first_block >= block_count || plan.ends.size() > 1)) return Errc::kBadRequest;
  const auto wanted = plan.blocks.subspan(plan.first_block);
  const auto is_whole = [&](std::span<std::byte> block) { return block.size() == plan.block_bytes; };
  if (!std::ranges::all_of(wanted, is_whole)) return Errc::kBadRequest;
  if (plan.blocks.empty()) return {};
  auto region = region_of(memory, wanted);
  if (!region) return region.error();
  plan.region = *std::move(region);
  if (plan.first_block > 0) {
    if (plan.region && plan.region->is_device()) return Errc::kBadRequest;
    plan.region = nullptr;  // unwanted blocks may have no destination to name
  }
  if (plan.region && plan.region->is_device()) {
    if (plan.checksums.empty()) return Errc::kBadRequest;  // the caller could not verify
    plan.memory_only = true;                               // blocks on disk come inline, and could not land
  }
  return {};
}

}  // namespace

Async<GetResult> Client::get(Space space, Hashes hashes, TargetBlocks blocks, GetOptions options) {
  ClientCore& core = *core_;
  const std::shared_ptr<ClientShared> shared = core.shared;

  // Check everything before any node is asked.
  if (const error_code refused = core.refuses(space, options.deadline, options.control)) co_return refused;
  const ClientShared::SpaceInfo& info = *core.find_space(space);
  if (info.record.is_set()) co_return error_code(Errc::kUnsupported);
  GetPlan plan;
  plan.blocks = blocks;
  plan.space_id = info.id;
  plan.block_bytes = info.record.block_bytes();
  plan.verify = shared->config.verify;
  plan.memory_only = options.memory_only;
  plan.first_block = options.first_block;
  plan.checksums = options.checksums;
  plan.until = core.deadline_after(options.deadline);
  if (const error_code bad = plan_segments(plan, options.segment_ends)) co_return bad;
  if (const error_code bad = plan_destinations(plan, shared->memory, hashes.size())) co_return bad;
  if (hashes.empty()) co_return GetResult{};

  // Ask each owner for its part, all at once. Objects that calls point to are declared first, and so outlive them.
  const CallInProgress in_progress(shared, FrameType::kGet);
  const RegionUse region_use(plan.region);
  const std::vector<LeasePart> leases = core.leases.take(options.lease);
  std::vector<OwnedChain> chains = core.split_found(space, hashes);
  release_unasked(*core.shared, leases, chains);
  std::erase_if(chains, [&](const OwnedChain& chain) { return skipped_of(plan, chain) == chain.hashes.size(); });
  CallBundle bundle(shared->executor, options.control);
  std::vector<GetCall> calls(chains.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    GetCall& call = calls[i];
    const OwnedChain& chain = chains[i];
    call.plan = &plan;
    call.chain = &chain;
    call.region = plan.region;
    call.data_bytes = (chain.hashes.size() - skipped_of(plan, chain)) * plan.block_bytes;
    call.lease = use_lease(leases, chain, call);
    core.start(call, chain.node, space, bundle, plan.until);
  }

  // Meanwhile blocks land and are verified. The caller gets a report of each segment that has landed everywhere.
  SegmentReport report(plan, options, hashes.size());
  std::optional<GetHedges> hedges;
  if (core.hedger.is_on() && core.has_hot_roots()) hedges.emplace(core, space, plan, calls, bundle);
  while (!bundle.running.empty()) {
    bundle.event.reset();
    co_await bundle.event.wait();
    if (hedges) hedges->look();
    report.run(calls);
  }
  if (hedges) hedges->count();
  report.run(calls);  // calls may all have ended before the first wait

  const GetResult result = cut_at_gap(calls, plan.ends.size() - 1, hashes.size());
  shared->metrics.got(result.block_count - std::min(result.block_count, plan.first_block),
                      hashes.size() - std::max(result.block_count, plan.first_block), result.corrupt_count,
                      info.record.block_size());
  in_progress.done(result.why);
  co_return result;
}

}  // namespace kv
