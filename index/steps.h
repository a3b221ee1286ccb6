// index/steps.h: the work budget of a call under the Store's lock.
#pragma once

#include <algorithm>
#include <cstddef>

namespace kv {

/// Counts work in steps of some 10 ns each. Not in time: a bound in steps holds on every machine and in a simulation,
/// and a test can assert it. Code without steps stops; a later call goes on. The last piece may exceed the budget.
class Steps {
 public:
  explicit constexpr Steps(std::size_t count_max) : left_(count_max) {}

  bool are_left() const { return left_ > 0; }
  void take(std::size_t count) {
    used_ += count;
    left_ -= std::min(count, left_);
  }
  std::size_t used() const { return used_; }

  // Costs, measured on cold memory.
  static constexpr std::size_t kGranule = 1;   ///< Visited in order.
  static constexpr std::size_t kBlock = 8;     ///< Visited, or given a slot.
  static constexpr std::size_t kLeaf = 16;     ///< Moved in the heap of leaf ends.
  static constexpr std::size_t kRemoval = 48;  ///< Of a block or a lease.

 private:
  std::size_t left_;
  std::size_t used_ = 0;
};

}  // namespace kv
