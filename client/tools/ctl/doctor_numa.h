// client/tools/ctl/doctor_numa.h: whether a node's memory for blocks lies on its proper NUMA nodes.
#pragma once

#include <string>
#include <string_view>

#include "client/tools/ctl/doctor.h"

namespace kv {

/// From the node's /metrics. Empty if they lack NUMA nodes, as on an older node.
Findings check_numa(std::string_view metrics);

}  // namespace kv
