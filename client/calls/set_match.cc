// client/calls/set_match.cc: which of many blocks that stand alone are held. Each owner gets one request for all its
// blocks, all at once, and answers with a bitmap and lengths.
#include <algorithm>
#include <utility>

#include "client/client.h"
#include "client/core/client_core.h"

namespace kv {
namespace {

class SetMatchCall final : public Call {
 public:
  SetMatchCall() { type = FrameType::kSetMatch; }
  const OwnedChain* part = nullptr;
  const MatchOptions* options = nullptr;
  std::size_t block_bytes_max = 0;

  std::size_t asked = 0;                   ///< Leading hashes of the part: at most the node's limit,
  std::size_t asked_groups = 0;            ///< and their groups.
  std::vector<Held> held;                  ///< Of these.
  std::vector<std::uint32_t> block_bytes;  ///< Of these.
  std::uint64_t disk_us = 0, lease = 0, lease_us = 0;
  error_code lease_error;
  std::weak_ptr<CallSession> answered_by;

  error_code reason() const {
    if (error()) return error();
    return asked < part->hashes.size() ? make_error_code(Errc::kTooLarge) : error_code();
  }

 private:
  error_code send(CallSession& session) override {
    const LinkTerms& terms = session.terms();
    const GroupPart taken = groups_in_request(terms, *part, sizeof(BlockHash));
    asked = taken.name_count;
    asked_groups = taken.group_count;
    if (asked == 0) return Errc::kTooLarge;
    held.clear();
    block_bytes.clear();
    auto& builder = session.shared().new_request();
    const auto hashes = builder.CreateVectorOfStructs(wire_hashes(part->hashes), asked);
    const auto groups = wire_groups(builder, *part, asked_groups);
    wire::Trace trace;
    return send_table(session, wire::CreateSetMatchRequest(
                                   builder, space_handle(), hashes, options->lease, options->prefetch, space_check(),
                                   groups, static_cast<std::uint8_t>(options->reuse), wire_trace(trace)));
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::SetMatchResponse>(frame.table);
    if (response == nullptr || response->held() == nullptr) return "set_match: malformed";
    map_epoch = response->epoch();
    answered_by = session()->handle();
    // Everything is checked: a wrong bit or length would mean a block that is not held, or another's length.
    const std::size_t bytes = (asked + 7) / 8;
    const auto* on_disk = response->on_disk();
    if (response->held()->size() != bytes || (on_disk != nullptr && on_disk->size() != bytes)) {
      return "set_match: a bitmap of " + std::to_string(response->held()->size()) + " bytes for " +
             std::to_string(asked) + " hashes";
    }
    if (response->lease_error() >= kErrcLocal)
      return "set_match: lease_error " + std::to_string(response->lease_error());
    const std::size_t length_count = response->block_bytes() == nullptr ? 0 : response->block_bytes()->size();
    held.assign(asked, Held::kNowhere);
    block_bytes.assign(asked, 0);
    std::size_t next = 0;
    // To the end of the last byte: bits behind the last hash must be 0.
    for (std::size_t i = 0; i < bytes * 8; ++i) {
      const auto byte = static_cast<flatbuffers::uoffset_t>(i / 8);
      const bool is_held = (response->held()->Get(byte) >> i % 8 & 1) != 0;
      const bool is_on_disk = on_disk != nullptr && (on_disk->Get(byte) >> i % 8 & 1) != 0;
      if ((is_on_disk && !is_held) || (is_held && (i >= asked || next == length_count)))
        return "set_match: a bit too many";
      if (!is_held) continue;
      held[i] = is_on_disk ? Held::kOnDisk : Held::kInMemory;
      block_bytes[i] = response->block_bytes()->Get(static_cast<flatbuffers::uoffset_t>(next++));
      if (block_bytes[i] == 0 || block_bytes[i] > block_bytes_max)
        return "set_match: a block of " + std::to_string(block_bytes[i]) + " bytes";
    }
    if (next != length_count) return "set_match: a length too many";
    if (has_part_of_group()) return "set_match: a part of a group";
    disk_us = response->disk_us();
    lease = response->lease();
    lease_us = response->lease_us();
    if (response->lease_error() != 0) lease_error = make_error_code(static_cast<Errc>(response->lease_error()));
    return {};
  }
  bool has_part_of_group() const {
    if (part->group_counts.empty()) return false;
    bool is_part = false;
    for_each_group(part->group_counts.first(asked_groups), asked, [&](std::size_t first, std::size_t count) {
      const auto members = std::span(held).subspan(first, count);
      const auto missing = static_cast<std::size_t>(std::ranges::count(members, Held::kNowhere));
      is_part = is_part || (missing > 0 && missing < count);
    });
    return is_part;
  }
};

}  // namespace

Async<SetMatchResult> Client::match_set(Space set, Hashes hashes, MatchOptions options) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(set, options.deadline, options.control)) co_return refused;
  const NamespaceRecord& record = core.find_space(set)->record;
  if (!record.is_set()) co_return error_code(Errc::kUnsupported);
  if (!check_groups(hashes, options.group_counts).empty()) co_return error_code(Errc::kBadRequest);
  SetMatchResult result;
  result.held.resize(hashes.size(), Held::kNowhere);
  result.block_bytes.resize(hashes.size(), 0);
  if (hashes.empty()) co_return result;

  const CallInProgress in_progress(core.shared, FrameType::kSetMatch);
  const TimePoint until = core.deadline_after(options.deadline);
  CallBundle bundle(core.shared->executor, options.control);
  const std::vector<OwnedChain> parts = split_set(*core.reachable_map(), hashes, options.group_counts);
  std::vector<SetMatchCall> calls(parts.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].part = &parts[i];
    calls[i].options = &options;
    calls[i].block_bytes_max = record.block_bytes();
    core.start(calls[i], parts[i].node, set, bundle, until);
  }
  co_await wait_all(bundle);

  LeaseEntry lease;
  for (const SetMatchCall& call : calls) {
    // The first reason of any node: it explains names that the bitmap may wrongly report as not held.
    if (!result.why) result.why = call.reason();
    if (!result.why) result.why = call.lease_error;
    if (call.error()) continue;
    for (std::size_t i = 0; i < call.asked; ++i) {
      const std::size_t at = call.part->position(i);
      result.held[at] = call.held[i];
      result.block_bytes[at] = call.block_bytes[i];
      result.held_count += call.held[i] != Held::kNowhere;
      result.disk_count += call.held[i] == Held::kOnDisk;
    }
    const auto time = std::chrono::microseconds(std::min<std::uint64_t>(call.disk_us, kDiskTimeMax.count()));
    // Nodes read at the same time, so the slowest one counts.
    result.disk_time = std::max(result.disk_time, time);
    // Only its own session can use or end a lease.
    lease.add({call.part->node, call.answered_by, call.lease, /*first=*/0}, call.lease_us, core.shared->clock.now());
  }
  if (!lease.parts.empty()) result.lease = core.leases.keep(std::move(lease), core.shared->clock.now());
  core.shared->metrics.matched(result.held_count - result.disk_count, result.disk_count,
                               hashes.size() - result.held_count, /*block_size=*/0);
  in_progress.done(result.why);
  co_return result;
}

}  // namespace kv
