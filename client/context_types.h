// client/context_types.h: what the verbs for prefixes that are kept by name take and give (Client::create_context,
// ...).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/result.h"
#include "client/call_control.h"
#include "index/block_hash.h"

namespace kv {

/// How long a context lives: one of the two.
struct ContextTime {
  std::chrono::microseconds ttl{0};  ///< From now.
  bool is_sliding = false;  ///< And, with `ttl`, from each use: a match, get or touch that names all that is kept.
  std::chrono::system_clock::time_point until{};  ///< By the nodes' clocks.
};

struct ContextOptions {
  std::chrono::microseconds deadline;  ///< From call to answer. No default: choose.
  std::string_view name;               ///< 1 to 128 visible ASCII characters.
  ContextTime life;
  std::span<const std::string> tags = {};  ///< At most 16, each of 1 to 128 printable ASCII characters.
  /// 0..9. Where the bounds on what is kept leave less than the tenant's contexts ask for, those of higher priority
  /// have it, and of equals those that had it first.
  std::uint8_t priority = 5;
  CallControl control = {};
};
static_assert(std::is_trivially_destructible_v<ContextOptions> && std::is_trivially_destructible_v<ContextTime>);

/// A context, summed over the nodes that have a part of it.
struct NamedContext {
  std::string name;
  std::vector<std::string> tags;
  std::string namespace_id;  ///< Hexadecimal.
  std::string model;
  std::uint64_t block_size = 0;                      ///< Tokens.
  std::uint64_t wanted_blocks = 0, kept_blocks = 0;  ///< Kept: in memory until the context ends.
  std::uint64_t kept_bytes = 0;
  /// Why fewer are kept than wanted: kNotFound, they are not in memory so far; kBusy, the node's bound on what is kept;
  /// kOverQuota, the tenant's. Of the first node that keeps fewer.
  error_code why;
  std::uint64_t lost_blocks = 0;     ///< Were kept, and dropped by somebody.
  std::uint64_t yielded_blocks = 0;  ///< Were kept, and given up for contexts of higher priority.
  std::uint8_t priority = 5;         ///< Of nodes that were told different ones, the lowest.
  bool is_sliding = false;
  std::chrono::microseconds ttl{0};
  /// Since 1970, by the nodes' clocks: the earliest, the earliest and the last. used: 0, never.
  std::chrono::microseconds created{0}, expires{0}, used{0};
  std::uint64_t written_tokens = 0;  ///< Of blocks when they began to be kept.
  std::uint64_t read_tokens = 0;     ///< Of kept blocks that gets have found.
  double stored_token_seconds = 0;   ///< Tokens kept, times the seconds that they were.
  bool is_warming = false;           ///< What the disks have of it is being brought to memory.
  /// Leading blocks that memory has, kept or not, and those that follow them on disk: of warm_context(), and where one
  /// context was asked for by its name. Absent also if a node does not tell.
  std::optional<std::uint64_t> memory_blocks = {}, disk_blocks = {};
};

/// What a context is of, put together from the parts of all nodes.
struct ContextContent {
  NamedContext context;
  std::string record;  ///< Of its namespace, as callers give it.
  /// Of the whole prefix. 0: the context was made by a client, or kept by a node, that did not say where its blocks
  /// stand, so nobody knows their order.
  std::uint64_t prefix_blocks = 0;
  std::vector<BlockHash> hashes;  ///< From the first block on; fewer than prefix_blocks where a node's part is missing.
};

/// By name.
struct ContextList {
  std::vector<NamedContext> contexts;
  /// Nodes that did not answer, and why: what they have is missing in all figures.
  std::vector<std::pair<std::string, error_code>> silent;
};

}  // namespace kv
