#include "store/spill/disk_loader.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kDropsMax = 1 << 16;  ///< Recorded singly; beyond that, a drop takes its whole tree along.

}  // namespace

void DiskLoader::begin(Tick tick, std::span<const DiskDrop> drops) {
  tick_ = tick;
  seen_from_ = tier_.next_key();
  for (const DiskDrop& drop : drops) {
    Dropped& dropped = dropped_earlier_[drop.space];
    if (drop.hash == BlockHash{}) {
      dropped.all = std::max(dropped.all, drop.before);
    } else {
      DiskKey& before = dropped.blocks[drop.hash];
      before = std::max(before, drop.before);
      dropped.bounds.insert(drop.before);
    }
  }
}

/// Whether an earlier start dropped this block, or one above. Only the direct parent is checked. On the path down from
/// a block that was stored again after the drop to one that was not, there is one place where a child is older than the
/// drop and its parent is newer: that child is refused, which leaves all blocks below without a parent.
bool DiskLoader::was_dropped(const DiskRecord& record, const Known* parent) const {
  const auto it = dropped_earlier_.find(record.space);
  if (it == dropped_earlier_.end()) return false;
  const Dropped& dropped = it->second;
  if (record.key < dropped.all) return true;
  if (const auto own = dropped.blocks.find(record.hash); own != dropped.blocks.end() && record.key < own->second)
    return true;
  if (parent == nullptr) return false;
  const auto bound = dropped.bounds.upper_bound(record.key);
  return bound != dropped.bounds.end() && *bound <= parent->since;
}

std::shared_ptr<const NamespaceRecord> DiskLoader::space(const NamespaceId& name) const {
  const auto found = spaces_.find(name);
  return found == spaces_.end() ? nullptr : found->second;
}

/// Counts the record in the log, unless it was seen before. False once the tier is full.
bool DiskLoader::see(const DiskRecord& record, bool* is_new) {
  *is_new = record.key < seen_from_;
  if (!*is_new) return true;
  if (tier_.is_full()) return false;
  seen_from_ = record.key;
  tier_.load_key(record.key, record.block_bytes);
  return true;
}

bool DiskLoader::skip(const DiskRecord& record, bool is_for_good) {
  bool is_new = false;
  const bool has_room = see(record, &is_new);
  if (has_room && is_new && is_for_good) erased_.push_back(record.key);
  return has_room;
}

bool DiskLoader::add(TreeId tree, const DiskRecord& record) {
  bool is_new = false;
  if (!see(record, &is_new)) return false;
  if (!is_new) return true;
  needed_trees_.insert(tree);
  if (!tier_.is_plausible(tree, record)) return true;  // another size than this namespace's: damaged
  if (record.parent != BlockHash{} && find({tree, record.parent}) == kNoBlock) {
    waiting_[{tree, record.parent}].push_back(record);
    return true;
  }
  ready_.push_back({tree, record});
  return true;
}

std::size_t DiskLoader::place_some(std::size_t count_max) {
  std::size_t count = 0;
  for (; count < count_max && !ready_.empty() && !tier_.is_full(); ++count) {
    const Ready next = std::move(ready_.back());
    ready_.pop_back();
    const Name name{next.tree, next.record.hash};
    const Name above{next.tree, next.record.parent};
    const bool is_first = next.record.parent == BlockHash{};
    const Known* const known_above = is_first ? nullptr : find_known(above);
    // Known: an older record of a block that was written again. Its newer one came before.
    if (is_dropped(name) || known_.contains(name) || was_dropped(next.record, known_above)) {
      erased_.push_back(next.record.key);
      continue;
    }
    const BlockId parent = known_above == nullptr ? kNoBlock : known_above->block;
    if (!is_first && parent == kNoBlock) {  // the parent was evicted or dropped since
      waiting_[above].push_back(next.record);
      continue;
    }
    if (is_outdated(next.tree, next.record)) {
      erased_.push_back(next.record.key);
      continue;
    }
    const BlockId block = place(next.tree, parent, next.record);
    const DiskRecord& record = next.record;
    // A block written again since the start is the newest possible. Otherwise a move keeps the age of the first write.
    const DiskKey since = tier_.key(block) != record.key   ? tier_.key(block)
                          : record.moved_from != DiskKey{} ? record.moved_from
                                                           : record.key;
    known_[name] = {block, tier_.key(block), since};
    const auto below = waiting_.find(name);
    if (below == waiting_.end()) continue;
    // They came newest first, and the newest is to be placed first.
    for (auto each = below->second.rbegin(); each != below->second.rend(); ++each) ready_.push_back({next.tree, *each});
    waiting_.erase(below);
  }
  // The remaining ready blocks are older than all in the full tier, and will not be requested again.
  if (tier_.is_full()) {
    for (const Ready& each : ready_) erased_.push_back(each.record.key);
    ready_.clear();
  }
  return count;
}

void DiskLoader::drop(TreeId tree, std::span<const BlockHash> hashes) {
  needed_trees_.insert(tree);
  if (hashes.empty() || dropped_.size() >= kDropsMax)
    dropped_trees_.insert(tree);  // a cache may lose more than was dropped, but must not keep any dropped block
  else
    dropped_.insert({tree, hashes.back()});
}

/// nullptr if no block of that name was placed, or it was evicted or dropped since. Compares name and key, since ids
/// are reused.
const DiskLoader::Known* DiskLoader::find_known(const Name& name) const {
  const auto it = known_.find(name);
  if (it == known_.end()) return nullptr;
  const BlockId block = it->second.block;
  const PrefixIndex& index = tier_.index();
  const bool is_same = index.is_linked(block) && index.tree(block) == name.tree && index.hash(block) == name.hash;
  return is_same && tier_.key(block) == it->second.key ? &it->second : nullptr;
}

BlockId DiskLoader::find(const Name& name) const {
  const Known* const known = find_known(name);
  return known == nullptr ? kNoBlock : known->block;
}

/// Whether the record is of a set's block that was put meanwhile with another length. Readers already see the new one;
/// the two cannot be copies of one another.
bool DiskLoader::is_outdated(TreeId tree, const DiskRecord& record) const {
  if (!pool_.index().is_set(tree)) return false;
  const BlockId memory = pool_.index().find_child(tree, kNoBlock, record.hash);
  return memory != kNoBlock && pool_.length(memory) != record.block_bytes;
}

BlockId DiskLoader::place(TreeId tree, BlockId parent, const DiskRecord& record) {
  BlockId block = tier_.index().find_child(tree, parent, record.hash);
  if (block != kNoBlock) {  // written again since the start
    erased_.push_back(record.key);
    return block;
  }
  // Newest first: each block counts as used one tick before the one placed before it.
  KV_ASSERT(parent == kNoBlock || tier_.index().is_linked(parent));
  KV_ASSERT(tick_ > Tick{});
  ++loaded_count_;
  tick_ = Tick{static_cast<std::uint64_t>(tick_) - 1};
  block = tier_.load(tree, parent, record.hash, record.position, record.key, tick_);
  // The block may have been stored again in memory before its record came: then the two are copies of one another.
  const BlockId above = parent == kNoBlock ? kNoBlock : tier_.copy_in_memory(parent);
  if (parent == kNoBlock || above != kNoBlock) {
    const BlockId memory = pool_.index().find_child(tree, above, record.hash);
    if (memory != kNoBlock && tier_.copy_on_disk(memory) == kNoBlock) tier_.add_copy(memory, block);
  }
  return block;
}

std::vector<DiskKey> DiskLoader::orphans() const {
  std::vector<DiskKey> keys;
  for (const auto& [name, records] : waiting_) {
    for (const DiskRecord& record : records) keys.push_back(record.key);
  }
  return keys;
}

}  // namespace kv
