// store/policy/eviction_policy.h: the worth of a block, which decides eviction and admission.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "index/block_hash.h"
#include "index/prefix_index.h"
#include "index/reuse_hint.h"
#include "store/policy/block_sample.h"
#include "store/policy/yield_table.h"

namespace kv {

/// Where this node's blocks of a request lie in the whole chain, whose other blocks are on other nodes. Nodes that
/// judged a request's blocks by their own part alone would disagree on their worth.
struct ChainPart {
  std::size_t block_count = 0;      ///< In the whole chain. 0: it consists of these.
  std::size_t first = 0, last = 0;  ///< Positions in the chain of this node's first and last block.
  /// Leading blocks of the chain that are known, over all nodes: they are here, or were recently.
  std::optional<std::size_t> known = {};

  bool fits(std::size_t count) const {
    return block_count == 0 || (known.value_or(0) <= block_count && first <= last && last < block_count && count > 0 &&
                                last - first >= count - 1);
  }
  /// Blocks of the chain per block of this node, from its first to its last.
  double stride(std::size_t count) const {
    return block_count == 0 ? 1 : static_cast<double>(last - first + 1) / static_cast<double>(count);
  }
  /// New blocks of the chain, if this node knows the first `known_here` of its `count`.
  std::size_t new_blocks(std::size_t known_here, std::size_t count) const;
  /// The chain's blocks behind this node's last one, scaled to this node's share: the distance to the chain's end.
  std::size_t after_last(std::size_t count) const;
};

/// Orders leaf ends for eviction, and new blocks for admission, by one value. Leaf ends are sorted into queues by their
/// usage; within a queue the least recently used goes first, and among the queues the one whose first block is worth
/// least. So a decision looks at one block a queue, however many blocks there are.
///
/// Age is counted in blocks, not in time: the number of offered absent blocks since. Without writes a node does not
/// age, and a trace replayed at full speed gives the decisions of its own hour.
///
/// The Store reports to a policy every request, and all blocks that leave. The learning itself waits for
/// learn(), so that requests do not pay for it. Thread safety: the Store's lock. Memory: at most 16 bytes a block, with
/// the record of blocks that left, and 4 MiB.
class EvictionPolicy {
 public:
  /// One request, for this node's blocks.
  struct Request {
    TreeId tree;
    std::span<const BlockHash> hashes;
    std::size_t found_count;  ///< Leading blocks that memory or disk has; for a set, the number of held blocks.
    std::size_t block_size;   ///< Tokens a block; 0: unknown.
    bool is_set = false;
    ReuseHint hint = ReuseHint::kNone;
    std::uint64_t tenant = 0;               ///< The source of the hint: any number, equal for equal tenants.
    ChainPart chain = {};                   ///< The part of a chain that the hashes are.
    const SampledNames* sampled = nullptr;  ///< nullptr, or looked up in advance.

    /// This node's blocks behind hashes[i], as if the chain's end were this node's.
    std::size_t passed(std::size_t i) const { return hashes.size() - 1 - i + chain.after_last(hashes.size()); }
  };

  virtual ~EvictionPolicy() = default;

  virtual std::string_view name() const = 0;
  virtual LeafQueues queues() const = 0;
  /// The number of blocks that find room, by the present estimate. Learned values are kept.
  virtual void set_capacity(std::uint64_t block_count) = 0;

  /// Prefetches the members that each request needs: other work has evicted them from the cache since.
  void prefetch() const {
    constexpr std::size_t kLineBytes = 64, kLines = 4;
    const auto* const own = reinterpret_cast<const std::byte*>(this);
    for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(own + i * kLineBytes, 1);
  }
  /// Prefetches the memory that asked() or offered() will read, for a request whose first block is absent.
  virtual void expect_miss(TreeId /*tree*/, const BlockHash& /*missed*/) const {}
  /// A request asks for blocks: a match, or a get without one. Returns the trait of its uses (Usage). `*known` (may be
  /// nullptr) receives the number of leading blocks that are here, or left recently.
  virtual std::uint16_t asked(const Request& request, std::size_t* known = nullptr) = 0;
  /// The blocks that are learned from: looking them up before a request comes saves time under the lock.
  virtual std::optional<BlockSample> sample() const { return {}; }
  /// A put offers blocks, at `tick`. Returns their trait. `above`: the usage of the block that they continue, if any.
  /// Offered absent blocks age all present ones.
  virtual std::uint16_t offered(const Request& request, Usage above, Tick tick) = 0;
  /// A block has left memory, perhaps for the disk.
  virtual void left(TreeId tree, const BlockHash& hash, Usage usage) = 0;
  /// Fills `uses` with the use counts of absent blocks before they left, up to the first unknown one. Returns how many.
  virtual std::size_t remembered_uses(TreeId /*tree*/, std::span<const BlockHash> /*hashes*/,
                                      std::span<std::uint8_t> /*uses*/) const {
    return 0;
  }

  /// The worth of keeping a queue's leaf end that was last used `age` blocks ago. Comparable while version() stays.
  virtual double worth(std::uint32_t queue, std::uint64_t age) const = 0;
  /// For a step function: the age above `age` at which worth() changes next.
  virtual std::uint64_t next_step(std::uint64_t age) const = 0;
  virtual std::uint32_t version() const = 0;
  /// The chance that a queue's leaf end, last used `age` blocks ago, is used within the next `blocks`. 1: unknown.
  virtual double chance(std::uint32_t /*queue*/, std::uint64_t /*age*/, std::uint64_t /*blocks*/) const { return 1; }
  /// Whether to refuse blocks that are worth less than their victims.
  virtual bool refuses() const = 0;

  /// The clock in blocks now, and its value at the use at `tick`.
  virtual std::uint64_t clock() const = 0;
  virtual std::uint64_t used_at(Tick tick) const = 0;

  /// This node's counts, if it keeps any. And other nodes' counts, to be learned from too.
  virtual const YieldTable* table() const { return nullptr; }
  virtual void set_combined(YieldTable::Combined /*combined*/) {}
  /// The node's counts before its restart, in ages of `unit` (YieldTable::set_before).
  virtual void set_before(double /*unit*/, std::vector<YieldTable::Counts> /*counts*/) {}

  /// Learns for some twenty microseconds. Returns whether there is more.
  virtual bool learn() = 0;
  virtual std::uint64_t unlearned_uses() const { return 0; }  ///< Because learn() came too late.
  virtual std::size_t memory_bytes() const = 0;
};

enum class PolicyKind : std::uint8_t { kLru, kLfu, kYield };
inline constexpr std::string_view kPolicyNames[] = {"lru", "lfu", "yield"};

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, std::uint64_t seed, bool lru_unless_combined = false);

}  // namespace kv
