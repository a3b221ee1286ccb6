// The real daemon on a disk that fails, fills up, is remounted read-only, hangs, is slow, and under a clock that jumps:
// memory is served throughout, the disk tier is off with a reason and on again once the disk is well. The faults are
// made by a preloaded library (faulty_disk.h), so RocksDB and kvstore-node are those that users run.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/e2e/faulty_disk.h"
#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

constexpr std::size_t kDiskFaultBlockBytes = 64 << 10;
constexpr std::size_t kDiskFaultBlocks = 16;

/// A directory whose disk does what the test says.
class FaultyDisk {
 public:
  FaultyDisk() {
    const std::string file = directory_.path() + "/control";
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (::ftruncate(descriptor, sizeof(fault_control)) != 0) throw std::runtime_error("no control file");
    void* const mapped = ::mmap(nullptr, sizeof(fault_control), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    ::close(descriptor);
    if (mapped == MAP_FAILED) throw std::runtime_error("no control file");
    control_ = static_cast<fault_control*>(mapped);
    control_->bytes_per_second = 1 << 20;
  }
  ~FaultyDisk() { ::munmap(control_, sizeof(fault_control)); }
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;

  std::string path() const { return directory_.path() + "/disk"; }
  std::vector<std::string> environment() const {
    return {std::string("LD_PRELOAD=") + KV_FAULTY_DISK_LIBRARY, "KV_FAULT_DIRECTORY=" + path(),
            "KV_FAULT_CONTROL=" + directory_.path() + "/control"};
  }
  void set(fault_mode mode) { std::atomic_ref(control_->mode) = mode; }
  void jump_clock(std::chrono::seconds by) { std::atomic_ref(control_->clock_jump_seconds) = by.count(); }
  long long calls() const { return std::atomic_ref(control_->calls).load(); }

 private:
  TempDir directory_;
  fault_control* control_;
};

class E2eDiskFaultTest : public testing::TestWithParam<fault_mode> {
 protected:
  void SetUp() override {
    if (KV_IS_SANITIZED) GTEST_SKIP() << "a sanitizer's runtime must be loaded first, and the faults are preloaded";
  }

  std::unique_ptr<NodeProcess> start(std::vector<std::string> more = {}) {
    std::vector<std::string> options = {"--capacity-blocks",    "64",        "--capacity-block-bytes", "64KiB",
                                        "--disk-path",          disk.path(), "--disk-capacity",        "256MiB",
                                        "--disk-retry-seconds", "0.2"};
    options.insert(options.end(), more.begin(), more.end());
    return std::make_unique<NodeProcess>(options, "", disk.environment());
  }
  std::unique_ptr<TestClient> connect(const NodeProcess& node) {
    return std::make_unique<TestClient>(node.unix_socket(), Transport::kUnix, kDiskFaultBlockBytes, kDiskFaultBlocks);
  }
  /// Puts a chain and gets it back from memory, whatever the disk does.
  void expect_memory_is_served(TestClient& client, std::uint64_t name) {
    const auto chain = make_chain(name, kDiskFaultBlocks);
    EXPECT_EQ(client.put(chain).stored, kDiskFaultBlocks) << name;
    const GetResult got = client.get(chain);
    EXPECT_EQ(got.block_count, kDiskFaultBlocks) << name;
    EXPECT_EQ(client.wrong_bytes(chain, got.block_count), 0u) << name;
  }
  /// Puts chains until the disk tier holds some of their blocks.
  void fill(const NodeProcess& node, TestClient& client) {
    for (std::uint64_t name = 1; name <= 12; ++name) {
      EXPECT_EQ(client.put(make_chain(name, kDiskFaultBlocks)).stored, kDiskFaultBlocks);
      EXPECT_TRUE(eventually([&] { return node.metric("kvstore_allocated_bytes") <= 62 * kDiskFaultBlockBytes; }));
    }
    EXPECT_GT(disk.calls(), 0) << "nothing is intercepted";
    EXPECT_GT(node.metric("kvstore_spilled_blocks_total"), 0);
  }
  /// Asks for all chains ever put: what comes is right, and nothing takes longer than a get's deadline.
  void expect_right(TestClient& client, std::uint64_t names) {
    for (std::uint64_t name = 1; name <= names; ++name) {
      const auto chain = make_chain(name, kDiskFaultBlocks);
      const GetResult got = client.get(chain);
      EXPECT_EQ(client.wrong_bytes(chain, got.block_count), 0u) << name;
    }
  }

  FaultyDisk disk;
};

TEST_P(E2eDiskFaultTest, TheTierIsOffWhileTheDiskFailsAndOnAgainAfterwards) {
  const auto node = start();
  const auto client = connect(*node);
  fill(*node, *client);
  disk.set(GetParam());
  std::uint64_t name = 100;
  // RocksDB buffers writes in memory: it takes some until it meets the disk.
  const bool is_off = eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_is_on") == 0;
  });
  EXPECT_TRUE(is_off);
  const Finished doctor = run_program({ctl_program(), "doctor", "--admin", "none", "--endpoint", node->unix_socket()});
  EXPECT_NE(doctor.out.find("off: what it holds is a miss"), std::string::npos) << doctor.out;
  for (int i = 0; i < 20; ++i) expect_memory_is_served(*client, ++name);
  expect_right(*client, 12);
  // A namespace that the disk cannot be told of now must not keep it from coming back.
  TestClient other(node->unix_socket(), Transport::kUnix, kDiskFaultBlockBytes / 2, kDiskFaultBlocks);
  expect_memory_is_served(other, 1);
  EXPECT_TRUE(node->logs("disk: off")) << node->log();
  const Finished status = run_program({ctl_program(), "status", "--endpoint", node->unix_socket()});
  EXPECT_EQ(status.status, 0);
  EXPECT_NE(status.out.find("off"), std::string::npos) << status.out;

  disk.set(FAULT_NONE);
  const double before = node->metric("kvstore_spilled_blocks_total");
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_is_on") == 1 && node->metric("kvstore_spilled_blocks_total") > before;
  })) << node->log();
  expect_right(*client, name);
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0) << node->log();
}

TEST_P(E2eDiskFaultTest, ANodeStartsOnADiskThatFailsAndUsesItOnceItIsWell) {
  {
    const auto node = start();
    const auto client = connect(*node);
    fill(*node, *client);
    node->signal(SIGTERM);
    ASSERT_EQ(node->wait(), 0);
  }
  disk.set(GetParam());
  const auto node = start();
  const auto client = connect(*node);
  EXPECT_EQ(node->metric("kvstore_disk_is_on"), 0);
  expect_memory_is_served(*client, 100);
  disk.set(FAULT_NONE);
  EXPECT_TRUE(eventually([&] {
    return node->metric("kvstore_disk_is_on") == 1 && node->metric("kvstore_disk_is_loading") == 0;
  })) << node->log();
  for (std::uint64_t name = 1; name <= 12; ++name) {
    const auto chain = make_chain(name, kDiskFaultBlocks);
    const GetResult got = client->get(chain);
    EXPECT_EQ(got.block_count, kDiskFaultBlocks) << name << " was saved by the stop, and nothing was given up";
    EXPECT_EQ(client->wrong_bytes(chain, got.block_count), 0u) << name;
  }
}

std::string fault_name(fault_mode mode) {
  switch (mode) {
    case FAULT_NONE: return "None";
    case FAULT_EIO: return "Eio";
    case FAULT_READ_ONLY: return "ReadOnly";
    case FAULT_FULL: return "Full";
    case FAULT_STUCK: return "Stuck";
    case FAULT_SLOW: return "Slow";
    case FAULT_SYNC_FAILS: return "SyncFails";
  }
  return "?";
}

INSTANTIATE_TEST_SUITE_P(Faults, E2eDiskFaultTest, testing::Values(FAULT_EIO, FAULT_READ_ONLY, FAULT_FULL, FAULT_STUCK),
                         [](const auto& one) { return fault_name(one.param); });

class E2eDiskFaultNodeTest : public E2eDiskFaultTest {};
INSTANTIATE_TEST_SUITE_P(Once, E2eDiskFaultNodeTest, testing::Values(FAULT_NONE),
                         [](const auto& one) { return fault_name(one.param); });

/// KV_STUCK_SECONDS=60 for the long run.
TEST_P(E2eDiskFaultNodeTest, ADiskThatHangsForLongHurtsNobodyAndComesBack) {
  const char* const given = std::getenv("KV_STUCK_SECONDS");
  const auto until_well = std::chrono::seconds(given != nullptr ? std::atoi(given) : 4);
  const auto node = start();
  const auto client = connect(*node);
  fill(*node, *client);
  disk.set(FAULT_STUCK);
  const auto began = std::chrono::steady_clock::now();
  std::uint64_t name = 100;
  while (std::chrono::steady_clock::now() - began < until_well) {
    expect_memory_is_served(*client, ++name);
    expect_right(*client, 2);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(node->http_get("/readyz").status, 200);
  disk.set(FAULT_NONE);
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_is_on") == 1;
  })) << node->log();
  expect_right(*client, name);
}

TEST_P(E2eDiskFaultNodeTest, NobodyWaitsForADiskThatHangsWhileItIsOpenedAgain) {
  const auto node = start();
  const auto client = connect(*node);
  fill(*node, *client);
  disk.set(FAULT_EIO);
  std::uint64_t name = 100;
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_is_on") == 0;
  }));
  disk.set(FAULT_STUCK);
  const long long before = disk.calls();
  EXPECT_TRUE(eventually([&] { return disk.calls() > before; })) << "it is tried again, and hangs";
  expect_memory_is_served(*client, ++name);
  EXPECT_EQ(node->metric("kvstore_disk_is_on"), 0);
  const Finished status = run_program({ctl_program(), "status", "--endpoint", node->unix_socket()});
  EXPECT_EQ(status.status, 0) << status.err;
  disk.set(FAULT_NONE);
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_is_on") == 1;
  })) << node->log();
  expect_right(*client, 12);
}

TEST_P(E2eDiskFaultNodeTest, OneOfTwoDisksThatFailsIsLeftOut) {
  const TempDir healthy;
  const auto node = start({"--disk-path", healthy.path(), "--spill-put-wait-seconds", "5"});
  const auto client = connect(*node);
  fill(*node, *client);
  disk.set(FAULT_EIO);
  std::uint64_t name = 100;
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_directories_left_out") == 1;
  })) << node->log();
  EXPECT_TRUE(node->logs("is left out")) << node->log();
  const Finished status = run_program({ctl_program(), "status", "--endpoint", node->unix_socket()});
  EXPECT_NE(status.out.find("1 left out"), std::string::npos) << status.out;
  const double before = node->metric("kvstore_spilled_blocks_total");
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_is_on") == 1 && node->metric("kvstore_spilled_blocks_total") > before + 100;
  })) << node->log();
  const std::uint64_t last = name;
  for (int i = 0; i < 8; ++i) expect_memory_is_served(*client, ++name);
  EXPECT_EQ(client->get(make_chain(last, kDiskFaultBlocks)).block_count, kDiskFaultBlocks) << "from the other disk";
  expect_right(*client, 12);
}

/// The healthy disk answers sooner, also on a machine that has much else to do.
const char* const kHangSeconds = "4";

TEST_P(E2eDiskFaultNodeTest, OneOfTwoDisksThatHangsIsLeftOutUntilItAnswers) {
  const TempDir healthy;
  const auto node = start({"--disk-path", healthy.path(), "--spill-put-wait-seconds", "5", "--disk-hang-seconds",
                           kHangSeconds, "--disk-read-threads", "2"});
  const auto client = connect(*node);
  fill(*node, *client);
  disk.set(FAULT_STUCK);
  std::uint64_t name = 100;
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_directories_left_out") == 1;
  })) << node->log();
  EXPECT_TRUE(node->logs("is left out until it answers")) << node->log();
  // The other one goes on: it is written, read, and keeps drops.
  const double before = node->metric("kvstore_spilled_blocks_total");
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_is_on") == 1 && node->metric("kvstore_spilled_blocks_total") > before + 100;
  })) << node->log();
  // A node that gets no processor for a while may lose a chain before it is written, so more than one has a try.
  std::uint64_t last = 0;
  EXPECT_TRUE(eventually([&] {
    last = name + 1;
    for (int i = 0; i < 9; ++i) expect_memory_is_served(*client, ++name);
    return client->get(make_chain(last, kDiskFaultBlocks)).block_count == kDiskFaultBlocks;
  })) << "from the other disk";
  const auto last_chain = make_chain(last, kDiskFaultBlocks);
  const auto dropped = (*client)->drop(client->space(), std::span(last_chain).first(1), kDeadline);
  ASSERT_TRUE(dropped);
  EXPECT_FALSE(dropped->until_restart) << node->log();
  expect_right(*client, 12);

  disk.set(FAULT_NONE);
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_directories_left_out") == 0;
  })) << node->log();
  EXPECT_TRUE(node->logs("answers again")) << node->log();
  expect_right(*client, name);
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0) << node->log();
}

/// Whoever takes a broken disk out must not wait for it, and gets it back once it answers.
TEST_P(E2eDiskFaultNodeTest, OneOfTwoDisksThatHangsIsTakenOutWhileTheNodeServes) {
  const TempDir healthy;
  const auto node = start({"--disk-path", healthy.path(), "--spill-put-wait-seconds", "5", "--disk-hang-seconds",
                           kHangSeconds, "--disk-read-threads", "2"});
  const auto client = connect(*node);
  fill(*node, *client);
  const auto use = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {ctl_program(), "config", "set", "--admin", node->admin()});
    return run_program(arguments);
  };
  disk.set(FAULT_STUCK);
  const Finished out = use({"disk-path=" + healthy.path()});
  EXPECT_EQ(out.status, 0) << out.err;
  std::uint64_t name = 100;
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_disk_directories") == 1;
  })) << node->log();
  EXPECT_EQ(node->log().find("is closed and"), std::string::npos) << node->log();
  // What RocksDB still has in memory is moved, the rest is lost.
  EXPECT_GT(node->metric("kvstore_disk_drain_lost_blocks_total") + node->metric("kvstore_disk_drained_blocks_total"),
            0);
  EXPECT_EQ(node->metric("kvstore_disk_is_on"), 1);
  const double before = node->metric("kvstore_spilled_blocks_total");
  EXPECT_TRUE(eventually([&] {
    expect_memory_is_served(*client, ++name);
    return node->metric("kvstore_spilled_blocks_total") > before + 50;
  })) << node->log();
  expect_right(*client, 12);
  EXPECT_NE(use({"disk-path=" + healthy.path(), "disk-path=" + disk.path()}).err.find("still being closed"),
            std::string::npos);
  disk.set(FAULT_NONE);
  EXPECT_TRUE(eventually([&] { return node->log().find(disk.path() + " is closed and") != std::string::npos; }))
      << node->log();
  const Finished back = use({"disk-path=" + healthy.path(), "disk-path=" + disk.path()});
  EXPECT_EQ(back.status, 0) << back.err;
  expect_right(*client, name);
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 0) << node->log();
}

/// Of two directories one is away when blocks of both are dropped; then the node is killed, and both are there again.
TEST_P(E2eDiskFaultNodeTest, ADropHoldsForADiskThatIsLeftOutThoughTheNodeIsKilled) {
  for (const fault_mode mode : {FAULT_EIO, FAULT_STUCK}) {
    SCOPED_TRACE(mode == FAULT_EIO ? "fails" : "hangs");
    const TempDir healthy;
    const std::vector<std::string> options = {"--disk-path", healthy.path(),        "--spill-put-wait-seconds",
                                              "5",           "--disk-hang-seconds", kHangSeconds};
    auto node = start(options);
    {
      const auto client = connect(*node);
      fill(*node, *client);
    }
    node->signal(SIGTERM);
    ASSERT_EQ(node->wait(), 0) << node->log();
    node = start(options);
    ASSERT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
    {
      const auto client = connect(*node);
      disk.set(mode);
      std::uint64_t name = 100;
      EXPECT_TRUE(eventually([&] {
        expect_memory_is_served(*client, ++name);
        return node->metric("kvstore_disk_directories_left_out") == 1;
      })) << node->log();
      for (std::uint64_t each = 1; each <= 12; each += 2) {
        const auto chain = make_chain(each, kDiskFaultBlocks);
        const auto dropped = (*client)->drop(client->space(), std::span(chain).first(2), kDeadline);
        ASSERT_TRUE(dropped);
        EXPECT_FALSE(dropped->until_restart) << node->log();
      }
      node->signal(SIGKILL);
      disk.set(FAULT_NONE);
      node->wait();
    }
    node = start(options);
    ASSERT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
    const auto client = connect(*node);
    for (std::uint64_t each = 1; each <= 12; each += 2)
      EXPECT_LE(client->get(make_chain(each, kDiskFaultBlocks)).block_count, 1u) << each;
    EXPECT_EQ(client->get(make_chain(12, kDiskFaultBlocks)).block_count, kDiskFaultBlocks) << "was not dropped";
    node->signal(SIGKILL);
    node->wait();
    std::filesystem::remove_all(disk.path());
  }
}

/// What cannot be synced is not durable, though it was written; the answer says so, and so does the tool.
TEST_P(E2eDiskFaultNodeTest, ADropThatNoDiskCanKeepSaysThatItHoldsUntilTheNextStart) {
  for (const fault_mode mode : {FAULT_SYNC_FAILS, FAULT_STUCK}) {
    const auto node = start({"--disk-drop-wait-seconds", "0.5"});
    ASSERT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_on") == 1; })) << node->log();
    const auto client = connect(*node);
    const auto chain = make_chain(1, kDiskFaultBlocks);
    EXPECT_EQ(client->put(chain).stored, kDiskFaultBlocks);
    disk.set(mode);
    const auto dropped = (*client)->drop(client->space(), chain, kDeadline);
    ASSERT_TRUE(dropped) << dropped.error().message();
    EXPECT_EQ(dropped->block_count, 1u);
    EXPECT_TRUE(dropped->until_restart) << node->log();
    const Finished tool = run_program({ctl_program(), "drop", "--endpoint", node->unix_socket(), "--namespace",
                                       to_hex(client->record().id().bytes), "--all", "--yes"});
    EXPECT_NE(tool.out.find("until the node next starts"), std::string::npos) << tool.out << tool.err;
    EXPECT_GE(node->metric("kvstore_disk_drops_not_kept_total"), mode == FAULT_STUCK ? 0 : 2);
    disk.set(FAULT_NONE);
    EXPECT_TRUE(eventually([&] {
      const auto again = (*client)->drop(client->space(), chain, kDeadline);
      return again && !again->until_restart;
    })) << node->log();
  }
}

TEST_P(E2eDiskFaultNodeTest, ASlowDiskCostsBlocksAndNotTime) {
  const auto node = start({"--spill-put-wait-seconds", "0.05"});
  const auto client = connect(*node);
  fill(*node, *client);
  disk.set(FAULT_SLOW);
  std::uint64_t name = 100;
  // Some hundred MiB, a hundred times what the disk takes meanwhile.
  for (int i = 0; i < 300 && !HasFailure(); ++i) expect_memory_is_served(*client, ++name);
  EXPECT_GT(node->metric("kvstore_lost_unspilled_blocks_total"), 0);
  disk.set(FAULT_NONE);
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_on") == 1; })) << node->log();
  expect_right(*client, 12);
}

TEST_P(E2eDiskFaultNodeTest, AStopDoesNotWaitForADiskThatHangs) {
  const auto node = start({"--disk-stop-seconds", "0.5"});
  const auto client = connect(*node);
  fill(*node, *client);
  disk.set(FAULT_STUCK);
  node->signal(SIGTERM);
  EXPECT_EQ(node->wait(), 1);
  EXPECT_TRUE(node->logs("stopped without the disk")) << node->log();
}

TEST_P(E2eDiskFaultNodeTest, AStartThatFailsDoesNotWaitForADiskThatHangs) {
  disk.set(FAULT_STUCK);
  const Finished node =
      run_program({node_program(), "--listen", "unix:///proc/not/there", "--capacity", "64MiB", "--disk-path",
                   disk.path(), "--disk-capacity", "256MiB", "--disk-stop-seconds", "0.2", "--admin", "127.0.0.1:0"},
                  disk.environment());
  EXPECT_EQ(node.status, 1) << node.err;
  EXPECT_NE(node.err.find("/proc/not/there"), std::string::npos) << node.err;
}

TEST_P(E2eDiskFaultNodeTest, AClockThatJumpsChangesNothing) {
  // On a busy machine the disk is slow, and a put must not push out blocks that are not written yet.
  auto node = start({"--spill-put-wait-seconds", "5"});
  {
    const auto client = connect(*node);
    fill(*node, *client);
    std::uint64_t name = 100;
    for (const auto by : {24h, -48h, 24h * 365 * 30, -24h * 365 * 30, 0h}) {
      disk.jump_clock(by);
      for (int i = 0; i < 10; ++i) expect_memory_is_served(*client, ++name);
      expect_right(*client, 12);
      EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_on") == 1; })) << node->log();
    }
    EXPECT_EQ(node->metric("kvstore_lost_blocks_total"), 0);
    EXPECT_EQ(node->metric("kvstore_lost_unspilled_blocks_total"), 0);
    node->signal(SIGTERM);
    EXPECT_EQ(node->wait(), 0);
  }
  disk.jump_clock(-24h * 365);  // a machine that lost its clock restarts in the past
  node = start();
  const auto client = connect(*node);
  EXPECT_TRUE(eventually([&] { return node->metric("kvstore_disk_is_loading") == 0; }));
  for (std::uint64_t name = 1; name <= 12; ++name)
    EXPECT_EQ(client->get(make_chain(name, kDiskFaultBlocks)).block_count, kDiskFaultBlocks) << name;
}

}  // namespace
}  // namespace kv::e2e
