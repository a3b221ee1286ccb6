// Tokens as the client has them: where they go, and what a caller hears who is not let in.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tests/client/client_fixture.h"

namespace kv {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kToken = "a-token-that-is-long-enough-for-a-test";

class TokenTest : public ClientFixture {
 protected:
  NodeStatus status() const { return client->nodes()[0]; }
  std::string why_not() {
    try {
      make_client();
    } catch (const std::invalid_argument& refused) {
      return refused.what();
    }
    return "";
  }
};

TEST_P(TokenTest, IsNotSentWhereOthersMayReadIt) {
  config.token = Secret(kToken);
  network.set_protection(Stream::Protection::kNone);
  client = make_client();
  EXPECT_EQ(loop.run(client->open(test_record(4096), 1s)).error(), Errc::kPermissionDenied);
  EXPECT_EQ(status().last_error, Errc::kPermissionDenied);
  EXPECT_THAT(status().last_error_text, HasSubstr("plain text"));
  network.set_protection(Stream::Protection::kTls);
  client = make_client();
  EXPECT_TRUE(loop.run(client->open(test_record(4096), 1s))) << "a node without a policy asks for no token";
}

TEST_P(TokenTest, IsReadFromItsFileForEachConnection) {
  const std::string path = directory.path() + "/token";
  std::ofstream(path) << kToken << "\n";
  config.token_file = path;
  client = make_client();
  EXPECT_TRUE(loop.run(client->open(test_record(4096), 1s)));
  std::filesystem::remove(path);
  EXPECT_THAT(why_not(), HasSubstr(path + ": No such file"));
  std::ofstream(path) << "short";
  EXPECT_THAT(why_not(), HasSubstr("5 characters, allowed are 32 to 512"));
}

TEST_P(TokenTest, IsRefusedAtOnceWhereItCannotBeRight) {
  config.token = Secret("short");
  EXPECT_THAT(why_not(), HasSubstr("token: 5 characters"));
  config.token = Secret(kToken + "\n");
  EXPECT_THAT(why_not(), HasSubstr("visible"));
  config.token = Secret(kToken);
  config.token_file = "/nowhere";
  EXPECT_THAT(why_not(), HasSubstr("token_file too"));
  config.token_file.clear();
  config.nodes.push_back({.endpoint = "tcp://192.0.2.1:7400"});
  EXPECT_THAT(why_not(), testing::AllOf(HasSubstr("tcp://192.0.2.1:7400 is plain text"), Not(HasSubstr(kToken))));
  config.token = {};
  EXPECT_EQ(why_not(), "");
}

INSTANTIATE_TEST_SUITE_P(OverTheSimulation, TokenTest, testing::Values(Setup{"sim", 1}));

}  // namespace
}  // namespace kv
