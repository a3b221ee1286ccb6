// client/tools/bench/limit/limit.h: `kvstore-bench limit`: the machine's limits, in the shapes of `kvstore-bench run`.
//
// A speed alone says little: machines differ, and so do two minutes on one machine. Each of our figures therefore
// stands beside a plain memcpy, or a bare socket, at the same time. Files, in reading order:
//   limit.h           the cases, measured in rounds, and the table
//   limit_memory.cc   memcpy, memcpy with checksums
//   raw_server.h      a bare blocking socket server; raw_tls.h: OpenSSL on such a socket
//   limit_sockets.cc  streams, round trips and pipelined requests against it
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "client/tools/latency_histogram.h"

namespace kv {

struct LimitShape {
  std::size_t block_bytes = 2u << 20;
  std::size_t batch = 16;                               ///< Blocks per request.
  std::vector<std::size_t> connection_counts = {1, 4};  ///< Of the streams.
  std::size_t memory_bytes = 512u << 20;                ///< On each side; exceeds the caches.
  std::chrono::milliseconds duration{1000};             ///< Of one case in one round.
};

struct LimitSample {
  double bytes_per_second = 0, calls_per_second = 0;
  LatencyHistogram latency;  ///< Of a batch (streams) or a round trip; empty for memcpy.
};

struct LimitCase {
  std::string name;        ///< Stable, for scripts: "tcp_stream_4".
  std::string about;       ///< For people.
  bool is_stream = false;  ///< Judged by GB/s; otherwise by the round trip.
  std::function<LimitSample()> measure;
};

std::vector<LimitCase> memory_limits(const LimitShape& shape);
/// The cases share a forked server process, which ends with the last one. Call before any thread is started.
std::vector<LimitCase> socket_limits(const LimitShape& shape);

}  // namespace kv
