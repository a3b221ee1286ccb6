// client/load.h: match, then get the found blocks, as one call.
#pragma once

#include <functional>

#include "client/client.h"

namespace kv {

struct LoadOptions {
  std::chrono::microseconds deadline;  ///< For both. No default: choose.
  /// With fewer matched blocks the get is skipped, since recomputing is cheaper. At least 1.
  std::size_t block_count_min = 1;
  std::span<const std::uint64_t> segment_ends = {};  ///< As in GetOptions.
  SegmentCallback on_segment = {};                   ///< As in GetOptions.
  bool memory_only = false;                          ///< As in GetOptions.
  std::span<std::uint64_t> checksums = {};           ///< As in GetOptions.
  ReuseHint reuse = ReuseHint::kNone;                ///< As in MatchOptions.
  CallControl control = {};
};
static_assert(std::is_trivially_destructible_v<LoadOptions>);

struct LoadResult {
  MatchResult match;
  GetResult get;  ///< Empty if too little was found.
};

/// Calls `on_match`, if there is one, between the two calls. The arguments must live until it has ended.
Async<LoadResult> load(Client& client, Space space, Hashes hashes, TargetBlocks blocks, LoadOptions options,
                       const std::function<void(const MatchResult&)>* on_match = nullptr);

}  // namespace kv
