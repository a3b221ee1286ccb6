#include "store/policy/yield_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "store_fixture.h"
#include "yield_counts.h"

namespace kv {
namespace {

void learn(YieldTable& table) {
  for (std::uint32_t i = 0; !table.learn_step(); ++i) ASSERT_LT(i, 2 * YieldTable::kClassCount);
}

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

}  // namespace
}  // namespace kv
