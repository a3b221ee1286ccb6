// The status page: what the node tells it, within its bounds, and what a browser may do with it.
#include "store/node/status/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <array>
#include <nlohmann/json.hpp>
#include <regex>

#include "store/node/status/page.h"
#include "store/node/status/tree_query.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

BlockHash numbered(std::uint64_t number) {
  BlockHash hash;
  for (std::size_t at = 0; at < hash.bytes.size(); at += 8) {
    const std::uint64_t word = (number * 4 + at + 1) * 0x9E3779B97F4A7C15;
    std::memcpy(hash.bytes.data() + at, &word, sizeof word);
  }
  return hash;
}

class StatusTest : public testing::Test {
 protected:
  static std::unique_ptr<Store> make_store() {
    StoreConfig config;
    config.arena.capacity_bytes = 32 << 20;
    config.arena.touch = false;
    config.namespace_count_max = 10'000;
    return Store::create(config).value();
  }
  SpaceId open(std::map<std::string, std::string> fields) {
    fields.merge(std::map<std::string, std::string>{{"block_size", "16"}, {"block_bytes", "64"}});
    const auto record = NamespaceRecord::from_fields(fields).value();
    return store.with([&](Store& each) { return each.open(record).value(); });
  }
  void put(SpaceId space, std::span<const BlockHash> hashes) {
    store.with([&](Store& each) {
      const auto plan = each.offer(space, hashes, {}, clock.now()).value();
      const std::array<std::uint64_t, 1> sums{};
      for (std::size_t i = 0; i < plan.incoming.size(); ++i) each.commit(plan.put, sums, clock.now());
      if (plan.put != PutId{}) each.end_put(plan.put);
    });
  }
  /// A chain that shares nothing with others.
  std::vector<BlockHash> fresh(std::size_t count) {
    std::vector<BlockHash> hashes;
    while (hashes.size() < count) hashes.push_back(numbered(++number_));
    return hashes;
  }
  json ask(const std::string& page, const std::string& query = "") {
    clock.advance(10s);  // not what was kept
    const auto text = status.answer("/status/" + page, query, everybody);
    EXPECT_TRUE(text) << page << "?" << query;
    return text ? json::parse(*text) : json();
  }

  VirtualClock clock;
  NodeMetrics metrics{"1.2.3"};
  LockedStore store{make_store(), metrics};
  NodeContext node{.store = store, .clock = clock, .metrics = metrics, .limits = {}};
  PeerAccess everybody{nullptr};  ///< Without a policy.
  StatusAnswers status{node, {.version = "1.2.3", .disk_capacity_bytes = 0, .is_ready = [] { return true; }}};

 private:
  std::uint64_t number_ = 0;
};

TEST_F(StatusTest, NowTellsOfNamespacesAndTenants) {
  const SpaceId a = open({{"model", "m"}, {"tenant", "acme"}}), b = open({{"model", "m"}, {"tenant", "globex"}});
  put(a, fresh(3));
  put(b, fresh(5));
  node.node_id = "n1";
  const json now = ask("now.json");
  EXPECT_EQ(now["node"]["id"], "n1");
  EXPECT_EQ(now["node"]["state"], "serving");
  EXPECT_EQ(now["memory"]["blocks"], 8);
  EXPECT_EQ(now["spaces"]["count"], 2);
  ASSERT_EQ(now["spaces"]["shown"].size(), 2u);
  EXPECT_EQ(now["spaces"]["shown"][0]["fields"]["tenant"], "globex") << "the largest first";
  EXPECT_EQ(now["spaces"]["shown"][0]["bytes"], 5 * 64);
  EXPECT_EQ(now["tenants"][1]["name"], "acme");
  EXPECT_EQ(now["cluster"], nullptr);
  EXPECT_FALSE(now.contains("disk"));
}

TEST_F(StatusTest, NoSaltAndNoHashIsTold) {
  const SpaceId space = open({{"model", "m"}, {"salt", "c0ffee-secret"}});
  const auto hashes = fresh(40);
  put(space, hashes);
  for (std::uint32_t i = 0; i < 100; ++i)
    node.hot_roots->count(store.with([&](Store& each) { return each.find_namespace(space)->id(); }), hashes, 0, 1);
  status.sample();
  for (const std::string page : {"now.json", "history.json", "tree.json"}) {
    clock.advance(10s);
    const std::string text = status.answer("/status/" + page, "", everybody).value();
    EXPECT_THAT(text, Not(HasSubstr("c0ffee"))) << page;
    for (const BlockHash& hash : hashes) EXPECT_THAT(text, Not(HasSubstr(to_hex(hash.bytes).substr(0, 12)))) << page;
  }
  EXPECT_EQ(ask("now.json")["spaces"]["shown"][0]["fields"]["salt"], "(set)");
  ASSERT_FALSE(ask("now.json")["hot"].empty());
  EXPECT_EQ(ask("now.json")["hot"][0]["tokens"], 32 * 16);
}

TEST_F(StatusTest, NamesThatLookLikeMarkupAreTextInJson) {
  const std::string name = "</script><img src=x onerror=alert(1)>\"'&";
  put(open({{"model", name}}), fresh(1));
  ClusterView view{.epoch = 1, .extent_blocks = 1, .members = {}};
  view.members.emplace_back().id = "\xff\xfe<b>";  // whoever may write to etcd
  node.cluster.set(view);
  const json now = ask("now.json");
  EXPECT_EQ(now["spaces"]["shown"][0]["fields"]["model"], name);
  EXPECT_EQ(now["cluster"]["members"][0]["id"], "\xEF\xBF\xBD\xEF\xBF\xBD<b>");
}

TEST_F(StatusTest, AnswersAreBounded) {
  for (int i = 0; i < 3000; ++i) put(open({{"model", "m" + std::to_string(i)}}), fresh(1 + i % 3));
  const json now = ask("now.json");
  EXPECT_EQ(now["spaces"]["shown"].size(), StatusAnswers::kSpacesShown);
  EXPECT_EQ(now["spaces"]["others"]["count"], 3000 - StatusAnswers::kSpacesShown);
  const json tree = ask("tree.json");
  EXPECT_EQ(tree["parts"].size(), StatusAnswers::kPartsMax);
  EXPECT_TRUE(tree["is_exact"]);
  EXPECT_LE(tree["spaces"].size(), StatusAnswers::kPartsMax);
  for (int i = 0; i < 1000; ++i) status.sample();
  const json history = ask("history.json");
  EXPECT_EQ(history["age_s"].size(), History::kPoints);
  for (const auto& series : history["series"]) EXPECT_EQ(series.size(), History::kPoints);
}

TEST_F(StatusTest, ALargeTreeComesFromASampleAndAPartOfItWhole) {
  const SpaceId space = open({{"model", "m"}});
  const auto root = fresh(64);
  for (int i = 0; i < 1500; ++i) {
    auto chain = root;
    for (const BlockHash& hash : fresh(16)) chain.push_back(hash);
    put(space, chain);
  }
  const json tree = ask("tree.json");
  EXPECT_FALSE(tree["is_exact"]) << "24,064 blocks, of which so many are looked at: " << StatusAnswers::kLooks;
  EXPECT_EQ(tree["blocks_per_sample"], 2);
  const std::uint64_t blocks = tree["parts"][0]["blocks"];
  EXPECT_NEAR(static_cast<double>(blocks), 24064, 500);
  EXPECT_EQ(tree["parts"][0]["parent"], -1);
  const json& top = tree["parts"][1];
  EXPECT_EQ(top["parent"], 0);
  EXPECT_EQ(top["own_blocks"], 64);
  EXPECT_EQ(top["children"], 1500);
  EXPECT_GT(tree["parts"][1]["hidden"], 200);
  const json& branch = tree["parts"][2];
  EXPECT_EQ(branch["position"], 64);
  const auto inside = [&](const json& part) {
    return "space=" + std::to_string(static_cast<std::uint64_t>(space)) +
           "&top=" + std::to_string(part["top"].get<int>()) + "&name=" + part["name"].get<std::string>();
  };
  const json below = ask("tree.json", inside(branch));
  EXPECT_TRUE(below["is_exact"]);
  ASSERT_EQ(below["parts"].size(), 2u) << "the namespace, and the branch";
  EXPECT_EQ(below["parts"][1]["blocks"], 16);
  EXPECT_EQ(below["lock_holds"], 1);
  EXPECT_GT(tree["lock_holds"], 10) << "the lock is left in between";
  json gone = branch;
  gone["name"] = "1";
  EXPECT_TRUE(ask("tree.json", inside(gone))["is_gone"]);
}

TEST_F(StatusTest, AnAnswerIsKeptForAMoment) {
  const SpaceId space = open({{"model", "m"}});
  EXPECT_EQ(ask("now.json")["memory"]["blocks"], 0);
  put(space, fresh(1));
  EXPECT_EQ(json::parse(*status.answer("/status/now.json", "", everybody))["memory"]["blocks"], 0);
  clock.advance(StatusAnswers::kKeptFor);
  EXPECT_EQ(json::parse(*status.answer("/status/now.json", "", everybody))["memory"]["blocks"], 1);
}

TEST_F(StatusTest, WhatNoPageAsksForHasNoAnswer) {
  for (const std::string query : {"x", "span=day&", "span=week"})
    EXPECT_FALSE(status.answer("/status/history.json", query, everybody));
  EXPECT_TRUE(status.answer("/status/history.json", "span=day", everybody));
  EXPECT_FALSE(status.answer("/status/now.json", "x=1", everybody));
  EXPECT_FALSE(status.answer("/status/tree.json", "top=1", everybody));
  EXPECT_FALSE(status.answer("/status/else.json", "", everybody));
}

TEST(TreeQueryTest, IsReadOrRefused) {
  const auto whole = read_tree_query("tier=disk&space=12&top=345&name=0123456789abcdef").value();
  EXPECT_EQ(whole.tier, BlockTier::kDisk);
  EXPECT_EQ(whole.space, SpaceId{12});
  EXPECT_EQ(whole.top, BlockId{345});
  EXPECT_EQ(whole.top_name, 0x0123456789abcdefu);
  EXPECT_TRUE(read_tree_query(""));
  EXPECT_TRUE(read_tree_query("name=0&top=0&space=0"));
  for (const std::string bad :
       {"&", "=", "tier", "tier=", "tier=gpu", "tier=disk&tier=disk", "space=-1", "space=1x", "space= 1", "space=+1",
        "space=99999999999999999999", "top=1", "space=1&top=1", "space=1&name=1", "top=1&name=1",
        "space=1&top=4294967295&name=1", "space=1&top=1&name=g", "other=1", "space=1&space=1"}) {
    EXPECT_FALSE(read_tree_query(bad)) << bad;
  }
}

TEST(HistoryTest, RatesAreThoseBetweenTwoPoints) {
  History history;
  StoreStats stats;
  NodeMetrics metrics("1");
  TimePoint now{100s};
  EXPECT_EQ(history.last_json(), "{}");
  history.add(stats, metrics.totals(), now);
  EXPECT_EQ(history.last_json(), "{}");
  now += 10s;  // late by one step
  stats.allocated_bytes = 500;
  stats.stored_blocks = 50;
  stats.match_hit_blocks = 30;
  stats.match_miss_blocks = 10;
  stats.get_hit_blocks = 1000;  // of what match has found: not counted twice
  for (int i = 0; i < 100; ++i) metrics.observe_request(FrameType::kMatch, i < 98 ? 15us : 15ms, false);
  history.add(stats, metrics.totals(), now);
  const json last = json::parse(history.last_json());
  EXPECT_EQ(last["memory_bytes"], 500);
  EXPECT_EQ(last["stored"], 5);
  EXPECT_EQ(last["found_memory"], 3);
  EXPECT_EQ(last["missed"], 1);
  EXPECT_EQ(last["requests"], 10);
  EXPECT_EQ(last["get_p99"], nullptr) << "nobody asked";
  EXPECT_GT(last["match_p99"], 1e-2);
  EXPECT_LE(last["match_p99"], 2e-2);
  EXPECT_LT(last["match_p50"], 2e-5);
  now += 5s;
  stats.get_hit_blocks += 20;
  history.add(stats, metrics.totals(), now);
  EXPECT_EQ(json::parse(history.last_json())["found_memory"], 4) << "where clients only get, what they got counts";
}

TEST(HistoryTest, AnHourAndADayAreKeptAndNoMore) {
  History history;
  NodeMetrics metrics("1");
  const auto totals = metrics.totals();
  TimePoint now{1s};
  for (std::size_t i = 0; i < History::kPoints * History::kLongSteps * 2; ++i, now += History::kStep)
    history.add({}, totals, now);
  const json hour = json::parse(history.json(false)), day = json::parse(history.json(true));
  EXPECT_EQ(hour["age_s"].size(), History::kPoints);
  EXPECT_EQ(hour["age_s"][0], 3595);
  EXPECT_EQ(hour["age_s"].back(), 0);
  EXPECT_EQ(day["step_s"], 120);
  EXPECT_EQ(day["age_s"][0], 719 * 120);
}

/// As a browser does it: the hash of what stands between the tags.
std::string hash_source(const std::string& text) {
  std::array<unsigned char, 32> digest;
  std::array<unsigned char, 45> base64;
  EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  EVP_EncodeBlock(base64.data(), digest.data(), 32);
  return "'sha256-" + std::string(reinterpret_cast<const char*>(base64.data())) + "'";
}
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin) + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

TEST(StatusPageTest, ItsPolicyAllowsWhatIsInItAndNothingElse) {
  const StatusPage& page = status_page();
  EXPECT_THAT(page.policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page.policy, HasSubstr("script-src " + hash_source(between(page.html, "<script>", "</script>")) + ";"));
  EXPECT_THAT(page.policy, HasSubstr("style-src " + hash_source(between(page.html, "<style>", "</style>")) + ";"));
  EXPECT_THAT(page.policy, Not(HasSubstr("unsafe")));
  EXPECT_THAT(page.policy, HasSubstr("require-trusted-types-for 'script'"));
}

TEST(StatusPageTest, NothingInItComesFromElsewhere) {
  const std::string& html = status_page().html;
  EXPECT_FALSE(std::regex_search(html, std::regex("<[a-z]+[^>]* (on[a-z]+|style)=")));
  EXPECT_FALSE(std::regex_search(html, std::regex("(src|href)=\"(https?:)?//|@import|url\\(")));
  EXPECT_THAT(html, Not(HasSubstr("innerHTML =")));
  EXPECT_LT(html.size(), 128u * 1024);
}

}  // namespace
}  // namespace kv
