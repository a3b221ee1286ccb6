#include "store/replay/policy_run.h"

#include <array>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/assert.h"
#include "store/store.h"

namespace kv {
namespace {

constexpr std::size_t kBlockBytes = 64;
constexpr SessionId kSession{1};

/// Evenly spread, as policies that sample by hash expect. Not chained: the trace's ids already name prefixes.
BlockHash hash_of(std::uint32_t block, std::uint64_t seed) {
  BlockHash hash{};
  std::uint64_t state = (seed + 1) * 0xD1342543DE82EF95 + block;
  for (std::size_t at = 0; at < hash.bytes.size(); at += sizeof state) {
    std::uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    state = z ^ block;
    std::memcpy(hash.bytes.data() + at, &z, sizeof z);
  }
  return hash;
}

StoreConfig config_of(const BlockTrace& trace, const PolicyRun& run) {
  StoreConfig config;
  config.arena = {
      .capacity_bytes = run.capacity * kBlockBytes, .granule_bytes = 4096, .huge_pages = false, .touch = false};
  config.chain_blocks_max = trace.longest();
  config.index_bytes_max = std::size_t{1} << 40;  // the arena alone is the limit
  config.hash_seed = run.seed;
  config.policy = run.policy;
  config.curve = run.curve;
  return config;
}

/// Stores the blocks of the chain that the Store wants. Returns their count.
std::uint64_t put(Store& store, SpaceId space, const std::vector<BlockHash>& hashes, ReuseHint hint, TimePoint now) {
  auto plan = store.offer(space, hashes, {.session = kSession, .hint = hint}, now);
  KV_ASSERT(plan);
  if (plan->put == PutId{}) return 0;
  std::uint64_t incoming = plan->incoming.size();
  for (bool again = plan->again; again;) {
    const auto more = store.offer_more(plan->put, now);
    KV_ASSERT(more);
    incoming += more->incoming.size();
    again = more->again;
  }
  constexpr std::array<std::uint64_t, 1> no_sum{};
  for (std::uint64_t i = 0; i < incoming; ++i) KV_ASSERT(store.commit(plan->put, no_sum, now) == CommitStatus::kStored);
  store.end_put(plan->put);
  return incoming;
}

}  // namespace

CacheTotals run_policy(const BlockTrace& trace, const PolicyRun& run, std::atomic<std::uint64_t>& done,
                       HitCurve::Report* curve) {
  auto created = Store::create(config_of(trace, run));
  if (!created) {
    throw std::runtime_error("no memory for a cache of " + std::to_string(run.capacity) +
                             " blocks: " + created.error().message());
  }
  Store& store = **created;
  const auto record = NamespaceRecord::from_fields({{"model", "kvstore-bench-policies"},
                                                    {"block_size", std::to_string(run.block_tokens)},
                                                    {"block_bytes", std::to_string(kBlockBytes)}});
  KV_ASSERT(record);
  const auto space = store.open(*record);
  if (!space) throw std::runtime_error("capacity " + std::to_string(run.capacity) + ": " + space.error().message());

  CacheTotals totals;
  std::vector<std::uint32_t> blocks;
  std::vector<BlockHash> hashes;
  TimePoint now{std::chrono::seconds(1)};
  for (std::size_t r = 0; r < trace.request_count(); ++r) {
    trace.blocks_of(r, blocks);
    now += std::chrono::milliseconds(5);
    if (!blocks.empty()) {
      hashes.clear();
      for (const std::uint32_t block : blocks) hashes.push_back(hash_of(block, run.seed));
      const ReuseHint hint = run.hints.empty() ? ReuseHint::kNone : run.hints[r];
      const auto match = store.match(*space, hashes, {.session = kSession, .hint = hint}, now);
      KV_ASSERT(match);
      totals.references += hashes.size();
      totals.hits += match->memory_block_count;
      totals.stored += put(store, *space, hashes, hint, now);
      while (store.learn()) {  // a node does so between requests
      }
    }
    done.fetch_add(1, std::memory_order_relaxed);
  }
  if (const auto at_end = store.curve(); at_end && curve != nullptr) *curve = at_end->report;
  return totals;
}

}  // namespace kv
