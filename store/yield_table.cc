#include "store/yield_table.h"

#include <algorithm>
#include <cmath>

namespace kv {
namespace {

constexpr double kPriorUses = 8;
constexpr double kKnownUses = 16;  ///< Fewer uses than these, over all classes, say nothing.

/// How much likelier a class is taken to be used than blocks with one use, before anything is known of it.
double belief(std::uint32_t uses) { return uses == 0 ? 0.1 : static_cast<double>(1u << (uses - 1)); }

}  // namespace

void YieldTable::set_unit(double unit) {
  unit_ = unit;
  for (std::uint32_t i = 0; i <= kAges; ++i) edges_[i] = unit * (std::exp2(i / 2.0) - 1);
  counts_ = {};
  yields_ = next_ = rates_ = next_rates_ = {};
  step_ = 0;
  is_known_ = false;
}

std::uint32_t YieldTable::bucket(std::uint64_t age) const {
  const auto blocks = static_cast<double>(age);
  auto bucket = std::min(static_cast<std::uint32_t>(2 * std::log2(1 + blocks / unit_)), kAges - 1);
  while (bucket + 1 < kAges && blocks >= edges_[bucket + 1]) ++bucket;  // the logarithm is not exact
  while (bucket > 0 && blocks < edges_[bucket]) --bucket;
  return bucket;
}

std::uint64_t YieldTable::next_step(std::uint64_t age) const {
  const std::uint32_t now = bucket(age);
  if (now == kAges - 1) return ~std::uint64_t{0};
  return std::max(age + 1, static_cast<std::uint64_t>(std::ceil(edges_[now + 1])));
}

void YieldTable::add_time(std::uint32_t of_class, std::uint64_t from, std::uint64_t to) {
  const auto begin = static_cast<double>(from), end = static_cast<double>(to);
  for (std::uint32_t i = bucket(from); i < kAges && edges_[i] < end; ++i)
    counts_[of_class].time[i] += std::max(0.0, std::min(edges_[i + 1], end) - std::max(edges_[i], begin));
}

void YieldTable::forget(double factor) {
  for (Counts& counts : counts_) {
    for (double& hits : counts.hits) hits *= factor;
    for (double& time : counts.time) time *= factor;
  }
}

bool YieldTable::learn_step() {
  if (step_ == 0) {
    learn_base();
    if (!is_known_) return true;
  } else {
    learn_uses(step_ - 1);
  }
  if (++step_ < kLearnSteps) return false;
  step_ = 0;
  yields_ = next_;
  rates_ = next_rates_;
  return true;
}

double YieldTable::chance(std::uint32_t of_class, std::uint64_t age, std::uint64_t blocks) const {
  double expected = 0, at = static_cast<double>(age);
  const double end = at + static_cast<double>(blocks);
  for (std::uint32_t i = bucket(age); i < kAges && at < end; ++i) {
    const double until = i + 1 < kAges ? std::min(end, edges_[i + 1]) : end;
    expected += rates_[of_class][i] * std::max(0.0, until - at);
    at = until;
  }
  return 1 - std::exp(-expected);
}

void YieldTable::learn_base() {
  double all = 0;
  for (std::uint32_t age = 0; age < kAges; ++age) {
    double hits = 0, time = 0;
    for (std::uint32_t of_class = 0; of_class < kClassCount; ++of_class) {
      hits += counts_[of_class].hits[age];
      time += counts_[of_class].time[age] * belief(of_class / kNewClasses);
    }
    all += hits;
    // At ages that nobody has reached yet: as at the age before, falling with the age.
    const double before = age == 0 ? 0 : base_[age - 1] / std::sqrt(2.0);
    base_[age] = before > 0 ? (hits + 2) / (time + 2 / before) : hits > 0 && time > 0 ? hits / time : 0;
  }
  is_known_ = all >= kKnownUses;
}

void YieldTable::learn_uses(std::uint32_t uses) {
  std::array<double, kAges> coarse;
  for (std::uint32_t age = 0; age < kAges; ++age) {
    double hits = 0, time = 0;
    for (std::uint32_t news = 0; news < kNewClasses; ++news) {
      hits += counts_[uses * kNewClasses + news].hits[age];
      time += counts_[uses * kNewClasses + news].time[age];
    }
    const double prior = base_[age] * belief(uses);
    coarse[age] = prior > 0 ? (hits + kPriorUses) / (time + kPriorUses / prior) : time > 0 ? hits / time : 0;
  }
  for (std::uint32_t of_class = uses * kNewClasses; of_class < (uses + 1) * kNewClasses; ++of_class) {
    // Of a bucket: the chance to get through it unused, and how long one is in it.
    std::array<double, kAges> survives, lasts;
    for (std::uint32_t age = 0; age < kAges; ++age) {
      const Counts& counts = counts_[of_class];
      const double rate = coarse[age] > 0
                              ? (counts.hits[age] + kPriorUses) / (counts.time[age] + kPriorUses / coarse[age])
                          : counts.time[age] > 0 ? counts.hits[age] / counts.time[age]
                                                 : 0;
      next_rates_[of_class][age] = rate;
      const double width = edges_[age + 1] - edges_[age];
      survives[age] = std::exp(-rate * width);
      lasts[age] = rate > 0 ? (1 - survives[age]) / rate : width;
    }
    for (std::uint32_t age = 0; age < kAges; ++age) {
      double alive = 1, time = 0, best = 0;
      for (std::uint32_t horizon = age; horizon < kAges; ++horizon) {
        time += alive * lasts[horizon];
        alive *= survives[horizon];
        best = std::max(best, (1 - alive) / time);
      }
      next_[of_class][age] = best;
    }
  }
}

}  // namespace kv
