// store/contexts/context_file.h: the file that keeps a node's named contexts over a restart.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "index/namespace_record.h"
#include "store/contexts/context.h"

namespace kv {

/// A context without its kept blocks: the node finds these again by itself.
struct KeptContext : ContextFacts {
  struct Chain {
    std::uint32_t count = 0;    ///< In `hashes`, which hold one chain behind the other.
    std::uint32_t written = 0;  ///< Leading blocks that have counted as written.
  };
  std::vector<Chain> chains;
};

/// One moment by both clocks. The Store's clock stops with the machine, so a file has times of the wall clock.
struct ClockPair {
  TimePoint steady{};
  std::uint64_t wall_us = 0;  ///< Since 1970.
};

struct ContextFile {
  std::uint64_t written_us = 0;  ///< By the wall clock: the newest of several files counts.
  /// By the wall clock the file comes from the future, or is older than kAwayMax: the clock is wrong now, or was. Then
  /// the time since the file was written counts as zero, or a start with a wrong clock would end everything.
  bool is_clock_doubted = false;
  std::vector<KeptContext> contexts;
};

/// Form, all little endian (golden tests):
///   "KVNC", format 1: u32, bytes that follow the head: u64, the first 8 bytes of their SHA-256: u64, then
///   when: u64; records: u32, of each: length u32, text; contexts: u32, of each:
///     owner: u16 and text; name: u8 and text; tags: u8, of each: u8 and text; which record: u32
///     time to live in ns: u64; sliding: u8; priority: u8; created, begun, used (0: never): u64 each
///     lost blocks, yielded blocks, written tokens, read tokens: u64 each; stored token seconds: f64
///     chains: u16, of each: blocks u32, of these counted as written u32; the hashes of all chains
///     blocks of the whole prefix: u32; positions are given: u8; if they are, of each block: u32
/// Times are microseconds since 1970.
std::string write_contexts(const std::vector<KeptContext>& contexts, const ClockPair& now);
/// A node that was away for longer comes back with its old contexts: some of these live longer than intended.
inline constexpr std::chrono::hours kAwayMax{30 * 24};
/// Reads a disk's file, which may be damaged or forged: everything is checked. A time in the future counts as now: the
/// clock was set back. Errors: kBadRequest; the text names field, value and the allowed values.
Result<ContextFile, Failure> read_contexts(std::string_view bytes, const ClockPair& now);

/// Twice the size that the bounds on contexts allow.
inline constexpr std::size_t kContextFileBytesMax = std::size_t{256} << 20;

}  // namespace kv
