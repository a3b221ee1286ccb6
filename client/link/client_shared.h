// client/link/client_shared.h: state shared by all links and sessions of one client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "client/link/client_metrics.h"
#include "client/link/client_staging.h"
#include "client/link/deadline_queue.h"
#include "client/link/lent_memory.h"
#include "client/link/verbs_lender.h"
#include "client/types/client_config.h"
#include "index/block_hash.h"
#include "index/namespace_record.h"
#include "transport/tls/tls_source.h"
#include "transport/wire_generated.h"

namespace kv {

class NodeLink;

/// Held by shared_ptr, since the coroutines of closed sessions end a little later than the client.
///   1. After DeadlineQueue::close(), `network` and `clock` are not used: the caller may destroy both.
///   2. `spaces` only grows, so that a Space stays valid for the client's life.
///   3. A request in `builder` is not kept over a suspension: the next request overwrites it.
/// Thread safety: none; on the client's executor.
struct ClientShared {
  ClientShared(asio::any_io_executor e, ClientConfig c, Network& n, Clock& k, verbs::Provider* v);
  ~ClientShared();

  flatbuffers::FlatBufferBuilder& new_request() {
    builder.Clear();
    return builder;
  }

  /// Whether the client may connect to this endpoint, and talk to the node found there: see ClientConfig::token.
  error_code may_connect(const Endpoint& endpoint, bool is_told) const;
  error_code may_talk(const Endpoint& endpoint, const Stream& stream, bool is_told) const;

  asio::any_io_executor executor;
  ClientConfig config;
  std::shared_ptr<TlsSource> certificates;  ///< nullptr: without TLS.
  std::unique_ptr<Network> tls_network;     ///< Around the caller's; nullptr: without TLS.
  Network& network;
  Clock& clock;
  DeadlineQueue deadlines;
  const NumaPlace numa_place;
  LentMemory memory;
  ClientStaging staging;
  VerbsLender verbs;
  flatbuffers::FlatBufferBuilder builder{4096};  ///< Shared by all requests, to keep its memory.
  std::mt19937_64 random;
  struct SpaceInfo {
    NamespaceRecord record;
    NamespaceId id;
  };
  std::vector<std::unique_ptr<const SpaceInfo>> spaces;  ///< By Space.
  std::size_t call_count = 0;                            ///< Calls in progress, at most calls_max.
  std::size_t away_count = 0;                            ///< Links whose breaker is open.
  ClientMetrics metrics;

  /// A node has sent the epoch of its map.
  void hear_map_epoch(const NodeLink& node, std::uint64_t epoch) {
    if (!on_map_epoch) return;
    if (epoch > map_epoch || (map_epoch > 0 && clock.now() >= next_map_look)) on_map_epoch(node, epoch);
  }
  std::uint64_t map_epoch = 0;  ///< Of the map in use; 0: the client's own list.
  TimePoint next_map_look{};    ///< When to ask a node for its map without a sign of a later one.
  // Called in the middle of a link's work.
  std::function<void(const NodeLink&, std::uint64_t epoch)> on_map_epoch;  ///< A later map exists, or a look is due.
  std::function<void()> on_node_failure;
};

}  // namespace kv
