// What a client says that it saw, held against what happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <regex>
#include <set>
#include <sstream>

#include "client/link/client_metrics.h"
#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using testing::HasSubstr;

/// A sample by its name with labels; NaN if there is none.
double value_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + " ")) return std::stod(line.substr(name.size() + 1));
  }
  return std::nan("");
}

TEST(ClientMetricsTest, TheTextIsWhatPrometheusReads) {
  ClientMetrics metrics;
  metrics.ended(FrameType::kGet, std::chrono::microseconds(15), {});
  metrics.ended(FrameType::kGet, std::chrono::seconds(9), asio::error::timed_out);
  metrics.received(ClientPath::kVerbs, 1000);
  metrics.set_prefill_speed(1000);
  metrics.got(3, 1, 0, 16);
  NodeStatus node;
  node.name = "a\"b\\\n\xff";
  node.breaker_open = true;
  const std::string text = metrics.text({node}, {.identity = "w", .calls_max = 7});
  const std::regex sample(R"re(([a-z_]+)(\{([a-z_]+="([^"\\\n]|\\["\\n])*",?)*\})? ([0-9.e+-]+))re");
  const std::regex comment(R"(# (HELP|TYPE) ([a-z_]+) .+)");
  std::set<std::string> typed;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, comment)) {
      if (match[1] == "TYPE") {
        EXPECT_TRUE(typed.insert(match[2]).second) << line;
      }
      continue;
    }
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    const std::string family = std::regex_replace(match[1].str(), std::regex("_(bucket|sum|count)$"), "");
    EXPECT_TRUE(typed.contains(match[1]) || typed.contains(family)) << line;
    EXPECT_TRUE(line.starts_with("kvstore_client_")) << line;
  }
  const std::string get = "kvstore_client_call_duration_seconds_bucket{call=\"get\",le=";
  EXPECT_EQ(value_of(text, get + "\"1e-05\"}"), 0);
  EXPECT_EQ(value_of(text, get + "\"2e-05\"}"), 1);
  EXPECT_EQ(value_of(text, get + "\"5\"}"), 1);
  EXPECT_EQ(value_of(text, get + "\"+Inf\"}"), 2);
  EXPECT_EQ(value_of(text, "kvstore_client_call_errors_total{call=\"get\",error_type=\"deadline_exceeded\"}"), 1);
  EXPECT_EQ(value_of(text, "kvstore_client_saved_tokens_total"), 48);
  EXPECT_DOUBLE_EQ(value_of(text, "kvstore_client_saved_compute_seconds_total"), 0.048);
}

TEST(ClientMetricsTest, AWorkersDayIsInItsNumbers) {
  NodeProcess node({"--capacity", "16MiB"});
  constexpr std::size_t kBytes = 64 << 10;
  ClientConfig config;
  config.breaker_failures = 2;
  TestClient client(node.unix_socket(), Transport::kShm, kBytes, 8, config);
  const auto chain = make_chain(1, 8);
  ASSERT_EQ(client.put(chain).stored, 8u);
  ASSERT_EQ(client.put(chain).already_stored, 8u);
  ASSERT_EQ(client.get(chain).block_count, 8u);
  auto longer = chain;
  longer.push_back(make_chain(2, 1).front());
  ASSERT_EQ(client->match(client.space(), longer, {.deadline = kDeadline}).value().block_count, 8u);
  client->tell_prefill_speed(100);
  ASSERT_EQ(client.get(chain).block_count, 8u);
  const std::string text = client->metrics_text();
  const double block_size = static_cast<double>(client.record().block_size());
  EXPECT_EQ(value_of(text, "kvstore_client_put_blocks_total{result=\"stored\"}"), 8);
  EXPECT_EQ(value_of(text, "kvstore_client_put_blocks_total{result=\"already_stored\"}"), 8);
  EXPECT_EQ(value_of(text, "kvstore_client_get_blocks_total{result=\"loaded\"}"), 16);
  EXPECT_EQ(value_of(text, "kvstore_client_match_blocks_total{tier=\"memory\"}"), 8);
  EXPECT_EQ(value_of(text, "kvstore_client_match_blocks_total{tier=\"none\"}"), 1);
  EXPECT_EQ(value_of(text, "kvstore_client_saved_tokens_total"), 16 * block_size);
  EXPECT_DOUBLE_EQ(value_of(text, "kvstore_client_saved_compute_seconds_total"), 8 * block_size / 100);
  EXPECT_EQ(value_of(text, "kvstore_client_io_bytes_total{transport=\"memfd\",direction=\"receive\"}"), 16 * kBytes);
  EXPECT_EQ(value_of(text, "kvstore_client_io_bytes_total{transport=\"memfd\",direction=\"transmit\"}"), 8 * kBytes);
  EXPECT_EQ(value_of(text, "kvstore_client_call_duration_seconds_count{call=\"get\"}"), 2);
  EXPECT_THAT(text, HasSubstr("kvstore_client_info{identity=\"e2e\"} 1"));
  EXPECT_THAT(text, HasSubstr("kvstore_client_node_connected{node=\"" + node.unix_socket() + "\"} 1"));

  node.signal(SIGSTOP);  // it takes requests and answers none
  for (int i = 0; i < 4; ++i)
    static_cast<void>(client->match(client.space(), chain, {.deadline = std::chrono::milliseconds(50)}));
  const std::string after = client->metrics_text();
  node.signal(SIGCONT);
  EXPECT_GE(value_of(after, "kvstore_client_call_errors_total{call=\"match\",error_type=\"deadline_exceeded\"}"), 2);
  EXPECT_GE(value_of(after, "kvstore_client_call_errors_total{call=\"match\",error_type=\"unavailable\"}"), 1);
  const std::string label = "{node=\"" + node.unix_socket() + "\"}";
  EXPECT_EQ(value_of(after, "kvstore_client_breaker_open" + label), 1);
  EXPECT_EQ(value_of(after, "kvstore_client_breaker_openings_total" + label), 1);
  EXPECT_GE(value_of(after, "kvstore_client_node_deadline_misses_total" + label), 2);
}

TEST(ClientMetricsTest, BytesOverASocketAreCountedAsItsOwn) {
  NodeProcess node({"--capacity", "16MiB"});
  TestClient client(node.tcp(), Transport::kTcp, 4096, 4);
  const auto chain = make_chain(3, 4);
  ASSERT_EQ(client.put(chain).stored, 4u);
  ASSERT_EQ(client.get(chain).block_count, 4u);
  const std::string text = client->metrics_text();
  EXPECT_EQ(value_of(text, "kvstore_client_io_bytes_total{transport=\"tcp\",direction=\"transmit\"}"), 4 * 4096);
  EXPECT_EQ(value_of(text, "kvstore_client_io_bytes_total{transport=\"tcp\",direction=\"receive\"}"), 4 * 4096);
  EXPECT_EQ(value_of(text, "kvstore_client_io_bytes_total{transport=\"memfd\",direction=\"receive\"}"), 0);
}

}  // namespace
}  // namespace kv::e2e
