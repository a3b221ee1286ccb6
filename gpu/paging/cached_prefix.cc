#include "gpu/paging/cached_prefix.h"

#include <algorithm>
#include <numeric>

#include "base/assert.h"

namespace kv {
namespace {

/// Exact for any n: an endless window may be as long as the type allows.
std::size_t div_up(std::size_t n, std::size_t by) { return n / by + (n % by != 0); }

/// From the first block on, up to a missing one.
std::vector<PageId> find_run(const PagePool& pool, std::span<const BlockName> names) {
  std::vector<PageId> pages;
  for (const BlockName& name : names) {
    const auto page = pool.find(name);
    if (!page) break;
    pages.push_back(*page);
  }
  return pages;
}

/// From the last block back, until `needed` in a row are there, or the sequence's beginning is reached. The first
/// window found from the end is the longest prefix. Blocks behind it are cut off even if cached: one between them and
/// the window is missing. Blocks before it stay null pages, since they are never read.
std::vector<PageId> find_window(const PagePool& pool, std::span<const BlockName> names, std::size_t needed) {
  KV_ASSERT(needed > 0);  // or no run would ever be long enough
  std::vector<PageId> pages(names.size(), kNullPage);
  std::size_t run = 0;
  for (std::size_t i = names.size(); i-- > 0;) {
    const auto page = pool.find(names[i]);
    if (!page) {
      run = 0;
      continue;
    }
    pages[i] = *page;
    if (++run == needed) {
      pages.resize(i + run);
      return pages;
    }
  }
  pages.resize(run);
  return pages;
}

CachedPrefix find_up_to(const PagePool& pool, const GroupConfig& group, std::span<const BlockName> names) {
  CachedPrefix prefix;
  if (group.window_tokens == 0) {
    prefix.pages = find_run(pool, names);
  } else {
    prefix.pages = find_window(pool, names, window_block_count(group) + group.drops_last_block);
  }
  if (group.drops_last_block && !prefix.pages.empty()) prefix.pages.pop_back();
  prefix.token_count = prefix.pages.size() * group.block_size;
  return prefix;
}

/// The blocks that a prefix may include: not the last token's, which must be computed for its logits.
std::span<const BlockName> usable(const GroupConfig& group, std::span<const BlockName> names, std::size_t token_count) {
  const std::size_t count_max = token_count == 0 ? 0 : (token_count - 1) / group.block_size;
  return names.first(std::min(names.size(), count_max));
}

}  // namespace

std::size_t window_block_count(const GroupConfig& group) {
  KV_ASSERT(group.window_tokens > 0);
  return std::max<std::size_t>(1, div_up(group.window_tokens - 1, group.block_size));
}

CachedPrefix find_cached_prefix(const PagePool& pool, const GroupConfig& group, std::span<const BlockName> names,
                                std::size_t token_count) {
  return find_up_to(pool, group, usable(group, names, token_count));
}

std::vector<CachedPrefix> find_cached_prefix(const PagePool& pool, std::span<const GroupConfig> groups,
                                             std::span<const std::span<const BlockName>> names,
                                             std::size_t token_count) {
  KV_ASSERT(!groups.empty() && groups.size() == names.size());
  std::size_t step = 1, tokens_max = SIZE_MAX;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    step = std::lcm(step, groups[g].block_size);
    tokens_max = std::min(tokens_max, usable(groups[g], names[g], token_count).size() * groups[g].block_size);
  }
  // Any group may shorten the others' prefix, and a window that ends earlier needs other blocks: so all groups are
  // searched again until they agree. Each round but the last shortens the prefix, which ends the loop. A draft head is
  // offered one block beyond the agreed end and drops that one, or it would drop one more in each round.
  std::vector<CachedPrefix> prefixes(groups.size());
  std::size_t agreed = tokens_max / step * step;
  for (bool is_agreed = false; !is_agreed;) {
    is_agreed = true;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto known = usable(groups[g], names[g], token_count);
      const std::size_t count_max = agreed / groups[g].block_size + groups[g].drops_last_block;
      prefixes[g] = find_up_to(pool, groups[g], known.first(std::min(known.size(), count_max)));
      if (prefixes[g].token_count < agreed) {
        agreed = prefixes[g].token_count / step * step;
        is_agreed = false;
      }
    }
  }
  for (const CachedPrefix& prefix : prefixes) KV_ASSERT(prefix.token_count == agreed);
  return prefixes;
}

}  // namespace kv
