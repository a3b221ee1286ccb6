// store/node/status/history.h: the node's activity in the last hours, for the status page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/lookup_counts.h"
#include "store/node/metrics.h"
#include "store/store.h"

namespace kv {

/// Two rings of points: kPoints every kStep (an hour), and kPoints every kStep * kLongSteps (a day).
///   1. Each keeps at most kPoints + 1 points: some 800 KiB in all.
///   2. A rate is computed between two points, over the actual time between them.
/// Thread safety: any thread.
class History {
 public:
  static constexpr std::size_t kPoints = 720, kLongSteps = 24;
  static constexpr Duration kStep = std::chrono::seconds(5);

  void add(const StoreStats& store, const NodeMetrics::Totals& node, TimePoint now);
  /// {"step_s": seconds between points, "age_s": [age of each point when the last one was made],
  ///  "series": {name: [value, or null without a measurement]}}, oldest first.
  std::string json(bool is_long) const;
  /// Each series' value between the last two points: {name: value or null}; {} before there are two.
  std::string last_json() const;

  /// Counters' totals, and gauges.
  struct Point {
    TimePoint at{};
    double memory_bytes = 0, disk_bytes = 0, sessions = 0;
    LookupCounts lookups{};
    double requests = 0, bytes_out = 0, bytes_in = 0, stored = 0, evicted = 0, spilled = 0;
    std::vector<std::uint64_t> match_seconds, get_seconds;  ///< As in NodeMetrics::Totals.
  };

 private:
  static void keep(std::deque<Point>& points, const Point& point);

  mutable std::mutex mutex_;
  std::deque<Point> short_, long_;
  std::size_t count_ = 0;
};

}  // namespace kv
