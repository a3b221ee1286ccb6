// What a session says to who asks why a chain is not found, and what it tells the slow log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "store/node/access/access.h"
#include "store/node/session/core/session_wire.h"
#include "tests/node/admin_question.h"
#include "tests/node/limits_change.h"
#include "tests/node/node_world.h"

namespace kv {
namespace {

using testing::HasSubstr;

const char* const kTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

class MissSessionTest : public NodeTest {
 protected:
  auto why_request(std::span<const BlockHash> hashes) {
    return [=, this, wanted = wire_hashes(hashes)](FlatBufferBuilder& b) {
      const auto list = b.CreateVectorOfStructs(wanted);
      wire::MatchRequestBuilder request(b);
      request.add_space(space);
      request.add_hashes(list);
      request.add_namespace_check(check());
      request.add_why(true);
      return request.Finish();
    };
  }
  Answer why(RawClient& client, std::span<const BlockHash> hashes) {
    return client.ask(FrameType::kMatch, 200, why_request(hashes));
  }
  static MissKind kind(const Answer& answer) {
    const auto* const reason = answer.as<wire::MatchResponse>().reason();
    return reason == nullptr ? MissKind::kUnknown : miss_kind_of(reason->why());
  }
  NamespaceRecord record_of(std::map<std::string, std::string> more) const {
    more.insert({{"model", "m"},
                 {"hash", "vllm"},
                 {"block_size", std::to_string(kBlockSize)},
                 {"block_bytes", std::to_string(kBlockBytes)}});
    return NamespaceRecord::from_fields(std::move(more)).value();
  }
  /// Opens it and stores a chain there.
  void store_in(RawClient& client, const NamespaceRecord& which, std::span<const BlockHash> hashes) {
    record = which;
    space = open(client, record);
    put(client, hashes);
  }
  void look_in(RawClient& client, const NamespaceRecord& which) {
    record = which;
    space = open(client, record);
  }
};

TEST_F(MissSessionTest, ANodeSaysWhyAChainEnds) {
  const auto client = greet();
  put(*client, chain(1, 3));
  EXPECT_EQ(why(*client, chain(1, 3)).as<wire::MatchResponse>().reason(), nullptr) << "all of it is here";
  EXPECT_EQ(why(*client, chain(1, 3)).as<wire::MatchResponse>().host_blocks(), 3u);
  EXPECT_EQ(kind(why(*client, chain(1, 4))), MissKind::kNotRemembered);
  client->ask(FrameType::kDrop, 9, prefix_request(std::span<const BlockHash>(chain(1, 3)).first(2)));
  const Answer dropped = why(*client, chain(1, 3));
  EXPECT_EQ(dropped.as<wire::MatchResponse>().host_blocks(), 1u);
  EXPECT_EQ(kind(dropped), MissKind::kDropped);
  client->close();
  world.run_until([&] { return session_count == 0; }, 10s);
  start(4);
  const auto other = greet();
  put(*other, chain(1, 4));
  world.run_for(20s);
  put(*other, chain(2, 2));
  world.run_for(7s);
  const Answer evicted = why(*other, chain(1, 4));
  EXPECT_EQ(kind(evicted), MissKind::kEvicted);
  EXPECT_NEAR(static_cast<double>(evicted.as<wire::MatchResponse>().reason()->left_us()), 7e6, 1.1e6);
  EXPECT_NEAR(static_cast<double>(evicted.as<wire::MatchResponse>().reason()->idle_us()), 20e6, 3e6);
}

TEST_F(MissSessionTest, TheQuestionIsRefusedAsAMatchIs) {
  const auto client = greet();
  EXPECT_EQ(why(*client, chain(1, 1001)).error(), Errc::kTooLarge);
  space += 100;
  EXPECT_EQ(why(*client, chain(1, 1)).error(), Errc::kNoNamespace);
}

TEST_F(MissSessionTest, ATwinOfTheNamespaceIsNamedWithTheFieldsThatDiffer) {
  const auto client = greet();
  store_in(*client, record_of({{"dtype", "float16"}, {"salt", "one"}}), chain(1, 3));
  look_in(*client, record_of({{"dtype", "bfloat16"}, {"salt", "two"}, {"revision", "r1"}}));
  const Answer answer = why(*client, chain(1, 3));
  const auto* const others = answer.as<wire::MatchResponse>().reason()->others();
  ASSERT_EQ(others->size(), 1u);
  const auto* const other = others->Get(0);
  EXPECT_TRUE(other->has_block());
  EXPECT_EQ(other->stored_blocks(), 3u);
  ASSERT_EQ(other->differs()->size(), 3u);
  EXPECT_EQ(other->differs()->Get(0)->field()->str(), "dtype");
  EXPECT_EQ(other->differs()->Get(0)->here()->str(), "bfloat16");
  EXPECT_EQ(other->differs()->Get(0)->there()->str(), "float16");
  EXPECT_EQ(other->differs()->Get(1)->field()->str(), "revision");
  EXPECT_EQ(other->differs()->Get(1)->there(), nullptr);
  EXPECT_EQ(other->differs()->Get(2)->field()->str(), "salt");
  EXPECT_EQ(other->differs()->Get(2)->here(), nullptr) << "a salt is told to nobody";
  EXPECT_EQ(other->differs()->Get(2)->there(), nullptr);
}

/// Where hashes depend on the record, the same prompt has other names there: records that differ in little are all that
/// there is to say.
TEST_F(MissSessionTest, WhereNothingWasEverStoredNamespacesThatDifferInLittleAreNamed) {
  const auto client = greet();
  store_in(*client, record_of({{"dtype", "float16"}}), chain(1, 3));
  store_in(*client, record_of({{"dtype", "a"}, {"revision", "b"}, {"rope", "c"}, {"lora", "d"}}), chain(2, 3));
  look_in(*client, record_of({{"dtype", "bfloat16"}}));
  const Answer answer = why(*client, chain(77, 3));
  const auto* const reason = answer.as<wire::MatchResponse>().reason();
  EXPECT_EQ(reason->stored_blocks(), 0u);
  ASSERT_EQ(reason->others()->size(), 1u) << "the other one differs in too much";
  EXPECT_FALSE(reason->others()->Get(0)->has_block());
  // Once something is stored here, the namespace is not a mistake.
  put(*client, chain(3, 1));
  EXPECT_EQ(why(*client, chain(77, 3)).as<wire::MatchResponse>().reason()->others()->size(), 0u);
}

TEST_F(MissSessionTest, WhatIsToldIsBounded) {
  start(64);
  const auto client = greet();
  for (int i = 0; i < 12; ++i)
    store_in(*client, record_of({{"dtype", std::string(1000, static_cast<char>('a' + i))}}), chain(1, 2));
  look_in(*client, record_of({{"dtype", "x"}}));
  const Answer answer = why(*client, chain(1, 2));
  EXPECT_EQ(answer.as<wire::MatchResponse>().reason()->others()->size(), 4u);
  EXPECT_LT(answer.table.size(), 4096u);
}

/// A look into all namespaces takes turns: whoever asks meanwhile is answered first.
TEST_F(MissSessionTest, OthersHaveTheirTurnWhileThousandsOfNamespacesAreLookedAt) {
  const auto curious = greet(), other = greet();
  store->with([&](Store& each) {
    for (int i = 0; i < 900; ++i) ASSERT_TRUE(each.open(record_of({{"revision", std::to_string(i)}})));
  });
  curious->read();
  other->read();
  for (std::uint64_t id = 1; id <= 3; ++id) curious->send(FrameType::kMatch, 200 + id, why_request(chain(77, 3)));
  other->send(FrameType::kPing, 7, ping());
  EXPECT_EQ(other->answer().header.request_id, 7u);
  EXPECT_FALSE(curious->next(0s)) << "all namespaces in one go, and nobody else meanwhile";
  for (std::uint64_t id = 1; id <= 3; ++id) {
    const Answer answer = curious->answer();
    EXPECT_EQ(answer.header.request_id, 200 + id) << "one after the other";
    EXPECT_EQ(kind(answer), MissKind::kNotRemembered);
  }
}

TEST_F(MissSessionTest, WhoLeavesWhileALookIsUnderWayIsNotWaitedFor) {
  const auto curious = greet();
  store->with([&](Store& each) {
    for (int i = 0; i < 900; ++i) ASSERT_TRUE(each.open(record_of({{"revision", std::to_string(i)}})));
  });
  for (std::uint64_t id = 1; id <= 3; ++id) curious->send(FrameType::kMatch, 200 + id, why_request(chain(77, 3)));
  curious->close();
  world.run_until([&] { return session_count == 0; }, 10s);
  EXPECT_EQ(session_count, 0u);
}

/// Large records come in parts: no answer, and no hold of the store's lock, is for all of them.
TEST_F(MissSessionTest, NamespacesAreToldInPartsAndEachOnce) {
  const auto client = greet();
  std::set<std::string> opened = {record.text()};
  store->with([&](Store& each) {
    for (int i = 0; i < 900; ++i) {
      const NamespaceRecord one = record_of(
          {{"revision", std::to_string(i)}, {"x.a", std::string(1000, 'a')}, {"x.b", std::string(1000, 'b')}});
      ASSERT_TRUE(each.open(one));
      opened.insert(one.text());
    }
  });
  std::set<std::string> told;
  std::string query;
  std::size_t parts = 0;
  do {
    const Answer answer = client->ask(FrameType::kAdmin, 300 + parts, admin_request("/stats.json", query));
    ++parts;
    EXPECT_LT(answer.table.size(), 600u << 10);
    const nlohmann::json stats = json_of(answer);
    EXPECT_EQ(stats.contains("values"), query.empty()) << "figures come with the first part";
    EXPECT_LE(stats.at("namespaces").size(), SpaceDesk::kViewsPerCall);
    for (const auto& each : stats["namespaces"]) EXPECT_TRUE(told.insert(each.at("record").get<std::string>()).second);
    query = stats.contains("next") ? "after=" + stats["next"].get<std::string>() : "";
  } while (!query.empty() && parts < 100);
  EXPECT_GT(parts, 4u);
  EXPECT_EQ(told, opened);
  for (const char* const bad : {"after=0011", "x=1", "after"})
    EXPECT_EQ(client->ask(FrameType::kAdmin, 500, admin_request("/stats.json", bad)).error(), Errc::kBadRequest) << bad;
}

// -- with a policy

class MissAccessTest : public MissSessionTest {
 protected:
  MissAccessTest() {
    has_tenants = true;
    start(64);
    file_ = std::filesystem::temp_directory_path() / ("kvstore-why-" + std::to_string(::getpid()) + ".toml");
  }
  ~MissAccessTest() override { std::filesystem::remove(file_); }

  /// Of everybody from now on.
  void grant(const std::string& roles, const std::string& tenant) {
    std::ofstream(file_, std::ios::trunc) << "[all]\nmatch = [\"loopback\"]\nroles = [" << roles << "]\n"
                                          << (tenant.empty() ? "" : "tenant = \"" + tenant + "\"\n");
    if (!access_) {
      access_ = AccessControl::open(file_).value();
      node->access = access_.get();
    } else {
      EXPECT_FALSE(access_->reload().code);
    }
  }
  /// How many namespaces are named to who asks in tenant a's.
  std::size_t others(std::span<const BlockHash> hashes) {
    const auto client = connect();
    client->ask(FrameType::kHello, 1, hello_request());
    look_in(*client, record_of({{"tenant", "a"}, {"dtype", "bfloat16"}}));
    const Answer answer = why(*client, hashes);
    if (answer.is_error()) throw std::runtime_error(answer.message());
    const auto* const list = answer.as<wire::MatchResponse>().reason()->others();
    for (const auto* const each : *list) {
      for (const auto* const one : *each->differs()) differs_in_tenant_ |= one->field()->str() == "tenant";
    }
    return list->size();
  }

  const std::string kReader = "\"reader\"", kAll = "\"reader\", \"writer\", \"operator\"";
  bool differs_in_tenant_ = false;

 private:
  std::string file_;
  std::unique_ptr<AccessControl> access_;
};

TEST_F(MissAccessTest, ATenantHearsOfItsOwnNamespacesAndAnOperatorOfAll) {
  grant(kAll, "");
  {
    const auto keeper = connect();
    keeper->ask(FrameType::kHello, 1, hello_request());
    store_in(*keeper, record_of({{"tenant", "a"}, {"dtype", "float16"}}), chain(1, 3));
    store_in(*keeper, record_of({{"tenant", "b"}, {"dtype", "bfloat16"}}), chain(1, 3));
    store_in(*keeper, record_of({{"dtype", "bfloat16"}}), chain(1, 3));
  }
  EXPECT_EQ(others(chain(1, 3)), 3u) << "whoever sees the counters sees these";
  EXPECT_TRUE(std::exchange(differs_in_tenant_, false));
  grant(kReader, "a");
  EXPECT_EQ(others(chain(1, 3)), 1u);
  EXPECT_FALSE(differs_in_tenant_);
  grant(kAll, "a");  // an operator of the tenant's own
  EXPECT_EQ(others(chain(1, 3)), 1u);
  EXPECT_FALSE(differs_in_tenant_);
  grant(kReader, "");  // of no tenant, and with no right to look around
  EXPECT_EQ(others(chain(1, 3)), 1u);
  EXPECT_FALSE(differs_in_tenant_);
}

TEST_F(MissAccessTest, WhyIsAskedByWhoMayReadAndTheSlowLogIsEmptiedByWhoMayOperate) {
  const auto read = admin_request("/slowlog.json"), reset = admin_request("/slowlog/reset");
  node->slow.set({.threshold = 1ns, .count_max = 10});
  grant("\"writer\"", "");
  const auto client = connect();
  client->ask(FrameType::kHello, 1, hello_request());
  look_in(*client, record_of({{"tenant", "a"}}));
  EXPECT_EQ(why(*client, chain(1, 1)).error(), Errc::kPermissionDenied);
  EXPECT_EQ(client->ask(FrameType::kAdmin, 3, read).error(), Errc::kPermissionDenied);
  grant("\"metrics\"", "");
  EXPECT_FALSE(client->ask(FrameType::kAdmin, 4, read).is_error());
  const double before = metric("kvstore_requests_denied_total{right=\"operate\"}");
  node->slow.add({});
  const Answer denied = client->ask(FrameType::kAdmin, 5, reset);
  EXPECT_EQ(denied.error(), Errc::kPermissionDenied);
  EXPECT_THAT(denied.message(), HasSubstr("'operate'"));
  EXPECT_EQ(metric("kvstore_requests_denied_total{right=\"operate\"}"), before + 1);
  EXPECT_FALSE(node->slow.told().requests.empty()) << "nothing was emptied";
  grant("\"operator\"", "");
  EXPECT_FALSE(client->ask(FrameType::kAdmin, 6, reset).is_error());
  EXPECT_TRUE(node->slow.told().requests.empty());
}

// -- the slow log

class SlowSessionTest : public MissSessionTest {
 protected:
  SlowSessionTest() { node->slow.set({.threshold = 1s, .count_max = 10}); }
  static wire::Trace trace() {
    const auto bytes = TraceContext::parse(kTrace)->bytes();
    wire::Trace made;
    std::memcpy(&made, bytes.data(), sizeof made);
    return made;
  }
  std::vector<SlowRequest> slow() { return node->slow.told().requests; }
};

TEST_F(SlowSessionTest, WhatIsNotSlowIsNotThere) {
  const auto client = greet();
  put(*client, chain(1, 3));
  EXPECT_EQ(get(*client, chain(1, 3)).block_count, 3u);
  EXPECT_EQ(matched(*client, chain(1, 3)), 3u);
  EXPECT_TRUE(slow().empty());
  EXPECT_EQ(metric("kvstore_slow_requests_total{op=\"get\"}"), 0);
}

TEST_F(SlowSessionTest, APutThatWaitsForItsClientSaysSo) {
  const auto client = greet();
  const auto hashes = chain(1, 2);
  const auto request = [&](FlatBufferBuilder& b) {
    const auto wanted = wire_hashes(hashes);
    const wire::Trace own = trace();
    const auto list = b.CreateVectorOfStructs(wanted);
    wire::PutRequestBuilder put(b);
    put.add_space(space);
    put.add_hashes(list);
    put.add_namespace_check(check());
    put.add_trace(&own);
    return put.Finish();
  };
  EXPECT_FALSE(client->ask(FrameType::kPut, 100, request).is_last());
  world.run_for(3s);
  EXPECT_FALSE(client->ask(FrameType::kPutData, 100, put_data(2, sums(hashes)), blocks(hashes)).is_error());
  const auto told = slow();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].type, FrameType::kPut);
  EXPECT_GE(told[0].took, 3s);
  EXPECT_GE(told[0].phases.client, 2900ms);
  EXPECT_EQ(told[0].phases.sum(), told[0].took) << "all of it is accounted for";
  EXPECT_EQ(told[0].block_count, 2u);
  EXPECT_EQ(told[0].moved_bytes, 2 * kBlockBytes);
  EXPECT_FALSE(told[0].has_failed);
  EXPECT_EQ(told[0].space, record.id());
  EXPECT_EQ(told[0].model, record.field("model"));
  EXPECT_EQ(told[0].identity, "test");
  EXPECT_EQ(told[0].trace.text(), kTrace);
  EXPECT_EQ(metric("kvstore_slow_requests_total{op=\"put\"}"), 1);
}

TEST_F(SlowSessionTest, APutThatWaitsForMemorySaysSo) {
  start(4);
  node->slow.set({.threshold = 1s, .count_max = 10});
  const auto client = greet();
  put(*client, chain(1, 4));
  const auto lease = client->ask(FrameType::kMatch, 5, match_request(chain(1, 4), /*lease=*/true));
  ASSERT_NE(lease.as<wire::MatchResponse>().lease(), 0u);
  const Answer answer = client->ask(FrameType::kPut, 100, put_request(chain(2, 1), 0, {}, 2'000'000));
  EXPECT_TRUE(answer.is_last()) << "no memory came";
  const auto told = slow();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_GE(told[0].phases.room, 1900ms);
  EXPECT_LT(told[0].phases.client, 100ms);
  // Whoever asks why hears the same.
  EXPECT_EQ(kind(why(*client, chain(2, 1))), MissKind::kRefused);
}

TEST_F(SlowSessionTest, AGetOfAClientThatDoesNotReadSaysSo) {
  change(node->limits)->inline_window_bytes = 4 * kBlockBytes;
  const auto client = greet();
  const auto hashes = chain(1, 24);
  put(*client, hashes);
  client->send(FrameType::kGet, 101, get_request(hashes));
  world.run_until([&] { return metric("kvstore_bytes_out_total{path=\"inline\"}") > 0; }, 10s);
  world.network.freeze("node");  // what the node sends does not arrive
  world.run_for(4s);
  world.network.thaw("node");
  while (!client->answer().is_last()) {
  }
  world.run_for(1s);
  const auto told = slow();
  if (told.empty()) GTEST_SKIP() << "the simulated network took all of it at once";
  EXPECT_EQ(told[0].type, FrameType::kGet);
  EXPECT_GE(told[0].phases.client, told[0].took / 2);
  EXPECT_EQ(told[0].moved_bytes, 24 * kBlockBytes);
}

TEST_F(SlowSessionTest, AMatchIsToldWithItsNamespaceAndTrace) {
  node->slow.set({.threshold = 1ns, .count_max = 10});
  const auto client = greet();
  node->slow.clear();
  // On virtual time a match takes none, so it is never slow: what the log would be told is looked at by its parts.
  const wire::Trace own = trace();
  EXPECT_EQ(trace_of(&own).text(), kTrace);
  EXPECT_FALSE(trace_of(nullptr).is_set());
  EXPECT_EQ(matched(*client, chain(1, 2)), 0u);
}

TEST_F(SlowSessionTest, TheLogIsToldOverTheWire) {
  const auto client = greet();
  SlowRequest request{.took = 2s, .type = FrameType::kGet, .block_count = 7, .moved_bytes = 99, .has_failed = true};
  request.phases = {.lock = 100ms, .store = 200ms, .room = 1ms, .disk = 300ms, .move = 400ms, .client = 500ms};
  request.space = record.id();
  request.model = "m\n";
  request.tenant = "t";
  request.identity = "me";
  request.peer = "tcp:somewhere";
  request.session = 12;
  request.trace = *TraceContext::parse(kTrace);
  node->slow.add(request);
  node->slow.add({.took = 1s, .type = FrameType::kAdmin});
  const nlohmann::json told = json_of(client->ask(FrameType::kAdmin, 9, admin_request("/slowlog.json")));
  EXPECT_EQ(told.at("threshold_seconds"), 1.0);
  EXPECT_EQ(told.at("count"), 2);
  ASSERT_EQ(told.at("requests").size(), 2u);
  EXPECT_EQ(told["requests"][0]["op"], "admin") << "the latest first";
  EXPECT_EQ(told["requests"][0]["traceparent"], "");
  EXPECT_EQ(told["requests"][0]["namespace_id"], "");
  const nlohmann::json one = told["requests"][1];
  EXPECT_EQ(one.at("took_seconds"), 2.0);
  EXPECT_EQ(one.at("phases").at("lock"), 0.1);
  EXPECT_DOUBLE_EQ(one["phases"].at("other").get<double>(), 0.499);
  EXPECT_EQ(one.at("model"), "m\\n");
  EXPECT_EQ(one.at("bytes"), 99);
  EXPECT_EQ(one.at("failed"), true);
  EXPECT_EQ(one.at("traceparent"), kTrace);
}

}  // namespace
}  // namespace kv
