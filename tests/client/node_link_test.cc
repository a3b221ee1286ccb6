// What a client does with nodes that lie, stall or vanish; on virtual time.
#include "client/link/session/node_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/client/node_link_fixture.h"

namespace kv {
namespace {

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
  const auto ends = ends_of_gets(3);
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
