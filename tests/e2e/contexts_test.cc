// kvstorectl contexts with a real node: what a person sees, and that a time to live is one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
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
  const Finished made = contexts(node, {"create", "prompt", "--namespace", space, "--hashes", hashes, "--ttl", "1h",
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
  EXPECT_EQ(contexts(node, {"create", "x", "--namespace", space, "--ttl", "1h"}).status, 2) << "of which chain?";
  EXPECT_EQ(contexts(node, {"show", "other"}).status, 1);

  // A short one ends by itself.
  EXPECT_EQ(contexts(node, {"extend", "prompt", "--ttl", "10ms"}).status, 0);
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_context_expired_total{tenant=\"\"}") == 1; }));
  EXPECT_EQ(node.metric("kvstore_pinned_blocks"), 0);
  const Finished gone = contexts(node, {"show", "prompt"});
  EXPECT_EQ(gone.status, 1);
  EXPECT_THAT(gone.err, HasSubstr("no context 'prompt'"));
  EXPECT_EQ(contexts(node, {"delete", "prompt"}).status, 1);
  ASSERT_EQ(contexts(node, {"create", "prompt", "--namespace", space, "--hashes", hashes, "--ttl", "1h"}).status, 0);
  EXPECT_EQ(contexts(node, {"delete", "prompt"}).status, 0);
}

std::string in_file(const TempDir& directory, const std::vector<BlockHash>& chain) {
  const std::string path = directory.path() + "/chain";
  std::ofstream file(path);
  for (const BlockHash& hash : chain) file << to_hex(hash.bytes) << "\n";
  return path;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// From a node that has it on disk, to another; in two batches.
TEST(E2eContextsTest, AContextGoesAsAFileToAnotherNode) {
  constexpr std::size_t kLargeBytes = 1 << 20;
  const TempDir disk, directory;
  const std::vector<std::string> options = {"--capacity",  "128MiB",    "--rdma",          "off",
                                            "--disk-path", disk.path(), "--disk-capacity", "512MiB"};
  const auto chain = make_chain(3, 20);
  const std::string hashes = in_file(directory, chain), file = directory.path() + "/prompt.kvctx";
  std::string space;
  {
    NodeProcess node(options);
    ASSERT_TRUE(eventually([&] { return node.metric("kvstore_disk_is_loading") == 0; }));
    TestClient client(node.unix_socket(), Transport::kUnix, kLargeBytes, 20);
    ASSERT_EQ(client.put(chain).stored, 20u);
    space = to_hex(client.record().id().bytes).substr(0, 12);
    ASSERT_EQ(
        contexts(node, {"create", "prompt", "--namespace", space, "--hashes", hashes, "--ttl", "1h", "--priority", "8"})
            .status,
        0);
    node.signal(SIGTERM);
    EXPECT_EQ(node.wait(), 0);
  }
  // Nothing is brought to memory by itself: what is exported comes from the disk.
  std::vector<std::string> cold = options;
  cold.insert(cold.end(), {"--disk-warm-rate", "0"});
  const NodeProcess node(cold), other({"--capacity", "128MiB", "--rdma", "off"});
  ASSERT_TRUE(eventually([&] { return node.metric("kvstore_disk_is_loading") == 0; }));
  const Finished out = contexts(node, {"export", "prompt", file, "--deadline", "20s"});
  ASSERT_EQ(out.status, 0) << out.err;
  EXPECT_THAT(out.out, HasSubstr("20 of 20 blocks of the context 'prompt'"));
  EXPECT_EQ(out.err, "") << "no terminal, no progress";
  const Finished again = contexts(node, {"export", "prompt", file});
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, HasSubstr("it is there already"));
  EXPECT_EQ(contexts(node, {"export", "prompt", file, "--force", "--deadline", "20s"}).status, 0);
  const Finished none = contexts(node, {"export", "none", directory.path() + "/x"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("context 'none'"));

  const Finished in = contexts(other, {"import", file, "--name", "second", "--json", "--deadline", "20s"});
  ASSERT_EQ(in.status, 0) << in.err;
  const json told = json::parse(in.out);
  EXPECT_EQ(told["stored_blocks"], 20);
  EXPECT_EQ(told["context"]["name"], "second");
  EXPECT_EQ(told["context"]["kept_blocks"], 20);
  EXPECT_EQ(told["context"]["priority"], 8);
  EXPECT_EQ(told["context"]["ttl_seconds"], 3600);
  TestClient client(other.unix_socket(), Transport::kUnix, kLargeBytes, 20);
  EXPECT_EQ(client.get(chain).block_count, 20u);
  EXPECT_EQ(client.wrong_bytes(chain, 20), 0u);
  std::string damaged = bytes_of(file);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << damaged;
  const Finished refused = contexts(other, {"import", file});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(file), HasSubstr(" of 20, at byte")));
}

/// What a stop, and a kill a moment after the last change, leave; in plain text and sealed.
/// From one tenant's names to another's, which another cluster's secret has made: nobody's salt is in the file.
TEST(E2eContextsTest, AContextGoesFromOneTenantToAnotherOfAnotherCluster) {
  const TempDir directory;
  const auto start = [&](const std::string& tenant, char secret) {
    const std::string policy = directory.path() + "/" + tenant, secret_file = policy + ".secret";
    std::ofstream(policy) << "[scrape]\nmatch = [\"loopback\"]\nroles = [\"metrics\"]\n[all]\nmatch = [\"unix\"]\n"
                          << "roles = [\"reader\", \"writer\", \"operator\"]\ntenant = \"" << tenant << "\"\n";
    std::ofstream(secret_file) << std::string(64, secret) << "\n";
    EXPECT_EQ(::chmod(secret_file.c_str(), 0400), 0);
    return std::make_unique<NodeProcess>(std::vector<std::string>{
        "--capacity", "64MiB", "--rdma", "off", "--policy-file", policy, "--tenant-secret-file", secret_file});
  };
  const auto blue = start("blue", 'a'), red = start("red", 'b');
  const auto chain = make_chain(4, 20);
  const std::string hashes = in_file(directory, chain), file = directory.path() + "/prompt.kvctx";
  TestClient client(blue->unix_socket(), Transport::kUnix, kBlockBytes, 20);
  ASSERT_EQ(client.put(chain).stored, 20u);
  const auto space_of = [](const NodeProcess& node) -> std::string {
    const Finished told = run_program({ctl_program(), "namespaces", "--json", "--endpoint", node.unix_socket()});
    return json::parse(told.out)["namespaces"][0]["id"];
  };
  const std::string space = space_of(*blue);
  EXPECT_NE(space, to_hex(client.record().id().bytes)) << "the node adds the tenant and a salt to the record";
  const Finished made = contexts(*blue, {"create", "prompt", "--namespace", space, "--hashes", hashes, "--ttl", "1h"});
  ASSERT_EQ(made.status, 0) << made.err;
  const Finished out = contexts(*blue, {"export", "prompt", file, "--deadline", "20s"});
  ASSERT_EQ(out.status, 0) << out.err;
  EXPECT_THAT(bytes_of(file), testing::Not(HasSubstr("blue")));

  const Finished in = contexts(*red, {"import", file, "--json", "--deadline", "20s"});
  ASSERT_EQ(in.status, 0) << in.err;
  EXPECT_EQ(json::parse(in.out)["context"]["kept_blocks"], 20);
  TestClient other(red->unix_socket(), Transport::kUnix, kBlockBytes, 20);
  EXPECT_EQ(other.get(chain).block_count, 20u);
  EXPECT_EQ(other.wrong_bytes(chain, 20), 0u);
  EXPECT_NE(space_of(*red), space);
}

TEST(E2eContextsTest, ContextsOutliveTheNode) {
  for (const bool is_sealed : {false, true}) {
    const TempDir disk, directory;
    const std::string key_file = directory.path() + "/key";
    std::ofstream(key_file) << std::string(64, 'a') << "\n";
    std::filesystem::permissions(key_file, std::filesystem::perms::owner_read);
    std::vector<std::string> options = {"--capacity",  "64MiB",     "--rdma",          "off",
                                        "--disk-path", disk.path(), "--disk-capacity", "256MiB"};
    if (is_sealed) options.insert(options.end(), {"--disk-key-file", key_file});
    const auto chain = make_chain(1, 8);
    const std::string hashes = in_file(directory, chain), file = disk.path() + "/CONTEXTS";
    json before;
    {
      NodeProcess node(options);
      // Nothing is written before the disk is open.
      ASSERT_TRUE(eventually([&] { return node.metric("kvstore_disk_is_loading") == 0; }));
      TestClient client(node.unix_socket(), Transport::kUnix, kBlockBytes, 8);
      ASSERT_EQ(client.put(std::span(chain).first(6)).stored, 6u);
      const std::string space = to_hex(client.record().id().bytes).substr(0, 12);
      for (const char* const name : {"prompt-of-mine", "ended", "deleted"}) {
        ASSERT_EQ(
            contexts(node, {"create", name, "--namespace", space, "--hashes", hashes, "--ttl", "1h", "--tag", "mine"})
                .status,
            0);
      }
      ASSERT_EQ(contexts(node, {"delete", "deleted"}).status, 0);
      ASSERT_EQ(contexts(node, {"extend", "ended", "--ttl", "1ms"}).status, 0);
      before = json::parse(contexts(node, {"show", "prompt-of-mine", "--json"}).out);
      node.signal(SIGTERM);
      EXPECT_EQ(node.wait(), 0);
    }
    EXPECT_EQ(bytes_of(file).find("prompt-of-mine") == std::string::npos, is_sealed);
    {
      NodeProcess node(options);
      const json list = json::parse(contexts(node, {"list", "--json"}).out)["contexts"];
      ASSERT_EQ(list.size(), 1u) << list;
      const json& after = list[0];
      for (const char* const field : {"name", "tags", "namespace_id", "wanted_blocks", "written_tokens", "ttl_seconds"})
        EXPECT_EQ(after[field], before[field]) << field;
      EXPECT_EQ(after["created"].get<std::string>().substr(0, 16), before["created"].get<std::string>().substr(0, 16));
      EXPECT_TRUE(node.logs("contexts: 1 are back, of 8 blocks")) << node.log();
      EXPECT_EQ(node.metric("kvstore_contexts_back"), 1);
      EXPECT_EQ(node.metric("kvstore_context_created_total{tenant=\"\"}"), 0);
      EXPECT_TRUE(eventually([&] { return node.metric("kvstore_context_kept_blocks{tenant=\"\"}") == 6; }))
          << "they are brought from disk";
      EXPECT_EQ(node.metric("kvstore_context_written_tokens_total{tenant=\"\"}"), 0) << "they were written before";
      const std::string space = before["namespace_id"];
      const auto writes = node.metric("kvstore_context_file_writes_total");
      ASSERT_EQ(contexts(node, {"create", "second", "--namespace", space, "--hashes", hashes, "--ttl", "1h"}).status,
                0);
      EXPECT_TRUE(eventually([&] { return node.metric("kvstore_context_file_writes_total") > writes; }));
      node.signal(SIGKILL);
      node.wait();
    }
    {
      NodeProcess node(options);
      EXPECT_EQ(json::parse(contexts(node, {"list", "--json"}).out)["contexts"].size(), 2u);
      node.signal(SIGTERM);
      EXPECT_EQ(node.wait(), 0);
    }
    std::string damaged = bytes_of(file);
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
    std::ofstream(file, std::ios::binary | std::ios::trunc) << damaged;
    NodeProcess node(options);
    EXPECT_EQ(json::parse(contexts(node, {"list", "--json"}).out)["contexts"].size(), 0u);
    EXPECT_TRUE(node.logs("the node starts without the contexts in it")) << node.log();
    EXPECT_TRUE(eventually([&] { return bytes_of(file + ".damaged") == damaged; }));
  }
}

}  // namespace
}  // namespace kv::e2e
