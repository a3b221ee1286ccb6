// Question: what does expected yield cost beside LRU, at 320,000 blocks of 16 tokens? Budget: a match 1.05 of LRU's; a
// put that evicts 200 ns a block more; no call holds the Store 10 % longer (p99), and no learning longer than 100 us.
//
// Both stores see the same requests, one after the other: turns of sessions that come back, and strangers, behind a few
// prompts that many share. Only what is kept of the blocks is there: the arena is address space that nobody touches.
// Time is the thread's own processor time, and what is told is the median over rounds: others may be at work on the
// machine. LRU stands without a curve: as it was before there was any of this. KV_BENCH_BLOCKS, KV_BENCH_ROUNDS;
// KV_BENCH_LOOK=0: the call looks for the sample's blocks itself.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/store.h"

namespace kv {
namespace {

constexpr std::size_t kBytes = 4096, kSharedBlocks = 64, kSharedPrompts = 16, kSessions = 2000, kTurnsMax = 10;
constexpr std::size_t kRequestsPerRound = 250;

std::size_t number(const char* name, std::size_t otherwise) {
  const char* const env = std::getenv(name);
  return env != nullptr ? std::stoull(env) : otherwise;
}

double raw_ns() {
  timespec now{};
  KV_ASSERT(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// What a look at the clock takes: it is taken off.
double clock_ns() {
  static const double cost = [] {
    std::vector<double> costs(2001);
    for (double& each : costs) {
      const double start = raw_ns();
      each = raw_ns() - start;
    }
    std::nth_element(costs.begin(), costs.begin() + 1000, costs.end());
    return costs[1000];
  }();
  return cost;
}

BlockHash hash_of(std::uint64_t chain, std::uint64_t i) {
  BlockHash hash;
  std::uint64_t state = chain * 0xD1342543DE82EF95 + i;
  for (std::size_t at = 0; at < hash.bytes.size(); at += sizeof state) {
    std::uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    std::memcpy(hash.bytes.data() + at, &z, sizeof z);
  }
  return hash;
}

/// A request comes off the wire, whose checksum has every byte of it looked at: so hashes are in the cache.
void touch(const std::vector<BlockHash>& hashes) {
  std::uint64_t sum = 0;
  for (const BlockHash& hash : hashes) sum += hash_prefix(hash);
  benchmark::DoNotOptimize(sum);
}

/// Prompts, one after another.
class Load {
 public:
  const std::vector<BlockHash>& next() {
    hashes_.clear();
    if (random_() % 5 < 2) {  // a turn
      while (sessions_.size() < kSessions) sessions_.push_back({++names_, 1 + random_() % 40, 0});
      Session& session = sessions_[random_() % sessions_.size()];
      session.blocks += 20 + random_() % 80;
      fill(session.name, session.blocks);
      if (++session.turns == kTurnsMax) session = {++names_, 1 + random_() % 40, 0};
    } else {
      fill(++names_, 50 + random_() % 400);
    }
    return hashes_;
  }

 private:
  struct Session {
    std::uint64_t name;
    std::size_t blocks, turns;
  };
  void fill(std::uint64_t name, std::size_t blocks) {
    for (std::size_t i = 0; i < kSharedBlocks; ++i) hashes_.push_back(hash_of(~(name % kSharedPrompts), i));
    for (std::size_t i = 0; i < blocks; ++i) hashes_.push_back(hash_of(name, i));
  }
  std::mt19937_64 random_{42};
  std::vector<Session> sessions_;
  std::vector<BlockHash> hashes_;
  std::uint64_t names_ = 0;
};

class Times {
 public:
  void add(double ns) { all_.push_back(std::max(0.0, ns - clock_ns())); }
  double at(double part) {
    if (all_.empty()) return 0;
    std::sort(all_.begin(), all_.end());
    return all_[std::min(all_.size() - 1, static_cast<std::size_t>(part * static_cast<double>(all_.size())))];
  }
  void add_all(const Times& other) { all_.insert(all_.end(), other.all_.begin(), other.all_.end()); }
  void add_short(std::size_t count) { all_.insert(all_.end(), count, 0); }

 private:
  std::vector<double> all_;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Round {
  double look_ns = 0, match_ns = 0, put_ns = 0, refused_ns = 0;
  std::size_t asked = 0, stored = 0, refused = 0;
};

class Cache {
 public:
  Cache(PolicyKind policy, bool has_curve, std::size_t blocks, std::size_t event_count_max = 0) {
    StoreConfig config;
    config.arena.capacity_bytes = blocks * kBytes;
    config.arena.touch = false;
    config.arena.huge_pages = false;
    config.index_bytes_max = std::size_t{1} << 40;  // the arena alone says what fits
    config.hash_seed = 7;
    config.policy = policy;
    config.curve.is_on = has_curve;
    config.event_count_max = event_count_max;
    store_ = Store::create(config).value();
    const auto record =
        NamespaceRecord::from_fields({{"model", "m"}, {"block_bytes", std::to_string(kBytes)}, {"block_size", "16"}});
    space_ = store_->open(record.value()).value();
  }

  void request(const std::vector<BlockHash>& hashes) {
    now_ += std::chrono::milliseconds(1);
    touch(hashes);
    double start = raw_ns();
    if (looks_before_) {  // as a session does, before it asks for the lock
      sampled_.set(store_->samples());
      start = raw_ns();
      sampled_.look(hashes);
      last_look_ns = std::max(0.0, raw_ns() - start - clock_ns());
      round.look_ns += last_look_ns;
      start = raw_ns();
    }
    const auto match =
        store_->match(space_, hashes, {.session = SessionId{1}, .sampled = looks_before_ ? &sampled_ : nullptr}, now_);
    double took = raw_ns() - start;
    KV_ASSERT(match);
    matches.add(took);
    last_match_ns = took - clock_ns();
    last_hits = match->memory_block_count;
    round.match_ns += last_match_ns;
    round.asked += hashes.size();
    hits += match->memory_block_count;
    asked += hashes.size();
    put(hashes);
    learn(*store_);
  }

  StoreStats stats() const { return store_->stats(); }

  Round round;
  /// Of all calls. A commit is one of the shortest, so it is not looked at how short.
  Times holds() const {
    Times all;
    for (const Times* each : {&matches, &offers, &ends, &slices}) all.add_all(*each);
    all.add_short(commit_count);
    return all;
  }
  Times matches, offers, ends, slices;
  std::size_t commit_count = 0;
  double slices_ns = 0, last_match_ns = 0, last_look_ns = 0;
  std::size_t last_hits = 0;
  std::size_t hits = 0, asked = 0;

 private:
  void put(const std::vector<BlockHash>& hashes) {
    const std::uint64_t evicted = store_->stats().evicted_blocks;
    static const std::vector<std::uint64_t> sums(stripe_count(kBytes));
    double start = raw_ns();
    auto plan = store_->offer(space_, hashes, {.session = SessionId{1}}, now_).value();
    double took = raw_ns() - start, all = took - clock_ns();
    offers.add(took);
    if (plan.put == PutId{}) return;
    const PutId id = plan.put;
    std::size_t stored = 0;
    for (;;) {
      start = raw_ns();
      for (std::size_t i = 0; i < plan.incoming.size(); ++i, ++stored) store_->commit(id, sums, now_);
      all += raw_ns() - start - clock_ns();
      commit_count += plan.incoming.size();
      if (!plan.again) break;
      start = raw_ns();
      plan = store_->offer_more(id, now_).value();
      took = raw_ns() - start;
      offers.add(took);
      all += took - clock_ns();
    }
    start = raw_ns();
    store_->end_put(id);
    took = raw_ns() - start;
    ends.add(took);
    all += took - clock_ns();
    if (plan.refused_count > 0) {
      round.refused_ns += all;
      round.refused += plan.refused_count;
    } else if (store_->stats().evicted_blocks > evicted) {
      round.put_ns += all;
      round.stored += stored;
    }
  }

  template <class Each>
  void learn(Each& store) {
    if constexpr (requires { store.learn(); }) {
      for (bool is_more = true; is_more;) {
        const double start = raw_ns();
        is_more = store.learn();
        const double took = raw_ns() - start;
        slices.add(took);
        slices_ns += took - clock_ns();
      }
    }
  }

  std::unique_ptr<Store> store_;
  SpaceId space_{};
  SampledNames sampled_;
  const bool looks_before_ = number("KV_BENCH_LOOK", 1) != 0;
  TimePoint now_{std::chrono::seconds(1)};
};

/// Arguments: policy, whether it has a curve, and how many changes it keeps for routers (store/tables/event_log.h).
void BM_BesideLru(benchmark::State& state) {
  const std::size_t blocks = number("KV_BENCH_BLOCKS", 320'000), rounds = number("KV_BENCH_ROUNDS", 20);
  for (auto _ : state) {
    Cache lru(PolicyKind::kLru, false, blocks), other(static_cast<PolicyKind>(state.range(0)), state.range(1) != 0,
                                                      blocks, static_cast<std::size_t>(state.range(2)));
    Load load;
    while (lru.stats().stored_blocks < 6 * blocks) {
      const auto& hashes = load.next();
      lru.request(hashes);
      other.request(hashes);
    }
    std::array<Cache*, 2> caches = {&lru, &other};
    for (Cache* each : caches) {
      each->matches = each->offers = each->ends = each->slices = {};
      each->commit_count = 0;
      each->hits = each->asked = 0;
      each->slices_ns = 0;
    }
    std::vector<double> match_ratios, alike_ratios, whole_ratios, looks, lru_matches, matches, lru_puts, puts, more,
        refused;
    for (std::size_t i = 0; i < rounds; ++i) {
      for (Cache* each : caches) each->round = {};
      double alike = 0, alike_look = 0,
             alike_lru = 0;  // of requests of which both find as much: what is found takes time
      for (std::size_t k = 0; k < kRequestsPerRound; ++k) {
        const auto& hashes = load.next();
        caches[k % 2]->request(hashes);
        caches[1 - k % 2]->request(hashes);
        if (lru.last_hits != other.last_hits) continue;
        alike += other.last_match_ns;
        alike_look += other.last_look_ns;
        alike_lru += lru.last_match_ns;
      }
      const auto per = [](double ns, std::size_t count) {
        return ns / static_cast<double>(std::max<std::size_t>(1, count));
      };
      lru_matches.push_back(per(lru.round.match_ns, lru.round.asked));
      matches.push_back(per(other.round.match_ns, other.round.asked));
      match_ratios.push_back(matches.back() / lru_matches.back());
      alike_ratios.push_back(alike / alike_lru);
      whole_ratios.push_back((alike + alike_look) / alike_lru);
      looks.push_back(per(other.round.look_ns, other.round.asked));
      lru_puts.push_back(per(lru.round.put_ns, lru.round.stored));
      puts.push_back(per(other.round.put_ns, other.round.stored));
      more.push_back(puts.back() - lru_puts.back());
      refused.push_back(per(other.round.refused_ns, other.round.refused));
    }
    auto& out = state.counters;
    out["a1_match_ns_lru"] = median(lru_matches);
    out["a2_match_ns"] = median(matches);
    out["a3_match_ratio"] = median(match_ratios);
    out["a4_match_ratio_alike"] = median(alike_ratios);
    out["a5_look_ns"] = median(looks);
    out["a6_match_ratio_alike_with_look"] = median(whole_ratios);
    out["b1_put_ns_lru"] = median(lru_puts);
    out["b2_put_ns"] = median(puts);
    out["b3_put_ns_more"] = median(more);
    out["b4_refused_ns"] = median(refused);
    const auto tell = [&](const char* name, Times& of) {
      out[std::string(name) + "_p50"] = of.at(.5);
      out[std::string(name) + "_p99"] = of.at(.99);
      out[std::string(name) + "_max"] = of.at(1);
    };
    tell("c1_match_lru", lru.matches);
    tell("c2_match", other.matches);
    tell("d1_offer_lru", lru.offers);
    tell("d2_offer", other.offers);
    tell("e1_end_lru", lru.ends);
    tell("e2_end", other.ends);
    tell("f_slice", other.slices);
    Times lru_holds = lru.holds(), holds = other.holds();
    tell("h1_hold_lru", lru_holds);
    tell("h2_hold", holds);
    out["f_slices_ns_a_block"] = other.slices_ns / static_cast<double>(other.asked);
    out["g1_hits_lru"] = static_cast<double>(lru.hits) / static_cast<double>(lru.asked);
    out["g2_hits"] = static_cast<double>(other.hits) / static_cast<double>(other.asked);
  }
}
BENCHMARK(BM_BesideLru)
    ->ArgNames({"policy", "curve", "events"})
    ->Args({static_cast<int>(PolicyKind::kLru), 0, 0})
    ->Args({static_cast<int>(PolicyKind::kLru), 0, 1'000'000})
    ->Args({static_cast<int>(PolicyKind::kYield), 0, 0})
    ->Args({static_cast<int>(PolicyKind::kYield), 1, 0})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kv
