// store/eviction_policy.h: what a block is worth, and so which one goes and which one may come in.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "index/block_hash.h"
#include "index/prefix_index.h"
#include "index/reuse_hint.h"

namespace kv {

/// Orders leaf ends for eviction, and new blocks for admission, by one value. Leaf ends are sorted into queues by their
/// usage; within a queue the least recently used goes first, and of the queues that one whose first is worth least. So
/// a decision looks at one block a queue, however many blocks there are.
///
/// Age is counted in blocks, not in time: by how many blocks were offered and not here since. A node that nobody writes
/// to does not age, and a trace replayed at full speed gives the decisions of its own hour.
///
/// The Store tells a policy of every request, of what leaves and of what comes back. A policy takes bounded steps in
/// each call. Thread safety: none, the Store's lock covers it. Memory: at most 16 bytes a block, with what is kept of
/// blocks that left, and 4 MiB.
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
    std::uint64_t tenant = 0;  ///< Whose hint it is: any number, equal for equal tenants.
  };

  virtual ~EvictionPolicy() = default;

  virtual std::string_view name() const = 0;
  virtual LeafQueues queues() const = 0;
  /// So many blocks find room, as far as anybody knows now. What was learned is kept unless this changes a lot.
  virtual void set_capacity(std::uint64_t block_count) = 0;

  /// A request asks for blocks: a match, or a get without one. Returns the trait of its uses (Usage).
  virtual std::uint16_t asked(const Request& request) = 0;
  /// A put offers blocks, at `tick`. Returns their trait. `above`: the usage of the block that they continue; default:
  /// none. What is not here ages all that is.
  virtual std::uint16_t offered(const Request& request, Usage above, Tick tick) = 0;
  /// A block has left memory, and lies on disk or nowhere.
  virtual void left(TreeId tree, const BlockHash& hash, Usage usage) = 0;
  /// How often a block that is not here was used before it left, as far as that is remembered.
  virtual std::uint8_t remembered_uses(TreeId tree, const BlockHash& hash) const = 0;
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

  /// Goes on with learning, for at most some ten microseconds.
  virtual void learn() = 0;
  virtual std::size_t memory_bytes() const = 0;
};

enum class PolicyKind : std::uint8_t { kLru, kLfu, kYield };
inline constexpr std::string_view kPolicyNames[] = {"lru", "lfu", "yield"};

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, std::uint64_t seed);

}  // namespace kv
