// store/replay/block_trace.h: a trace from a cache's view: the blocks of each request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/tools/bench/trace/trace_reader.h"

namespace kv {

struct BlockTraceOptions {
  std::size_t block_tokens = 512;  ///< Of the trace's blocks.
  std::size_t split = 1;           ///< Parts that each block is cut into; divides block_tokens.
  bool full_only = false;          ///< Skips blocks that the input does not fill, as engines do.
};

/// Blocks are numbered from 0, without gaps. A request is a list of ids, each of which stands for `split` blocks.
class BlockTrace {
 public:
  /// Throws std::runtime_error, naming the request and the id, if an id follows two different ones: then it names no
  /// prefix. Also if there are no blocks, or 2^32.
  BlockTrace(const std::vector<TraceRequest>& requests, const BlockTraceOptions& options);

  std::size_t request_count() const { return ends_.size(); }
  std::uint64_t reference_count() const { return reference_count_; }
  std::uint32_t block_count() const { return static_cast<std::uint32_t>(id_count_ * split_); }
  std::size_t longest() const { return longest_; }  ///< Blocks of the longest request.
  /// The blocks of a request, first to last, into `blocks`.
  void blocks_of(std::size_t request, std::vector<std::uint32_t>& blocks) const;

 private:
  struct End {
    std::size_t ids;     ///< In ids_.
    std::size_t blocks;  ///< Of the request.
  };
  std::size_t split_;
  std::vector<std::uint32_t> ids_;  ///< Of all requests, one after the other.
  std::vector<End> ends_;
  std::uint64_t reference_count_ = 0;
  std::size_t id_count_ = 0, longest_ = 0;
};

/// Counts of a cache over a trace.
struct CacheTotals {
  std::uint64_t references = 0, hits = 0, stored = 0;
  double hit_rate() const { return references == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(references); }
};

}  // namespace kv
