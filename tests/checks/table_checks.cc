// tests/checks/table_checks.cc: the checks of the invariants of a Store's tables.

#include <algorithm>

#include "store/contexts/context_table.h"
#include "store/curve/hit_curve.h"
#include "store/curve/shadow_cache.h"
#include "store/disk/disk_tier.h"
#include "store/memory/evictor.h"
#include "store/tables/lease_table.h"
#include "store/tables/space_table.h"
#include "store/tables/tenant_table.h"

namespace kv {

std::string ContextTable::check() const {
  std::size_t count = 0, blocks = 0, bytes = 0;
  for (const auto& [name, owner] : owners_) {
    ContextTotals sum;
    std::size_t keeping_count = 0;
    for (const auto& [priority, ids] : owner.keeping) keeping_count += ids.size();
    for (const auto& [of_context, context] : owner.contexts) {
      if (of_context != context->name || context->owner != name) return "contexts: one is under another's name";
      const auto by_id = by_id_.find(context->id);
      if (by_id == by_id_.end() || by_id->second != context.get()) return "contexts: one has no number";
      if (!turns_.contains({context->turn, context->id})) return "contexts: one has no turn";
      if (context->turn > context->end()) return "contexts: one ends before its turn";  // invariant 3
      const auto of_priority = owner.keeping.find(context->priority);
      const bool is_known = of_priority != owner.keeping.end() && of_priority->second.contains(context->id);
      if (is_known != (context->kept_count > 0)) return "contexts: one has the wrong priority";  // invariant 4
      keeping_count -= is_known;
      sum.text_bytes += context->text_bytes();
      sum.wanted_blocks += context->hashes.size();
      sum.kept_blocks += context->kept_count;
      sum.kept_bytes += context->kept_count * context->record->block_bytes();
      bytes += bytes_of(*context);
    }
    if (keeping_count != 0) return "contexts: one that is gone keeps something";  // invariant 4
    const ContextTotals& has = owner.totals;
    if (has.count != owner.contexts.size() || has.text_bytes != sum.text_bytes ||
        has.wanted_blocks != sum.wanted_blocks || has.kept_blocks != sum.kept_blocks ||
        has.kept_bytes != sum.kept_bytes)
      return "contexts: the totals of '" + name + "' are wrong";  // invariant 5
    if (has.count > limits_.owner_count_max || has.text_bytes > limits_.owner_text_bytes_max ||
        has.wanted_blocks > limits_.owner_blocks_max)
      return "contexts: '" + name + "' has more than it may";  // invariant 2
    count += has.count;
    blocks += sum.wanted_blocks;
  }
  if (count != by_id_.size() || count != turns_.size()) return "contexts: one is missing, or left over";
  if (blocks != block_count_ || bytes != used_bytes_) return "contexts: miscounted";
  if (count > limits_.count_max || blocks > limits_.blocks_max) return "contexts: more than the node may have";
  return "";
}

std::string DiskTier::check() const {
  if (std::string broken = index_.check(); !broken.empty()) return broken;
  std::uint64_t live = 0, only = 0, entries = 0, log = 0, copies = 0;
  std::array<PlaceUse, kPlaceCount> in_place{};
  std::array<std::uint64_t, kPlaceCount> log_in_place{};
  std::string broken;
  for (std::size_t tree = 0; tree < trees_.size(); ++tree) {
    if (!index_.has_tree(TreeId{static_cast<std::uint32_t>(tree)})) continue;
    index_.for_each(TreeId{static_cast<std::uint32_t>(tree)}, [&](BlockId block) {
      live += block_bytes(block);
      ++in_place[place_of(key(block))].block_count;
      in_place[place_of(key(block))].bytes += block_bytes(block);
      const BlockId memory = copy_in_memory(block);
      if (memory == kNoBlock) {
        only += block_bytes(block);
      } else {
        ++copies;
        if (index_.pin_count(block) == 0) broken = "disk tier: a block with a copy in memory is not pinned";
        if (copy_on_disk(memory) != block) broken = "disk tier: copies do not know each other";
      }
    });
  }
  for (std::uint32_t i = 0; i < memory_sides_.size(); ++i) copies -= memory_sides_[i].disk != kNoBlock;
  if (!broken.empty()) return broken;
  if (copies != 0) return "disk tier: a block in memory has a copy that is gone";
  for (const Segment& segment : segments_) {
    log += segment.bytes;
    std::uint64_t bytes = 0;
    for (std::size_t place = 0; place < kPlaceCount; ++place) {
      bytes += segment.place_bytes[place];
      log_in_place[place] += segment.place_bytes[place];
    }
    if (bytes != segment.bytes) return "disk tier: a segment's bytes are not those of the directories";
    for (const Entry& entry : segment.entries) entries += is_live(entry);
    for (const Entry& entry : segment.entries) {
      if (&segment == &segments_.front() && &entry < segment.entries.data() + dead_entries_ && is_live(entry))
        return "disk tier: an entry taken for dead is alive";
    }
  }
  if (live != live_bytes_ || only != only_bytes_ || log != log_bytes_) return "disk tier: a sum of bytes is wrong";
  for (std::size_t place = 0; place < kPlaceCount; ++place) {
    if (in_place[place].block_count != in_place_[place].block_count ||
        in_place[place].bytes != in_place_[place].bytes || log_in_place[place] != log_in_place_[place])
      return "disk tier: what lies in a directory is counted wrong";
  }
  if (entries != index_.block_count()) return "disk tier: not every block is in the log once";  // invariant 4
  return "";
}

std::string Evictor::check() const {
  std::size_t short_count = 0;
  for (const Hunt& hunt : hunts_) short_count += hunt.is_short != Short::kNo;
  if (short_count != short_.size() + being_written_.size()) return "evictor: a short class is not listed once";
  for (const std::uint32_t size_class : short_)
    if (hunts_[size_class].is_short != Short::kYes) return "evictor: a class listed as short is not";
  for (const std::uint32_t size_class : being_written_)
    if (hunts_[size_class].is_short != Short::kBeingWritten) return "evictor: a class waits for no write";
  return "";
}

bool HitCurve::check() const {
  std::uint64_t total = 0;
  for (std::uint16_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].is_known) continue;
    if (find(blocks_[i].name) != i) return false;
    total += order_.has(i) ? blocks_[i].weight : 0;
  }
  return total == order_.total() && std::ranges::all_of(caches_, [](const ShadowCache& each) { return each.check(); });
}

std::string LeaseTable::check() const {
  std::size_t count = 0;
  TimePoint before = TimePoint::min();
  for (std::uint32_t index = by_grant_.first; index != kNone; index = entries_[index].by_grant.after, ++count) {
    const Entry& entry = entries_[index];
    if (entry.id == LeaseId{}) return "leases: an ended lease is listed";
    if (entry.end < before) return "leases: not in order of expiry";
    before = entry.end;
  }
  if (count != lease_count_ || count != by_grant_.count) return "leases: lease_count is wrong";
  if (count > largest_.count_max) return "leases: over count_max";
  std::size_t session_count = 0;
  for (const auto& [session, list] : sessions_) {
    if (list.count == 0 || list.count > largest_.count_per_session_max)
      return "leases: a session's count is out of bounds";
    std::size_t listed = 0;
    for (std::uint32_t index = list.first; index != kNone; index = entries_[index].by_session.after, ++listed)
      if (entries_[index].session != session) return "leases: a lease is listed under another session";
    if (listed != list.count) return "leases: a session's count is wrong";
    session_count += listed;
  }
  if (session_count != count) return "leases: a lease is missing from its session";
  return "";
}

bool ShadowCache::check() const {
  std::uint64_t held = 0;
  std::size_t leaf_end_count = 0;
  std::vector<std::uint16_t> children(states_.size(), 0);
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (states_[i].is_here && has_parent(blocks_[i])) ++children[blocks_[i].parent];
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    const bool is_leaf_end = state.is_here && children[i] == 0;
    if (state.children != children[i] || (state.leaf_end != ShadowBlock::kNone) != is_leaf_end) return false;
    if (is_leaf_end && (state.leaf_end >= leaf_ends_.size() || leaf_ends_[state.leaf_end] != i)) return false;
    leaf_end_count += is_leaf_end;
    held += state.is_here ? blocks_[i].weight : 0;
  }
  return held == held_ && leaf_end_count == leaf_ends_.size();
}

std::string SpaceTable::check(const IsIdle& is_idle) const {
  std::size_t candidates = 0, open = 0, trees = 0;
  for (const auto& [id, space] : spaces_) {
    if (space->id != id || static_cast<std::uint64_t>(id) >= id_next_) return "spaces: a number is wrong";
    if (find(space->record->text()) != space.get() || find(space->name) != space.get())
      return "spaces: a namespace is not found by its record";
    if (find(space->tree) != space.get()) return "spaces: a tree is another's";
    if (space->is_candidate != candidates_.contains(space->turn)) return "spaces: a candidate is lost";
    if (space->is_candidate && turn_of(*space) < space->turn) return "spaces: a candidate's turn is too late";
    if (!space->is_candidate && is_idle(*space)) return "spaces: an idle namespace is no candidate";
    candidates += space->is_candidate;
    for (const SessionId session : space->sessions) {
      const auto found = open_.find(session);
      if (found == open_.end() || !found->second.contains(id)) return "spaces: a session does not know what it opened";
      ++open;
    }
  }
  for (const auto& [session, ids] : open_) {
    if (ids.empty()) return "spaces: a session with nothing open is kept";
    open -= ids.size();
  }
  for (const Space* const space : of_tree_) trees += space != nullptr;
  if (open != 0) return "spaces: open namespaces are miscounted";
  if (candidates != candidates_.size()) return "spaces: a candidate is gone";
  const bool is_one_to_one =
      trees == spaces_.size() && of_record_.size() == spaces_.size() && of_name_.size() == spaces_.size();
  return is_one_to_one ? "" : "spaces: a namespace that was forgotten is still found";
}

std::string TenantTable::check() const {
  for (const auto& [name, id] : of_name_) {
    const Tenant& tenant = at(id);
    for (const auto& [slot_bytes, number] : tenant.cohorts) {
      const Cohort& cohort = cohorts_[number];
      if (cohort.uses == 0) return "tenants: a cohort that nobody uses";
      if (cohort.is_in_band != spares(tenant, slot_bytes)) return "tenants: a cohort is in the wrong band";
      if (memory_.band(number) != (cohort.is_in_band ? cohort.size_class : PrefixIndex::kNoBand))
        return "tenants: the index has a cohort in another band";
    }
    if (disk_ == nullptr) continue;
    const bool is_over = tenant.usage.disk_bytes > tenant.limits.disk_bytes;
    if (disk_->band(disk_cohort(id)) != (is_over ? 0 : PrefixIndex::kNoBand))
      return "tenants: a tenant is in the wrong band of the disk";
    if ((std::ranges::find(over_disk_max_, id) != over_disk_max_.end()) != is_over_disk_max(id))
      return "tenants: who is over its maximum on disk is not listed";
  }
  return "";
}

}  // namespace kv
