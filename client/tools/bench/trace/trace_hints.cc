#include "client/tools/bench/trace/trace_hints.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <random>
#include <span>
#include <unordered_map>

namespace kv {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

std::span<const ReuseHint> values_of(HintKind kind) {
  static constexpr std::array kFinalOrNot = {ReuseHint::kFinal, ReuseHint::kNone};
  static constexpr std::array kThree = {ReuseHint::kFinal, ReuseHint::kWithin600s, ReuseHint::kLater};
  static constexpr std::array kFive = {ReuseHint::kWithin15s, ReuseHint::kWithin60s, ReuseHint::kWithin240s,
                                       ReuseHint::kWithin600s, ReuseHint::kFinal};
  switch (kind) {
    case HintKind::kNone: return {};
    case HintKind::kFinal: return kFinalOrNot;
    case HintKind::kSoon: return kThree;
    case HintKind::kWhen: return kFive;
  }
  return {};
}

ReuseHint hint_of(HintKind kind, std::uint64_t gap_ms) {
  switch (kind) {
    case HintKind::kNone: break;
    case HintKind::kFinal: return gap_ms == kNever ? ReuseHint::kFinal : ReuseHint::kNone;
    case HintKind::kSoon:
      if (gap_ms == kNever) return ReuseHint::kFinal;
      return gap_ms <= 600'000 ? ReuseHint::kWithin600s : ReuseHint::kLater;
    case HintKind::kWhen:
      if (gap_ms <= 15'000) return ReuseHint::kWithin15s;
      if (gap_ms <= 60'000) return ReuseHint::kWithin60s;
      if (gap_ms <= 240'000) return ReuseHint::kWithin240s;
      return gap_ms <= 600'000 ? ReuseHint::kWithin600s : ReuseHint::kFinal;
  }
  return ReuseHint::kNone;
}

}  // namespace

std::vector<ReuseHint> trace_hints(const std::vector<TraceRequest>& requests, HintKind kind, double wrong,
                                   std::uint64_t seed) {
  std::vector<ReuseHint> hints(requests.size(), ReuseHint::kNone);
  if (kind == HintKind::kNone) return hints;
  std::unordered_map<std::uint64_t, std::uint64_t> next_use_ms;  // of a block, after the present request
  for (std::size_t i = requests.size(); i-- > 0;) {
    const std::vector<std::uint64_t>& ids = requests[i].hash_ids;
    if (!ids.empty()) {
      const auto next = next_use_ms.find(ids[ids.size() < 2 ? 0 : ids.size() - 2]);
      hints[i] = hint_of(kind, next == next_use_ms.end() ? kNever : next->second - requests[i].timestamp_ms);
    }
    for (const std::uint64_t id : ids) next_use_ms[id] = requests[i].timestamp_ms;
  }
  const std::span<const ReuseHint> values = values_of(kind);
  std::mt19937_64 random(seed);
  for (ReuseHint& hint : hints) {
    if (!std::bernoulli_distribution(wrong)(random)) continue;
    const ReuseHint right = hint;
    while (hint == right) hint = values[random() % values.size()];
  }
  return hints;
}

void add_hint_options(CLI::App& command, std::string& kind, double& wrong) {
  const std::vector<std::string> names(kHintKindNames.begin(), kHintKindNames.end());
  command
      .add_option(
          "--hints", kind,
          "What each request says of its future, made from the trace: none; final: whether it is its session's "
          "last; soon: that, and whether the next one comes within 10 min; when: within 15, 60, 240, 600 s, or not")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  command.add_option("--wrong-hints", wrong, "A share of the requests that say something else, 0 to 1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

HintKind hint_kind(std::string_view name) {
  return static_cast<HintKind>(std::ranges::find(kHintKindNames, name) - kHintKindNames.begin());
}

}  // namespace kv
