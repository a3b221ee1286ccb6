// client/hot/known_chains.h: how much of a chain was no news to the nodes, from its match to its put.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "index/block_hash.h"

namespace kv {

/// Each node judges blocks by how much of their request was new, and sees its own part of the request alone. Where they
/// disagree, each keeps blocks that are of no use without the others'. So a match adds up what all nodes say they know,
/// and the put of that chain, which may be longer or shorter then, tells it to them all. A chain is found again by the
/// first block that was new. Of chains that nobody puts, and of different namespaces with equal hashes, an entry costs
/// or says a little; the oldest of kEntriesMax go. Cost: a look-up a block. Thread safety: none.
class KnownChains {
 public:
  static constexpr std::size_t kEntriesMax = 4096;

  /// So many leading blocks of `chain` are known to all. If all of them are, its last block stands for what is new.
  void matched(std::span<const BlockHash> chain, std::size_t known) {
    if (chain.empty()) return;
    const auto [at, is_new] =
        known_.insert_or_assign(chain[std::min(known, chain.size() - 1)], static_cast<std::uint32_t>(known));
    if (!is_new) return;
    order_.push_back(at->first);
    if (order_.size() <= kEntriesMax) return;
    known_.erase(order_.front());
    order_.pop_front();
  }
  /// How many it was when `chain`, or one that begins like it, was matched. The most, if it was more than once: what
  /// was stored since the earlier time is known now.
  std::optional<std::size_t> of(std::span<const BlockHash> chain) const {
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
