#include "store/spill_loader.h"

#include <utility>

namespace kv {

bool SpillLoader::add(TreeId tree, const DiskRecord& record) {
  if (tier_.is_full()) return false;
  tier_.load_key(record.key, record.block_bytes);
  if (record.block_bytes != tier_.block_bytes(tree) || known_.contains({tree, record.hash})) return true;
  BlockId parent = kNoBlock;
  if (record.parent != BlockHash{}) {
    parent = find({tree, record.parent});
    if (parent == kNoBlock) {
      waiting_[{tree, record.parent}].push_back(record);
      return true;
    }
  }
  ready_.push_back({tree, parent, record});
  return true;
}

std::size_t SpillLoader::place_some(std::size_t count_max) {
  std::size_t count = 0;
  for (; count < count_max && !ready_.empty() && !tier_.is_full(); ++count) {
    const Ready next = std::move(ready_.back());
    ready_.pop_back();
    const Name name{next.tree, next.record.hash};
    if (find(name) != kNoBlock) continue;
    const BlockId block = place(next.tree, next.parent, next.record);
    known_[name] = block;
    const auto below = waiting_.find(name);
    if (below == waiting_.end()) continue;
    // They came newest first, and the newest shall be placed first.
    for (auto each = below->second.rbegin(); each != below->second.rend(); ++each)
      ready_.push_back({next.tree, block, *each});
    waiting_.erase(below);
  }
  if (tier_.is_full()) ready_.clear();
  return count;
}

/// kNoBlock if it is not known, or has been evicted or dropped since.
BlockId SpillLoader::find(const Name& name) const {
  const auto it = known_.find(name);
  if (it == known_.end()) return kNoBlock;
  const PrefixIndex& index = tier_.index();
  const bool is_same =
      index.is_linked(it->second) && index.tree(it->second) == name.tree && index.hash(it->second) == name.hash;
  return is_same ? it->second : kNoBlock;
}

BlockId SpillLoader::place(TreeId tree, BlockId parent, const DiskRecord& record) {
  BlockId block = tier_.index().find_child(tree, parent, record.hash);
  if (block != kNoBlock) return block;  // written again since the start
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
