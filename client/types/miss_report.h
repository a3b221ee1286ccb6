// client/types/miss_report.h: why a chain is not found, as reported by its owners (Client::why).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "index/block_hash.h"
#include "index/miss_kind.h"
#include "index/record_differences.h"

namespace kv {

struct MissReport {
  std::size_t block_count = 0;       ///< Leading blocks held, as in MatchResult.
  std::size_t disk_block_count = 0;  ///< Those on disk.
  bool is_whole = false;             ///< All are held: the rest is empty.
  /// Of the first missing block. kUnknown: the node is too old to explain, or `why` has the reason.
  MissKind kind = MissKind::kUnknown;
  error_code
      why;  ///< The block's owner did not answer (timed_out, kUnavailable, ...), or is away, and another was asked.
  std::string node;                              ///< The node asked about that block.
  std::chrono::microseconds left{0};             ///< Time since it left, or was refused.
  std::chrono::microseconds idle{0};             ///< For an evicted block: how long it had been unused by then.
  std::chrono::microseconds remembers{0};        ///< kNotRemembered: the node's record goes back this far.
  std::uint64_t stored_blocks = 0;               ///< In the namespace at that node, since it started.
  std::uint64_t lookups = 0, empty_lookups = 0;  ///< Matches there, and gets without one; those without a hit.
  /// A namespace that looks like a mistaken twin of this one.
  struct Other {
    NamespaceId id;
    bool has_block = false;  ///< It has the missing block, behind the same blocks.
    std::uint64_t block_count = 0, stored_blocks = 0, lookups = 0, empty_lookups = 0;
    std::vector<FieldDifference> differs;  ///< `here`: the namespace in question.
  };
  std::vector<Other> others;  ///< Most likely first.

  /// For people: one line per fact.
  std::vector<std::string> text() const;
};

}  // namespace kv
