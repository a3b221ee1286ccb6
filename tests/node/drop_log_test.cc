// What was dropped, durably: what is acknowledged is there, whatever happens to the end of the file or to a byte in it.
#include "store/node/disk/files/drop_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "store/node/disk/files/disk_format.h"
#include "tests/node/disk_fixture.h"

namespace kv {
namespace {

class DropLogTest : public DiskTest {
 protected:
  DropLogTest() { std::filesystem::create_directory(path); }
  static DiskDrop drop(std::uint64_t number) { return {disk_space(), hash_of(number), DiskKey{number}}; }
  static std::vector<std::uint64_t> bounds(const DropLog& log) {
    std::vector<std::uint64_t> numbers;
    for (const DiskDrop& each : log.drops()) numbers.push_back(static_cast<std::uint64_t>(each.before));
    return numbers;
  }
  error_code add(DropLog& log, std::uint64_t number) const {
    const DiskDrop one = drop(number);
    return log.add(std::span(&one, 1));
  }
  using Numbers = std::vector<std::uint64_t>;
};

TEST_F(DropLogTest, WhatIsAddedIsThereAndWhatIsForgottenIsNot) {
  {
    DropLog log(path);
    EXPECT_TRUE(log.drops().empty());
    for (std::uint64_t number = 1; number <= 5; ++number) EXPECT_FALSE(add(log, number));
  }
  {
    DropLog log(path);
    EXPECT_EQ(bounds(log), (Numbers{1, 2, 3, 4, 5}));
    EXPECT_EQ(log.drops()[2].hash, hash_of(3));
    EXPECT_FALSE(add(log, 6));
    EXPECT_FALSE(log.forget(DiskKey{3}));
    EXPECT_FALSE(add(log, 7));
  }
  EXPECT_EQ(bounds(DropLog(path)), (Numbers{4, 5, 6, 7}));
}

TEST_F(DropLogTest, ATornEndCostsWhatWasNotAcknowledgedAndTheNextIsKept) {
  for (std::size_t torn = 1; torn < kDropBytes; torn += 7) {
    std::filesystem::remove(path / "DROPS");
    {
      DropLog log(path);
      EXPECT_FALSE(add(log, 1));
      EXPECT_FALSE(add(log, 2));
    }
    const auto whole = std::filesystem::file_size(path / "DROPS");
    std::filesystem::resize_file(path / "DROPS", whole - torn);
    {
      DropLog log(path);
      EXPECT_EQ(bounds(log), (Numbers{1}));
      EXPECT_FALSE(add(log, 3));
    }
    EXPECT_EQ(bounds(DropLog(path)), (Numbers{1, 3})) << torn;
  }
}

TEST_F(DropLogTest, ADamagedByteCostsOneDropAtMost) {
  {
    DropLog log(path);
    for (std::uint64_t number = 1; number <= 3; ++number) EXPECT_FALSE(add(log, number));
  }
  const auto size = std::filesystem::file_size(path / "DROPS");
  for (std::size_t at = 0; at < size; ++at) {
    std::fstream file(path / "DROPS", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get());
    const auto put = [&](char value) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put(value).flush();
    };
    put(static_cast<char>(byte ^ 1));
    EXPECT_GE(DropLog(path).drops().size(), 2u) << at;
    put(byte);
  }
  EXPECT_EQ(bounds(DropLog(path)), (Numbers{1, 2, 3}));
}

TEST_F(DropLogTest, AFloodFromOneNamespaceBecomesOneDropOfItAndLeavesTheOthersAlone) {
  DropLog log(path);
  for (std::uint64_t number = 1; number <= 5; ++number) ASSERT_FALSE(add(log, number));
  NamespaceId flooder = disk_space();
  flooder.bytes[0] ^= std::byte{1};
  std::vector<DiskDrop> flood(kDropLogCountMax - 5, {flooder, hash_of(9), DiskKey{}});
  for (std::size_t i = 0; i < flood.size(); ++i) flood[i].before = DiskKey{100 + i};
  ASSERT_FALSE(log.add(flood));
  EXPECT_EQ(log.drops().size(), kDropLogCountMax) << "as many as may be kept";
  const DiskDrop one{flooder, hash_of(10), DiskKey{7}};
  ASSERT_FALSE(log.add(std::span(&one, 1)));
  ASSERT_FALSE(add(log, 6));
  const DropLog again(path);
  for (const DropLog* const each : {static_cast<const DropLog*>(&log), &again}) {
    EXPECT_EQ(bounds(*each), (Numbers{1, 2, 3, 4, 5, 100 + flood.size() - 1, 6}));
    EXPECT_EQ(each->drops()[4].hash, hash_of(5));
    EXPECT_EQ(each->drops()[5].space, flooder);
    EXPECT_EQ(each->drops()[5].hash, BlockHash{}) << "the whole namespace, as of its newest drop";
  }
}

TEST_F(DropLogTest, WhereNothingCanBeWrittenNothingIsAcknowledged) {
  std::filesystem::remove(path);
  DropLog log(path);
  EXPECT_TRUE(add(log, 1));
  std::filesystem::create_directory(path);
  EXPECT_FALSE(add(log, 2));
  EXPECT_EQ(bounds(DropLog(path)), (Numbers{1, 2})) << "what was refused is kept when it can be";
}

}  // namespace
}  // namespace kv
