// client/match.cc: how many leading blocks of a chain are held, and the leases that keep them held.
//
// match() asks each owner for its part of the chain, all at once, and cuts at the first gap of the whole chain, as
// get() does. Each owner grants a lease of its own; to the caller they are one.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "client/client_impl.h"

namespace kv {
namespace {

constexpr std::size_t kLeasesMax = 65536;

class MatchCall final : public Call {
 public:
  MatchCall() { type = FrameType::kMatch; }
  const OwnedChain* chain = nullptr;
  const MatchOptions* options = nullptr;
  std::size_t asked = 0;
  std::size_t block_count = 0, disk_block_count = 0, partial_tokens = 0;
  std::uint64_t disk_us = 0;
  BlockHash partial_block{};
  std::uint64_t lease = 0, lease_us = 0;
  error_code lease_error;
  std::weak_ptr<CallSession> answered_by;

  error_code reason() const {
    if (error()) return error();
    return block_count == asked && asked < chain->hashes.size() ? make_error_code(Errc::kTooLarge) : error_code();
  }

 private:
  error_code send(CallSession& session) override {
    const LinkTerms& terms = session.terms();
    const std::size_t token_bytes = options->token_ids.size() * sizeof(std::uint32_t);
    const std::size_t extra_bytes = token_bytes > 0 ? options->extras.size_bytes() : 0;
    asked = blocks_in_request(terms, chain->hashes.size(), sizeof(BlockHash), token_bytes + extra_bytes);
    if (asked == 0 && !chain->hashes.empty()) return Errc::kTooLarge;
    auto& builder = session.shared().new_request();
    const auto hashes = builder.CreateVectorOfStructs(wire_hashes(chain->hashes), asked);
    flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> tokens;
    flatbuffers::Offset<flatbuffers::Vector<const wire::ExtraDigest*>> extras;
    if (token_bytes > 0 && asked == chain->hashes.size()) {  // they continue the whole chain, not a part of it
      tokens = builder.CreateVector(options->token_ids.data(), options->token_ids.size());
      if (extra_bytes > 0) extras = builder.CreateVectorOfStructs(wire_extras(options->extras), options->extras.size());
    }
    builder.Finish(wire::CreateMatchRequest(builder, space_handle(), hashes, tokens, options->lease, options->prefetch,
                                            space_check(), extras));
    session.send_small(type, request_id(), builder, kSmallAnswerBytes);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::MatchResponse>(frame.table);
    if (response == nullptr) return "match: malformed";
    // The result is counted from these; a node that says too much must not lead past the chain's end.
    if (response->host_blocks() > asked || response->disk_blocks() > asked - response->host_blocks()) {
      return "match: host_blocks " + std::to_string(response->host_blocks()) + " and disk_blocks " +
             std::to_string(response->disk_blocks()) + " of " + std::to_string(asked);
    }
    if (response->lease_error() >= kErrcLocal) return "match: lease_error " + std::to_string(response->lease_error());
    disk_block_count = response->disk_blocks();
    block_count = response->host_blocks() + disk_block_count;
    disk_us = response->disk_us();
    lease = response->lease();
    lease_us = response->lease_us();
    if (response->lease_error() != 0) lease_error = make_error_code(static_cast<Errc>(response->lease_error()));
    if (response->partial_tokens() > 0) {
      if (response->partial_block() == nullptr) return "match: partial_tokens without partial_block";
      if (response->partial_tokens() > options->token_ids.size()) return "match: too many partial_tokens";
      partial_tokens = response->partial_tokens();
      std::memcpy(partial_block.bytes.data(), response->partial_block(), partial_block.bytes.size());
    }
    return {};
  }
  void on_end(CallSession* session) override {
    if (session != nullptr) answered_by = session->handle();
  }
};

}  // namespace

void Client::Impl::LeaseEntry::add(std::size_t node, std::weak_ptr<CallSession> session, std::uint64_t id,
                                   std::uint64_t lease_us, TimePoint now) {
  if (id == 0) return;
  const auto granted = std::chrono::microseconds(std::min(lease_us, static_cast<std::uint64_t>(kLeaseMax.count())));
  until = std::min(until, now + granted);
  parts.push_back({node, std::move(session), id});
}

/// Bounded in number and in time: a scheduler that never releases its leases must not grow this table for ever. Of
/// too many the oldest is forgotten here, and still ends at its nodes by time.
Lease Client::Impl::keep_lease(LeaseEntry entry) {
  KV_ASSERT(!entry.parts.empty());
  // Leases of one client end in about the order in which they were granted: the first ones are looked at, and no more.
  const TimePoint now = shared->clock.now();
  while (!leases.empty() && (leases.begin()->second.until < now || leases.size() >= kLeasesMax)) {
    leases.erase(leases.begin());
  }
  leases.emplace(++last_lease, std::move(entry));
  return Lease{last_lease};
}

std::vector<Client::Impl::LeasePart> Client::Impl::take_lease(Lease lease) {
  const auto found = leases.find(static_cast<std::uint64_t>(lease));
  if (found == leases.end()) return {};
  auto parts = std::move(found->second.parts);
  leases.erase(found);
  return parts;
}

std::uint64_t Client::Impl::use_lease(const std::vector<LeasePart>& parts, std::size_t node, Call& call) {
  const auto part = std::ranges::find(parts, node, &LeasePart::node);
  if (part == parts.end()) return 0;
  call.session_wanted = part->session.lock();
  return part->id;
}

Async<MatchResult> Client::match(Space space, std::span<const BlockHash> hashes, MatchOptions options) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(space, options.deadline, options.control)) co_return refused;
  if (impl.find_space(space)->record.is_set()) co_return error_code(Errc::kUnsupported);
  const std::size_t block_size = impl.find_space(space)->record.block_size();
  const std::size_t token_count = options.token_ids.size();
  if (token_count > 0 && (token_count < hashes.size() * block_size || token_count > (hashes.size() + 1) * block_size)) {
    co_return error_code(Errc::kBadRequest);
  }
  if (!options.extras.empty() && (options.extras.size() < hashes.size() || options.extras.size() > hashes.size() + 1)) {
    co_return error_code(Errc::kBadRequest);
  }
  // Whoever owns the last block need not own the one after it, which only part of the tokens would match.
  if (impl.links.size() > 1) options.token_ids = {};
  if (hashes.empty() && options.token_ids.empty()) co_return MatchResult{};

  const VerbInProgress verb(impl.shared);
  const TimePoint until = impl.deadline_after(options.deadline);
  CallGroup group(impl.shared->executor, options.control);
  const std::vector<OwnedChain> chains = split_chain(impl.map, hashes);
  std::vector<MatchCall> calls(chains.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].chain = &chains[i];
    calls[i].options = &options;
    impl.start(calls[i], chains[i].node, space, group, until);
  }
  co_await wait_all(group);

  MatchResult result;
  result.block_count = hashes.size();
  Impl::LeaseEntry lease;
  for (const MatchCall& call : calls) {
    if (call.block_count < call.chain->hashes.size()) {
      const std::size_t gap = call.chain->position(call.block_count);
      if (gap < result.block_count) {
        result.block_count = gap;
        result.why = call.reason();
      }
    }
    lease.add(call.chain->node, call.answered_by, call.lease, call.lease_us, impl.shared->clock.now());
  }
  for (const MatchCall& call : calls) {
    KV_ASSERT(call.disk_block_count <= call.block_count && call.block_count <= call.chain->hashes.size());
    if (call.lease_error && !result.why) result.why = call.lease_error;
    std::size_t on_disk = 0;
    for (std::size_t i = call.block_count - call.disk_block_count; i < call.block_count; ++i)
      on_disk += call.chain->position(i) < result.block_count;
    result.disk_block_count += on_disk;
    const auto time = std::chrono::microseconds(std::min<std::uint64_t>(call.disk_us, kDiskTimeMax.count()));
    if (on_disk > 0) result.disk_time = std::max(result.disk_time, time);
  }
  KV_ASSERT(result.disk_block_count <= result.block_count && result.block_count <= hashes.size());
  if (calls.size() == 1) {
    result.partial_token_count = calls[0].partial_tokens;
    result.partial_block = calls[0].partial_block;
  }
  if (!lease.parts.empty()) result.lease = impl.keep_lease(std::move(lease));
  co_return result;
}

/// Nobody waits for the answer. If the request is lost with its session, the lease has ended with the session; if the
/// session is full, the lease ends by its time.
void Client::release(Lease lease) {
  for (const Impl::LeasePart& part : impl_->take_lease(lease)) {
    const auto session = part.session.lock();
    if (!session) continue;
    auto& builder = impl_->shared->new_request();
    builder.Finish(wire::CreateReleaseRequest(builder, part.id));
    session->send_and_forget(FrameType::kRelease, builder);
  }
}

}  // namespace kv
