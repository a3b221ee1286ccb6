// The parts of expected yield, each against a plain model; and whole policies in a Store.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "store/age_clock.h"
#include "store/eviction_policy.h"
#include "store/ghost_table.h"
#include "store/name_sample.h"
#include "store/reuse_shadow.h"
#include "store/yield_policy.h"
#include "store/yield_table.h"
#include "store_fixture.h"

namespace kv {
namespace {

void learn(YieldTable& table) {
  for (std::uint32_t i = 0; !table.learn_step(); ++i) ASSERT_LT(i, 2 * YieldTable::kClassCount);
}

// -- the table

TEST(YieldTableTest, ClassesAreByUsesAndByWhatWasNew) {
  EXPECT_EQ(YieldTable::class_of(true, 9, 2), 2u);
  EXPECT_EQ(YieldTable::class_of(false, 1, 0), 5u);
  EXPECT_EQ(YieldTable::class_of(false, 2, 0), 10u);
  EXPECT_EQ(YieldTable::class_of(false, 3, 4), 14u);
  EXPECT_EQ(YieldTable::class_of(false, 4, 0), 15u);
  EXPECT_EQ(YieldTable::class_of(false, 31, 0), 25u);
  EXPECT_EQ(YieldTable::class_of(false, 32, 0), 30u);
  EXPECT_EQ(YieldTable::class_of(false, 255, 4), YieldTable::kSilentClasses - 1);
  EXPECT_EQ(YieldTable::class_of(true, 1, 0, ReuseHint::kFinal), YieldTable::kSilentClasses);
  EXPECT_EQ(YieldTable::class_of(false, 255, 4, ReuseHint::kLater), YieldTable::kClassCount - 1);
  EXPECT_EQ(YieldTable::new_class_of(0), 0u);
  EXPECT_EQ(YieldTable::new_class_of(512), 0u);
  EXPECT_EQ(YieldTable::new_class_of(513), 1u);
  EXPECT_EQ(YieldTable::new_class_of(3584), 2u);
  EXPECT_EQ(YieldTable::new_class_of(16384), 3u);
  EXPECT_EQ(YieldTable::new_class_of(16385), 4u);
}

TEST(YieldTableTest, EachAgeIsInTheBucketThatItsStepsLeadTo) {
  YieldTable table;
  table.set_unit(10);
  for (std::uint64_t age = 0; age < 1'000'000; age = table.next_step(age)) {
    const std::uint32_t bucket = table.bucket(age);
    if (bucket + 1 < YieldTable::kAges) {
      EXPECT_EQ(table.bucket(table.next_step(age)), bucket + 1) << age;
      EXPECT_EQ(table.bucket(table.next_step(age) - 1), bucket) << age;
    }
  }
  EXPECT_EQ(table.bucket(~std::uint64_t{0}), YieldTable::kAges - 1);
}

TEST(YieldTableTest, AnAgesBucketIsTheOneBetweenWhoseEdgesItLies) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    YieldTable table;
    table.set_unit(static_cast<double>(1 + random() % 100'000) / static_cast<double>(1 + random() % 64));
    for (int i = 0; i < 500; ++i) {
      std::uint64_t age = random() >> random() % 64;
      if (i % 2 == 0) {  // at an edge
        const double edge = table.edge(static_cast<std::uint32_t>(random() % YieldTable::kAges));
        age = static_cast<std::uint64_t>(edge) + random() % 3;
      }
      std::uint32_t bucket = 0;
      while (bucket + 1 < YieldTable::kAges && static_cast<double>(age) >= table.edge(bucket + 1)) ++bucket;
      ASSERT_EQ(table.bucket(age), bucket) << table.unit() << " " << age;
    }
  }
}

TEST(YieldTableTest, TimeIsSharedOutOverTheBucketsThatItCrosses) {
  YieldTable table;
  table.set_unit(7);
  table.add_time(3, 5, 400);
  double sum = 0;
  for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) {
    const double begin = std::max(5.0, table.edge(age)), end = std::min(400.0, table.edge(age + 1));
    EXPECT_NEAR(table.counts(3).time[age], std::max(0.0, end - begin), 1e-9) << age;
    sum += table.counts(3).time[age];
  }
  EXPECT_NEAR(sum, 395, 1e-9);
}

/// With one rate for all ages, any horizon promises that rate.
TEST(YieldTableTest, OfASteadyRateIsTheRate) {
  YieldTable table;
  table.set_unit(10);
  table.use_hints();
  for (std::uint32_t of_class = 0; of_class < YieldTable::kClassCount; ++of_class) {
    for (std::uint32_t age = 0; age < 20; ++age) {
      const auto from = static_cast<std::uint64_t>(std::ceil(table.edge(age)));
      for (int i = 0; i < 400; ++i) table.add_use(of_class, from);
      for (int i = 0; i < 400; ++i) {
        table.add_time(of_class, static_cast<std::uint64_t>(table.edge(age)),
                       static_cast<std::uint64_t>(table.edge(age)) + 100);
      }
    }
  }
  // The time above is not evenly spread, but the rate is looked at where it is: ask for bounds only.
  learn(table);
  ASSERT_TRUE(table.knows());
  for (std::uint32_t of_class = 0; of_class < YieldTable::kClassCount; ++of_class) {
    EXPECT_GT(table.yield(of_class, 0), 0);
    EXPECT_GE(table.yield(of_class, 0), table.yield(of_class, 1'000'000));
  }
}

/// A class that is used after a pause is worth keeping through it, and one that is never used is worth less at once:
/// the rate of the moment, none in both, would not tell.
TEST(YieldTableTest, WhatComesBackAfterAPauseIsKeptThroughIt) {
  YieldTable table;
  table.set_unit(10);
  const std::uint32_t comes_back = YieldTable::class_of(false, 2, 1), never = YieldTable::class_of(false, 1, 3);
  for (int i = 0; i < 1000; ++i) {
    table.add_time(comes_back, 0, 500);
    table.add_use(comes_back, 500);
    table.add_time(never, 0, 2000);
  }
  learn(table);
  ASSERT_TRUE(table.knows());
  for (const std::uint64_t age : {0, 50, 200, 400})
    EXPECT_GT(table.yield(comes_back, age), 4 * table.yield(never, age)) << age;
  EXPECT_GT(table.yield(comes_back, 400), table.yield(comes_back, 0)) << "its use is near";
  EXPECT_LT(table.yield(comes_back, 4000), table.yield(comes_back, 0)) << "its time is over";
}

/// Of a hint little is known yet in the class of the block: others with the hint say that it is not used again.
TEST(YieldTableTest, WhatAHintIsWorthIsKnownFromOtherClassesWithIt) {
  YieldTable table;
  table.set_unit(10);
  table.use_hints();
  const auto of = [](std::uint32_t new_class, ReuseHint hint) {
    return YieldTable::class_of(false, 1, new_class, hint);
  };
  for (int i = 0; i < 500; ++i) {
    for (const std::uint32_t new_class : {0u, 1u}) {
      table.add_time(of(new_class, ReuseHint::kNone), 0, 300);
      table.add_use(of(new_class, ReuseHint::kNone), 300);
    }
    table.add_time(of(0, ReuseHint::kFinal), 0, 3000);
    table.add_time(of(0, ReuseHint::kWithin60s), 0, 30);
    table.add_use(of(0, ReuseHint::kWithin60s), 30);
  }
  learn(table);
  const double silent = table.yield(of(1, ReuseHint::kNone), 0);
  EXPECT_LT(table.yield(of(1, ReuseHint::kFinal), 0), silent / 2);
  EXPECT_GT(table.yield(of(1, ReuseHint::kWithin60s), 0), silent * 2);
  EXPECT_NEAR(table.yield(of(1, ReuseHint::kLater), 0), silent, silent / 2) << "nobody has said it";
}

/// A table with uses and times of its own, and what they say in force.
void fill(YieldTable& table, std::mt19937_64& random) {
  for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses;
       of_class += 1 + static_cast<std::uint32_t>(random() % 3)) {
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t age = random() % (std::uint64_t{1} << (random() % 18));
      table.add_use(of_class, age);
      table.add_time(of_class, 0, age + random() % 1000);
    }
  }
  learn(table);
}

double sum_of(const YieldTable::Counts& counts, bool of_time) {
  double sum = 0;
  for (const double each : of_time ? counts.time : counts.hits) sum += each;
  return sum;
}

TEST(YieldTableTest, AnotherUnitKeepsWhatWasCountedAndWhatIsInForce) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  YieldTable table, old;
  for (YieldTable* each : {&table, &old}) {
    std::mt19937_64 same(seed + 1);
    each->set_unit(4);
    fill(*each, same);
  }
  ASSERT_TRUE(table.knows());
  double unit = 4;
  for (const double times : std::to_array<double>({2, 2, 8, 0.5, 3})) {
    unit *= times;
    table.change_unit(unit);
    EXPECT_EQ(table.unit(), unit);
    EXPECT_TRUE(table.knows());
    for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class)
      for (const bool of_time : {false, true})
        EXPECT_NEAR(sum_of(table.counts(of_class), of_time), sum_of(old.counts(of_class), of_time),
                    1e-9 * (1 + sum_of(old.counts(of_class), of_time)));
  }
  // Uses stay at about their ages: half an octave of the larger unit, and one for each time that they were moved.
  YieldTable one;
  one.set_unit(4);
  one.add_use(7, 10'000);
  one.change_unit(16);
  for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) {
    if (one.counts(7).hits[age] == 0) continue;
    EXPECT_LT(one.edge(age), 10'000 * 1.5);
    EXPECT_GT(one.edge(age + 1), 10'000 / 1.5);
  }
  // In force is what was, at the middle of each bucket, until the next lesson.
  YieldTable moved;
  moved.set_unit(4);
  std::mt19937_64 same(seed + 1);
  fill(moved, same);
  moved.change_unit(64);
  for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class) {
    for (std::uint32_t bucket = 0; bucket + 1 < YieldTable::kAges - 10; ++bucket) {
      const auto begin = static_cast<std::uint64_t>(std::ceil(moved.edge(bucket)));
      const auto middle = static_cast<std::uint64_t>(64 * (std::exp2((bucket + 0.5) / 2) - 1));
      EXPECT_EQ(moved.yield(of_class, begin), old.yield(of_class, middle)) << of_class << " " << bucket;
    }
  }
}

TEST(YieldTableTest, WhatWasCountedBeforeIsLearnedFromUntilItIsForgotten) {
  std::mt19937_64 random(3);
  YieldTable first, second;
  first.set_unit(100);
  fill(first, random);
  std::vector<YieldTable::Counts> counts;
  for (std::uint32_t of_class = 0; of_class < first.class_count(); ++of_class) counts.push_back(first.counts(of_class));
  // At the start little finds room yet; the unit grows with what does.
  second.set_unit(4);
  second.set_before(100, counts, 1);
  for (const double unit : std::to_array<double>({8, 30, 100})) second.change_unit(unit);
  EXPECT_FALSE(second.knows());
  learn(second);
  EXPECT_TRUE(second.knows());
  for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class) {
    for (std::uint64_t age = 0; age < 1'000'000; age = first.next_step(age))
      EXPECT_DOUBLE_EQ(second.yield(of_class, age), first.yield(of_class, age)) << of_class << " " << age;
    EXPECT_EQ(sum_of(second.counts(of_class), false), 0) << "what this life has counted is told apart";
    EXPECT_EQ(second.with_before(of_class).hits, counts[of_class].hits);
  }
  second.forget(0.25);
  double uses = 0, uses_before = 0;
  for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class) {
    uses += sum_of(second.with_before(of_class), false);
    uses_before += sum_of(counts[of_class], false);
  }
  EXPECT_GT(uses_before, 100);
  EXPECT_DOUBLE_EQ(uses, uses_before / 4);
}

TEST(YieldTableTest, SaysNothingBeforeItKnows) {
  YieldTable table;
  for (int i = 0; i < 10; ++i) table.add_use(7, 3);
  table.add_time(7, 0, 1000);
  learn(table);
  EXPECT_FALSE(table.knows());
  for (int i = 0; i < 10; ++i) table.add_use(7, 3);
  learn(table);
  EXPECT_TRUE(table.knows());
  table.set_unit(2);
  EXPECT_FALSE(table.knows()) << "another unit: all is forgotten";
}

// -- the shadow

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

// -- what left

TEST(GhostTableTest, RemembersDeparturesForAboutItsSize) {
  std::mt19937_64 random(7);
  GhostTable ghosts;
  EXPECT_EQ(ghosts.uses(1), 0) << "before it has a size";
  ghosts.resize(10'000);
  std::vector<std::uint64_t> names(40'000);
  for (std::uint64_t& name : names) name = random();
  for (std::size_t i = 0; i < names.size(); ++i) ghosts.add(names[i], static_cast<std::uint8_t>(1 + i % 40));
  const auto known = [&](std::size_t first, std::size_t count) {
    std::size_t found = 0;
    for (std::size_t i = first; i < first + count; ++i)
      found += ghosts.uses(names[i]) == std::min<std::size_t>(1 + i % 40, GhostTable::kUsesMax);
    return static_cast<double>(found) / static_cast<double>(count);
  };
  EXPECT_GT(known(35'000, 5'000), 0.97);
  EXPECT_LT(known(0, 10'000), 0.1);
  const std::uint8_t before = ghosts.uses(names.back());
  EXPECT_GT(before, 0);
  ghosts.remove(names.back());
  EXPECT_EQ(ghosts.uses(names.back()), 0);
  EXPECT_LE(ghosts.memory_bytes(), 10'000 * 2 + 64 * 2);
}

/// Each line is a queue of 32, and what was added last is known at once, though it is entered later.
TEST(GhostTableTest, KnowsWhatAListOfDeparturesKnows) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  GhostTable ghosts;
  constexpr std::size_t kLines = 3;
  ghosts.resize(kLines * 32);
  struct Entry {
    std::uint64_t print;
    std::uint8_t uses;
  };
  std::array<std::list<Entry>, kLines> model;
  const auto line_of = [](std::uint64_t name) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>((static_cast<Wide>(name) * kLines) >> 64);
  };
  std::vector<std::uint64_t> names(200);
  for (std::uint64_t& name : names) name = random() % 5 == 0 ? random() & ~std::uint64_t{0x7FF} : random();
  for (int i = 0; i < 50'000; ++i) {
    const std::uint64_t name = names[random() % names.size()];
    std::list<Entry>& line = model[line_of(name)];
    const auto is_it = [&](const Entry& each) { return each.uses > 0 && each.print == (name & 0x7FF); };
    if (random() % 8 != 0) {
      const auto uses = static_cast<std::uint8_t>(1 + random() % 40);
      ghosts.add(name, uses);
      line.push_front({name & 0x7FF, std::min(uses, GhostTable::kUsesMax)});
      if (line.size() > 32) line.pop_back();
    } else {
      const auto found = std::find_if(line.begin(), line.end(), is_it);
      // As long as some wait, those that they will push out may be known still.
      if (const std::uint8_t told = ghosts.uses(name); found != line.end()) {
        ASSERT_EQ(told, found->uses) << i;
      }
      if (random() % 2 == 0) ghosts.settle(random() % 3 == 0 ? random() % 20 : GhostTable::kWaitingMax);
      if (ghosts.waiting_count() > 0) continue;
      ASSERT_EQ(ghosts.uses(name), found == line.end() ? 0 : found->uses) << i;
      if (random() % 2 == 0) continue;
      ghosts.remove(name);
      if (found != line.end()) found->uses = 0;
    }
  }
}

// -- the clock

TEST(AgeClockTest, SaysHowManyBlocksCameSince) {
  AgeClock clock;
  clock.set_span(100'000);
  EXPECT_EQ(clock.used_at(Tick{5}), 0u);
  std::mt19937_64 random(3);
  std::map<std::uint64_t, std::uint64_t> exact;
  std::uint64_t tick = 1000;
  for (int i = 0; i < 50'000; ++i) {
    tick += 1 + random() % 1000;
    clock.advance(random() % 5, Tick{tick});
    exact[tick] = clock.count();
  }
  for (const auto& [at, count] : exact) {
    if (clock.count() - count > 90'000) continue;
    EXPECT_NEAR(static_cast<double>(clock.used_at(Tick{at})), static_cast<double>(count), 30) << at;
  }
  EXPECT_LE(clock.memory_bytes(), AgeClock::kMarksMax * 16);
}

TEST(AgeClockTest, AnswersAsASearchThroughAllMarksWould) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  AgeClock clock;
  clock.set_span(3 * AgeClock::kMarksMax);
  std::deque<std::pair<std::uint64_t, std::uint64_t>> marks;  // tick, count
  std::uint64_t tick = 1000, count = 0, asked = 1000;
  for (int i = 0; i < 40'000; ++i) {
    if (random() % 20 != 0) tick += random() % 100;
    const std::uint64_t blocks = random() % 6;
    clock.advance(blocks, Tick{tick});
    count += blocks;
    if (marks.empty() || (count - marks.back().second >= 3 && tick > marks.back().first))
      marks.emplace_back(tick, count);
    if (marks.size() > AgeClock::kMarksMax) marks.pop_front();
    // Near what was asked before, or anywhere.
    asked = random() % 3 == 0 ? random() % (tick + 200) : asked + random() % 60;
    std::uint64_t expected = marks.front().second;
    for (std::size_t k = 0; i % 50 == 0 && k < marks.size() && marks[k].first <= asked; ++k) {
      expected = marks[k].second;
      if (k + 1 == marks.size()) break;
      const double part =
          static_cast<double>(asked - marks[k].first) / static_cast<double>(marks[k + 1].first - marks[k].first);
      expected += static_cast<std::uint64_t>(part * static_cast<double>(marks[k + 1].second - marks[k].second));
    }
    const std::uint64_t answer = clock.used_at(Tick{asked});
    if (i % 50 == 0) {
      ASSERT_EQ(answer, expected) << i << " " << asked;
    }
  }
}

// -- the sample

TEST(NameSampleTest, FindsTheBlocksThatALookAtEachFinds) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  SampleLook::Positions positions;
  for (int round = 0; round < 2000; ++round) {
    // Runs of the sample's blocks and of others: of one in 32 hardly any group has two.
    const bool has_runs = round % 2 == 0;
    std::vector<BlockHash> hashes(random() % 8 == 0 ? SampleLook::kAtOnce - random() % 3 : random() % 40);
    const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << (random() % 18)) - 1);
    const NameSample sample{.mask = mask, .wanted = static_cast<std::uint32_t>(random()) & mask};
    std::vector<std::uint32_t> wanted;
    bool is_in = false;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      for (std::byte& byte : hashes[i].bytes) byte = static_cast<std::byte>(random());
      if (random() % 3 == 0) is_in = !is_in;
      if (has_runs && is_in) std::memcpy(hashes[i].bytes.data() + 16, &sample.wanted, sizeof sample.wanted);
      std::uint32_t word = 0;
      std::memcpy(&word, hashes[i].bytes.data() + 16, sizeof word);
      if (word % (std::uint64_t{mask} + 1) == sample.wanted) wanted.push_back(static_cast<std::uint32_t>(i));
    }
    const std::size_t count = SampleLook::find(sample, hashes, positions);
    const std::vector<std::uint32_t> found(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(count));
    ASSERT_EQ(found, wanted) << "one in " << mask + std::uint64_t{1} << " of " << hashes.size();
    SampledNames before;
    before.look(hashes);
    EXPECT_FALSE(before.fits(sample, hashes)) << "it did not know which";
    before.set(sample);
    EXPECT_FALSE(before.fits(sample, hashes)) << "not yet";
    before.look(hashes);
    EXPECT_TRUE(before.fits(sample, hashes));
    EXPECT_TRUE(std::ranges::equal(before.positions(), wanted));
    before.set(std::nullopt);
    EXPECT_TRUE(before.fits(sample, hashes)) << "of what was looked at";
    const PrintSample prints{.seed = random(),
                             .threshold = static_cast<std::uint32_t>(random() >> (32 + random() % 8))};
    EXPECT_FALSE(before.fits(prints, hashes));
    before.set(sample, prints);
    before.look(hashes);
    EXPECT_TRUE(before.fits(prints, hashes) && before.fits(sample, hashes));
    std::vector<std::uint32_t> by_print;
    for (std::size_t i = 0; i < hashes.size(); ++i)
      if (prints.has(hashes[i])) by_print.push_back(static_cast<std::uint32_t>(i));
    EXPECT_TRUE(std::ranges::equal(before.positions(), wanted));
    EXPECT_TRUE(std::ranges::equal(before.curve_positions(), by_print));
    EXPECT_FALSE(before.fits({.seed = prints.seed, .threshold = prints.threshold ^ 1}, hashes));
    if (hashes.empty()) continue;
    EXPECT_FALSE(before.fits(prints, std::span(hashes).first(hashes.size() - 1)));
    EXPECT_FALSE(before.fits(sample, std::span(hashes).first(hashes.size() - 1)));
    EXPECT_FALSE(before.fits({.mask = 2 * mask + 1, .wanted = sample.wanted}, hashes));
  }
}

// -- what is learned, and when

class DeferredLearningTest : public testing::Test {
 protected:
  static std::vector<BlockHash> chain(std::uint64_t session, std::size_t count) {
    std::vector<BlockHash> hashes(count);
    std::mt19937_64 words(session);
    for (BlockHash& hash : hashes) {
      for (std::size_t at = 0; at < hash.bytes.size(); at += 8) {
        const std::uint64_t word = words();
        std::memcpy(hash.bytes.data() + at, &word, sizeof word);
      }
    }
    return hashes;
  }
  static void tell(YieldPolicy& policy, const std::vector<BlockHash>& hashes, std::size_t found, std::uint64_t tick,
                   const SampledNames* sampled = nullptr) {
    EvictionPolicy::Request request{.tree = TreeId{0}, .hashes = hashes, .found_count = found, .block_size = 16};
    request.sampled = sampled;
    policy.asked(request);
    request.sampled = nullptr;
    policy.offered(request, {}, Tick{tick});
  }
  static void learn_all(YieldPolicy& policy) {
    while (policy.learn()) {
    }
  }
};

/// One policy learns after each request, the other in slices at random moments: in the end both know the same. Also if
/// memory grows and shrinks in between, and if the other is told which blocks are of the sample, or of an older one.
TEST_F(DeferredLearningTest, WhatIsLearnedDoesNotDependOnWhen) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  YieldPolicy at_once(3), later(3);
  at_once.set_capacity(2000);
  later.set_capacity(2000);
  SampledNames sampled;
  for (std::uint64_t i = 1; i <= 3000; ++i) {
    const auto hashes = chain(random() % (random() % 2 == 0 ? 40 : 4000), 1 + random() % 60);
    const std::size_t found = random() % (hashes.size() + 1);
    sampled.set(later.sample());
    sampled.look(hashes);
    if (i > 1000 && random() % 100 == 0) {  // both have something to keep
      const std::uint64_t capacity = std::uint64_t{1000} << (random() % 8);
      at_once.set_capacity(capacity);
      later.set_capacity(capacity);
    }
    tell(at_once, hashes, found, i);
    tell(later, hashes, found, i, random() % 2 == 0 ? &sampled : nullptr);
    learn_all(at_once);
    for (std::size_t slices = random() % 40 == 0 ? random() % 60 : 0; slices > 0; --slices) later.learn();
    if (i % 250 != 0) continue;
    learn_all(later);
    ASSERT_EQ(later.unlearned_uses(), 0u);
    ASSERT_EQ(at_once.version(), later.version()) << i;
    for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class) {
      for (std::uint64_t age = 0; age < 10'000; age += 1 + age / 2)
        ASSERT_EQ(at_once.worth(of_class, age), later.worth(of_class, age)) << i << " " << of_class << " " << age;
      for (std::uint32_t age = 0; age < YieldTable::kAges; ++age)
        ASSERT_EQ(at_once.table()->counts(of_class).hits[age], later.table()->counts(of_class).hits[age]) << i;
    }
  }
  EXPECT_TRUE(later.table()->knows()) << "something was learned";
}

TEST_F(DeferredLearningTest, WhatNobodyLearnsIsCountedAndTakesNoMoreRoom) {
  YieldPolicy policy(1);
  policy.set_capacity(1000);
  const std::uint32_t version = policy.version();
  for (std::uint64_t i = 0; i < 300; ++i) tell(policy, chain(i, 100), 0, i + 1);
  EXPECT_EQ(policy.unlearned_uses(), 300 * 200 - (1u << 14));
  EXPECT_EQ(policy.version(), version) << "no request learns";
  EXPECT_EQ(policy.table()->counts(5).time[0], 0);
  const std::size_t before = policy.memory_bytes();
  for (std::uint64_t i = 300; i < 600; ++i) tell(policy, chain(i, 100), 0, i + 1);
  EXPECT_LE(policy.memory_bytes(), before + 16 * AgeClock::kMarksMax);
  learn_all(policy);
  const std::uint64_t lost = policy.unlearned_uses();
  tell(policy, chain(1, 100), 0, 1000);
  EXPECT_EQ(policy.unlearned_uses(), lost) << "there is room again";
}

TEST_F(DeferredLearningTest, MoreMemoryForgetsNothingOfWhatWasCounted) {
  YieldPolicy policy(3);
  policy.set_capacity(2000);
  std::mt19937_64 random(9);
  const auto load = [&](std::uint64_t requests) {
    for (std::uint64_t i = 0; i < requests; ++i) {
      tell(policy, chain(random() % 30, 1 + random() % 60), 0, i + 1);
      learn_all(policy);
    }
  };
  const auto all_uses = [&] {
    double uses = 0;
    for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class)
      for (const double each : policy.table()->counts(of_class).hits) uses += each;
    return uses;
  };
  load(200);  // before the contest with LRU, which finds more than nothing
  ASSERT_TRUE(policy.refuses());
  const double before = all_uses();
  ASSERT_GT(before, 1000);
  const double worth = policy.worth(5, 100);
  for (const std::uint64_t capacity : std::to_array<std::uint64_t>({4000, 16'000})) {
    const std::uint32_t version = policy.version();
    policy.set_capacity(capacity);
    EXPECT_TRUE(policy.refuses()) << "as it was, until the next lesson";
    learn_all(policy);
    EXPECT_GT(policy.version(), version);
    EXPECT_NEAR(all_uses(), before, 1e-6 * before);
    EXPECT_GT(policy.worth(5, 100), worth / 2);
    EXPECT_LT(policy.worth(5, 100), worth * 2);
  }
  EXPECT_EQ(policy.table()->unit(), 250);
  load(10);
  EXPECT_GT(all_uses(), before) << "the new shadow counts";
}

TEST_F(DeferredLearningTest, WhatWasLearnedBeforeARestartIsInForceAtOnceAndGivesWay) {
  YieldPolicy policy(3);
  std::vector<YieldTable::Counts> before(YieldTable::kSilentClasses);
  for (YieldTable::Counts& each : before) {
    each.hits.fill(1e6);  // far more than a node can have counted since
    each.time.fill(1e9);
  }
  policy.set_before(31.25, before);
  EXPECT_FALSE(policy.refuses());
  policy.set_capacity(2000);  // waits for its turn, and is not lost
  learn_all(policy);
  EXPECT_TRUE(policy.refuses());
  EXPECT_EQ(policy.table()->unit(), 31.25);
  double uses = 0;
  for (std::uint32_t of_class = 0; of_class < YieldTable::kSilentClasses; ++of_class)
    for (const double each : policy.table()->with_before(of_class).hits) uses += each;
  EXPECT_NEAR(uses, 16'384, 1);
  EXPECT_GT(policy.worth(5, 0), 3e-4);  // it leans on what is believed before anything is known
  EXPECT_LT(policy.worth(5, 0), 2e-3);
  // Now blocks come back at once, all the time: 1,000 times as soon.
  for (std::uint64_t i = 0; i < 3000; ++i) {
    tell(policy, chain(i % 3, 20), 0, i + 1);
    learn_all(policy);
  }
  EXPECT_LT(sum_of(policy.table()->with_before(5), false) - sum_of(policy.table()->counts(5), false),
            0.8 * 16'384 / YieldTable::kSilentClasses);
}

/// What left went with all that was behind it; the search for where that ends looks at few of them.
TEST_F(DeferredLearningTest, KnownBlocksAreThoseUpToTheFirstThatIsNotRemembered) {
  std::mt19937_64 random(5);
  YieldPolicy policy(1);
  policy.set_capacity(1'000'000);
  std::size_t off = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto hashes = chain(i, 1 + random() % 3000);
    const std::size_t found = random() % 2 == 0 ? 0 : random() % (hashes.size() + 1);
    const std::size_t known = random() % 4 == 0 ? found : found + random() % (hashes.size() - found + 1);
    for (std::size_t k = known; k-- > found;) policy.left(TreeId{0}, hashes[k], {.use_count = 2});
    const std::size_t told =
        policy.known_count({.tree = TreeId{0}, .hashes = hashes, .found_count = found, .block_size = 16});
    EXPECT_GE(told, known) << i;
    off += told != known;
  }
  EXPECT_LE(off, 15u) << "one look-up in 64 finds another block's, where the search ends";
}

// -- whole policies

class PolicyTest : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 64;

  static std::vector<BlockHash> chain(std::uint64_t session, std::size_t first, std::size_t count) {
    std::vector<BlockHash> hashes(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t word = session * 1'000'003 + first + i + 1;
      for (std::byte& byte : hashes[i].bytes) {
        word = word * 6364136223846793005 + 1442695040888963407;
        byte = static_cast<std::byte>(word >> 56);
      }
    }
    return hashes;
  }

  struct Run {
    std::unique_ptr<Store> store;
    SpaceId space{};
    TimePoint now{std::chrono::seconds(1)};
    std::size_t hits = 0, references = 0;
  };
  static Run start(PolicyKind policy, std::size_t blocks) {
    StoreConfig config;
    config.policy = policy;
    config.hash_seed = 5;
    config.arena.capacity_bytes = blocks * kBytes;
    config.arena.granule_bytes = 4096;
    config.arena.touch = false;
    Run run;
    run.store = Store::create(config).value();
    run.space = run.store
                    ->open(NamespaceRecord::from_fields(
                               {{"model", "m"}, {"block_size", "512"}, {"block_bytes", std::to_string(kBytes)}})
                               .value())
                    .value();
    return run;
  }

  /// Looks a prompt up and stores what is missing.
  static Store::OfferPlan request(Run& run, std::span<const BlockHash> hashes) {
    run.now += std::chrono::milliseconds(1);
    run.hits += run.store->match(run.space, hashes, {}, run.now)->memory_block_count;
    run.references += hashes.size();
    auto plan = run.store->offer(run.space, hashes, {}, run.now).value();
    std::size_t staged = plan.staged.size();
    while (plan.again) {
      const auto more = run.store->offer_more(plan.put, run.now).value();
      staged += more.staged.size();
      plan.again = more.again;
      plan.refused_count = more.refused_count;
      plan.refused_why = more.refused_why;
    }
    const std::vector<std::uint64_t> sums(1, 0);
    for (std::size_t i = 0; i < staged; ++i) run.store->commit(plan.put, sums, run.now);
    if (plan.put != PutId{}) run.store->end_put(plan.put);
    while (run.store->learn()) {
    }
    return plan;
  }

  /// Sessions of six turns that come back after a while, and three times as many prompts that never do.
  static Run sessions_and_strangers(PolicyKind policy) {
    Run run = start(policy, 2048);
    std::deque<std::pair<std::uint64_t, std::size_t>> sessions;  // and their blocks so far
    std::uint64_t next = 0;
    for (int i = 0; i < 8000; ++i) {
      if (i % 4 != 0) {
        request(run, chain(1'000'000 + next++, 0, 12));
        continue;
      }
      if (sessions.size() < 70) sessions.emplace_back(next++, 2);
      auto [session, blocks] = sessions.front();
      sessions.pop_front();
      request(run, chain(session, 0, blocks));
      if (blocks < 12) sessions.emplace_back(session, blocks + 2);
    }
    EXPECT_EQ(run.store->check(), "");
    return run;
  }
};

TEST_F(PolicyTest, YieldKeepsWhatComesBackWhereLruKeepsWhatCameLast) {
  const Run lru = sessions_and_strangers(PolicyKind::kLru), yield = sessions_and_strangers(PolicyKind::kYield);
  EXPECT_LT(lru.hits * 50, lru.references);
  EXPECT_GT(yield.hits * 10, yield.references);
  EXPECT_EQ(lru.store->stats().not_admitted_blocks, 0u);
  EXPECT_GT(yield.store->stats().not_admitted_blocks, 0u);
  EXPECT_EQ(yield.store->stats().refused_blocks, 0u) << "that is for lack of memory";
}

TEST_F(PolicyTest, WhatIsNotAdmittedIsToldSo) {
  Run run = sessions_and_strangers(PolicyKind::kYield);
  const std::uint64_t before = run.store->stats().not_admitted_blocks;
  std::size_t refused = 0;
  for (std::uint64_t i = 0; i < 50; ++i) {
    const auto plan = request(run, chain(2'000'000 + i, 0, 12));
    refused += plan.refused_count;
    if (plan.refused_count > 0) {
      EXPECT_EQ(plan.refused_why, Errc::kNotAdmitted);
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(run.store->stats().not_admitted_blocks - before, refused);
}

TEST_F(PolicyTest, AnEmptyStoreTakesEverything) {
  for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kLfu, PolicyKind::kYield}) {
    Run run = start(policy, 512);
    for (std::uint64_t i = 0; i < 17; ++i) EXPECT_EQ(request(run, chain(i, 0, 30)).refused_count, 0u);
    EXPECT_EQ(run.store->stats().evicted_blocks, 0u);
  }
}

TEST_F(PolicyTest, MemoryStaysWithinSixteenBytesABlockAndFourMebibytes) {
  for (const std::uint64_t blocks : {1'000u, 100'000u, 3'000'000u}) {
    YieldPolicy policy(1);
    policy.set_capacity(blocks);
    const std::uint64_t per_block = sizeof(Usage);
    std::mt19937_64 random(1);
    for (int i = 0; i < 3000; ++i) {
      std::vector<BlockHash> hashes = chain(random(), 0, 100);
      policy.asked({.tree = TreeId{0},
                    .hashes = hashes,
                    .found_count = 0,
                    .block_size = 16,
                    .hint = static_cast<ReuseHint>(i % 7),
                    .tenant = random() % 1000});
      policy.offered({TreeId{0}, hashes, 0, 16}, {}, Tick{random() % 1000 + 1000 * static_cast<std::uint64_t>(i)});
      for (int k = 0; k < 4; ++k) policy.learn();
    }
    EXPECT_LE(policy.memory_bytes() + per_block * blocks, 16 * blocks + (4 << 20)) << blocks;
  }
}

}  // namespace
}  // namespace kv
