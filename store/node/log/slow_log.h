// store/node/log/slow_log.h: the latest slow requests, with the parts of their time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "index/block_hash.h"
#include "store/node/log/request_phases.h"
#include "transport/frames/frame.h"
#include "transport/trace_context.h"

namespace kv {

struct SlowRequest {
  std::uint64_t number = 0;  ///< 1 for the first since the start. Set by the log.
  std::chrono::system_clock::time_point began{};
  Duration took{};
  RequestPhases phases;
  FrameType type{};
  std::size_t block_count = 0;    ///< Named by the request.
  std::uint64_t moved_bytes = 0;  ///< Of blocks.
  bool has_failed = false;        ///< Did not complete.
  std::optional<NamespaceId> space = {};
  std::string model = {}, tenant = {};  ///< Of its record.
  std::string asker = {};               ///< The client's tenant, which may see this line; or empty.
  std::uint64_t session = 0;
  std::string identity = {}, peer = {};  ///< Of the client.
  TraceContext trace = {};
};
/// As in a line of the log, after the session: "get took 0.250 s: lock 0.000, ...".
std::string slow_request_text(const SlowRequest& request);

struct SlowLogConfig {
  Duration threshold = std::chrono::milliseconds(100);  ///< Zero: off.
  std::size_t count_max = 128;                          ///< Kept.
};

/// A ring, as in Redis.
///   1. At most count_max requests are kept, the latest; texts of each are cut at kTextMax bytes.
///   2. A fast request costs one comparison.
/// Thread safety: any.
class SlowLog {
 public:
  static constexpr std::size_t kTextMax = 128, kCountMax = 10000;

  explicit SlowLog(SlowLogConfig config = {}) { set(config); }

  bool is_slow(Duration took) const { return took >= threshold_.load(std::memory_order_relaxed); }
  /// Also while in use: a smaller count drops the oldest.
  void set(SlowLogConfig config);
  void add(SlowRequest request);
  void clear();  ///< Numbers continue.
  struct Told {
    Duration threshold{};               ///< Zero: off.
    std::uint64_t count = 0;            ///< Since the start.
    std::vector<SlowRequest> requests;  ///< The latest first.
  };
  Told told() const;

 private:
  std::atomic<Duration> threshold_{};  ///< Duration::max(): off.
  mutable std::mutex mutex_;
  std::size_t count_max_ = 0;
  std::uint64_t count_ = 0;
  std::deque<SlowRequest> requests_;  ///< The latest first.
};

}  // namespace kv
