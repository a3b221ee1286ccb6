#include "index/leaf_order.h"

#include <algorithm>
#include <utility>

namespace kv::radix {
namespace {

/// Counts a repair in `steps`. False: they are used up.
bool goes_on(Steps* steps) {
  if (steps == nullptr) return true;
  steps->take(Steps::kLeaf);
  return steps->are_left();
}

/// A heap of this order received an entry with this key.
void lower_bound_in(LeafHeap& order, std::uint32_t heap, std::uint64_t key) {
  if (!order.contains(heap)) {
    order.insert(heap, key);
  } else if (order.key(heap) > key) {
    order.set_key(heap, key);
  }
}

}  // namespace

LeafOrder::LeafOrder(const Edges& edges, LeafQueues queues) : edges_(edges), queues_(queues) {
  KV_ASSERT(queues.count > 0 && queues.count <= LeafQueues::kCountMax);
}

void LeafOrder::need_cohort(std::uint32_t cohort) {
  KV_ASSERT(cohort <= PrefixIndex::kCohortMax);
  if (queue_ends_.size() <= cohort) queue_ends_.resize(cohort + 1);
  while (leaves_.size() < (std::size_t{cohort} + 1) * queues_.count) {
    leaves_.emplace_back(leaf_positions_);
    tops_.push_back(PrefixIndex::kNoTick);
    heap_positions_[heap_positions_.add()] = 0;
  }
  if (!band_of_.empty()) need_band_positions();
}

void LeafOrder::need_node() {
  leaf_positions_[leaf_positions_.add()] = 0;
  leaf_heaps_.add();
  KV_ASSERT(leaf_positions_.size() == edges_.nodes.size());
}

void LeafOrder::need_band_positions() {
  while (band_positions_.size() < leaves_.size()) band_positions_[band_positions_.add()] = 0;
}

// -- leaves

/// The leaf's proper heap, by its end's latest use.
std::uint32_t LeafOrder::heap_of(NodeId leaf) const {
  const Node& node = edges_.nodes[leaf];
  return node.cohort * queues_.count + queues_.queue_of(edges_.usages[to_int(node.run.last())]);
}

/// Updates the top of a changed heap. A renamed leaf keeps its key.
void LeafOrder::note_top(std::uint32_t heap) {
  tops_[heap] = leaves_[heap].empty() ? PrefixIndex::kNoTick : Tick{leaves_[heap].top().key};
}

void LeafOrder::update(NodeId id) {
  const Node& node = edges_.nodes[id];
  if (node.run.empty() || node.children.size() > 0) return take_out(id);
  const Block& end = edges_.blocks[to_int(node.run.last())];
  const std::uint32_t belongs = heap_of(id);
  if (contains(id) && leaf_heaps_[id] != belongs) take_out(id);
  if (!contains(id)) {
    if (end.pin_count > 0) return;
    add_to_heap(id, belongs, end.recency);
  } else if (heap_with(id).key(id) > end.recency) {
    heap_with(id).set_key(id, end.recency);  // a larger recency waits: an older key is still a lower bound
    note_top(belongs);
    lower_bound(belongs, end.recency);
  }
}

void LeafOrder::take_out(NodeId node) {
  if (!contains(node)) return;
  heap_with(node).erase(node);
  note_top(leaf_heaps_[node]);
}

void LeafOrder::rename(NodeId from, NodeId to) {
  if (!contains(from)) return;
  leaf_heaps_[to] = leaf_heaps_[from];
  heap_with(from).rename(from, to);
}

void LeafOrder::add_to_heap(NodeId leaf, std::uint32_t heap, std::uint64_t recency) {
  leaf_heaps_[leaf] = heap;
  leaves_[heap].insert(leaf, recency);
  note_top(heap);
  std::uint32_t& queue_end = queue_ends_[heap / queues_.count];
  queue_end = std::max(queue_end, static_cast<std::uint32_t>(heap % queues_.count) + 1);
  lower_bound(heap, recency);
}

/// A heap received an entry with this key.
void LeafOrder::lower_bound(std::uint32_t heap, std::uint64_t key) {
  lower_bound_in(heaps_, heap, key);
  if (band_of_.empty()) return;
  if (const std::uint32_t of = band(heap / queues_.count); of != PrefixIndex::kNoBand) {
    const std::uint32_t queue = heap % queues_.count;
    lower_bound_in(band_heap(of, queue), heap, key);
    band_queue_ends_[of] = std::max(band_queue_ends_[of], queue + 1);
  }
}

// -- searches

/// The oldest leaf end of all heaps in `order`. It is in the heap with the least bound, if that bound is the key of the
/// heap's top. Only this function updates bounds, one for each change of a heap's top. So a query over thousands of
/// mostly untouched heaps costs no more than one over a few.
BlockId LeafOrder::oldest_in(LeafHeap& order, Steps* steps) {
  while (!order.empty()) {
    const auto [bound, heap] = order.top();
    LeafHeap& of_heap = leaves_[heap];
    if (of_heap.empty()) {
      order.erase(heap);
    } else if (of_heap.top().key > bound) {
      order.set_key(heap, of_heap.top().key);
    } else if (const BlockId end = top_leaf_end(of_heap); end != kNoBlock) {
      return end;
    }
    if (!goes_on(steps)) break;
  }
  return kNoBlock;
}

/// The leaf end at the top of the heap; if it is pinned or was used since, repairs that and returns kNoBlock.
BlockId LeafOrder::top_leaf_end(LeafHeap& heap) {
  const auto [key, leaf] = heap.top();
  const BlockId end = edges_.nodes[leaf].run.last();
  const Block& block = edges_.linked(end);
  if (block.pin_count > 0) {
    take_out(leaf);
  } else if (block.recency > key) {
    // Its latest use may also have been of another kind.
    const std::uint32_t belongs = heap_of(leaf);
    if (belongs == leaf_heaps_[leaf]) {
      heap.set_key(leaf, block.recency);
      note_top(belongs);
    } else {
      take_out(leaf);
      add_to_heap(leaf, belongs, block.recency);
    }
  } else {
    return end;
  }
  return kNoBlock;
}

BlockId LeafOrder::oldest(std::uint32_t cohort, Steps* steps) {
  // A repair may move a leaf to another queue, so each round starts again from the least bound.
  do {
    const std::span<const Tick> all = bounds(cohort);
    const auto least = std::ranges::min_element(all);
    if (least == all.end() || *least == PrefixIndex::kNoTick) break;
    const std::size_t heap = std::size_t{cohort} * queues_.count + static_cast<std::size_t>(least - all.begin());
    if (const BlockId end = top_leaf_end(leaves_[heap]); end != kNoBlock) return end;
  } while (goes_on(steps));
  return kNoBlock;
}

BlockId LeafOrder::oldest(std::uint32_t cohort, std::uint32_t queue, Steps* steps) {
  KV_ASSERT(queue < queues_.count);
  const std::size_t heap = std::size_t{cohort} * queues_.count + queue;
  if (heap >= leaves_.size()) return kNoBlock;
  while (!leaves_[heap].empty()) {
    if (const BlockId end = top_leaf_end(leaves_[heap]); end != kNoBlock) return end;
    if (!goes_on(steps)) break;
  }
  return kNoBlock;
}

std::span<const Tick> LeafOrder::bounds(std::uint32_t cohort) const {
  const std::uint32_t end = queue_end(cohort);
  if (end == 0) return {};
  return std::span(tops_).subspan(std::size_t{cohort} * queues_.count, end);
}

// -- bands

void LeafOrder::set_band(std::uint32_t cohort, std::uint32_t band) {
  constexpr std::uint32_t kNoBand = PrefixIndex::kNoBand;
  need_cohort(cohort);
  if (band_of_.size() <= cohort) band_of_.resize(cohort + 1, kNoBand);
  need_band_positions();
  for (; band != kNoBand && band_queue_ends_.size() <= band; band_queue_ends_.push_back(0)) {
    for (std::uint32_t queue = 0; queue < queues_.count; ++queue) bands_.emplace_back(band_positions_);
  }
  const std::uint32_t before = std::exchange(band_of_[cohort], band);
  if (before == band) return;
  for (std::uint32_t queue = 0, end = queue_end(cohort); queue < end; ++queue) {
    const std::uint32_t heap = cohort * queues_.count + queue;
    if (before != kNoBand && band_positions_[heap] != 0) band_heap(before, queue).erase(heap);
    if (band != kNoBand && !leaves_[heap].empty()) lower_bound(heap, leaves_[heap].top().key);
  }
}

BlockId LeafOrder::oldest_in_band(std::uint32_t band, Steps* steps) {
  // As in oldest(cohort): repairs move leaves.
  for (;;) {
    std::uint32_t least = queues_.count;
    std::optional<Tick> bound;
    for (std::uint32_t queue = 0, end = band_queue_end(band); queue < end; ++queue) {
      const auto of_queue = bound_in_band(band, queue);
      if (!of_queue || (bound && *bound <= *of_queue)) continue;
      bound = of_queue;
      least = queue;
    }
    if (!bound) return kNoBlock;
    const BlockId end = oldest_in_band(band, least, steps);
    if (steps != nullptr && !steps->are_left()) return end;
    if (end == kNoBlock) continue;
    if (band_queue_end(band) == 1 || Tick{edges_.linked(end).recency} == *bound) return end;
  }
}

BlockId LeafOrder::oldest_in_band(std::uint32_t band, std::uint32_t queue, Steps* steps) {
  KV_ASSERT(queue < queues_.count);
  if (queue >= band_queue_end(band)) return kNoBlock;
  return oldest_in(band_heap(band, queue), steps);
}

std::optional<Tick> LeafOrder::bound_in_band(std::uint32_t band, std::uint32_t queue) const {
  if (queue >= band_queue_end(band)) return std::nullopt;
  const LeafHeap& order = bands_[std::size_t{band} * queues_.count + queue];
  if (order.empty()) return std::nullopt;
  return Tick{order.top().key};
}

std::size_t LeafOrder::heap_bytes() const {
  std::size_t bytes = leaves_.capacity() * sizeof(LeafHeap) + tops_.capacity() * sizeof(Tick) +
                      leaf_positions_.heap_bytes() + leaf_heaps_.heap_bytes() + heaps_.heap_bytes() +
                      heap_positions_.heap_bytes() + band_positions_.heap_bytes() +
                      bands_.capacity() * sizeof(LeafHeap);
  for (const LeafHeap& heap : leaves_) bytes += heap.heap_bytes();
  for (const LeafHeap& order : bands_) bytes += order.heap_bytes();
  return bytes;
}

const char* LeafOrder::check() const {
  std::size_t entries = 0, positions = 0;
  for (const LeafHeap& heap : leaves_) {
    if (!heap.check()) return "a leaf heap is out of order";
    entries += heap.size();
  }
  for (NodeId i = 0; i < edges_.nodes.size(); ++i) positions += contains(i);
  if (entries != positions) return "a leaf is in two heaps";
  if (!heaps_.check()) return "the heap of heaps is out of order";
  for (const LeafHeap& order : bands_)
    if (!order.check()) return "a band's heap of heaps is out of order";
  for (std::uint32_t heap = 0; heap < leaves_.size(); ++heap) {
    const bool is_empty = leaves_[heap].empty();
    if (tops_[heap] != (is_empty ? PrefixIndex::kNoTick : Tick{leaves_[heap].top().key}))
      return "the top of a heap is not what is noted of it";
    if (is_empty) continue;
    if (!heaps_.contains(heap)) return "a heap with leaves is in no order";
    if (heaps_.key(heap) > leaves_[heap].top().key) return "a heap's bound is above the key of its oldest leaf";
    const std::uint32_t of = band(heap / queues_.count);
    if (of == PrefixIndex::kNoBand) continue;
    const LeafHeap& order = bands_[std::size_t{of} * queues_.count + heap % queues_.count];
    if (band_positions_[heap] == 0 || order.key(heap) > leaves_[heap].top().key)
      return "a band does not know its oldest leaf";
  }
  return nullptr;
}

const char* LeafOrder::check(NodeId id) const {
  const Node& node = edges_.nodes[id];
  if (edges_.is_root(node)) return contains(id) ? "a root is in the leaf heap" : nullptr;
  if (node.children.size() > 0) return contains(id) ? "an inner node is in the leaf heap" : nullptr;
  const Block& end = edges_.blocks[to_int(node.run.last())];
  if (!contains(id)) return end.pin_count == 0 ? "an unpinned leaf is not in the leaf heap" : nullptr;
  if (leaf_heaps_[id] / queues_.count != node.cohort) return "a leaf is in the heap of another cohort";
  const std::uint64_t key = heap_with(id).key(id);
  if (key == end.recency && leaf_heaps_[id] != heap_of(id)) return "a leaf is in the heap of another queue";
  return key > end.recency ? "a leaf's key is above its recency" : nullptr;
}

}  // namespace kv::radix
