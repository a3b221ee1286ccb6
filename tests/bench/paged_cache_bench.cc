// Question: what does a scheduler pay for its paged cache at every step: a hit of 512 blocks in a pool of 100,000
// pages, a decode step of 256 sequences, the plans for a batch of 256 sequences that share a system prompt? Budget: 100
// ns a block for the hit (names lie anywhere in memory), 100 ns a sequence for the decode step, 50 ns a block for a
// plan; a step of the model takes milliseconds.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/assert.h"
#include "gpu/paging/cascade_plan.h"
#include "gpu/paging/chunk_plan.h"
#include "gpu/paging/paged_cache.h"
#include "gpu/paging/shared_prefix_plan.h"

namespace kv {
namespace {

constexpr std::size_t kBlockSize = 16, kPageCount = 100'000;

std::vector<BlockName> random_names(std::mt19937_64& random, std::size_t count) {
  std::vector<BlockName> names(count);
  for (BlockName& name : names) {
    const std::uint64_t word = random();
    std::memcpy(name.hash.data(), &word, sizeof word);
  }
  return names;
}

void BM_FindPrefix(benchmark::State& state) {
  const auto block_count = static_cast<std::size_t>(state.range(0));
  std::mt19937_64 random(42);
  PagePool pool(kPageCount);
  PagedCache cache(pool, {.block_size = kBlockSize});
  std::vector<std::vector<BlockName>> prompts;
  while (pool.free_count() >= block_count) {
    prompts.push_back(random_names(random, block_count));
    cache.name_blocks(cache.open({}, block_count * kBlockSize).value(), prompts.back());
  }
  for (auto _ : state) {
    const auto& names = prompts[random() % prompts.size()];
    const CachedPrefix prefix = cache.find(names, block_count * kBlockSize + 1);
    KV_ASSERT(prefix.pages.size() == block_count);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_FindPrefix)->Arg(32)->Arg(512);

void BM_OpenAndClose(benchmark::State& state) {
  std::mt19937_64 random(42);
  PagePool pool(kPageCount);
  PagedCache cache(pool, {.block_size = kBlockSize});
  const auto names = random_names(random, 512);
  for (auto _ : state) {
    const SequenceId sequence = cache.open(cache.find(names, 512 * kBlockSize + 1), 512 * kBlockSize + 1).value();
    cache.name_blocks(sequence, names);
    cache.close(sequence);
  }
  state.SetItemsProcessed(state.iterations() * 512);
}
BENCHMARK(BM_OpenAndClose);

void BM_DecodeStep(benchmark::State& state) {
  PagePool pool(kPageCount);
  PagedCache cache(pool, {.block_size = kBlockSize});
  std::vector<SequenceId> sequences;
  for (int i = 0; i < 256; ++i) sequences.push_back(cache.open({}, 1000 + static_cast<std::size_t>(i)).value());
  for (auto _ : state) {
    for (const SequenceId sequence : sequences) {
      KV_ASSERT(cache.append(sequence, 1));
      const std::size_t count = cache.token_count(sequence);
      benchmark::DoNotOptimize(cache.slot_mapping(sequence, count - 1, count));
      if (count > 5000) KV_ASSERT(cache.crop(sequence, 1000));
    }
  }
  state.SetItemsProcessed(state.iterations() * 256);
}
BENCHMARK(BM_DecodeStep);

/// 256 sequences of 128 blocks: 8 system prompts of 64 blocks, and under each of them 8 documents of 32.
void BM_SharedPrefixPlans(benchmark::State& state) {
  std::mt19937_64 random(42);
  std::vector<std::vector<PlannedBlock>> blocks;
  std::vector<BlockName> system, document;
  std::size_t page_count = 1;
  for (int s = 0; s < 8; ++s) {
    system = random_names(random, 64);
    for (int d = 0; d < 8; ++d) {
      document = random_names(random, 32);
      for (int i = 0; i < 4; ++i) {
        auto names = system;
        names.insert(names.end(), document.begin(), document.end());
        const auto own = random_names(random, 31);
        names.insert(names.end(), own.begin(), own.end());
        std::vector<PageId> table;
        for (int b = 0; b < 128; ++b) table.push_back(page_at(page_count++));
        blocks.push_back(planned_blocks(table, names, 127 * kBlockSize + 3, kBlockSize));
      }
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  std::vector<PlannedSequence> batch;
  for (const auto& sequence : blocks) batch.push_back({sequence});
  for (auto _ : state) {
    const auto tree = plan_shared_prefixes(batch, {.block_size = kBlockSize});
    if (state.range(0) == 0) {
      KV_ASSERT(plan_cascade(*tree)->levels.size() == 3);
    } else {
      KV_ASSERT(plan_chunks(*tree)->shared_count() == 8 * 64 + 64 * 32);
    }
  }
  state.SetItemsProcessed(state.iterations() * 256 * 128);
}
BENCHMARK(BM_SharedPrefixPlans)->ArgName("chunks")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kv
