// client/types/client_config.h: what a client is told at its construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/secret/secret.h"
#include "transport/tls/tls.h"
#include "transport/trace_context.h"

namespace kv {

class TlsSource;

struct NodeConfig {
  std::string endpoint;  ///< tcp://HOST:PORT, tls://HOST:PORT or unix://PATH.
  std::string name =
      {};               ///< Identity for rendezvous hashing, equal on all clients of a cluster. Default: the endpoint.
  double weight = 1.0;  ///< Share of the blocks, in proportion; for example the capacity in GiB. 0: owns no block.
  std::string node_id = {};  ///< A node with another id at this endpoint is rejected. Empty: any id.
  bool is_told = false;      ///< Named by a cluster's map, not configured by a person: see ClientConfig::token.
};

struct ClientConfig {
  /// At least one. For a cluster (docs/cluster.md) any member is enough: the client learns the other nodes from it,
  /// places blocks by the ids, weights and extents of its map, and follows its changes. Otherwise the list is static.
  std::vector<NodeConfig> nodes;
  bool follow_cluster = true;  ///< False: the list is static in any case.
  /// One block of a chain in this many begins an *extent*, which lies on one node (docs/cluster.md); 1..1048576. Equal
  /// on all clients of a static list; otherwise they do not find each other's blocks. A list of one node cuts nothing.
  std::size_t extent_blocks = 256;
  std::string identity = "client";                ///< For the node's logs and limits.
  std::size_t connections_per_node = 2;           ///< 1..64. Keeps lookups from waiting behind large transfers.
  Duration connect_timeout = 1s;                  ///< Connect and hello.
  Duration backoff_min = 50ms, backoff_max = 5s;  ///< Between reconnects; doubled each time, with full jitter.
  std::size_t breaker_failures = 5;               ///< Consecutive failures (slow counts) that open a node's breaker.
  Duration breaker_open = 1s;                     ///< Then one call probes.
  /// If an owner does not answer, its blocks are looked up and stored where they would belong after it left, and where
  /// second copies lie (docs/cluster.md). False: they are misses until then.
  bool stand_ins = true;
  /// A match or get also goes to the second node, which has any second copies (docs/cluster.md), once its node has not
  /// begun to answer for longer than 99 of 100 of its recent answers. Bound on the share of such reads, 0..1; 0: never.
  double hedge_share = 0.02;
  Duration hedge_after_min = 1ms, hedge_after_max = 200ms;  ///< Bounds on that wait.
  /// This client's zone: among equal nodes, those of the same zone are asked. Empty: any node.
  std::string zone = {};
  std::size_t calls_max = 1024;               ///< In flight, per client; beyond it calls fail with kBusy.
  std::size_t region_bytes_max = 8ull << 30;  ///< Bound on all lent memory.
  /// Part of region_bytes_max for set blocks in memory that is not lent: they reach nodes on this host through a buffer
  /// of up to this size, a few MiB at a time, faster than through the socket. A block larger than half of it uses the
  /// socket. Allocated at first use, 0.3 ms per MiB. 0: no buffer.
  std::size_t staging_bytes = 0;
  enum class Rdma : std::uint8_t { kOff, kAuto };
  /// Over TCP, memory of allocate() is registered with this machine's RDMA devices when a node offers RDMA.
  Rdma rdma = Rdma::kAuto;
  /// Such as "mlx5_0", or "mlx5_0@10.0.0.1" for one of its addresses; its link may come up later. Empty: at most 4
  /// devices with a link, the nearest to this processor.
  std::vector<std::string> rdma_devices = {};
  std::size_t rdma_lanes = 0;  ///< Queue pairs per connection, 1..32; 0: one per device.
  /// Unanswered small requests per connection that go by SEND, over a queue pair of their own; 0..64.
  std::size_t rdma_messages = 16;
  std::uint8_t rdma_traffic_class = 0;  ///< For packets sent by this side; on RoCE 4 x DSCP.
  /// Places memory of allocate() and the library's own threads: NUMA nodes such as "1" or "0-1", or the nodes of a PCI
  /// device such as "pci:0000:3b:00.0", an accelerator or its NIC. Empty: no placement. The caller's threads are not
  /// moved. A full node is skipped. numa_place.h has the rules.
  std::string numa_nodes = {};
  bool verify = true;      ///< Verify checksums in get. Off only to measure its cost.
  std::uint64_t seed = 0;  ///< For jitter; 0: random.
  /// For tls:// endpoints: certificate, key and CA, all three; the files are read at construction, and again for a new
  /// connection after a change. With tls:// endpoints only in `nodes`, a cluster's tcp:// endpoints are not used.
  TlsConfig tls = {};
  /// Open certificates of TlsSide::kClient instead of the files of `tls`, for a program that creates many clients.
  std::shared_ptr<TlsSource> tls_source = {};
  /// True: the list comes from a map, and a node out of reach for this configuration (tls:// without certificates)
  /// counts as not answering. False: such a node is a mistake and throws.
  bool are_nodes_told = false;
  /// A token that identifies the client to the nodes' policy (docs/security.md), or a file with one, reread for each
  /// connection: at most one of the two. It goes over tls://, unix:// and loopback to the endpoints in `nodes`. A node
  /// named only by a cluster's map receives it over TLS alone, and only if its certificate has a configured name: the
  /// host of a tls:// endpoint in `nodes`, or one allowed by tls.node_names (with tls.server_name: that one). The
  /// client does not connect to any other node.
  Secret token = {};
  std::string token_file = {};
  TraceContext trace = {};  ///< For calls without a trace in their CallControl.

  bool has_token() const { return !token.empty() || !token_file.empty(); }
  bool has_tls() const { return tls.is_given() || tls_source != nullptr; }
};

}  // namespace kv
