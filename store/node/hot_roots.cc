#include "store/node/hot_roots.h"

#include <spdlog/fmt/fmt.h>

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/assert.h"
#include "transport/frames/frame.h"

namespace kv {
namespace {

/// Equal blocks mean equal beginnings, so bisection finds how far two runs agree.
std::size_t common_blocks(std::span<const BlockHash> a, std::span<const BlockHash> b) {
  const std::size_t length = std::min(a.size(), b.size());
  if (length == 0 || a[length - 1] == b[length - 1]) return length;
  std::size_t low = 0, high = length - 1;  // [0, low) is equal, block `high` is not
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    (a[middle] == b[middle] ? low : high) = a[middle] == b[middle] ? middle + 1 : middle;
  }
  return low;
}

}  // namespace

/// Blocks that follow one another; every chain met so far leaves them at their end only.
struct HotRoots::Run {
  std::vector<BlockHash> blocks;  ///< Empty: the root of a namespace.
  std::uint64_t weight = 0;       ///< Of the matches that began with the whole run.
  std::size_t hot_blocks = 0;     ///< The leading ones that are hot.
  /// By their first block. Ordered, because clients choose hashes: searches stay short for any choice.
  std::map<BlockHash, std::unique_ptr<Run>> next;
};

struct HotRoots::Owner {
  SpaceOwner who;
  std::uint64_t total = 0;                   ///< Weight of its matches.
  std::uint32_t nodes = 1;                   ///< Of the cluster: median of recent matches.
  std::array<std::uint32_t, kReview> heard;  ///< Node counts in recent matches, a ring.
  std::size_t heard_count = 0;               ///< Node counts received in all.
  std::size_t block_count = 0;               ///< In its runs.
  std::size_t list_count = 0;                ///< Blocks taken into the list by the present review.
  std::uint64_t least = 0;                   ///< For age(): lighter runs are forgotten.
};

struct HotRoots::Space {
  explicit Space(Owner& of) : owner(of) {}
  Owner& owner;
  Run root;
  std::shared_ptr<const List> list = std::make_shared<const List>();
};

HotRoots::HotRoots() = default;
HotRoots::~HotRoots() = default;

HotRoots::Owner& HotRoots::owner_named(const SpaceOwner& owner) {
  SpaceOwner name = owner;
  name.epoch = 0;  // a new secret does not change the owner
  if (owners_.size() >= kOwnersMax && !owners_.contains(name)) name = {};
  std::unique_ptr<Owner>& found = owners_[name];
  if (!found) found = std::make_unique<Owner>(Owner{.who = name, .heard = {}});
  return *found;
}

void HotRoots::hear(Owner& owner, std::uint32_t nodes) {
  owner.heard[owner.heard_count++ % kReview] = nodes;
  // Early values may each change the median; later it is computed once in kReview.
  if (owner.heard_count > kReview && owner.heard_count % kReview != 0) return;
  auto said = owner.heard;
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::size_t>(owner.heard_count, kReview));
  const auto middle = said.begin() + (count - 1) / 2;
  std::nth_element(said.begin(), middle, said.begin() + count);
  owner.nodes = *middle;
}

/// The total for its blocks' shares.
std::uint64_t HotRoots::matches_of(const Owner& owner) const { return std::min(total_, owner.total * owners_.size()); }

/// Until half a window was seen, the missing part counts as matches of others.
std::uint64_t HotRoots::matches_for_review(const Owner& owner) const {
  return std::max<std::uint64_t>(matches_of(owner), std::uint64_t{kWindow} / 2 * owner.nodes);
}

/// Free blocks for runs, minus the unused shares of other owners.
std::size_t HotRoots::room_for(const Owner& owner) const {
  const std::size_t share = kBlocksMax / owners_.size();
  std::size_t taken = block_count_;
  for (const auto& [who, other] : owners_) {
    if (other.get() != &owner) taken += share - std::min(share, other->block_count);
  }
  return kBlocksMax - std::min(taken, kBlocksMax);
}

std::uint64_t HotRoots::count(const NamespaceId& id, std::span<const BlockHash> beginning, std::size_t hot_blocks,
                              std::uint32_t nodes, const SpaceOwner& of) {
  beginning = beginning.first(std::min(beginning.size(), kRootBlocksMax));
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Space>& space = spaces_[id];
  if (!space) space = std::make_unique<Space>(owner_named(of));
  Owner& owner = space->owner;
  hear(owner, nodes);
  total_ += owner.nodes;
  owner.total += owner.nodes;
  Run* run = &space->root;
  std::size_t depth = 0;
  while (depth < beginning.size()) {
    const std::uint64_t weight = depth < hot_blocks ? owner.nodes : 1;
    const auto found = run->next.find(beginning[depth]);
    if (found == run->next.end()) {
      add(owner, *run, beginning.subspan(depth), depth, weight);
      break;
    }
    Run& next = *found->second;
    const std::size_t common = common_blocks(next.blocks, beginning.subspan(depth));
    KV_ASSERT(common > 0);
    if (common < next.blocks.size()) split(next, common);
    next.weight += weight;
    depth += common;
    run = &next;
  }
  ++match_count_;
  if (match_count_ % kReview == 0) review();
  if (match_count_ % kWindow == 0) age();
  const auto left = spaces_.find(id);  // age() drops namespaces without runs
  return left == spaces_.end() ? 0 : left->second->list->version;
}

void HotRoots::split(Run& run, std::size_t at) {
  auto rest = std::make_unique<Run>();
  rest->blocks.assign(run.blocks.begin() + static_cast<std::ptrdiff_t>(at), run.blocks.end());
  rest->weight = run.weight;
  rest->hot_blocks = run.hot_blocks - std::min(run.hot_blocks, at);
  rest->next = std::move(run.next);
  run.next.clear();
  run.blocks.resize(at);
  run.hot_blocks = std::min(run.hot_blocks, at);
  const BlockHash first = rest->blocks.front();
  run.next.emplace(first, std::move(rest));
}

/// Most differing chains are met once, so little is kept of each. A chain that continues where a run ends has been met
/// in this length before: as much again is kept, so that a root of any length is found after a few matches.
void HotRoots::add(Owner& owner, Run& parent, std::span<const BlockHash> blocks, std::size_t depth,
                   std::uint64_t weight) {
  const std::size_t wanted = parent.next.empty() ? std::max(kRunBlocks, depth) : kRunBlocks;
  const std::size_t length = std::min({wanted, blocks.size(), room_for(owner)});
  if (length == 0) return;  // 3
  auto run = std::make_unique<Run>();
  run->blocks.assign(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(length));
  run->weight = weight;
  block_count_ += length;
  owner.block_count += length;
  parent.next.emplace(blocks.front(), std::move(run));
}

/// Decides which runs are hot. The largest shares come first, so that they get in if the list is too small, and a run
/// is considered only after the one above it (1). In the first round each owner gets at most its share of the list; in
/// the second, the rest goes to owners with more.
void HotRoots::review() {
  struct Candidate {
    double share;
    Run* run;
    std::size_t space;  ///< Its index in spaces_.
    Owner* owner;
    std::size_t taken = 0;  ///< Blocks taken in the first round.
  };
  const auto is_less = [](const Candidate& a, const Candidate& b) { return a.share < b.share; };
  std::vector<Candidate> heap, left;
  std::set<const Owner*> with_hot;
  const auto push_next = [&](Run& run, std::size_t space, Owner& owner) {
    const std::uint64_t total = matches_for_review(owner);
    for (auto& [hash, next] : run.next) {
      const std::uint64_t one_in = next->hot_blocks > 0 ? kColdOneIn : kHotOneIn;
      if (next->weight * one_in <= total) continue;
      with_hot.insert(&owner);
      heap.push_back({static_cast<double>(next->weight) / static_cast<double>(total), next.get(), space, &owner});
      std::ranges::push_heap(heap, is_less);
    }
  };
  const auto cool = [](auto&& self, Run& run) -> void {
    for (auto& [hash, next] : run.next) {
      if (next->hot_blocks == 0) continue;  // 1: the runs below are cold, too
      next->hot_blocks = 0;
      self(self, *next);
    }
  };
  std::vector<std::vector<BlockHash>> lists(spaces_.size());
  std::size_t index = 0;
  for (auto& [id, space] : spaces_) push_next(space->root, index++, space->owner);
  for (auto& [who, owner] : owners_) owner->list_count = 0;
  std::size_t count = 0;
  std::map<Run*, std::size_t> hot;
  const auto take = [&](std::size_t share) {
    while (!heap.empty() && count < kHotBlocksMax) {
      std::ranges::pop_heap(heap, is_less);
      Candidate best = heap.back();
      heap.pop_back();
      const std::size_t own = share - std::min(share, best.owner->list_count);
      const std::size_t more = std::min({best.run->blocks.size() - best.taken, kHotBlocksMax - count, own});  // 2
      const auto begin = best.run->blocks.begin() + static_cast<std::ptrdiff_t>(best.taken);
      lists[best.space].insert(lists[best.space].end(), begin, begin + static_cast<std::ptrdiff_t>(more));
      best.taken += more;
      best.owner->list_count += more;
      count += more;
      if (best.taken > 0) hot[best.run] = best.taken;
      if (best.taken == best.run->blocks.size()) {
        push_next(*best.run, best.space, *best.owner);
      } else {
        left.push_back(best);
      }
    }
  };
  take(kHotBlocksMax / std::max<std::size_t>(1, with_hot.size()));
  heap.insert(heap.end(), left.begin(), left.end());
  std::ranges::make_heap(heap, is_less);
  take(kHotBlocksMax);
  for (auto& [id, space] : spaces_) cool(cool, space->root);
  for (const auto& [run, taken] : hot) run->hot_blocks = taken;
  hot_count_ = count;
  publish(std::move(lists));
}

/// `lists`: the hot blocks of each namespace, in the order of spaces_.
void HotRoots::publish(std::vector<std::vector<BlockHash>> lists) {
  std::size_t index = 0;
  for (auto& [id, space] : spaces_) {
    std::vector<BlockHash>& blocks = lists[index++];
    if (blocks.empty() && space->list->version == 0) continue;
    auto list = std::make_shared<List>();
    std::vector<BlockHash> sorted = blocks;  // so that equal sets have equal versions
    std::ranges::sort(sorted);
    if (!blocks.empty()) {  // 4
      list->version = std::max<std::uint64_t>(1, XXH3_64bits(sorted.data(), sorted.size() * sizeof(BlockHash)));
    }
    if (list->version == space->list->version) continue;
    list->blocks = std::move(blocks);
    space->list = std::move(list);
  }
}

/// Halves all weights, and forgets rare runs until half the room is free; the bound rises for owners above their share.
void HotRoots::age() {
  total_ /= 2;
  for (auto& [who, owner] : owners_) owner->total /= 2;
  const auto rare = [this](const Owner& owner) { return std::max<std::uint64_t>(1, matches_of(owner) / kForgetOneIn); };
  for (auto& [who, owner] : owners_) owner->least = rare(*owner);
  const std::size_t share = kBlocksMax / 2 / std::max<std::size_t>(1, owners_.size());
  while (true) {
    for (auto entry = spaces_.begin(); entry != spaces_.end();) {
      Space& space = *entry->second;
      forget_rare(space.owner, space.root, space.owner.least);
      entry = space.root.next.empty() && space.list->version == 0 ? spaces_.erase(entry) : std::next(entry);
    }
    if (block_count_ <= kBlocksMax / 2) break;
    for (auto& [who, owner] : owners_) {
      if (owner->block_count > share) owner->least *= 2;
    }
  }
  const auto halve = [](auto&& self, Run& run) -> void {
    run.weight /= 2;
    for (auto& [hash, next] : run.next) self(self, *next);
  };
  std::set<const Owner*> with_space;
  for (auto& [id, space] : spaces_) {
    halve(halve, space->root);
    for (auto& [hash, next] : space->root.next) join(*next, rare(space->owner));
    with_space.insert(&space->owner);
  }
  std::erase_if(owners_, [&](const auto& entry) { return !with_space.contains(entry.second.get()); });
}

/// Drops leaf runs below `run` that weigh less than `least` after halving, and are not hot.
void HotRoots::forget_rare(Owner& owner, Run& run, std::uint64_t least) {
  for (auto entry = run.next.begin(); entry != run.next.end();) {
    Run& next = *entry->second;
    forget_rare(owner, next, least);
    if (next.weight >= 2 * least || !next.next.empty() || next.hot_blocks > 0) {
      ++entry;
      continue;
    }
    block_count_ -= next.blocks.size();
    owner.block_count -= next.blocks.size();
    entry = run.next.erase(entry);
  }
}

/// Joins a run with its only remaining follower if their weights are equal up to forgotten rests: otherwise each chain
/// that ever left a root would leave a cut in it.
void HotRoots::join(Run& run, std::uint64_t least) {
  while (run.next.size() == 1) {
    Run& only = *run.next.begin()->second;
    const bool is_alike = run.weight <= only.weight + least;
    const bool is_as_hot = run.hot_blocks == run.blocks.size() || only.hot_blocks == 0;
    if (!is_alike || !is_as_hot || (run.hot_blocks > 0) != (only.hot_blocks > 0)) break;
    if (run.blocks.size() + only.blocks.size() > kRootBlocksMax) break;
    const std::unique_ptr<Run> taken = std::move(run.next.begin()->second);
    run.next = std::move(taken->next);
    run.blocks.insert(run.blocks.end(), taken->blocks.begin(), taken->blocks.end());
    run.hot_blocks += taken->hot_blocks;
    run.weight = taken->weight;
  }
  for (auto& [hash, next] : run.next) join(*next, least);
}

std::uint64_t HotRoots::version(const NamespaceId& space) const {
  const std::lock_guard lock(mutex_);
  const auto found = spaces_.find(space);
  return found == spaces_.end() ? 0 : found->second->list->version;
}

std::shared_ptr<const HotRoots::List> HotRoots::list(const NamespaceId& space) const {
  const std::lock_guard lock(mutex_);
  const auto found = spaces_.find(space);
  return found == spaces_.end() ? std::make_shared<const List>() : found->second->list;
}

std::vector<HotRoots::Beginning> HotRoots::most_used(std::size_t count_max) const {
  struct Met {
    const Run* run;
    std::size_t depth;  ///< Blocks above it.
    NamespaceId space;
    const Owner* owner;
    double share;
  };
  const auto is_less = [](const Met& a, const Met& b) { return a.share < b.share; };
  std::vector<Met> heap;
  std::vector<Beginning> result;
  const std::lock_guard lock(mutex_);
  const auto push_next = [&](const Run& run, std::size_t depth, const NamespaceId& space, const Owner& owner) {
    const std::uint64_t total = matches_of(owner);
    for (const auto& [hash, next] : run.next) {
      if (next->weight * kColdOneIn <= total) continue;
      heap.push_back(
          {next.get(), depth, space, &owner, static_cast<double>(next->weight) / static_cast<double>(total)});
      std::ranges::push_heap(heap, is_less);
    }
  };
  for (const auto& [id, space] : spaces_) push_next(space->root, 0, id, space->owner);
  while (!heap.empty() && result.size() < count_max) {
    std::ranges::pop_heap(heap, is_less);
    const Met most = heap.back();
    heap.pop_back();
    const std::size_t end = most.depth + most.run->blocks.size();
    result.push_back({.space = most.space,
                      .owner = most.owner->who,
                      .last = most.run->blocks.back(),
                      .block_count = end,
                      .share = std::min(1.0, most.share),
                      .is_hot = most.run->hot_blocks > 0});
    push_next(*most.run, end, most.space, *most.owner);
  }
  return result;
}

std::string HotRoots::check() const {
  const std::lock_guard lock(mutex_);
  std::size_t blocks = 0, hot = 0;
  std::string wrong;
  const auto walk = [&](auto&& self, const Run& run) -> void {
    for (const auto& [hash, next] : run.next) {
      blocks += next->blocks.size();
      hot += next->hot_blocks;
      if (next->blocks.empty() || next->blocks.front() != hash) wrong = "a run under another block";
      if (next->hot_blocks > 0 && run.hot_blocks < run.blocks.size()) wrong = "1: a hot run below one that is not";
      self(self, *next);
    }
  };
  std::size_t listed = 0;
  std::map<const Owner*, std::size_t> of_owner;
  for (const auto& [id, space] : spaces_) {
    const std::size_t before = blocks;
    walk(walk, space->root);
    of_owner[&space->owner] += blocks - before;
    listed += space->list->blocks.size();
    if ((space->list->version == 0) != space->list->blocks.empty()) wrong = "4: a version without a list";
  }
  for (const auto& [who, owner] : owners_) {
    if (of_owner[owner.get()] != owner->block_count) wrong = "3: blocks of an owner are counted wrong";
  }
  if (hot != listed || hot != hot_count_ || hot > kHotBlocksMax) wrong = fmt::format("2: {} hot blocks", hot);
  if (blocks != block_count_ || blocks > kBlocksMax) wrong = fmt::format("3: {} blocks kept", blocks);
  return wrong;
}

}  // namespace kv
