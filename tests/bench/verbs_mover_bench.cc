// Question: what does the mover take from a device's bandwidth, and add to its latency? Budget: a get of 16 blocks of
// 2 MiB at 0.9 of what ib_write_bw shows for as many queue pairs, a put at 0.9 of ib_read_bw. Run by
// tests/bench/rdma.sh, which has the comparison.
//
// KV_VERBS_TEST_DEVICES=NODE,CLIENT names the devices; without it there is nothing to measure.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "transport/verbs/verbs_choice.h"
#include "transport/verbs/verbs_module.h"
#include "transport/verbs/verbs_mover.h"

namespace kv::verbs {
namespace {

constexpr std::size_t kBlockBytes = 2 << 20, kBlocks = 16;

struct Side {
  Side(Provider& provider, const std::string& name, Access access)
      : device(provider.open(name).value()),
        attachment(attach(device->query().value(), std::nullopt).value()),
        domain(device->create_domain().value()),
        memory(kBlocks * kBlockBytes, std::byte{1}),
        region(domain->register_memory(memory, access).value()) {}
  std::unique_ptr<Device> device;
  Attachment attachment;
  std::unique_ptr<ProtectionDomain> domain;
  std::vector<std::byte> memory;
  std::unique_ptr<MemoryRegion> region;
};

/// `pair_count` movers on one thread and one completion queue, as in a session; the blocks are dealt out to them.
void run(benchmark::State& state, Direction direction, std::size_t block_bytes, std::size_t block_count,
         std::size_t pair_count) {
  const char* const named = std::getenv("KV_VERBS_TEST_DEVICES");
  const std::string devices = named ? named : "";
  const std::size_t comma = devices.find(',');
  if (comma == std::string::npos) return state.SkipWithError("KV_VERBS_TEST_DEVICES=NODE,CLIENT is not set");
  const auto provider = load_verbs();
  if (!provider) return state.SkipWithError(provider.error().text.c_str());

  asio::io_context io{1};
  SteadyClock clock;
  Side node(**provider, devices.substr(0, comma), {.local_write = true});
  Side client(**provider, devices.substr(comma + 1), {.local_write = true, .remote_write = true, .remote_read = true});
  CompletionLoop loop(io.get_executor(), node.device->create_completion_queue(1024).value());
  const auto client_queue = client.device->create_completion_queue(256).value();
  std::vector<std::unique_ptr<QueuePair>> pairs;
  std::vector<std::unique_ptr<VerbsMover>> movers;
  for (std::size_t i = 0; i < pair_count; ++i) {
    auto& mover = movers.emplace_back(VerbsMover::create(loop, clock, *node.domain, {}).value());
    auto& pair = pairs.emplace_back(
        client.domain->create_queue_pair(*client_queue, {.remote = {.remote_write = true, .remote_read = true}})
            .value());
    const auto ours = address_of(node.attachment, mover->queue_pair().number(), 1);
    const auto theirs = address_of(client.attachment, pair->number(), 2);
    KV_ASSERT(mover->queue_pair().connect(theirs, path_to(node.attachment, 1, theirs)));
    KV_ASSERT(pair->connect(ours, path_to(client.attachment, 2, ours)));
  }
  asio::co_spawn(io, loop.run(), asio::detached);

  std::vector<double> times_us;
  for (auto _ : state) {
    const TimePoint start = clock.now();
    std::size_t running = pair_count;
    error_code failure;
    for (std::size_t first = 0; first < pair_count; ++first) {
      std::vector<Stretch> stretches;
      for (std::size_t i = first; i < block_count; i += pair_count) {
        stretches.push_back({std::span(node.memory).subspan(i * kBlockBytes, block_bytes), node.region->lkey(),
                             reinterpret_cast<std::uintptr_t>(client.memory.data()) + i * kBlockBytes,
                             client.region->rkey()});
      }
      const std::size_t count = stretches.size();
      auto moving = movers[first]->move(direction, std::move(stretches), {count}, nullptr, start + 60s, {});
      asio::co_spawn(io, std::move(moving), [&](const std::exception_ptr&, Result<void> ended) {
        if (!ended) failure = ended.error();
        --running;
      });
    }
    while (running > 0) io.run_one();
    if (failure) return state.SkipWithError(failure.message().c_str());
    times_us.push_back(std::chrono::duration<double, std::micro>(clock.now() - start).count());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * block_bytes * block_count));
  const auto middle = times_us.begin() + static_cast<std::ptrdiff_t>(times_us.size() / 2);
  std::nth_element(times_us.begin(), middle, times_us.end());
  state.counters["p50_us"] = *middle;
  movers.clear();
  loop.stop();
  io.run();
}

void BM_Get(benchmark::State& state) {
  run(state, Direction::kToPeer, kBlockBytes, kBlocks, static_cast<std::size_t>(state.range(0)));
}
void BM_Put(benchmark::State& state) {
  run(state, Direction::kFromPeer, kBlockBytes, kBlocks, static_cast<std::size_t>(state.range(0)));
}
void BM_GetOne64KiB(benchmark::State& state) { run(state, Direction::kToPeer, 64 << 10, 1, 1); }
BENCHMARK(BM_Get)->ArgName("pairs")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Put)->ArgName("pairs")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_GetOne64KiB)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kv::verbs
