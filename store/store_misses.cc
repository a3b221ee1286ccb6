// store/store_misses.cc: why a block is absent: its departure, its namespace's activity, other namespaces.

#include <algorithm>

#include "base/assert.h"
#include "store/store_impl.h"

namespace kv {
namespace {

constexpr std::size_t kPutsLookedAt = 256;

}  // namespace

void Store::Impl::count_lookup(const Found& found, std::span<const BlockHash> hashes, TimePoint now) const {
  if (hashes.empty()) return;
  Space& space = *found.space;
  ++space.traffic.lookups;
  space.traffic.empty_lookups += found.prefix.block_count + found.disk_block_count() == 0;
  space.roots.note(print(hashes.front()), RootSample::Act::kAsked, now);
}

void Store::Impl::count_miss(const Found& found, std::span<const BlockHash> hashes, TimePoint now) {
  const std::size_t found_count = found.prefix.block_count + found.disk_block_count();
  if (found_count < hashes.size()) count_miss(*found.space, found_count, hashes[found_count], now);
}

void Store::Impl::count_miss(const Space& space, std::size_t found_count, const BlockHash& missed, TimePoint now) {
  const auto known = departed.find(space.tree, missed, now);
  const MissKind why = known.departed ? known.departed->why : MissKind::kNotRemembered;
  ++counters.match_misses[found_count == 0 ? 0 : 1][static_cast<std::size_t>(why)];
}

/// The put, among the latest ones, that is bringing the first absent block.
const Store::Put* Store::Impl::put_of(const Found& found, std::span<const BlockHash> hashes) const {
  const std::size_t missed = found.prefix.block_count;
  std::size_t looks = 0;
  for (auto each = puts.rbegin(); each != puts.rend() && looks < kPutsLookedAt; ++each, ++looks) {
    const Put& put = each->second;
    if (put.space != found.space || put.stored_count > missed) continue;
    const std::size_t i = missed - put.stored_count;
    if (i >= put.committed_count && i < put.slots.size() && put.hashes[i] == hashes[missed]) return &put;
  }
  return nullptr;
}

Result<Store::Miss> Store::explain(SpaceId id, std::span<const BlockHash> hashes, TimePoint now) {
  const Space* const space = impl_->spaces.find(id);
  if (space != nullptr && space->record->is_set()) return impl_->explain_in_set(id, hashes, now);
  const auto found = impl_->find(id, hashes);
  if (!found) return found.error();
  Miss miss{.memory_block_count = found->prefix.block_count,
            .disk_block_count = found->disk_block_count(),
            .traffic = found->space->traffic};
  const std::size_t found_count = miss.memory_block_count + miss.disk_block_count;
  if (found_count == hashes.size()) return miss;
  if (miss.disk_block_count == 0 && impl_->put_of(*found, hashes) != nullptr) {
    miss.why = MissKind::kBeingStored;
    return miss;
  }
  impl_->explain_departure(found->space->tree, hashes[found_count], now, miss);
  return miss;
}

/// In the given order of the names.
Result<Store::Miss> Store::Impl::explain_in_set(SpaceId id, std::span<const BlockHash> hashes, TimePoint now) {
  const auto found = find_set(id, hashes);
  if (!found) return found.error();
  Miss miss{.traffic = found->space->traffic};
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (found->memory[i] != kNoBlock) {
      ++miss.memory_block_count;
    } else if (found->disk[i] != kNoBlock) {
      ++miss.disk_block_count;
    } else {
      explain_departure(found->space->tree, hashes[i], now, miss);
      break;
    }
  }
  return miss;
}

void Store::Impl::explain_departure(TreeId tree, const BlockHash& missed, TimePoint now, Miss& miss) {
  const auto known = departed.find(tree, missed, now);
  if (known.departed) {
    miss.why = known.departed->why;
    miss.left = known.departed->ago;
    miss.idle = known.departed->idle;
  } else {
    miss.why = MissKind::kNotRemembered;
    miss.remembers = known.remembers;
  }
}

bool Store::look_in_spaces(bool are_sets, std::span<const BlockHash> chain, const std::string* owner,
                           std::optional<NamespaceId>& after, std::vector<SpaceLook>& looks) const {
  KV_ASSERT(chain.size() <= kLookedForMax);
  std::vector<BlockId> found(chain.size());
  std::size_t count = 0;
  impl_->spaces.visit_next(after ? &*after : nullptr, kLookedInPerCall, [&](const Space& space) {
    ++count;
    after = space.name;  // visit_next() has read it by now
    if (space.record->is_set() != are_sets || (owner != nullptr && space.record->owner() != *owner)) return;
    const auto has = [&](const PrefixIndex& index) {
      if (chain.empty()) return false;
      if (!are_sets) return index.match(space.tree, chain).block_count == chain.size();
      index.find_each(space.tree, chain, found);
      return std::ranges::find(found, kNoBlock) == found.end();
    };
    looks.push_back({.name = space.name,
                     .record = space.record,
                     .has_chain = has(impl_->pool.index()) || (impl_->tier && has(impl_->tier->index())),
                     .block_count = impl_->pool.index().block_count(space.tree) +
                                    (impl_->tier ? impl_->tier->index().block_count(space.tree) : 0),
                     .traffic = space.traffic});
  });
  return count == kLookedInPerCall;
}

}  // namespace kv
