// client/tools/ctl/node_counts.h: values of a node's stats, by name.
#pragma once

#include <string_view>

#include "client/client.h"

namespace kv {

/// A value of a node, or `otherwise` if this node does not tell it.
double stat(const NodeStats& stats, std::string_view name, double otherwise = 0);
bool has_stat(const NodeStats& stats, std::string_view name);

/// Blocks that clients looked up at a node, and those of them that it had: the one meaning of "hit rate" everywhere,
/// that of the status page. A match looks up. A get asks for what a match has found, so its own share is near 1 always;
/// it counts only where nobody matches.
struct LookupCounts {
  double found = 0, asked = 0;
};
LookupCounts lookups_between(const NodeStats& before, const NodeStats& now);
inline LookupCounts lookups_since_start(const NodeStats& now) { return lookups_between({}, now); }

}  // namespace kv
