// client/tools/ctl/doctor_numa.h: whether a node's memory for blocks lies on the NUMA nodes where it should.
#pragma once

#include <string>
#include <string_view>

#include "client/tools/ctl/doctor.h"

namespace kv {

/// From the node's /metrics. Nothing where it tells of no NUMA nodes: an older node.
Findings check_numa(std::string_view metrics);

}  // namespace kv
