// store/eviction_policy.h: what a block is worth, and so which one goes and which one may come in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "index/block_hash.h"
#include "index/prefix_index.h"
#include "index/reuse_hint.h"
#include "store/name_sample.h"
#include "store/yield_table.h"

namespace kv {

/// Where the blocks of a request that are this node's lie in the whole chain, of which other nodes have the rest. Nodes
/// that sort blocks of one request by their own part of it alone would disagree on what it is worth.
struct ChainPart {
  std::size_t block_count = 0;      ///< Of the whole chain. 0: it has no more than these.
  std::size_t first = 0, last = 0;  ///< Positions in it of the first and last of this node's.
  /// So many leading blocks of the chain are no news, on all nodes together: they are here, or were not long ago.
  std::optional<std::size_t> known = {};

  bool fits(std::size_t count) const {
    return block_count == 0 || (known.value_or(0) <= block_count && first <= last && last < block_count && count > 0 &&
                                last - first >= count - 1);
  }
  /// From the first to the last of `count`: blocks of the chain for each.
  double stride(std::size_t count) const {
    return block_count == 0 ? 1 : static_cast<double>(last - first + 1) / static_cast<double>(count);
  }
  /// Blocks of the chain that are new, if this node knows the first `known_here` of its `count`.
  std::size_t new_blocks(std::size_t known_here, std::size_t count) const;
  /// As many blocks of this node's as there are of the chain's behind its last: how far the chain's end is.
  std::size_t after_last(std::size_t count) const;
};

/// Orders leaf ends for eviction, and new blocks for admission, by one value. Leaf ends are sorted into queues by their
/// usage; within a queue the least recently used goes first, and of the queues that one whose first is worth least. So
/// a decision looks at one block a queue, however many blocks there are.
///
/// Age is counted in blocks, not in time: by how many blocks were offered and not here since. A node that nobody writes
/// to does not age, and a trace replayed at full speed gives the decisions of its own hour.
///
/// The Store tells a policy of every request, of what leaves and of what comes back. What is to be learned from that
/// waits for learn(), so that no request does. Thread safety: none, the Store's lock covers it. Memory: at most 16
/// bytes a block, with what is kept of blocks that left, and 4 MiB.
class EvictionPolicy {
 public:
  /// One request, as far as this node sees its blocks.
  struct Request {
    TreeId tree;
    std::span<const BlockHash> hashes;
    std::size_t found_count;  ///< Leading blocks that memory or disk has; of a set: how many.
    std::size_t block_size;   ///< Tokens a block; 0: unknown.
    bool is_set = false;
    ReuseHint hint = ReuseHint::kNone;
    std::uint64_t tenant = 0;               ///< Whose hint it is: any number, equal for equal tenants.
    ChainPart chain = {};                   ///< Of what the hashes are a part.
    const SampledNames* sampled = nullptr;  ///< If somebody has looked already.

    /// How many blocks of this node's come behind hashes[i], as if the chain's end were this node's.
    std::size_t passed(std::size_t i) const { return hashes.size() - 1 - i + chain.after_last(hashes.size()); }
  };

  virtual ~EvictionPolicy() = default;

  virtual std::string_view name() const = 0;
  virtual LeafQueues queues() const = 0;
  /// So many blocks find room, as far as anybody knows now. What was learned is kept.
  virtual void set_capacity(std::uint64_t block_count) = 0;

  /// Asks for what each request needs of this object: others were at work since the last one.
  void prefetch() const {
    constexpr std::size_t kLineBytes = 64, kLines = 4;
    const auto* const own = reinterpret_cast<const std::byte*>(this);
    for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(own + i * kLineBytes, 1);
  }
  /// Asks for the memory that asked() or offered() will look at, of a request whose first block is not here.
  virtual void expect_miss(TreeId /*tree*/, const BlockHash& /*missed*/) const {}
  /// A request asks for blocks: a match, or a get without one. Returns the trait of its uses (Usage). `*known` (may be
  /// nullptr) gets how many leading blocks are here, or left not long ago.
  virtual std::uint16_t asked(const Request& request, std::size_t* known = nullptr) = 0;
  /// Which blocks are learned from: who looks for them before a request comes saves time that others wait for. Empty:
  /// none.
  virtual std::optional<NameSample> sample() const { return {}; }
  /// A put offers blocks, at `tick`. Returns their trait. `above`: the usage of the block that they continue; default:
  /// none. What is not here ages all that is.
  virtual std::uint16_t offered(const Request& request, Usage above, Tick tick) = 0;
  /// A block has left memory, and lies on disk or nowhere.
  virtual void left(TreeId tree, const BlockHash& hash, Usage usage) = 0;
  /// How often blocks that are not here were used before they left, into `uses`, up to the first of which that is not
  /// remembered. Returns how many that are.
  virtual std::size_t remembered_uses(TreeId /*tree*/, std::span<const BlockHash> /*hashes*/,
                                      std::span<std::uint8_t> /*uses*/) const {
    return 0;
  }
  /// The block is here again: its memory goes.
  virtual void came(TreeId tree, const BlockHash& hash) = 0;

  /// What a leaf end of a queue, last used `age` blocks ago, is worth keeping. Values compare with one another only
  /// while version() stays; larger is better.
  virtual double worth(std::uint32_t queue, std::uint64_t age) const = 0;
  /// From which age on worth() is another than at `age`, if it is a step function.
  virtual std::uint64_t next_step(std::uint64_t age) const = 0;
  virtual std::uint32_t version() const = 0;
  /// How likely a leaf end of a queue, last used `age` blocks ago, is to be used within the next `blocks`. 1: unknown.
  virtual double chance(std::uint32_t /*queue*/, std::uint64_t /*age*/, std::uint64_t /*blocks*/) const { return 1; }
  /// Whether blocks worth less than what would have to go for them are to be refused.
  virtual bool refuses() const = 0;

  /// The age of what was last used at `tick`; and the clock's moment for later comparison.
  virtual std::uint64_t clock() const = 0;
  virtual std::uint64_t used_at(Tick tick) const = 0;

  /// What this node has counted; nullptr: it counts nothing. And what other nodes have, to be learned from too.
  virtual const YieldTable* table() const { return nullptr; }
  virtual void set_pooled(YieldTable::Pooled /*pooled*/) {}
  /// What the node had counted before it was restarted, in ages of `unit` (YieldTable::set_before).
  virtual void set_before(double /*unit*/, std::vector<YieldTable::Counts> /*counts*/) {}

  /// Goes on with learning, for some twenty microseconds. Returns whether there is more to be learned.
  virtual bool learn() = 0;
  virtual std::uint64_t unlearned_uses() const { return 0; }  ///< For want of room, as learn() was not called in time.
  virtual std::size_t memory_bytes() const = 0;
};

enum class PolicyKind : std::uint8_t { kLru, kLfu, kYield };
inline constexpr std::string_view kPolicyNames[] = {"lru", "lfu", "yield"};

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, std::uint64_t seed, bool lru_unless_pooled = false);

}  // namespace kv
