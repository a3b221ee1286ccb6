#include "store/node/status/history.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "store/node/status/figures.h"

namespace kv {
namespace {

using nlohmann::json;
using Point = History::Point;

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

/// A value between two points. Rates are per second.
struct Series {
  enum class Kind : std::uint8_t { kGauge, kRate, kLookups, kQuantile };

  const char* name;
  Kind kind;
  double Point::*value = nullptr;
  double LookedUp::*lookups = nullptr;                  ///< kLookups
  std::vector<std::uint64_t> Point::*counts = nullptr;  ///< kQuantile
  double share = 0;                                     ///< kQuantile
};
using Kind = Series::Kind;

const std::array kSeries = {
    Series{"memory_bytes", Kind::kGauge, &Point::memory_bytes},
    Series{"disk_bytes", Kind::kGauge, &Point::disk_bytes},
    Series{"sessions", Kind::kGauge, &Point::sessions},
    Series{.name = "found_memory", .kind = Kind::kLookups, .lookups = &LookedUp::memory},
    Series{.name = "found_disk", .kind = Kind::kLookups, .lookups = &LookedUp::disk},
    Series{.name = "missed", .kind = Kind::kLookups, .lookups = &LookedUp::missed},
    Series{"requests", Kind::kRate, &Point::requests},
    Series{"bytes_out", Kind::kRate, &Point::bytes_out},
    Series{"bytes_in", Kind::kRate, &Point::bytes_in},
    Series{"stored", Kind::kRate, &Point::stored},
    Series{"evicted", Kind::kRate, &Point::evicted},
    Series{"spilled", Kind::kRate, &Point::spilled},
    Series{.name = "match_p50", .kind = Kind::kQuantile, .counts = &Point::match_seconds, .share = 0.5},
    Series{.name = "match_p99", .kind = Kind::kQuantile, .counts = &Point::match_seconds, .share = 0.99},
    Series{.name = "get_p50", .kind = Kind::kQuantile, .counts = &Point::get_seconds, .share = 0.5},
    Series{.name = "get_p99", .kind = Kind::kQuantile, .counts = &Point::get_seconds, .share = 0.99},
};

double rate(double before, double after, TimePoint from, TimePoint to) {
  return std::max(0.0, after - before) / std::max(1e-3, std::chrono::duration<double>(to - from).count());
}

/// Interpolates within a bucket by rank; buckets are half a power of two to a power wide.
double quantile(const std::vector<std::uint64_t>& before, const std::vector<std::uint64_t>& after, double share) {
  const std::vector<double>& bounds = NodeMetrics::seconds_bounds();
  const auto made = [&](std::size_t i) { return static_cast<double>(after[i] - (i < before.size() ? before[i] : 0)); };
  double count = 0;
  for (std::size_t i = 0; i < after.size(); ++i) count += made(i);
  if (count == 0) return kNothing;
  double below = 0;
  for (std::size_t i = 0; i < after.size() && i < bounds.size(); ++i) {
    if (below + made(i) >= share * count) {
      const double lower = i == 0 ? 0 : bounds[i - 1];
      return lower + (bounds[i] - lower) * (share * count - below) / made(i);
    }
    below += made(i);
  }
  return bounds.back() * 2;
}

double value_of(const Series& series, const Point& before, const Point& after) {
  const auto rate_of = [&](double Point::*value) { return rate(before.*value, after.*value, before.at, after.at); };
  switch (series.kind) {
    case Kind::kGauge: return after.*series.value;
    case Kind::kRate: return rate_of(series.value);
    case Kind::kLookups:
      return rate(0, lookups_between(before.lookups, after.lookups).*series.lookups, before.at, after.at);
    case Kind::kQuantile: return quantile(before.*series.counts, after.*series.counts, series.share);
  }
  return kNothing;
}

/// Five digits are more than a picture shows, and a third of the length of all.
json value_or_null(double value) {
  if (std::isnan(value)) return nullptr;
  return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr);
}

}  // namespace

void History::keep(std::deque<Point>& points, const Point& point) {
  points.push_back(point);
  while (points.size() > kPoints + 1) points.pop_front();  // 1
}

void History::add(const StoreStats& store, const NodeMetrics::Totals& node, TimePoint now) {
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  const Point point{.at = now,
                    .memory_bytes = number(store.allocated_bytes),
                    .disk_bytes = number(store.disk_only_bytes),
                    .sessions = number(node.sessions),
                    .lookups = lookup_counts(store),
                    .requests = number(node.request_count),
                    .bytes_out = number(node.bytes_out),
                    .bytes_in = number(node.bytes_in),
                    .stored = number(store.stored_blocks),
                    .evicted = number(store.evicted_blocks),
                    .spilled = number(store.spilled_blocks),
                    .match_seconds = node.match_seconds,
                    .get_seconds = node.get_seconds};
  const std::lock_guard lock(mutex_);
  keep(short_, point);
  if (count_++ % kLongSteps == 0) keep(long_, point);
}

std::string History::json(bool is_long) const {
  std::deque<Point> points;
  {
    const std::lock_guard lock(mutex_);
    points = is_long ? long_ : short_;
  }
  nlohmann::json ages = nlohmann::json::array(), series = nlohmann::json::object();
  for (std::size_t i = 1; i < points.size(); ++i)
    ages.push_back(std::chrono::duration<double>(points.back().at - points[i].at).count());
  for (const Series& each : kSeries) {
    nlohmann::json& values = series[each.name] = nlohmann::json::array();
    for (std::size_t i = 1; i < points.size(); ++i)
      values.push_back(value_or_null(value_of(each, points[i - 1], points[i])));
  }
  const Duration step = kStep * (is_long ? kLongSteps : 1);
  return nlohmann::json{{"step_s", std::chrono::duration<double>(step).count()}, {"age_s", ages}, {"series", series}}
      .dump();
}

std::string History::last_json() const {
  const std::lock_guard lock(mutex_);
  nlohmann::json values = nlohmann::json::object();
  if (short_.size() < 2) return values.dump();
  for (const Series& each : kSeries)
    values[each.name] = value_or_null(value_of(each, short_[short_.size() - 2], short_.back()));
  return values.dump();
}

}  // namespace kv
