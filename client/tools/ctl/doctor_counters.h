// client/tools/ctl/doctor_counters.h: what a node's own counters say is wrong with it: its disk, damage, connections.
#pragma once

#include "client/client.h"
#include "client/tools/ctl/doctor.h"

namespace kv {

/// Counters count since the node's start, and the findings say so: what was wrong once is told until the next start.
/// One finding for each alert of deploy/prometheus/kvstore.rules.yml that a node's counters can tell without a history.
Findings check_counters(const NodeStats& node);

}  // namespace kv
