// store/replay/policy_run.h: a trace through a node's Store, in this process and without bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "index/reuse_hint.h"
#include "store/curve/hit_curve.h"
#include "store/policy/eviction_policy.h"
#include "store/replay/block_trace.h"

namespace kv {

struct PolicyRun {
  PolicyKind policy = PolicyKind::kLru;
  std::uint64_t capacity = 0;             ///< Blocks.
  std::size_t block_tokens = 512;         ///< After splitting.
  std::uint64_t seed = 0;                 ///< Of the blocks' names and of the Store, hence of its sample.
  std::span<const ReuseHint> hints = {};  ///< One per request, or empty.
  HitCurveConfig curve = {};
};

/// Each request is matched, then offered and stored, as by a worker that reuses hits and computes the rest. The Store
/// decides as for blocks of any size; these have 64 bytes, left unfilled, and adjoin. Its clock runs 5 ms per request.
/// `done` counts requests. `*curve` (may be nullptr) gets the final curve, if `run.curve` is on. Throws
/// std::runtime_error.
CacheTotals run_policy(const BlockTrace& trace, const PolicyRun& run, std::atomic<std::uint64_t>& done,
                       HitCurve::Report* curve = nullptr);

}  // namespace kv
