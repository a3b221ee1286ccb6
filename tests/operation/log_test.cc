// The log of a node, whatever happens to its reader: it stalls, goes away, has a full disk, or was never there.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#include "store/node/log/log_writer.h"
#include "tests/e2e/node_process.h"
#include "tests/e2e/raw_session.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using testing::HasSubstr;

constexpr int kPipeBytes = 4096;

std::unique_ptr<spdlog::formatter> form() {
  return std::make_unique<spdlog::pattern_formatter>("%v", spdlog::pattern_time_type::local, "\n");
}

void log(int count) {
  for (int i = 0; i < count; ++i) spdlog::info("number {}", i);
}

/// The writer of the test's own log lines; the logger of before returns with its end.
class LogWriterTest : public testing::Test {
 protected:
  ~LogWriterTest() override { spdlog::set_default_logger(before); }
  std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
};

int bytes_in(int pipe) {
  int bytes = 0;
  EXPECT_EQ(::ioctl(pipe, FIONREAD, &bytes), 0);
  return bytes;
}

struct Seen {
  std::uint64_t lines = 0;  ///< Of the test.
  std::uint64_t lost = 0;   ///< As the log tells.
  std::uint64_t others = 0;
};

/// Reads until the other end is closed; `lines` counts all that came.
Seen read_all(int fd, std::atomic<std::uint64_t>& lines) {
  std::string text;
  std::array<char, 65536> buffer;
  for (ssize_t got = 0; (got = ::read(fd, buffer.data(), buffer.size())) > 0;) {
    const std::string_view part(buffer.data(), static_cast<std::size_t>(got));
    text += part;
    lines += static_cast<std::uint64_t>(std::ranges::count(part, '\n'));
  }
  Seen seen;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    unsigned long long number = 0;
    if (std::sscanf(line.c_str(), "number %llu", &number) == 1) {
      ++seen.lines;
    } else if (std::sscanf(line.c_str(), "log: %llu lines were lost", &number) == 1) {
      seen.lost += number;
    } else {
      ++seen.others;
    }
  }
  return seen;
}

void expect_all_counted(std::array<int, 2> ends) {
  constexpr int kLines = 3 * static_cast<int>(LogWriter::kLinesMax);
  std::atomic<std::uint64_t> came = 0;
  Seen seen;
  std::uint64_t lost = 0;
  std::thread reader;
  {
    LogWriter writer(ends[1], form());
    log(kLines);  // would never return if it waited for the reader
    EXPECT_GT(writer.lost_count(), 0u);
    reader = std::thread([&] { seen = read_all(ends[0], came); });
    // One line more tells the number.
    EXPECT_TRUE(eventually([&] { return came + writer.lost_count() > static_cast<std::uint64_t>(kLines); }));
    lost = writer.lost_count();
  }
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  EXPECT_EQ(seen.lines + lost, static_cast<std::uint64_t>(kLines));
  EXPECT_EQ(seen.lost, lost);
  EXPECT_EQ(seen.others, 0u);
}

TEST_F(LogWriterTest, BehindAStalledPipeEachLineIsWrittenOrCounted) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
  expect_all_counted(ends);
}

TEST_F(LogWriterTest, BehindAStalledSocketEachLineIsWrittenOrCounted) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  expect_all_counted(ends);
}

TEST_F(LogWriterTest, TheEndDoesNotWaitForAReader) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
  {
    const LogWriter writer(ends[1], form());
    log(1000);
    EXPECT_TRUE(eventually([&] { return bytes_in(ends[0]) > 0; }));
  }
  spdlog::info("into nothing");
  ::close(ends[1]);
  std::atomic<std::uint64_t> came = 0;
  const Seen seen = read_all(ends[0], came);
  EXPECT_GT(seen.lines, 0u);
  EXPECT_LT(seen.lines, 1000u);
  ::close(ends[0]);
}

TEST_F(LogWriterTest, AReaderThatGoesAwayCostsItsLinesAndNoProcess) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  LogWriter writer(ends[1], form());
  ::close(ends[0]);
  log(100);
  EXPECT_TRUE(eventually([&] { return writer.lost_count() == 100; }));
  ::close(ends[1]);
}

TEST_F(LogWriterTest, AFullDiskCostsLinesOnly) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  LogWriter writer(full, form());
  log(100);
  EXPECT_TRUE(eventually([&] { return writer.lost_count() == 100; }));
  ::close(full);
}

/// A node whose output goes to a named pipe that the test holds open, and reads when it wants to.
class PipedNode {
 public:
  explicit PipedNode(const std::vector<std::string>& options = {}) {
    const std::string pipe = directory_.path() + "/pipe", port = free_ports(1).at(0);
    EXPECT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    fd = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    ::fcntl(fd, F_SETPIPE_SZ, kPipeBytes);
    admin = "127.0.0.1:" + port;
    std::vector<std::string> arguments = {node_program(), "--listen",   unix_socket(), "--admin",
                                          admin,          "--capacity", "16MiB"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    pid = start_child(arguments, pipe);
  }
  ~PipedNode() {
    if (pid > 0) ::kill(pid, SIGKILL), wait_for_child(pid);
    ::close(fd);
  }
  std::string unix_socket() const { return "unix://" + directory_.path() + "/socket"; }
  bool comes_up() const {
    return eventually([&] { return http_get(admin, "/readyz").status == 200; });
  }
  int bytes_waiting() const { return bytes_in(fd); }

  pid_t pid = -1;
  int fd = -1;
  std::string admin;

 private:
  TempDir directory_;
};

TEST(NodeLogTest, AReaderThatStallsStopsNeitherRequestsNorHealthNorTheEnd) {
  PipedNode node({"--log-level", "debug"});
  ASSERT_TRUE(node.comes_up());
  // Each visit is some lines: more than the pipe holds.
  const auto visit = [&] { return run_program({ctl_program(), "ping", "-e", node.unix_socket()}).status; };
  for (int i = 0; i < 80; ++i) ASSERT_EQ(visit(), 0) << i;
  const int stalled_at = node.bytes_waiting();
  ASSERT_EQ(visit(), 0);
  EXPECT_EQ(node.bytes_waiting(), stalled_at);
  TestClient client(node.unix_socket(), Transport::kUnix, make_record(4096), 8);
  const auto chain = make_chain(1, 8);
  EXPECT_EQ(client.put(chain).stored, 8u);
  EXPECT_EQ(client.get(chain).block_count, 8u);
  EXPECT_EQ(http_get(node.admin, "/healthz").status, 200);
  EXPECT_THAT(http_get(node.admin, "/metrics").body, HasSubstr("kvstore_log_lines_lost_total 0\n"));
  ::kill(node.pid, SIGTERM);
  EXPECT_EQ(wait_for_child(std::exchange(node.pid, -1)), 0);
}

TEST(NodeLogTest, WithoutStandardStreamsNoSocketGetsTheirNumbers) {
  const TempDir directory;
  const std::string socket = directory.path() + "/socket", admin = "127.0.0.1:" + free_ports(1).at(0);
  const pid_t pid = start_child({"/bin/sh", "-c", R"(exec "$0" "$@" 0<&- 1>&- 2>&-)", node_program(), "--listen",
                                 "unix://" + socket, "--admin", admin, "--capacity", "16MiB"},
                                directory.path() + "/log");
  EXPECT_TRUE(eventually([&] { return http_get(admin, "/readyz").status == 200; }));
  for (const char* const number : {"0", "1", "2"}) {
    const auto at = std::filesystem::path("/proc") / std::to_string(pid) / "fd" / number;
    EXPECT_EQ(std::filesystem::read_symlink(at), "/dev/null");
  }
  EXPECT_EQ(run_program({ctl_program(), "ping", "-e", "unix://" + socket}).status, 0);
  ::kill(pid, SIGTERM);
  EXPECT_EQ(wait_for_child(pid), 0);
}

/// The kernel's number of the process's thread of this name; 0: there is none.
pid_t thread_named(pid_t pid, const std::string& name) {
  for (const auto& each : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::string found;
    std::getline(std::ifstream(each.path() / "comm"), found);
    if (found == name) return std::stoi(each.path().filename());
  }
  return 0;
}

TEST(NodeHealthTest, AnIoThreadThatTakesNoWorkIsUnhealthyUntilItDoes) {
  const NodeProcess node({"--threads", "2", "--capacity", "16MiB"});
  EXPECT_EQ(node.http_get("/healthz").status, 200);
  const pid_t thread = thread_named(node.pid(), "io");
  ASSERT_GT(thread, 0);
  if (::ptrace(PTRACE_SEIZE, thread, 0, 0) != 0) GTEST_SKIP() << "threads of another process cannot be stopped here";
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, thread, 0, 0), 0);
  ASSERT_EQ(::waitpid(thread, nullptr, __WALL), thread);
  EXPECT_TRUE(eventually([&] { return node.http_get("/healthz").status == 503; }));
  EXPECT_THAT(node.http_get("/healthz").body, HasSubstr("an I/O thread has taken no work for "));
  ASSERT_EQ(::ptrace(PTRACE_DETACH, thread, 0, 0), 0);
  EXPECT_TRUE(eventually([&] { return node.http_get("/healthz").status == 200; }));
}

}  // namespace
}  // namespace kv::e2e
