// index/stable_table.h: a growing array whose elements never move, so that growing to ten million entries never copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/assert.h"

namespace kv {

/// A std::vector that doubles copies hundreds of megabytes at once, under the Store's lock. This table adds a chunk.
/// Cost: one more load per access, from a list of chunks that stays in cache. No bounds check: this is the hot path;
/// callers check ids where they come in (PrefixIndex).
template <class T, std::uint32_t kChunk = 2048>
class StableTable {
 public:
  T& operator[](std::uint32_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const T& operator[](std::uint32_t i) const { return chunks_[i / kChunk][i % kChunk]; }

  std::uint32_t size() const { return size_; }
  /// Returns the index of a new element, which still holds what a removed one left there.
  std::uint32_t add() {
    KV_ASSERT(size_ < 0xFFFFFF00);  // the indices above are for "none"
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

/// What the C library really takes for an allocation of `bytes`. With glibc: a header of 8 bytes, multiples of 16.
inline std::size_t allocated_bytes(std::size_t bytes) { return bytes == 0 ? 0 : (bytes + 8 + 15) / 16 * 16; }

}  // namespace kv
