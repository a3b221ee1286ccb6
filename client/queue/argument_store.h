// client/queue/argument_store.h: a submitted call's copies of its lists, and what else it counts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#include "base/assert.h"
#include "client/request.h"

namespace kv {

// All inline: as functions of another object they cost a submit .05 of .84 us, mostly for cold instructions.

/// Whether each hash has its block, if the operation moves blocks.
inline bool has_blocks(const Request& request) {
  switch (request.op) {
    case Op::kGet:
    case Op::kLoad:
    case Op::kGetSet: return request.to.size() == request.hashes.size();
    case Op::kPut:
    case Op::kPutSet: return request.from.size() == request.hashes.size();
    default: return true;
  }
}

template <class Byte>
std::size_t total_bytes(std::span<const std::span<Byte>> blocks) {
  std::size_t bytes = 0;
  for (const std::span<Byte> block : blocks) {
    if (block.size() > PTRDIFF_MAX - bytes) return PTRDIFF_MAX;  // over any bytes_max, even with the copies
    bytes += block.size();
  }
  return bytes;
}

/// Memory that a submit of `request` counts, besides copies: its blocks, and results by name.
inline std::size_t data_bytes(const Request& request) {
  const std::size_t blocks = total_bytes(request.to) + total_bytes(request.from);
  switch (request.op) {
    case Op::kMatchSet: return request.hashes.size() * (sizeof(Held) + sizeof(std::uint32_t));
    case Op::kGetSet: return blocks + request.hashes.size() * sizeof(SetGetBlock);
    case Op::kPutSet: return blocks + request.hashes.size() * sizeof(SetPutBlock);
    default: return blocks;
  }
}

/// One piece of memory for all lists of a call. A call no longer than the one before does not allocate.
class ArgumentStore {
 public:
  /// Of the lists of a submitted call, and its record. Errors: kTooLarge for a list beyond any limit; shorter sums fit.
  static Result<std::size_t> bytes_of(const Request& request, std::size_t bytes_max);
  /// Drops all copies, and lets `request` name copies of its lists. False: out of memory.
  [[nodiscard]] bool take_over(Request& request, std::size_t bytes);

  /// Memory for most calls, with its pages touched, so that the first calls are as fast as later ones. False: out of
  /// memory.
  [[nodiscard]] bool warm_up();

  /// The call has ended: frees a long one's memory.
  void trim() {
    if (capacity_ > kKeptBytesMax) clear();
  }

 private:
  static constexpr std::size_t kAlignment = alignof(std::max_align_t);
  static constexpr std::size_t kWarmBytes = 8 << 10;      // a match of 256 blocks, a get of 170
  static constexpr std::size_t kKeptBytesMax = 64 << 10;  // a chain of 1,300 blocks with their addresses

  /// Of a list's copy. The caller has bounded the list: overflow is not checked here.
  template <class T>
  static std::size_t copy_bytes(std::span<T> list) {
    return (list.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  /// Calls visit(list) for each list that a submit copies.
  template <class AnyRequest, class Visit>
  static void for_each_list(AnyRequest& request, Visit visit) {
    visit(request.hashes);
    visit(request.to);
    visit(request.from);
    visit(request.token_ids);
    visit(request.extras);
    visit(request.segment_ends);
    visit(request.group_counts);
  }
  bool reserve(std::size_t bytes);
  void clear() {
    memory_.reset();
    capacity_ = 0;
  }

  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
};

inline Result<std::size_t> ArgumentStore::bytes_of(const Request& request, std::size_t bytes_max) {
  bytes_max = std::min<std::size_t>(bytes_max, PTRDIFF_MAX / 16);
  std::size_t bytes = request.record != nullptr ? request.record->text().size() : 0;
  bool fits = true;
  for_each_list(request, [&](const auto& list) {
    fits &= list.size() <= bytes_max / sizeof(list[0]);
    bytes += fits ? copy_bytes(list) : 0;
  });
  return fits ? Result<std::size_t>(bytes) : error_code(Errc::kTooLarge);
}

inline bool ArgumentStore::take_over(Request& request, std::size_t bytes) {
  if (!reserve(bytes)) return false;
  std::size_t used = 0;
  for_each_list(request, [&]<class T>(std::span<const T>& list) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    if (list.empty()) return;
    KV_ASSERT(copy_bytes(list) <= capacity_ - used);
    std::byte* const to = memory_.get() + used;
    std::memcpy(to, list.data(), list.size_bytes());
    used += copy_bytes(list);
    list = {reinterpret_cast<const T*>(to), list.size()};
  });
  return true;
}

inline bool ArgumentStore::warm_up() {
  if (!reserve(kWarmBytes)) return false;
  std::memset(memory_.get(), 0, kWarmBytes);
  return true;
}

inline bool ArgumentStore::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return true;
  clear();
  memory_.reset(new (std::nothrow) std::byte[bytes]);
  if (memory_) capacity_ = bytes;
  return memory_ != nullptr;
}

}  // namespace kv
