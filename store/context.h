// store/context.h: a prefix with a name that somebody wants kept in memory for a time.
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
#include "store/block_pool.h"

namespace kv {

enum class SpaceId : std::uint64_t;

enum class ContextId : std::uint64_t {};  ///< Never used again.

// What may be said of a context. Names and tags go to logs and tables as they are.
inline constexpr std::size_t kContextNameBytesMax = 128, kContextTagsMax = 16, kContextTagBytesMax = 128;
inline constexpr const char *kContextNameAllowed = "allowed are 1 to 128 visible ASCII characters",
                            *kContextTagAllowed = "allowed are 1 to 128 printable ASCII characters";
bool is_context_name(std::string_view text);
bool is_context_tag(std::string_view text);

/// Names of blocks that several may hold at once, and that nobody changes.
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

/// Where the blocks of a context stand in the whole prefix, of which other nodes have the rest.
struct ContextPlace {
  std::uint32_t prefix_count = 0;  ///< Blocks of the whole prefix. 0: whoever made the context did not say.
  /// Of each block, ascending; nullptr: 0, 1, 2, ...
  std::shared_ptr<const std::vector<std::uint32_t>> positions = nullptr;

  std::uint32_t position(std::size_t i) const { return positions ? (*positions)[i] : static_cast<std::uint32_t>(i); }
  bool is_of(std::size_t block_count) const;  ///< Whether so many blocks can stand so.
};

/// How long a context lives.
struct ContextLife {
  Duration ttl{};           ///< From its creation, or from its extension.
  bool is_sliding = false;  ///< And from each use.
};
// Where the bounds on what is kept leave less than an owner's contexts ask for, those of higher priority have it.
inline constexpr std::uint8_t kContextPriorityMax = 9, kContextPriorityDefault = 5;
inline constexpr std::size_t kContextChainsMax = 512;  ///< Of one context: each costs a look.
inline constexpr Duration kContextTtlMax = std::chrono::hours(24 * 3660);

/// What is known of a context wherever it is: at work, or in a file over a restart.
struct ContextFacts {
  std::string owner, name;  ///< The name is unique within the owner's.
  std::vector<std::string> tags;
  std::shared_ptr<const NamespaceRecord> record;
  HashList hashes;
  ContextPlace place;
  ContextLife life;
  std::uint8_t priority = kContextPriorityDefault;
  TimePoint created{}, begun{};  ///< begun: created, or extended.
  std::optional<TimePoint> used;
  std::uint64_t lost_count = 0;     ///< Were kept, and dropped.
  std::uint64_t yielded_count = 0;  ///< Were kept, and given up for contexts of higher priority.
  std::uint64_t written_tokens = 0, read_tokens = 0;
  double stored_token_seconds = 0;

  TimePoint end() const { return (life.is_sliding && used && *used > begun ? *used : begun) + life.ttl; }
};

/// What a tenant has asked to be kept, and what came of it.
///   1. Of each chain the leading kept.size() blocks are kept, or were until a drop: that is found out when the context
///      is looked at. What a drop takes is always a chain's end.
struct Context : ContextFacts {
  struct Kept {
    BlockId block{};
    BlockPool::RetentionId retention{};
  };
  struct Chain {
    std::size_t first = 0, count = 0;  ///< In `hashes`.
    std::vector<Kept> kept;
    std::size_t written = 0;  ///< So many leading blocks have counted as written, before a restart as well.
  };

  ContextId id{};
  NamespaceId space_name;
  SpaceId space{};  ///< As which it was open when something of it was last kept.
  std::vector<Chain> chains;
  TimePoint looked{};
  Errc why{};               ///< Why not all is kept; 0: it is.
  bool is_warming = false;  ///< What the disk has of it is to come to memory.
  std::size_t kept_count = 0, told_count = 0;
  TimePoint turn{};  ///< Its place in the order of ends; never later than end().

  std::size_t text_bytes() const;
};

}  // namespace kv
