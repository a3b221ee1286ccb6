// What a client does with nodes that lie, stall, vanish or come back as somebody else; on virtual time.
#include "client/link/node_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tests/client/fake_node.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {
namespace {

class NodeLinkTest : public testing::Test {
 protected:
  NodeLinkTest() {
    node.clock = &clock;
    config.nodes.push_back({.endpoint = "sim://fake"});
    config.connections_per_node = 1;
    config.seed = 7;
    make_client();
  }
  ~NodeLinkTest() override {
    client.reset();
    node.close_all();
    loop.drain();
  }
  void start_anew() {
    client.reset();
    node.close_all();
    loop.run_for(1s);
  }
  void make_client() {
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
    space = loop.run(client->open(record, 5s)).value();
  }
  GetResult get(Blocks& memory, std::chrono::microseconds deadline = 100ms) {
    const auto hashes = std::span(chain).first(memory.to.size());
    return loop.run(client->get(space, hashes, memory.to, {.deadline = deadline})).value();
  }
  /// The session that answers nothing gives way to one that does: after connect_timeout, for the reason given, and
  /// soon.
  void expect_replaced(const char* why_not_sooner) {
    Blocks memory(1, record.block_bytes());
    const TimePoint began = clock.now();
    std::size_t block_count = 0;
    while (block_count == 0 && clock.now() < began + 10s) {
      block_count = get(memory, 50ms).block_count;
      loop.run_for(50ms);
    }
    EXPECT_EQ(block_count, 1u);
    EXPECT_GE(clock.now(), began + config.connect_timeout) << why_not_sooner;
    EXPECT_LT(clock.now(), began + 2 * config.connect_timeout);
  }
  /// Answers gets as an honest node that holds `count` blocks of the chain.
  FakeNode::Handler honest(std::size_t count, bool is_inline = true) {
    return [this, count, is_inline](FakeNode::Session& session, const FrameReader::Frame& frame) {
      if (frame.header.type != FrameType::kGet) return false;
      if (count > 0) session.part(frame.header, record, chain, 0, count, is_inline);
      session.get_response(frame.header, count);
      return true;
    };
  }
  /// Counts requests under a handle that their session was not given, or without the namespace's check.
  FakeNode::Handler strict(FakeNode::Handler then) {
    return [this, then](FakeNode::Session& session, const FrameReader::Frame& frame) {
      const auto look = [&](const auto* request) {
        const bool is_right =
            session.handles.contains(request->space()) && request->namespace_check() == namespace_check(record.id());
        misused += is_right ? 0 : 1;
      };
      switch (frame.header.type) {
        case FrameType::kMatch: look(read_table<wire::MatchRequest>(frame.table)); break;
        case FrameType::kGet: look(read_table<wire::GetRequest>(frame.table)); break;
        case FrameType::kPut: look(read_table<wire::PutRequest>(frame.table)); break;
        case FrameType::kTouch:
        case FrameType::kDrop: look(read_table<wire::PrefixRequest>(frame.table)); break;
        default: break;
      }
      return then(session, frame);
    };
  }
  FakeNode::Handler on_get(std::function<void(FakeNode::Session&, const FrameHeader&)> answer) {
    return [answer](FakeNode::Session& session, const FrameReader::Frame& frame) {
      if (frame.header.type == FrameType::kGet) answer(session, frame.header);
      return frame.header.type == FrameType::kGet;
    };
  }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  FakeNode node{loop.context(), network, "fake"};
  NamespaceRecord record = test_record(100'000);
  std::vector<BlockHash> chain = test_chain(record, 4);
  ClientConfig config = repeatable_config();
  std::unique_ptr<Client> client;
  Space space{};
  int misused = 0;  ///< By strict().
};

TEST_F(NodeLinkTest, AnHonestAnswerLands) {
  node.handler = honest(3);
  Blocks memory(4, record.block_bytes());
  const GetResult got = get(memory);
  EXPECT_EQ(got.block_count, 3u);
  EXPECT_FALSE(got.why);
  EXPECT_EQ(memory.right(chain), 3u);
}

TEST_F(NodeLinkTest, ATenantAtItsLimitsHasAMissAndNoBrokenNode) {
  const int rounds = 3 * static_cast<int>(config.breaker_failures);
  node.handler = [](FakeNode::Session& session, const FrameReader::Frame& frame) {
    if (frame.header.type != FrameType::kGet && frame.header.type != FrameType::kMatch) return false;
    session.error(frame.header, Errc::kOverQuota);
    return true;
  };
  Blocks memory(3, record.block_bytes());
  for (int i = 0; i < rounds; ++i) {
    const GetResult got = get(memory);
    EXPECT_EQ(got.block_count, 0u);
    EXPECT_EQ(got.why, Errc::kOverQuota);
    const auto match = loop.run(client->match(space, chain, {.deadline = 100ms}));
    ASSERT_TRUE(match);
    EXPECT_EQ(match->block_count, 0u);
    EXPECT_EQ(match->why, Errc::kOverQuota);
  }
  EXPECT_FALSE(client->nodes()[0].breaker_open);
  EXPECT_EQ(client->nodes()[0].failures, 0u);
  EXPECT_EQ(node.sessions.size(), 1u);

  // No session at all: calls say why, and the first one after the tenant has room again goes through.
  node.close_all();
  node.handler = [](FakeNode::Session& session, const FrameReader::Frame& frame) {
    if (frame.header.type != FrameType::kHello) return false;
    session.error(frame.header, Errc::kOverQuota);
    return true;
  };
  loop.run_for(100ms);
  const std::uint64_t failures = client->nodes()[0].failures;  // the lost session is one
  for (int i = 0; i < rounds; ++i) {
    EXPECT_EQ(get(memory, 20ms).block_count, 0u);
    loop.run_for(100ms);
  }
  EXPECT_FALSE(client->nodes()[0].breaker_open);
  EXPECT_LE(client->nodes()[0].failures, failures + static_cast<std::uint64_t>(rounds));
  node.handler = honest(3);
  for (int i = 0; i < 100 && get(memory).block_count < 3; ++i) loop.run_for(100ms);
  EXPECT_EQ(memory.right(chain), 3u);
}

TEST_F(NodeLinkTest, AWrongChecksumCutsThePrefixAndTheSessionGoesOn) {
  node.handler = on_get([&](FakeNode::Session& session, const FrameHeader& to) {
    session.part(to, record, chain, 0, 3, true, /*wrong_block=*/1);
    session.get_response(to, 3);
  });
  Blocks memory(3, record.block_bytes());
  const GetResult got = get(memory);
  EXPECT_EQ(got.block_count, 1u);
  EXPECT_EQ(got.why, Errc::kCorruptBlock);
  EXPECT_EQ(got.corrupt_count, 1u);
  node.handler = honest(3);
  EXPECT_EQ(get(memory).block_count, 3u);
  EXPECT_EQ(node.sessions.size(), 1u);
}

TEST_F(NodeLinkTest, EveryAnswerThatBreaksTheProtocolEndsTheSessionAndNotTheClient) {
  using Session = FakeNode::Session;
  const auto part_table = [&](std::uint32_t segment, std::uint32_t first, std::uint32_t count, std::size_t sum_count) {
    return [=](flatbuffers::FlatBufferBuilder& builder) {
      const std::vector<std::uint64_t> sums(sum_count);
      return wire::CreateGetPartDirect(builder, segment, first, count, &sums);
    };
  };
  const std::size_t stripes = stripe_count(record.block_bytes());
  const std::vector<std::byte> block(record.block_bytes()), shorter(record.block_bytes() - 1);
  constexpr int kMore = kFrameResponse | kFrameMore;
  const std::vector<std::pair<const char*, std::function<void(Session&, const FrameHeader&)>>> lies{
      {"a part of more blocks than asked for",
       [&](Session& s, const FrameHeader& to) { s.reply(to, kMore, part_table(0, 0, 5, 5 * stripes), block); }},
      {"a part of 2^32-1 blocks",
       [&](Session& s, const FrameHeader& to) { s.reply(to, kMore, part_table(0, 0, 0xFFFFFFFF, stripes), block); }},
      {"a part of no block", [&](Session& s, const FrameHeader& to) { s.reply(to, kMore, part_table(0, 0, 0, 0)); }},
      {"too few checksums",
       [&](Session& s, const FrameHeader& to) { s.reply(to, kMore, part_table(0, 0, 1, stripes - 1), block); }},
      {"a payload that is too short",
       [&](Session& s, const FrameHeader& to) { s.reply(to, kMore, part_table(0, 0, 1, stripes), shorter); }},
      {"no payload", [&](Session& s, const FrameHeader& to) { s.reply(to, kMore, part_table(0, 0, 1, stripes)); }},
      {"a block that is not the next",
       [&](Session& s, const FrameHeader& to) { s.reply(to, kMore, part_table(0, 1, 1, stripes), block); }},
      {"a segment that does not exist",
       [&](Session& s, const FrameHeader& to) { s.reply(to, kMore, part_table(1, 0, 1, stripes), block); }},
      {"an end that claims more than was sent", [&](Session& s, const FrameHeader& to) { s.get_response(to, 1); }},
      {"an unknown request id",
       [&](Session& s, FrameHeader to) {
         to.request_id += 1;
         s.get_response(to, 0);
       }},
      {"an answer that was given already",
       [&](Session& s, FrameHeader to) {
         to.request_id -= std::uint64_t{1} << 32;
         s.get_response(to, 0);
       }},
      {"an answer of another type",
       [&](Session& s, FrameHeader to) {
         to.type = FrameType::kMatch;
         s.get_response(to, 0);
       }},
      {"a request instead of a response",
       [&](Session& s, const FrameHeader& to) {
         s.reply(to, 0, [](auto& builder) { return wire::CreatePingRequest(builder); });
       }},
      {"an error of code 0", [&](Session& s, const FrameHeader& to) { s.error(to, Errc{}); }},
      {"an error with more to come",
       [&](Session& s, const FrameHeader& to) {
         s.reply(to, kMore | kFrameError, [](auto& builder) { return wire::CreateErrorDirect(builder, 5, ""); });
       }},
      {"a last frame with a payload",
       [&](Session& s, const FrameHeader& to) {
         s.reply(
             to, kFrameResponse, [](auto& builder) { return wire::CreateGetResponse(builder, 0); }, block);
       }},
      {"bytes that are no frame",
       [&](Session& s, const FrameHeader&) {
         const asio::const_buffer garbage(block.data(), 64);
         (void)s.stream->try_write(std::span(&garbage, 1));
       }},
  };
  for (const auto& [name, lie] : lies) {
    SCOPED_TRACE(name);
    node.handler = on_get(lie);
    Blocks memory(4, record.block_bytes());
    const GetResult got = get(memory);
    EXPECT_EQ(got.block_count, 0u);
    EXPECT_EQ(got.why, Errc::kBadFrame) << got.why.message();
    EXPECT_FALSE(client->nodes()[0].connected);
    EXPECT_FALSE(client->nodes()[0].last_error_text.empty());
    loop.run_for(10s);  // back-off, breaker
    node.handler = honest(4);
    EXPECT_EQ(get(memory).block_count, 4u);
  }
}

TEST_F(NodeLinkTest, ASilentNodeCostsExactlyTheDeadlineAndIsToldOfIt) {
  Blocks memory(2, record.block_bytes());
  const TimePoint began = clock.now();
  const GetResult got = get(memory, 30ms);
  EXPECT_EQ(clock.now(), began + 30ms);
  EXPECT_EQ(got.block_count, 0u);
  EXPECT_EQ(got.why, asio::error::timed_out);
  loop.run_for(1ms);
  EXPECT_EQ(node.seen[FrameType::kCancel], 1);
}

TEST_F(NodeLinkTest, WhatComesAfterTheDeadlineIsSwallowed) {
  FakeNode::Session* session = nullptr;
  FrameHeader late;
  node.handler = on_get([&](FakeNode::Session& s, const FrameHeader& to) {
    s.part(to, record, chain, 0, 1);  // one block comes in time
    session = &s;
    late = to;
  });
  Blocks memory(3, record.block_bytes());
  memory.clear();
  const GetResult got = get(memory, 20ms);
  EXPECT_EQ(got.block_count, 1u);
  EXPECT_EQ(got.why, asio::error::timed_out);
  EXPECT_EQ(memory.right(chain), 1u);
  const std::vector<std::byte> before(memory.memory.begin(), memory.memory.end());
  session->part(late, record, chain, 1, 2);
  session->get_response(late, 3);
  loop.run_for(50ms);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), memory.memory.begin()));
  node.handler = honest(3);
  EXPECT_EQ(get(memory).block_count, 3u);
  EXPECT_EQ(node.sessions.size(), 1u) << "the same session serves on";
}

TEST_F(NodeLinkTest, ADeadlineInTheMiddleOfAPayloadLeavesTheRestAlone) {
  SimFaults slow;
  slow.chunk_bytes_max = 4096;
  slow.delay_min = slow.delay_max = 1ms;
  network.set_faults(slow);
  node.handler = on_get([&](FakeNode::Session& s, const FrameHeader& to) {
    s.part(to, record, chain, 0, 4);
    s.get_response(to, 4);
    network.freeze("fake");  // some of it has arrived at the client's end at most
  });
  Blocks memory(4, record.block_bytes());
  memory.clear();
  const GetResult got = get(memory, 20ms);
  EXPECT_EQ(got.why, asio::error::timed_out);
  const std::vector<std::byte> before(memory.memory.begin(), memory.memory.end());
  network.thaw("fake");
  loop.run_for(100ms);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), memory.memory.begin()));
  network.set_faults({});
  node.handler = honest(4);
  EXPECT_EQ(get(memory).block_count, 4u);
}

TEST_F(NodeLinkTest, APutThatMissesItsDeadlineGivesItsMemoryBackAtOnce) {
  std::vector<std::byte> received;
  node.handler = [&](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type != FrameType::kPut) return false;
    s.reply(frame.header, kFrameResponse | kFrameMore,
            [](auto& builder) { return wire::CreatePutWant(builder, 0, 4); });
    network.freeze("fake");  // takes a part of the data at most
    return true;
  };
  NamespaceRecord large = test_record(1 << 20);
  const auto large_chain = test_chain(large, 4);
  const Space large_space = loop.run(client->open(large, 1s)).value();
  auto memory = std::make_unique<Blocks>(4, 1 << 20);
  memory->fill(large_chain);
  // The want list arrives although the host is frozen at once: thaw for a moment.
  network.thaw("fake");
  const PutResult put = loop.run(client->put(large_space, large_chain, memory->from, {.deadline = 50ms})).value();
  EXPECT_EQ(put.refused, 4u);
  EXPECT_EQ(put.why, asio::error::timed_out);
  memory.reset();  // a sanitizer would see a writer that still borrows it
  network.thaw("fake");
  loop.run_for(100ms);
  node.handler = honest(4);
  Blocks small(4, record.block_bytes());
  EXPECT_EQ(get(small).block_count, 4u);
}

TEST_F(NodeLinkTest, APutWhoseBlocksAreUnderWayIsNotTriedAgainWhateverTheNodeSays) {
  int errors = 0;
  node.handler = [&](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type == FrameType::kPut) {
      s.reply(frame.header, kFrameResponse | kFrameMore,
              [](auto& builder) { return wire::CreatePutWant(builder, 0, 4); });
      return true;
    }
    if (frame.header.type != FrameType::kPutData || errors++ > 0) return false;
    FrameHeader put = frame.header;  // most of the bytes are still the caller's, borrowed by the session's writer
    put.type = FrameType::kPut;
    s.error(put, Errc::kNoNamespace);
    return true;
  };
  NamespaceRecord large = test_record(1 << 20);
  const auto large_chain = test_chain(large, 4);
  const Space large_space = loop.run(client->open(large, 1s)).value();
  auto memory = std::make_unique<Blocks>(4, 1 << 20);
  memory->fill(large_chain);
  const PutResult put = loop.run(client->put(large_space, large_chain, memory->from, {.deadline = 50ms})).value();
  EXPECT_EQ(put.refused, 4u);
  EXPECT_EQ(put.why, Errc::kNoNamespace);
  EXPECT_EQ(node.seen[FrameType::kPut], 1);
  memory.reset();  // a sanitizer would see a writer that still borrows it
  loop.run_for(100ms);
  const int opened = node.seen[FrameType::kOpen];
  node.handler = honest(4);
  Blocks small(4, record.block_bytes());
  EXPECT_EQ(get(small).block_count, 4u) << "the same session serves on";
  EXPECT_EQ(node.sessions.size(), 1u);
  node.handler = on_get([&](FakeNode::Session& s, const FrameHeader& to) { s.get_response(to, 0); });
  Blocks again(4, 1 << 20);
  EXPECT_FALSE(loop.run(client->get(large_space, large_chain, again.to, {.deadline = 50ms}))->why);
  EXPECT_EQ(node.seen[FrameType::kOpen], opened + 1) << "the namespace is opened again for the next call";
}

// -- lent memory

class QuarantineTest : public NodeLinkTest {
 protected:
  QuarantineTest() : lent(client->allocate(4 * record.block_bytes()).value()), memory(lent, 4, record.block_bytes()) {}

  /// A get whose first `landed` blocks are marked in time, and no more.
  GetResult get_that_times_out(std::size_t landed) {
    memory.fill(chain);  // as the node would have copied them
    node.handler = on_get([this, landed](FakeNode::Session& s, const FrameHeader& to) {
      if (landed > 0) s.part(to, record, chain, 0, landed, /*is_inline=*/false);
      session = &s;
      request = to;
    });
    return get(memory, 20ms);
  }

  std::span<std::byte> lent;
  Blocks memory;
  FakeNode::Session* session = nullptr;
  FrameHeader request;
};

TEST_F(QuarantineTest, MarkedBlocksAreVerifiedWhereTheyLie) {
  memory.fill(chain);
  memory.to[2][5] ^= std::byte{1};  // the node copied something else
  node.handler = honest(4, /*is_inline=*/false);
  const GetResult got = get(memory);
  EXPECT_EQ(got.block_count, 2u);
  EXPECT_EQ(got.why, Errc::kCorruptBlock);
  EXPECT_EQ(node.seen[FrameType::kRegionAdd], 1);
  EXPECT_FALSE(client->is_quarantined(lent));
}

TEST_F(QuarantineTest, BlocksThatWereNotMarkedAreQuarantinedUntilTheLastFrame) {
  const GetResult got = get_that_times_out(1);
  EXPECT_EQ(got.block_count, 1u);
  EXPECT_EQ(got.why, asio::error::timed_out);
  EXPECT_FALSE(client->is_quarantined(memory.to[0]));
  for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(client->is_quarantined(memory.to[i])) << i;
  EXPECT_EQ(loop.run(client->get(space, chain, memory.to, {.deadline = 1s})).error(), Errc::kQuarantined);
  EXPECT_EQ(loop.run(client->put(space, chain, memory.from, {.deadline = 1s})).error(), Errc::kQuarantined);

  session->part(request, record, chain, 1, 1, false);  // a mark is not the last word
  loop.run_for(10ms);
  EXPECT_TRUE(client->is_quarantined(lent));
  session->error(request, Errc::kCancelled);
  loop.run_for(10ms);
  EXPECT_FALSE(client->is_quarantined(lent));
  node.handler = honest(4, false);
  EXPECT_EQ(get(memory).block_count, 4u);
}

TEST_F(QuarantineTest, TheEndOfTheConnectionEndsTheQuarantine) {
  get_that_times_out(0);
  EXPECT_TRUE(client->is_quarantined(lent));
  node.close_all();
  loop.run_for(10ms);
  EXPECT_FALSE(client->is_quarantined(lent));
}

TEST_F(QuarantineTest, AStoppedNodeKeepsItQuarantinedAndOthersMayGoOn) {
  get_that_times_out(0);
  network.freeze("fake");
  loop.run_for(60s);
  EXPECT_TRUE(client->is_quarantined(lent));
  Blocks other(4, record.block_bytes());
  EXPECT_EQ(get(other).why, asio::error::timed_out);
  EXPECT_TRUE(client->is_quarantined(lent));
}

TEST_F(QuarantineTest, AViolationQuarantinesWhatIsUnderWayUntilTheNodeCloses) {
  memory.fill(chain);
  node.handler = on_get([this](FakeNode::Session& s, const FrameHeader& to) {
    s.part(to, record, chain, 0, 1, false);
    s.part(to, record, chain, 3, 1, false);  // out of order
  });
  const GetResult got = get(memory);
  EXPECT_EQ(got.block_count, 1u);
  EXPECT_EQ(got.why, Errc::kBadFrame);
  EXPECT_TRUE(client->is_quarantined(memory.to[1]));
  loop.run_for(10s);
  EXPECT_TRUE(client->is_quarantined(memory.to[1])) << "the node may still copy";
  node.close_all();
  loop.run_for(10ms);
  EXPECT_FALSE(client->is_quarantined(lent));
}

TEST_F(QuarantineTest, QuarantinedMemoryMayBeFreed) {
  get_that_times_out(0);
  EXPECT_TRUE(client->free_memory(lent));
  const auto again = client->allocate(4 * record.block_bytes()).value();
  EXPECT_FALSE(client->is_quarantined(again));
}

// -- failures

TEST_F(NodeLinkTest, TheBreakerOpensAfterEnoughFailuresAndOneProbeClosesIt) {
  config.breaker_failures = 3;
  config.breaker_open = 500ms;
  config.connect_timeout = 10s;  // no session is given up for its silence here
  make_client();
  Blocks memory(1, record.block_bytes());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(memory, 10ms).why, asio::error::timed_out) << i;
  EXPECT_TRUE(client->nodes()[0].breaker_open);
  const int asked = node.seen[FrameType::kGet];
  const TimePoint opened = clock.now();
  EXPECT_EQ(get(memory, 10ms).why, Errc::kUnavailable);
  EXPECT_EQ(clock.now(), opened) << "at once";
  EXPECT_EQ(node.seen[FrameType::kGet], asked);

  loop.run_for(500ms - 1ns);
  EXPECT_EQ(get(memory, 10ms).why, Errc::kUnavailable) << "one tick before";
  loop.run_for(1ns);
  EXPECT_EQ(get(memory, 10ms).why, asio::error::timed_out) << "the probe fails";
  EXPECT_EQ(get(memory, 10ms).why, Errc::kUnavailable) << "open again";
  loop.run_for(500ms);
  node.handler = honest(1);
  EXPECT_EQ(get(memory, 10ms).block_count, 1u);
  EXPECT_FALSE(client->nodes()[0].breaker_open);
}

TEST_F(NodeLinkTest, OnlyOneCallProbes) {
  config.breaker_failures = 1;
  config.connect_timeout = 10s;
  make_client();
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory, 10ms).why, asio::error::timed_out);
  loop.run_for(2s);
  std::vector<error_code> whys;
  for (int i = 0; i < 3; ++i) {
    asio::co_spawn(
        loop.context(),
        client->get(space, std::span(chain).first(1), memory.to, {.deadline = std::chrono::milliseconds(10)}),
        [&](std::exception_ptr, Result<GetResult> got) { whys.push_back(got->why); });
  }
  loop.run_until([&] { return whys.size() == 3; });
  EXPECT_EQ(std::count(whys.begin(), whys.end(), make_error_code(Errc::kUnavailable)), 2);
}

TEST_F(NodeLinkTest, ReconnectsBackOffUpToTheMaximum) {
  config.breaker_failures = 1'000'000;
  make_client();
  node.close_all();
  node.refuses = true;
  node.accepted.clear();
  Blocks memory(1, record.block_bytes());
  const TimePoint began = clock.now();
  while (clock.now() < began + 120s) {
    EXPECT_EQ(get(memory, 10ms).why, Errc::kUnavailable);
    loop.run_for(1ms);
  }
  // With full jitter the mean wait at the maximum is half of backoff_max = 5 s: about 48 attempts in 120 s, plus the
  // first.
  EXPECT_GT(node.accepted.size(), 24u);
  EXPECT_LT(node.accepted.size(), 100u);
  for (std::size_t i = 1; i < node.accepted.size(); ++i) {
    EXPECT_LT(node.accepted[i] - node.accepted[i - 1], 5s + 20ms);
  }
  node.refuses = false;
  loop.run_for(5s);
  node.handler = honest(1);
  EXPECT_EQ(get(memory).block_count, 1u);
}

TEST_F(NodeLinkTest, ASessionThatIsSilentForTooLongIsReplaced) {
  config.breaker_failures = 1'000'000;
  make_client();
  FakeNode::Session* const deaf = node.sessions.back().get();
  node.handler = [&, answer = honest(1)](FakeNode::Session& s, const FrameReader::Frame& frame) {
    return &s == deaf || answer(s, frame);
  };
  expect_replaced("not at the first missed deadline");
}

/// A length that was damaged on its way: the frame would be complete once as many bytes have come, and all answers that
/// come meanwhile are taken for parts of it.
TEST_F(NodeLinkTest, ASessionWhoseFrameNeverEndsIsReplacedThoughBytesCome) {
  config.breaker_failures = 1'000'000;
  make_client();
  FakeNode::Session* const damaged = node.sessions.back().get();
  bool is_cut = false;
  node.handler = [&, answer = honest(1)](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (&s != damaged) return answer(s, frame);
    if (std::exchange(is_cut, true)) {  // a few bytes for each request: the frame would be complete after thousands
      s.error(frame.header, Errc::kBusy);
      return true;
    }
    std::array<std::byte, kFrameHeaderBytes> header{};
    const std::vector<std::byte> table(1 << 20);
    encode_frame_header({.type = frame.header.type, .flags = kFrameResponse, .request_id = frame.header.request_id},
                        table, header);
    const asio::const_buffer bytes(header.data(), header.size());
    EXPECT_EQ(s.stream->try_write(std::span(&bytes, 1)).value(), header.size());
    return true;
  };
  expect_replaced("a table may be large, and the network slow");
}

TEST_F(NodeLinkTest, ANodeThatCameBackAsAnotherIsOpenedAgain) {
  node.handler = honest(1);
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
  EXPECT_EQ(node.seen[FrameType::kOpen], 1);
  node.node_id = "fake#2";
  node.close_all();
  loop.run_for(1s);
  EXPECT_EQ(get(memory).block_count, 1u);
  EXPECT_EQ(node.seen[FrameType::kOpen], 2);
  EXPECT_EQ(client->nodes()[0].node_id, "fake#2");
}

TEST_F(NodeLinkTest, ANamespaceIsOpenedWithoutANodeAndServesOnceOneIsThere) {
  config.connect_timeout = 1s;
  node.refuses = true;
  client.reset();
  client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
  const TimePoint before = clock.now();
  space = loop.run(client->open(record, 30s)).value();
  EXPECT_LT(clock.now(), before + 1s) << "nobody can be reached: nothing is waited for";
  EXPECT_EQ(client->block_bytes(space), record.block_bytes());
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).why, Errc::kUnavailable);
  const TimePoint known = clock.now();
  EXPECT_EQ(get(memory).why, Errc::kUnavailable);
  EXPECT_EQ(clock.now(), known) << "at once when the node is known to be away";
  EXPECT_EQ(loop.run(client->wait_open(space, 100ms)).error(), Errc::kUnavailable);

  node.refuses = false;
  node.handler = honest(1);
  loop.run_for(6s);  // back-off, breaker
  EXPECT_TRUE(loop.run(client->wait_open(space, 1s)));
  EXPECT_EQ(get(memory).block_count, 1u);
}

TEST_F(NodeLinkTest, ANamespaceIsOpenedAtOnceBesideANodeThatDoesNotAnswer) {
  network.freeze("fake");
  client.reset();
  client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
  const TimePoint before = clock.now();
  EXPECT_TRUE(loop.run(client->open(record, 0us)));
  EXPECT_EQ(clock.now(), before);
  space = loop.run(client->open(record, 20ms)).value();
  EXPECT_EQ(clock.now(), before + 20ms);
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory, 10ms).why, asio::error::timed_out);
  EXPECT_EQ(clock.now(), before + 30ms);
  EXPECT_EQ(loop.run(client->wait_open(space, 10ms)).error(), asio::error::timed_out);
}

TEST_F(NodeLinkTest, ANodeThatRefusesTheRecordSaysSoToOpenOrIfItComesLaterToEachCall) {
  const auto refuse = [](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type == FrameType::kOpen) s.error(frame.header, Errc::kMismatch);
    return frame.header.type == FrameType::kOpen;
  };
  node.refuses = true;
  client.reset();
  client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
  space = loop.run(client->open(record, 0us)).value();
  node.refuses = false;
  node.handler = refuse;
  loop.run_for(6s);
  Blocks memory(1, record.block_bytes());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(memory).why, Errc::kMismatch) << i;
  EXPECT_EQ(client->nodes()[0].last_error_text, "open: as the test wants");
  EXPECT_EQ(loop.run(client->open(record, 1s)).error(), Errc::kMismatch);
  node.handler = nullptr;
  EXPECT_TRUE(loop.run(client->open(record, 1s)));
}

TEST_F(NodeLinkTest, ANodeThatCameBackUnderTheSameNameIsOpenedAgain) {
  node.handler = strict(honest(1));
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
  for (std::uint8_t life = 2; life < 5; ++life) {
    node.instance.assign(kInstanceBytes, life);
    node.close_all();
    loop.run_for(1s);
    EXPECT_EQ(get(memory).block_count, 1u);
    EXPECT_EQ(node.seen[FrameType::kOpen], life);
  }
  EXPECT_EQ(misused, 0);
}

TEST_F(NodeLinkTest, AHandleIsUsedOnlyOnTheSessionThatGaveIt) {
  config.connections_per_node = 4;
  start_anew();
  node.handler = strict([answer = honest(1)](FakeNode::Session& s, const FrameReader::Frame& frame) {
    const FrameHeader& to = frame.header;
    if (to.type == FrameType::kMatch) {
      s.reply(to, kFrameResponse, [](auto& builder) { return wire::CreateMatchResponse(builder, 1); });
    } else if (to.type == FrameType::kTouch || to.type == FrameType::kDrop) {
      s.reply(to, kFrameResponse, [](auto& builder) { return wire::CreateCountResponse(builder, 1); });
    } else {
      return answer(s, frame);
    }
    return true;
  });
  client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
  for (int i = 0; i < 3; ++i) {  // three namespaces, asked about on all sessions at once
    record = test_record(100'000 + 1000 * i);
    chain = test_chain(record, 4);
    space = loop.run(client->open(record, 5s)).value();
    Blocks memory(1, record.block_bytes());
    for (int j = 0; j < 8; ++j) EXPECT_EQ(get(memory).block_count, 1u);
    for (int j = 0; j < 8; ++j) {
      asio::co_spawn(loop.context(), client->match(space, chain, {.deadline = 100ms}), asio::detached);
      asio::co_spawn(loop.context(), client->touch(space, chain, 100ms), asio::detached);
      asio::co_spawn(loop.context(), client->drop(space, chain, 100ms), asio::detached);
    }
    loop.run_for(1s);
  }
  EXPECT_EQ(misused, 0);
  EXPECT_EQ(node.sessions.size(), 4u);
  for (const auto& session : node.sessions) EXPECT_EQ(session->handles.size(), 3u) << "opened once on each";
}

TEST_F(NodeLinkTest, ASessionOfAnEarlierLifeIsLeftAsSoonAsALaterOneIsMet) {
  config.connections_per_node = 2;
  start_anew();
  bool is_refusing = true;  // the second session, at first
  node.handler = [&, answer = strict(honest(1))](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type == FrameType::kHello && &s != node.sessions[0].get()) {
      if (is_refusing) {
        s.stream->close();
        return true;
      }
      node.instance.assign(kInstanceBytes, 2);
    }
    return answer(s, frame);
  };
  make_client();
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
  is_refusing = false;  // the successor listens, while the first process still serves
  const std::shared_ptr<FakeNode::Session> first = node.sessions[0];
  for (int i = 0; i < 10; ++i) {
    loop.run_for(1s);
    EXPECT_EQ(get(memory).block_count, 1u);
  }
  std::byte byte;
  const asio::mutable_buffer buffer(&byte, 1);
  const auto left = first->stream->try_read(std::span(&buffer, 1));
  EXPECT_FALSE(left);
  EXPECT_NE(left.error(), asio::error::would_block) << "the client has left it";
  EXPECT_EQ(misused, 0);
}

TEST_F(NodeLinkTest, AnAnswerAboutAnotherNamespaceIsAMismatch) {
  NamespaceRecord other = test_record(100'000, "other");
  bool is_other = true;
  node.handler = [&, answer = strict(honest(1))](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type != FrameType::kOpen || !is_other) return answer(s, frame);
    const NamespaceId id = other.id();
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(id.bytes.data());
    const std::vector<std::uint8_t> name(bytes, bytes + id.bytes.size());
    s.reply(frame.header, kFrameResponse,
            [&](auto& builder) { return wire::CreateOpenResponseDirect(builder, 1, other.block_bytes(), &name); });
    return true;
  };
  client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
  const auto opened = loop.run(client->open(record, 1s));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error(), Errc::kMismatch);
  is_other = false;
  space = loop.run(client->open(record, 1s)).value();
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
}

TEST_F(NodeLinkTest, AMismatchIsToldAndTheNextCallOpensAgain) {
  bool is_mixed_up = false;
  node.handler = [&, answer = strict(honest(1))](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type != FrameType::kGet || !is_mixed_up) return answer(s, frame);
    s.error(frame.header, Errc::kMismatch);
    return true;
  };
  make_client();
  Blocks memory(1, record.block_bytes());
  EXPECT_EQ(get(memory).block_count, 1u);
  is_mixed_up = true;
  EXPECT_EQ(get(memory).why, Errc::kMismatch);
  EXPECT_EQ(node.seen[FrameType::kGet], 2) << "not tried again behind the caller's back";
  is_mixed_up = false;
  const int opened = node.seen[FrameType::kOpen];
  EXPECT_EQ(get(memory).block_count, 1u);
  EXPECT_EQ(node.seen[FrameType::kOpen], opened + 1);
}

TEST_F(NodeLinkTest, AForgottenNamespaceIsOpenedAgainOnce) {
  int refused = 0;
  node.handler = [&, answer = honest(1)](FakeNode::Session& s, const FrameReader::Frame& frame) {
    if (frame.header.type == FrameType::kGet && refused-- > 0) {
      s.error(frame.header, Errc::kNoNamespace);
      return true;
    }
    return answer(s, frame);
  };
  Blocks memory(1, record.block_bytes());
  refused = 1;
  EXPECT_EQ(get(memory).block_count, 1u);
  EXPECT_EQ(node.seen[FrameType::kOpen], 2);
  refused = 2;
  EXPECT_EQ(get(memory).why, Errc::kNoNamespace);
}

TEST_F(NodeLinkTest, AnErrorOfTheNodeIsTheReasonAndNoFailure) {
  node.handler = on_get([&](FakeNode::Session& s, const FrameHeader& to) { s.error(to, Errc::kDraining); });
  Blocks memory(1, record.block_bytes());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(memory).why, Errc::kDraining);
  EXPECT_FALSE(client->nodes()[0].breaker_open);
  EXPECT_EQ(client->nodes()[0].failures, 0u);
}

TEST_F(NodeLinkTest, MoreCallsThanCallsMaxAreRefused) {
  config.calls_max = 2;
  make_client();
  Blocks memory(1, record.block_bytes());
  std::vector<error_code> ends;
  for (int i = 0; i < 3; ++i) {
    asio::co_spawn(
        loop.context(),
        client->get(space, std::span(chain).first(1), memory.to, {.deadline = std::chrono::milliseconds(10)}),
        [&](std::exception_ptr, Result<GetResult> got) { ends.push_back(got ? got->why : got.error()); });
  }
  loop.run_until([&] { return ends.size() == 3; });
  EXPECT_EQ(std::count(ends.begin(), ends.end(), make_error_code(Errc::kBusy)), 1);
}

TEST_F(NodeLinkTest, MoreCallsThanTheNodeTakesWaitForTheirTurn) {
  node.handler = honest(1);
  std::vector<Blocks> memories;
  for (int i = 0; i < 200; ++i) memories.emplace_back(1, record.block_bytes());
  std::size_t done = 0, hits = 0;
  for (Blocks& memory : memories) {  // the node takes 64 at a time
    asio::co_spawn(loop.context(),
                   client->get(space, std::span(chain).first(1), memory.to, {.deadline = std::chrono::seconds(5)}),
                   [&](std::exception_ptr, Result<GetResult> got) {
                     ++done;
                     hits += got->block_count;
                   });
  }
  loop.run_until([&] { return done == 200; });
  EXPECT_EQ(hits, 200u);
}

}  // namespace
}  // namespace kv
