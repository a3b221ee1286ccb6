// gpu/paging/cascade_plan.h: a shared-prefix tree as page tables, level by level, in the form of cascade attention.
//
//   level 0    r0 r1 r2 r3 | 4 tokens         each level is one attention call over all queries of the batch; entry i
//   level 1    r0 r1 | 3   r2 r3 | 2          of a level is a group of neighbouring sequences that read the same pages
//   level 2    r0|1  r1|3  r2|2  r3|1         the last level alone is causal; results are merged
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "gpu/paging/shared_prefix_plan.h"

namespace kv {

/// Compressed rows, all int32 for the kernels. Entry i: queries [query_indptr[i], query_indptr[i + 1]) of the batch in
/// DFS order attend to pages page_indices[page_indptr[i] .. page_indptr[i + 1]), all full but the last, which has
/// last_page_tokens[i] tokens. An entry without pages (sequences without shared blocks on this level) has 0 there.
struct CascadeLevel {
  std::vector<std::int32_t> query_indptr{0};
  std::vector<std::int32_t> page_indptr{0};
  std::vector<std::int32_t> page_indices;
  std::vector<std::int32_t> last_page_tokens;
};

/// Every level's query_indptr ends at the number of queries; the last level has one entry for each sequence.
struct CascadePlan {
  std::vector<CascadeLevel> levels;
};

/// At most `level_count_max` levels, which cost a launch and a merge each: sequences read deeper shared blocks
/// separately. Errors: kUnsupported for a partial page inside a level's entry. Requires: level_count_max >= 1.
Result<CascadePlan> plan_cascade(const SharedPrefixTree& tree, std::size_t level_count_max = SIZE_MAX);

}  // namespace kv
