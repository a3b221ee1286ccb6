// Question: what share of memcpy does each layout reach on the host, when the store's blocks go into an engine's pages
// (scatter) and come back (gather)? Budget: 0.8 of one memcpy of the same bytes where both sides have contiguous runs
// of 256 bytes or more. Whole blocks to shuffled pages, as a prefix is loaded; and single tokens to shuffled slots
// (decode). 256 MiB a side, so that nothing is in cache. `share` is against memcpy, taken turn by turn with it.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "gpu/named_layouts.h"
#include "gpu/permute.h"
#include "gpu/verified.h"

namespace kv {
namespace {

constexpr std::int64_t kSideBytes = std::int64_t{256} << 20;
constexpr std::int64_t kBlockTokens = 16;

std::byte* touched_memory() {
  constexpr std::size_t kHugePage = 2 << 20;
  const std::size_t bytes = static_cast<std::size_t>(kSideBytes) + 2 * kHugePage;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  KV_ASSERT(memory != MAP_FAILED);
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return static_cast<std::byte*>(memory);
}

/// Memory for one side, in huge pages as arenas and engines' caches are, touched once.
std::byte* side(int which) {
  static std::byte* const sides[2] = {touched_memory(), touched_memory()};
  return sides[which];
}

/// Seconds of one memcpy of `bytes`, right now: on a shared machine a figure from a minute ago compares with nothing.
double memcpy_seconds(std::int64_t bytes) {
  const auto start = std::chrono::steady_clock::now();
  std::memcpy(side(0), side(1), static_cast<std::size_t>(bytes));
  benchmark::ClobberMemory();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

BoundLayout bind_to(const Layout& layout, int which) {
  std::vector<void*> tensors;
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < layout.tensor_count * (layout.has_all_layers_in_tensor ? 1 : layout.layer_count); ++i) {
    tensors.push_back(side(which) + offset);
    offset += layout.tensor_bytes(static_cast<int>(i % layout.tensor_count));
  }
  KV_ASSERT(offset <= kSideBytes + 4096);
  return bind_layout(layout, tensors).value();
}

using Make = Checked<Layout> (*)(const CacheShape&);

/// A cache of 8 heads of 128 bf16 in two layers that fills one side.
CacheShape filling_shape() {
  CacheShape shape{.block_tokens = kBlockTokens, .heads = 8, .key_size = 128, .layer_count = 2};
  shape.block_count = kSideBytes / (2 * 2 * kBlockTokens * 8 * 128 * 2);
  return shape;
}

enum Mode { kWholeBlocks, kSingleTokens };

void run(benchmark::State& state, const Layout& pages, bool is_scatter, Mode mode) {
  const BoundLayout cache = bind_to(pages, 0);
  const Layout blocks = layouts::store_block(pages, 1, pages.block_count).value();
  const BoundLayout store = bind_to(blocks, 1);
  std::mt19937_64 random(42);
  const std::int64_t rows = pages.slot_count();
  std::vector<std::int64_t> ids(static_cast<std::size_t>(mode == kWholeBlocks ? pages.block_count : rows));
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::shuffle(ids, random);
  const Rows where = mode == kWholeBlocks ? Rows::blocks(ids.data(), pages.block_tokens) : Rows::slots(ids.data());
  std::int64_t bytes = 0;
  for (const Component& each : pages.components) {
    bytes += rows * pages.layer_count * each.heads() * each.features() * element_bytes(each.element);
  }
  double plain_seconds = 0;
  double seconds = 0;
  for (auto _ : state) {
    plain_seconds += memcpy_seconds(bytes);
    const auto start = std::chrono::steady_clock::now();
    const auto moved = is_scatter ? scatter(cache, where, store, rows) : gather(store, cache, where, rows);
    KV_ASSERT(moved);
    benchmark::ClobberMemory();
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    seconds += took;
    state.SetIterationTime(took);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["share"] = plain_seconds / seconds;
}

/// The same with checksums: verified and scattered, or gathered and summed, block after block.
void run_verified(benchmark::State& state, const Layout& pages, bool is_scatter) {
  const BoundLayout cache = bind_to(pages, 0);
  const BoundLayout store = bind_to(layouts::store_block(pages, 1, pages.block_count).value(), 1);
  const std::int64_t bytes = layouts::store_block_bytes(store.layout) * pages.block_count;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(pages.block_count));
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::shuffle(ids, std::mt19937_64(42));
  const Rows where = Rows::blocks(ids.data(), pages.block_tokens);
  const std::vector<std::uint64_t> seeds(ids.size(), 7);
  std::vector<std::uint64_t> sums(ids.size() * stripe_count(static_cast<std::size_t>(bytes / pages.block_count)));
  KV_ASSERT(gather_with_checksums(store, cache, where, seeds, sums));
  double plain_seconds = 0;
  double seconds = 0;
  for (auto _ : state) {
    const auto before = std::chrono::steady_clock::now();
    const auto moved =
        is_scatter ? scatter(cache, where, store, pages.slot_count()) : gather(store, cache, where, pages.slot_count());
    KV_ASSERT(moved);
    const auto start = std::chrono::steady_clock::now();
    if (is_scatter) {
      KV_ASSERT(scatter_verified(cache, where, store, seeds, sums).value() == pages.block_count);
    } else {
      KV_ASSERT(gather_with_checksums(store, cache, where, seeds, sums));
    }
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    plain_seconds += std::chrono::duration<double>(start - before).count();
    seconds += took;
    state.SetIterationTime(took);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["share"] = plain_seconds / seconds;  // of the same call without checksums
}

struct Named {
  const char* name;
  Make make;
};
constexpr Named kLayouts[] = {{"L1_NHD", layouts::nhd},
                              {"L2_HND", layouts::hnd},
                              {"L3_joint_NHD", layouts::joint_nhd},
                              {"L4_joint_HND", layouts::joint_hnd},
                              {"L5_kv_first_NHD", layouts::kv_first_nhd},
                              {"L6_kv_first_HND", layouts::kv_first_hnd},
                              {"L7_packed_HND", layouts::packed_hnd},
                              {"L8_packed_NHD", layouts::packed_nhd},
                              {"L9_x_packed", layouts::x_packed},
                              {"L10_NZ", layouts::fractal_nz},
                              {"L15_slot_pool", layouts::slot_pool},
                              {"L16_cross_layer", layouts::cross_layer},
                              {"L19_batched", layouts::batched}};

CacheShape latent_shape(std::int64_t token_bytes) {
  CacheShape shape{.block_tokens = kBlockTokens, .key_size = 512, .value_size = 64, .layer_count = 2};
  shape.block_count = kSideBytes / (2 * kBlockTokens * token_bytes);
  return shape;
}

int register_all() {
  const auto add = [](const std::string& name, const Layout& layout) {
    for (const Mode mode : {kWholeBlocks, kSingleTokens}) {
      for (const bool is_scatter : {true, false}) {
        const std::string full =
            name + (mode == kWholeBlocks ? "/blocks" : "/tokens") + (is_scatter ? "/scatter" : "/gather");
        benchmark::RegisterBenchmark(
            full.c_str(), [layout, is_scatter, mode](benchmark::State& state) { run(state, layout, is_scatter, mode); })
            ->Unit(benchmark::kMillisecond)
            ->UseManualTime()
            ->Iterations(7);
      }
    }
  };
  for (const auto& [name, make] : kLayouts) add(name, make(filling_shape()).value());
  for (const bool is_scatter : {true, false}) {
    benchmark::RegisterBenchmark(is_scatter ? "L1_NHD/verified/scatter" : "L1_NHD/verified/gather",
                                 [is_scatter](benchmark::State& state) {
                                   run_verified(state, layouts::nhd(filling_shape()).value(), is_scatter);
                                 })
        ->Unit(benchmark::kMillisecond)
        ->UseManualTime()
        ->Iterations(7);
  }
  add("L11_MLA", layouts::mla(latent_shape(1152)).value());
  add("L12_MLA_split", layouts::mla_split(latent_shape(1152)).value());
  add("L13_ds_mla", layouts::ds_mla(latent_shape(656)).value());
  add("L14_indexer",
      layouts::indexer(
          {.block_count = kSideBytes / (2 * 64 * 132), .block_tokens = 64, .key_size = 128, .layer_count = 2})
          .value());
  return 0;
}
const int registered = register_all();

}  // namespace
}  // namespace kv
