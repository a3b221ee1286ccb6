#include "store/desks/put/put_desk.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"

namespace kv {
namespace {

constexpr std::size_t kPutsLookedAt = 256;

/// Whether the lists of an offer fit its hashes.
bool is_sound(const PutDesk::OfferOptions& options, std::size_t hash_count, std::size_t block_size) {
  const auto fits = [](std::size_t size, std::size_t due) { return size == 0 || size == due; };
  // Positions must increase, or a partial match would treat a block as the direct successor of another.
  return fits(options.positions.size(), hash_count) &&
         std::ranges::adjacent_find(options.positions, std::greater_equal<>{}) == options.positions.end() &&
         fits(options.token_ids.size(), hash_count * block_size) && fits(options.extras.size(), hash_count) &&
         options.chain.fits(hash_count);
}

}  // namespace

Result<OfferPlan> PutDesk::offer(SpaceId space, std::span<const BlockHash> hashes, const OfferOptions& options,
                                 TimePoint now) {
  Shelf::Call call(shelf_);
  reads_.expire_leases(now, call.steps);
  const auto found = spaces_.find_chain(space, hashes);
  if (!found) return found.error();
  const std::size_t block_size = found->space->record->block_size();
  if (hashes.empty() || !is_sound(options, hashes.size(), block_size)) return Errc::kBadRequest;

  // Gaps between positions imply other nodes, but do not give the chain's end.
  ChainPart chain = options.chain;
  if (chain.block_count == 0 && !options.positions.empty() && options.positions.back() >= hashes.size())
    chain = {options.positions.back() + std::size_t{1}, options.positions.front(), options.positions.back(), {}};
  BlockPool& pool = shelf_.pool;
  const PrefixIndex::Prefix& prefix = found->prefix;
  const std::size_t stored_count = prefix.block_count;
  const Duration idle = std::clamp(options.idle, Duration::zero(), kIdleMax);
  reads_.use(*found, now, idle);
  shelf_.counters.already_stored_blocks += stored_count;
  OfferPlan plan{.stored_count = stored_count};
  if (stored_count == hashes.size()) return plan;

  OpenPut& put = begin(options.session, *found->space);
  plan.put = put.id;
  put.is_admitted = options.is_admitted;
  put.stored_count = stored_count;
  put.idle = idle;
  put.after_last = chain.after_last(hashes.size());
  put.tail = prefix.last;
  // The pin keeps the whole prefix: eviction only takes leaf ends.
  if (put.tail != kNoBlock) pool.pin(put.tail);
  put.hashes.assign(hashes.begin() + stored_count, hashes.end());
  for (std::size_t i = stored_count; i < hashes.size(); ++i)
    put.positions.push_back(options.positions.empty() ? static_cast<std::uint32_t>(i) : options.positions[i]);
  keep_ids(put, options);
  // A block passed on by another node does not reflect who stores and requests here.
  if (options.idle == Duration::zero()) spaces_.note_root(*found->space, hashes.front(), RootSample::Act::kStored, now);
  const bool is_end = put.tail != kNoBlock && pool.index().is_leaf_end(put.tail);
  learning_.tell_capacity(put.space->record->block_bytes());
  put.trait = learning_.offered({.tree = put.space->tree,
                                 .hashes = hashes,
                                 .found_count = stored_count,
                                 .block_size = block_size,
                                 .hint = options.hint,
                                 .tenant = put.space->tenant,
                                 .chain = chain},
                                is_end ? pool.index().usage(put.tail) : Usage{}, pool.last_tick());
  if (chain.known && put.tail != kNoBlock) pool.index().correct(put.tail, put.trait);
  tidy(now, call.steps);
  slots_.take(put, plan, options.may_lose, now, call.steps);
  return plan;
}

OpenPut& PutDesk::begin(SessionId session, Space& space) {
  const PutId id{++put_count_};
  OpenPut& put = puts_[id];
  puts_by_session_.emplace(session, id);
  put.id = id;
  put.session = session;
  put.space = &space;
  ++space.put_count;
  return put;
}

void PutDesk::keep_ids(OpenPut& put, const OfferOptions& options) {
  const std::size_t block_size = put.space->record->block_size();
  // Ids without their extra would later match different content.
  const bool knows_extras = !options.extras.empty() || put.space->record->has_own_chain();
  if (options.token_ids.empty() || !knows_extras ||
      block_size * sizeof(options.token_ids[0]) > kept_ids_bytes_max(put.space->record->block_bytes()))
    return;
  const auto first = static_cast<std::ptrdiff_t>(put.stored_count);
  put.token_ids.assign(options.token_ids.begin() + first * static_cast<std::ptrdiff_t>(block_size),
                       options.token_ids.end());
  if (!options.extras.empty()) put.extras.assign(options.extras.begin() + first, options.extras.end());
  slots_.count_ids(put);
}

Result<OfferPlan> PutDesk::offer_more(PutId id, TimePoint now, bool may_lose) {
  Shelf::Call call(shelf_);
  reads_.expire_leases(now, call.steps);
  const auto it = puts_.find(id);
  if (it == puts_.end()) return Errc::kBadRequest;
  OfferPlan plan{.put = id, .stored_count = it->second.stored_count};
  tidy(now, call.steps);
  slots_.take(it->second, plan, may_lose, now, call.steps);
  return plan;
}

CommitStatus PutDesk::commit(PutId id, std::span<const std::uint64_t> checksums, TimePoint now) {
  const auto it = puts_.find(id);
  KV_ASSERT(it != puts_.end());
  OpenPut& put = it->second;
  BlockPool& pool = shelf_.pool;
  PrefixIndex& index = pool.index();
  KV_ASSERT(put.committed_count < put.told_count && put.groups.empty());
  const std::size_t i = put.committed_count++;
  if (put.is_set()) return sets_.commit(put, i, checksums, now);
  const SlotId slot = put.slots[i];
  const auto sums = pool.arena().checksums(slot);
  KV_ASSERT(checksums.size() == sums.size());
  KV_ASSERT(put.tail == kNoBlock || index.pin_count(put.tail) > 0);  // so its id still means the same block

  // The chain was dropped from above, so blocks cannot be linked below it; the writer sees this block by block.
  if (put.tail != kNoBlock && !index.is_linked(put.tail)) {
    pool.return_slot(slot);
    ++shelf_.counters.refused_blocks;
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
    const Usage usage = slots_.first_usage(put, i);
    block = pool.link(tree, put.tail, {put.hashes[i], slot, put.positions[i], token_ids, extra, 0, usage}, tick);
    ++shelf_.counters.stored_blocks;
    ++put.space->traffic.stored_blocks;
    if (shelf_.tier) disk_.stored(tree, block, put.tail, tick);
  } else {
    const auto stored = pool.arena().checksums(index.slot(block));
    status = std::equal(stored.begin(), stored.end(), checksums.begin()) ? CommitStatus::kAlreadyStored
                                                                         : CommitStatus::kConflict;
    ++(status == CommitStatus::kConflict ? shelf_.counters.put_conflict_blocks : shelf_.counters.already_stored_blocks);
    pool.return_slot(slot);
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

void PutDesk::end_put(PutId id) {
  const auto it = puts_.find(id);
  KV_ASSERT(it != puts_.end());
  Shelf::Call call(shelf_);
  end(it);
  tidy(BlockPool::time_of(shelf_.pool.last_tick()), call.steps);
}

void PutDesk::end(std::map<PutId, OpenPut>::iterator it) {
  OpenPut& put = it->second;
  if (put.tail != kNoBlock) shelf_.pool.unpin(put.tail);
  KV_ASSERT(put.committed_count <= put.slots.size());
  slots_.end_ids(put);
  // A context's keeper tries again.
  const std::size_t refused_count = put.is_admitted ? 0 : put.hashes.size() - put.slots.size();
  // The first refused block stands for those behind it: a match ends there.
  if (refused_count > 0 && !put.is_set()) {
    const MissKind why = put.is_not_admitted ? MissKind::kNotAdmitted
                         : put.is_over_quota ? MissKind::kOverQuota
                                             : MissKind::kRefused;
    shelf_.departed.add(put.space->tree, put.hashes[put.slots.size()], why, shelf_.departed.now());
  }
  put.slots.erase(put.slots.begin(), put.slots.begin() + static_cast<std::ptrdiff_t>(put.committed_count));
  // Freed by tidy(), some per call: a put may have thousands of slots taken, and as many blocks pinned.
  Unwanted of_put{.space = put.space, .slots = std::move(put.slots), .pinned = {}};
  const std::size_t unpinned = put.committed_group().pinned_end;
  put.pinned.erase(put.pinned.begin(), put.pinned.begin() + static_cast<std::ptrdiff_t>(unpinned));
  of_put.pinned = std::move(put.pinned);
  unwanted_.push_back(std::move(of_put));
  (put.is_not_admitted ? shelf_.counters.not_admitted_blocks : shelf_.counters.refused_blocks) += refused_count;
  if (shelf_.tenants && put.is_over_quota && !put.is_admitted)
    shelf_.tenants->refused_memory(put.space->owner, refused_count);
  puts_by_session_.erase({put.session, it->first});
  puts_.erase(it);
}

Result<OfferPlan> PutDesk::offer_set(SpaceId set, std::span<const BlockHash> hashes,
                                     const SetPuts::OfferOptions& options, TimePoint now) {
  Shelf::Call call(shelf_);
  reads_.expire_leases(now, call.steps);
  const auto found = spaces_.find_in_set(set, hashes);
  if (!found) return found.error();
  if (const error_code wrong = sets_.check(*found->space, hashes, options)) return wrong;
  OfferPlan plan = sets_.plan(*found, hashes, options, now);
  if (!plan.wanted.empty() || options.put != PutId{}) {
    const auto put = set_put(*found->space, options);
    if (!put) return put.error();
    sets_.add(**put, plan, *found, hashes, options);
    plan.put = (*put)->id;
    if (!options.is_part) {
      tidy(now, call.steps);
      slots_.take(**put, plan, options.may_lose, now, call.steps);
    }
  }
  shelf_.counters.already_stored_blocks += plan.stored_count;
  return plan;
}

/// The put of the earlier parts; or a new one.
Result<OpenPut*> PutDesk::set_put(Space& set, const SetPuts::OfferOptions& options) {
  if (options.put != PutId{}) {
    const auto of_list = puts_.find(options.put);
    const bool is_ours = of_list != puts_.end() && of_list->second.session == options.session &&
                         of_list->second.space == &set && of_list->second.slots.empty() &&
                         of_list->second.groups.empty() == options.group_counts.empty();
    if (!is_ours) return Errc::kBadRequest;
    return &of_list->second;
  }
  return &begin(options.session, set);
}

std::vector<CommitStatus> PutDesk::commit_group(PutId id, std::span<const std::uint64_t> checksums, TimePoint now) {
  const auto put = puts_.find(id);
  KV_ASSERT(put != puts_.end());
  return sets_.commit_group(put->second, checksums, now);
}

void PutDesk::tidy(TimePoint now, Steps& steps) {
  for (; !unwanted_.empty() && steps.are_left();) {
    Unwanted& of_put = unwanted_.front();
    for (; !of_put.slots.empty() && steps.are_left(); of_put.slots.pop_back()) {
      shelf_.pool.return_slot(of_put.slots.back());
      steps.take(Steps::kRemoval);
    }
    for (; !of_put.pinned.empty() && steps.are_left(); of_put.pinned.pop_back()) {
      shelf_.pool.unpin(of_put.pinned.back());
      steps.take(Steps::kBlock);
    }
    if (!of_put.slots.empty() || !of_put.pinned.empty()) break;
    KV_ASSERT(of_put.space->put_count > 0);
    if (--of_put.space->put_count == 0) spaces_.may_be_idle(*of_put.space);
    unwanted_.pop_front();
  }
  reads_.end_more(steps);
  shelf_.evictor.reap(steps, now);
}

void PutDesk::end_session(SessionId session) {
  for (auto it = puts_by_session_.lower_bound({session, PutId{}});
       it != puts_by_session_.end() && it->first == session;) {
    const PutId put = it->second;
    ++it;
    end(puts_.find(put));
  }
}

bool PutDesk::is_storing_next(const FoundChain& found, std::span<const BlockHash> hashes) const {
  const std::size_t missed = found.prefix.block_count;
  std::size_t looks = 0;
  for (auto each = puts_.rbegin(); each != puts_.rend() && looks < kPutsLookedAt; ++each, ++looks) {
    const OpenPut& put = each->second;
    if (put.space != found.space || put.stored_count > missed) continue;
    const std::size_t i = missed - put.stored_count;
    if (i >= put.committed_count && i < put.slots.size() && put.hashes[i] == hashes[missed]) return true;
  }
  return false;
}

}  // namespace kv
