#include "gpu/compress.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/assert.h"
#include "gpu/element.h"

namespace kv {
namespace {

/// One row of one component: a token's bytes, the mean of several, or the logarithm of their count.
void write_row(const PermutePlan& plan, const Part& part, std::int64_t layer, const KeepRow& row) {
  KV_ASSERT(row.slot >= 0 && row.slot < plan.to.slot_count && row.token_count >= 1);
  const auto bytes = static_cast<std::size_t>(element_bytes(part.to.element));
  std::byte* target = plan.to.base(layer, part.to.component) + part.to.row_offset(row.slot, plan.to.block_tokens);
  // Added to attention's scores, so that a mean of n tokens weighs as much as n tokens.
  if (part.role == Role::kLogCount) {
    const auto log = static_cast<float>(std::log(static_cast<double>(row.token_count)));
    std::memcpy(target, &log, sizeof log);
    return;
  }
  const std::byte* base = plan.from.base(layer, part.from.component) + part.from.head.offset(row.head);
  const auto token = [&](std::int64_t i) { return base + part.from.row_offset(row.token + i, plan.from.block_tokens); };
  if (row.token_count == 1) {
    const std::byte* only = token(0);
    for (std::int64_t f = 0; f < part.values; ++f) {
      std::memcpy(target + part.to.feature.offset(f), only + part.from.feature.offset(f), bytes);
    }
    return;
  }
  // In token order, in float and rounded once, as on a device: same bits; a sum in 16 bits would lose small terms.
  for (std::int64_t f = 0; f < part.values; ++f) {
    float sum = 0.0F;
    for (std::int64_t i = 0; i < row.token_count; ++i) {
      sum += decode_element(part.from.element, load_code(token(i) + part.from.feature.offset(f), part.from.element));
    }
    store_code(target + part.to.feature.offset(f), part.to.element,
               encode_element(part.to.element, sum / static_cast<float>(row.token_count)));
  }
}

/// Compared without sums: rows are unchecked, and token + token_count could overflow.
bool is_within(const PermutePlan& plan, const KeepRow& row) {
  if (row.slot < 0 || row.slot >= plan.to.slot_count || row.token < 0 || row.token_count < 1 || row.head < 0)
    return false;
  for (int i = 0; i < plan.part_count; ++i) {
    if (plan.parts[i].role != Role::kLogCount && row.head >= plan.parts[i].heads) return false;
  }
  return row.token_count <= plan.from.slot_count - row.token;
}

}  // namespace

Result<std::vector<KeepRow>> plan_keep_rows(const KeepRequest& request) {
  const std::size_t row_count = request.seq_lens.size() * static_cast<std::size_t>(request.head_count);
  const bool has_offsets = request.mode != KeepMode::kLast;
  if (request.windows.size() != row_count || request.first_slots.size() != row_count ||
      (has_offsets && request.offsets.size() != row_count)) {
    return Errc::kBadRequest;
  }
  std::vector<KeepRow> rows;
  std::int64_t start = 0;  // of the sequence, in the source
  for (std::size_t b = 0; b < request.seq_lens.size(); ++b) {
    const std::int32_t length = request.seq_lens[b];
    if (length < 0) return Errc::kBadRequest;
    for (std::int32_t head = 0; head < request.head_count; ++head) {
      const std::size_t i = b * static_cast<std::size_t>(request.head_count) + static_cast<std::size_t>(head);
      const std::int32_t window = request.windows[i];
      const bool is_whole = has_offsets && request.offsets[i] == -1;  // then the window is ignored
      if (!is_whole && (window < 0 || window > length)) return Errc::kBadRequest;
      std::int64_t slot = request.first_slots[i];
      // An unkept head.
      if (slot < 0) continue;
      const auto keep = [&](std::int32_t begin, std::int32_t end) {
        for (std::int32_t j = begin; j < end; ++j) rows.push_back({slot++, start + j, head, 1});
      };
      if (!has_offsets) {
        keep(length - window, length);
        continue;
      }
      const std::int32_t offset = request.offsets[i];
      if (is_whole || window == 0) {
        keep(0, length);
        continue;
      }
      // As a difference, since offset + window could overflow.
      if (offset < 0 || offset > length - window) return Errc::kBadRequest;
      keep(0, offset);
      if (request.mode == KeepMode::kMean) rows.push_back({slot++, start + offset, head, window});
      keep(offset + window, length);
    }
    start += length;
  }
  return rows;
}

Result<PermutePlan> make_keep_plan(const BoundLayout& cache, const BoundLayout& source) {
  PermutePlan plan;
  bool has_data = false;
  for (const Component& to : cache.layout.components) {
    Part part{.role = to.role, .heads = to.heads(), .values = to.features(), .to = place_of(cache.layout, to)};
    part.from = part.to;
    if (to.role == Role::kLogCount) {
      if (to.element != Element::kFp32) return Errc::kMismatch;
      part.from.component = -1;  // computed, not read
    } else {
      const Component* from = source.layout.find(to.role);
      if (!from || to.heads() != 1 || to.features() != from->features() || to.element != from->element)
        return Errc::kMismatch;
      // A slot of the cache has one head; each row names the source's head.
      part.heads = from->heads();
      part.from = place_of(source.layout, *from);
      has_data = true;
    }
    KV_ASSERT(plan.part_count < kRoleCount);
    plan.parts[plan.part_count++] = part;
  }
  if (!has_data || cache.layout.layer_count != source.layout.layer_count) return Errc::kMismatch;
  plan.to = bases_of(cache);
  plan.from = bases_of(source);
  plan.layer_count = cache.layout.layer_count;
  return plan;
}

Result<void> scatter_kept(const BoundLayout& cache, std::span<const KeepRow> rows, const BoundLayout& source) {
  const auto plan = make_keep_plan(cache, source);
  if (!plan) return plan.error();
  const bool has_means = std::ranges::any_of(rows, [](const KeepRow& row) { return row.token_count > 1; });
  for (int i = 0; has_means && i < plan->part_count; ++i) {
    const Element element = plan->parts[i].to.element;
    if (!is_number(element) || element == Element::kInt8) return Errc::kMismatch;
  }
  // All rows are checked first, so that a refused call writes nothing.
  if (!std::ranges::all_of(rows, [&](const KeepRow& row) { return is_within(*plan, row); })) return Errc::kBadRequest;
  for (std::int64_t layer = 0; layer < plan->layer_count; ++layer) {
    for (const KeepRow& row : rows) {
      for (int i = 0; i < plan->part_count; ++i) write_row(*plan, plan->parts[i], layer, row);
    }
  }
  return {};
}

}  // namespace kv
