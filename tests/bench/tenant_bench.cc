// Question: what does telling tenants apart add to a put that has to evict? Budget: nothing where it is off; where it
// is on at most 1.25 of that, with one tenant or a thousand.
//
// All stores have as many namespaces, each used in turn, and are full. Only what is kept of the blocks is there: the
// arena is address space that nobody touches. Time is the thread's own processor time. Learning is between requests,
// and not counted (kv_bench_policy_cost).
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/store.h"

namespace kv {
namespace {

constexpr std::size_t kBlockBytes = 64 << 10, kBlocks = 64 << 10, kChainBlocks = 16;

std::vector<BlockHash> chain_of(std::mt19937_64& random) {
  std::vector<BlockHash> hashes(kChainBlocks);
  for (BlockHash& hash : hashes) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint64_t word = random();
      std::memcpy(hash.bytes.data() + 8 * i, &word, 8);
    }
  }
  return hashes;
}

/// One put of 16 blocks, and the eviction of 16. Arguments: tenants, told apart or not, policy.
void BM_PutWhenFull(benchmark::State& state) {
  const auto tenant_count = static_cast<std::size_t>(state.range(0));
  StoreConfig config;
  config.arena.capacity_bytes = kBlockBytes * kBlocks;
  config.arena.touch = false;
  config.arena.huge_pages = false;
  config.has_tenants = state.range(1) != 0;
  config.policy = static_cast<PolicyKind>(state.range(2));
  config.curve.is_on = false;
  const auto store = Store::create(config).value();
  std::vector<TenantLimits> limits;
  std::vector<SpaceId> spaces;
  for (std::size_t i = 0; i < tenant_count; ++i) {
    const std::string name = "t" + std::to_string(i);
    // Half of memory is guaranteed, so all of them are over their guarantees, and cross them when they are evicted.
    limits.push_back({.name = name, .memory_bytes = kBlockBytes * kBlocks / tenant_count / 2});
    const auto record =
        NamespaceRecord::from_fields(
            {{"model", "m"}, {"tenant", name}, {"block_bytes", std::to_string(kBlockBytes)}, {"block_size", "16"}})
            .value();
    spaces.push_back(store->open(record).value());
  }
  if (config.has_tenants) store->set_tenants(limits);
  std::mt19937_64 random(42);
  const std::vector<std::uint64_t> sums(stripe_count(kBlockBytes));
  TimePoint now{std::chrono::seconds(1)};
  std::size_t next = 0;
  const auto put = [&](const std::vector<BlockHash>& hashes) {
    now += std::chrono::microseconds(1);
    auto plan = store->offer(spaces[next++ % spaces.size()], hashes, {.session = SessionId{1}}, now).value();
    const PutId id = plan.put;
    for (;;) {
      for (std::size_t i = 0; i < plan.incoming.size(); ++i) store->commit(id, sums, now);
      if (!plan.again) break;
      plan = store->offer_more(id, now).value();
    }
    store->end_put(id);
  };
  const auto learn = [&] {  // a node's timer does, between requests
    while (store->learn()) {
    }
  };
  for (std::size_t i = 0; i < 2 * kBlocks / kChainBlocks; ++i) {
    put(chain_of(random));
    learn();
  }
  std::vector<std::vector<BlockHash>> chains;
  std::size_t at = 0;
  for (auto _ : state) {
    if (at == chains.size()) {
      state.PauseTiming();
      learn();
      chains.clear();
      for (int i = 0; i < 1024; ++i) chains.push_back(chain_of(random));
      at = 0;
      state.ResumeTiming();
    }
    put(chains[at++]);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kChainBlocks));
}
BENCHMARK(BM_PutWhenFull)
    ->ArgNames({"tenants", "apart", "policy"})
    ->ArgsProduct({{1, 16, 256, 1000},
                   {0, 1},
                   {static_cast<int>(PolicyKind::kLru), static_cast<int>(PolicyKind::kYield)}});

}  // namespace
}  // namespace kv
