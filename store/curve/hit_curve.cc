#include "store/curve/hit_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::uint16_t kNone = ShadowBlock::kNone;
constexpr std::uint32_t kOneInMin = 32;    ///< A denser sample would cost more than it is worth.
constexpr std::size_t kStepsPerCall = 16;  ///< Of up to 1 us each.
constexpr std::size_t kLookedBackMax = 1024;
constexpr double kHalfLifeSeconds = 3600;
constexpr double kAgingSeconds = 225;
constexpr double kSure = 2.13;  ///< Standard errors; of 16 groups, 19 times in 20.
/// Allowance for the error of the small caches: where blocks of 16 tokens were sampled one in 100, they hit up to .008
/// more than the node, .003 on average (docs/cache-quality.md).
constexpr double kModel = 0.0075;
constexpr std::uint64_t kFar = ~std::uint64_t{0};
constexpr std::uint64_t kBlocksMax = std::uint64_t{1} << 29;  ///< Larger capacities count as this.

/// In a long run of heavy blocks these stand for those up to the next: all have the same uses except at the ends.
constexpr std::size_t next_heavy(std::size_t i) { return i + (i < 4 ? 1 : i < 16 ? 4 : i < 64 ? 16 : 64); }

}  // namespace

HitCurve::HitCurve(const HitCurveConfig& config, std::uint64_t seed, bool has_policy, bool has_disk)
    : config_(config),
      sample_{.seed = seed},
      blocks_(std::clamp<std::size_t>(config.block_count_max, 64, UseOrder::kEntriesMax)),
      places_(std::bit_ceil(2 * blocks_.size()), kNone),
      order_(blocks_.size()) {
  free_.reserve(blocks_.size());
  const std::size_t cache_count = !has_policy ? 0 : has_disk ? kCachesMax : 5;
  caches_.reserve(cache_count);
  for (std::size_t i = 0; i < cache_count; ++i) caches_.emplace_back(blocks_, seed + 2 * i);
  disk_blocks_ = has_disk ? 1 : 0;
  set_one_in(config_.one_in != 0 ? config_.one_in : kOneInMin);
  forget();
}

void HitCurve::set_one_in(std::uint32_t one_in) {
  one_in_ = std::max(one_in, 1u);
  sample_.take_one_in(one_in_);
  thinned_ = 0;
}

void HitCurve::forget() {
  for (std::uint16_t i = 0; i < blocks_.size(); ++i)
    if (blocks_[i].is_known) remove(i);
  free_.clear();
  for (std::size_t i = blocks_.size(); i-- > 0;) free_.push_back(static_cast<std::uint16_t>(i));
  events_.clear();
  next_event_ = 0;
  chain_.clear();
  is_ending_ = false;
  thinned_ = blocks_.size();
  counts_ = {};
  asked_ = found_memory_ = found_ = 0;
}

std::vector<HitCurve::Point> HitCurve::points() const {
  std::vector<Point> points;
  const auto add = [&](std::uint64_t blocks, double scale, bool has_disk) {
    points.push_back({.block_count = static_cast<std::uint64_t>(static_cast<double>(blocks) * scale),
                      .scale = scale,
                      .has_disk = has_disk,
                      .is_now = scale == 1,
                      .lru = {},
                      .policy = {}});
  };
  if (memory_blocks_ == 0) return points;
  for (const double scale : {0.25, 0.5, 1.0, 2.0, 4.0}) add(memory_blocks_, scale, false);
  if (disk_blocks_ == 0) return points;
  for (const double scale : {0.5, 1.0, 2.0}) add(memory_blocks_ + disk_blocks_, scale, true);
  return points;
}

void HitCurve::set_capacity(std::uint64_t memory_blocks, std::uint64_t disk_blocks) {
  memory_blocks = std::clamp<std::uint64_t>(memory_blocks, 16, kBlocksMax / 4);
  disk_blocks = disk_blocks_ == 0 ? 0 : std::clamp<std::uint64_t>(disk_blocks, 1, kBlocksMax / 2 - memory_blocks);
  if (memory_blocks == memory_blocks_ && disk_blocks == disk_blocks_) return;
  memory_blocks_ = memory_blocks;
  disk_blocks_ = disk_blocks;
  const auto of_points = points();
  for (std::size_t i = 0; i < caches_.size(); ++i) caches_[i].set_capacity(of_points[i].block_count);
  if (config_.one_in != 0) return;
  std::uint64_t depth = 0;
  for (const Point& point : of_points) depth = std::max(depth, point.block_count);
  const std::uint64_t room = blocks_.size() / 8 * 7;
  const auto one_in = static_cast<std::uint32_t>(std::max<std::uint64_t>(kOneInMin, (depth + room - 1) / room));
  if (one_in > one_in_) {
    set_one_in(one_in + one_in / 8);  // memory that fills up passes here in steps
  } else if (one_in < one_in_ / 2) {
    set_one_in(one_in);
    forget();
  }
}

std::uint64_t HitCurve::name_of(TreeId tree, const BlockHash& hash) const {
  return sample_.name_of(tree, hash) >> 32 << 32 | sample_.print(hash);
}

void HitCurve::asked(const EvictionPolicy::Request& request, std::size_t memory_count, std::uint16_t trait,
                     std::uint64_t clock, TimePoint now) {
  if (request.hashes.empty()) return;
  age(now);
  const std::size_t before = events_.size();
  add_events(request, trait, clock, true);
  const std::size_t waiting = events_.size() - next_event_;
  is_full_ = waiting > (is_full_ ? kEventsMax / 2 : kEventsMax);
  if (is_full_) {
    events_.resize(before);
    ++dropped_requests_;
    return;
  }
  asked_ += static_cast<double>(request.hashes.size());
  found_memory_ += static_cast<double>(memory_count);
  found_ += static_cast<double>(request.found_count);
}

void HitCurve::offered(const EvictionPolicy::Request& request, std::uint16_t trait, std::uint64_t clock) {
  if (is_full_ || request.found_count >= request.hashes.size()) return;
  const std::size_t before = events_.size();
  add_events(request, trait, clock, false);
  if (events_.size() - next_event_ > kEventsMax) events_.resize(before);
}

void HitCurve::add_events(const EvictionPolicy::Request& request, std::uint16_t trait, std::uint64_t clock,
                          bool is_use) {
  const std::size_t count = request.hashes.size(), before = events_.size();
  const auto name = [&](std::size_t i) { return name_of(request.tree, request.hashes[i]); };
  Event event{.name = 0, .at = static_cast<std::uint32_t>(clock)};
  event.trait = trait;
  event.is_use = is_use;
  event.is_alone = request.is_set;
  std::size_t i = 0;
  if (is_use) {
    const std::size_t heavy = request.is_set ? 0 : heavy_.ask(count, name);
    for (; i < heavy; i = next_heavy(i)) {
      event.name = name(i);
      event.counts = static_cast<std::uint16_t>(std::min(next_heavy(i), heavy) - i);
      event.holds = static_cast<std::uint8_t>(next_heavy(i) - i);
      event.passed = static_cast<std::uint8_t>(std::min<std::size_t>(request.passed(i), 255));
      events_.push_back(event);
    }
    i = heavy;
  } else {
    // Requested blocks are known. A new one needs the one before it.
    i = request.found_count;
    for (std::size_t back = i; !request.is_set && back > 0 && i - back < kLookedBackMax;) {
      if (!sample_.has(request.hashes[--back])) continue;
      event.name = name(back);
      event.is_parent = true;
      events_.push_back(std::exchange(event, Event{.name = 0, .at = event.at}));
      event.trait = trait;
      event.is_use = false;
      event.is_alone = request.is_set;
      break;
    }
  }
  event.counts = event.holds = 0;
  // More than kEventsMax never fit the queue. A partly queued request would count as a short one.
  const auto add = [&](std::span<const std::uint32_t> positions) {
    for (const std::uint32_t at : positions) {
      if (at < i) continue;  // heavy
      event.name = name(at);
      event.passed = static_cast<std::uint8_t>(std::min<std::size_t>(request.passed(at), 255));
      events_.push_back(event);
      if (events_.size() - before > kEventsMax) return false;
    }
    return true;
  };
  const auto* const looked_up =
      request.sampled == nullptr ? nullptr : request.sampled->find(SampledNames::kCurve, sample_, request.hashes);
  if (looked_up != nullptr) {
    add(*looked_up);
  } else {
    sample_.visit(request.hashes, i, add);
  }
  if (events_.size() - before > kEventsMax) return;
  if (events_.size() > before) events_.back().is_last = true;
}

bool HitCurve::learn(const EvictionPolicy& policy) {
  for (std::size_t steps = 0; steps < kStepsPerCall;) {
    if (is_ending_) {
      // Last to first, so that a block is newer than those behind it.
      for (; !chain_.empty() && steps < kStepsPerCall; ++steps) {
        ShadowBlock& block = blocks_[chain_.back()];
        order_.use(chain_.back(), block.weight);
        block.is_busy = false;
        chain_.pop_back();
      }
      if (!chain_.empty()) return true;
      is_ending_ = false;
    }
    if (chain_.empty() && thinned_ < blocks_.size()) {
      thin_out();
      return true;
    }
    if (next_event_ == events_.size()) break;
    const Event event = events_[next_event_++];
    if (chain_.empty()) {
      distance_ = 0;
      missed_ = refused_ = 0;
    }
    steps += look_at(event, policy);
    is_ending_ = event.is_last;
  }
  if (next_event_ == events_.size()) {
    events_.clear();
    next_event_ = 0;
  } else if (next_event_ >= kEventsMax / 2) {
    events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(next_event_));
    next_event_ = 0;
  }
  return !events_.empty() || is_ending_;
}

/// Removes blocks after the sample has become thinner.
void HitCurve::thin_out() {
  constexpr std::size_t kAtOnce = 64;
  for (std::size_t i = 0; i < kAtOnce && thinned_ < blocks_.size(); ++i, ++thinned_) {
    const auto block = static_cast<std::uint16_t>(thinned_);
    if (!blocks_[block].is_known || blocks_[block].is_heavy) continue;
    if (is_sampled(blocks_[block].name)) {
      set_weight(block, one_in_);
    } else {
      remove(block);
    }
  }
}

/// Returns the number of steps it took.
std::size_t HitCurve::look_at(const Event& event, const EvictionPolicy& policy) {
  if (event.counts == 0 && !is_sampled(event.name)) return 1;  // of the earlier sample
  std::uint16_t block = find(event.name);
  const bool is_known = block != kNone && !blocks_[block].is_busy;
  if (block != kNone && blocks_[block].is_busy) return 1;  // twice in one request
  if (event.is_use) count(event, block);
  if (!is_known) {
    if (event.is_parent) return 1;
    block = add(event.name);
    if (block == kNone) return 1;
  }
  std::size_t steps = 2;
  if (event.is_use || !is_known) steps += enter(event, block, policy);
  blocks_[block].is_busy = true;
  chain_.push_back(block);
  return steps;
}

void HitCurve::count(const Event& event, std::uint16_t block) {
  const bool is_heavy = event.counts > 0;
  const std::uint64_t distance = block == kNone ? kFar : order_.newer(block);
  distance_ = event.is_alone ? distance : std::max(distance_, distance);
  std::uint32_t missed = event.is_alone ? 0 : missed_;
  for (std::size_t i = 0; i < caches_.size(); ++i)
    if (block == kNone || !caches_[i].has(block)) missed |= 1u << i;
  missed_ = missed;
  // The first time it stands for blocks that the sample did not have: not misses.
  if (is_heavy && (block == kNone || !blocks_[block].is_heavy)) return;
  Counts& counts = counts_[is_heavy ? kGroups : (event.name >> 32) % kGroups];
  const double weight = is_heavy ? event.counts : one_in_;
  counts.asked += weight;
  if (distance_ != kFar) counts.distances[bucket_of(distance_ + 1)] += weight;
  for (std::size_t i = 0; i < caches_.size(); ++i)
    if ((missed >> i & 1) == 0) counts.hits[i] += weight;
}

/// Enters the block into each small cache that lacks it. Returns the number of these caches.
std::size_t HitCurve::enter(const Event& event, std::uint16_t block, const EvictionPolicy& policy) {
  ShadowBlock& shared = blocks_[block];
  if (!event.is_alone) set_parent(block, chain_.empty() ? kNone : chain_.back());
  const bool was_heavy = std::exchange(shared.is_heavy, event.counts > 0);
  set_weight(block, event.counts > 0 ? event.holds : one_in_);
  shared.used_at = event.at;
  shared.trait = event.trait;
  shared.passed = event.is_alone ? 0 : event.passed;
  std::size_t entered = 0;
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    if (caches_[i].has(block)) {
      caches_[i].use(block);
      continue;
    }
    if ((refused_ >> i & 1) != 0) continue;
    ++entered;
    const bool forced = shared.is_heavy && !was_heavy;
    if (!caches_[i].offer(block, policy, event.at, forced || event.is_alone) && !event.is_alone) refused_ |= 1u << i;
  }
  return entered;
}

std::uint16_t HitCurve::find(std::uint64_t name) const {
  const std::size_t mask = places_.size() - 1;
  for (std::size_t place = name >> 36 & mask; places_[place] != kNone; place = (place + 1) & mask)
    if (blocks_[places_[place]].name == name) return places_[place];
  return kNone;
}

std::uint16_t HitCurve::add(std::uint64_t name) {
  if (free_.empty()) {
    const std::uint16_t oldest = order_.oldest();
    if (oldest == kNone || blocks_[oldest].is_busy) return kNone;
    remove(oldest);
  }
  const std::uint16_t block = free_.back();
  free_.pop_back();
  blocks_[block] = {.name = name, .life = blocks_[block].life, .is_known = true};
  const std::size_t mask = places_.size() - 1;
  std::size_t place = name >> 36 & mask;
  while (places_[place] != kNone) place = (place + 1) & mask;
  places_[place] = block;
  return block;
}

void HitCurve::remove(std::uint16_t block) {
  for (ShadowCache& cache : caches_) cache.forget(block);
  if (order_.has(block)) order_.remove(block);
  const std::size_t mask = places_.size() - 1;
  std::size_t place = blocks_[block].name >> 36 & mask;
  while (places_[place] != block) place = (place + 1) & mask;
  // Entries behind it move up, or a search for them would end at the hole.
  for (std::size_t next = (place + 1) & mask; places_[next] != kNone; next = (next + 1) & mask) {
    const std::size_t home = blocks_[places_[next]].name >> 36 & mask;
    if (((next - home) & mask) < ((next - place) & mask)) continue;
    places_[place] = places_[next];
    place = next;
  }
  places_[place] = kNone;
  blocks_[block].is_known = false;
  ++blocks_[block].life;
  free_.push_back(block);
}

void HitCurve::set_parent(std::uint16_t block, std::uint16_t parent) {
  ShadowBlock& shared = blocks_[block];
  const std::uint8_t life = parent == kNone ? 0 : blocks_[parent].life;
  if (shared.parent == parent && shared.parent_life == life) return;
  for (ShadowCache& cache : caches_) cache.set_parent(block, parent);
  shared.parent = parent;
  shared.parent_life = life;
}

void HitCurve::set_weight(std::uint16_t block, std::uint32_t weight) {
  if (blocks_[block].weight == weight) return;
  for (ShadowCache& cache : caches_) cache.set_weight(block, weight);
  blocks_[block].weight = weight;
  if (order_.has(block)) order_.set_weight(block, weight);
}

// -- counts

void HitCurve::age(TimePoint now) {
  if (aged_ == TimePoint{}) aged_ = now;
  const double seconds = std::chrono::duration<double>(now - aged_).count();
  if (seconds < kAgingSeconds) return;
  aged_ = now;
  const double factor = std::exp2(-seconds / kHalfLifeSeconds);
  for (Counts& counts : counts_) {
    counts.asked *= factor;
    for (double& each : counts.distances) each *= factor;
    for (double& each : counts.hits) each *= factor;
  }
  asked_ *= factor;
  found_memory_ *= factor;
  found_ *= factor;
}

/// The first bucket whose upper end, 2^(bucket / kStepsPerOctave), is at least `distance`.
std::size_t HitCurve::bucket_of(std::uint64_t distance) {
  const double octaves = std::log2(static_cast<double>(distance));
  return std::min(static_cast<std::size_t>(std::ceil(octaves * kStepsPerOctave)), kDistances - 1);
}

HitCurve::Sums HitCurve::sums() const {
  Sums sums;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double sum = 0;
    for (std::size_t k = 0; k < kDistances; ++k) sums[i][k] = sum += counts_[i].distances[k];
  }
  return sums;
}

template <class Hits>
HitCurve::Estimate HitCurve::estimate(Hits&& hits) const {
  double sampled = 0, found = 0;
  std::array<double, kGroups> of_group{};
  for (std::size_t i = 0; i < kGroups; ++i) {
    sampled += counts_[i].asked;
    found += of_group[i] = hits(i);
  }
  const double heavy = counts_[kGroups].asked;
  const double asked = std::max(asked_, heavy);
  if (asked <= 0 || (sampled <= 0 && heavy <= 0)) return {0, 1};
  const double rate = sampled > 0 ? found / sampled : 0;
  double squares = 0;
  for (std::size_t i = 0; i < kGroups; ++i) {
    const double off = of_group[i] - rate * counts_[i].asked;
    squares += off * off;
  }
  const double share = (asked - heavy) / asked;
  const double error = sampled > 0 ? std::sqrt(squares * kGroups / (kGroups - 1)) / sampled : 1;
  return {(hits(kGroups) + rate * (asked - heavy)) / asked, error * share};
}

/// Blocks used since are judged by the sample's: for c blocks of memory it has c / one_in, plus or minus the root.
HitCurve::Estimate HitCurve::lru(const Sums& sums, std::uint64_t block_count) const {
  const auto at = [&](double blocks) {
    const double place = std::min(std::log2(std::max(blocks, 1.0)) * kStepsPerOctave, double{kDistances - 2});
    const auto whole = static_cast<std::size_t>(place);
    const double rest = place - static_cast<double>(whole);
    return estimate([&](std::size_t i) { return sums[i][whole] + rest * (sums[i][whole + 1] - sums[i][whole]); });
  };
  const auto blocks = static_cast<double>(block_count);
  const double off = std::sqrt(blocks * (one_in_ - 1));
  const Estimate middle = at(blocks);
  const double slope = (at(blocks + off).hit_rate - at(std::max(1.0, blocks - off)).hit_rate) / 2;
  return {middle.hit_rate, std::min(1.0, kSure * std::hypot(middle.error, slope))};
}

HitCurve::Report HitCurve::report() const {
  Report report;
  report.points = points();
  report.has_policy = !caches_.empty();
  const Sums of_lru = sums();
  for (std::size_t i = 0; i < report.points.size(); ++i) {
    Point& point = report.points[i];
    point.lru = lru(of_lru, point.block_count);
    if (!report.has_policy) continue;
    point.policy = estimate([&](std::size_t group) { return counts_[group].hits[i]; });
  }
  // As for LRU, along the line to the next larger or smaller cache, whichever is steeper.
  for (std::size_t i = 0; report.has_policy && i < report.points.size(); ++i) {
    Point& point = report.points[i];
    double per_octave = 0;
    for (const std::size_t next : {i - 1, i + 1}) {
      if (next >= report.points.size() || report.points[next].has_disk != point.has_disk) continue;
      per_octave = std::max(per_octave, std::abs(report.points[next].policy.hit_rate - point.policy.hit_rate));
    }
    const auto blocks = static_cast<double>(std::max<std::uint64_t>(point.block_count, 1));
    const double octaves = std::log2(1 + std::sqrt((one_in_ - 1) / blocks));
    point.policy.error = std::min(1.0, std::hypot(kSure * point.policy.error, kSure * per_octave * octaves, kModel));
  }
  report.asked_blocks = asked_;
  report.memory_hit_rate = asked_ > 0 ? found_memory_ / asked_ : 0;
  report.hit_rate = asked_ > 0 ? found_ / asked_ : 0;
  for (std::size_t i = 0; i < kGroups; ++i) report.sampled_blocks += counts_[i].asked / one_in_;
  report.one_in = one_in_;
  report.dropped_requests = dropped_requests_;
  return report;
}

std::size_t HitCurve::memory_bytes() const {
  std::size_t bytes = sizeof *this + heavy_.memory_bytes() + order_.memory_bytes() +
                      blocks_.capacity() * sizeof(ShadowBlock) + events_.capacity() * sizeof(Event) +
                      (free_.capacity() + places_.capacity() + chain_.capacity()) * sizeof(std::uint16_t);
  for (const ShadowCache& cache : caches_) bytes += sizeof cache + cache.memory_bytes();
  return bytes;
}

}  // namespace kv
