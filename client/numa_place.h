// client/numa_place.h: on which NUMA nodes the memory and the threads of a client lie.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/numa.h"
#include "base/result.h"
#include "transport/shared_memory.h"

namespace kv {

/// What a wish came to on this machine.
/// Nodes that are named must be there and be of use to this process; else that is an error, for a person to mend. The
/// node of a device is used as far as this process may: an engine names its accelerator without being asked, and must
/// start in every container. `why_not` says what is not done.
struct NumaPlace {
  NumaChoice choice;           ///< Empty: nothing is placed.
  std::size_t node_count = 0;  ///< Of this machine, with memory; 0: nobody wished for anything.
  std::string why_not = {};    ///< Why something that was wished for is not placed; empty: all of it is.

  bool is_anywhere() const { return choice.memory.empty() && choice.processors.empty(); }
};

/// `wish`: "" or "off" (nothing is placed, and nothing looked at); nodes, such as "1" or "0-1"; or "pci:0000:3b:00.0",
/// the node at which this PCI device is. Errors: a wish that is none of these, a node or device that is not there; the
/// text has the wish and what is allowed.
Result<NumaPlace, Failure> find_numa_place(const std::string& wish);
/// The same for a thread that may run on `allowed`, without trying it. Reads /sys and /proc below `root`.
Result<NumaPlace, Failure> choose_numa_place(const std::string& wish, const std::string& root,
                                             std::span<const unsigned> allowed);

/// SharedMemory::create(), with its pages in that place. On any thread, which stays as it is.
Result<std::unique_ptr<SharedMemory>> make_memory(const NumaPlace& place, std::size_t bytes);

/// Where a client's memory and threads are: what was asked for, and what came of it.
struct NumaStatus {
  NumaPlace place;
  /// Of its memory of Client::allocate(), by a sample: the share on other nodes than the chosen ones. Nothing: none was
  /// chosen, there is no memory yet, or a container's filter forbids to ask.
  std::optional<double> misplaced_ratio;
};

}  // namespace kv
