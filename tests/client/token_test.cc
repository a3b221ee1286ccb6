// Tokens as the client has them: where they go, and what a caller hears who is not let in.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "client/link/client_shared.h"
#include "tests/client/client_fixture.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/transport/memory_stream.h"

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

/// A connection whose other end showed a certificate with these names.
class NamedStream final : public MemoryStream {
 public:
  explicit NamedStream(std::vector<std::string> names) : names_(std::move(names)) {}
  std::vector<std::string> peer_names() const override { return names_; }

 private:
  std::vector<std::string> names_;
};

TEST(TokenNamesTest, ATokenGoesToNamesThatAPersonWrote) {
  VirtualClock clock;
  SimNetwork network(clock, 1);
  asio::io_context context;
  ClientConfig config;
  config.are_nodes_told = true;  // needs no certificates here
  config.nodes = {{.endpoint = "tls://kv-0.kv.test.svc:7400"}, {.endpoint = "unix:///run/own.sock"}};
  config.token = Secret(kToken);
  config.tls.node_names = {"*.other.example", "spiffe://a/node/*"};
  std::string server_name;
  const auto talks = [&](const std::string& to, std::vector<std::string> names, bool is_told = true) {
    ClientShared shared(context.get_executor(), config, network, clock, nullptr);
    shared.config.tls.server_name = server_name;  // afterwards: there are no files here
    const Endpoint endpoint = parse_endpoint(to).value();
    const NamedStream stream(std::move(names));
    return !shared.may_connect(endpoint, is_told) && !shared.may_talk(endpoint, stream, is_told);
  };
  EXPECT_TRUE(talks("unix:///run/own.sock", {}));
  EXPECT_FALSE(talks("unix:///run/other.sock", {})) << "whoever may make a socket on this machine";
  EXPECT_FALSE(talks("tcp://127.0.0.1:7400", {}));
  EXPECT_FALSE(talks("tls://worker.example:1", {"dns:worker.example"})) << "a certificate of the CA, of somebody else";
  EXPECT_TRUE(talks("tls://kv-0.kv.test.svc:7500", {"dns:kv-0.kv.test.svc"}));
  EXPECT_FALSE(talks("tls://kv-1.kv.test.svc:7400", {"dns:kv-1.kv.test.svc"}));
  EXPECT_TRUE(talks("tls://kv-1.kv.test.svc:7400", {"dns:*.kv.test.svc"})) << "one certificate for all pods";
  EXPECT_TRUE(talks("tls://n1.other.example:1", {"dns:n1.other.example"}));
  EXPECT_TRUE(talks("tls://10.0.0.1:1", {"uri:spiffe://a/node/1"}));
  EXPECT_TRUE(talks("tls://worker.example:1", {"dns:worker.example"}, /*is_told=*/false)) << "a person wrote it";
  server_name = "kv.example";
  EXPECT_TRUE(talks("tls://10.0.0.2:1", {"dns:kv.example"})) << "which the handshake has proved";
  server_name.clear();
  config.tls = {};
  config.token = {};
  EXPECT_TRUE(talks("unix:///run/other.sock", {})) << "there is nothing to give away";
}

INSTANTIATE_TEST_SUITE_P(OverTheSimulation, TokenTest, testing::Values(Setup{"sim", 1}));

}  // namespace
}  // namespace kv
