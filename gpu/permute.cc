#include "gpu/permute.h"

#include "base/assert.h"
#include "gpu/host/host_copy.h"
#include "gpu/host/host_rows.h"
#include "gpu/host/host_turn.h"

namespace kv {
namespace {

using Kind = Operation::Kind;

/// Calls that exceed the caches write past them. 4 MiB is about a core's share of a server's last cache.
constexpr double kStreamingBytes = 4 << 20;

bool has_row_beyond(const Rows& rows, std::int64_t row_count, std::int64_t slot_count) {
  if (row_count == 0) return false;
  // As a difference, since first + row_count could overflow.
  if (rows.kind == Rows::Kind::kRange) return rows.first < 0 || rows.first > slot_count - row_count;
  // Block ids are checked against the number of blocks: an id times its tokens might overflow.
  const std::int64_t step = rows.is_blocks() ? rows.block_tokens : 1;
  if (step < 1) return true;  // invalid blocks
  Rows ids = rows;
  if (rows.kind == Rows::Kind::kBlocks32) ids.kind = Rows::Kind::kSlots32;
  if (rows.kind == Rows::Kind::kBlocks64) ids.kind = Rows::Kind::kSlots64;
  const std::int64_t id_count = (row_count - 1) / step + 1;
  for (std::int64_t i = 0; i < id_count; ++i) {
    // Negative ids pass: they mean "skip" (padding, or a block that the engine gave up).
    if (ids.slot(i) >= slot_count / step) return true;
  }
  return false;
}

/// Bytes of a row, as a float: slots may repeat, so a call's sum is unbounded.
double part_bytes(const Part& part) {
  return static_cast<double>(part.heads * part.to.feature.extent() * element_bytes(part.to.element));
}

std::int64_t count_rows_of_one_turn(const Rotation& rotation, std::int64_t row, std::int64_t row_count) {
  if (!rotation.deltas) return row_count;
  std::int64_t count = 1;
  while (count < row_count && rotation.deltas[row + count] == rotation.deltas[row]) ++count;
  return count;
}

/// One component of one layer in rows [first, end) of a run.
void compute_rows(const PermutePlan& plan, const Part& part, std::int64_t layer, const TokenRun& run,
                  std::int64_t first, std::int64_t end, const TurnTable& turn, bool is_streaming) {
  const auto at = [&](const Bases& side, const Place& place, std::int64_t slot) -> std::byte* {
    return side.base(layer, place.component) + place.row_offset(slot, side.block_tokens);
  };
  if (!turn.is_identity && is_dense_turn(part, plan.operation.rotation)) {
    return turn_dense_rows(part, plan.operation.rotation, turn, end - first, at(plan.to, part.to, run.to_slot + first),
                           at(plan.from, part.from, run.from_slot + first), is_streaming);
  }
  // Quantising writes scales, dequantising reads them; a rotation of quantised keys does both.
  const bool has_scales = part.values_per_scale > 0;
  for (std::int64_t i = first; i < end; ++i) {
    const std::int64_t to_slot = run.to_slot + i, from_slot = run.from_slot + i;
    compute_row(part, plan.operation, turn, at(plan.to, part.to, to_slot), at(plan.from, part.from, from_slot),
                has_scales && part.kind != Kind::kDequantise ? at(plan.to, part.scales, to_slot) : nullptr,
                has_scales && part.kind == Kind::kDequantise ? at(plan.from, part.scales, from_slot)
                : has_scales && part.kind == Kind::kRotate   ? at(plan.from, part.from_scales, from_slot)
                                                             : nullptr);
  }
}

/// The host body: runs of rows outermost, so that slots are looked up once and one turn table serves all layers.
void run(const PermutePlan& plan) {
  double total_bytes = 0;
  bool has_copies = false;
  bool has_computed = false;
  for (int i = 0; i < plan.part_count; ++i) {
    total_bytes += part_bytes(plan.parts[i]) * static_cast<double>(plan.row_count * plan.layer_count);
    (plan.parts[i].kind == Kind::kCopy ? has_copies : has_computed) = true;
  }
  const HostStores stores = plan.operation.host_stores;
  const bool is_streaming =
      stores == HostStores::kAuto ? total_bytes >= kStreamingBytes : stores == HostStores::kStreaming;
  CopyNest nests[kRoleCount];
  std::int64_t nest_tokens = 0;  // token count that the nests were built for
  bool nest_is_whole = false;
  TurnTable turn;
  for (std::int64_t row = 0; row < plan.row_count;) {
    const TokenRun run = find_token_run(plan, row);
    KV_ASSERT(run.count >= 0 && run.count <= plan.row_count - row);
    if (run.count == 0) {
      ++row;
      continue;
    }
    // Most runs are as long as the previous one, so one set of copy loops serves many rows.
    if (has_copies && (run.count != nest_tokens || run.is_whole_block != nest_is_whole)) {
      for (int i = 0; i < plan.part_count; ++i) {
        if (plan.parts[i].kind == Kind::kCopy) nests[i] = make_copy_nest(plan.parts[i], run.count, run.is_whole_block);
      }
      nest_tokens = run.count;
      nest_is_whole = run.is_whole_block;
    }
    const std::int64_t next_row = row + run.count;
    // Prefetches the next block's first lines: the processor's prefetcher stops at pages.
    const std::int64_t next_slot = is_streaming && next_row < plan.row_count ? plan.from_rows.slot(next_row) : -1;
    for (std::int64_t layer = 0; has_copies && layer < plan.layer_count; ++layer) {
      for (int i = 0; i < plan.part_count; ++i) {
        const Part& part = plan.parts[i];
        if (part.kind != Kind::kCopy) continue;
        if (next_slot >= 0) {
          nests[i].prefetch(plan.from.base(layer, part.from.component) +
                            part.from.row_offset(next_slot, plan.from.block_tokens));
        }
        nests[i].copy(
            plan.to.base(layer, part.to.component) + part.to.row_offset(run.to_slot, plan.to.block_tokens),
            plan.from.base(layer, part.from.component) + part.from.row_offset(run.from_slot, plan.from.block_tokens),
            is_streaming);
      }
    }
    for (std::int64_t first = 0; has_computed && first < run.count;) {
      std::int64_t end = run.count;
      if (plan.operation.kind == Kind::kRotate) {
        fill_turn_table(turn, plan.operation.rotation, row + first);
        end = first + count_rows_of_one_turn(plan.operation.rotation, row + first, run.count - first);
      }
      for (std::int64_t layer = 0; layer < plan.layer_count; ++layer) {
        for (int j = 0; j < plan.part_count; ++j) {
          if (plan.parts[j].kind != Kind::kCopy)
            compute_rows(plan, plan.parts[j], layer, run, first, end, turn, is_streaming);
        }
      }
      first = end;
    }
    row += run.count;
  }
  // See finish_streaming(): without the fence, a reader that sees the call's end could read old bytes.
  if (is_streaming) finish_streaming();
}

std::optional<Flaw> find_uneven_axis(const PermutePlan& plan) {
  for (int i = 0; i < plan.part_count; ++i) {
    const Part& part = plan.parts[i];
    if (part.kind != Kind::kCopy) continue;
    const auto flaw = [&](const char* axis) {
      return Flaw{std::string(role_name(part.role)) + ": " + axis +
                  " axis: the two sides' digits do not divide one another"};
    };
    if (!is_expressible(part.to.feature, part.from.feature)) return flaw("feature");
    if (!is_expressible(part.to.head, part.from.head)) return flaw("head");
    // Blocks of different sizes go token by token, which every pair of layouts can express.
    if (plan.to.block_tokens == plan.from.block_tokens && !is_expressible(part.to.token, part.from.token)) {
      return flaw("token");
    }
  }
  return std::nullopt;
}

Result<void> check(const PermutePlan& plan) {
  if (find_uneven_axis(plan)) return Errc::kMismatch;
  if (plan.row_count < 0 || has_row_beyond(plan.to_rows, plan.row_count, plan.to.slot_count) ||
      has_row_beyond(plan.from_rows, plan.row_count, plan.from.slot_count)) {
    return Errc::kBadRequest;
  }
  return {};
}

}  // namespace

Result<void> check_permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from, const Rows& from_rows,
                           std::int64_t row_count, const Operation& operation) {
  const auto plan = make_plan(to, to_rows, from, from_rows, row_count, operation);
  if (!plan) return Errc::kMismatch;
  return check(*plan);
}

Result<void> permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from, const Rows& from_rows,
                     std::int64_t row_count, const Operation& operation) {
  const auto plan = make_plan(to, to_rows, from, from_rows, row_count, operation);
  if (!plan) return Errc::kMismatch;
  // Before the first byte: a refused call has moved nothing.
  const auto checked = check(*plan);
  if (!checked) return checked.error();
  run(*plan);
  return {};
}

Result<void> scatter(const BoundLayout& cache, const Rows& rows, const BoundLayout& source, std::int64_t row_count,
                     const Operation& operation) {
  return permute(cache, rows, source, Rows::range(), row_count, operation);
}

Result<void> gather(const BoundLayout& target, const BoundLayout& cache, const Rows& rows, std::int64_t row_count,
                    const Operation& operation) {
  return permute(target, Rows::range(), cache, rows, row_count, operation);
}

Result<void> relayout(const BoundLayout& to, std::span<const std::int64_t> to_blocks, const BoundLayout& from,
                      std::span<const std::int64_t> from_blocks, const Operation& operation) {
  KV_ASSERT(to_blocks.size() == from_blocks.size());
  const std::int64_t tokens = to.layout.block_tokens;
  if (from.layout.block_tokens != tokens) return Errc::kMismatch;
  return permute(to, Rows::blocks(to_blocks.data(), tokens), from, Rows::blocks(from_blocks.data(), tokens),
                 static_cast<std::int64_t>(to_blocks.size()) * tokens, operation);
}

Result<void> copy_blocks(const BoundLayout& cache, std::span<const std::int64_t> pairs) {
  KV_ASSERT(pairs.size() % 2 == 0);
  if (pairs.empty()) return {};
  const std::int64_t tokens = cache.layout.block_tokens;
  return permute(cache, Rows::blocks(pairs.data() + 1, tokens, 2), cache, Rows::blocks(pairs.data(), tokens, 2),
                 static_cast<std::int64_t>(pairs.size() / 2) * tokens);
}

Result<void> copy_blocks(const BoundLayout& cache, std::span<const std::int64_t> sources,
                         std::span<const std::int64_t> targets, std::span<const std::int64_t> ends) {
  KV_ASSERT(sources.size() == ends.size());
  std::int64_t last = 0;
  for (const std::int64_t end : ends) {
    if (end < last || end > static_cast<std::int64_t>(targets.size())) return Errc::kBadRequest;
    last = end;
  }
  const std::int64_t tokens = cache.layout.block_tokens;
  for (const bool is_check : {true, false}) {  // all checks first: a call with one refused part writes nothing
    std::int64_t start = 0;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      // Step 0: one source for all targets of its group.
      const auto done = (is_check ? check_permute : permute)(cache, Rows::blocks(targets.data() + start, tokens), cache,
                                                             Rows::blocks(&sources[i], tokens, 0),
                                                             (ends[i] - start) * tokens, Operation());
      if (!done) return done.error();
      start = ends[i];
    }
  }
  return {};
}

std::optional<Flaw> explain_mismatch(const Layout& to, const Layout& from, const Operation& operation) {
  // From layouts alone, without memory or rows, so that callers can ask before they allocate.
  auto plan = plan_parts(to, from, operation);
  if (!plan) return plan.error();
  plan->to.block_tokens = to.block_tokens;
  plan->from.block_tokens = from.block_tokens;
  return find_uneven_axis(*plan);
}

}  // namespace kv
