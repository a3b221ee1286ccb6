// Named contexts as a file keeps them: its form, what is refused of it, and times over a restart.
#include "store/contexts/context_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "store_fixture.h"

namespace kv {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kWall = 1'800'000'000'000'000;
constexpr ClockPair kNow{TimePoint(1h), kWall};
constexpr std::size_t kHead = 24;

std::string golden_file() {
  std::ifstream file(std::string(KV_GOLDEN_DIR) + "/contexts.bin", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// With the length and the checksum that what follows the head has.
std::string mend(std::string bytes) {
  const std::uint64_t length = bytes.size() - kHead;
  const BlockHash sum = sha256(std::as_bytes(std::span(bytes)).subspan(kHead));
  std::memcpy(bytes.data() + 8, &length, sizeof length);
  std::memcpy(bytes.data() + 16, sum.bytes.data(), 8);
  return bytes;
}

KeptContext some_context(std::mt19937_64& random, const std::string& name) {
  KeptContext context;
  context.owner = std::string(random() % 5, 'o');
  context.name = name;
  for (auto left = random() % 4; left > 0; --left) context.tags.push_back("tag " + std::to_string(random() % 100));
  context.record =
      std::make_shared<const NamespaceRecord>(make_record("m" + std::to_string(random() % 3), 4096 << random() % 2));
  std::vector<BlockHash> hashes;
  for (auto left = 1 + random() % 5; left > 0; --left) {
    const auto count = static_cast<std::uint32_t>(1 + random() % 20);
    context.chains.push_back({count, static_cast<std::uint32_t>(random() % (count + 1))});
    const auto more = chain(random(), count);
    hashes.insert(hashes.end(), more.begin(), more.end());
  }
  context.hashes = std::move(hashes);
  context.life = {Duration(1 + random() % 1'000'000'000'000), random() % 2 == 0};
  const auto ago = [&] { return kNow.steady - std::chrono::microseconds(random() % 10'000'000'000); };
  context.created = ago();
  context.begun = ago();
  if (random() % 2 == 0) context.used = ago();
  context.lost_count = random() % 100;
  context.yielded_count = random() % 100;
  context.priority = static_cast<std::uint8_t>(random() % 10);
  context.place.prefix_count = static_cast<std::uint32_t>(random() % 3 == 0 ? 0 : 4 * context.hashes.size());
  if (context.place.prefix_count > 0 && random() % 2 == 0) {
    std::vector<std::uint32_t> positions;
    for (std::uint32_t i = 0; i < context.hashes.size(); ++i)
      positions.push_back(4 * i + static_cast<std::uint32_t>(random() % 4));
    context.place.positions = std::make_shared<const std::vector<std::uint32_t>>(std::move(positions));
  }
  context.written_tokens = random();
  context.read_tokens = random();
  context.stored_token_seconds = static_cast<double>(random() % 1'000'000) / 7;
  return context;
}

void expect_equal(const KeptContext& one, const KeptContext& other) {
  EXPECT_EQ(one.owner, other.owner);
  EXPECT_EQ(one.name, other.name);
  EXPECT_EQ(one.tags, other.tags);
  EXPECT_EQ(one.record->text(), other.record->text());
  EXPECT_TRUE(std::ranges::equal(one.hashes.view(), other.hashes.view()));
  ASSERT_EQ(one.chains.size(), other.chains.size());
  for (std::size_t i = 0; i < one.chains.size(); ++i) {
    EXPECT_EQ(one.chains[i].count, other.chains[i].count);
    EXPECT_EQ(one.chains[i].written, other.chains[i].written);
  }
  EXPECT_EQ(one.life.ttl, other.life.ttl);
  EXPECT_EQ(one.life.is_sliding, other.life.is_sliding);
  EXPECT_EQ(one.created, other.created);
  EXPECT_EQ(one.begun, other.begun);
  EXPECT_EQ(one.used, other.used);
  EXPECT_EQ(one.lost_count, other.lost_count);
  EXPECT_EQ(one.yielded_count, other.yielded_count);
  EXPECT_EQ(one.priority, other.priority);
  EXPECT_EQ(one.place.prefix_count, other.place.prefix_count);
  ASSERT_EQ(one.place.positions == nullptr, other.place.positions == nullptr);
  if (one.place.positions) {
    EXPECT_EQ(*one.place.positions, *other.place.positions);
  }
  EXPECT_EQ(one.written_tokens, other.written_tokens);
  EXPECT_EQ(one.read_tokens, other.read_tokens);
  EXPECT_EQ(one.stored_token_seconds, other.stored_token_seconds);
}

TEST(ContextFileTest, TheFormStays) {
  const std::string golden = golden_file();
  const auto read = read_contexts(golden, kNow);
  ASSERT_TRUE(read) << read.error().text;
  EXPECT_EQ(read->written_us, kWall);
  ASSERT_EQ(read->contexts.size(), 2u);
  const KeptContext& one = read->contexts[0];
  EXPECT_EQ(one.owner, "blue");
  EXPECT_EQ(one.name, "prompt");
  EXPECT_EQ(one.tags, (std::vector<std::string>{"team=x", "a b"}));
  EXPECT_EQ(one.record->text(), make_record("m", 4096).text());
  EXPECT_EQ(one.hashes.size(), 3u);
  EXPECT_EQ(one.chains[0].written, 2u);
  EXPECT_EQ(one.life.ttl, 1h);
  EXPECT_TRUE(one.life.is_sliding);
  EXPECT_EQ(one.created, kNow.steady - 5s);
  EXPECT_EQ(one.begun, kNow.steady - 4s);
  EXPECT_EQ(one.used, kNow.steady - 1s);
  EXPECT_EQ(one.end(), kNow.steady + 1h - 1s);
  EXPECT_EQ(one.stored_token_seconds, 30.5);
  EXPECT_EQ(one.priority, 8u);
  EXPECT_EQ(one.yielded_count, 4u);
  EXPECT_EQ(one.place.prefix_count, 12u);
  EXPECT_EQ((*one.place.positions)[2], 11u);
  EXPECT_EQ(read->contexts[1].place.prefix_count, 9u);
  EXPECT_EQ(read->contexts[1].place.positions, nullptr);
  EXPECT_EQ(read->contexts[1].owner, "");
  EXPECT_EQ(read->contexts[1].used, std::nullopt);
  EXPECT_EQ(write_contexts(read->contexts, kNow), golden);
}

TEST(ContextFileTest, WhatIsWrittenIsRead) {
  std::mt19937_64 random(test_seed());
  std::vector<KeptContext> contexts;
  for (auto left = random() % 50; left > 0; --left)
    contexts.push_back(some_context(random, "c" + std::to_string(contexts.size())));
  // Read much later by the wall clock, in another life of the steady one.
  const std::string bytes = write_contexts(contexts, kNow);
  const ClockPair later{TimePoint(5s), kWall + 60'000'000};
  const auto read = read_contexts(bytes, later);
  ASSERT_TRUE(read) << read.error().text;
  ASSERT_EQ(read->contexts.size(), contexts.size());
  const auto moved = [&](TimePoint time) { return time - kNow.steady + later.steady - 60s; };
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    KeptContext right = contexts[i];
    right.created = moved(right.created);
    right.begun = moved(right.begun);
    if (right.used) right.used = moved(*right.used);
    expect_equal(read->contexts[i], right);
  }
}

TEST(ContextFileTest, AClockThatWasSetBackMakesNothingEndLaterThanItsTimeToLive) {
  const auto read = read_contexts(golden_file(), {TimePoint(10s), kWall - 3'600'000'000});
  ASSERT_TRUE(read);
  EXPECT_EQ(read->contexts[0].begun, TimePoint(10s) - 4s) << "as long ago as when the file was written";
  EXPECT_EQ(read->contexts[0].end(), TimePoint(10s) - 1s + 1h) << "used a second before that";
}

TEST(ContextFileTest, WhatIsDamagedAnywhereIsRefused) {
  std::mt19937_64 random(test_seed());
  const std::string good = golden_file();
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    const auto read = read_contexts(bad, kNow);
    ASSERT_FALSE(read) << at;
    EXPECT_EQ(read.error(), Errc::kBadRequest);
    EXPECT_FALSE(read_contexts(good.substr(0, at), kNow)) << at;
    // A right checksum is not enough: whatever is read then is within all bounds.
    if (at < kHead) continue;
    if (const auto mended = read_contexts(mend(bad), kNow); mended) {
      EXPECT_TRUE(read_contexts(write_contexts(mended->contexts, kNow), kNow)) << at;
    }
    EXPECT_FALSE(read_contexts(mend(good.substr(0, at)), kNow)) << at;
  }
  EXPECT_FALSE(read_contexts(good + '\0', kNow));
  EXPECT_THAT(read_contexts(mend(good + '\0'), kNow).error().text, HasSubstr("bytes too many"));
  std::string next = good;
  next[4] = 3;
  EXPECT_THAT(read_contexts(next, kNow).error().text, HasSubstr("format 3, this node reads 1"));
}

TEST(ContextFileTest, WhatAContextMayNotBeIsNamed) {
  const auto refused = [](const std::function<void(KeptContext&)>& change) {
    auto read = read_contexts(golden_file(), kNow);
    change(read->contexts[1]);
    return read_contexts(write_contexts(read->contexts, kNow), kNow);
  };
  EXPECT_THAT(refused([](KeptContext& each) { each.life.ttl = Duration(0); }).error().text,
              HasSubstr("time to live: 0"));
  EXPECT_THAT(refused([](KeptContext& each) { each.life.ttl = kContextTtlMax + 1ns; }).error().text,
              HasSubstr("ten years"));
  EXPECT_THAT(refused([](KeptContext& each) { each.priority = 10; }).error().text, HasSubstr("priority: 10"));
  EXPECT_THAT(refused([](KeptContext& each) { each.place.prefix_count = 1; }).error().text, HasSubstr("positions"));
  EXPECT_THAT(refused([](KeptContext& each) { each.stored_token_seconds = -1; }).error().text,
              HasSubstr("stored token seconds"));
  EXPECT_THAT(refused([](KeptContext& each) { each.chains[0].written = 3; }).error().text,
              HasSubstr("3 of 2 blocks written"));
  EXPECT_THAT(refused([](KeptContext& each) {
                each.owner = "blue";
                each.name = "prompt";
              })
                  .error()
                  .text,
              HasSubstr("comes twice"));
  std::string name = golden_file();
  name[name.find("other")] = ' ';
  EXPECT_THAT(read_contexts(mend(name), kNow).error().text, HasSubstr("name: ' ther', allowed are"));
}

}  // namespace
}  // namespace kv
