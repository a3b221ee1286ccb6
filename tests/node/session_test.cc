// Every request's good path, over a simulated network and a real Store.
#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <random>
#include <utility>

#include "tests/node/admin_question.h"
#include "tests/node/node_world.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SessionTest : public NodeTest {};

TEST_F(SessionTest, HelloTellsTheLimits) {
  const auto client = connect();
  const auto answer = client->ask(FrameType::kHello, 77, hello_request(1, 9));
  EXPECT_EQ(answer.header.request_id, 77u);
  EXPECT_EQ(answer.header.flags, kFrameResponse);
  const auto& hello = answer.as<wire::HelloResponse>();
  EXPECT_EQ(hello.version(), kWireVersion) << "the highest that both speak";
  EXPECT_EQ(hello.node_id()->str(), "node-7");
  EXPECT_EQ(hello.table_bytes_max(), node->limits->table_bytes_max);
  EXPECT_EQ(hello.chain_blocks_max(), 1000u);
  EXPECT_EQ(hello.requests_max(), node->limits->requests_max);
  EXPECT_EQ(hello.region_bytes_max(), node->limits->region_bytes_max);
}

TEST_F(SessionTest, OpeningTheSameRecordTwiceGivesOneHandle) {
  const auto client = greet(), other = greet();
  EXPECT_EQ(open(*client, record), open(*other, record));
  EXPECT_NE(open(*client, make_record("n", kBlockBytes)), open(*client, record));
  EXPECT_EQ(client
                ->ask(FrameType::kOpen, 3,
                      [&](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, record.text().c_str()); })
                .as<wire::OpenResponse>()
                .block_bytes(),
            kBlockBytes);
}

TEST_F(SessionTest, NamespacesWithoutEndAreOpenedAndAnIdleOneIsOpenedAgain) {
  const auto client = greet(), other = greet();
  put(*client, chain(1, 2));
  const std::uint32_t idle = open(*client, make_record("idle", kBlockBytes));
  const auto ask_idle = [&](std::uint32_t handle) {
    return client->ask(FrameType::kMatch, 3, [&](FlatBufferBuilder& b) {
      return wire::CreateMatchRequestDirect(b, handle, nullptr, nullptr, false, false,
                                            namespace_check(make_record("idle", kBlockBytes).id()));
    });
  };
  EXPECT_FALSE(ask_idle(idle).is_error());
  for (int i = 0; i < 1500; ++i) {  // the limit is 1,024
    const std::string text = make_record("epoch " + std::to_string(i), kBlockBytes).text();
    ASSERT_FALSE(other
                     ->ask(FrameType::kOpen, 2,
                           [&](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, text.c_str()); })
                     .is_error());
  }
  EXPECT_EQ(stats().namespace_count, 1024u);
  EXPECT_EQ(matched(*client, chain(1, 2)), 2u) << "what holds blocks stays";
  const auto forgotten = ask_idle(idle);
  EXPECT_EQ(forgotten.error(), Errc::kNoNamespace);
  EXPECT_FALSE(ask_idle(open(*client, make_record("idle", kBlockBytes))).is_error());
}

TEST_F(SessionTest, WhenEveryNamespaceHoldsBlocksOpenSaysSoAndWhatToDo) {
  const auto client = greet();
  store->with([&](Store& each) {  // as many as there may be, each with a put under way
    for (std::uint32_t i = 0; i < 1024; ++i) {
      const SpaceId full = each.open(i == 0 ? record : make_record("full " + std::to_string(i), kBlockBytes)).value();
      ASSERT_TRUE(each.offer(full, chain(i, 1), {.session = SessionId{999}}, TimePoint{1s}));
    }
  });
  const std::string text = make_record("one more", kBlockBytes).text();
  const auto ask = [&] {
    return client->ask(FrameType::kOpen, 2,
                       [&](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, text.c_str()); });
  };
  const auto answer = ask();
  EXPECT_EQ(answer.error(), Errc::kBusy);
  EXPECT_THAT(answer.message(), HasSubstr("all 1024 namespaces"));
  EXPECT_THAT(answer.message(), HasSubstr("namespace-count-max"));
  store->with([](Store& each) { each.end_session(SessionId{999}); });
  EXPECT_FALSE(ask().is_error());
}

TEST_F(SessionTest, WhatWasPutIsMatchedAndGotWithItsChecksums) {
  const auto client = greet();
  const auto hashes = chain(1, 5);
  EXPECT_EQ(matched(*client, hashes), 0u);
  EXPECT_EQ(get(*client, hashes).block_count, 0u);
  EXPECT_EQ(put(*client, hashes), 5u);
  EXPECT_EQ(matched(*client, hashes), 5u);
  const auto other = greet();
  const Got got = get(*other, hashes);
  EXPECT_EQ(got.block_count, 5u);
  EXPECT_TRUE(got.bytes == blocks(hashes));
  EXPECT_EQ(got.checksums, sums(hashes));
  const auto longer = chain(1, 9);
  EXPECT_EQ(matched(*client, longer), 5u);
  EXPECT_EQ(get(*client, longer).block_count, 5u);
  EXPECT_EQ(matched(*client, chain(2, 5)), 0u);
  EXPECT_EQ(matched(*client, {}), 0u);
}

TEST_F(SessionTest, APutIsTakenInAsManyPartsAsTheClientLikes) {
  const auto client = greet();
  const auto hashes = chain(1, 7);
  const auto want = client->ask(FrameType::kPut, 9, put_request(hashes));
  EXPECT_EQ(want.header.flags, kFrameResponse | kFrameMore);
  EXPECT_EQ(want.as<wire::PutWant>().first_block(), 0u);
  EXPECT_EQ(want.as<wire::PutWant>().block_count(), 7u);
  EXPECT_EQ(stats().incoming_count, 7u);
  const std::span<const BlockHash> all(hashes);
  client->send(FrameType::kPutData, 9, put_data(1, sums(all.first(1))), blocks(all.first(1)));
  client->send(FrameType::kPutData, 9, put_data(4, sums(all.subspan(1, 4))), blocks(all.subspan(1, 4)));
  EXPECT_EQ(matched(*greet(), hashes), 5u) << "each part is visible once it is verified";
  const auto last = client->ask(FrameType::kPutData, 9, put_data(2, sums(all.subspan(5))), blocks(all.subspan(5)));
  EXPECT_EQ(last.header.type, FrameType::kPut);
  EXPECT_EQ(last.header.request_id, 9u);
  EXPECT_EQ(last.as<wire::PutResponse>().stored(), 7u);
  EXPECT_TRUE(get(*client, hashes).bytes == blocks(hashes));
}

TEST_F(SessionTest, OnlyWhatIsNewIsWanted) {
  const auto client = greet();
  const auto hashes = chain(1, 6);
  const std::span<const BlockHash> all(hashes);
  put(*client, all.first(4));
  const auto want = client->ask(FrameType::kPut, 9, put_request(hashes));
  EXPECT_EQ(want.as<wire::PutWant>().first_block(), 4u);
  EXPECT_EQ(want.as<wire::PutWant>().block_count(), 2u);
  const auto done = client->ask(FrameType::kPutData, 9, put_data(2, sums(all.subspan(4))), blocks(all.subspan(4)));
  EXPECT_EQ(done.as<wire::PutResponse>().stored(), 2u);
  EXPECT_EQ(done.as<wire::PutResponse>().already_stored(), 4u);
  const auto again = client->ask(FrameType::kPut, 10, put_request(hashes));
  EXPECT_TRUE(again.is_last()) << "nothing is wanted";
  EXPECT_EQ(again.as<wire::PutResponse>().already_stored(), 6u);
}

TEST_F(SessionTest, TwoPutsOfTheSameBlocksStoreThemOnce) {
  const auto one = greet(), two = greet();
  const auto hashes = chain(1, 3);
  ASSERT_FALSE(one->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  ASSERT_FALSE(two->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  const auto first = one->ask(FrameType::kPutData, 9, put_data(3, sums(hashes)), blocks(hashes));
  const auto second = two->ask(FrameType::kPutData, 9, put_data(3, sums(hashes)), blocks(hashes));
  EXPECT_EQ(first.as<wire::PutResponse>().stored(), 3u);
  EXPECT_EQ(second.as<wire::PutResponse>().stored(), 0u);
  EXPECT_EQ(second.as<wire::PutResponse>().already_stored(), 3u);
  EXPECT_EQ(stats().block_count, 3u);
}

TEST_F(SessionTest, AGetInlineComesSegmentBySegment) {
  const auto client = greet();
  const auto hashes = chain(1, 3);
  put(*client, hashes);
  const std::vector<std::uint64_t> ends = {kStripeBytes, 2 * kStripeBytes, kBlockBytes};
  client->send(FrameType::kGet, 5, get_request(hashes, 0, {}, ends));
  const auto all_sums = sums(hashes);
  std::uint64_t begin = 0;
  for (std::uint32_t segment = 0; segment < 3; begin = ends[segment++]) {
    const auto answer = client->answer();
    const auto& part = answer.as<wire::GetPart>();
    EXPECT_EQ(part.segment(), segment);
    EXPECT_EQ(part.first_block(), 0u);
    EXPECT_EQ(part.block_count(), 3u);
    Bytes expected;
    for (std::size_t i = 0; i < 3; ++i) {
      const Bytes one = block(hashes[i]);
      expected.insert(expected.end(), one.begin() + static_cast<std::ptrdiff_t>(begin),
                      one.begin() + static_cast<std::ptrdiff_t>(ends[segment]));
      EXPECT_EQ(part.checksums()->Get(static_cast<std::uint32_t>(i)), all_sums[3 * i + segment]);
    }
    EXPECT_TRUE(answer.payload == expected) << "segment " << segment;
  }
  EXPECT_EQ(client->answer().as<wire::GetResponse>().block_count(), 3u);
}

/// 64 bits of an engine, wherever they lie among zeros, and numbers that count up: no block passes for its neighbour.
TEST_F(SessionTest, AChecksumOfAnEnginesOtherBlockIsRefusedWhereverItsBitsAre) {
  const auto client = greet();
  std::mt19937_64 random(seed_or(1));
  for (std::size_t at = 0; at + 8 <= sizeof(BlockHash); at += 8) {
    for (const bool counts_up : {false, true}) {
      SCOPED_TRACE(std::to_string(at) + (counts_up ? ", counted" : ""));
      std::vector<BlockHash> hashes(4);
      const std::uint64_t first = random();
      for (std::size_t i = 0; i < hashes.size(); ++i) {
        const std::uint64_t word = counts_up ? first + i : random();
        std::memcpy(hashes[i].bytes.data() + at, &word, sizeof word);
      }
      for (std::size_t i = 1; i < hashes.size(); ++i) {
        const std::span<const BlockHash> one(&hashes[0], 1), other(&hashes[i], 1);
        ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(one)).is_last());
        EXPECT_EQ(client->ask(FrameType::kPutData, 9, put_data(1, sums(other)), blocks(other)).error(),
                  Errc::kCorruptBlock);
      }
      EXPECT_EQ(put(*client, hashes), hashes.size());
      EXPECT_TRUE(get(*client, hashes).bytes == blocks(hashes));
    }
  }
}

TEST_F(SessionTest, PutAndGetMoveThroughALentRegion) {
  start(80);
  const auto client = greet();
  const std::size_t count = 40;  // more than one turn's worth
  const auto hashes = chain(1, count);
  const auto memory = SharedMemory::create(count * kBlockBytes + 123).value();
  const std::uint32_t region = lend(*client, *memory);
  std::vector<std::uint64_t> offsets;  // backwards, and not aligned to anything
  for (std::size_t i = 0; i < count; ++i) offsets.push_back((count - 1 - i) * kBlockBytes + 123);
  for (std::size_t i = 0; i < count; ++i) {
    const Bytes one = block(hashes[i]);
    std::memcpy(memory->bytes().data() + offsets[i], one.data(), one.size());
  }
  const auto want = client->ask(FrameType::kPut, 9, put_request(hashes, region, offsets));
  ASSERT_EQ(want.as<wire::PutWant>().block_count(), count);
  const auto done = client->ask(FrameType::kPutData, 9, put_data(count, sums(hashes)));
  ASSERT_FALSE(done.is_error()) << done.message();
  EXPECT_EQ(done.as<wire::PutResponse>().stored(), count);

  std::memset(memory->bytes().data(), 0, memory->bytes().size());
  const std::vector<std::uint64_t> ends = {kStripeBytes, kBlockBytes};
  client->send(FrameType::kGet, 10, get_request(hashes, region, offsets, ends));
  std::vector<std::uint32_t> landed(2);
  while (true) {
    const auto answer = client->answer();
    ASSERT_FALSE(answer.is_error()) << answer.message();
    EXPECT_TRUE(answer.payload.empty());
    if (answer.is_last()) {
      EXPECT_EQ(answer.as<wire::GetResponse>().block_count(), count);
      break;
    }
    const auto& part = answer.as<wire::GetPart>();
    EXPECT_EQ(part.first_block(), landed[part.segment()]) << "in order";
    EXPECT_EQ(part.checksums()->size(), part.block_count() * (part.segment() == 0 ? 1 : 2));
    landed[part.segment()] += part.block_count();
    if (part.segment() == 1) {
      EXPECT_EQ(landed[0], count) << "segments in order";
    }
  }
  EXPECT_THAT(landed, ElementsAre(count, count));
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(std::memcmp(memory->bytes().data() + offsets[i], block(hashes[i]).data(), kBlockBytes), 0) << i;
  }
  EXPECT_FALSE(client->ask(FrameType::kRegionRemove, 11, region_remove(region)).is_error());
  EXPECT_EQ(metric("kvstore_region_bytes"), 0);
}

TEST_F(SessionTest, ALeaseKeepsItsBlocksUntilReleaseOrEnd) {
  const auto client = greet();
  const auto kept = chain(1, 8);
  put(*client, kept);
  const auto answer = client->ask(FrameType::kMatch, 5, match_request(kept, true));
  const auto& match = answer.as<wire::MatchResponse>();
  ASSERT_NE(match.lease(), 0u);
  EXPECT_EQ(match.lease_us(), 10'000'000u);
  EXPECT_EQ(match.lease_error(), 0u);
  for (std::uint32_t salt = 10; salt < 20; ++salt) put(*client, chain(salt, 8));
  EXPECT_EQ(matched(*client, kept), 8u) << "80 blocks went through 32 slots, the leased ones stayed";
  const auto release = [&](std::uint64_t lease) {
    return client->ask(FrameType::kRelease, 6,
                       [=](FlatBufferBuilder& b) { return wire::CreateReleaseRequest(b, lease); });
  };
  EXPECT_FALSE(release(match.lease()).is_error());
  const auto stale = release(match.lease());
  EXPECT_EQ(stale.error(), Errc::kStaleLease);
  EXPECT_THAT(stale.message(), HasSubstr("lease: " + std::to_string(match.lease())));
}

TEST_F(SessionTest, AGetEndsItsLease) {
  const auto client = greet();
  const auto hashes = chain(1, 2);
  put(*client, hashes);
  const auto answer = client->ask(FrameType::kMatch, 5, match_request(hashes, true));
  EXPECT_EQ(stats().lease_count, 1u);
  client->send(FrameType::kGet, 6, get_request(hashes, 0, {}, {}, answer.as<wire::MatchResponse>().lease()));
  while (!client->answer().is_last()) {
  }
  EXPECT_EQ(stats().lease_count, 0u);
}

TEST_F(SessionTest, APartialBlockIsFoundByItsTokens) {
  const auto client = greet();
  const std::vector<std::uint32_t> stored = {1, 2, 3, 4, 5, 6, 7, 8}, asked = {1, 2, 3, 4, 5, 6, 9, 9};
  const auto hashes = hash_chain(BlockHash(), stored, kBlockSize);
  Answer answer = client->ask(FrameType::kPut, 9, put_request(hashes, 0, {}, 0, stored));
  answer = client->ask(FrameType::kPutData, 9, put_data(2, sums(hashes)), blocks(hashes));
  ASSERT_FALSE(answer.is_error()) << answer.message();
  answer = client->ask(FrameType::kMatch, 5, match_request(hash_chain(BlockHash(), asked, kBlockSize), false, asked));
  const auto& match = answer.as<wire::MatchResponse>();
  EXPECT_EQ(match.host_blocks(), 1u);
  EXPECT_EQ(match.partial_tokens(), 2u);
  ASSERT_NE(match.partial_block(), nullptr);
  EXPECT_EQ(std::memcmp(match.partial_block(), &hashes[1], 32), 0);
}

/// A later client may have hints that this node does not know.
TEST_F(SessionTest, AHintIsNoErrorWhateverItSays) {
  const auto client = greet();
  const auto hashes = chain(1, 2);
  const auto wanted = wire_hashes(hashes);
  for (const auto reuse : std::to_array<std::uint8_t>({0, 1, 6, 7, 255})) {
    const Answer match = client->ask(FrameType::kMatch, 5, [&](FlatBufferBuilder& b) {
      return wire::CreateMatchRequestDirect(b, space, &wanted, nullptr, false, false, check(), nullptr, 0, 0, 0, reuse);
    });
    ASSERT_FALSE(match.is_error()) << match.message();
    Answer put = client->ask(FrameType::kPut, 9, [&](FlatBufferBuilder& b) {
      return wire::CreatePutRequestDirect(b, space, &wanted, nullptr, nullptr, 0, nullptr, 5'000'000, 0, check(),
                                          nullptr, 0, reuse);
    });
    if (reuse == 0) put = client->ask(FrameType::kPutData, 9, put_data(2, sums(hashes)), blocks(hashes));
    ASSERT_FALSE(put.is_error()) << put.message();
  }
}

TEST_F(SessionTest, APutIsRefusedWhenNothingCanGoAndSaysWhy) {
  const auto client = greet();
  const auto kept = chain(1, 30);
  put(*client, kept);
  client->ask(FrameType::kMatch, 5, match_request(kept, true));
  const auto hashes = chain(2, 5);
  const auto want = client->ask(FrameType::kPut, 9, put_request(hashes));
  ASSERT_FALSE(want.is_last());
  EXPECT_EQ(want.as<wire::PutWant>().block_count(), 2u);
  const std::span<const BlockHash> two = std::span(hashes).first(2);
  const auto done = client->ask(FrameType::kPutData, 9, put_data(2, sums(two)), blocks(two));
  EXPECT_EQ(done.as<wire::PutResponse>().stored(), 2u);
  EXPECT_EQ(done.as<wire::PutResponse>().refused(), 3u);
  EXPECT_EQ(done.as<wire::PutResponse>().refused_why(), static_cast<std::uint16_t>(Errc::kOutOfMemory));
}

TEST_F(SessionTest, APutWaitsForMemoryUpToItsDeadline) {
  const auto client = greet();
  const auto kept = chain(1, 32);
  put(*client, kept);
  const auto lease = client->ask(FrameType::kMatch, 5, match_request(kept, true)).as<wire::MatchResponse>().lease();
  const auto hashes = chain(2, 3);
  const TimePoint began = world.clock.now();
  const auto refused = client->ask(FrameType::kPut, 9, put_request(hashes, 0, {}, 2'000'000));
  EXPECT_EQ(refused.as<wire::PutResponse>().refused(), 3u);
  EXPECT_GE(world.clock.now() - began, 2s);
  EXPECT_LT(world.clock.now() - began, 2100ms);

  client->send(FrameType::kPut, 10, put_request(hashes, 0, {}, UINT64_MAX));
  world.run_for(1s);
  client->send(FrameType::kRelease, 11, [=](FlatBufferBuilder& b) { return wire::CreateReleaseRequest(b, lease); });
  EXPECT_EQ(client->answer().header.type, FrameType::kRelease);
  const auto want = client->answer();
  EXPECT_EQ(want.header.request_id, 10u);
  EXPECT_EQ(want.as<wire::PutWant>().block_count(), 3u) << "memory came free in time";
  EXPECT_FALSE(client->ask(FrameType::kPutData, 10, put_data(3, sums(hashes)), blocks(hashes)).is_error());
}

TEST_F(SessionTest, TouchPinUnpinAndDropCountTheirBlocks) {
  const auto client = greet();
  const auto hashes = chain(1, 4);
  put(*client, hashes);
  const auto count = [&](FrameType type, std::span<const BlockHash> of) {
    const auto answer = client->ask(type, 5, prefix_request(of));
    EXPECT_FALSE(answer.is_error());
    EXPECT_EQ(answer.header.type, type);
    return answer.as<wire::CountResponse>().count();
  };
  EXPECT_EQ(count(FrameType::kTouch, chain(1, 6)), 4u);
  EXPECT_EQ(count(FrameType::kRetain, hashes), 4u);
  EXPECT_EQ(stats().pinned_count, 4u);
  EXPECT_EQ(count(FrameType::kUnretain, hashes), 4u);
  EXPECT_EQ(stats().pinned_count, 0u);
  EXPECT_EQ(count(FrameType::kDrop, std::span(hashes).first(3)), 2u) << "the third and the one below it";
  EXPECT_EQ(matched(*client, hashes), 2u);
  EXPECT_EQ(count(FrameType::kDrop, {}), 2u) << "no hashes: the whole namespace";
  EXPECT_EQ(stats().block_count, 0u);
}

TEST_F(SessionTest, PinBeyondTheLimitIsRefused) {
  const auto client = greet();
  const auto hashes = chain(1, 20);
  put(*client, hashes);
  const auto answer = client->ask(FrameType::kRetain, 5, prefix_request(hashes));
  EXPECT_EQ(answer.error(), Errc::kBusy);
  EXPECT_EQ(stats().pinned_count, 0u);
}

TEST_F(SessionTest, StatsNameWhatTheStoreCountsAndItsNamespaces) {
  const auto client = greet();
  put(*client, chain(1, 3));
  ASSERT_EQ(matched(*client, chain(1, 4)), 3u);
  const nlohmann::json told = json_of(client->ask(FrameType::kAdmin, 5, admin_request("/stats.json")));
  const nlohmann::json& values = told.at("values");
  EXPECT_EQ(values.at("blocks"), 3);
  EXPECT_EQ(values.at("stored_blocks"), 3);
  EXPECT_EQ(values.at("sessions"), 1);
  EXPECT_EQ(values.at("capacity_bytes"), 32 * kBlockBytes);
  EXPECT_GE(values.at("uptime_seconds"), 0);
  EXPECT_EQ(told.at("hit_rate"), 0.75);
  ASSERT_EQ(told.at("namespaces").size(), 1u);
  EXPECT_EQ(told["namespaces"][0]["record"], record.text());
  EXPECT_EQ(told["namespaces"][0]["block_count"], 3);
  EXPECT_EQ(told["namespaces"][0]["total_bytes"], 3 * kBlockBytes);
}

TEST_F(SessionTest, QuestionsThatANodeDoesNotAnswerAreRefused) {
  const auto client = greet();
  const auto error = [&](const std::string& path, const std::string& query = "") {
    return client->ask(FrameType::kAdmin, 5, admin_request(path, query)).error();
  };
  for (const char* const path : {"", "/nowhere", "/metrics", "/status", "/healthz"})
    EXPECT_EQ(error(path), Errc::kNotFound) << path;
  EXPECT_EQ(error("/status/now.json"), Errc::kUnsupported) << "it has no thread for slow answers";
  EXPECT_EQ(error("/stats.json", std::string(kAdminQuestionBytesMax, 'a')), Errc::kTooLarge);
  EXPECT_EQ(error("/drain", "node=node"), Errc::kBadRequest);
  EXPECT_EQ(error("/drain", "node=another&drain=true"), Errc::kBadRequest);
  EXPECT_EQ(error("/drain", "node=" + node->node_id + "&drain=true"), Errc::kUnsupported) << "it has no mover";
  EXPECT_EQ(error("/erase", "tenant=a&share=b"), Errc::kBadRequest);
  EXPECT_EQ(error("/erase", "tenant=a"), Errc::kUnsupported);
}

TEST_F(SessionTest, RequestsThatComeTogetherAreAllAnsweredInOrder) {
  const auto client = greet();
  put(*client, chain(1, 3));
  Bytes all;
  for (std::uint64_t id = 1000; id < 1300; ++id) {
    const Bytes one = id % 2 == 0 ? frame_bytes(FrameType::kPing, id, ping())
                                  : frame_bytes(FrameType::kMatch, id, match_request(chain(1, 3)));
    all.insert(all.end(), one.begin(), one.end());
  }
  ASSERT_TRUE(client->send_bytes(all));
  for (std::uint64_t id = 1000; id < 1300; ++id) {
    const auto answer = client->answer();
    ASSERT_EQ(answer.header.request_id, id);
    ASSERT_FALSE(answer.is_error());
  }
}

TEST_F(SessionTest, WhatTheNodeKnowsOfItsClusterIsToldWithItsEpoch) {
  const auto client = greet();
  const auto map = [&] {
    return client->ask(FrameType::kClusterMap, 6,
                       [](FlatBufferBuilder& b) { return wire::CreateClusterMapRequest(b); });
  };
  const auto epoch_of_match = [&] {
    const auto wanted = wire_hashes(chain(1, 3));
    return client
        ->ask(FrameType::kMatch, 5,
              [&](FlatBufferBuilder& b) {
                return wire::CreateMatchRequestDirect(b, space, &wanted, nullptr, false, false, check());
              })
        .as<wire::MatchResponse>()
        .epoch();
  };
  EXPECT_EQ(map().as<wire::ClusterMapResponse>().epoch(), 0u);
  EXPECT_EQ(epoch_of_match(), 0u);
  Member one;
  one.id = "a";
  one.endpoints = {"tcp://10.0.0.1:7400", "unix:///run/a"};
  one.weight = 64.5;
  one.zone = "z1";
  Member other = one;
  other.id = "b";
  other.state = Member::State::kDraining;
  node->cluster.set({7, 256, {one, other}});
  const Answer answer = map();
  const auto& told = answer.as<wire::ClusterMapResponse>();
  EXPECT_EQ(told.epoch(), 7u);
  EXPECT_EQ(told.extent_blocks(), 256u);
  ASSERT_EQ(told.nodes()->size(), 2u);
  EXPECT_EQ(told.nodes()->Get(0)->id()->str(), "a");
  EXPECT_EQ(told.nodes()->Get(0)->endpoints()->Get(1)->str(), "unix:///run/a");
  EXPECT_EQ(told.nodes()->Get(0)->weight(), 64.5);
  EXPECT_EQ(told.nodes()->Get(0)->zone()->str(), "z1");
  EXPECT_EQ(told.nodes()->Get(1)->state(), 1u);
  EXPECT_EQ(epoch_of_match(), 7u);
}

TEST_F(SessionTest, WhatCountedMatchesBeginWithIsHotAndAnyClientMayAskForIt) {
  const auto client = greet(), other = greet();
  const auto root = chain(1, 3);
  std::uint32_t last_token = 1'000'000;
  const auto match = [&](std::uint32_t nodes, std::uint32_t beginning, std::uint32_t hot_blocks) {
    const std::vector<std::uint32_t> own(2 * kBlockSize, ++last_token);
    auto prompt = root;
    for (const BlockHash& hash : hash_chain(root.back(), own, kBlockSize)) prompt.push_back(hash);
    return client->ask(FrameType::kMatch, 5, [&, wanted = wire_hashes(prompt)](FlatBufferBuilder& b) {
      return wire::CreateMatchRequestDirect(b, space, &wanted, nullptr, false, false, check(), nullptr, nodes,
                                            beginning, hot_blocks);
    });
  };
  const auto ask_list = [&] {
    return other->ask(FrameType::kHotRoots, 6,
                      [&](FlatBufferBuilder& b) { return wire::CreateHotRootsRequest(b, space, check()); });
  };
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(match(0, 0, 0).as<wire::MatchResponse>().hot_version(), 0u);
    EXPECT_EQ(match(8, 0, 0).as<wire::MatchResponse>().hot_version(), 0u) << "another node counts it";
  }
  EXPECT_EQ(ask_list().as<wire::HotRootsResponse>().blocks()->size(), 0u);
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(match(8, 5, 0).is_error());
  const std::uint64_t version = match(8, 0, 0).as<wire::MatchResponse>().hot_version();
  EXPECT_NE(version, 0u);
  EXPECT_EQ(match(0, 0, 0).as<wire::MatchResponse>().hot_version(), 0u) << "it has no use for it";
  const Answer list = ask_list();
  EXPECT_EQ(list.as<wire::HotRootsResponse>().version(), version);
  ASSERT_EQ(list.as<wire::HotRootsResponse>().blocks()->size(), root.size());
  EXPECT_EQ(std::memcmp(list.as<wire::HotRootsResponse>().blocks()->Data(), root.data(), root.size() * 32), 0);

  const auto expect_refused = [](const Answer& answer, const char* text) {
    ASSERT_TRUE(answer.is_error());
    EXPECT_EQ(answer.error(), Errc::kBadRequest);
    EXPECT_THAT(answer.message(), HasSubstr(text));
  };
  expect_refused(match(4097, 5, 0), "nodes: 4097");
  expect_refused(match(8, 6, 0), "beginning: 6");
  expect_refused(match(8, 2, 3), "hot_blocks: 3");
}

TEST_F(SessionTest, EveryRequestShowsInTheMetrics) {
  const auto client = greet();
  put(*client, chain(1, 2));
  get(*client, chain(1, 2));
  matched(*client, chain(1, 3));
  EXPECT_EQ(metric("kvstore_request_seconds_count{op=\"open\"}"), 1);
  EXPECT_EQ(metric("kvstore_request_seconds_count{op=\"put\"}"), 1);
  EXPECT_EQ(metric("kvstore_request_seconds_count{op=\"get\"}"), 1);
  EXPECT_EQ(metric("kvstore_request_seconds_count{op=\"match\"}"), 1);
  EXPECT_EQ(metric("kvstore_bytes_in_total{path=\"inline\"}"), 2.0 * kBlockBytes);
  EXPECT_EQ(metric("kvstore_bytes_out_total{path=\"inline\"}"), 2.0 * kBlockBytes);
  EXPECT_EQ(metric("kvstore_match_hit_tokens_total"), 2.0 * kBlockSize);
  EXPECT_EQ(metric("kvstore_match_miss_tokens_total"), 1.0 * kBlockSize);
  EXPECT_EQ(metric("kvstore_sessions"), 1);
}

}  // namespace
}  // namespace kv
