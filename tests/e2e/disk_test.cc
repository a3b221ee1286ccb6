// The disk tier of the real daemon: what does not fit in memory is got all the same, over every transport, and again
// after a stop, after kill -9, and when files were damaged.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

constexpr std::size_t kDiskBlockBytes = 64 << 10;
constexpr std::size_t kChainBlocks = 16;

class E2eDiskTest : public testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    if (const std::string why = lacks(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  std::unique_ptr<NodeProcess> start(std::vector<std::string> more = {}) {
    std::vector<std::string> options = {
        "--capacity-blocks", "64",     "--capacity-block-bytes",   "64KiB", "--disk-path", disk.path(),
        "--disk-capacity",   "256MiB", "--spill-put-wait-seconds", "5"};
    options.insert(options.end(), more.begin(), more.end());
    return std::make_unique<NodeProcess>(node_options(GetParam(), options));
  }
  static std::unique_ptr<TestClient> connect(const NodeProcess& node, Transport transport = Transport::kUnix) {
    return std::make_unique<TestClient>(endpoint_of(node, transport), transport, kDiskBlockBytes, kChainBlocks);
  }
  /// Puts chains 1..count, each as large as a quarter of the memory, and lets the disk keep up.
  static void fill(const NodeProcess& node, TestClient& client, std::uint64_t count) {
    for (std::uint64_t name = 1; name <= count; ++name) {
      EXPECT_EQ(client.put(make_chain(name, kChainBlocks)).stored, kChainBlocks);
      EXPECT_TRUE(eventually([&] { return node.metric("kvstore_allocated_bytes") <= 62 * kDiskBlockBytes; }));
    }
  }
  /// How many blocks of the chain come back. Wrong bytes fail the test.
  static std::size_t got(TestClient& client, std::uint64_t name) {
    const auto chain = make_chain(name, kChainBlocks);
    const std::size_t count = client.get(chain).block_count;
    EXPECT_EQ(client.wrong_bytes(chain, count), 0u) << name;
    return count;
  }

  TempDir disk;
};

INSTANTIATE_TEST_SUITE_P(Transports, E2eDiskTest,
                         testing::Values(Transport::kTcp, Transport::kUnix, Transport::kShm, Transport::kVerbs),
                         [](const auto& one) { return std::string(transport_name(one.param)); });

TEST_P(E2eDiskTest, WhatDoesNotFitInMemoryComesBackFromDisk) {
  const auto node = start();
  const auto client = connect(*node, GetParam());
  fill(*node, *client, 20);
  for (int round = 0; round < 3; ++round) {  // from the second on blocks go back to memory, and others leave it
    for (std::uint64_t name = 1; name <= 20; ++name) EXPECT_EQ(got(*client, name), kChainBlocks) << name;
  }
  EXPECT_GT(node->metric("kvstore_get_disk_blocks_total"), 0);
  EXPECT_EQ(node->metric("kvstore_lost_unspilled_blocks_total"), 0);
  EXPECT_EQ(node->metric("kvstore_disk_is_on"), 1);
  const Finished status = run_program({ctl_program(), "status", "--endpoint", node->unix_socket()});
  EXPECT_EQ(status.status, 0);
  EXPECT_NE(status.out.find("on disk only"), std::string::npos) << status.out;
}

TEST_P(E2eDiskTest, SegmentsOfBlocksOnDiskArriveInOrder) {
  const auto node = start();
  const TestClient big(endpoint_of(*node, GetParam()), GetParam(), 256 << 10, 8);
  auto& client = const_cast<TestClient&>(big);
  for (std::uint64_t name = 1; name <= 6; ++name) {
    EXPECT_EQ(client.put(make_chain(name, 8)).stored, 8u);
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_allocated_bytes") <= (4 << 20) - (256 << 10); }));
  }
  const std::uint64_t ends[] = {64 << 10, 128 << 10, 256 << 10};
  for (std::uint64_t name = 1; name <= 6; ++name) {
    std::vector<std::size_t> marks;
    GetOptions options{.deadline = kDeadline, .segment_ends = ends};
    options.on_segment = {[](void* context, std::size_t segment, std::size_t count) {
                            EXPECT_EQ(count, 8u);
                            static_cast<std::vector<std::size_t>*>(context)->push_back(segment);
                          },
                          &marks};
    const auto chain = make_chain(name, 8);
    const auto result = client->get(client.space(), chain, client.blocks(8), options);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->block_count, 8u) << name;
    EXPECT_EQ(client.wrong_bytes(chain, 8), 0u);
    EXPECT_EQ(marks, (std::vector<std::size_t>{0, 1, 2}));
  }
}

/// Slots of a size run out long before bytes do: what has to give way to another size goes to disk first.
TEST_P(E2eDiskTest, ChainsOfManySizesAreKeptWhole) {
  NodeProcess node(node_options(GetParam(), {"--capacity", "32MiB", "--disk-path", disk.path(), "--disk-capacity",
                                             "256MiB", "--spill-put-wait-seconds", "5"}));
  // Before the disk is open no put waits for it.
  ASSERT_TRUE(eventually([&] { return node.metric("kvstore_disk_is_loading") == 0; }));
  const std::string endpoint = endpoint_of(node, GetParam());
  std::vector<std::unique_ptr<TestClient>> clients;
  for (const std::size_t bytes : {5000, 16'384, 70'000, 131'072, 262'144, 300'000, 524'288})
    clients.push_back(std::make_unique<TestClient>(endpoint, GetParam(), bytes, 4));
  constexpr std::uint64_t kChains = 16;  // 79 MiB
  for (std::uint64_t name = 1; name <= kChains; ++name)
    for (const auto& client : clients) ASSERT_EQ(client->put(make_chain(name, 4)).stored, 4u) << name;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t name = 1; name <= kChains; ++name) {
      for (const auto& client : clients) {
        const auto chain = make_chain(name, 4);
        ASSERT_EQ(client->get(chain).block_count, 4u) << name << " of " << client->record().block_bytes();
        ASSERT_EQ(client->wrong_bytes(chain, 4), 0u);
      }
    }
  }
  EXPECT_EQ(node.metric("kvstore_lost_unspilled_blocks_total"), 0);
  EXPECT_GT(node.metric("kvstore_slab_moves_total"), 0);
}

class E2eDiskNodeTest : public E2eDiskTest {};
INSTANTIATE_TEST_SUITE_P(Once, E2eDiskNodeTest, testing::Values(Transport::kUnix));

TEST_P(E2eDiskNodeTest, MatchTellsTheTiersAndPrefetchBringsBlocksToMemory) {
  const auto node = start();
  const auto client = connect(*node);
  fill(*node, *client, 8);
  const auto chain = make_chain(1, kChainBlocks);
  MatchOptions options{.deadline = kDeadline};
  auto match = (*client)->match(client->space(), chain, options);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->block_count, kChainBlocks);
  EXPECT_GT(match->disk_block_count, 0u);
  EXPECT_GT(match->disk_time.count(), 0);
  GetOptions memory_only{.deadline = kDeadline};
  memory_only.memory_only = true;
  EXPECT_EQ((*client)->get(client->space(), chain, client->blocks(kChainBlocks), memory_only)->block_count,
            kChainBlocks - match->disk_block_count);
  options.prefetch = true;
  ASSERT_TRUE((*client)->match(client->space(), chain, options));
  options.prefetch = false;
  EXPECT_TRUE(
      eventually([&] { return (*client)->match(client->space(), chain, options).value().disk_block_count == 0; }));
  EXPECT_EQ((*client)->get(client->space(), chain, client->blocks(kChainBlocks), memory_only)->block_count,
            kChainBlocks);
}

TEST_P(E2eDiskNodeTest, ACleanStopKeepsEverythingForTheNextStart) {
  auto node = start();
  {
    const auto client = connect(*node);
    fill(*node, *client, 12);
  }
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0);
  node = start();
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
  const auto client = connect(*node);
  for (std::uint64_t name = 1; name <= 12; ++name) EXPECT_EQ(got(*client, name), kChainBlocks) << name;
  if (HasFailure()) std::printf("%s\n", node->log().c_str());
}

TEST_P(E2eDiskNodeTest, ACleanStopKeepsThousandsOfSmallBlocksAndThosePinned) {
  constexpr std::size_t kChains = 64, kBlocks = 60;
  const std::vector<std::string> options = {"--capacity-blocks", "4096",      "--capacity-block-bytes", "4KiB",
                                            "--disk-path",       disk.path(), "--disk-capacity",        "256MiB"};
  auto node = std::make_unique<NodeProcess>(options);
  {
    TestClient client(node->unix_socket(), Transport::kUnix, 4096, kBlocks);
    for (std::uint64_t name = 1; name <= kChains; ++name)
      EXPECT_EQ(client.put(make_chain(name, kBlocks)).stored, kBlocks);
    EXPECT_TRUE(client->retain(client.space(), make_chain(1, kBlocks), kDeadline));
  }
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0);
  node = std::make_unique<NodeProcess>(options);
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
  EXPECT_EQ(node->metric("kvstore_disk_blocks"), kChains * kBlocks) << node->log();
}

/// Killed at a random moment under load, again and again on one directory: the node starts, and whatever it says it has
/// it has. KV_KILL_ROUNDS=300 for the long run.
TEST_P(E2eDiskNodeTest, AfterKillNineWhatTheNodeClaimsItHas) {
  constexpr std::uint64_t kNames = 400;
  const char* given = std::getenv("KV_KILL_ROUNDS");
  const int rounds = given != nullptr ? std::atoi(given) : 6;
  const char* seed_given = std::getenv("KV_SEED");
  const std::uint64_t seed = seed_given != nullptr ? std::stoull(seed_given) : std::random_device()();
  std::printf("KV_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  std::size_t found = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto node = start();
    ASSERT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; })) << node->log();
    const auto client = connect(*node);
    for (std::uint64_t name = 1; name <= kNames; ++name) {
      const auto claimed = (*client)->match(client->space(), make_chain(name, kChainBlocks), {.deadline = kDeadline});
      ASSERT_TRUE(claimed);
      EXPECT_EQ(got(*client, name), claimed->block_count) << "round " << round << ", chain " << name;
      found += claimed->block_count;
    }
    std::atomic<std::uint64_t> puts = 0;
    std::atomic<bool> is_killed = false;
    std::thread load([&, first = random() % kNames] {
      for (std::uint64_t i = 0; !is_killed; ++i) {
        client->put(make_chain(1 + (first + i) % kNames, kChainBlocks), 1s);  // refused while the disk is too slow
        ++puts;
      }
    });
    const std::uint64_t kill_at = 1 + random() % kNames;
    const auto latest = std::chrono::steady_clock::now() + 10s;
    while (puts < kill_at && std::chrono::steady_clock::now() < latest) std::this_thread::sleep_for(1ms);
    if (round == 0) {  // so that there is something to be found: a memtable of 64 MiB
      EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_file_bytes") > 32 << 20; }));
    }
    node->signal(SIGKILL);
    is_killed = true;
    load.join();
  }
  std::printf("%d kills, %zu blocks were there after them\n", rounds, found);
  EXPECT_GT(found, 0u);
}

/// Killed at once after a drop was answered, with one directory and with two, while the index is still being loaded and
/// after: the drop holds, and what was not dropped is there. KV_KILL_ROUNDS=300 for the long run.
TEST_P(E2eDiskNodeTest, AnAnsweredDropHoldsAfterKillNine) {
  constexpr std::uint64_t kNames = 6;
  const char* const given = std::getenv("KV_KILL_ROUNDS");
  const int rounds = given != nullptr ? std::atoi(given) : 6;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const bool is_whole = round % 3 == 2, waits_for_load = round % 2 == 0;
    const TempDir first, second;
    std::vector<std::string> options = {
        "--capacity-blocks", "64",     "--capacity-block-bytes",   "64KiB", "--disk-path", first.path(),
        "--disk-capacity",   "256MiB", "--spill-put-wait-seconds", "5"};
    if (round % 2 == 1) options.insert(options.end(), {"--disk-path", second.path()});
    auto node = std::make_unique<NodeProcess>(options);
    {
      const auto client = connect(*node);
      fill(*node, *client, kNames);
    }
    node->signal(SIGTERM);
    ASSERT_EQ(node->wait(), 0) << node->log();
    node = std::make_unique<NodeProcess>(options);
    if (waits_for_load) {
      ASSERT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
    }
    {
      const auto client = connect(*node);
      const auto chain = make_chain(3, kChainBlocks);
      const auto dropped = (*client)->drop(
          client->space(), is_whole ? std::span<const BlockHash>() : std::span(chain).first(5), kDeadline);
      node->signal(SIGKILL);
      ASSERT_TRUE(dropped) << dropped.error().message();
      EXPECT_FALSE(dropped->until_restart) << node->log();
    }
    for (int start = 0; start < 2; ++start) {  // and it is not undone by what cleans up after it
      node->wait();
      node = std::make_unique<NodeProcess>(options);
      ASSERT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
      const auto client = connect(*node);
      for (std::uint64_t name = 1; name <= kNames; ++name)
        EXPECT_EQ(got(*client, name), is_whole ? 0 : name == 3 ? 4 : kChainBlocks) << name;
      EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_on") == 1; }));
      node->signal(start == 0 ? SIGTERM : SIGKILL);
    }
  }
}

TEST_P(E2eDiskNodeTest, SeveralDirectoriesShareTheBlocks) {
  const TempDir other;
  auto node = start({"--disk-path", other.path()});
  {
    const auto client = connect(*node);
    fill(*node, *client, 12);
    for (std::uint64_t name = 1; name <= 12; ++name) EXPECT_EQ(got(*client, name), kChainBlocks) << name;
  }
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0);
  node = start({"--disk-path", other.path()});
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
  const auto client = connect(*node);
  for (std::uint64_t name = 1; name <= 12; ++name) EXPECT_EQ(got(*client, name), kChainBlocks) << name;
  for (const std::string& directory : {disk.path(), other.path()}) {
    std::uintmax_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(directory))
      if (file.is_regular_file() && file.path().extension() == ".sst") bytes += file.file_size();
    EXPECT_GT(bytes, 12 * kChainBlocks * kDiskBlockBytes / 4) << directory;
  }
}

/// Names say all that a block depends on, so whose directory it was makes no difference.
TEST_P(E2eDiskNodeTest, ADirectoryOfAnotherClusterIsAsGoodAsOnesOwn) {
  auto node = start({"--node-id", "theirs"});
  {
    const auto client = connect(*node);
    fill(*node, *client, 12);
  }
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0);
  node = start({"--node-id", "ours"});
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
  TestClient ours(node->unix_socket(), Transport::kUnix, kDiskBlockBytes / 2, kChainBlocks);
  EXPECT_EQ(got(ours, 12), 0u) << "another namespace: the same hashes are other blocks";
  const auto client = connect(*node);
  std::size_t found = 0;
  for (std::uint64_t name = 1; name <= 12; ++name) found += got(*client, name);
  EXPECT_GT(found, 0u);
  EXPECT_EQ(ours.put(make_chain(12, kChainBlocks)).stored, kChainBlocks);
  EXPECT_EQ(got(ours, 12), kChainBlocks);
}

TEST_P(E2eDiskNodeTest, ASecondNodeOnTheSameDirectoryIsRefused) {
  const auto node = start();
  const Finished second = run_program({node_program(), "--listen", "tcp://127.0.0.1:0", "--admin", "none", "--capacity",
                                       "16MiB", "--disk-path", disk.path(), "--disk-capacity", "64MiB"});
  EXPECT_EQ(second.status, 1);
  EXPECT_NE(second.err.find(disk.path()), std::string::npos) << second.err;
}

/// Whatever umask the node is started with: RocksDB's own files too. The socket keeps the mode that is its own.
TEST_P(E2eDiskNodeTest, DiskFilesAreTheNodesAlone) {
  const mode_t before = ::umask(0);  // the node inherits it
  const auto node = start();
  ::umask(before);
  const auto client = connect(*node);
  fill(*node, *client, 8);
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(disk.path())) {
    const auto mode = static_cast<unsigned>(entry.symlink_status().permissions());
    EXPECT_EQ(mode & 077, 0u) << entry.path() << " " << std::oct << mode;
    ++count;
  }
  EXPECT_GT(count, 5u);
  struct stat status {};
  const std::string socket = node->unix_socket().substr(std::string("unix://").size());
  ASSERT_EQ(::stat(socket.c_str(), &status), 0) << socket;
  EXPECT_EQ(status.st_mode & 07777, 0660u);
}

/// Encrypted, with a key that changes while the node runs; without it nothing starts, and nothing is lost.
TEST_P(E2eDiskNodeTest, WhatIsOnDiskIsEncryptedAndNeedsItsKey) {
  const TempDir secrets;
  const std::string file = secrets.path() + "/disk.key";
  const auto set_key = [&](const std::string& text) {
    std::ofstream(file) << text;
    std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  };
  const std::string one = "one " + std::string(64, '1') + "\n", two = "two " + std::string(64, '2') + "\n";
  set_key(one);
  auto node = start({"--disk-key-file", file});
  EXPECT_EQ(node->metric("kvstore_disk_encrypted"), 1);
  EXPECT_EQ(node->metric("kvstore_disk_key_info{key=\"one\"}"), 1);
  {
    const auto client = connect(*node);
    fill(*node, *client, 12);
    for (std::uint64_t name = 1; name <= 12; ++name) EXPECT_EQ(got(*client, name), kChainBlocks) << name;
  }
  set_key(two + one);
  node->signal(SIGHUP);
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_key_info{key=\"two\"}") == 1; })) << node->log();
  EXPECT_EQ(node->metric("kvstore_disk_key_info{key=\"one\"}"), -1);
  EXPECT_EQ(node->metric("kvstore_disk_key_reload_failed"), 0);
  EXPECT_EQ(node->metric("kvstore_disk_key_file_exposed"), 0);
  std::filesystem::permissions(file, std::filesystem::perms(0644));
  EXPECT_EQ(node->metric("kvstore_disk_key_file_exposed"), 1);
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0);
  std::vector<std::string> command = {node_program(), "--listen", "tcp://127.0.0.1:0", "--admin",   "none",
                                      "--capacity",   "16MiB",    "--disk-path",       disk.path(), "--disk-capacity",
                                      "64MiB"};
  Finished refused = run_program(command);
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("--disk-key-file"), std::string::npos) << refused.err;
  command.insert(command.end(), {"--disk-key-file", file});
  refused = run_program(command);
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("mode 0644"), std::string::npos) << refused.err;
  set_key(one);
  refused = run_program(command);
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("wrapped by the key 'two'"), std::string::npos) << refused.err;
  set_key(two);
  node = start({"--disk-key-file", file});
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
  const auto client = connect(*node);
  for (std::uint64_t name = 1; name <= 12; ++name) EXPECT_EQ(got(*client, name), kChainBlocks) << name;
  EXPECT_EQ(node->metric("kvstore_disk_read_failures_total"), 0);
}

/// The keys come from a command, which is asked again at SIGHUP; one that fails changes nothing, and starts nothing.
TEST_P(E2eDiskNodeTest, TheKeyOfTheDiskIsAskedOfACommand) {
  const TempDir secrets;
  const std::string file = secrets.path() + "/kms";
  const std::string one = "one " + std::string(64, '1') + "\n", two = "two " + std::string(64, '2') + "\n";
  std::ofstream(file) << one;
  const std::string command = "test -e " + file + " || { echo no such key >&2; exit 4; }; cat " + file;
  auto node = start({"--disk-key-command", command});
  EXPECT_EQ(node->metric("kvstore_disk_key_info{key=\"one\"}"), 1);
  EXPECT_EQ(node->metric("kvstore_disk_key_file_exposed"), 0);
  {
    const auto client = connect(*node);
    fill(*node, *client, 12);
    for (std::uint64_t name = 1; name <= 12; ++name) EXPECT_EQ(got(*client, name), kChainBlocks) << name;
  }
  std::filesystem::remove(file);
  node->signal(SIGHUP);
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_key_reload_failed") == 1; }));
  EXPECT_TRUE(node->logs("disk-key-command: ends with status 4")) << node->log();
  EXPECT_EQ(node->metric("kvstore_disk_key_info{key=\"one\"}"), 1);
  std::ofstream(file) << two << one;
  node->signal(SIGHUP);
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_key_info{key=\"two\"}") == 1; })) << node->log();
  EXPECT_EQ(node->metric("kvstore_disk_key_reload_failed"), 0);
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0);

  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {node_program(), "--listen", "tcp://127.0.0.1:0", "--admin",   "none",
                                      "--capacity",   "16MiB",    "--disk-path",       disk.path(), "--disk-capacity",
                                      "64MiB"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  Finished refused = run({"--disk-key-command", "echo 12"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("the output of disk-key-command: line 1: a key of 2 characters"), std::string::npos)
      << refused.err;
  refused = run({"--disk-key-command", command, "--disk-key-file", file});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("disk-key-command: given beside disk-key-file"), std::string::npos) << refused.err;
  std::ofstream(file) << one;
  refused = run({"--disk-key-command", command});
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("wrapped by the key 'two', which is not in the output of disk-key-command"),
            std::string::npos)
      << refused.err;
  const Finished verified = run_program(
      {node_program(), "disk", "verify", disk.path(), "--key-command", "echo 'two " + std::string(64, '2') + "'"});
  EXPECT_EQ(verified.status, 0) << verified.err;
}

TEST_P(E2eDiskNodeTest, ADiskDirectoryThatOthersMayWriteIsRefusedAtTheStart) {
  std::filesystem::permissions(disk.path(), std::filesystem::perms(0777));
  const Finished node = run_program({node_program(), "--listen", "tcp://127.0.0.1:0", "--admin", "none", "--capacity",
                                     "16MiB", "--disk-path", disk.path(), "--disk-capacity", "64MiB"});
  EXPECT_EQ(node.status, 1);
  EXPECT_NE(node.err.find(disk.path() + ": belongs to user"), std::string::npos) << node.err;
  EXPECT_NE(node.err.find("mode 0777"), std::string::npos) << node.err;
}

TEST_P(E2eDiskNodeTest, ADiskTierNeedsBothAPathAndACapacity) {
  for (const auto& [option, value, missing] : {std::tuple("--disk-path", "/tmp/nowhere", "disk-capacity"),
                                               std::tuple("--disk-capacity", "1GiB", "disk-path")}) {
    const Finished node = run_program({node_program(), option, value, "--check-config"});
    EXPECT_NE(node.status, 0);
    EXPECT_NE(node.err.find(missing), std::string::npos) << node.err;
  }
}

TEST_P(E2eDiskNodeTest, DamagedFilesCostBlocksAndNothingElse) {
  std::mt19937_64 random(7);
  auto node = start();
  {
    const auto client = connect(*node);
    fill(*node, *client, 12);
  }
  node->signal(SIGTERM);
  ASSERT_EQ(node->wait(), 0);
  for (const auto& file : std::filesystem::recursive_directory_iterator(disk.path())) {
    if (!file.is_regular_file() || file.path().extension() != ".sst") continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (int i = 0; i < 3; ++i) {
      bytes.seekp(static_cast<std::streamoff>(random() % file.file_size()));
      bytes.put('\x5a');
    }
  }
  node = start();
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
  const auto client = connect(*node);
  for (std::uint64_t name = 1; name <= 12; ++name) got(*client, name);
  fill(*node, *client, 4);
  EXPECT_EQ(got(*client, 4), kChainBlocks);
}

/// The real trace through two tiers: as good as one LRU of both.
class E2eDiskTraceTest : public testing::TestWithParam<std::tuple<std::size_t, double>> {};
INSTANTIATE_TEST_SUITE_P(Conversation, E2eDiskTraceTest,
                         testing::Values(std::tuple(24'000, 0.3257), std::tuple(94'000, 0.3637)),
                         [](const auto& one) { return std::to_string(std::get<0>(one.param)); });

TEST_P(E2eDiskTraceTest, TheRealTraceHitsAsOneCacheOfBothTiersWould) {
  const char* folder = std::getenv("KV_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "KV_TRACES does not name a folder with conversation_trace.jsonl.gz";
  const auto [on_disk, expected] = GetParam();
  TempDir disk;
  const NodeProcess node({"--eviction-policy", "lru", "--capacity-blocks", "6000", "--capacity-block-bytes", "4096",
                          "--disk-path", disk.path(), "--disk-capacity-blocks", std::to_string(on_disk),
                          "--spill-put-wait-seconds", "5"});
  const Finished bench =
      run_program({bench_program(), "replay", "--trace", std::string(folder) + "/conversation_trace.jsonl.gz",
                   "--endpoint", node.unix_socket(), "--json"});
  ASSERT_EQ(bench.status, 0) << bench.err;
  const auto replay = nlohmann::json::parse(bench.out);
  EXPECT_EQ(replay["requests"], 12'031);
  EXPECT_EQ(replay["references"], 288'500);
  EXPECT_EQ(replay["wrong_bytes"], 0);
  EXPECT_GT(replay["disk_hits"], 0);
  const double lost = node.metric("kvstore_lost_unspilled_blocks_total");
  if (lost > 100)  // of 182,000 distinct blocks
    GTEST_SKIP() << lost << " blocks left memory before the busy disk had them, so the hit rate says nothing";
  EXPECT_NEAR(replay["hit_rate"].get<double>(), expected, 0.003);
}

}  // namespace
}  // namespace kv::e2e
