// client/tools/ctl/node_counts.h: values of a node's stats, by name.
#pragma once

#include <string_view>

#include "client/client.h"

namespace kv {

/// A value of a node, or `otherwise` if the node does not report it.
double stat(const NodeStats& stats, std::string_view name, double otherwise = 0);
bool has_stat(const NodeStats& stats, std::string_view name);

/// Blocks that clients looked up at a node, and its hits: the meaning of "hit rate" everywhere. A match looks up; gets
/// request a match's hits, so their own share is near 1, and counts only in the absence of matches.
struct LookupCounts {
  double found = 0, asked = 0;
};
LookupCounts lookups_between(const NodeStats& before, const NodeStats& now);
inline LookupCounts lookups_since_start(const NodeStats& now) { return lookups_between({}, now); }

}  // namespace kv
