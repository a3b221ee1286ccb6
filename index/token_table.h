// index/token_table.h: the token ids of the blocks that came with any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "index/prefix_index.h"
#include "index/stable_table.h"

namespace kv {

/// Costs nothing as long as no block has token ids.
class TokenTable {
 public:
  using TokenIds = std::span<const std::uint32_t>;

  bool has(BlockId block) const { return !of(block).empty(); }

  TokenIds of(BlockId block) const {
    const auto [chunk, i] = place(block);
    if (chunk >= chunks_.size() || !chunks_[chunk]) return {};
    const auto& ids = chunks_[chunk][i];
    return ids ? TokenIds(ids.get() + 1, ids[0]) : TokenIds();
  }

  /// Requires: !has(block), ids is not empty.
  void set(BlockId block, TokenIds ids) {
    const auto [chunk, i] = place(block);
    if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
    if (!chunks_[chunk]) {
      chunks_[chunk] = std::make_unique<Ids[]>(kChunk);
      heap_bytes_ += kChunk * sizeof(Ids) + 16;
    }
    Ids& copy = chunks_[chunk][i];
    copy = std::make_unique_for_overwrite<std::uint32_t[]>(ids.size() + 1);
    copy[0] = static_cast<std::uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), copy.get() + 1);
    heap_bytes_ += ids_bytes(ids);
  }

  void erase(BlockId block) {
    if (!has(block)) return;
    const auto [chunk, i] = place(block);
    heap_bytes_ -= ids_bytes(of(block));
    chunks_[chunk][i].reset();
  }

  std::size_t heap_bytes() const { return heap_bytes_ + chunks_.capacity() * sizeof(chunks_[0]); }

  static std::size_t common_count(TokenIds a, TokenIds b) {
    const std::size_t count = std::min(a.size(), b.size());
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.begin() + count, b.begin()).first - a.begin());
  }

  /// Blocks in lexicographic order of their token ids, equal ids in order of BlockId.
  struct Order {
    using is_transparent = void;
    const TokenTable* table;

    static bool is_less(TokenIds a, TokenIds b) {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
    bool operator()(BlockId a, BlockId b) const {
      const TokenIds ids_a = table->of(a), ids_b = table->of(b);
      if (is_less(ids_a, ids_b)) return true;
      return !is_less(ids_b, ids_a) && a < b;
    }
    bool operator()(BlockId a, TokenIds b) const { return is_less(table->of(a), b); }
    bool operator()(TokenIds a, BlockId b) const { return is_less(a, table->of(b)); }
  };

 private:
  using Ids = std::unique_ptr<std::uint32_t[]>;  // their count, then the ids
  static constexpr std::uint32_t kChunk = 2048;

  static std::pair<std::uint32_t, std::uint32_t> place(BlockId block) {
    return {static_cast<std::uint32_t>(block) / kChunk, static_cast<std::uint32_t>(block) % kChunk};
  }
  static std::size_t ids_bytes(TokenIds ids) { return allocated_bytes((ids.size() + 1) * sizeof(std::uint32_t)); }

  std::vector<std::unique_ptr<Ids[]>> chunks_;
  std::size_t heap_bytes_ = 0;
};

}  // namespace kv
