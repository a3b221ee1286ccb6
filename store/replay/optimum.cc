#include "store/replay/optimum.h"

#include <algorithm>
#include <compare>
#include <vector>

namespace kv {
namespace {

constexpr std::uint32_t kNever = 0xFFFFFFFF;

/// For each reference, in order: the next request that uses the block.
std::vector<std::uint32_t> next_uses(const BlockTrace& trace) {
  std::vector<std::uint32_t> next(trace.reference_count());
  std::vector<std::uint32_t> later(trace.block_count(), kNever);
  std::vector<std::uint32_t> blocks;
  std::size_t end = next.size();
  for (std::size_t r = trace.request_count(); r-- > 0;) {
    trace.blocks_of(r, blocks);
    end -= blocks.size();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      next[end + i] = later[blocks[i]];
      later[blocks[i]] = static_cast<std::uint32_t>(r);
    }
  }
  return next;
}

struct Candidate {
  std::uint32_t next, depth, block;
  auto operator<=>(const Candidate&) const = default;  // the largest is evicted first
};

}  // namespace

CacheTotals optimum(const BlockTrace& trace, std::uint64_t capacity, std::atomic<std::uint64_t>& done) {
  const std::vector<std::uint32_t> next = next_uses(trace);
  std::vector<std::uint32_t> kept_until(trace.block_count(), kNever);  // the next use of each cached block
  std::vector<Candidate> heap;  // with stale entries of used or evicted blocks, which are skipped
  std::vector<std::uint32_t> blocks;
  std::vector<bool> is_new(trace.block_count());
  CacheTotals totals;
  std::uint64_t size = 0;
  const auto is_valid = [&](const Candidate& candidate) { return kept_until[candidate.block] == candidate.next; };
  for (std::size_t r = 0; r < trace.request_count(); ++r) {
    trace.blocks_of(r, blocks);
    // The cached part of a request is its prefix.
    for (const std::uint32_t block : blocks) {
      if (kept_until[block] == kNever) break;
      ++totals.hits;
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::uint32_t block = blocks[i], use = next[totals.references + i];
      if (kept_until[block] != kNever) --size;
      is_new[block] = kept_until[block] == kNever;
      kept_until[block] = use;
      if (use == kNever) continue;
      ++size;
      if (is_new[block]) ++totals.stored;
      heap.push_back({use, static_cast<std::uint32_t>(i), block});
      std::ranges::push_heap(heap);
    }
    totals.references += blocks.size();
    while (size > capacity) {
      std::ranges::pop_heap(heap);
      const Candidate last = heap.back();
      heap.pop_back();
      if (!is_valid(last)) continue;
      kept_until[last.block] = kNever;
      --size;
      if (is_new[last.block]) --totals.stored;  // it was never stored
    }
    for (const std::uint32_t block : blocks) is_new[block] = false;
    if (heap.size() > 2 * size + 4096) {
      std::erase_if(heap, [&](const Candidate& candidate) { return !is_valid(candidate); });
      std::ranges::make_heap(heap);
    }
    done.fetch_add(1, std::memory_order_relaxed);
  }
  return totals;
}

}  // namespace kv
