// client/request.h: a call as a value: a Request goes in, and Completions come out. Without blocking by a
// CompletionQueue, blocking by a BlockingClient.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "client/client.h"

namespace kv {

/// Of a namespace opened by the client.
struct SpaceSize {
  std::size_t block_bytes = 0;  ///< As Client::block_bytes(); 0: not opened.
  std::size_t block_size = 0;   ///< Tokens; 0: a set.
};

/// Names a call of one queue: never 0, never reused.
enum class CallId : std::uint64_t {};

/// Those without a field of Request to themselves run its `work`.
enum class Op : std::uint8_t {
  kOther,
  kOpen,
  kWaitOpen,
  kMatch,
  kGet,
  kLoad,
  kPut,
  kTouch,
  kRetain,
  kUnretain,
  kDrop,
  kRelease,
  kLend,
  kRemoveDeviceMemory,
  kStats,
  kMatchSet,
  kGetSet,
  kPutSet,
  kWhy,
  kCreateContext,
  kExtendContext,
  kDeleteContext,
  kWarmContext,
  kExportContext,
  kImportContext,
  kListContexts
};

struct Completion;

/// Where results by name go, for a binding whose caller has lists of its own.
struct SetLists {
  /// Called once for each submitted call, just before its end is reported, on any thread. Must not throw.
  void (*write)(const SetLists& lists, const Completion& end) = nullptr;
  void* first = nullptr;  ///< Interpreted by `write` only, as are the others.
  void* second = nullptr;
  std::size_t count = 0;
};

/// Any other use of the client: runs on the I/O thread, must not block it, and handles its own deadline. Calls to which
/// it passes `control` can be cancelled.
using Work = std::function<Async<std::size_t>(Client& client, CallControl control)>;

/// The arguments of one call. A member that the operation does not use is ignored. MatchOptions, GetOptions and so on,
/// and the calls of Client, explain the members of the same names.
///   submit() copies lists, records and `work`; run() borrows them. The blocks, and the checksums, stay in use until
///   the call's end, even after a cancel or a missed deadline. A node may write blocks in memory of allocate() even
///   after a cancelled or late get: they are quarantined, calls that name them fail with kQuarantined, and they may be
///   freed.
struct Request {
  Op op{};
  Space space{};
  Hashes hashes = {};
  TargetBlocks to = {};    ///< get, load, get_set.
  SourceBlocks from = {};  ///< put, put_set.
  /// From the submit to the end; at most 24 hours. Unused by release and `work`.
  std::chrono::microseconds deadline{0};
  std::uint64_t tag = 0;  ///< Comes back in the completions.
  Lease lease{};          ///< get, get_set, release.
  bool wants_lease = false;
  bool prefetch = false;
  bool memory_only = false;
  bool tell_match = false;  ///< load: reports the match in a kMatched completion first.
  ReuseHint reuse = ReuseHint::kNone;
  std::span<std::uint64_t> checksums = {};                ///< get, load: to fill.
  std::span<const std::uint64_t> checksums_of_from = {};  ///< put.
  std::span<const std::uint32_t> token_ids = {};
  std::span<const ExtraDigest> extras = {};
  std::span<const std::uint64_t> segment_ends = {};
  SegmentCallback on_segment = {};  ///< Without it, segments of a submitted call come as kSegment.
  std::size_t block_count_min = 1;  ///< load: with fewer matched blocks the get is skipped.
  std::span<const std::uint32_t> group_counts = {};
  std::span<std::byte> memory = {};         ///< lend, remove_device_memory.
  const NamespaceRecord* record = nullptr;  ///< open.
  const Work* work = nullptr;
  SetLists lists = {};
  TraceContext trace = {};
};

/// Results of a set call, by name: the one for the call's operation. Its lists have an element per hash.
struct SetResults {
  SetMatchResult match;
  SetGetResult get;
  SetPutResult put;
};

/// One event of a call. A call's events come in the order in which they happened; the last, exactly one, is kEnd.
struct Completion {
  enum class Kind : std::uint8_t {
    kEnd,      ///< The call has ended: `error`, and the result of its operation.
    kMatched,  ///< A load that asked for it: `match` is known, and the blocks are on their way.
    kSegment   ///< A get or load: the first get.block_count blocks have segment `segment` and all earlier ones.
  };
  CallId call{};
  std::uint64_t tag = 0;
  Op op{};
  Kind kind = Kind::kEnd;
  /// A dead, slow or full node is not an error but a smaller result with its `why`. kCancelled: the call was given up;
  /// the results cover the part done by then. kUnavailable from a client that is_disabled(): the results are empty.
  error_code error;
  MatchResult match;  ///< match, load.
  GetResult get;      ///< get, load.
  PutResult put;
  DropResult drop;
  /// match_set, get_set, put_set; null if the call failed before any block. A pointer keeps other completions short.
  std::shared_ptr<const SetResults> sets;
  std::size_t count = 0;  ///< touch, retain, unretain: blocks. lend: connections. `work`: its return value.
  Space space{};          ///< open.
  std::size_t segment = 0;
  std::string reason;  ///< Of the error, or of the result's `why`: the nodes behind it, for people. See tells_reason.
};

/// For a thread that has to look at something else while it waits for its call, such as signals.
struct Interrupt {
  std::chrono::milliseconds interval;
  /// Called every `interval` on the waiting thread: whether to give the call up. From its first call on the client may
  /// be destroyed, also by itself: the call then ends with kCancelled.
  bool (*is_wanted)(void* context);
  void* context = nullptr;
};

}  // namespace kv
