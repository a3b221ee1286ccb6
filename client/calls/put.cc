// client/calls/put.cc: the whole write. A block enters as the caller's bytes and leaves stored, refused, or already
// known.
//
// put() offers each owner its part of the chain, all at once. Each answers which blocks it wants. Those are sent in
// batches, with checksums computed just before, so that the bytes pass through the cache once for both. For lent memory
// only the checksums are sent: the node copies the blocks. It verifies, commits and counts.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/assert.h"
#include "base/checksum.h"
#include "client/calls/batch_put.h"
#include "client/client.h"

namespace kv {
namespace {

struct PutPlan {
  SourceBlocks blocks;  ///< By position in the whole chain.
  std::span<const std::uint32_t> token_ids;
  std::span<const ExtraDigest> extras;       ///< With token_ids: of all blocks, or empty.
  std::span<const std::uint64_t> checksums;  ///< Of all blocks, by position in the whole chain; or empty: computed.
  NamespaceId space_id;
  std::size_t block_bytes = 0, block_size = 0;
  std::chrono::microseconds idle{};
  ReuseHint reuse = ReuseHint::kNone;
  bool has_others = false;           ///< Other nodes own blocks too.
  std::optional<std::size_t> known;  ///< Leading blocks known to the nodes at the chain's match.
  TimePoint until;
};

/// The part of a put that one node gets.
///   1. Blocks before sent_ were sent or unwanted; those from there to wanted_end_ are still to be sent.
class PutCall final : public BatchPut {
 public:
  PutCall() { type = FrameType::kPut; }

  const PutPlan* plan = nullptr;
  const OwnedChain* chain = nullptr;

  /// Computes the first blocks' checksums while the offer travels: a put seldom offers blocks that are stored.
  void prepare_batch();
  std::size_t send_batch() override;

  std::size_t stored() const { return stored_; }
  std::size_t already_stored() const { return already_stored_; }
  std::size_t refused() const {
    KV_ASSERT(stored_ + already_stored_ <= chain->hashes.size());  // on_last() has checked the node's sum
    return chain->hashes.size() - stored_ - already_stored_;
  }

 private:
  error_code send(CallSession& session) override;
  std::string on_more(CallSession& session, const FrameReader::Frame& frame) override;
  std::string on_last(const FrameReader::Frame& frame) override;
  bool has_unsent() const override { return sent_ < wanted_end_; }
  void forget_unsent() override { wanted_end_ = sent_; }

  std::size_t batch_blocks() const { return std::max<std::size_t>(1, kBatchBytes / plan->block_bytes); }
  /// Into sums_; for a device's memory they are given, and its bytes are not read.
  void compute_sums(std::size_t first, std::size_t count);

  std::size_t prepared_ = 0;               ///< Leading blocks with checksums in sums_.
  std::size_t sent_ = 0, wanted_end_ = 0;  ///< Of the node's part.
  std::size_t stored_ = 0, already_stored_ = 0;
};

error_code PutCall::send(CallSession& session) {
  const LinkTerms& terms = session.terms();
  const bool has_positions = chain->first > 0;
  const bool has_tokens = !plan->token_ids.empty(), has_extras = has_tokens && !plan->extras.empty();
  const std::size_t per_block =
      sizeof(BlockHash) + (has_positions ? sizeof(std::uint32_t) : 0) + (region ? sizeof(std::uint64_t) : 0) +
      (has_tokens ? plan->block_size * sizeof(std::uint32_t) : 0) + (has_extras ? sizeof(ExtraDigest) : 0);
  asked_ = blocks_in_request(terms, chain->hashes.size(), per_block);
  if (asked_ == 0) return Errc::kTooLarge;
  has_want_ = false;
  sent_ = wanted_end_ = prepared_ = 0;

  auto& builder = session.shared().new_request();
  const auto hashes = builder.CreateVectorOfStructs(wire_hashes(chain->hashes), asked_);
  flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> positions, tokens;
  if (has_positions) {
    std::uint32_t* list = nullptr;
    positions = builder.CreateUninitializedVector(asked_, &list);
    for (std::size_t i = 0; i < asked_; ++i) list[i] = static_cast<std::uint32_t>(chain->position(i));
  }
  if (has_tokens) {
    std::uint32_t* list = nullptr;
    tokens = builder.CreateUninitializedVector(asked_ * plan->block_size, &list);
    for (std::size_t i = 0; i < asked_; ++i) {
      const auto ids = plan->token_ids.subspan(chain->position(i) * plan->block_size, plan->block_size);
      std::copy(ids.begin(), ids.end(), list + i * plan->block_size);
    }
  }
  flatbuffers::Offset<flatbuffers::Vector<const wire::ExtraDigest*>> extras;
  if (has_extras) {
    wire::ExtraDigest* list = nullptr;
    extras = builder.CreateUninitializedVectorOfStructs(asked_, &list);
    for (std::size_t i = 0; i < asked_; ++i)
      std::memcpy(&list[i], plan->extras[chain->position(i)].bytes.data(), sizeof *list);
  }
  const bool is_part = plan->has_others && chain->hashes.size() < plan->blocks.size();
  const NamedRegion named = name_region(session, builder, region.get(), asked_,
                                        [this](std::size_t i) { return plan->blocks[chain->position(i)]; });
  wire::Trace trace;
  return send_table(session,
                    wire::CreatePutRequest(
                        builder, space_handle(), hashes, positions, tokens, named.handle, named.offsets,
                        time_left_us(plan->until, session.shared().clock), named.lanes, space_check(), extras,
                        static_cast<std::uint64_t>(plan->idle.count()), static_cast<std::uint8_t>(plan->reuse),
                        is_part ? static_cast<std::uint32_t>(plan->blocks.size()) : 0,
                        is_part && plan->known ? static_cast<std::uint32_t>(*plan->known) + 1 : 0, wire_trace(trace)));
}

std::string PutCall::on_more(CallSession&, const FrameReader::Frame& frame) {
  const auto* want = read_table<wire::PutWant>(frame.table);
  if (want == nullptr || has_want_) return "put: not one want list";
  if (want->first_block() > asked_ || want->block_count() > asked_ - want->first_block()) {
    return "put: wants blocks " + std::to_string(want->first_block()) + " + " + std::to_string(want->block_count()) +
           " of " + std::to_string(asked_);
  }
  has_want_ = true;
  sent_ = want->first_block();
  wanted_end_ = sent_ + want->block_count();
  bundle->event.set();
  return {};
}

void PutCall::prepare_batch() {
  if (session() == nullptr || has_want_) return;
  prepared_ = std::min(asked_, batch_blocks());
  compute_sums(0, prepared_);
}

void PutCall::compute_sums(std::size_t first, std::size_t count) {
  KV_ASSERT(first <= asked_ && count <= asked_ - first);
  const std::size_t stripes = stripe_count(plan->block_bytes);
  sums_.resize(count * stripes);
  for (std::size_t i = 0; i < count; ++i) {
    if (!plan->checksums.empty()) {
      const auto given = plan->checksums.subspan(chain->position(first + i) * stripes, stripes);
      std::ranges::copy(given, sums_.begin() + static_cast<std::ptrdiff_t>(i * stripes));
      continue;
    }
    const BlockHash& hash = chain->hashes[first + i];
    block_checksums(checksum_seed(plan->space_id, hash), plan->blocks[chain->position(first + i)],
                    std::span(sums_).subspan(i * stripes, stripes));
  }
}

std::size_t PutCall::send_batch() {
  KV_ASSERT(has_batch() && has_want_ && wanted_end_ <= asked_);  // 1
  const std::size_t first = sent_;
  const std::size_t count = std::min(wanted_end_ - first, batch_blocks());
  const std::size_t bytes = count * plan->block_bytes;
  if (first > 0 || count != prepared_) compute_sums(first, count);
  payload_.clear();
  if (!region) {
    for (std::size_t i = 0; i < count; ++i) payload_.push_back(plan->blocks[chain->position(first + i)]);
  }
  sent_ += count;
  KV_ASSERT(sums_.size() == count * stripe_count(plan->block_bytes));
  send_data(count, bytes);
  return bytes;
}

/// The counts must add up to the offer: callers decide by them which blocks to compute again.
std::string PutCall::on_last(const FrameReader::Frame& frame) {
  const auto* response = read_table<wire::PutResponse>(frame.table);
  if (response == nullptr) return "put: malformed";
  map_epoch = response->epoch();
  session()->cut_lanes(response->broken_lanes());
  const std::uint64_t sum = std::uint64_t{response->stored()} + response->already_stored() + response->refused();
  if (sum != asked_) return "put: counts " + std::to_string(sum) + " blocks of " + std::to_string(asked_);
  stored_ = response->stored();
  already_stored_ = response->already_stored();
  return note_refusal(response->refused_why(), response->refused() > 0);
}

/// Errors: kBadRequest.
error_code check_blocks(const PutPlan& plan, std::size_t block_count) {
  if (plan.blocks.size() != block_count) return Errc::kBadRequest;
  if (!plan.token_ids.empty() && plan.token_ids.size() != block_count * plan.block_size) return Errc::kBadRequest;
  if (!plan.extras.empty() && plan.extras.size() != block_count) return Errc::kBadRequest;
  if (!plan.checksums.empty() && plan.checksums.size() != block_count * stripe_count(plan.block_bytes)) {
    return Errc::kBadRequest;
  }
  const auto is_whole = [&](std::span<const std::byte> block) { return block.size() == plan.block_bytes; };
  return std::ranges::all_of(plan.blocks, is_whole) ? error_code() : error_code(Errc::kBadRequest);
}

}  // namespace

Async<PutResult> Client::put(Space space, Hashes hashes, SourceBlocks blocks, PutOptions options) {
  ClientCore& core = *core_;
  const std::shared_ptr<ClientShared> shared = core.shared;
  if (const error_code refused = core.refuses(space, options.deadline, options.control)) co_return refused;
  const ClientShared::SpaceInfo& info = *core.find_space(space);
  if (info.record.is_set()) co_return error_code(Errc::kUnsupported);
  PutPlan plan;
  plan.blocks = blocks;
  plan.token_ids = options.token_ids;
  plan.extras = options.extras;
  plan.checksums = options.checksums;
  plan.space_id = info.id;
  plan.block_bytes = info.record.block_bytes();
  plan.block_size = info.record.block_size();
  plan.idle = std::max(options.idle, 0us);
  plan.reuse = options.reuse;
  plan.until = core.deadline_after(options.deadline);
  if (const error_code bad = check_blocks(plan, hashes.size())) co_return bad;
  if (hashes.empty()) co_return PutResult{};
  const auto found = region_of(shared->memory, blocks);
  if (!found) co_return found.error();
  const auto& region = *found;
  // This processor cannot read a device's memory to compute checksums.
  if (region && region->is_device() && plan.checksums.empty()) co_return error_code(Errc::kBadRequest);

  // Offer each owner its part, all at once. Objects that calls point to are declared first, and so outlive them.
  const CallInProgress in_progress(shared, FrameType::kPut);
  const RegionUse region_use(region);
  const auto map = core.reachable_map();
  const std::size_t hot_blocks = options.hot_blocks ? *options.hot_blocks : core.hot_roots(space, hashes).now;
  const std::vector<OwnedChain> chains = split_chain(*map, hashes, hot_blocks);
  plan.has_others = map->owner_count() > 1;
  if (chains.size() > 1 && plan.has_others) plan.known = core.known_chains.of(hashes);
  core.hot_sets.forget(hashes.back());  // from now on it is at its present place
  CallBundle bundle(shared->executor, options.control);
  std::vector<PutCall> calls(chains.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    PutCall& call = calls[i];
    call.plan = &plan;
    call.chain = &chains[i];
    call.region = region;
    call.data_bytes = chains[i].hashes.size() * plan.block_bytes;
    core.start(call, chains[i].node, space, bundle, plan.until);
  }

  // The offers leave first; the first checksums are computed meanwhile.
  co_await asio::post(shared->executor, asio::use_awaitable);
  for (PutCall& call : calls) call.prepare_batch();
  const auto goes_on = [&bundle] { return !bundle.running.empty(); };
  co_await send_batches(shared->executor, calls, bundle, goes_on);

  PutResult result;
  for (const PutCall& call : calls) {
    result.stored += call.stored();
    result.already_stored += call.already_stored();
    result.refused += call.refused();
    if (call.refused() > 0 && !result.why) result.why = call.reason();
  }
  shared->metrics.put(result.stored, result.already_stored, result.refused);
  in_progress.done(result.why);
  co_return result;
}

}  // namespace kv
