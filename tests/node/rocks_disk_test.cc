// RocksDisk on a good day, and after the process died.
#include "store/node/disk/rocks/rocks_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>

#include "store/node/disk/files/disk_format.h"
#include "tests/node/disk_fixture.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RocksDiskTest : public DiskTest {};

/// count numbers down from `newest`.
std::vector<std::uint32_t> down_from(std::uint32_t newest, std::size_t count) {
  std::vector<std::uint32_t> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = newest - static_cast<std::uint32_t>(i);
  return all;
}

TEST_F(RocksDiskTest, BlocksOfEverySizeComeBackWithTheirChecksums) {
  const auto disk = open();
  std::uint64_t number = 1;
  for (const std::size_t bytes : {1, 7, 4096, 65535, 65536, 65537, 131072, 1 << 20, 2 << 20, (2 << 20) + 1})
    ASSERT_FALSE(write(*disk, number++, 1, bytes));
  EXPECT_EQ(numbers(*disk), down_from(10, 10));
  for (const DiskRecord& record : named(*disk)) EXPECT_TRUE(is_right(*disk, record));
  ASSERT_FALSE(disk->flush());
  for (const DiskRecord& record : named(*disk)) EXPECT_TRUE(is_right(*disk, record));
  EXPECT_EQ(disk->read(key(*disk, 11)).error(), Errc::kNotFound);
  EXPECT_EQ(disk->read(DiskKey{0}).error(), Errc::kNotFound);
}

TEST_F(RocksDiskTest, AnErasedBlockIsNotNamedAgain) {
  {
    const auto disk = open();
    ASSERT_FALSE(write(*disk, 1, 5, 10000));
    const DiskKey keys[] = {key(*disk, 2), key(*disk, 5)};
    ASSERT_FALSE(disk->erase(keys));
    EXPECT_THAT(numbers(*disk), ElementsAre(4, 3, 1));
    ASSERT_FALSE(disk->flush());
  }
  EXPECT_THAT(numbers(*open()), ElementsAre(4, 3, 1));
}

TEST_F(RocksDiskTest, DropBeforeForgetsSmallerKeysAndGivesTheirFilesBack) {
  const auto disk = open();
  ASSERT_FALSE(write(*disk, 0, 100, 50000));
  ASSERT_FALSE(disk->flush());
  const std::uint64_t full = disk->stats().file_bytes;
  EXPECT_GT(full, 100 * 50000u);
  ASSERT_FALSE(disk->drop_before(key(*disk, 80)));
  EXPECT_EQ(numbers(*disk), down_from(99, 20));
  for (std::uint64_t number = 0; number < 100; ++number) {
    const auto block = disk->read(key(*disk, number));
    EXPECT_EQ(block.has_value(), number >= 80);
    EXPECT_TRUE(block || block.error() == Errc::kNotFound);
  }
  // A file goes once RocksDB has moved it to level 1, which a thread of its own does: the next drop takes it along.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (disk->stats().file_bytes >= 20 * 50000 + 2 * kMemtableBytes) {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_FALSE(disk->drop_before(key(*disk, 80)));
  }
  ASSERT_FALSE(disk->drop_before(key(*disk, 10)));  // a smaller end than before changes nothing
  EXPECT_EQ(numbers(*disk), down_from(99, 20));
}

/// What all files of the directory hold.
std::vector<std::string> files_of(const std::filesystem::path& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    std::string& text = files.emplace_back(entry.file_size(), '\0');
    std::ifstream(entry.path(), std::ios::binary).read(text.data(), static_cast<std::streamsize>(text.size()));
  }
  return files;
}

TEST_F(RocksDiskTest, APurgeTakesTheBytesOfWhatIsGoneOutOfTheFilesAndLeavesTheRest) {
  constexpr std::uint64_t kCount = 60;
  constexpr std::size_t kBytes = 30000;
  NamespaceId other;
  other.bytes.fill(std::byte{0x77});
  const auto block_of = [&](std::uint64_t number) {
    NumberedBlock block(number, kBytes);
    if (number % 4 == 3) block.record.space = other;
    block_checksums(checksum_seed(block.record.space, block.record.hash), block.bytes, block.checksums);
    return block;
  };
  const auto lies_in = [&](const std::vector<std::string>& files, std::uint64_t number) {
    const NumberedBlock block = block_of(number);
    // A part that lies in the file in one piece.
    const std::string_view part(reinterpret_cast<const char*>(block.bytes.data()) + 1000, 64);
    return std::ranges::any_of(files, [&](const std::string& file) { return file.find(part) != std::string::npos; });
  };
  const auto expect_rest = [&](const RocksDisk& disk, std::uint32_t epoch) {
    for (std::uint64_t number = 0; number < kCount; number += 2) {
      const auto block = disk.read(DiskKey{std::uint64_t{epoch} << 40 | number});
      ASSERT_TRUE(block) << number << ": " << block.error().message();
      EXPECT_TRUE(std::ranges::equal(block->bytes, block_of(number).bytes)) << number;
    }
  };
  std::uint32_t epoch = 0;
  {
    const auto disk = open();
    epoch = disk->epoch();
    std::vector<DiskKey> erased;
    for (std::uint64_t number = 0; number < kCount; ++number) {
      NumberedBlock block = block_of(number);
      block.record.key = key(*disk, number);
      const DiskWrite write{block.record, block.bytes, block.checksums};
      ASSERT_FALSE(disk->write({&write, 1}));
      if (number % 4 == 1) erased.push_back(block.record.key);
    }
    ASSERT_FALSE(disk->erase(erased));
    ASSERT_FALSE(disk->flush());
    const auto before = files_of(path);
    for (std::uint64_t number = 0; number < kCount; ++number)
      ASSERT_TRUE(lies_in(before, number)) << "dead blocks stay in files";
    const std::size_t file_count = disk->block_files().size();
    ASSERT_GT(file_count, 3u);
    const DiskDrop dropped[] = {{.space = other, .hash = {}, .before = key(*disk, kCount - 1)}};
    EXPECT_EQ(disk->purge(dropped, [](const DiskPurge&) { return false; }).error(), Errc::kCancelled);
    std::uint64_t looked = 0;
    const auto purged = disk->purge(dropped, [&](const DiskPurge& so_far) {
      looked = so_far.looked_count;
      return true;
    });
    ASSERT_TRUE(purged) << purged.error().message();
    EXPECT_EQ(looked + 1, purged->looked_count);
    EXPECT_EQ(purged->looked_count, purged->file_count);
    EXPECT_GE(purged->rewritten_count, file_count - 1);
    EXPECT_GT(purged->given_back_bytes, kCount / 2 * kBytes * 9 / 10);
    const auto after = files_of(path);
    for (std::uint64_t number = 0; number + 1 < kCount; ++number)
      EXPECT_EQ(lies_in(after, number), number % 2 == 0) << number;
    EXPECT_TRUE(lies_in(after, kCount - 1)) << "written after the drop";
    expect_rest(*disk, epoch);
    // Files are still one after the other, and given back as ever.
    const auto files = disk->block_files();
    for (std::size_t i = 1; i < files.size(); ++i) EXPECT_LT(files[i - 1].last, files[i].first);
    EXPECT_GE(files.size() + 1, file_count) << "none was merged with another";
    const auto again = disk->purge(dropped, [](const DiskPurge&) { return true; });
    ASSERT_TRUE(again);
    EXPECT_EQ(again->rewritten_count, 0u) << "there is nothing to do any more";
    ASSERT_FALSE(write(*disk, kCount, 20, kBytes));
    ASSERT_FALSE(disk->flush());
  }
  const auto disk = open();
  EXPECT_EQ(opening.recovery, DiskRecovery::kNone) << opening.text;
  expect_rest(*disk, epoch);
  EXPECT_TRUE(disk->read(DiskKey{std::uint64_t{epoch} << 40 | (kCount + 3)}));
  // Of files that this start has not written, a drop that knows no key means all.
  const DiskDrop all[] = {{.space = other, .hash = {}}};
  const auto late = disk->purge(all, [](const DiskPurge&) { return true; });
  ASSERT_TRUE(late) << late.error().message();
  EXPECT_EQ(late->rewritten_count, 1u);
  EXPECT_FALSE(lies_in(files_of(path), kCount - 1));
  expect_rest(*disk, epoch);
}

TEST_F(RocksDiskTest, APurgeRunsBesideWritesAndReads) {
  const auto disk = open();
  constexpr std::uint64_t kBefore = 40, kMore = 60;
  constexpr std::size_t kBytes = 30000;
  ASSERT_FALSE(write(*disk, 0, kBefore, kBytes));
  std::vector<DiskKey> erased;
  for (std::uint64_t number = 0; number < kBefore; number += 2) erased.push_back(key(*disk, number));
  ASSERT_FALSE(disk->erase(erased));
  ASSERT_FALSE(disk->flush());
  error_code failed;
  std::thread writer([&] { failed = write(*disk, kBefore, kMore, kBytes); });
  std::thread purger([&] {
    const auto purged = disk->purge({}, [](const DiskPurge&) { return true; });
    EXPECT_TRUE(purged) << purged.error().message();
  });
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t number = 1; number < kBefore; number += 2) EXPECT_TRUE(disk->read(key(*disk, number)));
  }
  writer.join();
  purger.join();
  EXPECT_FALSE(failed);
  for (std::uint64_t number = kBefore; number < kBefore + kMore; ++number)
    EXPECT_TRUE(disk->read(key(*disk, number))) << number;
  for (const DiskRecord& record : named(*disk)) EXPECT_TRUE(is_right(*disk, record));
}

TEST_F(RocksDiskTest, ACleanStopKeepsEverythingAndTheEpochGrows) {
  NamespaceId other;
  std::uint32_t epoch = 0;
  for (std::uint32_t start = 0; start < 4; ++start) {
    const auto disk = open();
    EXPECT_EQ(opening.recovery, DiskRecovery::kNone) << opening.text;
    EXPECT_GT(disk->epoch(), epoch);
    epoch = disk->epoch();
    EXPECT_EQ(numbers(*disk), down_from(start * 30 - 1, start * 30));
    for (const DiskRecord& record : named(*disk)) ASSERT_TRUE(is_right(*disk, record));
    ASSERT_FALSE(disk->add_namespace(disk_space(), "model=a\n"));
    ASSERT_FALSE(disk->add_namespace(other, "model=b\n"));
    ASSERT_FALSE(write(*disk, start * 30, 30, 20000));
    ASSERT_FALSE(disk->flush());
  }
  std::map<NamespaceId, std::string> spaces;
  const auto disk = open();
  ASSERT_FALSE(disk->load([&](const NamespaceId& id, const std::string& record) { spaces[id] = record; },
                          [](const DiskRecord&) { return false; }));
  EXPECT_EQ(spaces, (std::map<NamespaceId, std::string>{{disk_space(), "model=a\n"}, {other, "model=b\n"}}));
}

TEST_F(RocksDiskTest, RecordsOfNamespacesThatAreGoneGo) {
  const auto spaces = [](const Disk& disk) {
    std::map<NamespaceId, std::string> found;
    EXPECT_FALSE(disk.load([&](const NamespaceId& id, const std::string& record) { found[id] = record; },
                           [](const DiskRecord&) { return false; }));
    return found;
  };
  NamespaceId other, never;
  never.bytes.fill(std::byte{1});
  const std::map<NamespaceId, std::string> kept = {{disk_space(), "model=a\n"}};
  {
    const auto disk = open();
    ASSERT_FALSE(disk->add_namespace(disk_space(), "model=a\n"));
    ASSERT_FALSE(disk->add_namespace(other, "model=b\n"));
    ASSERT_FALSE(disk->flush());
    ASSERT_FALSE(disk->remove_namespaces(std::vector{other, never}));
    EXPECT_EQ(spaces(*disk), kept);
    ASSERT_FALSE(disk->flush());
  }
  {
    const auto disk = open();
    EXPECT_EQ(spaces(*disk), kept);
    ASSERT_FALSE(disk->add_namespace(other, "model=b\n"));
    ASSERT_FALSE(disk->flush());
    ASSERT_FALSE(disk->remove_namespaces(std::vector{other}));
    ASSERT_FALSE(disk->add_namespace(other, "model=b\n"));  // opened again
    ASSERT_FALSE(disk->flush());
  }
  EXPECT_EQ(spaces(*open()).size(), 2u);
}

TEST_F(RocksDiskTest, LoadEndsWhenItIsToldTo) {
  const auto disk = open();
  ASSERT_FALSE(write(*disk, 1, 9, 100));
  std::vector<std::uint32_t> seen;
  ASSERT_FALSE(disk->load([](const NamespaceId&, const std::string&) {},
                          [&](const DiskRecord& record) {
                            seen.push_back(record.position);
                            return seen.size() < 3;
                          }));
  EXPECT_THAT(seen, ElementsAre(9, 8, 7));
}

TEST_F(RocksDiskTest, WhatWasNotFlushedIsForgottenWithItsRecord) {
  {
    const auto disk = open();
    ASSERT_FALSE(write(*disk, 0, 10, 10000));
    ASSERT_FALSE(disk->erase(std::vector{key(*disk, 4)}));
    ASSERT_FALSE(disk->flush());
    ASSERT_FALSE(write(*disk, 10, 3, 10000));
    ASSERT_FALSE(disk->erase(std::vector{key(*disk, 5), key(*disk, 11)}));
  }
  const auto disk = open();
  EXPECT_THAT(numbers(*disk), ElementsAre(9, 8, 7, 6, 5, 3, 2, 1, 0)) << "the erasure of 5 was not written out";
  for (const DiskRecord& record : named(*disk)) EXPECT_TRUE(is_right(*disk, record));
  ASSERT_FALSE(write(*disk, 10, 3, 10000));
  ASSERT_FALSE(disk->flush());
  EXPECT_EQ(named(*disk).size(), 12u);
}

/// Not a test: the child of the next one. Says on descriptor 1 how far it is.
TEST_F(RocksDiskTest, DISABLED_WritesUntilKilled) {
  const char* const child_path = std::getenv("KV_CHILD_PATH");
  if (child_path == nullptr) GTEST_SKIP() << "only as a child";
  path = child_path;
  const auto disk = open();
  for (std::uint64_t number = std::strtoull(std::getenv("KV_CHILD_FIRST"), nullptr, 10);; number += 4) {
    if (write(*disk, number, 4, 30000)) ::_exit(4);
    if (number % 16 == 0 && disk->erase(std::vector{key(*disk, number)})) ::_exit(5);
    if (std::printf("AT %llu\n", static_cast<unsigned long long>(number)) < 0 || std::fflush(stdout) != 0) ::_exit(6);
  }
}

/// A child writes and erases until it is killed in the middle; what load() then names must be a prefix of what was
/// written (less what was erased), all of it readable and right. Ten times on one directory.
TEST_F(RocksDiskTest, AfterKillEveryNamedBlockIsThereAndRight) {
  std::uint64_t next = 0;
  std::size_t survived = 0;
  for (int round = 0; round < 10; ++round) {
    int progress[2];
    ASSERT_EQ(::pipe(progress), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      // A program of its own: RocksDB's threads do not survive a fork.
      ::dup2(progress[1], 1);
      ::setenv("KV_CHILD_PATH", path.c_str(), 1);
      ::setenv("KV_CHILD_FIRST", std::to_string(next).c_str(), 1);
      ::execl("/proc/self/exe", "writer", "--gtest_also_run_disabled_tests",
              "--gtest_filter=RocksDiskTest.DISABLED_WritesUntilKilled", nullptr);
      ::_exit(3);
    }
    ::close(progress[1]);
    std::uint64_t written = 0;
    const std::uint64_t stop = next + 40 + 37 * static_cast<std::uint64_t>(round);  // four to a memtable, or so
    std::FILE* const said = ::fdopen(progress[0], "r");
    char line[200];
    const auto next_line = [&] {
      if (std::fgets(line, sizeof line, said) == nullptr) return false;
      if (std::strncmp(line, "AT ", 3) == 0) written = std::strtoull(line + 3, nullptr, 10);
      return true;
    };
    while (written < stop) ASSERT_TRUE(next_line()) << "the child ended by itself";
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    while (next_line()) continue;
    std::fclose(said);

    const auto disk = open();
    EXPECT_EQ(opening.recovery, DiskRecovery::kNone) << opening.text;
    const auto records = named(*disk);
    for (const DiskRecord& record : records) ASSERT_TRUE(is_right(*disk, record));
    std::uint64_t mine = 0, newest = 0;  // of this round
    for (const DiskRecord& record : records) {
      if (record.position < next) continue;
      ++mine;
      newest = std::max<std::uint64_t>(newest, record.position);
    }
    if (mine > 0) {
      EXPECT_LE(newest, written + 8);
      std::uint64_t erased = 0;
      for (std::uint64_t number = next; number <= newest; number += 4) erased += number % 16 == 0;
      EXPECT_LE(mine, newest + 1 - next);
      EXPECT_GE(mine + erased, newest + 1 - next) << "there is a gap";
    }
    survived += mine;
    next = (written + 100) / 16 * 16;
  }
  EXPECT_GT(survived, 100u);
}

TEST_F(RocksDiskTest, FilledManyTimesOverEachByteIsWrittenOnce) {
  constexpr std::size_t kBlockBytes = 64 << 10;
  const auto disk = open();
  for (std::uint64_t number = 0; number < 1200; number += 20) {  // 75 MiB through a disk of 15
    ASSERT_FALSE(write(*disk, number, 20, kBlockBytes));
    if (number >= 240) {
      ASSERT_FALSE(disk->erase(std::vector{key(*disk, number - 3)}));
      ASSERT_FALSE(disk->drop_before(key(*disk, number - 220)));
    }
  }
  ASSERT_FALSE(disk->flush());
  const DiskStats stats = disk->stats();
  EXPECT_EQ(stats.written_bytes, 1200 * (kBlockBytes + 8));
  EXPECT_GE(stats.device_written_bytes, stats.written_bytes);
  EXPECT_LE(static_cast<double>(stats.device_written_bytes), 1.1 * static_cast<double>(stats.written_bytes));
  EXPECT_LE(stats.file_bytes, 240 * kBlockBytes + 4 * kMemtableBytes);
  std::printf("write amplification %.3f\n",
              static_cast<double>(stats.device_written_bytes) / static_cast<double>(stats.written_bytes));
  for (const DiskRecord& record : named(*disk)) ASSERT_TRUE(is_right(*disk, record));
}

TEST_F(RocksDiskTest, ReadersRunWhileOneThreadWritesAndDrops) {
  const auto disk = open();
  ASSERT_FALSE(write(*disk, 0, 40, 20000));
  std::atomic<bool> done = false;
  std::atomic<std::uint64_t> wrong = 0, right = 0;
  std::vector<std::thread> readers;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    readers.emplace_back([&, seed] {
      for (std::uint64_t turn = seed; !done; ++turn) {
        const std::uint64_t number = mix(turn) % 400;
        const auto block = disk->read(key(*disk, number));
        if (!block) {
          wrong += block.error() != Errc::kNotFound;
          continue;
        }
        const NumberedBlock expected(number, 20000);
        const bool is_same = std::ranges::equal(block->bytes, expected.bytes) &&
                             std::ranges::equal(block->checksums, expected.checksums);
        (is_same ? right : wrong) += 1;
      }
    });
  }
  for (std::uint64_t number = 40; number < 400; number += 4) {
    EXPECT_FALSE(write(*disk, number, 4, 20000));
    if (number % 60 == 0) {
      EXPECT_FALSE(disk->drop_before(key(*disk, number - 40)));
    }
  }
  while (right < 10) std::this_thread::yield();
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0u);
}

TEST_F(RocksDiskTest, ASecondNodeOnTheDirectoryIsRefusedAndToldWhoHasIt) {
  const auto disk = open();
  const auto second = RocksDisk::open(config(), &opening);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error(), Errc::kBusy);
  EXPECT_THAT(second.error().text, HasSubstr("in use by process " + std::to_string(::getpid())));
  ASSERT_FALSE(write(*disk, 1, 1, 100));  // and the first goes on
}

/// Every file below `path` with its bytes.
std::map<std::string, std::string> snapshot(const std::filesystem::path& path) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().string()] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

TEST_F(RocksDiskTest, ANewerFormatIsRefusedAndLeftUntouched) {
  { open(); }
  std::ofstream(path / "FORMAT") << format_text(kDiskFormatSealed + 1) << "more that only it knows\n";
  const auto before = snapshot(path);
  const auto disk = RocksDisk::open(config(), &opening);
  ASSERT_FALSE(disk);
  EXPECT_EQ(disk.error(), Errc::kUnsupported);
  EXPECT_THAT(disk.error().text, HasSubstr("disk format 3"));
  EXPECT_EQ(snapshot(path), before);
}

TEST_F(RocksDiskTest, AForeignDirectoryIsRefusedAndLeftUntouched) {
  std::filesystem::create_directories(path);
  std::ofstream(path / "thesis.tex") << "irreplaceable";
  const auto before = snapshot(path);
  const auto disk = RocksDisk::open(config(), &opening);
  ASSERT_FALSE(disk);
  EXPECT_EQ(disk.error(), Errc::kMismatch);
  EXPECT_THAT(disk.error().text, HasSubstr("thesis.tex"));
  EXPECT_EQ(snapshot(path), before);
}

TEST_F(RocksDiskTest, AForeignDatabaseIsRefusedAndLeftUntouched) {
  rocksdb::Options options;
  options.create_if_missing = true;
  rocksdb::DB* db = nullptr;
  std::filesystem::create_directories(root);
  ASSERT_TRUE(rocksdb::DB::Open(options, path.string(), &db).ok());
  delete db;
  const auto before = snapshot(path);
  const auto disk = RocksDisk::open(config(), &opening);
  ASSERT_FALSE(disk);
  EXPECT_EQ(disk.error(), Errc::kMismatch);
  EXPECT_EQ(snapshot(path), before);
}

TEST_F(RocksDiskTest, APathThatIsAFileIsRefusedWithAdvice) {
  std::ofstream(path.string()) << "not a directory";
  const auto disk = RocksDisk::open(config(), &opening);
  ASSERT_FALSE(disk);
  EXPECT_THAT(disk.error().text, HasSubstr(path.string() + ": is no directory"));
}

TEST_F(RocksDiskTest, AToolThatOnlyReadsChangesNothing) {
  {
    const auto disk = open();
    ASSERT_FALSE(write(*disk, 1, 20, 30000));
    ASSERT_FALSE(disk->flush());
  }
  const auto before = snapshot(path);
  RocksDiskConfig reading = config();
  reading.read_only = true;
  {
    const auto disk = RocksDisk::open(reading, &opening);
    ASSERT_TRUE(disk) << disk.error();
    EXPECT_EQ((*disk)->epoch(), 1u);
    EXPECT_EQ(numbers(**disk), down_from(20, 20));
    for (const DiskRecord& record : named(**disk)) EXPECT_TRUE(is_right(**disk, record));
  }
  EXPECT_EQ(snapshot(path), before);
}

}  // namespace
}  // namespace kv
