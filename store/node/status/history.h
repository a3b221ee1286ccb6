// store/node/status/history.h: what a node did in the last hours, for the status page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/node/metrics.h"
#include "store/store.h"

namespace kv {

/// Two rings of points: kPoints every kStep (an hour), and kPoints every kStep * kLongSteps (a day).
///   1. At most kPoints + 1 points are kept in each, whatever happens: some 800 KiB in all.
///   2. A rate is that between two points, by the time that was between them in fact.
/// Thread safety: any thread.
class History {
 public:
  static constexpr std::size_t kPoints = 720, kLongSteps = 24;
  static constexpr Duration kStep = std::chrono::seconds(5);

  void add(const StoreStats& store, const NodeMetrics::Totals& node, TimePoint now);
  /// {"step_s": seconds between points, "age_s": [of each point, when the last one was made],
  ///  "series": {name: [value, or null where there was nothing to measure]}}, oldest first.
  std::string json(bool is_long) const;
  /// One value of each series, of the last two points: {name: value or null}; {} before there are two.
  std::string last_json() const;
  std::size_t point_count(bool is_long) const;

  /// Counters as they were, and gauges.
  struct Point {
    TimePoint at{};
    double memory_bytes = 0, disk_bytes = 0, sessions = 0;
    double match_memory = 0, match_disk = 0, match_missed = 0, get_memory = 0, get_disk = 0, get_missed = 0;
    double requests = 0, bytes_out = 0, bytes_in = 0, stored = 0, evicted = 0, spilled = 0;
    std::vector<std::uint64_t> match_seconds, get_seconds;  ///< As NodeMetrics::Totals.
  };

 private:
  static void keep(std::deque<Point>& points, const Point& point);

  mutable std::mutex mutex_;
  std::deque<Point> short_, long_;
  std::size_t count_ = 0;
};

}  // namespace kv
