#include "client/load.h"

#include <algorithm>
#include <chrono>

#include "base/assert.h"

namespace kv {

Async<LoadResult> load(Client& client, Space space, Hashes hashes, TargetBlocks blocks, LoadOptions options,
                       const std::function<void(const MatchResult&)>* on_match) {
  KV_ASSERT(blocks.size() == hashes.size());
  const auto until = std::chrono::steady_clock::now() + options.deadline;
  MatchOptions wanted{};
  wanted.deadline = options.deadline;
  wanted.lease = true;  // found blocks stay until the get, and are not searched twice
  wanted.prefetch = !options.memory_only;
  wanted.reuse = options.reuse;
  wanted.control = options.control;
  const auto match = co_await client.match(space, hashes, wanted);
  if (!match) co_return match.error();
  const Lease lease = match->lease;
  const std::size_t found = match->block_count;
  KV_ASSERT(found <= hashes.size());
  LoadResult result;
  result.match = *match;
  result.match.lease = Lease{};  // used up here
  result.get.why = match->why;
  if (on_match != nullptr) (*on_match)(result.match);
  if (options.control.is_cancelled()) result.get.why = Errc::kCancelled;
  if (result.get.why == Errc::kCancelled || found < std::max<std::size_t>(options.block_count_min, 1)) {
    client.release(lease);
    co_return result;
  }
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(until - std::chrono::steady_clock::now());
  GetOptions options_of_get{};
  options_of_get.deadline = std::max(left, std::chrono::microseconds(0));
  options_of_get.lease = lease;
  options_of_get.segment_ends = options.segment_ends;
  options_of_get.on_segment = options.on_segment;
  options_of_get.memory_only = options.memory_only;
  options_of_get.checksums = options.checksums;
  if (found < hashes.size()) {
    const std::size_t per_block = options.checksums.size() / hashes.size();
    options_of_get.checksums = options.checksums.first(found * per_block);
  }
  options_of_get.control = options.control;
  const auto got = co_await client.get(space, hashes.first(found), blocks.first(found), options_of_get);
  if (!got) {
    client.release(lease);  // it was refused before it took the lease
    co_return got.error();
  }
  result.get = *got;
  if (got->block_count == found && !got->why) result.get.why = match->why;  // why there are not more
  co_return result;
}

}  // namespace kv
