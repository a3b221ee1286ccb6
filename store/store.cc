#include "store/store.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "store/store_impl.h"

namespace kv {
namespace {

constexpr std::size_t kLeasesEndedMax = 128;  ///< Ended by one call because they expired.

}  // namespace

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::create(const StoreConfig& config) {
  if (config.lease_duration <= Duration::zero()) return Errc::kBadRequest;
  if (config.spill.reserve < 0 || config.spill.reserve > 1) return Errc::kBadRequest;
  if (!(config.leased_fraction_max >= 0 && config.leased_fraction_max <= 1)) return Errc::kBadRequest;
  // Last, since it takes long: it touches every page of the arena.
  auto arena = Arena::create(config.arena);
  if (!arena) return arena.error();
  StoreConfig with_bounds = config;
  if (with_bounds.index_bytes_max == 0) with_bounds.index_bytes_max = index_bytes_for(config.arena.capacity_bytes);
  if (with_bounds.disk.index_bytes_max == 0) with_bounds.disk.index_bytes_max = with_bounds.index_bytes_max / 2;
  auto impl = std::make_unique<Impl>(with_bounds, std::move(*arena));
  impl->has_index_bound = config.index_bytes_max != 0;
  return std::unique_ptr<Store>(new Store(std::move(impl)));
}

// -- namespaces

std::span<std::byte> Store::memory() const { return impl_->pool.arena().memory(); }

Result<SpaceId> Store::open(const NamespaceRecord& record, SessionId session) {
  Space* space = impl_->spaces.find(record.text());
  if (space == nullptr) {
    const auto opened = impl_->open(std::make_shared<const NamespaceRecord>(record));
    if (!opened) return opened.error();
    space = *opened;
  }
  impl_->spaces.use(*space);
  if (session != SessionId{}) impl_->spaces.open(*space, session);
  return space->id;
}

Result<Store::Space*> Store::Impl::open(std::shared_ptr<const NamespaceRecord> record) {
  const std::size_t block_bytes = record->block_bytes();
  if (!pool.arena().fits(block_bytes)) return Errc::kTooLarge;
  if (tenants) {
    if (!tenants->has_room()) return Errc::kBusy;
    const TenantId owner = tenants->enter(record->owner());
    if (!tenants->may_open(owner) && !forget_one_of(owner)) {
      tenants->refused_namespace(owner);
      return Errc::kOverQuota;
    }
    tenants->leave(owner);  // the owner may enter again below
  }
  if (spaces.count() >= config.namespace_count_max && !forget_one()) return Errc::kBusy;
  // Chains are grouped by size class, so that the evictor can ask for the oldest leaf end of a class. In a set each
  // block has its own class, known when the block comes.
  const bool is_set = record->is_set();
  if (!is_set && !may_use_class(block_bytes)) return Errc::kBusy;
  const TreeKind kind = is_set ? TreeKind::kSet : TreeKind::kChain;
  TenantId owner{};
  std::uint32_t group = is_set ? 0 : pool.arena().add_class(block_bytes);
  if (tenants) {
    owner = tenants->enter(record->owner());
    if (!is_set) {
      tenants->use_size(owner, block_bytes, group);
      group = tenants->group(owner, block_bytes);
    }
  }
  const TreeId tree = pool.index().add_tree(group, kind);
  if (tier) {
    const std::uint32_t disk_group = tenants ? tenants->disk_group(owner) : 0;
    KV_ASSERT(tier->add_tree(record->id(), block_bytes, kind, disk_group, record->callers_id()) == tree);
    spiller->add_tree(tree, record);
  }
  if (events) events->open(tree, record);
  Space& space = spaces.add(std::move(record), tree);
  departed.set_tree(tree, space.name);
  space.owner = owner;
  if (tenants) tenants->opened(owner, tree);
  if (!is_set) KV_ASSERT(use_class(space, block_bytes));
  return &space;
}

bool Store::Impl::may_use_class(std::size_t slot_bytes) const {
  return spaces_of_size.contains(slot_bytes) || spaces_of_size.size() <= PrefixIndex::kGroupMax;
}

bool Store::Impl::use_class(Space& space, std::size_t slot_bytes) {
  if (space.slot_sizes.contains(slot_bytes)) return true;
  if (!may_use_class(slot_bytes)) return false;
  if (tenants && space.record->is_set()) {  // a chain's one size was entered with its tree
    if (!tenants->has_room()) return false;
    tenants->use_size(space.owner, slot_bytes, pool.arena().add_class(slot_bytes));
  }
  space.slot_sizes.insert(slot_bytes);
  ++spaces_of_size[slot_bytes];
  return true;
}

/// Whether the namespace is without blocks and work under way. Leases, retention and moves are covered: they pin
/// blocks, and a pinned block keeps its tree from being empty.
bool Store::Impl::is_idle(const Space& space) const {
  return space.put_count == 0 && pool.index().is_empty(space.tree) && (!tier || tier->index().is_empty(space.tree)) &&
         (!loader || !loader->needs(space.tree));
}

/// Makes candidates of the namespaces that have lost their last block since the last call.
void Store::Impl::take_emptied() {
  for (const TreeId tree : pool.index().take_emptied()) spaces.may_be_idle(*spaces.find(tree));
  if (!tier) return;
  for (const TreeId tree : tier->take_emptied()) spaces.may_be_idle(*spaces.find(tree));
}

bool Store::Impl::forget_one() {
  take_emptied();
  Space* const space = spaces.next_idle([this](const Space& candidate) { return is_idle(candidate); });
  if (space != nullptr) forget(*space);
  return space != nullptr;
}

/// Forgets the tenant's least recently used idle namespace. Scans all namespaces, but only for a tenant at its maximum.
bool Store::Impl::forget_one_of(TenantId tenant) {
  Space* oldest = nullptr;
  spaces.for_each([&](Space& space) {
    if (space.owner == tenant && is_idle(space) && (oldest == nullptr || space.last_use < oldest->last_use))
      oldest = &space;
  });
  if (oldest == nullptr) return false;
  take_emptied();
  forget(*oldest);
  return true;
}

void Store::Impl::forget(Space& space) {
  pool.index().remove_tree(space.tree);
  for (const std::size_t slot_bytes : space.slot_sizes) {
    if (tenants) tenants->end_size(space.owner, slot_bytes);
    const auto of_size = spaces_of_size.find(slot_bytes);
    KV_ASSERT(of_size != spaces_of_size.end() && of_size->second > 0);
    if (--of_size->second > 0) continue;
    spaces_of_size.erase(of_size);
    pool.arena().remove_class(slot_bytes);
  }
  if (tier) {
    tier->remove_tree(space.tree);
    // The record on disk goes as well, but only once the namespace's blocks there are unreachable: not while a load is
    // under way, and not after one broke off.
    const bool may_be_on_disk = spiller->remove_tree(space.tree);
    if (loader) {
      if (may_be_on_disk) loader->keep_space(space.name);
    } else if (may_be_on_disk && !unseen_spaces.contains(space.name)) {
      spiller->remove_record(space.name);
    }
  }
  if (tenants) tenants->closed(space.owner, space.tree);
  if (events) events->close(space.tree);
  spaces.remove(space);
  ++counters.forgotten_namespaces;
}

std::shared_ptr<const NamespaceRecord> Store::find_namespace(SpaceId space) const {
  const Space* const found = impl_->spaces.find(space);
  return found == nullptr ? nullptr : found->record;
}

std::size_t Store::namespace_count() const { return impl_->spaces.count(); }

std::vector<NamespaceStats> Store::namespaces() const {
  std::vector<NamespaceStats> stats;
  impl_->spaces.for_each([&](const Space& space) {
    const PrefixIndex& index = impl_->pool.index();
    const std::size_t block_count = index.block_count(space.tree);
    const std::uint64_t total_bytes =
        space.record->is_set() ? index.total_bytes(space.tree) : block_count * space.record->block_bytes();
    stats.push_back({space.id, space.record->text(), block_count, total_bytes, space.traffic, space.roots.counts()});
  });
  return stats;
}

bool Store::forget(SpaceId id) {
  const Space* const found = impl_->spaces.find(id);
  if (found == nullptr || !impl_->is_idle(*found)) return false;
  impl_->take_emptied();
  impl_->forget(*impl_->spaces.find(id));
  return true;
}

// -- tenants

void Store::set_tenants(const std::vector<TenantLimits>& limits) {
  KV_ASSERT(impl_->tenants != nullptr);
  impl_->tenants->set_limits(limits);
}

std::vector<TenantStats> Store::tenants() const {
  return impl_->tenants ? impl_->tenants->stats() : std::vector<TenantStats>();
}

// -- match

Result<Store::Match> Store::match(SpaceId space, std::span<const BlockHash> hashes, const MatchOptions& options,
                                  TimePoint now) {
  Impl::Call call(*impl_);
  impl_->policy->prefetch();
  impl_->expire_leases(now, call.steps);
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  const auto extras = options.extras;
  if (!extras.empty() && (extras.size() < hashes.size() || extras.size() > hashes.size() + 1)) return Errc::kBadRequest;
  if (!options.chain.fits(hashes.size())) return Errc::kBadRequest;
  BlockPool& pool = impl_->pool;
  const PrefixIndex::Prefix& prefix = found->prefix;
  // For the policy, a request for blocks that are stored on other nodes would mean that it should have kept them.
  const std::size_t found_count = prefix.block_count + found->disk_block_count();
  std::size_t known_count = 0;
  if (options.is_elsewhere) {
    known_count = impl_->ask(*found, hashes.first(found_count), options.hint, {}, now);
  } else {
    // Lookups for the first absent block take two cache misses: both proceed meanwhile.
    if (found_count < hashes.size()) impl_->expect_miss(found->space->tree, hashes[found_count]);
    impl_->count_lookup(*found, hashes, now);
    impl_->count_miss(*found, hashes, now);
    known_count = impl_->ask(*found, hashes, options.hint, options.chain, now, options.sampled);
  }
  Match match{.memory_block_count = prefix.block_count,
              .disk_block_count = found->disk_block_count(),
              .known_block_count = known_count};
  impl_->use_contexts(*found, hashes, /*is_read=*/false, now);
  impl_->counters.match_hit_blocks += match.memory_block_count;
  impl_->counters.match_disk_blocks += match.disk_block_count;
  impl_->counters.match_miss_blocks += hashes.size() - match.memory_block_count - match.disk_block_count;

  if (options.lease && prefix.block_count > 0) {
    const auto lease = impl_->grant(options.session, prefix.last, now);
    if (lease) {
      match.lease = *lease;
      ++impl_->counters.leases_granted;
    } else {
      match.lease_error = static_cast<Errc>(lease.error().value());
      ++impl_->counters.leases_refused;
    }
  }

  const std::size_t block_size = found->space->record->block_size();
  // Without the extra of the next block, its tokens do not determine its content.
  const bool knows_extra = extras.empty() ? found->space->record->has_own_chain() : extras.size() > prefix.block_count;
  if (knows_extra && options.token_ids.size() / block_size >= prefix.block_count) {
    const auto rest = options.token_ids.subspan(prefix.block_count * block_size);
    if (!rest.empty()) {
      const auto partial =
          pool.index().match_partial(found->space->tree, prefix.last, rest.first(std::min(rest.size(), block_size)),
                                     extras.empty() ? ExtraDigest{} : extras[prefix.block_count]);
      match.partial_token_count = partial.token_count;
      if (partial.token_count > 0) match.partial_block = pool.index().hash(partial.block);
    }
  }
  return match;
}

std::size_t Store::Impl::ask(const Found& found, std::span<const BlockHash> hashes, ReuseHint hint,
                             const ChainPart& chain, TimePoint now, const SampledNames* sampled) {
  EvictionPolicy::Request request{.tree = found.space->tree,
                                  .hashes = hashes,
                                  .found_count = found.prefix.block_count + found.disk_block_count(),
                                  .block_size = found.space->record->block_size(),
                                  .hint = hint,
                                  .tenant = found.space->tenant,
                                  .chain = chain,
                                  .sampled = sampled};
  std::size_t known = request.found_count;
  const std::uint16_t trait = tell_asked(request, found.prefix.block_count, now, &known);
  const Tick tick = pool.tick(now);
  pool.use(found.prefix, tick, Usage{1, passed_count(request.passed(0) + 1 - found.prefix.block_count), trait});
  if (found.disk.block_count > 0) tier->touch(found.disk.last, tick);
  return known;
}

std::uint16_t Store::Impl::tell_asked(const EvictionPolicy::Request& request, std::size_t memory_count, TimePoint now,
                                      std::size_t* known) {
  const std::uint16_t trait = policy->asked(request, known);
  if (curve) curve->asked(request, memory_count, trait, policy->clock(), now);
  return trait;
}

std::uint16_t Store::Impl::tell_offered(const EvictionPolicy::Request& request, Usage above, Tick tick) {
  const std::uint16_t trait = policy->offered(request, above, tick);
  if (curve) curve->offered(request, trait, policy->clock());
  return trait;
}

bool Store::learn() {
  if (impl_->policy->learn()) return true;  // one of them per call, as far as possible
  return impl_->curve && impl_->curve->learn(*impl_->policy);
}

Result<LeaseId> Store::Impl::grant(SessionId session, BlockId block, TimePoint now) {
  // A lease on already leased blocks is granted even at the bound.
  if (tenants && !tenants->may_lease(tenants->of(pool.index().tree(block)), 1)) return Errc::kOverQuota;
  const std::size_t added = pool.unleased_bytes(block);
  const std::size_t bytes = pool.leased_bytes() + added;
  const double bytes_max = config.leased_fraction_max * static_cast<double>(pool.arena().capacity_bytes());
  if (added > 0 && static_cast<double>(bytes) > bytes_max) return Errc::kBusy;
  const auto lease = leases.grant(session, block, now);
  if (lease) pool.lease(block);
  return lease;
}

Result<void> Store::release(SessionId session, LeaseId lease) {
  LeaseId next{};
  const auto block = impl_->leases.release(session, lease, &next);
  if (!block) return block.error();
  impl_->pool.end_lease(*block);
  while (next != LeaseId{}) {  // the rest of a promise for several blocks; parts may have expired
    const auto more = impl_->leases.release(session, std::exchange(next, LeaseId{}), &next);
    if (more) impl_->pool.end_lease(*more);
  }
  return {};
}

// -- get

Result<Store::PinnedPrefix> Store::pin_prefix(SpaceId space, std::span<const BlockHash> hashes,
                                              const GetOptions& options, TimePoint now) {
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  BlockPool& pool = impl_->pool;
  // A lease comes from a match, which has counted.
  if (options.lease == LeaseId{} && !options.is_part) {
    impl_->ask(*found, hashes, ReuseHint::kNone, {}, now);
    impl_->count_lookup(*found, hashes, now);
  } else {
    impl_->use(*found, now);
  }
  const std::size_t disk_count = options.disk ? found->disk_block_count() : 0;
  if (!options.is_part) {
    impl_->use_contexts(*found, hashes, /*is_read=*/true, now);
    impl_->counters.get_hit_blocks += found->prefix.block_count;
    impl_->counters.get_disk_blocks += disk_count;
    impl_->counters.get_miss_blocks += hashes.size() - found->prefix.block_count - disk_count;
  }

  PinnedPrefix pinned = impl_->pin_blocks(pool.blocks_of(found->prefix));
  if (disk_count > 0) impl_->pin_spilled(*found, hashes, pinned);
  if (options.lease != LeaseId{})
    // After pinning, so that the blocks stay protected. An ended lease is not an error: the pins count now.
    static_cast<void>(release(options.session, options.lease));
  return pinned;
}

Store::PinnedPrefix Store::Impl::pin_blocks(std::span<const BlockId> blocks) {
  PinnedPrefix pinned;
  pinned.blocks.reserve(blocks.size());
  // Until unpin(), these slots are not reused; the spans below stay valid without the lock.
  pool.pin(blocks);
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    const SlotId slot = pool.index().slot(blocks[i]);
    pinned.blocks.push_back({blocks[i], i, pool.arena().bytes(slot), pool.arena().checksums(slot)});
  }
  move_pin_count += pinned.blocks.size();
  return pinned;
}

void Store::unpin(const PinnedPrefix& prefix) {
  KV_ASSERT(impl_->move_pin_count >= prefix.blocks.size());
  KV_ASSERT(prefix.spilled.empty() || impl_->tier != nullptr);
  if (prefix.kind == SpaceKind::kSet) {
    for (const PinnedBlock& block : prefix.blocks) impl_->pool.unpin(block.id);
  } else {
    std::vector<BlockId> blocks;
    blocks.reserve(prefix.blocks.size());
    for (const PinnedBlock& block : prefix.blocks) blocks.push_back(block.id);
    impl_->pool.unpin(blocks);
  }
  impl_->move_pin_count -= prefix.blocks.size();
  for (const SpilledBlock& block : prefix.spilled) impl_->tier->unpin(block.id);
}

// -- retention

Result<std::size_t> Store::touch(SpaceId space, std::span<const BlockHash> hashes, TimePoint now) {
  if (impl_->is_set(space)) return impl_->touch_set(space, hashes, now);
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  impl_->use(*found, now);
  impl_->use_contexts(*found, hashes, /*is_read=*/false, now);
  return found->prefix.block_count;
}

Result<std::size_t> Store::retain(SpaceId space, std::span<const BlockHash> hashes,
                                  std::vector<BlockHash>* fresh_names) {
  if (impl_->is_set(space)) return impl_->retain_set(space, hashes, fresh_names);
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  BlockPool& pool = impl_->pool;
  // All or nothing: the bound is checked for the whole prefix before the first block is retained.
  std::vector<BlockId> fresh = pool.blocks_of(found->prefix);
  std::erase_if(fresh, [&](BlockId block) { return pool.is_retained_on_request(block); });
  // A block that a context keeps is already counted.
  const auto is_new = [&](BlockId block) { return !pool.is_retained(block); };
  const std::size_t fresh_bytes =
      static_cast<std::size_t>(std::ranges::count_if(fresh, is_new)) * found->space->record->block_bytes();
  if (fresh_bytes > 0 && impl_->is_over_retained(fresh_bytes)) return Errc::kBusy;
  if (impl_->tenants && !impl_->tenants->may_retain(found->space->owner, fresh_bytes)) return Errc::kOverQuota;
  for (const BlockId block : fresh) pool.retain(block);
  return found->prefix.block_count;
}

Result<std::size_t> Store::unretain(SpaceId space, std::span<const BlockHash> hashes) {
  if (impl_->is_set(space)) return impl_->unretain_set(space, hashes);
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  std::size_t count = 0;
  for (const BlockId block : impl_->pool.blocks_of(found->prefix)) count += impl_->pool.unretain(block);
  return count;
}

void Store::unretain_all() {
  std::vector<BlockId> retained;
  for (const auto& [block, retention] : impl_->pool.retained()) retained.push_back(block);
  for (const BlockId block : retained) impl_->pool.unretain(block);
  impl_->end_all_keeps();
}

std::vector<BlockId> Store::Impl::tops_of(const PrefixIndex& index, TreeId tree, std::span<const BlockHash> hashes) {
  std::vector<BlockId> tops;
  if (!hashes.empty()) {
    const PrefixIndex::Prefix prefix = index.match(tree, hashes);
    if (prefix.block_count == hashes.size()) tops.push_back(prefix.last);
  } else {
    index.for_each(tree, [&](BlockId block) {
      if (index.parent(block) == kNoBlock) tops.push_back(block);
    });
  }
  return tops;
}

Result<std::size_t> Store::drop(SpaceId space, std::span<const BlockHash> hashes, DiskDrop* kept) {
  if (hashes.empty()) return impl_->drop_all(space, kept);
  const auto found = impl_->find(space, hashes);
  if (!found) return found.error();
  const TreeId tree = found->space->tree;
  BlockPool& pool = impl_->pool;
  // The disk first: blocks that leave memory count there from then on.
  const std::size_t count = impl_->tier ? impl_->drop_spilled(tree, hashes) : 0;
  if (impl_->loader) impl_->loader->drop(tree, hashes);
  impl_->counters.dropped_blocks += count;
  if (kept != nullptr) *kept = impl_->disk_drop(*found->space, hashes.back());
  if (found->prefix.block_count == hashes.size()) pool.detach(found->prefix.last, BlockPool::Removal::kDrop);
  Impl::Call call(*impl_);
  return count + impl_->evictor.reap(call.steps, BlockPool::time_of(pool.last_tick()));
}

/// The whole namespace, of either kind.
Result<std::size_t> Store::Impl::drop_all(SpaceId id, DiskDrop* kept) {
  Space* const space = spaces.find(id);
  if (space == nullptr) return Errc::kNoNamespace;
  spaces.use(*space);
  const std::size_t count = tier ? drop_spilled(space->tree, {}) : 0;
  if (loader) loader->drop(space->tree, {});
  counters.dropped_blocks += count;
  if (kept != nullptr) *kept = disk_drop(*space, BlockHash{});
  pool.detach_all(space->tree, BlockPool::Removal::kDrop);
  Call call(*this);
  return count + evictor.reap(call.steps, BlockPool::time_of(pool.last_tick()));
}

DiskDrop Store::Impl::disk_drop(const Space& space, const BlockHash& hash) const {
  DiskDrop drop{.space = space.name, .hash = hash};
  if (tier) drop.before = tier->next_key();  // covers writes under way too
  return drop;
}

bool Store::is_dropping() const { return impl_->pool.index().has_detached(); }

std::size_t Store::drop_more(TimePoint now) {
  Impl::Call call(*impl_);
  return impl_->evictor.reap(call.steps, now);
}

// -- housekeeping

void Store::expire_leases(TimePoint now) {
  Impl::Call call(*impl_);
  impl_->expire_leases(now, call.steps);
  impl_->tidy(now, call.steps);
}

void Store::Impl::expire_leases(TimePoint now, Steps& steps) {
  departed.tell_time(now);
  const auto ended = [&](BlockId block) { end_lease(block, steps); };
  for (std::size_t i = 0; i < kLeasesEndedMax && steps.are_left() && leases.expire(now, 1, ended) > 0; ++i)
    ++counters.leases_expired;
}

void Store::Impl::end_lease(BlockId block, Steps& steps) {
  steps.take(Steps::kRemoval);
  pool.end_lease(block, &steps);
}

/// Goes on with work left by earlier calls.
void Store::Impl::tidy(TimePoint now, Steps& steps) {
  for (; !unwanted.empty() && steps.are_left();) {
    Unwanted& of_put = unwanted.front();
    for (; !of_put.slots.empty() && steps.are_left(); of_put.slots.pop_back()) {
      pool.unstage(of_put.slots.back());
      steps.take(Steps::kRemoval);
    }
    for (; !of_put.pinned.empty() && steps.are_left(); of_put.pinned.pop_back()) {
      pool.unpin(of_put.pinned.back());
      steps.take(Steps::kBlock);
    }
    if (!of_put.slots.empty() || !of_put.pinned.empty()) break;
    KV_ASSERT(of_put.space->put_count > 0);
    if (--of_put.space->put_count == 0) spaces.may_be_idle(*of_put.space);
    unwanted.pop_front();
  }
  while (!ending_sessions.empty() && steps.are_left()) {
    leases.end_session(ending_sessions.front(), 1, [&](BlockId block) { end_lease(block, steps); });
    if (leases.lease_count(ending_sessions.front()) == 0) ending_sessions.pop_front();
  }
  evictor.reap(steps, now);
}

void Store::end_session(SessionId session) {
  Impl::Call call(*impl_);
  impl_->spaces.end_session(session);
  // Puts end in this call, because only their session could end them. Many leases take several calls.
  for (auto it = impl_->puts_by_session.lower_bound({session, PutId{}});
       it != impl_->puts_by_session.end() && it->first == session;) {
    const PutId put = it->second;
    ++it;
    impl_->end(impl_->puts.find(put));
  }
  if (impl_->leases.lease_count(session) > 0) impl_->ending_sessions.push_back(session);
  impl_->tidy(BlockPool::time_of(impl_->pool.last_tick()), call.steps);
}

}  // namespace kv
