// client/queue/handoff_list.h: objects handed from any thread to one, without a lock.
#pragma once

#include <atomic>
#include <utility>

namespace kv {

/// A list that many threads push to and that is always taken as a whole. Taking all at once is what keeps the plain
/// compare-and-swap of push() right: the head is compared, never followed.
/// Thread safety: any. An object is in at most one such list by the same `next`, and is the list's until it is taken.
template <class T, T* T::*next>
class HandoffList {
 public:
  /// Returns whether the list was empty: then whoever takes must be woken.
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
