#include "store/node/session/tables/table_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace kv {
namespace {

class TableBudgetTest : public testing::Test {
 protected:
  TableBudget budget{1000};
  std::vector<std::string> asked;

  std::unique_ptr<TableBudget::Account> account(const std::string& peer, const std::string& name = "") {
    return std::make_unique<TableBudget::Account>(budget, peer, [this, name] { asked.push_back(name); });
  }
};

TEST_F(TableBudgetTest, OnePeerLeavesAQuarterToOthersAndTheseAQuarterOfThat) {
  const auto a = account("a"), more = account("a"), b = account("b"), c = account("c");
  EXPECT_TRUE(a->resize(750));
  EXPECT_FALSE(more->resize(1));
  EXPECT_TRUE(b->resize(250)) << "a first one has all that is there";
  EXPECT_TRUE(b->resize(187));
  EXPECT_FALSE(b->resize(188));
  EXPECT_TRUE(c->resize(63));
  EXPECT_EQ(budget.bytes(), 1000u);
  EXPECT_EQ(budget.refused_count(), 2u);
}

TEST_F(TableBudgetTest, WhatIsGivenBackIsThereAtOnce) {
  const auto a = account("a"), b = account("a");
  EXPECT_TRUE(a->resize(700));
  EXPECT_FALSE(b->resize(100));
  EXPECT_TRUE(a->resize(10));
  EXPECT_TRUE(b->resize(100));
  {
    const auto c = account("c");
    EXPECT_TRUE(c->resize(400));
    EXPECT_EQ(budget.bytes(), 510u);
  }
  EXPECT_EQ(budget.bytes(), 110u);
  EXPECT_TRUE(a->resize(0));
  EXPECT_TRUE(b->resize(0));
  EXPECT_EQ(budget.bytes(), 0u);
}

TEST_F(TableBudgetTest, ThoseOfThePeerThatHasMostAreAskedOnceUntilTheyWereTold) {
  const auto a = account("a", "a"), a2 = account("a", "a2"), b = account("b", "b"), c = account("c", "c");
  EXPECT_TRUE(a->resize(300));
  EXPECT_TRUE(a2->resize(300));
  EXPECT_TRUE(b->resize(200));
  EXPECT_FALSE(c->resize(300));
  EXPECT_EQ(asked, (std::vector<std::string>{"a", "a2"}));
  EXPECT_FALSE(c->resize(300));
  EXPECT_EQ(asked.size(), 2u);
  a2->was_told();
  EXPECT_FALSE(c->resize(300));
  EXPECT_EQ(asked, (std::vector<std::string>{"a", "a2", "a2"}));
}

TEST_F(TableBudgetTest, APeerAtItsShareAsksItsOwn) {
  const auto a = account("a", "a"), b = account("b", "b"), b2 = account("b", "b2");
  EXPECT_TRUE(a->resize(600));
  EXPECT_TRUE(b->resize(200));
  EXPECT_FALSE(b2->resize(150)) << "there are 200, of which it would leave less than a quarter";
  EXPECT_EQ(asked, (std::vector<std::string>{"b"}));
}

}  // namespace
}  // namespace kv
