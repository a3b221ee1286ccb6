// tests/store/context_fixture.h: a Store that keeps contexts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store_fixture.h"

namespace kv {

/// What a Store keeps for contexts, in blocks of one size.
class ContextTest : public StoreFixture {
 protected:
  static constexpr std::size_t kBytes = 4096;

  ContextTest() { config.retained_fraction_max = 0.5; }
  void create_blocks(std::size_t count) { create(count * kBytes, kBytes); }
  /// The tenant "blue" may retain so many of them.
  void create_with_tenants(std::size_t count, std::size_t retained_blocks_max) {
    config.has_tenants = true;
    config.tenant_charge_min = 1;
    create_blocks(count);
    TenantLimits limits{.name = "blue"};
    limits.retained_bytes_max = retained_blocks_max * kBytes;
    store->set_tenants({limits});
  }
  SpaceId open_of(const std::string& tenant) {
    const auto record = NamespaceRecord::from_fields(
        {{"model", "m"}, {"tenant", tenant}, {"block_size", "4"}, {"block_bytes", std::to_string(kBytes)}});
    return store->open(record.value()).value();
  }
  ContextDesk::Order order(const std::string& name, SpaceId space, std::vector<BlockHash> hashes, Duration ttl = 1h,
                           bool is_sliding = false, const std::string& owner = "") {
    return {.owner = owner, .name = name, .space = space, .hashes = std::move(hashes), .life = {ttl, is_sliding}};
  }
  ContextDesk::View make(const std::string& name, SpaceId space, std::vector<BlockHash> hashes, Duration ttl = 1h,
                         bool is_sliding = false, const std::string& owner = "") {
    return store->create_context(order(name, space, std::move(hashes), ttl, is_sliding, owner), now).value();
  }
  ContextDesk::View view(const std::string& name, const std::string& owner = "") {
    return store->find_context(owner, name, now).value();
  }
  bool is_there(const std::string& name) { return store->find_context("", name, now).has_value(); }
  /// All that can be evicted is.
  void press(SpaceId space) {
    static std::uint64_t next = 1'000'000;
    const std::size_t slots = config.arena.capacity_bytes / kBytes;
    for (std::size_t i = 0; i < 3 * slots; ++i) put(space, chain(++next, 1));
  }
  void tend() {
    for (int i = 0; i < 50; ++i) store->tend_contexts(now);
  }
  /// Three chains: the second and third share two and four blocks with the first.
  static std::array<std::vector<BlockHash>, 3> forks() {
    std::array<std::vector<BlockHash>, 3> chains = {chain(1, 8), chain(2, 8), chain(3, 8)};
    std::copy_n(chains[0].begin(), 2, chains[1].begin());
    std::copy_n(chains[0].begin(), 4, chains[2].begin());
    return chains;
  }
  /// What goes with `at`: it and all below it, on whichever of the chains.
  static std::set<BlockHash> from(const BlockHash& at, std::span<const std::vector<BlockHash>> chains) {
    std::set<BlockHash> all;
    for (const auto& each : chains) all.insert(std::ranges::find(each, at), each.end());
    return all;
  }
  static std::vector<BlockHash> first(std::vector<BlockHash> of, std::size_t count) {
    of.resize(count);
    return of;
  }
};

}  // namespace kv
