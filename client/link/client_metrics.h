// client/link/client_metrics.h: a client's counters, for monitoring its worker. docs/operating.md has the names.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "client/types/numa_place.h"
#include "transport/frames/frame.h"
#include "transport/tls/tls_source.h"

namespace kv {

struct NodeStatus;

/// How block bytes travel between a client and a node, as a label.
enum class ClientPath : std::uint8_t { kTcp, kTls, kUnix, kMemfd, kVerbs };
inline constexpr std::size_t kClientPathCount = 5;

/// Plain numbers: counting costs an addition, and a clock reading at a call's begin and end. The text is made on
/// request. Without a metrics library, because this lives in any engine's process.
/// Thread safety: none; on the client's executor.
class ClientMetrics {
 public:
  using Took = std::chrono::nanoseconds;

  /// Counts a call as a whole, however many nodes it asked. `why`: its error, or the reason for a short result.
  void ended(FrameType call, Took took, error_code why);
  void refused() { ++refused_calls_; }  ///< Over calls_max.
  void matched(std::size_t memory, std::size_t disk, std::size_t missed, std::size_t block_size);
  /// `block_size`: tokens in a chain's block; 0 for a set.
  void got(std::size_t loaded, std::size_t missed, std::size_t corrupt, std::size_t block_size);
  void put(std::size_t stored, std::size_t already_stored, std::size_t refused);
  void received(ClientPath path, std::uint64_t bytes) { received_[static_cast<std::size_t>(path)] += bytes; }
  void sent(ClientPath path, std::uint64_t bytes) { sent_[static_cast<std::size_t>(path)] += bytes; }
  /// The engine's prefill speed, for tokens from now on; 0: unknown.
  void set_prefill_speed(double tokens_per_second);

  struct Gauges {
    std::string identity;
    std::size_t call_count = 0, calls_max = 0;
    std::uint64_t lent_bytes = 0;
    NumaStatus numa = {};
    const TlsSource* certificates = nullptr;  ///< nullptr: without TLS.
  };
  /// Prometheus text format 0.0.4. `nodes`: the client's.
  std::string text(const std::vector<NodeStatus>& nodes, const Gauges& gauges) const;

 private:
  static constexpr std::size_t kBucketCount = 20, kErrorCount = 10;
  static std::size_t error_index(error_code why);
  struct Calls {
    std::array<std::uint64_t, kBucketCount> buckets{};  ///< The last: beyond all bounds.
    double seconds = 0;
    std::array<std::uint64_t, kErrorCount> errors{};
  };

  std::array<Calls, kFrameTypeMax + 1> calls_{};  ///< By type.
  std::array<std::uint64_t, kClientPathCount> received_{}, sent_{};
  std::uint64_t refused_calls_ = 0;
  std::uint64_t match_memory_ = 0, match_disk_ = 0, match_missed_ = 0, match_hit_tokens_ = 0, match_missed_tokens_ = 0;
  std::uint64_t get_loaded_ = 0, get_missed_ = 0, get_corrupt_ = 0, get_tokens_ = 0;
  std::uint64_t put_stored_ = 0, put_already_stored_ = 0, put_refused_ = 0;
  double tokens_per_second_ = 0, avoided_seconds_ = 0;
};

}  // namespace kv
