// client/types/numa_place.h: the NUMA nodes of a client's memory and threads.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/numa.h"
#include "base/result.h"
#include "transport/shared_memory.h"

namespace kv {

/// The result of a placement wish on this machine. Nodes that are named must exist and be usable by this process;
/// otherwise it is an error for a person to fix. A device's node is used as far as allowed: engines name their
/// accelerator by default, and must start in every container. `why_not` has the rest.
struct NumaPlace {
  NumaChoice choice;           ///< Empty: no placement.
  std::size_t node_count = 0;  ///< Of this machine, with memory; 0: without a wish.
  std::string why_not = {};    ///< Why part of the wish is not placed; empty: all is.

  bool is_anywhere() const { return choice.memory.empty() && choice.processors.empty(); }
};

/// `wish`: "" or "off" (no placement and no checks); nodes, such as "1" or "0-1"; or "pci:0000:3b:00.0", the node of
/// this PCI device. Errors: any other wish, a missing node or device; the text has the wish and the allowed forms.
Result<NumaPlace, Failure> find_numa_place(const std::string& wish);
/// The same for a thread that may run on `allowed`, without trying it. Reads /sys and /proc below `root`.
Result<NumaPlace, Failure> choose_numa_place(const std::string& wish, const std::string& root,
                                             std::span<const unsigned> allowed);

/// SharedMemory::create(), with its pages in that place. On any thread, whose own placement is unchanged.
Result<std::unique_ptr<SharedMemory>> make_memory(const NumaPlace& place, std::size_t bytes);

/// Placement of a client's memory and threads: the wish and its result.
struct NumaStatus {
  NumaPlace place;
  /// A sample of Client::allocate() memory: the share on other nodes than the chosen ones. Empty: without a choice or
  /// memory, or if a container's filter forbids the check.
  std::optional<double> misplaced_ratio;
};

}  // namespace kv
