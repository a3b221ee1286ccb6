// Blocks that stand alone, of many lengths, on the real daemon with a disk tier: any of them come back in any order,
// from memory, from disk and after restarts, byte for byte; and what is not there says so name by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>

#include "client/tools/bench/block_pattern.h"
#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

constexpr std::size_t kLengthMax = 400'000;
constexpr std::size_t kSetNames = 400;  // some 70 MiB, in a memory of 48
constexpr std::size_t kBatch = 40;
/// At the borders of stripes and size classes. Few enough for the 24 granules of this memory: each class takes some.
constexpr std::size_t kLengths[] = {1, 63, 4096, 65535, 65537, 131'072, 300'000, 399'999, kLengthMax, kLengthMax};

class E2eSetTest : public testing::TestWithParam<Transport> {
 protected:
  E2eSetTest() {
    const char* env = std::getenv("KV_SEED");
    const std::uint64_t seed = env != nullptr ? std::strtoull(env, nullptr, 10) : std::random_device{}();
    std::printf("KV_SEED=%llu\n", static_cast<unsigned long long>(seed));
    random.seed(seed);
    for (std::size_t i = 0; i < kSetNames; ++i) lengths.push_back(kLengths[random() % std::size(kLengths)]);
  }
  void SetUp() override {
    if (const std::string why = lacks(GetParam()); !why.empty()) GTEST_SKIP() << why;
    start();
  }
  void start() {
    client.reset();
    node.reset();
    node = std::make_unique<NodeProcess>(
        node_options(GetParam(), {"--capacity", "48MiB", "--disk-path", disk.path(), "--disk-capacity", "256MiB",
                                  "--spill-put-wait-seconds", "5"}));
    ASSERT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
    client = std::make_unique<TestClient>(endpoint_of(*node, GetParam()), GetParam(), record, kBatch);
  }
  /// Stores all names, some at a time, as fast as the disk takes them.
  void put_all() {
    for (std::size_t at = 0; at < kSetNames; at += kBatch) {
      const std::span<const BlockHash> batch = std::span(names).subspan(at, kBatch);
      const auto blocks = client->blocks(kBatch);
      std::vector<std::span<const std::byte>> sources;
      for (std::size_t i = 0; i < kBatch; ++i) {
        fill_pattern(pattern_seed(record.id(), batch[i]), blocks[i].first(lengths[at + i]));
        sources.push_back(blocks[i].first(lengths[at + i]));
      }
      const PutOptions options{.deadline = kDeadline, .control = {}, .group_counts = groups};
      const auto put = (*client)->put_set(client->space(), batch, sources, options);
      ASSERT_TRUE(put) << put.error().message();
      ASSERT_EQ(put->stored, kBatch) << put->refused << " refused: " << put->why.message();
      // The disk keeps up before the next.
      ASSERT_TRUE(eventually([&] { return node->metric("kvstore_allocated_bytes") <= 47 << 20; }));
    }
  }
  /// Gets all names in random order, each batch with names that nobody knows between them. Returns how many landed.
  std::size_t got_in_any_order() {
    std::vector<std::size_t> order(kSetNames);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::size_t landed = 0;
    for (std::size_t at = 0; at < kSetNames;) {
      std::vector<BlockHash> asked;
      std::vector<std::size_t> which;
      while (asked.size() < kBatch) {
        const bool is_known = at < kSetNames && random() % 5 > 0;
        asked.push_back(is_known ? names[order[at]] : strangers[random() % strangers.size()]);
        which.push_back(is_known ? order[at++] : kSetNames);
      }
      auto blocks = client->blocks(kBatch);
      std::vector<bool> is_short(kBatch, false);
      for (std::size_t i = 0; i < kBatch; ++i) {
        if (which[i] == kSetNames || random() % 10 > 0) continue;
        is_short[i] = true;
        blocks[i] = blocks[i].first(lengths[which[i]] - 1);
      }
      std::ranges::fill(client->memory(), std::byte{0xEE});
      const auto got = (*client)->get_set(client->space(), asked, blocks, {.deadline = kDeadline});
      EXPECT_TRUE(got) << got.error().message();
      if (!got) return landed;
      EXPECT_FALSE(got->why) << got->why.message();
      for (std::size_t i = 0; i < kBatch; ++i) {
        const SetGetBlock& block = got->blocks[i];
        const bool is_held = which[i] < kSetNames && !is_dropped[which[i]];
        if (!is_held) {
          EXPECT_FALSE(block.has_landed || block.why || block.block_bytes > 0) << "a plain miss, " << which[i];
          continue;
        }
        const std::size_t length = lengths[which[i]];
        EXPECT_EQ(block.block_bytes, length) << which[i];
        EXPECT_EQ(block.why, is_short[i] ? make_error_code(Errc::kTooLarge) : error_code()) << block.why.message();
        EXPECT_EQ(block.has_landed, !is_short[i]);
        ++landed;
        if (is_short[i]) continue;
        EXPECT_EQ(count_wrong_bytes(pattern_seed(record.id(), asked[i]), blocks[i].first(length)), 0u) << which[i];
        EXPECT_TRUE(std::ranges::all_of(blocks[i].subspan(length), [](std::byte b) { return b == std::byte{0xEE}; }));
      }
    }
    return landed;
  }

  TempDir disk;
  NamespaceRecord record =
      NamespaceRecord::from_fields({{"model", "e2e"}, {"kind", "set"}, {"block_bytes_max", std::to_string(kLengthMax)}})
          .value();
  std::vector<BlockHash> names = make_chain(1, kSetNames), strangers = make_chain(2, kSetNames);
  std::vector<std::size_t> lengths;
  std::vector<std::uint32_t> groups;  ///< Of each batch that is put; none: each name alone.
  std::vector<bool> is_dropped = std::vector<bool>(kSetNames, false);
  std::mt19937_64 random;
  std::unique_ptr<NodeProcess> node;
  std::unique_ptr<TestClient> client;
};

INSTANTIATE_TEST_SUITE_P(Transports, E2eSetTest,
                         testing::Values(Transport::kTcp, Transport::kUnix, Transport::kShm, Transport::kVerbs),
                         [](const auto& one) { return std::string(transport_name(one.param)); });

TEST_P(E2eSetTest, AnySubsetComesBackFromMemoryFromDiskAndAfterARestart) {
  ASSERT_NO_FATAL_FAILURE(put_all());
  const auto match = (*client)->match_set(client->space(), names, {.deadline = kDeadline});
  ASSERT_TRUE(match);
  EXPECT_EQ(match->held_count, kSetNames) << match->why.message();
  EXPECT_GT(match->disk_count, 0u) << "they do not fit in memory";
  EXPECT_LT(match->disk_count, kSetNames) << "and some are there";
  for (std::size_t i = 0; i < kSetNames; ++i) EXPECT_EQ(match->block_bytes[i], lengths[i]) << i;
  EXPECT_EQ(got_in_any_order(), kSetNames);
  EXPECT_EQ(got_in_any_order(), kSetNames) << "of blocks that go back to memory others make room";
  EXPECT_GT(node->metric("kvstore_get_disk_blocks_total"), 0);
  EXPECT_EQ(node->metric("kvstore_lost_unspilled_blocks_total"), 0);

  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0);
  start();
  EXPECT_EQ(got_in_any_order(), kSetNames) << "a clean stop keeps everything";

  // Dropped names stay away, each for itself, whatever ends the node.
  std::vector<BlockHash> dropped;
  for (std::size_t i = 0; i < kSetNames; i += 3) {
    is_dropped[i] = true;
    dropped.push_back(names[i]);
  }
  const auto drop = (*client)->drop(client->space(), dropped, kDeadline);
  ASSERT_TRUE(drop);
  EXPECT_EQ(drop->block_count, dropped.size());
  EXPECT_FALSE(drop->until_restart);
  EXPECT_EQ(got_in_any_order(), kSetNames - dropped.size());
  node->signal(SIGKILL);
  node->wait();
  start();
  const auto after = (*client)->match_set(client->space(), names, {.deadline = kDeadline});
  ASSERT_TRUE(after);
  for (std::size_t i = 0; i < kSetNames; ++i) {
    EXPECT_TRUE(!is_dropped[i] || after->held[i] == Held::kNowhere) << i;
    is_dropped[i] = after->held[i] == Held::kNowhere;  // what was in memory alone may be gone
  }
  EXPECT_GT(after->held_count, kSetNames / 2);
  EXPECT_EQ(got_in_any_order(), after->held_count);
}

TEST_P(E2eSetTest, AGroupIsWholeOrGoneAfterAKill) {
  constexpr std::size_t kMembers = 4;
  groups.assign(kBatch / kMembers, kMembers);
  ASSERT_NO_FATAL_FAILURE(put_all());
  node->signal(SIGTERM);  // all of it is on disk then
  EXPECT_EQ(node->wait(), 0);
  start();
  std::vector<BlockHash> dropped;  // of each fifth group one
  for (std::size_t group = 0; group < kSetNames / kMembers; group += 5)
    dropped.push_back(names[group * kMembers + random() % kMembers]);
  ASSERT_TRUE((*client)->drop(client->space(), dropped, kDeadline));
  node->signal(SIGKILL);
  node->wait();
  start();
  std::size_t whole = 0;
  for (std::size_t at = 0; at < kSetNames; at += kBatch) {
    const std::span<const BlockHash> batch = std::span(names).subspan(at, kBatch);
    const auto blocks = client->blocks(kBatch);
    const MatchOptions match_options{.deadline = kDeadline, .group_counts = groups};
    const GetOptions get_options{.deadline = kDeadline, .group_counts = groups};
    const auto alone = (*client)->match_set(client->space(), batch, {.deadline = kDeadline});
    const auto match = (*client)->match_set(client->space(), batch, match_options);
    const auto got = (*client)->get_set(client->space(), batch, blocks, get_options);
    ASSERT_TRUE(alone && match && got);
    EXPECT_FALSE(got->why) << got->why.message();
    for (std::size_t first = 0; first < kBatch; first += kMembers) {
      const auto group = std::span(alone->held).subspan(first, kMembers);
      const bool is_whole = std::ranges::count(group, Held::kNowhere) == 0;
      whole += is_whole;
      for (std::size_t i = first; i < first + kMembers; ++i) {
        EXPECT_EQ(match->held[i] != Held::kNowhere, is_whole) << at + i;
        EXPECT_EQ(got->blocks[i].has_landed, is_whole) << at + i;
        if (!got->blocks[i].has_landed) continue;
        const std::uint64_t pattern = pattern_seed(record.id(), batch[i]);
        EXPECT_EQ(count_wrong_bytes(pattern, blocks[i].first(lengths[at + i])), 0u) << at + i;
      }
    }
  }
  EXPECT_GT(whole, kSetNames / kMembers / 2);
  EXPECT_LE(whole, kSetNames / kMembers - dropped.size());
}

}  // namespace
}  // namespace kv::e2e
