#include "client/queue/call_slots.h"

#include <new>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kWarmSlots = 512;  // 4 MiB; the free list is a stack, so the first slots are used most
constexpr unsigned kIndexBits = 16;      // Of a CallId; the rest counts the uses of the slot: 2^48 of them.

}  // namespace

CallSlots::CallSlots(std::size_t calls_max, std::size_t bytes_max, bool copies)
    : size_(calls_max), bytes_max_(bytes_max), slots_(std::make_unique<CallSlot[]>(calls_max)), free_(0) {
  KV_ASSERT(size_ > 0 && size_ <= std::size_t{1} << kIndexBits);
  for (std::size_t i = 0; i < size_; ++i) {
    slots_[i].index = static_cast<std::uint32_t>(i);
    slots_[i].next_free = i + 1 < size_ ? static_cast<std::uint32_t>(i + 1) : kNone;
    if (copies && i < kWarmSlots && !slots_[i].arguments.warm_up()) throw std::bad_alloc();
  }
}

Result<CallSlot*> CallSlots::take(std::size_t bytes) {
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
    // Another thread may take this slot meanwhile: then this value is stale, and so is the count in `head`.
    const std::uint64_t next = slots_[index].next_free.load(std::memory_order_relaxed);
    const std::uint64_t after = ((head >> 32) + 1) << 32 | next;
    if (!free_.compare_exchange_weak(head, after, std::memory_order_acquire, std::memory_order_acquire)) continue;
    CallSlot& slot = slots_[index];
    KV_ASSERT(slot.id.load(std::memory_order_relaxed) == 0 && !slot.listed.is_linked());
    slot.bytes = bytes;
    calls_.fetch_add(1, std::memory_order_relaxed);
    return &slot;
  }
}

CallId CallSlots::name(CallSlot& slot) {
  const std::uint64_t id = ++slot.use_count << kIndexBits | slot.index;
  slot.id.store(id, std::memory_order_release);
  return CallId{id};
}

void CallSlots::give_back(CallSlot& slot) {
  slot.id.store(0, std::memory_order_relaxed);  // 2
  slot.arguments.trim();
  KV_ASSERT(bytes() >= slot.bytes && calls() > 0);
  bytes_.fetch_sub(slot.bytes, std::memory_order_relaxed);
  calls_.fetch_sub(1, std::memory_order_relaxed);
  std::uint64_t head = free_.load(std::memory_order_relaxed);
  std::uint64_t after;
  do {
    slot.next_free.store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
    after = ((head >> 32) + 1) << 32 | slot.index;
  } while (!free_.compare_exchange_weak(head, after, std::memory_order_release, std::memory_order_relaxed));
}

CallSlot* CallSlots::find(CallId id) const {
  const auto number = static_cast<std::uint64_t>(id);
  const std::uint64_t index = number & ((std::uint64_t{1} << kIndexBits) - 1);
  // The caller compares slot.id: an old name finds the slot of a later call.
  return number >> kIndexBits == 0 || index >= size_ ? nullptr : &slots_[index];
}

}  // namespace kv
