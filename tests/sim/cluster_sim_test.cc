// tests/sim/cluster_sim_test.cc: many seeds of a cluster whose nodes come and go: "a stale map costs misses
// and can do no harm".
//
//   KV_CLUSTER_SEEDS=3000 build/release/tests/sim/cluster_sim_test   more seeds (default 60, from KV_SIM_FIRST on, 1)
//   KV_SEED=17 build/release/tests/sim/cluster_sim_test              one seed again

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <iostream>

#include "tests/sim/cluster_world.h"
#include "tests/sim/sim_base.h"

namespace kv::sim {
namespace {

TEST(ClusterSimTest, EverySeedKeepsTheInvariantsAndAgreesInTheEnd) {
  std::uint64_t first = number_of("KV_SIM_FIRST", 1), count = number_of("KV_CLUSTER_SEEDS", 60);
  if (std::getenv("KV_SEED") != nullptr) first = number_of("KV_SEED", 1), count = 1;
  if (std::getenv("KV_SIM_LOG") == nullptr) spdlog::set_level(spdlog::level::off);  // many nodes, many lines
  ClusterOutcome total;
  std::uint64_t failed = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const ClusterOutcome outcome = run_cluster_world(seed);
    EXPECT_EQ(outcome.failure, "") << "seed " << seed << "; again: KV_SEED=" << seed << " cluster_sim_test";
    failed += !outcome.failure.empty();
    if (failed >= 10) break;
    total.calls += outcome.calls;
    total.hit_blocks += outcome.hit_blocks;
    total.stored_blocks += outcome.stored_blocks;
    total.moved_blocks += outcome.moved_blocks;
    total.copied_blocks += outcome.copied_blocks;
    total.hot_blocks += outcome.hot_blocks;
    total.epochs += outcome.epochs;
    total.joins += outcome.joins;
    total.leaves += outcome.leaves;
    total.kills += outcome.kills;
    total.power_losses += outcome.power_losses;
    total.cuts += outcome.cuts;
    total.etcd_outages += outcome.etcd_outages;
    total.etcd_losses += outcome.etcd_losses;
    total.lies += outcome.lies;
    total.made_up_entries += outcome.made_up_entries;
    total.bounded_gets += outcome.bounded_gets;
    total.exact_worlds += outcome.exact_worlds;
    total.audited_changes += outcome.audited_changes;
    total.audited_kills += outcome.audited_kills;
    total.kept_chains += outcome.kept_chains;
    total.excused_chains += outcome.excused_chains;
    total.hedges += outcome.hedges;
    total.hedge_wins += outcome.hedge_wins;
  }
  std::cout << count << " seeds from " << first << ", " << failed << " failed: " << total.calls << " calls, "
            << total.hit_blocks << " blocks got, " << total.stored_blocks << " stored, " << total.moved_blocks
            << " handed over, " << total.copied_blocks << " copied, " << total.hot_blocks << " hot at the end, "
            << total.epochs << " maps, " << total.joins << " joins, " << total.leaves << " leaves, " << total.kills
            << " kills, " << total.power_losses << " machines gone, " << total.cuts << " ways cut, "
            << total.etcd_outages << " outages of etcd, " << total.etcd_losses << " of its data, " << total.lies
            << " lives of liars, " << total.made_up_entries << " made-up entries, " << total.bounded_gets
            << " gets beside a dead node, " << total.exact_worlds << " worlds accounted for, " << total.audited_changes
            << " changes and " << total.audited_kills << " kills after which all was found, " << total.excused_chains
            << " of " << total.kept_chains << " chains in part only, since their hot roots had changed, "
            << total.hedges << " reads asked twice, " << total.hedge_wins << " answered by the second\n";
  if (count >= 60) {  // all of it does happen
    EXPECT_GT(total.hit_blocks, 0u);
    EXPECT_GT(total.moved_blocks, 0u);
    EXPECT_GT(total.copied_blocks, 0u);
    EXPECT_GT(total.hot_blocks, 0u);
    EXPECT_GT(total.leaves, 0u);
    EXPECT_GT(total.kills, 0u);
    EXPECT_GT(total.power_losses, 0u);
    EXPECT_GT(total.cuts, 0u);
    EXPECT_GT(total.etcd_outages, 0u);
    EXPECT_GT(total.etcd_losses, 0u);
    EXPECT_GT(total.lies, 0u);
    EXPECT_GT(total.made_up_entries, 0u);
    EXPECT_GT(total.bounded_gets, 0u);
    EXPECT_GT(total.exact_worlds, 0u);
    EXPECT_GT(total.audited_changes, 0u);
    EXPECT_GT(total.audited_kills, 0u);
    EXPECT_GT(total.hedge_wins, 0u);
    EXPECT_LT(total.excused_chains * 8, total.kept_chains);  // what is excused must not become the rule
  }
}

TEST(ClusterSimTest, TheSameSeedOfAClusterGivesTheSameRun) {
  for (const std::uint64_t seed : {2u, 7u}) {
    const ClusterOutcome once = run_cluster_world(seed), again = run_cluster_world(seed);
    EXPECT_EQ(once.trace_hash, again.trace_hash) << "seed " << seed;
    EXPECT_EQ(once.calls, again.calls) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kv::sim
