// What the disk has of a named context is brought to memory: all of it and no wrong byte, at a bounded rate, within the
// bounds on what is kept, until somebody says stop; with a disk that fails, is slow and lies.
#include "store/node/jobs/context_warmer.h"

#include "tests/node/node_world.h"
#include "tests/sim/sim_disk_worker.h"
#include "tests/store/store_fixture.h"

namespace kv {
namespace {

class ContextWarmerTest : public NodeTest {
 protected:
  static constexpr std::size_t kMemoryBlocks = 32;

  ContextWarmerTest() {
    start(kMemoryBlocks, /*disk_bytes=*/4096 * kBlockBytes);
    disk_worker =
        std::make_unique<sim::SimDiskWorker>(*store, disk, world.clock, world.io.get_executor(), sim::DiskFaults{}, 1);
    node->disk_worker = disk_worker.get();
    client = greet();
  }
  void begin(std::uint64_t bytes_per_second = 1 << 30) {
    warmer = std::make_unique<ContextWarmer>(world.io.get_executor(), *node, bytes_per_second);
    is_running = true;
    asio::co_spawn(world.io, warmer->run(), [this](std::exception_ptr error) {
      is_running = false;
      if (error) std::rethrow_exception(error);
    });
  }
  void TearDown() override {
    if (warmer) warmer->stop();
    EXPECT_TRUE(world.run_until([&] { return !is_running; }, 100s));
    client.reset();
    NodeTest::TearDown();
    disk_worker->die();
  }
  ContextDesk::View make(const std::string& name, const std::vector<BlockHash>& hashes, Duration ttl = 1h) {
    return store
        ->with([&](Store& each) {
          const SpaceId id = each.open(record).value();
          return each.create_context({.owner = "", .name = name, .space = id, .hashes = hashes, .life = {ttl, false}},
                                     world.clock.now());
        })
        .value();
  }
  ContextDesk::View view(const std::string& name) {
    return store->with([&](Store& each) { return each.find_context("", name, world.clock.now()); }).value();
  }
  void warm(const std::string& name, bool is_wanted = true) {
    ASSERT_TRUE(store->with([&](Store& each) { return each.warm_context("", name, is_wanted, world.clock.now()); }));
  }
  /// Puts the chain, and others until it lies on disk alone.
  void spill_out(const std::vector<BlockHash>& hashes) {
    put(*client, hashes);
    for (int i = 0; i < 100 && in_memory(hashes) > 0; ++i) {
      put(*client, chain(++filler, 8));
      disk_worker->notify();
      world.run_for(1s);
    }
    ASSERT_EQ(in_memory(hashes), 0u);
  }
  std::size_t in_memory(const std::vector<BlockHash>& hashes) {
    return store->with([&](Store& each) {
      return each.explain(each.open(record).value(), hashes, world.clock.now())->memory_block_count;
    });
  }
  double counted(const char* name) {
    for (const auto& value : warmer->stats())
      if (std::string_view(value.name) == name) return value.value;
    return -1;
  }

  MemoryDisk disk;
  std::unique_ptr<sim::SimDiskWorker> disk_worker;
  std::unique_ptr<RawClient> client;
  std::unique_ptr<ContextWarmer> warmer;
  bool is_running = false;
  std::uint32_t filler = 1000;
};

TEST_F(ContextWarmerTest, WhatTheDiskHasComesToMemoryAndIsKept) {
  const auto mine = chain(1, 12);
  spill_out(mine);
  begin();
  EXPECT_EQ(make("prompt", mine).kept_count, 0u);
  world.run_for(10s);
  EXPECT_EQ(view("prompt").kept_count, 0u) << "nobody has asked";
  EXPECT_EQ(view("prompt").disk_count, 12u);
  warm("prompt");
  EXPECT_TRUE(view("prompt").is_warming);
  world.run_for(5s);
  const auto now = view("prompt");
  EXPECT_EQ(now.kept_count, 12u);
  EXPECT_EQ(now.memory_count, 12u);
  EXPECT_EQ(now.disk_count, 0u);
  EXPECT_FALSE(now.is_warming);
  EXPECT_EQ(now.why, Errc{});
  EXPECT_EQ(counted("context_warmed_blocks"), 12);
  EXPECT_EQ(counted("contexts_warming"), 0);
  const std::uint64_t read_before = store->with([](Store& each) { return each.stats().get_disk_blocks; });
  const Got got = get(*client, mine);
  EXPECT_TRUE(got.bytes == blocks(mine));
  EXPECT_EQ(store->with([](Store& each) { return each.stats().get_disk_blocks; }), read_before);
}

TEST_F(ContextWarmerTest, TheRateIsABoundAndAStopIsOne) {
  const auto mine = chain(1, 12);
  spill_out(mine);
  make("prompt", mine);
  begin(kBlockBytes);  // a block a second
  warm("prompt");
  world.run_for(4s);
  EXPECT_GT(counted("context_warmed_blocks"), 1);
  EXPECT_LE(counted("context_warmed_blocks"), 6);
  EXPECT_TRUE(view("prompt").is_warming);
  EXPECT_EQ(*view("prompt").memory_count + *view("prompt").disk_count, 12u);
  warm("prompt", /*is_wanted=*/false);
  const double before = counted("context_warmed_blocks");
  world.run_for(20s);
  EXPECT_LE(counted("context_warmed_blocks"), before) << "one that was being read is given up";
  EXPECT_EQ(view("prompt").kept_count, static_cast<std::size_t>(before)) << "what has come stays";
  warmer->set_rate(0);
  warm("prompt");
  world.run_for(5s);
  EXPECT_EQ(counted("context_warmed_blocks"), before);
  warmer->set_rate(1 << 30);
  world.run_for(5s);
  EXPECT_EQ(view("prompt").kept_count, 12u);
}

TEST_F(ContextWarmerTest, NoMoreIsBroughtThanMayBeKept) {
  const auto mine = chain(1, 24);
  spill_out(mine);
  begin();
  make("prompt", mine);
  warm("prompt");
  world.run_for(30s);
  const auto now = view("prompt");
  EXPECT_EQ(now.kept_count, kMemoryBlocks / 2) << "retained-fraction-max";
  EXPECT_EQ(now.why, Errc::kBusy);
  EXPECT_FALSE(now.is_warming);
  EXPECT_EQ(now.memory_count, kMemoryBlocks / 2) << "for the others something else would have had to go";
  EXPECT_EQ(now.disk_count, 24u - kMemoryBlocks / 2);
}

TEST_F(ContextWarmerTest, ADiskThatFailsIsTriedAgainAndOneThatLiesIsNotBelieved) {
  const auto mine = chain(1, 12);
  spill_out(mine);
  begin();
  make("prompt", mine);
  disk_worker->set_faults({.failure_probability = 1});
  warm("prompt");
  world.run_for(10s);
  EXPECT_EQ(view("prompt").kept_count, 0u);
  EXPECT_TRUE(view("prompt").is_warming);
  disk_worker->set_faults({});
  world.run_for(10s);
  EXPECT_EQ(view("prompt").kept_count, 12u);
  EXPECT_FALSE(view("prompt").is_warming);
  store->with([&](Store& each) { return each.delete_context("", "prompt", world.clock.now()); }).value();
  const auto other = chain(2, 12);
  spill_out(other);
  make("other", other);
  disk_worker->set_faults({.flip_probability = 1});
  warm("other");
  world.run_for(10s);
  EXPECT_EQ(view("other").kept_count, 0u);
  EXPECT_FALSE(view("other").is_warming) << "damaged blocks are forgotten, and nothing is left to bring";
  disk_worker->set_faults({});
}

TEST_F(ContextWarmerTest, WhatEndsOrIsDroppedMeanwhileIsBroughtNoFurther) {
  const auto one = chain(1, 6), two = chain(2, 6);
  spill_out(one);
  spill_out(two);
  begin(kBlockBytes);
  make("one", one, 3s);
  make("two", two);
  warm("one");
  warm("two");
  world.run_for(4s);
  store->with([&](Store& each) {
    EXPECT_TRUE(each.drop(each.open(record).value(), std::span(two).first(1)));
    while (each.is_dropping()) each.drop_more(world.clock.now());
    each.tend_contexts(world.clock.now());
  });
  world.run_for(20s);
  EXPECT_EQ(view("two").kept_count, 0u);
  EXPECT_FALSE(view("two").is_warming);
  EXPECT_EQ(counted("contexts_warming"), 0);
}

/// Whatever happens meanwhile: no wrong byte, nothing left pinned or incoming, and what is kept is what memory has.
TEST_F(ContextWarmerTest, RandomActsLeaveNothingBehind) {
  std::mt19937_64 random(test_seed());
  begin(static_cast<std::uint64_t>(kBlockBytes) << random() % 8);
  const std::array<std::vector<BlockHash>, 4> chains = {chain(1, 6), chain(2, 10), chain(3, 14), chain(4, 3)};
  for (int step = 0; step < 60; ++step) {
    const std::string name(1, static_cast<char>('a' + random() % 3));
    const auto& mine = chains[random() % chains.size()];
    switch (random() % 9) {
      case 0: make(name, mine, std::chrono::seconds(1 + random() % 60)); break;
      case 1:
      case 2: {
        const bool is_wanted = random() % 4 != 0;
        store->with([&](Store& each) { (void)each.warm_context("", name, is_wanted, world.clock.now()); });
        break;
      }
      case 3: store->with([&](Store& each) { (void)each.delete_context("", name, world.clock.now()); }); break;
      case 4: put(*client, mine); break;
      case 5: put(*client, chain(++filler, 1 + random() % 12)); break;
      case 6:
        store->with([&](Store& each) {
          (void)each.drop(each.open(record).value(), std::span(mine).first(1 + random() % mine.size()));
          while (each.is_dropping()) each.drop_more(world.clock.now());
        });
        break;
      case 7:
        disk_worker->set_faults(
            {.failure_probability = random() % 3 == 0 ? 0.3 : 0.0, .stall_probability = random() % 4 == 0 ? 0.1 : 0.0});
        break;
      default: {
        const Got got = get(*client, mine);
        ASSERT_TRUE(got.bytes == blocks(std::span(mine).first(got.block_count)));
      }
    }
    disk_worker->notify();
    world.run_for(std::chrono::milliseconds(random() % 2000));
    store->with([&](Store& each) { each.tend_contexts(world.clock.now()); });
    ASSERT_EQ(store->with([](Store& each) { return each.check(); }), "");
  }
  disk_worker->set_faults({});
  for (const auto& each : store->with([&](Store& s) { return s.list_contexts("", "", 10, world.clock.now()); })) {
    const auto now = view(each.name);
    EXPECT_LE(now.kept_count, *now.memory_count);
  }
}

}  // namespace
}  // namespace kv
