#include "client/tools/bench/prompt.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <vector>

#include "base/assert.h"
#include "client/tools/bench/block_pattern.h"
#include "client/tools/tool_client.h"

namespace kv {
namespace {

/// Counts a call that did less than it could, with the node's words on the limit, field or connection.
void count_reason(PromptTotals& totals, const Client& client, const char* op, const error_code& why) {
  if (!why) return;
  std::string reason = std::string(op) + ": " + describe(why);
  // A node's last failure may be older than this call, but failures are rare here.
  for (const NodeStatus& node : client.nodes()) {
    if (!node.last_error_text.empty()) reason += " (" + node.name + ": " + node.last_error_text + ")";
  }
  ++totals.reasons[reason];
}

/// Counts the nodes of a call: those that have had more requests after it than before.
class AskedNodes {
 public:
  explicit AskedNodes(const Client& client) : client_(client) {
    for (const NodeStatus& node : client_.nodes()) before_[node.name] = node.calls;
  }
  std::uint64_t count() const {
    std::uint64_t count = 0;
    for (const NodeStatus& node : client_.nodes()) {
      const auto found = before_.find(node.name);  // absent: it joined the cluster meanwhile
      count += node.calls > (found == before_.end() ? 0 : found->second);
    }
    return count;
  }

 private:
  const Client& client_;
  std::map<std::string, std::uint64_t> before_;
};

/// Compares the blocks that were got, and "computes" the others. Returns all.
std::vector<std::span<const std::byte>> check_and_compute(const PromptContext& context, Hashes chain,
                                                          std::span<std::byte> memory, std::size_t hit_count,
                                                          PromptTotals& totals) {
  std::vector<std::span<const std::byte>> sources;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const std::span<std::byte> block = memory.subspan(i * context.block_bytes, context.block_bytes);
    const std::uint64_t seed = pattern_seed(context.space_id, chain[i]);
    if (i < hit_count) {
      totals.wrong_bytes += count_wrong_bytes(seed, block);
    } else {
      fill_pattern(seed, block);
    }
    sources.push_back(block);
  }
  return sources;
}

}  // namespace

NamespaceRecord prompt_record(const std::string& command, std::size_t block_size, std::size_t block_bytes,
                              const std::string& salt) {
  auto record = NamespaceRecord::from_fields({{"model", "kvstore-bench-" + command},
                                              {"block_size", std::to_string(block_size)},
                                              {"block_bytes", std::to_string(block_bytes)},
                                              {"salt", salt}});
  if (!record) throw CLI::ValidationError(command, record.error().text);
  return *std::move(record);
}

/// As a connector does: match first, under a lease, since a scheduler plans with the count of cached blocks; then get
/// them; then put the whole chain once the rest is computed.
Async<void> run_prompt(const PromptContext& context, Hashes chain, std::span<std::byte> memory, PromptTotals& totals) {
  KV_ASSERT(memory.size() >= chain.size() * context.block_bytes);  // a node writes up to its end
  const auto now = [] { return std::chrono::steady_clock::now(); };
  ++totals.prompts;
  totals.references += chain.size();
  if (chain.empty()) co_return Result<void>();

  MatchOptions match_options{.deadline = context.deadline};
  match_options.lease = true;
  match_options.reuse = context.reuse;
  // Before the clock starts. With one request at a time the difference is this call's alone.
  const AskedNodes asked_by_match(context.client);
  TimePoint start = now();
  auto match = co_await context.client.match(context.space, chain, match_options);
  totals.match_latency.record(now() - start);
  if (!match) co_return match.error();
  totals.match_nodes += asked_by_match.count();
  count_reason(totals, context.client, "match", match->why);

  std::size_t hit_count = 0;
  if (match->block_count > 0) {
    const auto targets = blocks_in(memory.first(match->block_count * context.block_bytes), context.block_bytes);
    GetOptions get_options{.deadline = context.deadline};
    get_options.lease = match->lease;
    const AskedNodes asked_by_get(context.client);
    start = now();
    auto got = co_await context.client.get(context.space, chain.first(match->block_count), targets, get_options);
    const Duration took = now() - start;
    if (!got) co_return got.error();
    totals.get_nodes += asked_by_get.count();
    totals.get_latency.record(took);
    totals.get_time += took;
    count_reason(totals, context.client, "get", got->why);
    hit_count = got->block_count;
    KV_ASSERT(hit_count <= match->block_count && match->disk_block_count <= match->block_count);
    // The lease promised the blocks in memory; those on disk may fail, or be late, and count here too.
    totals.promised_not_got += match->block_count - hit_count;
    const std::size_t in_memory = match->block_count - match->disk_block_count;  // these are delivered first
    totals.disk_hits += std::max(hit_count, in_memory) - in_memory;
    // After a missed deadline the node may still write there. The store has lost this prompt; its worker computes it.
    if (context.client.is_quarantined(memory)) co_return Result<void>();
  }
  totals.hits += hit_count;
  const auto sources = check_and_compute(context, chain, memory, hit_count, totals);
  // A fully cached prompt leaves a connector with no block to store.
  if (hit_count == chain.size()) co_return Result<void>();

  // The whole chain is offered, hits included: the node takes missing blocks and marks the rest as used.
  const PutOptions put_options{.deadline = context.deadline, .reuse = context.reuse};
  start = now();
  auto put = co_await context.client.put(context.space, chain, sources, put_options);
  const Duration took = now() - start;
  if (!put) co_return put.error();
  totals.put_latency.record(took);
  totals.put_time += took;
  totals.stored += put->stored;
  totals.already_stored += put->already_stored;
  totals.refused += put->refused;
  count_reason(totals, context.client, "put", put->why);
  co_return Result<void>();
}

}  // namespace kv
