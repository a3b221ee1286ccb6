#include "gpu/plans/verified_plan.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "gpu/verified.h"

namespace kv {

Result<std::vector<VerifiedStep>> plan_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                                const VerifiedBlocks& verified, const Operation& operation,
                                                bool is_scatter, int vec_bytes_max, std::int64_t step_bytes) {
  const Layout& layout = blocks.layout;
  const std::int64_t block_bytes = dense_block_bytes(layout), tokens = layout.block_tokens;
  if (block_bytes == 0) return Errc::kMismatch;
  const bool has_arrays = verified.seeds && (is_scatter ? verified.expected && verified.verdicts : !!verified.sums);
  if (verified.block_count < 0 || verified.block_count > layout.block_count || !is_cut_evenly(rows, tokens) ||
      (verified.block_count > 0 && !has_arrays)) {
    return Errc::kBadRequest;
  }
  // The checksum and the scatter both read a step's blocks: few enough for the device's L2 cache.
  std::vector<VerifiedStep> steps;
  const std::int64_t each = std::max<std::int64_t>(1, step_bytes / block_bytes);
  for (std::int64_t first = 0; first < verified.block_count; first += each) {
    const std::int64_t count = std::min(each, verified.block_count - first);
    KV_ASSERT(count >= 1 && first + count <= layout.block_count);
    Operation moved = operation;
    if (moved.rotation.deltas) moved.rotation.deltas += first * tokens;
    const Rows page_rows = rows.after(first * tokens), block_rows = Rows::range(first * tokens);
    const auto plan = is_scatter ? make_plan(cache, page_rows, blocks, block_rows, count * tokens, moved)
                                 : make_plan(blocks, block_rows, cache, page_rows, count * tokens, moved);
    if (!plan) return Errc::kMismatch;
    VerifiedStep step{.checksum = {.blocks = blocks.bases.front() + first * block_bytes,
                                   .block_bytes = block_bytes,
                                   .block_count = count,
                                   .seeds = verified.seeds + first},
                      .launches = make_device_plans(*plan, vec_bytes_max)};
    const std::int64_t stripe = first * device::stripes_of(step.checksum);
    if (is_scatter) {
      step.checksum.expected = verified.expected + stripe;
      step.checksum.verdicts = verified.verdicts + first;
      // The scatter reads the verdicts of the checksum before it on the stream.
      for (DevicePlan& launch : step.launches) launch.verdicts = step.checksum.verdicts;
    } else {
      step.checksum.sums = verified.sums + stripe;
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace kv
