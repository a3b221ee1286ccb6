// On which NUMA nodes a client's memory and threads are to lie, on made-up machines; tests/rdma_vm/numa.sh has a real
// one.
#include "client/types/numa_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/base/made_up_machine.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Numbers = std::vector<unsigned>;

class NumaPlaceTest : public testing::Test {
 protected:
  NumaPlaceTest() { machine.online("0-1").node(0, "0-1", 1000).node(1, "2-3", 1000); }
  MadeUpMachine& device(const std::string& name, const std::string& numa_node) {
    return machine.file("/sys/bus/pci/devices/" + name + "/numa_node", numa_node + "\n");
  }
  Result<NumaPlace, Failure> choose(const std::string& wish) const {
    return choose_numa_place(wish, machine.root(), allowed);
  }
  NumaPlace place(const std::string& wish) const {
    auto chosen = choose(wish);
    EXPECT_TRUE(chosen) << wish << ": " << chosen.error().text;
    return chosen ? *chosen : NumaPlace();
  }
  std::string refusal(const std::string& wish) const {
    const auto chosen = choose(wish);
    EXPECT_FALSE(chosen) << wish;
    return chosen ? "" : chosen.error().text;
  }

  MadeUpMachine machine;
  Numbers allowed = {0, 1, 2, 3};
};

TEST_F(NumaPlaceTest, WhoAsksForNothingGetsNothingAndNothingIsLookedAt) {
  for (const char* wish : {"", "off"}) {
    EXPECT_TRUE(place(wish).is_anywhere()) << wish;
    EXPECT_EQ(place(wish).node_count, 0u) << wish;
    EXPECT_EQ(place(wish).why_not, "") << wish;
    const auto found = find_numa_place(wish);
    EXPECT_TRUE(found && found->is_anywhere()) << wish;
  }
}

TEST_F(NumaPlaceTest, NodesThatAreNamedHaveTheMemoryAndTheThreads) {
  const NumaPlace one = place("1");
  EXPECT_THAT(one.choice.memory, ElementsAre(1));
  EXPECT_THAT(one.choice.processors, ElementsAre(2, 3));
  EXPECT_EQ(one.node_count, 2u);
  EXPECT_EQ(one.why_not, "");
  const NumaPlace both = place("0-1");
  EXPECT_THAT(both.choice.memory, ElementsAre(0, 1));
  EXPECT_THAT(both.choice.processors, IsEmpty());
}

TEST_F(NumaPlaceTest, WhatIsNoWishIsRefusedWithWhatIsAllowed) {
  for (const char* wish : {"auto", "1,0", "-1", "x", "0-", " ", "1;2", "pci", "numa:1"}) {
    EXPECT_THAT(refusal(wish), HasSubstr("'" + std::string(wish) + "'"));
    EXPECT_THAT(refusal(wish), HasSubstr("allowed: off, nodes such as 1 or 0-1, or a PCI device such as"));
  }
  EXPECT_THAT(refusal("2"), HasSubstr("node 2 is not there: this machine has memory on 0-1"));
}

TEST_F(NumaPlaceTest, ADevicesNodeIsFoundHoweverItsAddressIsWritten) {
  device("0000:3b:00.0", "1");
  device("10000:e1:1f.7", "0");
  for (const char* wish :
       {"pci:0000:3b:00.0", "pci:0000:3B:00.0", "pci:00000000:3B:00.0", "pci:3b:00.0", "pci:0:3b:00.0"}) {
    EXPECT_THAT(place(wish).choice.memory, ElementsAre(1)) << wish;
    EXPECT_THAT(place(wish).choice.processors, ElementsAre(2, 3)) << wish;
  }
  EXPECT_THAT(place("pci:00010000:E1:1F.7").choice.memory, ElementsAre(0));
}

TEST_F(NumaPlaceTest, WhatIsNoAddressNeverBecomesAPath) {
  device("0000:3b:00.0", "1");
  for (const char* wish :
       {"pci:", "pci:3b", "pci:0000:3b:00", "pci:0000:3b:00.", "pci:0000:3b:00.8", "pci:0000:3b:00.0 ", "pci: 3b:00.0",
        "pci:0000:3b:00.00", "pci:0000:3b:20.0", "pci:0000:3:00.0", "pci:000000000:3b:00.0", "pci::3b:00.0",
        "pci:../../etc", "pci:0000:3b:00.0/..", "pci:0x00:3b:00.0", "pci:-1:3b:00.0", "pci:0000:+b:00.0", "pci:1"}) {
    EXPECT_THAT(refusal(wish), HasSubstr("is no address of a PCI device; allowed: ")) << wish;
  }
  EXPECT_THAT(refusal("pci:0000:3c:00.0"), HasSubstr("this machine has no PCI device 0000:3c:00.0"));
}

TEST_F(NumaPlaceTest, AMachineThatDoesNotSayWhereADeviceIsPlacesNothingAndSaysSo) {
  for (const char* said : {"-1", "", "x"}) {
    device("0000:3b:00.0", said);
    EXPECT_TRUE(place("pci:0000:3b:00.0").is_anywhere()) << said;
    EXPECT_THAT(place("pci:0000:3b:00.0").why_not, HasSubstr("does not say at which NUMA node 0000:3b:00.0 is"));
  }
}

TEST_F(NumaPlaceTest, OnOneNodeNothingIsPlacedAndItSaysSo) {
  MadeUpMachine one;
  one.online("0").node(0, "0-3", 1000).file("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "0\n");
  for (const char* wish : {"0", "pci:0000:3b:00.0"}) {
    const auto chosen = choose_numa_place(wish, one.root(), allowed);
    ASSERT_TRUE(chosen) << chosen.error().text;
    EXPECT_TRUE(chosen->is_anywhere());
    EXPECT_EQ(chosen->node_count, 1u);
    EXPECT_EQ(chosen->why_not, "this machine has one NUMA node of memory");
  }
}

/// A person mends a wish; an engine that names its device has to start in every container.
TEST_F(NumaPlaceTest, WhatThisProcessMayNotUseIsAnErrorOfNamedNodesAndAWordOfADevices) {
  device("0000:3b:00.0", "1");
  allowed = {1, 3};
  EXPECT_THAT(place("1").choice.processors, ElementsAre(3)) << "as far as it may";
  allowed = {0, 1};
  EXPECT_THAT(refusal("1"), HasSubstr("processors 2-3 may not be used by this process"));
  const NumaPlace without_threads = place("pci:0000:3b:00.0");
  EXPECT_THAT(without_threads.choice.memory, ElementsAre(1));
  EXPECT_THAT(without_threads.choice.processors, IsEmpty());
  EXPECT_THAT(without_threads.why_not, HasSubstr("threads: processors 2-3 may not be used"));
  machine.file("/proc/self/status", "Mems_allowed_list:\t0\n").node(2, "", 1000).online("0-2");
  machine.file("/proc/self/status", "Mems_allowed_list:\t0,2\n");
  EXPECT_THAT(refusal("1"), HasSubstr("node 1 has no memory for this process"));
  const NumaPlace without_memory = place("pci:0000:3b:00.0");
  EXPECT_TRUE(without_memory.is_anywhere());
  EXPECT_THAT(without_memory.why_not, HasSubstr("NUMA node 1, where 0000:3b:00.0 is, has no memory for this process"));
}

TEST_F(NumaPlaceTest, MemoryIsMadeWhereverItIsToLie) {
  const auto processors = allowed_processors();
  const NumaPlace there{.choice = {.memory = {}, .processors = {processors.front()}}};
  for (const NumaPlace& each : {NumaPlace(), there}) {
    const auto memory = make_memory(each, 1 << 20);
    ASSERT_TRUE(memory);
    EXPECT_EQ((*memory)->bytes().size(), std::size_t{1} << 20);
    EXPECT_EQ(make_memory(each, 0).error(), Errc::kBadRequest);
  }
  EXPECT_EQ(allowed_processors(), processors);
}

TEST(NumaClientTest, ABadWishIsRefusedByTheNameOfItsField) {
  asio::io_context io;
  ClientConfig config{.nodes = {{.endpoint = "unix:///nowhere"}}};
  config.numa_nodes = "8191";
  try {
    const Client client(io.get_executor(), config);
    FAIL() << "made";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("numa_nodes: '8191'; node 8191 is not there"));
  }
}

TEST(NumaClientTest, WhatIsPlacedIsTold) {
  asio::io_context io;
  const ClientConfig config{.nodes = {{.endpoint = "unix:///nowhere"}}};
  Client client(io.get_executor(), config);
  EXPECT_TRUE(client.numa().place.is_anywhere());
  EXPECT_EQ(client.numa().misplaced_ratio, std::nullopt);
  EXPECT_THAT(client.metrics_text(), HasSubstr("\nkvstore_client_memory_numa_nodes 0\n"));
  EXPECT_THAT(client.metrics_text(), testing::Not(HasSubstr("misplaced")));
}

}  // namespace
}  // namespace kv
