#include "gpu/paging/paged_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "page_names.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PagedCacheTest : public testing::Test {
 protected:
  PagePool pool{20};
  PagedCache cache{pool, {.block_size = 4}};

  std::vector<PageId> table(SequenceId sequence, PagedCache* of = nullptr) {
    const auto pages = (of ? of : &cache)->page_table(sequence);
    return {pages.begin(), pages.end()};
  }
};

TEST_F(PagedCacheTest, APromptGetsOnePageForEachBlockItBegins) {
  const SequenceId sequence = cache.open({}, 9).value();
  EXPECT_EQ(table(sequence), pages({1, 2, 3}));
  EXPECT_THAT(cache.slot_mapping(sequence, 0, 9), ElementsAre(4, 5, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_THAT(cache.slot_mapping(sequence, 8, 9), ElementsAre(12));
  EXPECT_EQ(pool.free_count(), 16u);
}

TEST_F(PagedCacheTest, DecodingTakesAPageEveryBlockSizeTokens) {
  const SequenceId sequence = cache.open({}, 3).value();
  EXPECT_THAT(cache.append(sequence, 1).value(), IsEmpty());
  EXPECT_EQ(table(sequence), pages({1}));
  EXPECT_THAT(cache.append(sequence, 1).value(), IsEmpty());
  EXPECT_EQ(table(sequence), pages({1, 2}));
  EXPECT_THAT(cache.append(sequence, 8).value(), IsEmpty());
  EXPECT_EQ(table(sequence), pages({1, 2, 3, 4}));
  EXPECT_EQ(cache.token_count(sequence), 13u);
}

TEST_F(PagedCacheTest, ASecondRequestSharesThePagesOfTheFirst) {
  const auto names = names_of({1, 2});
  const SequenceId first = cache.open({}, 11).value();
  cache.name_blocks(first, names);
  const CachedPrefix prefix = cache.find(names, 10);
  EXPECT_EQ(prefix.token_count, 8u);
  const SequenceId second = cache.open(prefix, 10).value();
  EXPECT_EQ(table(second), pages({1, 2, 4}));
  EXPECT_EQ(pool.user_count(PageId{1}), 2u);
  EXPECT_THAT(cache.slot_mapping(second, 7, 10), ElementsAre(11, 16, 17));
  cache.close(first);
  EXPECT_EQ(pool.user_count(PageId{1}), 1u);
}

TEST_F(PagedCacheTest, HitsThatNobodyUsesCountAmongThePagesNeeded) {
  const auto names = names_of({1, 2});
  const SequenceId first = cache.open({}, 8).value();
  cache.name_blocks(first, names);
  EXPECT_EQ(cache.pages_needed(cache.find(names, 12), 12), 1u);  // both hits are in use already
  cache.close(first);
  EXPECT_EQ(cache.pages_needed(cache.find(names, 12), 12), 3u);

  const auto others = pool.take(17).value();  // two free pages left: the hits
  EXPECT_EQ(cache.open(cache.find(names, 12), 12).error(), Errc::kOutOfMemory);
  EXPECT_EQ(pool.free_pages(), pages({2, 1}));
  EXPECT_EQ(cache.sequence_count(), 0u);
  pool.release(std::span(others).first(1));
  const SequenceId second = cache.open(cache.find(names, 12), 12).value();
  EXPECT_EQ(table(second), (std::vector<PageId>{PageId{1}, PageId{2}, others[0]}));
}

TEST_F(PagedCacheTest, AClosedSequenceIsEvictedFromItsEnd) {
  const auto names = names_of({1, 2, 3});
  const SequenceId sequence = cache.open({}, 12).value();
  cache.name_blocks(sequence, names);
  cache.close(sequence);
  EXPECT_EQ(pool.take(17).value().back(), PageId{3});
  EXPECT_EQ(cache.find(names, 100).token_count, 8u);
}

TEST_F(PagedCacheTest, OnlyFullBlocksAreNamed) {
  const auto names = names_of({1, 2, 3});
  const SequenceId sequence = cache.open({}, 7).value();
  cache.name_blocks(sequence, names);
  EXPECT_EQ(cache.find(names, 100).token_count, 4u);
  EXPECT_TRUE(cache.append(sequence, 1));
  cache.name_blocks(sequence, names);
  EXPECT_EQ(cache.find(names, 100).token_count, 8u);
  cache.name_blocks(sequence, names);
  EXPECT_EQ(pool.check(), "");
}

TEST_F(PagedCacheTest, TheSameBlockComputedTwiceStaysInBothTables) {
  const auto names = names_of({1});
  const SequenceId first = cache.open({}, 4).value(), second = cache.open({}, 4).value();
  cache.name_blocks(first, names);
  cache.name_blocks(second, names);
  EXPECT_EQ(table(first), pages({1}));
  EXPECT_EQ(table(second), pages({2}));
  EXPECT_EQ(cache.find(names, 5).pages, pages({1}));
}

TEST_F(PagedCacheTest, AForkSharesEverythingUntilOneOfThemAppends) {
  const SequenceId parent = cache.open({}, 6).value();
  const SequenceId child = cache.fork(parent), other = cache.fork(parent);
  EXPECT_EQ(table(child), pages({1, 2}));
  EXPECT_EQ(pool.user_count(PageId{2}), 3u);
  EXPECT_THAT(cache.append(child, 1).value(), ElementsAre(PageCopy{PageId{2}, PageId{3}}));
  EXPECT_EQ(table(child), pages({1, 3}));
  EXPECT_THAT(cache.append(other, 3).value(), ElementsAre(PageCopy{PageId{2}, PageId{4}}));
  EXPECT_EQ(table(other), pages({1, 4, 5}));
  EXPECT_THAT(cache.append(parent, 1).value(), IsEmpty());  // the last one keeps the page
  EXPECT_EQ(table(parent), pages({1, 2}));
  EXPECT_EQ(pool.user_count(PageId{1}), 3u);
}

TEST_F(PagedCacheTest, AForkAtABlockEndCopiesNothing) {
  const SequenceId parent = cache.open({}, 8).value();
  const SequenceId child = cache.fork(parent);
  EXPECT_THAT(cache.append(child, 1).value(), IsEmpty());
  EXPECT_EQ(table(child), pages({1, 2, 3}));
}

TEST_F(PagedCacheTest, AFailedAppendChangesNothing) {
  const SequenceId parent = cache.open({}, 6).value();
  const SequenceId child = cache.fork(parent);
  const auto others = pool.take(17).value();
  EXPECT_EQ(cache.append(child, 1).error(), Errc::kOutOfMemory);  // the copy needs a page
  EXPECT_EQ(table(child), pages({1, 2}));
  EXPECT_EQ(cache.token_count(child), 6u);
  EXPECT_EQ(pool.user_count(PageId{2}), 2u);
  cache.close(parent);
  EXPECT_THAT(cache.append(child, 1).value(), IsEmpty());
}

TEST_F(PagedCacheTest, TokensWithoutEndNeedMorePagesThanThereAre) {
  for (const std::size_t count : {SIZE_MAX, SIZE_MAX - 2, SIZE_MAX - 3, SIZE_MAX / 2 + 1}) {
    EXPECT_EQ(cache.open({}, count).error(), Errc::kOutOfMemory) << count;
    EXPECT_GT(cache.pages_needed({}, count), pool.page_count()) << count;
  }
  const SequenceId sequence = cache.open({}, 10).value();
  for (const std::size_t count : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 3, SIZE_MAX - 9, SIZE_MAX - 12, SIZE_MAX / 2 + 1})
    EXPECT_EQ(cache.append(sequence, count).error(), Errc::kOutOfMemory) << count;
  EXPECT_EQ(cache.token_count(sequence), 10u);
  EXPECT_EQ(table(sequence), pages({1, 2, 3}));
}

TEST_F(PagedCacheTest, AWindowWithoutEndIsTheWholePrefix) {
  const auto names = names_of({1, 2, 3});
  for (const std::size_t window_tokens : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 3}) {
    PagedCache windowed(pool, {.block_size = 4, .window_tokens = window_tokens});
    const SequenceId first = windowed.open({}, 13).value();
    windowed.name_blocks(first, names);
    EXPECT_EQ(windowed.find(names, 13).token_count, 12u) << window_tokens;
    pool.forget_name(table(first, &windowed)[0]);
    EXPECT_EQ(windowed.find(names, 13).token_count, 0u) << "the first block is missing, " << window_tokens;
  }
}

TEST_F(PagedCacheTest, ACropLetsTheLastPagesGo) {
  const SequenceId sequence = cache.open({}, 12).value();
  EXPECT_TRUE(cache.crop(sequence, 5));
  EXPECT_EQ(table(sequence), pages({1, 2}));
  EXPECT_EQ(pool.free_pages().back(), PageId{3});
  EXPECT_TRUE(cache.crop(sequence, 5));
  EXPECT_EQ(cache.crop(sequence, 6).error(), Errc::kBadRequest);
  EXPECT_TRUE(cache.crop(sequence, 0));
  EXPECT_THAT(table(sequence), IsEmpty());
}

TEST_F(PagedCacheTest, ABlockLosesItsNameBeforeItIsWrittenOver) {
  const auto names = names_of({1, 2}), changed = names_of({1, 3});
  const SequenceId sequence = cache.open({}, 8).value();
  cache.name_blocks(sequence, names);
  EXPECT_TRUE(cache.crop(sequence, 6));
  EXPECT_EQ(cache.find(names, 100).token_count, 8u);  // nothing was written yet
  EXPECT_THAT(cache.append(sequence, 2).value(), IsEmpty());
  EXPECT_EQ(cache.find(names, 100).token_count, 4u);
  cache.name_blocks(sequence, changed);
  EXPECT_EQ(cache.find(changed, 100).pages, pages({1, 2}));
}

TEST_F(PagedCacheTest, ASharedBlockIsCopiedAfterACropIntoIt) {
  const auto names = names_of({1, 2});
  const SequenceId first = cache.open({}, 9).value();
  cache.name_blocks(first, names);
  const SequenceId second = cache.open(cache.find(names, 9), 9).value();
  EXPECT_TRUE(cache.crop(second, 6));
  EXPECT_THAT(cache.append(second, 1).value(), ElementsAre(PageCopy{PageId{2}, PageId{5}}));
  EXPECT_EQ(table(first), pages({1, 2, 3}));
  EXPECT_EQ(cache.find(names, 100).pages, pages({1, 2}));
}

TEST_F(PagedCacheTest, PagesBehindTheWindowAreLetGoWhileTheSequenceGrows) {
  PagedCache windowed(pool, {.block_size = 4, .window_tokens = 6});
  const SequenceId sequence = windowed.open({}, 8).value();
  EXPECT_TRUE(windowed.append(sequence, 1));  // the token at 8 reads 3..8
  EXPECT_EQ(table(sequence, &windowed), pages({1, 2, 3}));
  EXPECT_TRUE(windowed.append(sequence, 1));  // the token at 9 reads 4..9: block 0 is behind
  EXPECT_EQ(table(sequence, &windowed), pages({0, 2, 3}));
  EXPECT_EQ(pool.free_pages().back(), PageId{1});
  EXPECT_THAT(windowed.slot_mapping(sequence, 2, 6), ElementsAre(-1, -1, 8, 9));
}

TEST_F(PagedCacheTest, AWindowCannotBeCroppedToWhatItLeftBehind) {
  PagedCache windowed(pool, {.block_size = 4, .window_tokens = 6});
  const SequenceId sequence = windowed.open({}, 9).value();
  EXPECT_TRUE(windowed.append(sequence, 3));
  ASSERT_EQ(table(sequence, &windowed), pages({0, 2, 3}));
  EXPECT_TRUE(windowed.crop(sequence, 9));                           // the next token reads 4..9
  EXPECT_EQ(windowed.crop(sequence, 8).error(), Errc::kBadRequest);  // it would read 3
  EXPECT_EQ(windowed.token_count(sequence), 9u);
  EXPECT_TRUE(windowed.crop(sequence, 0));
}

TEST_F(PagedCacheTest, AWindowedHitBeginsWithNullPages) {
  PagedCache windowed(pool, {.block_size = 4, .window_tokens = 5});
  const auto names = names_of({1, 2, 3});
  const SequenceId first = windowed.open({}, 12).value();
  windowed.name_blocks(first, names);
  const SequenceId second = windowed.open(windowed.find(names, 13), 13).value();
  EXPECT_EQ(table(second, &windowed), pages({0, 0, 3, 4}));
  EXPECT_EQ(pool.user_count(PageId{1}), 1u);
  EXPECT_EQ(pool.user_count(PageId{3}), 2u);
}

TEST_F(PagedCacheTest, HitsThatAreHeldOutlastTheOpeningOfOtherGroups) {
  PagePool small(5);
  PagedCache full(small, {.block_size = 4}), window(small, {.block_size = 2, .window_tokens = 3});
  const std::vector<GroupConfig> groups = {{.block_size = 4}, {.block_size = 2, .window_tokens = 3}};
  const auto full_names = names_of({1, 2}, 0), window_names = names_of({1, 2, 3, 4}, 1);
  const std::vector<std::span<const BlockName>> names = {full_names, window_names};
  const auto warm = window.open({}, 4).value();  // pages 1 and 2
  window.name_blocks(warm, window_names);
  const auto warm_full = full.open({}, 4).value();  // page 3
  full.name_blocks(warm_full, full_names);
  window.close(warm);
  full.close(warm_full);

  const auto prefixes = find_cached_prefix(small, groups, names, 12);  // the window's hit: page 2
  ASSERT_EQ(prefixes[0].token_count, 4u);
  EXPECT_EQ(prefixes[1].pages, pages({0, 2}));
  for (const CachedPrefix& each : prefixes) small.touch(each.pages);
  const auto opened = full.open(prefixes[0], 12);  // takes 4 and 1, while 2 was to be taken before 1
  ASSERT_TRUE(opened);
  EXPECT_EQ(table(*opened, &full), pages({3, 4, 1}));
  EXPECT_EQ(window.open(prefixes[1], 12).error(), Errc::kOutOfMemory);
  full.close(*opened);
  for (const CachedPrefix& each : prefixes) small.release(each.pages);
  EXPECT_EQ(small.free_count(), 4u);
  EXPECT_EQ(find_cached_prefix(small, groups, names, 12)[1].token_count, 4u);  // a failure costs no hit
}

TEST_F(PagedCacheTest, ACacheThatEndsReturnsItsPages) {
  {
    PagedCache ended(pool, {.block_size = 4});
    EXPECT_TRUE(ended.open({}, 30));
    EXPECT_EQ(pool.free_count(), 11u);
  }
  EXPECT_EQ(pool.free_count(), 19u);
}

}  // namespace
}  // namespace kv
