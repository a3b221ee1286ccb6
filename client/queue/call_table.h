// client/queue/call_table.h: a queue's calls in flight.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "client/queue/call_entry.h"

namespace kv {

/// A fixed number of entries, and the bounds on calls and bytes in flight.
///   1. At most calls_max entries are taken, with at most bytes_max bytes in all.
///   2. An id names one use of one entry: it is never reused, and invalid after that use.
/// Thread safety: any, without a lock.
class CallTable {
 public:
  /// `copies`: entries get memory for copies of arguments now, so that the first calls need not wait for that.
  CallTable(std::size_t calls_max, std::size_t bytes_max, bool copies);

  /// A free entry, counted with `bytes`. Errors: kBusy; kTooLarge if the bytes alone are over the bound.
  Result<CallEntry*> take(std::size_t bytes);
  /// Gives the entry's next call its id.
  CallId name(CallEntry& entry);
  /// The call is over: its id becomes invalid.
  void give_back(CallEntry& entry);
  /// The entry once named by `id`; entry->id tells whether it still is.
  CallEntry* find(CallId id) const;

  std::size_t calls() const { return calls_.load(std::memory_order_relaxed); }
  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::size_t size() const { return size_; }
  CallEntry& operator[](std::size_t i) { return entries_[i]; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  const std::size_t size_, bytes_max_;
  const std::unique_ptr<CallEntry[]> entries_;
  std::atomic<std::size_t> calls_{0}, bytes_{0};
  /// The first free entry, and in the upper half a count of changes: a head that left and returned differs.
  std::atomic<std::uint64_t> free_;
};

}  // namespace kv
