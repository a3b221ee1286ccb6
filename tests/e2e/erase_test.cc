// kvstorectl erase with real nodes: nothing of the tenant is left in memory, in the files of the disks, or after a
// restart; and others have all that they had. What is salted comes back from disk, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kBlockBytes = 64 << 10, kChainBlocks = 16;
constexpr std::uint64_t kChains = 12;

std::string token_of(const std::string& name) { return name + std::string(40, '.'); }

std::string sha256_hex(const std::string& text) {
  std::array<unsigned char, 32> hash{};
  EXPECT_EQ(EVP_Digest(text.data(), text.size(), hash.data(), nullptr, EVP_sha256(), nullptr), 1);
  return to_hex(std::as_bytes(std::span(hash)));
}

class E2eEraseTest : public testing::Test {
 protected:
  E2eEraseTest() {
    const std::string all = R"(roles = ["reader", "writer"])";
    std::ofstream(path("policy")) << "[scrape]\nmatch = [\"loopback\"]\nroles = [\"metrics\"]\n" +
                                         section("blue", all + "\ntenant = \"blue\"") +
                                         section("red", all + "\ntenant = \"red\"") +
                                         section("keeper", R"(roles = ["operator"])") +
                                         section("deep",
                                                 "roles = [\"reader\", \"writer\", \"operator\"]\ntenant = \"blue\"") +
                                         section("loose", R"(roles = ["reader"])");
    std::ofstream(path("secret")) << sha256_hex("a secret") << "\n";
    EXPECT_EQ(::chmod(path("secret").c_str(), 0400), 0);
    for (const char* name : {"keeper", "loose"}) std::ofstream(path(name)) << token_of(name);
  }
  static std::string section(const std::string& name, const std::string& more) {
    return "[" + name + "]\ntoken-sha256 = [\"" + sha256_hex(token_of(name)) + "\"]\n" + more + "\n";
  }
  std::string path(const std::string& name) const { return directory.path() + "/" + name; }
  std::unique_ptr<NodeProcess> start(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"--capacity-blocks",
                                          "64",
                                          "--capacity-block-bytes",
                                          "64KiB",
                                          "--disk-path",
                                          path(name),
                                          "--disk-capacity",
                                          "256MiB",
                                          "--spill-put-wait-seconds",
                                          "5",
                                          "--policy-file",
                                          path("policy"),
                                          "--tenant-secret-file",
                                          path("secret"),
                                          "--rdma",
                                          "off"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<NodeProcess>(arguments);
  }
  static std::unique_ptr<TestClient> connect(const NodeProcess& node, const std::string& tenant) {
    ClientConfig config;
    config.token = Secret(token_of(tenant));
    return std::make_unique<TestClient>(node.unix_socket(), Transport::kUnix, make_record(kBlockBytes), kChainBlocks,
                                        config);
  }
  /// Chains of blue are odd, of red even: the same record, and other tokens, so that their bytes differ.
  static std::uint64_t name_of(const std::string& tenant, std::uint64_t i) { return 2 * i + (tenant == "red"); }
  static void fill(const NodeProcess& node, TestClient& client, const std::string& tenant) {
    for (std::uint64_t i = 1; i <= kChains; ++i) {
      EXPECT_EQ(client.put(make_chain(name_of(tenant, i), kChainBlocks)).stored, kChainBlocks);
      EXPECT_TRUE(eventually([&] { return node.metric("kvstore_allocated_bytes") <= 62 * kBlockBytes; }));
    }
  }
  static std::size_t got(TestClient& client, const std::string& tenant) {
    std::size_t sum = 0;
    for (std::uint64_t i = 1; i <= kChains; ++i) {
      const auto chain = make_chain(name_of(tenant, i), kChainBlocks);
      const std::size_t count = client.get(chain).block_count;
      EXPECT_EQ(client.wrong_bytes(chain, count), 0u);
      sum += count;
    }
    return sum;
  }
  static std::string text_of(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::vector<std::string> texts_below(const std::string& where) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(where))
      if (entry.is_regular_file()) files.push_back(text_of(entry.path()));
    return files;
  }
  /// Of a disk directory: the wrapped keys by number (docs/disk-format.md).
  static std::map<std::string, std::string> wrapped_keys(const std::string& where) {
    constexpr std::size_t kHeader = 15, kEntry = 128, kNumber = 8, kSealedAt = 72, kSealed = 48;
    std::map<std::string, std::string> keys;
    const std::string text = text_of(where + "/KEYS");
    for (std::size_t at = kHeader; at + kEntry <= text.size(); at += kEntry)
      keys[text.substr(at, kNumber)] = text.substr(at + kSealedAt, kSealed);
    return keys;
  }
  /// How many of the tenant's blocks have bytes in some file of the directory.
  static std::size_t found_on_disk(const std::string& where, TestClient& client, const std::string& tenant) {
    const std::vector<std::string> files = texts_below(where);
    std::size_t count = 0;
    for (std::uint64_t i = 1; i <= kChains; ++i) {
      const auto chain = make_chain(name_of(tenant, i), kChainBlocks);
      client.put(chain);  // fills the buffers; what it stores is told apart by nothing here
      for (const auto& block : client.blocks(kChainBlocks)) {
        const std::string_view part(reinterpret_cast<const char*>(block.data()) + 4096, 64);
        for (const std::string& file : files) count += file.find(part) != std::string::npos ? 1 : 0;
      }
    }
    return count;
  }
  Finished erase(const std::string& endpoints, const std::string& who, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {ctl_program(), "erase",   "blue",         "--json", "--yes",
                                          "--endpoint",  endpoints, "--token-file", path(who)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

  TempDir directory;
};

TEST_F(E2eEraseTest, NothingOfTheTenantIsLeftOnAnyNodeAndOthersHaveAllTheyHad) {
  std::vector<std::unique_ptr<NodeProcess>> nodes;
  nodes.push_back(start("one"));
  nodes.push_back(start("two"));
  for (const auto& node : nodes) {
    ASSERT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
    const auto blue = connect(*node, "blue"), red = connect(*node, "red");
    fill(*node, *blue, "blue");
    fill(*node, *red, "red");
    EXPECT_EQ(got(*blue, "red"), 0u) << "the same record, and another tenant";
    EXPECT_EQ(got(*red, "red"), kChains * kChainBlocks);
  }
  // A restart, so that what is salted was written, loaded and read back.
  for (std::size_t i = 0; i < 2; ++i) {
    nodes[i]->signal(SIGTERM);
    EXPECT_EQ(nodes[i]->wait(), 0);
    nodes[i] = start(i == 0 ? "one" : "two");
    ASSERT_TRUE(eventually([&] { return nodes[i]->metric("kvstore_disk_is_loading") == 0; }));
  }
  {
    const auto blue = connect(*nodes[0], "blue"), red = connect(*nodes[0], "red");
    EXPECT_EQ(got(*blue, "blue"), kChains * kChainBlocks);
    EXPECT_EQ(got(*red, "red"), kChains * kChainBlocks);
    EXPECT_EQ(got(*red, "blue"), 0u);
    EXPECT_EQ(nodes[0]->metric("kvstore_disk_read_failures_total"), 0) << "checksums are those of the caller's name";
  }
  const std::string both = nodes[0]->unix_socket() + "," + nodes[1]->unix_socket();
  const Finished denied = erase(both, "loose");
  EXPECT_EQ(denied.status, 1);
  EXPECT_THAT(denied.out, HasSubstr("denied"));

  const Finished erased = erase(both, "keeper");
  ASSERT_EQ(erased.status, 0) << erased.out << erased.err;
  const auto told = nlohmann::json::parse(erased.out);
  ASSERT_EQ(told["nodes"].size(), 2u);
  for (const auto& node : told["nodes"]) {
    EXPECT_TRUE(node["gone"].get<bool>());
    EXPECT_GE(node["values"]["erase_blocks"], kChains * kChainBlocks);
    EXPECT_EQ(node["values"]["erase_drops_not_kept"], 0);
    EXPECT_EQ(node["values"]["erase_blocks_left"], 0);
    EXPECT_GT(node["values"]["erase_files_rewritten"], 0);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string name = i == 0 ? "one" : "two";
    EXPECT_THAT(nodes[i]->log(),
                AllOf(HasSubstr("audit: act=erase"), HasSubstr("owner='blue' result=ok done=true blocks="),
                      HasSubstr("erase: all of 'blue' is gone")));
    {
      const auto red = connect(*nodes[i], "red");
      EXPECT_EQ(got(*red, "red"), kChains * kChainBlocks);
    }
    nodes[i]->signal(SIGTERM);
    EXPECT_EQ(nodes[i]->wait(), 0);
    const Finished verified = run_program({node_program(), "disk", "verify", path(name)});
    EXPECT_EQ(verified.status, 0) << verified.out << verified.err;
    nodes[i] = start(name);
    ASSERT_TRUE(eventually([&] { return nodes[i]->metric("kvstore_disk_is_loading") == 0; }));
    const auto blue = connect(*nodes[i], "blue"), red = connect(*nodes[i], "red");
    EXPECT_EQ(got(*blue, "blue"), 0u) << "after a restart";
    EXPECT_EQ(got(*red, "red"), kChains * kChainBlocks);
    // The search itself: before anything of blue's is written again.
    const TempDir copy;
    std::filesystem::copy(path(name), copy.path() + "/files", std::filesystem::copy_options::recursive);
    EXPECT_EQ(found_on_disk(copy.path(), *blue, "blue"), 0u) << name;
    EXPECT_GE(found_on_disk(copy.path(), *red, "red"), kChains * kChainBlocks) << "the search finds what is there";
  }
}

/// Whoever copied the files before has the blocks' bytes. Without the keys that the erasure took out of KEYS they are
/// nothing, also to who has the operator's key.
TEST_F(E2eEraseTest, WithEncryptionTheTenantsBlocksAreGoneWhereverTheirBytesLie) {
  std::ofstream(path("disk.key")) << "one " << std::string(64, '7') << "\n";
  ASSERT_EQ(::chmod(path("disk.key").c_str(), 0400), 0);
  const auto begin = [&](const std::string& name) {
    auto node = start(name, {"--disk-key-file", path("disk.key")});
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
    EXPECT_EQ(node->metric("kvstore_disk_encrypted"), 1);
    return node;
  };
  const auto end = [](NodeProcess& node) {
    node.signal(SIGTERM);
    EXPECT_EQ(node.wait(), 0);
  };
  const auto copy = [&](const std::string& from, const std::string& to) {
    std::filesystem::copy(path(from), path(to), std::filesystem::copy_options::recursive);
    std::filesystem::permissions(path(to), std::filesystem::perms::owner_all);
  };
  constexpr std::size_t kAll = kChains * kChainBlocks;
  auto node = begin("one");
  for (const char* tenant : {"blue", "red"}) fill(*node, *connect(*node, tenant), tenant);
  end(*node);
  copy("one", "before");
  copy("one", "tried");
  node = begin("one");
  EXPECT_EQ(got(*connect(*node, "blue"), "blue"), kAll);
  const Finished erased = erase(node->unix_socket(), "keeper");
  ASSERT_EQ(erased.status, 0) << erased.out << erased.err;
  EXPECT_EQ(got(*connect(*node, "blue"), "blue"), 0u);
  EXPECT_EQ(got(*connect(*node, "red"), "red"), kAll);
  end(*node);

  // No file has an erased key any more, wrapped as it was: neither KEYS nor one that RocksDB or a crash left.
  const auto before = wrapped_keys(path("before")), after = wrapped_keys(path("one"));
  ASSERT_GE(before.size(), 3u) << "the directory's, and one of each tenant";
  const std::vector<std::string> files = texts_below(path("one"));
  std::size_t gone = 0;
  for (const auto& [number, sealed] : before) {
    if (after.contains(number)) continue;
    ++gone;
    for (const std::string& file : files) EXPECT_EQ(file.find(sealed), std::string::npos);
  }
  EXPECT_EQ(gone, 1u) << "blue's of the first start; red's and the directory's own are there";

  // All files as they were before the erasure, and KEYS as it is now.
  std::filesystem::copy_file(path("one") + "/KEYS", path("tried") + "/KEYS",
                             std::filesystem::copy_options::overwrite_existing);
  node = begin("tried");
  EXPECT_EQ(got(*connect(*node, "blue"), "blue"), 0u);
  EXPECT_EQ(got(*connect(*node, "red"), "red"), kAll);
  for (const char* tenant : {"blue", "red"}) {
    EXPECT_EQ(found_on_disk(path("before"), *connect(*node, tenant), tenant), 0u) << tenant << ": in plain text";
    EXPECT_EQ(found_on_disk(path("one"), *connect(*node, tenant), tenant), 0u) << tenant << ": in plain text";
  }
  end(*node);
  // With the old KEYS they would be there: it is the keys that the erasure took.
  node = begin("before");
  EXPECT_EQ(got(*connect(*node, "blue"), "blue"), kAll);
}

TEST_F(E2eEraseTest, ANodeThatIsAwayIsNamedAndTheOthersAreErased) {
  const auto node = start("one");
  const auto blue = connect(*node, "blue");
  EXPECT_EQ(blue->put(make_chain(1, 4)).stored, 4u);
  const Finished erased = erase(node->unix_socket() + ",unix://" + path("nobody"), "keeper", {"--deadline", "200ms"});
  EXPECT_EQ(erased.status, 1);
  const auto told = nlohmann::json::parse(erased.out);
  std::size_t gone = 0;
  for (const auto& each : told["nodes"]) gone += each["gone"].get<bool>() ? 1 : 0;
  EXPECT_EQ(gone, 1u);
  EXPECT_EQ(blue->get(make_chain(1, 4)).block_count, 0u);
}

TEST_F(E2eEraseTest, NamedContextsOfTheTenantAreInNoFileAnyMore) {
  const auto node = start("one");
  ASSERT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
  const auto blue = connect(*node, "deep"), red = connect(*node, "red");
  const auto chain = make_chain(1, kChainBlocks);
  ASSERT_EQ(blue->put(chain).stored, kChainBlocks);
  const std::vector<std::string> tags = {"a-tag-of-blues"};
  const ContextOptions options{.deadline = kDeadline, .name = "words-of-blue", .life = {.ttl = 3600s}, .tags = tags};
  ASSERT_TRUE((*blue)->create_context(blue->space(), chain, options));
  const std::string file = path("one") + "/CONTEXTS", aside = file + ".damaged";
  ASSERT_TRUE(eventually([&] { return text_of(file).find("words-of-blue") != std::string::npos; }));
  std::filesystem::copy_file(file, aside);
  ASSERT_TRUE(eventually([&] {
    const Finished erased = erase(node->unix_socket(), "keeper");
    return erased.status == 0;
  }));
  for (const std::string& text : texts_below(path("one"))) {
    EXPECT_EQ(text.find("words-of-blue"), std::string::npos);
    EXPECT_EQ(text.find("a-tag-of-blues"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(aside));
  EXPECT_TRUE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace kv::e2e
