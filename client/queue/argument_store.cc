#include "client/queue/argument_store.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kAlignment = alignof(std::max_align_t);

/// Of a list's copy. The caller has bounded the list: overflow is not checked here.
template <class T>
std::size_t copy_bytes(std::span<T> list) {
  return (list.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

/// Calls visit(list) for each list that a submit copies.
template <class AnyRequest, class Visit>
void for_each_list(AnyRequest& request, Visit visit) {
  visit(request.hashes);
  visit(request.to);
  visit(request.from);
  visit(request.token_ids);
  visit(request.extras);
  visit(request.segment_ends);
  visit(request.group_counts);
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

}  // namespace

bool has_blocks(const Request& request) {
  switch (request.op) {
    case Op::kGet:
    case Op::kLoad:
    case Op::kGetSet: return request.to.size() == request.hashes.size();
    case Op::kPut:
    case Op::kPutSet: return request.from.size() == request.hashes.size();
    default: return true;
  }
}

std::size_t data_bytes(const Request& request) {
  const std::size_t blocks = total_bytes(request.to) + total_bytes(request.from);
  switch (request.op) {
    case Op::kMatchSet: return request.hashes.size() * (sizeof(Held) + sizeof(std::uint32_t));
    case Op::kGetSet: return blocks + request.hashes.size() * sizeof(SetGetBlock);
    case Op::kPutSet: return blocks + request.hashes.size() * sizeof(SetPutBlock);
    default: return blocks;
  }
}

Result<std::size_t> ArgumentStore::bytes_of(const Request& request, std::size_t bytes_max) {
  bytes_max = std::min<std::size_t>(bytes_max, PTRDIFF_MAX / 16);
  std::size_t bytes = request.record != nullptr ? request.record->text().size() : 0;
  bool fits = true;
  for_each_list(request, [&](const auto& list) {
    fits &= list.size() <= bytes_max / sizeof(list[0]);
    bytes += fits ? copy_bytes(list) : 0;
  });
  return fits ? Result<std::size_t>(bytes) : error_code(Errc::kTooLarge);
}

bool ArgumentStore::take_over(Request& request, std::size_t bytes) {
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

bool ArgumentStore::warm_up() {
  if (!reserve(kWarmBytes)) return false;
  std::memset(memory_.get(), 0, kWarmBytes);
  return true;
}

bool ArgumentStore::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return true;
  clear();
  memory_.reset(new (std::nothrow) std::byte[bytes]);
  if (memory_) capacity_ = bytes;
  return memory_ != nullptr;
}

}  // namespace kv
