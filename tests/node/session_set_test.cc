// Blocks that stand alone, as a session serves them: what is refused and how, each block's own length and result,
// windows, deadlines, disk.
#include <gmock/gmock.h>

#include <map>

#include "tests/node/limits_change.h"
#include "tests/node/node_world.h"
#include "tests/sim/sim_disk_worker.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

NamespaceRecord set_record(std::size_t length_max) {
  return NamespaceRecord::from_fields(
             {{"model", "m"}, {"kind", "set"}, {"block_bytes_max", std::to_string(length_max)}})
      .value();
}

class SessionSetTest : public NodeTest {
 protected:
  using Lengths = std::vector<std::uint32_t>;

  SessionSetTest() { start(32, 0, kStripeBytes); }  // slots of all lengths fit granules of a stripe

  std::unique_ptr<RawClient> greet_set() {
    auto client = connect();
    EXPECT_FALSE(client->ask(FrameType::kHello, 1, hello_request()).is_error());
    space = open(*client, set);
    return client;
  }
  std::uint64_t set_check() const { return namespace_check(set.id()); }
  Bytes bytes_of(const BlockHash& hash, std::size_t length) const {
    Bytes bytes = block(hash);
    bytes.resize(length);
    return bytes;
  }
  std::vector<std::uint64_t> sums_of(const BlockHash& hash, std::size_t length) const {
    std::vector<std::uint64_t> sums(stripe_count(length));
    block_checksums(set_checksum_seed(set.id(), hash, length), bytes_of(hash, length), sums);
    return sums;
  }
  auto set_match(std::span<const BlockHash> hashes, bool lease = false, Lengths groups = {}) {
    return [=, this, all = wire_hashes(hashes)](FlatBufferBuilder& b) {
      return wire::CreateSetMatchRequestDirect(b, space, &all, lease, false, set_check(), list(groups));
    };
  }
  auto set_get(std::span<const BlockHash> hashes, Lengths rooms, std::uint32_t region = 0,
               std::vector<std::uint64_t> offsets = {}, std::uint64_t deadline_us = 0, Lengths groups = {}) {
    return [=, this, all = wire_hashes(hashes)](FlatBufferBuilder& b) {
      return wire::CreateSetGetRequestDirect(b, space, &all, 0, region, &offsets, &rooms, 2, deadline_us, 0,
                                             set_check(), list(groups));
    };
  }
  auto set_put(std::span<const BlockHash> hashes, Lengths lengths, std::uint32_t region = 0,
               std::vector<std::uint64_t> offsets = {}, Lengths groups = {}) {
    return [=, this, all = wire_hashes(hashes)](FlatBufferBuilder& b) {
      return wire::CreateSetPutRequestDirect(b, space, &all, &lengths, region, &offsets, 0, 0, set_check(),
                                             list(groups));
    };
  }
  static const Lengths* list(const Lengths& groups) { return groups.empty() ? nullptr : &groups; }
  /// Puts the blocks inline; the result of each.
  std::vector<int> put_blocks(RawClient& client, std::span<const BlockHash> hashes, const Lengths& lengths,
                              const Lengths& groups = {}) {
    Answer answer = client.ask(FrameType::kSetPut, 100, set_put(hashes, lengths, 0, {}, groups));
    if (!answer.is_last()) {
      Bytes payload;
      std::vector<std::uint64_t> all;
      const auto& wanted = *answer.as<wire::SetPutWant>().blocks();
      for (const std::uint32_t i : wanted) {
        const Bytes one = bytes_of(hashes[i], lengths[i]);
        payload.insert(payload.end(), one.begin(), one.end());
        for (const std::uint64_t sum : sums_of(hashes[i], lengths[i])) all.push_back(sum);
      }
      answer = client.ask(FrameType::kPutData, 100, put_data(wanted.size(), all), payload);
    }
    if (answer.is_error()) throw std::runtime_error(answer.message());
    const auto& results = *answer.as<wire::SetPutResponse>().results();
    return {results.begin(), results.end()};
  }
  struct GotSet {
    std::map<std::uint32_t, Bytes> blocks;  ///< By index.
    Lengths too_long, unread;
    std::size_t parts = 0;
  };
  GotSet get_blocks(RawClient& client, std::span<const BlockHash> hashes, const Lengths& rooms,
                    std::uint64_t deadline_us = 0, const Lengths& groups = {}) {
    GotSet got;
    client.send(FrameType::kSetGet, 101, set_get(hashes, rooms, 0, {}, deadline_us, groups));
    for (;; ++got.parts) {
      const Answer answer = client.answer();
      if (answer.is_error()) throw std::runtime_error(answer.message());
      if (answer.is_last()) {
        const auto& last = answer.as<wire::SetGetResponse>();
        EXPECT_EQ(last.block_count(), got.blocks.size());
        got.too_long.assign(last.too_long()->begin(), last.too_long()->end());
        got.unread.assign(last.unread()->begin(), last.unread()->end());
        return got;
      }
      const auto& part = answer.as<wire::SetGetPart>();
      std::size_t at = 0;
      flatbuffers::uoffset_t sum = 0;
      for (flatbuffers::uoffset_t k = 0; k < part.blocks()->size(); ++k) {
        const std::uint32_t i = part.blocks()->Get(k), length = part.block_bytes()->Get(k);
        EXPECT_LE(length, rooms[i]);
        const auto begin = answer.payload.begin() + static_cast<std::ptrdiff_t>(at);
        EXPECT_TRUE(got.blocks.emplace(i, Bytes(begin, begin + length)).second) << "told of twice";
        for (const std::uint64_t each : sums_of(hashes[i], length)) EXPECT_EQ(part.checksums()->Get(sum++), each);
        at += length;
      }
      EXPECT_EQ(at, answer.payload.size());
      EXPECT_EQ(sum, part.checksums()->size());
    }
  }
  void expect_refused(const Answer& answer, Errc code, const std::string& text) {
    EXPECT_TRUE(answer.is_error());
    EXPECT_EQ(answer.error(), code);
    EXPECT_THAT(answer.message(), HasSubstr(text));
  }

  NamespaceRecord set = set_record(196'608);
};

TEST_F(SessionSetTest, OperationsOfTheOtherKindAreRefusedByName) {
  const auto client = greet_set();
  const auto hashes = chain(1, 2);
  const std::uint32_t of_set = space;
  const std::uint32_t of_chain = open(*client, record);
  for (const auto type : {FrameType::kMatch, FrameType::kGet, FrameType::kPut}) {
    space = of_set;
    const auto ask = [&](auto build) { return client->ask(type, 9, build); };
    const auto named = [&](const char* text, const Answer& answer) {
      expect_refused(answer, Errc::kUnsupported, text);
    };
    const auto check_of_set = [&](auto create) {
      return [=, this, all = wire_hashes(hashes)](FlatBufferBuilder& b) { return create(b, all, set_check()); };
    };
    if (type == FrameType::kMatch) {
      named("a set: ask with set_match", ask(check_of_set([=](auto& b, const auto& all, std::uint64_t check) {
              return wire::CreateMatchRequestDirect(b, of_set, &all, nullptr, false, false, check);
            })));
    } else if (type == FrameType::kGet) {
      named("a set: ask with", ask(check_of_set([=](auto& b, const auto& all, std::uint64_t check) {
              return wire::CreateGetRequestDirect(b, of_set, &all, 0, 0, nullptr, nullptr, 2, 0, 0, check);
            })));
    } else {
      named("a set: ask with", ask(check_of_set([=](auto& b, const auto& all, std::uint64_t check) {
              return wire::CreatePutRequestDirect(b, of_set, &all, nullptr, nullptr, 0, nullptr, 0, 0, check);
            })));
    }
  }
  const auto all = wire_hashes(hashes);
  const Lengths lengths = {1, 1};
  expect_refused(client->ask(FrameType::kSetMatch, 9,
                             [&](FlatBufferBuilder& b) {
                               return wire::CreateSetMatchRequestDirect(b, of_chain, &all, false, false, check());
                             }),
                 Errc::kUnsupported, "a chain: ask with match");
  expect_refused(client->ask(FrameType::kSetPut, 9,
                             [&](FlatBufferBuilder& b) {
                               return wire::CreateSetPutRequestDirect(b, of_chain, &all, &lengths, 0, nullptr, 0, 0,
                                                                      check());
                             }),
                 Errc::kUnsupported, "a chain");
}

TEST_F(SessionSetTest, ListsThatDoNotFitAreRefusedByName) {
  const auto client = greet_set();
  const auto hashes = chain(1, 2);
  expect_refused(client->ask(FrameType::kSetPut, 9, set_put(hashes, {1})), Errc::kBadRequest, "block_bytes: 1");
  expect_refused(client->ask(FrameType::kSetPut, 9, set_put(hashes, {1, 0})), Errc::kBadRequest, "block_bytes: 0");
  expect_refused(client->ask(FrameType::kSetPut, 9, set_put(hashes, {1, 196'609})), Errc::kBadRequest, "196609");
  expect_refused(client->ask(FrameType::kSetPut, 9, set_put({}, {})), Errc::kBadRequest, "hashes: 0");
  expect_refused(client->ask(FrameType::kSetGet, 9, set_get(hashes, {1})), Errc::kBadRequest, "rooms: 1");
  const auto many = chain(1, 1001);
  expect_refused(client->ask(FrameType::kSetGet, 9, set_get(many, Lengths(1001, 1))), Errc::kTooLarge, "1001");
  expect_refused(client->ask(FrameType::kSetMatch, 9, set_match(many)), Errc::kTooLarge, "1001");
  expect_refused(client->ask(FrameType::kSetPut, 9, set_put(many, Lengths(1001, 1))), Errc::kTooLarge, "1001");
}

TEST_F(SessionSetTest, EachBlockHasItsOwnLengthAndResult) {
  const auto client = greet_set();
  const auto hashes = chain(1, 5);
  const Lengths lengths = {1, 65536, 65537, 196'608, 77};
  EXPECT_THAT(put_blocks(*client, std::span(hashes).first(3), {1, 65536, 65537}), ElementsAre(1, 1, 1));
  EXPECT_THAT(put_blocks(*client, hashes, lengths), ElementsAre(2, 2, 2, 1, 1));
  const Answer match = client->ask(FrameType::kSetMatch, 9, set_match(hashes));
  const auto& found = match.as<wire::SetMatchResponse>();
  EXPECT_EQ(found.held()->Get(0), 0x1F);
  EXPECT_EQ(found.on_disk(), nullptr);
  EXPECT_TRUE(std::ranges::equal(*found.block_bytes(), lengths));
  const std::vector<BlockHash> asked = {hashes[3], chain(2, 1)[0], hashes[0], hashes[4]};
  const GotSet got = get_blocks(*client, asked, {196'608, 100, 1, 76});
  ASSERT_EQ(got.blocks.size(), 2u);
  EXPECT_EQ(got.blocks.at(0), bytes_of(asked[0], 196'608));
  EXPECT_EQ(got.blocks.at(2), bytes_of(asked[2], 1));
  EXPECT_THAT(got.too_long, ElementsAre(3u));
}

TEST_F(SessionSetTest, ALongListIsLookedUpInPartsAndAnsweredAsAWhole) {
  const auto client = greet_set();
  const auto hashes = chain(5, 1000);
  Lengths lengths;
  for (std::uint32_t i = 0; i < hashes.size(); ++i) lengths.push_back(1 + i % 64);
  // The second half first, and then the third quarter of that is known to both.
  EXPECT_EQ(put_blocks(*client, std::span(hashes).last(400), Lengths(lengths.end() - 400, lengths.end())),
            std::vector<int>(400, 1));
  const auto results = put_blocks(*client, hashes, lengths);
  for (std::size_t i = 0; i < hashes.size(); ++i) EXPECT_EQ(results[i], i < 600 ? 1 : 2) << i;

  std::vector<BlockHash> asked = hashes;
  std::swap(asked[511], asked[512]);  // at the border of two parts
  const Answer match = client->ask(FrameType::kSetMatch, 9, set_match(asked, true));
  const auto& found = match.as<wire::SetMatchResponse>();
  ASSERT_EQ(found.block_bytes()->size(), 1000u);
  EXPECT_EQ(found.block_bytes()->Get(510), lengths[510]);
  EXPECT_EQ(found.block_bytes()->Get(511), lengths[512]);
  EXPECT_EQ(found.block_bytes()->Get(512), lengths[511]);
  EXPECT_EQ(found.block_bytes()->Get(999), lengths[999]);
  ASSERT_NE(found.lease(), 0u);
  const auto lease_count = [&] { return store->with([](Store& each) { return each.stats().lease_count; }); };
  const auto release = [&](std::uint64_t lease) {
    (void)client->ask(FrameType::kRelease, 9,
                      [&](FlatBufferBuilder& b) { return wire::CreateReleaseRequest(b, lease); });
  };
  EXPECT_EQ(lease_count(), 1000u);
  release(found.lease());
  EXPECT_EQ(lease_count(), 0u) << "released as a whole";
  // With 400 more than a session may hold: what the first part was promised goes when the second is refused.
  const Answer few = client->ask(FrameType::kSetMatch, 9, set_match(std::span(asked).first(400), true));
  EXPECT_EQ(lease_count(), 400u);
  const Answer more = client->ask(FrameType::kSetMatch, 9, set_match(asked, true));
  EXPECT_EQ(more.as<wire::SetMatchResponse>().lease(), 0u);
  EXPECT_EQ(more.as<wire::SetMatchResponse>().lease_error(), static_cast<std::uint16_t>(Errc::kBusy));
  EXPECT_EQ(more.as<wire::SetMatchResponse>().block_bytes()->size(), 1000u);
  EXPECT_EQ(lease_count(), 400u);
  release(few.as<wire::SetMatchResponse>().lease());
  EXPECT_EQ(lease_count(), 0u);

  const auto got = get_blocks(*client, asked, Lengths(1000, 64));
  EXPECT_EQ(got.blocks.size(), 1000u);
  EXPECT_EQ(got.blocks.at(511).size(), lengths[512]);
  const auto counted = [&](FrameType type) {
    return client
        ->ask(type, 9,
              [&, all = wire_hashes(asked)](FlatBufferBuilder& b) {
                return wire::CreatePrefixRequestDirect(b, space, &all, set_check());
              })
        .as<wire::CountResponse>()
        .count();
  };
  EXPECT_EQ(counted(FrameType::kTouch), 1000u);
  EXPECT_EQ(counted(FrameType::kRetain), 1000u);
  EXPECT_EQ(counted(FrameType::kUnretain), 1000u);
}

TEST_F(SessionSetTest, ARetainThatIsRefusedOnTheWayKeepsNothing) {
  const auto client = greet_set();
  // 512 small ones, then more than half of the arena.
  const auto hashes = chain(6, 560);
  Lengths lengths(512, 64);
  lengths.resize(560, static_cast<std::uint32_t>(kStripeBytes));
  EXPECT_EQ(put_blocks(*client, hashes, lengths), std::vector<int>(560, 1));
  const auto ask = [&](FrameType type, std::span<const BlockHash> which) {
    return client->ask(type, 9, [&, all = wire_hashes(which)](FlatBufferBuilder& b) {
      return wire::CreatePrefixRequestDirect(b, space, &all, set_check());
    });
  };
  EXPECT_EQ(ask(FrameType::kRetain, std::span(hashes).first(3)).as<wire::CountResponse>().count(), 3u);
  expect_refused(ask(FrameType::kRetain, hashes), Errc::kBusy, "560");
  EXPECT_EQ(ask(FrameType::kUnretain, hashes).as<wire::CountResponse>().count(), 3u) << "those from before";
}

TEST_F(SessionSetTest, ABlockThatDoesNotMatchItsChecksumsOrItsLengthIsNeverStored) {
  const auto client = greet_set();
  const auto hashes = chain(1, 1);
  for (const bool other_length : {false, true}) {
    ASSERT_FALSE(client->ask(FrameType::kSetPut, 100, set_put(hashes, {65536})).is_last());
    Bytes payload = bytes_of(hashes[0], 65536);
    auto all = sums_of(hashes[0], 65536);
    if (other_length) {
      all = {sums_of(hashes[0], 131072)[0]};  // right of the same stripe, in a longer block
    } else {
      payload[5] ^= std::byte{1};
    }
    expect_refused(client->ask(FrameType::kPutData, 100, put_data(1, all), payload), Errc::kCorruptBlock, "block 0");
  }
  EXPECT_EQ(client->ask(FrameType::kSetMatch, 9, set_match(hashes)).as<wire::SetMatchResponse>().held()->Get(0), 0);
}

TEST_F(SessionSetTest, BlocksGoThroughARegionAtTheirOwnOffsets) {
  const auto client = greet_set();
  const auto hashes = chain(1, 3);
  const Lengths lengths = {100, 70'000, 4096};
  const std::vector<std::uint64_t> offsets = {196'608, 5, 100'000};
  const auto memory = SharedMemory::create(1 << 20).value();
  for (std::size_t i = 0; i < 3; ++i)
    std::ranges::copy(bytes_of(hashes[i], lengths[i]),
                      memory->bytes().begin() + static_cast<std::ptrdiff_t>(offsets[i]));
  const std::uint32_t region = lend(*client, *memory);
  ASSERT_FALSE(client->ask(FrameType::kSetPut, 100, set_put(hashes, lengths, region, offsets)).is_last());
  std::vector<std::uint64_t> all;
  for (std::size_t i = 0; i < 3; ++i)
    for (const std::uint64_t sum : sums_of(hashes[i], lengths[i])) all.push_back(sum);
  const Answer stored = client->ask(FrameType::kPutData, 100, put_data(3, all));
  ASSERT_FALSE(stored.is_error()) << stored.message();

  std::ranges::fill(memory->bytes(), std::byte{0xEE});
  client->send(FrameType::kSetGet, 101, set_get(hashes, {200, 70'000, 4096}, region, offsets));
  while (!client->answer().is_last()) {
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const auto landed = memory->bytes().subspan(offsets[i], lengths[i]);
    EXPECT_TRUE(std::ranges::equal(landed, bytes_of(hashes[i], lengths[i])));
    EXPECT_EQ(memory->bytes()[offsets[i] + lengths[i]], std::byte{0xEE}) << "not a byte behind the block";
  }
  expect_refused(client->ask(FrameType::kSetGet, 9, set_get(hashes, {1, 1, 2}, region, {0, 0, (1 << 20) - 1})),
                 Errc::kNoRegion, "past the region's end");
}

TEST_F(SessionSetTest, ALongAnswerIsPinnedAndSentInWindows) {
  change(node->limits)->inline_window_bytes = 150'000;
  change(node->limits)->inline_frame_bytes = 100'000;
  change(node->limits)->inline_ahead_bytes = 120'000;
  const auto client = greet_set();
  const auto hashes = chain(1, 20);
  EXPECT_EQ(put_blocks(*client, hashes, Lengths(20, 90'000)), std::vector<int>(20, 1));
  const GotSet got = get_blocks(*client, hashes, Lengths(20, 196'608));
  ASSERT_EQ(got.blocks.size(), 20u);
  EXPECT_GE(got.parts, 20u);
  for (const auto& [i, bytes] : got.blocks) EXPECT_EQ(bytes, bytes_of(hashes[i], 90'000));
}

/// Whoever does not read keeps no more than a window, and what it keeps is let go with its session.
TEST_F(SessionSetTest, ASlowReaderPinsAWindowAndACancelEndsIt) {
  change(node->limits)->inline_window_bytes = 196'608;
  change(node->limits)->inline_frame_bytes = 100'000;
  change(node->limits)->inline_ahead_bytes = 100'000;
  const auto filler = greet_set();
  const auto hashes = chain(1, 30);
  put_blocks(*filler, hashes, Lengths(30, 100'000));
  const auto mute = connect();  // asks, and reads nothing
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kHello, 1, hello_request())));
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kOpen, 2, open_request(set))));
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kSetGet, 9, set_get(hashes, Lengths(30, 196'608)))));
  world.run_for(1s);
  EXPECT_GT(stats().pinned_count, 0u);
  EXPECT_LE(stats().pinned_count, 6u);
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kCancel, 12, cancel(9))));
  for (;;) {
    const Answer answer = mute->answer();
    if (!answer.is_last() || answer.header.request_id != 9) continue;
    EXPECT_EQ(answer.error(), Errc::kCancelled);
    break;
  }
  world.run_for(1s);
  EXPECT_EQ(stats().pinned_count, 0u);
}

TEST_F(SessionSetTest, EachNamedBlockIsDroppedAndCounted) {
  const auto client = greet_set();
  const auto hashes = chain(1, 300);  // more than one lock's worth
  put_blocks(*client, hashes, Lengths(300, 50));
  const auto drop = [&](std::span<const BlockHash> which) {
    return [=, this, all = wire_hashes(which)](FlatBufferBuilder& b) {
      return wire::CreatePrefixRequestDirect(b, space, &all, set_check());
    };
  };
  const Answer most = client->ask(FrameType::kDrop, 9, drop(std::span(hashes).subspan(10)));
  ASSERT_FALSE(most.is_error()) << most.message();
  EXPECT_EQ(most.as<wire::CountResponse>().count(), 290u);
  EXPECT_EQ(client->ask(FrameType::kDrop, 9, drop({})).as<wire::CountResponse>().count(), 10u);
  expect_refused(client->ask(FrameType::kDrop, 9, drop(chain(1, 1001))), Errc::kTooLarge, "1001");
}

TEST_F(SessionSetTest, CountsThatDoNotCutTheNamesIntoGroupsAreRefusedByName) {
  const auto client = greet_set();
  const auto hashes = chain(1, 70);
  const Lengths ones(70, 1);
  const std::vector<std::pair<Lengths, const char*>> bad = {
      {{65, 5}, "group_counts[0]: 65, 1..64 are allowed"},
      {{64, 0, 6}, "group_counts[1]: 0, 1..64 are allowed"},
      {{64, 0xFFFFFFFF}, "group_counts[1]: 4294967295, 1..64 are allowed"},
      {{64, 5}, "group_counts: 69 names in all, 70 are given"},
      {{64, 7}, "group_counts: 71 names in all, 70 are given"}};
  for (const auto& [groups, text] : bad) {
    expect_refused(client->ask(FrameType::kSetMatch, 9, set_match(hashes, false, groups)), Errc::kBadRequest, text);
    expect_refused(client->ask(FrameType::kSetGet, 9, set_get(hashes, ones, 0, {}, 0, groups)), Errc::kBadRequest,
                   text);
    expect_refused(client->ask(FrameType::kSetPut, 9, set_put(hashes, ones, 0, {}, groups)), Errc::kBadRequest, text);
  }
  auto twice = hashes;
  twice[66] = twice[65];
  expect_refused(client->ask(FrameType::kSetMatch, 9, set_match(twice, false, {64, 6})), Errc::kBadRequest,
                 "group_counts[1]: the group has a name twice");
}

TEST_F(SessionSetTest, AGroupIsMatchedAndSentAsAWhole) {
  const auto client = greet_set();
  const auto hashes = chain(1, 5);
  const Lengths lengths = {1000, 70'000, 5, 100, 100}, groups = {3, 2};
  EXPECT_THAT(put_blocks(*client, hashes, lengths, groups), ElementsAre(1, 1, 1, 1, 1));
  const auto held = [&] {
    const Answer answer = client->ask(FrameType::kSetMatch, 9, set_match(hashes, false, groups));
    return static_cast<int>(answer.as<wire::SetMatchResponse>().held()->Get(0));
  };
  EXPECT_EQ(held(), 0b11111);
  EXPECT_EQ(get_blocks(*client, hashes, Lengths(5, 196'608), 0, groups).blocks.size(), 5u);
  // One that does not fit keeps the others of its group.
  const GotSet short_of = get_blocks(*client, hashes, {1000, 69'999, 5, 100, 100}, 0, groups);
  EXPECT_EQ(short_of.blocks.size(), 2u);
  EXPECT_THAT(short_of.too_long, ElementsAre(1u));
  store->with([&](Store& each) {
    const SpaceId id = each.open(set).value();
    EXPECT_EQ(each.erase(id, std::span(hashes).subspan(1, 1), nullptr, world.clock.now()).value(), 1u);
  });
  EXPECT_EQ(held(), 0b11000);
  const GotSet rest = get_blocks(*client, hashes, Lengths(5, 196'608), 0, groups);
  EXPECT_EQ(rest.blocks.size(), 2u);
  EXPECT_TRUE(rest.blocks.contains(3) && rest.blocks.contains(4));
  EXPECT_THAT(put_blocks(*client, hashes, lengths, groups), ElementsAre(2, 1, 2, 2, 2)) << "what is here counts";
  EXPECT_EQ(held(), 0b11111);
}

/// The data of a group may come in several frames, and those may cut it.
TEST_F(SessionSetTest, AGroupIsSeenOnlyOnceItsLastBlockHasCome) {
  const auto client = greet_set(), reader = connect();
  ASSERT_FALSE(reader->ask(FrameType::kHello, 1, hello_request()).is_error());
  ASSERT_EQ(open(*reader, set), space);
  const auto hashes = chain(1, 5);
  const Lengths lengths(5, 1000), groups = {3, 2};
  const auto seen = [&] {
    const Answer answer = reader->ask(FrameType::kSetMatch, 9, set_match(hashes));
    return static_cast<int>(answer.as<wire::SetMatchResponse>().held()->Get(0));
  };
  ASSERT_FALSE(client->ask(FrameType::kSetPut, 100, set_put(hashes, lengths, 0, {}, groups)).is_last());
  const auto send = [&](std::size_t i) {
    client->send(FrameType::kPutData, 100, put_data(1, sums_of(hashes[i], 1000)), bytes_of(hashes[i], 1000));
    world.run_for(10ms);
  };
  send(0);
  EXPECT_EQ(seen(), 0);
  send(1);
  EXPECT_EQ(seen(), 0);
  send(2);
  EXPECT_EQ(seen(), 0b00111);
  send(3);
  EXPECT_EQ(seen(), 0b00111);
  send(4);
  const Answer answer = client->answer();
  ASSERT_TRUE(answer.is_last() && !answer.is_error());
  EXPECT_THAT(std::vector<int>(answer.as<wire::SetPutResponse>().results()->begin(),
                               answer.as<wire::SetPutResponse>().results()->end()),
              ElementsAre(1, 1, 1, 1, 1));
  EXPECT_EQ(seen(), 0b11111);
}

TEST_F(SessionSetTest, AGroupWithADamagedBlockIsNotStoredAndThoseBeforeItAre) {
  const auto client = greet_set();
  const auto hashes = chain(1, 4);
  const Lengths lengths(4, 1000), groups = {2, 2};
  ASSERT_FALSE(client->ask(FrameType::kSetPut, 100, set_put(hashes, lengths, 0, {}, groups)).is_last());
  Bytes payload;
  std::vector<std::uint64_t> sums;
  for (const BlockHash& hash : hashes) {
    const Bytes one = bytes_of(hash, 1000);
    payload.insert(payload.end(), one.begin(), one.end());
    for (const std::uint64_t sum : sums_of(hash, 1000)) sums.push_back(sum);
  }
  payload.back() ^= std::byte{1};
  expect_refused(client->ask(FrameType::kPutData, 100, put_data(4, sums), payload), Errc::kCorruptBlock, "block 3");
  const Answer match = client->ask(FrameType::kSetMatch, 9, set_match(hashes));
  EXPECT_EQ(match.as<wire::SetMatchResponse>().held()->Get(0), 0b0011);
  EXPECT_EQ(stats().incoming_count, 0u);
}

TEST_F(SessionSetTest, AGroupOfWhichABlockWasDroppedMeanwhileIsRefusedWithTheReason) {
  const auto client = greet_set();
  const auto hashes = chain(1, 2);
  put_blocks(*client, std::span(hashes).first(1), {1000});
  ASSERT_FALSE(client->ask(FrameType::kSetPut, 100, set_put(hashes, {1000, 1000}, 0, {}, {2})).is_last());
  store->with([&](Store& each) {
    ASSERT_TRUE(each.erase(each.open(set).value(), std::span(hashes).first(1), nullptr, world.clock.now()));
  });
  const Answer answer =
      client->ask(FrameType::kPutData, 100, put_data(1, sums_of(hashes[1], 1000)), bytes_of(hashes[1], 1000));
  ASSERT_FALSE(answer.is_error()) << answer.message();
  EXPECT_EQ(answer.as<wire::SetPutResponse>().results()->Get(1), 0);
  EXPECT_EQ(answer.as<wire::SetPutResponse>().refused_why(), static_cast<std::uint16_t>(Errc::kNotFound));
}

TEST_F(SessionSetTest, ALongListOfGroupsIsCarriedOutInPartsThatCutNone) {
  change(node->limits)->inline_window_bytes = 1500;
  const auto client = greet_set();
  const auto hashes = chain(5, 987);
  const Lengths lengths(987, 64), groups(47, 21);  // 512 and 1,024 lie within groups
  EXPECT_EQ(put_blocks(*client, hashes, lengths, groups), std::vector<int>(987, 1));
  store->with([&](Store& each) {
    ASSERT_TRUE(each.erase(each.open(set).value(), std::span(hashes).subspan(515, 1), nullptr, world.clock.now()));
  });
  const Answer match = client->ask(FrameType::kSetMatch, 9, set_match(hashes, false, groups));
  EXPECT_EQ(match.as<wire::SetMatchResponse>().block_bytes()->size(), 987u - 21u);
  const GotSet got = get_blocks(*client, hashes, lengths, 0, groups);
  EXPECT_EQ(got.blocks.size(), 987u - 21u);
  for (std::uint32_t i = 504; i < 525; ++i) EXPECT_FALSE(got.blocks.contains(i)) << i;
}

class SessionSetDiskTest : public SessionSetTest {
 protected:
  SessionSetDiskTest() {
    start(8, /*disk_bytes=*/1024 * kBlockBytes, kStripeBytes);
    disk_worker =
        std::make_unique<sim::SimDiskWorker>(*store, disk, world.clock, world.io.get_executor(), sim::DiskFaults{}, 1);
    node->disk_worker = disk_worker.get();
    client = greet_set();
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      put_blocks(*client, std::span(hashes).subspan(i, 1), {length(i)});
      disk_worker->notify();
      world.run_for(100ms);
    }
  }
  void TearDown() override {
    client.reset();
    NodeTest::TearDown();
    disk_worker->die();
  }
  static std::uint32_t length(std::size_t i) { return static_cast<std::uint32_t>(70'000 + i * 997); }
  Lengths rooms() const { return Lengths(hashes.size(), 196'608); }

  MemoryDisk disk;
  std::unique_ptr<sim::SimDiskWorker> disk_worker;
  std::unique_ptr<RawClient> client;
  const std::vector<BlockHash> hashes = chain(1, 24);
};

TEST_F(SessionSetDiskTest, BlocksOnDiskComeInTheSameAnswer) {
  const Answer match = client->ask(FrameType::kSetMatch, 9, set_match(hashes));
  const auto& found = match.as<wire::SetMatchResponse>();
  ASSERT_NE(found.on_disk(), nullptr);
  EXPECT_EQ(found.block_bytes()->size(), hashes.size());
  EXPECT_GT(found.disk_us(), 0u);
  const GotSet got = get_blocks(*client, hashes, rooms());
  ASSERT_EQ(got.blocks.size(), hashes.size());
  for (const auto& [i, bytes] : got.blocks) EXPECT_EQ(bytes, bytes_of(hashes[i], length(i)));
  const GotSet again = get_blocks(*client, hashes, rooms());  // some go back to memory with this read
  EXPECT_EQ(again.blocks.size(), hashes.size());
  EXPECT_EQ(put_blocks(*client, hashes, Lengths(24, 1)), std::vector<int>(24, 2)) << "a name on disk is held";
}

TEST_F(SessionSetDiskTest, BlocksThatTheDiskDoesNotGiveAreNamedAndTheOthersCome) {
  disk_worker->set_faults({.failure_probability = 1});
  const GotSet got = get_blocks(*client, hashes, rooms());
  EXPECT_GT(got.blocks.size(), 0u);
  EXPECT_GT(got.unread.size(), 0u);
  EXPECT_EQ(got.blocks.size() + got.unread.size(), hashes.size());
  for (const std::uint32_t i : got.unread) EXPECT_FALSE(got.blocks.contains(i));
  disk_worker->set_faults({});
}

TEST_F(SessionSetDiskTest, AGroupOnADiskThatIsOffIsNotHeldThoughMemoryHasAPart) {
  Lengths pairs(13, 2);
  pairs.front() = pairs.back() = 1;  // the last four blocks are in memory: the second half of a pair, a pair, one alone
  const auto held_count = [&] {
    const Answer match = client->ask(FrameType::kSetMatch, 9, set_match(hashes, false, pairs));
    return match.as<wire::SetMatchResponse>().block_bytes()->size();
  };
  EXPECT_EQ(held_count(), 24u);
  EXPECT_EQ(get_blocks(*client, hashes, rooms(), 0, pairs).blocks.size(), 24u);
  disk_worker->die();
  const std::size_t alone =
      client->ask(FrameType::kSetMatch, 9, set_match(hashes)).as<wire::SetMatchResponse>().block_bytes()->size();
  EXPECT_EQ(alone, 4u);
  EXPECT_EQ(held_count(), 3u);
  EXPECT_EQ(get_blocks(*client, hashes, rooms(), 0, pairs).blocks.size(), held_count());
}

TEST_F(SessionSetDiskTest, WhatADiskCannotGiveBackCanBePutAgain) {
  const std::span<const BlockHash> first = std::span(hashes).first(1);
  EXPECT_EQ(put_blocks(*client, first, {length(0)}), std::vector<int>{2});
  EXPECT_TRUE(get_blocks(*client, first, {196'608}).blocks.contains(0));
  disk_worker->die();
  EXPECT_EQ(put_blocks(*client, first, {length(0)}), std::vector<int>{1});
  EXPECT_EQ(get_blocks(*client, first, {196'608}).blocks.at(0), bytes_of(hashes[0], length(0)));
}

TEST_F(SessionSetDiskTest, AtTheDeadlineTheRestIsUnread) {
  disk_worker->set_faults({.delay_max = 10s});
  const GotSet got = get_blocks(*client, hashes, rooms(), /*deadline_us=*/1000);
  EXPECT_GT(got.unread.size(), 0u);
  EXPECT_EQ(got.blocks.size() + got.unread.size(), hashes.size());
  disk_worker->set_faults({});
  world.run_for(20s);
}

}  // namespace
}  // namespace kv
