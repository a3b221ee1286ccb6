// The number of I/O threads of a node that may use a part of the machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/numa.h"
#include "tests/e2e/node_process.h"

namespace kv::e2e {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

/// The answer of --check-config of a node that a shell starts after `before`.
std::string threads_after(const std::string& before) {
  const Finished checked = run_program(
      {"/bin/sh", "-c",
       before + " " + node_program() + " --capacity=16MiB --admin=none --listen=unix:///tmp/none --check-config"});
  EXPECT_EQ(checked.status, 0) << checked.err;
  return checked.out;
}

TEST(OperationProcessorsTest, TheAffinityMaskLimitsTheThreads) {
  const std::vector<unsigned> allowed = allowed_processors();
  const std::string one = std::to_string(allowed.front());
  if (run_program({"/usr/bin/env", "taskset", "-c", one, "true"}).status != 0) GTEST_SKIP() << "there is no taskset";
  EXPECT_THAT(threads_after("taskset -c " + one), HasSubstr(", 1 I/O threads (the "));
  // The start line says the same.
  const NodeProcess node({"--capacity=16MiB"});
  EXPECT_THAT(node.log(),
              ContainsRegex(" threads=[0-9]+ .the (machine has|affinity mask has|control group's quota is) "));
}

/// A real control group, where this process may make one.
TEST(OperationProcessorsTest, TheQuotaOfTheControlGroupLimitsTheThreads) {
  const bool is_first = std::filesystem::exists("/sys/fs/cgroup/cpu/cpu.shares");
  const std::string group =
      (is_first ? "/sys/fs/cgroup/cpu" : "/sys/fs/cgroup") + ("/kvstore-test-" + std::to_string(::getpid()));
  std::error_code none;
  if (!std::filesystem::create_directory(group, none)) GTEST_SKIP() << group << ": " << none.message();
  const auto write = [&](const std::string& name, const std::string& text) {
    return static_cast<bool>(std::ofstream(group + "/" + name) << text << std::flush);
  };
  const bool is_limited = is_first ? write("cpu.cfs_period_us", "100000") && write("cpu.cfs_quota_us", "50000")
                                   : write("cpu.max", "50000 100000");
  const std::string answer = is_limited ? threads_after("echo $$ > " + group + "/cgroup.procs &&") : "";
  std::filesystem::remove(group, none);
  if (!is_limited) GTEST_SKIP() << group << " takes no quota";
  EXPECT_THAT(answer, HasSubstr(", 1 I/O threads (the control group's quota is 0.50 of "));
}

}  // namespace
}  // namespace kv::e2e
