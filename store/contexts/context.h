// store/contexts/context.h: a named prefix that a client wants kept in memory for a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "index/block_hash.h"
#include "index/namespace_record.h"
#include "store/memory/block_pool.h"

namespace kv {

enum class SpaceId : std::uint64_t;

enum class ContextId : std::uint64_t {};  ///< Never reused.

// Limits of a context's texts. Names and tags appear unchanged in logs and tables.
inline constexpr std::size_t kContextNameBytesMax = 128, kContextTagsMax = 16, kContextTagBytesMax = 128;
inline constexpr const char *kContextNameAllowed = "allowed are 1 to 128 visible ASCII characters",
                            *kContextTagAllowed = "allowed are 1 to 128 printable ASCII characters";
bool is_context_name(std::string_view text);
bool is_context_tag(std::string_view text);

/// Immutable block names that several owners may share.
class HashList {
 public:
  HashList() = default;
  HashList(std::vector<BlockHash> hashes)
      : hashes_(std::make_shared<const std::vector<BlockHash>>(std::move(hashes))) {}
  std::span<const BlockHash> view() const { return hashes_ ? std::span(*hashes_) : std::span<const BlockHash>(); }
  std::size_t size() const { return hashes_ ? hashes_->size() : 0; }
  const BlockHash& operator[](std::size_t i) const { return (*hashes_)[i]; }

 private:
  std::shared_ptr<const std::vector<BlockHash>> hashes_;
};

/// Where a context's blocks stand in the whole prefix, whose other blocks are on other nodes.
struct ContextPlace {
  std::uint32_t prefix_count = 0;  ///< Blocks of the whole prefix. 0: not given at creation.
  /// Per block, ascending; nullptr: 0, 1, 2, ...
  std::shared_ptr<const std::vector<std::uint32_t>> positions = nullptr;

  bool is_of(std::size_t block_count) const;  ///< Whether this many blocks can stand so.
};

struct ContextLife {
  Duration ttl{};           ///< From its creation, or from its extension.
  bool is_sliding = false;  ///< The ttl also restarts with each use.
};
// Where the bounds on kept bytes have too little room for an owner's contexts, those of higher priority come first.
inline constexpr std::uint8_t kContextPriorityMax = 9, kContextPriorityDefault = 5;
inline constexpr std::size_t kContextChainsMax = 512;  ///< Per context: each costs a lookup.
inline constexpr Duration kContextTtlMax = std::chrono::hours(24 * 3660);

/// The facts of a context both at work and in a file over a restart.
struct ContextFacts {
  std::string owner, name;  ///< The name is unique per owner.
  std::vector<std::string> tags;
  std::shared_ptr<const NamespaceRecord> record;
  HashList hashes;
  ContextPlace place;
  ContextLife life;
  std::uint8_t priority = kContextPriorityDefault;
  TimePoint created{}, begun{};  ///< begun: created, or extended.
  std::optional<TimePoint> used;
  std::uint64_t lost_count = 0;
  std::uint64_t yielded_count = 0;  ///< Kept blocks given up for contexts of higher priority.
  std::uint64_t written_tokens = 0, read_tokens = 0;
  double stored_token_seconds = 0;

  TimePoint end() const { return (life.is_sliding && used && *used > begun ? *used : begun) + life.ttl; }
};

/// A tenant's order, and its state.
///   1. The leading kept.size() blocks of each chain are kept, or were until a drop; a visit of the context detects the
///      drop. A drop always takes a chain's end.
struct Context : ContextFacts {
  struct Kept {
    BlockId block{};
    BlockPool::RetentionId retention{};
  };
  struct Chain {
    std::size_t first = 0, count = 0;  ///< In `hashes`.
    std::vector<Kept> kept;
    std::size_t written = 0;  ///< Leading blocks that have counted as written, before a restart as well.
  };

  ContextId id{};
  NamespaceId space_name;
  SpaceId space{};  ///< The namespace's number when a block of the context was last kept.
  std::vector<Chain> chains;
  TimePoint looked{};
  Errc why{};               ///< Why not all blocks are kept; 0: all are.
  bool is_warming = false;  ///< Its blocks on disk are to come to memory.
  std::size_t kept_count = 0, told_count = 0;
  TimePoint turn{};  ///< Its place in the order of ends; never later than end().

  std::size_t text_bytes() const;
};

}  // namespace kv
