// index/block_run.h: the blocks of one edge of the radix tree, in prefix order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "index/block_hash.h"
#include "index/prefix_index.h"
#include "index/stable_table.h"

namespace kv {

/// Two arrays in one allocation. Hashes lie apart from ids, since a match reads only hashes:
///
///     | hash 0 | hash 1 | ... | capacity x 32 bytes |  id 0 | id 1 | ... | capacity x 4 bytes |
///
/// Calls that change the allocation update `heap_bytes`, the owner's count. Cost: append amortised O(1).
class BlockRun {
 public:
  BlockRun() = default;
  BlockRun(BlockRun&& other) noexcept
      : bytes_(std::move(other.bytes_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  BlockRun& operator=(BlockRun&& other) noexcept {
    bytes_ = std::move(other.bytes_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  std::uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const BlockHash* hashes() const { return reinterpret_cast<const BlockHash*>(bytes_.get()); }
  const BlockId* ids() const { return reinterpret_cast<const BlockId*>(bytes_.get() + capacity_ * sizeof(BlockHash)); }
  BlockId last() const {
    KV_ASSERT(size_ > 0);
    return ids()[size_ - 1];
  }
  std::size_t heap_bytes() const { return allocated_bytes(capacity_ * kBytesPerBlock); }

  void append(const BlockHash& hash, BlockId id, std::size_t& heap_bytes) {
    // A long run grows by a quarter: on average half of a growth is wasted, and 36 bytes a block are most of the index.
    if (size_ == capacity_) resize(capacity_ < 2 ? capacity_ + 1 : capacity_ + std::max(capacity_ / 4, 2u), heap_bytes);
    mutable_hashes()[size_] = hash;
    mutable_ids()[size_] = id;
    ++size_;
  }

  void append(const BlockRun& other, std::size_t& heap_bytes) {
    KV_ASSERT(size_ <= 0xFFFFFFFF - other.size_);
    if (capacity_ < size_ + other.size_) resize(size_ + other.size_, heap_bytes);
    std::memcpy(mutable_hashes() + size_, other.hashes(), other.size_ * sizeof(BlockHash));
    std::memcpy(mutable_ids() + size_, other.ids(), other.size_ * sizeof(BlockId));
    size_ += other.size_;
  }

  /// A new run of blocks [from, to) of this one.
  BlockRun copy(std::uint32_t from, std::uint32_t to, std::size_t& heap_bytes) const {
    KV_ASSERT(from < to && to <= size_);
    BlockRun part;
    part.resize(to - from, heap_bytes);
    part.size_ = to - from;
    std::memcpy(part.mutable_hashes(), hashes() + from, part.size_ * sizeof(BlockHash));
    std::memcpy(part.mutable_ids(), ids() + from, part.size_ * sizeof(BlockId));
    return part;
  }

  /// Keeps the first `count` blocks. Releases memory once half of it is unused, so shrinking stays amortised O(1).
  void truncate(std::uint32_t count, std::size_t& heap_bytes) {
    KV_ASSERT(count <= size_);
    if (count == 0) return clear(heap_bytes);
    size_ = count;
    if (count < capacity_ / 2) resize(count, heap_bytes);
  }

  void clear(std::size_t& heap_bytes) {
    heap_bytes -= this->heap_bytes();
    *this = BlockRun();
  }

 private:
  static constexpr std::size_t kBytesPerBlock = sizeof(BlockHash) + sizeof(BlockId);

  BlockHash* mutable_hashes() { return const_cast<BlockHash*>(hashes()); }
  BlockId* mutable_ids() { return const_cast<BlockId*>(ids()); }

  void resize(std::uint32_t capacity, std::size_t& heap_bytes) {
    heap_bytes -= this->heap_bytes();
    auto bytes = std::make_unique_for_overwrite<std::byte[]>(capacity * kBytesPerBlock);
    if (size_ > 0) {
      std::memcpy(bytes.get(), hashes(), size_ * sizeof(BlockHash));
      std::memcpy(bytes.get() + capacity * sizeof(BlockHash), ids(), size_ * sizeof(BlockId));
    }
    bytes_ = std::move(bytes);
    capacity_ = capacity;
    heap_bytes += this->heap_bytes();
  }

  std::unique_ptr<std::byte[]> bytes_;
  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = 0;
};

}  // namespace kv
