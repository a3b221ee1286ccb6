// client/miss_report.h: why a chain is not found, as the nodes that own it say (Client::why).
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
  std::size_t block_count = 0;       ///< Leading blocks that are held, as MatchResult has them.
  std::size_t disk_block_count = 0;  ///< Of them: on disk.
  bool is_whole = false;             ///< All are held: there is nothing to explain.
  /// Of the first block that is not held. kUnknown: `why` says why nobody could be asked; or the node is older than the
  /// question.
  MissKind kind = MissKind::kUnknown;
  error_code
      why;  ///< The block's owner did not answer: timed_out, kUnavailable, ... Or it is away, and another was asked.
  std::string node;                              ///< Who was asked for that block.
  std::chrono::microseconds left{0};             ///< It left, or was refused, about so long ago.
  std::chrono::microseconds idle{0};             ///< And had not been used for so long by then; of an evicted one.
  std::chrono::microseconds remembers{0};        ///< kNotRemembered: had it left in this time, the node would know.
  std::uint64_t stored_blocks = 0;               ///< Into the namespace at that node, since it started.
  std::uint64_t lookups = 0, empty_lookups = 0;  ///< Matches there, and gets without one; those that found nothing.
  /// A namespace that looks like a mistaken twin of this one.
  struct Other {
    NamespaceId id;
    bool has_block = false;  ///< The block that is missed is there, behind the same blocks.
    std::uint64_t block_count = 0, stored_blocks = 0, lookups = 0, empty_lookups = 0;
    std::vector<FieldDifference> differs;  ///< `here`: the namespace asked about.
  };
  std::vector<Other> others;  ///< The likeliest first.

  /// For people: one line for each thing to know.
  std::vector<std::string> text() const;
};

}  // namespace kv
