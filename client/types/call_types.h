// client/types/call_types.h: what match, get and put take, of chains and of sets, and what they return of chains.
// set_types.h has the results of sets, context_types.h the types of named contexts.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/assert.h"
#include "base/result.h"
#include "client/types/call_control.h"
#include "client/types/set_types.h"
#include "index/block_hash.h"
#include "index/reuse_hint.h"

namespace kv {

inline constexpr std::chrono::microseconds kDeadlineMax = std::chrono::hours(24);  ///< Of any call.
inline constexpr std::size_t kSpacesMax = 65536;  ///< Namespaces open in one client; beyond it open() fails with kBusy.

/// An open namespace. Valid across reconnects: the client reopens it on each node.
enum class Space : std::uint32_t {};

using TargetBlocks = std::span<const std::span<std::byte>>;        ///< Memory to fill, block by block.
using SourceBlocks = std::span<const std::span<const std::byte>>;  ///< Memory to read, block by block.

/// The whole blocks in `memory`, one behind the other: for the two above. Requires: block_bytes > 0.
template <class Byte>
std::vector<std::span<Byte>> blocks_in(std::span<Byte> memory, std::size_t block_bytes) {
  KV_ASSERT(block_bytes > 0);
  std::vector<std::span<Byte>> blocks(memory.size() / block_bytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = memory.subspan(i * block_bytes, block_bytes);
  return blocks;
}

// The options of the calls on chains and on sets. Those of a chain alone (tokens, extras, segments, first_block,
// checksums, idle, hot_blocks) are ignored for a set, and group_counts for a chain.

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
  std::span<const std::uint32_t> group_counts = {};  ///< Of a set: see set_types.h.
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
  bool memory_only = false;  ///< Stop before blocks on disk; of a set: skip them.
  /// The first block to copy. Destinations before it may be empty, and the result does not say whether those blocks are
  /// held. Requires a call without segments, not into a device's memory; into lent memory the blocks come inline. Nodes
  /// without this feature: kUnsupported.
  std::size_t first_block = 0;
  /// stripe_count(block_bytes) per block: receives the expected checksums, bound to the blocks' names. Allows a second
  /// verification; required for a device's memory, which the client does not verify. Set for the blocks before
  /// block_count (in a segment callback: for its segment). kvs_enqueue_scatter_verified takes them as they are.
  std::span<std::uint64_t> checksums = {};
  CallControl control = {};
  std::span<const std::uint32_t> group_counts = {};  ///< As in MatchOptions.
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
  std::span<const std::uint32_t> group_counts = {};  ///< As in MatchOptions.
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

// So `{...}` is safe inside co_await.
static_assert(std::is_trivially_destructible_v<MatchOptions> && std::is_trivially_destructible_v<GetOptions> &&
              std::is_trivially_destructible_v<PutOptions> && std::is_trivially_destructible_v<DeviceMemory>);

}  // namespace kv
