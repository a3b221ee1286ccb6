// Question: what does hashing 4,096 tokens as a chain of blocks add to the SHA-256 of those bytes? Budget: 1.3 times.
//
// A block of 16 tokens is a message of 96 bytes, which SHA-256 pads to two compressions of 64 bytes: the same bytes are
// hashed once as those messages one by one (Messages) and once as 128-byte blocks in one stream (Compressed).
#include <benchmark/benchmark.h>

#include <vector>

#include "index/block_hash.h"

namespace kv {
namespace {

constexpr std::size_t kTokens = 4096;

void BM_HashChain(benchmark::State& state) {
  const std::vector<std::uint32_t> tokens(kTokens, 7);
  for (auto _ : state) benchmark::DoNotOptimize(hash_chain({}, tokens, static_cast<std::size_t>(state.range(0))));
}
BENCHMARK(BM_HashChain)->ArgName("block_size")->Arg(16)->Arg(64)->Arg(512);

void BM_Sha256Messages(benchmark::State& state) {
  const std::size_t message_bytes = 32 + 4 * static_cast<std::size_t>(state.range(0));
  const std::vector<std::byte> message(message_bytes);
  for (auto _ : state) {
    for (std::size_t i = 0; i < kTokens / static_cast<std::size_t>(state.range(0)); ++i) {
      benchmark::DoNotOptimize(sha256(message));
    }
  }
}
BENCHMARK(BM_Sha256Messages)->ArgName("block_size")->Arg(16)->Arg(64)->Arg(512);

void BM_Sha256Compressed(benchmark::State& state) {
  const std::size_t block_size = static_cast<std::size_t>(state.range(0));
  const std::vector<std::byte> bytes(kTokens / block_size * ((32 + 4 * block_size + 9 + 63) / 64 * 64));
  for (auto _ : state) benchmark::DoNotOptimize(sha256(bytes));
}
BENCHMARK(BM_Sha256Compressed)->ArgName("block_size")->Arg(16)->Arg(64)->Arg(512);

}  // namespace
}  // namespace kv
