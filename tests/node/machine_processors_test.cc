// The number of threads that have a processor to run on, and its reason.
#include "store/node/machine/processors.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace kv {
namespace {

MachineFacts facts_of(std::vector<unsigned> allowed, std::optional<double> quota) {
  MachineFacts facts;
  facts.machine_processor_count = 8;
  facts.allowed_processors = std::move(allowed);
  facts.group_processors = quota;
  return facts;
}

void expect_share(const MachineFacts& facts, const NumaChoice& numa, std::size_t count, const std::string& why) {
  const ProcessorShare share = processor_share(facts, numa);
  EXPECT_EQ(share.count, count);
  EXPECT_EQ(share.why, why);
}

TEST(ProcessorShareTest, TheSmallestOfMachineMaskNodesAndQuotaCounts) {
  const std::vector<unsigned> all = {0, 1, 2, 3, 4, 5, 6, 7};
  expect_share(facts_of(all, {}), {}, 8, "the machine has 8 processors");
  expect_share(facts_of(all, 8.0), {}, 8, "the machine has 8 processors");
  expect_share(facts_of({1, 3, 5}, {}), {}, 3, "the affinity mask has 3 of 8 processors");
  expect_share(facts_of({1, 3, 5}, 3.5), {}, 3, "the affinity mask has 3 of 8 processors");
  expect_share(facts_of({1, 3, 5}, 1.5), {}, 2, "the control group's quota is 1.50 of 8 processors");
  expect_share(facts_of(all, 0.5), {}, 1, "the control group's quota is 0.50 of 8 processors");
  expect_share(facts_of(all, 6.0), {.memory = {}, .processors = {4, 5, 6, 7}}, 4, "numa-nodes has 4 of 8 processors");
  expect_share(facts_of({0, 4}, {}), {.memory = {}, .processors = {4, 5}}, 1, "numa-nodes has 1 of 8 processors");
}

TEST(ProcessorShareTest, ThereIsAlwaysOneThread) {
  expect_share({}, {}, 1, "the machine has 1 processor");
  expect_share(facts_of({0, 1}, 0.001), {}, 1, "the control group's quota is 0.00 of 8 processors");
  expect_share(facts_of({0, 1}, {}), {.memory = {}, .processors = {6}}, 1, "numa-nodes has 0 of 8 processors");
}

}  // namespace
}  // namespace kv
