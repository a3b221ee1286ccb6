// A real node whose options are changed while it serves: kvstorectl config, SIGHUP, and what they do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr std::size_t kLiveBlockBytes = 64 << 10;

Finished config(const NodeProcess& node, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {ctl_program(), "config"});
  arguments.insert(arguments.begin() + 3, {"--admin", node.admin()});
  return run_program(arguments);
}
Finished set(const NodeProcess& node, const std::string& assignment) { return config(node, {"set", assignment}); }

/// Shared memory of the node that is resident: its arena, mostly.
std::uint64_t shared_bytes(const NodeProcess& node) {
  std::ifstream file("/proc/" + std::to_string(node.pid()) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("RssShmem:")) return std::strtoull(line.c_str() + 9, nullptr, 10) << 10;
  }
  return 0;
}

TEST(E2eLiveTest, CapacityGoesDownUnderLoadAndUpAgainAndNoByteIsWrong) {
  NodeProcess node(
      {"--capacity", "64MiB", "--capacity-max", "128MiB", "--no-huge-pages", "true", "--eviction-policy", "lru"});
  std::atomic<bool> stops = false;
  std::atomic<std::uint64_t> wrong = 0, got = 0, failed = 0;
  std::vector<std::thread> workers;
  for (std::uint64_t worker = 0; worker < 2; ++worker) {
    workers.emplace_back([&, worker] {
      TestClient client(worker == 0 ? node.unix_socket() : node.tcp(), worker == 0 ? Transport::kShm : Transport::kTcp,
                        kLiveBlockBytes, 16);
      for (std::uint64_t i = 0; !stops; ++i) {
        const auto chain = make_chain(i % 150 + 1000 * worker, 16);
        const PutResult put = client.put(chain);
        failed += put.refused;
        const auto back = make_chain((i * 7) % 150 + 1000 * worker, 16);
        const GetResult get = client.get(back);
        wrong += client.wrong_bytes(back, get.block_count) + get.corrupt_count;
        got += get.block_count;
      }
    });
  }
  const auto is_at = [&](std::uint64_t mib) {
    return eventually([&] { return node.metric("kvstore_capacity_bytes") == static_cast<double>(mib << 20); });
  };
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_allocated_bytes") > (50 << 20); }));
  const std::uint64_t before = shared_bytes(node);
  EXPECT_GE(before, 64u << 20);
  ASSERT_EQ(set(node, "capacity=16MiB").status, 0);
  // The capacity falls in steps, each announced before its blocks are out: only the last one's end counts as a change.
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_capacity_changes_total") == 1; }));
  EXPECT_EQ(node.metric("kvstore_capacity_bytes"), 16 << 20);
  EXPECT_TRUE(eventually([&] { return shared_bytes(node) < before - (40 << 20); }))
      << "the pages are the system's again";
  EXPECT_LE(node.metric("kvstore_allocated_bytes"), 16 << 20);
  for (const std::uint64_t mib : {128, 32, 96, 16, 64}) {
    ASSERT_EQ(set(node, "capacity=" + std::to_string(mib) + "MiB").status, 0);
    EXPECT_TRUE(is_at(mib)) << mib;
  }
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_allocated_bytes") > (50 << 20); })) << "it fills again";
  stops = true;
  for (std::thread& each : workers) each.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(got, 100u);
  EXPECT_EQ(failed, 0u) << "a put finds room while the capacity goes down, too";
  EXPECT_EQ(node.metric("kvstore_checksum_failures_total"), 0);
  EXPECT_GE(node.metric("kvstore_capacity_changes_total"), 6);
  node.signal(SIGTERM);
  EXPECT_EQ(node.wait(), 0);
}

TEST(E2eLiveTest, WhatIsPinnedStaysAndIsMovedWhereItLiesInTheWay) {
  const NodeProcess node({"--capacity", "32MiB", "--capacity-max", "32MiB", "--no-huge-pages", "true"});
  TestClient client(node.unix_socket(), Transport::kShm, kLiveBlockBytes, 64);
  for (std::uint64_t i = 0; i < 7; ++i) ASSERT_EQ(client.put(make_chain(i, 64)).stored, 64u);  // 28 of 32 MiB
  const auto pinned = make_chain(6, 64);  // the last to come lies highest
  ASSERT_EQ(client->retain(client.space(), pinned, kDeadline).value(), 64u);
  ASSERT_EQ(set(node, "capacity=8MiB").status, 0);
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_capacity_bytes") == 8 << 20; }));
  const GetResult get = client.get(pinned);
  EXPECT_EQ(get.block_count, 64u);
  EXPECT_EQ(client.wrong_bytes(pinned, 64), 0u);
  EXPECT_GT(node.metric("kvstore_capacity_moved_bytes_total"), 0);
}

TEST(E2eLiveTest, CapacityIsRefusedWithFieldValueAndWhatIsAllowed) {
  const NodeProcess node({"--capacity", "16MiB", "--capacity-max", "64MiB"});
  TestClient client(node.tcp(), Transport::kTcp, 8 << 20, 1);
  for (const auto& [value, word] : std::vector<std::pair<std::string, std::string>>{{"33MiB", "multiples of 2097152"},
                                                                                    {"128MiB", "capacity-max"},
                                                                                    {"3", "allowed: 1MiB to"},
                                                                                    {"lots", "such as 64GiB"},
                                                                                    {"4MiB", "blocks of 8388608"}}) {
    const Finished refused = set(node, "capacity=" + value);
    EXPECT_EQ(refused.status, 1) << value;
    EXPECT_THAT(refused.err, HasSubstr("capacity: ")) << value;
    EXPECT_THAT(refused.err, HasSubstr(word)) << value;
  }
  EXPECT_EQ(node.metric("kvstore_config_refusals_total"), 5);
  const NodeProcess fixed({"--capacity", "16MiB"});
  const Finished refused = set(fixed, "capacity=8MiB");
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("capacity-max says how far it may go"));
}

TEST(E2eLiveTest, LimitsHoldForTheNextRequest) {
  const NodeProcess node({"--capacity", "16MiB"});
  TestClient client(node.tcp(), Transport::kTcp, kLiveBlockBytes, 8);
  const auto chain = make_chain(1, 8);
  ASSERT_EQ(client.put(chain).stored, 8u);
  const auto lease = [&] {
    return client->match(client.space(), chain, {.deadline = kDeadline, .lease = true}).value().lease != Lease{};
  };
  ASSERT_TRUE(lease());
  ASSERT_EQ(set(node, "lease-count-max=1").status, 0);
  EXPECT_FALSE(lease());
  ASSERT_EQ(set(node, "lease-count-max=100").status, 0);
  EXPECT_TRUE(lease());
  ASSERT_EQ(set(node, "leased-fraction-max=0").status, 0);
  const auto other = make_chain(2, 8);
  ASSERT_EQ(client.put(other).stored, 8u);
  EXPECT_EQ(client->match(client.space(), other, {.deadline = kDeadline, .lease = true}).value().lease, Lease{});

  ASSERT_EQ(set(node, "retained-fraction-max=0").status, 0);
  EXPECT_EQ(client->retain(client.space(), chain, kDeadline).error(), Errc::kBusy);
  ASSERT_EQ(set(node, "retained-fraction-max=0.5").status, 0);
  EXPECT_TRUE(client->retain(client.space(), chain, kDeadline));

  ASSERT_EQ(set(node, "namespace-count-max=1").status, 0);
  const Space another = client->open(make_record(4096, "another"), 0us).value();
  EXPECT_FALSE(client->wait_open(another, 2s));
  ASSERT_EQ(set(node, "namespace-count-max=9").status, 0);
  EXPECT_TRUE(eventually([&] { return client->wait_open(another, 2s).has_value(); }));

  ASSERT_EQ(set(node, "session-count-max=1").status, 0);
  EXPECT_EQ(run_program({ctl_program(), "ping", "-e", node.tcp()}).status, 1);
  EXPECT_GT(node.metric("kvstore_sessions_refused_total{reason=\"full\"}"), 0);
  ASSERT_EQ(set(node, "session-count-max=100").status, 0);
  EXPECT_EQ(run_program({ctl_program(), "ping", "-e", node.tcp()}).status, 0);
}

TEST(E2eLiveTest, ASlowConnectionIsGivenTheTimeThatIsInForce) {
  const NodeProcess node({"--capacity", "16MiB", "--hello-seconds", "3600"});
  ASSERT_EQ(set(node, "hello-seconds=0.2").status, 0);
  const std::string address = node.tcp().substr(6);
  asio::ip::tcp::iostream silent(address.substr(0, address.rfind(':')), address.substr(address.rfind(':') + 1));
  EXPECT_TRUE(eventually([&] { return node.metric("kvstore_sessions_closed_total{reason=\"hello_timeout\"}") == 1; }));
}

TEST(E2eLiveTest, TheLogSaysMoreOrLessAndEachChangeIsAudited) {
  const NodeProcess node({"--capacity", "16MiB", "--log-level", "info"});
  const auto visit = [&] { return run_program({ctl_program(), "ping", "-e", node.tcp()}).status; };
  ASSERT_EQ(visit(), 0);
  EXPECT_THAT(node.log(), testing::Not(HasSubstr("opened")));
  ASSERT_EQ(set(node, "log-level=debug").status, 0);
  ASSERT_EQ(visit(), 0);
  EXPECT_TRUE(eventually([&] { return node.log().find("opened") != std::string::npos; }));
  EXPECT_TRUE(node.logs("config: log-level = debug (was info), by loopback")) << node.log();
  EXPECT_TRUE(node.logs("audit: act=config_set who=loopback option=log-level value='debug' result=ok")) << node.log();
  EXPECT_EQ(set(node, "log-level=loud").status, 1);
  EXPECT_TRUE(node.logs("option=log-level value='loud' result=refused")) << node.log();
  EXPECT_EQ(node.metric("kvstore_config_changes_total"), 1);
  EXPECT_EQ(node.metric("kvstore_config_set_options"), 1);
}

TEST(E2eLiveTest, ListGetSetAndWriteSpeakOfTheSameFile) {
  const TempDir folder;
  const std::string file = folder.path() + "/node.toml";
  std::ofstream(file) << "# by hand\nlog-level = \"warn\"\ncapacity = \"16MiB\"\n";
  NodeProcess node({"--config", file, "--log-level", "info", "--lease-count-max", "7"});
  EXPECT_EQ(config(node, {"get", "lease-count-max"}).out, "7\n");
  EXPECT_EQ(config(node, {"get", "no-such"}).status, 1);
  const Finished list = config(node, {"list", "--json"});
  const json document = json::parse(list.out);
  EXPECT_EQ(document.at("file"), file);
  EXPECT_GT(document.at("options").size(), 70u);
  EXPECT_THAT(config(node, {"list"}).out, HasSubstr("lease-count-max"));
  const Finished written = config(node, {"set", "lease-count-max=9", "drain-seconds=1", "--write"});
  EXPECT_EQ(written.status, 0) << written.err;
  EXPECT_THAT(written.out, HasSubstr("at the next start the flag wins"));
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_EQ(text.str(),
            "# by hand\nlog-level = \"warn\"\ncapacity = \"16MiB\"\nlease-count-max = 9\ndrain-seconds = 1\n");
  std::ofstream(file) << "capacity = \"16MiB\"\nretained-fraction-max = 0.25\nthreads = 1\n";
  node.signal(SIGHUP);
  EXPECT_TRUE(eventually([&] { return config(node, {"get", "retained-fraction-max"}).out == "0.25\n"; }));
  EXPECT_EQ(config(node, {"get", "lease-count-max"}).out, "9\n") << "what was set stays";
  EXPECT_TRUE(node.logs("threads = 1 needs a restart")) << node.log();
  EXPECT_EQ(node.metric("kvstore_config_reloads_total"), 1);
  node.signal(SIGTERM);
  EXPECT_EQ(node.wait(), 0);
}

TEST(E2eLiveTest, AWebPageOrAnObserverCannotChangeAnything) {
  const TempDir folder;
  const std::string policy = folder.path() + "/policy.toml";
  const std::string token = "0123456789abcdef0123456789abcdef0123";
  std::ofstream(policy) << "[watchers]\nmatch = [\"loopback\"]\nroles = [\"metrics\"]\n";
  const NodeProcess node({"--capacity", "16MiB", "--policy-file", policy});
  EXPECT_EQ(config(node, {"list"}).status, 0);
  const Finished denied = set(node, "log-level=debug");
  EXPECT_EQ(denied.status, 1);
  EXPECT_THAT(denied.err, HasSubstr("operate"));
  const NodeProcess open({"--capacity", "16MiB"});
  const auto post = [&](const std::string& header) {
    const std::string& address = open.admin();
    asio::ip::tcp::iostream stream(address.substr(0, address.rfind(':')), address.substr(address.rfind(':') + 1));
    stream << "POST /config/set?log-level=debug HTTP/1.1\r\n" << header << "Connection: close\r\n\r\n" << std::flush;
    std::string line;
    std::getline(stream, line);
    return line.substr(9, 3);
  };
  EXPECT_EQ(post("Host: localhost\r\n"), "403");
  EXPECT_EQ(post("Host: evil.example\r\nX-Kvstore-Config: 1\r\n"), "403");
  EXPECT_EQ(post("Host: localhost\r\nX-Kvstore-Config: 1\r\n"), "200");
  EXPECT_EQ(open.http_get("/config/set?log-level=debug").status, 405);
}

TEST(E2eLiveTest, TheDiskTierTakesUpItsRatesAndSizes) {
  const TempDir folder;
  const NodeProcess node({"--capacity", "4MiB", "--disk-path", folder.path(), "--disk-capacity", "64MiB",
                          "--spill-policy", "write-through", "--eviction-policy", "lru"});
  TestClient client(node.tcp(), Transport::kTcp, kLiveBlockBytes, 16);
  std::uint64_t next = 0;  // what a slow disk has not taken is evicted unwritten: so as many as it takes
  EXPECT_TRUE(eventually([&] {
    client.put(make_chain(++next, 16));
    return node.metric("kvstore_disk_only_bytes") > (20 << 20);
  }));
  ASSERT_EQ(set(node, "disk-capacity=8MiB").status, 0);
  EXPECT_TRUE(eventually([&] {
    client.put(make_chain(++next, 16));
    return node.metric("kvstore_disk_only_bytes") <= (8 << 20);
  }));
  EXPECT_EQ(config(node, {"set", "disk-write-rate=100MiB", "disk-scrub-rate=0", "spill-reserve=0.1"}).status, 0);
  EXPECT_EQ(set(node, "disk-read-threads=9").status, 1);
}

// -- directories of the disk tier

class E2eDirectoriesTest : public testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 16;

  /// Memory of 4 MiB; chains of 1 MiB.
  std::unique_ptr<NodeProcess> start(const std::vector<std::string>& directories, std::vector<std::string> more = {}) {
    std::vector<std::string> options = {
        "--capacity",        "4MiB", "--disk-capacity",          "512MiB", "--spill-policy", "write-through",
        "--eviction-policy", "lru",  "--spill-put-wait-seconds", "5"};
    for (const std::string& directory : directories) options.insert(options.end(), {"--disk-path", directory});
    options.insert(options.end(), more.begin(), more.end());
    auto node = std::make_unique<NodeProcess>(options);
    EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; })) << node->log();
    return node;
  }
  static std::unique_ptr<TestClient> connect(const NodeProcess& node) {
    return std::make_unique<TestClient>(node.unix_socket(), Transport::kUnix, kLiveBlockBytes, kBlocks);
  }
  static Finished use(const NodeProcess& node, const std::vector<std::string>& directories) {
    std::vector<std::string> arguments = {"set"};
    for (const std::string& directory : directories) arguments.push_back("disk-path=" + directory);
    return config(node, arguments);
  }
  static void fill(TestClient& client, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t name = first; name < first + count; ++name)
      EXPECT_EQ(client.put(make_chain(name, kBlocks)).stored, kBlocks) << name;
  }
  /// How many blocks of the chain come back. Wrong bytes fail the test.
  static std::size_t got(TestClient& client, std::uint64_t name) {
    const auto chain = make_chain(name, kBlocks);
    const std::size_t count = client.get(chain).block_count;
    EXPECT_EQ(client.wrong_bytes(chain, count), 0u) << name;
    return count;
  }
  static bool is_on_disk(const NodeProcess& node, std::uint64_t blocks) {
    return eventually([&] { return node.metric("kvstore_disk_blocks") >= static_cast<double>(blocks); });
  }
  static std::uintmax_t table_bytes(const std::string& directory) {
    std::uintmax_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(directory)) {
      if (file.path().extension() == ".sst") bytes += file.file_size();
    }
    return bytes;
  }

  TempDir folder;
  const std::string a = folder.path() + "/a", b = folder.path() + "/b", c = folder.path() + "/c";
};

TEST_F(E2eDirectoriesTest, OneIsAddedUnderLoadAndTheFirstIsEmptiedClosedAndRemoved) {
  auto node = start({a});
  auto client = connect(*node);
  fill(*client, 1, 40);
  ASSERT_TRUE(is_on_disk(*node, 40 * kBlocks));
  std::atomic<bool> stops = false;
  std::atomic<std::uint64_t> wrong = 0, puts = 0;
  std::thread load([&] {
    const auto own = connect(*node);
    for (std::uint64_t i = 0; !stops; ++i, ++puts) {
      own->put(make_chain(1000 + i % 60, kBlocks));
      const auto back = make_chain(1 + i * 7 % 40, kBlocks);
      wrong += own->wrong_bytes(back, own->get(back).block_count);
    }
  });
  // A device has five seconds to open it: too few where the machine has much else to do.
  Finished added;
  EXPECT_TRUE(eventually([&] { return (added = use(*node, {a, b})).status == 0; })) << added.err;
  EXPECT_EQ(added.out, "disk-path: changed\n");
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_directories") == 2 && puts > 20; }));
  const Finished set_out = use(*node, {b});
  EXPECT_EQ(set_out.status, 0) << set_out.err;
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_directories") == 1; })) << node->log();
  EXPECT_TRUE(eventually([&] { return node->log().find(a + " is closed and holds no blocks") != std::string::npos; }))
      << node->log();
  stops = true;
  load.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_LT(table_bytes(a), 8 * kLiveBlockBytes) << "some KiB of what records were; no block";
  EXPECT_GT(node->metric("kvstore_disk_drained_blocks_total"), 40 * kBlocks / 2);
  EXPECT_EQ(node->metric("kvstore_disk_drain_lost_blocks_total"), 0);
  std::filesystem::remove_all(a);
  // A call of more than two seconds, as on a busy machine, leaves a directory out until it has answered.
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_directories_left_out") == 0; })) << node->log();
  for (std::uint64_t name = 1; name <= 40; ++name) EXPECT_EQ(got(*client, name), kBlocks) << name;
  EXPECT_EQ(node->metric("kvstore_disk_is_on"), 1);
  client.reset();
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0) << node->log();
  node = start({b});
  client = connect(*node);
  for (std::uint64_t name = 1; name <= 40; ++name) EXPECT_EQ(got(*client, name), kBlocks) << name;
}

/// With the directory that was leaving and without; what was dropped meanwhile stays away, also once it is added again.
/// KV_KILL_ROUNDS=100 for the long run.
TEST_F(E2eDirectoriesTest, AfterAKillWhileOneIsEmptiedWhatIsClaimedIsThereAndWhatWasDroppedIsNot) {
  constexpr std::uint64_t kNames = 40, kDropped = 5;
  const char* const given = std::getenv("KV_KILL_ROUNDS");
  const int rounds = given != nullptr ? std::atoi(given) : 4;
  std::size_t found = 0;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    for (const std::string& directory : {a, b}) std::filesystem::remove_all(directory);
    auto node = start({a, b}, {"--disk-drain-rate", "16MiB"});
    {
      const auto connected = connect(*node);
      TestClient& client = *connected;
      fill(client, 1, kNames);
      ASSERT_TRUE(is_on_disk(*node, kNames * kBlocks));
      node->signal(SIGTERM);  // so that all of it has left the write buffers
      ASSERT_EQ(node->wait(), 0) << node->log();
    }
    node = start({a, b}, {"--disk-drain-rate", "16MiB"});
    {
      const auto connected = connect(*node);
      TestClient& client = *connected;
      ASSERT_EQ(use(*node, {b}).status, 0);
      const double moved = 40 + 60 * (round % 4);
      EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_drained_blocks_total") > moved; })) << node->log();
      const Finished status = run_program({ctl_program(), "status", "--endpoint", node->unix_socket()});
      EXPECT_THAT(status.out, HasSubstr("draining 1: "));
      const auto doomed = make_chain(kDropped, kBlocks);
      const auto dropped = client->drop(client.space(), std::span(doomed).first(3), kDeadline);
      node->signal(SIGKILL);
      ASSERT_TRUE(dropped) << dropped.error().message();
      EXPECT_FALSE(dropped->until_restart);
      node->wait();
    }
    const std::vector<std::vector<std::string>> starts = round % 2 == 0
                                                             ? std::vector<std::vector<std::string>>{{a, b}, {b, a}}
                                                             : std::vector<std::vector<std::string>>{{b}, {a, b}};
    for (const auto& directories : starts) {
      node = start(directories);
      const auto connected = connect(*node);
      TestClient& client = *connected;
      const auto look = [&] {
        for (std::uint64_t name = 1; name <= kNames; ++name) {
          const auto claimed = client->match(client.space(), make_chain(name, kBlocks), {.deadline = kDeadline});
          ASSERT_TRUE(claimed);
          EXPECT_EQ(got(client, name), claimed->block_count) << name;
          if (round % 2 == 0) {
            EXPECT_EQ(claimed->block_count, name == kDropped ? 2 : kBlocks) << name;
          } else if (name == kDropped) {
            EXPECT_LE(claimed->block_count, 2u);
          }
          found += claimed->block_count;
        }
      };
      look();
      if (directories.size() == 1) {
        const Finished again = use(*node, {a, b});
        EXPECT_EQ(again.status, 0) << again.err;
        look();
      }
      node->signal(SIGKILL);
      node->wait();
    }
  }
  EXPECT_GT(found, 0u);
}

TEST_F(E2eDirectoriesTest, ABadOneIsRefusedWithItsNameAndChangesNothing) {
  const auto node = start({a}), other = start({c});
  const auto refused = [&](const std::string& directory, const std::string& why) {
    const Finished wrong = use(*node, {a, directory});
    EXPECT_EQ(wrong.status, 1) << directory;
    EXPECT_THAT(wrong.err, HasSubstr("disk-path: " + directory));
    EXPECT_THAT(wrong.err, HasSubstr(why));
  };
  const std::string link = folder.path() + "/link", foreign = folder.path() + "/foreign",
                    open = folder.path() + "/open", newer = folder.path() + "/newer";
  for (const std::string& directory : {foreign, open, newer}) std::filesystem::create_directory(directory);
  std::filesystem::create_directory_symlink(open, link);
  std::ofstream(foreign + "/thesis.tex") << "mine";
  std::filesystem::permissions(open, std::filesystem::perms::all);
  std::ofstream(newer + "/FORMAT") << "kvstore-spill 9\nxxh3 fbf5279e0ee4eeaf\n";
  refused(link, "symbolic link");
  refused(foreign, "not a disk directory");
  refused(open, "chmod go-w");
  refused(newer, "disk format 9");
  refused(c, "in use by process");
  EXPECT_THAT(use(*node, {a, a + "/"}).err, HasSubstr(a + ": is in use by process"));
  refused(folder.path() + "/thesis/../foreign/thesis.tex/x", "is no directory");
  const std::string typo = folder.path() + "/dsik/kv";
  refused(typo, "dsik is not there");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/dsik")) << "and nothing is drained into it";
  EXPECT_TRUE(std::filesystem::exists(foreign + "/thesis.tex"));
  EXPECT_THAT(set(*node, "disk-path=").err, HasSubstr("allowed: a directory"));
  EXPECT_THAT(use(*node, {b, b}).err, HasSubstr("given twice"));
  EXPECT_EQ(config(*node, {"get", "disk-path"}).out, a + "\n");
  EXPECT_EQ(node->metric("kvstore_disk_directories"), 1);
  const auto connected = connect(*node);
  TestClient& client = *connected;
  fill(client, 1, 8);
  ASSERT_TRUE(is_on_disk(*node, 8 * kBlocks));
  for (std::uint64_t name = 1; name <= 8; ++name) EXPECT_EQ(got(client, name), kBlocks);
  const NodeProcess without({"--capacity", "4MiB"});
  EXPECT_THAT(set(without, "disk-path=" + b).err, HasSubstr("no disk tier"));
}

TEST_F(E2eDirectoriesTest, HangupTakesUpTheListOfTheFileAndTakesADrainBack) {
  const std::string file = folder.path() + "/node.toml";
  const auto write = [&](const std::string& paths) { std::ofstream(file) << "disk-path = [" << paths << "]\n"; };
  const std::string qa = "\"" + a + "\"", qb = "\"" + b + "\"";
  write(qa + ", " + qb);
  const auto node = start({}, {"--config", file, "--disk-drain-rate", "1MiB"});
  const auto connected = connect(*node);
  TestClient& client = *connected;
  fill(client, 1, 16);
  ASSERT_TRUE(is_on_disk(*node, 16 * kBlocks));
  write(qb);
  node->signal(SIGHUP);
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_draining_directories") == 1; })) << node->log();
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_drained_blocks_total") > 4; })) << node->log();
  write(qb + ", " + qa);
  node->signal(SIGHUP);
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_draining_directories") == 0; })) << node->log();
  EXPECT_EQ(node->metric("kvstore_disk_directories"), 2);
  EXPECT_TRUE(node->logs("takes blocks again")) << node->log();
  for (std::uint64_t name = 1; name <= 16; ++name) EXPECT_EQ(got(client, name), kBlocks);
}

}  // namespace
}  // namespace kv::e2e
