// Nodes behind links of their own: tests/netns/with_links.sh makes these where it is allowed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/node_process.h"

namespace kv::e2e {
namespace {

/// Conversations over such links, whose bytes are all checked. A text: why the machine or its kernel cannot.
nlohmann::json chat_over(const std::vector<std::string>& links) {
  std::vector<std::string> command = {"/bin/bash", KV_WITH_LINKS, "--build",     KV_BUILD_DIR,
                                      "--nodes",   "3",           "--node-args", "--capacity 64MiB"};
  command.insert(command.end(), links.begin(), links.end());
  for (const char* each : {"--", KV_BUILD_DIR "/client/tools/kvstore-bench", "chat", "--json", "--extent-blocks", "16",
                           "--deadline", "20s", "--block-bytes", "16KiB", "--sessions", "4"})
    command.emplace_back(each);
  const Finished finished = run_program(command);
  if (finished.status == 77) return nlohmann::json(finished.out);
  EXPECT_EQ(finished.status, 0) << finished.err;
  return nlohmann::json::parse(finished.out, nullptr, /*allow_exceptions=*/false);
}

class E2eNetnsTest : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(E2eNetnsTest, ConversationsOverItAreServedAndNoByteIsWrong) {
  const nlohmann::json report = chat_over(GetParam());
  if (report.is_string()) GTEST_SKIP() << report.get<std::string>();
  ASSERT_TRUE(report.is_object());
  ASSERT_FALSE(report["turns"].empty());
  for (const auto& turn : report["turns"]) {
    EXPECT_EQ(turn["wrong_bytes"], 0) << report.dump();
    EXPECT_TRUE(turn["reasons"].empty()) << report.dump();
  }
  EXPECT_GT(report["turns"].back()["hit_rate"], 0.85) << report.dump();
}

using Links = std::vector<std::string>;
INSTANTIATE_TEST_SUITE_P(Links, E2eNetnsTest,
                         testing::Values(Links{}, Links{"--rate", "100mbit"}, Links{"--delay", "5ms"},
                                         Links{"--loss", "1%"}, Links{"--delay", "100ms", "--slow", "1"}));

}  // namespace
}  // namespace kv::e2e
