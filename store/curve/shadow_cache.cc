#include "store/curve/shadow_cache.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

/// The node remembers as many of a departed block's uses, and gives half of them back.
constexpr std::uint8_t kUsesRemembered = 31;

}  // namespace

ShadowCache::ShadowCache(const std::vector<ShadowBlock>& blocks, std::uint64_t seed)
    : blocks_(blocks), states_(blocks.size()), random_(seed | 1) {
  leaf_ends_.reserve(blocks.size());
}

void ShadowCache::use(std::uint16_t block) {
  State& state = states_[block];
  KV_ASSERT(state.is_here);
  state.use_count = static_cast<std::uint8_t>(std::min(state.use_count + 1, 255));
}

bool ShadowCache::offer(std::uint16_t block, const EvictionPolicy& policy, std::uint32_t now, bool forced) {
  State& state = states_[block];
  KV_ASSERT(!state.is_here);
  const ShadowBlock& shared = blocks_[block];
  // Refused or not, it has been used once more: requested blocks are remembered.
  const auto remembered = (std::min(state.use_count, kUsesRemembered) + 1) / 2;
  state.use_count = static_cast<std::uint8_t>(remembered + 1);
  const bool may_refuse = policy.refuses() && !forced;
  for (std::size_t i = 0; held_ + shared.weight > capacity_; ++i) {
    const Victim victim = i < kEvictedAtOnce ? next_victim(policy, now) : Victim{};
    if (victim.block == ShadowBlock::kNone) return false;
    if (may_refuse &&
        policy.worth(policy.queues().queue_of({state.use_count, shared.passed, shared.trait}), 0) < victim.worth)
      return false;
    evict(victim.block);
  }
  state.is_here = true;
  held_ += shared.weight;
  if (has_parent(shared)) add_child(shared.parent);
  if (state.children == 0) add_leaf_end(block);
  return true;
}

/// Chosen at random among all leaf ends. That widens the age of eviction to a range of a few per cent.
ShadowCache::Victim ShadowCache::next_victim(const EvictionPolicy& policy, std::uint32_t now) {
  Victim victim;
  const LeafQueues queues = policy.queues();
  const std::size_t count = leaf_ends_.size();
  for (std::size_t i = 0; i < std::min(count, kLookedAt); ++i) {
    random_ = random_ * 6364136223846793005 + 1442695040888963407;
    const std::uint16_t block = leaf_ends_[count <= kLookedAt ? i : (random_ >> 33) % count];
    const ShadowBlock& shared = blocks_[block];
    if (shared.is_busy) continue;
    const Usage usage{std::max<std::uint8_t>(states_[block].use_count, 1), shared.passed, shared.trait};
    const double worth = policy.worth(queues.queue_of(usage), now - shared.used_at);
    if (victim.block == ShadowBlock::kNone || worth < victim.worth) victim = {block, worth};
  }
  return victim;
}

bool ShadowCache::has_parent(const ShadowBlock& block) const {
  return block.parent != ShadowBlock::kNone && blocks_[block.parent].life == block.parent_life;
}

void ShadowCache::add_child(std::uint16_t parent) {
  State& state = states_[parent];
  if (state.children++ == 0 && state.is_here) remove_leaf_end(parent);
}

void ShadowCache::remove_child(std::uint16_t parent) {
  State& state = states_[parent];
  KV_ASSERT(state.children > 0);
  if (--state.children == 0 && state.is_here) add_leaf_end(parent);
}

void ShadowCache::evict(std::uint16_t block) {
  State& state = states_[block];
  KV_ASSERT(state.is_here);
  if (state.leaf_end != ShadowBlock::kNone) remove_leaf_end(block);
  state.is_here = false;
  const ShadowBlock& shared = blocks_[block];
  KV_ASSERT(held_ >= shared.weight);
  held_ -= shared.weight;
  if (has_parent(shared)) remove_child(shared.parent);
}

/// Remaining children lose their parent.
void ShadowCache::forget(std::uint16_t block) {
  if (states_[block].is_here) evict(block);
  states_[block] = {};
}

void ShadowCache::set_parent(std::uint16_t block, std::uint16_t parent) {
  if (!states_[block].is_here) return;
  if (has_parent(blocks_[block])) remove_child(blocks_[block].parent);
  if (parent != ShadowBlock::kNone) add_child(parent);
}

void ShadowCache::set_weight(std::uint16_t block, std::uint32_t weight) {
  if (states_[block].is_here) held_ = held_ - blocks_[block].weight + weight;
}

void ShadowCache::add_leaf_end(std::uint16_t block) {
  states_[block].leaf_end = static_cast<std::uint16_t>(leaf_ends_.size());
  leaf_ends_.push_back(block);
}

void ShadowCache::remove_leaf_end(std::uint16_t block) {
  const std::uint16_t at = std::exchange(states_[block].leaf_end, ShadowBlock::kNone);
  KV_ASSERT(at != ShadowBlock::kNone);
  const std::uint16_t last = leaf_ends_.back();
  leaf_ends_.pop_back();
  if (last == block) return;
  leaf_ends_[at] = last;
  states_[last].leaf_end = at;
}

std::size_t ShadowCache::memory_bytes() const {
  return states_.capacity() * sizeof(State) + leaf_ends_.capacity() * sizeof(std::uint16_t);
}

}  // namespace kv
