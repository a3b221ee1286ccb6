// What a Store keeps for contexts, with requests to retain, drops, evictions and limits of all kinds on the same
// blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "context_fixture.h"

namespace kv {
namespace {

TEST_F(ContextTest, WhatItKeepsSurvivesAllThatComesUntilItEnds) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto mine = chain(1, 6);
  put(space, mine);
  const auto made = make("prompt", space, mine, 10s);
  EXPECT_EQ(made.kept_count, 6u);
  EXPECT_EQ(made.wanted_count, 6u);
  EXPECT_EQ(made.why, Errc{});
  EXPECT_EQ(made.written_tokens, 24u);
  EXPECT_EQ(made.end, now + 10s);
  press(space);
  EXPECT_EQ(match(space, mine), 6u);
  now = made.end - 1ns;
  tend();
  EXPECT_TRUE(is_there("prompt"));
  now = made.end;
  EXPECT_FALSE(is_there("prompt")) << "also before anybody came to end it";
  EXPECT_EQ(store->stats().pinned_count, 6u);
  tend();
  EXPECT_EQ(store->stats().pinned_count, 0u);
  press(space);
  EXPECT_EQ(match(space, mine), 0u);
  EXPECT_EQ(store->context_totals()[0].expired, 1u);
  EXPECT_EQ(store->context_totals()[0].kept_blocks, 0u);
}

TEST_F(ContextTest, ABlockOfTwoStaysUntilTheLastOfThemEnds) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto whole = chain(1, 6);
  put(space, whole);
  make("short", space, first(whole, 4));
  make("long", space, whole);
  EXPECT_EQ(store->stats().pinned_count, 6u);
  ASSERT_TRUE(store->delete_context("", "long", now));
  tend();
  EXPECT_EQ(store->stats().pinned_count, 4u);
  press(space);
  EXPECT_EQ(match(space, whole), 4u);
  ASSERT_TRUE(store->delete_context("", "short", now));
  tend();
  press(space);
  EXPECT_EQ(match(space, whole), 0u);
  EXPECT_EQ(store->delete_context("", "short", now).error(), Errc::kNotFound);
}

TEST_F(ContextTest, ARequestToRetainIsNotUndoneByAContextsEndNorTheOtherWayRound) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto mine = chain(1, 5);
  put(space, mine);
  EXPECT_EQ(store->retain(space, first(mine, 3)).value(), 3u);
  make("c", space, mine);
  EXPECT_EQ(store->stats().pinned_count, 5u);
  ASSERT_TRUE(store->delete_context("", "c", now));
  tend();
  EXPECT_EQ(store->stats().pinned_count, 3u);
  press(space);
  EXPECT_EQ(match(space, mine), 3u);
  make("c", space, first(mine, 3));
  EXPECT_EQ(store->unretain(space, mine).value(), 3u);
  EXPECT_EQ(store->unretain(space, mine).value(), 0u) << "a context's keeping is no request's";
  press(space);
  EXPECT_EQ(match(space, mine), 3u);
  EXPECT_EQ(store->retain(space, mine).value(), 3u);
  EXPECT_EQ(store->retain(space, mine).value(), 3u) << "again, and it changes nothing";
}

TEST_F(ContextTest, WhatComesLaterIsKeptThenAndTheGapIsToldOnce) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto mine = chain(1, 6);
  put(space, first(mine, 2));
  EXPECT_EQ(make("c", space, mine).why, Errc::kNotFound);
  EXPECT_EQ(view("c").kept_count, 2u);
  const auto news = store->tend_contexts(now);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].kept_count, 2u);
  EXPECT_EQ(news[0].wanted_count, 6u);
  EXPECT_TRUE(store->tend_contexts(now).empty());
  put(space, mine);
  EXPECT_TRUE(store->tend_contexts(now).empty());
  EXPECT_EQ(view("c").kept_count, 6u);
  EXPECT_EQ(view("c").why, Errc{});
  EXPECT_EQ(view("c").written_tokens, 24u);
}

TEST_F(ContextTest, ADropEndsItForAllAndIsTold) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto mine = chain(1, 6);
  put(space, mine);
  make("a", space, mine);
  make("b", space, first(mine, 5));
  tend();
  ASSERT_TRUE(store->drop(space, first(mine, 4)));
  EXPECT_EQ(view("a").kept_count, 3u);
  EXPECT_EQ(view("a").lost_count, 3u);
  EXPECT_EQ(view("b").lost_count, 2u);
  const auto news = store->tend_contexts(now);
  EXPECT_EQ(news.size(), 2u);
  EXPECT_EQ(news[0].why, Errc::kNotFound);
  // Blocks of the same names, and most likely the same numbers: nobody takes them for those that were kept before.
  put(space, mine);
  EXPECT_EQ(view("a").kept_count, 3u);
  tend();
  EXPECT_EQ(view("a").kept_count, 6u);
  EXPECT_EQ(view("b").kept_count, 5u);
  EXPECT_EQ(store->stats().pinned_count, 6u);
  store->delete_context("", "a", now).value();
  tend();
  EXPECT_EQ(store->stats().pinned_count, 5u);
  EXPECT_EQ(store->context_totals()[0].lost_blocks, 5u);
}

TEST_F(ContextTest, ADropThatIsNotTakenApartYetCountsAsLost) {
  config.lease_duration = 1h;
  create_blocks(64);
  const SpaceId space = open(kBytes);
  const auto mine = chain(1, 6);
  put(space, mine);
  const LeaseId held = lease(space, mine);
  make("a", space, mine);
  ASSERT_TRUE(store->drop(space, first(mine, 1)));
  EXPECT_EQ(view("a").kept_count, 0u);
  put(space, mine);
  tend();
  EXPECT_EQ(view("a").kept_count, 6u);
  EXPECT_EQ(store->check(), "");
  ASSERT_TRUE(store->release(kAlice, held));
  EXPECT_EQ(match(space, mine), 6u);
}

TEST_F(ContextTest, TheNodesBoundIsKeptAndToldAndWhatIsSharedCountsOnce) {
  create_blocks(20);  // ten may be kept
  const SpaceId space = open(kBytes);
  const auto one = chain(1, 8), other = chain(2, 8);
  put(space, one);
  put(space, other);
  EXPECT_EQ(make("one", space, one).kept_count, 8u);
  const auto second = make("other", space, other);
  EXPECT_EQ(second.kept_count, 2u);
  EXPECT_EQ(second.why, Errc::kBusy);
  EXPECT_EQ(make("again", space, one).kept_count, 8u) << "they are kept already";
  EXPECT_EQ(store->retain(space, one).value(), 8u);
  EXPECT_EQ(store->retain(space, other).error(), Errc::kBusy) << "six more";
  store->unretain(space, one).value();
  store->delete_context("", "one", now).value();
  store->delete_context("", "again", now).value();
  tend();
  EXPECT_EQ(view("other").kept_count, 8u);
  EXPECT_EQ(view("other").why, Errc{});
}

TEST_F(ContextTest, ATenantsBoundIsItsOwn) {
  create_with_tenants(32, 3);
  const SpaceId blue = open_of("blue"), red = open_of("red");
  const auto mine = chain(1, 5);
  put(blue, mine);
  put(red, mine);
  const auto kept = make("c", blue, mine, 1h, false, "blue");
  EXPECT_EQ(kept.kept_count, 3u);
  EXPECT_EQ(kept.why, Errc::kOverQuota);
  EXPECT_EQ(make("c", red, mine, 1h, false, "red").kept_count, 5u);
  for (int i = 0; i < 20; ++i) tend();
  for (const TenantStats& each : store->tenants()) {
    if (each.limits.name != "blue") continue;
    EXPECT_EQ(each.usage.retained_bytes, 3 * kBytes);
    EXPECT_EQ(each.usage.retain_refusals, 1u) << "to look again is no request";
  }
  EXPECT_EQ(store->find_context("red", "c", now)->kept_count, 5u);
  EXPECT_EQ(store->find_context("", "c", now).error(), Errc::kNotFound);
  EXPECT_EQ(store->extend_context("green", "c", {1h, false}, now).error(), Errc::kNotFound);
  EXPECT_EQ(store->delete_context("green", "c", now).error(), Errc::kNotFound);
  EXPECT_TRUE(store->list_contexts("green", "", 10, now).empty());
  EXPECT_FALSE(store->delete_contexts("red", now));
  EXPECT_EQ(store->list_contexts("blue", "", 10, now).size(), 1u);
  EXPECT_TRUE(store->list_contexts("red", "", 10, now).empty());
}

TEST_F(ContextTest, EachUseOfAllThatIsKeptPutsOffASlidingEnd) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto whole = chain(1, 8), mine = first(whole, 5);
  put(space, whole);
  const TimePoint begun = now;
  make("sliding", space, mine, 10s, true);
  make("fixed", space, mine, 10s, false);
  now = begun + 6s;
  EXPECT_EQ(store->match(space, first(whole, 4), {}, now)->memory_block_count, 4u);
  EXPECT_EQ(view("sliding").end, begun + 10s) << "a part is no use";
  EXPECT_EQ(store->match(space, whole, {}, now)->memory_block_count, 8u);
  EXPECT_EQ(view("sliding").end, begun + 16s);
  EXPECT_EQ(view("fixed").end, begun + 10s);
  now = begun + 12s;
  tend();
  EXPECT_TRUE(is_there("sliding"));
  EXPECT_FALSE(is_there("fixed"));
  ASSERT_TRUE(store->touch(space, mine, now));
  EXPECT_EQ(view("sliding").end, begun + 22s);
  EXPECT_EQ(view("sliding").read_tokens, 0u);
  now = begun + 20s;
  const auto pinned = store->pin_prefix(space, whole, {}, now).value();
  store->unpin(pinned);
  EXPECT_EQ(view("sliding").end, begun + 30s);
  EXPECT_EQ(view("sliding").read_tokens, 20u) << "of what it keeps, not of all that was read";
  now = begun + 30s;
  EXPECT_EQ(store->match(space, whole, {}, now)->memory_block_count, 8u);
  EXPECT_FALSE(is_there("sliding")) << "too late";
}

TEST_F(ContextTest, StoredTokensAreCountedByTheSecond) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto mine = chain(1, 5);
  put(space, first(mine, 3));
  make("c", space, mine);
  now += 10s;
  put(space, mine);
  EXPECT_NEAR(view("c").stored_token_seconds, 3 * 4 * 10, 0.01);
  tend();
  now += 5s;
  EXPECT_NEAR(view("c").stored_token_seconds, 3 * 4 * 10 + 5 * 4 * 5, 0.01);
  store->delete_context("", "c", now).value();
  EXPECT_NEAR(store->context_totals()[0].stored_token_seconds, 220, 0.01);
}

TEST_F(ContextTest, OneOfTheSameNameTakesItsPlaceWithinTheSameBound) {
  create_blocks(20);
  const SpaceId space = open(kBytes);
  const auto one = chain(1, 8), other = chain(2, 8);
  put(space, one);
  put(space, other);
  make("c", space, one);
  EXPECT_EQ(make("c", space, other).kept_count, 8u) << "both at once would be over the bound";
  EXPECT_EQ(store->stats().pinned_count, 8u);
  EXPECT_EQ(store->list_contexts("", "", 10, now).size(), 1u);
  EXPECT_EQ(store->create_context(order("c", space, {}), now).error(), Errc::kBadRequest);
  EXPECT_EQ(store->create_context(order("c", space, one, Duration::zero()), now).error(), Errc::kBadRequest);
  EXPECT_EQ(store->create_context(order("c", SpaceId{77}, one), now).error(), Errc::kNoNamespace);
  auto cut = order("c", space, one);
  cut.chain_counts = {3, 4};
  EXPECT_EQ(store->create_context(cut, now).error(), Errc::kBadRequest);
  EXPECT_EQ(view("c").kept_count, 8u) << "what is refused changes nothing";
}

TEST_F(ContextTest, SeveralChainsAreOneContext) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto one = chain(1, 4), other = chain(2, 3);
  put(space, one);
  put(space, first(other, 2));
  auto both = order("c", space, one);
  both.hashes.insert(both.hashes.end(), other.begin(), other.end());
  both.chain_counts = {4, 3};
  EXPECT_EQ(store->create_context(both, now)->kept_count, 6u);
  ASSERT_TRUE(store->drop(space, first(one, 2)));
  EXPECT_EQ(view("c").kept_count, 3u);
  press(space);
  EXPECT_EQ(match(space, one), 1u);
  EXPECT_EQ(match(space, other), 2u);
}

TEST_F(ContextTest, ANamespaceThatWasForgottenAndIsOpenedAgainIsTheSame) {
  create_blocks(32);
  SpaceId space = open(kBytes);
  const auto mine = chain(1, 4);
  put(space, mine);
  make("c", space, mine);
  ASSERT_TRUE(store->drop(space, {}));
  while (store->is_dropping()) store->drop_more(now);
  ASSERT_TRUE(store->forget(space));
  EXPECT_EQ(view("c").kept_count, 0u);
  EXPECT_EQ(store->check(), "");
  space = open(kBytes);
  put(space, mine);
  tend();
  EXPECT_EQ(view("c").kept_count, 4u);
}

TEST_F(ContextTest, AtTheEndNothingIsKept) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto mine = chain(1, 4);
  put(space, mine);
  make("c", space, mine);
  store->retain(space, mine).value();
  store->unretain_all();
  EXPECT_EQ(store->stats().pinned_count, 0u);
  tend();
  EXPECT_EQ(store->stats().pinned_count, 0u) << "nor again";
}

TEST_F(ContextTest, WorkIsBoundedHoweverLargeAContextIs) {
  config.retained_fraction_max = 1;
  create(20'480 * 512, 512 * 64);
  const SpaceId space = store->open(make_record("m", 512)).value();
  const auto mine = chain(1, 16'000);
  put(space, mine);
  EXPECT_EQ(make("c", space, mine, 10s).kept_count, 16'000u);
  now += 10s;
  std::size_t calls = 0;
  while (store->stats().pinned_count > 0) {
    store->tend_contexts(now);
    ASSERT_LT(++calls, 1000u);
  }
  EXPECT_GT(calls, 10u);
  EXPECT_EQ(store->check(), "") << "it knows of calls that took too long";
}

/// Contexts, requests to retain, puts, drops, evictions and time on a few chains that share beginnings. A model knows
/// what must be retained: whatever a context or a request keeps, until a drop. All of it fits the bound.
TEST_F(ContextTest, RandomActsKeepWhatWasPromisedAndNothingElse) {
  std::mt19937_64 random(test_seed());
  config.retained_fraction_max = 0.75;
  create_blocks(96);
  const std::array spaces = {open(kBytes, "m"), open(kBytes, "n")};
  const auto chains = forks();
  using Block = std::pair<std::size_t, BlockHash>;  // in which namespace
  std::set<Block> retained;                         // on request
  struct Known {
    std::size_t space = 0;
    std::vector<BlockHash> hashes;
    std::size_t kept = 0;
    TimePoint end{};
  };
  std::map<std::string, Known> contexts;
  const auto held = [&] {
    std::set<Block> all = retained;
    for (const auto& [name, each] : contexts)
      for (std::size_t i = 0; i < each.kept; ++i) all.emplace(each.space, each.hashes[i]);
    return all;
  };
  const auto here = [&](std::size_t space, const std::vector<BlockHash>& hashes) {
    return store->explain(spaces[space], hashes, now)->memory_block_count;
  };
  const auto end_old = [&] { std::erase_if(contexts, [&](const auto& each) { return each.second.end <= now; }); };
  const auto tend_all = [&] {
    tend();
    for (auto& [name, each] : contexts) each.kept = std::max(each.kept, here(each.space, each.hashes));
  };
  const auto dropped = [&](std::size_t space, const BlockHash& at) {
    const std::set<BlockHash> gone = from(at, chains);
    std::erase_if(retained, [&](const Block& block) { return block.first == space && gone.contains(block.second); });
    for (auto& [name, each] : contexts) {
      for (std::size_t i = 0; each.space == space && i < each.kept; ++i) {
        if (gone.contains(each.hashes[i])) each.kept = i;
      }
    }
  };
  std::uint64_t filler = 1000;
  for (int step = 0; step < 1000; ++step) {
    now += std::chrono::milliseconds(1 + random() % 500);
    end_old();
    const std::size_t s = random() % 2, length = 1 + random() % 8;
    const auto part = first(chains[random() % 3], length);
    const std::string name(1, static_cast<char>('a' + random() % 5));
    switch (random() % 9) {
      case 0:
      case 1: put(spaces[s], part); break;
      case 2:
        for (std::size_t i = random() % 100; i > 0; --i) put(spaces[s], chain(++filler, 1));
        break;
      case 3: {
        const Duration ttl = std::chrono::milliseconds(1 + random() % 20000);
        const auto view = store->create_context(order(name, spaces[s], part, ttl), now);
        ASSERT_TRUE(view) << view.error().text;
        contexts[name] = {s, part, here(s, part), now + ttl};
        ASSERT_EQ(view->kept_count, contexts[name].kept);
        break;
      }
      case 4: {
        const auto gone = store->delete_context("", name, now);
        ASSERT_EQ(gone.has_value(), contexts.erase(name) == 1);
        break;
      }
      case 5: {
        const std::size_t count = here(s, part);
        ASSERT_EQ(store->retain(spaces[s], part).value(), count);
        for (std::size_t i = 0; i < count; ++i) retained.emplace(s, part[i]);
        break;
      }
      case 6: {
        std::size_t right = 0;
        for (std::size_t i = here(s, part); i-- > 0;) right += retained.erase({s, part[i]});
        ASSERT_EQ(store->unretain(spaces[s], part).value(), right);
        break;
      }
      case 7: {
        const bool is_whole = here(s, part) == part.size();
        ASSERT_TRUE(store->drop(spaces[s], part));
        if (is_whole) dropped(s, part.back());
        break;
      }
      default: tend_all(); ASSERT_EQ(store->stats().pinned_count, held().size());
    }
    end_old();  // puts take time
    for (const auto& [of, each] : contexts) {
      const auto view = store->find_context("", of, now);
      ASSERT_TRUE(view) << of;
      ASSERT_EQ(view->kept_count, each.kept) << of;
    }
    for (const auto& [space, hash] : held()) {
      const auto of = std::ranges::find_if(
          chains, [&, block = hash](const auto& each) { return std::ranges::find(each, block) != each.end(); });
      const auto upto = first(*of, static_cast<std::size_t>(std::ranges::find(*of, hash) - of->begin()) + 1);
      ASSERT_EQ(here(space, upto), upto.size()) << "it was promised";
    }
    ASSERT_EQ(store->check(), "");
  }
}

}  // namespace
}  // namespace kv
