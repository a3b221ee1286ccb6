// A node on its way up: what it says of itself, who may end it, and what it refuses to begin.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/node_process.h"
#include "tests/e2e/raw_session.h"

namespace kv::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What systemd has at $NOTIFY_SOCKET.
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) throw std::runtime_error(path);
  }
  ~NotifySocket() { ::close(fd_); }
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  /// The messages up to the first one that has `words`.
  std::string read_to(const std::string& words) {
    std::string all;
    while (all.find(words) == std::string::npos) {
      char message[4096];
      const ssize_t count = ::recv(fd_, message, sizeof message, 0);
      if (count <= 0) throw std::runtime_error("no '" + words + "' came, but: " + all);
      all.append(message, static_cast<std::size_t>(count)) += '\n';
    }
    return all;
  }

 private:
  int fd_;
};

/// Its keys come from a command that waits, so that the start stays where it is.
TEST(E2eStartTest, ANodeThatStartsIsAliveNotReadyAndObeysTheFirstSignal) {
  const TempDir folder;
  const std::string path = folder.path();
  ASSERT_EQ(::mkfifo((path + "/keys").c_str(), 0600), 0);
  std::filesystem::create_directory(path + "/disk");
  NotifySocket systemd(path + "/notify");
  const pid_t pid = start_child(
      {node_program(), "--listen=unix://" + path + "/socket", "--admin=127.0.0.1:0", "--capacity=64MiB",
       "--disk-path=" + path + "/disk", "--disk-capacity=64MiB", "--disk-key-command=cat " + path + "/keys"},
      path + "/log", {"NOTIFY_SOCKET=" + path + "/notify"});
  const std::string said = systemd.read_to("the keys of the disk tier");
  EXPECT_THAT(said, AllOf(HasSubstr("EXTEND_TIMEOUT_USEC=900000000"), HasSubstr("STATUS=starting: 0 of 64 MiB")));
  EXPECT_THAT(said, testing::Not(HasSubstr("READY")));
  const std::string log = text_of(path + "/log");
  const std::size_t at = log.find(" admin=");
  ASSERT_NE(at, std::string::npos) << log;
  const std::string admin = log.substr(at + 7, log.find_first_of(" \n", at + 7) - at - 7);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(http_get(admin, "/healthz").status, 200);
    const Page ready = http_get(admin, "/readyz");
    EXPECT_EQ(ready.status, 503);
    EXPECT_THAT(ready.body, HasSubstr("64 of 64 MiB of memory are ready; now asking for the keys"));
    EXPECT_EQ(http_get(admin, "/metrics").status, 503);
  }
  ::kill(pid, SIGTERM);
  EXPECT_EQ(wait_for_child(pid), 0);
  ::close(::open((path + "/keys").c_str(), O_WRONLY | O_NONBLOCK));  // the command ends as well
  EXPECT_THAT(text_of(path + "/log"), HasSubstr("signal 15: ended while starting: 64 of 64 MiB"));
}

TEST(E2eStartTest, OnceItServesSystemdIsTold) {
  const TempDir folder;
  NotifySocket systemd(folder.path() + "/notify");
  NodeProcess node({"--capacity=16MiB"}, "", {"NOTIFY_SOCKET=" + folder.path() + "/notify"});
  EXPECT_THAT(systemd.read_to("READY=1"), AllOf(HasSubstr("EXTEND_TIMEOUT_USEC="), HasSubstr("STATUS=serving")));
  EXPECT_EQ(node.http_get("/readyz").status, 200);
  node.signal(SIGTERM);
  systemd.read_to("STOPPING=1");
  EXPECT_EQ(node.wait(), 0);
}

TEST(E2eStartTest, WhenClientsHaveAllDescriptorsHealthIsStillAnswered) {
  if (KV_IS_SANITIZED) GTEST_SKIP() << "a sanitizer opens descriptors of its own to look at memory";
  const NodeProcess node({"--capacity=16MiB"});
  const rlimit few{.rlim_cur = 256, .rlim_max = 256};
  ASSERT_EQ(::prlimit(node.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  std::vector<RawSession> crowd;
  for (int i = 0; i < 300; ++i) crowd.emplace_back(i % 2 == 0 ? node.tcp() : node.unix_socket());
  ASSERT_TRUE(eventually([&] { return node.log().find("Too many open files") != std::string::npos; }));
  std::vector<RawSession> silent;  // at the admin port as well
  for (int i = 0; i < 100; ++i) silent.emplace_back("tcp://" + node.admin());
  for (int i = 0; i < 60; ++i) ASSERT_EQ(node.http_get(i % 2 == 0 ? "/healthz" : "/readyz").status, 200) << i;
}

TEST(E2eStartTest, ACapacityBeyondTheMachineIsRefusedByTheCheckAndByTheStart) {
  const std::vector<std::string> words = {"capacity: 65970697666560 bytes; ", "allowed: at most "};
  for (const bool checks : {true, false}) {
    std::vector<std::string> arguments = {node_program(), "--capacity=60TiB", "--admin=none",
                                          "--listen=unix:///nowhere/socket"};
    if (checks) arguments.emplace_back("--check-config");
    const Finished refused = run_program(arguments);
    EXPECT_EQ(refused.status, checks ? 2 : 1);
    for (const std::string& each : words) EXPECT_THAT(refused.err, HasSubstr(each));
    EXPECT_THAT(refused.out, testing::Not(HasSubstr("is valid")));
  }
}

/// A real control group, where this process may make one.
TEST(E2eStartTest, ACapacityBeyondTheControlGroupIsRefused) {
  const std::string name = "/kvstore-test-" + std::to_string(::getpid());
  const bool is_first = std::filesystem::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  const std::string group = (is_first ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup") + name;
  std::error_code none;
  if (!std::filesystem::create_directory(group, none)) GTEST_SKIP() << group << ": " << none.message();
  const std::string limit = group + (is_first ? "/memory.limit_in_bytes" : "/memory.max");
  std::ofstream(limit) << (128 << 20) << std::flush;
  const auto in_group = [&](const std::string& options) {
    return run_program({"/bin/sh", "-c",
                        "echo $$ > " + group + "/cgroup.procs && exec " + node_program() +
                            " --admin=none --listen=unix:///nowhere/socket " + options});
  };
  const bool is_limited = text_of(limit).starts_with("134217728");
  const Finished checked = in_group("--capacity=256MiB --check-config"), started = in_group("--capacity=256MiB");
  const Finished fits = in_group("--capacity=64MiB --check-config");
  std::filesystem::remove(group, none);
  if (!is_limited) GTEST_SKIP() << limit << " cannot be set";
  EXPECT_EQ(checked.status, 2) << checked.err;
  EXPECT_THAT(checked.err, HasSubstr("the control group allows 134217728 bytes of memory"));
  EXPECT_EQ(started.status, 1);
  EXPECT_THAT(started.err, HasSubstr("left of 134217728; allowed: at most "));
  EXPECT_EQ(fits.status, 0) << fits.err;
}

}  // namespace
}  // namespace kv::e2e
