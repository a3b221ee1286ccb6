// index/child_map.h: maps a block hash to the child edge that begins with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "index/stable_table.h"

namespace kv {

/// A flat open-addressing map from a 32-bit fingerprint of the child's first hash to the child's node. Made for both
/// ends of a skewed distribution: a busy tree's root has tens of thousands of children, most nodes at most two.
///   1. Entries lie at or after their home (fingerprint modulo capacity), with no empty entry between.
///   2. A flat map holds at most kFlatMax entries; a larger one is cut into 256 by the fingerprint's top bits, so that
///      one insert rehashes at most kFlatMax entries.
/// Fingerprints need not be unique: find() asks the caller. `heap_bytes` as in BlockRun. Cost: O(1), one cache miss.
class ChildMap {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  ChildMap() = default;
  ChildMap(ChildMap&& other) noexcept { *this = std::move(other); }
  ChildMap& operator=(ChildMap&& other) noexcept {
    entries_ = std::move(other.entries_);
    shards_ = std::move(other.shards_);
    capacity_ = std::exchange(other.capacity_, 0);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  std::uint32_t size() const { return size_; }

  /// The node with this fingerprint for which is_it(node), or kNone.
  template <class IsIt>
  std::uint32_t find(std::uint32_t fingerprint, IsIt is_it) const {
    const ChildMap* map = this;
    for (std::uint32_t bits = fingerprint; map->shards_; bits <<= 8) map = &map->shards_[bits >> 24];
    if (map->capacity_ == 0) return kNone;
    for (std::uint32_t i = fingerprint;; ++i) {
      const Entry entry = map->entries_[i & (map->capacity_ - 1)];
      if (entry.node == kNone) return kNone;
      if (entry.fingerprint == fingerprint && is_it(entry.node)) return entry.node;
    }
  }

  /// Prefetches the first memory that find() will read.
  void prefetch(std::uint32_t fingerprint) const {
    const ChildMap* map = this;
    for (std::uint32_t bits = fingerprint; map->shards_; bits <<= 8) map = &map->shards_[bits >> 24];
    if (map->capacity_ > 0) __builtin_prefetch(&map->entries_[fingerprint & (map->capacity_ - 1)]);
  }

  void insert(std::uint32_t fingerprint, std::uint32_t node, std::size_t& heap_bytes) {
    insert(fingerprint, node, 0, heap_bytes);
  }

  /// Requires: the node is here under this fingerprint.
  void replace(std::uint32_t fingerprint, std::uint32_t node, std::uint32_t with) {
    ChildMap& map = leaf_of(fingerprint);
    map.entries_[map.index_of(fingerprint, node)].node = with;
  }

  /// Requires: the node is here under this fingerprint.
  void erase(std::uint32_t fingerprint, std::uint32_t node, std::size_t& heap_bytes) {
    KV_ASSERT(size_ > 0);
    --size_;
    if (shards_) {  // sizes along the path, then the entry itself
      ChildMap* map = this;
      for (std::uint32_t bits = fingerprint; map->shards_; bits <<= 8) {
        map = &map->shards_[bits >> 24];
        --map->size_;
      }
      map->erase_entry(fingerprint, node, heap_bytes);
    } else {
      erase_entry(fingerprint, node, heap_bytes);
    }
    if (size_ == 0) clear(heap_bytes);
  }

  /// One of the nodes, or kNone. The search's start depends on the size: a map that is emptied one node at a time would
  /// otherwise be searched from its empty beginning each time. Cost: O(1) on average.
  std::uint32_t any() const {
    if (size_ == 0) return kNone;
    const std::uint32_t start = size_ * 0x9E3779B1u;
    if (shards_) {
      for (std::uint32_t i = 0;; ++i) {
        if (const ChildMap& shard = shards_[(start + i) % kShards]; shard.size() > 0) return shard.any();
      }
    }
    for (std::uint32_t i = start;; ++i) {
      if (const std::uint32_t node = entries_[i & (capacity_ - 1)].node; node != kNone) return node;
    }
  }

  template <class Visit>
  void for_each(Visit visit) const {
    visit_some([&](std::uint32_t node) {
      visit(node);
      return true;
    });
  }
  /// As for_each, until `visit` returns false. Returns whether all were visited.
  template <class Visit>
  bool visit_some(Visit visit) const {
    const std::uint32_t count = shards_ ? kShards : capacity_;
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool goes_on =
          shards_ ? shards_[i].visit_some(visit) : entries_[i].node == kNone || visit(entries_[i].node);
      if (!goes_on) return false;
    }
    return true;
  }

  void clear(std::size_t& heap_bytes) {
    heap_bytes -= this->heap_bytes();
    *this = ChildMap();
  }

  std::size_t heap_bytes() const {
    if (!shards_) return allocated_bytes(capacity_ * sizeof(Entry));
    std::size_t bytes = kShardsBytes;
    for (std::uint32_t i = 0; i < kShards; ++i) bytes += shards_[i].heap_bytes();
    return bytes;
  }

 private:
  struct Entry {
    std::uint32_t fingerprint = 0;
    std::uint32_t node = kNone;
  };
  static constexpr std::uint32_t kFlatMax = 49152;  // three quarters of 64 Ki entries: 512 KiB to rehash at most
  static constexpr std::uint32_t kShards = 256;
  static constexpr std::uint32_t kDepthMax = 2;  // cuts use 16 of the 32 bits; 2^31 children fit below that
  static constexpr std::size_t kShardsBytes = kShards * 24 + 16;

  ChildMap& leaf_of(std::uint32_t fingerprint) {
    ChildMap* map = this;
    for (std::uint32_t bits = fingerprint; map->shards_; bits <<= 8) map = &map->shards_[bits >> 24];
    return *map;
  }

  std::uint32_t index_of(std::uint32_t fingerprint, std::uint32_t node) const {
    KV_ASSERT(capacity_ > 0);
    for (std::uint32_t i = fingerprint & (capacity_ - 1);; i = (i + 1) & (capacity_ - 1)) {
      KV_ASSERT(entries_[i].node != kNone);  // an empty entry ends the search: the node is absent (1)
      if (entries_[i].node == node) return i;
    }
  }

  void insert(std::uint32_t fingerprint, std::uint32_t node, std::uint32_t depth, std::size_t& heap_bytes) {
    ++size_;
    if (!shards_ && size_ > kFlatMax && depth < kDepthMax) cut(depth, heap_bytes);
    if (shards_) return shards_[fingerprint << 8 * depth >> 24].insert(fingerprint, node, depth + 1, heap_bytes);
    // At most three quarters full: probing stays short, and every search meets an empty entry that ends it.
    if (size_ > capacity_ / 4 * 3) rehash(capacity_ == 0 ? 4 : capacity_ * 2, heap_bytes);
    put({fingerprint, node});
  }

  void put(Entry entry) {
    std::uint32_t i = entry.fingerprint & (capacity_ - 1);
    while (entries_[i].node != kNone) i = (i + 1) & (capacity_ - 1);
    entries_[i] = entry;
  }

  void erase_entry(std::uint32_t fingerprint, std::uint32_t node, std::size_t& heap_bytes) {
    const std::uint32_t mask = capacity_ - 1;
    std::uint32_t hole = index_of(fingerprint, node);
    for (std::uint32_t i = (hole + 1) & mask; entries_[i].node != kNone; i = (i + 1) & mask) {
      // Move the entry back unless its home lies after the hole (all distances are modulo the capacity).
      if (((i - entries_[i].fingerprint) & mask) >= ((i - hole) & mask)) {
        entries_[hole] = entries_[i];
        hole = i;
      }
    }
    entries_[hole] = Entry();
    // To a quarter when an eighth full: far from both bounds, so that alternating insert and erase do not rehash.
    if (capacity_ > 4 && size_ < capacity_ / 8) rehash(capacity_ / 4, heap_bytes);
  }

  void rehash(std::uint32_t capacity, std::size_t& heap_bytes) {
    heap_bytes -= this->heap_bytes();
    const auto old = std::exchange(entries_, std::make_unique<Entry[]>(capacity));
    const auto old_capacity = std::exchange(capacity_, capacity);
    heap_bytes += this->heap_bytes();
    for (std::uint32_t i = 0; i < old_capacity; ++i) {
      if (old[i].node != kNone) put(old[i]);
    }
  }

  void cut(std::uint32_t depth, std::size_t& heap_bytes) {
    KV_ASSERT(depth < kDepthMax && !shards_);
    heap_bytes -= this->heap_bytes();
    const auto old = std::move(entries_);
    const auto old_capacity = std::exchange(capacity_, 0);
    shards_ = std::make_unique<ChildMap[]>(kShards);
    heap_bytes += kShardsBytes;
    for (std::uint32_t i = 0; i < old_capacity; ++i) {
      if (old[i].node == kNone) continue;
      shards_[old[i].fingerprint << 8 * depth >> 24].insert(old[i].fingerprint, old[i].node, depth + 1, heap_bytes);
    }
  }

  std::unique_ptr<Entry[]> entries_;  // capacity_ entries; nullptr with shards_
  std::unique_ptr<ChildMap[]> shards_;
  std::uint32_t capacity_ = 0;  // a power of two, or 0
  std::uint32_t size_ = 0;
};

}  // namespace kv
