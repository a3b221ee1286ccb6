// What nodes tell one another of their counts: the form, what is refused, and how the counts are put together.
#include "store/policy/combined_counts.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "client/hot/known_chains.h"
#include "store/policy/yield_policy.h"
#include "store/store.h"

namespace kv {
namespace {

using Counts = YieldTable::Counts;

double sum_of(const std::array<double, YieldTable::kAges>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

/// A node that has counted this much, evenly.
YieldCounts counts_of(double uses, double unit = 10, std::uint64_t clock = 0) {
  YieldCounts counts;
  counts.instance[0] = 1;
  counts.unit = unit;
  counts.clock = clock;
  counts.classes.resize(YieldTable::kSilentClasses);
  for (Counts& each : counts.classes) {
    each.hits.fill(uses / (YieldTable::kSilentClasses * YieldTable::kAges));
    each.time.fill(100);
  }
  return counts;
}

YieldCounts random_counts(std::mt19937_64& random, std::size_t class_count) {
  YieldCounts counts;
  for (std::uint8_t& byte : counts.instance) byte = static_cast<std::uint8_t>(random());
  counts.unit = 1 + static_cast<double>(random() % 1000);
  counts.clock = random();
  counts.classes.resize(class_count);
  for (Counts& each : counts.classes) {
    const std::size_t first = random() % YieldTable::kAges, end = first + random() % (YieldTable::kAges - first);
    for (std::size_t age = first; age < end; ++age) {
      each.hits[age] = static_cast<double>(random() % 64) / 4;
      each.time[age] = static_cast<double>(random() % 100'000);
    }
  }
  return counts;
}

TEST(YieldCountsTest, WhatIsWrittenIsReadAgain) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const YieldCounts counts = random_counts(random, random() % (YieldTable::kClassCount + 1));
    const auto read = read_yield_counts(write_yield_counts(counts));
    ASSERT_TRUE(read) << read.error().text;
    EXPECT_EQ(read->instance, counts.instance);
    EXPECT_EQ(read->unit, counts.unit);
    EXPECT_EQ(read->clock, counts.clock);
    for (std::size_t i = 0; i < counts.classes.size(); ++i) {
      const Counts of = i < read->classes.size() ? read->classes[i] : Counts{};
      EXPECT_EQ(of.hits, counts.classes[i].hits) << i;
      EXPECT_EQ(of.time, counts.classes[i].time) << i;
    }
  }
}

TEST(YieldCountsTest, TheFormStays) {
  YieldCounts counts;
  for (std::size_t i = 0; i < counts.instance.size(); ++i) counts.instance[i] = static_cast<std::uint8_t>(i);
  counts.unit = 156.25;
  counts.clock = 123456789;
  counts.classes.resize(7);
  counts.classes[0].hits[3] = 2.5;
  counts.classes[0].time[3] = 1000;
  counts.classes[0].time[5] = 17;
  counts.classes[6].hits[YieldTable::kAges - 1] = 1;
  std::ifstream file(std::string(KV_GOLDEN_DIR) + "/yield_counts.bin", std::ios::binary);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(write_yield_counts(counts), golden);
  EXPECT_TRUE(read_yield_counts(golden));
}

// -- the file

TEST(LearnedTest, TheFormStays) {
  std::ifstream file(std::string(KV_GOLDEN_DIR) + "/learned.bin", std::ios::binary);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  const auto read = read_learned(golden);
  ASSERT_TRUE(read) << read.error().text;
  EXPECT_EQ(read->unit, 156.25);
  EXPECT_EQ(read->classes.at(0).time[3], 1000);
  EXPECT_EQ(write_learned(*read), golden);
}

TEST(LearnedTest, WhatIsDamagedAnywhereIsRefused) {
  std::mt19937_64 random(4);
  const std::string good = write_learned(random_counts(random, YieldTable::kClassCount));
  ASSERT_TRUE(read_learned(good));
  EXPECT_LE(good.size(), kLearnedBytesMax);
  for (std::size_t at = 0; at < good.size(); at += 1 + random() % 50) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    const auto read = read_learned(bad);
    ASSERT_FALSE(read) << at;
    EXPECT_EQ(read.error(), Errc::kBadRequest);
    EXPECT_FALSE(read_learned(good.substr(0, at))) << at;
  }
  EXPECT_FALSE(read_learned(good + '\0'));
  EXPECT_FALSE(read_learned(write_yield_counts(counts_of(100))));
  std::string next = good;
  next[4] = 2;
  EXPECT_NE(read_learned(next).error().text.find("format 2"), std::string::npos);
  const auto nonsense = read_learned(write_learned(counts_of(kYieldUsesMax * 1.01)));
  ASSERT_FALSE(nonsense) << "a right checksum is not enough";
  EXPECT_NE(nonsense.error().text.find("uses in all"), std::string::npos);
}

TEST(YieldCountsTest, NonsenseIsRefusedAndTheWordsSayWhat) {
  const std::string good = write_yield_counts(counts_of(100));
  ASSERT_TRUE(read_yield_counts(good));
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(read_yield_counts(good.substr(0, size))) << size;
  EXPECT_FALSE(read_yield_counts(good + "x"));
  EXPECT_FALSE(read_yield_counts(std::string(kYieldCountsBytesMax + 1, 'K')));
  const auto refused = [](YieldCounts counts, const char* word) {
    const auto read = read_yield_counts(write_yield_counts(counts));
    ASSERT_FALSE(read) << word;
    EXPECT_EQ(read.error(), Errc::kBadRequest);
    EXPECT_NE(read.error().text.find(word), std::string::npos) << read.error().text;
  };
  for (const double unit : std::to_array<double>({0, 0.5, -1, NAN, HUGE_VAL, 2 * kYieldUnitMax}))
    refused(counts_of(100, unit), "unit");
  for (const double bad : std::to_array<double>({NAN, HUGE_VAL, 2 * kYieldUsesMax})) {
    YieldCounts counts = counts_of(100);
    counts.classes[3].hits[7] = bad;
    refused(counts, "class 3, age 7");
    counts = counts_of(100);
    counts.classes[3].time[7] = bad * kYieldTimeMax;
    refused(counts, "class 3, age 7");
  }
  YieldCounts negative = counts_of(100);
  negative.classes[3].time[7] = -1;  // between others, so that it is written
  refused(negative, "class 3, age 7");
  refused(counts_of(kYieldUsesMax * 1.01), "uses in all");
}

/// Whatever it is made of, it is refused or within bounds.
TEST(YieldCountsTest, RandomBytesDoNoHarm) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = write_yield_counts(random_counts(random, random() % 8));
    for (std::uint64_t n = random() % 8; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto read = read_yield_counts(bytes);
    if (!read) continue;
    EXPECT_LE(read->uses(), kYieldUsesMax);
    EXPECT_LE(read->classes.size(), YieldTable::kClassCount);
    for (const Counts& each : read->classes)
      for (const double time : each.time) EXPECT_TRUE(time >= 0 && time <= kYieldTimeMax);
  }
}

TEST(CombinedCountsTest, ConvertedCountsKeepTheirUsesAndTheirTime) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    const YieldCounts counts = random_counts(random, 1);
    const double blocks = std::exp2(static_cast<double>(random() % 9) - 4);
    const double own_unit = 1 + static_cast<double>(random() % 1000);
    const Counts converted = convert(counts.classes[0], counts.unit, blocks, own_unit);
    EXPECT_NEAR(sum_of(converted.hits), sum_of(counts.classes[0].hits), 1e-6);
    EXPECT_NEAR(sum_of(converted.time), blocks * sum_of(counts.classes[0].time), 1e-3);
  }
}

/// The age that a use is counted at is that age on the other node, too, to within the width of a bucket.
TEST(CombinedCountsTest, ConvertedAgesAreTheSameMoments) {
  Counts counts;
  counts.hits[20] = 1;  // 10,230 to 14,471 blocks there
  for (const double blocks : {0.25, 1.0, 4.0}) {
    for (const double own_unit : {2.5, 10.0, 40.0}) {
      const Counts converted = convert(counts, 10, blocks, own_unit);
      YieldTable table;
      table.set_unit(own_unit);
      for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) {
        if (converted.hits[age] == 0) continue;
        EXPECT_LT(table.edge(age), 14'482 * blocks * 1.19) << blocks << " " << own_unit;
        EXPECT_GT(table.edge(age + 1), 10'230 * blocks / 1.19) << blocks << " " << own_unit;
      }
    }
  }
}

TEST(CombinedCountsTest, EqualNodesAreAddedUp) {
  CombinedCounts nodes;
  const YieldCounts own = counts_of(1000);
  EXPECT_EQ(nodes.combine(own, TimePoint{1s}), nullptr) << "nobody has told anything";
  nodes.hear("a", counts_of(1000), 0, TimePoint{1s});
  nodes.hear("b", counts_of(2000), 0, TimePoint{1s});
  nodes.hear("empty", counts_of(0), 0, TimePoint{1s});
  const auto combined = nodes.combine(own, TimePoint{1s});
  ASSERT_NE(combined, nullptr);
  double uses = 0;
  for (const Counts& each : *combined) uses += sum_of(each.hits);
  EXPECT_NEAR(uses, 3000, 1e-6);
  EXPECT_NEAR((*combined)[4].time[5], 200, 1e-9);
  nodes.hear("a", counts_of(1000), 0, TimePoint{2s});  // told again: instead of what it said before
  EXPECT_NEAR(sum_of((*nodes.combine(own, TimePoint{2s}))[0].hits) * YieldTable::kSilentClasses, 3000, 1e-6);
  nodes.keep_only({"a", "c"});
  EXPECT_EQ(nodes.peers(TimePoint{2s}).size(), 1u);
}

TEST(CombinedCountsTest, NoNodeWeighsMoreThanTwiceTheMedian) {  // invariant 1
  CombinedCounts nodes;
  const YieldCounts own = counts_of(10'000);
  const auto share_of = [&](const char* name) {
    double weighed = own.uses(), of = 0;
    for (const CombinedCounts::Peer& peer : nodes.peers(TimePoint{1s})) {
      weighed += peer.uses * peer.weight;
      if (peer.name == name) of = peer.uses * peer.weight;
    }
    return of / weighed;
  };
  nodes.hear("liar", counts_of(kYieldUsesMax * 0.99), 0, TimePoint{1s});
  ASSERT_NE(nodes.combine(own, TimePoint{1s}), nullptr);
  EXPECT_NEAR(share_of("liar"), 2.0 / 3, 1e-3) << "of two: twice this one's own";
  for (const char* name : {"a", "b"}) nodes.hear(name, counts_of(10'000), 0, TimePoint{1s});
  ASSERT_NE(nodes.combine(own, TimePoint{1s}), nullptr);
  EXPECT_NEAR(share_of("liar"), 0.4, 1e-3);
}

/// A few uses in no time, at ages at which there are hardly any: by their number alone they would be heard.
TEST(CombinedCountsTest, NoNodeDecidesAloneWhatHappensAtAnAge) {  // invariant 1
  CombinedCounts nodes;
  YieldCounts honest = counts_of(10'000), liar = counts_of(10'000);
  honest.classes[9].hits[30] = 10;
  honest.classes[9].time[30] = 1e6;
  liar.classes[9].hits[30] = 2000;
  liar.classes[9].time[30] = 1;
  nodes.hear("a", honest, 0, TimePoint{1s});
  nodes.hear("liar", liar, 0, TimePoint{1s});
  EXPECT_NEAR((*nodes.combine(honest, TimePoint{1s}))[9].hits[30], 10 + 40, 1e-6);
  liar.classes[9].hits[30] = 1;
  liar.classes[9].time[30] = 1e15;
  nodes.hear("liar", liar, 0, TimePoint{1s});
  EXPECT_NEAR((*nodes.combine(honest, TimePoint{1s}))[9].time[30], 5e6, 1);
}

/// What a node values blocks at, with all that is combined and its own counts.
YieldTable table_of(const YieldCounts& own, const YieldTable::Combined& combined) {
  auto all = std::make_shared<std::vector<Counts>>(*combined);
  all->resize(YieldTable::kSilentClasses);
  for (std::size_t i = 0; i < own.classes.size(); ++i) (*all)[i].add(own.classes[i]);
  YieldTable table;
  table.set_unit(own.unit);
  table.set_combined(all);
  while (!table.learn_step()) {
  }
  return table;
}

/// Three nodes see the same load, and a fourth tells whatever it is allowed to. Of an age at which each honest one has
/// counted h uses in time t, all together learn from at most 7 h in 3 t, or 3 h in 7 t: a factor of 7 / 3.
TEST(CombinedCountsTest, ALiarShiftsWhatBlocksAreWorthByABoundedFactor) {  // invariant 1
  const char* const given = std::getenv("KV_SEED");
  const std::uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto number = [&](double from, double to) { return std::uniform_real_distribution(from, to)(random); };
  double up = 1, down = 1;
  for (int round = 0; round < 4; ++round) {
    // Some classes are worth a hundred times as much as others; each node has counted the same to a few per cent.
    YieldCounts truth;
    truth.unit = 10;
    truth.classes.resize(YieldTable::kSilentClasses);
    for (Counts& each : truth.classes) {
      const double rate = std::exp2(-number(4, 11)), fading = number(0, 0.2);
      for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) {
        each.time[age] = number(50'000, 100'000);
        each.hits[age] = each.time[age] * rate * std::exp2(-fading * age);
      }
    }
    const auto honest = [&](std::uint8_t name) {
      YieldCounts counts = truth;
      counts.instance[0] = name;
      for (Counts& each : counts.classes)
        for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) each.hits[age] *= number(0.95, 1.05);
      return counts;
    };
    const YieldCounts own = honest(1), a = honest(2), b = honest(3);
    YieldCounts liar = truth;
    liar.instance[0] = 4;
    liar.unit = random() % 2 == 0 ? 10 : number(1, 1000);
    liar.clock = random() % 1'000'000;
    const auto kind = random() % 5;
    const double loud = std::exp2(number(0, 12));
    for (Counts& each : liar.classes) {
      const bool is_chosen = random() % 3 == 0;
      for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) {
        double &hits = each.hits[age], &time = each.time[age];
        if (kind == 0 && is_chosen) hits *= loud;
        if (kind == 1 && is_chosen) time *= loud * loud;
        if (kind == 2) hits = is_chosen ? hits * loud : 0;
        if (kind == 3 && is_chosen) time = 0;
        if (kind == 4) hits = number(0, 100), time = number(0, 1) * std::exp2(number(0, 40));
      }
    }
    const double loudest = std::min(1.0, kYieldUsesMax / 1.01 / liar.uses());
    for (Counts& each : liar.classes)
      for (double& hits : each.hits) hits *= loudest;
    auto told = read_yield_counts(write_yield_counts(liar));
    ASSERT_TRUE(told) << "what is refused does no harm: " << told.error().text;
    CombinedCounts nodes;
    nodes.hear("a", a, 0, TimePoint{1s});
    nodes.hear("b", b, 0, TimePoint{1s});
    const YieldTable without = table_of(own, nodes.combine(own, TimePoint{1s}));
    nodes.hear("liar", std::move(*told), 0, TimePoint{1s});
    const YieldTable with = table_of(own, nodes.combine(own, TimePoint{1s}));
    for (std::uint32_t i = 0; i < YieldTable::kSilentClasses; ++i) {
      for (std::uint64_t age = 1; age < 1'000'000; age *= 4) {
        const double ratio = with.yield(i, age) / without.yield(i, age);
        up = std::max(up, ratio);
        down = std::min(down, ratio);
      }
    }
  }
  EXPECT_LE(up, 3);
  EXPECT_GE(down, 1 / 3.0);
}

TEST(CombinedCountsTest, ANewcomerHearsOthersAtOnce) {  // invariant 1
  CombinedCounts nodes;
  nodes.hear("old", counts_of(100'000), 0, TimePoint{1s});
  ASSERT_NE(nodes.combine(counts_of(0), TimePoint{1s}), nullptr);
  EXPECT_NEAR(nodes.peers(TimePoint{1s})[0].weight * 100'000, CombinedCounts::kUsesFree, 1);
}

TEST(CombinedCountsTest, WhoIsSilentCountsLessAndLess) {  // invariant 2
  CombinedCounts nodes;
  const YieldCounts own = counts_of(1000);
  const TimePoint told{1s};
  nodes.hear("a", counts_of(1000), 0, told);
  const auto weight_at = [&](Duration age) {
    static_cast<void>(nodes.combine(own, told + age));
    return nodes.peers(told + age)[0].weight;
  };
  EXPECT_EQ(weight_at(0s), 1);
  EXPECT_EQ(weight_at(CombinedCounts::kFresh), 1);
  EXPECT_NEAR(weight_at(CombinedCounts::kFresh + CombinedCounts::kHalfLife), 0.5, 1e-9);
  EXPECT_GT(weight_at(CombinedCounts::kGone - 1ns), 0);
  EXPECT_EQ(weight_at(CombinedCounts::kGone), 0);
  EXPECT_EQ(nodes.combine(own, told + CombinedCounts::kGone), nullptr);
  nodes.hear("a", counts_of(1000), 0, told + 2h);
  EXPECT_EQ(weight_at(2h), 1);
}

TEST(CombinedCountsTest, AgesAreConvertedByHowFarTheClocksGoOn) {  // invariant 3
  CombinedCounts nodes;
  const YieldCounts own = counts_of(1000, 10);
  YieldCounts other = counts_of(0, 10, 5000);
  other.classes[0].hits[20] = 100;
  const auto age_of = [&] {
    const auto combined = nodes.combine(own, TimePoint{1s});
    double sum = 0;
    for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) sum += age * (*combined)[0].hits[age];
    return sum / 100;
  };
  nodes.hear("a", other, 1'000'000, TimePoint{1s});
  EXPECT_NEAR(age_of(), 20, 1e-9) << "as long as nothing is known: by the caches' sizes, which are equal";
  other.clock += 10'000;
  nodes.hear("a", other, 1'040'000, TimePoint{1s});
  EXPECT_NEAR(age_of(), 24, 0.1) << "four blocks here for each there: two octaves";
  other.clock = 0;  // it has started anew
  nodes.hear("a", other, 1'050'000, TimePoint{1s});
  EXPECT_NEAR(age_of(), 20, 1e-9);
}

TEST(CombinedCountsTest, NoMoreThanSoManyNodesAreKept) {
  CombinedCounts nodes;
  for (std::size_t i = 0; i < CombinedCounts::kPeersMax + 10; ++i)
    nodes.hear(std::to_string(i), counts_of(10), 0, TimePoint{1s});
  EXPECT_EQ(nodes.peers(TimePoint{1s}).size(), CombinedCounts::kPeersMax);
}

/// The smallest and largest values that read_yield_counts lets through, in any mixture.
TEST(YieldTableTest, WhateverOthersTellValuesAreNumbers) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  constexpr std::array<double, 6> kUses = {0, 1e-45, 1e-30, 1, 8, 1e9}, kTimes = {0, 1e-45, 1e-30, 1, 1e12, 1e18};
  for (int round = 0; round < 200; ++round) {
    auto told = std::make_shared<std::vector<Counts>>(YieldTable::kClassCount);
    for (Counts& each : *told) {
      for (double& hits : each.hits) hits = random() % 4 == 0 ? kUses[random() % kUses.size()] : 0;
      for (double& time : each.time) time = random() % 4 == 0 ? kTimes[random() % kTimes.size()] : 0;
    }
    (*told)[0].hits[0] = 1000;  // enough to be learned from
    (*told)[0].time[0] = kTimes[random() % kTimes.size()];
    YieldTable table;
    table.set_unit(static_cast<double>(1 + random() % 1000));
    table.use_hints();
    table.set_combined(told);
    while (!table.learn_step()) {
    }
    ASSERT_TRUE(table.knows());
    for (std::uint32_t i = 0; i < YieldTable::kClassCount; ++i) {
      for (const std::uint64_t age : {0, 10, 1000, 1'000'000}) {
        const double yield = table.yield(i, age), chance = table.chance(i, age, 1000);
        ASSERT_TRUE(yield >= 0 && yield <= 1e6) << "class " << i << ", age " << age << ": " << yield;
        ASSERT_TRUE(chance >= 0 && chance <= 1) << "class " << i << ", age " << age << ": " << chance;
      }
    }
  }
}

// -- the policy

TEST(CombinedPolicyTest, ANodeThatHasSeenNothingDecidesByWhatOthersCounted) {
  YieldPolicy policy(1);
  policy.set_capacity(1000);
  EXPECT_FALSE(policy.refuses());
  YieldCounts others = counts_of(4000, policy.table()->unit());
  policy.set_combined(std::make_shared<std::vector<Counts>>(others.classes));
  const std::uint32_t before = policy.version();
  for (int i = 0; i < 100; ++i) policy.learn();
  EXPECT_TRUE(policy.refuses());
  EXPECT_NE(policy.version(), before);
}

TEST(CombinedPolicyTest, WhatComesDuringALessonIsLearnedInTheNext) {
  YieldPolicy policy(1);
  policy.set_capacity(1000);
  const auto combined = [&](double uses) {
    return std::make_shared<std::vector<Counts>>(counts_of(uses, policy.table()->unit()).classes);
  };
  policy.set_combined(combined(4000));
  policy.learn();
  policy.learn();  // it has begun
  policy.set_combined(combined(40'000));
  for (int i = 0; i < 100; ++i) policy.learn();
  const double then = policy.worth(5, 0);
  policy.set_combined(combined(40'000));
  for (int i = 0; i < 100; ++i) policy.learn();
  EXPECT_EQ(policy.worth(5, 0), then);
}

/// `auto` on a node of a static list that nobody told of the others.
TEST(CombinedPolicyTest, OneOfSeveralThatLearnsAloneIsLruIfItIsToBe) {
  for (const bool falls_back : {false, true}) {
    YieldPolicy policy(1, falls_back);
    policy.set_capacity(1000);
    const auto combined = std::make_shared<std::vector<Counts>>(counts_of(4000, policy.table()->unit()).classes);
    std::vector<BlockHash> hashes(8);
    for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i].bytes[0] = static_cast<std::byte>(i + 1);
    policy.set_combined(combined);
    for (int i = 0; i < 100; ++i) policy.learn();
    policy.set_combined(nullptr);  // from here on it is as if it had learned alone
    EXPECT_TRUE(policy.refuses());
    EvictionPolicy::Request part{.tree = TreeId{0}, .hashes = hashes, .found_count = 0, .block_size = 16};
    part.chain = {.block_count = 32, .first = 0, .last = 31};
    const std::uint32_t before = policy.version();
    for (int i = 0; i < 64; ++i) policy.asked(part);
    EXPECT_EQ(policy.refuses(), !falls_back);
    EXPECT_EQ(policy.version() != before, falls_back);
    policy.set_combined(combined);
    EXPECT_TRUE(policy.refuses()) << "they learn together now";
    part.chain = {};
    policy.set_combined(nullptr);
    for (int i = 0; i < 64; ++i) policy.asked(part);
    EXPECT_TRUE(policy.refuses()) << "whole chains: it stands alone";
  }
}

/// A client looks where a chain lay before, and puts it where it belongs: that it is not found here is no reason to
/// take LRU for better.
TEST(CombinedPolicyTest, WhatBelongsElsewhereIsNotMissedHere) {
  for (const bool is_elsewhere : {false, true}) {
    StoreConfig config;
    config.arena = {.capacity_bytes = 1 << 20, .granule_bytes = 4096, .huge_pages = false, .touch = false};
    config.policy = PolicyKind::kYield;
    auto store = Store::create(config).value();
    const auto record =
        NamespaceRecord::from_fields({{"model", "m"}, {"block_size", "16"}, {"block_bytes", "4096"}}).value();
    const SpaceId space = store->open(record).value();
    std::vector<BlockHash> chain(16);
    for (std::size_t i = 0; i < chain.size(); ++i) chain[i].bytes[0] = static_cast<std::byte>(i + 1);
    for (int i = 0; i < 20; ++i) {
      const TimePoint now{std::chrono::seconds(i + 1)};
      ASSERT_TRUE(store->match(space, chain, {.is_elsewhere = is_elsewhere}, now));
      while (store->learn()) {
      }
    }
    double uses = 0;
    for (std::uint32_t i = 0; i < YieldTable::kSilentClasses; ++i)
      for (const double hits : store->yield_table()->counts(i).hits) uses += hits;
    EXPECT_EQ(uses > 0, !is_elsewhere) << uses;
  }
}

TEST(ChainPartTest, TellsHowMuchOfTheWholeIsNew) {
  const ChainPart whole;
  EXPECT_EQ(whole.new_blocks(3, 10), 7u);
  EXPECT_EQ(whole.after_last(10), 0u);
  // Every fourth block of 40, from the second on: 1, 5, ... 37.
  const ChainPart striped{.block_count = 40, .first = 1, .last = 37};
  EXPECT_TRUE(striped.fits(10));
  EXPECT_EQ(striped.new_blocks(0, 10), 39u);
  EXPECT_EQ(striped.new_blocks(10, 10), 2u);
  EXPECT_NEAR(static_cast<double>(striped.new_blocks(5, 10)), 21, 2);
  EXPECT_EQ(striped.after_last(10), 1u) << "its last block is not the chain's";
  ChainPart told = striped;
  told.known = 33;
  EXPECT_EQ(told.new_blocks(0, 10), 7u);
  // An extent in the middle.
  const ChainPart extent{.block_count = 40, .first = 10, .last = 19};
  EXPECT_EQ(extent.new_blocks(4, 10), 26u);
  EXPECT_EQ(extent.new_blocks(10, 10), 20u);
  EXPECT_EQ(extent.after_last(10), 20u);
  for (const ChainPart& bad :
       {ChainPart{.block_count = 40, .first = 10, .last = 18}, ChainPart{.block_count = 19, .first = 10, .last = 19},
        ChainPart{.block_count = 40, .first = 20, .last = 10},
        ChainPart{.block_count = 40, .first = 10, .last = 19, .known = 41}}) {
    EXPECT_FALSE(bad.fits(10));
  }
}

TEST(KnownChainsTest, APutIsToldWhatItsMatchFound) {
  std::vector<BlockHash> chain(20);
  for (std::size_t i = 0; i < chain.size(); ++i) chain[i].bytes[0] = static_cast<std::byte>(i + 1);
  const std::span<const BlockHash> all(chain);
  KnownChains known;
  EXPECT_FALSE(known.of(all));
  known.matched(all.first(10), 4);
  EXPECT_EQ(known.of(all.first(10)), 4u);
  EXPECT_EQ(known.of(all), 4u) << "longer by what was computed";
  EXPECT_FALSE(known.of(all.first(4))) << "without news";
  known.matched(all.first(10), 10);
  EXPECT_EQ(known.of(all), 10u) << "the later of two";
  known.matched(all, 15);
  EXPECT_EQ(known.of(all), 15u);
  for (std::size_t i = 0; i < KnownChains::kEntriesMax; ++i) {
    std::vector<BlockHash> other(1);
    other[0].bytes[1] = std::byte{1};
    std::memcpy(other[0].bytes.data() + 8, &i, sizeof i);
    known.matched(other, 0);
  }
  EXPECT_FALSE(known.of(all)) << "the oldest go";
}

}  // namespace
}  // namespace kv
