// client/queue/call_slots.h: the calls that a queue can have in flight.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "client/queue/call_slot.h"

namespace kv {

/// A fixed number of slots, and the bounds on what is in flight.
///   1. At most calls_max slots are taken, with at most bytes_max bytes in all.
///   2. An id names one use of one slot: it is never given out again, and says nothing once that use is over.
/// Thread safety: any, without a lock.
class CallSlots {
 public:
  CallSlots(std::size_t calls_max, std::size_t bytes_max);

  /// A free slot, counted with `bytes`. Errors: kBusy; kTooLarge if the bytes alone are over the bound.
  Result<CallSlot*> take(std::size_t bytes);
  /// The id of what the slot holds from now on.
  CallId name(CallSlot& slot);
  /// The call is over: its id says nothing any more.
  void give_back(CallSlot& slot);
  /// The slot that `id` named at some time; whether it still does is slot->id.
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
  /// The first free slot, and in the upper half a count of changes: a head that went and came back is another one.
  std::atomic<std::uint64_t> free_;
};

}  // namespace kv
