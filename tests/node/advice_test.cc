// What is advised for made-up figures: what is missing, what fits just so, and nothing where nothing was measured.
#include "store/node/machine/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kv {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kMebi = 1 << 20, kGibi = 1 << 30;

/// A machine on which nothing has to be done for wishes().
MachineFacts good_machine() {
  MachineFacts facts;
  facts.memory_available_bytes = 64 * kGibi;
  facts.huge_pages = {8192, 8192};
  facts.shmem_huge = "always within_size [advise] never deny force";
  facts.allowed_processors = {0, 1, 2, 3, 4, 5, 6, 7};
  facts.locked_memory = MachineFacts::Limit{};
  facts.files = MachineFacts::Limit{1024, 65536};
  facts.tcp_receive_max = facts.tcp_send_max = facts.socket_send_max = 4 * kMebi;
  facts.numa.nodes = {{.number = 0, .processors = {0}, .memory_bytes = 64 * kGibi, .available_bytes = 64 * kGibi}};
  return facts;
}
DiskFacts good_disk(const std::string& path, std::uint64_t device = 1) {
  return {.path = path,
          .probed = path,
          .wrong = "",
          .free_bytes = 500 * kGibi,
          .device = device,
          .probe_bytes = 256 * kMebi,
          .direct_io = true,
          .write_rate = 1e9,
          .read_rate = 2e9,
          .slowest_seconds = 0.01};
}
NodeWishes good_wishes() {
  NodeWishes wishes;
  wishes.capacity_bytes = 16 * kGibi;
  wishes.threads = 8;
  wishes.has_tcp = wishes.has_unix = true;
  wishes.session_count_max = 4096;
  wishes.disk_hang_seconds = 2;
  return wishes;
}

Advice of(const std::vector<Advice>& advices, const std::string& subject) {
  const auto found = std::ranges::find(advices, subject, &Advice::subject);
  EXPECT_NE(found, advices.end()) << subject;
  return found == advices.end() ? Advice{} : *found;
}
Advice advice_of(const MachineFacts& facts, const NodeWishes& wishes, const std::string& subject) {
  return of(advise(facts, wishes), subject);
}
void expect_set(const Advice& advice, const std::string& option, const std::string& value) {
  EXPECT_EQ(kind_name(advice.kind), std::string("set")) << advice.measured;
  EXPECT_EQ(advice.option, option);
  EXPECT_EQ(advice.value, value);
  EXPECT_FALSE(advice.measured.empty());
  EXPECT_FALSE(advice.reason.empty());
}
void expect_fine(const Advice& advice) { EXPECT_EQ(kind_name(advice.kind), std::string("fine")) << advice.measured; }
void expect_machine(const Advice& advice, const std::string& command) {
  EXPECT_EQ(kind_name(advice.kind), std::string("machine")) << advice.measured;
  EXPECT_THAT(advice.command, HasSubstr(command));
  EXPECT_FALSE(advice.reason.empty());
}

TEST(AdviceTest, OnAGoodMachineNothingHasToBeDone) {
  MachineFacts facts = good_machine();
  facts.disks = {good_disk("/a")};
  NodeWishes wishes = good_wishes();
  wishes.disk_paths = {"/a"};
  wishes.disk_capacity_bytes = 300 * kGibi;
  for (const Advice& advice : advise(facts, wishes)) {
    expect_fine(advice);
    EXPECT_FALSE(advice.measured.empty()) << advice.subject;
    EXPECT_THAT(advice.option + advice.command, IsEmpty()) << advice.subject;
  }
}

TEST(AdviceTest, WhatWasNotMeasuredIsSaidAndNothingIsAdvised) {
  NodeWishes wishes = good_wishes();
  wishes.disk_paths = {"/a"};
  wishes.disk_capacity_bytes = kGibi;
  MachineFacts facts;  // nothing
  facts.numa = good_machine().numa;
  facts.disks = {{.path = "/a", .probed = "/", .wrong = "Permission denied"}};
  for (const Advice& advice : advise(facts, wishes)) {
    EXPECT_THAT(advice.option + advice.command, IsEmpty()) << advice.subject;
    if (advice.subject != "NUMA" && advice.subject != "locked memory") {
      EXPECT_EQ(kind_name(advice.kind), std::string("unknown")) << advice.subject << ": " << advice.measured;
    }
  }
  EXPECT_THAT(advice_of(facts, wishes, "disk /a").measured, HasSubstr("Permission denied"));
}

/// The index may take 256 MiB and a 16th of the capacity: all of it together has to fit.
TEST(AdviceTest, CapacityAndIndexTogetherFitTheMemoryThatThereIs) {
  MachineFacts facts = good_machine();
  facts.huge_pages = {0, 0};
  const NodeWishes wishes = good_wishes();
  facts.memory_available_bytes = 17 * kGibi + 256 * kMebi;
  expect_fine(advice_of(facts, wishes, "memory"));
  facts.memory_available_bytes = 17 * kGibi + 256 * kMebi - 1;
  expect_set(advice_of(facts, wishes, "memory"), "capacity", "15GiB");
  facts.memory_available_bytes = 5 * kGibi;
  expect_set(advice_of(facts, wishes, "memory"), "capacity", "4544MiB");
  facts.memory_available_bytes = 200 * kMebi;
  expect_machine(advice_of(facts, wishes, "memory"), "free memory");
}

TEST(AdviceTest, WhatIsAdvisedForMemoryIsFineWhenItIsTaken) {
  std::mt19937_64 random(20261126);
  for (int i = 0; i < 2000; ++i) {
    MachineFacts facts = good_machine();
    facts.memory_available_bytes = random() % (300 * kGibi);
    if (random() % 2 == 0) facts.huge_pages->free_count = random() % 100000;
    if (random() % 3 == 0) {
      const std::uint64_t limit = random() % (100 * kGibi);
      facts.group_memory = {limit, limit - limit / 4};
    }
    NodeWishes wishes = good_wishes();
    wishes.capacity_bytes = (1 + random() % 200000) * 2 * kMebi;
    if (random() % 4 == 0) wishes.capacity_block_bytes = (1 + random() % 64) * 2 * kMebi;
    if (random() % 4 == 0) wishes.index_bytes_max = 1 + random() % kGibi;
    if (random() % 3 == 0) wishes.disk_paths = {"/a", "/b"};
    const Advice advice = advice_of(facts, wishes, "memory");
    if (advice.kind != Advice::Kind::kSet) continue;
    const std::uint64_t number = std::stoull(advice.value);
    wishes.capacity_bytes = wishes.capacity_block_bytes > 0                 ? number * wishes.capacity_block_bytes
                            : advice.value.find("GiB") != std::string::npos ? number * kGibi
                                                                            : number * kMebi;
    ASSERT_GT(wishes.capacity_bytes, 0u) << "round " << i;
    ASSERT_EQ(wishes.capacity_bytes % (2 * kMebi), 0u);
    ASSERT_EQ(advice_of(facts, wishes, "memory").kind, Advice::Kind::kFine) << "round " << i << ": " << advice.value;
  }
}

TEST(AdviceTest, AControlGroupIsAsHardALimitAsTheMachine) {
  MachineFacts facts = good_machine();
  facts.huge_pages = {0, 0};
  facts.group_memory = {10 * kGibi, 9 * kGibi};
  facts.group_processors = 2.5;
  const auto advices = advise(facts, good_wishes());
  expect_set(of(advices, "memory"), "capacity", "8GiB");
  EXPECT_THAT(of(advices, "memory").measured, AllOf(HasSubstr("10 GiB"), HasSubstr("9 GiB are left")));
  expect_set(of(advices, "threads"), "threads", "3");
  NodeWishes few = good_wishes();
  few.threads = 3;
  expect_fine(advice_of(facts, few, "threads"));
}

TEST(AdviceTest, CapacityInBlocksIsAdvisedInBlocks) {
  MachineFacts facts = good_machine();
  facts.huge_pages = {0, 0};
  facts.memory_available_bytes = 9 * kGibi;
  NodeWishes wishes = good_wishes();
  wishes.capacity_block_bytes = 10 * kMebi;
  expect_set(advice_of(facts, wishes, "memory"), "capacity-blocks", std::to_string(8 * kGibi / (10 * kMebi)));
}

TEST(AdviceTest, MoreIsOfferedOnlyWhereNobodyChose) {
  MachineFacts facts = good_machine();
  facts.huge_pages = {0, 0};
  NodeWishes wishes = good_wishes();
  expect_fine(advice_of(facts, wishes, "memory"));
  wishes.has_default_capacity = true;
  const Advice advice = advice_of(facts, wishes, "memory");
  EXPECT_EQ(advice.kind, Advice::Kind::kMay);
  EXPECT_EQ(advice.option + " = " + advice.value, "capacity = 60GiB");
}

TEST(AdviceTest, HugePagesAreToBeEnoughForTheWholeArenaOrNone) {
  MachineFacts facts = good_machine();
  const NodeWishes wishes = good_wishes();  // 8192 pages
  expect_fine(advice_of(facts, wishes, "huge pages"));
  facts.huge_pages = {9000, 8191};
  expect_machine(advice_of(facts, wishes, "huge pages"), "vm.nr_hugepages=9001");
  EXPECT_THAT(advice_of(facts, wishes, "huge pages").reason, HasSubstr("lie idle"));
  facts.huge_pages = {0, 0};
  expect_machine(advice_of(facts, wishes, "huge pages"), "vm.nr_hugepages=8192");
  facts.memory_available_bytes = 17 * kGibi + 256 * kMebi;
  expect_machine(advice_of(facts, wishes, "huge pages"), "vm.nr_hugepages=8192");
  NodeWishes unwanted = wishes;
  unwanted.huge_pages = false;
  expect_fine(advice_of(facts, unwanted, "huge pages"));
}

/// Pages for the capacity that is advised, not for the one that does not fit.
TEST(AdviceTest, HugePagesFollowTheCapacityThatIsAdvised) {
  MachineFacts facts = good_machine();
  facts.huge_pages = {0, 0};
  facts.memory_available_bytes = 10 * kGibi;
  expect_set(advice_of(facts, good_wishes(), "memory"), "capacity", "9GiB");
  expect_machine(advice_of(facts, good_wishes(), "huge pages"), "vm.nr_hugepages=4608");
}

TEST(AdviceTest, SharedMemoryWithoutTransparentHugePagesIsTold) {
  MachineFacts facts = good_machine();
  facts.huge_pages = {0, 0};
  facts.shmem_huge = "always within_size advise [never] deny force";
  expect_machine(advice_of(facts, good_wishes(), "transparent huge pages"), "echo advise");
}

TEST(AdviceTest, ThreadsAreNoMoreThanProcessors) {
  MachineFacts facts = good_machine();
  facts.allowed_processors.pop_back();
  expect_set(advice_of(facts, good_wishes(), "threads"), "threads", "7");
  facts.group_processors = 0.3;
  expect_set(advice_of(facts, good_wishes(), "threads"), "threads", "1");
  facts.group_processors = 100;
  expect_set(advice_of(facts, good_wishes(), "threads"), "threads", "7");
}

MachineFacts two_nodes(int device_node) {
  MachineFacts facts = good_machine();
  facts.numa.nodes = {{.number = 0, .processors = {0, 1}, .memory_bytes = 64 * kGibi, .available_bytes = 10 * kGibi},
                      {.number = 1, .processors = {2, 3}, .memory_bytes = 64 * kGibi, .available_bytes = 30 * kGibi}};
  facts.devices = {{"0000:17:00.0", false, device_node}, {"mlx5_0", true, device_node}};
  return facts;
}

TEST(AdviceTest, ANodeOfMemoryIsOfferedWhereAllDevicesAreAndTheArenaFits) {
  const Advice near = advice_of(two_nodes(1), good_wishes(), "NUMA");
  EXPECT_EQ(near.kind, Advice::Kind::kMay);
  EXPECT_EQ(near.option + " = " + near.value, "numa-nodes = 1");
  EXPECT_THAT(near.measured, AllOf(HasSubstr("2 nodes of memory"), HasSubstr("1: 30 GiB"), HasSubstr("mlx5_0")));
  expect_fine(advice_of(two_nodes(0), good_wishes(), "NUMA"));   // no room there
  expect_fine(advice_of(two_nodes(-1), good_wishes(), "NUMA"));  // nobody knows
  MachineFacts apart = two_nodes(1);
  apart.devices[0].numa_node = 0;
  expect_fine(advice_of(apart, good_wishes(), "NUMA"));
  NodeWishes chosen = good_wishes();
  chosen.numa_nodes = "off";
  expect_fine(advice_of(two_nodes(1), chosen, "NUMA"));
  expect_fine(advice_of(good_machine(), good_wishes(), "NUMA"));
}

TEST(AdviceTest, LimitsOfTheProcessAreHeldAgainstWhatTheNodeTakes) {
  MachineFacts facts = two_nodes(-1);
  facts.locked_memory = MachineFacts::Limit{8 * kMebi, 8 * kMebi};
  expect_machine(advice_of(facts, good_wishes(), "locked memory"), "LimitMEMLOCK=infinity");
  facts.ignores_locked_limit = true;
  expect_fine(advice_of(facts, good_wishes(), "locked memory"));
  facts.ignores_locked_limit = false;
  NodeWishes without = good_wishes();
  without.rdma = false;
  expect_fine(advice_of(facts, without, "locked memory"));

  facts.files = MachineFacts::Limit{1024, 5547};
  expect_fine(advice_of(facts, good_wishes(), "open files"));
  facts.files->hard = 5546;
  expect_machine(advice_of(facts, good_wishes(), "open files"), "LimitNOFILE=5547");
  NodeWishes with_disk = good_wishes();
  with_disk.disk_paths = {"/a"};
  expect_machine(advice_of(facts, with_disk, "open files"), "LimitNOFILE=16640");
}

TEST(AdviceTest, SocketsThatAreListenedOnHaveBuffersForBlocks) {
  MachineFacts facts = good_machine();
  facts.tcp_receive_max = facts.socket_send_max = 4 * kMebi - 1;
  const auto both = advise(facts, good_wishes());
  expect_machine(of(both, "net.ipv4.tcp_rmem"), "sysctl net.ipv4.tcp_rmem=");
  expect_fine(of(both, "net.ipv4.tcp_wmem"));
  expect_machine(of(both, "net.core.wmem_max"), "4194304");
  NodeWishes neither = good_wishes();
  neither.has_tcp = neither.has_unix = false;
  for (const Advice& advice : advise(facts, neither)) EXPECT_THAT(advice.subject, testing::Not(HasSubstr("net.")));
}

TEST(AdviceTest, FilesOfTheDiskTierFitWhatIsFree) {
  MachineFacts facts = good_machine();
  facts.disks = {good_disk("/a")};
  NodeWishes wishes = good_wishes();
  wishes.disk_paths = {"/a"};
  wishes.disk_capacity_bytes = 800 * kGibi;
  // 0.95 x 500 GiB, less two segments of 1 GiB, / 1.25, less the 16 GiB of the memory.
  expect_set(advice_of(facts, wishes, "disk space"), "disk-capacity", "362GiB");
  wishes.disk_capacity_bytes = 362 * kGibi;
  expect_fine(advice_of(facts, wishes, "disk space"));
  wishes.disk_capacity_bytes = 800 * kGibi;
  wishes.disk_block_bytes = 2 * kMebi;
  expect_set(advice_of(facts, wishes, "disk space"), "disk-capacity-blocks", std::to_string(362 * 512));
  facts.disks[0].free_bytes = 20 * kGibi;
  expect_machine(advice_of(facts, wishes, "disk space"), "more room");
}

TEST(AdviceTest, OfSeveralDirectoriesTheOneWithLeastRoomDecides) {
  MachineFacts facts = good_machine();
  facts.disks = {good_disk("/a", 1), good_disk("/b", 2)};
  facts.disks[1].free_bytes = 100 * kGibi;
  NodeWishes wishes = good_wishes();
  wishes.disk_paths = {"/a", "/b"};
  wishes.disk_capacity_bytes = 400 * kGibi;
  expect_set(advice_of(facts, wishes, "disk space"), "disk-capacity", "134GiB");
  facts.disks = {good_disk("/a", 1), good_disk("/b", 1)};  // one file system
  expect_set(advice_of(facts, wishes, "disk space"), "disk-capacity", "362GiB");
}

TEST(AdviceTest, DirectoriesThatHinderOneAnotherAreTold) {
  MachineFacts facts = good_machine();
  facts.disks = {good_disk("/a", 1), good_disk("/b", 1), good_disk("/c", 3)};
  facts.disks[2].read_rate = 0.9e9;
  facts.disks[2].slowest_seconds = 0.6;
  facts.disks[2].direct_io = false;
  NodeWishes wishes = good_wishes();
  wishes.disk_paths = {"/a", "/b", "/c"};
  const auto advices = advise(facts, wishes);
  std::vector<std::string> told;
  for (const Advice& advice : advices) {
    if (advice.kind == Advice::Kind::kMachine) told.push_back(advice.subject + ": " + advice.command);
  }
  EXPECT_THAT(told, testing::ElementsAre("disk /c: give disk-path a directory on ext4 or xfs",
                                         "disk /b: give each device one disk-path",
                                         "disk /c: replace that device, or leave it out"));
  expect_set(of(advices, "disk-hang-seconds"), "disk-hang-seconds", "3");
  facts.disks = {good_disk("/a", 1), good_disk("/c", 3)};
  for (const Advice& advice : advise(facts, wishes)) EXPECT_NE(advice.subject, "disk-hang-seconds");
}

}  // namespace
}  // namespace kv
