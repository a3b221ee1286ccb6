// client/types/context_types.h: options and results of the calls for named contexts (Client::create_context, ...).
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
#include "client/types/call_control.h"
#include "index/block_hash.h"

namespace kv {

/// A context's lifetime: one of the two.
struct ContextTime {
  std::chrono::microseconds ttl{0};  ///< From now.
  bool is_sliding = false;  ///< With `ttl`: also from each use, a match, get or touch that names all kept blocks.
  std::chrono::system_clock::time_point until{};  ///< By the nodes' clocks.
};

struct ContextOptions {
  std::chrono::microseconds deadline;  ///< From call to answer. No default: choose.
  std::string_view name;               ///< 1 to 128 visible ASCII characters.
  ContextTime life;
  std::span<const std::string> tags = {};  ///< At most 16, each of 1 to 128 printable ASCII characters.
  /// 0..9. If the bounds on kept blocks cannot hold all contexts of the tenant, the higher priority wins, and among
  /// equals the one that came first.
  std::uint8_t priority = 5;
  CallControl control = {};
};
static_assert(std::is_trivially_destructible_v<ContextOptions> && std::is_trivially_destructible_v<ContextTime>);

/// A context, summed over its nodes.
struct NamedContext {
  std::string name;
  std::vector<std::string> tags;
  std::string namespace_id;  ///< Hexadecimal.
  std::string model;
  std::uint64_t block_size = 0;                      ///< Tokens.
  std::uint64_t wanted_blocks = 0, kept_blocks = 0;  ///< Kept: in memory until the context ends.
  std::uint64_t kept_bytes = 0;
  /// Why fewer blocks are kept than wanted, from the first node that keeps fewer: kNotFound, they are not in memory
  /// yet; kBusy, the node's bound on kept blocks; kOverQuota, the tenant's.
  error_code why;
  std::uint64_t lost_blocks = 0;     ///< Formerly kept, dropped by a client.
  std::uint64_t yielded_blocks = 0;  ///< Formerly kept, given up for contexts of higher priority.
  std::uint8_t priority = 5;         ///< The lowest, if the nodes have different ones.
  bool is_sliding = false;
  std::chrono::microseconds ttl{0};
  /// Microseconds since 1970, by the nodes' clocks: the earliest, the earliest and the latest. used: 0, never.
  std::chrono::microseconds created{0}, expires{0}, used{0};
  std::uint64_t written_tokens = 0;  ///< Of blocks when first kept.
  std::uint64_t read_tokens = 0;     ///< Of kept blocks found by gets.
  double stored_token_seconds = 0;   ///< Kept tokens times seconds.
  bool is_warming = false;           ///< Its blocks on disk are being loaded into memory.
  /// Leading blocks in memory, kept or not, and the blocks behind them on disk. From warm_context(), and for a single
  /// context asked for by name; absent if a node does not report them.
  std::optional<std::uint64_t> memory_blocks = {}, disk_blocks = {};
};

/// A context's content, assembled from the parts of all nodes.
struct ContextContent {
  NamedContext context;
  std::string record;  ///< The namespace's, as given by callers.
  /// Length of the whole prefix. 0: unknown, since the context was created by a client, or kept by a node, that did not
  /// give the positions of its blocks; their order is unknown too.
  std::uint64_t prefix_blocks = 0;
  std::vector<BlockHash> hashes;  ///< From the first block on; fewer than prefix_blocks if a node's part is missing.
};

/// Sorted by name.
struct ContextList {
  std::vector<NamedContext> contexts;
  /// Nodes that did not answer, with their errors: all figures lack their part.
  std::vector<std::pair<std::string, error_code>> silent;
};

}  // namespace kv
