#include "store/store.h"

#include <gtest/gtest.h>

#include "store_fixture.h"

namespace kv {
namespace {

constexpr std::size_t kStoreBlockBytes = 4096;
using Status = CommitStatus;

class StoreTest : public StoreFixture {
 protected:
  void SetUp() override {
    config.lease_duration = 500ms;
    config.lease_count_max = 6;
    config.lease_count_per_session_max = 3;
    config.namespace_count_max = 3;
    config.chain_blocks_max = 100;
    create(8 * kStoreBlockBytes, kStoreBlockBytes);
    space = open(kStoreBlockBytes);
  }
  SpaceId space{};
};

TEST_F(StoreTest, OpensANamespaceOnce) {
  EXPECT_EQ(store->open(make_record("m", kStoreBlockBytes)).value(), space);
  const SpaceId other = store->open(make_record("other", kStoreBlockBytes)).value();
  EXPECT_NE(other, space);
  EXPECT_EQ(store->find_namespace(other)->field("model"), "other");
  EXPECT_EQ(store->find_namespace(SpaceId{2}), nullptr);
}

TEST_F(StoreTest, RefusesNamespacesOverTheLimitAndBlocksLargerThanTheArena) {
  EXPECT_EQ(store->open(make_record("big", 8 * kStoreBlockBytes + 1)).error(), Errc::kTooLarge);
  EXPECT_TRUE(store->open(make_record("2", 8 * kStoreBlockBytes)));
  put(space, chain(1, 1));
  for (const char* model : {"3", "4"}) put(store->open(make_record(model, kStoreBlockBytes)).value(), chain(1, 1));
  EXPECT_EQ(store->open(make_record("5", kStoreBlockBytes)).error(), Errc::kBusy);
  EXPECT_EQ(store->open(make_record("m", kStoreBlockBytes)).value(), space);  // known: not refused
}

TEST_F(StoreTest, RefusesABadConfiguration) {
  config.lease_duration = Duration::zero();
  EXPECT_EQ(Store::create(config).error(), Errc::kBadRequest);
  config.lease_duration = 1s;
  config.arena.capacity_bytes = 0;
  EXPECT_EQ(Store::create(config).error(), Errc::kBadRequest);
}

TEST_F(StoreTest, APartialMatchNeedsTheSameExtra) {
  const auto text = [](std::string_view of) { return extra_digest(std::as_bytes(std::span(of))); };
  const ExtraDigest none{}, cat = text("cat"), dog = text("dog");
  const auto hashes = chain(1, 2);
  const std::vector<std::uint32_t> ids = {1, 2, 3, 4, 9, 9, 9, 5};  // placeholders in the second block
  const auto store_as = [&](SpaceId to, std::vector<ExtraDigest> extras) {
    auto plan = store->offer(to, hashes, {.session = kAlice, .token_ids = ids, .extras = extras}, now).value();
    for (const auto& block : plan.incoming) EXPECT_EQ(store->commit(plan.put, fill(block), now), Status::kStored);
    store->end_put(plan.put);
  };
  const auto partial = [&](SpaceId of, std::vector<ExtraDigest> extras) {
    return store->match(of, std::span(hashes).first(1), {.token_ids = ids, .extras = extras}, now)
        .value()
        .partial_token_count;
  };
  store_as(space, {none, cat});
  EXPECT_EQ(partial(space, {none, cat}), 4u);
  EXPECT_EQ(partial(space, {none, dog}), 0u) << "another image";
  EXPECT_EQ(partial(space, {none, none}), 0u);
  EXPECT_EQ(partial(space, {}), 0u) << "none";
  EXPECT_EQ(partial(space, {none}), 0u) << "not told of the block that follows";
  EXPECT_EQ(store->match(space, hashes, {.token_ids = ids, .extras = std::span(&cat, 1)}, now).error(),
            Errc::kBadRequest);
  EXPECT_EQ(store->offer(space, chain(2, 2), {.token_ids = ids, .extras = std::span(&cat, 1)}, now).error(),
            Errc::kBadRequest);
}

TEST_F(StoreTest, WhereHashesAreAnEnginesOwnAPartialMatchNeedsExtras) {
  const SpaceId own = store
                          ->open(*NamespaceRecord::from_fields({{"model", "m"},
                                                                {"block_bytes", std::to_string(kStoreBlockBytes)},
                                                                {"block_size", "4"},
                                                                {"hash", "vllm"}}))
                          .value();
  const std::vector<std::uint32_t> ids = {1, 2, 3, 4};
  const std::vector<ExtraDigest> none(1);
  const auto store_as = [&](std::uint64_t name, std::span<const ExtraDigest> extras) {
    auto plan = store->offer(own, chain(name, 1), {.session = kAlice, .token_ids = ids, .extras = extras}, now).value();
    for (const auto& block : plan.incoming) EXPECT_EQ(store->commit(plan.put, fill(block), now), Status::kStored);
    store->end_put(plan.put);
  };
  const auto partial = [&](std::span<const ExtraDigest> extras) {
    return store->match(own, {}, {.token_ids = ids, .extras = extras}, now).value().partial_token_count;
  };
  store_as(1, {});
  EXPECT_EQ(partial(none), 0u) << "nobody knows what the stored block's hash binds";
  store_as(2, none);
  EXPECT_EQ(partial(none), 4u);
  EXPECT_EQ(partial({}), 0u) << "nobody knows what the next block's would";
}

TEST_F(StoreTest, EveryCallRefusesUnknownNamespacesAndLongChains) {
  const auto one = chain(1, 1);
  const auto long_chain = chain(1, 101);
  const SpaceId unknown{7};
  EXPECT_EQ(store->match(unknown, one, {}, now).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->pin_prefix(unknown, one, {.session = kAlice}, now).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->offer(unknown, one, {}, now).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->touch(unknown, one, now).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->retain(unknown, one).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->unretain(unknown, one).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->drop(unknown, one).error(), Errc::kNoNamespace);
  EXPECT_EQ(store->match(space, long_chain, {}, now).error(), Errc::kTooLarge);
  EXPECT_EQ(store->pin_prefix(space, long_chain, {.session = kAlice}, now).error(), Errc::kTooLarge);
  EXPECT_EQ(store->offer(space, long_chain, {}, now).error(), Errc::kTooLarge);
  EXPECT_EQ(store->touch(space, long_chain, now).error(), Errc::kTooLarge);
  EXPECT_EQ(store->retain(space, long_chain).error(), Errc::kTooLarge);
  EXPECT_EQ(store->drop(space, long_chain).error(), Errc::kTooLarge);
  EXPECT_TRUE(store->match(space, chain(1, 100), {}, now));
}

TEST_F(StoreTest, MatchesTheLongestPrefixAndCounts) {
  put(space, chain(1, 5));
  EXPECT_EQ(match(space, chain(1, 7)), 5u);
  EXPECT_EQ(match(space, chain(1, 3)), 3u);
  EXPECT_EQ(match(space, chain(2, 3)), 0u);
  EXPECT_EQ(match(space, {}), 0u);
  const StoreStats stats = store->stats();
  EXPECT_EQ(stats.match_hit_blocks, 8u);
  EXPECT_EQ(stats.match_miss_blocks, 5u);
  EXPECT_EQ(stats.stored_blocks, 5u);
  EXPECT_EQ(stats.block_count, 5u);
  EXPECT_EQ(stats.allocated_bytes, 5 * kStoreBlockBytes);
  const auto namespaces = store->list_spaces(nullptr);
  ASSERT_EQ(namespaces.size(), 1u);
  EXPECT_EQ(namespaces[0].block_count, 5u);
  EXPECT_EQ(namespaces[0].total_bytes, 5 * kStoreBlockBytes);
}

TEST_F(StoreTest, EqualHashesInTwoNamespacesAreTwoBlocks) {
  const SpaceId other = open(kStoreBlockBytes, "other");
  put(space, chain(1, 2));
  EXPECT_EQ(match(other, chain(1, 2)), 0u);
  put(other, chain(1, 2));
  EXPECT_EQ(store->stats().block_count, 4u);
  EXPECT_EQ(store->drop(other, {}).value(), 2u);
  EXPECT_EQ(match(space, chain(1, 2)), 2u);
}

TEST_F(StoreTest, FindsAPartialBlockByItsTokenIds) {
  const auto hashes = chain(1, 2);
  put(space, hashes, std::vector<std::uint32_t>{1, 2, 3, 4, 5, 6, 7, 8});
  const auto partial = [&](std::span<const BlockHash> of, const std::vector<std::uint32_t>& ids) {
    return store->match(space, of, {.token_ids = ids}, now).value();
  };
  const std::vector<BlockHash> other{hashes[0], hash_of(77)};
  auto found = partial(other, {1, 2, 3, 4, 5, 6, 9, 9});
  EXPECT_EQ(found.memory_block_count, 1u);
  EXPECT_EQ(found.partial_token_count, 2u);
  EXPECT_EQ(found.partial_block, hashes[1]);
  found = partial({}, {1, 2, 3, 9});
  EXPECT_EQ(found.partial_token_count, 3u);
  EXPECT_EQ(found.partial_block, hashes[0]);
  EXPECT_EQ(partial(std::span(hashes).first(1), {1, 2, 3, 4, 5}).partial_token_count, 1u);
  EXPECT_EQ(partial(std::span(hashes).first(1), {1, 2, 3, 4}).partial_token_count, 0u);
  EXPECT_EQ(partial(std::span(hashes).first(1), {1, 2}).partial_token_count, 0u);
  EXPECT_EQ(partial(std::span(hashes).first(1), {1, 2, 3, 4, 9}).partial_token_count, 0u);
  EXPECT_EQ(partial(hashes, {1, 2, 3, 4, 5, 6, 7, 8, 9}).partial_token_count, 0u);
}

TEST_F(StoreTest, PinnedPrefixHasTheCommittedBytesAndChecksums) {  // invariant 1
  put(space, chain(1, 3));
  const auto pinned = store->pin_prefix(space, chain(1, 5), {.session = kAlice}, now).value();
  ASSERT_EQ(pinned.blocks.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::uint64_t seed = checksum_seed(store->find_namespace(space)->id(), chain(1, 3)[i]);
    EXPECT_TRUE(has_bytes(pinned.blocks[i].bytes, seed));
    EXPECT_TRUE(verify_block(seed, pinned.blocks[i].bytes, pinned.blocks[i].checksums));
  }
  EXPECT_EQ(store->stats().pinned_count, 3u);
  EXPECT_EQ(store->stats().get_hit_blocks, 3u);
  EXPECT_EQ(store->stats().get_miss_blocks, 2u);
  store->unpin(pinned);
  EXPECT_EQ(store->stats().pinned_count, 0u);
}

TEST_F(StoreTest, PinningNothingIsAMissAndNoError) {
  const auto pinned = store->pin_prefix(space, chain(1, 5), {.session = kAlice}, now).value();
  EXPECT_TRUE(pinned.blocks.empty());
  store->unpin(pinned);
  EXPECT_TRUE(store->pin_prefix(space, {}, {.session = kAlice}, now)->blocks.empty());
}

TEST_F(StoreTest, PutNeverFailsWhileSomethingIsUnpinned) {  // PutSlots, invariant 3
  for (std::uint64_t name = 0; name < 100; ++name) {
    const Stored stored = put(space, chain(name, 1 + name % 8));
    EXPECT_EQ(stored.stored, 1 + name % 8);
    EXPECT_EQ(stored.refused, 0u);
    EXPECT_EQ(store->check(), "");
  }
  EXPECT_EQ(store->stats().block_count, 8u);
  EXPECT_EQ(store->stats().allocated_bytes, store->stats().capacity_bytes);
}

TEST_F(StoreTest, PutLongerThanTheArenaStoresItsFirstBlocks) {
  put(space, chain(9, 8));
  const Stored stored = put(space, chain(1, 11));
  EXPECT_EQ(stored.stored, 8u);
  EXPECT_EQ(stored.refused, 3u);
  EXPECT_EQ(match(space, chain(1, 11)), 8u);
  EXPECT_EQ(store->stats().refused_blocks, 3u);
}

TEST_F(StoreTest, PutDoesNotEvictItsOwnPrefix) {
  put(space, chain(1, 4));
  put(space, chain(2, 4));  // chain 1 is now the oldest
  const Stored stored = put(space, chain(1, 8));
  EXPECT_EQ(stored.already, 4u);
  EXPECT_EQ(stored.stored, 4u);
  EXPECT_EQ(match(space, chain(1, 8)), 8u);
}

TEST_F(StoreTest, EvictsTheLeastRecentlyUsedLeafEndsFirst) {  // invariant 3
  put(space, chain(1, 3));
  put(space, chain(2, 3));
  put(space, chain(3, 2));
  EXPECT_EQ(match(space, chain(1, 2)), 2u);  // keeps blocks 0 and 1 of it, not block 2
  put(space, chain(4, 1));                   // evicts block 2 of chain 1
  EXPECT_EQ(store->stats().evicted_blocks, 1u);
  put(space, chain(5, 2));  // and then of chain 2, last first
  EXPECT_EQ(store->stats().evicted_blocks, 3u);
  EXPECT_EQ(match(space, chain(1, 3)), 2u);
  EXPECT_EQ(match(space, chain(2, 3)), 1u);
  EXPECT_EQ(match(space, chain(3, 2)), 2u);
}

TEST_F(StoreTest, TouchKeepsAPrefixRecent) {
  put(space, chain(1, 4));
  put(space, chain(2, 4));
  now += 1ms;
  EXPECT_EQ(store->touch(space, chain(1, 9), now).value(), 4u);
  put(space, chain(3, 4));
  EXPECT_EQ(match(space, chain(1, 4)), 4u);
  EXPECT_EQ(match(space, chain(2, 4)), 0u);
}

TEST_F(StoreTest, EvictionAgesAreCountedByPowersOfTwo) {
  put(space, chain(1, 8));
  now += 1ms;
  put(space, chain(2, 1));  // about 1 ms: [0]
  now += 5ms;
  put(space, chain(3, 1));  // 6 ms and a bit: [2]
  const auto ages = store->stats().eviction_age_log2_ms;
  EXPECT_EQ(ages[0], 1u);
  EXPECT_EQ(ages[2], 1u);
  EXPECT_EQ(store->stats().evicted_bytes, 2 * kStoreBlockBytes);
}

// -- leases

TEST_F(StoreTest, LeaseKeepsItsWholePrefixUntilOneTickBeforeItsEnd) {
  put(space, chain(1, 8));
  const LeaseId held = lease(space, chain(1, 5));
  EXPECT_NE(held, LeaseId{});
  const TimePoint end = now + 500ms;
  EXPECT_EQ(put(space, chain(2, 8)).stored, 3u);
  now = end - Duration(1001);  // put adds 1000
  EXPECT_EQ(put(space, chain(3, 8)).stored, 3u);
  EXPECT_EQ(now, end - Duration(1));
  EXPECT_EQ(store->stats().lease_count, 1u);
  now = end - Duration(1000);
  EXPECT_EQ(put(space, chain(4, 8)).stored, 8u);  // at its end
  EXPECT_EQ(store->stats().leases_expired, 1u);
  EXPECT_EQ(store->release(kAlice, held).error(), Errc::kStaleLease);
}

TEST_F(StoreTest, ReleaseEndsALeaseOnceAndOnlyForItsSession) {
  put(space, chain(1, 2));
  const LeaseId held = lease(space, chain(1, 2));
  EXPECT_EQ(store->release(kBob, held).error(), Errc::kStaleLease);
  EXPECT_EQ(store->stats().pinned_count, 1u);
  EXPECT_TRUE(store->release(kAlice, held));
  EXPECT_EQ(store->stats().pinned_count, 0u);
  EXPECT_EQ(store->release(kAlice, held).error(), Errc::kStaleLease);
}

TEST_F(StoreTest, BlockStaysUntilItsLastLeaseEnds) {
  put(space, chain(1, 8));
  const LeaseId first = lease(space, chain(1, 8));
  const LeaseId second = lease(space, chain(1, 8), kBob);
  EXPECT_TRUE(store->release(kAlice, first));
  EXPECT_EQ(put(space, chain(2, 1)).refused, 1u);
  EXPECT_TRUE(store->release(kBob, second));
  EXPECT_EQ(put(space, chain(2, 1)).stored, 1u);
}

TEST_F(StoreTest, NoLeaseIsGrantedForNothingOrOverALimit) {
  EXPECT_EQ(lease(space, chain(1, 2)), LeaseId{});
  EXPECT_EQ(store->match(space, chain(1, 1), {.session = kAlice, .lease = true}, now)->lease_error, Errc{});
  put(space, chain(1, 2));
  for (int i = 0; i < 3; ++i) EXPECT_NE(lease(space, chain(1, 2)), LeaseId{});
  const auto over = store->match(space, chain(1, 2), {.session = kAlice, .lease = true}, now).value();
  EXPECT_EQ(over.memory_block_count, 2u);
  EXPECT_EQ(over.lease, LeaseId{});
  EXPECT_EQ(over.lease_error, Errc::kBusy);
  EXPECT_EQ(store->stats().leases_refused, 1u);
  EXPECT_NE(lease(space, chain(1, 2), kBob), LeaseId{});
}

TEST_F(StoreTest, PinPrefixEndsTheLeaseItIsGiven) {
  put(space, chain(1, 4));
  const LeaseId held = lease(space, chain(1, 4));
  const auto pinned = store->pin_prefix(space, chain(1, 4), {.session = kAlice, .lease = held}, now).value();
  EXPECT_EQ(store->stats().lease_count, 0u);
  EXPECT_EQ(pinned.blocks.size(), 4u);
  store->unpin(pinned);
  const auto stale = store->pin_prefix(space, chain(1, 4), {.session = kAlice, .lease = held}, now).value();  // ignored
  EXPECT_EQ(stale.blocks.size(), 4u);
  store->unpin(stale);
  const LeaseId others = lease(space, chain(1, 4), kBob);
  store->unpin(store->pin_prefix(space, chain(1, 4), {.session = kAlice, .lease = others}, now).value());
  EXPECT_EQ(store->stats().lease_count, 1u);  // not hers to end
}

TEST_F(StoreTest, EndOfASessionEndsItsLeasesAndPuts) {
  put(space, chain(1, 2));
  lease(space, chain(1, 2));
  const LeaseId kept = lease(space, chain(1, 2), kBob);
  ASSERT_TRUE(store->offer(space, chain(1, 5), {.session = kAlice}, now));
  const auto bobs = store->offer(space, chain(2, 2), {.session = kBob}, now).value();
  EXPECT_EQ(store->stats().incoming_count, 5u);
  store->end_session(kAlice);
  EXPECT_EQ(store->stats().incoming_count, 2u);
  EXPECT_EQ(store->stats().lease_count, 1u);
  EXPECT_EQ(store->check(), "");
  EXPECT_TRUE(store->release(kBob, kept));
  store->end_put(bobs.put);
}

// -- moves

TEST_F(StoreTest, PinnedSlotsAreNotReused) {  // invariant 2
  put(space, chain(1, 5));
  const auto pinned = store->pin_prefix(space, chain(1, 5), {.session = kAlice}, now).value();
  for (std::uint64_t name = 2; name < 20; ++name) EXPECT_EQ(put(space, chain(name, 8)).stored, 3u);
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_TRUE(has_bytes(pinned.blocks[i].bytes, checksum_seed(store->find_namespace(space)->id(), chain(1, 5)[i])));
  store->unpin(pinned);
  EXPECT_EQ(put(space, chain(20, 8)).stored, 8u);
}

TEST_F(StoreTest, DroppedBlocksVanishAtOnceAndTheirSlotsGoWithTheLastPin) {  // invariants 2 and 5
  put(space, chain(1, 6));
  const auto first = store->pin_prefix(space, chain(1, 4), {.session = kAlice}, now).value();
  const auto second = store->pin_prefix(space, chain(1, 4), {.session = kBob}, now).value();
  EXPECT_EQ(store->drop(space, chain(1, 3)).value(), 4u);
  EXPECT_EQ(match(space, chain(1, 6)), 2u);
  EXPECT_EQ(store->stats().block_count, 2u);
  EXPECT_EQ(store->stats().allocated_bytes, 4 * kStoreBlockBytes);
  EXPECT_EQ(store->check(), "");
  EXPECT_EQ(put(space, chain(1, 8)).stored, 4u);  // 0 and 1 are pinned, old 2 and 3 unlinked but pinned
  EXPECT_TRUE(has_bytes(first.blocks[3].bytes, checksum_seed(store->find_namespace(space)->id(), chain(1, 6)[3])));
  store->unpin(first);
  EXPECT_EQ(store->stats().allocated_bytes, 8 * kStoreBlockBytes);
  EXPECT_EQ(store->check(), "");
  store->unpin(second);
  EXPECT_EQ(store->stats().allocated_bytes, 6 * kStoreBlockBytes);
}

TEST_F(StoreTest, DropOfAChainThatIsNotAllHereDropsNothing) {
  put(space, chain(1, 3));
  EXPECT_EQ(store->drop(space, chain(1, 4)).value(), 0u);
  EXPECT_EQ(store->drop(space, chain(2, 1)).value(), 0u);
  EXPECT_EQ(match(space, chain(1, 3)), 3u);
}

TEST_F(StoreTest, DropOfANamespaceDropsAllItsTreesAndItsLeases) {
  put(space, chain(1, 3));
  put(space, chain(2, 2));
  const LeaseId held = lease(space, chain(1, 3));
  EXPECT_EQ(store->drop(space, {}).value(), 5u);
  EXPECT_EQ(store->stats().block_count, 0u);
  EXPECT_EQ(store->stats().allocated_bytes, kStoreBlockBytes);
  EXPECT_TRUE(store->release(kAlice, held));
  EXPECT_EQ(store->stats().allocated_bytes, 0u);
  EXPECT_EQ(store->stats().dropped_blocks, 5u);
  EXPECT_EQ(store->drop(space, {}).value(), 0u);
}

// -- puts

TEST_F(StoreTest, OfferRefusesWhatDoesNotFitTogether) {
  const auto offer = [&](std::span<const BlockHash> hashes, std::vector<std::uint32_t> positions,
                         std::vector<std::uint32_t> ids) {
    const auto plan = store->offer(space, hashes, {.positions = positions, .token_ids = ids}, now);
    if (plan && plan->put != PutId{}) store->end_put(plan->put);
    return plan ? Errc{} : static_cast<Errc>(plan.error().value());
  };
  const auto hashes = chain(1, 2);
  EXPECT_EQ(offer({}, {}, {}), Errc::kBadRequest);
  EXPECT_EQ(offer(hashes, {0}, {}), Errc::kBadRequest);
  EXPECT_EQ(offer(hashes, {0, 1, 2}, {}), Errc::kBadRequest);
  EXPECT_EQ(offer(hashes, {1, 1}, {}), Errc::kBadRequest);
  EXPECT_EQ(offer(hashes, {2, 1}, {}), Errc::kBadRequest);
  EXPECT_EQ(offer(hashes, {1, 7}, {}), Errc{});
  EXPECT_EQ(offer(hashes, {}, {1, 2, 3, 4}), Errc::kBadRequest);
  EXPECT_EQ(offer(hashes, {}, {1, 2, 3, 4, 5, 6, 7, 8, 9}), Errc::kBadRequest);
  EXPECT_EQ(offer(hashes, {}, {1, 2, 3, 4, 5, 6, 7, 8}), Errc{});
  EXPECT_EQ(store->stats().incoming_count, 0u);
}

TEST_F(StoreTest, OfferOfAStoredChainNeedsNoPut) {
  put(space, chain(1, 3));
  const auto plan = store->offer(space, chain(1, 3), {}, now).value();
  EXPECT_EQ(plan.put, PutId{});
  EXPECT_EQ(plan.stored_count, 3u);
  EXPECT_TRUE(plan.incoming.empty());
  EXPECT_EQ(store->stats().pinned_count, 0u);
  EXPECT_EQ(store->stats().already_stored_blocks, 3u);
}

TEST_F(StoreTest, IncomingBlocksAreNotFoundBeforeTheirCommit) {
  const auto plan = store->offer(space, chain(1, 3), {}, now).value();
  ASSERT_EQ(plan.incoming.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(match(space, chain(1, 3)), i);
    EXPECT_EQ(plan.incoming[i].index, i);
    EXPECT_EQ(store->commit(plan.put, fill(plan.incoming[i]), now), Status::kStored);
  }
  store->end_put(plan.put);
  EXPECT_EQ(match(space, chain(1, 3)), 3u);
}

TEST_F(StoreTest, EndOfAPutFreesWhatWasNotCommitted) {
  const auto plan = store->offer(space, chain(1, 3), {}, now).value();
  store->commit(plan.put, fill(plan.incoming[0]), now);
  store->end_put(plan.put);
  EXPECT_EQ(store->stats().allocated_bytes, kStoreBlockBytes);
  EXPECT_EQ(store->stats().pinned_count, 0u);
  EXPECT_EQ(match(space, chain(1, 3)), 1u);
}

TEST_F(StoreTest, CommittedBlocksStayUntilTheirPutEnds) {
  const auto plan = store->offer(space, chain(1, 4), {}, now).value();
  for (const auto& block : plan.incoming) store->commit(plan.put, fill(block), now);
  EXPECT_EQ(put(space, chain(2, 8)).stored, 4u);
  EXPECT_EQ(put(space, chain(3, 8)).stored, 4u);
  EXPECT_EQ(match(space, chain(1, 4)), 4u);
  store->end_put(plan.put);
  EXPECT_EQ(put(space, chain(4, 8)).stored, 8u);
}

TEST_F(StoreTest, TwoPutsOfOneChainStoreItOnce) {
  const auto first = store->offer(space, chain(1, 2), {}, now).value();
  const auto second = store->offer(space, chain(1, 3), {}, now).value();
  EXPECT_EQ(store->commit(first.put, fill(first.incoming[0]), now), Status::kStored);
  EXPECT_EQ(store->commit(second.put, fill(second.incoming[0]), now), Status::kAlreadyStored);
  EXPECT_EQ(store->commit(second.put, fill(second.incoming[1]), now), Status::kStored);
  EXPECT_EQ(store->commit(second.put, fill(second.incoming[2]), now), Status::kStored);
  EXPECT_EQ(store->commit(first.put, fill(first.incoming[1]), now), Status::kAlreadyStored);
  EXPECT_EQ(store->check(), "");
  store->end_put(first.put);
  store->end_put(second.put);
  EXPECT_EQ(store->stats().block_count, 3u);
  EXPECT_EQ(store->stats().allocated_bytes, 3 * kStoreBlockBytes);
}

TEST_F(StoreTest, OfTwoPutsWithDifferentBytesTheFirstIsKept) {
  const auto first = store->offer(space, chain(1, 1), {}, now).value();
  const auto second = store->offer(space, chain(1, 2), {}, now).value();
  EXPECT_EQ(store->commit(first.put, fill(first.incoming[0]), now), Status::kStored);
  EXPECT_EQ(store->commit(second.put, std::vector<std::uint64_t>{1}, now), Status::kConflict);
  EXPECT_EQ(store->commit(second.put, fill(second.incoming[1]), now), Status::kStored);
  store->end_put(first.put);
  store->end_put(second.put);
  EXPECT_EQ(store->stats().put_conflict_blocks, 1u);
  const auto pinned = store->pin_prefix(space, chain(1, 2), {.session = kAlice}, now).value();
  ASSERT_EQ(pinned.blocks.size(), 2u);
  const std::uint64_t seed = checksum_seed(store->find_namespace(space)->id(), chain(1, 1)[0]);
  EXPECT_TRUE(has_bytes(pinned.blocks[0].bytes, seed));
  EXPECT_TRUE(verify_block(seed, pinned.blocks[0].bytes, pinned.blocks[0].checksums));
  store->unpin(pinned);
}

TEST_F(StoreTest, CommitBelowADroppedBlockIsRefused) {
  put(space, chain(1, 2));
  const auto plan = store->offer(space, chain(1, 5), {}, now).value();
  EXPECT_EQ(store->commit(plan.put, fill(plan.incoming[0]), now), Status::kStored);
  EXPECT_EQ(store->drop(space, chain(1, 1)).value(), 3u);
  EXPECT_EQ(store->commit(plan.put, fill(plan.incoming[1]), now), Status::kRefused);
  EXPECT_EQ(store->commit(plan.put, fill(plan.incoming[2]), now), Status::kRefused);
  EXPECT_EQ(store->check(), "");
  EXPECT_EQ(store->stats().refused_blocks, 2u);
  EXPECT_EQ(store->stats().allocated_bytes, kStoreBlockBytes);  // the put's pin
  store->end_put(plan.put);
  EXPECT_EQ(store->stats().allocated_bytes, 0u);
}

TEST_F(StoreTest, CommitAtTheRootGoesOnAfterTheNamespaceWasDropped) {
  const auto plan = store->offer(space, chain(1, 2), {}, now).value();
  EXPECT_EQ(store->drop(space, {}).value(), 0u);
  EXPECT_EQ(store->commit(plan.put, fill(plan.incoming[0]), now), Status::kStored);
  store->end_put(plan.put);
}

TEST_F(StoreTest, RefusedBlocksAreTakenLaterWhenPinsHaveEnded) {
  put(space, chain(1, 6));
  const LeaseId held = lease(space, chain(1, 6));
  auto plan = store->offer(space, chain(2, 5), {}, now).value();
  EXPECT_EQ(plan.incoming.size(), 2u);
  EXPECT_EQ(plan.refused_count, 3u);
  EXPECT_FALSE(plan.again);
  EXPECT_EQ(store->offer_more(plan.put, now)->incoming.size(), 0u);
  EXPECT_TRUE(store->release(kAlice, held));
  const auto more = store->offer_more(plan.put, now).value();
  ASSERT_EQ(more.incoming.size(), 3u);
  EXPECT_EQ(more.incoming[0].index, 2u);
  EXPECT_EQ(more.refused_count, 0u);
  for (const auto& block : plan.incoming) store->commit(plan.put, fill(block), now);
  for (const auto& block : more.incoming) store->commit(plan.put, fill(block), now);
  store->end_put(plan.put);
  EXPECT_EQ(match(space, chain(2, 5)), 5u);
  EXPECT_EQ(store->stats().refused_blocks, 0u);
  EXPECT_EQ(store->offer_more(plan.put, now).error(), Errc::kBadRequest);
}

TEST_F(StoreTest, OfferThatCanTakeNothingStillHasAPut) {
  put(space, chain(1, 8));
  lease(space, chain(1, 8));
  const auto plan = store->offer(space, chain(2, 1), {}, now).value();
  EXPECT_NE(plan.put, PutId{});
  EXPECT_EQ(plan.refused_count, 1u);
  now += 500ms;
  const auto more = store->offer_more(plan.put, now).value();  // the lease has ended
  ASSERT_EQ(more.incoming.size(), 1u);
  store->end_put(plan.put);
}

TEST_F(StoreTest, AChainMayHoldOneHashTwice) {
  const std::vector<BlockHash> twice{hash_of(1), hash_of(2), hash_of(1), hash_of(1), hash_of(2)};
  EXPECT_EQ(put(space, twice).stored, 5u);
  EXPECT_EQ(store->check(), "");
  EXPECT_EQ(match(space, twice), 5u);
  EXPECT_EQ(put(space, chain(1, 6)).stored, 6u);
  EXPECT_EQ(match(space, twice), 2u);
  EXPECT_EQ(store->drop(space, std::span(twice).first(1)).value(), 2u);
}

// -- retention

TEST_F(StoreTest, RetainedBlocksAreKeptUntilUnretained) {
  put(space, chain(1, 6));
  EXPECT_EQ(store->retain(space, chain(1, 3)).value(), 3u);
  EXPECT_EQ(store->retain(space, chain(1, 2)).value(), 2u);  // idempotent
  EXPECT_EQ(put(space, chain(2, 8)).stored, 5u);
  EXPECT_EQ(match(space, chain(1, 6)), 3u);
  EXPECT_EQ(store->unretain(space, chain(1, 6)).value(), 3u);
  EXPECT_EQ(store->unretain(space, chain(1, 6)).value(), 0u);
  EXPECT_EQ(put(space, chain(3, 8)).stored, 8u);
}

TEST_F(StoreTest, RetentionIsBoundedAndFailsWhole) {
  put(space, chain(1, 5));
  put(space, chain(2, 3));
  EXPECT_EQ(store->retain(space, chain(1, 5)).error(), Errc::kBusy);  // half of 8 blocks is the limit
  EXPECT_EQ(store->stats().pinned_count, 0u);
  EXPECT_TRUE(store->retain(space, chain(1, 4)));
  EXPECT_EQ(store->retain(space, chain(2, 1)).error(), Errc::kBusy);
  EXPECT_TRUE(store->retain(space, chain(1, 2)));
  EXPECT_EQ(store->unretain(space, chain(1, 1)).value(), 1u);
  EXPECT_TRUE(store->retain(space, chain(2, 1)));
}

TEST_F(StoreTest, DropEndsRetention) {
  put(space, chain(1, 4));
  ASSERT_TRUE(store->retain(space, chain(1, 4)));
  const auto pinned = store->pin_prefix(space, chain(1, 2), {.session = kAlice}, now).value();
  EXPECT_EQ(store->drop(space, chain(1, 2)).value(), 3u);
  EXPECT_EQ(store->stats().allocated_bytes, 2 * kStoreBlockBytes);  // block 0 is linked; 1 is being moved
  EXPECT_EQ(store->check(), "");
  store->unpin(pinned);
  EXPECT_EQ(store->stats().allocated_bytes, kStoreBlockBytes);
  EXPECT_EQ(store->unretain(space, chain(1, 1)).value(), 1u);
}

}  // namespace
}  // namespace kv
