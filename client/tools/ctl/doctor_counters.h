// client/tools/ctl/doctor_counters.h: faults that a node's own counters show: its disk, damage, connections.
#pragma once

#include "client/client.h"
#include "client/tools/ctl/doctor.h"

namespace kv {

/// Counters count since the node's start, and the findings say so: a past fault is reported until the next start. One
/// finding for each alert of deploy/prometheus/kvstore.rules.yml that counters without a history can show.
Findings check_counters(const NodeStats& node);

}  // namespace kv
