// client/calls/set_get.cc: the read of blocks that stand alone. A block enters as a hash and leaves as verified bytes
// at the front of its destination, or with the reason for its absence.
//
// Each owner gets one request for all its blocks, all at once. The answer comes in pieces, in the node's order, each
// some blocks by index, with lengths and checksums. Their bytes follow in the frame, or are already in the lent region.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "client/calls/staged_calls.h"
#include "client/client.h"
#include "client/core/client_core.h"

namespace kv {
namespace {

constexpr std::uint8_t kTierMemory = 1, kTierDisk = 2;  ///< In wire terms.

struct SetGetPlan {
  TargetBlocks blocks;  ///< By position in the caller's list.
  NamespaceId space_id;
  std::size_t block_bytes_max = 0;
  bool verify = true, memory_only = false;
  TimePoint until;
};

/// The part of a get that one node answers, landing.
///   1. A block is reported once, with a length that fits its destination. Anything else is a violation.
///   2. A block counts only once its bytes have landed and passed.
///   3. The node may still write the destinations of all unreported blocks: unfinished_destinations().
///   4. With staging memory, only this side writes the caller's memory, and only during the call.
class SetGetCall final : public Call {
 public:
  SetGetCall() { type = FrameType::kSetGet; }

  const SetGetPlan* plan = nullptr;
  const OwnedChain* part = nullptr;
  StagedCall staged;
  std::uint64_t lease = 0;  ///< Valid in session_wanted.

  /// The outcome of block i of the part.
  SetGetBlock outcome(std::size_t i) const {
    SetGetBlock outcome = i < blocks_.size() ? blocks_[i].outcome : SetGetBlock{};
    if (outcome.has_landed || outcome.why) return outcome;
    outcome.why = error() ? error() : i >= asked_ ? make_error_code(Errc::kTooLarge) : error_code();
    return outcome;
  }

 private:
  error_code send(CallSession& session) override;
  std::string on_more(CallSession& session, const FrameReader::Frame& frame) override;
  void on_payload(const BlockSink& sink) override;
  std::string on_last(const FrameReader::Frame& frame) override;
  std::vector<std::span<const std::byte>> unfinished_destinations() const override;

  struct Block {
    bool is_told = false;  ///< The node has reported it.
    SetGetBlock outcome;
  };
  std::span<std::byte> wanted_at(std::size_t i) const { return plan->blocks[part->position(i)]; }
  std::size_t room(std::size_t i) const { return std::min(wanted_at(i).size(), plan->block_bytes_max); }
  bool is_staged() const { return region && staged.room; }
  /// Where the node writes block i.
  std::span<std::byte> destination(std::size_t i) const { return is_staged() ? staged.at(i, room(i)) : wanted_at(i); }
  bool fetch(std::size_t i, std::size_t bytes, const BlockTarget& target);
  void landed(std::size_t i, bool is_good);

  std::size_t asked_ = 0;  ///< Leading blocks of the part in the request.
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> arriving_;  ///< Blocks with an arriving payload.
  std::vector<std::uint64_t> sums_;      ///< Of the block being fetched.
  std::size_t told_count_ = 0;
};

error_code SetGetCall::send(CallSession& session) {
  const LinkTerms& terms = session.terms();
  const std::size_t per_block = sizeof(BlockHash) + sizeof(std::uint32_t) + (region ? sizeof(std::uint64_t) : 0);
  const GroupPart taken = groups_in_request(terms, *part, per_block);
  asked_ = taken.name_count;
  if (asked_ == 0) return Errc::kTooLarge;
  blocks_.assign(asked_, {});
  arriving_.clear();
  told_count_ = 0;

  auto& builder = session.shared().new_request();
  const auto hashes = builder.CreateVectorOfStructs(wire_hashes(part->hashes), asked_);
  const NamedRegion named =
      name_region(session, builder, region.get(), asked_, [this](std::size_t i) { return destination(i); });
  const std::uint64_t own_lease = session_wanted.get() == &session ? lease : 0;  // another session has its own ids
  std::uint32_t* list = nullptr;
  const auto rooms = builder.CreateUninitializedVector(asked_, &list);
  for (std::size_t i = 0; i < asked_; ++i) list[i] = static_cast<std::uint32_t>(room(i));
  const auto groups = wire_groups(builder, *part, taken.group_count);
  wire::Trace trace;
  return send_table(
      session, wire::CreateSetGetRequest(builder, space_handle(), hashes, own_lease, named.handle, named.offsets, rooms,
                                         plan->memory_only ? kTierMemory : kTierDisk,
                                         time_left_us(plan->until, session.shared().clock), named.lanes, space_check(),
                                         groups, wire_trace(trace)));
}

std::string SetGetCall::on_more(CallSession& session, const FrameReader::Frame& frame) {
  const auto* answer = read_table<wire::SetGetPart>(frame.table);
  if (answer == nullptr || answer->blocks() == nullptr || answer->block_bytes() == nullptr ||
      answer->checksums() == nullptr || answer->blocks()->size() != answer->block_bytes()->size())
    return "set_get: malformed";
  const flatbuffers::uoffset_t count = answer->blocks()->size();
  std::size_t stripes = 0;
  for (flatbuffers::uoffset_t k = 0; k < count; ++k) {
    const std::uint32_t i = answer->blocks()->Get(k), bytes = answer->block_bytes()->Get(k);
    if (i >= asked_ || std::exchange(blocks_[i].is_told, true))
      return "set_get: block " + std::to_string(i) + " is told of twice, or was not asked for";
    if (bytes == 0 || bytes > room(i))
      return "set_get: a block of " + std::to_string(bytes) + " bytes where there is room for " +
             std::to_string(room(i));
    stripes += stripe_count(bytes);
    ++told_count_;
  }
  if (stripes != answer->checksums()->size()) {
    return "set_get: " + std::to_string(answer->checksums()->size()) + " checksums for " + std::to_string(stripes) +
           " stripes";
  }
  // A node sends inline the blocks that it cannot move into the region: those on disk, when it moves by RDMA.
  const bool is_inline = !region || frame.header.payload_bytes > 0;
  std::vector<BlockTarget>* const targets = is_inline ? &session.land() : nullptr;
  arriving_.clear();
  const std::uint64_t* sums = answer->checksums()->data();  // little endian, as this host
  std::uint64_t part_bytes = 0;
  for (flatbuffers::uoffset_t k = 0; k < count; ++k) {
    const std::uint32_t i = answer->blocks()->Get(k), bytes = answer->block_bytes()->Get(k);
    BlockTarget target;
    target.bytes = wanted_at(i).first(bytes);
    target.seed = set_checksum_seed(plan->space_id, part->hashes[i], bytes);
    if (plan->verify) target.checksums = {sums, stripe_count(bytes)};
    sums += stripe_count(bytes);
    blocks_[i].outcome.block_bytes = bytes;
    part_bytes += bytes;
    if (is_inline) {
      targets->push_back(target);
      arriving_.push_back(i);
    } else {  // already in the region: verified while the node copies the next piece
      landed(i, is_staged() ? fetch(i, bytes, target) : passes(target));
      if (plan->verify || is_staged()) session.verified(bytes);
    }
  }
  session.shared().metrics.received(session.path_of(is_inline ? nullptr : region.get()), part_bytes);
  return {};
}

/// Copies from staging memory and verifies the copy at its destination.
bool SetGetCall::fetch(std::size_t i, std::size_t bytes, const BlockTarget& target) {
  const std::span<const std::byte> from = staged.at(i, bytes);
  if (target.checksums.empty()) {
    std::memcpy(target.bytes.data(), from.data(), bytes);
    return true;
  }
  sums_.resize(target.checksums.size());
  copy_with_checksums(target.seed, target.bytes, from, sums_);
  return std::ranges::equal(sums_, target.checksums);
}

void SetGetCall::landed(std::size_t i, bool is_good) {
  KV_ASSERT(i < blocks_.size() && blocks_[i].is_told && !blocks_[i].outcome.has_landed);
  blocks_[i].outcome.has_landed = is_good;
  if (!is_good) blocks_[i].outcome.why = Errc::kCorruptBlock;
}

/// The sink counts up to the first bad block. Later blocks of that frame are unverified, and given up too; blocks still
/// missing at the deadline have no reason of their own.
void SetGetCall::on_payload(const BlockSink& sink) {
  const std::vector<std::uint32_t> arrived = std::exchange(arriving_, {});
  const std::size_t good = sink.good_count();
  KV_ASSERT(good <= arrived.size());
  for (std::size_t k = 0; k < arrived.size(); ++k) {
    if (k < good) {
      landed(arrived[k], true);
    } else if (sink.failed()) {
      blocks_[arrived[k]].outcome.why = k == good ? Errc::kCorruptBlock : Errc::kUnavailable;
    }
  }
}

std::string SetGetCall::on_last(const FrameReader::Frame& frame) {
  const auto* response = read_table<wire::SetGetResponse>(frame.table);
  if (response == nullptr) return "set_get: malformed";
  session()->cut_lanes(response->broken_lanes());
  if (response->block_count() != told_count_) {
    return "set_get: says " + std::to_string(response->block_count()) + " blocks, sent " + std::to_string(told_count_);
  }
  const auto give_reason = [this](std::uint32_t i, Errc why) {
    if (i >= asked_ || std::exchange(blocks_[i].is_told, true)) return false;
    blocks_[i].outcome.why = why;
    return true;
  };
  const std::size_t long_count = response->too_long() == nullptr ? 0 : response->too_long()->size();
  const std::size_t length_count = response->too_long_bytes() == nullptr ? 0 : response->too_long_bytes()->size();
  if (long_count != length_count) return "set_get: malformed";
  for (flatbuffers::uoffset_t k = 0; k < long_count; ++k) {
    const std::uint32_t i = response->too_long()->Get(k), bytes = response->too_long_bytes()->Get(k);
    if (!give_reason(i, Errc::kTooLarge) || bytes <= room(i) || bytes > plan->block_bytes_max)
      return "set_get: block " + std::to_string(i) + " is not too long";
    blocks_[i].outcome.block_bytes = bytes;
  }
  if (response->unread() == nullptr) return {};
  for (const std::uint32_t i : *response->unread()) {
    if (!give_reason(i, Errc::kDiskFailed)) return "set_get: block " + std::to_string(i) + " is unread and was told of";
  }
  return {};
}

std::vector<std::span<const std::byte>> SetGetCall::unfinished_destinations() const {
  std::vector<std::span<const std::byte>> ranges;
  if (!region) return ranges;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].is_told) append_range(ranges, destination(i).first(room(i)));
  }
  return ranges;
}

/// A group that did not land whole counts as not landed: blocks come one by one, and one may be damaged, or too late.
void give_up_parts(SetGetResult& result, std::span<const std::uint32_t> group_counts) {
  for_each_group(group_counts, result.blocks.size(), [&](std::size_t first, std::size_t count) {
    const auto group = std::span(result.blocks).subspan(first, count);
    if (std::ranges::all_of(group, &SetGetBlock::has_landed)) return;
    const auto reason = std::ranges::find_if(group, [](const SetGetBlock& block) { return bool(block.why); });
    const error_code why = reason == group.end() ? error_code() : reason->why;
    for (SetGetBlock& block : group) {
      result.landed_count -= block.has_landed;
      block.has_landed = false;
      if (!block.why) block.why = why;
    }
  });
}

}  // namespace

Async<SetGetResult> Client::get_set(Space set, Hashes hashes, TargetBlocks blocks, GetOptions options) {
  ClientCore& core = *core_;
  const std::shared_ptr<ClientShared> shared = core.shared;
  if (const error_code refused = core.refuses(set, options.deadline, options.control)) co_return refused;
  const ClientShared::SpaceInfo& info = *core.find_space(set);
  if (!info.record.is_set()) co_return error_code(Errc::kUnsupported);
  if (blocks.size() != hashes.size()) co_return error_code(Errc::kBadRequest);
  if (!check_groups(hashes, options.group_counts).empty()) co_return error_code(Errc::kBadRequest);
  SetGetResult result;
  result.blocks.resize(hashes.size());
  if (hashes.empty()) co_return result;
  const auto found = region_of(shared->memory, blocks);
  if (!found) co_return found.error();
  const auto& region = *found;
  if (region && region->is_device()) co_return error_code(Errc::kUnsupported);
  SetGetPlan plan;
  plan.blocks = blocks;
  plan.space_id = info.id;
  plan.block_bytes_max = info.record.block_bytes();
  plan.verify = shared->config.verify;
  plan.memory_only = options.memory_only;
  plan.until = core.deadline_after(options.deadline);

  // Ask each owner for its part, all at once. Objects that calls point to are declared first, and so outlive them.
  const CallInProgress in_progress(shared, FrameType::kSetGet);
  const RegionUse region_use(region);
  const std::vector<LeasePart> leases = core.leases.take(options.lease);
  const std::vector<OwnedChain> parts = split_set(*core.reachable_map(), hashes, options.group_counts);
  release_unasked(*core.shared, leases, parts);
  // With a lease, one call per node, because the node ends the lease with the get that names it.
  std::vector<StagedPart> cut = cut_for_staging(
      shared->staging, parts,
      [&](std::size_t node) { return !region && leases.empty() && core.links[node]->is_on_this_host(); },
      [&](std::size_t position) { return std::min(blocks[position].size(), plan.block_bytes_max); });
  CallBundle bundle(shared->executor, options.control);
  std::vector<SetGetCall> calls(cut.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SetGetCall& call = calls[i];
    call.plan = &plan;
    call.part = &cut[i].part;
    call.region = region;
    call.staged = std::move(cut[i].staged);
    for (std::size_t k = 0; k < call.part->hashes.size(); ++k) call.data_bytes += blocks[call.part->position(k)].size();
    call.lease = use_lease(leases, *call.part, call);
  }
  StagedStart start(*shared, bundle, plan.until, calls,
                    [&](SetGetCall& call) { core.start(call, call.part->node, set, bundle, plan.until); });
  while (bundle.event.reset(), start.go_on()) co_await bundle.event.wait();

  for (std::size_t number = 0; number < calls.size(); ++number) {
    const SetGetCall& call = calls[number];
    for (std::size_t i = 0; i < call.part->hashes.size(); ++i) {
      SetGetBlock& block = result.blocks[call.part->position(i)] = call.outcome(i);
      if (number >= start.asked_count()) block.why = start.why_not_asked();
      result.landed_count += block.has_landed;
      result.corrupt_count += block.why == Errc::kCorruptBlock;
      if (!result.why && block.why != Errc::kTooLarge) result.why = block.why;
    }
  }
  give_up_parts(result, options.group_counts);
  shared->metrics.got(result.landed_count, hashes.size() - result.landed_count, result.corrupt_count, 0);
  in_progress.done(result.why);
  co_return result;
}

}  // namespace kv
