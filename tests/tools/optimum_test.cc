#include "store/replay/optimum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <map>

#include "client/tools/bench/loads/load_random.h"

namespace kv {
namespace {

TraceRequest request(std::vector<std::uint64_t> ids) {
  return {.timestamp_ms = 0, .input_length = 512 * ids.size(), .output_length = 1, .hash_ids = std::move(ids)};
}

CacheTotals best(const BlockTrace& trace, std::uint64_t capacity) {
  std::atomic<std::uint64_t> done = 0;
  const CacheTotals totals = optimum(trace, capacity, done);
  EXPECT_EQ(done, trace.request_count());
  return totals;
}

/// Up to 12 blocks in a tree; a request is the way from a root to some block.
std::vector<TraceRequest> random_requests(LoadRandom& random, std::size_t request_count) {
  std::vector<std::vector<std::uint64_t>> paths;
  const std::uint64_t block_count = random.between(3, 12);
  for (std::uint64_t block = 0; block < block_count; ++block) {
    auto path = paths.empty() || random.chance(25) ? std::vector<std::uint64_t>{} : paths[random.below(paths.size())];
    path.push_back(block);
    paths.push_back(std::move(path));
  }
  std::vector<TraceRequest> requests;
  for (std::size_t i = 0; i < request_count; ++i) requests.push_back(request(paths[random.below(paths.size())]));
  return requests;
}

/// Tries all that a cache may keep after each request: any set, as sets of bits, of what was here and what came, that
/// is not too large and has no block without the one above it.
std::uint64_t most_hits(const BlockTrace& trace, int capacity) {
  std::map<std::uint32_t, std::uint64_t> reached = {{0, 0}};  // what is here -> the most hits on the way there
  std::vector<std::uint32_t> blocks;
  std::map<std::uint32_t, std::uint32_t> parents;
  for (std::size_t r = 0; r < trace.request_count(); ++r) {
    trace.blocks_of(r, blocks);
    std::uint32_t asked = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      asked |= 1u << blocks[i];
      if (i > 0) parents[blocks[i]] = blocks[i - 1];
    }
    std::map<std::uint32_t, std::uint64_t> next;
    for (const auto& [here, hits] : reached) {
      std::uint64_t hit = 0;
      while (hit < blocks.size() && (here >> blocks[hit] & 1) != 0) ++hit;
      const std::uint32_t all = here | asked;
      for (std::uint32_t kept = all;; kept = (kept - 1) & all) {
        bool is_tree = std::popcount(kept) <= capacity;
        for (const auto& [block, parent] : parents)
          is_tree = is_tree && ((kept >> block & 1) == 0 || (kept >> parent & 1) != 0);
        if (is_tree) next[kept] = std::max(next[kept], hits + hit);
        if (kept == 0) break;
      }
    }
    reached = std::move(next);
  }
  std::uint64_t most = 0;
  for (const auto& [here, hits] : reached) most = std::max(most, hits);
  return most;
}

TEST(OptimumTest, NoCacheOfTheSizeHitsMore) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    LoadRandom random(seed);
    const BlockTrace trace(random_requests(random, 14), {});
    for (const int capacity : {1, 2, 3, 5}) {
      EXPECT_EQ(best(trace, static_cast<std::uint64_t>(capacity)).hits, most_hits(trace, capacity))
          << "seed " << seed << ", capacity " << capacity;
    }
  }
}

TEST(OptimumTest, NothingIsStoredThatIsNotUsedAgain) {
  const BlockTrace trace({request({1, 2, 3}), request({1, 2, 4}), request({5}), request({1})}, {});
  const CacheTotals totals = best(trace, 10);
  EXPECT_EQ(totals.references, 8u);
  EXPECT_EQ(totals.hits, 3u);
  EXPECT_EQ(totals.stored, 2u) << "blocks 1 and 2";
  EXPECT_EQ(best(trace, 1).hits, 2u);
  EXPECT_EQ(best(trace, 1).stored, 1u);
}

TEST(OptimumTest, SplitBlocksHitAsTheBlocksThatTheyWereCutFrom) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    LoadRandom random(seed);
    const auto requests = random_requests(random, 200);
    const BlockTrace whole(requests, {}), split(requests, {.split = 4});
    EXPECT_EQ(best(whole, whole.block_count()).hits * 4, best(split, split.block_count()).hits);
    // Four quarters fit wherever a whole block does; and more, where a part of one does.
    EXPECT_GE(best(split, 4 * 3).hits, 4 * best(whole, 3).hits) << "seed " << seed;
  }
}

TEST(OptimumTest, OfTheRealTraceItIsAsPublished) {
  const char* folder = std::getenv("KV_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "KV_TRACES does not name a folder with conversation_trace.jsonl.gz";
  const BlockTrace trace(read_trace(std::string(folder) + "/conversation_trace.jsonl.gz", 0), {});
  // A little more than published, 0.1906: a request is one step here, and not one for each of its blocks.
  EXPECT_NEAR(best(trace, 1'000).hit_rate(), 0.1907, 0.00005);
  EXPECT_NEAR(best(trace, 3'000).hit_rate(), 0.2945, 0.00005);
  EXPECT_NEAR(best(trace, 5'000).hit_rate(), 0.3412, 0.00005);
  EXPECT_NEAR(best(trace, 10'000).hit_rate(), 0.3664, 0.00005);
  EXPECT_NEAR(best(trace, 30'000).hit_rate(), 0.3664, 0.00005);
}

}  // namespace
}  // namespace kv
