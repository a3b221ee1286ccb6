// Question: what does the mover take from a device's bandwidth? Budget: a get of 16 blocks of 2 MiB at 0.9 of what
// ib_write_bw shows for one queue pair, a put at 0.9 of ib_read_bw. Run by tests/bench/rdma.sh, which has the
// comparison.
//
// KV_VERBS_TEST_DEVICES=NODE,CLIENT names the devices; without it there is nothing to measure.
#include <benchmark/benchmark.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/assert.h"
#include "base/clock.h"
#include "transport/verbs_choice.h"
#include "transport/verbs_module.h"
#include "transport/verbs_mover.h"

namespace kv::verbs {
namespace {

constexpr std::size_t kBlockBytes = 2 << 20, kBlocks = 16;

struct Side {
  Side(Provider& provider, const std::string& name, Access access)
      : device(provider.open(name).value()),
        attachment(attach(device->query().value(), std::nullopt, nullptr).value()),
        domain(device->create_domain().value()),
        memory(kBlocks * kBlockBytes, std::byte{1}),
        region(domain->register_memory(memory, access).value()) {}
  std::unique_ptr<Device> device;
  Attachment attachment;
  std::unique_ptr<ProtectionDomain> domain;
  std::vector<std::byte> memory;
  std::unique_ptr<MemoryRegion> region;
};

void run(benchmark::State& state, Direction direction, std::size_t block_bytes, std::size_t block_count) {
  const char* const named = std::getenv("KV_VERBS_TEST_DEVICES");
  const std::string devices = named ? named : "";
  const std::size_t comma = devices.find(',');
  if (comma == std::string::npos) return state.SkipWithError("KV_VERBS_TEST_DEVICES=NODE,CLIENT is not set");
  std::string why;
  const auto provider = load_verbs(&why);
  if (!provider) return state.SkipWithError(why.c_str());

  asio::io_context io{1};
  SteadyClock clock;
  Side node(**provider, devices.substr(0, comma), {.local_write = true});
  Side client(**provider, devices.substr(comma + 1), {.local_write = true, .remote_write = true, .remote_read = true});
  CompletionLoop loop(io.get_executor(), node.device->create_completion_queue(1024).value());
  const auto client_queue = client.device->create_completion_queue(256).value();
  auto mover = VerbsMover::create(loop, clock, *node.domain, {}).value();
  const auto pair =
      client.domain->create_queue_pair(*client_queue, {.remote = {.remote_write = true, .remote_read = true}}).value();
  const auto ours = address_of(node.attachment, mover->queue_pair().number(), 1);
  const auto theirs = address_of(client.attachment, pair->number(), 2);
  KV_ASSERT(mover->queue_pair().connect(theirs, path_to(node.attachment, 1, theirs)));
  KV_ASSERT(pair->connect(ours, path_to(client.attachment, 2, ours)));
  asio::co_spawn(io, loop.run(), asio::detached);

  for (auto _ : state) {
    std::vector<Stretch> stretches;
    for (std::size_t i = 0; i < block_count; ++i) {
      stretches.push_back({std::span(node.memory).subspan(i * kBlockBytes, block_bytes), node.region->lkey(),
                           reinterpret_cast<std::uintptr_t>(client.memory.data()) + i * kBlockBytes,
                           client.region->rkey()});
    }
    std::optional<Result<void>> result;
    auto moving = mover->move(direction, std::move(stretches), {block_count}, nullptr, clock.now() + 60s, {});
    asio::co_spawn(io, std::move(moving), [&](const std::exception_ptr&, Result<void> ended) { result = ended; });
    while (!result) io.run_one();
    if (!*result) return state.SkipWithError(result->error().message().c_str());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * block_bytes * block_count));
  mover.reset();
  loop.stop();
  io.run();
}

void BM_Get(benchmark::State& state) { run(state, Direction::kToPeer, kBlockBytes, kBlocks); }
void BM_Put(benchmark::State& state) { run(state, Direction::kFromPeer, kBlockBytes, kBlocks); }
void BM_GetOne64KiB(benchmark::State& state) { run(state, Direction::kToPeer, 64 << 10, 1); }
BENCHMARK(BM_Get)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Put)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_GetOne64KiB)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kv::verbs
