#include "transport/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kv {
namespace {

using testing::HasSubstr;

TEST(EndpointTest, EveryFormParsesAndPrintsAsItWasWritten) {
  for (const std::string text :
       {"tcp://127.0.0.1:7400", "tcp://[::1]:7400", "tcp://node-7.example.org:0", "tcp://localhost:65535",
        "unix:///run/kvstore/kvstore.sock", "unix://relative.sock", "sim://node7"}) {
    const auto endpoint = parse_endpoint(text);
    ASSERT_TRUE(endpoint) << text << ": " << endpoint.error();
    EXPECT_EQ(endpoint->to_string(), text);
    EXPECT_EQ(parse_endpoint(endpoint->to_string()).value(), *endpoint);
  }
}

TEST(EndpointTest, PartsAreWhatTheySay) {
  const auto tcp = parse_endpoint("tcp://[fe80::1]:17").value();
  EXPECT_EQ(tcp.scheme, Endpoint::Scheme::kTcp);
  EXPECT_EQ(tcp.host, "fe80::1");
  EXPECT_EQ(tcp.port, "17");
  EXPECT_EQ(parse_endpoint("unix:///a b")->host, "/a b");
  EXPECT_EQ(parse_endpoint("sim://x")->scheme, Endpoint::Scheme::kSim);
  EXPECT_EQ(parse_endpoint("tls://[::1]:7400")->scheme, Endpoint::Scheme::kTls);
}

TEST(EndpointTest, EveryBadTextIsRefusedWithWhatIsWrongAndWhatIsAllowed) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "unknown scheme"},
      {"127.0.0.1:7400", "unknown scheme"},
      {"http://127.0.0.1:80", "unknown scheme"},
      {"TCP://127.0.0.1:7400", "unknown scheme"},
      {"tcp://", "port is missing"},
      {"tcp://127.0.0.1", "port is missing"},
      {"tcp://127.0.0.1:", "port is not"},
      {"tcp://127.0.0.1:65536", "port is not"},
      {"tcp://127.0.0.1:-1", "port is not"},
      {"tcp://127.0.0.1:7400x", "port is not"},
      {"tcp://127.0.0.1:99999999999999999999", "port is not"},
      {"tcp://::1:7400", "brackets"},
      {"tcp://[::1:7400", "'[' without ']'"},
      {"tcp://[]:7400", "IPv6"},
      {"tcp://[localhost]:7400", "IPv6"},
      {"tcp://:7400", "host is not valid"},
      {"tcp://a b:7400", "host is not valid"},
      {"tcp://a/b:7400", "host is not valid"},
      {std::string("tls://a\0b:7400", 14), "host is not valid"},
      {"tls://\xc3\xa4:7400", "host is not valid"},
      {"tls://" + std::string(254, '1') + ":7400", "longer than 253"},
      {"unix://", "path is empty"},
      {"unix://" + std::string(108, 'x'), "107 bytes"},
      {std::string("unix://a\0b", 10), "path"},
      {"sim://", "name is empty"},
  };
  for (const auto& [text, reason] : cases) {
    const auto endpoint = parse_endpoint(text);
    ASSERT_FALSE(endpoint) << text;
    EXPECT_EQ(endpoint.error(), Errc::kBadRequest);
    EXPECT_THAT(endpoint.error().text, HasSubstr(reason)) << text;
    EXPECT_THAT(endpoint.error().text, HasSubstr("tcp://HOST:PORT")) << text;
  }
}

TEST(EndpointTest, UnixPathOf107BytesIsTheLongest) { EXPECT_TRUE(parse_endpoint("unix://" + std::string(107, 'x'))); }

TEST(EndpointTest, AHugeTextIsQuotedInPartOnly) {
  const auto endpoint = parse_endpoint(std::string(1 << 20, 'x'));
  ASSERT_FALSE(endpoint);
  EXPECT_LT(endpoint.error().text.size(), 600u);
}

TEST(EndpointTest, LoopbackIsRecognisedByAddressAndNotByLook) {
  const auto is_loopback = [](const std::string& text) { return parse_endpoint(text).value().is_loopback(); };
  for (const char* text :
       {"tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "tcp://[::1]:1", "tcp://localhost:1", "unix:///tmp/x", "sim://x"}) {
    EXPECT_TRUE(is_loopback(text)) << text;
  }
  for (const char* text : {"tcp://0.0.0.0:1", "tcp://10.0.0.1:1", "tcp://[::]:1", "tcp://[::ffff:10.0.0.1]:1",
                           "tcp://127.example.org:1", "tcp://1270.0.0.1:1", "tcp://localhost.example.org:1"}) {
    EXPECT_FALSE(is_loopback(text)) << text;
  }
}

}  // namespace
}  // namespace kv
