#include "store/spill_loader.h"

#include <memory>
#include <utility>

namespace kv {
namespace {

constexpr std::size_t kDropsMax = 1 << 16;  ///< Remembered one by one.

}  // namespace

void SpillLoader::begin(Tick tick) {
  tick_ = tick;
  seen_from_ = tier_.next_key();
}

std::shared_ptr<const NamespaceRecord> SpillLoader::space(const NamespaceId& name) const {
  const auto found = spaces_.find(name);
  return found == spaces_.end() ? nullptr : found->second;
}

/// Counts the record in the log, unless it was seen before. False once the tier is full.
bool SpillLoader::see(const DiskRecord& record, bool* is_new) {
  *is_new = record.key < seen_from_;
  if (!*is_new) return true;
  if (tier_.is_full()) return false;
  seen_from_ = record.key;
  tier_.load_key(record.key, record.block_bytes);
  return true;
}

bool SpillLoader::skip(const DiskRecord& record, bool is_for_good) {
  bool is_new = false;
  const bool has_room = see(record, &is_new);
  if (has_room && is_new && is_for_good) erased_.push_back(record.key);
  return has_room;
}

bool SpillLoader::add(TreeId tree, const DiskRecord& record) {
  bool is_new = false;
  if (!see(record, &is_new)) return false;
  if (!is_new) return true;
  needed_trees_.insert(tree);
  if (record.block_bytes != tier_.block_bytes(tree)) return true;
  if (record.parent != BlockHash{} && find({tree, record.parent}) == kNoBlock) {
    waiting_[{tree, record.parent}].push_back(record);
    return true;
  }
  ready_.push_back({tree, record});
  return true;
}

std::size_t SpillLoader::place_some(std::size_t count_max) {
  std::size_t count = 0;
  for (; count < count_max && !ready_.empty() && !tier_.is_full(); ++count) {
    const Ready next = std::move(ready_.back());
    ready_.pop_back();
    const Name name{next.tree, next.record.hash};
    if (is_dropped(name) || known_.contains(name)) {
      erased_.push_back(next.record.key);
      continue;
    }
    const Name above{next.tree, next.record.parent};
    const bool is_first = next.record.parent == BlockHash{};
    const BlockId parent = is_first ? kNoBlock : find(above);
    if (!is_first && parent == kNoBlock) {  // it went since
      waiting_[above].push_back(next.record);
      continue;
    }
    const BlockId block = place(next.tree, parent, next.record);
    known_[name] = {block, tier_.key(block)};
    const auto below = waiting_.find(name);
    if (below == waiting_.end()) continue;
    // They came newest first, and the newest shall be placed first.
    for (auto each = below->second.rbegin(); each != below->second.rend(); ++each) ready_.push_back({next.tree, *each});
    waiting_.erase(below);
  }
  if (tier_.is_full()) {
    for (const Ready& each : ready_) erased_.push_back(each.record.key);
    ready_.clear();
  }
  return count;
}

void SpillLoader::drop(TreeId tree, std::span<const BlockHash> hashes) {
  needed_trees_.insert(tree);
  if (hashes.empty() || dropped_.size() >= kDropsMax)
    dropped_trees_.insert(tree);  // a cache may lose what it was not told to, and not keep what it was
  else
    dropped_.insert({tree, hashes.back()});
}

/// kNoBlock if it is not known, or has been evicted or dropped since.
BlockId SpillLoader::find(const Name& name) const {
  const auto it = known_.find(name);
  if (it == known_.end()) return kNoBlock;
  const auto& [block, key] = it->second;
  const PrefixIndex& index = tier_.index();
  const bool is_same = index.is_linked(block) && index.tree(block) == name.tree && index.hash(block) == name.hash;
  return is_same && tier_.key(block) == key ? block : kNoBlock;
}

BlockId SpillLoader::place(TreeId tree, BlockId parent, const DiskRecord& record) {
  BlockId block = tier_.index().find_child(tree, parent, record.hash);
  if (block != kNoBlock) {  // written again since the start
    erased_.push_back(record.key);
    return block;
  }
  ++loaded_count_;
  tick_ = Tick{static_cast<std::uint64_t>(tick_) - 1};
  block = tier_.load(tree, parent, record.hash, record.position, record.key, tick_);
  const BlockId above = parent == kNoBlock ? kNoBlock : tier_.copy_in_memory(parent);
  if (parent == kNoBlock || above != kNoBlock) {
    const BlockId memory = pool_.index().find_child(tree, above, record.hash);
    if (memory != kNoBlock && tier_.copy_on_disk(memory) == kNoBlock) tier_.add_copy(memory, block);
  }
  return block;
}

std::vector<DiskKey> SpillLoader::orphans() const {
  std::vector<DiskKey> keys;
  for (const auto& [name, records] : waiting_) {
    for (const DiskRecord& record : records) keys.push_back(record.key);
  }
  return keys;
}

}  // namespace kv
