// tests/sim/sim_test.cc: many seeds of the simulated world.
//
//   KV_SIM_SEEDS=20000 build/release/tests/sim/sim_test     more seeds (default 1,000, from KV_SIM_FIRST on, default 1)
//   KV_SEED=17 build/release/tests/sim/sim_test             one seed again

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "tests/sim/sim_base.h"
#include "tests/sim/sim_world.h"

namespace kv::sim {
namespace {

TEST(SimTest, EverySeedKeepsTheInvariantsAndConverges) {
  std::uint64_t first = number_of("KV_SIM_FIRST", 1), count = number_of("KV_SIM_SEEDS", 1000);
  if (std::getenv("KV_SEED") != nullptr) first = number_of("KV_SEED", 1), count = 1;
  WorldOutcome total;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const WorldOutcome outcome = run_world(seed);
    ASSERT_EQ(outcome.failure, "") << "seed " << seed << "; again: KV_SEED=" << seed << " sim_test";
    total.calls += outcome.calls;
    total.hit_blocks += outcome.hit_blocks;
    total.stored_blocks += outcome.stored_blocks;
    total.missed_deadlines += outcome.missed_deadlines;
    total.corrupt_blocks += outcome.corrupt_blocks;
    total.evicted_blocks += outcome.evicted_blocks;
    total.spilled_blocks += outcome.spilled_blocks;
    total.disk_blocks_got += outcome.disk_blocks_got;
    total.rdma_packets += outcome.rdma_packets;
    total.kept_drops += outcome.kept_drops;
    total.set_blocks_got += outcome.set_blocks_got;
    total.set_blocks_stored += outcome.set_blocks_stored;
    total.set_blocks_too_long += outcome.set_blocks_too_long;
    total.set_conflicts += outcome.set_conflicts;
    total.set_groups_got += outcome.set_groups_got;
    total.kills += outcome.kills;
    total.stops += outcome.stops;
    total.audited_restarts += outcome.audited_restarts;
    total.kept_beside_drops += outcome.kept_beside_drops;
    total.freezes += outcome.freezes;
    total.breaks += outcome.breaks;
  }
  std::cout << count << " seeds from " << first << ": " << total.calls << " calls, " << total.hit_blocks
            << " blocks got, " << total.stored_blocks << " stored, " << total.evicted_blocks << " evicted, "
            << total.spilled_blocks << " spilled, " << total.disk_blocks_got << " asked for from disk, "
            << total.set_blocks_got << " blocks of sets got, " << total.set_blocks_stored << " stored, "
            << total.set_blocks_too_long << " too long for their rooms, " << total.set_conflicts << " conflicts, "
            << total.set_groups_got << " groups got, " << total.kept_drops << " drops kept, " << total.rdma_packets
            << " RDMA packets, " << total.missed_deadlines << " deadlines missed, " << total.corrupt_blocks
            << " corrupt blocks caught, " << total.kills << " kills, " << total.stops << " clean stops, "
            << total.audited_restarts << " audited restarts, " << total.kept_beside_drops
            << " looks at what stays beside drops, " << total.freezes << " freezes, " << total.breaks
            << " broken streams\n";
  if (count >= 200) {  // the faults do happen, and do not drown everything
    EXPECT_GT(total.hit_blocks, 0u);
    EXPECT_GT(total.evicted_blocks, 0u);
    EXPECT_GT(total.disk_blocks_got, 0u);
    EXPECT_GT(total.rdma_packets, 0u);
    EXPECT_GT(total.missed_deadlines, 0u);
    EXPECT_GT(total.corrupt_blocks, 0u);
    EXPECT_GT(total.kept_drops, 0u);
    EXPECT_GT(total.set_blocks_got, 0u);
    EXPECT_GT(total.set_blocks_stored, 0u);
    EXPECT_GT(total.set_blocks_too_long, 0u);
    EXPECT_GT(total.set_conflicts, 0u);
    EXPECT_GT(total.set_groups_got, 0u);
    EXPECT_GT(total.kills, 0u);
    EXPECT_GT(total.stops, 0u);
    EXPECT_GT(total.audited_restarts, 0u);
    EXPECT_GT(total.kept_beside_drops, 0u);
  }
}

TEST(SimTest, TheSameSeedGivesTheSameRun) {
  for (const std::uint64_t seed : {3u, 5u, 8u}) {
    const WorldOutcome once = run_world(seed), again = run_world(seed);
    EXPECT_EQ(once.trace_hash, again.trace_hash) << "seed " << seed;
    EXPECT_EQ(once.calls, again.calls) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kv::sim
