#include "store/node/machine/processors.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

namespace kv {

ProcessorShare processor_share(const MachineFacts& facts, const NumaChoice& numa) {
  const auto processors = [](std::size_t count) { return fmt::format("{} processor{}", count, count == 1 ? "" : "s"); };
  const std::size_t all = std::max<std::size_t>({facts.machine_processor_count, facts.allowed_processors.size(), 1});
  ProcessorShare share{all, "the machine has " + processors(all)};
  const std::size_t allowed = facts.allowed_processors.size();
  if (allowed > 0 && allowed < share.count)
    share = {allowed, fmt::format("the affinity mask has {} of {}", allowed, processors(all))};
  if (!numa.processors.empty()) {
    const auto near = static_cast<std::size_t>(std::ranges::count_if(
        numa.processors, [&](unsigned each) { return std::ranges::binary_search(facts.allowed_processors, each); }));
    if (near < share.count)
      share = {std::max<std::size_t>(near, 1), fmt::format("numa-nodes has {} of {}", near, processors(all))};
  }
  if (facts.group_processors && *facts.group_processors < static_cast<double>(share.count)) {
    const double quota = std::max(*facts.group_processors, 0.0);
    share = {std::max<std::size_t>(static_cast<std::size_t>(std::ceil(quota)), 1),
             fmt::format("the control group's quota is {:.2f} of {}", quota, processors(all))};
  }
  return share;
}

}  // namespace kv
