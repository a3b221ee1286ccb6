// tests/store/yield_counts.h: how much a YieldTable has counted of a class.
#pragma once

#include "store/policy/yield_table.h"

namespace kv {

/// Uses of all ages, or time.
inline double sum_of(const YieldTable::Counts& counts, bool of_time) {
  double sum = 0;
  for (const double each : of_time ? counts.time : counts.hits) sum += each;
  return sum;
}

}  // namespace kv
