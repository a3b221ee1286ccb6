#include "store/policy/yield_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace kv {
namespace {

constexpr double kPriorUses = 8;
constexpr double kKnownUses = 16;  ///< Fewer uses, over all classes, are inconclusive.
/// Uses per block of time. Real rates stay far below; another node's report may claim uses in next to no time.
constexpr double kRateMax = 1e6;

constexpr double kAgeBlocksMax = 1e18;  ///< Of an age.
constexpr double kSameAge = 0.25;       ///< Octaves: half a bucket. Closer units count as equal.

/// The prior ratio of a class's rate to that of blocks with one use.
double belief(std::uint32_t uses) { return uses == 0 ? 0.1 : static_cast<double>(1u << (uses - 1)); }

/// The first age of bucket `age`, in units.
double bucket_edge(std::uint32_t age) {
  static const auto edges = [] {
    std::array<double, YieldTable::kAges + 1> made{};
    for (std::uint32_t i = 0; i < made.size(); ++i) made[i] = std::exp2(i / 2.0) - 1;
    return made;
  }();
  return edges[age];
}

bool is_nothing(const YieldTable::Counts& counts) {
  const auto is_none = [](double value) { return value <= 0; };
  return std::ranges::all_of(counts.time, is_none) && std::ranges::all_of(counts.hits, is_none);
}

}  // namespace

void YieldTable::set_edges(double unit) {
  unit_ = unit;
  units_a_block_ = 1 / unit;
  for (std::uint32_t i = 0; i <= kAges; ++i) edges_[i] = unit * (std::exp2(i / 2.0) - 1);
}

void YieldTable::set_unit(double unit) {
  set_edges(unit);
  counts_ = {};
  before_ = {};
  combined_ = nullptr;  // in another unit
  *values_ = *next_ = {};
  coarse_ = {};
  likelier_ = {};
  step_ = 0;
  is_known_ = false;
}

/// Values are per block, so only their places in the table change.
void YieldTable::change_unit(double unit) {
  if (unit == unit_) return;
  std::array<std::uint32_t, kAges> old_ages;
  for (std::uint32_t age = 0; age < kAges; ++age) {
    const double middle = unit * (std::exp2((age + 0.5) / 2) - 1);
    old_ages[age] = bucket(static_cast<std::uint64_t>(std::min(middle, kAgeBlocksMax)));
  }
  for (std::uint32_t of_class = 0; of_class < class_count(); ++of_class) {
    Counts& counts = counts_[of_class];
    if (!is_nothing(counts)) counts = convert(counts, unit_, 1, unit);
    for (std::uint32_t age = 0; age < kAges; ++age) {
      next_->yields[of_class][age] = values_->yields[of_class][old_ages[age]];
      next_->rates[of_class][age] = values_->rates[of_class][old_ages[age]];
    }
  }
  std::swap(values_, next_);
  combined_ = nullptr;  // in another unit
  step_ = 0;
  set_edges(unit);
  convert_before();
}

void YieldTable::set_before(double unit, std::vector<Counts> counts, double weight) {
  counts.resize(std::min<std::size_t>(counts.size(), kClassCount));
  if (counts.size() > kSilentClasses) use_hints();
  before_ = {.unit = unit, .weight = weight, .counts = std::move(counts), .here = {}};
  convert_before();
}

void YieldTable::convert_before() {
  before_.here.resize(before_.counts.size());
  for (std::size_t i = 0; i < before_.counts.size(); ++i)
    before_.here[i] = is_nothing(before_.counts[i]) ? Counts{} : convert(before_.counts[i], before_.unit, 1, unit_);
}

YieldTable::Counts YieldTable::with_before(std::uint32_t of_class) const {
  Counts all = counts_[of_class];
  if (of_class < before_.here.size()) all.add(before_.here[of_class], before_.weight);
  return all;
}

/// Half octaves from the number's own bits: a logarithm would take most of the learning time.
std::uint32_t YieldTable::bucket(std::uint64_t age) const {
  const auto blocks = static_cast<double>(age);
  const auto bits = std::bit_cast<std::uint64_t>(1 + blocks * units_a_block_);
  constexpr std::uint64_t kFraction = (std::uint64_t{1} << 52) - 1;
  constexpr std::uint64_t kHalf = std::bit_cast<std::uint64_t>(std::numbers::sqrt2) & kFraction;
  const auto octave = static_cast<std::uint32_t>(bits >> 52) - 1023;
  auto bucket = std::min(2 * octave + ((bits & kFraction) >= kHalf ? 1 : 0), kAges - 1);
  while (bucket + 1 < kAges && blocks >= edges_[bucket + 1]) ++bucket;  // sums and edges are rounded
  while (bucket > 0 && blocks < edges_[bucket]) --bucket;
  return bucket;
}

std::uint64_t YieldTable::next_step(std::uint64_t age) const {
  const std::uint32_t now = bucket(age);
  if (now == kAges - 1) return ~std::uint64_t{0};
  return std::max(age + 1, static_cast<std::uint64_t>(std::ceil(edges_[now + 1])));
}

std::uint32_t YieldTable::add_time(std::uint32_t of_class, std::uint64_t from, std::uint64_t to,
                                   std::uint32_t in_bucket) {
  const auto begin = static_cast<double>(from), end = static_cast<double>(to);
  std::uint32_t i = in_bucket;
  for (; i < kAges && edges_[i] < end; ++i)
    counts_[of_class].time[i] += std::max(0.0, std::min(edges_[i + 1], end) - std::max(edges_[i], begin));
  return i < kAges && edges_[i] <= end ? i : std::max(i, 1u) - 1;
}

void YieldTable::forget(double factor) {
  for (std::uint32_t of_class = 0; of_class < class_count(); ++of_class) {  // the others have zero counts
    for (double& hits : counts_[of_class].hits) hits *= factor;
    for (double& time : counts_[of_class].time) time *= factor;
  }
  combined_weight_ *= factor;
  before_.weight *= factor;
}

YieldTable::Counts YieldTable::all_of(std::uint32_t of_class) const {
  Counts all = with_before(of_class);
  if (combined_ != nullptr && of_class < combined_->size()) all.add((*combined_)[of_class], combined_weight_);
  return all;
}

YieldTable::Counts convert(const YieldTable::Counts& counts, double unit, double blocks, double own_unit) {
  YieldTable::Counts converted;
  if (std::abs(std::log2(unit * blocks / own_unit)) < kSameAge) {
    converted.hits = counts.hits;
    for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) converted.time[age] = counts.time[age] * blocks;
    return converted;
  }
  std::uint32_t to = 0;
  for (std::uint32_t age = 0; age < YieldTable::kAges; ++age) {
    const double begin = bucket_edge(age) * unit * blocks, end = bucket_edge(age + 1) * unit * blocks;
    while (to + 1 < YieldTable::kAges && bucket_edge(to + 1) * own_unit <= begin) ++to;
    for (std::uint32_t at = to; at < YieldTable::kAges; ++at) {
      const bool is_last = at + 1 == YieldTable::kAges;
      const double from = std::max(begin, bucket_edge(at) * own_unit);
      const double until = is_last ? end : std::min(end, bucket_edge(at + 1) * own_unit);
      if (until <= from) break;
      const double part = (until - from) / (end - begin);
      converted.hits[at] += counts.hits[age] * part;
      converted.time[at] += counts.time[age] * blocks * part;
    }
  }
  return converted;
}

bool YieldTable::learn_step() {
  if (step_ == 0) {
    learn_base();
    if (!is_known_) return true;
  } else if (step_ <= kUseClasses) {
    learn_coarse(step_ - 1);
  } else {
    const std::uint32_t hint_class = (step_ - 1 - kUseClasses) / kSilentClasses;
    const std::uint32_t silent = (step_ - 1 - kUseClasses) % kSilentClasses;
    if (silent == 0) learn_hint(hint_class);
    learn_class(hint_class, silent);
  }
  if (++step_ <= kUseClasses + class_count()) return false;
  step_ = 0;
  std::swap(values_, next_);
  return true;
}

double YieldTable::chance(std::uint32_t of_class, std::uint64_t age, std::uint64_t blocks) const {
  double expected = 0, at = static_cast<double>(age);
  const double end = at + static_cast<double>(blocks);
  for (std::uint32_t i = bucket(age); i < kAges && at < end; ++i) {
    const double until = i + 1 < kAges ? std::min(end, edges_[i + 1]) : end;
    expected += static_cast<double>(values_->rates[of_class][i]) * std::max(0.0, until - at);
    at = until;
  }
  return 1 - std::exp(-expected);
}

void YieldTable::learn_base() {
  Counts sums;  // of time: weighted as blocks with one use
  for (std::uint32_t of_class = 0; of_class < class_count(); ++of_class) {
    const Counts counts = all_of(of_class);
    const double likelier = belief(of_class % kSilentClasses / kNewClasses);
    for (std::uint32_t age = 0; age < kAges; ++age) {
      sums.hits[age] += counts.hits[age];
      sums.time[age] += counts.time[age] * likelier;
    }
  }
  double all = 0;
  for (std::uint32_t age = 0; age < kAges; ++age) {
    const double hits = sums.hits[age], time = sums.time[age];
    all += hits;
    // Ages without samples so far: as the age before, falling with the age.
    const double before = age == 0 ? 0 : base_[age - 1] / std::sqrt(2.0);
    base_[age] = before > 0 ? (hits + 2) / (time + 2 / before) : hits > 0 && time > 0 ? hits / time : 0;
    base_[age] = std::min(base_[age], kRateMax);
  }
  is_known_ = all >= kKnownUses;
}

double YieldTable::rate_of(const Counts& counts, std::uint32_t age, double prior) {
  const double hits = counts.hits[age], time = counts.time[age];
  if (prior > 0) return std::min((hits + kPriorUses) / (time + kPriorUses / prior), kRateMax);
  return time > 0 ? std::min(hits / time, kRateMax) : 0;
}

/// The prior of classes that differ only by their hint: those with so many uses.
void YieldTable::learn_coarse(std::uint32_t uses) {
  std::array<Counts, kNewClasses> of_new{};
  Counts of_uses;
  for (std::uint32_t news = 0; news < kNewClasses; ++news) {
    for (std::uint32_t hint_class = 0; hint_class < hint_classes_; ++hint_class) {
      of_new[news].add(all_of(hint_class * kSilentClasses + uses * kNewClasses + news));
    }
    of_uses.add(of_new[news]);
  }
  for (std::uint32_t age = 0; age < kAges; ++age) {
    const double of_all = rate_of(of_uses, age, base_[age] * belief(uses));
    for (std::uint32_t news = 0; news < kNewClasses; ++news) {
      // Without hints there is no coarser class in between.
      coarse_[uses * kNewClasses + news][age] = hint_classes_ == 1 ? of_all : rate_of(of_new[news], age, of_all);
    }
  }
}

/// The ratio of the rates of blocks with a hint to similar blocks: over all, and by uses.
void YieldTable::learn_hint(std::uint32_t hint_class) {
  for (std::uint32_t age = 0; age < kAges; ++age) {
    std::array<double, kUseClasses> hits{}, expected{};
    double all_hits = 0, all_expected = 0;
    for (std::uint32_t silent = 0; silent < kSilentClasses; ++silent) {
      const Counts counts = all_of(hint_class * kSilentClasses + silent);
      hits[silent / kNewClasses] += counts.hits[age];
      expected[silent / kNewClasses] += counts.time[age] * coarse_[silent][age];
      all_hits += counts.hits[age];
      all_expected += counts.time[age] * coarse_[silent][age];
    }
    const double of_all = (all_hits + kPriorUses) / (all_expected + kPriorUses);
    for (std::uint32_t uses = 0; uses < kUseClasses; ++uses) {
      likelier_[uses][age] = (hits[uses] + kPriorUses) / (expected[uses] + kPriorUses / of_all);
    }
  }
}

void YieldTable::learn_class(std::uint32_t hint_class, std::uint32_t silent) {
  const std::uint32_t of_class = hint_class * kSilentClasses + silent;
  const Counts counts = all_of(of_class);
  // Per bucket: the chance to pass through it unused, and the expected time in it.
  std::array<double, kAges> survives, lasts;
  for (std::uint32_t age = 0; age < kAges; ++age) {
    const double prior = coarse_[silent][age] * (hint_classes_ == 1 ? 1 : likelier_[silent / kNewClasses][age]);
    const double rate = rate_of(counts, age, prior);
    next_->rates[of_class][age] = static_cast<float>(rate);
    const double width = edges_[age + 1] - edges_[age];
    survives[age] = std::exp(-rate * width);
    // Below that, 1 - survives is inexact.
    lasts[age] = rate * width > 1e-9 ? (1 - survives[age]) / rate : width;
  }
  for (std::uint32_t age = 0; age < kAges; ++age) {
    double alive = 1, time = 0, used_best = 0, time_best = 1;  // fractions are compared without dividing
    for (std::uint32_t horizon = age; horizon < kAges; ++horizon) {
      time += alive * lasts[horizon];
      alive *= survives[horizon];
      if ((1 - alive) * time_best <= used_best * time) continue;
      used_best = 1 - alive;
      time_best = time;
    }
    next_->yields[of_class][age] = used_best / time_best;
  }
}

}  // namespace kv
