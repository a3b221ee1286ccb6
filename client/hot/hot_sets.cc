#include "client/hot/hot_sets.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {

bool HotSets::meet(std::uint32_t space) { return !std::exchange(spaces_[space].was_met, true); }

HotSets::SpaceSet& HotSets::heard(std::uint32_t space, std::size_t node, TimePoint now) {
  KV_ASSERT(node < kept_counts_.size());
  SpaceSet& set = spaces_[space];
  set.nodes.resize(kept_counts_.size());
  if (set.first_heard == TimePoint{}) set.first_heard = now;
  return set;
}

bool HotSets::hear(std::uint32_t space, std::size_t node, std::uint64_t version, TimePoint now) {
  SpaceSet& set = heard(space, node, now);
  NodeWord& word = set.nodes[node];
  if (word.version == version) {
    word.was_heard = true;  // even an empty report: the next one is a change (2)
    return false;
  }
  if (version != 0) return true;
  learn(space, node, 0, {}, now);
  return false;
}

void HotSets::learn(std::uint32_t space, std::size_t node, std::uint64_t version, Hashes blocks, TimePoint now) {
  SpaceSet& set = heard(space, node, now);
  NodeWord& word = set.nodes[node];
  const bool is_change = std::exchange(word.was_heard, true) || now >= set.first_heard + kMeetTime;
  word.version = version;
  std::vector<BlockHash> wanted(blocks.begin(), blocks.end());
  std::ranges::sort(wanted);
  const auto twice = std::ranges::unique(wanted);
  wanted.erase(twice.begin(), twice.end());
  if (kept_counts_[node] - word.blocks.size() + wanted.size() > kBlocksPerNodeMax) wanted.clear();  // 3
  take_word(set, node, std::move(wanted), is_change, now);
}

/// The old list is removed after the new one was added, so that blocks in both stay unchanged.
void HotSets::take_word(SpaceSet& set, std::size_t node, std::vector<BlockHash> blocks, bool is_change, TimePoint now) {
  NodeWord& word = set.nodes[node];
  const std::uint64_t change = is_change ? ++last_change_ : 0;
  const auto changed = [&](Block& block) {
    block.change = change;
    block.changed = now;
  };
  for (const BlockHash& hash : blocks) {
    Block& block = set.blocks[hash];
    if (block.node_count++ == 0) changed(block);
  }
  for (const BlockHash& hash : word.blocks) {
    Block& block = set.blocks.at(hash);
    KV_ASSERT(block.node_count > 0);
    if (--block.node_count == 0) changed(block);
  }
  kept_counts_[node] += blocks.size();
  kept_counts_[node] -= word.blocks.size();
  word.blocks = std::move(blocks);
  std::erase_if(set.blocks, [&](const auto& entry) {
    return entry.second.node_count == 0 && (entry.second.change == 0 || now - entry.second.changed >= kChangeTime);
  });
  // Each change may leave as many formerly hot blocks. The history of a node that keeps changing is dropped.
  if (set.blocks.size() > 2 * kBlocksPerNodeMax * kept_counts_.size()) {
    std::erase_if(set.blocks, [](const auto& entry) { return entry.second.node_count == 0; });
  }
}

/// The relevant change is the latest one among the root's blocks and the block behind it, which may have been hot
/// before. Before that change, the blocks that it made hot were not, and its others were.
HotSets::Roots HotSets::roots(std::uint32_t space, Hashes chain, TimePoint now) const {
  Roots roots;
  const auto found = spaces_.find(space);
  if (found == spaces_.end() || found->second.blocks.empty()) return roots;
  const auto& blocks = found->second.blocks;
  const Block* latest = nullptr;
  for (const BlockHash& hash : chain) {
    const auto entry = blocks.find(hash);
    if (entry == blocks.end()) break;
    const Block& block = entry->second;
    if (block.change != 0 && (latest == nullptr || block.change > latest->change)) latest = &block;
    if (block.node_count == 0) break;
    ++roots.now;
  }
  if (latest == nullptr || now - latest->changed >= kChangeTime) return roots;
  std::size_t before = 0;
  for (const BlockHash& hash : chain) {
    const auto entry = blocks.find(hash);
    if (entry == blocks.end()) break;
    const bool is_hot = entry->second.node_count > 0;
    if (entry->second.change == latest->change ? is_hot : !is_hot) break;
    ++before;
  }
  if (before != roots.now) roots.before = before;
  return roots;
}

std::vector<BlockHash> HotSets::hot_blocks(std::uint32_t space, std::optional<std::size_t> unless) const {
  std::vector<BlockHash> hot;
  const auto found = spaces_.find(space);
  if (found == spaces_.end()) return hot;
  const auto& [was_met, blocks, nodes, first_heard] = found->second;
  const NodeWord* const left_out = unless && *unless < nodes.size() ? &nodes[*unless] : nullptr;
  for (const auto& [hash, block] : blocks) {
    const bool is_left_out = block.node_count == 1 && left_out && std::ranges::binary_search(left_out->blocks, hash);
    if (block.node_count > 0 && !is_left_out) hot.push_back(hash);
  }
  return hot;
}

void HotSets::found(std::uint32_t space, const BlockHash& last, Place place) {
  const auto known = found_index_.find(last);
  if (known != found_index_.end()) {
    found_[known->second] = {space, last, place};
    return;
  }
  if (found_.size() < kFoundMax) {
    found_.push_back({space, last, place});
  } else {
    const auto oldest = found_index_.find(found_[found_next_].last);
    if (oldest != found_index_.end() && oldest->second == found_next_) found_index_.erase(oldest);  // not forgotten yet
    found_[found_next_] = {space, last, place};
  }
  found_index_.emplace(last, found_next_);
  found_next_ = (found_next_ + 1) % kFoundMax;
}

void HotSets::forget(const BlockHash& last) { found_index_.erase(last); }

void HotSets::forget_places() {
  found_index_.clear();
  found_.clear();
  found_next_ = 0;
}

void HotSets::forget_node(std::size_t node, TimePoint now) {
  KV_ASSERT(node < kept_counts_.size());
  for (auto& [space, set] : spaces_) {
    if (node >= set.nodes.size()) continue;
    take_word(set, node, {}, /*is_change=*/true, now);
    set.nodes[node] = {};
  }
}

HotSets::Place HotSets::place_of(std::uint32_t space, Hashes chain, TimePoint now) const {
  if (chain.empty()) return {};
  const auto entry = found_index_.find(chain.back());
  if (entry != found_index_.end() && found_[entry->second].space == space) return found_[entry->second].place;
  return {roots(space, chain, now).now};
}

}  // namespace kv
