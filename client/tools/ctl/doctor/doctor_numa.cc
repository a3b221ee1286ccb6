#include "client/tools/ctl/doctor/doctor.h"

#include <cstdlib>
#include <optional>

#include "client/tools/text_table.h"

namespace kv {
namespace {

/// A metric without labels.
std::optional<double> metric_in(std::string_view text, const std::string& name) {
  const std::string begin = name + " ";
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() < text.size() ? line.size() + 1 : line.size());
    if (line.starts_with(begin)) return std::strtod(std::string(line.substr(begin.size())).c_str(), nullptr);
  }
  return std::nullopt;
}

std::string percent(double share) { return format_number(100 * share, 0) + " %"; }

}  // namespace

Findings check_numa(std::string_view metrics) {
  constexpr double kMisplacedMax = 0.05, kUnevenMax = 1.25;
  const auto nodes = metric_in(metrics, "kvstore_numa_nodes");
  if (!nodes) return {};
  if (*nodes < 2) return {{"NUMA", Verdict::kOk, "one node of memory", ""}};
  const auto chosen = metric_in(metrics, "kvstore_arena_numa_nodes");
  const auto misplaced = metric_in(metrics, "kvstore_arena_numa_misplaced_ratio");
  const auto largest = metric_in(metrics, "kvstore_arena_numa_largest_ratio");
  std::string found = format_number(*nodes, 0) + " nodes of memory, blocks on ";
  found += !chosen || *chosen < 1 ? "whichever the kernel took" : format_number(*chosen, 0) + " of them in turns";
  if (!largest || !misplaced) {
    return {{"NUMA", Verdict::kNote, found + "; where they lie cannot be looked at",
             "a container's filter of system calls forbids move_pages: allow it, or trust numastat -p"}};
  }
  found += "; " + percent(*largest) + " lie on one node, " + percent(*misplaced) + " where they should not";
  if (*misplaced > kMisplacedMax) {
    return {
        {"NUMA", Verdict::kWarning, found,
         "a node of numa-nodes had no room left: less capacity, more nodes, or start this node before what fills it"}};
  }
  if (chosen && *chosen >= 1 && *largest * *chosen > kUnevenMax) {
    return {{"NUMA", Verdict::kWarning, found,
             "memory was short on the others: one node's memory is read by all processors, and is the bottleneck"}};
  }
  if ((!chosen || *chosen < 1) && *largest * *nodes > kUnevenMax) {
    return {
        {"NUMA", Verdict::kNote, found,
         "numa-nodes = \"auto\" spreads them, unless numactl or a container's filter is in the way: the node's log"}};
  }
  return {{"NUMA", Verdict::kOk, found, ""}};
}

}  // namespace kv
