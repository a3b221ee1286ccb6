#include "store/node/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "base/assert.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::MetricType;

/// From a match in a warm cache (microseconds) to a get over TCP that waits for a slow disk (seconds).
const Histogram::BucketBoundaries kRequestSeconds = {5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3,
                                                     1e-2, 2e-2, 5e-2, 0.1,  0.2,  0.5,  1,    2,    5};
/// The Store's lock is held for microseconds. The last buckets show violations of that rule.
const Histogram::BucketBoundaries kLockSeconds = {1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6,
                                                  1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e-2};

/// By SessionEnd, Path and Errc. Names of labels never change: dashboards and alerts match on them.
constexpr std::array kSessionEnds = {"peer_closed", "bad_frame", "hello_timeout", "slow_frame",       "slow_reader",
                                     "broken",      "drained",   "made_room",     "certificate_ended"};
static_assert(kSessionEnds.size() == kSessionEndCount);
constexpr std::array kPathNames = {"inline", "memfd", "verbs"};
static_assert(kPathNames.size() == kPathCount);
constexpr std::array kErrcNames = {
    "none",         "out_of_memory", "stale_lease", "corrupt_block", "bad_frame",    "bad_request",       "unsupported",
    "no_namespace", "mismatch",      "too_large",   "busy",          "unavailable",  "no_region",         "quarantined",
    "draining",     "cancelled",     "not_found",   "disk_failed",   "not_admitted", "permission_denied", "over_quota"};

double seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

prometheus::MetricFamily family(const std::string& name, const std::string& help, MetricType type) {
  prometheus::MetricFamily result;
  result.name = "kvstore_" + name;
  result.help = help;
  result.type = type;
  return result;
}

prometheus::MetricFamily value_family(const std::string& name, bool is_counter, const char* help) {
  return is_counter ? family(name + "_total", help, MetricType::Counter) : family(name, help, MetricType::Gauge);
}

void add_value(prometheus::MetricFamily& to, double value, std::vector<prometheus::ClientMetric::Label> labels = {}) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  if (to.type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  to.metric.push_back(std::move(metric));
}

/// Made anew for each scrape: the Store has its own plain counters under its lock. Registered metrics would have to be
/// updated in step with them on every put and get.
std::vector<prometheus::MetricFamily> families_of(const StoreStats& stats) {
  std::vector<prometheus::MetricFamily> families;
  for (const StoreStatName& stat : kStoreStatNames) {
    add_value(families.emplace_back(value_family(stat.name, stat.is_counter, stat.help)),
              static_cast<double>(stats.*stat.value));
  }
  auto& ages = families.emplace_back(family("eviction_age_seconds",
                                            "Time from a block's last use to its eviction: what the cache is worth",
                                            MetricType::Histogram));
  prometheus::ClientMetric metric;
  // The Store counts by powers of two. Prometheus wants cumulative buckets.
  std::uint64_t total = 0;
  double sum = 0;
  for (std::size_t i = 0; i < stats.eviction_age_log2_ms.size(); ++i) {
    const double upper = std::ldexp(1e-3, static_cast<int>(i) + 1);
    total += stats.eviction_age_log2_ms[i];
    sum += static_cast<double>(stats.eviction_age_log2_ms[i]) * upper * 0.75;  // the middle of the bucket
    if (i < 27) metric.histogram.bucket.push_back({total, upper});
  }
  metric.histogram.bucket.push_back({total, std::numeric_limits<double>::infinity()});
  metric.histogram.sample_count = total;
  metric.histogram.sample_sum = sum;
  ages.metric.push_back(std::move(metric));

  auto& misses = families.emplace_back(
      family("match_misses_total", "Matches that did not find all, by why the first block missed was not here",
             MetricType::Counter));
  for (std::size_t found = 0; found < 2; ++found) {
    for (std::size_t kind = 0; kind < kMissKindCount; ++kind) {
      const auto why = static_cast<MissKind>(kind);
      // Only callers who ask for the reason find these out.
      if (why == MissKind::kUnknown || why == MissKind::kDiskOff || why == MissKind::kBeingStored) continue;
      add_value(misses, static_cast<double>(stats.match_misses[found][kind]),
                {{"reason", std::string(miss_kind_name(why))}, {"found", found == 0 ? "nothing" : "some"}});
    }
  }

  // Size classes come and go, so they are made anew for each scrape.
  auto slots = family("slab_slots", "Slots of a size class", MetricType::Gauge);
  auto used = family("slab_slots_used", "Slots of a size class that hold a block", MetricType::Gauge);
  auto slabs = family("slabs", "Slabs of a size class", MetricType::Gauge);
  for (const auto& size_class : stats.classes) {
    const std::string bytes = std::to_string(size_class.block_bytes);
    add_value(slots, static_cast<double>(size_class.slot_count), {{"block_bytes", bytes}});
    add_value(used, static_cast<double>(size_class.used_count), {{"block_bytes", bytes}});
    add_value(slabs, static_cast<double>(size_class.slab_count), {{"block_bytes", bytes}});
  }
  for (auto* each : {&slots, &used, &slabs}) {
    if (!each->metric.empty()) families.push_back(std::move(*each));
  }
  return families;
}

/// In multiples of the node's capacity, which stay the same when the node gets more memory.
std::vector<prometheus::MetricFamily> families_of(const std::vector<NodeMetrics::OfTenant>& tenants) {
  std::vector<prometheus::MetricFamily> families;
  std::map<std::string, std::size_t> places;  // by name: tenants need not have the same values
  for (const NodeMetrics::OfTenant& tenant : tenants) {
    for (const NodeMetrics::Value& each : tenant.values) {
      const auto [place, is_new] = places.emplace(each.name, families.size());
      if (is_new) families.push_back(value_family(each.name, each.is_counter, each.help));
      add_value(families[place->second], each.value, {{"tenant", tenant.name}});
    }
  }
  return families;
}

std::vector<prometheus::MetricFamily> families_of(const LearningDesk::Curve& curve) {
  const HitCurve::Report& report = curve.report;
  auto rates = family("curve_hit_ratio", "Hit rate by capacity and policy, from a sample", MetricType::Gauge);
  auto errors = family("curve_hit_ratio_error", "Within this of it 19 times in 20", MetricType::Gauge);
  for (const HitCurve::Point& point : report.points) {
    const std::string scale = fmt::format("{:g}", point.scale);
    const auto add = [&](const char* policy, const HitCurve::Estimate& estimate) {
      const std::vector<prometheus::ClientMetric::Label> labels = {
          {"tier", point.has_disk ? "memory_and_disk" : "memory"}, {"scale", scale}, {"policy", policy}};
      add_value(rates, estimate.hit_rate, labels);
      add_value(errors, estimate.error, labels);
    };
    add("lru", point.lru);
    if (report.has_policy) add("own", point.policy);
  }
  auto measured = family("curve_measured_hit_ratio", "What the node found in the same time", MetricType::Gauge);
  add_value(measured, report.memory_hit_rate, {{"tier", "memory"}});
  add_value(measured, report.hit_rate, {{"tier", "memory_and_disk"}});
  auto sampled =
      family("curve_sampled_blocks", "Blocks of the sample asked for, of the last hour or so", MetricType::Gauge);
  add_value(sampled, report.sampled_blocks);
  auto dropped =
      family("curve_dropped_requests_total", "Requests not counted, since too many waited for it", MetricType::Counter);
  add_value(dropped, static_cast<double>(report.dropped_requests));
  return {std::move(rates), std::move(errors), std::move(measured), std::move(sampled), std::move(dropped)};
}

}  // namespace

struct NodeMetrics::Impl {
  prometheus::Registry registry;
  prometheus::Gauge* operator_key = nullptr;
  std::array<Histogram*, kFrameTypeMax + 1> request_seconds{};
  std::array<Counter*, kFrameTypeMax + 1> request_failures{}, slow_requests{};
  Histogram *lock_waited, *lock_held;
  std::array<Counter*, kPathCount> bytes_out{}, bytes_in{};
  Counter *tokens_hit, *tokens_missed;
  Gauge* sessions;
  Counter* sessions_opened;
  std::array<Counter*, 2> sessions_refused{};
  std::array<Counter*, kSessionEndCount> sessions_closed{};
  Gauge* region_bytes;
  Counter *checksum_failures, *deadline_misses;
  std::array<Counter*, kErrcNames.size()> refusals{};
  std::array<Counter*, kRightCount> denials{};
  std::function<StoreStats()> stats;
  std::function<std::optional<LearningDesk::Curve>()> curve;
  std::vector<std::function<std::vector<Value>()>> values;
  std::vector<std::function<std::vector<OfTenant>()>> tenants;
};

NodeMetrics::NodeMetrics(const std::string& version) : impl_(std::make_unique<Impl>()) {
  auto& registry = impl_->registry;
  const auto counters = [&](const char* name, const char* help) -> auto& {
    return prometheus::BuildCounter().Name(std::string("kvstore_") + name).Help(help).Register(registry);
  };
  const auto gauges = [&](const char* name, const char* help) -> auto& {
    return prometheus::BuildGauge().Name(std::string("kvstore_") + name).Help(help).Register(registry);
  };
  const auto histograms = [&](const char* name, const char* help) -> auto& {
    return prometheus::BuildHistogram().Name(std::string("kvstore_") + name).Help(help).Register(registry);
  };
  const auto counter = [&](const char* name, const char* help) { return &counters(name, help).Add({}); };
  const auto gauge = [&](const char* name, const char* help) { return &gauges(name, help).Add({}); };
  auto& request_seconds = histograms("request_seconds", "From a request's arrival to its last answer, by operation");
  auto& request_failures = counters("request_failures_total", "Requests that did not run to their end, by operation");
  auto& slow_requests = counters("slow_requests_total", "Requests that took slow-log-seconds or longer, by operation");
  for (std::uint8_t type = 1; type <= kFrameTypeMax; ++type) {
    const std::string op = frame_type_name(static_cast<FrameType>(type));
    impl_->slow_requests[type] = &slow_requests.Add({{"op", op}});
    impl_->request_seconds[type] = &request_seconds.Add({{"op", op}}, kRequestSeconds);
    impl_->request_failures[type] = &request_failures.Add({{"op", op}});
  }
  impl_->lock_waited = &histograms("lock_waited_seconds", "Wait for the store's lock").Add({}, kLockSeconds);
  impl_->lock_held = &histograms("lock_held_seconds", "Time the store's lock was held").Add({}, kLockSeconds);
  auto& out = counters("bytes_out_total", "Block bytes delivered by get, by path");
  auto& in = counters("bytes_in_total", "Block bytes taken by put, by path");
  for (std::size_t i = 0; i < kPathCount; ++i) {
    impl_->bytes_out[i] = &out.Add({{"path", kPathNames[i]}});
    impl_->bytes_in[i] = &in.Add({{"path", kPathNames[i]}});
  }
  impl_->tokens_hit = counter("match_hit_tokens_total", "Tokens asked for by match and held");
  impl_->tokens_missed = counter("match_miss_tokens_total", "Tokens asked for by match and not held");
  impl_->sessions = gauge("sessions", "Open sessions");
  impl_->sessions_opened = counter("sessions_opened_total", "Sessions accepted");
  auto& refused = counters("sessions_refused_total",
                           "Connections refused: all sessions are taken (full), or the peer's share is (peer)");
  impl_->sessions_refused = {&refused.Add({{"reason", "full"}}), &refused.Add({{"reason", "peer"}})};
  auto& closed = counters("sessions_closed_total", "Sessions that ended, by reason");
  for (std::size_t i = 0; i < kSessionEndCount; ++i)
    impl_->sessions_closed[i] = &closed.Add({{"reason", kSessionEnds[i]}});
  impl_->region_bytes = gauge("region_bytes", "Bytes of client memory lent to this node");
  impl_->checksum_failures =
      counter("checksum_failures_total", "Blocks whose bytes did not match their checksum on arrival");
  impl_->deadline_misses =
      counter("deadline_misses_total", "Puts that ran out of time waiting for memory or for bytes");
  auto& refusals = counters("requests_refused_total", "Requests answered with an error, by reason");
  for (std::size_t i = 1; i < kErrcNames.size(); ++i) impl_->refusals[i] = &refusals.Add({{"reason", kErrcNames[i]}});
  auto& denials =
      counters("requests_denied_total", "Requests and pages that the policy denied, by the right that was missing");
  for (std::size_t i = 0; i < kRightCount; ++i)
    impl_->denials[i] = &denials.Add({{"right", right_name(static_cast<Right>(i))}});
  gauges("build_info", "1, labelled with the version").Add({{"version", version}}).Set(1);
}

NodeMetrics::~NodeMetrics() = default;

void NodeMetrics::set_operator_key(const std::string& id) {
  auto& keys = prometheus::BuildGauge()
                   .Name("kvstore_disk_key_info")
                   .Help("1, labelled with the id of the key that wraps the keys of encrypted blocks on disk")
                   .Register(impl_->registry);  // the same family each time
  if (impl_->operator_key != nullptr) keys.Remove(impl_->operator_key);
  impl_->operator_key = &keys.Add({{"key", id}});
  impl_->operator_key->Set(1);
}

void NodeMetrics::observe_request(FrameType type, std::chrono::nanoseconds took, bool failed) {
  const auto index = static_cast<std::size_t>(type);
  if (index == 0 || index > kFrameTypeMax) return;  // an unknown type from a client
  impl_->request_seconds[index]->Observe(seconds(took));
  if (failed) impl_->request_failures[index]->Increment();
}
void NodeMetrics::request_was_slow(FrameType type) {
  const auto index = static_cast<std::size_t>(type);
  if (index > 0 && index <= kFrameTypeMax) impl_->slow_requests[index]->Increment();
}
void NodeMetrics::observe_lock(std::chrono::nanoseconds waited, std::chrono::nanoseconds held) {
  impl_->lock_waited->Observe(seconds(waited));
  impl_->lock_held->Observe(seconds(held));
}
void NodeMetrics::add_bytes_out(Path path, std::uint64_t bytes) {
  KV_ASSERT(static_cast<std::size_t>(path) < kPathCount);
  impl_->bytes_out[static_cast<std::size_t>(path)]->Increment(static_cast<double>(bytes));
}
void NodeMetrics::add_bytes_in(Path path, std::uint64_t bytes) {
  KV_ASSERT(static_cast<std::size_t>(path) < kPathCount);
  impl_->bytes_in[static_cast<std::size_t>(path)]->Increment(static_cast<double>(bytes));
}
void NodeMetrics::add_tokens(std::uint64_t hit, std::uint64_t missed) {
  impl_->tokens_hit->Increment(static_cast<double>(hit));
  impl_->tokens_missed->Increment(static_cast<double>(missed));
}
void NodeMetrics::session_opened() {
  impl_->sessions_opened->Increment();
  impl_->sessions->Increment();
}
void NodeMetrics::session_closed(SessionEnd why) {
  KV_ASSERT(static_cast<std::size_t>(why) < kSessionEndCount);
  KV_ASSERT(session_count() > 0);
  impl_->sessions_closed[static_cast<std::size_t>(why)]->Increment();
  impl_->sessions->Decrement();
}
void NodeMetrics::session_refused(bool for_its_peer) { impl_->sessions_refused[for_its_peer]->Increment(); }
void NodeMetrics::add_region_bytes(std::int64_t bytes) { impl_->region_bytes->Increment(static_cast<double>(bytes)); }
void NodeMetrics::checksum_failed() { impl_->checksum_failures->Increment(); }
void NodeMetrics::deadline_missed() { impl_->deadline_misses->Increment(); }
void NodeMetrics::request_refused(Errc why) {
  const auto index = static_cast<std::size_t>(why);
  if (index > 0 && index < impl_->refusals.size()) impl_->refusals[index]->Increment();
}
void NodeMetrics::request_denied(Right right) {
  KV_ASSERT(static_cast<std::size_t>(right) < kRightCount);
  impl_->denials[static_cast<std::size_t>(right)]->Increment();
}
std::uint64_t NodeMetrics::session_count() const { return static_cast<std::uint64_t>(impl_->sessions->Value()); }

NodeMetrics::Totals NodeMetrics::totals() const {
  const auto sum = [](const auto& counters) {
    double value = 0;
    for (const Counter* const counter : counters) value += counter == nullptr ? 0 : counter->Value();
    return static_cast<std::uint64_t>(value);
  };
  Totals totals{.sessions = session_count(),
                .bytes_out = sum(impl_->bytes_out),
                .bytes_in = sum(impl_->bytes_in),
                .checksum_failures = static_cast<std::uint64_t>(impl_->checksum_failures->Value()),
                .deadline_misses = static_cast<std::uint64_t>(impl_->deadline_misses->Value()),
                .denials = sum(impl_->denials),
                .sessions_refused = sum(impl_->sessions_refused)};
  for (std::size_t type = 1; type <= kFrameTypeMax; ++type) {
    const prometheus::ClientMetric::Histogram seconds = impl_->request_seconds[type]->Collect().histogram;
    totals.request_count += seconds.sample_count;
    const auto frame_type = static_cast<FrameType>(type);
    const bool is_match = frame_type == FrameType::kMatch || frame_type == FrameType::kSetMatch;
    if (!is_match && frame_type != FrameType::kGet && frame_type != FrameType::kSetGet) continue;
    auto& counts = is_match ? totals.match_seconds : totals.get_seconds;
    counts.resize(seconds.bucket.size());
    std::uint64_t below = 0;  // Prometheus has cumulative buckets
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i] += seconds.bucket[i].cumulative_count - below;
      below = seconds.bucket[i].cumulative_count;
    }
  }
  return totals;
}

const std::vector<double>& NodeMetrics::seconds_bounds() { return kRequestSeconds; }

void NodeMetrics::watch_store(std::function<StoreStats()> stats) { impl_->stats = std::move(stats); }

void NodeMetrics::watch_curve(std::function<std::optional<LearningDesk::Curve>()> curve) {
  impl_->curve = std::move(curve);
}

void NodeMetrics::watch(std::function<std::vector<Value>()> values) { impl_->values.push_back(std::move(values)); }

void NodeMetrics::watch_tenants(std::function<std::vector<OfTenant>()> tenants) {
  impl_->tenants.push_back(std::move(tenants));
}

/// On the admin thread. Each source is called and locks for itself; the text is made unlocked, in a millisecond.
std::string NodeMetrics::text() const {
  auto families = impl_->registry.Collect();
  for (const auto& values : impl_->values) {
    for (const Value& each : values())
      add_value(families.emplace_back(value_family(each.name, each.is_counter, each.help)), each.value);
  }
  auto& failures = families.emplace_back(family(
      "thread_failures_total", "Exceptions that ended at a thread's border; the thread went on", MetricType::Counter));
  for (std::size_t i = 0; i < kNodeThreadNames.size(); ++i) {
    add_value(failures, static_cast<double>(thread_failure_count(static_cast<NodeThread>(i))),
              {{"thread", kNodeThreadNames[i]}});
  }
  const auto append = [&families](std::vector<prometheus::MetricFamily> more) {
    std::ranges::move(more, std::back_inserter(families));
  };
  for (const auto& tenants : impl_->tenants) append(families_of(tenants()));
  if (impl_->stats) append(families_of(impl_->stats()));
  if (const auto curve = impl_->curve ? impl_->curve() : std::nullopt) append(families_of(*curve));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace kv
