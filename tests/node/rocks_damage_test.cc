// RocksDisk on a directory that was damaged: single bytes, missing files, a disk that takes no more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <spdlog/spdlog.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "store/node/disk/files/disk_format.h"
#include "store/node/disk/rocks/table_footer.h"
#include "tests/node/disk_fixture.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using Directory = std::map<std::string, std::string>;  // path below the directory -> bytes

std::map<std::string, std::uintmax_t> sizes_of_files(const fs::path& path) {
  std::map<std::string, std::uintmax_t> sizes;
  std::error_code gone;  // a compaction deletes its input
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file(gone)) sizes[entry.path().lexically_relative(path).string()] = entry.file_size(gone);
  }
  return sizes;
}

/// All of it at one moment, as a kill leaves it: RocksDB may be at work there, so the files are read until none has
/// come, gone or grown meanwhile.
Directory read_directory(const fs::path& path) {
  for (;;) {
    const auto before = sizes_of_files(path);
    Directory files;
    for (const auto& [name, bytes] : before) {
      std::ifstream in(path / name, std::ios::binary);
      files[name] = std::string(std::istreambuf_iterator<char>(in), {});
    }
    if (sizes_of_files(path) == before) return files;
  }
}

void write_directory(const fs::path& path, const Directory& files) {
  fs::remove_all(path);
  for (const auto& [name, bytes] : files) {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
  }
}

/// What a file is, by its name; files of blocks are told from the small families' by their size.
std::string kind_of(const std::string& name, std::size_t bytes) {
  const std::string file = fs::path(name).filename().string();
  if (file.ends_with(".sst")) return bytes > 30'000 ? "blocks" : "small";
  return file.substr(0, file.find('-'));
}

class RocksDamageTest : public DiskTest {
 protected:
  static constexpr std::uint64_t kBlocks = 48;
  static constexpr std::size_t kBlockBytes = 12'000;

  RocksDamageTest() { spdlog::set_level(spdlog::level::off); }  // thousands of openings, each with its story
  ~RocksDamageTest() override { spdlog::set_level(spdlog::level::info); }

  RocksDiskConfig small() const {
    RocksDiskConfig small = config();
    small.memtable_bytes = 128 << 10;
    return small;
  }
  /// A directory as a killed node leaves it: files of blocks, small families of several files.
  Directory make() {
    {
      auto disk = RocksDisk::open(small());
      EXPECT_TRUE(disk);
      EXPECT_FALSE((*disk)->add_namespace(disk_space(), std::string(300, 'n')));
      EXPECT_FALSE(write(**disk, 0, kBlocks, kBlockBytes));
      EXPECT_FALSE((*disk)->flush());
    }
    auto disk = RocksDisk::open(small());
    EXPECT_TRUE(disk);
    for (std::uint64_t number = 0; number < 6; ++number) {
      NamespaceId other;
      other.bytes[0] = static_cast<std::byte>(number);
      EXPECT_FALSE((*disk)->add_namespace(other, std::string(100, 'o')));
      EXPECT_FALSE((*disk)->erase(std::vector{DiskKey{std::uint64_t{1} << 40 | number}}));
      if (number == 3) {
        EXPECT_FALSE((*disk)->flush());
      }
    }
    return read_directory(path);
  }

  struct Found {
    std::uint64_t named = 0, right = 0;
    DiskRecovery recovery = DiskRecovery::kNone;
  };
  /// Opens what lies at `path`, which must succeed, and reads whatever load() names; no wrong byte may pass for
  /// right. `writes_after`: then it must be a disk again.
  Found open_and_read(bool writes_after = true) {
    Found found;
    const auto disk = RocksDisk::open(small(), &opening);
    EXPECT_TRUE(disk) << disk.error();
    if (!disk) return found;
    found.recovery = opening.recovery;
    for (const DiskRecord& record : named(**disk)) {
      ++found.named;
      const auto block = (*disk)->read(record.key);
      if (!block) {
        EXPECT_EQ(block.error(), Errc::kCorruptBlock) << opening.text;
        continue;
      }
      if (!verify_block(checksum_seed(record.space, record.hash), block->bytes, block->checksums)) continue;
      EXPECT_TRUE(is_right(**disk, record));
      ++found.right;
    }
    if (!writes_after) return found;
    const std::uint64_t number = 1000 + found.named;
    EXPECT_FALSE(write(**disk, number, 2, kBlockBytes));
    EXPECT_FALSE((*disk)->flush());
    EXPECT_TRUE((*disk)->read(key(**disk, number + 1)));
    return found;
  }
};

constexpr int kSamples = 100;

/// One byte of a file of the kind is changed, many times; KV_CORRUPT_SAMPLES says how many.
class RocksDamagedByteTest : public RocksDamageTest, public testing::WithParamInterface<const char*> {};

TEST_P(RocksDamagedByteTest, NeverGivesAWrongByteOrAFailedStart) {
  const char* const chosen_seed = std::getenv("KV_SEED");
  const std::uint64_t seed = chosen_seed != nullptr ? std::strtoull(chosen_seed, nullptr, 10) : std::random_device()();
  std::printf("KV_SEED=%llu\n", static_cast<unsigned long long>(seed));  // RocksDB may end the process
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  const char* const chosen_samples = std::getenv("KV_CORRUPT_SAMPLES");
  const int samples = chosen_samples != nullptr ? std::atoi(chosen_samples) : kSamples;
  const Directory good = make();
  std::vector<std::string> names;
  for (const auto& [name, bytes] : good)
    if (kind_of(name, bytes.size()) == GetParam() && !bytes.empty()) names.push_back(name);
  ASSERT_FALSE(names.empty()) << "no file of this kind";
  std::map<DiskRecovery, int> recoveries;
  std::uint64_t lost = 0;
  for (int sample = 0; sample < samples && !HasFailure(); ++sample) {
    Directory damaged = good;
    const std::string& name = names[random() % names.size()];
    std::string& bytes = damaged[name];
    const std::size_t offset = random() % bytes.size();
    const auto flipped = static_cast<char>(1 + random() % 255);
    bytes[offset] = static_cast<char>(bytes[offset] ^ flipped);
    SCOPED_TRACE(name + " byte " + std::to_string(offset) + " ^ " + std::to_string(static_cast<int>(flipped)));
    write_directory(path, damaged);
    const Found found = open_and_read(/*writes_after=*/sample % 10 == 0);
    ++recoveries[found.recovery];
    lost += kBlocks - std::min(kBlocks, found.right);
    if (sample % 20 == 0) {  // and the next start finds nothing to mend
      const auto again = RocksDisk::open(small(), &opening);
      ASSERT_TRUE(again) << again.error();
      EXPECT_EQ(opening.recovery, DiskRecovery::kNone) << opening.text;
    }
  }
  std::printf("%s: %d as it was, %d salvaged, %d repaired, %d emptied; %.1f of %llu blocks lost on average\n",
              GetParam(), recoveries[DiskRecovery::kNone], recoveries[DiskRecovery::kSalvaged],
              recoveries[DiskRecovery::kRepaired], recoveries[DiskRecovery::kStartedEmpty],
              static_cast<double>(lost) / samples, static_cast<unsigned long long>(kBlocks));
  EXPECT_EQ(recoveries[DiskRecovery::kStartedEmpty], 0) << "one byte must not cost everything";
}

INSTANTIATE_TEST_SUITE_P(FileKinds, RocksDamagedByteTest,
                         testing::Values("FORMAT", "LOCK", "CURRENT", "MANIFEST", "OPTIONS", "IDENTITY", "blocks",
                                         "small"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_F(RocksDamageTest, AnyMissingFileCostsAtMostWhatItHeld) {
  const Directory good = make();
  for (const auto& [name, bytes] : good) {
    SCOPED_TRACE(name);
    Directory damaged = good;
    damaged.erase(name);
    write_directory(path, damaged);
    const Found found = open_and_read();
    const std::string kind = kind_of(name, bytes.size());
    if (kind == "blocks") {
      EXPECT_GE(found.right + bytes.size() / kBlockBytes + 1, kBlocks - 6);  // six were erased
    } else if (kind != "small") {
      EXPECT_GE(found.right, kBlocks - 6);
    }
    EXPECT_EQ(found.named, found.right) << "what is gone is not named";
  }
}

TEST_F(RocksDamageTest, ATableWithADamagedEndIsTakenOutAndCostsWhatItHeld) {
  const Directory good = make();
  for (const auto& [name, bytes] : good) {
    if (!name.ends_with(".sst")) continue;
    const std::size_t tail = bytes.size() - std::min(bytes.size(), kTableTailBytes);
    if (look_at_table_end(std::string_view(bytes).substr(tail), bytes.size()) != TableEnd::kSound)
      continue;  // it was just being written
    // Of the footer: checksum type, and where metaindex and index lie. Then the name of a property.
    for (std::size_t at = 0; at <= 12; at += 2) {
      SCOPED_TRACE(name + " byte " + std::to_string(at));
      Directory damaged = good;
      char& byte = damaged[name][at < 12 ? bytes.size() - kTableFooterBytes + at : bytes.rfind("rocksdb.block.based")];
      byte = static_cast<char>(byte ^ (1 << at % 8));
      write_directory(path, damaged);
      const auto looked_at = RocksDisk::open({.path = path, .read_only = true}, &opening);
      EXPECT_EQ(looked_at.error(), Errc::kDiskFailed);
      EXPECT_THAT(looked_at.error().text, HasSubstr("damaged end"));
      const Found found = open_and_read(/*writes_after=*/at == 0);
      EXPECT_NE(found.recovery, DiskRecovery::kNone);
      EXPECT_NE(found.recovery, DiskRecovery::kStartedEmpty);
      EXPECT_EQ(found.named, found.right) << "what is gone is not named";
      if (kind_of(name, bytes.size()) == "blocks") {
        EXPECT_GE(found.right + bytes.size() / kBlockBytes + 1, kBlocks - 6);  // six were erased
      }
      int taken_out = 0;
      for (const auto& entry : fs::recursive_directory_iterator(path)) {
        if (!entry.is_regular_file() || !entry.path().lexically_relative(path).string().starts_with("damaged-"))
          continue;
        taken_out += entry.path().filename() == fs::path(name).filename();
      }
      EXPECT_EQ(taken_out, 1);
      const auto again = RocksDisk::open(small(), &opening);
      ASSERT_TRUE(again);
      EXPECT_EQ(opening.recovery, DiskRecovery::kNone) << opening.text;
    }
  }
}

TEST_F(RocksDamageTest, ATruncatedFileIsNeverAFailedStart) {
  const Directory good = make();
  for (const auto& [name, bytes] : good) {
    for (const std::size_t kept :
         {std::size_t{0}, bytes.size() / 2, bytes.size() - std::min<std::size_t>(1, bytes.size())}) {
      SCOPED_TRACE(name + " cut to " + std::to_string(kept));
      Directory damaged = good;
      damaged[name].resize(kept);
      write_directory(path, damaged);
      open_and_read();
    }
  }
}

TEST_F(RocksDamageTest, WhatCannotBeRepairedIsMovedAsideOnce) {
  for (int round = 0; round < 3; ++round) {
    fs::remove_all(path / "db");
    fs::create_directories(path / "db" / "CURRENT" / "not even a file");
    const auto disk = RocksDisk::open(small(), &opening);
    ASSERT_TRUE(disk) << disk.error();
    EXPECT_EQ(opening.recovery, DiskRecovery::kStartedEmpty);
    EXPECT_FALSE(opening.text.empty());
    EXPECT_TRUE(named(**disk).empty());
    int damaged = 0;
    for (const auto& entry : fs::directory_iterator(path))
      damaged += entry.path().filename().string().starts_with("damaged-");
    EXPECT_EQ(damaged, 1);
  }
}

TEST_F(RocksDamageTest, AMissingManifestIsRepairedFromTheFiles) {
  Directory damaged = make();
  std::erase_if(damaged, [](const auto& file) { return file.first.find("MANIFEST") != std::string::npos; });
  write_directory(path, damaged);
  const Found found = open_and_read();
  EXPECT_EQ(found.recovery, DiskRecovery::kRepaired);
  EXPECT_GE(found.right, kBlocks - 6);
  const auto disk = RocksDisk::open(small(), &opening);
  ASSERT_TRUE(disk);
  EXPECT_EQ((*disk)->epoch(), 4u) << "two before the damage, one after";
}

/// Not a test: the child of the next one, with a limit on the size of files in place of a full disk.
TEST_F(RocksDamageTest, DISABLED_WritesIntoALimit) {
  const char* const child_path = std::getenv("KV_CHILD_PATH");
  if (child_path == nullptr) GTEST_SKIP() << "only as a child";
  path = child_path;
  std::signal(SIGXFSZ, SIG_IGN);
  auto disk = RocksDisk::open(small(), &opening);
  ASSERT_TRUE(disk);
  ASSERT_FALSE(write(**disk, 0, 20, kBlockBytes));
  ASSERT_FALSE((*disk)->flush());
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full{.rlim_cur = 16 << 10, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  std::uint64_t number = 20;
  error_code error;
  for (; number < 200 && !error; number += 4) error = write(**disk, number, 4, kBlockBytes);
  EXPECT_TRUE(error) << "a disk that takes nothing more must say so";
  for (std::uint64_t each = 0; each < 20; ++each) EXPECT_TRUE((*disk)->read(key(**disk, each))) << "reads go on";
  error = {};
  for (; number < 380 && !error; number += 4) error = write(**disk, number, 4, kBlockBytes);
  EXPECT_TRUE(error) << "and goes on saying so";
  for (std::uint64_t each = 0; each < 3; ++each) (*disk)->add_namespace(NamespaceId{}, std::string(30'000, 'n'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_FALSE(write(**disk, 400, 4, kBlockBytes)) << "until there is room again";
  EXPECT_FALSE((*disk)->flush());
  for (std::uint64_t each = 400; each < 404; ++each) EXPECT_TRUE((*disk)->read(key(**disk, each)));
  for (const DiskRecord& record : named(**disk)) EXPECT_TRUE(is_right(**disk, record));
}

TEST_F(RocksDamageTest, AFullDiskIsSaidAndHealsByItself) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("KV_CHILD_PATH", path.c_str(), 1);
    ::execl("/proc/self/exe", "writer", "--gtest_also_run_disabled_tests",
            "--gtest_filter=RocksDamageTest.DISABLED_WritesIntoALimit", nullptr);
    ::_exit(3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const auto disk = RocksDisk::open(small(), &opening);
  ASSERT_TRUE(disk);
  EXPECT_EQ(opening.recovery, DiskRecovery::kNone) << opening.text;
  EXPECT_GE(named(**disk).size(), 24u);
  for (const DiskRecord& record : named(**disk)) EXPECT_TRUE(is_right(**disk, record));
}

/// RocksDB's threads that write memtables out, kept busy: to whoever writes, a disk that hangs.
class NoFlushes {
 public:
  NoFlushes() {
    rocksdb::Env* const env = rocksdb::Env::Default();
    env->IncBackgroundThreadsIfNeeded(1, rocksdb::Env::HIGH);
    for (int i = 0; i < env->GetBackgroundThreads(rocksdb::Env::HIGH); ++i) {
      waiting_.push_back(std::make_shared<Job>());
      env->Schedule(
          [](void* own) {
            const std::unique_ptr<std::shared_ptr<Job>> job(static_cast<std::shared_ptr<Job>*>(own));
            (*job)->let_go.get_future().wait();
            (*job)->ended.set_value();
          },
          new std::shared_ptr<Job>(waiting_.back()), rocksdb::Env::HIGH);
    }
  }
  ~NoFlushes() {
    for (const auto& job : waiting_) job->let_go.set_value();
    for (const auto& job : waiting_) job->ended.get_future().wait();
  }

 private:
  struct Job {
    std::promise<void> let_go, ended;
  };
  std::vector<std::shared_ptr<Job>> waiting_;  ///< Its thread may still be in set_value() when the wait for it is over.
};

TEST_F(RocksDamageTest, AWriteWaitsForADiskThatTakesNothingOnlySoLong) {
  RocksDiskConfig impatient = small();
  impatient.write_patience = std::chrono::milliseconds(20);
  const auto disk = RocksDisk::open(impatient, &opening);
  ASSERT_TRUE(disk) << disk.error();
  std::set<std::uint32_t> written;
  std::uint64_t number = 0;
  for (int outage = 0; outage < 3; ++outage) {
    error_code error;
    {
      const NoFlushes no_flushes;
      for (; number < 10'000 && !error; number += 4) {
        error = write(**disk, number, 4, kBlockBytes);
        for (std::uint64_t each = number; each < number + 4 && !error; ++each)
          written.insert(static_cast<std::uint32_t>(each));
      }
      EXPECT_EQ(error, Errc::kDiskFailed);
      EXPECT_EQ((*disk)->erase(std::vector{key(**disk, 9'999)}), Errc::kDiskFailed)
          << "no call that writes waits longer";
      for (const std::uint32_t each : written) ASSERT_TRUE((*disk)->read(key(**disk, each))) << "reads go on";
    }
    ASSERT_FALSE((*disk)->flush()) << "and it is a disk again";
    const std::vector<std::uint32_t> found = numbers(**disk);
    EXPECT_EQ(std::set(found.begin(), found.end()), written) << "a write that failed wrote nothing, the others all";
    for (const DiskRecord& record : named(**disk)) ASSERT_TRUE(is_right(**disk, record));
  }
}

TEST_F(RocksDamageTest, ADiskWithoutSpaceIsSaidAndHealsWithoutLosingABlock) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "takes minutes under ThreadSanitizer";
#endif
#endif
  fs::create_directories(path);
  if (::geteuid() != 0 || ::mount("none", path.c_str(), "tmpfs", 0, "size=4m,mode=0700") != 0)
    GTEST_SKIP() << "needs the right to mount a small tmpfs: run as root";
  const struct Unmount {
    const fs::path& path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{path};
  const auto disk = RocksDisk::open(small(), &opening);
  ASSERT_TRUE(disk) << disk.error();
  error_code error;
  std::uint64_t number = 0;
  for (; number < 1000 && !error; number += 4) error = write(**disk, number, 4, kBlockBytes);
  EXPECT_EQ(error, error_code(ENOSPC, boost::system::generic_category()));
  EXPECT_GT(number, 200u);
  const auto records = named(**disk);
  for (const DiskRecord& record : records) ASSERT_TRUE(is_right(**disk, record));
  EXPECT_TRUE(write(**disk, 2000, 4, kBlockBytes)) << "still full";
  ASSERT_EQ(::mount("none", path.c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (number = 3000; write(**disk, number, 4, kBlockBytes); number += 4) {  // RocksDB looks every 5 seconds
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE((*disk)->flush());
  EXPECT_EQ(named(**disk).size(), records.size() + 4);
  for (const DiskRecord& record : named(**disk)) ASSERT_TRUE(is_right(**disk, record));
}

}  // namespace
}  // namespace kv
