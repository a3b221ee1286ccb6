// client/types/set_types.h: results of the calls for sets (Client::match_set, get_set, put_set), and what a group is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace kv {

/// The lease of one match, over all its nodes. 0: no lease.
enum class Lease : std::uint64_t {};

enum class Held : std::uint8_t { kNowhere, kInMemory, kOnDisk };

// Groups: names whose blocks are useful only together (a state and its window, K and V stored apart). `group_counts`,
// in the options of all three calls, cuts the list of names: the first group_counts[0] names are a group, the next
// group_counts[1] another, to the end of the list; empty: each name is alone. It must live until the call ends.
//   - A group is held, got and put as a whole or not at all. A put makes its blocks visible at one moment. A group with
//     a missing block is a miss; its other blocks are still held under their own names, and soon evicted as unused.
//   - A group has 1 to 64 different names (kGroupNamesMax): else kBadRequest. It must fit into a node's memory: else
//     kTooLarge. Groups may share names.
//   - Groups exist only in calls: nodes keep no record. All calls should list the same names with the same one first,
//     because a group lies where that name belongs. touch, retain, unretain and drop take single names: among several
//     nodes they reach only a group's first one. So a group is dropped by its first name.
//   - A lease covers the groups that are in memory as a whole.
//   - In a put, blocks that the store holds already count as put. If one block is refused or in conflict, the unstored
//     rest of its group is refused too. `why`: kOutOfMemory or kTooLarge without room for one; kMismatch after a
//     conflict; kNotFound if a block that was held has gone meanwhile: put it again.

/// n elements each, for n hashes.
struct SetMatchResult {
  std::vector<Held> held;                  ///< Where its owner holds it.
  std::vector<std::uint32_t> block_bytes;  ///< Length of the block; 0 if it is held nowhere.
  std::size_t held_count = 0, disk_count = 0;
  std::chrono::microseconds disk_time{0};  ///< Estimated time to read the blocks on disk.
  error_code why;                          ///< Why some were not looked up, or why there is no lease.
  Lease lease{};
};

/// The outcome of one block. It landed, verified, iff `has_landed`: then its destination begins with its `block_bytes`
/// bytes, and the bytes behind them are unchanged. Otherwise the destination is unspecified. All blocks of a group
/// land, or none: if one is damaged, too long, or not read from disk in time, so are the others, for the same reason.
struct SetGetBlock {
  /// 0: unknown. Of a block too long for its destination, the length it needs; the others of its group then have the
  /// same `why`, and a length that fits or is unknown.
  std::size_t block_bytes = 0;
  bool has_landed = false;
  error_code why;  ///< Success: a plain miss. kTooLarge, timed_out, kUnavailable, kCorruptBlock, kDiskFailed, ...
};
struct SetGetResult {
  std::vector<SetGetBlock> blocks;  ///< One for each hash.
  std::size_t landed_count = 0;
  std::size_t corrupt_count = 0;  ///< Blocks with a bad checksum here.
  error_code why;                 ///< The blocks' first error other than kTooLarge.
};

enum class SetPutBlock : std::uint8_t {
  kRefused,  ///< Not stored; the reason is in SetPutResult::why.
  kStored,
  kAlreadyStored,  ///< A block of this name is stored and stays.
  kConflict,       ///< The same, but it has other bytes or another length.
};
struct SetPutResult {
  std::vector<SetPutBlock> blocks;                                         ///< One for each hash.
  std::size_t stored = 0, already_stored = 0, conflicts = 0, refused = 0;  ///< Sum: hashes.size().
  error_code why;                                                          ///< Why some were refused.
};

}  // namespace kv
