#include "gpu/paging/cached_prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "page_names.h"

namespace kv {
namespace {

constexpr std::size_t kBlock = 4;

class CachedPrefixTest : public testing::Test {
 protected:
  PagePool pool{40};
  std::map<std::uint64_t, PageId> page_of;

  /// Puts the blocks into pages, in the order given.
  void cache(std::initializer_list<std::uint64_t> contents, std::uint32_t group = 0) {
    for (const std::uint64_t content : contents) {
      const PageId page = pool.take(1).value().front();
      pool.set_name(page, name_of(content, group));
      page_of[content + 1000 * group] = page;
    }
  }
  std::vector<PageId> expect(std::initializer_list<int> contents) {  // 0: the null page
    std::vector<PageId> expected;
    for (const int content : contents) expected.push_back(content == 0 ? kNullPage : page_of.at(content));
    return expected;
  }
  CachedPrefix find(const GroupConfig& group, std::initializer_list<std::uint64_t> names, std::size_t tokens) {
    return find_cached_prefix(pool, group, names_of(names), tokens);
  }
};

TEST_F(CachedPrefixTest, AHitEndsAtTheFirstBlockThatIsMissing) {
  cache({1, 2, 4});
  const CachedPrefix prefix = find({.block_size = kBlock}, {1, 2, 3, 4}, 100);
  EXPECT_EQ(prefix.pages, expect({1, 2}));
  EXPECT_EQ(prefix.token_count, 8u);
  EXPECT_EQ(find({.block_size = kBlock}, {9, 1, 2}, 100).token_count, 0u);
}

TEST_F(CachedPrefixTest, TheLastTokenIsAlwaysComputed) {
  cache({1, 2, 3});
  EXPECT_EQ(find({.block_size = kBlock}, {1, 2, 3}, 13).token_count, 12u);
  EXPECT_EQ(find({.block_size = kBlock}, {1, 2, 3}, 12).token_count, 8u);  // a full hit loses a block
  EXPECT_EQ(find({.block_size = kBlock}, {1, 2, 3}, 11).token_count, 8u);
  EXPECT_EQ(find({.block_size = kBlock}, {1, 2, 3}, 1).token_count, 0u);
  EXPECT_EQ(find({.block_size = kBlock}, {1, 2, 3}, 0).token_count, 0u);
}

TEST_F(CachedPrefixTest, ADraftHeadComputesOneBlockMoreAgain) {
  cache({1, 2, 3});
  const GroupConfig draft{.block_size = kBlock, .drops_last_block = true};
  EXPECT_EQ(find(draft, {1, 2, 3, 4}, 17).pages, expect({1, 2}));
  EXPECT_EQ(find(draft, {1, 2, 3}, 12).pages, expect({1}));  // the last token's block, and one more
  EXPECT_EQ(find(draft, {1, 9}, 9).token_count, 0u);
  EXPECT_EQ(find(draft, {9}, 9).token_count, 0u);
}

TEST_F(CachedPrefixTest, AWindowNeedsOnlyTheBlocksItReads) {
  const GroupConfig group{.block_size = kBlock, .window_tokens = 9};  // 8 tokens before: two blocks
  EXPECT_EQ(window_block_count(group), 2u);
  cache({3, 4, 6});  // of 1..6: the last two in a row are 3 and 4
  const CachedPrefix prefix = find(group, {1, 2, 3, 4, 5, 6}, 100);
  EXPECT_EQ(prefix.pages, expect({0, 0, 3, 4}));
  EXPECT_EQ(prefix.token_count, 16u);
}

TEST_F(CachedPrefixTest, AWindowTakesTheLastRunThatIsLongEnough) {
  const GroupConfig group{.block_size = kBlock, .window_tokens = 6};  // 5 tokens before: two blocks
  cache({1, 2, 4, 5, 7});
  EXPECT_EQ(find(group, {1, 2, 3, 4, 5, 6, 7}, 100).pages, expect({0, 0, 0, 4, 5}));
}

TEST_F(CachedPrefixTest, ASequencesBeginningIsAHitEvenIfShorterThanTheWindow) {
  const GroupConfig group{.block_size = kBlock, .window_tokens = 13};  // three blocks
  cache({1, 2, 5});
  EXPECT_EQ(find(group, {1, 2, 3, 4, 5}, 100).pages, expect({1, 2}));
  EXPECT_EQ(find(group, {3, 4, 5}, 100).token_count, 0u);  // 5 alone begins nothing
}

TEST_F(CachedPrefixTest, AWindowWithADraftHeadNeedsOneBlockMoreAndDropsIt) {
  const GroupConfig group{.block_size = kBlock, .window_tokens = 9, .drops_last_block = true};
  cache({2, 3, 4, 6, 7});
  EXPECT_EQ(find(group, {1, 2, 3, 4, 5, 6, 7}, 100).pages, expect({0, 2, 3}));  // 6 and 7 are only two
}

TEST_F(CachedPrefixTest, AWindowOfOneTokenStillNeedsOneBlock) {
  EXPECT_EQ(window_block_count({.block_size = kBlock, .window_tokens = 1}), 1u);
  EXPECT_EQ(window_block_count({.block_size = kBlock, .window_tokens = 2}), 1u);
  EXPECT_EQ(window_block_count({.block_size = kBlock, .window_tokens = 5}), 1u);
  EXPECT_EQ(window_block_count({.block_size = kBlock, .window_tokens = 6}), 2u);
}

TEST_F(CachedPrefixTest, GroupsAgreeOnOnePrefix) {
  cache({1, 2, 3, 4, 5}, 0);
  cache({2, 4, 5}, 1);  // a window of one block: 2, 4 or 5 may be the end
  const std::vector<GroupConfig> groups = {{.block_size = kBlock}, {.block_size = kBlock, .window_tokens = 5}};
  const auto full = names_of({1, 2, 3, 4, 5, 6}, 0), window = names_of({1, 2, 3, 4, 5, 6}, 1);
  const std::vector<std::span<const BlockName>> names = {full, window};
  EXPECT_EQ(find_cached_prefix(pool, groups, names, 100)[1].token_count, 20u);

  pool.forget_name(page_of.at(5));  // now the full group ends at 4,
  pool.forget_name(page_of.at(1004));
  const auto prefixes = find_cached_prefix(pool, groups, names, 100);
  EXPECT_EQ(prefixes[0].pages, expect({1, 2}));  // and the window, without 4, at 2
  EXPECT_EQ(prefixes[1].pages, expect({0, 1002}));
}

/// Whether a prefix of `count` blocks has what the group reads, looked at block by block.
bool is_usable(const PagePool& pool, const GroupConfig& group, std::span<const BlockName> names, std::size_t tokens,
               std::size_t count) {
  if (count == 0) return true;
  const std::size_t found_end = count + group.drops_last_block;
  if (found_end > names.size() || found_end * group.block_size > tokens - 1) return false;
  const std::size_t kept = group.window_tokens == 0 ? count : std::min(count, window_block_count(group));
  for (std::size_t i = count - kept; i < found_end; ++i) {
    if (!pool.find(names[i])) return false;
  }
  return true;
}

TEST(CachedPrefixRandomTest, ItIsTheLongestThatAllGroupsCanUse) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::size_t hit_count = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t group_count = 1 + random() % 3, length = random() % 60, tokens = 1 + random() % 60;
    const bool has_one_block_size = random() % 2 == 0;
    PagePool pool(1 + 3 * 30);
    std::vector<GroupConfig> groups;
    std::vector<std::vector<BlockName>> chains(group_count);
    std::vector<std::span<const BlockName>> names;
    for (std::uint32_t g = 0; g < group_count; ++g) {
      const std::size_t sizes[] = {2, 4, 6};
      groups.push_back({.block_size = has_one_block_size ? 3 : sizes[random() % 3],
                        .window_tokens = random() % 2 * (random() % 12),
                        .drops_last_block = random() % 3 == 0});
      for (std::uint64_t i = 0; i < length / groups[g].block_size; ++i) {
        chains[g].push_back(name_of(i, g));
        if (random() % 6 != 0) pool.set_name(pool.take(1).value()[0], chains[g].back());
      }
      names.push_back(chains[g]);
    }
    std::size_t longest = 0;
    for (std::size_t count = 1; count < tokens; ++count) {
      bool all = true;
      for (std::size_t g = 0; g < group_count; ++g) {
        all &= count % groups[g].block_size == 0 &&
               is_usable(pool, groups[g], names[g], tokens, count / groups[g].block_size);
      }
      if (all) longest = count;
    }
    const auto prefixes = find_cached_prefix(pool, groups, names, tokens);
    hit_count += longest > 0;
    for (std::size_t g = 0; g < group_count; ++g) {
      ASSERT_EQ(prefixes[g].token_count, longest) << "round " << round;
      ASSERT_EQ(prefixes[g].pages.size() * groups[g].block_size, longest);
    }
    if (group_count == 1) {
      ASSERT_EQ(find_cached_prefix(pool, groups[0], names[0], tokens).token_count, longest);
    }
  }
  EXPECT_GT(hit_count, 500u);
}

}  // namespace
}  // namespace kv
