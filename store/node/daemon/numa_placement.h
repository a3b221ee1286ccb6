// store/node/daemon/numa_placement.h: the NUMA nodes of block memory, and the processors of the node's threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/numa.h"
#include "store/node/metrics.h"

namespace kv {

class LockedStore;

/// Thread safety: look() and values() from any thread.
class NumaPlacement {
 public:
  /// Chooses by `wish`, as choose_numa(), and binds the calling thread to the chosen processors; threads started later
  /// inherit the binding. nullptr: stderr says why the wish cannot be met.
  static std::unique_ptr<NumaPlacement> settle(const std::string& wish);

  const std::vector<unsigned>& memory() const { return choice_.memory; }  ///< Nodes of block memory, for numa.h.
  NumaLook look(LockedStore& store) const;                                ///< Takes some 0.2 ms.
  std::vector<NodeMetrics::Value> values(LockedStore& store) const;

 private:
  NumaPlacement(NumaTopology topology, NumaChoice choice);

  const NumaTopology topology_;
  const NumaChoice choice_;
};

}  // namespace kv
