// gpu/host/host_copy.h: the copying body of permute() on the host: one component's bytes, for a run of tokens at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/plans/permute_plan.h"

namespace kv {

/// The loops that copy consecutive tokens. The run is contiguous on both sides; the least target step is innermost.
struct CopyNest {
  struct Loop {
    std::int64_t extent = 1;
    std::int64_t to_stride = 0;
    std::int64_t from_stride = 0;
  };
  static constexpr std::int64_t kPrefetchBytes = 4096;
  static constexpr int kLoopsMax = 9;  // three axes of two digits a side, which cut each other into three

  std::int64_t run_bytes = 0;
  int loop_count = 0;
  Loop loops[kLoopsMax];

  /// `is_streaming`: past the caches, with prefetches of the source kPrefetchBytes ahead.
  void copy(std::byte* to, const std::byte* from, bool is_streaming) const;
  /// Prefetches the next run's first bytes during this run's copy.
  void prefetch(const std::byte* from) const;
  std::int64_t source_bytes() const;  ///< From the first byte read to the last.
};

/// Orders streaming copies before the caller's later stores, which a release does not.
void finish_streaming();

/// Whether the two axes' digits cut one another evenly, so that loops can express the pair.
bool is_expressible(const Axis& to, const Axis& from);

/// Requires is_expressible() for all axes. Tokens lie within one low digit, or are whole blocks (`is_whole_block`).
CopyNest make_copy_nest(const Part& part, std::int64_t token_count, bool is_whole_block);

/// A run of any size. `stream_end` is null, or the end of the source: then stores are streaming. They bypass the caches
/// and save reading the target's lines first, as memcpy does itself for single calls of many megabytes only.
void copy_run(std::byte* to, const std::byte* from, std::int64_t bytes, const std::byte* stream_end);

/// Number of rows from `row` on that are one nest, at least 1; 0 if the row is skipped.
struct TokenRun {
  std::int64_t count = 0;
  std::int64_t to_slot = 0;
  std::int64_t from_slot = 0;
  bool is_whole_block = false;
};
TokenRun find_token_run(const PermutePlan& plan, std::int64_t row);

}  // namespace kv
