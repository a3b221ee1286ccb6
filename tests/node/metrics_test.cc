#include "store/node/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace kv {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

StoreStats some_stats() {
  StoreStats stats;
  stats.capacity_bytes = 1 << 20;
  stats.evicted_blocks = 6;
  stats.eviction_age_log2_ms[0] = 1;
  stats.eviction_age_log2_ms[10] = 2;
  stats.eviction_age_log2_ms[31] = 3;
  stats.classes = {{4096, 256, 7, 1}, {1 << 20, 0, 0, 0}};
  return stats;
}

/// Prometheus text format 0.0.4: every sample belongs to a family with one HELP and one TYPE before it, names and
/// labels are well formed, no sample twice, histograms cumulative.
TEST(NodeMetricsTest, TextIsWellFormed) {
  NodeMetrics metrics("1.2.3");
  metrics.watch_store(some_stats);
  metrics.session_opened();
  metrics.observe_request(FrameType::kGet, 3ms, false);
  metrics.observe_lock(100ns, 2us);
  const std::string text = metrics.text();
  EXPECT_EQ(text.back(), '\n');
  const std::regex sample(
      R"re(([a-z_:][a-z0-9_:]*)(\{([a-z_]+="[^"\\]*",?)*\})? ([-+]?[0-9.]+(e[-+]?[0-9]+)?|\+Inf|NaN))re");
  std::set<std::string> helped, typed, seen;
  std::map<std::string, double> last_bucket;
  for (const std::string& line : lines_of(text)) {
    std::istringstream words(line);
    std::string hash, kind, name;
    if (line.starts_with("#")) {
      words >> hash >> kind >> name;
      ASSERT_TRUE(kind == "HELP" || kind == "TYPE") << line;
      EXPECT_TRUE((kind == "HELP" ? helped : typed).insert(name).second) << "given twice: " << line;
      EXPECT_TRUE(name.starts_with("kvstore_")) << line;
      continue;
    }
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    EXPECT_TRUE(seen.insert(line.substr(0, line.rfind(' '))).second) << "given twice: " << line;
    std::string family = match[1];
    for (const std::string suffix : {"_bucket", "_sum", "_count"}) {
      if (!typed.contains(family) && family.ends_with(suffix)) family.resize(family.size() - suffix.size());
    }
    EXPECT_TRUE(typed.contains(family)) << line;
    EXPECT_TRUE(helped.contains(family)) << line;
    const std::string labels = match[2];
    if (const auto le = labels.find("le=\""); match[1].str().ends_with("_bucket") && le != std::string::npos) {
      const double count = std::stod(match[4]);
      double& before = last_bucket[match[1].str() + labels.substr(0, le)];
      EXPECT_GE(count, before) << "a bucket holds all below it: " << line;
      before = count;
    }
  }
  EXPECT_GT(seen.size(), 300u);
}

TEST(NodeMetricsTest, CountersEndInTotalAndCoverTheStore) {
  NodeMetrics metrics("1.2.3");
  metrics.watch_store(some_stats);
  const std::string text = metrics.text();
  for (const StoreStatName& stat : kStoreStatNames) {
    EXPECT_THAT(
        text, HasSubstr("# TYPE kvstore_" + std::string(stat.name) + (stat.is_counter ? "_total counter" : " gauge")));
  }
  EXPECT_THAT(text, HasSubstr("kvstore_capacity_bytes 1048576"));
  EXPECT_THAT(text, HasSubstr("kvstore_evicted_blocks_total 6"));
  EXPECT_THAT(text, HasSubstr("kvstore_slab_slots_used{block_bytes=\"4096\"} 7"));
  EXPECT_THAT(text, HasSubstr("kvstore_build_info{version=\"1.2.3\"} 1"));
}

TEST(NodeMetricsTest, TheCurveIsByTierScaleAndPolicy) {
  NodeMetrics metrics("1.2.3");
  std::optional<LearningDesk::Curve> curve;
  metrics.watch_curve([&] { return curve; });
  EXPECT_THAT(metrics.text(), testing::Not(HasSubstr("kvstore_curve"))) << "it is turned off";
  curve.emplace();
  curve->report.has_policy = true;
  curve->report.hit_rate = 0.5;
  curve->report.points = {
      {.block_count = 5, .scale = 0.25, .lru = {.hit_rate = 0.125, .error = 0.25}, .policy = {.hit_rate = 0.75}},
      {.block_count = 40, .scale = 2, .has_disk = true}};
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("kvstore_curve_hit_ratio{tier=\"memory\",scale=\"0.25\",policy=\"lru\"} 0.125"));
  EXPECT_THAT(text, HasSubstr("kvstore_curve_hit_ratio_error{tier=\"memory\",scale=\"0.25\",policy=\"lru\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("kvstore_curve_hit_ratio{tier=\"memory\",scale=\"0.25\",policy=\"own\"} 0.75"));
  EXPECT_THAT(text, HasSubstr("kvstore_curve_hit_ratio{tier=\"memory_and_disk\",scale=\"2\",policy=\"lru\"} 0"));
  EXPECT_THAT(text, HasSubstr("kvstore_curve_measured_hit_ratio{tier=\"memory_and_disk\"} 0.5"));
}

TEST(NodeMetricsTest, EvictionAgesAreAHistogramOfSeconds) {
  NodeMetrics metrics("1.2.3");
  metrics.watch_store(some_stats);
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("kvstore_eviction_age_seconds_bucket{le=\"0.002\"} 1"));
  EXPECT_THAT(text, HasSubstr("kvstore_eviction_age_seconds_bucket{le=\"2.048\"} 3"));
  EXPECT_THAT(text, HasSubstr("kvstore_eviction_age_seconds_bucket{le=\"+Inf\"} 6"));
  EXPECT_THAT(text, HasSubstr("kvstore_eviction_age_seconds_count 6"));
}

TEST(NodeMetricsTest, EveryOperationEndAndReasonHasALabel) {
  NodeMetrics metrics("1.2.3");
  for (int type = 1; type <= kFrameTypeMax; ++type)
    metrics.observe_request(static_cast<FrameType>(type), 1us, type % 2 == 0);
  metrics.observe_request(static_cast<FrameType>(0), 1us, true);    // what no peer can have asked for
  metrics.observe_request(static_cast<FrameType>(200), 1us, true);  // is not counted
  for (std::size_t end = 0; end < kSessionEndCount; ++end) {
    metrics.session_opened();
    metrics.session_closed(static_cast<SessionEnd>(end));
  }
  for (int code = 0; code <= 40; ++code) metrics.request_refused(static_cast<Errc>(code));
  const std::string text = metrics.text();
  for (int type = 1; type <= kFrameTypeMax; ++type) {
    const std::string op = frame_type_name(static_cast<FrameType>(type));
    EXPECT_THAT(text, HasSubstr("kvstore_request_seconds_count{op=\"" + op + "\"} 1"));
  }
  for (const char* reason :
       {"peer_closed", "bad_frame", "hello_timeout", "slow_frame", "slow_reader", "broken", "drained"}) {
    EXPECT_THAT(text, HasSubstr("kvstore_sessions_closed_total{reason=\"" + std::string(reason) + "\"} 1"));
  }
  for (const char* reason : {"out_of_memory", "bad_frame", "too_large", "cancelled"}) {
    EXPECT_THAT(text, HasSubstr("kvstore_requests_refused_total{reason=\"" + std::string(reason) + "\"} 1"));
  }
  EXPECT_EQ(metrics.session_count(), 0u);
}

}  // namespace
}  // namespace kv
