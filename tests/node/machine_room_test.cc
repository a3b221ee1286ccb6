// Whether a capacity fits a made-up machine.
#include "store/node/machine/room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/made_up_machine.h"

namespace kv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kGiga = 1 << 30;

class MachineRoomTest : public testing::Test {
 protected:
  MachineRoomTest() {
    machine.file("/proc/meminfo", "MemTotal: " + kib(64) + " kB\nMemAvailable: " + kib(16) + " kB\n");
  }
  static std::string kib(std::uint64_t giga) { return std::to_string(giga << 20); }
  static std::string bytes(std::uint64_t giga) { return std::to_string(giga << 30) + "\n"; }
  std::string refusal(RoomOf of, std::uint64_t giga, bool wants_huge = true) const {
    return capacity_refusal(read_memory_facts(machine.root()), of, giga * kGiga, wants_huge);
  }
  void pool(int pages) {
    machine.file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", std::to_string(pages))
        .file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", std::to_string(pages));
  }

  MadeUpMachine machine;
};

TEST_F(MachineRoomTest, AConfigurationIsHeldAgainstTheMachineAndAStartAgainstWhatIsFree) {
  EXPECT_EQ(refusal(RoomOf::kMachine, 63), "");
  EXPECT_THAT(refusal(RoomOf::kMachine, 64),
              AllOf(HasSubstr("capacity: 68719476736 bytes"), HasSubstr("this machine has 68719476736 bytes of memory"),
                    HasSubstr("allowed: at most 68685922304")));
  EXPECT_EQ(refusal(RoomOf::kNow, 15), "");
  EXPECT_THAT(refusal(RoomOf::kNow, 16), HasSubstr("this machine has 17179869184 bytes free"));
}

TEST_F(MachineRoomTest, WhatCannotBeReadRefusesNothing) {
  const MadeUpMachine empty;
  EXPECT_EQ(capacity_refusal(read_memory_facts(empty.root()), RoomOf::kNow, 1ull << 45, true), "");
}

TEST_F(MachineRoomTest, ControlGroupsOfBothVersionsAreNamed) {
  machine.file("/proc/self/cgroup", "0::/node.service\n")
      .file("/sys/fs/cgroup/node.service/memory.max", bytes(8))
      .file("/sys/fs/cgroup/node.service/memory.current", bytes(2));
  EXPECT_EQ(refusal(RoomOf::kMachine, 7), "");
  EXPECT_THAT(refusal(RoomOf::kMachine, 8), HasSubstr("the control group allows 8589934592 bytes of memory"));
  EXPECT_THAT(refusal(RoomOf::kNow, 6), HasSubstr("the control group has 6442450944 bytes left of 8589934592"));
  machine.file("/proc/self/cgroup", "4:memory:/box\n")
      .file("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", bytes(4))
      .file("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", bytes(1));
  EXPECT_THAT(refusal(RoomOf::kMachine, 4), HasSubstr("the control group allows 4294967296 bytes"));
  EXPECT_THAT(refusal(RoomOf::kNow, 3), HasSubstr("the control group has 3221225472 bytes left of 4294967296"));
}

/// Reserved pages are no part of what is available, and count apart in a control group.
TEST_F(MachineRoomTest, ReservedHugePagesHoldWhatOtherMemoryDoesNot) {
  pool(10240);  // 20 GiB
  EXPECT_EQ(refusal(RoomOf::kNow, 20), "");
  EXPECT_THAT(refusal(RoomOf::kNow, 20, /*wants_huge=*/false), HasSubstr("17179869184 bytes free"));
  EXPECT_THAT(refusal(RoomOf::kNow, 21), HasSubstr("21474836480 bytes of reserved huge pages are free"));
}

TEST_F(MachineRoomTest, APoolThatTheControlGroupForbidsIsNoneAndIsNamed) {
  pool(10240);
  machine.file("/proc/self/cgroup", "0::/node.service\n")
      .file("/sys/fs/cgroup/node.service/hugetlb.2MB.max", bytes(1))
      .file("/sys/fs/cgroup/node.service/hugetlb.2MB.current", "0\n");
  const auto huge = [&](std::uint64_t giga) {
    return huge_room(read_memory_facts(machine.root()), RoomOf::kNow, giga * kGiga);
  };
  EXPECT_TRUE(huge(1).is_enough);
  EXPECT_FALSE(huge(2).is_enough);
  EXPECT_EQ(huge(2).why_not, "the control group allows 1073741824 bytes of reserved huge pages (hugetlb.2MB)");
  EXPECT_THAT(refusal(RoomOf::kNow, 20), HasSubstr("the control group allows 1073741824 bytes of reserved huge pages"));
  machine.file("/sys/fs/cgroup/node.service/hugetlb.2MB.max", "max\n")
      .file("/sys/fs/cgroup/node.service/hugetlb.2MB.rsvd.max", "0\n")
      .file("/sys/fs/cgroup/node.service/hugetlb.2MB.rsvd.current", "0\n");
  EXPECT_FALSE(huge(1).is_enough) << "what may be reserved has a limit of its own";
  machine.file("/proc/self/cgroup", "7:hugetlb:/box\n")
      .file("/sys/fs/cgroup/hugetlb/box/hugetlb.2MB.limit_in_bytes", bytes(2))
      .file("/sys/fs/cgroup/hugetlb/box/hugetlb.2MB.usage_in_bytes", bytes(1));
  EXPECT_TRUE(huge(1).is_enough);
  EXPECT_FALSE(huge(2).is_enough);
}

TEST_F(MachineRoomTest, WithoutAnExchangeThereIsNothingToSayOfIt) {
  EXPECT_EQ(huge_room(read_memory_facts(machine.root()), RoomOf::kNow, kGiga).why_not, "");
  pool(0);
  EXPECT_EQ(huge_room(read_memory_facts(machine.root()), RoomOf::kNow, kGiga).why_not, "");
}

}  // namespace
}  // namespace kv
