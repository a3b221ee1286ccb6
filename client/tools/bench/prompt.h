// client/tools/bench/prompt.h: a serving worker's use of the store for one prompt, with every byte checked.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "client/client.h"
#include "client/tools/latency_histogram.h"

namespace kv {

struct PromptTotals {
  std::uint64_t prompts = 0;
  std::uint64_t references = 0;  ///< Blocks of all prompts, repetitions included.
  std::uint64_t hits = 0;        ///< Blocks got, verified by checksum here.
  std::uint64_t disk_hits = 0;   ///< The part of `hits` that lay on disk.
  std::uint64_t stored = 0, already_stored = 0, refused = 0;
  std::uint64_t promised_not_got = 0;  ///< Blocks matched under a lease that get did not deliver.
  /// Nodes with at least one request of a match, of a get; summed over the calls.
  std::uint64_t match_nodes = 0, get_nodes = 0;
  std::uint64_t wrong_bytes = 0;                 ///< Delivered as good, but not the block's pattern. Must be 0.
  std::map<std::string, std::uint64_t> reasons;  ///< Calls that did less than they could, by reason.
  Duration get_time{}, put_time{};
  LatencyHistogram match_latency, get_latency, put_latency;

  double hit_rate() const { return references == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(references); }
};

/// Bytes a second over the time spent in calls, not over a run, which may pause between prompts.
inline double call_rate(std::uint64_t blocks, std::size_t block_bytes, Duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return seconds > 0 ? static_cast<double>(blocks * block_bytes) / seconds : 0;
}

/// The namespace of a command. Throws CLI::ValidationError.
NamespaceRecord prompt_record(const std::string& command, std::size_t block_size, std::size_t block_bytes,
                              const std::string& salt);

struct PromptContext {
  Client& client;
  Space space;
  NamespaceId space_id;
  std::size_t block_bytes;
  std::chrono::microseconds deadline;  ///< Of each of the three calls.
  ReuseHint reuse = ReuseHint::kNone;
};

/// Matches the chain under a lease, gets the cached blocks, compares every byte with the pattern of its name,
/// "computes" the rest (fills it with the pattern) and puts the chain. `memory` has room for chain.size() blocks; all
/// spans live until completion. After a missed deadline `memory` may be quarantined (Client::get); the caller then uses
/// other memory. Errors are those of misused calls. A failed node shows in totals.reasons.
Async<void> run_prompt(const PromptContext& context, Hashes chain, std::span<std::byte> memory, PromptTotals& totals);

}  // namespace kv
