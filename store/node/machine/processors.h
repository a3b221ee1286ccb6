// store/node/machine/processors.h: how many threads have a processor to run on here.
#pragma once

#include <cstddef>
#include <string>

#include "base/numa.h"
#include "store/node/machine/facts.h"

namespace kv {

struct ProcessorShare {
  std::size_t count = 1;
  std::string why;  ///< "the control group's quota is 0.50 of 64 processors"
};

/// The least of: the machine's processors, those of the affinity mask, those of `numa` among them, and the quota of the
/// control groups. A part of a processor counts as one: a thread more is preferred to a processor that is not used.
/// Further threads would use the quota up early in each period, and then all of them stand still.
ProcessorShare processor_share(const MachineFacts& facts, const NumaChoice& numa);

}  // namespace kv
