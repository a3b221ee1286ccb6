// A block's whole way by RDMA between a client and real sessions, on the provider inside the process: what breaks it,
// and what becomes of the client's memory then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/client/verbs_path.h"

namespace kv {
namespace {

using verbs::Status;

TEST_F(VerbsPathTest, BlocksGoByRdmaAndNotThroughTheSocket) {
  put_all();
  EXPECT_EQ(transport(), "sim+verbs");
  EXPECT_EQ(client->nodes()[0].rdma_lanes, 2u);
  EXPECT_TRUE(uses_verbs());
}

TEST_F(VerbsPathTest, TheFirstGetDoesNotWaitForRdma) {
  put_all();
  const auto other = client->allocate(kBlockBytes).value();
  const std::span<std::byte> to[] = {other};
  const auto got = loop.run(client->get(space, std::span(chain).first(1), to, {.deadline = 5s}));
  EXPECT_EQ(got->block_count, 1u) << "through the socket, while the memory is being registered";
}

TEST_F(VerbsPathTest, BlocksOfAnySizeArrive) {
  for (const std::size_t block_bytes : {1ul, 4096ul, 5'000'000ul, 20'000'000ul}) {
    const NamespaceRecord other = test_record(block_bytes, "size" + std::to_string(block_bytes));
    const auto names = test_chain(other, 2);
    const Space where = loop.run(client->open(other, 5s)).value();
    const auto own = client->allocate(2 * block_bytes).value();
    ASSERT_EQ(loop.run(client->lend(own, 5s)).value(), 1u);
    Blocks two(own, 2, block_bytes);
    two.fill(names);
    ASSERT_EQ(loop.run(client->put(where, names, two.from, {.deadline = 5s}))->stored, 2u) << block_bytes;
    two.clear();
    const GetResult got = loop.run(client->get(where, names, two.to, {.deadline = 5s})).value();
    EXPECT_EQ(got.block_count, 2u) << block_bytes << " " << got.why.message();
    EXPECT_EQ(two.right(names), 2u) << block_bytes;
    EXPECT_TRUE(client->free_memory(own));
  }
}

class BrokenLaneTest : public VerbsPathTest, public testing::WithParamInterface<int> {};

TEST_P(BrokenLaneTest, CostsOneShortGetAndIsMadeAnew) {
  put_all();
  for (const char* device : {"fake0", "fake1"}) {
    verbs.fail_next(device, static_cast<Status>(GetParam()));
    const GetResult got = get();
    EXPECT_LT(got.block_count, kCount);
    EXPECT_EQ(got.why, make_error_code(Errc::kUnavailable)) << got.why.message();
    EXPECT_FALSE(client->is_quarantined(lent)) << "its lane was cut before the call ended";
    EXPECT_EQ(client->nodes()[0].rdma_lanes, 1u) << "the other lane goes on";
    expect_left_alone();
    EXPECT_TRUE(uses_verbs());
    loop.run_for(10s);
    loop.run(client->lend(lent, 5s)).value();
    EXPECT_EQ(client->nodes()[0].rdma_lanes, 2u) << "queue pairs are rebuilt";
    EXPECT_TRUE(uses_verbs());
  }
}

INSTANTIATE_TEST_SUITE_P(Statuses, BrokenLaneTest, testing::Range(1, static_cast<int>(verbs::kStatusCount)),
                         [](const auto& each) {
                           std::string name(verbs::name_of(static_cast<Status>(each.param)));
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

TEST_F(VerbsPathTest, APutOverABrokenLaneStoresNothingWrong) {
  memory->fill(chain);
  verbs.fail_next("fake0", Status::kRetryExceeded);
  const PutResult put = loop.run(client->put(space, chain, memory->from, {.deadline = 5s})).value();
  EXPECT_LT(put.stored, kCount);
  EXPECT_EQ(put.why, make_error_code(Errc::kUnavailable)) << put.why.message();
  loop.run_for(5s);
  EXPECT_EQ(node->check(), "");
  EXPECT_EQ(node->stats().incoming_count, 0u) << "slots that were being filled are free again";
  const PutResult again = loop.run(client->put(space, chain, memory->from, {.deadline = 5s})).value();
  EXPECT_EQ(again.stored + again.already_stored, kCount) << again.why.message();
  EXPECT_EQ(get().block_count, kCount);
}

TEST_F(VerbsPathTest, ALinkThatIsCutIsNoticedAndTheMemoryComesBack) {
  put_all();
  const auto running = start_get(300ms);
  run_into_transfer();
  verbs.set_link("fake0", false);
  verbs.set_link("fake1", false);
  loop.run_until([&] { return running->is_over; });
  EXPECT_LT(running->result.block_count, kCount);
  EXPECT_EQ(running->result.why, make_error_code(asio::error::timed_out));
  const TimePoint ended = clock.now();
  EXPECT_TRUE(client->is_quarantined(lent)) << "packets may still be on their way";
  loop.run_until([&] { return !client->is_quarantined(lent); });
  const auto noticed = std::chrono::duration_cast<std::chrono::milliseconds>(clock.now() - ended);
  RecordProperty("noticed_after_ms", static_cast<int>(noticed.count()));
  EXPECT_LT(noticed, 10s);
  expect_left_alone();
  EXPECT_EQ(get().block_count, kCount) << "through the socket";
  verbs.set_link("fake0", true);
  verbs.set_link("fake1", true);
  loop.run_for(30s);
  loop.run(client->lend(lent, 5s)).value();
  EXPECT_TRUE(uses_verbs());
}

TEST_F(VerbsPathTest, ALaneThatBreaksUnderAPutThatIsOverIsMadeAnew) {
  memory->fill(chain);
  const auto few = std::span(chain).first(10);  // less than is fetched at once: the cancel is read before
  const auto from = std::span(memory->from).first(10);
  verbs.set_link("fake0", false);
  verbs.set_link("fake1", false);
  const PutResult late = loop.run(client->put(space, few, from, {.deadline = 100ms})).value();
  EXPECT_EQ(late.why, make_error_code(asio::error::timed_out));
  loop.run_for(5s);  // the node notices, with nobody left to tell
  EXPECT_EQ(node->stats().incoming_count, 0u);
  verbs.set_link("fake0", true);
  verbs.set_link("fake1", true);
  const PutResult told = loop.run(client->put(space, few, from, {.deadline = 5s})).value();
  EXPECT_EQ(told.why, make_error_code(Errc::kUnavailable)) << "and says so with its next answer";
  EXPECT_EQ(client->nodes()[0].rdma_lanes, 0u);
  EXPECT_EQ(client->nodes()[0].rdma_text, "a lane broke");
  loop.run_for(10s);
  EXPECT_EQ(loop.run(client->lend(lent, 5s)).value(), 1u);
  const std::uint64_t before = verbs.packet_count();
  EXPECT_EQ(loop.run(client->put(space, few, from, {.deadline = 5s}))->stored, few.size());
  EXPECT_GT(verbs.packet_count(), before + few.size());
}

TEST_F(VerbsPathTest, AMissedDeadlineGivesTheMemoryBackOnceTheNodeHasStopped) {
  put_all();
  const auto running = start_get(200us);
  loop.run_until([&] { return running->is_over; });
  EXPECT_LT(running->result.block_count, kCount);
  loop.run_until([&] { return !client->is_quarantined(lent); });
  EXPECT_EQ(client->nodes()[0].rdma_lanes, 2u) << "nothing broke";
  expect_left_alone();
  EXPECT_TRUE(uses_verbs());
}

TEST_F(VerbsPathTest, ANodeKilledInTheMiddleWritesNothingLater) {
  put_all();
  const auto running = start_get(5s);
  run_into_transfer();
  node->kill();
  loop.run_until([&] { return running->is_over; });
  EXPECT_EQ(running->result.why, make_error_code(Errc::kUnavailable)) << running->result.why.message();
  EXPECT_FALSE(client->is_quarantined(lent)) << "the client has cut its lanes";
  expect_left_alone();
}

TEST_F(VerbsPathTest, AClientThatVanishesLeavesNothingPinned) {
  put_all();
  const auto running = start_get(5s);
  run_into_transfer();
  verbs.kill("fake2");
  verbs.kill("fake3");
  client.reset();
  loop.run_until([&] { return node->session_count() == 0; });
  loop.run_for(20s);
  EXPECT_EQ(node->check(), "");
  EXPECT_EQ(node->stats().incoming_count, 0u);
}

TEST_F(VerbsPathTest, MemoryFreedAfterADeadlineIsOutOfReachBeforeItIsUsedAgain) {
  put_all();
  const auto running = start_get(200us);
  loop.run_until([&] { return running->is_over; });
  ASSERT_TRUE(client->free_memory(lent));
  loop.run_for(5s);
  lent = client->allocate(kCount * kBlockBytes).value();
  memory.emplace(lent, kCount, kBlockBytes);
  loop.run(client->lend(lent, 5s)).value();
  EXPECT_EQ(get().block_count, kCount);
}

TEST_F(VerbsPathTest, ADeviceThatIsNamedIsUsedOnceItsLinkHasCome) {
  for (const std::string late : {"fake1", "fake3"}) {  // the node's, then the client's
    SCOPED_TRACE(late);
    verbs.set_link(late, false);
    restart_node();
    restart_client();
    EXPECT_EQ(client->nodes()[0].rdma_lanes, 1u);
    EXPECT_EQ(client->nodes()[0].rdma_text, "lane 1: " + late + " port 1: the link is down");
    put_all();
    EXPECT_TRUE(uses_verbs());
    verbs.set_link(late, true);
    loop.run_for(10s);
    get();
    loop.run_for(1s);
    EXPECT_EQ(client->nodes()[0].rdma_lanes, 2u);
    EXPECT_EQ(client->nodes()[0].rdma_text, "");
    EXPECT_TRUE(uses_verbs());
  }
}

TEST_F(VerbsPathTest, AClientLooksAgainForDevicesThatAreMissing) {
  verbs.set_link("fake2", false);
  verbs.set_link("fake3", false);
  client.reset();
  client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock, &verbs);
  space = loop.run(client->open(record, 5s)).value();
  lent = client->allocate(kCount * kBlockBytes).value();
  memory.emplace(lent, kCount, kBlockBytes);
  put_all();
  EXPECT_EQ(get().block_count, kCount) << "through the socket";
  EXPECT_EQ(client->nodes()[0].rdma_text, "fake2 port 1: the link is down; fake3 port 1: the link is down");
  verbs.set_link("fake2", true);
  verbs.set_link("fake3", true);
  get();
  loop.run_for(1s);
  EXPECT_EQ(client->nodes()[0].rdma_lanes, 0u) << "not at every call";
  loop.run_for(5s);
  for (int i = 0; i < 3; ++i) {
    get();
    loop.run_for(1s);
  }
  EXPECT_EQ(client->nodes()[0].rdma_lanes, 2u);
  EXPECT_TRUE(uses_verbs());
}

TEST_F(VerbsPathTest, WithoutADeviceBlocksGoThroughTheSocket) {
  put_all();
  verbs.remove_device("fake0");
  verbs.remove_device("fake1");
  for (int i = 0; i < 5; ++i) get(1s);
  loop.run_for(10s);
  EXPECT_EQ(get().block_count, kCount);
  verbs.remove_device("fake2");
  verbs.remove_device("fake3");
  EXPECT_EQ(get().block_count, kCount);
}

TEST_F(VerbsPathTest, ADeviceOfTheNodeThatIsPulledOutIsUsedAgainOnceItIsBack) {
  put_all();
  verbs.remove_device("fake0");
  const TimePoint before = clock.now();
  get();  // its session may end, since messages were on that device
  EXPECT_LT(clock.now() - before, 1s) << "nobody waits for what a device that is gone will not tell";
  for (int i = 0; i < 3; ++i) {
    loop.run_for(2s);
    EXPECT_EQ(get().block_count, kCount);
  }
  EXPECT_EQ(client->nodes()[0].rdma_lanes, 1u);
  EXPECT_TRUE(uses_verbs());
  EXPECT_THAT(client->nodes()[0].rdma_text, testing::HasSubstr("left out: fake0: No such device"));
  verbs.return_device("fake0");
  for (int i = 0; i < 5; ++i) {
    loop.run_for(10s);
    node->check_devices();
    EXPECT_EQ(get().block_count, kCount);
  }
  EXPECT_EQ(client->nodes()[0].rdma_lanes, 2u);
  EXPECT_EQ(client->nodes()[0].rdma_text, "");
  EXPECT_TRUE(uses_verbs());
}

TEST_F(VerbsPathTest, ADeviceOfTheClientThatDoesNotTakeTheMemoryIsNotUsedForIt) {
  put_all();
  for (const char* const refusing : {"fake2", "fake3"}) {
    client.reset();
    loop.run_for(20s);
    verbs.set_registered_bytes_max(refusing, 1 << 20);
    restart_client();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(uses_verbs());
    EXPECT_EQ(client->nodes()[0].rdma_lanes, 2u) << "none broke: the node was not asked to use it";
    EXPECT_THAT(client->nodes()[0].rdma_text, testing::HasSubstr(refusing));
    client.reset();
    verbs.set_registered_bytes_max(refusing, 1 << 30);
  }
}

TEST_F(VerbsPathTest, AClientWithoutDevicesSaysWhyAndGoesOn) {
  config.rdma_devices = {"fake9"};
  client.reset();
  client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock, &verbs);
  space = loop.run(client->open(record, 5s)).value();
  lent = client->allocate(kCount * kBlockBytes).value();
  EXPECT_EQ(loop.run(client->lend(lent, 5s)).value(), 0u);
  EXPECT_THAT(client->nodes()[0].rdma_text, testing::HasSubstr("fake9"));
  EXPECT_EQ(transport(), "sim");
  memory.emplace(lent, kCount, kBlockBytes);
  put_all();
  EXPECT_EQ(get().block_count, kCount);
}

TEST_F(VerbsPathTest, RandomFaultsNeverDeliverAWrongByte) {
  put_all();
  verbs.set_fault_probability(0.002);
  std::size_t short_gets = 0;
  for (int i = 0; i < 200; ++i) {
    short_gets += get(20ms).block_count < kCount;
    loop.run_until([&] { return !client->is_quarantined(lent); });
    loop.run_for(50ms);
  }
  EXPECT_GT(short_gets, 0u);
  verbs.set_fault_probability(0);
  loop.run_until([&] { return !client->is_quarantined(lent); });
  loop.run_for(10s);
  EXPECT_EQ(node->check(), "");
  loop.run(client->lend(lent, 5s)).value();
  EXPECT_TRUE(uses_verbs());
}

}  // namespace
}  // namespace kv
