#include "store/store.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/block_pool.h"
#include "store/evictor.h"

namespace kv {
namespace {

constexpr std::size_t kEvictionsPerCall = 1024;  ///< At some 100 ns each.

struct Space {
  SpaceId id;
  NamespaceRecord record;
  NamespaceId name;
  TreeId tree;
};

/// A put under way. Its chain from the first block that was not here at the offer:
///     | committed | staged        | refused so far |
///     0           committed_count  slots.size()     hashes.size()
struct Put {
  SessionId session;
  const Space* space;
  std::size_t stored_count;  ///< Blocks of the offered chain before hashes[0].
  BlockId tail;  ///< The last block of the chain that is here; pinned, so all above stay. kNoBlock: the root.
  std::vector<BlockHash> hashes;
  std::vector<std::uint32_t> positions;
  std::vector<std::uint32_t> token_ids;  ///< Empty, or block_size per hash.
  std::vector<SlotId> slots;
  std::size_t committed_count = 0;  ///< Or freed by commit for want of need.
};

}  // namespace

struct Store::Impl {
  Impl(const StoreConfig& store_config, std::unique_ptr<Arena> arena)
      : config(store_config),
        pool(std::move(arena)),
        leases({store_config.lease_duration, store_config.lease_count_max, store_config.lease_count_per_session_max}),
        evictor(pool, [this](const std::function<void(BlockId)>& visit) {
          leases.for_each(visit);
          for (const auto& [id, put] : puts)
            if (put.tail != kNoBlock) visit(put.tail);
        }) {}

  StoreConfig config;
  BlockPool pool;
  LeaseTable leases;
  std::map<PutId, Put> puts;
  Evictor evictor;
  std::vector<std::unique_ptr<Space>> spaces;  ///< By SpaceId. Never removed.
  std::unordered_map<std::string, SpaceId> space_of_record;
  std::uint64_t put_count = 0;       ///< Ever: the last PutId.
  std::uint64_t move_pin_count = 0;  ///< Pins of pin_prefix that wait for their unpin.
  StoreStats counters;               ///< The counters only; gauges are asked for.

  const Space* find_space(SpaceId id) const {
    const auto index = static_cast<std::size_t>(id);
    return index < spaces.size() ? spaces[index].get() : nullptr;
  }
  void expire_leases(TimePoint now) {
    counters.leases_expired += leases.expire(now, [this](BlockId block) { pool.unpin(block); });
  }

  /// What every call with a chain begins with.
  struct Found {
    const Space* space;
    PrefixIndex::Prefix prefix;
  };
  Result<Found> find(SpaceId id, std::span<const BlockHash> hashes) const {
    const Space* space = find_space(id);
    if (space == nullptr) return Errc::kNoNamespace;
    if (hashes.size() > config.chain_blocks_max) return Errc::kTooLarge;
    return Found{space, pool.index().match(space->tree, hashes)};
  }

  void stage(Put& put, OfferPlan& plan, TimePoint now);
  void end(Put& put);
  std::string check_puts(std::size_t* staged_bytes, std::unordered_map<BlockId, std::uint64_t>* pins) const;
};

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::create(const StoreConfig& config) {
  if (config.lease_duration <= Duration::zero()) return Errc::kBadRequest;
  auto arena = Arena::create(config.arena);
  if (!arena) return arena.error();
  return std::unique_ptr<Store>(new Store(std::make_unique<Impl>(config, std::move(*arena))));
}

// -- namespaces

Result<SpaceId> Store::open(const NamespaceRecord& record) {
  if (const auto it = impl_->space_of_record.find(record.text()); it != impl_->space_of_record.end()) return it->second;
  if (!impl_->pool.arena().fits(record.block_bytes())) return Errc::kTooLarge;
  if (impl_->spaces.size() >= impl_->config.namespace_count_max) return Errc::kBusy;
  // Trees are grouped by size class, so that the evictor can ask for the oldest leaf end of a class.
  const TreeId tree = impl_->pool.index().add_tree(impl_->pool.arena().add_class(record.block_bytes()));
  const auto id = static_cast<SpaceId>(impl_->spaces.size());
  impl_->spaces.push_back(std::make_unique<Space>(Space{id, record, record.id(), tree}));
  impl_->space_of_record.emplace(record.text(), id);
  return id;
}

const NamespaceRecord* Store::find_namespace(SpaceId space) const {
  const Space* found = impl_->find_space(space);
  return found == nullptr ? nullptr : &found->record;
}

std::vector<NamespaceStats> Store::namespaces() const {
  std::vector<NamespaceStats> stats;
  for (const auto& space : impl_->spaces) {
    const std::size_t block_count = impl_->pool.index().block_count(space->tree);
    stats.push_back({space->id, space->record.text(), block_count, block_count * space->record.block_bytes()});
  }
  return stats;
}

// -- match

Result<Store::Match> Store::match(SpaceId space, std::span<const BlockHash> hashes, const MatchOptions& options,
                                  TimePoint now) {
  impl_->expire_leases(now);
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  BlockPool& pool = impl_->pool;
  const PrefixIndex::Prefix& prefix = found->prefix;
  pool.use(prefix, pool.tick(now));
  impl_->counters.match_hit_blocks += prefix.block_count;
  impl_->counters.match_miss_blocks += hashes.size() - prefix.block_count;

  Match match{.block_count = prefix.block_count};
  if (options.lease && prefix.block_count > 0) {
    const auto lease = impl_->leases.grant(options.session, prefix.last, now);
    if (lease) {
      pool.pin(prefix.last);
      match.lease = *lease;
      ++impl_->counters.leases_granted;
    } else {
      match.lease_error = Errc::kBusy;
      ++impl_->counters.leases_refused;
    }
  }

  const std::size_t block_size = found->space->record.block_size();
  if (options.token_ids.size() / block_size >= prefix.block_count) {
    const auto rest = options.token_ids.subspan(prefix.block_count * block_size);
    if (!rest.empty()) {
      const auto partial =
          pool.index().match_partial(found->space->tree, prefix.last, rest.first(std::min(rest.size(), block_size)));
      match.partial_token_count = partial.token_count;
      if (partial.token_count > 0) match.partial_block = pool.index().hash(partial.block);
    }
  }
  return match;
}

Result<void> Store::release(SessionId session, LeaseId lease) {
  const auto block = impl_->leases.release(session, lease);
  if (!block) return block.error();
  impl_->pool.unpin(*block);
  return {};
}

// -- get

Result<Store::PinnedPrefix> Store::pin_prefix(SpaceId space, std::span<const BlockHash> hashes, SessionId session,
                                              LeaseId lease, TimePoint now) {
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  BlockPool& pool = impl_->pool;
  pool.use(found->prefix, pool.tick(now));
  impl_->counters.get_hit_blocks += found->prefix.block_count;
  impl_->counters.get_miss_blocks += hashes.size() - found->prefix.block_count;

  PinnedPrefix pinned;
  pinned.blocks.reserve(found->prefix.block_count);
  for (const BlockId block : pool.blocks_of(found->prefix)) {
    pool.pin(block);
    const SlotId slot = pool.index().slot(block);
    pinned.blocks.push_back({block, pool.arena().bytes(slot), pool.arena().checksums(slot)});
  }
  impl_->move_pin_count += pinned.blocks.size();
  if (lease != LeaseId{}) static_cast<void>(release(session, lease));  // after pinning: nothing is let go in between
  return pinned;
}

void Store::unpin(const PinnedPrefix& prefix) {
  for (const PinnedBlock& block : prefix.blocks) impl_->pool.unpin(block.id);
  impl_->move_pin_count -= prefix.blocks.size();
}

// -- put

Result<Store::OfferPlan> Store::offer(SpaceId space, std::span<const BlockHash> hashes, const OfferOptions& options,
                                      TimePoint now) {
  impl_->expire_leases(now);
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  const std::size_t block_size = found->space->record.block_size();
  if (hashes.empty()) return Errc::kBadRequest;
  if (!options.positions.empty() && options.positions.size() != hashes.size()) return Errc::kBadRequest;
  if (std::adjacent_find(options.positions.begin(), options.positions.end(), std::greater_equal<>{}) !=
      options.positions.end())
    return Errc::kBadRequest;
  if (!options.token_ids.empty() && options.token_ids.size() != hashes.size() * block_size) return Errc::kBadRequest;

  BlockPool& pool = impl_->pool;
  const PrefixIndex::Prefix& prefix = found->prefix;
  const std::size_t stored_count = prefix.block_count;
  pool.use(prefix, pool.tick(now));
  impl_->counters.already_stored_blocks += stored_count;
  OfferPlan plan{.stored_count = stored_count};
  if (stored_count == hashes.size()) return plan;

  plan.put = PutId{++impl_->put_count};
  Put& put = impl_->puts[plan.put];
  put.session = options.session;
  put.space = found->space;
  put.stored_count = stored_count;
  put.tail = prefix.last;
  if (put.tail != kNoBlock) pool.pin(put.tail);
  put.hashes.assign(hashes.begin() + stored_count, hashes.end());
  for (std::size_t i = stored_count; i < hashes.size(); ++i)
    put.positions.push_back(options.positions.empty() ? static_cast<std::uint32_t>(i) : options.positions[i]);
  if (!options.token_ids.empty())
    put.token_ids.assign(options.token_ids.begin() + stored_count * block_size, options.token_ids.end());
  impl_->stage(put, plan, now);
  return plan;
}

Result<Store::OfferPlan> Store::offer_more(PutId id, TimePoint now) {
  impl_->expire_leases(now);
  const auto it = impl_->puts.find(id);
  if (it == impl_->puts.end()) return Errc::kBadRequest;
  OfferPlan plan{.put = id, .stored_count = it->second.stored_count};
  impl_->stage(it->second, plan, now);
  return plan;
}

/// Stages as many more blocks of the chain as there is memory for, into `plan`.
void Store::Impl::stage(Put& put, OfferPlan& plan, TimePoint now) {
  const std::size_t block_bytes = put.space->record.block_bytes();
  std::size_t budget = kEvictionsPerCall;
  while (put.slots.size() < put.hashes.size()) {
    const std::size_t i = put.slots.size();
    const Evictor::Found found = evictor.find_slot(block_bytes, &budget, now);
    plan.again = found.again;
    if (!found.slot) break;
    put.slots.push_back(*found.slot);
    plan.staged.push_back({.index = static_cast<std::uint32_t>(put.stored_count + i),
                           .bytes = pool.arena().bytes(*found.slot),
                           .seed = checksum_seed(put.space->name, put.hashes[i])});
  }
  plan.refused_count = put.hashes.size() - put.slots.size();
}

Store::CommitStatus Store::commit(PutId id, std::span<const std::uint64_t> checksums, TimePoint now) {
  const auto it = impl_->puts.find(id);
  KV_ASSERT(it != impl_->puts.end());
  Put& put = it->second;
  BlockPool& pool = impl_->pool;
  PrefixIndex& index = pool.index();
  KV_ASSERT(put.committed_count < put.slots.size());
  const std::size_t i = put.committed_count++;
  const SlotId slot = put.slots[i];
  const auto sums = pool.arena().checksums(slot);
  KV_ASSERT(checksums.size() == sums.size());

  if (put.tail != kNoBlock && !index.is_linked(put.tail)) {
    pool.unstage(slot);
    ++impl_->counters.refused_blocks;
    return CommitStatus::kRefused;
  }
  const TreeId tree = put.space->tree;
  const Tick tick = pool.tick(now);
  CommitStatus status = CommitStatus::kStored;
  BlockId block = index.find_child(tree, put.tail, put.hashes[i]);
  if (block == kNoBlock) {
    std::copy(checksums.begin(), checksums.end(), sums.begin());
    const std::size_t block_size = put.space->record.block_size();
    const auto token_ids = put.token_ids.empty() ? std::span<const std::uint32_t>{}
                                                 : std::span(put.token_ids).subspan(i * block_size, block_size);
    block = pool.link(tree, put.tail, {put.hashes[i], slot, put.positions[i], token_ids}, tick);
    ++impl_->counters.stored_blocks;
  } else {
    const auto stored = pool.arena().checksums(index.slot(block));
    status = std::equal(stored.begin(), stored.end(), checksums.begin()) ? CommitStatus::kAlreadyStored
                                                                         : CommitStatus::kConflict;
    ++(status == CommitStatus::kConflict ? impl_->counters.put_conflict_blocks : impl_->counters.already_stored_blocks);
    pool.unstage(slot);
    index.touch(block, tick);
    pool.arena().use(index.slot(block), tick);
  }
  pool.pin(block);  // before the block above is let go
  if (put.tail != kNoBlock) pool.unpin(put.tail);
  put.tail = block;
  return status;
}

void Store::end_put(PutId id) {
  const auto it = impl_->puts.find(id);
  KV_ASSERT(it != impl_->puts.end());
  impl_->end(it->second);
  impl_->puts.erase(it);
}

void Store::Impl::end(Put& put) {
  for (std::size_t i = put.committed_count; i < put.slots.size(); ++i) pool.unstage(put.slots[i]);
  if (put.tail != kNoBlock) pool.unpin(put.tail);
  counters.refused_blocks += put.hashes.size() - put.slots.size();
}

// -- retention

Result<std::size_t> Store::touch(SpaceId space, std::span<const BlockHash> hashes, TimePoint now) {
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  impl_->pool.use(found->prefix, impl_->pool.tick(now));
  return found->prefix.block_count;
}

Result<std::size_t> Store::retain(SpaceId space, std::span<const BlockHash> hashes) {
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  BlockPool& pool = impl_->pool;
  std::vector<BlockId> fresh = pool.blocks_of(found->prefix);
  std::erase_if(fresh, [&](BlockId block) { return pool.is_retained(block); });
  const std::size_t bytes = pool.retained_bytes() + fresh.size() * found->space->record.block_bytes();
  if (!fresh.empty() && static_cast<double>(bytes) >
                            impl_->config.pinned_fraction_max * static_cast<double>(pool.arena().capacity_bytes()))
    return Errc::kBusy;
  for (const BlockId block : fresh) pool.retain(block);
  return found->prefix.block_count;
}

Result<std::size_t> Store::unretain(SpaceId space, std::span<const BlockHash> hashes) {
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  std::size_t count = 0;
  for (const BlockId block : impl_->pool.blocks_of(found->prefix)) count += impl_->pool.unretain(block);
  return count;
}

Result<std::size_t> Store::drop(SpaceId space, std::span<const BlockHash> hashes) {
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  BlockPool& pool = impl_->pool;
  std::vector<BlockId> tops;
  if (!hashes.empty()) {
    if (found->prefix.block_count == hashes.size()) tops.push_back(found->prefix.last);
  } else {
    pool.index().for_each(found->space->tree, [&](BlockId block) {
      if (pool.index().parent(block) == kNoBlock) tops.push_back(block);
    });
  }
  std::size_t count = 0;
  for (const BlockId top : tops) count += pool.unlink(top, [](BlockId) {});
  impl_->counters.dropped_blocks += count;
  return count;
}

// -- housekeeping

void Store::expire_leases(TimePoint now) { impl_->expire_leases(now); }

void Store::end_session(SessionId session) {
  impl_->leases.end_session(session, [this](BlockId block) { impl_->pool.unpin(block); });
  for (auto it = impl_->puts.begin(); it != impl_->puts.end();) {
    if (it->second.session == session) {
      impl_->end(it->second);
      it = impl_->puts.erase(it);
    } else {
      ++it;
    }
  }
}

StoreStats Store::stats() const {
  const BlockPool& pool = impl_->pool;
  const Evictor::Stats& evictions = impl_->evictor.stats();
  StoreStats stats = impl_->counters;
  stats.capacity_bytes = pool.arena().capacity_bytes();
  stats.allocated_bytes = pool.arena().allocated_bytes();
  stats.slab_bytes = pool.arena().slab_bytes();
  stats.block_count = pool.index().block_count();
  stats.staged_count = pool.staged_count();
  stats.pinned_count = pool.pinned_count();
  stats.lease_count = impl_->leases.lease_count();
  stats.namespace_count = impl_->spaces.size();
  stats.index_bytes = pool.index().memory_bytes();
  stats.evicted_blocks = evictions.evicted_blocks;
  stats.evicted_bytes = evictions.evicted_bytes;
  stats.slab_moves = evictions.slab_moves;
  stats.eviction_age_log2_ms = evictions.age_log2_ms;
  for (const Arena::SizeClass& of : pool.arena().classes())
    stats.classes.push_back({of.block_bytes, of.slot_count, of.used_count, of.slab_count});
  return stats;
}

std::string Store::check() const {
  const BlockPool& pool = impl_->pool;
  const PrefixIndex& index = pool.index();
  const Arena& arena = pool.arena();
  for (const std::string& broken : {index.check(), arena.check(), impl_->leases.check()})
    if (!broken.empty()) return broken;

  // What should be pinned, and how often, moves apart: those are in their callers' hands.
  std::unordered_map<BlockId, std::uint64_t> pins;
  impl_->leases.for_each([&](BlockId block) { ++pins[block]; });
  for (const BlockId block : pool.retained()) ++pins[block];
  std::size_t bytes = 0, pinned_count = 0, pin_count = 0, retained_bytes = 0;
  if (std::string broken = impl_->check_puts(&bytes, &pins); !broken.empty()) return broken;

  std::string broken;
  const auto check_block = [&](BlockId block, std::size_t block_bytes) {
    const SlotId slot = index.slot(block);
    if (!arena.is_allocated(slot) || arena.owner(slot) != block) {  // so no two blocks have one slot
      broken = "store: a block's slot is not its own";
      return;
    }
    if (arena.block_bytes(slot) != block_bytes) broken = "store: a block lies in a slot of another size";
    if (arena.is_held(slot) != (index.pin_count(block) > 0))
      broken = "store: held slots are not those of pinned blocks";
    if (const auto it = pins.find(block); it != pins.end() && it->second > index.pin_count(block))
      broken = "store: a block lacks a pin";
    bytes += block_bytes;
    pin_count += index.pin_count(block);
    pinned_count += index.pin_count(block) > 0;
    if (pool.is_retained(block)) retained_bytes += block_bytes;
  };
  for (const auto& space : impl_->spaces)
    index.for_each(space->tree, [&](BlockId block) { check_block(block, space->record.block_bytes()); });
  for (const BlockId block : pool.unlinked()) {
    if (index.is_linked(block) || index.pin_count(block) == 0)
      return "store: an unlinked block is linked or not pinned";
    check_block(block, pool.block_bytes(block));
  }
  if (!broken.empty()) return broken;
  if (bytes != arena.allocated_bytes()) return "store: allocated_bytes is not the sum of its blocks";  // invariant 5
  if (pinned_count != pool.pinned_count()) return "store: pinned_count is wrong";
  if (retained_bytes != pool.retained_bytes()) return "store: retained_bytes is wrong";
  for (const auto& [block, count] : pins) pin_count -= count;
  if (pin_count != impl_->move_pin_count) return "store: a pin has no owner";
  return "";
}

/// Adds the puts' staged bytes and pins to those given.
std::string Store::Impl::check_puts(std::size_t* staged_bytes, std::unordered_map<BlockId, std::uint64_t>* pins) const {
  std::unordered_set<SlotId> staged;
  for (const auto& [id, put] : puts) {
    if (put.tail != kNoBlock) ++(*pins)[put.tail];
    for (std::size_t i = put.committed_count; i < put.slots.size(); ++i) {
      const SlotId slot = put.slots[i];
      if (!pool.arena().is_allocated(slot) || !pool.arena().is_held(slot) || pool.arena().owner(slot) != kNoBlock)
        return "store: a staged slot is not the put's own";
      if (pool.arena().block_bytes(slot) != put.space->record.block_bytes())
        return "store: a staged slot is of another size";
      if (!staged.insert(slot).second) return "store: a slot is staged twice";
      *staged_bytes += pool.arena().block_bytes(slot);
    }
  }
  return staged.size() == pool.staged_count() ? "" : "store: staged_count is wrong";
}

}  // namespace kv
