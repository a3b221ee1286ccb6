// kvstorectl contexts with a real node: what a person sees, and that a time to live is one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kBlockBytes = 4096;

Finished contexts(const NodeProcess& node, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {ctl_program(), "contexts"});
  arguments.insert(arguments.end(), {"--endpoint", node.unix_socket()});
  return run_program(arguments);
}

TEST(E2eContextsTest, APersonCreatesListsExtendsAndDeletes) {
  const NodeProcess node({"--capacity", "64MiB", "--rdma", "off"});
  TestClient client(node.unix_socket(), Transport::kUnix, kBlockBytes, 8);
  const auto chain = make_chain(1, 8);
  ASSERT_EQ(client.put(std::span(chain).first(6)).stored, 6u);
  const TempDir directory;
  const std::string hashes = directory.path() + "/chain";
  {
    std::ofstream file(hashes);
    for (const BlockHash& hash : chain) file << to_hex(hash.bytes) << "\n";
  }
  const std::string space = to_hex(client.record().id().bytes).substr(0, 12);
  const Finished made = contexts(node, {"create", "prompt", "--space", space, "--hashes", hashes, "--ttl", "1h",
                                        "--sliding", "--tag", "team=x", "--json"});
  ASSERT_EQ(made.status, 0) << made.err;
  const json one = json::parse(made.out);
  EXPECT_EQ(one["kept_blocks"], 6);
  EXPECT_EQ(one["wanted_blocks"], 8);
  EXPECT_EQ(one["why"], "not in memory");
  EXPECT_EQ(one["tags"], json::array({"team=x"}));
  EXPECT_TRUE(one["sliding"]);
  EXPECT_EQ(one["ttl_seconds"], 3600);
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_context_kept_blocks{tenant=\"\"}") == 6; }));
  EXPECT_TRUE(eventually([&] { return node.log().find("context 'prompt' keeps 6 of 8 blocks") != std::string::npos; }))
      << node.log();
  EXPECT_EQ(client.put(chain).stored, 2u);
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_context_kept_blocks{tenant=\"\"}") == 8; }));
  EXPECT_EQ(node.metric("kvstore_contexts{tenant=\"\"}"), 1);
  EXPECT_EQ(node.metric("kvstore_context_written_tokens_total{tenant=\"\"}"),
            static_cast<double>(8 * client.record().block_size()));

  const Finished listed = contexts(node, {"list"});
  EXPECT_EQ(listed.status, 0) << listed.err;
  EXPECT_THAT(listed.out, AllOf(HasSubstr("prompt"), HasSubstr("team=x"), HasSubstr(", or later if used")));
  EXPECT_EQ(json::parse(contexts(node, {"list", "--json"}).out)["contexts"].size(), 1u);
  EXPECT_EQ(contexts(node, {"extend", "prompt", "--until", "2200-01-01"}).status, 1) << "more than ten years";
  EXPECT_EQ(contexts(node, {"extend", "prompt", "--until", "1999-01-01"}).status, 1);
  EXPECT_EQ(contexts(node, {"extend", "prompt", "--until", "soon"}).status, 2);
  EXPECT_EQ(contexts(node, {"extend", "prompt"}).status, 2);
  EXPECT_EQ(contexts(node, {"create", "x", "--space", space, "--ttl", "1h"}).status, 2) << "of which chain?";
  EXPECT_EQ(contexts(node, {"show", "other"}).status, 1);

  // A short one ends by itself.
  EXPECT_EQ(contexts(node, {"extend", "prompt", "--ttl", "10ms"}).status, 0);
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_context_expired_total{tenant=\"\"}") == 1; }));
  EXPECT_EQ(node.metric("kvstore_pinned_blocks"), 0);
  const Finished gone = contexts(node, {"show", "prompt"});
  EXPECT_EQ(gone.status, 1);
  EXPECT_THAT(gone.err, HasSubstr("no context 'prompt'"));
  EXPECT_EQ(contexts(node, {"delete", "prompt"}).status, 1);
  ASSERT_EQ(contexts(node, {"create", "prompt", "--space", space, "--hashes", hashes, "--ttl", "1h"}).status, 0);
  EXPECT_EQ(contexts(node, {"delete", "prompt"}).status, 0);
}

}  // namespace
}  // namespace kv::e2e
