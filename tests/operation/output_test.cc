// Output that scripts rely on: all of it or a failure, and with --json one document.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/node_process.h"

namespace kv::e2e {
namespace {

using testing::HasSubstr;

class OperationOutputTest : public testing::Test {
 protected:
  /// A program after `redirection` of a shell.
  Finished with(const std::string& redirection, const std::string& program, const std::string& arguments) const {
    return run_program({"/bin/sh", "-c", program + " " + arguments + " " + redirection});
  }
  std::string endpoint() const { return " -e " + node_.unix_socket(); }

  const NodeProcess node_{{"--capacity=16MiB"}};
};

TEST_F(OperationOutputTest, AProgramFailsWhenItsOutputIsLost) {
  const std::string ctl = ctl_program();
  const std::vector<std::pair<std::string, std::string>> programs = {
      {ctl, "status --json" + endpoint()},
      {ctl, "status" + endpoint()},
      {ctl, "namespaces" + endpoint()},
      {ctl, "support-bundle" + endpoint()},
      {ctl, "config list --admin " + node_.admin()},
      {ctl, "--help"},
      {bench_program(),
       "run --json --op match --block-bytes 4KiB --blocks 64 --memory 1MiB --duration 100ms" + endpoint()},
      {node_program(), "--check-config --capacity=16MiB"},
      {node_program(), "--help"},
      {node_program(), "--version"},
  };
  for (const auto& [program, arguments] : programs) {
    const Finished full = with("> /dev/full", program, arguments);
    EXPECT_EQ(full.status, 1) << program << " " << arguments;
    EXPECT_THAT(full.err, HasSubstr("standard output: not all of it could be written"));
    const Finished closed = with(">&-", program, arguments);
    EXPECT_EQ(closed.status, 1) << program << " " << arguments;
    EXPECT_THAT(closed.err, HasSubstr("standard output: not all of it could be written"));
    EXPECT_EQ(with("> /dev/null", program, arguments).status, 0) << program << " " << arguments;
  }
}

TEST_F(OperationOutputTest, WithJsonAFailureIsADocumentToo) {
  std::vector<std::string> commands = {"status --json --no-such-option", "staus --json", "status --json -e nonsense"};
  for (const std::string command : {"status", "namespaces", "tenants", "curve", "config list", "slowlog",
                                    "contexts list", "cluster status", "cluster map", "cluster hot", "ping"})
    commands.push_back(command + " -e unix:///nowhere/socket --json");
  for (const std::string& arguments : commands) {
    const Finished done = with("", ctl_program(), arguments);
    EXPECT_NE(done.status, 0) << arguments;
    const auto document = nlohmann::json::parse(done.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(document.is_object()) << arguments << ": " << done.out << done.err;
  }
}

TEST_F(OperationOutputTest, AListByEnvironmentIsThatByFlags) {
  const std::vector<std::string> check = {node_program(), "--check-config", "--capacity=16MiB"};
  std::vector<std::string> by_flags = check;
  by_flags.insert(by_flags.end(),
                  {"--listen", "tcp://127.0.0.1:7400/", "--listen", "tcp://[::1]:7400", "--admin=http://[::1]:7401/"});
  const Finished flags = run_program(by_flags);
  EXPECT_EQ(flags.status, 0) << flags.err;
  const Finished environment = run_program(check, {"KVSTORE_NODE_LISTEN=tcp://127.0.0.1:7400,tcp://[::1]:7400"});
  EXPECT_EQ(environment.status, 0) << environment.err;
  const std::string listening = "listening on tcp://127.0.0.1:7400 tcp://[::1]:7400\n";
  EXPECT_THAT(flags.out, HasSubstr(listening));
  EXPECT_THAT(environment.out, HasSubstr(listening));
}

}  // namespace
}  // namespace kv::e2e
