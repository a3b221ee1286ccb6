#include "store/node/membership/member_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kv {
namespace {

using nlohmann::json;

Member some_member() {
  Member member;
  member.id = "a";
  member.instance = "00112233445566778899aabbccddeeff";
  member.endpoints = {"tcp://10.0.0.1:7400", "unix:///run/kvstore.sock"};
  member.weight = 64.5;
  member.zone = "z1";
  member.version = "0.1.0";
  return member;
}

/// What nodes of other versions read, and people with etcdctl.
TEST(MemberTextTest, Golden) {
  EXPECT_EQ(
      write_member(some_member()),
      R"({"endpoints":["tcp://10.0.0.1:7400","unix:///run/kvstore.sock"],"id":"a",)"
      R"("instance":"00112233445566778899aabbccddeeff","state":"serving","version":"0.1.0","weight":64.5,"zone":"z1"})");
}

TEST(MemberTextTest, WhatIsWrittenIsReadAndFieldsToComeAreLeftAlone) {
  Member member = some_member();
  member.state = Member::State::kDraining;
  EXPECT_EQ(read_member(write_member(member)).value(), member);
  member.phase = Member::Phase::kJoining;
  EXPECT_EQ(read_member(write_member(member)).value(), member);
  member.phase = Member::Phase::kNone;
  json object = json::parse(write_member(member));
  object["rack"] = {1, 2, 3};
  EXPECT_EQ(read_member(object.dump()).value(), member);
  object.erase("zone");
  object.erase("version");
  object.erase("state");
  const auto old = read_member(object.dump());
  ASSERT_TRUE(old);
  EXPECT_EQ(old->state, Member::State::kServing);
}

TEST(MemberTextTest, APhaseThatIsNotKnownOrDoesNotGoWithTheStateIsNone) {
  json object = json::parse(write_member(some_member()));
  for (const char* phase : {"joining", "thinking", ""}) {
    object["phase"] = phase;
    const auto read = read_member(object.dump());
    ASSERT_TRUE(read) << phase;
    EXPECT_EQ(read->phase, Member::Phase::kNone) << phase;
    EXPECT_EQ(read->state, Member::State::kServing);
  }
  object["phase"] = "leaving";
  EXPECT_EQ(read_member(object.dump())->phase, Member::Phase::kLeaving);
}

struct Wrong {
  const char* field;
  json value;
  const char* says;
};

TEST(MemberTextTest, EachWrongFieldIsNamedWithWhatIsAllowed) {
  const std::vector<Wrong> wrongs = {
      {"id", "", "id: ''"},
      {"id", "a/b", "without '/'"},
      {"id", "a b", "visible ASCII"},
      {"id", std::string(129, 'a'), "1 to 128"},
      {"id", 7, "id: must be a text"},
      {"instance", "0011", "32 hexadecimal digits"},
      {"instance", std::string(32, 'G'), "32 hexadecimal digits"},
      {"endpoints", json::array(), "endpoints: 0, allowed are 1 to 16"},
      {"endpoints", std::vector<std::string>(17, "tcp://h:1"), "endpoints: 17"},
      {"endpoints", "tcp://h:1", "must be a list"},
      {"endpoints", json::array({1}), "must be a list of texts"},
      {"endpoints", json::array({"http://h:1"}), "endpoints:"},
      {"weight", 0, "must be positive"},
      {"weight", -1, "must be positive"},
      {"weight", 1e10, "at most 1e9"},
      {"weight", "1", "weight: must be a number"},
      {"zone", std::string("z\n"), "zone"},
      {"state", "away", "'away', allowed are serving and draining"},
  };
  for (const Wrong& wrong : wrongs) {
    json object = json::parse(write_member(some_member()));
    object[wrong.field] = wrong.value;
    const auto read = read_member(object.dump());
    ASSERT_FALSE(read) << wrong.field << " " << wrong.value;
    EXPECT_EQ(read.error(), make_error_code(Errc::kBadRequest));
    EXPECT_NE(read.error().text.find(wrong.says), std::string::npos) << read.error().text;
  }
  for (const char* text : {"", "[]", "7", "{", "null", "\"a\""})
    EXPECT_NE(read_member(text).error().text.find("JSON object"), std::string::npos) << text;
  EXPECT_NE(read_member(std::string(kMemberTextMax + 1, ' ')).error().text.find("bytes, at most"), std::string::npos);
}

}  // namespace
}  // namespace kv
