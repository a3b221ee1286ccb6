// Contexts by way of the file, into a new store.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "context_fixture.h"
#include "store/contexts/context_file.h"

namespace kv {
namespace {

/// As the keeper does, by way of the file; then into a new store, `away` later by the wall clock.
class ContextRestartTest : public ContextTest {
 protected:
  std::vector<KeptContext> copy() {
    std::vector<KeptContext> kept;
    ContextId after{};
    while (store->copy_contexts(after, kept, now)) {
    }
    return kept;
  }
  struct Counts {
    std::size_t back = 0, ended = 0, refused = 0;
  };
  Counts restart(std::size_t blocks, Duration away) {
    constexpr std::uint64_t kWallUs = 1'800'000'000'000'000;
    const std::string file = write_contexts(copy(), {now, kWallUs});
    create_blocks(blocks);
    now = TimePoint(7s);
    const auto us = static_cast<std::uint64_t>(away / 1us);
    Counts counts;
    for (KeptContext& each : read_contexts(file, {now, kWallUs + us}).value().contexts) {
      switch (store->restore_context(std::move(each), now)) {
        case ContextDesk::Restored::kBack: ++counts.back; break;
        case ContextDesk::Restored::kEnded: ++counts.ended; break;
        case ContextDesk::Restored::kRefused: ++counts.refused; break;
      }
    }
    return counts;
  }
};

TEST_F(ContextRestartTest, AContextIsThereAtOnceWithItsRemainingTimeAndKeepsWhatComesBack) {
  create_blocks(32);
  SpaceId space = open(kBytes);
  const auto mine = chain(1, 6);
  put(space, first(mine, 4));
  make("prompt", space, mine, 100s);
  now += 10s;
  make("short", space, mine, 20s);
  const auto before = view("prompt");
  const Counts counts = restart(32, 30s);
  EXPECT_EQ(counts.back, 1u);
  EXPECT_EQ(counts.ended, 1u);
  const auto after = view("prompt");
  EXPECT_EQ(after.end, now + 60s);
  EXPECT_EQ(after.created, now - 40s);
  EXPECT_EQ(after.wanted_count, 6u);
  EXPECT_EQ(after.kept_count, 0u);
  EXPECT_EQ(after.why, Errc::kNotFound);
  EXPECT_EQ(after.written_tokens, before.written_tokens);
  EXPECT_NEAR(after.stored_token_seconds, before.stored_token_seconds, 0.1);
  EXPECT_TRUE(store->tend_contexts(now).empty()) << "that it keeps nothing yet is no news";
  ASSERT_EQ(store->context_totals().size(), 1u);
  EXPECT_EQ(store->context_totals()[0].created, 0u) << "counters begin at 0";
  EXPECT_EQ(store->context_totals()[0].expired, 1u);
  space = open(kBytes);
  put(space, mine);
  tend();
  EXPECT_EQ(view("prompt").kept_count, 6u);
  EXPECT_EQ(view("prompt").written_tokens, 24u) << "four of the six blocks had been counted before";
  EXPECT_EQ(store->context_totals()[0].written_tokens, 8u);
  press(space);
  EXPECT_EQ(match(space, mine), 6u);
  ASSERT_TRUE(store->drop(space, first(mine, 3)));
  EXPECT_EQ(view("prompt").lost_count, 4u);
  put(space, mine);
  tend();
  EXPECT_EQ(view("prompt").written_tokens, 24u + 16u) << "what was lost and comes again is written again";
}

TEST_F(ContextRestartTest, OneThatIsThereAlreadyOrHasNoRoomIsRefused) {
  create_blocks(32);
  SpaceId space = open(kBytes);
  make("a", space, chain(1, 6));
  make("b", space, chain(2, 6));
  const auto kept = copy();
  config.contexts.owner_blocks_max = 10;
  create_blocks(32);
  space = open(kBytes);
  make("a", space, chain(3, 3));
  EXPECT_EQ(store->restore_context(kept[0], now), ContextDesk::Restored::kRefused);
  EXPECT_EQ(view("a").wanted_count, 3u);
  EXPECT_EQ(store->restore_context(kept[1], now), ContextDesk::Restored::kBack);
  KeptContext third = kept[1];
  third.name = "c";
  EXPECT_EQ(store->restore_context(third, now), ContextDesk::Restored::kRefused);
  EXPECT_EQ(store->context_totals()[0].refused, 0u) << "nobody asked";
  KeptContext bad = kept[1];
  bad.name = "d";
  bad.chains[0].count = 7;
  EXPECT_EQ(store->restore_context(bad, now), ContextDesk::Restored::kRefused);
  bad.chains = {{2, 0}};
  EXPECT_EQ(store->restore_context(bad, now), ContextDesk::Restored::kRefused);
}

TEST_F(ContextRestartTest, WhatHasChangedIsTold) {
  create_blocks(32);
  const SpaceId space = open(kBytes);
  const auto mine = chain(1, 4);
  put(space, mine);
  auto last = store->context_changes();
  const auto orders = [&] {
    const auto before = std::exchange(last, store->context_changes());
    return last.orders - before.orders;
  };
  make("c", space, mine, 10s, true);
  EXPECT_EQ(orders(), 1u);
  EXPECT_EQ(store->context_changes().count, 1u);
  store->touch(space, mine, now).value();
  EXPECT_EQ(store->context_changes().uses, last.uses + 1);
  EXPECT_EQ(orders(), 0u);
  tend();
  EXPECT_EQ(orders(), 0u);
  store->extend_context("", "c", {5s, false}, now).value();
  EXPECT_EQ(orders(), 1u);
  now += 5s;
  tend();
  EXPECT_EQ(orders(), 1u) << "the end";
  EXPECT_EQ(store->context_changes().count, 0u);
}

/// Whatever there is before a restart is there after it, if its time is not over; many of them, in several calls.
TEST_F(ContextRestartTest, RandomContextsComeBackAsTheyWere) {
  std::mt19937_64 random(test_seed());
  create_blocks(64);
  const std::array spaces = {open(kBytes, "m"), open(kBytes, "n")};
  std::map<std::pair<std::string, std::string>, ContextDesk::View> before;
  const std::size_t count = random() % 400;
  for (std::size_t i = 0; i < count; ++i) {
    now += std::chrono::milliseconds(random() % 200);
    const std::string owner(1, static_cast<char>('a' + random() % 3)), name = "c" + std::to_string(i);
    const auto mine = chain(random() % 5, 1 + random() % 6);
    if (random() % 3 == 0) put(spaces[random() % 2], mine);
    make(name, spaces[random() % 2], mine, std::chrono::milliseconds(1 + random() % 60'000), random() % 2 == 0, owner);
    if (random() % 4 == 0) store->touch(spaces[random() % 2], chain(random() % 5, 6), now).value();
  }
  const TimePoint stopped = now;
  const Duration away = std::chrono::milliseconds(random() % 20'000);
  std::size_t due_back = 0, alive = 0;
  for (const char* const owner : {"a", "b", "c"}) {
    for (const auto& each : store->list_contexts(owner, "", 1000, now)) {
      before.emplace(std::pair(owner, each.name), each);
      due_back += each.end > stopped + away;
      ++alive;
    }
  }
  const Counts counts = restart(64, away);
  EXPECT_EQ(counts.back, due_back);
  EXPECT_EQ(counts.ended, alive - due_back);
  EXPECT_EQ(counts.refused, 0u);
  EXPECT_EQ(store->context_changes().count, due_back);
  for (const auto& [key, was] : before) {
    const auto is = store->find_context(key.first, key.second, now);
    ASSERT_EQ(is.has_value(), was.end > stopped + away) << key.second;
    if (!is) continue;
    // The file has microseconds.
    EXPECT_LE(std::chrono::abs((is->end - now) - (was.end - stopped - away)), 2us);
    EXPECT_EQ(is->wanted_count, was.wanted_count);
    EXPECT_EQ(is->tags, was.tags);
    EXPECT_EQ(is->written_tokens, was.written_tokens);
    EXPECT_EQ(is->read_tokens, was.read_tokens);
    EXPECT_EQ(is->record->text(), was.record->text());
  }
  ASSERT_EQ(store->check(), "");
}

}  // namespace
}  // namespace kv
