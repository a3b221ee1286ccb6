// Options changed while a node runs: how they are shown, checked, put into force and written down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "store/node/live/live_options.h"
#include "store/node/options/config_file.h"
#include "store/node/options/settings.h"

namespace kv {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::optional<GivenOptions> read_options(std::vector<std::string> arguments, std::string* wrong) {
  std::vector<const char*> argv = {"kvstore-node"};
  for (const auto& each : arguments) argv.push_back(each.c_str());
  int exit_code = 0;
  return GivenOptions::read(static_cast<int>(argv.size()), argv.data(), &exit_code, wrong);
}

GivenOptions given(const std::vector<std::string>& arguments) {
  std::string wrong;
  auto read = read_options(arguments, &wrong);
  EXPECT_EQ(wrong, "");
  return read.value();
}

GivenOptions::Entry entry_of(const GivenOptions& options, const std::string& name) {
  for (auto& each : options.list()) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(GivenOptionsTest, EachOptionTakesItsOwnValueAgain) {
  GivenOptions options = given({"--capacity", "1GiB", "--disk-path", "/a", "--disk-path", "/b", "--disk-capacity",
                                "3000000", "--weight", "0.3", "--get-seconds", "0.1", "--log-level", "warn"});
  const auto before = options.list();
  ASSERT_GT(before.size(), 70u);
  for (const auto& each : before) {
    EXPECT_NE(each.allowed, "") << each.name;
    if (each.source == GivenOptions::Source::kDefault && each.name == "disk-capacity") continue;
    EXPECT_EQ(options.set(each.name, each.values, each.source), "") << each.name;
    const auto after = entry_of(options, each.name);
    EXPECT_EQ(after.values, each.values) << each.name;
  }
}

TEST(GivenOptionsTest, ValuesAreShownAsPeopleWriteThemWithWhereTheyComeFrom) {
  ::setenv("KVSTORE_NODE_PUT_SECONDS", "7.5", 1);
  const GivenOptions options = given({"--capacity", "1536MiB", "--disk-path", "/a", "--disk-path", "/b"});
  ::unsetenv("KVSTORE_NODE_PUT_SECONDS");
  EXPECT_THAT(entry_of(options, "capacity").values, ElementsAre("1536MiB"));
  EXPECT_THAT(entry_of(options, "capacity").otherwise, ElementsAre("4GiB"));
  EXPECT_EQ(entry_of(options, "capacity").source, GivenOptions::Source::kFlag);
  EXPECT_THAT(entry_of(options, "disk-path").values, ElementsAre("/a", "/b"));
  EXPECT_THAT(entry_of(options, "put-seconds").values, ElementsAre("7.5"));
  EXPECT_EQ(entry_of(options, "put-seconds").source, GivenOptions::Source::kEnvironment);
  EXPECT_EQ(entry_of(options, "get-seconds").source, GivenOptions::Source::kDefault);
  EXPECT_EQ(entry_of(options, "log-level").fixed, "");
  EXPECT_NE(entry_of(options, "threads").fixed, "");
}

TEST(GivenOptionsTest, ABadValueIsRefusedWithNameValueAndWhatIsAllowed) {
  GivenOptions options = given({});
  EXPECT_EQ(options.set("log-level", {"loud"}, GivenOptions::Source::kSet),
            "log-level: 'loud'; allowed: trace, debug, info, warn or error");
  EXPECT_EQ(options.set("leased-fraction-max", {"1.5"}, GivenOptions::Source::kSet),
            "leased-fraction-max: '1.5'; allowed: 0 to 1");
  EXPECT_EQ(options.set("requests-max", {"0"}, GivenOptions::Source::kSet), "requests-max: '0'; allowed: 1 to 1000000");
  EXPECT_EQ(options.set("capacity", {"-1"}, GivenOptions::Source::kSet),
            "capacity: '-1'; allowed: 1 byte to 64 TiB, such as 64GiB");
  EXPECT_EQ(options.set("spill-save", {"perhaps"}, GivenOptions::Source::kSet),
            "spill-save: 'perhaps'; allowed: true or false");
  EXPECT_THAT(options.set("capacity", {"1GiB", "2GiB"}, GivenOptions::Source::kSet), HasSubstr("it takes one"));
  EXPECT_THAT(options.set("capacitee", {"1"}, GivenOptions::Source::kSet), HasSubstr("no such option"));
  EXPECT_THAT(entry_of(options, "capacity").values, ElementsAre("4GiB"));
  // Each alone is allowed; the two do not fit together.
  EXPECT_EQ(options.set("capacity-max", {"1GiB"}, GivenOptions::Source::kSet), "");
  std::string wrong;
  EXPECT_FALSE(options.options(&wrong));
  EXPECT_THAT(wrong, HasSubstr("more than capacity-max"));
}

TEST(GivenOptionsTest, OfTwoThatExcludeOneAnotherTheOneThatIsSetCounts) {
  GivenOptions options = given({"--capacity-blocks", "100", "--capacity-block-bytes", "4096"});
  ASSERT_EQ(options.set("capacity", {"8MiB"}, GivenOptions::Source::kSet), "");
  std::string wrong;
  EXPECT_EQ(options.options(&wrong)->store.arena.capacity_bytes, 8u << 20) << wrong;
  ASSERT_EQ(options.set("capacity-blocks", {"50"}, GivenOptions::Source::kSet), "");
  EXPECT_EQ(options.options(&wrong)->store.arena.capacity_bytes, 50u * 4096) << wrong;
}

TEST(ConfigFileTest, OnlyTheLineOfTheOptionChanges) {
  const std::string text =
      "# of a hand\ncapacity = \"4GiB\"  # of \"blocks\" # really\ndisk-path = [\n  \"/a\",  # [first\n  \"/b\"\n]\n"
      "log-level = \"info\"\n";
  EXPECT_EQ(with_options(text, {{"capacity", {"8GiB"}}}),
            "# of a hand\ncapacity = \"8GiB\"  # of \"blocks\" # really\ndisk-path = [\n  \"/a\",  # [first\n  "
            "\"/b\"\n]\nlog-level = \"info\"\n");
  EXPECT_EQ(with_options(text, {{"disk-path", {"/c#1"}, true}, {"get-seconds", {"2.5"}}}),
            "# of a hand\ncapacity = \"4GiB\"  # of \"blocks\" # really\ndisk-path = [\"/c#1\"]\nlog-level = "
            "\"info\"\nget-seconds = 2.5\n");
  EXPECT_EQ(with_options("a = '#'\n a=1 # b", {{"a", {"x\"\\y"}}}), "a = \"x\\\"\\\\y\"\n");
  EXPECT_EQ(with_options("", {{"curve", {"true"}}}), "curve = true\n");
  EXPECT_EQ(with_options("capacity-max = 1\n# capacity = 2\n", {{"capacity", {"3"}}}),
            "capacity-max = 1\n# capacity = 2\ncapacity = 3\n");
}

class SettingsTest : public testing::Test {
 protected:
  SettingsTest() {
    std::filesystem::create_directory(folder_);
    write("capacity = \"64MiB\"  # for now\nlog-level = \"warn\"\n");
  }
  ~SettingsTest() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& text) { std::ofstream(file, std::ios::trunc) << text; }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(file).rdbuf();
    return all.str();
  }
  void start(std::vector<std::string> arguments) {
    arguments_ = std::move(arguments);
    GivenOptions options = given(arguments_);
    std::string wrong;
    const auto derived = options.options(&wrong);
    ASSERT_TRUE(derived) << wrong;
    settings.emplace(std::move(options), *derived, [this](std::string* why) { return read_options(arguments_, why); });
    settings->open([this] {
      settings->on({"log-level"}, [this](const NodeOptions& next) {
        levels.push_back(next.log_level);
        return std::string();
      });
      settings->on({"get-seconds", "put-seconds"}, [this](const NodeOptions& next) {
        if (next.session.put_timeout > 60s) return std::string("put-seconds: not on this day");
        gets.push_back(next.session.get_timeout);
        return std::string();
      });
      settings->on_demand({"drain-seconds"});
    });
  }
  Settings::Outcome set(const std::string& name, const std::string& value, bool writes = false) {
    return settings->set({{name, {value}}}, writes, "a test");
  }
  json shown(const std::string& name) const {
    const json document = json::parse(settings->list_json());
    for (const auto& each : document.at("options")) {
      if (each.at("name") == name) return each;
    }
    return {};
  }

  const std::string folder_ = "/tmp/kvstore-live-test-" + std::to_string(::getpid());
  const std::string file = folder_ + "/node.toml";
  std::vector<std::string> arguments_;
  std::optional<Settings> settings;
  std::vector<std::string> levels;
  std::vector<Duration> gets;
};

TEST_F(SettingsTest, AChangeIsInForceShownAndCounted) {
  start({"--config", file});
  EXPECT_EQ(shown("log-level").at("value"), "warn");
  EXPECT_EQ(shown("log-level").at("source"), "file");
  const auto outcome = set("log-level", "debug");
  EXPECT_EQ(outcome.wrong, "");
  EXPECT_THAT(outcome.changed, ElementsAre("log-level"));
  EXPECT_THAT(levels, ElementsAre("debug"));
  EXPECT_EQ(settings->in_force().log_level, "debug");
  EXPECT_EQ(shown("log-level").at("value"), "debug");
  EXPECT_EQ(shown("log-level").at("source"), "set");
  EXPECT_THAT(set("log-level", "debug").changed, IsEmpty()) << "it was that already";
  EXPECT_EQ(settings->stats().at(0).value, 1);
  EXPECT_EQ(text(), "capacity = \"64MiB\"  # for now\nlog-level = \"warn\"\n") << "nobody asked to write it";
}

TEST_F(SettingsTest, WhatNeedsARestartOrIsBadIsRefusedAndChangesNothing) {
  start({"--config", file});
  EXPECT_THAT(set("threads", "3").wrong, HasSubstr("threads: cannot be changed while the node runs"));
  EXPECT_THAT(set("capacity", "32MiB").wrong, HasSubstr("capacity-max"));
  EXPECT_THAT(set("disk-write-rate", "1MiB").wrong, HasSubstr("of no use"));
  EXPECT_THAT(set("log-level", "loud").wrong, HasSubstr("trace, debug"));
  const auto outcome = settings->set({{"log-level", {"error"}}, {"get-seconds", {"0"}}}, /*writes=*/false, "a test");
  EXPECT_THAT(outcome.wrong, HasSubstr("get-seconds: '0'; allowed: 0.1 to 86400"));
  EXPECT_THAT(levels, IsEmpty()) << "all are checked before the first is changed";
  EXPECT_EQ(settings->stats().at(1).value, 5);
  EXPECT_EQ(shown("threads").at("is_live"), false);
  EXPECT_NE(shown("threads").at("why_not"), "");
}

TEST_F(SettingsTest, WhereAPartRefusesWhatCameBeforeStays) {
  start({});
  const auto outcome =
      settings->set({{"log-level", {"error"}}, {"put-seconds", {"61"}}, {"drain-seconds", {"9"}}}, false, "a test");
  EXPECT_EQ(outcome.wrong, "put-seconds: not on this day");
  EXPECT_THAT(outcome.changed, ElementsAre("log-level"));
  EXPECT_EQ(settings->in_force().log_level, "error");
  EXPECT_EQ(settings->in_force().session.put_timeout, 30s);
  EXPECT_EQ(settings->in_force().drain_timeout, 5s);
}

TEST_F(SettingsTest, WrittenValuesAreReadAtTheNextStartAndFlagsThatWinAreNamed) {
  start({"--config", file, "--get-seconds", "50"});
  ::chmod(file.c_str(), 0640);
  const auto outcome = settings->set({{"log-level", {"error"}}, {"get-seconds", {"60"}}}, /*writes=*/true, "a test");
  EXPECT_EQ(outcome.wrong, "");
  EXPECT_EQ(text(), "capacity = \"64MiB\"  # for now\nlog-level = \"error\"\nget-seconds = 60\n");
  EXPECT_THAT(outcome.notes, testing::Contains(HasSubstr("get-seconds: at the next start the flag wins")));
  struct stat status {};
  ::stat(file.c_str(), &status);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
  EXPECT_FALSE(std::filesystem::exists(file + ".new"));
  start({});
  EXPECT_THAT(set("log-level", "error", /*writes=*/true).wrong, HasSubstr("without a file"));
}

TEST_F(SettingsTest, HangupTakesUpTheFileButForWhatWasSetAndWhatNeedsARestart) {
  start({"--config", file});
  set("get-seconds", "77");
  write("capacity = \"128MiB\"\nlog-level = \"error\"\nget-seconds = 5\nput-seconds = 8\nthreads = 2\n");
  const auto outcome = settings->reload();
  EXPECT_EQ(outcome.wrong, "");
  EXPECT_THAT(outcome.changed, testing::UnorderedElementsAre("log-level", "put-seconds"));
  EXPECT_THAT(outcome.notes, testing::UnorderedElementsAre(HasSubstr("capacity = 128MiB needs a restart"),
                                                           HasSubstr("threads = 2 needs a restart")));
  EXPECT_EQ(settings->in_force().session.get_timeout, 77s);
  EXPECT_EQ(settings->in_force().session.put_timeout, 8s);
  EXPECT_EQ(shown("capacity").at("value"), "64MiB");
  EXPECT_EQ(shown("put-seconds").at("source"), "file");
  write("log-level = \"loud\"\n");
  EXPECT_NE(settings->reload().wrong, "");
  EXPECT_EQ(settings->in_force().log_level, "error");
}

/// A command that brings keys may have a password in it.
TEST_F(SettingsTest, ASecretIsShownAsSetAndNoMore) {
  write(
      "disk-path = \"/tmp/kvstore-live\"\ndisk-capacity = \"1GiB\"\ndisk-key-command = \"vault --token=hunter2 "
      "get\"\n");
  start({"--config", file});
  EXPECT_THAT(settings->list_json(), testing::Not(HasSubstr("hunter2")));
  EXPECT_EQ(shown("disk-key-command").at("value"), "(set)");
  EXPECT_EQ(shown("disk-key-command").at("default"), "");
  write(
      "disk-path = \"/tmp/kvstore-live\"\ndisk-capacity = \"1GiB\"\ndisk-key-command = \"vault --token=hunter3 "
      "get\"\n");
  const Settings::Outcome outcome = settings->reload();
  EXPECT_THAT(outcome.notes, ElementsAre("disk-key-command = (set) needs a restart"));
  for (const auto& each : given({"--config", file}).list()) {
    const bool holds_a_secret = each.name.ends_with("-command");
    EXPECT_EQ(each.is_secret, holds_a_secret) << each.name << ": kvstorectl support-bundle goes by the name";
  }
}

TEST_F(SettingsTest, NothingIsChangedOnceItIsClosed) {
  start({});
  EXPECT_EQ(settings->close().log_level, "info");
  EXPECT_THAT(set("log-level", "error").wrong, HasSubstr("starting or stopping"));
  EXPECT_THAT(levels, IsEmpty());
}

TEST_F(SettingsTest, ARequestNamesOptionsPercentEncoded) {
  const auto parsed = parse_assignments("disk-path=%2Fa%20b&x=1&disk-path=%2fc&y=").value();
  ASSERT_EQ(parsed.size(), 3u);
  EXPECT_THAT(parsed[0].values, ElementsAre("/a b", "/c"));
  EXPECT_EQ(parsed[1].name, "x");
  EXPECT_THAT(parsed[2].values, ElementsAre(""));
  for (const char* const bad : {"x", "=1", "x=%2", "x=%zz", "a=1&&b=2"}) EXPECT_FALSE(parse_assignments(bad)) << bad;
  EXPECT_TRUE(parse_assignments("")->empty());
  start({"--config", file});
  const auto changed = answer_set(*settings, "log-level=debug&_write=1", "a test");
  EXPECT_FALSE(changed.why.code) << changed.json;
  EXPECT_THAT(text(), HasSubstr("log-level = \"debug\""));
  const auto refused = answer_set(*settings, "log-level=%00", "a test");
  EXPECT_EQ(refused.why, make_error_code(Errc::kBadRequest));
  EXPECT_THAT(json::parse(refused.json).at("wrong"), HasSubstr("allowed"));
}

}  // namespace
}  // namespace kv
