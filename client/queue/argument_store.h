// client/queue/argument_store.h: a submitted call's copies of its arguments.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#include "base/assert.h"

namespace kv {

/// One piece of memory for all lists of a call. A call no longer than the one before does not allocate.
class ArgumentStore {
 public:
  /// Size of copy()'s result. The caller has bounded the list: overflow is not checked here.
  template <class T>
  static std::size_t bytes_of(std::span<T> list) {
    return (list.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Drops all copies, and makes room for `bytes` of new ones. False: out of memory.
  [[nodiscard]] bool reserve(std::size_t bytes) {
    used_ = 0;
    if (bytes <= capacity_) return true;
    clear();
    memory_.reset(new (std::nothrow) std::byte[bytes]);
    if (memory_) capacity_ = bytes;
    return memory_ != nullptr;
  }

  /// Memory for most calls, with its pages touched, so that the first calls are as fast as later ones.
  [[nodiscard]] bool warm_up() {
    if (!reserve(kWarmBytes)) return false;
    std::memset(memory_.get(), 0, kWarmBytes);
    return true;
  }

  /// Requires room.
  template <class T>
  std::span<const T> copy(std::span<const T> list) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    if (list.empty()) return {};
    KV_ASSERT(bytes_of(list) <= capacity_ - used_);
    std::byte* const to = memory_.get() + used_;
    std::memcpy(to, list.data(), list.size_bytes());
    used_ += bytes_of(list);
    return {reinterpret_cast<const T*>(to), list.size()};
  }

  /// The call has ended: frees a long one's memory.
  void trim() {
    if (capacity_ > kKeptBytesMax) clear();
  }

 private:
  static constexpr std::size_t kAlignment = alignof(std::max_align_t);
  static constexpr std::size_t kWarmBytes = 8 << 10;      // a match of 256 blocks, a get of 170
  static constexpr std::size_t kKeptBytesMax = 64 << 10;  // a chain of 1,300 blocks with their addresses

  void clear() {
    memory_.reset();
    capacity_ = used_ = 0;
  }

  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0, used_ = 0;
};

}  // namespace kv
