// client/: what serving workers link. Start here.
//
// Follow a block (get): it enters get() as a hash and the place where it is wanted, and leaves as verified bytes in
// that place, counted in the prefix that comes back.
//
//   Client client(executor, {.nodes = {{.endpoint = "unix:///run/kvstore/kvstore.sock"}}});
//   auto space  = co_await client.open(record, 1s);
//   auto prefix = co_await client.get(*space, hashes, pages, {.deadline = 2ms});
//   if (!prefix) co_return prefix.error();   // a bug in the call: nothing was asked
//   engine.skip(prefix->block_count);        // 0 blocks is a miss, not an error; prefix->why says why it was not more
//
// Files, in reading order:
//   client.h           the whole public C++ interface
//   get.cc, put.cc, match.cc  the long calls, each one coroutine from start to answer; client.cc has the short ones
//   why.cc             why something is not found; miss_report.h: what comes of that
//   set_get.cc, set_put.cc, set_match.cc  the same for blocks that stand alone; set_types.h has what they give
//   contexts.cc        prefixes that are kept by name; context_types.h has what they take and give
//   client_impl.h, batch_put.h  what the calls share; what the two puts share
//   client_metrics.h          what all of them count
//   memory.cc                 memory that nodes fill and drain themselves: made, lent, taken back
//   staged_calls.h            through a little of it (link/staging.h) go blocks of sets that lie elsewhere
//   numa_place.h              on which NUMA nodes it lies, and threads run
//   cluster_map.h             which node owns a block
//   hot/hot_sets.h            which blocks the nodes take for hot, and where a chain lies therefore
//   hedge/hedger.h            when a node is late and another one is asked
//   link/call.h               one request to one node, and what it needs of those who carry it
//   link/node_link.h          the sessions with one node: connect, back off, break, prepare calls
//   link/link_session.h       one connection to a node: requests out, frames in, each checked and given to its call;
//                             link/session/ has its parts
//   link/link_lanes.h         its queue pairs, if there is RDMA; link/verbs_lender.h has the devices
//   link/lent_memory.h        the regions that can be lent, and their quarantine
//   link/deadline_queue.h     one alarm for all deadlines
//   archive/archive_form.h    a context as a file; context_archive.h has what that takes and gives
//   blocking_client.h         the same calls from any thread, with an I/O thread of its own (client_thread.h)
//   completion_queue.h        the same calls without blocking: submit, and reap what has ended; queue/ has its parts
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
      {};               ///< Identity for rendezvous hashing; default: the endpoint. Equal on all clients of a cluster.
  double weight = 1.0;  ///< Share of the blocks, in proportion; for example its capacity in GiB. 0: it owns
                        ///< nothing.
  std::string node_id = {};  ///< Whoever answers there under another id is not this node. Empty: anyone.
  bool is_told = false;      ///< A cluster's map named it, and no person: ClientConfig::token.
};

struct ClientConfig {
  /// At least one. If they belong to a cluster (docs/cluster.md), any of them will do: the client learns from it who
  /// else does, places blocks by the ids, weights and extents of the cluster's map, and follows its changes. Else they
  /// are a static list.
  std::vector<NodeConfig> nodes;
  bool follow_cluster = true;  ///< False: they are a static list in any case.
  /// Of a chain, one block in so many begins an *extent*, which lies on one node (docs/cluster.md); 1..1048576. 1: each
  /// block alone. Equal on all clients of a cluster: else they do not find what others have stored.
  std::size_t extent_blocks = 1;
  std::string identity = "client";       ///< For the node's logs and limits.
  std::size_t connections_per_node = 2;  ///< 1..64. Large transfers and lookups then do not wait for one another.
  Duration connect_timeout = 1s;         ///< Connect and hello.
  Duration backoff_min = 50ms, backoff_max = 5s;  ///< Between reconnects; doubled each time, with full jitter.
  std::size_t breaker_failures = 5;               ///< Consecutive failures (slow counts) that open a node's breaker.
  Duration breaker_open = 1s;                     ///< Then one call probes.
  /// Where nodes own extents (extent_blocks above 1): what a node owns that does not answer is looked for, and put,
  /// where it would belong if that node left. There its second copies are (docs/cluster.md). False: it is missed until
  /// then.
  bool stand_ins = true;
  /// Where nodes own extents: a match or get that a node has not begun to answer after longer than 99 of 100 of its
  /// recent answers took is asked of the second node as well, which has a copy if there are any (docs/cluster.md). At
  /// most this share of all reads, 0..1; 0: none is.
  double hedge_share = 0.02;
  Duration hedge_after_min = 1ms, hedge_after_max = 200ms;  ///< But not sooner, and not later.
  /// Where this client is. Of nodes that have the same, those of its own zone are asked. Empty: it does not matter.
  std::string zone = {};
  std::size_t calls_max = 1024;               ///< In flight, per client; more are refused with kBusy.
  std::size_t region_bytes_max = 8ull << 30;  ///< Memory lent in all.
  /// Of that, for blocks of sets in memory that is not lent: to nodes on this host they go through as much as this, a
  /// few MiB at a time, which is faster than the socket. A block larger than half of it goes through the socket. Made
  /// at its first use, 0.3 ms a MiB. 0: none.
  std::size_t staging_bytes = 0;
  enum class Rdma : std::uint8_t { kOff, kAuto };
  /// Over TCP, memory of allocate() is registered with this machine's RDMA devices when a node offers RDMA.
  Rdma rdma = Rdma::kAuto;
  /// Such as "mlx5_0", or "mlx5_0@10.0.0.1" for one of its addresses; its link may come later. None: those nearest to
  /// this processor whose link is up, at most 4.
  std::vector<std::string> rdma_devices = {};
  std::size_t rdma_lanes = 0;  ///< Queue pairs of one connection, 1..32; 0: one for each device.
  /// Small requests of one connection that go by SEND, over a queue pair of their own, and have no answer yet; 0..64.
  std::size_t rdma_messages = 16;
  std::uint8_t rdma_traffic_class = 0;  ///< Of this side's packets; on RoCE 4 x DSCP.
  /// Where memory of allocate() lies, and which processors the library's own threads keep to: NUMA nodes such as "1" or
  /// "0-1", or those at which a PCI device is, such as "pci:0000:3b:00.0", an accelerator or its NIC. Empty: nothing is
  /// placed. The caller's threads stay as they are. A node that is full is passed over. numa_place.h has the rules.
  std::string numa_nodes = {};
  bool verify = true;      ///< Checksums of what was got. Off only to measure its cost.
  std::uint64_t seed = 0;  ///< For jitter; 0: random.
  /// For tls:// endpoints: certificate, key and CA, all three; the files are read at construction, and again for a new
  /// connection when they have changed. If every endpoint in `nodes` on a network is tls://, no tcp:// endpoint that a
  /// cluster's map may name is connected to.
  TlsConfig tls = {};
  /// For who makes one client after the other: certificates that are open already, of TlsSide::kClient, in place of
  /// the files of `tls`.
  std::shared_ptr<TlsSource> tls_source = {};
  /// The list of nodes comes from a map. One that cannot be reached as this client is configured (tls:// without
  /// certificates) is a node that does not answer. Else it is a mistake, and an exception.
  bool are_nodes_told = false;
  /// A token by which the nodes' policy knows the client (docs/security.md), or a file with one, which is read again
  /// for each connection: at most one of the two. It goes over tls://, unix:// and loopback to the endpoints in
  /// `nodes`. To a node that only a cluster's map names it goes over TLS alone, and only if the node's certificate has
  /// a name that was configured: the host of a tls:// endpoint in `nodes`, or one that tls.node_names allows (or with
  /// tls.server_name, that). No connection is made to any other node.
  Secret token = {};
  std::string token_file = {};
  TraceContext trace = {};  ///< Of calls that bring none of their own (CallControl).

  bool has_token() const { return !token.empty() || !token_file.empty(); }
  bool has_tls() const { return tls.is_given() || tls_source != nullptr; }
};

inline constexpr std::size_t kSpacesMax = 65536;  ///< Opened by one client; one more is refused with kBusy.

/// An opened namespace. Stays valid over reconnects: the client opens it again on each node by itself.
enum class Space : std::uint32_t {};

struct MatchOptions {
  std::chrono::microseconds deadline;  ///< From call to answer. No default: choose.
  bool lease = false;                  ///< Keep what was found for the nodes' lease duration.
  bool prefetch = false;               ///< Bring what lies on disk to memory, for a get to come.
  /// Of the blocks of `hashes`, and then of up to one more: asks for a partial block. Single node only.
  std::span<const std::uint32_t> token_ids = {};
  /// With token_ids: extra_digest() of what was hashed into each block of `hashes` besides its tokens, and of the block
  /// that follows; none: nothing was. A partial block has the same. In a namespace of an engine's own hashes (field
  /// `hash` of the record) there is no partial block without.
  std::span<const ExtraDigest> extras = {};
  ReuseHint reuse = ReuseHint::kNone;  ///< When the blocks will be asked for again, as far as you know.
  CallControl control = {};
};
struct MatchResult {
  std::size_t block_count = 0;             ///< Leading blocks held by their owners, in memory or on disk.
  std::size_t disk_block_count = 0;        ///< Of them: on disk. A lease does not cover these.
  std::chrono::microseconds disk_time{0};  ///< About how long reading those takes: against recomputing them.
  error_code why;                          ///< Why not more: none if it was a plain miss, else for example timed_out.
  Lease lease{};
  std::size_t partial_token_count = 0;  ///< Leading tokens of the next block that a stored block shares.
  BlockHash partial_block{};            ///< That block: get it as the hash after the matched ones.
};

/// A progress mark: the first `block_count` blocks (at least one) have this segment and those before it, verified.
/// Called on the client's executor before the get completes; must not throw. `block_count` can only shrink from one
/// segment to the next.
struct SegmentCallback {
  void (*call)(void* context, std::size_t segment, std::size_t block_count) = nullptr;
  void* context = nullptr;
};
struct GetOptions {
  std::chrono::microseconds deadline;  ///< From the call to the last verified byte. No default: choose.
  Lease lease{};                       ///< Of a match before; ended by this get.
  /// Layer ranges as byte offsets in a block, increasing, the last = block_bytes; each but the last is rounded up to a
  /// whole stripe (kStripeBytes), so that small segments may end together.
  std::span<const std::uint64_t> segment_ends = {};
  SegmentCallback on_segment = {};
  bool memory_only = false;  ///< Stop where the nodes would have to read from disk.
  /// What comes before is not wanted: its destinations may be empty, and whether all of it is there is not said.
  /// Without segments, and not into a device's memory; into lent memory it comes inline. A node that cannot:
  /// kUnsupported.
  std::size_t first_block = 0;
  /// stripe_count(block_bytes) for each block: takes the checksums that the blocks must have, bound to their names. For
  /// who verifies them a second time, and needed for a device's memory, where nobody has. Those of blocks before
  /// block_count (of a segment callback: of its segment) are set. kvs_enqueue_scatter_verified takes them as they are.
  std::span<std::uint64_t> checksums = {};
  CallControl control = {};
};
struct GetResult {
  /// Leading blocks landed and verified; in a device's memory: landed, to be verified there. Later destinations are
  /// unspecified.
  std::size_t block_count = 0;
  error_code why;  ///< Why not more: none for a plain miss; timed_out, kUnavailable, kCorruptBlock, ...
  std::size_t corrupt_count =
      0;  ///< Blocks whose checksum failed here; counting ends with the first in a row of blocks.
};

struct PutOptions {
  std::chrono::microseconds deadline;             ///< From the call to the last commit. No default: choose.
  std::span<const std::uint32_t> token_ids = {};  ///< block_size per hash, kept for partial matches; or none.
  std::span<const ExtraDigest> extras = {};       ///< With token_ids: one per hash, as in MatchOptions; or none.
  /// stripe_count(block_bytes) for each block, as gather_with_checksums() computes them: then they are not computed
  /// here. Needed for a device's memory. The node verifies them; a block that does not match is refused, and what
  /// follows it.
  std::span<const std::uint64_t> checksums = {};
  /// How long ago the blocks were last used, where they come from: they are so old on their nodes too. For who hands on
  /// what others have put.
  std::chrono::microseconds idle{0};
  /// Where the chain is to lie: behind so many leading blocks as its hot root, whatever this client takes for hot. For
  /// who hands on, too.
  std::optional<std::size_t> hot_blocks = std::nullopt;
  ReuseHint reuse = ReuseHint::kNone;  ///< As in MatchOptions.
  CallControl control = {};
};
struct PutResult {
  std::size_t stored = 0, already_stored = 0, refused = 0;  ///< Sum: hashes.size().
  error_code why;                                           ///< Why some were refused.
};

struct DropResult {
  std::size_t block_count = 0;  ///< Blocks dropped, summed over the nodes.
  /// A node could not tell its disk in time: what lies there may come back when that node starts again. Drop again
  /// then, or later. False: the drop holds whatever happens, kill -9 and power cuts included.
  bool until_restart = false;
};

/// Memory of a device that RDMA devices reach and this processor need not: a GPU's.
struct DeviceMemory {
  std::span<std::byte> bytes;       ///< Its addresses, as the device's own programs use them.
  int dmabuf_fd = -1;               ///< A dma-buf that holds it, borrowed for the call; -1: none.
  std::uint64_t dmabuf_offset = 0;  ///< Where in it `bytes` begins.
};

struct NodeStatus {
  /// peer_transport: "tcp", "tcp+verbs", "tls", "tls+verbs", "unix", "unix+memfd", "sim".
  std::string name, endpoint, node_id, peer_transport;
  std::size_t rdma_lanes = 0;  ///< Queue pairs that are up.
  std::string rdma_text;       ///< Why there is no RDMA, or less than there could be. Empty: it was not asked for yet.
  bool connected = false, breaker_open = false;
  std::uint64_t calls = 0, failures = 0, timeouts = 0, reconnects = 0, breaker_openings = 0;
  std::uint64_t hedges = 0,
                hedge_wins = 0;  ///< Reads on which it was late and another node was asked; that then answered.
  error_code last_error;
  std::string last_error_text;
};
/// Who belongs to the cluster, and since which epoch.
struct ClusterStatus {
  std::uint64_t epoch = 0;  ///< 0: a static list, or nothing was heard from the cluster yet.
  std::size_t extent_blocks = 1;
  struct Node {
    std::string id, zone;
    std::vector<std::string> endpoints;
    double weight = 0;
    bool is_serving = true;   ///< False: nothing is placed there.
    bool is_joining = false;  ///< Not serving yet: it is being given what will be its own.
    bool is_leaving = false;  ///< Serving still: it hands over what it owns.
  };
  std::vector<Node> nodes;  ///< Empty with epoch 0.
  /// What a node counts for in the owner rule: 0 while it drains, unless all do.
  double weight_of(const Node& node) const {
    const auto serves = [](const Node& each) { return each.is_serving; };
    return node.is_serving || std::ranges::none_of(nodes, serves) ? node.weight : 0;
  }
};
struct NodeStats {
  std::string name;
  error_code error;  ///< If the node did not answer; then the rest is empty.
  std::vector<std::pair<std::string, double>> values;
  struct Namespace {
    std::string record;
    std::uint64_t block_count, total_bytes;        ///< Of all its blocks on that node.
    std::uint64_t stored_blocks = 0;               ///< By puts, since the node started.
    std::uint64_t lookups = 0, empty_lookups = 0;  ///< Matches, and gets without one; those that found nothing.
    /// Of a sample of first blocks that were asked for or stored: how many, stored and never asked for, and asked for
    /// and never stored.
    std::uint32_t roots = 0, roots_stored_only = 0, roots_asked_only = 0;
  };
  std::vector<Namespace> namespaces;
  struct Tenant {
    std::string name;  ///< Empty: of all namespaces without a tenant.
    std::vector<std::pair<std::string, double>> values;
  };
  std::vector<Tenant> tenants;  ///< Of a node with a policy.
};
/// Whose blocks are meant.
struct TenantOrShare {
  std::string name;
  bool is_share = false;
};
/// How far a node is with erasing what a tenant or a share has.
struct NodeErasure {
  std::string name;
  error_code error;  ///< kBusy: what too many others have waits there; kDiskFailed: it broke off, its log says why.
  std::vector<std::pair<std::string, double>> values;  ///< erase_done, erase_blocks ...; docs/cli.md has them.
};

/// A node's slow log: its latest requests that took long.
struct NodeSlowLog {
  std::string name;
  error_code error;                        ///< If the node did not answer; then the rest is empty.
  bool is_kept = false;                    ///< False: the node is too old to keep one.
  std::chrono::microseconds threshold{0};  ///< What takes as long is in it. Zero: nothing is.
  std::uint64_t count = 0;                 ///< Of all that were, since the node started.
  struct Request {
    std::uint64_t number = 0;            ///< 1 for the node's first.
    std::chrono::microseconds began{0};  ///< Since 1970, by the node's clock.
    std::chrono::microseconds took{0};   ///< The sum of the times that follow.
    std::chrono::microseconds lock{0}, store{0}, room{0}, disk{0}, move{0}, client{0},
        other{0};  ///< wire.fbs says what.
    std::string verb, model, tenant, identity, peer, traceparent;
    std::string namespace_id;  ///< Hexadecimal; empty: it was about none.
    std::uint64_t blocks = 0, bytes = 0, session = 0;
    bool failed = false;
  };
  std::vector<Request> requests;  ///< The latest first.
};
/// What a node has learned of the reuse of blocks, as it tells other nodes (store/yield_counts.h).
struct NodeLearned {
  std::string name;
  error_code error;     ///< If the node did not answer.
  std::string learned;  ///< Empty: it learns nothing, or tells nobody.
};

// So `{...}` is safe inside co_await.
static_assert(std::is_trivially_destructible_v<MatchOptions> && std::is_trivially_destructible_v<GetOptions> &&
              std::is_trivially_destructible_v<PutOptions> && std::is_trivially_destructible_v<DeviceMemory>);

/// Moves cached blocks between the nodes and this process's memory.
///   1. Every call completes by its deadline, plus what the executor is late.
///   2. A block that get reports landed with the checksum bound to its name; in a device's memory that is for the
///      caller to verify, with the checksums that it is told.
///   3. Memory in use is bounded: calls_max, and buffers only where the caller gave them.
/// Spans given to a call stay valid until it completes. A call is given up by its deadline or its CallControl;
/// Asio's own cancellation is not supported. Thread safety: none. Every call, and the destructor, runs on the executor
/// given at construction, which must be single-threaded. After fork() the child leaves the client and its executor
/// alone (BlockingClient can tell and refuses). The destructor requires that no call is in progress and closes all
/// sessions.
class Client {
 public:
  /// Reads the files of `tls`, if any; connects on first use. Throws std::invalid_argument for a bad configuration,
  /// naming the field, or the file and what is wrong in it.
  /// `network` and `clock` outlive the client.
  Client(asio::any_io_executor executor, ClientConfig config, Network& network = socket_network());
  /// `verbs`: used instead of this machine's RDMA devices, on the executor only; outlives the client. For tests.
  Client(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock,
         verbs::Provider* verbs = nullptr);
  ~Client();

  /// Opens `record`, for which no node need be there: a worker starts while the store is away, and nodes open the
  /// namespace when they come. Waits for the first that does, up to `deadline` and no longer than some are being
  /// connected, so that the calls to come find it open; 0us: does not wait. Errors: kMismatch, kBadRequest, kTooLarge,
  /// kUnsupported, if nodes are there that refuse the record, and none that takes it. One that says so later says it to
  /// each call, as its error or its `why`.
  Async<Space> open(NamespaceRecord record, std::chrono::microseconds deadline, CallControl control = {});
  /// Until one node has opened it, as open(), but that none did is an error: also kUnavailable, timed_out, kBusy.
  Async<void> wait_open(Space space, std::chrono::microseconds deadline, CallControl control = {});
  std::size_t block_bytes(Space space) const;  ///< Of every block of a chain; of a set's largest.

  /// How many leading blocks of the chain are held.
  /// `hashes` (of this and the following calls) is a chain from its first block on; it may end anywhere.
  /// Errors (of this and the following calls): kBadRequest for arguments that break the rules below, kBusy at
  /// calls_max. That a node is dead, slow or full is never an error but a smaller result with its `why`.
  Async<MatchResult> match(Space space, std::span<const BlockHash> hashes, MatchOptions options);
  /// Why not all of the chain is held: asks its owners, who say what they remember of the first block that is missed.
  /// Of a set: of the first name that is missed; of a group ask for its first name, which says where it lies. Nothing
  /// is marked as used. Errors: kBadRequest (no hashes).
  Async<MissReport> why(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline,
                        CallControl control = {});
  /// Ends a match's lease early. Never waits for the nodes.
  void release(Lease lease);

  /// Copies the longest cached prefix of `hashes` into memory, block i to blocks[i] (block_bytes each, no two
  /// overlapping). If the destinations lie in memory of allocate(), and the node is on this host, the node writes them
  /// directly. After a deadline passed on such memory, the node may still write to those destinations of this call that
  /// were not reported as landed, until it answers or its process ends: until then they are quarantined, and calls that
  /// name them fail with kQuarantined.
  Async<GetResult> get(Space space, std::span<const BlockHash> hashes, std::span<const std::span<std::byte>> blocks,
                       GetOptions options);
  /// Stores the chain's blocks, block i from blocks[i]; each node takes only what it lacks. The bytes must not change
  /// until completion.
  Async<PutResult> put(Space space, std::span<const BlockHash> hashes,
                       std::span<const std::span<const std::byte>> blocks, PutOptions options);

  // Sets: namespaces whose blocks stand alone (NamespaceRecord::is_set). Each hash means one block; they come in any
  // order, and each node is asked once for all that it owns. match, get and put of a set are kUnsupported, and so are
  // these of a chain; touch, retain, unretain and drop mean each of the hashes.
  /// Which of `hashes` are held, and how long each is. Errors: as match.
  Async<SetMatchResult> match_set(Space set, std::span<const BlockHash> hashes, SetMatchOptions options);
  /// Copies those of the blocks that are held into memory, hash i to blocks[i], which may be longer or shorter than the
  /// block: what does not fit is not sent. Memory as in get; a device's is kUnsupported.
  Async<SetGetResult> get_set(Space set, std::span<const BlockHash> hashes,
                              std::span<const std::span<std::byte>> blocks, SetGetOptions options);
  /// Stores each of the blocks whose name is not held yet, block i from all of blocks[i]: 1 to block_bytes(set) bytes.
  /// A name that is held keeps what it has. As put otherwise.
  Async<SetPutResult> put_set(Space set, std::span<const BlockHash> hashes,
                              std::span<const std::span<const std::byte>> blocks, SetPutOptions options);

  /// Marks the prefix as used; keeps it from eviction until unretain or drop; drops the last block of the chain with
  /// all below it (no hashes: the namespace). Return how many blocks that were, summed over the nodes. Errors: of the
  /// first node that failed, after all were asked. With several nodes, or extents, drop means what lies below that last
  /// block in its own extent: what lies further below can no longer be reached, and ages out. With extents of several
  /// blocks (extent_blocks) drop and unretain ask every node, since blocks that many prompts begin with have copies; so
  /// they fail while any node is away, after the others have done it. drop counts the copies, the others do not. From a
  /// drop's answer on nobody finds the blocks; with a disk tier the answer waits up to two seconds until it is durable
  /// there, or says that it is not.
  Async<std::size_t> touch(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline,
                           CallControl control = {});
  Async<std::size_t> retain(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline,
                            CallControl control = {});
  Async<std::size_t> unretain(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline,
                              CallControl control = {});
  Async<DropResult> drop(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline,
                         CallControl control = {});

  // Named contexts (docs/contexts.md): prefixes of chains that nodes keep in memory for a time, each under a name of
  // the tenant's, which the nodes' policy gives this client. Needs the right to operate.
  /// Keeps what memory has of the prefix, and what comes to it later, until the context ends; one of that name is
  /// replaced. The answer says how much is kept now, and why not more. Errors: of the first node that failed, after all
  /// were asked, and what the others did is done; kOverQuota, the tenant has as many contexts as it may; kUnsupported,
  /// a set, or a node that knows no contexts; kBadRequest.
  Async<NamedContext> create_context(Space space, std::span<const BlockHash> hashes, ContextOptions options);
  /// Another life, from now on, and another priority if one is given. Errors: kNotFound, no node has it; else as
  /// create_context.
  Async<NamedContext> extend_context(std::string_view name, ContextTime life, std::chrono::microseconds deadline,
                                     CallControl control = {}, std::optional<std::uint8_t> priority = std::nullopt);
  /// Returns what it was last. Errors: as extend_context.
  Async<NamedContext> delete_context(std::string_view name, std::chrono::microseconds deadline,
                                     CallControl control = {});
  /// Has the nodes bring what their disks have of it to memory, in the background, within the bounds on what is kept;
  /// returns how far that is now. Ask list_contexts() with its name for the progress: it is over when is_warming is
  /// false. A node without a disk tier has nothing to bring. Errors: as extend_context; kUnsupported, an older node.
  Async<NamedContext> warm_context(std::string_view name, std::chrono::microseconds deadline, CallControl control = {});
  /// They bring no more of it. What has come stays kept.
  Async<NamedContext> stop_warming_context(std::string_view name, std::chrono::microseconds deadline,
                                           CallControl control = {});
  /// What it is of, asked of all nodes: to have the same somewhere else. Errors: kNotFound; kMismatch, nodes have
  /// different things under that name, or it changed meanwhile: ask again; kUnsupported, an older node; of the first
  /// node that failed.
  Async<ContextContent> tell_context(std::string_view name, std::chrono::microseconds deadline,
                                     CallControl control = {});
  /// All of the tenant's, or the one of that name. A node that does not answer is no error, but told in the list.
  Async<ContextList> list_contexts(std::string_view name, std::chrono::microseconds deadline, CallControl control = {});

  /// Asks the node of the cluster with this id to hand over all that it owns and to take nothing new; or, with `drain`
  /// false, to take its place again. Returns once the node has begun. Errors: kNotFound, if the map in use has no such
  /// node; kUnsupported, if it cannot; or why it did not answer.
  Async<void> drain_node(std::string_view id, bool drain, std::chrono::microseconds deadline, CallControl control = {});
  Async<std::vector<NodeStats>> stats(std::chrono::microseconds deadline, CallControl control = {});
  /// Asks each node to erase all that the tenant or share has, in memory and in the files of its disk; or, if it does
  /// that already, how far it is. Ask until each has said erase_done, once. An answer for each node, in node order.
  Async<std::vector<NodeErasure>> erase(TenantOrShare owner, std::chrono::microseconds deadline,
                                        CallControl control = {});
  /// `empties`: what is told is forgotten by the node, for which it asks the right to operate.
  Async<std::vector<NodeSlowLog>> slow_log(bool empties, std::chrono::microseconds deadline, CallControl control = {});
  Async<std::vector<NodeLearned>> learned(std::chrono::microseconds deadline, CallControl control = {});
  /// Round trip to each node, in node order; negative where it failed, and then NodeStatus::last_error says why.
  Async<std::vector<std::chrono::nanoseconds>> ping(std::chrono::microseconds deadline, CallControl control = {});
  std::vector<NodeStatus> nodes() const;
  /// Where memory of allocate() lies and the library's threads run; looks at 512 pages, 0.1 ms.
  NumaStatus numa() const;
  const NumaPlace& numa_place() const;
  /// What this client has seen, as Prometheus text (client_metrics.h); docs/operating.md has the names.
  std::string metrics_text() const;
  /// How many tokens a second the engine computes, as far as it knows, for the estimate of what loading saves.
  void tell_prefill_speed(double tokens_per_second);
  /// Asks all nodes what many chains of this namespace begin with (docs/cluster.md), as matches do now and then. For
  /// who places chains without matching any. Errors: as open(); a node that does not answer is none.
  Async<void> learn_hot_roots(Space space, std::chrono::microseconds deadline, CallControl control = {});
  /// How many leading blocks of the chain that is, as far as this client has heard.
  std::size_t hot_block_count(Space space, std::span<const BlockHash> hashes) const;
  std::vector<BlockHash> hot_blocks(Space space) const;  ///< All of them, in no order.
  /// The map in use. A call that runs goes on with the map with which it began. cluster().nodes are nodes(), in order.
  ClusterStatus cluster() const;
  /// Asks all nodes, and takes up the map that they know. Returns cluster(). Errors: as those of ping, if none answers.
  Async<ClusterStatus> learn_cluster(std::chrono::microseconds deadline, CallControl control = {});

  /// Memory that nodes can fill and drain directly: those on this host (memfd), and those that RDMA reaches. Owned by
  /// the client, freed by free_memory() or the destructor. Errors: kBusy over region_bytes_max, system errors.
  /// All of it is touched here and now, 0.3 s a GiB and more, and meanwhile nothing else runs on the executor: no
  /// deadline either. Where that matters, call reserve_memory(), then make_memory() on another thread, with
  /// numa_place(), then adopt_memory() with what came of it; BlockingClient does.
  Result<std::span<std::byte>> allocate(std::size_t bytes);
  Result<void> reserve_memory(std::size_t bytes);
  Result<std::span<std::byte>> adopt_memory(std::size_t reserved_bytes, Result<std::unique_ptr<SharedMemory>> memory);
  /// Lends `memory` of allocate() or add_device_memory() to all nodes now. Without this it is done at its first use,
  /// and calls are served through the socket until RDMA is ready: registering takes 0.2 s a GiB. Returns to how many
  /// connections it is lent; that nodes cannot have it is no error. Errors: kBadRequest if it is neither's,
  /// kQuarantined if it is leaving.
  Async<std::size_t> lend(std::span<std::byte> memory, std::chrono::microseconds deadline, CallControl control = {});
  /// Also while it is quarantined: the node may go on writing the memfd's pages, but these addresses are no longer
  /// them. What RDMA reaches is taken from the devices before its addresses are used again. Errors: kBadRequest if it
  /// is not from allocate(), kBusy while a call in progress uses it.
  Result<void> free_memory(std::span<std::byte> memory);
  /// The same, but it is unmapped, which takes 0.1 s a GiB, when the last copy of what is returned goes: on another
  /// thread, where that matters.
  Result<std::shared_ptr<const void>> release_memory(std::span<std::byte> memory);

  /// Makes a device's memory lendable: by RDMA only, and to nodes on TCP endpoints only. Nothing here reads or writes
  /// it. Blocks of one get or put lie all in one such region, or none does (kBadRequest). What lies in it can go no
  /// other way, so where other memory is served through the socket, here the result is cut: with kUnavailable where
  /// RDMA is not there yet or has just broken, with kNoRegion where this node cannot have the memory
  /// (NodeStatus::rdma_text says why); and get stops before blocks on disk, as with memory_only. So lend() it before
  /// the first call. It is registered through its dma-buf, or without one (or where an RDMA device cannot) by its
  /// addresses, for which the kernel needs nvidia-peermem. Counts against region_bytes_max. Errors: kBadRequest (no
  /// bytes, or some that can be lent already), kBusy over region_bytes_max, system errors.
  Result<void> add_device_memory(DeviceMemory memory);
  /// Takes back what add_device_memory() was given, also while it is quarantined. Once this has returned no error, no
  /// RDMA device can reach it, whatever any node does: only then free it, or use it for something else. Until then, and
  /// after timed_out, it is leaving: calls that name it fail with kQuarantined; call this again. How long
  /// it takes is up to this machine's devices, not to nodes. Do it before the client is destroyed: that waits for
  /// nothing, so a device may reach the memory until the executor has run what is left of the client's coroutines.
  /// Errors: kBadRequest if it is not from add_device_memory(), kBusy while a call in progress uses it, timed_out.
  Async<void> remove_device_memory(std::span<std::byte> memory, std::chrono::microseconds deadline,
                                   CallControl control = {});

  /// Whether some node may still write a part of `memory` for a get that has ended, or it is leaving.
  bool is_quarantined(std::span<const std::byte> memory) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
