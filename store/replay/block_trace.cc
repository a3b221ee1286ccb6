#include "store/replay/block_trace.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "base/assert.h"

namespace kv {

BlockTrace::BlockTrace(const std::vector<TraceRequest>& requests, const BlockTraceOptions& options)
    : split_(options.split) {
  KV_ASSERT(split_ > 0 && options.block_tokens % split_ == 0);
  constexpr std::uint32_t kRoot = 0xFFFFFFFF;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers;
  std::vector<std::uint32_t> parents;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const TraceRequest& request = requests[r];
    std::uint32_t above = kRoot;
    for (std::size_t i = 0; i < request.hash_ids.size(); ++i) {
      const auto [at, is_new] = numbers.try_emplace(request.hash_ids[i], static_cast<std::uint32_t>(parents.size()));
      if (is_new) parents.push_back(above);
      // This also gives each id a single depth: its parent's plus one.
      if (parents[at->second] != above) {
        throw std::runtime_error("request " + std::to_string(r) + ": hash_ids[" + std::to_string(i) + "] is " +
                                 std::to_string(request.hash_ids[i]) +
                                 ", which stood behind another id before: it names no prefix");
      }
      above = at->second;
      ids_.push_back(above);
    }
    std::size_t blocks = request.hash_ids.size() * split_;
    if (options.full_only) {
      blocks = std::min<std::size_t>(blocks, request.input_length / (options.block_tokens / split_));
    }
    longest_ = std::max(longest_, blocks);
    reference_count_ += blocks;
    ends_.push_back({ids_.size(), blocks});
  }
  id_count_ = parents.size();
  if (reference_count_ == 0) throw std::runtime_error("the trace names no blocks");
  if (reference_count_ >= std::numeric_limits<std::uint32_t>::max()) {
    throw std::runtime_error("the trace names " + std::to_string(reference_count_) + " blocks, 2^32 or more");
  }
}

void BlockTrace::blocks_of(std::size_t request, std::vector<std::uint32_t>& blocks) const {
  blocks.clear();
  const std::size_t count = ends_[request].blocks;
  for (std::size_t i = request == 0 ? 0 : ends_[request - 1].ids; blocks.size() < count; ++i) {
    const auto first = static_cast<std::uint32_t>(ids_[i] * split_);
    for (std::uint32_t part = 0; part < split_ && blocks.size() < count; ++part) blocks.push_back(first + part);
  }
}

}  // namespace kv
