// Question: what does the longest prefix of 256 blocks cost in an index of ten million, and what does a block weigh?
// Budget: 10 ns a block, cold and warm, also after churn; 120 bytes a block.
//
// Prompts are 256 blocks; each thousand of them begin with the same 8 (a system prompt). "Cold" asks for random prompts
// out of 39,000, so that the index comes from memory; "warm" for the same 16. The hashes asked for are in cache, as
// after receiving them. KV_BENCH_BLOCKS sets another size.
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/assert.h"
#include "index/prefix_index.h"

namespace kv {
namespace {

constexpr std::size_t kPromptBlocks = 256;
constexpr std::size_t kSharedBlocks = 8;
constexpr std::size_t kPromptsPerSystemPrompt = 1000;

std::size_t prompt_count() {
  const char* env = std::getenv("KV_BENCH_BLOCKS");
  return (env ? std::stoull(env) : 10'000'000) / kPromptBlocks;
}

/// Block `i` of a prompt: a random number that needs no table.
BlockHash block_hash(std::size_t prompt, std::size_t i) {
  std::uint64_t state = i < kSharedBlocks ? prompt / kPromptsPerSystemPrompt : prompt + (std::uint64_t{1} << 40);
  state = state * kPromptBlocks + i;
  BlockHash hash;
  for (std::size_t word = 0; word < 4; ++word) {
    std::uint64_t z = (state * 4 + word + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    z ^= z >> 31;
    std::memcpy(hash.bytes.data() + 8 * word, &z, 8);
  }
  return hash;
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

enum Order : std::int64_t {
  kPromptByPrompt,  ///< As when one worker stores whole prompts.
  kInterleaved,     ///< One block of every prompt, then the next of every prompt, ...
  kChurned,         ///< Interleaved; then a fifth evicted and stored again interleaved, three times.
};

struct Filled {
  PrefixIndex index;
  TreeId tree = index.add_tree();
  std::uint64_t tick = 0;

  explicit Filled(Order order) {
    const std::size_t resident = resident_bytes();
    const std::size_t in_use = mallinfo2().uordblks + mallinfo2().hblkhd;
    auto start = std::chrono::steady_clock::now();
    if (order == kPromptByPrompt) {
      for (std::size_t prompt = 0; prompt < prompt_count(); ++prompt) complete(prompt, 0, kPromptBlocks);
    } else {
      add_interleaved();
    }
    std::fprintf(stderr, "insert: %.0f ns a block\n",
                 seconds_since(start) / static_cast<double>(index.block_count()) * 1e9);
    for (int round = 0; order == kChurned && round < 3; ++round) churn(round);
    const auto a_block = [&](std::size_t bytes) {
      return static_cast<double>(bytes) / static_cast<double>(index.block_count());
    };
    std::fprintf(stderr, "%zu blocks; bytes a block: %.1f counted, %.1f allocated, %.1f resident\n",
                 index.block_count(), a_block(index.memory_bytes()),
                 a_block(mallinfo2().uordblks + mallinfo2().hblkhd - in_use), a_block(resident_bytes() - resident));
  }

  /// Stores blocks [from, to) of a prompt, those that are not there yet.
  void complete(std::size_t prompt, std::size_t from, std::size_t to) {
    BlockHash hashes[kPromptBlocks];
    for (std::size_t i = 0; i < to; ++i) hashes[i] = block_hash(prompt, i);
    auto [count, last] = index.match(tree, {hashes, to});
    KV_ASSERT(count >= from);
    for (; count < to; ++count) {
      last = index.insert(tree, last, {hashes[count], SlotId{0}, static_cast<std::uint32_t>(count)}, Tick{++tick});
    }
  }

  void add_interleaved() {
    std::vector<BlockId> last(prompt_count(), kNoBlock);
    for (std::uint32_t i = 0; i < kPromptBlocks; ++i) {
      for (std::size_t prompt = 0; prompt < prompt_count(); ++prompt) {
        const BlockHash hash = block_hash(prompt, i);
        BlockId block = index.find_child(tree, last[prompt], hash);
        if (block == kNoBlock) block = index.insert(tree, last[prompt], {hash, SlotId{0}, i}, Tick{++tick});
        last[prompt] = block;
      }
    }
  }

  void churn(int round) {
    std::mt19937_64 random(static_cast<std::uint64_t>(round));
    const std::size_t evicted = index.block_count() / 5;
    for (std::size_t i = 0; i < prompt_count() / 2; ++i) {  // half of the prompts are used, and so stay
      BlockHash hashes[kPromptBlocks];
      const std::size_t prompt = random() % prompt_count();
      for (std::size_t k = 0; k < kPromptBlocks; ++k) hashes[k] = block_hash(prompt, k);
      index.touch(index.match(tree, hashes).last, Tick{++tick});
    }
    auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < evicted; ++i) index.remove_leaf_end(index.oldest_leaf_end());
    std::fprintf(stderr, "evict: %.0f ns a block\n", seconds_since(start) / static_cast<double>(evicted) * 1e9);
    add_interleaved();
  }
};

Filled& filled(Order order) {
  static std::unique_ptr<Filled> kept;
  static Order kept_order;
  if (!kept || kept_order != order) {
    kept.reset();
    malloc_trim(0);
    kept = std::make_unique<Filled>(order);
    kept_order = order;
  }
  return *kept;
}

/// Prompts asked for, a batch at a time: their hashes are in cache, and a batch is long enough for the clock.
class Batch {
 public:
  static constexpr std::size_t kPrompts = 32;

  void draw(std::size_t prompts) {
    for (std::size_t k = 0; k < kPrompts; ++k) {
      const std::size_t prompt = random_() % prompts;
      for (std::size_t i = 0; i < kPromptBlocks; ++i) hashes_[k * kPromptBlocks + i] = block_hash(prompt, i);
    }
  }
  std::span<const BlockHash> operator[](std::size_t k) const {
    return std::span(hashes_).subspan(k * kPromptBlocks, kPromptBlocks);
  }

 private:
  std::vector<BlockHash> hashes_ = std::vector<BlockHash>(kPrompts * kPromptBlocks);
  std::mt19937_64 random_{42};
};

template <class Ask>
void run(benchmark::State& state, std::size_t prompts, Ask ask) {
  Batch batch;
  for (auto _ : state) {
    state.PauseTiming();
    batch.draw(prompts);
    state.ResumeTiming();
    for (std::size_t k = 0; k < Batch::kPrompts; ++k) ask(batch[k]);
  }
  // Processor time, as others may be at work on the machine.
  state.counters["per_block"] =
      benchmark::Counter(static_cast<double>(state.iterations() * Batch::kPrompts * kPromptBlocks),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_Match256(benchmark::State& state) {
  Filled& filled_index = filled(static_cast<Order>(state.range(0)));
  run(state, state.range(1) ? prompt_count() : 16, [&](std::span<const BlockHash> hashes) {
    KV_ASSERT(filled_index.index.match(filled_index.tree, hashes).block_count == kPromptBlocks);
  });
}

// What a get does under the lock: the walk, the blocks' ids, a touch, a pin and an unpin of each block.
void BM_PinPrefix256(benchmark::State& state) {
  Filled& filled_index = filled(static_cast<Order>(state.range(0)));
  PrefixIndex& index = filled_index.index;
  std::vector<BlockId> blocks(kPromptBlocks);
  run(state, state.range(1) ? prompt_count() : 16, [&](std::span<const BlockHash> hashes) {
    const auto prefix = index.match(filled_index.tree, hashes);
    index.blocks_of(prefix, blocks);
    index.touch(prefix.last, Tick{++filled_index.tick});
    for (const BlockId block : blocks) index.pin(block);
    for (const BlockId block : blocks) index.unpin(block);
  });
}

// What a drop does under the lock to blocks that are on disk and in memory: the memory's copies pin the disk's entries.
// Deep: each block has a sibling, so there are as many edges above the last as blocks.
void BM_UnlinkPinned(benchmark::State& state) {
  const auto depth = static_cast<std::uint32_t>(state.range(0));
  for (auto _ : state) {
    state.PauseTiming();
    PrefixIndex index;
    const TreeId tree = index.add_tree();
    BlockId top = kNoBlock, last = kNoBlock;
    for (std::uint32_t i = 0; i < depth; ++i) {
      const BlockId above = last;
      last = index.insert(tree, above, {block_hash(0, i), SlotId{i}, i}, Tick{1});
      index.pin(last);
      if (i == 0) top = last;
      if (i > 0) index.pin(index.insert(tree, above, {block_hash(1, kSharedBlocks + i), SlotId{i}, i}, Tick{1}));
    }
    state.ResumeTiming();
    index.unlink_subtree(top, [&](BlockId gone) { index.unpin(gone); });
  }
  state.SetItemsProcessed(state.iterations() * (2 * std::int64_t{depth} - 1));
}
BENCHMARK(BM_UnlinkPinned)->Arg(1 << 10)->Arg(1 << 13)->Unit(benchmark::kMillisecond);

/// Registered in this order, so that each index is built once.
[[maybe_unused]] const bool is_registered = [] {
  for (const std::int64_t order : {kPromptByPrompt, kInterleaved, kChurned}) {
    for (const std::int64_t is_cold : {0, 1}) {
      const auto name = [&](const char* what) {
        constexpr const char* kOrders[] = {"/prompt_by_prompt", "/interleaved", "/churned"};
        return std::string(what) + kOrders[order] + (is_cold ? "/cold" : "/warm");
      };
      benchmark::RegisterBenchmark(name("BM_Match256").c_str(), BM_Match256)->Args({order, is_cold});
      benchmark::RegisterBenchmark(name("BM_PinPrefix256").c_str(), BM_PinPrefix256)->Args({order, is_cold});
    }
  }
  return true;
}();

}  // namespace
}  // namespace kv
