// client/set_types.h: what the verbs for blocks that stand alone take and give (Client::match_set, get_set, put_set).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "client/call_control.h"
#include "index/reuse_hint.h"

namespace kv {

/// The lease of one match, over all nodes that took part. 0: none.
enum class Lease : std::uint64_t {};

enum class Held : std::uint8_t { kNowhere, kInMemory, kOnDisk };

// Names whose blocks are of use only together (a state and its window, K and V stored apart) are asked for as a group.
// `group_counts`, in the options of all three verbs, cuts the list of names: the first group_counts[0] of them are a
// group, the next group_counts[1] another, and so on to its end; empty, each name is alone. The list may go when the
// verb has ended.
//   - A group is held, got and put as a whole, or not at all. What a put stores of it becomes visible at one moment. A
//     group of which a block has gone is a miss; its other blocks are still held under their own names, and as they are
//     not used any more they are evicted soon.
//   - A group has 1 to 64 names (kGroupNamesMax), none of them twice: else kBadRequest. All of it must fit into a
//     node's memory: else kTooLarge. Groups may share names.
//   - Each call says anew what belongs together: nodes keep no groups. All should say the same, with the same name
//     first: a group lies where that name belongs. touch, retain, unretain and drop take single names: among several
//     nodes they reach a group's first one only. So a group is dropped by the name that comes first.
//   - A node that does not know groups is not asked: `why` is kUnsupported.

struct SetMatchOptions {
  std::chrono::microseconds deadline;  ///< From call to answer. No default: choose.
  bool lease = false;                  ///< Keep what is in memory for the nodes' lease duration.
  bool prefetch = false;               ///< Bring what lies on disk to memory, for a get to come.
  CallControl control{};
  /// As above. The lease is for the groups that lie in memory as a whole.
  std::span<const std::uint32_t> group_counts = {};
  ReuseHint reuse = ReuseHint::kNone;  ///< When the blocks will be asked for again, as far as you know.
};
/// Of n hashes, n elements each.
struct SetMatchResult {
  std::vector<Held> held;                  ///< Where the owner has the block.
  std::vector<std::uint32_t> block_bytes;  ///< How long the block is; 0 if it is held nowhere.
  std::size_t held_count = 0, disk_count = 0;
  std::chrono::microseconds disk_time{0};  ///< About how long reading those on disk takes.
  error_code why;                          ///< Why some could not be asked for, or there is no lease; none otherwise.
  Lease lease{};
};

struct SetGetOptions {
  std::chrono::microseconds deadline;  ///< From the call to the last verified byte. No default: choose.
  Lease lease{};                       ///< Of a match_set before; ended by this get.
  bool memory_only = false;            ///< Not what the nodes would have to read from disk.
  CallControl control{};
  std::span<const std::uint32_t> group_counts = {};  ///< As above.
};
/// What became of one block. It landed, and was verified, iff `has_landed`: then its destination begins with its
/// `block_bytes` bytes, and what follows them there is as it was. Else the destination is unspecified. Of a group all
/// have landed, or none has: where one is damaged, too long, or was not read from disk in time, the others are given up
/// for the same reason.
struct SetGetBlock {
  /// 0: not known. Of a block that is too long for its destination, what it needs. The others of its group have the
  /// same `why`, and a length that fits or is not known.
  std::size_t block_bytes = 0;
  bool has_landed = false;
  error_code
      why;  ///< Why not: none for a plain miss; kTooLarge, timed_out, kUnavailable, kCorruptBlock, kDiskFailed, ...
};
struct SetGetResult {
  std::vector<SetGetBlock> blocks;  ///< One for each hash.
  std::size_t landed_count = 0;
  std::size_t corrupt_count = 0;  ///< Blocks whose checksum failed here.
  error_code why;                 ///< The first of the blocks' that is not kTooLarge.
};

struct SetPutOptions {
  std::chrono::microseconds deadline;  ///< From the call to the last commit. No default: choose.
  CallControl control{};
  /// As above. What the store has of a group already counts. If one block is refused or in conflict, the others of its
  /// group that would have been stored are refused as well. `why`: kOutOfMemory or kTooLarge if there is no place for
  /// one; kMismatch after a conflict; kNotFound if one that the store had is gone by then: put it again.
  std::span<const std::uint32_t> group_counts = {};
  ReuseHint reuse = ReuseHint::kNone;  ///< As in SetMatchOptions.
};
enum class SetPutBlock : std::uint8_t {
  kRefused,  ///< Not stored; SetPutResult::why says why.
  kStored,
  kAlreadyStored,  ///< Under this name a block is stored already, and stays as it is.
  kConflict,       ///< The same, and it has other bytes or another length.
};
struct SetPutResult {
  std::vector<SetPutBlock> blocks;                                         ///< One for each hash.
  std::size_t stored = 0, already_stored = 0, conflicts = 0, refused = 0;  ///< Sum: hashes.size().
  error_code why;                                                          ///< Why some were refused.
};

// So `{...}` is safe inside co_await.
static_assert(std::is_trivially_destructible_v<SetMatchOptions> && std::is_trivially_destructible_v<SetGetOptions> &&
              std::is_trivially_destructible_v<SetPutOptions>);

}  // namespace kv
