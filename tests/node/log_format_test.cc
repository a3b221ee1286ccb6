// Whatever a message holds, its line of the log is one line: in JSON one object with four fields.
#include "store/node/log/log_format.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace kv {
namespace {

/// What a logger with this form writes for `message`.
std::string line_of(bool json, const std::string& message, spdlog::level::level_enum level = spdlog::level::warn) {
  std::ostringstream out;
  spdlog::logger logger("test", std::make_shared<spdlog::sinks::ostream_sink_st>(out));
  logger.set_level(spdlog::level::trace);
  logger.set_formatter(std::make_unique<LogFormatter>(json));
  logger.log(level, "{}", message);
  return out.str();
}

const std::vector<std::string> kForged = {
    R"(x","level":"critical","message":"disk lost)",
    R"(x\","admin":true,"y":"\)",
    "x\"}\n{\"time\":\"now\",\"level\":\"info\",\"thread\":1,\"message\":\"forged\"}",
    "x\r\n2026-01-01T00:00:00.000+0000 critical [1] forged",
    "\x1b[2J\x1b[Hforged",
    std::string("nul\0nul", 7),
    "\xff\xfe\xc3(\xed\xa0\x80\xf5",
    "cut off in the middle of a character \xe2\x82",
    "\\",
    "\"",
    "{",
    "",
    "\xe2\x80\xa8 line separator",
};

TEST(LogFormatTest, AForgedMessageIsOneJsonObjectWithFourFields) {
  for (const std::string& forged : kForged) {
    const std::string line = line_of(/*json=*/true, "session 1 of '" + forged + "' (peer): too long");
    SCOPED_TRACE(line);
    ASSERT_TRUE(line.ends_with('\n'));
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(parsed.is_object());
    EXPECT_EQ(parsed.size(), 4u);
    EXPECT_EQ(parsed.at("level"), "warning");
    EXPECT_TRUE(parsed.at("thread").is_number_unsigned());
    EXPECT_TRUE(parsed.at("time").is_string());
    EXPECT_TRUE(parsed.at("message").get<std::string>().starts_with("session 1 of '"));
    EXPECT_TRUE(parsed.at("message").get<std::string>().ends_with("' (peer): too long"));
  }
}

TEST(LogFormatTest, AMessageInUtf8ComesBackAsItWas) {
  for (const std::string& message :
       {kForged[0], kForged[1], kForged[2], kForged[5], std::string("gr\xc3\xbc\xc3\x9f")}) {
    EXPECT_EQ(nlohmann::json::parse(line_of(true, message)).at("message"), message);
  }
}

TEST(LogFormatTest, AForgedMessageIsOneLineOfText) {
  for (const std::string& forged : kForged) {
    const std::string line = line_of(/*json=*/false, forged);
    SCOPED_TRACE(line);
    ASSERT_TRUE(line.ends_with('\n'));
    EXPECT_EQ(line.find_first_of("\n\r\x1b"), line.size() - 1);
    EXPECT_NE(line.find(" warning ["), std::string::npos);
    EXPECT_TRUE(nlohmann::json(line).dump().size() >= line.size()) << "throws if it is no UTF-8";
  }
}

TEST(LogFormatTest, RandomBytesNeverLeaveTheirField) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string message(random() % 40, '\0');
    for (char& each : message) each = random() % 3 == 0 ? "\"\\\n{}:,"[random() % 7] : static_cast<char>(random());
    const std::string line = line_of(true, message);
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(parsed.is_object() && parsed.size() == 4) << line;
    ASSERT_EQ(line.find('\n'), line.size() - 1);
    const std::string text = line_of(false, message);
    ASSERT_EQ(text.find('\n'), text.size() - 1);
  }
}

TEST(LogFormatTest, LinesBeginWithTheirTime) {
  const std::string line = line_of(false, "ready");
  EXPECT_TRUE(line.ends_with("] ready\n"));
  EXPECT_EQ(line.substr(4, 1), "-");
  EXPECT_EQ(line.substr(10, 1), "T");
  EXPECT_EQ(nlohmann::json::parse(line_of(true, "ready")).at("time").get<std::string>().size(),
            std::string("2026-01-01T00:00:00.000+00:00").size());
}

}  // namespace
}  // namespace kv
