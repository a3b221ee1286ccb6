// What the admin server's pages of changes say: beside the Store, within their bounds, and only what an asker may see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "store/node/access/access.h"
#include "store/node/events/event_answers.h"
#include "store/node/events/event_query.h"

namespace kv {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kEventBlocks = 3000;  // of more than one look, and more than one answer

BlockHash event_hash(std::uint64_t number) {
  BlockHash hash;
  std::memcpy(hash.bytes.data(), &number, sizeof number);
  hash.bytes[31] = std::byte{1};
  return hash;
}

class EventsTest : public testing::Test {
 protected:
  static std::unique_ptr<Store> make_store() {
    StoreConfig config;
    config.arena.capacity_bytes = 32 << 20;
    config.arena.touch = false;
    config.event_count_max = 50'000;
    return Store::create(config).value();
  }
  SpaceId open(std::map<std::string, std::string> fields) {
    fields.merge(std::map<std::string, std::string>{{"model", "m"}, {"block_size", "16"}, {"block_bytes", "64"}});
    const auto record = NamespaceRecord::from_fields(fields).value();
    return store.with([&](Store& each) { return each.open(record).value(); });
  }
  std::vector<BlockHash> put(SpaceId space, std::uint64_t first, std::size_t count) {
    std::vector<BlockHash> hashes;
    for (std::size_t i = 0; i < count; ++i) hashes.push_back(event_hash(first + i));
    store.with([&](Store& each) {
      auto plan = each.offer(space, hashes, {}, now).value();
      const std::array<std::uint64_t, 1> sums{};
      const PutId id = plan.put;
      for (;;) {
        for (std::size_t i = 0; i < plan.incoming.size(); ++i) each.commit(id, sums, now);
        if (!plan.again) break;
        plan = each.offer_more(id, now).value();
      }
      each.end_put(id);
    });
    return hashes;
  }
  nlohmann::json ask(const std::string& path, const std::string& query, const EventAnswers::MaySee& may_see) {
    const auto text = answers.answer(path, query, may_see);
    EXPECT_TRUE(text) << path << "?" << query;
    return text ? nlohmann::json::parse(*text) : nlohmann::json();
  }
  static bool all(const NamespaceRecord&) { return true; }

  TimePoint now{1s};
  NodeMetrics metrics{"1.2.3"};
  LockedStore store{make_store(), metrics};
  InstanceId life{std::byte{0xab}, std::byte{0xcd}};
  EventAnswers answers{store, life};
};

TEST_F(EventsTest, ChangesAndBlocksComeInPartsUntilThereAreNoMore) {
  const SpaceId space = open({{"hash", "vllm-sha256_cbor"}, {"salt", "c0ffee"}});
  std::vector<BlockHash> hashes;
  for (std::uint64_t i = 0; i < 6; ++i) {
    for (const BlockHash& each : put(space, 1 + i * 10'000, kEventBlocks)) hashes.push_back(each);
  }
  std::vector<std::string> stored;
  std::uint64_t next = 0;
  std::size_t parts = 0;
  for (;; ++parts) {
    const auto answer = ask("/events.json", "from=" + std::to_string(next) + "&life=" + to_hex(life), &EventsTest::all);
    EXPECT_EQ(answer["version"], 1);
    EXPECT_EQ(answer["life"], to_hex(life));
    EXPECT_FALSE(answer["has_gap"]);
    if (answer["next"] == next) break;
    for (const auto& row : answer["events"]) {
      EXPECT_EQ(row[0], "stored");
      EXPECT_EQ(row[1], "memory");
      if (stored.size() % kEventBlocks == 0) {
        EXPECT_EQ(row[4], nullptr);
      } else {
        EXPECT_EQ(row[4], stored.back());
      }
      EXPECT_EQ(row[5], stored.size() % kEventBlocks);
      stored.push_back(row[3]);
    }
    EXPECT_EQ(answer["spaces"][0]["fields"]["model"], "m");
    EXPECT_EQ(answer["spaces"][0]["fields"]["salt"], "(set)");
    next = answer["next"];
  }
  EXPECT_GT(parts, 1u);
  ASSERT_EQ(stored.size(), hashes.size());
  for (std::size_t i = 0; i < stored.size(); ++i) ASSERT_EQ(stored[i], to_hex(hashes[i].bytes));

  std::set<std::string> listed;
  std::string at;
  for (parts = 0;; ++parts) {
    const auto answer = ask("/events/blocks.json", at, &EventsTest::all);
    EXPECT_EQ(answer["next"], next);
    for (const auto& row : answer["blocks"]) listed.insert(row[2].get<std::string>());
    if (answer["at"].is_null()) break;
    at = "at=" + answer["at"].get<std::string>();
  }
  EXPECT_GT(parts, 1u);
  EXPECT_EQ(listed, std::set<std::string>(stored.begin(), stored.end()));
}

TEST_F(EventsTest, OfWhatAnAskerMayNotSeeNothingIsTold) {
  const auto mine = put(open({{"tenant", "blue"}}), 1, 5), others = put(open({{"tenant", "scarlet"}}), 100, 5);
  const auto may_see = [](const NamespaceRecord& record) { return record.owner() == "blue"; };
  for (const std::string path : {"/events.json", "/events/blocks.json"}) {
    const std::string text = answers.answer(path, "", may_see).value();
    EXPECT_THAT(text, Not(HasSubstr("scarlet"))) << path;
    for (const BlockHash& hash : others) EXPECT_THAT(text, Not(HasSubstr(to_hex(hash.bytes)))) << path;
    for (const BlockHash& hash : mine) EXPECT_THAT(text, HasSubstr(to_hex(hash.bytes))) << path;
    EXPECT_EQ(nlohmann::json::parse(text)["next"], 10);
  }
}

TEST(SpaceOwnerTest, IsWhomTheStoredRecordNames) {
  const auto owner = [](std::map<std::string, std::string> fields) {
    fields.merge(std::map<std::string, std::string>{{"model", "m"}, {"block_size", "16"}, {"block_bytes", "64"}});
    return owner_of(NamespaceRecord::from_fields(fields).value());
  };
  const std::string salt(64, 'a');
  EXPECT_EQ(owner({{"tenant", "blue"}}).tenant, "blue");
  EXPECT_FALSE(owner({{"tenant", "blue"}}).is_salted);
  EXPECT_EQ(owner({{"node_tenant", "red"}, {"node_salt", salt}}).tenant, "red");
  EXPECT_TRUE(owner({{"node_tenant", "red"}, {"node_salt", salt}}).is_salted);
  EXPECT_EQ(owner({{"share", "all"}, {"node_salt", salt}}).share, "all");
  EXPECT_EQ(owner({{"share", "all"}, {"node_salt", salt}}).tenant, "");
}

TEST_F(EventsTest, NumbersOfAnotherLifeAreAGap) {
  put(open({}), 1, 5);
  EXPECT_FALSE(ask("/events.json", "from=3", &EventsTest::all)["has_gap"]);
  auto answer = ask("/events.json", "from=3&life=00000000000000000000000000000001", &EventsTest::all);
  EXPECT_TRUE(answer["has_gap"]);
  EXPECT_TRUE(answer["events"].empty());
  EXPECT_EQ(answer["next"], 5);
  answer = ask("/events.json", "from=6", &EventsTest::all);
  EXPECT_TRUE(answer["has_gap"]);
}

TEST_F(EventsTest, QueriesThatMakeNoSenseAreNotAnswered) {
  for (const std::string bad :
       {"from", "from=", "from=-1", "from=1&from=2", "from=1x", "from=99999999999999999999", "life=", "life=ab",
        "life=0011223344556677889900112233445g", "after=1", "at=memory.1"}) {
    EXPECT_FALSE(answers.answer("/events.json", bad, &EventsTest::all)) << bad;
  }
  for (const std::string bad : {"at=", "at=memory.", "at=gpu.1", "at=disk.-1", "at=disk.1x", "at=disk.4294967296", "x"})
    EXPECT_FALSE(answers.answer("/events/blocks.json", bad, &EventsTest::all)) << bad;
  EXPECT_FALSE(answers.answer("/events/other.json", "", &EventsTest::all));
  const auto far = ask("/events/blocks.json", "at=disk.4294967295", &EventsTest::all);
  EXPECT_TRUE(far["at"].is_null());
}

}  // namespace
}  // namespace kv
