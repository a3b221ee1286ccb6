// Bytes as operations on a PrefixIndex, a tree and a set, and on a model of maps that answers by looking at everything.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "base/assert.h"
#include "index/prefix_index.h"
#include "tests/fuzz/input.h"

namespace kv {
namespace {

struct ModelBlock {
  BlockId parent;
  BlockHash hash;
  std::uint64_t recency;
  std::vector<std::uint32_t> tokens = {};
  ExtraDigest extra = {};
  std::uint32_t pins = 0;
  bool linked = true;
  std::optional<std::uint32_t> cohort = {};  ///< Of a block of the set.
};

class Model {
 public:
  Model(Input& input, bool has_set) : input_(input), has_set_(has_set) {}

  void step() {
    if (has_set_ && input_.below(4) == 0) return set_step();
    switch (input_.below(11)) {
      case 0:
      case 1:
      case 2: return insert();
      case 3: return match();
      case 4: return remove_leaf();
      case 5: return touch();
      case 6: return pin();
      case 7: return unpin();
      case 8: return evict();
      case 9: return match_partial();
      default: return unlink();
    }
  }
  void check() {
    KV_ASSERT(index_.check().empty());
    std::size_t linked = 0;
    for (const auto& [id, block] : blocks_) linked += block.linked;
    KV_ASSERT(index_.block_count() == linked);
  }

 private:
  static BlockHash hash_of(std::uint8_t letter) {
    BlockHash hash;
    std::memset(hash.bytes.data(), letter * 37 + 1, hash.bytes.size());
    return hash;
  }
  BlockId any(bool linked_only) {
    if (blocks_.empty()) return kNoBlock;
    auto at = std::next(blocks_.begin(), static_cast<std::ptrdiff_t>(input_.below(blocks_.size())));
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (!linked_only || at->second.linked) return at->first;
      if (++at == blocks_.end()) at = blocks_.begin();
    }
    return kNoBlock;
  }
  BlockId child(BlockId parent, const BlockHash& hash) const {
    for (const auto& [id, block] : blocks_) {
      if (block.linked && !block.cohort && block.parent == parent && block.hash == hash) return id;
    }
    return kNoBlock;
  }
  BlockId in_set(const BlockHash& hash) const {
    for (const auto& [id, block] : blocks_) {
      if (block.linked && block.cohort && block.hash == hash) return id;
    }
    return kNoBlock;
  }
  bool is_leaf(BlockId of) const {
    for (const auto& [id, block] : blocks_) {
      if (block.linked && block.parent == of) return false;
    }
    return true;
  }
  void forget_if_unpinned(BlockId id) {
    if (blocks_.at(id).pins > 0) return;
    if (!blocks_.at(id).linked) index_.forget(id);
    blocks_.erase(id);
  }

  void insert() {
    BlockId parent = input_.flag() ? any(true) : kNoBlock;
    if (parent != kNoBlock && blocks_.at(parent).cohort) parent = kNoBlock;  // nothing is below a block of a set
    ++tick_;
    std::uint32_t position = parent == kNoBlock ? 0 : index_.position(parent) + 1;
    for (std::size_t left = 1 + input_.below(6); left > 0; --left, ++position) {
      const BlockHash hash = hash_of(static_cast<std::uint8_t>(input_.below(5)));
      const BlockId found = index_.find_child(tree_, parent, hash);
      KV_ASSERT(found == child(parent, hash));
      if (found != kNoBlock) {
        parent = found;
        continue;
      }
      const std::vector<std::uint32_t> ids = tokens();
      const ExtraDigest extra = extra_of(input_.below(3));
      const BlockId id = index_.insert(tree_, parent, {hash, SlotId{tick_}, position, ids, extra}, Tick{tick_});
      KV_ASSERT(blocks_.emplace(id, ModelBlock{parent, hash, tick_, ids, extra}).second);
      parent = id;
    }
  }
  void match() {
    std::vector<BlockHash> hashes;
    for (std::size_t left = input_.below(8); left > 0; --left) {
      hashes.push_back(hash_of(static_cast<std::uint8_t>(input_.below(5))));
    }
    const auto prefix = index_.match(tree_, hashes);
    BlockId last = kNoBlock;
    std::vector<BlockId> expected;
    for (const BlockHash& hash : hashes) {
      const BlockId next = child(last, hash);
      if (next == kNoBlock) break;
      expected.push_back(last = next);
    }
    KV_ASSERT(prefix.block_count == expected.size() && prefix.last == last);
    std::vector<BlockId> blocks(prefix.block_count);
    index_.blocks_of(prefix, blocks);
    KV_ASSERT(blocks == expected);
  }
  std::vector<std::uint32_t> tokens() {
    std::vector<std::uint32_t> ids(input_.below(4));
    for (auto& id : ids) id = static_cast<std::uint32_t>(input_.below(2));
    return ids;
  }
  static ExtraDigest extra_of(std::size_t which) {
    ExtraDigest extra;
    extra.bytes[15] = static_cast<std::byte>(which);
    return extra;
  }
  void match_partial() {
    BlockId parent = input_.flag() ? any(true) : kNoBlock;
    if (parent != kNoBlock && blocks_.at(parent).cohort) parent = kNoBlock;
    const std::vector<std::uint32_t> ids = tokens();
    const ExtraDigest extra = extra_of(input_.below(3));
    const auto shared = [&](const ModelBlock& block) {
      std::size_t count = 0;
      while (block.extra == extra && count < std::min(ids.size(), block.tokens.size()) &&
             ids[count] == block.tokens[count])
        ++count;
      return count;
    };
    std::size_t best = 0;
    for (const auto& [id, block] : blocks_)
      if (block.linked && !block.cohort && block.parent == parent) best = std::max(best, shared(block));
    const auto found = index_.match_partial(tree_, parent, ids, extra);
    KV_ASSERT(found.token_count == best && (found.block == kNoBlock) == (best == 0));
    if (best > 0) KV_ASSERT(blocks_.at(found.block).parent == parent && shared(blocks_.at(found.block)) == best);
  }
  void remove_leaf() {
    const BlockId id = any(true);
    if (id == kNoBlock) return;
    KV_ASSERT(index_.is_leaf_end(id) == is_leaf(id));
    if (!is_leaf(id) || blocks_.at(id).pins > 0) return;
    remove(id);
  }
  void remove(BlockId id) {
    const ModelBlock block = blocks_.at(id);
    index_.remove_leaf_end(id);
    blocks_.erase(id);
    if (block.parent != kNoBlock) {
      auto& parent = blocks_.at(block.parent);
      parent.recency = std::max(parent.recency, block.recency);
    }
  }
  void touch() {
    const BlockId id = any(true);
    if (id == kNoBlock) return;
    ++tick_;
    index_.touch(id, Tick{tick_});
    blocks_.at(id).recency = tick_;
  }
  void pin() {
    const BlockId id = any(true);
    if (id == kNoBlock) return;
    index_.pin(id);
    ++blocks_.at(id).pins;
  }
  void unpin() {
    const BlockId id = any(false);
    if (id == kNoBlock || blocks_.at(id).pins == 0) return;
    index_.unpin(id);
    if (--blocks_.at(id).pins == 0 && !blocks_.at(id).linked) forget_if_unpinned(id);
  }
  /// As many cohorts as a small heap of them has in three levels.
  static constexpr std::uint32_t kCohorts = 20;

  void set_step() {
    std::vector<BlockHash> hashes(1 + input_.below(8));
    for (BlockHash& hash : hashes) hash = hash_of(static_cast<std::uint8_t>(input_.below(40)));
    std::vector<BlockId> found(hashes.size());
    index_.find_each(set_, hashes, found);
    for (std::size_t i = 0; i < hashes.size(); ++i) KV_ASSERT(found[i] == in_set(hashes[i]));
    switch (input_.below(4)) {
      case 0: {  // the oldest of a cohort
        const auto cohort = static_cast<std::uint32_t>(input_.below(kCohorts));
        std::uint64_t least = UINT64_MAX;
        for (const auto& [id, block] : blocks_) {
          if (block.linked && block.pins == 0 && block.cohort.value_or(0) == cohort && is_leaf(id))
            least = std::min(least, block.recency);
        }
        Steps steps(1 + input_.below(100));
        const BlockId oldest = index_.oldest_leaf_end(cohort, &steps);
        KV_ASSERT(oldest == kNoBlock || blocks_.at(oldest).recency == least);
        if (steps.are_left()) KV_ASSERT((oldest == kNoBlock) == (least == UINT64_MAX));
        return;
      }
      case 1: {  // the oldest of all, in steps
        Steps steps(1 + input_.below(100));
        const BlockId oldest = index_.oldest_leaf_end(&steps);
        if (oldest != kNoBlock) KV_ASSERT(blocks_.at(oldest).pins == 0 && is_leaf(oldest));
        return;
      }
      default: break;
    }
    if (found[0] != kNoBlock) return;
    ++tick_;
    const auto cohort = static_cast<std::uint32_t>(input_.below(kCohorts));
    const auto length = static_cast<std::uint32_t>(1 + input_.below(1000));
    const BlockId id = index_.insert(
        set_, kNoBlock, {.hash = hashes[0], .slot = SlotId{tick_}, .position = length, .cohort = cohort}, Tick{tick_});
    ModelBlock block{.parent = kNoBlock, .hash = hashes[0], .recency = tick_};
    block.cohort = cohort;
    KV_ASSERT(blocks_.emplace(id, block).second);
  }
  void evict() {
    const BlockId oldest = index_.oldest_leaf_end();
    std::uint64_t least = UINT64_MAX;
    for (const auto& [id, block] : blocks_) {
      if (block.linked && block.pins == 0 && is_leaf(id)) least = std::min(least, block.recency);
    }
    if (least == UINT64_MAX) {
      KV_ASSERT(oldest == kNoBlock);
      return;
    }
    const ModelBlock& block = blocks_.at(oldest);
    KV_ASSERT(block.linked && block.pins == 0 && is_leaf(oldest) && block.recency == least);
    KV_ASSERT(index_.recency(oldest) == Tick{least});
    remove(oldest);
  }
  void unlink() {
    const BlockId id = any(true);
    if (id == kNoBlock) return;
    const BlockId parent = blocks_.at(id).parent;
    std::uint64_t recency = 0;
    std::vector<BlockId> gone;
    index_.unlink_subtree(id, [&](BlockId each) { gone.push_back(each); });
    for (const BlockId each : gone) {
      ModelBlock& block = blocks_.at(each);
      KV_ASSERT(block.linked && is_leaf(each));  // children before parents
      recency = std::max(recency, block.recency);
      block.linked = false;
      if (block.pins == 0) blocks_.erase(each);
    }
    KV_ASSERT(!gone.empty() && gone.back() == id);
    if (parent != kNoBlock) blocks_.at(parent).recency = std::max(blocks_.at(parent).recency, recency);
  }

  Input& input_;
  PrefixIndex index_;
  const bool has_set_;
  TreeId tree_ = index_.add_tree();
  TreeId set_ = index_.add_tree(0, TreeKind::kSet);
  std::map<BlockId, ModelBlock> blocks_;
  std::uint64_t tick_ = 0;
};

}  // namespace
}  // namespace kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kv::Input input(data, std::min<std::size_t>(size, 2048));
  kv::Model model(input, size % 2 == 1);  // not from the input: what the corpus holds keeps its meaning
  for (int i = 0; !input.empty(); ++i) {
    model.step();
    if (i % 64 == 0) model.check();
  }
  model.check();
  return 0;
}
