#include "client/queue/call_table.h"

#include <new>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kWarmEntries = 512;  // 4 MiB; the free list is a stack, so the first entries are used most
constexpr unsigned kIndexBits = 16;        // Of a CallId; the rest counts the uses of the entry: 2^48 of them.

}  // namespace

CallTable::CallTable(std::size_t calls_max, std::size_t bytes_max, bool copies)
    : size_(calls_max), bytes_max_(bytes_max), entries_(std::make_unique<CallEntry[]>(calls_max)), free_(0) {
  KV_ASSERT(size_ > 0 && size_ <= std::size_t{1} << kIndexBits);
  for (std::size_t i = 0; i < size_; ++i) {
    entries_[i].index = static_cast<std::uint32_t>(i);
    entries_[i].next_free = i + 1 < size_ ? static_cast<std::uint32_t>(i + 1) : kNone;
    if (copies && i < kWarmEntries && !entries_[i].arguments.warm_up()) throw std::bad_alloc();
  }
}

Result<CallEntry*> CallTable::take(std::size_t bytes) {
  if (bytes > bytes_max_) return error_code(Errc::kTooLarge);
  const std::size_t before = bytes_.fetch_add(bytes, std::memory_order_relaxed);
  // Taken first and returned on excess: two submits that check before taking could both pass.
  if (before > bytes_max_ - bytes) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return error_code(Errc::kBusy);
  }
  // A lock-free stack: a submit must never wait for a thread that was descheduled while holding a lock. The upper half
  // counts, so that a head that left and returned differs (ABA).
  std::uint64_t head = free_.load(std::memory_order_acquire);
  for (;;) {
    const auto index = static_cast<std::uint32_t>(head);
    if (index == kNone) {
      bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      return error_code(Errc::kBusy);
    }
    KV_ASSERT(index < size_);
    // Another thread may take this entry meanwhile: then this value is stale, and so is the count in `head`.
    const std::uint64_t next = entries_[index].next_free.load(std::memory_order_relaxed);
    const std::uint64_t after = ((head >> 32) + 1) << 32 | next;
    if (!free_.compare_exchange_weak(head, after, std::memory_order_acquire, std::memory_order_acquire)) continue;
    CallEntry& entry = entries_[index];
    KV_ASSERT(entry.id.load(std::memory_order_relaxed) == 0 && !entry.listed.is_linked());
    entry.bytes = bytes;
    calls_.fetch_add(1, std::memory_order_relaxed);
    return &entry;
  }
}

CallId CallTable::name(CallEntry& entry) {
  const std::uint64_t id = ++entry.use_count << kIndexBits | entry.index;
  entry.id.store(id, std::memory_order_release);
  return CallId{id};
}

void CallTable::give_back(CallEntry& entry) {
  entry.id.store(0, std::memory_order_relaxed);  // 2
  entry.arguments.trim();
  KV_ASSERT(bytes() >= entry.bytes && calls() > 0);
  bytes_.fetch_sub(entry.bytes, std::memory_order_relaxed);
  calls_.fetch_sub(1, std::memory_order_relaxed);
  std::uint64_t head = free_.load(std::memory_order_relaxed);
  std::uint64_t after;
  do {
    entry.next_free.store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
    after = ((head >> 32) + 1) << 32 | entry.index;
  } while (!free_.compare_exchange_weak(head, after, std::memory_order_release, std::memory_order_relaxed));
}

CallEntry* CallTable::find(CallId id) const {
  const auto number = static_cast<std::uint64_t>(id);
  const std::uint64_t index = number & ((std::uint64_t{1} << kIndexBits) - 1);
  // The caller compares entry.id: an old name finds the entry of a later call.
  return number >> kIndexBits == 0 || index >= size_ ? nullptr : &entries_[index];
}

}  // namespace kv
