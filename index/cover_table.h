// index/cover_table.h: the edges of a PrefixIndex that have covers in or below them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <unordered_map>

#include "base/assert.h"

namespace kv {

/// A cover is a block that counts together with all above it (PrefixIndex::cover). The few covers are kept in this
/// table; an edge fills its cache line already.
///   1. A node is covered iff it has covers or covered children. The table has only covered nodes.
///   2. With a covered child, the node's whole run counts. Otherwise, its blocks up to the deepest cover.
/// Cost: O(log covers).
class CoverTable {
 public:
  bool empty() const { return covers_.empty(); }  ///< Then all nodes are uncovered.
  std::size_t count() const { return covers_.size(); }

  void add(std::uint32_t node, std::uint32_t depth) { covers_.insert(key(node, depth)); }
  bool remove(std::uint32_t node, std::uint32_t depth) { return covers_.erase(key(node, depth)) > 0; }
  bool contains(std::uint32_t node, std::uint32_t depth) const { return covers_.contains(key(node, depth)); }
  /// The block at this depth, perhaps a cover, has moved to another node.
  void move(std::uint32_t from, std::uint32_t to, std::uint32_t depth) {
    if (!covers_.empty() && remove(from, depth)) add(to, depth);
  }
  /// One more than the depth of the node's deepest cover; 0 without covers.
  std::uint32_t end(std::uint32_t node) const {
    const auto after = covers_.upper_bound(key(node, 0xFFFFFFFF));
    if (after == covers_.begin() || *std::prev(after) >> 32 != node) return 0;
    return static_cast<std::uint32_t>(*std::prev(after)) + 1;
  }

  std::uint32_t child_count(std::uint32_t node) const {
    const auto found = child_counts_.find(node);
    return found == child_counts_.end() ? 0 : found->second;
  }
  void add_child(std::uint32_t node) { ++child_counts_[node]; }
  void remove_child(std::uint32_t node) {
    const auto found = child_counts_.find(node);
    KV_ASSERT(found != child_counts_.end() && found->second > 0);
    if (--found->second == 0) child_counts_.erase(found);
  }
  void forget_children(std::uint32_t node) { child_counts_.erase(node); }
  void move_children(std::uint32_t from, std::uint32_t to) {  ///< Replaces those of `to`.
    const std::uint32_t count = child_count(from);
    child_counts_.erase(from);
    child_counts_.erase(to);
    if (count > 0) child_counts_[to] = count;
  }
  bool is_covered(std::uint32_t node) const { return !empty() && (child_count(node) > 0 || end(node) > 0); }

  std::size_t parent_count() const { return child_counts_.size(); }
  std::size_t used_bytes() const { return covers_.size() * kSetNodeBytes + child_counts_.size() * kMapNodeBytes; }

 private:
  static constexpr std::size_t kSetNodeBytes = 48, kMapNodeBytes = 48;  // as allocated, buckets included
  static std::uint64_t key(std::uint32_t node, std::uint32_t depth) { return std::uint64_t{node} << 32 | depth; }

  std::set<std::uint64_t> covers_;
  std::unordered_map<std::uint32_t, std::uint32_t> child_counts_;
};

}  // namespace kv
