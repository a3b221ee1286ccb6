// NUMA nodes as made-up machines have them, and what is chosen of them. The machine of the test has one node, mostly:
// so where pages go is tried with its node 0, and what cannot be tried here is that they come to lie on others.
#include "base/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "tests/base/made_up_machine.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Numbers = std::vector<unsigned>;

TEST(NumberListTest, WhatTheKernelWritesIsReadAndWrittenAgain) {
  const auto same = [](const std::string& text, const Numbers& numbers) {
    EXPECT_EQ(parse_number_list(text), numbers) << text;
    EXPECT_EQ(number_list_text(numbers), text);
  };
  same("", {});
  same("0", {0});
  same("0-3", {0, 1, 2, 3});
  same("0-1,8,10-11", {0, 1, 8, 10, 11});
  same("8191", {8191});
  EXPECT_EQ(parse_number_list(" 0-1\n"), (Numbers{0, 1}));
  EXPECT_EQ(parse_number_list("\t1,2"), (Numbers{1, 2}));
}

TEST(NumberListTest, AnythingElseIsNothing) {
  for (const char* text : {"x", "-1", "1-", "3-1", "1,", ",1", "1,,2", "1 2", "1,1", "2,1", "0-2,2", "8192",
                           "0-4294967295", "99999999999999999999", "0x1", "1-2-3", "auto"})
    EXPECT_EQ(parse_number_list(text), std::nullopt) << text;
}

TEST(NumaTopologyTest, TwoSocketsAreTwoNodes) {
  MadeUpMachine machine;
  machine.online("0-1").node(0, "0-1,4-5", 1000, 300).node(1, "2-3,6-7", 2000, 400);
  const NumaTopology topology = NumaTopology::read(machine.root());
  ASSERT_EQ(topology.nodes.size(), 2u);
  EXPECT_THAT(topology.nodes[0].processors, ElementsAre(0, 1, 4, 5));
  EXPECT_EQ(topology.nodes[0].memory_bytes, 1000u << 20);
  EXPECT_EQ(topology.nodes[1].available_bytes, 400u << 20);
  EXPECT_THAT(topology.with_memory(), ElementsAre(0, 1));
  EXPECT_EQ(topology.find(1), &topology.nodes[1]);
  EXPECT_EQ(topology.find(2), nullptr);
}

TEST(NumaTopologyTest, FreeMemoryAndOldFilesAreAvailable) {
  MadeUpMachine machine;
  machine.online("0").node(0, "0", 1000, 300);
  machine.file(
      "/sys/devices/system/node/node0/meminfo",
      "Node 0 MemTotal:  100 kB\nNode 0 MemFree:   30 kB\nNode 0 Inactive:  50 kB\nNode 0 Inactive(anon): 40 kB\n"
      "Node 0 Inactive(file): 10 kB\n");
  EXPECT_EQ(NumaTopology::read(machine.root()).nodes[0].available_bytes, 40u << 10);
}

/// As with CXL memory, or a socket whose slots are empty; and numbers with gaps, as POWER has them.
TEST(NumaTopologyTest, NodesWithoutProcessorsAndWithoutMemoryAreNodes) {
  MadeUpMachine machine;
  machine.online("0,8,252").node(0, "0-3", 0).node(8, "4-7", 1000, 10).node(252, "", 500, 20);
  const NumaTopology topology = NumaTopology::read(machine.root());
  ASSERT_EQ(topology.nodes.size(), 3u);
  EXPECT_THAT(topology.with_memory(), ElementsAre(8, 252));
  EXPECT_THAT(topology.nodes[2].processors, IsEmpty());
}

TEST(NumaTopologyTest, MemoryThatAControlGroupForbidsIsNotThere) {
  MadeUpMachine machine;
  machine.online("0-1").node(0, "0", 1000).node(1, "1", 1000);
  machine.file("/proc/self/status", "Name:\tkvstore-node\nMems_allowed:\t2\nMems_allowed_list:\t1\n");
  EXPECT_THAT(NumaTopology::read(machine.root()).with_memory(), ElementsAre(1));
}

TEST(NumaTopologyTest, AKernelThatTellsNothingHasOneNode) {
  MadeUpMachine machine;
  EXPECT_THAT(NumaTopology::read(machine.root()).with_memory(), ElementsAre(0));
  machine.file("/sys/devices/system/cpu/online", "0-3\n");
  EXPECT_THAT(NumaTopology::read(machine.root()).nodes[0].processors, ElementsAre(0, 1, 2, 3));
  EXPECT_FALSE(NumaTopology::read().with_memory().empty()) << "this machine";
}

TEST(NumaTopologyTest, WhatIsNotAsTheKernelWritesItIsPassedOver) {
  MadeUpMachine machine;
  machine.online("gibberish").node(0, "0-", 1000).node(3, "1", 1000);
  machine.file("/sys/devices/system/node/nodeX/meminfo", "").file("/sys/devices/system/node/node99999/meminfo", "");
  machine.file("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: lots kB\n");
  const NumaTopology topology = NumaTopology::read(machine.root());
  EXPECT_THAT(topology.with_memory(), ElementsAre(0, 3)) << "found by their directories";
  EXPECT_THAT(topology.nodes[0].processors, IsEmpty());
}

NumaTopology two_sockets() {
  return {{{.number = 0, .processors = {0, 1}, .memory_bytes = 100},
           {.number = 1, .processors = {2, 3}, .memory_bytes = 100}}};
}

TEST(NumaChoiceTest, OnOneNodeNothingIsChosenWhateverIsAskedFor) {
  const NumaTopology one{{{.number = 0, .processors = {0, 1}, .memory_bytes = 100}}};
  for (const char* wish : {"auto", "off", "0"}) {
    const auto choice = choose_numa(one, wish);
    ASSERT_TRUE(choice) << wish;
    EXPECT_THAT(choice->memory, IsEmpty()) << wish;
    EXPECT_THAT(choice->processors, IsEmpty()) << wish;
  }
}

TEST(NumaChoiceTest, ByItselfMemoryLiesOnAllNodesAndThreadsRunAnywhere) {
  const auto choice = choose_numa(two_sockets(), "auto");
  ASSERT_TRUE(choice);
  EXPECT_THAT(choice->memory, ElementsAre(0, 1));
  EXPECT_THAT(choice->processors, IsEmpty());
  EXPECT_THAT(choose_numa(two_sockets(), "off")->memory, IsEmpty());
}

TEST(NumaChoiceTest, ANodeWithoutMemoryIsNeverLaidOn) {
  NumaTopology topology = two_sockets();
  topology.nodes[0].memory_bytes = 0;
  topology.nodes.push_back({.number = 2, .processors = {}, .memory_bytes = 100});
  EXPECT_THAT(choose_numa(topology, "auto")->memory, ElementsAre(1, 2));
  const auto refused = choose_numa(topology, "0");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text, HasSubstr("node 0 has no memory"));
  EXPECT_THAT(refused.error().text, HasSubstr("memory on 1-2"));
}

TEST(NumaChoiceTest, NodesThatAreNamedHaveTheMemoryAndTheThreads) {
  const auto one = choose_numa(two_sockets(), "1");
  ASSERT_TRUE(one);
  EXPECT_THAT(one->memory, ElementsAre(1));
  EXPECT_THAT(one->processors, ElementsAre(2, 3));
  const auto both = choose_numa(two_sockets(), "0-1");
  ASSERT_TRUE(both);
  EXPECT_THAT(both->memory, ElementsAre(0, 1));
  EXPECT_THAT(both->processors, IsEmpty()) << "all of them are no restriction";
  NumaTopology with_far = two_sockets();
  with_far.nodes.push_back({.number = 2, .processors = {}, .memory_bytes = 100});
  const auto far = choose_numa(with_far, "2");
  ASSERT_TRUE(far);
  EXPECT_THAT(far->memory, ElementsAre(2));
  EXPECT_THAT(far->processors, IsEmpty()) << "a node of memory alone has nobody to keep to";
}

TEST(NumaChoiceTest, WhatIsNotThereIsRefusedWithWhatIs) {
  for (const char* wish : {"2", "0-5", "", "all", "1,0", "-1"}) {
    const auto refused = choose_numa(two_sockets(), wish);
    ASSERT_FALSE(refused) << wish;
    EXPECT_THAT(refused.error().text, HasSubstr("'" + std::string(wish) + "'"));
  }
  EXPECT_THAT(choose_numa(two_sockets(), "2").error().text,
              HasSubstr("node 2 is not there: this machine has memory on 0-1"));
  EXPECT_THAT(choose_numa(two_sockets(), "all").error().text, HasSubstr("auto, off"));
}

/// The policy of the calling thread, and its nodes below 64.
std::pair<int, unsigned long> policy_now() {
  int mode = -1;
  unsigned long nodes[128] = {};
  EXPECT_EQ(::syscall(SYS_get_mempolicy, &mode, nodes, 8192ul, nullptr, 0ul), 0) << std::strerror(errno);
  return {mode, nodes[0]};
}

/// Not where a filter of system calls forbids it, as in some containers.
bool may_place_memory() { return ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0ul) == 0; }

TEST(MemoryPlacementTest, HoldsUntilItsEndAndLeavesThePolicyAsItWas) {
  if (!may_place_memory()) GTEST_SKIP() << "set_mempolicy: " << std::strerror(errno);
  const unsigned node = NumaTopology::read().with_memory().front();
  const auto before = policy_now();
  EXPECT_FALSE(has_memory_policy());
  {
    const Numbers nodes = {node};
    const MemoryPlacement placement(nodes);
    ASSERT_FALSE(placement.error()) << placement.error().message();
    EXPECT_EQ(policy_now(), (std::pair<int, unsigned long>{MPOL_INTERLEAVE, 1ul << node}));
    EXPECT_TRUE(has_memory_policy());
    {
      const MemoryPlacement none(Numbers{});
      EXPECT_EQ(policy_now().first, MPOL_INTERLEAVE) << "no nodes: no change";
    }
    {
      const MemoryPlacement again(nodes);
      ASSERT_FALSE(again.error());
    }
    EXPECT_EQ(policy_now(), (std::pair<int, unsigned long>{MPOL_INTERLEAVE, 1ul << node})) << "back to the outer one";
  }
  EXPECT_EQ(policy_now(), before);
}

TEST(MemoryPlacementTest, ANodeThatIsNotThereIsAnErrorAndChangesNothing) {
  if (!may_place_memory()) GTEST_SKIP() << "set_mempolicy: " << std::strerror(errno);
  const auto before = policy_now();
  const Numbers nodes = {8000};
  const MemoryPlacement placement(nodes);
  EXPECT_TRUE(placement.error());
  EXPECT_EQ(policy_now(), before);
}

TEST(ProcessorsTest, AThreadKeepsToThoseThatItMayUse) {
  const Numbers before = allowed_processors();
  ASSERT_FALSE(before.empty());
  Numbers wanted = {before.front(), 8191};
  EXPECT_FALSE(keep_to_processors(wanted));
  EXPECT_THAT(allowed_processors(), ElementsAre(before.front()));
  EXPECT_TRUE(keep_to_processors(Numbers{8191})) << "none that it may use";
  EXPECT_THAT(allowed_processors(), ElementsAre(before.front()));
}

TEST(RunOnNodesTest, TheWorkIsDoneThereAndTheCallerIsAsItWas) {
  const Numbers before = allowed_processors();
  const auto policy_before = policy_now();
  const NumaChoice choice{.memory = {NumaTopology::read().with_memory().front()}, .processors = {before.front(), 8191}};
  Numbers there, of_a_thread_there;
  std::pair<int, unsigned long> policy_there;
  sigset_t blocked;
  const error_code unplaced = run_on_nodes(choice, [&] {
    there = allowed_processors();
    policy_there = policy_now();
    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    std::thread([&] { of_a_thread_there = allowed_processors(); }).join();
  });
  EXPECT_THAT(there, ElementsAre(before.front()));
  EXPECT_EQ(of_a_thread_there, there);
  EXPECT_EQ(::sigismember(&blocked, SIGUSR1), 1) << "signals are for the process's own threads";
  if (!unplaced) {
    EXPECT_EQ(policy_there, (std::pair<int, unsigned long>{MPOL_INTERLEAVE, 1ul << choice.memory.front()}));
  }
  EXPECT_EQ(allowed_processors(), before);
  EXPECT_EQ(policy_now(), policy_before);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(::sigismember(&blocked, SIGUSR1), 0);
}

TEST(RunOnNodesTest, WhatCannotBeChosenIsTheKernelsToPlaceAndTheWorkIsDone) {
  const Numbers before = allowed_processors();
  bool is_done = false;
  const auto caller = std::this_thread::get_id();
  EXPECT_TRUE(run_on_nodes({.memory = {8000}, .processors = {8191}}, [&] {
    is_done = true;
    EXPECT_EQ(allowed_processors(), before);
    EXPECT_NE(std::this_thread::get_id(), caller);
  }));
  EXPECT_TRUE(is_done);
  EXPECT_FALSE(run_on_nodes({}, [&] { EXPECT_EQ(std::this_thread::get_id(), caller); })) << "nothing is chosen";
}

TEST(RunOnNodesTest, WhatTheWorkThrowsComesOut) {
  const NumaChoice choice{.memory = {}, .processors = allowed_processors()};
  EXPECT_THROW(run_on_nodes(choice, [] { throw std::out_of_range("x"); }), std::out_of_range);
}

TEST(WherePagesLieTest, TouchedPagesAreCountedAndOthersAreNot) {
  constexpr std::size_t kBytes = 1 << 20;
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ::madvise(mapped, kBytes, MADV_NOHUGEPAGE);
  const std::span<const std::byte> memory(static_cast<std::byte*>(mapped), kBytes);
  const auto untouched = look_where_pages_lie(memory, 64);
  if (!untouched) {
    ::munmap(mapped, kBytes);
    GTEST_SKIP() << "move_pages: " << untouched.error().message();
  }
  EXPECT_THAT(*untouched, IsEmpty());
  for (std::size_t at = 0; at < kBytes; at += 4096) static_cast<volatile char*>(mapped)[at] = 1;
  const auto touched = look_where_pages_lie(memory, 64);
  ASSERT_TRUE(touched);
  std::size_t count = 0;
  for (const auto& [node, pages] : *touched) count += pages;
  EXPECT_EQ(count, 64u);
  EXPECT_THAT(*look_where_pages_lie(memory.first(4096), 64), testing::SizeIs(1)) << "more looks than pages";
  EXPECT_THAT(*look_where_pages_lie({}, 64), IsEmpty());
  ::munmap(mapped, kBytes);
}

/// Pages of nodes in turns, be they of 4 KiB or of 2 MiB, show on both: looks do not beat in time with them.
TEST(WherePagesLieTest, LooksDoNotFallIntoStepWithTheTurnsOfNodes) {
  for (const std::size_t turn : {std::size_t{1}, std::size_t{512}}) {
    for (const std::size_t page_count : {std::size_t{1} << 20, std::size_t{3} << 19, std::size_t{1000003}}) {
      const auto pages = pages_to_look_at(page_count, 1024);
      ASSERT_EQ(pages.size(), 1024u);
      EXPECT_LT(pages.back(), page_count);
      std::size_t on_first = 0;
      for (std::size_t i = 0; i < pages.size(); ++i) {
        EXPECT_TRUE(i == 0 || pages[i - 1] < pages[i]);
        on_first += pages[i] / turn % 2 == 0;
      }
      EXPECT_NEAR(static_cast<double>(on_first), 512, 80) << page_count << " pages, turns of " << turn;
    }
  }
  EXPECT_THAT(pages_to_look_at(3, 1024), ElementsAre(0, 1, 2));
  EXPECT_THAT(pages_to_look_at(0, 1024), IsEmpty());
}

TEST(NumaLookTest, SharesAreOfThePagesThatWereSeen) {
  NumaLook look{.node_count = 2, .chosen = {1}, .spread = NumaSpread{{0, 10}, {1, 30}}};
  EXPECT_EQ(look.largest_share(), 0.75);
  EXPECT_EQ(look.misplaced_share(), 0.25);
  look.chosen.clear();
  EXPECT_EQ(look.misplaced_share(), 0.0) << "the kernel may place them anywhere";
  look.spread = NumaSpread{};
  EXPECT_EQ(look.largest_share(), std::nullopt);
  look.spread.reset();
  EXPECT_EQ(look.misplaced_share(), std::nullopt);
}

}  // namespace
}  // namespace kv
