#include "store/contexts/context_table.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store_fixture.h"

namespace kv {
namespace {

class ContextTableTest : public testing::Test {
 protected:
  ContextTableTest() : record(std::make_shared<const NamespaceRecord>(make_record("m", 4096))) {}
  Context make(const std::string& owner, const std::string& name, std::size_t blocks, Duration ttl,
               bool is_sliding = false) {
    Context context;
    context.owner = owner;
    context.name = name;
    context.record = record;
    context.hashes = chain(1, blocks);
    context.chains.push_back({.first = 0, .count = blocks, .kept = {}});
    context.life = {ttl, is_sliding};
    return context;
  }
  Context* next_ended(ContextTable& table, TimePoint now) {
    Steps steps(~std::size_t{0});
    return table.next_ended(now, steps);
  }
  std::shared_ptr<const NamespaceRecord> record;
};

TEST_F(ContextTableTest, ANameIsFoundByItsOwnerAlone) {
  ContextTable table;
  table.add(make("blue", "a", 3, 1h), TimePoint(1s));
  EXPECT_NE(table.find("blue", "a"), nullptr);
  EXPECT_EQ(table.find("red", "a"), nullptr);
  EXPECT_EQ(table.find("", "a"), nullptr);
  table.add(make("red", "a", 2, 1h), TimePoint(1s));
  EXPECT_EQ(table.find("blue", "a")->hashes.size(), 3u);
  EXPECT_EQ(table.find("red", "a")->hashes.size(), 2u);
  std::size_t seen = 0;
  table.visit("red", "", [&](Context& context) {
    EXPECT_EQ(context.owner, "red");
    ++seen;
    return true;
  });
  EXPECT_EQ(seen, 1u);
  EXPECT_EQ(table.check(), "");
}

TEST_F(ContextTableTest, OneThatIsUsedEndsLaterAndNeverSooner) {
  ContextTable table;
  Context& fixed = table.add(make("", "fixed", 1, 10s), TimePoint(0s));
  Context& sliding = table.add(make("", "sliding", 1, 10s, true), TimePoint(0s));
  fixed.used = sliding.used = TimePoint(6s);
  EXPECT_EQ(next_ended(table, TimePoint(10s) - 1ns), nullptr);
  ASSERT_EQ(next_ended(table, TimePoint(10s)), &fixed);
  table.take(fixed, ContextTable::Gone::kExpired);
  EXPECT_EQ(next_ended(table, TimePoint(16s) - 1ns), nullptr);
  EXPECT_EQ(table.check(), "");
  ASSERT_EQ(next_ended(table, TimePoint(16s)), &sliding);
  table.extend(sliding, {5s, true}, TimePoint(16s));
  EXPECT_EQ(sliding.end(), TimePoint(21s)) << "a use before the extension counts for nothing";
  EXPECT_EQ(next_ended(table, TimePoint(20s)), nullptr);
  EXPECT_EQ(table.check(), "");
}

TEST_F(ContextTableTest, NoBoundIsPassedAndNoneEndsForAnother) {
  ContextTable table(
      {.count_max = 5, .blocks_max = 100, .owner_count_max = 3, .owner_blocks_max = 20, .owner_text_bytes_max = 12});
  const auto add = [&](const std::string& owner, const std::string& name, std::size_t blocks) {
    Context context = make(owner, name, blocks, 1h);
    const Errc why = table.refuses(context, nullptr);
    if (why == Errc{}) table.add(std::move(context), TimePoint(0s));
    return why;
  };
  EXPECT_EQ(add("a", "1", 10), Errc{});
  EXPECT_EQ(add("a", "2", 11), Errc::kOverQuota) << "21 blocks";
  EXPECT_EQ(add("a", "2", 10), Errc{});
  EXPECT_EQ(add("b", "12345678901", 1), Errc{});
  EXPECT_EQ(add("b", "23", 1), Errc::kOverQuota) << "13 bytes of names";
  EXPECT_EQ(table.refuses(make("b", "23456789012", 1, 1h), table.find("b", "12345678901")), Errc{}) << "in its place";
  EXPECT_EQ(add("c", "1", 1), Errc{});
  EXPECT_EQ(add("c", "2", 1), Errc{});
  EXPECT_EQ(add("d", "1", 1), Errc::kBusy) << "five in all";
  EXPECT_EQ(table.count(), 5u);
  for (const ContextTotals& of : table.totals()) EXPECT_EQ(of.refused, of.owner == "a" || of.owner == "b" ? 1u : 0u);
  EXPECT_EQ(table.check(), "");
}

TEST_F(ContextTableTest, CountersOfForgottenOwnersAreSummed) {
  ContextTable table({.owners_remembered_max = 3});
  for (int i = 0; i < 10; ++i) {
    Context& context = table.add(make("owner" + std::to_string(i), "x", 2, 1h), TimePoint(0s));
    table.wrote(context, 2);
    table.take(context, ContextTable::Gone::kDeleted);
  }
  const auto totals = table.totals();
  EXPECT_LE(totals.size(), 5u);
  EXPECT_EQ(totals.back().owner, "(other)");
  std::uint64_t written = 0, deleted = 0;
  for (const ContextTotals& of : totals) {
    written += of.written_tokens;
    deleted += of.deleted;
  }
  EXPECT_EQ(written, 10u * 2 * 4);
  EXPECT_EQ(deleted, 10u);
}

/// Whatever is done, the table is what a plain map of the contexts says.
TEST_F(ContextTableTest, RandomActsAgreeWithAModel) {
  std::mt19937_64 random(test_seed());
  const ContextLimits limits{.count_max = 40,
                             .blocks_max = 200,
                             .owner_count_max = 15,
                             .owner_blocks_max = 90,
                             .owner_text_bytes_max = 40,
                             .owners_remembered_max = 2};
  ContextTable table(limits);
  struct Known {
    std::size_t blocks, text_bytes;
    TimePoint begun;
    ContextLife life;
    std::optional<TimePoint> used;
    TimePoint end() const { return (life.is_sliding && used ? std::max(begun, *used) : begun) + life.ttl; }
  };
  std::map<std::pair<std::string, std::string>, Known> model;
  TimePoint now{1s};
  std::uint64_t expired = 0, deleted = 0;
  for (int step = 0; step < 3000; ++step) {
    now += std::chrono::milliseconds(random() % 300);
    const std::string owner(1, static_cast<char>('a' + random() % 4)),
        name(1 + random() % 4, static_cast<char>('a' + random() % 8));
    Context* const found = table.find(owner, name);
    const auto known = model.find({owner, name});
    ASSERT_EQ(found != nullptr, known != model.end());
    switch (random() % 8) {
      case 0:
      case 1:
      case 2: {
        const ContextLife life{std::chrono::milliseconds(1 + random() % 20000), random() % 2 == 0};
        Context context = make(owner, name, 1 + random() % 20, life.ttl, life.is_sliding);
        std::size_t count = 0, blocks = 0, text = 0, all_blocks = 0;
        for (const auto& [key, each] : model) {
          if (key == std::pair(owner, name)) continue;
          all_blocks += each.blocks;
          if (key.first != owner) continue;
          ++count;
          blocks += each.blocks;
          text += each.text_bytes;
        }
        const bool is_over_own = count >= limits.owner_count_max ||
                                 blocks + context.hashes.size() > limits.owner_blocks_max ||
                                 text + name.size() > limits.owner_text_bytes_max;
        const bool is_over = model.size() - (found != nullptr ? 1 : 0) >= limits.count_max ||
                             all_blocks + context.hashes.size() > limits.blocks_max;
        const Errc why = table.refuses(context, found);
        ASSERT_EQ(why, is_over_own ? Errc::kOverQuota : is_over ? Errc::kBusy : Errc{});
        if (why != Errc{}) break;
        if (found != nullptr) table.take(*found, ContextTable::Gone::kReplaced);
        model[{owner, name}] = {context.hashes.size(), name.size(), now, life, std::nullopt};
        table.add(std::move(context), now);
        break;
      }
      case 3:
        if (found == nullptr) break;
        table.take(*found, ContextTable::Gone::kDeleted);
        model.erase(known);
        ++deleted;
        break;
      case 4: {
        if (found == nullptr) break;
        const ContextLife life{std::chrono::milliseconds(1 + random() % 20000), random() % 2 == 0};
        table.extend(*found, life, now);
        known->second.begun = now;
        known->second.life = life;
        break;
      }
      case 5:
        if (found == nullptr) break;
        found->used = known->second.used = now;
        break;
      case 6: {
        const std::string after = random() % 2 == 0 ? "" : name;
        std::vector<std::string> names, right;
        const std::size_t most = 1 + random() % 20;
        table.visit(owner, after, [&](Context& context) {
          names.push_back(context.name);
          return names.size() < most;
        });
        for (const auto& [key, each] : model) {
          if (key.first == owner && key.second > after && right.size() < most) right.push_back(key.second);
        }
        ASSERT_EQ(names, right);
        break;
      }
      default: {
        std::set<std::pair<std::string, std::string>> ended, due;
        while (Context* const context = next_ended(table, now)) {
          ended.emplace(context->owner, context->name);
          table.take(*context, ContextTable::Gone::kExpired);
        }
        for (const auto& [key, each] : model) {
          if (each.end() <= now) due.insert(key);
        }
        ASSERT_EQ(ended, due);
        expired += due.size();
        for (const auto& key : due) model.erase(key);
      }
    }
    ASSERT_EQ(table.count(), model.size());
    ASSERT_EQ(table.check(), "");
  }
  std::uint64_t told_expired = 0, told_deleted = 0;
  for (const ContextTotals& of : table.totals()) {
    told_expired += of.expired;
    told_deleted += of.deleted;
  }
  EXPECT_EQ(told_expired, expired);
  EXPECT_EQ(told_deleted, deleted);
}

}  // namespace
}  // namespace kv
