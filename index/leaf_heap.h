// index/leaf_heap.h: the eviction order of leaves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"
#include "index/stable_table.h"

namespace kv {

/// A 4-ary heap over numbered leaves with each leaf's position, so that any leaf can be removed or renamed. 4-ary: half
/// as deep as a binary heap, and the four children lie side by side.
///   1. An entry's key is at least its parent entry's key.
///   2. positions[leaf] is one more than the index of the leaf's entry; 0 without an entry.
/// The owner keeps the table of positions, with an entry for each leaf. All of its heaps share the table: there can be
/// thousands of heaps, and a table each would cost leaves x heaps. So a leaf is in at most one heap, and only the heap
/// that may hold a leaf may be queried for it. Cost: O(log leaves); top() and contains() O(1).
class LeafHeap {
 public:
  using Positions = StableTable<std::uint32_t>;
  struct Entry {
    std::uint64_t key;
    std::uint32_t leaf;
  };

  explicit LeafHeap(Positions& positions) : positions_(&positions) {}

  bool empty() const { return entries_.size() == 0; }
  std::uint32_t size() const { return entries_.size(); }
  Entry top() const {
    KV_ASSERT(!empty());
    return entries_[0];
  }
  bool contains(std::uint32_t leaf) const { return (*positions_)[leaf] != 0; }
  std::uint64_t key(std::uint32_t leaf) const { return entries_[(*positions_)[leaf] - 1].key; }

  void insert(std::uint32_t leaf, std::uint64_t key) {
    KV_ASSERT(leaf < positions_->size() && !contains(leaf));
    sift_up(entries_.add(), {key, leaf});
  }

  void set_key(std::uint32_t leaf, std::uint64_t key) {
    KV_ASSERT(contains(leaf));
    place((*positions_)[leaf] - 1, {key, leaf});
  }

  void erase(std::uint32_t leaf) {
    KV_ASSERT(contains(leaf));
    const std::uint32_t hole = (*positions_)[leaf] - 1;
    (*positions_)[leaf] = 0;
    const Entry last = entries_[entries_.size() - 1];
    entries_.remove_last();
    if (last.leaf != leaf) place(hole, last);
  }

  /// Gives the entry of `from`, if any, to `to`: an edge was split or joined, and its leaf end remains.
  void rename(std::uint32_t from, std::uint32_t to) {
    if (!contains(from)) return;
    KV_ASSERT(to < positions_->size() && !contains(to));
    set((*positions_)[from] - 1, {key(from), to});
    (*positions_)[from] = 0;
  }

  std::size_t heap_bytes() const { return entries_.heap_bytes(); }  ///< Without the shared table.

  bool check() const {  ///< Both invariants; for tests.
    for (std::uint32_t i = 0; i < size(); ++i) {
      if ((*positions_)[entries_[i].leaf] != i + 1) return false;
      if (i > 0 && entries_[(i - 1) / 4].key > entries_[i].key) return false;
    }
    return true;
  }

 private:
  void set(std::uint32_t i, Entry entry) {
    entries_[i] = entry;
    (*positions_)[entry.leaf] = i + 1;
  }

  void place(std::uint32_t i, Entry entry) {
    if (i > 0 && entry.key < entries_[(i - 1) / 4].key) {
      sift_up(i, entry);
    } else {
      sift_down(i, entry);
    }
  }

  void sift_up(std::uint32_t i, Entry entry) {
    for (; i > 0 && entry.key < entries_[(i - 1) / 4].key; i = (i - 1) / 4) set(i, entries_[(i - 1) / 4]);
    set(i, entry);
  }

  void sift_down(std::uint32_t i, Entry entry) {
    for (;;) {
      const std::uint64_t first = std::uint64_t{i} * 4 + 1;
      if (first >= size()) break;
      std::uint32_t least = static_cast<std::uint32_t>(first);
      const std::uint32_t end = static_cast<std::uint32_t>(std::min<std::uint64_t>(first + 4, size()));
      for (std::uint32_t child = least + 1; child < end; ++child) {
        if (entries_[child].key < entries_[least].key) least = child;
      }
      if (entry.key <= entries_[least].key) break;
      set(i, entries_[least]);
      i = least;
    }
    set(i, entry);
  }

  StableTable<Entry, 512> entries_;  // small chunks: most of many heaps hold few leaves
  Positions* positions_;
};

}  // namespace kv
