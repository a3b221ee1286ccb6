// client/queue/handoff_list.h: hands objects from any thread to one, without a lock.
#pragma once

#include <atomic>
#include <utility>

namespace kv {

/// Many threads push, and one takes the whole list at a time. Taking all at once makes push()'s plain compare-and-swap
/// correct: the head is compared, never followed.
/// Thread safety: any. An object is in at most one such list by the same `next`, which owns it until it is taken.
template <class T, T* T::*next>
class HandoffList {
 public:
  /// Returns whether the list was empty: then wake the taker.
  bool push(T& object) {
    T* head = head_.load(std::memory_order_relaxed);
    do {
      object.*next = head;
    } while (!head_.compare_exchange_weak(head, &object, std::memory_order_seq_cst, std::memory_order_relaxed));
    return head == nullptr;
  }

  bool is_empty() const { return head_.load(std::memory_order_seq_cst) == nullptr; }

  /// All objects, linked by `next` in the order in which they were pushed.
  T* take_all() {
    T* newest_first = head_.exchange(nullptr, std::memory_order_seq_cst);
    T* oldest_first = nullptr;
    while (newest_first != nullptr) {
      T* const object = newest_first;
      newest_first = object->*next;
      object->*next = std::exchange(oldest_first, object);
    }
    return oldest_first;
  }

 private:
  std::atomic<T*> head_{nullptr};
};

}  // namespace kv
