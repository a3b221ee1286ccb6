// store/context.h: a prefix with a name that somebody wants kept in memory for a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "index/block_hash.h"
#include "index/namespace_record.h"
#include "store/block_pool.h"

namespace kv {

enum class SpaceId : std::uint64_t;

enum class ContextId : std::uint64_t {};  ///< Never used again.

/// How long a context lives.
struct ContextLife {
  Duration ttl{};           ///< From its creation, or from its extension.
  bool is_sliding = false;  ///< And from each use.
};
inline constexpr std::size_t kContextChainsMax = 512;  ///< Of one context: each costs a look.
inline constexpr Duration kContextTtlMax = std::chrono::hours(24 * 3660);

/// What a tenant has asked to be kept, and what came of it.
///   1. Of each chain the leading kept.size() blocks are kept, or were until a drop: that is found out when the context
///      is looked at. What a drop takes is always a chain's end.
struct Context {
  struct Kept {
    BlockId block{};
    BlockPool::RetentionId retention{};
  };
  struct Chain {
    std::size_t first = 0, count = 0;  ///< In `hashes`.
    std::vector<Kept> kept;
  };

  ContextId id{};
  std::string owner, name;  ///< The name is unique within the owner's.
  std::vector<std::string> tags;
  std::shared_ptr<const NamespaceRecord> record;
  NamespaceId space_name;
  SpaceId space{};  ///< As which it was open when something of it was last kept.
  std::vector<BlockHash> hashes;
  std::vector<Chain> chains;
  ContextLife life;
  TimePoint created{}, begun{}, looked{};  ///< begun: created, or extended.
  std::optional<TimePoint> used;
  Errc why{};  ///< Why not all is kept; 0: it is.
  std::size_t kept_count = 0, told_count = 0;
  std::uint64_t lost_count = 0;  ///< Were kept, and dropped.
  std::uint64_t written_tokens = 0, read_tokens = 0;
  double stored_token_seconds = 0;
  TimePoint turn{};  ///< Its place in the order of ends; never later than end().

  TimePoint end() const { return (life.is_sliding && used && *used > begun ? *used : begun) + life.ttl; }
  std::size_t text_bytes() const;
};

}  // namespace kv
