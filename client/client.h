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
// Rooms, from the top. Each includes only those below it (docs/architecture.md has the arrows):
//   kvstore.h             the C ABI, over c/
//   blocking_client.h     a call made and waited for, from any thread: on that thread while nothing else is in flight
//   completion_queue.h    calls without blocking: submit requests, then reap completions; queue/ has its parts
//   request.h             a call as a value, and its completions
//   archive/              a context as a file
//   thread/               a client with a thread to run it on
//   client.h              the whole C++ interface; client.cc opens, and tells of the nodes
//   calls/                match, get, put, the same for sets, contexts, why, counts, memory: a file each, a coroutine each
//   core/client_core.h    what all calls share: the nodes, their map, leases, and the parts that a chain is cut into
//   hedge/, hot/, cluster/  reads from a second node; hot roots; the owner of each block, and the cluster's map
//   link/session/         the sessions with one node: node_link.h connects, backs off, breaks; link_session.h is one session
//   link/                 one request to one node (call.h), lent memory, RDMA queue pairs, deadlines, counters
//   types/                what callers give and get
// Beside them models/: a model's cache by its config.json or name, for those who size a cache.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "client/types/call_control.h"
#include "client/types/call_types.h"
#include "client/types/client_config.h"
#include "client/types/context_types.h"
#include "client/types/miss_report.h"
#include "client/types/node_status.h"
#include "client/types/numa_place.h"
#include "client/types/set_types.h"
#include "index/block_hash.h"
#include "index/namespace_record.h"
#include "transport/shared_memory.h"
#include "transport/stream.h"

namespace kv {

namespace verbs {
class Provider;
}
struct ClientCore;

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
  Async<SetMatchResult> match_set(Space set, Hashes hashes, MatchOptions options);
  /// Copies the blocks that are held into memory, hash i to blocks[i], which may be longer or shorter than the block; a
  /// block that does not fit is not sent. Memory as in get; a device's is kUnsupported.
  Async<SetGetResult> get_set(Space set, Hashes hashes, TargetBlocks blocks, GetOptions options);
  /// Stores each block whose name is not held yet, block i from all of blocks[i]: 1 to block_bytes(set) bytes. A held
  /// name keeps its block. Otherwise as put.
  Async<SetPutResult> put_set(Space set, Hashes hashes, SourceBlocks blocks, PutOptions options);

  /// touch marks the prefix as used; retain keeps it from eviction until unretain or drop; drop removes the last block
  /// of the chain with all below it (no hashes: the namespace). Return the number of blocks, summed over the nodes.
  /// Errors: of the first node that failed, after all were asked. drop removes the blocks below that last block in its
  /// own extent; blocks further below become unreachable and age out. drop and unretain ask every node, because hot
  /// root blocks have copies; they therefore fail while any node is away, after the others are done. drop counts the
  /// copies, the others do not. After a drop's answer the blocks are not found any more; with a disk tier the answer
  /// waits up to two seconds for the drop to be durable there, or reports that it is not.
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
  /// What is behind an error, for people: the nodes that last had it, with their texts, as in "tcp://a:7400: connect:
  /// Connection refused"; for kUnavailable, the unconnected ones. At most three nodes; may be empty.
  std::string reason_of(error_code why) const;
  bool is_connecting() const;  ///< Whether a connection to a node is being made.
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
  std::unique_ptr<ClientCore> core_;
};

}  // namespace kv
