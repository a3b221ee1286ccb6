// Named contexts over a restart: a file that is read, written soon after a change, damaged, late, or never answers; and
// how it lies on disk, with keys and without.
#include "store/node/jobs/context_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>
#include <thread>

#include "store/node/disk/files/kept_file.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/store/store_fixture.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kBytes = 4096;
constexpr std::uint64_t kWall = 1'800'000'000'000'000;

/// What is in the files, for both threads.
struct FakeFiles {
  std::mutex mutex;
  std::vector<std::pair<std::size_t, std::string>> files;  ///< By place.
  std::vector<std::size_t> aside;
  std::vector<std::string> written;
  int forgotten = 0;
  error_code failure;

  ContextKeeper::File door() {
    return {.read =
                [this] {
                  const std::lock_guard lock(mutex);
                  std::vector<ContextKeeper::File::Found> all;
                  for (const auto& [place, text] : files) all.push_back({place, text});
                  return all;
                },
            .write =
                [this](const std::string& text) {
                  const std::lock_guard lock(mutex);
                  if (failure) return failure;
                  written.push_back(text);
                  files = {{0, text}};
                  return error_code();
                },
            .set_aside =
                [this](std::size_t place) {
                  const std::lock_guard lock(mutex);
                  aside.push_back(place);
                },
            .forget_aside =
                [this] {
                  const std::lock_guard lock(mutex);
                  ++forgotten;
                  return error_code();
                }};
  }
  std::size_t write_count() {
    const std::lock_guard lock(mutex);
    return written.size();
  }
};

class ContextKeeperTest : public testing::Test {
 protected:
  static std::unique_ptr<Store> make_store() {
    StoreConfig config;
    config.arena.capacity_bytes = 64 * kBytes;
    config.arena.granule_bytes = kBytes;
    config.arena.huge_pages = false;
    config.arena.touch = false;
    return Store::create(config).value();
  }
  std::unique_ptr<ContextKeeper> make_keeper(LockedStore& of, FakeFiles& in) {
    written_before = in.write_count();  // by those before
    return std::make_unique<ContextKeeper>(of, clock, in.door(), [this] { return wall(); });
  }
  std::uint64_t wall() const {
    return kWall + static_cast<std::uint64_t>((clock.now() - TimePoint(1s)) / 1us + wall_off_us);
  }
  void make(LockedStore& of, const std::string& name, Duration ttl = 1h, const std::string& owner = "") {
    of.with([&](Store& each) {
      const SpaceId space = each.open(make_record("m", kBytes)).value();
      const auto made = each.create_context(
          {.owner = owner, .name = name, .space = space, .hashes = chain(1, 3), .life = {ttl, false}}, clock.now());
      EXPECT_TRUE(made);
    });
  }
  std::vector<std::string> names(LockedStore& of, const std::string& owner = "") {
    std::vector<std::string> all;
    for (const auto& each : of.with([&](Store& s) { return s.list_contexts(owner, "", 100, clock.now()); }))
      all.push_back(each.name);
    return all;
  }
  /// Waits until what was handed over is written: by the thread, which takes no virtual time.
  void settle(ContextKeeper& keeper) {
    const auto done = [&] {
      for (const auto& value : keeper.stats())
        if (std::string_view(value.name) == "context_file_writes") return static_cast<std::size_t>(value.value);
      return std::size_t{0};
    };
    while (done() + written_before < files.write_count()) std::this_thread::yield();
  }
  void tick_until(ContextKeeper& keeper, std::size_t writes) {
    keeper.tick(true);
    while (files.write_count() < writes) std::this_thread::yield();
    settle(keeper);
  }

  NodeMetrics metrics{"test"};
  VirtualClock clock;
  LockedStore store{make_store(), metrics};
  FakeFiles files;
  std::size_t written_before = 0;
  std::int64_t wall_off_us = 0;
};

TEST_F(ContextKeeperTest, WhatThereIsAtTheEndIsThereAtTheNextStart) {
  {
    const auto keeper = make_keeper(store, files);
    EXPECT_TRUE(keeper->start());
    make(store, "long");
    make(store, "short", 5s);
    EXPECT_TRUE(keeper->stop(true));
  }
  clock.advance(10s);
  LockedStore next(make_store(), metrics);
  const auto keeper = make_keeper(next, files);
  EXPECT_TRUE(keeper->start());
  EXPECT_THAT(names(next), ElementsAre("long"));
  EXPECT_EQ(next.with([&](Store& each) { return each.find_context("", "long", clock.now())->end - clock.now(); }),
            1h - 10s);
  clock.advance(ContextKeeper::kOrderPause);
  tick_until(*keeper, 2);  // without the one that has ended
  EXPECT_EQ(read_contexts(files.written.back(), {clock.now(), wall()})->contexts.size(), 1u);
}

/// The clock of one start is wrong; that of the next one is right again.
TEST_F(ContextKeeperTest, AStartWithAWrongClockEndsNoContext) {
  {
    const auto keeper = make_keeper(store, files);
    EXPECT_TRUE(keeper->start());
    make(store, "precious", 1h);
    EXPECT_TRUE(keeper->stop(true));
  }
  const auto doubted = [](ContextKeeper& keeper) {
    for (const auto& value : keeper.stats())
      if (std::string_view(value.name) == "context_clock_doubted") return value.value;
    return -1.0;
  };
  constexpr std::int64_t kYear = std::int64_t{365} * 24 * 3'600'000'000;
  Duration left = 1h;
  const auto start_with = [&](std::int64_t clock_is_off_us, double is_doubted) {
    wall_off_us = clock_is_off_us;
    LockedStore next(make_store(), metrics);
    const auto keeper = make_keeper(next, files);
    EXPECT_TRUE(keeper->start());
    EXPECT_EQ(doubted(*keeper), is_doubted) << clock_is_off_us;
    ASSERT_THAT(names(next), ElementsAre("precious")) << clock_is_off_us;
    EXPECT_EQ(next.with([&](Store& each) { return each.find_context("", "precious", clock.now())->end - clock.now(); }),
              left)
        << clock_is_off_us;
    clock.advance(1min);
    left -= 1min;
    EXPECT_TRUE(keeper->stop(true));
  };
  for (const std::int64_t off : {-50 * kYear, 50 * kYear}) {
    start_with(off, 1);
    start_with(0, 1);
    start_with(0, 0);
  }
  start_with(-60'000'000, 0);  // a minute back, as a clock is set
  start_with(0, 0);
  start_with(-20 * std::int64_t{24} * 3'600'000'000, 1);  // and by weeks
  start_with(0, 0);
}

TEST_F(ContextKeeperTest, AChangeIsWrittenSoonAndARestNever) {
  const auto keeper = make_keeper(store, files);
  EXPECT_TRUE(keeper->start());
  keeper->tick(true);
  EXPECT_EQ(files.write_count(), 0u);
  make(store, "a");
  keeper->tick(false);  // the directory is another's, perhaps
  EXPECT_EQ(files.write_count(), 0u);
  tick_until(*keeper, 1);
  make(store, "b");
  clock.advance(ContextKeeper::kOrderPause - 1ns);
  keeper->tick(true);
  EXPECT_EQ(files.write_count(), 1u) << "not each of many orders";
  clock.advance(1ns);
  tick_until(*keeper, 2);
  clock.advance(ContextKeeper::kUsePause);
  keeper->tick(true);
  EXPECT_EQ(files.write_count(), 2u) << "nothing has changed";
  store.with([&](Store& each) {
    const SpaceId space = each.open(make_record("m", kBytes)).value();
    OfferPlan plan = each.offer(space, chain(1, 3), {}, clock.now()).value();
    for (const auto& block : plan.incoming) {
      std::vector<std::uint64_t> sums(stripe_count(kBytes));
      block_checksums(block.seed, block.bytes, sums);
      each.commit(plan.put, sums, clock.now());
    }
    each.end_put(plan.put);
    each.tend_contexts(clock.now());
    each.touch(space, chain(1, 3), clock.now()).value();
  });
  tick_until(*keeper, 3);
  clock.advance(ContextKeeper::kFigurePause);
  tick_until(*keeper, 4);  // for what was stored by the second
  EXPECT_TRUE(keeper->stop(true));
  EXPECT_EQ(files.write_count(), 5u);
}

TEST_F(ContextKeeperTest, WhereNothingEverWasNothingIsWritten) {
  const auto keeper = make_keeper(store, files);
  EXPECT_TRUE(keeper->start());
  EXPECT_TRUE(keeper->stop(true));
  EXPECT_EQ(files.write_count(), 0u);
}

TEST_F(ContextKeeperTest, ADamagedFileIsKeptAsideAndCostsNothingElse) {
  make(store, "a");
  {
    const auto keeper = make_keeper(store, files);
    EXPECT_TRUE(keeper->start());
    EXPECT_TRUE(keeper->stop(true));
  }
  files.files[0].second[60] = static_cast<char>(files.files[0].second[60] ^ 1);
  LockedStore next(make_store(), metrics);
  const auto keeper = make_keeper(next, files);
  EXPECT_TRUE(keeper->start());
  EXPECT_THAT(names(next), IsEmpty());
  EXPECT_THAT(files.aside, IsEmpty()) << "the directory may be another's still";
  make(next, "b");
  EXPECT_TRUE(keeper->stop(true));
  EXPECT_THAT(files.aside, ElementsAre(0));
}

TEST_F(ContextKeeperTest, OfSeveralFilesTheNewestCounts) {
  make(store, "old");
  const auto text = [&] {
    FakeFiles one;
    const auto keeper = make_keeper(store, one);
    EXPECT_TRUE(keeper->start());
    EXPECT_TRUE(keeper->stop(true));
    return one.written.back();
  };
  const std::string old = text();
  clock.advance(1s);
  store.with([&](Store& each) { return each.delete_context("", "old", clock.now()); }).value();
  make(store, "new");
  files.files = {{1, old}, {2, text()}, {3, "nonsense"}};
  LockedStore next(make_store(), metrics);
  const auto keeper = make_keeper(next, files);
  EXPECT_TRUE(keeper->start());
  EXPECT_THAT(names(next), ElementsAre("new"));
  EXPECT_TRUE(keeper->stop(true));
  EXPECT_THAT(files.aside, ElementsAre(3));
}

TEST_F(ContextKeeperTest, AFailedWriteIsTriedAgainAndTold) {
  const auto keeper = make_keeper(store, files);
  EXPECT_TRUE(keeper->start());
  files.failure = make_error_code(Errc::kDiskFailed);
  make(store, "a");
  EXPECT_THAT(keeper->write_now(10s), HasSubstr(files.failure.message()));
  files.failure = {};
  clock.advance(ContextKeeper::kOrderPause);
  tick_until(*keeper, 1);
  EXPECT_EQ(keeper->write_now(10s), "");
}

TEST_F(ContextKeeperTest, WhatIsForgottenIsInNoFileAnyMore) {
  files.files = {{0, "nonsense with somebody's words"}};
  make(store, "mine", 1h, "blue");
  make(store, "theirs", 1h, "red");
  const auto keeper = make_keeper(store, files);
  EXPECT_TRUE(keeper->start());
  EXPECT_EQ(keeper->write_now(10s), "");
  EXPECT_THAT(files.written.back(), HasSubstr("mine"));
  store.with([&](Store& each) { return each.delete_contexts("blue", clock.now()); });
  EXPECT_EQ(keeper->forget(10s), "");
  EXPECT_THAT(files.written.back(), testing::Not(HasSubstr("mine")));
  EXPECT_THAT(files.written.back(), HasSubstr("theirs"));
  EXPECT_EQ(files.forgotten, 1);
}

TEST_F(ContextKeeperTest, AFileThatNeverAnswersHoldsUpNobody) {
  // Shared with the keeper's thread, which is left behind.
  struct Gate {
    std::promise<void> opened;
    std::shared_future<void> is_open{opened.get_future()};
  };
  const auto gate = std::make_shared<Gate>();
  const auto late = std::make_shared<std::promise<void>>();
  ContextKeeper::File hangs{.read =
                                [gate, late] {
                                  gate->is_open.wait();
                                  late->set_value();
                                  return std::vector<ContextKeeper::File::Found>();
                                },
                            .write = [](const std::string&) { return error_code(); },
                            .set_aside = [](std::size_t) {},
                            .forget_aside = [] { return error_code(); }};
  {
    ContextKeeper keeper(store, clock, std::move(hangs), [this] { return wall(); });
    EXPECT_FALSE(keeper.start(std::chrono::milliseconds(10)));
    make(store, "a");
    keeper.tick(true);
    EXPECT_FALSE(keeper.stop(true)) << "what it does not know is not written over";
  }
  gate->opened.set_value();
  late->get_future().wait();
}

// -- the file on a disk

class KeptFileTest : public testing::Test {
 protected:
  KeptFileTest() {
    std::string name = testing::TempDir() + "/kept-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    root = name;
    for (const char* const each : {"a", "b"}) std::filesystem::create_directory(root / each);
  }
  ~KeptFileTest() override { std::filesystem::remove_all(root); }
  std::shared_ptr<OperatorKeys> keys(const std::string& text) {
    std::ofstream(root / "keys") << text;
    std::filesystem::permissions(root / "keys", std::filesystem::perms::owner_read);
    auto opened = OperatorKeys::open(OperatorKeySource{.file = (root / "keys").string(), .command = {}});
    std::filesystem::permissions(root / "keys", std::filesystem::perms::owner_all);
    return std::move(opened).value();
  }
  KeptFile open(std::shared_ptr<OperatorKeys> with = nullptr, const char* first = "a", const char* second = "b") {
    return {{(root / first).string(), (root / second).string()}, "CONTEXTS", 100, std::move(with)};
  }
  std::string raw(const std::string& path) {
    std::ifstream file(root / path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::filesystem::path root;
  const std::string one = "one " + std::string(64, 'a') + "\n", two = "two " + std::string(64, 'b') + "\n";
};

TEST_F(KeptFileTest, IsFoundInWhateverOrderTheDirectoriesAreNamed) {
  EXPECT_THAT(open().read(), IsEmpty());
  EXPECT_FALSE(open().write("text"));
  EXPECT_EQ(raw("a/CONTEXTS"), "text");
  KeptFile other = open(nullptr, "b", "a");
  const auto found = other.read();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].directory, 1u);
  EXPECT_EQ(*found[0].text, "text");
  EXPECT_FALSE(other.write("newer"));
  EXPECT_EQ(raw("b/CONTEXTS"), "newer");
  EXPECT_FALSE(std::filesystem::exists(root / "a/CONTEXTS")) << "an older one would come back with another order";
}

TEST_F(KeptFileTest, GoesAlongWhenDirectoriesComeAndGo) {
  std::filesystem::create_directory(root / "c");
  KeptFile file = open();
  EXPECT_FALSE(file.write("text"));
  file.move_to({(root / "c").string(), (root / "b").string()});
  EXPECT_EQ(*file.read().at(0).text, "text") << "until the next write";
  EXPECT_FALSE(file.write("newer"));
  EXPECT_EQ(raw("c/CONTEXTS"), "newer");
  EXPECT_FALSE(std::filesystem::exists(root / "a/CONTEXTS")) << "it would come back with the directory";
  std::filesystem::remove_all(root / "a");
  std::ofstream(root / "a") << "another device is mounted there";
  EXPECT_FALSE(file.write("newest")) << "what was left keeps nobody waiting";
  EXPECT_EQ(raw("c/CONTEXTS"), "newest");
}

TEST_F(KeptFileTest, IsSealedWhereThereAreKeys) {
  EXPECT_FALSE(open().write("in plain text"));
  EXPECT_EQ(*open(keys(one)).read().at(0).text, "in plain text") << "of the time before the keys";
  EXPECT_FALSE(open(keys(one)).write("a secret"));
  EXPECT_THAT(raw("a/CONTEXTS"), testing::Not(HasSubstr("secret")));
  EXPECT_EQ(*open(keys(one)).read().at(0).text, "a secret");
  EXPECT_EQ(*open(keys(two + one)).read().at(0).text, "a secret");
  EXPECT_THAT(open(keys(two)).read().at(0).text.error().text, HasSubstr("'one', which was not given"));
  EXPECT_THAT(open().read().at(0).text.error().text, HasSubstr("which was not given"));
  EXPECT_FALSE(open(keys(two + one)).rewrap());
  EXPECT_EQ(*open(keys(two)).read().at(0).text, "a secret");
  const std::string good = raw("a/CONTEXTS");
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    std::ofstream(root / "a/CONTEXTS", std::ios::binary | std::ios::trunc) << bad;
    const auto read = open(keys(two)).read().at(0).text;
    EXPECT_TRUE(!read || at < 4) << at;  // without its first bytes it passes for plain text, which has a form too
  }
}

TEST_F(KeptFileTest, TheSealedFormStays) {
  std::ifstream file(std::string(KV_GOLDEN_DIR) + "/sealed-file", std::ios::binary);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  const auto opened =
      open_sealed_file({{"other", Secret(std::string(32, 'y'))}, {"k", Secret(std::string(32, 'x'))}}, golden);
  ASSERT_TRUE(opened) << opened.error().text;
  EXPECT_EQ(*opened, "what was written");
  EXPECT_EQ(seal_file({"k", Secret(std::string(32, 'x'))}, "what was written").size(), golden.size());
}

TEST_F(KeptFileTest, WhatIsTooLongOrNoFileIsRefusedAndKeptAside) {
  std::ofstream(root / "a/CONTEXTS") << std::string(101, 'x');
  KeptFile file = open();
  EXPECT_THAT(file.read().at(0).text.error().text, HasSubstr("101 bytes, at most 100"));
  file.set_aside(0);
  EXPECT_THAT(file.read(), IsEmpty());
  EXPECT_EQ(raw("a/CONTEXTS.damaged").size(), 101u);
  EXPECT_FALSE(file.forget_aside());
  EXPECT_FALSE(std::filesystem::exists(root / "a/CONTEXTS.damaged"));
  std::filesystem::create_symlink("/etc/passwd", root / "b/CONTEXTS");
  EXPECT_FALSE(file.read().at(0).text);
}

}  // namespace
}  // namespace kv
