// client/queue/call_slots.h: a queue's calls in flight.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "client/queue/call_slot.h"

namespace kv {

/// A fixed number of slots, and the bounds on calls and bytes in flight.
///   1. At most calls_max slots are taken, with at most bytes_max bytes in all.
///   2. An id names one use of one slot: it is never reused, and invalid after that use.
/// Thread safety: any, without a lock.
class CallSlots {
 public:
  /// `copies`: slots get memory for copies of arguments now, so that the first calls need not wait for that.
  CallSlots(std::size_t calls_max, std::size_t bytes_max, bool copies);

  /// A free slot, counted with `bytes`. Errors: kBusy; kTooLarge if the bytes alone are over the bound.
  Result<CallSlot*> take(std::size_t bytes);
  /// Gives the slot's next call its id.
  CallId name(CallSlot& slot);
  /// The call is over: its id becomes invalid.
  void give_back(CallSlot& slot);
  /// The slot once named by `id`; slot->id tells whether it still is.
  CallSlot* find(CallId id) const;

  std::size_t calls() const { return calls_.load(std::memory_order_relaxed); }
  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::size_t size() const { return size_; }
  CallSlot& operator[](std::size_t i) { return slots_[i]; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  const std::size_t size_, bytes_max_;
  const std::unique_ptr<CallSlot[]> slots_;
  std::atomic<std::size_t> calls_{0}, bytes_{0};
  /// The first free slot, and in the upper half a count of changes: a head that left and returned differs.
  std::atomic<std::uint64_t> free_;
};

}  // namespace kv
