// store/store_put.cc: a block enters: offered by its hash, staged in a slot, committed.

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "store/store_impl.h"

namespace kv {
namespace {

/// Whether the lists of an offer fit its hashes.
bool is_sound(const Store::OfferOptions& options, std::size_t hash_count, std::size_t block_size) {
  const auto fits = [](std::size_t size, std::size_t due) { return size == 0 || size == due; };
  // Positions must increase, or a partial match would treat a block as the direct successor of another.
  return fits(options.positions.size(), hash_count) &&
         std::ranges::adjacent_find(options.positions, std::greater_equal<>{}) == options.positions.end() &&
         fits(options.token_ids.size(), hash_count * block_size) && fits(options.extras.size(), hash_count) &&
         options.chain.fits(hash_count);
}

}  // namespace

Result<Store::OfferPlan> Store::offer(SpaceId space, std::span<const BlockHash> hashes, const OfferOptions& options,
                                      TimePoint now) {
  Impl::Call call(*impl_);
  impl_->expire_leases(now, call.steps);
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  const std::size_t block_size = found->space->record->block_size();
  if (hashes.empty() || !is_sound(options, hashes.size(), block_size)) return Errc::kBadRequest;

  // Gaps between positions imply other nodes, but do not give the chain's end.
  ChainPart chain = options.chain;
  if (chain.block_count == 0 && !options.positions.empty() && options.positions.back() >= hashes.size())
    chain = {options.positions.back() + std::size_t{1}, options.positions.front(), options.positions.back(), {}};
  BlockPool& pool = impl_->pool;
  const PrefixIndex::Prefix& prefix = found->prefix;
  const std::size_t stored_count = prefix.block_count;
  const Duration idle = std::clamp(options.idle, Duration::zero(), kIdleMax);
  impl_->use(*found, now, idle);
  impl_->counters.already_stored_blocks += stored_count;
  OfferPlan plan{.stored_count = stored_count};
  if (stored_count == hashes.size()) return plan;

  plan.put = PutId{++impl_->put_count};
  Put& put = impl_->puts[plan.put];
  impl_->puts_by_session.emplace(options.session, plan.put);
  put.session = options.session;
  put.is_admitted = options.is_admitted;
  put.space = found->space;
  ++put.space->put_count;
  put.stored_count = stored_count;
  put.idle = idle;
  put.after_last = chain.after_last(hashes.size());
  put.tail = prefix.last;
  // The pin keeps the whole prefix: eviction only takes leaf ends.
  if (put.tail != kNoBlock) pool.pin(put.tail);
  put.hashes.assign(hashes.begin() + stored_count, hashes.end());
  for (std::size_t i = stored_count; i < hashes.size(); ++i)
    put.positions.push_back(options.positions.empty() ? static_cast<std::uint32_t>(i) : options.positions[i]);
  // Ids without their extra would later match different content.
  const bool knows_extras = !options.extras.empty() || found->space->record->has_own_chain();
  if (!options.token_ids.empty() && knows_extras &&
      block_size * sizeof(options.token_ids[0]) <= kept_ids_bytes_max(put.space->record->block_bytes())) {
    put.token_ids.assign(options.token_ids.begin() + stored_count * block_size, options.token_ids.end());
    if (!options.extras.empty()) put.extras.assign(options.extras.begin() + stored_count, options.extras.end());
  }
  impl_->put_ids_bytes += put.token_ids.size() * sizeof(put.token_ids[0]);
  // A block passed on by another node does not reflect who stores and requests here.
  if (options.idle == Duration::zero())
    found->space->roots.note(impl_->print(hashes.front()), RootSample::Act::kStored, now);
  const bool is_end = put.tail != kNoBlock && pool.index().is_leaf_end(put.tail);
  impl_->tell_capacity(put.space->record->block_bytes());
  put.trait = impl_->tell_offered({.tree = put.space->tree,
                                   .hashes = hashes,
                                   .found_count = stored_count,
                                   .block_size = block_size,
                                   .hint = options.hint,
                                   .tenant = put.space->tenant,
                                   .chain = chain},
                                  is_end ? pool.index().usage(put.tail) : Usage{}, pool.last_tick());
  if (chain.known && put.tail != kNoBlock) pool.index().correct(put.tail, put.trait);
  impl_->tidy(now, call.steps);
  impl_->stage(put, plan, options.may_lose, now, call.steps);
  return plan;
}

Result<Store::OfferPlan> Store::offer_more(PutId id, TimePoint now, bool may_lose) {
  Impl::Call call(*impl_);
  impl_->expire_leases(now, call.steps);
  const auto it = impl_->puts.find(id);
  if (it == impl_->puts.end()) return Errc::kBadRequest;
  OfferPlan plan{.put = id, .stored_count = it->second.stored_count};
  impl_->tidy(now, call.steps);
  impl_->stage(it->second, plan, may_lose, now, call.steps);
  return plan;
}

/// Stages as many more blocks of the chain as there is memory for, into `plan`.
void Store::Impl::stage(Put& put, OfferPlan& plan, bool may_lose, TimePoint now, Steps& steps) {
  KV_ASSERT(put.committed_count <= put.told_count && put.told_count <= put.slots.size());
  KV_ASSERT((put.is_set() ? put.lengths.size() : put.positions.size()) == put.hashes.size());
  if (tenants) tenants->ask_for(put.space->owner);
  put.is_over_quota = false;
  // In chain order, stopping at a refusal: a block without the one above it could not be found.
  while (put.slots.size() < put.hashes.size()) {
    if (plan.again = !steps.are_left(); plan.again) break;
    const Room room = make_index_room(now, steps);
    plan.again = room == Room::kUnfinished;
    if (room != Room::kIs) break;
    const std::size_t i = put.slots.size();
    const std::size_t bytes = slot_bytes(put, i);
    if (!use_class(*put.space, bytes)) {
      plan.refused_why = Errc::kTooLarge;  // eviction cannot make room for another size
      break;
    }
    look_for_remembered(put, i);
    // Without a disk tier every eviction loses a block, and waiting would not help.
    const Evictor::Found found =
        evictor.find_slot(bytes, steps, now, may_lose || !tier, put.was_refused, worth(put, i));
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
  // Two puts, each with half of a group staged, could wait for each other. The pins on members that were here stay,
  // like those on a chain's prefix: they can keep another put waiting, until its deadline.
  const std::size_t usable = put.usable_count();
  for (; !plan.again && put.slots.size() > usable; put.slots.pop_back()) pool.unstage(put.slots.back());
  tell_staged(put, plan);
  plan.refused_count = put.hashes.size() - usable;
  if (plan.refused_count > 0 && !plan.again) put.was_refused = true;
}

Usage Store::Impl::first_usage(const Put& put, std::size_t i) const {
  if (put.is_set()) return {.use_count = 1, .trait = put.trait};
  const auto remembered = i < put.remembered.size() ? std::min<std::uint8_t>(put.remembered[i], 254) : std::uint8_t{0};
  return {static_cast<std::uint8_t>(remembered + 1), passed_count(put.hashes.size() - 1 - i + put.after_last),
          put.trait};
}

/// A block leaves together with all blocks behind it, so an apparent hit behind a gap is another block: names are kept
/// as a few bits. A chain of some hundred blocks always has one, and its uses would pass for those of all blocks before
/// it once it has left (PrefixIndex, invariant 7). Call for each i in order.
void Store::Impl::look_for_remembered(Put& put, std::size_t i) const {
  if (put.is_remembered_whole || put.remembered.size() > i || put.is_set()) return;
  // Usually the first is unknown. Otherwise look up many at a time, so that their cache misses overlap.
  constexpr std::size_t kAtOnce = 16;
  const auto some = std::span(put.hashes).subspan(i, std::min(i == 0 ? 1 : kAtOnce, put.hashes.size() - i));
  put.remembered.resize(i + some.size());
  const std::size_t count = policy->remembered_uses(put.space->tree, some, std::span(put.remembered).subspan(i));
  put.remembered.resize(i + count);
  put.is_remembered_whole = count < some.size();
}

/// Infinite for blocks that are never refused: those of a set, because half of a group would be refused; and all blocks
/// while the disk has room, because their victims are not lost.
double Store::Impl::worth(const Put& put, std::size_t i) const {
  if (!policy->refuses() || put.is_admitted || put.is_set() || (tier && !tier->is_full()))
    return std::numeric_limits<double>::infinity();
  return policy->worth(policy->queues().queue_of(first_usage(put, i)), 0);
}

/// A block that is not admitted is remembered like one that left: when requested again, it has been used before.
void Store::Impl::not_admit_rest(Put& put) {
  if (std::exchange(put.is_not_admitted, true)) return;
  constexpr std::size_t kRememberedMax = 1024;  // each is a cache miss, under the lock
  const TreeId tree = put.space->tree;
  const std::size_t end = std::min(put.hashes.size(), put.slots.size() + kRememberedMax);
  for (std::size_t i = put.slots.size(); i < end; ++i) {
    look_for_remembered(put, i);
    policy->left(tree, put.hashes[i], first_usage(put, i));
  }
}

/// The number of blocks that fit, if later ones are like the present ones. While memory fills up, a half, a quarter and
/// so on of that, at most four times the present count: the first blocks may be untypical, or small on purpose.
void Store::Impl::tell_capacity(std::size_t block_bytes) {
  const std::size_t count = pool.index().block_count();
  const std::size_t mean = count == 0 ? block_bytes : std::max<std::size_t>(1, pool.arena().allocated_bytes() / count);
  const std::size_t room = pool.arena().capacity_bytes() / mean;
  std::size_t capacity = room;
  while (capacity > 4 * count + 1) capacity /= 2;
  policy->set_capacity(capacity);
  // With many blocks, the mean length gives the capacity even while memory fills up.
  constexpr std::size_t kManyBlocks = 1024;
  if (curve) curve->set_capacity(count >= kManyBlocks ? room : capacity, config.disk.capacity_bytes / mean);
}

/// Adds to `plan` the staged blocks that can be filled and were in no earlier plan.
void Store::Impl::tell_staged(Put& put, OfferPlan& plan) {
  const NamespaceRecord& record = *put.space->record;
  const std::size_t usable = put.usable_count();
  KV_ASSERT(put.told_count <= usable);
  for (std::size_t i = std::exchange(put.told_count, usable); i < usable; ++i) {
    const std::span<std::byte> slot = pool.arena().bytes(put.slots[i]);
    plan.staged.push_back(put.is_set() ? StagedBlock{.index = put.indices[i],
                                                     .bytes = slot.first(put.lengths[i]),
                                                     .seed = record.checksum_seed(put.hashes[i], put.lengths[i])}
                                       : StagedBlock{.index = static_cast<std::uint32_t>(put.stored_count + i),
                                                     .bytes = slot,
                                                     .seed = record.checksum_seed(put.hashes[i], slot.size())});
    plan.staged.back().completes_group = put.ends_group(i);
  }
}

std::size_t Store::Put::usable_count() const {
  if (groups.empty()) return slots.size();
  const auto cut = std::ranges::upper_bound(groups, slots.size(), {}, &Group::end);
  return cut == groups.begin() ? 0 : std::prev(cut)->end;
}

bool Store::Put::ends_group(std::size_t i) const {
  const auto group = std::ranges::upper_bound(groups, i, {}, &Group::end);
  return group != groups.end() && group->end == i + 1;
}

/// Everything that clients can make grow: the index, its side tables, and the future entries of running puts.
std::size_t Store::Impl::index_used_bytes() const {
  // Bytes of an element of a hash set, and of a staged block: its future index entry, its hash and its slot in the put.
  constexpr std::size_t kSetNodeBytes = 40, kRetentionBytes = 64, kStagedBytes = 256;
  return pool.index().used_bytes() + (pool.unlinked().size() + pool.leased().size()) * kSetNodeBytes +
         pool.retained().size() * kRetentionBytes + contexts.used_bytes() + pool.staged_count() * kStagedBytes +
         put_ids_bytes + (tier ? tier->used_bytes() : 0);
}

/// Makes room for one more block: evicts the block of least worth, of the size with the oldest leaf end.
Store::Impl::Room Store::Impl::make_index_room(TimePoint now, Steps& steps) {
  while (index_used_bytes() >= config.index_bytes_max) {
    if (pool.index().has_detached()) {
      evictor.reap(steps, now);
    } else {
      const BlockId victim = evictor.next_victim(steps);
      if (!steps.are_left()) return Room::kUnfinished;
      if (victim == kNoBlock) return Room::kIsNot;
      steps.take(Steps::kRemoval);
      evictor.evict(victim, now);
    }
    if (!steps.are_left()) return Room::kUnfinished;
  }
  return Room::kIs;
}

Store::CommitStatus Store::commit(PutId id, std::span<const std::uint64_t> checksums, TimePoint now) {
  const auto it = impl_->puts.find(id);
  KV_ASSERT(it != impl_->puts.end());
  Put& put = it->second;
  BlockPool& pool = impl_->pool;
  PrefixIndex& index = pool.index();
  KV_ASSERT(put.committed_count < put.told_count && put.groups.empty());
  const std::size_t i = put.committed_count++;
  if (put.is_set()) return impl_->commit_set(put, i, impl_->status_in_set(put, i, checksums), checksums, now);
  const SlotId slot = put.slots[i];
  const auto sums = pool.arena().checksums(slot);
  KV_ASSERT(checksums.size() == sums.size());
  KV_ASSERT(put.tail == kNoBlock || index.pin_count(put.tail) > 0);  // so its id still means the same block

  // The chain was dropped from above, so blocks cannot be linked below it; the writer sees this block by block.
  if (put.tail != kNoBlock && !index.is_linked(put.tail)) {
    pool.unstage(slot);
    ++impl_->counters.refused_blocks;
    return CommitStatus::kRefused;
  }
  const TreeId tree = put.space->tree;
  const Tick tick = pool.tick(now, put.idle);
  CommitStatus status = CommitStatus::kStored;
  BlockId block = index.find_child(tree, put.tail, put.hashes[i]);
  if (block == kNoBlock) {
    // Checksums first: after link() a match finds the block, and its readers verify by them.
    std::copy(checksums.begin(), checksums.end(), sums.begin());
    const std::size_t block_size = put.space->record->block_size();
    const auto token_ids = put.token_ids.empty() ? std::span<const std::uint32_t>{}
                                                 : std::span(put.token_ids).subspan(i * block_size, block_size);
    const ExtraDigest extra = put.extras.empty() ? ExtraDigest{} : put.extras[i];
    const Usage usage = impl_->first_usage(put, i);
    block = pool.link(tree, put.tail, {put.hashes[i], slot, put.positions[i], token_ids, extra, 0, usage}, tick);
    ++impl_->counters.stored_blocks;
    ++put.space->traffic.stored_blocks;
    if (impl_->tier) impl_->add_copy(tree, block, put.tail);
    if (impl_->tier) impl_->spiller->stored(block, tick);
  } else {
    const auto stored = pool.arena().checksums(index.slot(block));
    status = std::equal(stored.begin(), stored.end(), checksums.begin()) ? CommitStatus::kAlreadyStored
                                                                         : CommitStatus::kConflict;
    ++(status == CommitStatus::kConflict ? impl_->counters.put_conflict_blocks : impl_->counters.already_stored_blocks);
    pool.unstage(slot);
    index.touch(block, tick);
    pool.arena().use(index.slot(block), tick);
  }
  // The pin moves down with the chain, so that the put keeps all stored blocks until it ends.
  if (put.tail != kNoBlock) {
    pool.move_pin(put.tail, block);
  } else {
    pool.pin(block);
  }
  put.tail = block;
  return status;
}

void Store::end_put(PutId id) {
  const auto it = impl_->puts.find(id);
  KV_ASSERT(it != impl_->puts.end());
  Impl::Call call(*impl_);
  impl_->end(it);
  impl_->tidy(BlockPool::time_of(impl_->pool.last_tick()), call.steps);
}

void Store::Impl::end(std::map<PutId, Put>::iterator it) {
  Put& put = it->second;
  if (put.tail != kNoBlock) pool.unpin(put.tail);
  KV_ASSERT(put.committed_count <= put.slots.size());
  KV_ASSERT(put_ids_bytes >= put.token_ids.size() * sizeof(put.token_ids[0]));
  put_ids_bytes -= put.token_ids.size() * sizeof(put.token_ids[0]);
  // A context's keeper tries again.
  const std::size_t refused_count = put.is_admitted ? 0 : put.hashes.size() - put.slots.size();
  // The first refused block stands for those behind it: a match ends there.
  if (refused_count > 0 && !put.is_set()) {
    const MissKind why = put.is_not_admitted ? MissKind::kNotAdmitted
                         : put.is_over_quota ? MissKind::kOverQuota
                                             : MissKind::kRefused;
    departed.add(put.space->tree, put.hashes[put.slots.size()], why, departed.now());
  }
  put.slots.erase(put.slots.begin(), put.slots.begin() + static_cast<std::ptrdiff_t>(put.committed_count));
  // Freed by tidy(), some per call: a put may have thousands of slots staged, and as many blocks pinned.
  Unwanted of_put{.space = put.space, .slots = std::move(put.slots), .pinned = {}};
  const std::size_t unpinned = put.committed_group().pinned_end;
  put.pinned.erase(put.pinned.begin(), put.pinned.begin() + static_cast<std::ptrdiff_t>(unpinned));
  of_put.pinned = std::move(put.pinned);
  unwanted.push_back(std::move(of_put));
  (put.is_not_admitted ? counters.not_admitted_blocks : counters.refused_blocks) += refused_count;
  if (tenants && put.is_over_quota && !put.is_admitted) tenants->refused_memory(put.space->owner, refused_count);
  puts_by_session.erase({put.session, it->first});
  puts.erase(it);
}

}  // namespace kv
