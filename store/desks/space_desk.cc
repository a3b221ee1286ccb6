#include "store/desks/space_desk.h"

#include <utility>

#include "base/assert.h"

namespace kv {

Result<SpaceId> SpaceDesk::open(const NamespaceRecord& record, SessionId session) {
  Space* space = table_.find(record.text());
  if (space == nullptr) {
    const auto opened = open(std::make_shared<const NamespaceRecord>(record));
    if (!opened) return opened.error();
    space = *opened;
  }
  table_.use(*space);
  if (session != SessionId{}) table_.open(*space, session);
  return space->id;
}

Result<SpaceDesk::Space*> SpaceDesk::open(std::shared_ptr<const NamespaceRecord> record) {
  const std::size_t block_bytes = record->block_bytes();
  if (!shelf_.pool.arena().fits(block_bytes)) return Errc::kTooLarge;
  if (shelf_.tenants) {
    if (!shelf_.tenants->has_room()) return Errc::kBusy;
    const TenantId owner = shelf_.tenants->enter(record->owner());
    if (!shelf_.tenants->may_open(owner) && !forget_one_of(owner)) {
      shelf_.tenants->refused_namespace(owner);
      return Errc::kOverQuota;
    }
    shelf_.tenants->leave(owner);  // the owner may enter again below
  }
  if (table_.count() >= shelf_.config.namespace_count_max && !forget_one()) return Errc::kBusy;
  // Chains are grouped by size class, so that the evictor can ask for the oldest leaf end of a class. In a set each
  // block has its own class, known when the block comes.
  const bool is_set = record->is_set();
  if (!is_set && !may_use_class(block_bytes)) return Errc::kBusy;
  const TreeKind kind = is_set ? TreeKind::kSet : TreeKind::kChain;
  TenantId owner{};
  std::uint32_t cohort = is_set ? 0 : shelf_.pool.arena().add_class(block_bytes);
  if (shelf_.tenants) {
    owner = shelf_.tenants->enter(record->owner());
    if (!is_set) {
      shelf_.tenants->use_size(owner, block_bytes, cohort);
      cohort = shelf_.tenants->cohort(owner, block_bytes);
    }
  }
  const TreeId tree = shelf_.pool.index().add_tree(cohort, kind);
  if (shelf_.events) shelf_.events->open(tree, record);
  Space& space = table_.add(std::move(record), tree);
  shelf_.departed.set_tree(tree, space.name);
  space.owner = owner;
  if (listener_ != nullptr) listener_->was_opened(space);
  if (shelf_.tenants) shelf_.tenants->opened(owner, tree);
  if (!is_set) KV_ASSERT(use_class(space, block_bytes));
  return &space;
}

bool SpaceDesk::may_use_class(std::size_t slot_bytes) const {
  return spaces_of_size_.contains(slot_bytes) || spaces_of_size_.size() <= PrefixIndex::kCohortMax;
}

bool SpaceDesk::use_class(Space& space, std::size_t slot_bytes) {
  if (space.slot_sizes.contains(slot_bytes)) return true;
  if (!may_use_class(slot_bytes)) return false;
  if (shelf_.tenants && space.record->is_set()) {  // a chain's one size was entered with its tree
    if (!shelf_.tenants->has_room()) return false;
    shelf_.tenants->use_size(space.owner, slot_bytes, shelf_.pool.arena().add_class(slot_bytes));
  }
  space.slot_sizes.insert(slot_bytes);
  ++spaces_of_size_[slot_bytes];
  return true;
}

bool SpaceDesk::is_idle(const Space& space) const {
  return space.put_count == 0 && shelf_.pool.index().is_empty(space.tree) &&
         (!shelf_.tier || shelf_.tier->index().is_empty(space.tree)) &&
         (listener_ == nullptr || !listener_->expects_blocks(space.tree));
}

/// Makes candidates of the namespaces that have lost their last block since the last call.
void SpaceDesk::take_emptied() {
  for (const TreeId tree : shelf_.pool.index().take_emptied()) table_.may_be_idle(*table_.find(tree));
  if (!shelf_.tier) return;
  for (const TreeId tree : shelf_.tier->take_emptied()) table_.may_be_idle(*table_.find(tree));
}

bool SpaceDesk::forget_one() {
  take_emptied();
  Space* const space = table_.next_idle([this](const Space& candidate) { return is_idle(candidate); });
  if (space != nullptr) forget(*space);
  return space != nullptr;
}

/// Forgets the tenant's least recently used idle namespace. Scans all namespaces, but only for a tenant at its maximum.
bool SpaceDesk::forget_one_of(TenantId tenant) {
  Space* oldest = nullptr;
  table_.for_each([&](Space& space) {
    if (space.owner == tenant && is_idle(space) && (oldest == nullptr || space.last_use < oldest->last_use))
      oldest = &space;
  });
  if (oldest == nullptr) return false;
  take_emptied();
  forget(*oldest);
  return true;
}

void SpaceDesk::forget(Space& space) {
  shelf_.pool.index().remove_tree(space.tree);
  for (const std::size_t slot_bytes : space.slot_sizes) {
    if (shelf_.tenants) shelf_.tenants->end_size(space.owner, slot_bytes);
    const auto of_size = spaces_of_size_.find(slot_bytes);
    KV_ASSERT(of_size != spaces_of_size_.end() && of_size->second > 0);
    if (--of_size->second > 0) continue;
    spaces_of_size_.erase(of_size);
    shelf_.pool.arena().remove_class(slot_bytes);
  }
  if (listener_ != nullptr) listener_->was_closed(space);
  if (shelf_.tenants) shelf_.tenants->closed(space.owner, space.tree);
  if (shelf_.events) shelf_.events->close(space.tree);
  table_.remove(space);
  ++shelf_.counters.forgotten_namespaces;
}

std::shared_ptr<const NamespaceRecord> SpaceDesk::record_of(SpaceId space) const {
  const Space* const found = table_.find(space);
  return found == nullptr ? nullptr : found->record;
}

bool SpaceDesk::forget(SpaceId id) {
  const Space* const found = table_.find(id);
  if (found == nullptr || !is_idle(*found)) return false;
  take_emptied();
  forget(*table_.find(id));
  return true;
}

std::vector<SpaceDesk::View> SpaceDesk::list(const NamespaceId* after) const {
  std::vector<View> views;
  table_.visit_next(after, kViewsPerCall, [&](const Space& space) {
    const PrefixIndex& index = shelf_.pool.index();
    const std::uint64_t count = index.block_count(space.tree);
    const bool is_set = space.record->is_set();
    const std::uint64_t bytes = is_set ? index.total_bytes(space.tree) : count * space.record->block_bytes();
    const std::uint64_t on_disk = shelf_.tier ? shelf_.tier->index().block_count(space.tree) : 0;
    views.push_back({space.id, space.name, space.record, count, bytes, on_disk, space.traffic, space.roots.counts()});
  });
  return views;
}

void SpaceDesk::set_tenants(const std::vector<TenantLimits>& limits) {
  KV_ASSERT(shelf_.tenants != nullptr);
  shelf_.tenants->set_limits(limits);
}

std::vector<TenantStats> SpaceDesk::tenants() const {
  return shelf_.tenants ? shelf_.tenants->stats() : std::vector<TenantStats>();
}

Result<FoundChain> SpaceDesk::find_chain(SpaceId id, std::span<const BlockHash> hashes) const {
  Space* const space = table_.find(id);
  if (space == nullptr) return Errc::kNoNamespace;
  table_.use(*space);
  if (hashes.size() > shelf_.config.chain_blocks_max) return Errc::kTooLarge;
  if (space->record->is_set()) return Errc::kUnsupported;
  FoundChain found{space, shelf_.pool.index().match(space->tree, hashes)};
  if (shelf_.tier && found.prefix.block_count < hashes.size())
    found.disk = shelf_.tier->index().match(space->tree, hashes);
  return found;
}

Result<SpaceDesk::Space*> SpaceDesk::set_for(SpaceId id, std::size_t hash_count) const {
  Space* const space = table_.find(id);
  if (space == nullptr) return Errc::kNoNamespace;
  table_.use(*space);
  if (hash_count > shelf_.config.chain_blocks_max) return Errc::kTooLarge;
  if (!space->record->is_set()) return Errc::kUnsupported;
  return space;
}

Result<FoundSet> SpaceDesk::find_in_set(SpaceId id, std::span<const BlockHash> hashes) const {
  const auto space = set_for(id, hashes.size());
  if (!space) return space.error();
  FoundSet found{*space, std::vector<BlockId>(hashes.size(), kNoBlock), std::vector<BlockId>(hashes.size(), kNoBlock)};
  shelf_.pool.index().find_each((*space)->tree, hashes, found.memory);
  if (!shelf_.tier || shelf_.tier->index().is_empty((*space)->tree)) return found;
  std::vector<BlockHash> missing;
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (found.memory[i] == kNoBlock) missing.push_back(hashes[i]);
  std::vector<BlockId> on_disk(missing.size());
  shelf_.tier->index().find_each((*space)->tree, missing, on_disk);
  for (std::size_t i = 0, next = 0; i < hashes.size(); ++i)
    if (found.memory[i] == kNoBlock) found.disk[i] = on_disk[next++];
  return found;
}

}  // namespace kv
