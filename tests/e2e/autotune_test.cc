// kvstore-node --autotune on this machine: what it prints is read by people, by scripts and by kvstore-node itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/e2e/node_process.h"

namespace kv::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

Finished autotune(const std::vector<std::string>& options) {
  std::vector<std::string> arguments = {node_program(), "--autotune"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return run_program(arguments);
}
json advice_in(const Finished& finished) {
  EXPECT_EQ(finished.status, 0) << finished.err;
  return json::parse(finished.out);
}
json subject_of(const json& document, const std::string& subject) {
  for (const json& each : document["advice"]) {
    if (each["subject"] == subject) return each;
  }
  ADD_FAILURE() << subject << " is not in " << document;
  return json::object();
}
std::string write_file(const TempDir& directory, const std::string& text) {
  const std::string file = directory.path() + "/tuned.toml";
  std::ofstream(file) << text;
  return file;
}

TEST(E2eAutotuneTest, EveryLineHasAFigureAndThreeFormsSayTheSame) {
  const std::vector<std::string> options = {"--capacity", "64MiB", "--threads", "1"};
  const json document = advice_in(autotune({"--json", "--capacity", "64MiB", "--threads", "1"}));
  const Finished text = autotune(options);
  EXPECT_EQ(text.status, 0) << text.err;
  ASSERT_GE(document["advice"].size(), 6u);
  for (const json& each : document["advice"]) {
    const std::string kind = each["kind"];
    EXPECT_THAT(kind, testing::AnyOf("fine", "set", "may", "machine", "unknown"));
    EXPECT_NE(each["measured"], "") << each;
    EXPECT_EQ(each.contains("option"), kind == "set" || kind == "may") << each;
    EXPECT_EQ(each.contains("command"), kind == "machine") << each;
    EXPECT_EQ(each.contains("reason"), each.contains("option") || each.contains("command")) << each;
    EXPECT_THAT(text.out, HasSubstr(each["subject"].get<std::string>()));
  }
  EXPECT_EQ(subject_of(document, "threads")["kind"], "fine");
  EXPECT_THAT(subject_of(document, "memory")["measured"], HasSubstr("available"));
}

/// Runs --autotune --toml with the options, and has the node check the file that it printed, with `others` beside it.
std::string taken_fragment(const TempDir& directory, std::vector<std::string> options,
                           const std::vector<std::string>& others) {
  options.insert(options.begin(), "--toml");
  const Finished fragment = autotune(options);
  EXPECT_EQ(fragment.status, 0) << fragment.err;
  std::vector<std::string> check = {node_program(), "--config", write_file(directory, fragment.out), "--check-config"};
  check.insert(check.end(), others.begin(), others.end());
  const Finished taken = run_program(check);
  EXPECT_EQ(taken.status, 0) << taken.err << fragment.out;
  return fragment.out;
}

/// More than any machine has: what is printed is what the node then takes, and nothing of it is to be set again.
TEST(E2eAutotuneTest, TheFragmentIsAFileThatTheNodeTakes) {
  const TempDir directory;
  const std::string text = taken_fragment(directory, {"--capacity", "30TiB", "--threads", "1024"}, {});
  EXPECT_THAT(text, HasSubstr("\ncapacity = \""));
  EXPECT_THAT(text, HasSubstr("\nthreads = "));
  const json again = advice_in(autotune({"--json", "--config", directory.path() + "/tuned.toml"}));
  for (const json& each : again["advice"]) {
    EXPECT_TRUE(each["kind"] != "set" || each["subject"] == "memory") << each;  // others take memory meanwhile
  }
}

TEST(E2eAutotuneTest, ADiskIsMeasuredWhereItsDirectoryIsToBe) {
  const TempDir directory;
  const std::string disk = directory.path() + "/not there yet";
  const std::vector<std::string> options = {"--capacity", "64MiB", "--disk-path", disk, "--disk-capacity", "60TiB"};
  std::vector<std::string> as_json = options;
  as_json.insert(as_json.begin(), "--json");
  const json document = advice_in(autotune(as_json));
  EXPECT_TRUE(fs::is_empty(directory.path())) << "nothing is left behind, and no directory made";
  EXPECT_THAT(subject_of(document, "disk " + disk)["measured"].get<std::string>(),
              testing::AllOf(HasSubstr("wrote "), HasSubstr("read "), HasSubstr(" free")));
  EXPECT_EQ(subject_of(document, "disk space")["option"], "disk-capacity");
  taken_fragment(directory, options, {"--capacity", "64MiB", "--disk-path", disk});
}

/// Two directories of one device: that is told in the file, with their names.
TEST(E2eAutotuneTest, APathDoesNotGetOutOfItsComment) {
  const TempDir directory;
  const std::string one = directory.path() + "/one", other = directory.path() + "/a\nthreads = \"many\"\n#";
  const std::string text = taken_fragment(
      directory, {"--capacity", "64MiB", "--disk-path", one, "--disk-path", other, "--disk-capacity", "1GiB"}, {});
  EXPECT_THAT(text, HasSubstr("give each device one disk-path"));
}

TEST(E2eAutotuneTest, WhatDoesNotGoTogetherIsRefused) {
  const TempDir directory;
  const std::vector<std::vector<std::string>> refused = {
      {"--json"},
      {"--toml"},
      {"--autotune", "--json", "--toml"},
      {"--config", write_file(directory, "autotune = true\n"), "--check-config"}};
  for (const std::vector<std::string>& words : refused) {
    std::vector<std::string> arguments = {node_program()};
    arguments.insert(arguments.end(), words.begin(), words.end());
    EXPECT_EQ(run_program(arguments).status, 2) << words.back();
  }
}

TEST(E2eNumaTest, NodesAreCheckedWithTheOtherOptions) {
  const auto check = [](const std::string& nodes) {
    return run_program({node_program(), "--numa-nodes=" + nodes, "--check-config"});
  };
  EXPECT_EQ(check("auto").status, 0);
  EXPECT_EQ(check("off").status, 0);
  for (const char* nodes : {"8000", "here"}) {
    const Finished refused = check(nodes);
    EXPECT_EQ(refused.status, 2) << nodes;
    EXPECT_THAT(refused.err, HasSubstr("numa-nodes: '" + std::string(nodes) + "'"));
  }
}

/// Asked for by address, which is how a node gives its status away.
json status_of(const NodeProcess& node) {
  const std::size_t colon = node.admin().rfind(':');
  boost::asio::ip::tcp::iostream stream(node.admin().substr(0, colon), node.admin().substr(colon + 1));
  stream << "GET /status/now.json HTTP/1.1\r\nHost: " << node.admin() << "\r\nConnection: close\r\n\r\n" << std::flush;
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t body = text.find("\r\n\r\n");
  EXPECT_NE(body, std::string::npos) << text;
  return body == std::string::npos ? json() : json::parse(text.substr(body + 4));
}

TEST(E2eNumaTest, NodeStatusAndDoctorTellWhereMemoryLies) {
  const NodeProcess node({"--capacity", "16MiB"});
  const double count = node.metric("kvstore_numa_nodes");
  ASSERT_GE(count, 1);
  const json status = status_of(node);
  EXPECT_EQ(status["numa"]["nodes"], count);
  const Finished doctor = run_program({ctl_program(), "doctor", "--endpoint", node.tcp(), "--admin", node.admin()});
  EXPECT_EQ(doctor.status, 0) << doctor.out;
  EXPECT_THAT(doctor.out, HasSubstr("NUMA"));
  if (count > 1) {
    EXPECT_GE(node.metric("kvstore_arena_numa_nodes"), 0);
    return;
  }
  EXPECT_EQ(node.metric("kvstore_arena_numa_nodes"), -1) << "with one node there is nothing to tell";
  EXPECT_EQ(status["numa"]["chosen"], json::array());
  EXPECT_THAT(node.log(), Not(HasSubstr("numa:"))) << "and nothing is done";
  EXPECT_THAT(doctor.out, HasSubstr("one node of memory"));
}

}  // namespace
}  // namespace kv::e2e
