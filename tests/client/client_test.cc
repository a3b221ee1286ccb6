// Client against real nodes: one and several, over TCP, Unix sockets, lent memory and the simulated network.
#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/client_fixture.h"
#include "tests/client/said.h"

namespace kv {
namespace {

class ClientTest : public ClientFixture {};

TEST_P(ClientTest, WhatOneClientPutsAnotherGetsByteForByte) {
  for (const std::size_t block_bytes : {4096ul, 100'000ul, 2ul << 20}) {
    const NamespaceRecord record = test_record(block_bytes);
    const auto chain = test_chain(record, 9);
    const Space space = open(record);
    Blocks mine = blocks(9, block_bytes);
    mine.fill(chain);
    const PutResult put = loop.run(client->put(space, chain, mine.from, {.deadline = 5s})).value();
    EXPECT_EQ(put.stored, 9u) << put.why.message();
    const PutResult again = loop.run(client->put(space, chain, mine.from, {.deadline = 5s})).value();
    EXPECT_EQ(again.already_stored, 9u) << again.why.message();

    client = make_client();
    const Space other = open(record);
    Blocks theirs = blocks(9, block_bytes);
    theirs.clear();
    const GetResult got = loop.run(client->get(other, chain, theirs.to, {.deadline = 5s})).value();
    EXPECT_EQ(got.block_count, 9u) << got.why.message();
    EXPECT_EQ(theirs.right(chain), 9u);
    EXPECT_EQ(got.corrupt_count, 0u);
  }
}

TEST_P(ClientTest, AGetEndsAtTheFirstBlockThatIsNotHeld) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 20);
  const Space space = open(record);
  Blocks memory = blocks(20, 4096);
  memory.fill(chain);
  const auto from = std::span(memory.from).first(12);
  EXPECT_EQ(loop.run(client->put(space, std::span(chain).first(12), from, {.deadline = 5s}))->stored, 12u);
  memory.clear();
  const GetResult got = loop.run(client->get(space, chain, memory.to, {.deadline = 5s})).value();
  EXPECT_EQ(got.block_count, 12u);
  EXPECT_FALSE(got.why) << got.why.message();
  EXPECT_EQ(memory.right(chain), 12u);
  const MatchResult match = loop.run(client->match(space, chain, {.deadline = 5s})).value();
  EXPECT_EQ(match.block_count, 12u);
  EXPECT_FALSE(match.why);
}

TEST_P(ClientTest, AnUnknownChainIsAMissAndNoError) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 3);
  const Space space = open(record);
  Blocks memory = blocks(3, 4096);
  const GetResult got = loop.run(client->get(space, chain, memory.to, {.deadline = 5s})).value();
  EXPECT_EQ(got.block_count, 0u);
  EXPECT_FALSE(got.why);
}

struct Marks {
  std::vector<std::pair<std::size_t, std::size_t>> seen;
  static void call(void* context, std::size_t segment, std::size_t block_count) {
    static_cast<Marks*>(context)->seen.emplace_back(segment, block_count);
  }
};

TEST_P(ClientTest, SegmentsAreReportedInOrderOnceAllBlocksHaveThem) {
  const std::size_t block_bytes = 300'000;
  const NamespaceRecord record = test_record(block_bytes);
  const auto chain = test_chain(record, 10);
  const Space space = open(record);
  Blocks memory = blocks(10, block_bytes);
  memory.fill(chain);
  const auto from = std::span(memory.from).first(7);
  EXPECT_EQ(loop.run(client->put(space, std::span(chain).first(7), from, {.deadline = 5s}))->stored, 7u);
  memory.clear();
  Marks marks;
  // 1 and 65,536 end in the same stripe, 262,145 in the last one.
  const std::uint64_t ends[] = {1, 65'536, 131'072, 262'145, block_bytes};
  GetOptions options{.deadline = 5s, .segment_ends = ends, .on_segment = {&Marks::call, &marks}};
  const GetResult got = loop.run(client->get(space, chain, memory.to, options)).value();
  EXPECT_EQ(got.block_count, 7u) << got.why.message();
  EXPECT_EQ(memory.right(chain), 7u);
  using Mark = std::pair<std::size_t, std::size_t>;
  EXPECT_THAT(marks.seen, testing::ElementsAre(Mark(0, 7), Mark(1, 7), Mark(2, 7), Mark(3, 7), Mark(4, 7)));
}

TEST_P(ClientTest, ALeaseIsGrantedUsedByGetAndReleased) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 6);
  const Space space = open(record);
  Blocks memory = blocks(6, 4096);
  memory.fill(chain);
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 5s}))->stored, 6u);
  const MatchResult match = loop.run(client->match(space, chain, {.deadline = 5s, .lease = true})).value();
  EXPECT_EQ(match.block_count, 6u);
  EXPECT_NE(match.lease, Lease{});
  const auto lease_count = [&] {
    std::size_t count = 0;
    for (const auto& node : nodes) count += node->stats().lease_count;
    for (const auto& node : sim_nodes) count += node->stats().lease_count;
    return count;
  };
  EXPECT_GT(lease_count(), 0u);
  const GetOptions with_lease{.deadline = 5s, .lease = match.lease};
  EXPECT_EQ(loop.run(client->get(space, chain, memory.to, with_lease))->block_count, 6u);
  EXPECT_EQ(lease_count(), 0u);
  EXPECT_EQ(loop.run(client->get(space, chain, memory.to, with_lease))->block_count, 6u) << "a stale lease is ignored";

  const MatchResult other = loop.run(client->match(space, chain, {.deadline = 5s, .lease = true})).value();
  EXPECT_GT(lease_count(), 0u);
  client->release(other.lease);
  client->release(other.lease);
  // The node answers requests of one session in order, but there are several: wait for the effect.
  while (lease_count() > 0) loop.run(client->ping(5s)).value();
}

TEST_P(ClientTest, RetentionCountsBlocksOverAllNodes) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 10);
  const Space space = open(record);
  Blocks memory = blocks(10, 4096);
  memory.fill(chain);
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 5s}))->stored, 10u);
  EXPECT_EQ(loop.run(client->touch(space, chain, 5s)).value(), 10u);
  EXPECT_EQ(loop.run(client->retain(space, chain, 5s)).value(), 10u);
  EXPECT_EQ(loop.run(client->unretain(space, chain, 5s)).value(), 10u);
  EXPECT_GE(loop.run(client->drop(space, std::span(chain).first(5), 5s)).value().block_count, 1u);
  EXPECT_EQ(loop.run(client->match(space, chain, {.deadline = 5s}))->block_count, 4u);
  EXPECT_GE(loop.run(client->drop(space, {}, 5s)).value().block_count, 4u);
  EXPECT_EQ(loop.run(client->match(space, chain, {.deadline = 5s}))->block_count, 0u);
}

TEST_P(ClientTest, StatsPingAndNodesTellOfEveryNode) {
  const NamespaceRecord record = test_record(4096);
  open(record);
  const auto stats = loop.run(client->ask({.path = "/stats.json"}, 5s)).value();
  ASSERT_EQ(stats.size(), GetParam().node_count);
  for (const NodeAnswer& node : stats) {
    const nlohmann::json told = said(node);
    EXPECT_FALSE(told.at("values").empty());
    ASSERT_EQ(told.at("namespaces").size(), 1u);
    EXPECT_EQ(told["namespaces"][0]["record"], record.text());
  }
  const auto one = loop.run(client->ask({.path = "/stats.json", .node = stats.back().name}, 5s)).value();
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].name, stats.back().name);
  EXPECT_EQ(loop.run(client->ask({.path = "/stats.json", .node = "nobody"}, 5s)).error(), Errc::kNotFound);
  EXPECT_EQ(loop.run(client->ask({.path = "/nowhere.json"}, 5s)).value()[0].error, Errc::kNotFound);
  const auto round_trips = loop.run(client->ping(5s)).value();
  ASSERT_EQ(round_trips.size(), GetParam().node_count);
  for (const auto round_trip : round_trips) EXPECT_GE(round_trip.count(), 0);
  for (const NodeStatus& node : client->nodes()) {
    EXPECT_TRUE(node.connected);
    EXPECT_FALSE(node.breaker_open);
    EXPECT_EQ(node.node_id.substr(0, 4), "node");
    EXPECT_EQ(node.failures, 0u);
  }
}

TEST_P(ClientTest, ManyCallsAtOnceAllComeBack) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 64);
  const Space space = open(record);
  Blocks memory = blocks(64, 4096);
  memory.fill(chain);
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 5s}))->stored, 64u);
  memory.clear();
  std::size_t done = 0, block_count = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    // The i-th get asks for blocks 0..i, all but the last into scratch memory of its own.
    asio::co_spawn(
        loop.context(),
        [](Client& c, Space s, std::span<const BlockHash> hashes, std::span<std::byte> last) -> Async<std::size_t> {
          std::vector<std::byte> scratch(hashes.size() * 4096);
          std::vector<std::span<std::byte>> to;
          for (std::size_t b = 0; b + 1 < hashes.size(); ++b) to.push_back(std::span(scratch).subspan(b * 4096, 4096));
          to.push_back(last);
          const auto got = co_await c.get(s, hashes, to, {.deadline = 5s});
          co_return got->block_count;
        }(*client, space, std::span(chain).first(i + 1), memory.to[i]),
        [&](std::exception_ptr, Result<std::size_t> count) {
          ++done;
          block_count += *count;
        });
  }
  loop.run_until([&] { return done == 64; });
  EXPECT_EQ(block_count, 64u * 65 / 2);
  EXPECT_EQ(memory.right(chain), 64u);
}

INSTANTIATE_TEST_SUITE_P(Transports, ClientTest,
                         testing::Values(Setup{"tcp", 1}, Setup{"tcp", 3}, Setup{"unix", 1}, Setup{"memfd", 1},
                                         Setup{"memfd", 3}, Setup{"sim", 1}, Setup{"sim", 4}, Setup{"verbs", 1},
                                         Setup{"verbs", 4}),
                         [](const auto& each) {
                           return std::string(each.param.transport) + "_" + std::to_string(each.param.node_count);
                         });

class OneNodeTest : public testing::Test {
 protected:
  explicit OneNodeTest(StoreConfig store = small_store())
      : node(store, "node", {Endpoint::Scheme::kUnix, directory.path() + "/node", ""}) {
    config.nodes.push_back({.endpoint = node.endpoint().to_string()});
    client = std::make_unique<Client>(loop.context().get_executor(), config);
  }
  ~OneNodeTest() override {
    client.reset();
    loop.drain();
  }
  TemporaryDirectory directory;
  SocketNode node;
  Loop loop;
  ClientConfig config;
  std::unique_ptr<Client> client;
};

TEST_F(OneNodeTest, MemoryOfAllocateIsFilledByTheNodeItself) {
  const NamespaceRecord record = test_record(1 << 20);
  const auto chain = test_chain(record, 4);
  const Space space = loop.run(client->open(record, 5s)).value();
  const auto lent = client->allocate(4 << 20).value();
  Blocks memory(lent, 4, 1 << 20);
  memory.fill(chain);
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 5s}))->stored, 4u);
  EXPECT_EQ(client->nodes()[0].peer_transport, "unix+memfd");
  memory.clear();
  EXPECT_EQ(loop.run(client->get(space, chain, memory.to, {.deadline = 5s}))->block_count, 4u);
  EXPECT_EQ(memory.right(chain), 4u);
  EXPECT_TRUE(client->free_memory(lent));
  EXPECT_EQ(client->free_memory(lent).error(), Errc::kBadRequest);
}

TEST_F(OneNodeTest, APartialBlockIsFoundByItsTokens) {
  const NamespaceRecord record = test_record(4096);
  std::vector<std::uint32_t> tokens(12);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(i);
  const auto chain = hash_chain(record.digest(), tokens, 4);
  const Space space = loop.run(client->open(record, 5s)).value();
  Blocks memory(3, 4096);
  memory.fill(chain);
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 5s, .token_ids = tokens}))->stored, 3u);
  tokens[10] = 99;  // shares tokens 8 and 9 of the third block
  const auto other = hash_chain(record.digest(), tokens, 4);
  const MatchOptions options{.deadline = 5s, .token_ids = tokens};
  const MatchResult match = loop.run(client->match(space, std::span(other).first(2), options)).value();
  EXPECT_EQ(match.block_count, 2u);
  EXPECT_EQ(match.partial_token_count, 2u);
  EXPECT_EQ(match.partial_block, chain[2]);
}

TEST_F(OneNodeTest, ANamespaceThatTheNodeForgotIsOpenedAgainWithoutTheCallerNoticing) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 2);
  const Space space = loop.run(client->open(record, 5s)).value();
  for (int i = 0; i < 1100; ++i) {  // the node keeps 1,024
    ASSERT_TRUE(loop.run(client->open(test_record(4096, "epoch " + std::to_string(i)), 5s)));
  }
  EXPECT_GT(node.stats().forgotten_namespaces, 0u);
  Blocks memory(2, 4096);
  memory.fill(chain);
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 5s}))->stored, 2u);
  memory.clear();
  EXPECT_EQ(loop.run(client->get(space, chain, memory.to, {.deadline = 5s}))->block_count, 2u);
  EXPECT_EQ(memory.right(chain), 2u);
}

TEST_F(OneNodeTest, APartialBlockOfAnotherImageIsNotOffered) {
  const NamespaceRecord record = test_record(4096);
  const std::vector<std::uint32_t> tokens = {7, 7, 7, 7, 7, 7, 7, 1};  // placeholders, the same for every image
  const auto image_a = std::as_bytes(std::span("image A")), image_b = std::as_bytes(std::span("image B"));
  const auto chain = hash_chain(record.digest(), tokens, 4, image_a);
  const Space space = loop.run(client->open(record, 5s)).value();
  Blocks memory(2, 4096);
  memory.fill(chain);
  const std::vector<ExtraDigest> of_a(2, extra_digest(image_a)), of_b(2, extra_digest(image_b));
  const PutOptions put{.deadline = 5s, .token_ids = tokens, .extras = of_a};
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, put))->stored, 2u);
  const auto partial = [&](std::size_t blocks, std::span<const BlockHash> hashes, std::span<const ExtraDigest> extras) {
    const auto ids = std::span(tokens).first((blocks + 1) * 4);
    const MatchOptions options{
        .deadline = 5s, .token_ids = ids, .extras = extras.first(extras.empty() ? 0 : blocks + 1)};
    return loop.run(client->match(space, hashes.first(blocks), options)).value().partial_token_count;
  };
  const auto other = hash_chain(record.digest(), tokens, 4, image_b);
  EXPECT_EQ(partial(0, other, of_b), 0u);
  EXPECT_EQ(partial(0, other, {}), 0u);
  EXPECT_EQ(partial(0, chain, of_a), 4u);
  EXPECT_EQ(partial(1, chain, of_a), 4u);
  const MatchOptions too_few{.deadline = 5s, .token_ids = tokens, .extras = std::span(of_a).first(1)};
  EXPECT_EQ(loop.run(client->match(space, chain, too_few)).error(), Errc::kBadRequest);
}

TEST_F(OneNodeTest, CallsThatBreakTheRulesAreRefusedWithoutAsking) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 2);
  const Space space = loop.run(client->open(record, 5s)).value();
  Blocks memory(2, 4096);
  const GetOptions get{.deadline = 5s};
  EXPECT_EQ(loop.run(client->get(Space{7}, chain, memory.to, get)).error(), Errc::kBadRequest);
  EXPECT_EQ(loop.run(client->get(space, chain, std::span(memory.to).first(1), get)).error(), Errc::kBadRequest);
  const std::span<std::byte> shorter[] = {memory.to[0], memory.to[1].first(4095)};
  EXPECT_EQ(loop.run(client->get(space, chain, shorter, get)).error(), Errc::kBadRequest);
  for (const std::vector<std::uint64_t>& ends :
       std::vector<std::vector<std::uint64_t>>{{0, 4096}, {4096, 4096}, {100, 50, 4096}, {4095}, {4096, 5000}}) {
    const GetOptions options{.deadline = 5s, .segment_ends = ends};
    EXPECT_EQ(loop.run(client->get(space, chain, memory.to, options)).error(), Errc::kBadRequest);
  }
  const std::uint32_t tokens[3] = {1, 2, 3};
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 5s, .token_ids = tokens})).error(),
            Errc::kBadRequest);
  EXPECT_EQ(loop.run(client->match(space, chain, {.deadline = 5s, .token_ids = tokens})).error(), Errc::kBadRequest);
}

TEST_F(OneNodeTest, ABadConfigurationIsRefusedNamingTheField) {
  const auto refused = [&](auto change) -> std::string {
    ClientConfig bad = config;
    change(bad);
    try {
      Client refused_client(loop.context().get_executor(), bad);
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "accepted";
  };
  using testing::StartsWith;
  EXPECT_THAT(refused([](auto& c) { c.nodes.clear(); }), StartsWith("nodes"));
  EXPECT_THAT(refused([](auto& c) { c.nodes[0].endpoint = "http://x"; }), StartsWith("nodes: endpoint"));
  EXPECT_THAT(refused([](auto& c) { c.nodes[0].weight = -1; }), StartsWith("nodes: weight"));
  EXPECT_THAT(refused([](auto& c) { c.nodes.push_back(c.nodes[0]); }), StartsWith("nodes: name"));
  EXPECT_THAT(refused([](auto& c) { c.connections_per_node = 0; }), StartsWith("connections_per_node"));
  EXPECT_THAT(refused([](auto& c) { c.connect_timeout = 0s; }), StartsWith("connect_timeout"));
  EXPECT_THAT(refused([](auto& c) { c.backoff_max = 1us; }), StartsWith("backoff_min"));
}

class TinyNodeTest : public OneNodeTest {
 protected:
  TinyNodeTest() : OneNodeTest(small_store(256 * 1024)) {}
};

TEST_F(TinyNodeTest, BlocksThatDoNotFitAreRefusedWithTheReason) {
  const NamespaceRecord record = test_record(64 * 1024);
  const auto chain = test_chain(record, 8);
  const Space space = loop.run(client->open(record, 5s)).value();
  Blocks memory(8, 64 * 1024);
  memory.fill(chain);
  const PutResult put = loop.run(client->put(space, chain, memory.from, {.deadline = 20ms})).value();
  EXPECT_EQ(put.stored + put.already_stored + put.refused, 8u);
  EXPECT_GT(put.refused, 0u);
  EXPECT_TRUE(put.why);
}

}  // namespace
}  // namespace kv
