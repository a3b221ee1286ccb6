// tests/store/store_fixture.h: a Store with short names for what most tests do to it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "store/store.h"

namespace kv {

inline std::uint64_t mix(std::uint64_t x) {  // SplitMix64's finaliser
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

inline BlockHash hash_of(std::uint64_t number) {
  BlockHash hash;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t word = mix(number * 4 + i);
    std::memcpy(hash.bytes.data() + 8 * i, &word, 8);
  }
  return hash;
}

/// A chain of `count` blocks that shares nothing with chains of other names.
inline std::vector<BlockHash> chain(std::uint64_t name, std::size_t count) {
  std::vector<BlockHash> hashes;
  for (std::size_t i = 0; i < count; ++i) hashes.push_back(hash_of(mix(name) + i));
  return hashes;
}

/// Pseudo-random bytes of a name.
inline void fill_bytes(std::span<std::byte> bytes, std::uint64_t name) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = mix(name + at);
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
  }
}
inline bool has_bytes(std::span<const std::byte> bytes, std::uint64_t name) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = mix(name + at);
    if (std::memcmp(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at)) != 0) return false;
  }
  return true;
}

inline std::uint64_t test_seed() {
  const char* env = std::getenv("KV_SEED");
  const std::uint64_t seed = env != nullptr ? std::strtoull(env, nullptr, 10) : std::random_device{}();
  std::printf("KV_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

inline NamespaceRecord make_record(const std::string& model, std::size_t block_bytes, std::size_t block_size = 4) {
  const auto record = NamespaceRecord::from_fields(
      {{"model", model}, {"block_bytes", std::to_string(block_bytes)}, {"block_size", std::to_string(block_size)}});
  EXPECT_TRUE(record) << record.error();
  return *record;
}

constexpr SessionId kAlice{1}, kBob{2};

class StoreFixture : public testing::Test {
 protected:
  StoreFixture() { config.leased_fraction_max = 1; }  // tests of the bound set their own

  void create(std::size_t capacity_bytes, std::size_t granule_bytes = 2 * 1024 * 1024) {
    config.arena.capacity_bytes = capacity_bytes;
    config.arena.granule_bytes = granule_bytes;
    config.arena.touch = false;
    store = Store::create(config).value();
  }
  SpaceId open(std::size_t block_bytes, const std::string& model = "m") {
    return store->open(make_record(model, block_bytes)).value();
  }

  std::vector<std::uint64_t> fill(const IncomingBlock& block) {
    fill_bytes(block.bytes, block.seed);
    std::vector<std::uint64_t> sums(stripe_count(block.bytes.size()));
    block_checksums(block.seed, block.bytes, sums);
    return sums;
  }

  bool may_lose = true;  ///< Of puts.
  /// A put was refused: whether it asks again.
  virtual bool make_room() { return false; }

  struct Stored {
    std::size_t already = 0, stored = 0, refused = 0;
  };
  /// Offers the chain and commits all that is wanted.
  Stored put(SpaceId space, std::span<const BlockHash> hashes, std::span<const std::uint32_t> token_ids = {}) {
    now += Duration(1000);
    const PutDesk::OfferOptions options{.session = kAlice, .token_ids = token_ids, .may_lose = may_lose};
    auto plan = store->offer(space, hashes, options, now).value();
    Stored stored{.already = plan.stored_count};
    const PutId id = plan.put;
    for (;;) {
      for (const auto& block : plan.incoming) {
        EXPECT_EQ(store->commit(id, fill(block), now), CommitStatus::kStored);
        ++stored.stored;
      }
      stored.refused = plan.refused_count;
      if (!plan.again && (plan.refused_count == 0 || !make_room())) break;
      plan = store->offer_more(id, now, may_lose).value();
    }
    if (id != PutId{}) store->end_put(id);
    return stored;
  }

  std::size_t match(SpaceId space, std::span<const BlockHash> hashes) {
    now += Duration(1000);
    return store->match(space, hashes, {}, now)->memory_block_count;
  }
  LeaseId lease(SpaceId space, std::span<const BlockHash> hashes, SessionId session = kAlice) {
    now += Duration(1000);
    return store->match(space, hashes, {.session = session, .lease = true}, now)->lease;
  }

  void TearDown() override {
    if (store) {
      EXPECT_EQ(store->check(), "");
    }
  }

  StoreConfig config;
  std::unique_ptr<Store> store;
  TimePoint now{1s};
};

}  // namespace kv
