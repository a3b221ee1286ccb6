// Secrets out of a command: real shells.
#include "base/secret/secret_command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/error.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace kv {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBytesMax = 4096;
constexpr auto kLong = 60s;

std::string words_of(const std::string& command, std::chrono::milliseconds time_max = kLong) {
  const auto secret = read_secret_command(command, kBytesMax, time_max);
  return secret ? "" : secret.error().text;
}

TEST(SecretCommandTest, ItIsWhatTheCommandPrintsWithoutTheEndsOfLines) {
  const auto secret = read_secret_command("printf 'one\\ntwo'; printf ' \\n\\n'", kBytesMax, kLong);
  ASSERT_TRUE(secret) << secret.error();
  EXPECT_EQ(secret->text(), "one\ntwo");
  EXPECT_TRUE(read_secret_command("true", kBytesMax, kLong)->empty());
}

TEST(SecretCommandTest, ACommandThatFailsIsToldByItsStatusAndGivesNothing) {
  EXPECT_EQ(words_of("echo half; exit 3"), "ends with status 3");
  EXPECT_EQ(words_of("kill -9 $$"), "ends with status 137");
  EXPECT_EQ(words_of("/nowhere/kms 2>/dev/null"), "ends with status 127");
}

TEST(SecretCommandTest, TheMostThatIsTakenIsTakenAndNoByteMore) {
  const auto most = read_secret_command("head -c 4096 /dev/zero | tr '\\0' k", kBytesMax, kLong);
  ASSERT_TRUE(most) << most.error();
  EXPECT_EQ(most->text(), std::string(kBytesMax, 'k'));
  EXPECT_EQ(words_of("head -c 4097 /dev/zero | tr '\\0' k"), "prints more than 4096 bytes");
  EXPECT_EQ(words_of("cat /dev/zero"), "prints more than 4096 bytes");
}

TEST(SecretCommandTest, ACommandThatDoesNotEndIsKilledWithWhatItStarted) {
  const auto directory = std::filesystem::path(::testing::TempDir()) / ("secret_command-" + std::to_string(::getpid()));
  std::filesystem::create_directory(directory);
  const std::string pids = (directory / "pids").string();
  const auto secret = read_secret_command("sleep 600 & echo $! $$ > " + pids + "; wait", kBytesMax, 1000ms);
  ASSERT_FALSE(secret);
  EXPECT_EQ(secret.error(), error_code(asio::error::timed_out));
  EXPECT_EQ(secret.error().text, "has not ended after 1000 ms");
  pid_t sleeper = 0, shell = 0;
  std::ifstream(pids) >> sleeper >> shell;
  ASSERT_GT(sleeper, 0);
  EXPECT_EQ(::kill(shell, 0), -1);
  // The sleeper is init's child now, and has been killed; its end, and whoever reaps it, may take a moment.
  const std::string state = "/proc/" + std::to_string(sleeper) + "/stat";
  const auto is_dead = [&state] {
    std::string number, name, letter = "gone";
    std::ifstream(state) >> number >> name >> letter;
    return letter == "gone" || letter == "Z" || letter == "X";
  };
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (!is_dead() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(is_dead());
  std::filesystem::remove_all(directory);
}

TEST(SecretCommandTest, TheEndOfTheShellIsTheEndWhateverItLeavesRunning) {
  const auto secret = read_secret_command("sleep 5 & echo key", kBytesMax, kLong);
  ASSERT_TRUE(secret) << secret.error();
  EXPECT_EQ(secret->text(), "key");
}

TEST(SecretCommandTest, ItHasNoInputAndNoneOfOurDescriptors) {
  const int ours = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC, as some libraries do
  ASSERT_GT(ours, 2);
  const auto listed =
      read_secret_command("cat; test ! -e /proc/self/fd/" + std::to_string(ours) + " && echo none", kBytesMax, kLong);
  ::close(ours);
  ASSERT_TRUE(listed) << listed.error();
  EXPECT_EQ(listed->text(), "none");
}

TEST(SecretCommandTest, SignalsAreThoseOfANewProcess) {
  struct sigaction ignored {
  }, before{};
  ignored.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGPIPE, &ignored, &before), 0);
  // `yes` ends by SIGPIPE; were it ignored, yes would complain, and end with 1.
  const auto ended = read_secret_command("exec 3>&1; { yes 2>/dev/null; echo $? >&3; } | true", kBytesMax, kLong);
  ::sigaction(SIGPIPE, &before, nullptr);
  ASSERT_TRUE(ended) << ended.error();
  EXPECT_EQ(ended->text(), "141");
}

}  // namespace
}  // namespace kv
