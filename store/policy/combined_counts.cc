#include "store/policy/combined_counts.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace kv {
namespace {

constexpr double kClockMin = 256;  ///< Minimum progress of both clocks, in blocks; below it, a ratio is inaccurate.
constexpr std::uint64_t kClockMax =
    1 << 15;  ///< At this count the earlier half is forgotten: nodes' shares of the load change.
constexpr double kRatioMax = 64;
constexpr double kTimesMedian = 2, kTimesMedianAtAge = 4;  ///< A node's maximum weight.
constexpr double kUsesFreeAtAge = 8;
constexpr double kUsesKnown = 256;  ///< Nodes with fewer do not count in medians.

double lower_median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void CombinedCounts::hear(const std::string& peer, YieldCounts counts, std::uint64_t own_clock, TimePoint now) {
  const auto found = heard_.find(peer);
  if (found == heard_.end() && heard_.size() >= kPeersMax) return;
  Heard& heard = found == heard_.end() ? heard_[peer] : found->second;
  const bool is_anew = heard.at == TimePoint{} || heard.counts.instance != counts.instance ||
                       counts.clock < heard.peer_clock || own_clock < heard.own_clock;
  if (is_anew) {
    heard.peer_from = counts.clock;
    heard.own_from = own_clock;
  } else if (counts.clock - heard.peer_from > kClockMax || own_clock - heard.own_from > kClockMax) {
    heard.peer_from += (counts.clock - heard.peer_from) / 2;
    heard.own_from += (own_clock - heard.own_from) / 2;
  }
  heard.peer_clock = counts.clock;
  heard.own_clock = own_clock;
  heard.uses = counts.uses();
  heard.counts = std::move(counts);
  heard.at = now;
}

void CombinedCounts::keep_only(const std::vector<std::string>& peers) {
  std::erase_if(heard_, [&](const auto& each) { return std::ranges::find(peers, each.first) == peers.end(); });
}

/// Blocks offered to this node per block offered to the other.
double CombinedCounts::blocks_here(const Heard& heard, const YieldCounts& own) {
  const auto there = static_cast<double>(heard.peer_clock - heard.peer_from);
  const auto here = static_cast<double>(heard.own_clock - heard.own_from);
  const double ratio = there >= kClockMin && here >= kClockMin ? here / there : own.unit / heard.counts.unit;
  return std::clamp(ratio, 1 / kRatioMax, kRatioMax);
}

void CombinedCounts::weigh(const YieldCounts& own, TimePoint now) {
  std::vector<double> totals = {own.uses()};
  for (auto& [name, heard] : heard_) {
    heard.weight = 0;
    if (heard.counts.unit < 1 || heard.uses <= 0 || own.unit < 1 || now - heard.at >= kGone) continue;
    const std::chrono::duration<double> stale = std::max(now - heard.at - kFresh, Duration::zero());
    heard.weight = std::exp2(-stale / std::chrono::duration<double>(kHalfLife));
    totals.push_back(heard.uses * heard.weight);
  }
  const double most = std::max(kUsesFree, kTimesMedian * lower_median(totals));
  for (auto& [name, heard] : heard_)
    if (heard.weight > 0) heard.weight = std::min(heard.weight, most / heard.uses);
}

YieldTable::Combined CombinedCounts::combine(const YieldCounts& own, TimePoint now) {
  weigh(own, now);
  std::vector<Share> shares;
  std::size_t class_count = 0;
  for (const auto& [name, heard] : heard_) {
    if (heard.weight <= 0) continue;
    shares.push_back({&heard.counts, heard.weight, blocks_here(heard, own), heard.uses >= kUsesKnown});
    class_count = std::max(class_count, heard.counts.classes.size());
  }
  if (shares.empty()) return nullptr;
  auto combined = std::make_shared<std::vector<YieldTable::Counts>>(class_count);
  const bool own_is_known = own.uses() >= kUsesKnown;
  std::vector<YieldTable::Counts> parts(shares.size());
  for (std::size_t i = 0; i < class_count; ++i) {
    for (std::size_t k = 0; k < shares.size(); ++k) {
      parts[k] = {};
      if (i >= shares[k].counts->classes.size()) continue;
      parts[k].add(convert(shares[k].counts->classes[i], shares[k].counts->unit, shares[k].blocks, own.unit),
                   shares[k].weight);
    }
    const YieldTable::Counts none;
    add_bounded((*combined)[i], parts, shares,
                own_is_known ? i < own.classes.size() ? &own.classes[i] : &none : nullptr);
  }
  return combined;
}

/// For one class. A node whose uses or time at an age are far from the others' weighs less at that age, with both: its
/// rate counts, but less strongly. `own`: nullptr if it has too little to be compared with.
void CombinedCounts::add_bounded(YieldTable::Counts& sum, const std::vector<YieldTable::Counts>& parts,
                                 const std::vector<Share>& shares, const YieldTable::Counts* own) {
  std::vector<double> hits, times;
  for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) {
    hits.clear();
    times.clear();
    if (own != nullptr) {
      hits.push_back(own->hits[age]);
      times.push_back(own->time[age]);
    }
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (!shares[k].is_known) continue;
      hits.push_back(parts[k].hits[age]);
      times.push_back(parts[k].time[age]);
    }
    double hits_most = HUGE_VAL, time_most = HUGE_VAL;
    if (hits.size() > 1) {
      hits_most = std::max(kUsesFreeAtAge, kTimesMedianAtAge * lower_median(hits));
      time_most = kTimesMedianAtAge * lower_median(times);
    }
    for (const YieldTable::Counts& part : parts) {
      double counts = 1;
      if (part.hits[age] > hits_most) counts = hits_most / part.hits[age];
      if (part.time[age] > time_most) counts = std::min(counts, time_most / part.time[age]);
      sum.hits[age] += counts * part.hits[age];
      sum.time[age] += counts * part.time[age];
    }
  }
}

std::vector<CombinedCounts::Peer> CombinedCounts::peers(TimePoint now) const {
  std::vector<Peer> peers;
  for (const auto& [name, heard] : heard_) peers.push_back({name, heard.uses, heard.weight, now - heard.at});
  return peers;
}

}  // namespace kv
