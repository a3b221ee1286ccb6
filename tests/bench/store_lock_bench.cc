// Question: how long is the Store's lock held at most, by one call, when blocks of a second size arrive in a full
// arena, when a large namespace is dropped, and when many leases end? Budget: 200 us, whatever the size of the arena
// and the number of leases.
//
// Only what is kept of the blocks is there: the arena is address space that nobody touches. A call's time is the
// thread's own processor time, so that a busy machine does not count.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/store.h"

namespace kv {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30, kMiB = std::size_t{1} << 20;
constexpr std::size_t kChainBlocks = 64;
constexpr std::size_t kOldBytes = kMiB, kNewBytes = 4 * kMiB;

double thread_seconds() {
  timespec now{};
  KV_ASSERT(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::vector<BlockHash> chain(std::uint64_t name) {
  std::mt19937_64 random(name);
  std::vector<BlockHash> hashes(kChainBlocks);
  for (BlockHash& hash : hashes) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint64_t word = random();
      std::memcpy(hash.bytes.data() + 8 * i, &word, 8);
    }
  }
  return hashes;
}

NamespaceRecord record_of(std::size_t block_bytes) {
  return NamespaceRecord::from_fields(
             {{"model", "m"}, {"block_bytes", std::to_string(block_bytes)}, {"block_size", "16"}})
      .value();
}

/// A Store full of blocks of one size.
class Full {
 public:
  Full(std::size_t capacity_bytes, std::size_t lease_count, bool has_disk = false) {
    StoreConfig config;
    if (has_disk) config.disk.capacity_bytes = 4 * capacity_bytes;
    config.arena.capacity_bytes = capacity_bytes;
    config.arena.touch = false;
    config.arena.huge_pages = false;
    config.lease_duration = std::chrono::hours(24);
    config.lease_count_per_session_max = 65536;
    config.leased_fraction_max = 1;
    store_ = Store::create(config).value();
    old_ = store_->open(record_of(kOldBytes)).value();
    chain_count_ = capacity_bytes / kOldBytes / kChainBlocks;
    for (std::uint64_t name = 0; name < chain_count_; ++name) put(old_, name, kOldBytes);
    // Of the younger half, so that there is something to evict.
    std::mt19937_64 random(42);
    for (std::size_t i = 0; i < lease_count; ++i) {
      const auto hashes = chain(chain_count_ / 2 + random() % (chain_count_ - chain_count_ / 2));
      const std::size_t length = 1 + random() % kChainBlocks;
      const auto match =
          store_->match(old_, std::span(hashes).first(length), {.session = SessionId{1}, .lease = true}, now());
      KV_ASSERT(match && match->lease != LeaseId{});
    }
    longest_ = total_ = 0;
    call_count_ = 0;
  }

  TimePoint now() { return now_ += std::chrono::microseconds(1); }
  Store& store() { return *store_; }
  SpaceId old() const { return old_; }
  std::uint64_t chain_count() const { return chain_count_; }

  template <class Call>
  auto timed(Call&& call) {
    struct Stop {
      Full& full;
      double start = thread_seconds();
      ~Stop() {
        const double took = thread_seconds() - start;
        full.longest_ = std::max(full.longest_, took);
        full.total_ += took;
        ++full.call_count_;
      }
    } stop{*this};
    return call(*store_);
  }

  std::size_t put(SpaceId space, std::uint64_t name, std::size_t block_bytes) {
    const auto hashes = chain(name);
    const std::vector<std::uint64_t> sums(stripe_count(block_bytes));
    auto plan =
        timed([&](Store& store) { return store.offer(space, hashes, {.session = SessionId{2}}, now()); }).value();
    const PutId id = plan.put;
    std::size_t stored = 0;
    for (;;) {
      for (std::size_t i = 0; i < plan.incoming.size(); ++i, ++stored)
        timed([&](Store& store) { return store.commit(id, sums, now()); });
      if (!plan.again) break;
      plan = timed([&](Store& store) { return store.offer_more(id, now()); }).value();
    }
    if (id != PutId{}) timed([&](Store& store) { store.end_put(id); });
    return stored;
  }

  void report(benchmark::State& state) const {
    state.counters["longest_us"] = longest_ * 1e6;
    state.counters["calls"] = static_cast<double>(call_count_);
    state.counters["total_ms"] = total_ * 1e3;
  }

 private:
  std::unique_ptr<Store> store_;
  SpaceId old_{};
  std::uint64_t chain_count_ = 0;
  TimePoint now_{std::chrono::seconds(1)};
  double longest_ = 0, total_ = 0;
  std::size_t call_count_ = 0;
};

std::size_t size_of(const benchmark::State& state) { return static_cast<std::size_t>(state.range(0)) * kGiB; }

/// An eighth of the arena goes to blocks of another size.
void BM_SecondBlockSize(benchmark::State& state) {
  for (auto _ : state) {
    Full full(size_of(state), static_cast<std::size_t>(state.range(1)));
    const SpaceId fresh = full.store().open(record_of(kNewBytes)).value();
    const std::size_t count = std::min<std::size_t>(size_of(state) / kNewBytes / kChainBlocks / 8, 64);
    std::size_t stored = 0;
    for (std::uint64_t name = 0; name < count; ++name) stored += full.put(fresh, ~name, kNewBytes);
    full.report(state);
    state.counters["stored"] = static_cast<double>(stored);
  }
}
BENCHMARK(BM_SecondBlockSize)
    ->ArgNames({"GiB", "leases"})
    ->ArgsProduct({{64, 1024}, {0, 10000}})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

/// Each block takes the place of another: of one size, or of two in turn. With a disk tier that nobody writes to, as
/// when the disk is off.
void BM_PutWhenFull(benchmark::State& state) {
  Full full(size_of(state), 0, state.range(2) != 0);
  std::vector<std::pair<SpaceId, std::size_t>> sizes = {{full.old(), kOldBytes}};
  if (state.range(1) == 2) sizes.emplace_back(full.store().open(record_of(kNewBytes)).value(), kNewBytes);
  std::uint64_t name = 0;
  for (auto _ : state) {
    const auto [space, bytes] = sizes[name % sizes.size()];
    KV_ASSERT(full.put(space, ~name++, bytes) == kChainBlocks);
  }
  state.SetItemsProcessed(state.iterations() * kChainBlocks);
  full.report(state);
}
BENCHMARK(BM_PutWhenFull)
    ->ArgNames({"GiB", "sizes", "disk"})
    ->ArgsProduct({{64}, {1, 2}, {0, 1}})
    ->Iterations(20000)
    ->Unit(benchmark::kMicrosecond);

void BM_DropNamespace(benchmark::State& state) {
  for (auto _ : state) {
    Full full(size_of(state), 0);
    std::size_t count = full.timed([&](Store& store) { return store.drop(full.old(), {}); }).value();
#ifndef KV_BENCH_DROPS_AT_ONCE
    while (full.store().is_dropping()) count += full.timed([&](Store& store) { return store.drop_more(full.now()); });
#endif
    KV_ASSERT(count == full.chain_count() * kChainBlocks);
    full.report(state);
  }
}
BENCHMARK(BM_DropNamespace)->ArgName("GiB")->Arg(64)->Arg(1024)->Iterations(1)->Unit(benchmark::kMillisecond);

/// All the prompts were used since blocks were last evicted: their order is found out by the next eviction.
void BM_EvictAfterManyUses(benchmark::State& state) {
  for (auto _ : state) {
    Full full(size_of(state), 0);
    for (std::uint64_t name = 0; name < full.chain_count(); ++name)
      KV_ASSERT(full.timed([&](Store& store) { return store.touch(full.old(), chain(name), full.now()); }));
    full.put(full.old(), ~std::uint64_t{0}, kOldBytes);
    full.report(state);
  }
}
BENCHMARK(BM_EvictAfterManyUses)->ArgName("GiB")->Arg(64)->Arg(1024)->Iterations(1)->Unit(benchmark::kMillisecond);

/// A scheduler that held many promises goes away.
void BM_SessionEndsWithManyLeases(benchmark::State& state) {
  for (auto _ : state) {
    Full full(size_of(state), 10000);
    full.timed([&](Store& store) { store.end_session(SessionId{1}); });
    while (full.store().stats().lease_count > 0) full.timed([&](Store& store) { store.expire_leases(full.now()); });
    full.report(state);
  }
}
BENCHMARK(BM_SessionEndsWithManyLeases)->ArgName("GiB")->Arg(64)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kv
