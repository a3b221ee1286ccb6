// `kvstore-node disk` and `kvstorectl disk` on the directory of a real node, before and after it was damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

constexpr std::size_t kDiskToolBlockBytes = 64 << 10;

TEST(E2eDiskToolTest, ADirectoryIsInspectedVerifiedAndCompactedOnceItsNodeHasStopped) {
  const TempDir disk;
  const std::vector<std::string> options = {"--capacity-blocks", "64",        "--capacity-block-bytes", "64KiB",
                                            "--disk-path",       disk.path(), "--disk-capacity",        "256MiB"};
  const auto tool = [&](const std::string& program, const std::string& command) {
    return run_program({program, "disk", command, "--json", disk.path()});
  };
  {
    NodeProcess node(options);
    TestClient client(node.unix_socket(), Transport::kUnix, kDiskToolBlockBytes, 16);
    for (std::uint64_t name = 1; name <= 3; ++name) EXPECT_EQ(client.put(make_chain(name, 16)).stored, 16u);
    const Finished refused = tool(node_program(), "inspect");
    EXPECT_EQ(refused.status, 1);
    EXPECT_THAT(refused.err, HasSubstr("in use by process"));
    node.signal(SIGTERM);
    EXPECT_EQ(node.wait(), 0);
  }
  for (const std::string& program : {node_program(), ctl_program()}) {
    const Finished inspected = tool(program, "inspect");
    ASSERT_EQ(inspected.status, 0) << inspected.err;
    EXPECT_EQ(json::parse(inspected.out)["blocks"], 48) << "a clean stop keeps what was in memory";
    const Finished verified = tool(program, "verify");
    ASSERT_EQ(verified.status, 0) << verified.err;
    EXPECT_EQ(json::parse(verified.out)["blocks"], 48);
    EXPECT_THAT(verified.err, HasSubstr("100 %"));
  }
  EXPECT_EQ(run_program({ctl_program(), "disk", "dance"}).status, 2);

  for (const auto& entry : fs::directory_iterator(fs::path(disk.path()) / "db")) {
    if (entry.path().extension() != ".sst" || entry.file_size() < 20 * kDiskToolBlockBytes) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(10 * kDiskToolBlockBytes);
    file.put('\x01').put('\x02').put('\x03');
  }
  const Finished damaged = tool(ctl_program(), "verify");
  EXPECT_EQ(damaged.status, 1);
  EXPECT_EQ(json::parse(damaged.out)["damaged"], 1);
  EXPECT_EQ(tool(ctl_program(), "compact").status, 0);
  const NodeProcess again(options);  // and a node starts on it
}

}  // namespace
}  // namespace kv::e2e
