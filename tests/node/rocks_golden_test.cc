// The directory format, as a directory that an earlier build wrote (docs/compatibility.md). KV_GOLDEN_UPDATE=1 writes
// it anew: only ever for a new format.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/node/disk/files/disk_format.h"
#include "tests/node/disk_fixture.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

class RocksGoldenTest : public DiskTest {
 protected:
  /// Two starts: one stopped cleanly, one killed soon after.
  void make() {
    {
      const auto disk = open();
      ASSERT_FALSE(disk->add_namespace(disk_space(), "block_bytes=1000\nblock_size=16\nmodel=golden\n"));
      ASSERT_FALSE(write(*disk, 1, 6, 1000));
      ASSERT_FALSE(write(*disk, 7, 1, 70'000));
      ASSERT_FALSE(disk->erase(std::vector{key(*disk, 2)}));
      ASSERT_FALSE(disk->flush());
    }
    const auto disk = open();
    ASSERT_FALSE(write(*disk, 11, 3, 500));
    ASSERT_FALSE(disk->flush());
    ASSERT_FALSE(disk->erase(std::vector{key(*disk, 12)}));
    ASSERT_FALSE(disk->flush());
    ASSERT_FALSE(write(*disk, 14, 1, 500));  // is lost
  }
  void update(const fs::path& golden) {
    make();
    fs::remove_all(golden);
    fs::create_directories(golden.parent_path());
    fs::copy(path, golden, fs::copy_options::recursive);
    for (const char* const not_needed : {"LOCK", "db/LOCK"}) fs::remove(golden / not_needed);
    for (const auto& entry : fs::directory_iterator(golden / "db")) {
      if (entry.path().filename().string().starts_with("OPTIONS")) fs::remove(entry.path());
    }
    fs::remove_all(path);
  }
  /// A copy of it has what make() wrote, and what each start writes on, among the others. `before`: each start.
  template <class Before>
  void expect_three_starts(const fs::path& golden, const std::string& format, Before before) {
    fs::copy(golden, path, fs::copy_options::recursive);
    for (std::uint32_t start = 0; start < 3; ++start) {
      before(start);
      const auto disk = open();
      ASSERT_TRUE(disk);
      EXPECT_EQ(opening.recovery, DiskRecovery::kNone) << opening.text;
      EXPECT_EQ(disk->epoch(), 3u + start);
      EXPECT_EQ(read_small_file(path / "FORMAT"), format) << "from the first start on";
      std::map<NamespaceId, std::string> spaces;
      ASSERT_FALSE(disk->load([&](const NamespaceId& id, const std::string& record) { spaces[id] = record; },
                              [](const DiskRecord&) { return true; }));
      EXPECT_EQ(
          spaces,
          (std::map<NamespaceId, std::string>{{disk_space(), "block_bytes=1000\nblock_size=16\nmodel=golden\n"}}));
      std::vector<std::uint32_t> expected = {13, 11, 7, 6, 5, 4, 3, 1};
      for (std::uint32_t number = 0; number < start; ++number) expected.insert(expected.begin(), 20 + number);
      EXPECT_EQ(numbers(*disk), expected);
      for (const DiskRecord& record : named(*disk)) EXPECT_TRUE(is_right(*disk, record)) << record.position;
      ASSERT_FALSE(write(*disk, 20 + start, 1, 3000));
      ASSERT_FALSE(disk->flush());
    }
  }
};

TEST_F(RocksGoldenTest, ADirectoryIsReadForever) {
  const fs::path golden = fs::path(KV_GOLDEN_DIR) / "disk";
  if (std::getenv("KV_GOLDEN_UPDATE") != nullptr) update(golden);
  ASSERT_TRUE(fs::exists(golden / "FORMAT")) << golden;
  const std::string format = "kvstore-spill 1\nxxh3 24b0df569c2c973c\n";
  EXPECT_EQ(read_small_file(golden / "FORMAT"), format);
  expect_three_starts(golden, format, [](std::uint32_t) {});
}

TEST_F(RocksGoldenTest, AToolReadsItAsItIs) {
  fs::copy(fs::path(KV_GOLDEN_DIR) / "disk", path, fs::copy_options::recursive);
  RocksDiskConfig reading = config();
  reading.read_only = true;
  const auto disk = RocksDisk::open(reading, &opening);
  ASSERT_TRUE(disk) << disk.error();
  EXPECT_EQ(named(**disk).size(), 8u);
  for (const DiskRecord& record : named(**disk)) EXPECT_TRUE(is_right(**disk, record)) << record.position;
}

/// The same with encryption. Its keys are random: KV_GOLDEN_UPDATE=1 makes other ones.
TEST_F(RocksGoldenTest, ADirectoryWithEncryptedBlocksIsReadForever) {
  const fs::path golden = fs::path(KV_GOLDEN_DIR) / "disk-sealed";
  const std::string wrapped_by = "golden " + std::string(64, '5') + "\n";
  sealing = make_keys(wrapped_by);
  if (std::getenv("KV_GOLDEN_UPDATE") != nullptr) update(golden);
  const std::string format = "kvstore-spill 2\nxxh3 29204fef2a19f83d\n";
  ASSERT_EQ(read_small_file(golden / "FORMAT"), format);
  expect_three_starts(golden, format, [&](std::uint32_t start) {
    if (start == 2) sealing = make_keys(std::string(64, '6') + "\n" + wrapped_by);
  });
}

/// A directory that several builds use in turn: on KV_EXCHANGE_DIR each run of this test is one start. Without that,
/// all starts are this build's. deploy/test.sh runs it in turn with two releases of RocksDB.
class RocksExchangeTest : public DiskTest {
 protected:
  static constexpr std::uint32_t kEach = 40;
  /// What start `generation` wrote: numbers from generation * 1000 on, one of them large.
  static std::uint64_t first_of(std::uint32_t generation) { return std::uint64_t{generation} * 1000; }

  void start(std::uint32_t expected_generation) {
    const auto disk = open();
    ASSERT_TRUE(disk) << opening.text;
    ASSERT_EQ(opening.recovery, DiskRecovery::kNone) << opening.text;
    const std::uint32_t generation = disk->epoch();
    if (expected_generation != 0) {
      ASSERT_EQ(generation, expected_generation);
    }
    std::printf("start %u\n", generation);
    std::set<std::uint32_t> expected;
    for (std::uint32_t earlier = generation > 3 ? generation - 3 : 1; earlier < generation; ++earlier) {
      for (std::uint32_t i = 0; i <= kEach; ++i) {
        if (i != 2 && (i != 5 || earlier == generation - 1)) expected.insert(earlier * 1000 + i);
      }
    }
    const std::vector<std::uint32_t> found = numbers(*disk);
    EXPECT_EQ(std::set(found.begin(), found.end()), expected);
    for (const DiskRecord& record : named(*disk)) EXPECT_TRUE(is_right(*disk, record));
    std::set<NamespaceId> spaces;
    ASSERT_FALSE(disk->load([&](const NamespaceId& id, const std::string&) { spaces.insert(id); },
                            [](const DiskRecord&) { return true; }));
    EXPECT_EQ(spaces.size(), generation > 1 ? 1u : 0u);

    ASSERT_FALSE(disk->add_namespace(disk_space(), "block_bytes=1000\nblock_size=16\nmodel=exchange\n"));
    ASSERT_FALSE(write(*disk, first_of(generation), kEach, 12'000));
    ASSERT_FALSE(write(*disk, first_of(generation) + kEach, 1, 70'000));
    ASSERT_FALSE(disk->flush());
    const DiskKey last_of_before{std::uint64_t{generation - 1} << 40 | (first_of(generation - 1) + 5)};
    ASSERT_FALSE(disk->erase(std::vector{key(*disk, first_of(generation) + 2), last_of_before}));
    if (generation > 2) {
      ASSERT_FALSE(disk->drop_before(DiskKey{std::uint64_t{generation - 2} << 40}));
    }
    ASSERT_FALSE(disk->flush());
    // And ends as by kill -9: what comes now was in memory only.
    ASSERT_FALSE(write(*disk, first_of(generation) + 500, 4, 1000));
  }
};

TEST_F(RocksExchangeTest, ADirectoryGoesFromOneReleaseToAnotherAndBack) {
  if (const char* const chosen = std::getenv("KV_EXCHANGE_DIR")) {
    path = chosen;
    start(0);
    return;
  }
  for (std::uint32_t generation = 1; generation <= 5 && !HasFailure(); ++generation) start(generation);
}

TEST(DiskFormatTest, EncodingsAreThoseOfTheDocument) {
  EXPECT_EQ(format_text(2), "kvstore-spill 2\nxxh3 29204fef2a19f83d\n");
  EXPECT_EQ(format_text(1), "kvstore-spill 1\nxxh3 24b0df569c2c973c\n");
  EXPECT_EQ(parse_format_text(format_text(77)), 77u);
  const DiskKeyText key = encode_key(DiskKey{std::uint64_t{3} << 40 | 0x0102030405});
  EXPECT_EQ(std::string_view(key.data(), key.size()), std::string_view("\0\0\3\1\2\3\4\5", 8));
  const DiskRecord record{
      .key = DiskKey{9}, .position = 0x01020304, .block_bytes = 0x00200000, .moved_from = DiskKey{5}};
  const std::string value = encode_record(record);
  EXPECT_EQ(value.size(), kDiskRecordBytes);
  EXPECT_EQ(value.substr(value.size() - 16), std::string_view("\4\3\2\1\0\0\x20\0\5\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(decode_record(DiskKey{9}, '\2' + value.substr(1)).error(), Errc::kUnsupported);
  EXPECT_EQ(decode_record(DiskKey{9}, value)->moved_from, DiskKey{5});
  const DiskDrop drop{.space = {}, .hash = {}, .before = DiskKey{0x0102030405060708}};
  const std::string entry = encode_drop(drop);
  EXPECT_EQ(entry.size(), 64u);
  EXPECT_EQ(entry.substr(48, 8), std::string_view("\x08\7\6\5\4\3\2\1", 8));
  EXPECT_EQ(decode_drop(entry)->before, drop.before);
  for (std::size_t at = 0; at < entry.size(); ++at) {
    std::string damaged = entry;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    EXPECT_FALSE(decode_drop(damaged)) << at;
  }
  EXPECT_EQ(encode_place(7), std::string_view("\7"));
  EXPECT_EQ(decode_place("\17"), DiskPlace{15});
  EXPECT_EQ(decode_place("\20"), std::nullopt);
  EXPECT_EQ(decode_place(""), std::nullopt);
  EXPECT_EQ(block_bytes_of_value(8), std::nullopt);
  EXPECT_EQ(block_bytes_of_value(9), 1u);
  EXPECT_EQ(block_bytes_of_value(65536 + 8), 65536u);
  for (std::size_t between = 65545; between <= 65552; ++between) EXPECT_EQ(block_bytes_of_value(between), std::nullopt);
  EXPECT_EQ(block_bytes_of_value(65537 + 16), 65537u);
}

}  // namespace
}  // namespace kv
