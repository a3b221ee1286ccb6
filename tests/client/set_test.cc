// Blocks that stand alone, from a Client against real nodes: over TCP, Unix sockets, lent memory, through staging
// memory, the simulated network and RDMA.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/client/client_fixture.h"
#include "tests/client/said.h"

namespace kv {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr std::size_t kLengthMax = 300'000;

NamespaceRecord set_record(std::size_t length_max = kLengthMax) {
  return NamespaceRecord::from_fields(
             {{"model", "m"}, {"kind", "set"}, {"block_bytes_max", std::to_string(length_max)}})
      .value();
}

BlockHash name(std::uint64_t number) { return sha256(std::as_bytes(std::span(&number, 1))); }

std::vector<BlockHash> names(std::uint64_t first, std::size_t count) {
  std::vector<BlockHash> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(name(first + i));
  return all;
}

class SetClientTest : public ClientFixture {
 protected:
  /// Memory for blocks of these lengths, one behind the other; lent where the transport can have it.
  struct Memory {
    std::vector<std::byte> owned;
    std::vector<std::span<std::byte>> to;
    std::vector<std::span<const std::byte>> from;
  };
  Memory memory(std::span<const std::size_t> lengths) {
    std::size_t bytes = 0;
    for (const std::size_t length : lengths) bytes += length;
    Memory result;
    std::span<std::byte> all;
    if (transport() == "memfd" || is_verbs()) {
      all = client->allocate(bytes).value();
      if (is_verbs()) {
        EXPECT_GE(loop.run(client->lend(all, 5s)).value(), GetParam().node_count);
      }
    } else {
      result.owned.resize(bytes);
      all = result.owned;
    }
    for (const std::size_t length : lengths) {
      result.to.push_back(all.first(length));
      result.from.push_back(all.first(length));
      all = all.subspan(length);
    }
    return result;
  }
  static bool is_right(const BlockHash& hash, std::span<const std::byte> bytes) {
    std::vector<std::byte> expected(bytes.size());
    fill_block(hash, expected);
    return std::ranges::equal(expected, bytes);
  }
  SetPutResult put(Space set, std::span<const BlockHash> hashes, std::span<const std::size_t> lengths) {
    Memory mine = memory(lengths);
    for (std::size_t i = 0; i < hashes.size(); ++i) fill_block(hashes[i], mine.to[i]);
    return loop.run(client->put_set(set, hashes, mine.from, {.deadline = 5s})).value();
  }
};

TEST_P(SetClientTest, BlocksOfAllLengthsComeBackInAnyOrderByteForByte) {
  const Space set = open(set_record());
  std::vector<std::size_t> lengths = {1, 63, 64, 4095, 65535, 65536, 65537, 131072, 200'000, kLengthMax};
  while (lengths.size() < 40) lengths.push_back(1 + lengths.size() * 977 % 70'000);
  const auto hashes = names(1, lengths.size());
  const SetPutResult stored = put(set, hashes, lengths);
  EXPECT_THAT(stored.blocks, Each(SetPutBlock::kStored)) << stored.why.message();
  EXPECT_THAT(put(set, hashes, lengths).blocks, Each(SetPutBlock::kAlreadyStored));

  client = make_client();
  const Space again = open(set_record());
  std::vector<std::size_t> order(hashes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::vector<BlockHash> asked;
  std::vector<std::size_t> rooms;
  for (const std::size_t i : order) {
    asked.push_back(hashes[i]);
    rooms.push_back(lengths[i] + i % 3 * 10);  // some have more room than they need
    asked.push_back(name(1000 + i));           // and every other one is unknown
    rooms.push_back(100);
  }
  Memory theirs = memory(rooms);
  for (const auto& block : theirs.to) std::ranges::fill(block, std::byte{0xEE});
  const SetGetResult got = loop.run(client->get_set(again, asked, theirs.to, {.deadline = 5s})).value();
  EXPECT_EQ(got.landed_count, hashes.size()) << got.why.message();
  EXPECT_FALSE(got.why) << got.why.message();
  for (std::size_t k = 0; k < asked.size(); ++k) {
    const SetGetBlock& block = got.blocks[k];
    EXPECT_EQ(block.has_landed, k % 2 == 0) << k;
    EXPECT_FALSE(block.why) << k << " " << block.why.message();
    if (!block.has_landed) continue;
    EXPECT_EQ(block.block_bytes, lengths[order[k / 2]]);
    EXPECT_TRUE(is_right(asked[k], theirs.to[k].first(block.block_bytes)));
    for (const std::byte rest : theirs.to[k].subspan(block.block_bytes)) EXPECT_EQ(rest, std::byte{0xEE});
  }
}

TEST_P(SetClientTest, WhatIsLargerThanStagingMemoryTakesTheSocketAndTheRestDoesNot) {
  if (transport() != "staged") GTEST_SKIP() << "of staging memory";
  const Space set = open(set_record(4 << 20));
  const auto bytes_by = [&](const char* way) {
    const std::string text = client->metrics_text();
    double sum = 0;
    for (std::size_t at = 0; (at = text.find("_bytes_total{", at)) != std::string::npos; ++at) {
      const std::string line = text.substr(at, text.find('\n', at) - at);
      if (line.find(std::string("\"") + way + "\"") != std::string::npos)
        sum += std::stod(line.substr(line.rfind(' ')));
    }
    return sum;
  };
  const std::vector<std::size_t> small(20, 200'000);
  put(set, names(1, 20), small);
  Memory mine = memory(small);
  EXPECT_EQ(loop.run(client->get_set(set, names(1, 20), mine.to, {.deadline = 5s})).value().landed_count, 20u);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_TRUE(is_right(name(1 + i), mine.to[i])) << i;
  EXPECT_EQ(bytes_by("unix"), 0);
  EXPECT_GE(bytes_by("memfd"), 2 * 20 * 200'000);
  const double before = bytes_by("memfd");
  const std::vector<std::size_t> large = {(1 << 20) + 1};
  put(set, names(100, 1), large);
  Memory theirs = memory(large);
  EXPECT_EQ(loop.run(client->get_set(set, names(100, 1), theirs.to, {.deadline = 5s})).value().landed_count, 1u);
  EXPECT_TRUE(is_right(name(100), theirs.to[0]));
  EXPECT_EQ(bytes_by("memfd"), before);
  EXPECT_EQ(bytes_by("unix"), 2 * ((1 << 20) + 1));
}

TEST_P(SetClientTest, AMatchIsABitmapWithLengths) {
  const Space set = open(set_record());
  const auto hashes = names(1, 19);
  std::vector<BlockHash> odd;
  std::vector<std::size_t> lengths;
  for (std::size_t i = 1; i < hashes.size(); i += 2) {
    odd.push_back(hashes[i]);
    lengths.push_back(100 + i);
  }
  put(set, odd, lengths);
  const SetMatchResult match = loop.run(client->match_set(set, hashes, {.deadline = 5s})).value();
  EXPECT_FALSE(match.why) << match.why.message();
  EXPECT_EQ(match.held_count, 9u);
  EXPECT_EQ(match.disk_count, 0u);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    EXPECT_EQ(match.held[i], i % 2 == 1 ? Held::kInMemory : Held::kNowhere) << i;
    EXPECT_EQ(match.block_bytes[i], i % 2 == 1 ? 100 + i : 0) << i;
  }
}

TEST_P(SetClientTest, ANameKeepsWhatItHasWhateverIsPutLater) {
  const Space set = open(set_record());
  const auto hashes = names(1, 3);
  put(set, hashes, std::vector<std::size_t>{1000, 1000, 70'000});
  Memory other = memory(std::vector<std::size_t>{1000, 999, 70'001});
  for (std::size_t i = 0; i < 3; ++i) fill_block(name(50 + i), other.to[i]);
  const SetPutResult second = loop.run(client->put_set(set, hashes, other.from, {.deadline = 5s})).value();
  EXPECT_THAT(second.blocks, Each(SetPutBlock::kAlreadyStored));
  Memory mine = memory(std::vector<std::size_t>{1000, 1000, 70'001});
  const SetGetResult got = loop.run(client->get_set(set, hashes, mine.to, {.deadline = 5s})).value();
  EXPECT_EQ(got.landed_count, 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.blocks[i].block_bytes, i == 2 ? 70'000u : 1000u);
    EXPECT_TRUE(is_right(hashes[i], mine.to[i].first(got.blocks[i].block_bytes)));
  }
}

TEST_P(SetClientTest, ABlockThatDoesNotFitItsRoomIsNotSentAndTellsItsLength) {
  const Space set = open(set_record());
  const auto hashes = names(1, 3);
  put(set, hashes, std::vector<std::size_t>{5000, 5000, 5000});
  Memory mine = memory(std::vector<std::size_t>{5000, 4999, 0});
  std::ranges::fill(mine.to[1], std::byte{0xEE});
  const SetGetResult got = loop.run(client->get_set(set, hashes, mine.to, {.deadline = 5s})).value();
  EXPECT_TRUE(got.blocks[0].has_landed);
  for (const std::size_t i : {1, 2}) {
    EXPECT_FALSE(got.blocks[i].has_landed);
    EXPECT_EQ(got.blocks[i].why, Errc::kTooLarge) << got.blocks[i].why.message();
    EXPECT_EQ(got.blocks[i].block_bytes, 5000u);
  }
  EXPECT_THAT(mine.to[1], Each(std::byte{0xEE}));
  EXPECT_FALSE(got.why);
}

TEST_P(SetClientTest, DropTakesEachOfTheNamedBlocksAndNoOther) {
  const Space set = open(set_record());
  const auto hashes = names(1, 12);
  put(set, hashes, std::vector<std::size_t>(12, 1000));
  std::vector<BlockHash> gone = {hashes[2], hashes[7], name(99), hashes[2]};
  EXPECT_EQ(loop.run(client->drop(set, gone, 5s))->block_count, 2u);
  const SetMatchResult match = loop.run(client->match_set(set, hashes, {.deadline = 5s})).value();
  for (std::size_t i = 0; i < hashes.size(); ++i) EXPECT_EQ(match.held[i] == Held::kNowhere, i == 2 || i == 7) << i;
  EXPECT_EQ(loop.run(client->drop(set, {}, 5s))->block_count, 10u);
  EXPECT_EQ(loop.run(client->match_set(set, hashes, {.deadline = 5s}))->held_count, 0u);
}

TEST_P(SetClientTest, TouchPinAndUnpinCountTheBlocksThatAreHeld) {
  const Space set = open(set_record());
  const auto hashes = names(1, 9);
  put(set, std::span(hashes).subspan(3), std::vector<std::size_t>(6, 1000));
  EXPECT_EQ(loop.run(client->touch(set, hashes, 5s)).value(), 6u);
  EXPECT_EQ(loop.run(client->retain(set, hashes, 5s)).value(), 6u);
  EXPECT_EQ(loop.run(client->unretain(set, hashes, 5s)).value(), 6u);
  EXPECT_EQ(loop.run(client->unretain(set, hashes, 5s)).value(), 0u);
}

TEST_P(SetClientTest, ALeaseIsTakenOverByTheGet) {
  const Space set = open(set_record());
  const auto hashes = names(1, 9);
  put(set, hashes, std::vector<std::size_t>(9, 1000));
  const SetMatchResult match = loop.run(client->match_set(set, hashes, {.deadline = 5s, .lease = true})).value();
  EXPECT_NE(match.lease, Lease{}) << match.why.message();
  Memory mine = memory(std::vector<std::size_t>(9, 1000));
  const SetGetResult got =
      loop.run(client->get_set(set, hashes, mine.to, {.deadline = 5s, .lease = match.lease})).value();
  EXPECT_EQ(got.landed_count, 9u);
  double leases = 0;
  const auto stats = loop.run(client->ask({.path = "/stats.json"}, 5s)).value();
  for (const NodeAnswer& node : stats) leases += said(node).at("values").value("leases", 0.0);
  EXPECT_EQ(leases, 0);
}

TEST_P(SetClientTest, OperationsOfTheOtherKindAndBadArgumentsAreRefused) {
  const Space set = open(set_record());
  const Space chain = open(test_record(4096));
  const auto hashes = names(1, 2);
  Blocks blocks(2, 4096);
  EXPECT_EQ(loop.run(client->match(set, hashes, {.deadline = 1s})).error(), Errc::kUnsupported);
  EXPECT_EQ(loop.run(client->get(set, hashes, blocks.to, {.deadline = 1s})).error(), Errc::kUnsupported);
  EXPECT_EQ(loop.run(client->put(set, hashes, blocks.from, {.deadline = 1s})).error(), Errc::kUnsupported);
  EXPECT_EQ(loop.run(client->match_set(chain, hashes, {.deadline = 1s})).error(), Errc::kUnsupported);
  EXPECT_EQ(loop.run(client->get_set(chain, hashes, blocks.to, {.deadline = 1s})).error(), Errc::kUnsupported);
  EXPECT_EQ(loop.run(client->put_set(chain, hashes, blocks.from, {.deadline = 1s})).error(), Errc::kUnsupported);
  const auto one = std::span(hashes).first(1);
  EXPECT_EQ(loop.run(client->get_set(set, one, blocks.to, {.deadline = 1s})).error(), Errc::kBadRequest);
  EXPECT_EQ(loop.run(client->put_set(set, one, blocks.from, {.deadline = 1s})).error(), Errc::kBadRequest);
  std::vector<std::byte> large(kLengthMax + 1);
  const std::vector<std::span<const std::byte>> too_long = {large}, empty = {{}};
  EXPECT_EQ(loop.run(client->put_set(set, one, too_long, {.deadline = 1s})).error(), Errc::kBadRequest);
  EXPECT_EQ(loop.run(client->put_set(set, one, empty, {.deadline = 1s})).error(), Errc::kBadRequest);
}

/// Several batches of the client and several parts of the node; in the simulation several windows.
TEST_P(SetClientTest, FortyMebibytesOfMixedLengthsGoThroughInOneCallEach) {
  const Space set = open(set_record(2 << 20));
  const auto hashes = names(1, 30);
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < hashes.size(); ++i) lengths.push_back((2 << 20) - i * 60'000);
  const SetPutResult stored = put(set, hashes, lengths);
  EXPECT_EQ(stored.stored, 30u) << stored.why.message();
  Memory mine = memory(lengths);
  const SetGetResult got = loop.run(client->get_set(set, hashes, mine.to, {.deadline = 10s})).value();
  EXPECT_EQ(got.landed_count, 30u) << got.why.message();
  for (std::size_t i = 0; i < hashes.size(); ++i) EXPECT_TRUE(is_right(hashes[i], mine.to[i])) << i;
}

TEST_P(SetClientTest, MoreNamesThanANodeTakesAreStoredInPartAndTheRestIsTooLarge) {
  const Space set = open(set_record());
  const auto hashes = names(1, 65537);
  const std::vector<std::byte> bytes(hashes.size(), std::byte{7});
  std::vector<std::span<const std::byte>> from;
  for (const std::byte& each : bytes) from.emplace_back(&each, 1);
  const SetPutResult put = loop.run(client->put_set(set, hashes, from, {.deadline = 20s})).value();
  // What goes through staging memory is cut into requests that each fit.
  const std::size_t refused = GetParam().node_count == 1 && transport() != "staged" ? 1 : 0;
  EXPECT_EQ(put.stored, hashes.size() - refused) << put.why.message();
  EXPECT_EQ(put.refused, refused);
  EXPECT_EQ(put.why, refused > 0 ? make_error_code(Errc::kTooLarge) : error_code()) << put.why.message();
  if (refused == 0) return;
  EXPECT_EQ(put.blocks.back(), SetPutBlock::kRefused);
  const SetMatchResult match = loop.run(client->match_set(set, hashes, {.deadline = 20s})).value();
  EXPECT_EQ(match.held_count, hashes.size() - 1);
  EXPECT_EQ(match.why, Errc::kTooLarge);
  const auto last = std::span(hashes).last(1);
  EXPECT_EQ(loop.run(client->put_set(set, last, std::span(from).last(1), {.deadline = 5s})).value().stored, 1u);
}

/// Names that come in groups: on every transport, with one node and with several.
TEST_P(SetClientTest, AGroupIsStoredMatchedAndGotAsAWholeWhereItsFirstNameBelongs) {
  const Space set = open(set_record());
  const auto hashes = names(1, 24);
  const std::vector<std::uint32_t> groups = {3, 5, 1, 4, 2, 6, 3};
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < hashes.size(); ++i) lengths.push_back(1 + i * 9'001);
  Memory mine = memory(lengths);
  for (std::size_t i = 0; i < hashes.size(); ++i) fill_block(hashes[i], mine.to[i]);
  const PutOptions put_options{.deadline = 5s, .control = {}, .group_counts = groups};
  const SetPutResult stored = loop.run(client->put_set(set, hashes, mine.from, put_options)).value();
  EXPECT_THAT(stored.blocks, Each(SetPutBlock::kStored)) << stored.why.message();
  const MatchOptions match_options{.deadline = 5s, .group_counts = groups};
  EXPECT_EQ(loop.run(client->match_set(set, hashes, match_options))->held_count, hashes.size());
  for (const auto& block : mine.to) std::ranges::fill(block, std::byte{0xEE});
  const GetOptions get_options{.deadline = 5s, .group_counts = groups};
  SetGetResult got = loop.run(client->get_set(set, hashes, mine.to, get_options)).value();
  EXPECT_EQ(got.landed_count, hashes.size()) << got.why.message();
  for (std::size_t i = 0; i < hashes.size(); ++i) EXPECT_TRUE(is_right(hashes[i], mine.to[i])) << i;

  // One block too long for its room: none of its group counts, and all say why.
  std::vector<std::span<std::byte>> rooms = mine.to;
  rooms[5] = rooms[5].first(10);
  got = loop.run(client->get_set(set, hashes, rooms, get_options)).value();
  EXPECT_EQ(got.landed_count, hashes.size() - 5);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const bool is_of_group = i >= 3 && i < 8;
    EXPECT_EQ(got.blocks[i].has_landed, !is_of_group) << i;
    EXPECT_EQ(got.blocks[i].why, is_of_group ? make_error_code(Errc::kTooLarge) : error_code()) << i;
  }
  EXPECT_EQ(got.blocks[5].block_bytes, lengths[5]);

  // Without its first name a group is gone, wherever its blocks lie.
  EXPECT_EQ(loop.run(client->drop(set, std::span(hashes).subspan(9, 1), 5s))->block_count, 1u);
  const SetMatchResult match = loop.run(client->match_set(set, hashes, match_options)).value();
  EXPECT_FALSE(match.why) << match.why.message();
  for (std::size_t i = 0; i < hashes.size(); ++i) EXPECT_EQ(match.held[i] == Held::kNowhere, i >= 9 && i < 13) << i;
  got = loop.run(client->get_set(set, hashes, mine.to, get_options)).value();
  EXPECT_EQ(got.landed_count, hashes.size() - 4);
  EXPECT_FALSE(got.why) << got.why.message();
}

TEST_P(SetClientTest, CountsThatDoNotCutTheNamesAreRefused) {
  const Space set = open(set_record());
  const auto hashes = names(1, 66);
  Memory mine = memory(std::vector<std::size_t>(66, 10));
  auto twice = hashes;
  twice[1] = twice[0];
  const std::vector<std::uint32_t> long_one = {65, 1}, short_sum = {64, 1}, empty_one = {64, 0, 2}, right = {64, 2};
  for (const auto* groups : {&long_one, &short_sum, &empty_one, &right}) {
    const auto& asked = groups == &right ? twice : hashes;
    const MatchOptions match{.deadline = 1s, .group_counts = *groups};
    const GetOptions get{.deadline = 1s, .group_counts = *groups};
    const PutOptions put{.deadline = 1s, .group_counts = *groups};
    EXPECT_EQ(loop.run(client->match_set(set, asked, match)).error(), Errc::kBadRequest);
    EXPECT_EQ(loop.run(client->get_set(set, asked, mine.to, get)).error(), Errc::kBadRequest);
    EXPECT_EQ(loop.run(client->put_set(set, asked, mine.from, put)).error(), Errc::kBadRequest);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, SetClientTest,
                         testing::Values(Setup{"tcp", 1}, Setup{"unix", 1}, Setup{"memfd", 1}, Setup{"sim", 1},
                                         Setup{"verbs", 1}, Setup{"unix", 3}, Setup{"memfd", 3}, Setup{"sim", 3},
                                         Setup{"verbs", 3}, Setup{"staged", 1}, Setup{"staged", 3}));

}  // namespace
}  // namespace kv
