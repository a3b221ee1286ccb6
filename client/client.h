// client/: the library that serving workers link. Start here.
//
// Follow a block (get): it enters get() as a hash and a destination, and leaves as verified bytes there, counted in the
// returned prefix.
//
//   Client client(executor, {.nodes = {{.endpoint = "unix:///run/kvstore/kvstore.sock"}}});
//   auto space  = co_await client.open(record, 1s);
//   auto prefix = co_await client.get(*space, hashes, pages, {.deadline = 2ms});
//   if (!prefix) co_return prefix.error();   // a bug in the call: no node was asked
//   engine.skip(prefix->block_count);        // 0 blocks is a miss, not an error; prefix->why has the reason
//
// Files, in reading order:
//   client.h           the whole public C++ interface
//   get.cc, put.cc, match.cc  the long calls, each one coroutine; client.cc has the short ones
//   why.cc             the reason for a miss; miss_report.h has its result
//   load.h             match and get in one, for a queue
//   set_get.cc, set_put.cc, set_match.cc  the same calls for sets; set_types.h has their types
//   contexts.cc        named contexts; context_types.h has their types
//   client_impl.h, batch_put.h  the state shared by all calls; the code shared by the two puts
//   client_metrics.h          the counters of all calls
//   memory.cc                 memory that nodes fill and drain themselves: made, lent, taken back
//   staged_calls.h            set blocks in ordinary memory, sent through a small lent buffer (link/client_staging.h)
//   numa_place.h              the NUMA nodes of memory and threads
//   cluster_map.h             the owner of each block
//   hot/hot_sets.h            the hot roots reported by the nodes, and the resulting placement of chains
//   hedge/hedger.h            when a late node's read is sent to a second node
//   link/call.h               one request to one node, and its interface to the links that carry it
//   link/node_link.h          the sessions with one node: connect, back off, break, prepare calls
//   link/link_session.h       one connection to a node: sends requests, checks frames, passes each to its call;
//                             link/session/ has its parts
//   link/link_lanes.h         its RDMA queue pairs; link/verbs_lender.h has the devices
//   link/lent_memory.h        the regions that can be lent, and their quarantine
//   link/deadline_queue.h     one alarm for all deadlines
//   archive/archive_form.h    a context as a file; context_archive.h has its types
//   request.h                 a call as a value, and its completions
//   completion_queue.h        calls without blocking: submit requests, then reap completions; queue/ has its parts
//   blocking_client.h         the same calls blocking, from any thread; client_thread.h has the thread of the I/O
//   models/model_config.h     a model's cache by its config.json or name, for those who size a cache
//   kvstore.h                 the C ABI
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/secret.h"
#include "client/call_control.h"
#include "client/context_types.h"
#include "client/miss_report.h"
#include "client/numa_place.h"
#include "client/set_types.h"
#include "index/block_hash.h"
#include "index/namespace_record.h"
#include "index/reuse_hint.h"
#include "transport/shared_memory.h"
#include "transport/stream.h"
#include "transport/tls/tls.h"

namespace kv {

namespace verbs {
class Provider;
}
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
  /// One block of a chain in this many begins an *extent*, which lies on one node (docs/cluster.md); 1..1048576. 1:
  /// each block alone. Equal on all clients of a cluster; otherwise they do not find each other's blocks.
  std::size_t extent_blocks = 1;
  std::string identity = "client";                ///< For the node's logs and limits.
  std::size_t connections_per_node = 2;           ///< 1..64. Keeps lookups from waiting behind large transfers.
  Duration connect_timeout = 1s;                  ///< Connect and hello.
  Duration backoff_min = 50ms, backoff_max = 5s;  ///< Between reconnects; doubled each time, with full jitter.
  std::size_t breaker_failures = 5;               ///< Consecutive failures (slow counts) that open a node's breaker.
  Duration breaker_open = 1s;                     ///< Then one call probes.
  /// With extents (extent_blocks above 1): if an owner does not answer, its blocks are looked up and stored where they
  /// would belong after it left, and where second copies lie (docs/cluster.md). False: they are misses until then.
  bool stand_ins = true;
  /// With extents: a match or get also goes to the second node, which has any second copies (docs/cluster.md), once its
  /// node has not begun to answer for longer than 99 of 100 of its recent answers. Bound on the share of such reads,
  /// 0..1; 0: never.
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

inline constexpr std::size_t kSpacesMax = 65536;  ///< Namespaces open in one client; beyond it open() fails with kBusy.

/// An open namespace. Valid across reconnects: the client reopens it on each node.
enum class Space : std::uint32_t {};

using TargetBlocks = std::span<const std::span<std::byte>>;        ///< Memory to fill, block by block.
using SourceBlocks = std::span<const std::span<const std::byte>>;  ///< Memory to read, block by block.

struct MatchOptions {
  std::chrono::microseconds deadline;  ///< From call to answer. No default: choose.
  bool lease = false;                  ///< Keep the found blocks for the nodes' lease duration.
  bool prefetch = false;               ///< Load blocks from disk into memory, for a later get.
  /// Tokens of the blocks of `hashes`, then of up to one more: asks for a partial block. Single node only.
  std::span<const std::uint32_t> token_ids = {};
  /// With token_ids: extra_digest() of the data hashed into each block of `hashes` besides its tokens, and into the
  /// next block; empty: tokens only. A partial block has the next block's extra. In a namespace with an engine's own
  /// hashes (field `hash` of the record), a partial block requires extras.
  std::span<const ExtraDigest> extras = {};
  ReuseHint reuse = ReuseHint::kNone;  ///< The expected next use of the blocks.
  CallControl control = {};
};
struct MatchResult {
  std::size_t block_count = 0;             ///< Leading blocks held by their owners, in memory or on disk.
  std::size_t disk_block_count = 0;        ///< Those on disk, which a lease does not cover.
  std::chrono::microseconds disk_time{0};  ///< Estimated time to read them, to weigh against recomputing.
  error_code why;                          ///< Reason for a short prefix; success: a plain miss.
  Lease lease{};
  std::size_t partial_token_count = 0;  ///< Leading tokens that the next block shares with a stored one.
  BlockHash partial_block{};            ///< That stored block: get it as the hash after the matched ones.
};

/// Progress: the first `block_count` blocks (at least one) have this segment and all earlier ones, verified. Called on
/// the client's executor before the get completes; must not throw. `block_count` only shrinks from segment to segment.
struct SegmentCallback {
  void (*call)(void* context, std::size_t segment, std::size_t block_count) = nullptr;
  void* context = nullptr;
};
struct GetOptions {
  std::chrono::microseconds deadline;  ///< From the call to the last verified byte. No default: choose.
  Lease lease{};                       ///< From an earlier match; this get ends it.
  /// Layer ranges as byte offsets in a block, increasing, the last = block_bytes. All but the last are rounded up to a
  /// whole stripe (kStripeBytes), so small segments may end together.
  std::span<const std::uint64_t> segment_ends = {};
  SegmentCallback on_segment = {};
  bool memory_only = false;  ///< Stop before blocks on disk.
  /// The first block to copy. Destinations before it may be empty, and the result does not say whether those blocks are
  /// held. Requires a call without segments, not into a device's memory; into lent memory the blocks come inline. Nodes
  /// without this feature: kUnsupported.
  std::size_t first_block = 0;
  /// stripe_count(block_bytes) per block: receives the expected checksums, bound to the blocks' names. Allows a second
  /// verification; required for a device's memory, which the client does not verify. Set for the blocks before
  /// block_count (in a segment callback: for its segment). kvs_enqueue_scatter_verified takes them as they are.
  std::span<std::uint64_t> checksums = {};
  CallControl control = {};
};
struct GetResult {
  /// Leading blocks landed and, outside device memory, verified. Later destinations are unspecified.
  std::size_t block_count = 0;
  error_code why;  ///< Reason for a short result: timed_out, kUnavailable, kCorruptBlock, ...; success: a plain miss.
  std::size_t corrupt_count = 0;  ///< Blocks with a bad checksum here, at most one counted per request and segment.
};

struct PutOptions {
  std::chrono::microseconds deadline;             ///< From the call to the last commit. No default: choose.
  std::span<const std::uint32_t> token_ids = {};  ///< block_size per hash, stored for partial matches; may be empty.
  std::span<const ExtraDigest> extras = {};       ///< With token_ids: one per hash, as in MatchOptions; may be empty.
  /// stripe_count(block_bytes) per block, from gather_with_checksums(): saves computing them here. Required for a
  /// device's memory. The node verifies them and refuses a block that does not match, with all blocks behind it.
  std::span<const std::uint64_t> checksums = {};
  /// Time since the blocks' last use at their source; nodes treat them as equally old. For copies of others' blocks.
  std::chrono::microseconds idle{0};
  /// Places the chain behind a hot root of this many leading blocks, instead of the client's own. Also for copies.
  std::optional<std::size_t> hot_blocks = std::nullopt;
  ReuseHint reuse = ReuseHint::kNone;  ///< As in MatchOptions.
  CallControl control = {};
};
struct PutResult {
  std::size_t stored = 0, already_stored = 0, refused = 0;  ///< Sum: hashes.size().
  error_code why;                                           ///< Why some were refused.
};

struct DropResult {
  std::size_t block_count = 0;  ///< Summed over the nodes.
  /// A node's disk did not record the drop in time: blocks there may come back at that node's next start. Drop again
  /// then, or later. False: the drop survives kill -9 and power cuts.
  bool until_restart = false;
};

/// Memory of a device, such as a GPU, that RDMA devices reach and this processor need not.
struct DeviceMemory {
  std::span<std::byte> bytes;       ///< Its addresses, as the device's own programs use them.
  int dmabuf_fd = -1;               ///< A dma-buf that holds it, borrowed for the call; -1: without one.
  std::uint64_t dmabuf_offset = 0;  ///< Where in it `bytes` begins.
};

struct NodeStatus {
  /// peer_transport: "tcp", "tcp+verbs", "tls", "tls+verbs", "unix", "unix+memfd", "sim".
  std::string name, endpoint, node_id, peer_transport;
  std::size_t rdma_lanes = 0;  ///< Queue pairs that are up.
  std::string rdma_text;       ///< Why there is no RDMA, or only some. Empty: not tried yet.
  bool connected = false, breaker_open = false;
  std::uint64_t calls = 0, failures = 0, timeouts = 0, reconnects = 0, breaker_openings = 0;
  std::uint64_t hedges = 0,
                hedge_wins = 0;  ///< Reads sent to another node because this one was late; those answered there.
  error_code last_error;
  std::string last_error_text;
};
/// The members of the cluster, as of one epoch.
struct ClusterStatus {
  std::uint64_t epoch = 0;  ///< 0: a static list, or no map received yet.
  std::size_t extent_blocks = 1;
  struct Node {
    std::string id, zone;
    std::vector<std::string> endpoints;
    double weight = 0;
    bool is_serving = true;   ///< False: new blocks are not placed there.
    bool is_joining = false;  ///< Not serving yet: it is receiving its blocks.
    bool is_leaving = false;  ///< Still serving: it is handing over its blocks.
  };
  std::vector<Node> nodes;  ///< Empty with epoch 0.
  /// A node's weight in the owner rule: 0 while it drains, unless all nodes drain.
  double weight_of(const Node& node) const {
    const auto serves = [](const Node& each) { return each.is_serving; };
    return node.is_serving || std::ranges::none_of(nodes, serves) ? node.weight : 0;
  }
};
/// A question of people and tools; docs/wire.md lists the paths, their queries and answers.
struct NodeQuestion {
  std::string path;        ///< "/stats.json", ...
  std::string query = {};  ///< "name=value&...", percent-encoded.
  std::string node = {};   ///< The only node to ask, by its name or its id in the cluster. Empty: all.
};
struct NodeAnswer {
  std::string name;  ///< As NodeStatus::name.
  error_code error;  ///< Of a node that did not answer, or refused:
  std::string why;   ///< its words, if it did.
  std::string json;  ///< As the node said it: ASCII, and perhaps not JSON. Empty after an error.
};

// So `{...}` is safe inside co_await.
static_assert(std::is_trivially_destructible_v<MatchOptions> && std::is_trivially_destructible_v<GetOptions> &&
              std::is_trivially_destructible_v<PutOptions> && std::is_trivially_destructible_v<DeviceMemory>);

/// Moves cached blocks between the nodes and this process's memory.
///   1. Every call completes by its deadline, plus the executor's delay.
///   2. A block that get reports landed with the checksum bound to its name; in a device's memory the caller verifies
///      it against the returned checksums.
///   3. Memory in use is bounded: by calls_max, and without buffers other than the caller's.
/// Spans given to a call stay valid until it completes. A call is given up by its deadline or its CallControl; Asio's
/// own cancellation is not supported. Thread safety: none. Every call, and the destructor, runs on the executor given
/// at construction, which must be single-threaded. After fork() the child leaves the client and its executor alone
/// (BlockingClient detects the fork). The destructor requires that all calls have completed and closes all sessions.
class Client {
 public:
  /// Reads the files of `tls`, if any; connects on first use. Throws std::invalid_argument for a bad configuration,
  /// naming the field, or the file and its fault. `network` and `clock` outlive the client.
  Client(asio::any_io_executor executor, ClientConfig config, Network& network = socket_network());
  /// `verbs`: replaces this machine's RDMA devices, on the executor only; outlives the client. For tests.
  Client(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock,
         verbs::Provider* verbs = nullptr);
  ~Client();

  /// Opens `record` with or without a node present: a worker may start while the store is away, and nodes open the
  /// namespace when they come. Waits for the first node that opens it, up to `deadline` and only while a node is being
  /// connected, so that later calls find it open; 0us: does not wait. Errors: kMismatch, kBadRequest, kTooLarge,
  /// kUnsupported, if nodes refuse the record and none accepts it. A later refusal is each call's error or `why`.
  Async<Space> open(NamespaceRecord record, std::chrono::microseconds deadline, CallControl control = {});
  /// Waits until one node has opened it, as open(), but fails without one: also kUnavailable, timed_out, kBusy.
  Async<void> wait_open(Space space, std::chrono::microseconds deadline, CallControl control = {});
  std::size_t block_bytes(Space space) const;  ///< Of every block of a chain; of a set's largest block.

  /// Returns how many leading blocks of the chain are held. `hashes`, here and below, is a chain from its first block
  /// on; it may end anywhere. Errors, here and below: kBadRequest for arguments that break the rules below, kBusy at
  /// calls_max. A dead, slow or full node is never an error but a smaller result with its `why`.
  Async<MatchResult> match(Space space, Hashes hashes, MatchOptions options);
  /// Returns why the chain is held only in part: its owners report their records of the first missing block. For a set:
  /// of the first missing name; for a group, ask for its first name, which determines its place. Does not count as a
  /// use. Errors: kBadRequest (no hashes).
  Async<MissReport> why(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control = {});
  /// Ends a match's lease early, without waiting for the nodes.
  void release(Lease lease);

  /// Copies the longest cached prefix of `hashes` into memory, block i to blocks[i] (block_bytes each, no two
  /// overlapping). A node on this host writes directly to destinations in memory of allocate(). If the deadline passes
  /// during such a get, the node may still write to the destinations not reported as landed, until it answers or its
  /// process ends: until then they are quarantined, and calls that name them fail with kQuarantined.
  Async<GetResult> get(Space space, Hashes hashes, TargetBlocks blocks, GetOptions options);
  /// Stores the chain's blocks, block i from blocks[i]; a node takes only blocks it lacks. Keep the bytes meanwhile.
  Async<PutResult> put(Space space, Hashes hashes, SourceBlocks blocks, PutOptions options);

  // Sets: namespaces whose blocks stand alone (NamespaceRecord::is_set). Each hash means one block; they come in any
  // order, and each node gets one request for all its blocks. match, get and put on a set are kUnsupported, as are the
  // calls below on a chain; touch, retain, unretain and drop apply to each hash.
  /// Returns which of `hashes` are held, and their lengths. Errors: as match.
  Async<SetMatchResult> match_set(Space set, Hashes hashes, SetMatchOptions options);
  /// Copies the blocks that are held into memory, hash i to blocks[i], which may be longer or shorter than the block; a
  /// block that does not fit is not sent. Memory as in get; a device's is kUnsupported.
  Async<SetGetResult> get_set(Space set, Hashes hashes, TargetBlocks blocks, SetGetOptions options);
  /// Stores each block whose name is not held yet, block i from all of blocks[i]: 1 to block_bytes(set) bytes. A held
  /// name keeps its block. Otherwise as put.
  Async<SetPutResult> put_set(Space set, Hashes hashes, SourceBlocks blocks, SetPutOptions options);

  /// touch marks the prefix as used; retain keeps it from eviction until unretain or drop; drop removes the last block
  /// of the chain with all below it (no hashes: the namespace). Return the number of blocks, summed over the nodes.
  /// Errors: of the first node that failed, after all were asked. With several nodes or extents, drop removes the
  /// blocks below that last block in its own extent; blocks further below become unreachable and age out. With extents
  /// of several blocks (extent_blocks), drop and unretain ask every node, because hot root blocks have copies; they
  /// therefore fail while any node is away, after the others are done. drop counts the copies, the others do not. After
  /// a drop's answer the blocks are not found any more; with a disk tier the answer waits up to two seconds for the
  /// drop to be durable there, or reports that it is not.
  Async<std::size_t> touch(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control = {});
  Async<std::size_t> retain(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control = {});
  Async<std::size_t> unretain(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control = {});
  Async<DropResult> drop(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control = {});

  // Named contexts (docs/contexts.md): prefixes of chains that nodes keep in memory for a time, each under a name of
  // the tenant that the nodes' policy gives this client. Needs the right to operate.
  /// Keeps the prefix's blocks in memory, present and future ones, until the context ends; replaces one of the same
  /// name. Returns how much is kept now, with the reason if that is not all. Errors: of the first node that failed,
  /// after all were asked; the others have applied it. kOverQuota: the tenant's limit on contexts; kUnsupported: a set,
  /// or a node without contexts; kBadRequest.
  Async<NamedContext> create_context(Space space, Hashes hashes, ContextOptions options);
  /// Sets another lifetime, from now, and another priority if given. Errors: kNotFound; else as create_context.
  Async<NamedContext> extend_context(std::string_view name, ContextTime life, std::chrono::microseconds deadline,
                                     CallControl control = {}, std::optional<std::uint8_t> priority = std::nullopt);
  /// Returns its last state. Errors: as extend_context.
  Async<NamedContext> delete_context(std::string_view name, std::chrono::microseconds deadline,
                                     CallControl control = {});
  /// Loads the context's blocks from the nodes' disks into memory, in the background, within the bounds on kept blocks;
  /// returns the current state. Progress: list_contexts() with its name; is_warming is false at the end. A node without
  /// a disk tier does not take part. Errors: as extend_context; kUnsupported, an older node.
  Async<NamedContext> warm_context(std::string_view name, std::chrono::microseconds deadline, CallControl control = {});
  /// Stops that loading. Loaded blocks stay kept.
  Async<NamedContext> stop_warming_context(std::string_view name, std::chrono::microseconds deadline,
                                           CallControl control = {});
  /// Returns the context's content from all nodes, to create it elsewhere. Errors: kNotFound; kMismatch, the nodes
  /// differ under that name, or it changed meanwhile: ask again; kUnsupported, an older node; another error of a node.
  Async<ContextContent> tell_context(std::string_view name, std::chrono::microseconds deadline,
                                     CallControl control = {});
  /// All contexts of the tenant, or the one of that name. A node that does not answer is listed as silent.
  Async<ContextList> list_contexts(std::string_view name, std::chrono::microseconds deadline, CallControl control = {});

  /// One answer per node, in node order. Errors: kNotFound: no node has the question's name.
  Async<std::vector<NodeAnswer>> ask(NodeQuestion question, std::chrono::microseconds deadline,
                                     CallControl control = {});
  /// Round trip to each node, in node order; negative after a failure, with NodeStatus::last_error.
  Async<std::vector<std::chrono::nanoseconds>> ping(std::chrono::microseconds deadline, CallControl control = {});
  std::vector<NodeStatus> nodes() const;
  /// Where memory of allocate() and the library's threads are; samples 512 pages, 0.1 ms.
  NumaStatus numa() const;
  const NumaPlace& numa_place() const;
  /// This client's metrics as Prometheus text (client_metrics.h); docs/operating.md has the names.
  std::string metrics_text() const;
  /// Sets the engine's speed, for the estimate of the time saved by loading.
  void tell_prefill_speed(double tokens_per_second);
  /// Asks all nodes for this namespace's hot roots (docs/cluster.md), as matches do now and then. For callers that
  /// place chains without matching. Errors: as open(); a node that does not answer is not an error.
  Async<void> learn_hot_roots(Space space, std::chrono::microseconds deadline, CallControl control = {});
  /// The number of leading blocks of the chain in its hot root, as far as this client was informed.
  std::size_t hot_block_count(Space space, Hashes hashes) const;
  /// All, unordered; without those that `unless`, an index of nodes(), alone reports.
  std::vector<BlockHash> hot_blocks(Space space, std::optional<std::size_t> unless = std::nullopt) const;
  /// The map in use. A call in progress keeps the map it began with. cluster().nodes are nodes(), in order.
  ClusterStatus cluster() const;
  /// Fetches the map from all nodes and adopts it. Returns cluster(). Errors: as ping, if no node answers.
  Async<ClusterStatus> learn_cluster(std::chrono::microseconds deadline, CallControl control = {});

  /// Memory that nodes on this host (memfd), or reached by RDMA, fill and drain directly. Owned by the client, freed by
  /// free_memory() or the destructor. Errors: kBusy over region_bytes_max, system errors. All pages are touched in this
  /// call, 0.3 s per GiB and more, which blocks the executor, deadlines included. To avoid that, call reserve_memory(),
  /// then make_memory() on another thread with numa_place(), then adopt_memory(), as BlockingClient does.
  Result<std::span<std::byte>> allocate(std::size_t bytes);
  Result<void> reserve_memory(std::size_t bytes);
  Result<std::span<std::byte>> adopt_memory(std::size_t reserved_bytes, Result<std::unique_ptr<SharedMemory>> memory);
  /// Lends `memory` of allocate() or add_device_memory() to all nodes now instead of at its first use, when calls go
  /// through the socket until RDMA is ready: registering takes 0.2 s per GiB. Returns the number of connections it is
  /// lent to. Errors: kBadRequest for other memory, kQuarantined if it is leaving.
  Async<std::size_t> lend(std::span<std::byte> memory, std::chrono::microseconds deadline, CallControl control = {});
  /// Also while it is quarantined: the node may go on writing the memfd's pages, which these addresses no longer map.
  /// Memory reached by RDMA is deregistered before its addresses are used again. Errors: kBadRequest if it is not from
  /// allocate(), kBusy while a call in progress uses it.
  Result<void> free_memory(std::span<std::byte> memory);
  /// The same, but unmapped, 0.1 s per GiB, with the last copy of the result: on another thread, if that matters.
  Result<std::shared_ptr<const void>> release_memory(std::span<std::byte> memory);

  /// Makes a device's memory lendable: by RDMA only, and to nodes on TCP endpoints only. The client does not read or
  /// write it. The blocks of one get or put lie all in one such region, or all outside (else kBadRequest). There is no
  /// fallback to the socket: the result is cut with kUnavailable while RDMA is not ready or has just broken, and with
  /// kNoRegion if this node cannot have the memory (NodeStatus::rdma_text has the reason); get stops before blocks on
  /// disk, as with memory_only. So lend() it before the first call. It is registered through its dma-buf, or without
  /// one (or where an RDMA device cannot) by its addresses, for which the kernel needs nvidia-peermem. Counts against
  /// region_bytes_max. Errors: kBadRequest (empty, or already lendable), kBusy over region_bytes_max, system errors.
  Result<void> add_device_memory(DeviceMemory memory);
  /// Takes back memory of add_device_memory(), also while it is quarantined. After success RDMA devices cannot reach
  /// it, whatever a node does: only then free or reuse it. Until then, and after timed_out, it is leaving: calls that
  /// name it fail with kQuarantined; call this again. The duration depends on this machine's devices, not on nodes.
  /// Call it before destroying the client: the destructor does not wait, so a device may reach the memory until the
  /// executor has run the client's remaining coroutines. Errors: kBadRequest if it is not from add_device_memory(),
  /// kBusy while a call in progress uses it, timed_out.
  Async<void> remove_device_memory(std::span<std::byte> memory, std::chrono::microseconds deadline,
                                   CallControl control = {});

  /// Whether a node may still write a part of `memory` for a finished get, or the memory is leaving.
  bool is_quarantined(std::span<const std::byte> memory) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
