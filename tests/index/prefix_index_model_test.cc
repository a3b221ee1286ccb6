// Random operations on a PrefixIndex and on a model that is as plain as possible: maps and sets of blocks, every
// question answered by looking at all of them. KV_SEED repeats a run, KV_MODEL_STEPS sets its length.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "index/prefix_index.h"

namespace kv {
namespace {

std::uint64_t env_or(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::stoull(text) : otherwise;
}

struct Shape {
  const char* name;
  std::size_t block_count;     ///< About how many blocks are kept.
  std::size_t alphabet;        ///< Different followers of a block.
  std::size_t put_blocks_max;  ///< Blocks added in a row.
  bool is_chained;             ///< Whether a hash names its prefix; if not, the same hashes come up everywhere.
  bool has_tokens;
  std::uint64_t steps;
  std::uint64_t steps_per_check;
};

struct ModelBlock {
  TreeId tree;
  BlockId parent;
  BlockHash hash;
  SlotId slot;
  std::uint32_t position;
  std::vector<std::uint32_t> tokens;
  ExtraDigest extra;
  std::uint64_t recency;
  std::uint32_t pins = 0;
  bool is_linked = true;
};

class PrefixIndexModelTest : public testing::TestWithParam<Shape> {
 protected:
  using ChildKey = std::pair<TreeId, BlockId>;  // tree and parent

  const std::uint64_t seed = env_or("KV_SEED", std::random_device{}());
  std::mt19937_64 random{seed};
  PrefixIndex index{seed};
  std::vector<TreeId> trees{index.add_tree(), index.add_tree(), index.add_tree()};
  std::map<BlockId, ModelBlock> model;  // linked and unlinked
  std::map<ChildKey, std::map<BlockHash, BlockId>> children;
  std::vector<BlockId> linked;  // to choose from
  std::set<BlockId> cut;        // detached, not reaped
  std::map<BlockId, std::uint32_t> prefix_pin_counts;
  std::vector<std::vector<BlockId>> prefix_pins;
  std::set<BlockId> covers;
  std::size_t covered = 0;  // as the calls say that change it
  std::uint64_t tick = 0, next_slot = 0;

  std::size_t below(std::size_t n) { return random() % n; }
  TreeId any_tree() { return trees[below(10) < 8 ? 0 : 1 + below(2)]; }
  BlockId any_linked() {
    while (!linked.empty()) {  // removed blocks are weeded out here
      const std::size_t i = below(linked.size());
      const auto block = model.find(linked[i]);
      if (block != model.end() && block->second.is_linked) return linked[i];
      linked[i] = linked.back();
      linked.pop_back();
    }
    return kNoBlock;
  }

  static BlockHash mix(const BlockHash& parent, std::uint64_t letter) {
    BlockHash hash;
    std::uint64_t words[4];
    std::memcpy(words, parent.bytes.data(), 32);
    for (std::uint64_t& word : words) {
      word = (word + letter + 1) * 0x9E3779B97F4A7C15;
      word ^= word >> 29;
      word *= 0xBF58476D1CE4E5B9;
      word ^= word >> 32;
      letter ^= word;
    }
    std::memcpy(hash.bytes.data(), words, 32);
    return hash;
  }
  BlockHash hash_below(BlockId parent, std::size_t letter) const {
    return mix(GetParam().is_chained && parent != kNoBlock ? model.at(parent).hash : BlockHash{}, letter);
  }
  std::vector<std::uint32_t> tokens_of(std::size_t letter) {
    std::vector<std::uint32_t> ids(1 + below(4));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint32_t>(letter >> i & 3);
    return ids;
  }
  ExtraDigest any_extra() {  // most often none
    ExtraDigest extra;
    if (below(3) == 0) extra.bytes[below(2) * 15] = static_cast<std::byte>(1 + below(2));
    return extra;
  }
  const std::map<BlockHash, BlockId>& children_of(TreeId tree, BlockId parent) const {
    static const std::map<BlockHash, BlockId> none;
    const auto found = children.find({tree, parent});
    return found == children.end() ? none : found->second;
  }
  bool is_leaf(BlockId block) const { return children_of(model.at(block).tree, block).empty(); }

  void erase_from_parent(BlockId block) {
    const ModelBlock& gone = model.at(block);
    const auto siblings = children.find({gone.tree, gone.parent});
    siblings->second.erase(gone.hash);
    if (siblings->second.empty()) children.erase(siblings);
  }
  void raise_recency(BlockId block, std::uint64_t recency) {
    if (block != kNoBlock) model.at(block).recency = std::max(model.at(block).recency, recency);
  }

  // -- operations

  void put() {
    const TreeId tree = any_tree();
    BlockId last = below(4) == 0 ? kNoBlock : any_linked();
    if (last != kNoBlock && model.at(last).tree != tree) last = kNoBlock;
    ++tick;
    for (std::size_t left = 1 + below(GetParam().put_blocks_max); left > 0; --left) {
      const std::size_t letter = below(GetParam().alphabet);
      const BlockHash hash = hash_below(last, letter);
      const auto& siblings = children_of(tree, last);
      const auto known = siblings.find(hash);
      const BlockId found = index.find_child(tree, last, hash);
      ASSERT_EQ(found, known == siblings.end() ? kNoBlock : known->second);
      if (found != kNoBlock) {
        last = found;
        continue;
      }
      ModelBlock block{tree, last, hash, SlotId{++next_slot}, 0, {}, any_extra(), below(50) == 0 ? tick / 2 : tick};
      block.position = (last == kNoBlock ? 0 : model.at(last).position + 1) + (below(8) == 0 ? 1 : 0);
      if (GetParam().has_tokens && below(4) != 0) block.tokens = tokens_of(letter);
      const BlockId id =
          index.insert(tree, last, {hash, block.slot, block.position, block.tokens, block.extra}, Tick{block.recency});
      ASSERT_FALSE(model.contains(id)) << "the id of a known block was given out again";
      model.emplace(id, block);
      children[{tree, last}][hash] = id;
      linked.push_back(id);
      last = id;
    }
  }

  void match() {
    const TreeId tree = any_tree();
    std::vector<BlockHash> hashes;
    std::vector<BlockId> expected;
    BlockId last = kNoBlock;
    for (std::size_t left = 1 + below(2 * GetParam().put_blocks_max); left > 0; --left) {  // a walk down, then off
      const auto& followers = children_of(tree, last);
      if (followers.empty() || below(30) == 0) break;
      auto next = followers.begin();
      std::advance(next, below(std::min<std::size_t>(followers.size(), 64)));
      hashes.push_back(next->first);
      expected.push_back(last = next->second);
    }
    bool is_off = false;
    for (std::size_t left = below(3); left > 0; --left) {
      hashes.push_back(hash_below(last, below(GetParam().alphabet)));
      const auto& followers = children_of(tree, last);
      const auto next = followers.find(hashes.back());
      is_off = is_off || next == followers.end();
      if (!is_off) expected.push_back(last = next->second);
    }
    const auto prefix = index.match(tree, hashes);
    ASSERT_EQ(prefix.block_count, expected.size());
    ASSERT_EQ(prefix.last, expected.empty() ? kNoBlock : expected.back());
    std::vector<BlockId> blocks(prefix.block_count);
    index.blocks_of(prefix, blocks);
    ASSERT_EQ(blocks, expected);
  }

  void match_partial() {
    const TreeId tree = any_tree();
    BlockId parent = below(3) == 0 ? kNoBlock : any_linked();
    if (parent != kNoBlock && model.at(parent).tree != tree) parent = kNoBlock;
    const auto ids = tokens_of(below(GetParam().alphabet));
    const ExtraDigest extra = any_extra();
    const auto shared = [&](const ModelBlock& block) {
      if (block.position != (parent == kNoBlock ? 0 : model.at(parent).position + 1)) return std::size_t{0};
      if (block.extra != extra) return std::size_t{0};
      const std::size_t count = std::min(block.tokens.size(), ids.size());
      return static_cast<std::size_t>(std::mismatch(ids.begin(), ids.begin() + count, block.tokens.begin()).first -
                                      ids.begin());
    };
    std::size_t best = 0;
    for (const auto& [hash, id] : children_of(tree, parent)) best = std::max(best, shared(model.at(id)));
    const auto found = index.match_partial(tree, parent, ids, extra);
    ASSERT_EQ(found.token_count, best);
    ASSERT_EQ(found.block == kNoBlock, best == 0);
    if (best == 0) return;
    ASSERT_EQ(model.at(found.block).parent, parent);
    ASSERT_EQ(model.at(found.block).tree, tree);
    ASSERT_EQ(shared(model.at(found.block)), best);
  }

  void touch() {
    const BlockId block = any_linked();
    if (block == kNoBlock) return;
    const std::uint64_t at = below(50) == 0 ? tick / 2 : ++tick;
    index.touch(block, Tick{at});
    raise_recency(block, at);
  }

  void pin_or_unpin() {
    const BlockId block = any_linked();
    if (block == kNoBlock) return;
    std::uint32_t& pins = model.at(block).pins;
    if (pins > prefix_pin_counts[block] && below(3) != 0) {
      index.unpin(block);
      --pins;
    } else if (pins == 0 && below(3) == 0) {
      index.pin(block);
      ++pins;
    }
    ASSERT_EQ(index.pin_count(block), pins);
  }

  void evict() {
    const BlockId victim = index.oldest_leaf_end();
    // Looking at all blocks each time would make this the whole test.
    std::uint64_t oldest = victim == kNoBlock ? ~std::uint64_t{0} : model.at(victim).recency;
    if (victim == kNoBlock || below(model.size() + 1) < 100) {
      for (const auto& [id, block] : model) {
        if (block.is_linked && block.pins == 0 && block.recency < oldest && is_leaf(id)) oldest = block.recency;
      }
    }
    ASSERT_EQ(victim == kNoBlock, oldest == ~std::uint64_t{0});
    if (victim == kNoBlock) return;
    const ModelBlock& block = model.at(victim);
    ASSERT_TRUE(block.is_linked && block.pins == 0 && is_leaf(victim));
    ASSERT_EQ(block.recency, oldest);
    ASSERT_EQ(index.recency(victim), Tick{oldest});
    remove(victim);
  }

  void remove_any() {
    const BlockId block = any_linked();
    if (block == kNoBlock) return;
    ASSERT_EQ(index.is_leaf_end(block), is_leaf(block));
    if (is_leaf(block) && model.at(block).pins == 0) remove(block);
  }

  void remove(BlockId block) {
    index.remove_leaf_end(block);
    raise_recency(model.at(block).parent, model.at(block).recency);
    erase_from_parent(block);
    model.erase(block);
    ASSERT_FALSE(index.is_linked(block));
  }

  void unlink() {
    const BlockId top = any_linked();
    if (top == kNoBlock) return;
    std::vector<BlockId> expected{top};
    for (std::size_t i = 0; i < expected.size(); ++i) {
      for (const auto& [hash, id] : children_of(model.at(top).tree, expected[i])) expected.push_back(id);
    }
    if (expected.size() > 50 && below(20) != 0) return;  // or the trees would never grow
    for (const BlockId id : expected) uncover(id);
    erase_from_parent(top);
    std::set<BlockId> gone;
    std::uint64_t recency = 0;
    index.unlink_subtree(top, [&](BlockId id) {
      const ModelBlock& block = model.at(id);
      ASSERT_EQ(index.hash(id), block.hash);
      ASSERT_EQ(index.slot(id), block.slot);
      ASSERT_EQ(index.tree(id), block.tree);
      ASSERT_FALSE(index.is_linked(id));
      for (const auto& [hash, child] : children_of(block.tree, id)) ASSERT_TRUE(gone.contains(child));
      ASSERT_TRUE(gone.insert(id).second);
      recency = std::max(recency, block.recency);
    });
    ASSERT_EQ(gone, std::set<BlockId>(expected.begin(), expected.end()));
    raise_recency(model.at(top).parent, recency);
    for (const BlockId id : expected) {
      children.erase({model.at(id).tree, id});
      model.at(id).is_linked = false;
      if (model.at(id).pins == 0) model.erase(id);
    }
  }

  /// As unlink(), in two parts: what is cut off is not found from then on, and goes piece by piece.
  void detach() {
    const TreeId tree = any_tree();
    const bool is_all = below(60) == 0;
    const BlockId top = is_all ? kNoBlock : any_linked();
    if (!is_all && (top == kNoBlock || cut.contains(top))) return;
    std::vector<BlockId> gone;
    if (is_all) {
      for (const auto& [hash, id] : children_of(tree, kNoBlock)) gone.push_back(id);
      children.erase({tree, kNoBlock});
    } else {
      gone.push_back(top);
    }
    const TreeId of = is_all ? tree : model.at(top).tree;
    for (std::size_t i = 0; i < gone.size(); ++i) {
      for (const auto& [hash, id] : children_of(of, gone[i])) gone.push_back(id);
    }
    if (gone.size() > 50 && below(20) != 0 && !is_all) return;
    if (is_all) {
      index.detach_all(tree, 7);
    } else {
      ASSERT_TRUE(index.is_attached(top));
      erase_from_parent(top);
      covered -= index.detach(top, 7);
    }
    cut.insert(gone.begin(), gone.end());
    for (const BlockId id : gone) ASSERT_FALSE(index.is_attached(id));
    for (const BlockId id : gone) {
      children.erase({of, id});
      model.at(id).is_linked = false;
    }
    ASSERT_EQ(index.has_detached(), !cut.empty());
    if (below(3) == 0) {
      ASSERT_EQ(index.check(), "");
    }
    std::uint64_t recency = 0;
    for (const BlockId id : gone) recency = std::max(recency, model.at(id).recency);
    const BlockId above = is_all ? kNoBlock : model.at(top).parent;
    while (index.has_detached()) {
      Steps steps(1 + below(200));
      std::vector<BlockId> reaped;
      const std::size_t count = index.reap(steps, [&](BlockId id, std::uint32_t label) {
        ASSERT_EQ(label, 7u);
        ASSERT_EQ(cut.erase(id), 1u);
        const ModelBlock& block = model.at(id);
        ASSERT_EQ(index.hash(id), block.hash);
        ASSERT_EQ(index.slot(id), block.slot);
        ASSERT_EQ(index.tree(id), block.tree);
        ASSERT_FALSE(index.is_attached(id));
        uncover(id);
        reaped.push_back(id);
      });
      ASSERT_EQ(count, reaped.size());
      ASSERT_LT(steps.used(), 200u + Steps::kRemoval);
      for (const BlockId id : reaped) {
        if (model.at(id).pins == 0) {
          model.erase(id);
        } else {  // what was below has left its recency to what was above, as if evicted one by one
          model.at(id).recency = static_cast<std::uint64_t>(index.recency(id));
        }
      }
      if (below(5) == 0) {
        ASSERT_EQ(index.check(), "");
      }
      if (HasFatalFailure() || !index.has_detached()) break;
      if (model.size() <= GetParam().block_count + 2 * GetParam().put_blocks_max) put();
      match();
    }
    ASSERT_TRUE(cut.empty());
    raise_recency(above, recency);
    ASSERT_EQ(covered, count_covered());
  }

  /// Every cover and all above it, each once.
  std::size_t count_covered() const {
    std::set<BlockId> all;
    for (BlockId id : covers)
      for (; id != kNoBlock && all.insert(id).second;) id = model.at(id).parent;
    return all.size();
  }
  void uncover(BlockId block) {
    if (covers.erase(block) == 0) return;
    covered -= index.uncover(block);
    index.unpin(block);
    --model.at(block).pins;
    --prefix_pin_counts[block];
  }
  void cover_or_uncover() {
    if (!covers.empty() && below(8) < covers.size()) {
      uncover(*std::next(covers.begin(), static_cast<std::ptrdiff_t>(below(covers.size()))));
    } else if (const BlockId block = any_linked(); block != kNoBlock && !index.is_cover(block)) {
      index.pin(block);
      ++model.at(block).pins;
      ++prefix_pin_counts[block];  // nobody else ends it
      const std::size_t expected = index.uncovered_count(block);
      ASSERT_EQ(index.cover(block), expected);
      covered += expected;
      covers.insert(block);
    }
    if (below(10) == 0) {
      ASSERT_EQ(covered, count_covered());
    }
  }

  /// What is at or below a block, by looking at all of it.
  void ask_for_pins() {
    const BlockId top = any_linked();
    if (top == kNoBlock) return;
    std::vector<BlockId> all{top};
    bool expected = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      expected |= model.at(all[i]).pins > 0;
      for (const auto& [hash, id] : children_of(model.at(top).tree, all[i])) all.push_back(id);
    }
    Steps steps(1'000'000);
    ASSERT_EQ(index.has_pinned(top, steps), expected);
  }

  /// A prefix is pinned as a whole, and unpinned after what comes up.
  void pin_prefix() {
    if (!prefix_pins.empty() && below(2) == 0) {
      const auto prefix = prefix_pins.begin() + static_cast<std::ptrdiff_t>(below(prefix_pins.size()));
      index.unpin(*prefix);
      for (const BlockId id : *prefix) {
        --model.at(id).pins;
        --prefix_pin_counts[id];
        if (model.at(id).pins > 0 || model.at(id).is_linked) continue;
        index.forget(id);
        model.erase(id);
      }
      prefix_pins.erase(prefix);
      return;
    }
    const BlockId last = any_linked();
    if (last == kNoBlock || prefix_pins.size() > 5) return;
    std::vector<BlockId> prefix;
    for (BlockId id = last; id != kNoBlock; id = model.at(id).parent) prefix.insert(prefix.begin(), id);
    index.pin(prefix);
    for (const BlockId id : prefix) {
      ++model.at(id).pins;
      ++prefix_pin_counts[id];
    }
    prefix_pins.push_back(prefix);
  }

  /// As a put does with each block that it adds.
  void move_pin() {
    const BlockId to = any_linked();
    if (to == kNoBlock || model.at(to).parent == kNoBlock) return;
    const BlockId from = model.at(to).parent;
    index.pin(from);
    index.move_pin(from, to);
    ++model.at(to).pins;
  }

  void release_unlinked() {
    for (auto block = model.begin(); block != model.end();) {
      if (block->second.is_linked || prefix_pin_counts[block->first] > 0 || below(2) == 0) {
        ++block;
        continue;
      }
      for (; block->second.pins > 0; --block->second.pins) index.unpin(block->first);
      index.forget(block->first);
      block = model.erase(block);
    }
  }

  void compare_all() {
    ASSERT_EQ(index.check(), "");
    ASSERT_EQ(covered, count_covered());
    std::size_t linked_count = 0;
    for (const auto& [id, block] : model) {
      linked_count += block.is_linked;
      ASSERT_EQ(index.is_linked(id), block.is_linked);
      ASSERT_EQ(index.hash(id), block.hash);
      ASSERT_EQ(index.slot(id), block.slot);
      ASSERT_EQ(index.tree(id), block.tree);
      ASSERT_EQ(index.position(id), block.position);
      ASSERT_EQ(index.pin_count(id), block.pins);
      ASSERT_EQ(index.recency(id), Tick{block.recency});
      if (!block.is_linked) continue;
      ASSERT_EQ(index.parent(id), block.parent);
      ASSERT_EQ(index.is_leaf_end(id), is_leaf(id));
    }
    ASSERT_EQ(index.block_count(), linked_count);
    std::set<BlockId> seen;
    for (const TreeId tree : trees) {
      const std::size_t before = seen.size();
      index.for_each(tree, [&](BlockId id) {
        ASSERT_EQ(model.at(id).tree, tree);
        ASSERT_TRUE(model.at(id).parent == kNoBlock || seen.contains(model.at(id).parent));
        seen.insert(id);
      });
      ASSERT_EQ(index.block_count(tree), seen.size() - before);
    }
    ASSERT_EQ(seen.size(), linked_count);
  }
};

TEST_P(PrefixIndexModelTest, AnswersAsMapsOfSetsDo) {
  const Shape& shape = GetParam();
  const std::uint64_t steps = env_or("KV_MODEL_STEPS", shape.steps);
  std::printf("KV_SEED=%llu, %llu steps\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(steps));
  for (std::uint64_t step = 0; step < steps; ++step) {
    SCOPED_TRACE(testing::Message() << "KV_SEED=" << seed << " step " << step);
    const bool is_full = model.size() > shape.block_count;
    const std::size_t dice = below(1000);
    if (dice < 250) {
      if (!is_full) put();
    } else if (dice < 450) {
      match();
    } else if (dice < 550) {
      match_partial();
    } else if (dice < 650) {
      touch();
    } else if (dice < 720) {
      pin_or_unpin();
    } else if (dice < 750) {
      cover_or_uncover();
    } else if (dice < 850) {
      if (is_full) {
        std::size_t left = shape.put_blocks_max;
        while (left > 0 && index.oldest_leaf_end() != kNoBlock && !HasFatalFailure()) evict(), --left;
        if (left > 0) evict();
      } else if (below(4) == 0) {
        evict();
      }
    } else if (dice < 990) {
      remove_any();
    } else if (dice < 992) {
      unlink();
    } else if (dice < 995) {
      detach();
    } else if (dice < 998) {
      ask_for_pins();
      pin_prefix();
      move_pin();
    } else {
      release_unlinked();
    }
    if (step % shape.steps_per_check == 0) compare_all();
    if (HasFatalFailure()) return;
  }
  while (!covers.empty()) uncover(*covers.begin());
  ASSERT_EQ(covered, 0u);
  for (const TreeId tree : trees) {
    while (!children_of(tree, kNoBlock).empty()) {
      const BlockId first = children_of(tree, kNoBlock).begin()->second;
      index.unlink_subtree(first, [](BlockId) {});
      erase_from_parent(first);
    }
  }
  for (const auto& prefix : prefix_pins) index.unpin(prefix);
  ASSERT_EQ(index.check(), "");
  ASSERT_EQ(index.block_count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrefixIndexModelTest,
                         testing::Values(Shape{"Tiny", 12, 2, 4, true, true, 800'000, 20},
                                         Shape{"Bushy", 300, 5, 6, true, true, 500'000, 500},
                                         Shape{"SameHashesEverywhere", 300, 4, 8, false, true, 400'000, 500},
                                         Shape{"WideRoot", 600, 1000, 2, true, false, 200'000, 500},
                                         Shape{"LongRuns", 3000, 1, 600, true, false, 20'000, 200},
                                         Shape{"LongRunsThatBranch", 3000, 2, 400, true, true, 20'000, 200}),
                         [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace kv
