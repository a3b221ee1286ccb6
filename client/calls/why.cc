// client/calls/why.cc: why a chain, or a block of a set, is not found. Each owner is asked about its part; the owner of
// the first missing block gives the reason. The question is not a use: nodes do not mark, count or lease blocks for it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text/printable.h"
#include "client/calls/match_call.h"
#include "client/client.h"
#include "client/core/client_core.h"
#include "client/types/miss_report.h"

namespace kv {
namespace {

constexpr std::size_t kOthersMax = 16, kDifferencesMax = 64, kTextMax = 1024;  ///< Limits on an answer.

std::string text_of(const flatbuffers::String* text) {
  return text == nullptr ? "" : printable(text->string_view().substr(0, kTextMax));
}

std::chrono::microseconds time_of(std::uint64_t microseconds) {
  constexpr std::uint64_t kMost = 1'000'000'000'000'000;  // 30 years: so that sums fit
  return std::chrono::microseconds(std::min(microseconds, kMost));
}

class WhyCall final : public MatchCall {
 public:
  WhyCall() { is_why = true; }
  MissReport report;  ///< The part explained by `reason`.

 private:
  std::string on_last(const FrameReader::Frame& frame) override {
    std::string wrong = MatchCall::on_last(frame);
    if (!wrong.empty()) return wrong;
    report = {};
    const auto* const reason = read_table<wire::MatchResponse>(frame.table)->reason();
    if (reason != nullptr) read(*reason);
    return {};
  }
  void read(const wire::MissReason& reason) {
    report.kind = miss_kind_of(reason.why());
    report.left = time_of(reason.left_us());
    report.idle = time_of(reason.idle_us());
    report.remembers = time_of(reason.remembers_us());
    report.stored_blocks = reason.stored_blocks();
    report.lookups = reason.lookups();
    report.empty_lookups = reason.empty_lookups();
    if (reason.others() == nullptr) return;
    for (const wire::OtherSpace* const each : *reason.others()) {
      if (report.others.size() == kOthersMax) break;
      MissReport::Other& other = report.others.emplace_back();
      const auto* const id = each->namespace_id();
      if (id != nullptr && id->size() == other.id.bytes.size())
        std::memcpy(other.id.bytes.data(), id->data(), other.id.bytes.size());
      other.has_block = each->has_block();
      other.block_count = each->block_count();
      other.stored_blocks = each->stored_blocks();
      other.lookups = each->lookups();
      other.empty_lookups = each->empty_lookups();
      if (each->differs() == nullptr) continue;
      for (const wire::FieldDifference* const one : *each->differs()) {
        if (other.differs.size() == kDifferencesMax) break;
        other.differs.push_back({text_of(one->field()), text_of(one->here()), text_of(one->there())});
      }
    }
  }
};

}  // namespace

Async<MissReport> Client::why(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(space, deadline, control)) co_return refused;
  if (hashes.empty()) co_return error_code(Errc::kBadRequest);
  const std::shared_ptr<const ClusterMap> map = core.reachable_map();
  const bool is_set = core.find_space(space)->record.is_set();
  const std::size_t hot_blocks = is_set ? 0 : core.hot_roots(space, hashes).now;
  const CallInProgress in_progress(core.shared);
  CallBundle bundle(core.shared->executor, control);
  std::vector<OwnedChain> chains = is_set ? core.split(space, hashes) : split_chain(*map, hashes, hot_blocks);
  std::vector<WhyCall> calls(chains.size());
  const TimePoint until = core.deadline_after(deadline);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].chain = std::move(chains[i]);
    core.start(calls[i], calls[i].chain.node, space, bundle, until);
  }
  co_await wait_all(bundle);

  std::size_t gap = hashes.size();
  const WhyCall* at_gap = nullptr;
  for (const WhyCall& call : calls) {
    const std::size_t held = call.error() ? 0 : call.block_count;
    if (held == call.chain.hashes.size() || call.chain.position(held) >= gap) continue;
    gap = call.chain.position(held);
    at_gap = &call;
  }
  MissReport report;
  if (at_gap != nullptr) {
    report = at_gap->report;
    report.node = core.links[at_gap->chain.node]->config().name;
    report.why = at_gap->error();
    if (!report.why && at_gap->block_count == at_gap->asked) report.why = Errc::kTooLarge;
    if (!report.why && !is_set && core.is_owner_away(hashes, gap, hot_blocks)) report.why = Errc::kUnavailable;
  }
  report.is_whole = at_gap == nullptr;
  report.block_count = gap;
  report.disk_block_count = 0;
  for (const WhyCall& call : calls) {
    if (call.error()) continue;
    for (std::size_t i = call.block_count - call.disk_block_count; i < call.block_count; ++i)
      report.disk_block_count += call.chain.position(i) < gap;
  }
  co_return report;
}

}  // namespace kv
