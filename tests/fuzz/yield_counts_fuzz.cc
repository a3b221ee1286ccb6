#include <string_view>

#include "base/assert.h"
#include "store/policy/combined_counts.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const auto counts = read_yield_counts({reinterpret_cast<const char*>(data), size});
  if (!counts) {
    KV_ASSERT(counts.error() == Errc::kBadRequest && counts.error().text.size() < 10000);
    return 0;
  }
  KV_ASSERT(counts->uses() <= kYieldUsesMax && counts->classes.size() <= YieldTable::kClassCount);
  // What was read can be added up, and learned from.
  CombinedCounts all;
  all.hear("a", *counts, 1000, TimePoint{1s});
  YieldCounts own;
  own.unit = 100;
  const auto combined = all.combine(own, TimePoint{2s});
  if (!combined) return 0;
  YieldTable table;
  table.set_unit(own.unit);
  table.use_hints();
  table.set_combined(combined);
  while (!table.learn_step()) {
  }
  for (std::uint32_t i = 0; i < YieldTable::kClassCount; ++i) {
    const double yield = table.yield(i, 1000);
    KV_ASSERT(yield >= 0 && yield < 1e30);  // and a number
  }
  return 0;
}
