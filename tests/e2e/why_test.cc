// "It writes and never reads": each reason as a person meets it, with the real node and kvstorectl; and the slow log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr std::size_t kWhyBytes = 64 << 10;
const std::string kTraceText = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

NamespaceRecord record_of(std::map<std::string, std::string> more) {
  more.insert({{"model", "why"}, {"block_size", "16"}, {"block_bytes", std::to_string(kWhyBytes)}});
  return NamespaceRecord::from_fields(std::move(more)).value();
}

std::string write(const TempDir& directory, const std::string& name, const std::string& text) {
  const std::string path = directory.path() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

class WhyTest : public testing::Test {
 protected:
  /// What kvstorectl says, as JSON.
  json ctl(std::vector<std::string> arguments, int status = 0) {
    arguments.insert(arguments.begin(), ctl_program());
    arguments.insert(arguments.end(), {"--json", "--endpoint", node->tcp()});
    const Finished finished = run_program(arguments);
    EXPECT_EQ(finished.status, status) << finished.out << finished.err;
    const json document = json::parse(finished.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(document.is_discarded()) << finished.out << finished.err;
    return document;
  }
  json why(const NamespaceRecord& record, std::span<const BlockHash> hashes) {
    std::string list;
    for (const BlockHash& hash : hashes) list += to_hex(hash.bytes) + "\n";
    return ctl(
        {"why", "--record", write(directory, "record", record.text()), "--hashes", write(directory, "hashes", list)});
  }
  std::string text_of(const json& answer) {
    std::string all;
    for (const auto& line : answer["text"]) all += line.get<std::string>() + "\n";
    return all;
  }
  void start(std::vector<std::string> options = {}) {
    options.insert(options.end(),
                   {"--capacity-blocks", "16", "--capacity-block-bytes", "64KiB", "--eviction-policy", "lru"});
    node = std::make_unique<NodeProcess>(options);
  }

  TempDir directory;
  std::unique_ptr<NodeProcess> node;
};

TEST_F(WhyTest, NeverStoredEvictedAndDroppedAreToldApart) {
  start();
  TestClient client(node->tcp(), Transport::kTcp, kWhyBytes, 16);
  const auto first = make_chain(1, 10), second = make_chain(2, 10);
  EXPECT_EQ(why(client.record(), first)["reason"], "not_remembered");
  EXPECT_EQ(client.put(first).stored, 10u);
  EXPECT_TRUE(why(client.record(), first)["whole"].get<bool>());
  EXPECT_EQ(client.put(second).stored, 10u);
  const json evicted = why(client.record(), first);
  EXPECT_EQ(evicted["blocks"], 6);
  EXPECT_EQ(evicted["reason"], "evicted");
  EXPECT_THAT(text_of(evicted), HasSubstr("it was evicted about"));
  EXPECT_EQ(client->drop(client.space(), std::span(second).first(3), kDeadline)->block_count, 8u);
  const json dropped = why(client.record(), second);
  EXPECT_EQ(dropped["blocks"], 2);
  EXPECT_EQ(dropped["reason"], "dropped");
  EXPECT_EQ(client->match(client.space(), first, {.deadline = kDeadline})->block_count, 6u);
  EXPECT_EQ(node->metric("kvstore_match_misses_total{reason=\"evicted\",found=\"some\"}"), 1);
}

TEST_F(WhyTest, WhatWasRefusedIsToldSo) {
  start({"--retained-fraction-max", "1"});
  TestClient client(node->tcp(), Transport::kTcp, kWhyBytes, 16);
  const auto first = make_chain(1, 16), second = make_chain(2, 3);
  EXPECT_EQ(client.put(first).stored, 16u);
  EXPECT_EQ(client->retain(client.space(), first, kDeadline).value(), 16u);
  EXPECT_EQ(client.put(second, 200ms).refused, 3u);
  EXPECT_EQ(why(client.record(), second)["reason"], "refused");
}

TEST_F(WhyTest, ATwinOfTheNamespaceIsNamedAndDoctorFindsIt) {
  start();
  const auto hashes = make_chain(1, 4);
  TestClient writer(node->tcp(), Transport::kTcp, record_of({{"hash", "vllm"}, {"dtype", "float16"}}), 4);
  TestClient reader(node->tcp(), Transport::kTcp, record_of({{"hash", "vllm"}, {"dtype", "bfloat16"}}), 4);
  EXPECT_EQ(writer.put(hashes).stored, 4u);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(reader->match(reader.space(), hashes, {.deadline = kDeadline})->block_count, 0u);
  const json answer = why(reader.record(), hashes);
  EXPECT_EQ(answer["reason"], "not_remembered");
  ASSERT_EQ(answer["others"].size(), 1u);
  EXPECT_TRUE(answer["others"][0]["has_block"].get<bool>());
  EXPECT_EQ(answer["others"][0]["differs"][0]["field"], "dtype");
  EXPECT_THAT(text_of(answer), HasSubstr("has this very chain; it differs in dtype (here bfloat16, there float16)"));
  const json doctor = ctl({"doctor", "--admin", node->admin()});
  std::string found;
  for (const auto& finding : doctor["findings"]) found += finding["found"].get<std::string>() + "\n";
  EXPECT_THAT(found, HasSubstr("They differ in dtype (here bfloat16, there float16)"));
}

/// What engines with several kinds of layers store: names that stand alone.
class WhySetTest : public WhyTest {
 protected:
  static NamespaceRecord set_of(const std::string& dtype) {
    return NamespaceRecord::from_fields(
               {{"model", "why"}, {"kind", "set"}, {"block_bytes_max", std::to_string(kWhyBytes)}, {"dtype", dtype}})
        .value();
  }
  static std::size_t put(TestClient& client, std::span<const BlockHash> names) {
    const auto blocks = client.blocks(names.size());
    const std::vector<std::span<const std::byte>> sources(blocks.begin(), blocks.end());
    return client->put_set(client.space(), names, sources, {.deadline = kDeadline})->stored;
  }
  static std::size_t held(TestClient& client, std::span<const BlockHash> names) {
    return client->match_set(client.space(), names, {.deadline = kDeadline})->held_count;
  }
};

TEST_F(WhySetTest, TheFirstNameThatIsMissedIsExplained) {
  start();
  TestClient client(node->tcp(), Transport::kTcp, set_of("float16"), 16);
  const auto names = make_chain(1, 6), others = make_chain(2, 16);
  EXPECT_EQ(why(client.record(), names)["reason"], "not_remembered");
  EXPECT_EQ(put(client, names), 6u);
  EXPECT_TRUE(why(client.record(), names)["whole"].get<bool>());
  EXPECT_EQ(client->drop(client.space(), std::span(names).subspan(2, 1), kDeadline)->block_count, 1u);
  const json dropped = why(client.record(), names);
  EXPECT_EQ(dropped["blocks"], 2);
  EXPECT_EQ(dropped["reason"], "dropped");
  EXPECT_EQ(put(client, others), 16u) << "there is room for no more";
  EXPECT_EQ(why(client.record(), std::span(names).first(1))["reason"], "evicted");
  EXPECT_EQ(held(client, names), 0u);
  EXPECT_EQ(node->metric("kvstore_match_misses_total{reason=\"evicted\",found=\"nothing\"}"), 1);
}

TEST_F(WhySetTest, ATwinOfTheSetIsNamedAndDoctorFindsIt) {
  start();
  const auto names = make_chain(1, 4);
  TestClient writer(node->tcp(), Transport::kTcp, set_of("float16"), 4);
  TestClient reader(node->tcp(), Transport::kTcp, set_of("bfloat16"), 4);
  EXPECT_EQ(put(writer, names), 4u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(held(reader, names), 0u);
  const json answer = why(reader.record(), names);
  ASSERT_EQ(answer["others"].size(), 1u);
  EXPECT_TRUE(answer["others"][0]["has_block"].get<bool>());
  EXPECT_EQ(answer["others"][0]["differs"][0]["field"], "dtype");
  const json doctor = ctl({"doctor", "--admin", node->admin()});
  std::string found;
  for (const auto& finding : doctor["findings"]) found += finding["found"].get<std::string>() + "\n";
  EXPECT_THAT(found, HasSubstr("20 lookups, and none has found anything; stored is in"));
  EXPECT_THAT(found, HasSubstr("They differ in dtype (here bfloat16, there float16)"));
}

TEST_F(WhyTest, RootsThatNeverMeetAreFoundByDoctor) {
  start();
  TestClient client(node->tcp(), Transport::kTcp, kWhyBytes, 4);
  for (std::uint64_t i = 0; i < 20; ++i) {
    client.put(make_chain(1000 + i, 1));
    EXPECT_EQ(client->match(client.space(), make_chain(i, 1), {.deadline = kDeadline})->block_count, 0u);
  }
  const json doctor = ctl({"doctor", "--admin", node->admin()});
  std::string found;
  for (const auto& finding : doctor["findings"]) found += finding["found"].get<std::string>() + "\n";
  EXPECT_THAT(found, HasSubstr("stored under roots that nobody looks up, looked up under roots that nobody stores"));
}

TEST_F(WhyTest, WithTokensTheSamePromptIsFoundUnderOtherNames) {
  start();
  std::vector<std::uint32_t> tokens(64);
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    text += std::to_string(tokens[i] = static_cast<std::uint32_t>(i * 7)) + " ";
  TestClient writer(node->tcp(), Transport::kTcp, record_of({{"revision", "r1"}}), 4);
  EXPECT_EQ(writer.put(hash_chain(writer.record().digest(), tokens, 16)).stored, 4u);
  const NamespaceRecord other = record_of({{"revision", "r2"}});
  const json answer =
      ctl({"why", "--record", write(directory, "record", other.text()), "--tokens", write(directory, "tokens", text)});
  EXPECT_EQ(answer["reason"], "not_remembered");
  ASSERT_EQ(answer["same_tokens"].size(), 1u);
  EXPECT_EQ(answer["same_tokens"][0]["blocks"], 4);
  EXPECT_EQ(answer["same_tokens"][0]["differs"], "revision (here r2, there r1)");
}

TEST_F(WhyTest, ANodeThatIsAwayIsNoReasonOfItsOwn) {
  start();
  TestClient client(node->tcp(), Transport::kTcp, kWhyBytes, 4);
  const auto hashes = make_chain(1, 4);
  client.put(hashes);
  node->signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] {  // a signal takes its time
    std::ifstream file("/proc/" + std::to_string(node->pid()) + "/stat");
    const std::string stat(std::istreambuf_iterator<char>(file), {});
    return stat.find(") T ") != std::string::npos;
  }));
  const auto late = client->why(client.space(), hashes, 200ms);
  node->signal(SIGCONT);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->kind, MissKind::kUnknown);
  EXPECT_EQ(late->why, asio::error::timed_out);
  EXPECT_EQ(late->block_count, 0u);
  node->signal(SIGKILL);
  node->wait();
  const auto gone = client->why(client.space(), hashes, 500ms);
  ASSERT_TRUE(gone);
  EXPECT_TRUE(gone->why);
}

TEST_F(WhyTest, TheSlowLogNamesTheRequestWithItsTrace) {
  start({"--slow-log-seconds", "0.000001", "--slow-log-count", "5"});
  ClientConfig config;
  config.trace = *TraceContext::parse(kTraceText);
  TestClient client(node->tcp(), Transport::kTcp, record_of({}), 4, std::move(config));
  const auto hashes = make_chain(1, 4);
  EXPECT_EQ(client.put(hashes).stored, 4u);
  EXPECT_EQ(client.get(hashes).block_count, 4u);
  EXPECT_EQ(client->match(client.space(), hashes, {.deadline = kDeadline})->block_count, 4u);
  const json log = ctl({"slowlog", "--count", "100"})["nodes"][0];
  EXPECT_EQ(log["threshold_seconds"], 0.000001);
  EXPECT_EQ(log["requests"].size(), 5u) << "the latest of more";
  bool has_get = false, has_match = false;
  for (const auto& request : log["requests"]) {
    double sum = 0;
    for (const auto& [phase, seconds] : request["phases"].items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum, request["took_seconds"].get<double>(), 1e-5) << request;
    if (request["op"] != "get" && request["op"] != "match") continue;
    (request["op"] == "get" ? has_get : has_match) = true;
    EXPECT_EQ(request["traceparent"], kTraceText);
    EXPECT_EQ(request["model"], "why");
    EXPECT_EQ(request["blocks"], 4);
    if (request["op"] == "get") {
      EXPECT_EQ(request["bytes"], 4 * kWhyBytes);
    }
  }
  EXPECT_TRUE(has_match);
  EXPECT_TRUE(has_get);
  EXPECT_TRUE(node->logs("traceparent=" + kTraceText)) << node->log();
  EXPECT_GE(node->metric("kvstore_slow_requests_total{op=\"get\"}"), 1);
  EXPECT_EQ(ctl({"slowlog", "reset"})["nodes"][0]["requests"].size(), 5u);
  EXPECT_LT(ctl({"slowlog"})["nodes"][0]["requests"].size(), 5u) << "what came since";
}

TEST_F(WhyTest, WithoutSlowRequestsTheLogIsEmpty) {
  start({"--slow-log-seconds", "0"});
  TestClient client(node->tcp(), Transport::kTcp, kWhyBytes, 4);
  client.put(make_chain(1, 4));
  EXPECT_EQ(ctl({"slowlog"})["nodes"][0]["requests"].size(), 0u);
}

}  // namespace
}  // namespace kv::e2e
