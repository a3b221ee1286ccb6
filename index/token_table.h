// index/token_table.h: the token ids of the blocks that came with any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "index/block_hash.h"
#include "index/prefix_index.h"
#include "index/stable_table.h"

namespace kv {

/// The digest of the hash's extra (ExtraDigest) lies beside the ids. Free without token ids.
class TokenTable {
 public:
  using TokenIds = std::span<const std::uint32_t>;

  /// The order's key of a block: first the extra, then the ids.
  struct Tokens {
    ExtraDigest extra;
    TokenIds ids;
  };

  bool has(BlockId block) const { return !of(block).ids.empty(); }

  Tokens of(BlockId block) const {
    const auto [chunk, i] = place(block);
    if (chunk >= chunks_.size() || !chunks_[chunk]) return {};
    const auto& kept = chunks_[chunk][i];
    if (!kept) return {};
    Tokens tokens{.ids = TokenIds(kept.get() + kHeader, kept[0])};
    std::memcpy(tokens.extra.bytes.data(), kept.get() + 1, sizeof tokens.extra);
    return tokens;
  }

  /// Requires: !has(block), ids is not empty.
  void set(BlockId block, TokenIds ids, const ExtraDigest& extra) {
    KV_ASSERT(!ids.empty() && !has(block));
    const auto [chunk, i] = place(block);
    if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
    if (!chunks_[chunk]) {
      chunks_[chunk] = std::make_unique<Ids[]>(kChunk);
      heap_bytes_ += kChunk * sizeof(Ids) + 16;
    }
    Ids& copy = chunks_[chunk][i];
    copy = std::make_unique_for_overwrite<std::uint32_t[]>(ids.size() + kHeader);
    copy[0] = static_cast<std::uint32_t>(ids.size());
    std::memcpy(copy.get() + 1, &extra, sizeof extra);
    std::copy(ids.begin(), ids.end(), copy.get() + kHeader);
    heap_bytes_ += ids_bytes(ids);
    used_bytes_ += ids_bytes(ids);
  }

  void erase(BlockId block) {
    if (!has(block)) return;
    const auto [chunk, i] = place(block);
    heap_bytes_ -= ids_bytes(of(block).ids);
    used_bytes_ -= ids_bytes(of(block).ids);
    chunks_[chunk][i].reset();
  }

  std::size_t heap_bytes() const { return heap_bytes_ + chunks_.capacity() * sizeof(chunks_[0]); }

  std::size_t used_bytes() const { return used_bytes_; }  ///< Only for the ids.
  std::size_t ids_bytes(BlockId block) const { return has(block) ? ids_bytes(of(block).ids) : 0; }

  /// The number of equal leading ids; 0 if the extras differ, since the place of an extra in the block is unknown here.
  static std::size_t common_count(const Tokens& a, const Tokens& b) {
    if (a.extra != b.extra) return 0;
    const std::size_t count = std::min(a.ids.size(), b.ids.size());
    return static_cast<std::size_t>(std::mismatch(a.ids.begin(), a.ids.begin() + count, b.ids.begin()).first -
                                    a.ids.begin());
  }

  /// Blocks of one extra together, in lexicographic order of their token ids, equal ids in order of BlockId.
  struct Order {
    using is_transparent = void;
    const TokenTable* table;

    static bool is_less(const Tokens& a, const Tokens& b) {
      if (a.extra != b.extra) return a.extra < b.extra;
      return std::lexicographical_compare(a.ids.begin(), a.ids.end(), b.ids.begin(), b.ids.end());
    }
    bool operator()(BlockId a, BlockId b) const {
      const Tokens of_a = table->of(a), of_b = table->of(b);
      if (is_less(of_a, of_b)) return true;
      return !is_less(of_b, of_a) && a < b;
    }
    bool operator()(BlockId a, const Tokens& b) const { return is_less(table->of(a), b); }
    bool operator()(const Tokens& a, BlockId b) const { return is_less(a, table->of(b)); }
  };

 private:
  using Ids = std::unique_ptr<std::uint32_t[]>;  // the count of ids, the extra, then the ids
  static constexpr std::size_t kHeader = 1 + sizeof(ExtraDigest) / sizeof(std::uint32_t);
  static constexpr std::uint32_t kChunk = 2048;

  static std::pair<std::uint32_t, std::uint32_t> place(BlockId block) {
    return {static_cast<std::uint32_t>(block) / kChunk, static_cast<std::uint32_t>(block) % kChunk};
  }
  static std::size_t ids_bytes(TokenIds ids) { return allocated_bytes((ids.size() + kHeader) * sizeof(std::uint32_t)); }

  std::vector<std::unique_ptr<Ids[]>> chunks_;
  std::size_t heap_bytes_ = 0, used_bytes_ = 0;
};

}  // namespace kv
