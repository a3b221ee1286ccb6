#include "store/node/daemon/numa_placement.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <utility>

#include "store/node/daemon/cannot_start.h"
#include "store/node/locked_store.h"

namespace kv {
namespace {

constexpr std::size_t kPagesLookedAt = 1024;  ///< Of the arena, to see which NUMA node they are on: 0.2 ms.

/// nullopt: stderr says why.
std::optional<NumaChoice> settle_on_nodes(const NumaTopology& topology, const std::string& wish) {
  const auto refuse = [](const std::string& why) {
    cannot_start("numa-nodes: " + why);
    return std::nullopt;
  };
  auto choice = choose_numa(topology, wish);
  if (!choice) return refuse(choice.error().text);  // the machine has changed since the options were read
  if (wish == "auto" && !choice->memory.empty() && has_memory_policy()) {
    spdlog::info("numa: memory lies where numactl, or what started this node, has said");
    choice->memory.clear();
  }
  if (!choice->processors.empty()) {
    if (const error_code why = keep_to_processors(choice->processors))
      return refuse("their processors " + number_list_text(choice->processors) + " may not be used: " + why.message());
  }
  if (const MemoryPlacement trial(choice->memory); trial.error()) {
    if (wish != "auto") return refuse("memory may not be placed: " + trial.error().message());
    spdlog::warn("numa: blocks are not spread over the nodes: {}", trial.error().message());
    choice->memory.clear();
  }
  if (!choice->memory.empty()) {
    spdlog::info("numa: blocks lie on nodes {} in turns; threads keep to {}", number_list_text(choice->memory),
                 choice->processors.empty() ? "no processors in particular"
                                            : "processors " + number_list_text(choice->processors));
  }
  return *std::move(choice);
}

}  // namespace

NumaPlacement::NumaPlacement(NumaTopology topology, NumaChoice choice)
    : topology_(std::move(topology)), choice_(std::move(choice)) {}

std::unique_ptr<NumaPlacement> NumaPlacement::settle(const std::string& wish) {
  NumaTopology topology = NumaTopology::read();
  std::optional<NumaChoice> choice = settle_on_nodes(topology, wish);
  if (!choice) return nullptr;
  return std::unique_ptr<NumaPlacement>(new NumaPlacement(std::move(topology), *std::move(choice)));
}

NumaLook NumaPlacement::look(LockedStore& store) const {
  NumaLook look{.node_count = topology_.with_memory().size(), .chosen = choice_.memory, .spread = std::nullopt};
  if (look.node_count < 2) return look;
  const auto memory = store.with([](Store& each) { return each.memory(); });
  if (auto spread = look_where_pages_lie(memory, kPagesLookedAt)) look.spread = *std::move(spread);
  return look;
}

std::vector<NodeMetrics::Value> NumaPlacement::values(LockedStore& store) const {
  const NumaLook look = this->look(store);
  std::vector<NodeMetrics::Value> values = {
      {"numa_nodes", look.node_count, false, "NUMA nodes of this machine that have memory"}};
  if (look.node_count < 2) return values;
  values.push_back({"arena_numa_nodes", look.chosen.size(), false,
                    "Of them, those that memory for blocks was asked of; 0: the kernel places it"});
  if (const auto share = look.largest_share())
    values.push_back({"arena_numa_largest_ratio", *share, false,
                      "Share of the memory for blocks on the node that has most of it, by a sample"});
  if (const auto share = look.misplaced_share())
    values.push_back(
        {"arena_numa_misplaced_ratio", *share, false, "Share of it on nodes that it was not asked of, by a sample"});
  return values;
}

}  // namespace kv
