// What a node has learned, over a restart: a file that is read, damaged, missing, or never answers.
#include "store/node/jobs/learned_keeper.h"

#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "store/policy/yield_counts.h"

namespace kv {
namespace {

/// What is in the file, for both threads.
struct FakeFile {
  std::mutex mutex;
  std::string bytes;
  int writes = 0;
  error_code failure;

  LearnedKeeper::File door() {
    return {.read =
                [this] {
                  const std::lock_guard lock(mutex);
                  return bytes;
                },
            .write =
                [this](const std::string& given) {
                  const std::lock_guard lock(mutex);
                  ++writes;
                  if (!failure) bytes = given;
                  return failure;
                }};
  }
};

class LearnedKeeperTest : public testing::Test {
 protected:
  static std::unique_ptr<Store> make_store(PolicyKind policy = PolicyKind::kYield) {
    StoreConfig config;
    config.policy = policy;
    config.arena.capacity_bytes = 256 * 1024;
    config.arena.granule_bytes = 4096;
    config.arena.huge_pages = false;
    config.arena.touch = false;
    return Store::create(config).value();
  }
  static std::string learned(double uses_of_a_class) {
    YieldCounts counts;
    counts.unit = 4;
    counts.classes.resize(YieldTable::kSilentClasses);
    for (YieldTable::Counts& each : counts.classes) {
      each.hits[3] = uses_of_a_class;
      each.time[3] = 1000;
    }
    return write_learned(counts);
  }
  void read(LearnedKeeper& keeper) {
    while (!keeper.is_read()) keeper.tick(now, true);
  }
  double uses_of(std::uint32_t of_class) {
    return store.with([&](Store& each) { return each.yield_table()->with_before(of_class).hits[3]; });
  }

  NodeMetrics metrics{"test"};
  LockedStore store{make_store(), metrics};
  FakeFile file;
  TimePoint now{1s};
};

TEST_F(LearnedKeeperTest, WhatIsWrittenAtTheEndIsKnownAtTheNextStart) {
  file.bytes = learned(5);
  {
    LearnedKeeper keeper(store, file.door());
    read(keeper);
    EXPECT_EQ(uses_of(6), 5);
    EXPECT_FALSE(store.with([](Store& each) { return each.yield_table()->knows(); }));
    while (store.with([](Store& each) { return each.learn(); })) {
    }
    EXPECT_TRUE(store.with([](Store& each) { return each.yield_table()->knows(); }));
    file.bytes.clear();
    EXPECT_TRUE(keeper.stop(true));
  }
  EXPECT_EQ(file.writes, 1);
  LockedStore next(make_store(), metrics);
  LearnedKeeper keeper(next, file.door());
  read(keeper);
  EXPECT_EQ(next.with([](Store& each) { return each.yield_table()->with_before(6).hits[3]; }), 5);
}

TEST_F(LearnedKeeperTest, IsWrittenEachPeriodWhileTheDirectoryIsTheNodes) {
  file.bytes = learned(5);
  LearnedKeeper keeper(store, file.door(), 60s);
  read(keeper);
  const auto writes = [&] {
    const std::lock_guard lock(file.mutex);
    return file.writes;
  };
  now += 59s;
  keeper.tick(now, true);
  now += 1s;
  keeper.tick(now, false);  // it is another's, perhaps
  now += 59s;
  keeper.tick(now, true);
  EXPECT_EQ(writes(), 0);
  now += 1s;
  keeper.tick(now, true);
  while (writes() == 0) std::this_thread::yield();
  keeper.tick(now, true);
  EXPECT_TRUE(keeper.stop(true));
  EXPECT_EQ(writes(), 2);
}

TEST_F(LearnedKeeperTest, ADamagedFileChangesNothing) {
  file.bytes = learned(5);
  file.bytes[40] = static_cast<char>(file.bytes[40] ^ 1);
  const std::string damaged = file.bytes;
  LearnedKeeper keeper(store, file.door());
  read(keeper);
  EXPECT_EQ(uses_of(6), 0);
  EXPECT_FALSE(keeper.stop(true)) << "nothing is known that would be worth a write";
  EXPECT_EQ(file.bytes, damaged);
}

TEST_F(LearnedKeeperTest, AMissingFileAndAPolicyThatCountsNothingAreFine) {
  LockedStore lru(make_store(PolicyKind::kLru), metrics);
  FakeFile other;
  other.bytes = learned(5);
  for (const bool has_file : {false, true}) {
    LearnedKeeper keeper(has_file ? lru : store, has_file ? other.door() : file.door());
    while (!keeper.is_read()) keeper.tick(now, true);
    EXPECT_FALSE(keeper.stop(true));
  }
  EXPECT_EQ(file.writes + other.writes, 0);
}

TEST_F(LearnedKeeperTest, AFileThatNeverAnswersHoldsUpNobody) {
  // Shared with the keeper's thread, which is left behind.
  struct Gate {
    std::promise<void> opened;
    std::shared_future<void> is_open{opened.get_future()};
  };
  const auto gate = std::make_shared<Gate>();
  const auto late = std::make_shared<std::promise<void>>();
  const auto read_hangs = [gate, late] {
    gate->is_open.wait();
    late->set_value();
    return std::string();
  };
  {
    LearnedKeeper keeper(store, {.read = read_hangs, .write = [](const std::string&) { return error_code(); }});
    keeper.tick(now, true);
    EXPECT_FALSE(keeper.is_read());
    EXPECT_FALSE(keeper.stop(true)) << "what it does not know is not written over";
  }
  gate->opened.set_value();
  late->get_future().wait();

  const auto write_gate = std::make_shared<Gate>();
  const auto write_hangs = [write_gate](const std::string&) {
    write_gate->is_open.wait();
    return error_code();
  };
  LearnedKeeper keeper(store, {.read = [] { return learned(5); }, .write = write_hangs});
  read(keeper);
  EXPECT_FALSE(keeper.stop(true, std::chrono::milliseconds(20)));
  write_gate->opened.set_value();
}

TEST_F(LearnedKeeperTest, AWriteThatFailsIsTold) {
  file.bytes = learned(5);
  file.failure = make_error_code(Errc::kDiskFailed);
  LearnedKeeper keeper(store, file.door());
  read(keeper);
  EXPECT_FALSE(keeper.stop(true));
  EXPECT_EQ(file.bytes, learned(5));
}

}  // namespace
}  // namespace kv
