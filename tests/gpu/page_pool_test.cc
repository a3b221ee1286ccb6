#include "gpu/paging/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "page_names.h"

namespace kv {
namespace {

using testing::ElementsAre;

TEST(PagePoolTest, PagesOfAReleasedRequestQueueBehindTheFreeOnesLastPageFirst) {
  PagePool pool(6);  // the null page and five others
  const std::vector<PageId> request = pool.take(3).value();
  EXPECT_EQ(request, pages({1, 2, 3}));
  EXPECT_EQ(pool.free_pages(), pages({4, 5}));
  pool.release(request);
  EXPECT_EQ(pool.free_pages(), pages({4, 5, 3, 2, 1}));
  EXPECT_EQ(pool.check(), "");
}

TEST(PagePoolTest, TakingMoreThanIsFreeTakesNothing) {
  PagePool pool(4);
  EXPECT_EQ(pool.take(4).error(), Errc::kOutOfMemory);
  EXPECT_EQ(pool.free_count(), 3u);
  EXPECT_EQ(pool.take(3).value(), pages({1, 2, 3}));
  EXPECT_EQ(pool.take(1).error(), Errc::kOutOfMemory);
  EXPECT_TRUE(pool.take(0).value().empty());
}

TEST(PagePoolTest, AFreePageKeepsItsBlockUntilItIsTaken) {
  std::vector<BlockName> removed;
  PagePool pool(4, [&](const BlockName& name) { removed.push_back(name); });
  const auto request = pool.take(2).value();
  pool.set_name(request[0], name_of(10));
  pool.set_name(request[1], name_of(11));
  pool.release(request);
  EXPECT_EQ(pool.find(name_of(10)), PageId{1});
  EXPECT_EQ(pool.find(name_of(11)), PageId{2});
  EXPECT_TRUE(removed.empty());

  EXPECT_EQ(pool.take(2).value(), pages({3, 2}));  // the untouched page, then the end of the prefix
  EXPECT_EQ(pool.find(name_of(10)), PageId{1});
  EXPECT_EQ(pool.find(name_of(11)), std::nullopt);
  EXPECT_THAT(removed, ElementsAre(name_of(11)));
  EXPECT_EQ(pool.check(), "");
}

TEST(PagePoolTest, AHitLeavesTheFreeQueueAndComesBackAtItsEnd) {
  PagePool pool(5);
  const auto request = pool.take(1).value();
  pool.set_name(request[0], name_of(1));
  pool.release(request);
  EXPECT_EQ(pool.free_pages(), pages({2, 3, 4, 1}));
  const std::vector<PageId> hit = {*pool.find(name_of(1))};
  pool.touch(hit);
  pool.touch(hit);
  EXPECT_EQ(pool.user_count(PageId{1}), 2u);
  EXPECT_EQ(pool.free_pages(), pages({2, 3, 4}));
  pool.release(hit);
  EXPECT_EQ(pool.free_count(), 3u);  // one user left
  pool.release(hit);
  EXPECT_EQ(pool.free_pages(), pages({2, 3, 4, 1}));
}

TEST(PagePoolTest, OfPagesWithOneNameTheFirstIsFoundWhileItHasTheName) {
  std::vector<BlockName> removed;
  PagePool pool(5, [&](const BlockName& name) { removed.push_back(name); });
  const auto twins = pool.take(4).value();
  for (const PageId page : twins) pool.set_name(page, name_of(7));
  EXPECT_EQ(pool.find(name_of(7)), PageId{1});
  pool.forget_name(PageId{2});  // in the middle, then the first, then the last
  EXPECT_EQ(pool.find(name_of(7)), PageId{1});
  pool.forget_name(PageId{1});
  EXPECT_EQ(pool.find(name_of(7)), PageId{3});
  pool.forget_name(PageId{4});
  EXPECT_EQ(pool.find(name_of(7)), PageId{3});
  EXPECT_TRUE(removed.empty());
  EXPECT_EQ(pool.check(), "");
  pool.forget_name(PageId{3});
  EXPECT_EQ(pool.find(name_of(7)), std::nullopt);
  EXPECT_THAT(removed, ElementsAre(name_of(7)));
  EXPECT_EQ(pool.check(), "");
}

TEST(PagePoolTest, ABlockOfOneGroupIsNotAHitForAnother) {
  PagePool pool(2);
  const auto page = pool.take(1).value();
  pool.set_name(page[0], name_of(1, /*group=*/0));
  EXPECT_EQ(pool.find(name_of(1, 0)), PageId{1});
  EXPECT_EQ(pool.find(name_of(1, 1)), std::nullopt);
}

TEST(PagePoolTest, TheNullPageIsNeverSharedNorFreed) {
  PagePool pool(3);
  const std::vector<PageId> table = {kNullPage, kNullPage};
  pool.touch(table);
  pool.release(table);
  EXPECT_EQ(pool.user_count(kNullPage), 0u);
  EXPECT_EQ(pool.free_count(), 2u);
  EXPECT_EQ(pool.check(), "");
}

TEST(PagePoolTest, NamesAreForgottenAtOnceOnlyWhileNothingIsUsed) {
  std::vector<BlockName> removed;
  PagePool pool(4, [&](const BlockName& name) { removed.push_back(name); });
  const auto request = pool.take(2).value();
  pool.set_name(request[0], name_of(1));
  pool.set_name(request[1], name_of(2));
  EXPECT_FALSE(pool.forget_all_names());
  EXPECT_EQ(pool.find(name_of(1)), PageId{1});
  pool.release(request);
  EXPECT_TRUE(pool.forget_all_names());
  EXPECT_EQ(pool.find(name_of(1)), std::nullopt);
  EXPECT_THAT(removed, ElementsAre(name_of(1), name_of(2)));
  EXPECT_EQ(pool.free_pages(), pages({3, 2, 1}));  // the order of reuse is as it was
}

}  // namespace
}  // namespace kv
