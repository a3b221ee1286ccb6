// client/hot/known_chains.h: how much of a chain the nodes knew, kept from its match to its put.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "index/block_hash.h"

namespace kv {

/// Each node judges blocks by the new part of a request, but sees only its own part. If nodes disagree, each keeps
/// blocks that are useless without the others'. So a match sums up the blocks known to all nodes, and the put of that
/// chain, which may have another length by then, reports the sum to all. A chain is found by its first new block.
/// Entries of chains that are never put, or of equal hashes in different namespaces, do little harm; the oldest beyond
/// kEntriesMax go. Cost: one look-up per block. Thread safety: none.
class KnownChains {
 public:
  static constexpr std::size_t kEntriesMax = 4096;

  /// The first `known` blocks of `chain` are known to all. If these are all, its last block serves as the key.
  void matched(Hashes chain, std::size_t known) {
    if (chain.empty()) return;
    const auto [at, is_new] =
        known_.insert_or_assign(chain[std::min(known, chain.size() - 1)], static_cast<std::uint32_t>(known));
    if (!is_new) return;
    order_.push_back(at->first);
    if (order_.size() <= kEntriesMax) return;
    known_.erase(order_.front());
    order_.pop_front();
  }
  /// The number known when `chain`, or one with the same beginning, was matched; the highest of several, since blocks
  /// stored after an earlier match are known by now.
  std::optional<std::size_t> of(Hashes chain) const {
    if (known_.empty()) return std::nullopt;
    for (std::size_t i = chain.size(); i-- > 0;) {
      const auto found = known_.find(chain[i]);
      if (found != known_.end() && (found->second == i || found->second == i + 1)) return found->second;
    }
    return std::nullopt;
  }

 private:
  std::unordered_map<BlockHash, std::uint32_t> known_;  ///< By the first new block.
  std::deque<BlockHash> order_;
};

}  // namespace kv
