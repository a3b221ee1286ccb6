#include "store/policy/reuse_shadow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <random>
#include <string>

#include "store/policy/hint_trust.h"
#include "store/policy/yield_table.h"
#include "store_fixture.h"

namespace kv {
namespace {

/// So few entries that each of them is counted with each use: then all time is in the table at once.
TEST(ReuseShadowTest, CountsUsesAndTimeAsAListOfAllUsesDoes) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::size_t kEntries = 16;
  YieldTable table;
  table.set_unit(3);
  HintTrust trust;
  ReuseShadow shadow(table, trust);
  shadow.resize(kEntries, 5);
  struct Entry {
    std::uint64_t name;
    std::uint32_t used_at, uses, of_class;
  };
  std::list<Entry> model;         // the latest first
  std::deque<std::uint64_t> lru;  // the names that LRU would have
  YieldTable expected;
  expected.set_unit(3);
  std::uint32_t now = 0;
  for (int i = 0; i < 20'000; ++i) {
    now += static_cast<std::uint32_t>(random() % 5);
    const std::uint64_t name = (random() % 40) * 0x9E3779B97F4A7C15;
    const ReuseShadow::Kind how{.is_last = random() % 4 == 0,
                                .is_alone = random() % 7 == 0,
                                .new_class = static_cast<std::uint8_t>(random() % 5),
                                .hint = static_cast<ReuseHint>(random() % (kReuseHintMax + 1)),
                                .believed = static_cast<ReuseHint>(random() % (kReuseHintMax + 1)),
                                .tenant = static_cast<std::uint8_t>(random() % HintTrust::kTenants)};
    const bool is_use = random() % 3 != 0;
    const auto found = std::find_if(model.begin(), model.end(), [&](const Entry& each) { return each.name == name; });
    const bool is_known = found != model.end();
    if (is_use || found == model.end()) {
      Entry entry{name, now, 0, 0};
      if (found != model.end()) {
        expected.add_use(found->of_class, now - found->used_at);
        expected.add_time(found->of_class, 0, now - found->used_at);
        entry.uses = found->uses;
        model.erase(found);
      }
      entry.uses = std::min(entry.uses + 1, 255u);
      entry.of_class = YieldTable::class_of(how.is_last, how.is_alone ? 1 : entry.uses, how.new_class, how.believed);
      model.push_front(entry);
      if (model.size() > kEntries) {
        expected.add_time(model.back().of_class, 0, now - model.back().used_at);
        model.pop_back();
      }
    }
    if (is_use) {
      const auto place = std::find(lru.begin(), lru.end(), name);
      ASSERT_EQ(shadow.asked(name, now, how), place != lru.end()) << i;
    } else {
      shadow.stored(name, now, how);
    }
    if (is_use || !is_known) {
      std::erase(lru, name);
      lru.push_front(name);
      if (lru.size() > 5) lru.pop_back();
    }
  }
  shadow.asked(1, now, {});  // everything is counted up to now
  if (model.size() == kEntries) {
    expected.add_time(model.back().of_class, 0, now - model.back().used_at);
    model.pop_back();
  }
  for (const Entry& each : model) expected.add_time(each.of_class, 0, now - each.used_at);
  for (std::uint32_t of_class = 0; of_class < YieldTable::kClassCount; ++of_class) {
    for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) {
      ASSERT_EQ(table.counts(of_class).hits[age], expected.counts(of_class).hits[age]) << of_class << " " << age;
      ASSERT_NEAR(table.counts(of_class).time[age], expected.counts(of_class).time[age],
                  1e-6 + 1e-9 * expected.counts(of_class).time[age])
          << of_class << " " << age;
    }
  }
}

TEST(ReuseShadowTest, HoldsAsManyAsItHasRoomForAndFindsEach) {
  YieldTable table;
  HintTrust trust;
  ReuseShadow shadow(table, trust);
  shadow.resize(1000, 1000);
  for (std::uint64_t round = 0; round < 5; ++round)
    for (std::uint64_t name = 1; name <= 1000; ++name)
      shadow.asked(name << 50 | name, static_cast<std::uint32_t>(round * 1000 + name), {});
  double uses = 0;
  for (std::uint32_t of_class = 0; of_class < YieldTable::kClassCount; ++of_class)
    for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) uses += table.counts(of_class).hits[age];
  EXPECT_EQ(uses, 4000) << "names that share all slots of the table but few bits";
}

}  // namespace
}  // namespace kv
