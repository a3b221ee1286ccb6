// `kvstore-node disk ...` on directories as nodes leave them.
#include "store/node/disk_worker/disk_tool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/node/disk_fixture.h"

namespace kv {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class DiskToolTest : public DiskTest {
 protected:
  int run(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "disk");
    std::ostringstream out_stream, err_stream;
    const int status = run_disk_tool(static_cast<int>(arguments.size()), arguments.data(), out_stream, err_stream);
    out = out_stream.str();
    err = err_stream.str();
    return status;
  }
  void make() {
    const auto disk = open();
    ASSERT_FALSE(disk->add_namespace(disk_space(), "block_bytes=20000\nblock_size=16\nmodel=llama\n"));
    ASSERT_FALSE(write(*disk, 0, 60, 20'000));
    ASSERT_FALSE(disk->flush());
  }

  std::string out, err;
};

TEST_F(DiskToolTest, InspectTellsBlocksFilesAndNamespaces) {
  make();
  ASSERT_EQ(run({"inspect", path.c_str()}), 0) << err;
  EXPECT_THAT(out, HasSubstr("60 blocks"));
  EXPECT_THAT(out, HasSubstr("llama"));
  ASSERT_EQ(run({"inspect", "--json", path.c_str()}), 0);
  const json report = json::parse(out);
  EXPECT_EQ(report["blocks"], 60);
  EXPECT_EQ(report["bytes"], 60 * 20'000);
  EXPECT_EQ(report["epoch"], 1);
  EXPECT_EQ(report["namespaces"][0]["model"], "llama");
  EXPECT_GT(report["files"].size(), 2u);
}

TEST_F(DiskToolTest, VerifyReadsEveryBlockAndEndsWithOneWhenAByteIsWrong) {
  make();
  ASSERT_EQ(run({"verify", path.c_str()}), 0) << err;
  EXPECT_THAT(out, HasSubstr("60 blocks read"));
  EXPECT_THAT(err, HasSubstr("100 %"));
  std::filesystem::path largest;
  for (const auto& entry : std::filesystem::directory_iterator(path / "db")) {
    if (entry.path().extension() == ".sst" &&
        (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)))
      largest = entry.path();
  }
  {
    std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(50'000);
    file.put('\x7e').put('\x7f');
  }
  ASSERT_EQ(run({"verify", "--json", path.c_str()}), 1);
  const json result = json::parse(out);
  EXPECT_EQ(result["blocks"], 60);
  EXPECT_EQ(result["damaged"], 1);
  EXPECT_EQ(result["damages"][0]["hash"].get<std::string>().size(), 64u);
}

TEST_F(DiskToolTest, VerifyFindsABlockUnderAnotherName) {
  {
    const auto disk = open();
    NumberedBlock block(1, 5000);
    block.record.key = key(*disk, 1);
    block.record.hash = hash_of(2);  // right bytes and sums of another block
    ASSERT_FALSE(disk->write(std::vector<DiskWrite>{{block.record, block.bytes, block.checksums}}));
    ASSERT_FALSE(disk->flush());
  }
  EXPECT_EQ(run({"verify", path.c_str()}), 1);
  EXPECT_THAT(out, HasSubstr("not those of its name"));
}

/// As after a node was killed in a purge: blocks are out of their files, and their names still in the records.
TEST_F(DiskToolTest, ANameWhoseBlockWasGivenBackIsNoDamage) {
  NamespaceId gone;
  gone.bytes.fill(std::byte{0x77});
  {
    const auto disk = open();
    for (std::uint64_t number = 0; number < 60; ++number) {
      NumberedBlock block(number, 20'000);
      block.record.key = key(*disk, number);
      if (number % 4 == 3) block.record.space = gone;
      block_checksums(checksum_seed(block.record.space, block.record.hash), block.bytes, block.checksums);
      ASSERT_FALSE(disk->write(std::vector<DiskWrite>{{block.record, block.bytes, block.checksums}}));
    }
    ASSERT_FALSE(disk->flush());
    const DiskDrop dropped[] = {{.space = gone, .hash = {}, .before = key(*disk, 59)}};
    ASSERT_TRUE(disk->purge(dropped, [](const DiskPurge&) { return true; }));
  }
  std::size_t given_back = 0;
  {
    const auto disk = open();
    for (const DiskRecord& record : named(*disk)) given_back += !disk->read(record.key);
  }
  ASSERT_GT(given_back, 0u);
  ASSERT_EQ(run({"verify", "--json", path.c_str()}), 0) << out;
  const json result = json::parse(out);
  EXPECT_EQ(result["dangling"], given_back);
  EXPECT_EQ(result["damaged"], 0);
  ASSERT_EQ(run({"verify", path.c_str()}), 0);
  EXPECT_THAT(out, HasSubstr("names without a block"));
}

TEST_F(DiskToolTest, CompactGivesBackFilesWithoutNamedBlocks) {
  make();
  {
    const auto disk = open();
    std::vector<DiskKey> keys;
    for (std::uint64_t number = 10; number < 50; ++number) keys.push_back(DiskKey{std::uint64_t{1} << 40 | number});
    ASSERT_FALSE(disk->erase(keys));
    ASSERT_FALSE(disk->flush());
  }
  ASSERT_EQ(run({"compact", "--json", path.c_str()}), 0) << err;
  const json result = json::parse(out);
  EXPECT_GE(result["dropped_files"], 1);
  EXPECT_LT(result["file_bytes"], result["file_bytes_before"]);
  ASSERT_EQ(run({"verify", path.c_str()}), 0) << err;
  EXPECT_THAT(out, HasSubstr("20 blocks read"));
}

TEST_F(DiskToolTest, ARunningNodesDirectoryIsLeftAlone) {
  make();
  const auto disk = open();
  for (const char* command : {"inspect", "verify", "compact"}) {
    EXPECT_EQ(run({command, path.c_str()}), 1);
    EXPECT_THAT(err, HasSubstr("in use by process"));
  }
}

TEST_F(DiskToolTest, AWrongCommandLineEndsWithTwo) {
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({"dance"}), 2);
  EXPECT_EQ(run({"inspect"}), 2);
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_THAT(out, HasSubstr("Example"));
  EXPECT_EQ(run({"inspect", (root / "nothing").c_str()}), 1);
  EXPECT_THAT(err, HasSubstr("no such directory"));
}

}  // namespace
}  // namespace kv
