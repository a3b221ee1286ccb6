#include "store/desks/learning_desk.h"

#include <algorithm>
#include <utility>

namespace kv {

LearningDesk::LearningDesk(Shelf& shelf) : shelf_(shelf) {
  const StoreConfig& config = shelf.config;
  if (!config.curve.is_on) return;
  curve_ = std::make_unique<HitCurve>(config.curve, config.hash_seed, config.policy != PolicyKind::kLru,
                                      shelf.tier != nullptr);
}

bool LearningDesk::learn() {
  if (shelf_.policy->learn()) return true;  // one of them per call, as far as possible
  return curve_ && curve_->learn(*shelf_.policy);
}

std::optional<LearningDesk::Curve> LearningDesk::curve() const {
  if (!curve_) return std::nullopt;
  Curve curve{.report = curve_->report(), .block_bytes = 0};
  for (const HitCurve::Point& point : curve.report.points)
    if (point.is_now && !point.has_disk && point.block_count > 0)
      curve.block_bytes = shelf_.pool.arena().capacity_bytes() / point.block_count;
  return curve;
}

SampledNames::Samples LearningDesk::samples() const {
  return {shelf_.policy->sample(), curve_ ? std::optional(curve_->sample()) : std::nullopt};
}

void LearningDesk::set_combined(YieldTable::Combined combined) { shelf_.policy->set_combined(std::move(combined)); }

void LearningDesk::set_before(YieldCounts counts) {
  if (counts.unit >= 1) shelf_.policy->set_before(counts.unit, std::move(counts.classes));
}

std::uint16_t LearningDesk::asked(const EvictionPolicy::Request& request, std::size_t memory_count, TimePoint now,
                                  std::size_t* known) {
  const std::uint16_t trait = shelf_.policy->asked(request, known);
  if (curve_) curve_->asked(request, memory_count, trait, shelf_.policy->clock(), now);
  return trait;
}

std::uint16_t LearningDesk::offered(const EvictionPolicy::Request& request, Usage above, Tick tick) {
  const std::uint16_t trait = shelf_.policy->offered(request, above, tick);
  if (curve_) curve_->offered(request, trait, shelf_.policy->clock());
  return trait;
}

/// While memory fills up, a half, a quarter and so on of the room, at most four times the present count: the first
/// blocks may be untypical, or small on purpose.
void LearningDesk::tell_capacity(std::size_t block_bytes) {
  const BlockPool& pool = shelf_.pool;
  const std::size_t count = pool.index().block_count();
  const std::size_t mean = count == 0 ? block_bytes : std::max<std::size_t>(1, pool.arena().allocated_bytes() / count);
  const std::size_t room = pool.arena().capacity_bytes() / mean;
  std::size_t capacity = room;
  while (capacity > 4 * count + 1) capacity /= 2;
  shelf_.policy->set_capacity(capacity);
  // With many blocks, the mean length gives the capacity even while memory fills up.
  constexpr std::size_t kManyBlocks = 1024;
  if (curve_) curve_->set_capacity(count >= kManyBlocks ? room : capacity, shelf_.config.disk.capacity_bytes / mean);
}

}  // namespace kv
