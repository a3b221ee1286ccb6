// store/curve/use_order.h: the weight of everything used since an entry was, in logarithmic time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kv {

/// Entries in order of their last use, each with a weight; returns the weight of all entries used later than a given
/// one. With blocks as weights that is an entry's *stack distance*: LRU has it exactly if its memory is larger.
///
/// There are twice as many places as entries. A use takes the next place, and leaves a hole. A Fenwick tree sums over
/// places. When three quarters are used, entries move down into the holes in order, some with each use:
///
///     | moved down, no holes | empty | not looked at yet | free |
///     0                    write_   read_              head_   2 * entry_count_max
/// Not thread-safe. Cost: O(log entries) a call.
class UseOrder {
 public:
  static constexpr std::uint16_t kNone = 0xFFFF;
  static constexpr std::size_t kEntriesMax = 32'000;

  /// Entries are numbers below `entry_count_max`, which is at most kEntriesMax.
  explicit UseOrder(std::size_t entry_count_max);

  bool has(std::uint16_t entry) const { return place_of_[entry] != kNone; }
  void use(std::uint16_t entry, std::uint32_t weight);         ///< It becomes the last used one.
  void set_weight(std::uint16_t entry, std::uint32_t weight);  ///< Requires: has(entry).
  void remove(std::uint16_t entry);                            ///< Requires: has(entry).
  std::uint64_t newer(std::uint16_t entry) const;              ///< Weight of all used later. Requires: has(entry).
  std::uint16_t oldest();                                      ///< kNone: empty.
  std::uint64_t total() const { return total_; }
  std::size_t memory_bytes() const;

 private:
  void add(std::size_t place, std::uint32_t weight);  ///< Modulo 2^32: a negative weight takes away.
  std::uint32_t sum_before(std::size_t place) const;
  void move_down();

  std::vector<std::uint16_t> place_of_, entry_at_;
  std::vector<std::uint32_t> weight_of_, sums_;
  std::size_t head_ = 0, oldest_ = 0, read_ = 0, write_ = 0;
  std::uint32_t total_ = 0;
  bool is_moving_ = false;
};

}  // namespace kv
