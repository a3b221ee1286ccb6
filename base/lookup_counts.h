// base/lookup_counts.h: what "hit rate" means, everywhere.
#pragma once

#include <algorithm>

namespace kv {

/// Blocks that clients looked up at a node, by where they were.
struct LookedUp {
  double memory = 0, disk = 0, missed = 0;

  double found() const { return memory + disk; }
  double asked() const { return found() + missed; }
};

/// A node's counters since its start. A match looks up; gets count only where nobody matches, since a get asks for the
/// blocks that a match has just found.
struct LookupCounts {
  LookedUp match, get;
};

/// After a restart of the node, which resets its counters, a difference is 0.
inline LookedUp lookups_between(const LookupCounts& before, const LookupCounts& now) {
  const auto made = [](const LookedUp& from, const LookedUp& to) {
    return LookedUp{std::max(0.0, to.memory - from.memory), std::max(0.0, to.disk - from.disk),
                    std::max(0.0, to.missed - from.missed)};
  };
  const LookedUp matches = made(before.match, now.match);
  return matches.asked() > 0 ? matches : made(before.get, now.get);
}

}  // namespace kv
