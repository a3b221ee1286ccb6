// The disk tier's threads with a disk that fails, hangs, lies and recovers: the store goes on as if there were none.
#include "store/node/disk_worker/disk_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <string>

#include "base/checksum.h"
#include "store/node/disk/striped_disk.h"
#include "tests/store/memory_disk.h"
#include "tests/store/store_fixture.h"

namespace kv {
namespace {

constexpr std::size_t kBytes = 4096;

/// A disk of its own lock whose calls can be held up, as a device does that does not answer.
class HeldDisk final : public Disk {
 public:
  explicit HeldDisk(MemoryDisk& disk) : disk_(disk) {}
  void hold_writes(bool hold) { set(hold_writes_, hold); }
  void hold_reads(bool hold) { set(hold_reads_, hold); }
  void hold_drops(bool hold) { set(hold_drops_, hold); }
  std::atomic<int> drop_calls = 0;                ///< Begun.
  mutable std::atomic<int> loads = 0, reads = 0;  ///< Begun.
  template <class Call>
  auto with(Call call) {
    const std::lock_guard lock(mutex_);
    return call(disk_);
  }

  error_code write(std::span<const DiskWrite> blocks) override {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [this] { return !hold_writes_; });
    return disk_.write(blocks);
  }
  Result<DiskBlock> read(DiskKey key) const override {
    ++reads;
    std::unique_lock lock(mutex_);
    released_.wait(lock, [this] { return !hold_reads_; });
    return disk_.read(key);
  }
  error_code erase(std::span<const DiskKey> keys) override {
    const std::lock_guard lock(mutex_);
    return disk_.erase(keys);
  }
  error_code drop_before(DiskKey end) override {
    const std::lock_guard lock(mutex_);
    return disk_.drop_before(end);
  }
  error_code add_drops(std::span<const DiskDrop> drops) override {
    std::unique_lock lock(mutex_);
    ++drop_calls;
    released_.wait(lock, [this] { return !hold_drops_; });
    return disk_.add_drops(drops);
  }
  std::vector<DiskDrop> drops() const override {
    const std::lock_guard lock(mutex_);
    return disk_.drops();
  }
  error_code forget_drops(DiskKey before) override {
    const std::lock_guard lock(mutex_);
    return disk_.forget_drops(before);
  }
  error_code add_namespace(const NamespaceId& id, const std::string& record) override {
    const std::lock_guard lock(mutex_);
    return disk_.add_namespace(id, record);
  }
  error_code remove_namespaces(std::span<const NamespaceId> ids) override {
    const std::lock_guard lock(mutex_);
    return disk_.remove_namespaces(ids);
  }
  error_code load(const std::function<void(const NamespaceId&, const std::string&)>& space,
                  const std::function<bool(const DiskRecord&)>& block) const override {
    const std::lock_guard lock(mutex_);
    ++loads;
    return disk_.load(space, block);
  }
  std::uint32_t epoch() const override { return disk_.epoch(); }
  error_code flush() override {
    const std::lock_guard lock(mutex_);
    return disk_.flush();
  }
  DiskStats stats() const override {
    const std::lock_guard lock(mutex_);
    return disk_.stats();
  }

 private:
  void set(bool& flag, bool value) {
    const std::lock_guard lock(mutex_);
    flag = value;
    released_.notify_all();
  }
  MemoryDisk& disk_;
  mutable std::mutex mutex_;
  mutable std::condition_variable released_;
  bool hold_writes_ = false, hold_reads_ = false, hold_drops_ = false;
};

class DiskThreadsTest : public testing::Test {
 protected:
  DiskThreadsTest() { start(); }
  ~DiskThreadsTest() override {
    if (held != nullptr) {
      held->hold_writes(false);
      held->hold_reads(false);
      held->hold_drops(false);
    }
    driver->stop(/*save=*/false);
    store->with([](Store& each) { EXPECT_EQ(each.check(), ""); });
  }

  void start() {
    driver = nullptr;  // its threads use the store
    held = nullptr;
    StoreConfig config;
    config.arena.capacity_bytes = 16 * kBytes;
    config.arena.granule_bytes = kBytes;
    config.arena.touch = false;
    config.disk.capacity_bytes = 1024 * kBytes;
    config.spill.reserve = 0.5;
    store = std::make_unique<LockedStore>(Store::create(config).value(), metrics);
    space = store->with([](Store& each) { return each.open(make_record("m", kBytes)).value(); });
    DiskThreadsConfig driver_config;
    driver_config.read_threads = 2;
    driver_config.read_queue_bytes_max = 4 * kBytes;
    driver_config.retry_after = 10ms;
    driver_config.stuck_after = has_two ? 10s : 10ms;
    driver_config.drain_give_up_after = 200ms;
    driver_config.give_up_after = give_up_after;
    driver_config.scrub_bytes_per_second = scrub_rate;
    const OpenDisk open = [this](const std::function<void()>& accepted) { return open_disk(accepted); };
    driver = std::make_unique<DiskThreads>(*store, open, clock, driver_config);
    refusal = driver->start(/*patience=*/60s);
    if (open_error == Errc{}) {
      EXPECT_TRUE(eventually([this] { return driver->can_read(); }));
    }
  }
  Result<std::unique_ptr<Disk>, Failure> open_disk(const std::function<void()>& accepted) {
    ++openings;
    if (open_error != Errc{}) return Failure(open_error.load(), "told so");
    auto own = std::make_unique<HeldDisk>(disk);
    held = own.get();
    accepted();
    if (has_two) {
      auto second = std::make_shared<HeldDisk>(other);
      held_other = second.get();
      std::vector<StripedDisk::Part> parts = {{0, "one", std::move(own)}, {1, "two", std::move(second)}};
      return std::unique_ptr<Disk>(
          std::make_unique<StripedDisk>(std::move(parts), clock, StripedDiskConfig{.patience = 50ms}));
    }
    return std::unique_ptr<Disk>(std::move(own));
  }

  /// Looks again and again; false after a minute. Other threads do what is waited for.
  static bool eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 60'000; ++i) {
      if (holds()) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }
  bool is_loaded() const {
    return std::ranges::any_of(driver->stats(), [](const NodeMetrics::Value& each) {
      return each.name == std::string("disk_is_loading") && each.value == 0;
    });
  }
  StoreStats stats() {
    return store->with([](Store& each) { return each.stats(); });
  }
  std::size_t put(std::span<const BlockHash> hashes) {
    const TimePoint now = clock.now();
    auto plan = store->with([&](Store& each) { return each.offer(space, hashes, {.session = kAlice}, now).value(); });
    for (const auto& block : plan.incoming) {
      fill_bytes(block.bytes, block.seed);
      std::vector<std::uint64_t> sums(1);
      block_checksums(block.seed, block.bytes, sums);
      store->with([&](Store& each) { static_cast<void>(each.commit(plan.put, sums, now)); });
    }
    if (plan.put != PutId{}) store->with([&](Store& each) { each.end_put(plan.put); });
    driver->notify();
    return plan.incoming.size();
  }
  PinnedPrefix pin(std::span<const BlockHash> hashes) {
    return store->with([&](Store& each) {
      return each.pin_prefix(space, hashes, {.session = kAlice, .disk = true}, clock.now()).value();
    });
  }
  Result<DiskBlock> read(const PinnedDiskBlock& block) {
    std::promise<Result<DiskBlock>> done;
    driver->read(block.key, block.seed, kBytes, waiter,
                 [&](Result<DiskBlock> read) { done.set_value(std::move(read)); });
    return done.get_future().get();
  }
  double stat(std::string_view name) const {
    for (const auto& value : driver->stats()) {
      if (value.name == name) return value.value;
    }
    return -1;
  }
  bool is_on() const { return stat("disk_is_on") == 1; }

  NodeMetrics metrics{"test"};
  SteadyClock clock;
  std::shared_ptr<int> waiter = std::make_shared<int>();  ///< For what is read.
  MemoryDisk disk, other;
  bool has_two = false;  ///< Directories: `disk` and `other`.
  std::unique_ptr<LockedStore> store;
  SpaceId space{};
  std::unique_ptr<DiskThreads> driver;
  HeldDisk* held = nullptr;  ///< Of the disk opened last.
  HeldDisk* held_other = nullptr;
  std::uint64_t scrub_rate = 0;
  Duration give_up_after = 60s;  ///< On a busy machine a thread that is well may do nothing for long.
  std::string refusal;
  std::atomic<int> openings = 0;  ///< Tried.
  std::atomic<Errc> open_error{};
};

TEST_F(DiskThreadsTest, WhatIsShortOfMemoryGoesToDiskAndCanBeReadThere) {
  EXPECT_EQ(put(chain(1, 12)), 12u);
  EXPECT_TRUE(eventually([&] { return stats().allocated_bytes <= 8 * kBytes; }));
  const auto prefix = pin(chain(1, 12));
  EXPECT_EQ(prefix.blocks.size() + prefix.on_disk.size(), 12u);
  for (const auto& block : prefix.on_disk) {
    const auto got = read(block);
    ASSERT_TRUE(got);
    EXPECT_TRUE(has_bytes(got->bytes, block.seed));
  }
  store->with([&](Store& each) { each.unpin(prefix); });
}

TEST_F(DiskThreadsTest, ADamagedBlockIsNotHandedOut) {
  put(chain(1, 12));
  EXPECT_TRUE(eventually([&] { return stats().allocated_bytes <= 8 * kBytes; }));
  const auto prefix = pin(chain(1, 12));
  const auto& block = prefix.on_disk.front();
  held->with([&](MemoryDisk& each) { (*each.bytes(block.key))[100] ^= std::byte{4}; });
  EXPECT_EQ(read(block).error(), Errc::kCorruptBlock);
  store->with([&](Store& each) { each.unpin(prefix); });
}

TEST_F(DiskThreadsTest, ADiskThatFailsIsOffUntilItWorksAgainAndPutsGoOn) {
  held->with([](MemoryDisk& each) { each.fails_writes = true; });
  EXPECT_EQ(put(chain(1, 12)), 12u);
  EXPECT_TRUE(eventually([&] { return !is_on(); }));  // until then blocks wait to be written
  for (std::uint64_t name = 2; name <= 8; ++name) EXPECT_EQ(put(chain(name, 12)), 12u) << name;
  EXPECT_FALSE(driver->keeps_up());
  EXPECT_EQ(put(chain(9, 12)), 12u);
  EXPECT_GT(stats().lost_unspilled_blocks, 0u);
  held->with([](MemoryDisk& each) { each.fails_writes = false; });
  EXPECT_TRUE(eventually([&] { return is_on() && stats().spilled_blocks > 0; }));
}

TEST_F(DiskThreadsTest, ADiskThatHangsHoldsUpNobody) {
  held->hold_writes(true);
  put(chain(1, 12));
  EXPECT_TRUE(eventually([&] { return !driver->can_read(); })) << "nobody waits for it";
  for (std::uint64_t name = 2; name <= 8; ++name) EXPECT_GT(put(chain(name, 4)), 0u) << name;
  held->hold_writes(false);
  EXPECT_TRUE(eventually([&] { return driver->can_read() && stats().allocated_bytes <= 8 * kBytes; }));
}

TEST_F(DiskThreadsTest, ReadsThatHangMakeTheDiskCountAsStuck) {
  put(chain(1, 12));
  EXPECT_TRUE(eventually([&] { return stats().allocated_bytes <= 8 * kBytes; }));
  const auto prefix = pin(chain(1, 12));
  held->hold_reads(true);
  std::promise<void> done;
  driver->read(prefix.on_disk[0].key, prefix.on_disk[0].seed, kBytes, waiter, [&](const Result<DiskBlock>& got) {
    EXPECT_TRUE(got);
    done.set_value();
  });
  EXPECT_TRUE(eventually([&] { return !driver->can_read() && !driver->keeps_up() && !is_on(); }));
  held->hold_reads(false);
  done.get_future().get();
  EXPECT_TRUE(eventually([&] { return driver->can_read() && is_on(); }));
  store->with([&](Store& each) { each.unpin(prefix); });
}

TEST_F(DiskThreadsTest, AStopLeavesADiskThatHangsAlone) {
  ASSERT_TRUE(driver->stop(/*save=*/false));
  give_up_after = 100ms;
  start();
  held->hold_writes(true);
  put(chain(1, 12));
  EXPECT_TRUE(eventually([&] { return !driver->can_read(); }));
  EXPECT_FALSE(driver->stop(/*save=*/true));
}

TEST_F(DiskThreadsTest, ADiskThatCannotBeOpenedIsTriedAgainWhilePutsGoOn) {
  ASSERT_TRUE(driver->stop(/*save=*/false));
  open_error = Errc::kDiskFailed;
  start();
  EXPECT_EQ(refusal, "") << "a full or failing disk is no reason not to serve";
  EXPECT_TRUE(eventually([&] { return openings >= 3; }));
  EXPECT_FALSE(is_on());
  EXPECT_FALSE(driver->can_read());
  for (std::uint64_t name = 1; name <= 4; ++name) EXPECT_EQ(put(chain(name, 12)), 12u) << name;
  open_error = Errc{};
  EXPECT_TRUE(eventually([&] { return is_on() && stats().spilled_blocks > 0; }));
}

TEST_F(DiskThreadsTest, ADiskThatIsRefusedIsSaidBeforeTheNodeServes) {
  for (const Errc error : {Errc::kUnsupported, Errc::kMismatch, Errc::kBusy}) {
    ASSERT_TRUE(driver->stop(/*save=*/false));
    open_error = error;
    start();
    EXPECT_EQ(refusal, "told so");
  }
}

TEST_F(DiskThreadsTest, TheScrubberFindsDamageThatNobodyHasAskedFor) {
  for (std::uint64_t name = 1; name <= 2; ++name) {
    put(chain(name, 8));
    EXPECT_TRUE(eventually([&] { return stats().allocated_bytes <= 8 * kBytes; }));
  }
  ASSERT_TRUE(driver->stop(/*save=*/true));
  ASSERT_EQ(disk.block_count(), 16u);
  disk.crash(16);  // a new epoch; nothing is lost
  std::vector<DiskRecord> records;
  ASSERT_FALSE(disk.load([](const NamespaceId&, const std::string&) {},
                         [&](const DiskRecord& record) { return records.push_back(record), true; }));
  for (const DiskRecord& record : records) {
    if (record.hash == chain(1, 8)[5]) (*disk.bytes(record.key))[1000] ^= std::byte{1};
  }
  scrub_rate = 1 << 30;
  start();
  EXPECT_TRUE(eventually([&] { return stat("disk_scrub_rounds") >= 2; })) << "then all of one round are verified";
  EXPECT_EQ(stat("disk_scrub_damaged_blocks"), 1);
  EXPECT_GE(stat("disk_scrubbed_blocks"), 14) << "but for those below the damaged block";
  EXPECT_EQ(stats().lost_blocks, 1u);
  EXPECT_EQ(stats().disk_block_count, 13u) << "the damaged block and the two below it are forgotten";
}

TEST_F(DiskThreadsTest, WhatIsBeingReadIsBounded) {
  put(chain(1, 14));
  EXPECT_TRUE(eventually([&] { return stats().allocated_bytes <= 8 * kBytes; }));
  const auto prefix = pin(chain(1, 14));
  ASSERT_GE(prefix.on_disk.size(), 6u);
  held->hold_reads(true);
  std::atomic<int> done{0}, refused{0};
  for (const auto& block : prefix.on_disk) {
    driver->read(block.key, block.seed, kBytes, waiter, [&](const Result<DiskBlock>& got) {
      refused += !got && got.error() == Errc::kBusy;
      ++done;  // last: who waits for it ends with the counters
    });
  }
  EXPECT_GE(refused, 1);
  EXPECT_EQ(done, refused) << "the others wait";
  held->hold_reads(false);
  EXPECT_TRUE(eventually([&] { return done == static_cast<int>(prefix.on_disk.size()); }));
  store->with([&](Store& each) { each.unpin(prefix); });
}

TEST_F(DiskThreadsTest, WhatNobodyWaitsForAnyMoreIsNotRead) {
  put(chain(1, 14));
  EXPECT_TRUE(eventually([&] { return stats().allocated_bytes <= 8 * kBytes; }));
  const auto prefix = pin(chain(1, 14));
  ASSERT_GE(prefix.on_disk.size(), 3u);
  held->hold_reads(true);
  std::atomic<int> done{0}, read{0};
  for (const auto& block : std::span(prefix.on_disk).first(3)) {  // two threads: the third waits for its turn
    driver->read(block.key, block.seed, kBytes, waiter, [&](const Result<DiskBlock>& got) {
      read += got.has_value();
      ++done;
    });
  }
  EXPECT_TRUE(eventually([&] { return held->reads == 2; }));
  waiter.reset();
  held->hold_reads(false);
  EXPECT_TRUE(eventually([&] { return done == 3; }));
  EXPECT_EQ(read, 2) << "those that had begun";
  EXPECT_EQ(held->reads, 2);
  EXPECT_EQ(stat("disk_read_failures"), 0);
  store->with([&](Store& each) { each.unpin(prefix); });
}

TEST_F(DiskThreadsTest, AStopSavesMemoryAndAStartFindsItAgain) {
  put(chain(1, 6));
  put(chain(2, 6));
  ASSERT_TRUE(driver->stop(/*save=*/true));
  disk.crash(disk.block_count());  // a new epoch; nothing is lost
  start();
  EXPECT_TRUE(eventually([&] { return stats().disk_block_count == 12; }));
  for (std::uint64_t name = 1; name <= 2; ++name) {
    const auto prefix = pin(chain(name, 6));
    EXPECT_EQ(prefix.on_disk.size(), 6u);
    for (const auto& block : prefix.on_disk) EXPECT_TRUE(read(block));
    store->with([&](Store& each) { each.unpin(prefix); });
  }
}

/// Answers that came.
struct Answers {
  std::atomic<int> kept = 0, not_kept = 0;
  std::function<void(bool)> one() {
    return [this](bool is_kept) { ++(is_kept ? kept : not_kept); };
  }
};

TEST_F(DiskThreadsTest, ADirectoryIsEmptiedIntoTheOthersAndCloses) {
  has_two = true;
  start();
  for (std::uint64_t name = 1; name <= 16; ++name) {
    put(chain(name, 4));
    EXPECT_TRUE(eventually([&] { return stats().allocated_bytes <= 8 * kBytes; }));
  }
  const std::uint64_t blocks = stats().disk_block_count;
  ASSERT_GT(blocks, 40u);
  EXPECT_NE(driver->set_directories({}), "");
  EXPECT_NE(driver->set_directories({"one", "three"}), "") << "nobody opens it";
  EXPECT_EQ(driver->set_directories({"one"}), "");
  EXPECT_TRUE(eventually([&] { return stat("disk_directories") == 1; }));
  EXPECT_GT(stat("disk_drained_blocks"), 8);
  EXPECT_EQ(stat("disk_drain_lost_blocks"), 0);
  EXPECT_EQ(stat("disk_draining_blocks"), 0);
  EXPECT_EQ(stats().disk_block_count, blocks);
  for (std::uint64_t name = 1; name <= 16; ++name) {
    const auto prefix = pin(chain(name, 4));
    for (const PinnedDiskBlock& block : prefix.on_disk) EXPECT_TRUE(read(block)) << name;
    store->with([&](Store& each) { each.unpin(prefix); });
  }
}

TEST_F(DiskThreadsTest, WhatAHangingDirectoryDoesNotGiveIsLostInTheEndAndNobodyWaits) {
  has_two = true;
  start();
  for (std::uint64_t name = 1; name <= 16; ++name) {
    put(chain(name, 4));
    EXPECT_TRUE(eventually([&] { return stats().allocated_bytes <= 8 * kBytes; }));
  }
  held_other->hold_reads(true);
  EXPECT_EQ(driver->set_directories({"one"}), "");
  EXPECT_TRUE(eventually([&] { return stat("disk_drain_lost_blocks") > 0 && stat("disk_directories") == 1; }));
  EXPECT_EQ(stat("disk_draining_directories"), 0);
  EXPECT_TRUE(is_on());
  const std::uint64_t before = stats().spilled_blocks;
  for (std::uint64_t name = 101; name <= 104; ++name) {
    put(chain(name, 4));
    EXPECT_TRUE(eventually([&] { return stats().allocated_bytes <= 8 * kBytes; }));
  }
  EXPECT_GT(stats().spilled_blocks, before);
  held_other->hold_reads(false);  // or it could not be closed, and the stop would wait for it
  store->with([](Store& each) { EXPECT_EQ(each.check(), ""); });
}

TEST_F(DiskThreadsTest, ADropIsAnsweredOnceTheDiskHasItAndNotBefore) {
  Answers answers;
  DiskDrop drop;
  drop.before = DiskKey{std::uint64_t{disk.epoch() + 1} << 40};  // else forgotten once the disk is loaded
  held->hold_drops(true);
  driver->keep_drop(drop, answers.one());
  EXPECT_TRUE(eventually([&] { return held->drop_calls == 1; }));
  for (int i = 0; i < 100; ++i) driver->keep_drop(drop, answers.one());
  EXPECT_EQ(answers.kept + answers.not_kept, 0) << "the disk has not answered";
  held->hold_drops(false);
  EXPECT_TRUE(eventually([&] { return answers.kept == 101; }));
  EXPECT_EQ(held->drop_calls, 2) << "those that came meanwhile share one sync";
  EXPECT_EQ(held->drops().size(), 101u);
  EXPECT_TRUE(eventually([&] { return stat("disk_drops_kept") == 101; }));  // counted after the answers
}

TEST_F(DiskThreadsTest, ADropThatTheDiskDoesNotTakeIsAnsweredSo) {
  Answers answers;
  held->with([](MemoryDisk& each) { each.fails_drops = true; });
  driver->keep_drop({}, answers.one());
  EXPECT_TRUE(eventually([&] { return answers.not_kept == 1; }));
  held->with([](MemoryDisk& each) { each.fails_drops = false; });
  driver->keep_drop({}, answers.one());
  EXPECT_TRUE(eventually([&] { return answers.kept == 1; }));
}

TEST_F(DiskThreadsTest, ADropBeforeTheDiskIsOpenCoversAllThatEarlierStartsWrote) {
  put(chain(1, 6));
  ASSERT_TRUE(driver->stop(/*save=*/true));
  disk.crash(disk.block_count());
  open_error = Errc::kDiskFailed;
  start();
  Answers answers;
  DiskDrop dropped;
  store->with([&](Store& each) { static_cast<void>(each.drop(space, chain(1, 2), &dropped)); });
  driver->keep_drop(dropped, answers.one());
  EXPECT_TRUE(eventually([&] { return openings >= 3; }));
  EXPECT_EQ(answers.kept + answers.not_kept, 0);
  open_error = Errc{};
  EXPECT_TRUE(eventually([&] { return answers.kept == 1; }));
  EXPECT_TRUE(eventually([&] { return is_loaded(); }));
  EXPECT_EQ(stats().disk_block_count, 1u);
}

TEST_F(DiskThreadsTest, DropsAreForgottenOnceWhatTheyNameIsErasedForGood) {
  put(chain(1, 6));
  ASSERT_TRUE(driver->stop(/*save=*/true));
  disk.crash(disk.block_count());
  const DiskDrop drop{make_record("m", kBytes).id(), chain(1, 6)[2], DiskKey{std::uint64_t{disk.epoch()} << 40}};
  ASSERT_FALSE(disk.add_drops(std::span(&drop, 1)));
  start();
  EXPECT_TRUE(eventually([&] { return is_loaded(); }));
  EXPECT_EQ(stats().disk_block_count, 2u);
  EXPECT_TRUE(eventually([&] { return held->with([](MemoryDisk& each) { return each.drops().empty(); }); }));
  ASSERT_TRUE(driver->stop(/*save=*/false));
  disk.crash_unsynced(disk.unsynced_count());
  start();
  EXPECT_TRUE(eventually([&] { return is_loaded(); }));
  EXPECT_EQ(stats().disk_block_count, 2u);
}

TEST_F(DiskThreadsTest, AStopAnswersEveryDrop) {
  ASSERT_TRUE(driver->stop(/*save=*/false));
  open_error = Errc::kDiskFailed;
  start();
  Answers answers;
  for (int i = 0; i < 10; ++i) driver->keep_drop({}, answers.one());
  ASSERT_TRUE(driver->stop(/*save=*/false));
  EXPECT_EQ(answers.not_kept, 10);
  driver->keep_drop({}, answers.one());
  EXPECT_EQ(answers.not_kept, 11);
}

TEST_F(DiskThreadsTest, ALoadThatBreaksOffIsTriedAgain) {
  put(chain(1, 6));
  put(chain(2, 6));
  ASSERT_TRUE(driver->stop(/*save=*/true));
  disk.crash(disk.block_count());
  disk.fails_load_after = 5;
  start();
  EXPECT_TRUE(eventually([&] { return held->loads >= 2; }));
  held->with([](MemoryDisk& each) { each.fails_load_after = ~std::size_t{0}; });
  EXPECT_TRUE(eventually([&] { return stats().disk_block_count == 12; }));
  EXPECT_TRUE(eventually([&] { return is_on(); }));
}

TEST_F(DiskThreadsTest, ALoadThatAlwaysBreaksOffIsGivenUpAndTheRestIsThere) {
  put(chain(1, 6));
  put(chain(2, 6));
  ASSERT_TRUE(driver->stop(/*save=*/true));
  disk.crash(disk.block_count());
  disk.fails_load_after = 8;
  start();
  EXPECT_TRUE(eventually([&] { return is_loaded(); }));
  EXPECT_EQ(held->loads, 5);
  EXPECT_EQ(stats().disk_block_count, 6u) << "of the older chain the first blocks were not reached";
}

}  // namespace
}  // namespace kv
