// store/contexts/context_ends.h: finds the contexts whose kept blocks a request names completely.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "base/assert.h"
#include "index/block_hash.h"
#include "store/contexts/context.h"

namespace kv {

/// The last kept block of each chain of the contexts in one namespace. Equal hashes are equal prefixes, so a request
/// that names this block names all before it. Every block that a request has found is looked up here, just after its
/// hash was read from memory: a small table of counts rules out nearly all of them. Contexts outlive their entries.
/// Thread safety: the Store's lock. Cost: a nanosecond a block, and a lookup for a match and one block in 1,024.
class ContextEnds {
 public:
  void add(const BlockHash& end, Context& context, std::size_t chain) {
    ends_.emplace(short_hash(end), End{end, &context, chain});
    ++counts_[bucket(end)];
  }
  void remove(const BlockHash& end, const Context& context, std::size_t chain) {
    const auto [from, to] = ends_.equal_range(short_hash(end));
    for (auto it = from; it != to; ++it) {
      if (it->second.context != &context || it->second.chain != chain || it->second.block != end) continue;
      ends_.erase(it);
      --counts_[bucket(end)];
      return;
    }
    KV_ASSERT(false);
  }
  /// Calls visit(context, chain) for each that ends in a block of `prefix`. `visit` must not add or remove.
  template <class Visit>
  void visit(std::span<const BlockHash> prefix, Visit visit) const {
    for (const BlockHash& block : prefix) {
      if (counts_[bucket(block)] == 0) continue;
      const auto [from, to] = ends_.equal_range(short_hash(block));
      for (auto it = from; it != to; ++it) {
        if (it->second.block == block) visit(*it->second.context, it->second.chain);
      }
    }
  }
  bool empty() const { return ends_.empty(); }
  std::size_t count() const { return ends_.size(); }

 private:
  struct End {
    BlockHash block;
    Context* context;
    std::size_t chain;
  };
  static std::size_t bucket(const BlockHash& block) { return short_hash(block) * 0x9E3779B97F4A7C15 >> 54; }

  std::array<std::uint32_t, 1024> counts_{};
  std::unordered_multimap<std::uint64_t, End> ends_;
};

}  // namespace kv
