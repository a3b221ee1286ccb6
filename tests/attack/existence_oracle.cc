// Does the time of an answer tell a tenant what another one has stored? A classifier on latencies of match and get: for
// a name under which another tenant holds a block, against one under which nobody does. It knows nothing if its AUC
// (the chance that it tells a pair the right way round) is a half.
//
//     existence_oracle ENDPOINT VICTIM-TOKEN ATTACKER-TOKEN PAIRS one|own     exit status 0: all within 0.48..0.52
//
// one: both open the same record, and the node tells them apart by its secret; own: each has a record with its tenant.
//
// The positive control is the same with blocks of the attacker's own: it must tell these, or the clock is too coarse.
// tests/attack/existence_oracle.sh starts a node with two tenants and runs this.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "tests/client/typed_calls.h"

namespace kv {
namespace {

constexpr std::size_t kBlockBytes = 64 << 10, kHeld = 512;

using Blocks = std::vector<BlockHash>;

/// An empty `tenant`: the field is left out.
NamespaceRecord record_of(const std::string& tenant) {
  return NamespaceRecord::from_fields({{"model", "oracle"},
                                       {"tenant", tenant},
                                       {"block_size", "16"},
                                       {"block_bytes", std::to_string(kBlockBytes)}})
      .value();
}

struct Tenant {
  Tenant(const std::string& name, const std::string& endpoint, const std::string& token)
      : client([&] {
          ClientConfig config;
          config.nodes = {{.endpoint = endpoint}};
          config.connections_per_node = 1;
          config.token = Secret(token);
          return config;
        }()) {
    space = client.open(record_of(name), std::chrono::seconds(10)).value();
    client.wait_open(space, std::chrono::seconds(10)).value();
  }
  void put(const BlockHash& hash) {
    const std::span<const std::byte> block(bytes);
    const auto put = client.put(space, {&hash, 1}, {&block, 1}, {.deadline = std::chrono::seconds(10)});
    KV_ASSERT(put && put->stored + put->already_stored == 1);
  }
  double match_seconds(const BlockHash& hash) {
    const auto began = std::chrono::steady_clock::now();
    const auto match = client.match(space, {&hash, 1}, {.deadline = std::chrono::seconds(10)});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    KV_ASSERT(match && !match->why);
    found += match->block_count;
    return took.count();
  }
  double get_seconds(const BlockHash& hash) {
    const std::span<std::byte> block(bytes);
    const auto began = std::chrono::steady_clock::now();
    const auto got = client.get(space, {&hash, 1}, {&block, 1}, {.deadline = std::chrono::seconds(10)});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    KV_ASSERT(got && !got->why);
    found += got->block_count;
    return took.count();
  }

  std::vector<std::byte> bytes = std::vector<std::byte>(kBlockBytes);
  TypedClient client;
  Space space{};
  std::size_t found = 0;
};

/// By the rank sum of Mann and Whitney; ties count a half.
double auc_of(const std::vector<double>& held, const std::vector<double>& missing) {
  std::vector<std::pair<double, bool>> all;
  for (const double each : held) all.emplace_back(each, true);
  for (const double each : missing) all.emplace_back(each, false);
  std::ranges::sort(all);
  double ranks = 0;
  for (std::size_t i = 0, end; i < all.size(); i = end) {
    for (end = i; end < all.size() && all[end].first == all[i].first;) ++end;
    const double rank = static_cast<double>(i + 1 + end) / 2;
    for (std::size_t tie = i; tie < end; ++tie) ranks += all[tie].second ? rank : 0;
  }
  const auto n = static_cast<double>(held.size()), m = static_cast<double>(missing.size());
  return (ranks - n * (n + 1) / 2) / (n * m);
}

class Oracle {
 public:
  Oracle(Tenant& attacker, std::size_t pair_count) : attacker_(attacker), pair_count_(pair_count) {}

  BlockHash fresh() {
    BlockHash hash;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint64_t word = random_();
      std::memcpy(hash.bytes.data() + 8 * i, &word, 8);
    }
    return hash;
  }
  /// Of both lists each is asked for in turn, equally often: what is asked for again is answered a little faster, held
  /// or not, and that is the attacker's own doing.
  template <class Ask>
  double auc(const char* what, const Blocks& held, const Blocks& missing, Ask ask) {
    std::vector<double> of_held, of_missing;
    for (std::size_t i = 0; i < pair_count_; ++i) {
      const BlockHash& there = held[i % held.size()];
      const BlockHash& nowhere = missing[i % missing.size()];
      const bool is_first = random_() % 2 == 0;  // what comes first finds other caches
      if (is_first) of_held.push_back(ask(attacker_, there));
      of_missing.push_back(ask(attacker_, nowhere));
      if (!is_first) of_held.push_back(ask(attacker_, there));
    }
    const double auc = auc_of(of_held, of_missing);
    std::ranges::nth_element(of_held, of_held.begin() + static_cast<std::ptrdiff_t>(of_held.size() / 2));
    std::ranges::nth_element(of_missing, of_missing.begin() + static_cast<std::ptrdiff_t>(of_missing.size() / 2));
    const auto n = static_cast<double>(pair_count_);
    std::printf("%-26s AUC %.4f (+- %.4f by chance)   median held %.2f us, not held %.2f us\n", what, auc,
                1.96 * std::sqrt((2 * n + 1) / (12 * n * n)), of_held[of_held.size() / 2] * 1e6,
                of_missing[of_missing.size() / 2] * 1e6);
    return auc;
  }

 private:
  Tenant& attacker_;
  std::size_t pair_count_;
  std::mt19937_64 random_{std::random_device{}()};
};

int run(const char* endpoint, const char* victim_token, const char* attacker_token, std::size_t pair_count,
        bool has_one_record) {
  Tenant victim(has_one_record ? "" : "victim", endpoint, victim_token),
      attacker(has_one_record ? "" : "attacker", endpoint, attacker_token);
  Oracle oracle(attacker, pair_count);
  Blocks victims, own, missing;
  for (std::size_t i = 0; i < kHeld; ++i) {
    victims.push_back(oracle.fresh());
    victim.put(victims.back());
    missing.push_back(oracle.fresh());
    own.push_back(oracle.fresh());
    attacker.put(own.back());
  }
  const auto match = [](Tenant& who, const BlockHash& hash) { return who.match_seconds(hash); };
  const auto get = [](Tenant& who, const BlockHash& hash) { return who.get_seconds(hash); };
  oracle.auc("(warm up)", victims, missing, match);
  const double of_match = oracle.auc("match, another's block", victims, missing, match);
  const double of_get = oracle.auc("get, another's block", victims, missing, get);
  if (attacker.found != 0) {
    std::printf("FAILED: the attacker was given another tenant's block\n");
    return 1;
  }
  const double control = oracle.auc("get, own block (control)", own, missing, get);
  const auto is_blind = [](double auc) { return auc >= 0.48 && auc <= 0.52; };
  const bool is_good = is_blind(of_match) && is_blind(of_get) && control > 0.8;
  std::printf("%s\n",
              is_good ? "ok: nothing is told" : "FAILED: within 0.48..0.52, and the control above 0.8, was due");
  return is_good ? 0 : 1;
}

}  // namespace
}  // namespace kv

int main(int argc, char** argv) {
  const std::string record = argc == 6 ? argv[5] : "";
  if (record != "one" && record != "own") {
    std::fprintf(stderr, "usage: existence_oracle ENDPOINT VICTIM-TOKEN ATTACKER-TOKEN PAIRS one|own\n");
    return 2;
  }
  return kv::run(argv[1], argv[2], argv[3], std::strtoul(argv[4], nullptr, 10), record == "one");
}
