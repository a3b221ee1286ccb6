// client/calls/set_put.cc: the write of blocks that stand alone. Like a put of a chain (put.cc): each owner is offered
// all its blocks, answers which ones it wants, and receives those in batches. The answer has an outcome for each block.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "client/calls/batch_put.h"
#include "client/calls/staged_calls.h"
#include "client/client.h"

namespace kv {
namespace {

constexpr std::size_t kBatchBlocksMax = 4096;  // Blocks may be small: bounds the table of a batch.

struct SetPutPlan {
  SourceBlocks blocks;  ///< By position in the caller's list.
  NamespaceId space_id;
  TimePoint until;
  ReuseHint reuse = ReuseHint::kNone;
};

/// The part of a put that one node gets.
///   1. The first sent_ of the wanted blocks were sent.
class SetPutCall final : public BatchPut {
 public:
  SetPutCall() { type = FrameType::kSetPut; }

  const SetPutPlan* plan = nullptr;
  const OwnedChain* part = nullptr;
  StagedCall staged;

  std::size_t send_batch() override;

  SetPutBlock outcome(std::size_t i) const { return i < results_.size() ? results_[i] : SetPutBlock::kRefused; }

 private:
  error_code send(CallSession& session) override;
  std::string on_more(CallSession& session, const FrameReader::Frame& frame) override;
  std::string on_last(const FrameReader::Frame& frame) override;
  bool has_unsent() const override { return sent_ < wanted_.size(); }
  void forget_unsent() override { wanted_.resize(sent_); }

  std::span<const std::byte> block(std::size_t i) const { return plan->blocks[part->position(i)]; }
  bool is_staged() const { return region && staged.room; }

  bool has_part_of_group(std::span<const SetPutBlock> results) const;

  std::size_t asked_groups_ = 0;       ///< Of the blocks asked_.
  std::vector<std::uint32_t> wanted_;  ///< Indices in the part.
  std::size_t sent_ = 0;               ///< Of the wanted ones.
  std::vector<SetPutBlock> results_;
};

error_code SetPutCall::send(CallSession& session) {
  const LinkTerms& terms = session.terms();
  const std::size_t per_block = sizeof(BlockHash) + sizeof(std::uint32_t) + (region ? sizeof(std::uint64_t) : 0);
  const GroupPart taken = groups_in_request(terms, *part, per_block);
  asked_ = taken.name_count;
  asked_groups_ = taken.group_count;
  if (asked_ == 0) return Errc::kTooLarge;
  // From the start: the call may be a resend after a broken session.
  has_want_ = false;
  wanted_.clear();
  results_.clear();
  sent_ = 0;

  auto& builder = session.shared().new_request();
  const auto hashes = builder.CreateVectorOfStructs(wire_hashes(part->hashes), asked_);
  std::uint32_t* length = nullptr;
  const auto lengths = builder.CreateUninitializedVector(asked_, &length);
  for (std::size_t i = 0; i < asked_; ++i) length[i] = static_cast<std::uint32_t>(block(i).size());
  const NamedRegion named =
      name_region(session, builder, region.get(), asked_, [this](std::size_t i) -> std::span<const std::byte> {
        return is_staged() ? staged.at(i, block(i).size()) : block(i);
      });
  wire::Trace trace;
  return send_table(
      session, wire::CreateSetPutRequest(builder, space_handle(), hashes, lengths, named.handle, named.offsets,
                                         time_left_us(plan->until, session.shared().clock), named.lanes, space_check(),
                                         wire_groups(builder, *part, asked_groups_),
                                         static_cast<std::uint8_t>(plan->reuse), wire_trace(trace)));
}

std::string SetPutCall::on_more(CallSession&, const FrameReader::Frame& frame) {
  const auto* want = read_table<wire::SetPutWant>(frame.table);
  if (want == nullptr || want->blocks() == nullptr || has_want_) return "set_put: not one want list";
  has_want_ = true;
  for (const std::uint32_t i : *want->blocks()) {
    // Increasing, so that each block is sent once: a second copy would go into the next one's place.
    if (i >= asked_ || (!wanted_.empty() && i <= wanted_.back()))
      return "set_put: wants block " + std::to_string(i) + " of " + std::to_string(asked_) + ", out of order";
    wanted_.push_back(i);
  }
  // send_batches() sends the batches, one node after the other: several large puts share this thread.
  bundle->event.set();
  return {};
}

std::size_t SetPutCall::send_batch() {
  KV_ASSERT(has_batch() && has_want_);
  sums_.clear();
  payload_.clear();
  std::size_t bytes = 0, count = 0;
  for (; sent_ + count < wanted_.size() && count < kBatchBlocksMax; ++count) {
    const std::uint32_t i = wanted_[sent_ + count];
    const std::span<const std::byte> one = block(i);
    // A single block may be as long as a payload, so one that fills the batch is sent alone.
    if (count > 0 && bytes + one.size() > kBatchBytes) break;
    sums_.resize(sums_.size() + stripe_count(one.size()));
    // Right before sending, while the block is in cache.
    const std::uint64_t seed = set_checksum_seed(plan->space_id, part->hashes[i], one.size());
    const auto sums = std::span(sums_).last(stripe_count(one.size()));
    if (is_staged()) {
      copy_with_checksums(seed, staged.at(i, one.size()), one, sums);
    } else {
      block_checksums(seed, one, sums);
    }
    if (!region) payload_.push_back(one);
    bytes += one.size();
  }
  sent_ += count;
  send_data(count, bytes);
  return bytes;
}

std::string SetPutCall::on_last(const FrameReader::Frame& frame) {
  const auto* response = read_table<wire::SetPutResponse>(frame.table);
  if (response == nullptr || response->results() == nullptr) return "set_put: malformed";
  map_epoch = response->epoch();
  session()->cut_lanes(response->broken_lanes());
  if (response->results()->size() != asked_) {
    return "set_put: " + std::to_string(response->results()->size()) + " results for " + std::to_string(asked_) +
           " blocks";
  }
  std::vector<SetPutBlock> results;
  for (const std::uint8_t result : *response->results()) {
    if (result > static_cast<std::uint8_t>(SetPutBlock::kConflict)) return "set_put: result " + std::to_string(result);
    results.push_back(static_cast<SetPutBlock>(result));
  }
  if (has_part_of_group(results)) return "set_put: stored a part of a group";
  results_ = std::move(results);  // given to the caller only from a valid answer
  return note_refusal(response->refused_why(), std::ranges::count(results_, SetPutBlock::kRefused) > 0);
}

bool SetPutCall::has_part_of_group(std::span<const SetPutBlock> results) const {
  if (part->group_counts.empty()) return false;
  bool is_part = false;
  for_each_group(part->group_counts.first(asked_groups_), asked_, [&](std::size_t first, std::size_t count) {
    const auto members = results.subspan(first, count);
    const auto has = [&](SetPutBlock result) { return std::ranges::find(members, result) != members.end(); };
    is_part = is_part || (has(SetPutBlock::kStored) && (has(SetPutBlock::kRefused) || has(SetPutBlock::kConflict)));
  });
  return is_part;
}

}  // namespace

Async<SetPutResult> Client::put_set(Space set, Hashes hashes, SourceBlocks blocks, PutOptions options) {
  ClientCore& core = *core_;
  const std::shared_ptr<ClientShared> shared = core.shared;
  if (const error_code refused = core.refuses(set, options.deadline, options.control)) co_return refused;
  const ClientShared::SpaceInfo& info = *core.find_space(set);
  if (!info.record.is_set()) co_return error_code(Errc::kUnsupported);
  if (blocks.size() != hashes.size()) co_return error_code(Errc::kBadRequest);
  if (!check_groups(hashes, options.group_counts).empty()) co_return error_code(Errc::kBadRequest);
  for (const std::span<const std::byte> block : blocks) {
    if (block.empty() || block.size() > info.record.block_bytes()) co_return error_code(Errc::kBadRequest);
  }
  SetPutResult result;
  result.blocks.resize(hashes.size(), SetPutBlock::kRefused);
  if (hashes.empty()) co_return result;
  const auto found = region_of(shared->memory, blocks);
  if (!found) co_return found.error();
  const auto& region = *found;
  if (region && region->is_device()) co_return error_code(Errc::kUnsupported);
  SetPutPlan plan;
  plan.blocks = blocks;
  plan.space_id = info.id;
  plan.until = core.deadline_after(options.deadline);
  plan.reuse = options.reuse;

  // Offer each owner its part, all at once. Objects that calls point to are declared first, and so outlive them.
  const CallInProgress in_progress(shared, FrameType::kSetPut);
  const RegionUse region_use(region);
  const std::vector<OwnedChain> parts = split_set(*core.reachable_map(), hashes, options.group_counts);
  std::vector<StagedPart> cut = cut_for_staging(
      shared->staging, parts, [&](std::size_t node) { return !region && core.links[node]->is_on_this_host(); },
      [&](std::size_t position) { return blocks[position].size(); });
  CallBundle bundle(shared->executor, options.control);
  std::vector<SetPutCall> calls(cut.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SetPutCall& call = calls[i];
    call.plan = &plan;
    call.part = &cut[i].part;
    call.region = region;
    call.staged = std::move(cut[i].staged);
    for (std::size_t k = 0; k < call.part->hashes.size(); ++k) call.data_bytes += blocks[call.part->position(k)].size();
  }
  StagedStart start(*shared, bundle, plan.until, calls,
                    [&](SetPutCall& call) { core.start(call, call.part->node, set, bundle, plan.until); });
  co_await send_batches(shared->executor, calls, bundle, [&start] { return start.go_on(); });

  for (std::size_t number = 0; number < calls.size(); ++number) {
    const SetPutCall& call = calls[number];
    for (std::size_t i = 0; i < call.part->hashes.size(); ++i) {
      const SetPutBlock outcome = result.blocks[call.part->position(i)] = call.outcome(i);
      result.stored += outcome == SetPutBlock::kStored;
      result.already_stored += outcome == SetPutBlock::kAlreadyStored;
      result.conflicts += outcome == SetPutBlock::kConflict;
      result.refused += outcome == SetPutBlock::kRefused;
      if (outcome == SetPutBlock::kRefused && !result.why)
        result.why = number < start.asked_count() ? call.reason() : start.why_not_asked();
    }
  }
  shared->metrics.put(result.stored, result.already_stored, result.refused + result.conflicts);
  in_progress.done(result.why);
  co_return result;
}

}  // namespace kv
