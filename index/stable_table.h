// index/stable_table.h: a growing array whose elements never move, so that growth never copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/assert.h"

namespace kv {

/// A doubling std::vector copies hundreds of megabytes at once, under the Store's lock. This table adds a chunk. Cost:
/// one more load per access, from a list of chunks that stays in cache. Unchecked: PrefixIndex checks ids.
template <class T, std::uint32_t kChunk = 2048>
class StableTable {
 public:
  T& operator[](std::uint32_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const T& operator[](std::uint32_t i) const { return chunks_[i / kChunk][i % kChunk]; }

  std::uint32_t size() const { return size_; }
  /// Returns the index of a new element, which may hold a removed one's content.
  std::uint32_t add() {
    KV_ASSERT(size_ < 0xFFFFFF00);  // the indices above mean "none"
    if (size_ / kChunk == chunks_.size()) chunks_.push_back(std::make_unique<T[]>(kChunk));
    return size_++;
  }
  void remove_last() {
    KV_ASSERT(size_ > 0);
    --size_;
  }

  std::size_t heap_bytes() const {
    return chunks_.size() * (kChunk * sizeof(T) + 16) + chunks_.capacity() * sizeof(chunks_[0]);
  }

 private:
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::uint32_t size_ = 0;
};

/// The real size of an allocation of `bytes` in the C library. With glibc: a header of 8 bytes, multiples of 16.
inline std::size_t allocated_bytes(std::size_t bytes) { return bytes == 0 ? 0 : (bytes + 8 + 15) / 16 * 16; }

}  // namespace kv
