#include "store/node/counts_copy.h"

#include <algorithm>

namespace kv {

YieldCounts copy_counts(LockedStore& store, bool with_before) {
  YieldCounts counts;
  std::size_t class_count = 1;
  for (std::size_t first = 0; first < class_count; first += YieldTable::kSilentClasses) {
    const bool is_whole = store.with([&](Store& each) {
      const YieldTable* const table = each.yield_table();
      if (table == nullptr || (first > 0 && table->unit() != counts.unit)) return false;
      counts.unit = table->unit();
      counts.clock = each.age_clock();
      class_count = table->class_count();
      for (std::size_t i = first; i < std::min<std::size_t>(class_count, first + YieldTable::kSilentClasses); ++i) {
        const auto of_class = static_cast<std::uint32_t>(i);
        counts.classes.push_back(with_before ? table->with_before(of_class) : table->counts(of_class));
      }
      return true;
    });
    if (is_whole) continue;
    counts.unit = 0;
    counts.classes.clear();
    break;
  }
  return counts;
}

}  // namespace kv
