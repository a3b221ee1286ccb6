#include "client/link/client_metrics.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string_view>

#include "base/text/printable.h"
#include "client/types/node_status.h"

namespace kv {
namespace {

/// As the node's kvstore_request_seconds, so that the two can be overlaid.
constexpr std::array kSecondsBounds = {5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3,
                                       1e-2, 2e-2, 5e-2, 0.1,  0.2,  0.5,  1.,   2.,   5.};
/// The calls that are counted.
constexpr std::array kCalls = {FrameType::kMatch,    FrameType::kGet,    FrameType::kPut,   FrameType::kSetMatch,
                               FrameType::kSetGet,   FrameType::kSetPut, FrameType::kTouch, FrameType::kRetain,
                               FrameType::kUnretain, FrameType::kDrop};
// Labels never change: dashboards and alerts match on them. Calls have the names of the node's operations.
constexpr std::array kPathLabels = {"tcp", "tls", "unix", "memfd", "verbs"};
static_assert(kPathLabels.size() == kClientPathCount);
constexpr std::array kErrorNames = {"deadline_exceeded", "unavailable",   "cancelled", "busy",
                                    "corrupt_block",     "out_of_memory", "too_large", "permission_denied",
                                    "over_quota",        "other"};

std::string number(double value) {
  char text[40];
  // Not printf: an engine's locale may have a decimal comma.
  return {text, std::to_chars(text, std::end(text), value).ptr};
}

/// Names may be arbitrary bytes; a label is UTF-8.
std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

class Text {
 public:
  void family(const char* name, const char* type, const char* help) {
    name_ = std::string("kvstore_client_") + name;
    out_ += "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + " " + type + "\n";
  }
  void value(double value, const std::string& labels = "", const char* suffix = "") {
    out_ += name_ + suffix + (labels.empty() ? "" : "{" + labels + "}") + " " + number(value) + "\n";
  }
  void value(std::uint64_t count, const std::string& labels = "", const char* suffix = "") {
    out_ += name_ + suffix + (labels.empty() ? "" : "{" + labels + "}") + " " + std::to_string(count) + "\n";
  }
  /// A family of one value.
  template <class T>
  void family(const char* name, const char* type, const char* help, T its_value) {
    family(name, type, help);
    value(its_value);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string name_, out_;
};

std::string label(const char* name, std::string_view value) {
  return std::string(name) + "=\"" + label_value(value) + "\"";
}

void add_nodes(Text& text, const std::vector<NodeStatus>& nodes) {
  const auto of_nodes = [&](const char* name, const char* type, const char* help, auto&& value) {
    text.family(name, type, help);
    for (const NodeStatus& node : nodes) text.value(std::uint64_t{value(node)}, label("node", node.name));
  };
  using Node = const NodeStatus&;
  of_nodes("node_connected", "gauge", "1: some connection to the node is up", [](Node node) { return node.connected; });
  of_nodes("breaker_open", "gauge", "1: the node failed so often that it is left alone, but for probes",
           [](Node node) { return node.breaker_open; });
  of_nodes("breaker_openings_total", "counter", "Times that the node's breaker opened",
           [](Node node) { return node.breaker_openings; });
  of_nodes("node_requests_total", "counter", "Requests to the node", [](Node node) { return node.calls; });
  of_nodes("node_failures_total", "counter", "Signs that the node does not serve: lost connections, missed deadlines",
           [](Node node) { return node.failures; });
  of_nodes("node_deadline_misses_total", "counter", "Requests that the node did not answer in time",
           [](Node node) { return node.timeouts; });
  of_nodes("node_reconnects_total", "counter", "Connections made anew", [](Node node) { return node.reconnects; });
}

}  // namespace

std::size_t ClientMetrics::error_index(error_code why) {
  const auto index = [why]() -> std::size_t {
    if (why == asio::error::timed_out) return 0;
    if (why == Errc::kUnavailable || why == Errc::kDraining || why == Errc::kNoRegion) return 1;
    if (why == Errc::kCancelled) return 2;
    if (why == Errc::kBusy) return 3;
    if (why == Errc::kCorruptBlock) return 4;
    if (why == Errc::kOutOfMemory || why == Errc::kNotAdmitted) return 5;
    if (why == Errc::kTooLarge) return 6;
    if (why == Errc::kPermissionDenied) return 7;
    return why == Errc::kOverQuota ? 8 : 9;
  }();
  static_assert(kErrorNames.size() == kErrorCount);
  return index;
}

void ClientMetrics::ended(FrameType call, Took took, error_code why) {
  Calls& of = calls_[static_cast<std::size_t>(call)];
  const double seconds = std::chrono::duration<double>(took).count();
  static_assert(kSecondsBounds.size() + 1 == kBucketCount);
  const auto bound = std::ranges::lower_bound(kSecondsBounds, seconds);
  ++of.buckets[static_cast<std::size_t>(bound - kSecondsBounds.begin())];
  of.seconds += seconds;
  if (why) ++of.errors[error_index(why)];
}

void ClientMetrics::matched(std::size_t memory, std::size_t disk, std::size_t missed, std::size_t block_size) {
  match_memory_ += memory;
  match_disk_ += disk;
  match_missed_ += missed;
  match_hit_tokens_ += (memory + disk) * block_size;
  match_missed_tokens_ += missed * block_size;
}

void ClientMetrics::got(std::size_t loaded, std::size_t missed, std::size_t corrupt, std::size_t block_size) {
  get_loaded_ += loaded;
  get_missed_ += missed;
  get_corrupt_ += corrupt;
  get_tokens_ += loaded * block_size;
  if (tokens_per_second_ > 0) avoided_seconds_ += static_cast<double>(loaded * block_size) / tokens_per_second_;
}

void ClientMetrics::put(std::size_t stored, std::size_t already_stored, std::size_t refused) {
  put_stored_ += stored;
  put_already_stored_ += already_stored;
  put_refused_ += refused;
}

void ClientMetrics::set_prefill_speed(double tokens_per_second) {
  tokens_per_second_ = std::isfinite(tokens_per_second) ? std::max(tokens_per_second, 0.0) : 0;
}

std::string ClientMetrics::text(const std::vector<NodeStatus>& nodes, const Gauges& gauges) const {
  Text text;
  text.family("call_duration_seconds", "histogram", "From a call to its result, by call");
  for (const FrameType type : kCalls) {
    const Calls& of = calls_[static_cast<std::size_t>(type)];
    const std::string call = label("call", frame_type_name(type));
    std::uint64_t below = 0;
    for (std::size_t k = 0; k < kBucketCount; ++k) {
      below += of.buckets[k];
      const std::string bound = k < kSecondsBounds.size() ? number(kSecondsBounds[k]) : "+Inf";
      text.value(below, call + "," + label("le", bound), "_bucket");
    }
    text.value(of.seconds, call, "_sum");
    text.value(below, call, "_count");
  }
  text.family("call_errors_total", "counter",
              "Calls that failed, or brought less than was asked for, by the reason; deadline_exceeded: out of time");
  for (const FrameType type : kCalls) {
    for (std::size_t k = 0; k < kErrorCount; ++k) {
      text.value(calls_[static_cast<std::size_t>(type)].errors[k],
                 label("call", frame_type_name(type)) + "," + label("error_type", kErrorNames[k]));
    }
  }
  text.family("calls_refused_total", "counter", "Calls refused at once, since as many as may be were in progress",
              refused_calls_);
  text.family("calls_in_progress", "gauge", "Calls in progress", std::uint64_t{gauges.call_count});
  text.family("calls_max", "gauge", "Bound of calls_in_progress", std::uint64_t{gauges.calls_max});

  text.family("match_blocks_total", "counter", "Blocks looked up, by where they were found");
  text.value(match_memory_, label("tier", "memory"));
  text.value(match_disk_, label("tier", "disk"));
  text.value(match_missed_, label("tier", "none"));
  text.family("match_tokens_total", "counter", "Tokens looked up in chains, by whether they were found");
  text.value(match_hit_tokens_, label("result", "hit"));
  text.value(match_missed_tokens_, label("result", "miss"));
  text.family("get_blocks_total", "counter", "Blocks asked for by get, by what came of them");
  text.value(get_loaded_, label("result", "loaded"));
  text.value(get_missed_, label("result", "missed"));
  text.value(get_corrupt_, label("result", "corrupt"));
  text.family("put_blocks_total", "counter", "Blocks given to put, by what came of them");
  text.value(put_stored_, label("result", "stored"));
  text.value(put_already_stored_, label("result", "already_stored"));
  text.value(put_refused_, label("result", "refused"));
  text.family("saved_tokens_total", "counter", "Tokens of chains that were loaded, and need not be computed",
              get_tokens_);
  text.family(
      "saved_compute_seconds_total", "counter",
      "What computing them would have taken, where the engine has said how fast it is; without what loading took",
      avoided_seconds_);
  text.family("prefill_tokens_per_second", "gauge", "How fast the engine says it computes; 0: it has not said",
              tokens_per_second_);
  text.family("io_bytes_total", "counter", "Block bytes, by how they travelled and where");
  for (std::size_t i = 0; i < kClientPathCount; ++i) {
    text.value(received_[i], label("transport", kPathLabels[i]) + "," + label("direction", "receive"));
    text.value(sent_[i], label("transport", kPathLabels[i]) + "," + label("direction", "transmit"));
  }
  text.family("lent_bytes", "gauge", "Memory that is lent to nodes, or can be", gauges.lent_bytes);

  text.family("memory_numa_nodes", "gauge",
              "NUMA nodes that memory of this client was asked of; 0: the kernel places it",
              std::uint64_t{gauges.numa.place.choice.memory.size()});
  if (const auto ratio = gauges.numa.misplaced_ratio) {
    text.family("memory_numa_misplaced_ratio", "gauge",
                "Share of that memory on nodes that it was not asked of, by a sample", *ratio);
  }

  if (gauges.certificates != nullptr) {
    const auto ends = gauges.certificates->current()->cert_ends().time_since_epoch();
    text.family("tls_cert_expiry_timestamp_seconds", "gauge",
                "When the first certificate of the client's chain in use ends, in seconds since 1970",
                std::chrono::duration<double>(ends).count());
    text.family("tls_reload_failed", "gauge", "1: the files are bad, and the certificates in use are older",
                std::uint64_t{gauges.certificates->stats().last_failed});
  }

  add_nodes(text, nodes);
  text.family("info", "gauge", "1, labelled with what the client calls itself");
  text.value(std::uint64_t{1}, label("identity", gauges.identity));
  return text.take();
}

}  // namespace kv
