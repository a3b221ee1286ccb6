// index/leaf_order.h: the leaf ends of a PrefixIndex in the order of their use.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "index/edges.h"
#include "index/leaf_heap.h"

namespace kv::radix {

/// One heap for each cohort and queue (LeafQueues), and orders of these heaps: of all, and of those of each band.
///   1. Each leaf with an unpinned end is in one heap. A pin leaves the heap alone: a search removes the pinned leaves
///      that it meets, and update() puts them back.
///   2. A leaf's key is a lower bound of its end's recency. A use leaves the heap alone: a search updates a stale key,
///      or moves the leaf to its present queue, when the leaf reaches the top.
///   3. In an order a heap's key is, in the same way, a lower bound of the heap's keys.
/// Each pin or use causes at most one repair, and so pays for it. The queries are those of PrefixIndex.
class LeafOrder {
 public:
  LeafOrder(const Edges& edges, LeafQueues queues);

  void need_cohort(std::uint32_t cohort);
  void need_node();  ///< The table of nodes has grown by one.

  bool contains(NodeId node) const { return leaf_positions_[node] != 0; }
  /// Puts the node into its proper heap, after its leaf end has changed or the node has become a leaf or ceased to be
  /// one.
  void update(NodeId node);
  void take_out(NodeId node);
  /// An edge was split or joined, and its leaf end is now in `to`.
  void rename(NodeId from, NodeId to);

  BlockId oldest(Steps* steps) { return oldest_in(heaps_, steps); }
  BlockId oldest(std::uint32_t cohort, Steps* steps);
  BlockId oldest(std::uint32_t cohort, std::uint32_t queue, Steps* steps);
  std::uint32_t queue_end(std::uint32_t cohort) const { return cohort < queue_ends_.size() ? queue_ends_[cohort] : 0; }
  std::span<const Tick> bounds(std::uint32_t cohort) const;

  void set_band(std::uint32_t cohort, std::uint32_t band);
  std::uint32_t band(std::uint32_t cohort) const {
    return cohort < band_of_.size() ? band_of_[cohort] : PrefixIndex::kNoBand;
  }
  BlockId oldest_in_band(std::uint32_t band, Steps* steps);
  BlockId oldest_in_band(std::uint32_t band, std::uint32_t queue, Steps* steps);
  std::uint32_t band_queue_end(std::uint32_t band) const {
    return band < band_queue_ends_.size() ? band_queue_ends_[band] : 0;
  }
  std::optional<Tick> bound_in_band(std::uint32_t band, std::uint32_t queue) const;

  std::size_t heap_bytes() const;
  // For tests: nullptr, or the broken invariant; of all heaps, or of one node.
  const char* check() const;
  const char* check(NodeId node) const;

 private:
  std::uint32_t heap_of(NodeId leaf) const;
  LeafHeap& heap_with(NodeId node) { return leaves_[leaf_heaps_[node]]; }  ///< Requires: contains(node).
  const LeafHeap& heap_with(NodeId node) const { return leaves_[leaf_heaps_[node]]; }
  LeafHeap& band_heap(std::uint32_t band, std::uint32_t queue) {
    return bands_[std::size_t{band} * queues_.count + queue];
  }
  void note_top(std::uint32_t heap);
  void add_to_heap(NodeId leaf, std::uint32_t heap, std::uint64_t recency);
  void lower_bound(std::uint32_t heap, std::uint64_t key);
  void need_band_positions();
  BlockId oldest_in(LeafHeap& order, Steps* steps);
  BlockId top_leaf_end(LeafHeap& heap);

  const Edges& edges_;
  const LeafQueues queues_;
  std::vector<LeafHeap> leaves_;           ///< By cohort and queue (heap_of()).
  std::vector<Tick> tops_;                 ///< By heap: its top key, contiguous for a scan; or kNoTick.
  std::vector<std::uint32_t> queue_ends_;  ///< By cohort: see PrefixIndex::queue_end().
  LeafHeap::Positions leaf_positions_;     ///< By node: its place in its heap.
  StableTable<std::uint32_t> leaf_heaps_;  ///< By node: its heap. Unset outside heaps.
  LeafHeap::Positions heap_positions_;
  LeafHeap heaps_{heap_positions_};  ///< The non-empty heaps (3).
  /// The same for each band and queue. All of this is empty until a cohort is put into a band.
  std::vector<std::uint32_t> band_of_;
  LeafHeap::Positions band_positions_;
  std::vector<LeafHeap> bands_;
  std::vector<std::uint32_t> band_queue_ends_;
};

}  // namespace kv::radix
