#include "store/desks/put/put_slots.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/assert.h"

namespace kv {

void PutSlots::take(OpenPut& put, OfferPlan& plan, bool may_lose, TimePoint now, Steps& steps) {
  KV_ASSERT(put.committed_count <= put.told_count && put.told_count <= put.slots.size());
  KV_ASSERT((put.is_set() ? put.lengths.size() : put.positions.size()) == put.hashes.size());
  if (shelf_.tenants) shelf_.tenants->ask_for(put.space->owner);
  put.is_over_quota = false;
  // In chain order, stopping at a refusal: a block without the one above it could not be found.
  while (put.slots.size() < put.hashes.size()) {
    if (plan.again = !steps.are_left(); plan.again) break;
    const Room room = make_index_room(now, steps);
    plan.again = room == Room::kUnfinished;
    if (room != Room::kIs) break;
    const std::size_t i = put.slots.size();
    const std::size_t bytes = slot_bytes(put, i);
    if (!spaces_.use_class(*put.space, bytes)) {
      plan.refused_why = Errc::kTooLarge;  // eviction cannot make room for another size
      break;
    }
    look_for_remembered(put, i);
    // Without a disk tier every eviction loses a block, and waiting would not help.
    const Evictor::Found found =
        shelf_.evictor.find_slot(bytes, steps, now, may_lose || !shelf_.tier, put.was_refused, worth(put, i));
    plan.again = found.again;
    if (found.is_worth_less) {
      plan.refused_why = Errc::kNotAdmitted;
      not_admit_rest(put);
    }
    put.is_over_quota = found.is_over_quota;
    if (found.is_over_quota) plan.refused_why = Errc::kOverQuota;
    if (!found.slot) break;
    put.slots.push_back(*found.slot);
  }
  // Two puts, each with slots for half of a group, could wait for each other. The pins on members that were here stay,
  // like those on a chain's prefix: they can keep another put waiting, until its deadline.
  const std::size_t usable = put.usable_count();
  for (; !plan.again && put.slots.size() > usable; put.slots.pop_back()) shelf_.pool.return_slot(put.slots.back());
  tell_incoming(put, plan);
  plan.refused_count = put.hashes.size() - usable;
  if (plan.refused_count > 0 && !plan.again) put.was_refused = true;
}

Usage PutSlots::first_usage(const OpenPut& put, std::size_t i) const {
  if (put.is_set()) return {.use_count = 1, .trait = put.trait};
  const auto remembered = i < put.remembered.size() ? std::min<std::uint8_t>(put.remembered[i], 254) : std::uint8_t{0};
  return {static_cast<std::uint8_t>(remembered + 1), Shelf::passed_count(put.hashes.size() - 1 - i + put.after_last),
          put.trait};
}

/// A block leaves together with all blocks behind it, so an apparent hit behind a gap is another block: names are kept
/// as a few bits. A chain of some hundred blocks always has one, and its uses would pass for those of all blocks before
/// it once it has left (PrefixIndex, invariant 7). Call for each i in order.
void PutSlots::look_for_remembered(OpenPut& put, std::size_t i) const {
  if (put.is_remembered_whole || put.remembered.size() > i || put.is_set()) return;
  // Usually the first is unknown. Otherwise look up many at a time, so that their cache misses overlap.
  constexpr std::size_t kAtOnce = 16;
  const auto some = std::span(put.hashes).subspan(i, std::min(i == 0 ? 1 : kAtOnce, put.hashes.size() - i));
  put.remembered.resize(i + some.size());
  const std::size_t count = shelf_.policy->remembered_uses(put.space->tree, some, std::span(put.remembered).subspan(i));
  put.remembered.resize(i + count);
  put.is_remembered_whole = count < some.size();
}

/// Infinite for blocks that are never refused: those of a set, because half of a group would be refused; and all blocks
/// while the disk has room, because their victims are not lost.
double PutSlots::worth(const OpenPut& put, std::size_t i) const {
  if (!shelf_.policy->refuses() || put.is_admitted || put.is_set() || (shelf_.tier && !shelf_.tier->is_full()))
    return std::numeric_limits<double>::infinity();
  return shelf_.policy->worth(shelf_.policy->queues().queue_of(first_usage(put, i)), 0);
}

/// A block that is not admitted is remembered like one that left: when requested again, it has been used before.
void PutSlots::not_admit_rest(OpenPut& put) {
  if (std::exchange(put.is_not_admitted, true)) return;
  constexpr std::size_t kRememberedMax = 1024;  // each is a cache miss, under the lock
  const TreeId tree = put.space->tree;
  const std::size_t end = std::min(put.hashes.size(), put.slots.size() + kRememberedMax);
  for (std::size_t i = put.slots.size(); i < end; ++i) {
    look_for_remembered(put, i);
    shelf_.policy->left(tree, put.hashes[i], first_usage(put, i));
  }
}

/// Adds to `plan` the incoming blocks that can be filled and were in no earlier plan.
void PutSlots::tell_incoming(OpenPut& put, OfferPlan& plan) {
  const NamespaceRecord& record = *put.space->record;
  const std::size_t usable = put.usable_count();
  KV_ASSERT(put.told_count <= usable);
  for (std::size_t i = std::exchange(put.told_count, usable); i < usable; ++i) {
    const std::span<std::byte> slot = shelf_.pool.arena().bytes(put.slots[i]);
    plan.incoming.push_back(put.is_set() ? IncomingBlock{.index = put.indices[i],
                                                         .bytes = slot.first(put.lengths[i]),
                                                         .seed = record.checksum_seed(put.hashes[i], put.lengths[i])}
                                         : IncomingBlock{.index = static_cast<std::uint32_t>(put.stored_count + i),
                                                         .bytes = slot,
                                                         .seed = record.checksum_seed(put.hashes[i], slot.size())});
    plan.incoming.back().completes_group = put.ends_group(i);
  }
}

void PutSlots::end_ids(const OpenPut& put) {
  KV_ASSERT(ids_bytes_ >= put.ids_bytes());
  ids_bytes_ -= put.ids_bytes();
}

std::size_t PutSlots::index_used_bytes() const {
  // Bytes of an element of a hash set, and of an incoming block: its future index entry, its hash and its slot in the
  // put.
  constexpr std::size_t kSetNodeBytes = 40, kRetentionBytes = 64, kIncomingBytes = 256;
  const BlockPool& pool = shelf_.pool;
  return pool.index().used_bytes() + (pool.unlinked().size() + pool.leased().size()) * kSetNodeBytes +
         pool.retained().size() * kRetentionBytes + contexts_.used_bytes() + pool.incoming_count() * kIncomingBytes +
         ids_bytes_ + (shelf_.tier ? shelf_.tier->used_bytes() : 0);
}

/// Makes room for one more block: evicts the block of least worth, of the size with the oldest leaf end.
PutSlots::Room PutSlots::make_index_room(TimePoint now, Steps& steps) {
  while (index_used_bytes() >= shelf_.index_bytes_max()) {
    if (shelf_.pool.index().has_detached()) {
      shelf_.evictor.reap(steps, now);
    } else {
      const BlockId victim = shelf_.evictor.next_victim(steps);
      if (!steps.are_left()) return Room::kUnfinished;
      if (victim == kNoBlock) return Room::kIsNot;
      steps.take(Steps::kRemoval);
      shelf_.evictor.evict(victim, now);
    }
    if (!steps.are_left()) return Room::kUnfinished;
  }
  return Room::kIs;
}

}  // namespace kv
