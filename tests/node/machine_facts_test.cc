// What made-up machines tell of memory, control groups, sockets and devices; and a disk that is really measured.
#include "store/node/machine/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/made_up_machine.h"

namespace kv {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kMega = 1 << 20;

TEST(MachineFactsTest, WhatCannotBeReadIsAbsent) {
  const MadeUpMachine machine;
  const MachineFacts facts = read_machine_facts(machine.root());
  EXPECT_EQ(facts.memory_available_bytes, std::nullopt);
  EXPECT_FALSE(facts.huge_pages);
  EXPECT_EQ(facts.shmem_huge, "");
  EXPECT_FALSE(facts.group_memory);
  EXPECT_FALSE(facts.group_processors);
  EXPECT_EQ(facts.tcp_receive_max, std::nullopt);
  EXPECT_EQ(facts.socket_send_max, std::nullopt);
  EXPECT_FALSE(facts.ignores_locked_limit);
  EXPECT_TRUE(facts.devices.empty());
}

TEST(MachineFactsTest, MemoryPagesAndSocketsAreRead) {
  MadeUpMachine machine;
  machine.file("/proc/meminfo", "MemTotal:       2048 kB\nMemFree: 7 kB\nMemAvailable:    1024 kB\n")
      .file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "100\n")
      .file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "60\n")
      .file("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "10\n")
      .file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n")
      .file("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
      .file("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\n")
      .file("/proc/sys/net/core/wmem_max", "212992\n")
      .file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
  const MachineFacts facts = read_machine_facts(machine.root());
  EXPECT_EQ(facts.memory_available_bytes, kMega);
  ASSERT_TRUE(facts.huge_pages);
  EXPECT_EQ(facts.huge_pages->count, 100u);
  EXPECT_EQ(facts.huge_pages->free_count, 50u) << "ten are promised to somebody";
  EXPECT_THAT(facts.shmem_huge, HasSubstr("[never]"));
  EXPECT_EQ(facts.tcp_receive_max, 6291456u);
  EXPECT_EQ(facts.tcp_send_max, std::nullopt) << "two numbers of three";
  EXPECT_EQ(facts.socket_send_max, 212992u);
  EXPECT_TRUE(facts.ignores_locked_limit);
  EXPECT_FALSE(facts.allowed_processors.empty()) << "of this process";
  EXPECT_GE(facts.machine_processor_count, facts.allowed_processors.size());
  EXPECT_TRUE(facts.files && facts.files->hard > 0);
}

/// Version 2: each group around this one is a limit too, and file pages that were not used lately are given back.
TEST(MachineFactsTest, TheTightestOfAllGroupsAroundTheProcessCounts) {
  MadeUpMachine machine;
  const std::string outer = "/sys/fs/cgroup/machine.slice", inner = outer + "/node.service";
  machine.file("/proc/self/cgroup", "0::/machine.slice/node.service\n")
      .file(inner + "/memory.max", "max\n")
      .file(inner + "/memory.current", "1000\n")
      .file(inner + "/cpu.max", "400000 100000\n")
      .file(outer + "/memory.max", std::to_string(100 * kMega) + "\n")
      .file(outer + "/memory.current", std::to_string(60 * kMega) + "\n")
      .file(outer + "/memory.stat", "anon 5\ninactive_file_other 7\ninactive_file " + std::to_string(20 * kMega) + "\n")
      .file(outer + "/cpu.max", "150000 100000\n");
  const MachineFacts facts = read_machine_facts(machine.root());
  ASSERT_TRUE(facts.group_memory);
  EXPECT_EQ(facts.group_memory->limit_bytes, 100 * kMega);
  EXPECT_EQ(facts.group_memory->left_bytes, 60 * kMega);
  EXPECT_EQ(facts.group_processors, 1.5);
}

TEST(MachineFactsTest, GroupsOfVersionOneAreReadWhereTheyLie) {
  MadeUpMachine machine;
  machine.file("/proc/self/cgroup", "5:memory:/box/7\n4:cpuset:/\n3:cpu,cpuacct:/box/7\n0::/\n")
      .file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
      .file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "123\n")
      .file("/sys/fs/cgroup/memory/box/7/memory.limit_in_bytes", std::to_string(8 * kMega) + "\n")
      .file("/sys/fs/cgroup/memory/box/7/memory.usage_in_bytes", std::to_string(9 * kMega) + "\n")
      .file("/sys/fs/cgroup/memory/box/7/memory.stat", "total_inactive_file 0\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/box/7/cpu.cfs_quota_us", "-1\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/box/7/cpu.cfs_period_us", "100000\n");
  const MachineFacts facts = read_machine_facts(machine.root());
  ASSERT_TRUE(facts.group_memory) << "the root's is a number for none";
  EXPECT_EQ(facts.group_memory->left_bytes, 0u) << "more is used than allowed";
  EXPECT_FALSE(facts.group_processors) << "-1 is none";
  machine.file("/sys/fs/cgroup/cpu,cpuacct/box/7/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(read_machine_facts(machine.root()).group_processors, 0.5);
}

/// In a container /proc/self/cgroup may have the host's path, and /sys/fs/cgroup the container's own group at its root.
TEST(MachineFactsTest, AHostsPathThatIsNotThereEndsAtTheRootThatIs) {
  MadeUpMachine machine;
  machine.file("/proc/self/cgroup", "0::/kubepods/pod1/box2\n")
      .file("/sys/fs/cgroup/memory.max", std::to_string(4 * kMega) + "\n")
      .file("/sys/fs/cgroup/memory.current", std::to_string(kMega) + "\n");
  ASSERT_TRUE(read_machine_facts(machine.root()).group_memory);
  EXPECT_EQ(read_machine_facts(machine.root()).group_memory->left_bytes, 3 * kMega);
}

TEST(MachineFactsTest, DevicesAreFoundWithTheirNodes) {
  MadeUpMachine machine;
  const std::string pci = "/sys/bus/pci/devices/";
  machine.file("/sys/class/infiniband/mlx5_0/device/numa_node", "1\n")
      .file("/sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n")
      .file(pci + "0000:17:00.0/class", "0x030200\n")
      .file(pci + "0000:17:00.0/vendor", "0x10de\n")
      .file(pci + "0000:17:00.0/numa_node", "0\n")
      .file(pci + "0000:18:00.0/class", "0x030000\n")  // a display of the board
      .file(pci + "0000:18:00.0/vendor", "0x1a03\n")
      .file(pci + "0000:19:00.0/class", "0x010802\n")
      .file(pci + "0000:19:00.0/vendor", "0x10de\n");
  const MachineFacts facts = read_machine_facts(machine.root());
  ASSERT_EQ(facts.devices.size(), 3u);
  EXPECT_EQ(facts.devices[0].name, "0000:17:00.0");
  EXPECT_FALSE(facts.devices[0].is_rdma);
  EXPECT_EQ(facts.devices[0].numa_node, 0);
  EXPECT_EQ(facts.devices[1].name, "mlx5_0");
  EXPECT_TRUE(facts.devices[1].is_rdma);
  EXPECT_EQ(facts.devices[1].numa_node, 1);
  EXPECT_EQ(facts.devices[2].numa_node, -1) << "Soft-RoCE is on none";
}

TEST(DiskProbeTest, ADirectoryIsMeasuredAndLeftAsItWas) {
  const MadeUpMachine place;  // a directory like any other
  place.root();
  const DiskFacts facts = measure_disk(place.root(), {.bytes_max = 32 * kMega});
  ASSERT_EQ(facts.wrong, "");
  EXPECT_EQ(facts.probed, place.root());
  EXPECT_EQ(facts.probe_bytes, 32 * kMega);
  EXPECT_GT(facts.write_rate, 0);
  EXPECT_GT(facts.read_rate, 0);
  EXPECT_GT(facts.slowest_seconds, 0);
  EXPECT_LT(facts.slowest_seconds, 60);
  EXPECT_GT(facts.free_bytes, facts.probe_bytes);
  EXPECT_TRUE(std::filesystem::is_empty(place.root()));
}

TEST(DiskProbeTest, WhatIsNotThereYetIsMeasuredAboveAndWhatItHoldsCountsAsFree) {
  MadeUpMachine place;
  const std::string path = place.root() + "/disk/node-1";
  const DiskFacts before = measure_disk(path, {.bytes_max = 16 * kMega});
  EXPECT_EQ(before.wrong, "");
  EXPECT_EQ(before.probed, place.root());
  EXPECT_FALSE(std::filesystem::exists(path));
  place.file("/disk/node-1/db/1.sst", std::string(40 * kMega, 'x'));
  const DiskFacts after = measure_disk(path, {.bytes_max = 16 * kMega});
  EXPECT_EQ(after.probed, path);
  EXPECT_EQ(after.device, before.device);
  // Others write to this disk too, so by far less than what the file takes.
  EXPECT_NEAR(static_cast<double>(after.free_bytes), static_cast<double>(before.free_bytes), 1e9);
}

TEST(DiskProbeTest, WhereNothingMayBeWrittenTheReasonIsTold) {
  const DiskFacts facts = measure_disk("/proc/kvstore-spill", {.bytes_max = 16 * kMega});
  EXPECT_NE(facts.wrong, "");
  EXPECT_EQ(facts.probed, "/proc");
  EXPECT_EQ(facts.write_rate, 0);
}

}  // namespace
}  // namespace kv
