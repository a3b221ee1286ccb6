// Question: what does the checksum add to a copy of a 2 MiB block? Budget: a fused copy at 0.75 of a plain one.
// Blocks in random order out of 512 MiB a side, as in an arena; "hot" is one block again and again.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/checksum.h"

namespace kv {
namespace {

constexpr std::size_t kBlockBytes = 2 << 20;
constexpr std::size_t kBlocks = 256;

struct Memory {
  std::vector<std::byte> from = std::vector<std::byte>(kBlocks * kBlockBytes, std::byte{1});
  std::vector<std::byte> to = std::vector<std::byte>(kBlocks * kBlockBytes, std::byte{2});
  std::vector<std::uint64_t> sums = std::vector<std::uint64_t>(stripe_count(kBlockBytes));
  std::mt19937_64 random{42};

  static Memory& get() {
    static Memory memory;
    return memory;
  }
  std::span<std::byte> block(std::vector<std::byte>& bytes, bool is_hot) {
    return std::span(bytes).subspan(is_hot ? 0 : random() % kBlocks * kBlockBytes, kBlockBytes);
  }
};

template <class Work>
void run(benchmark::State& state, Work work) {
  Memory& memory = Memory::get();
  for (auto _ : state) {
    work(memory, memory.block(memory.from, state.range(0)), memory.block(memory.to, state.range(0)));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBlockBytes));
}

void BM_Memcpy(benchmark::State& state) {
  run(state, [](Memory&, auto from, auto to) { std::memcpy(to.data(), from.data(), from.size()); });
}
void BM_BlockChecksums(benchmark::State& state) {
  run(state, [](Memory& memory, auto from, auto) { block_checksums(7, from, memory.sums); });
}
void BM_CopyWithChecksums(benchmark::State& state) {
  run(state, [](Memory& memory, auto from, auto to) { copy_with_checksums(7, to, from, memory.sums); });
}
void BM_CopyThenChecksums(benchmark::State& state) {
  run(state, [](Memory& memory, auto from, auto to) {
    std::memcpy(to.data(), from.data(), from.size());
    block_checksums(7, to, memory.sums);
  });
}
BENCHMARK(BM_Memcpy)->ArgName("hot")->Arg(0)->Arg(1);
BENCHMARK(BM_BlockChecksums)->ArgName("hot")->Arg(0)->Arg(1);
BENCHMARK(BM_CopyWithChecksums)->ArgName("hot")->Arg(0)->Arg(1);
BENCHMARK(BM_CopyThenChecksums)->ArgName("hot")->Arg(0)->Arg(1);

}  // namespace
}  // namespace kv
