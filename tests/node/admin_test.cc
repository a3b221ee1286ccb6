#include "store/node/listen/admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <future>

namespace kv {
namespace {

using asio::ip::tcp;
using testing::HasSubstr;
using testing::StartsWith;

class AdminServerTest : public testing::Test {
 protected:
  std::atomic<bool> ready = true;
  std::unique_ptr<AdminServer> server =
      AdminServer::start("127.0.0.1", 0,
                         {[] { return std::string("kvstore_up 1\n"); }, [this] { return ready.load(); }})
          .value();
  asio::io_context io;

  tcp::socket connect() {
    tcp::socket socket(io);
    socket.connect({asio::ip::make_address("127.0.0.1"), server->port()});
    return socket;
  }
  /// Sends `request` as it is; all that comes back until the server closes.
  std::string exchange(const std::string& request) {
    tcp::socket socket = connect();
    boost::system::error_code ignored;
    asio::write(socket, asio::buffer(request), ignored);
    std::string answer;
    asio::read(socket, asio::dynamic_buffer(answer), ignored);
    return answer;
  }
  std::string get(const std::string& target, const std::string& method = "GET") {
    return exchange(method + " " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  }
};

TEST_F(AdminServerTest, PagesAreServed) {
  EXPECT_THAT(get("/metrics"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get("/metrics"), HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(get("/metrics"), HasSubstr("kvstore_up 1\n"));
  EXPECT_THAT(get("/healthz"), HasSubstr("ok\n"));
  EXPECT_THAT(get("/"), HasSubstr("/metrics"));
}

TEST_F(AdminServerTest, ReadinessFollowsTheNode) {
  EXPECT_THAT(get("/readyz"), StartsWith("HTTP/1.1 200"));
  ready = false;
  EXPECT_THAT(get("/readyz"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200")) << "a draining node is alive";
}

TEST_F(AdminServerTest, OtherPathsAndMethodsAreRefused) {
  EXPECT_THAT(get("/etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get("/metrics/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get("/metrics", "DELETE"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(get("/metrics", "DELETE"), HasSubstr("Allow: GET, HEAD"));
}

TEST_F(AdminServerTest, TheStatusPageIsServedWhereThereAreAnswersForIt) {
  EXPECT_THAT(get("/status"), StartsWith("HTTP/1.1 404"));
  AdminPages pages = {[] { return std::string(); }, [] { return true; }};
  pages.answer = [](const AdminQuestion& question, PeerAccess&) {
    if (question.query == "bad") return AdminAnswer{.why = Errc::kBadRequest};
    return AdminAnswer{.json = "[\"" + question.path + "|" + question.query + "\"]"};
  };
  server = AdminServer::start("127.0.0.1", 0, std::move(pages)).value();
  const std::string page = get("/status");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(page, HasSubstr("<!doctype html>"));
  const std::string answer = get("/status/tree.json?tier=disk");
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(answer, HasSubstr("Cache-Control: no-store\r\n"));
  EXPECT_THAT(answer, HasSubstr("[\"/status/tree.json|tier=disk\"]"));
  EXPECT_THAT(get("/status/now.json"), HasSubstr("[\"/status/now.json|\"]"));
  EXPECT_THAT(get("/status/now.json?bad"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(get("/status/secret.json"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get("/status/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get("/metrics?x=y"), StartsWith("HTTP/1.1 200"));
}

TEST_F(AdminServerTest, AWebPageOfAnotherNameThatPointsHereReadsNothing) {
  AdminPages pages = {[] { return std::string(); }, [] { return true; }};
  pages.answer = [](const AdminQuestion&, PeerAccess&) { return AdminAnswer{.json = "[]"}; };
  server = AdminServer::start("127.0.0.1", 0, std::move(pages)).value();
  const auto status_for = [&](const std::string& host) {
    return exchange("GET /status/now.json HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n").substr(9, 3);
  };
  for (const std::string own : {"127.0.0.1:7401", "127.0.0.1", "localhost:7401", "LocalHost", "[::1]:7401", "[::1]"})
    EXPECT_EQ(status_for(own), "200") << own;
  for (const std::string other :
       {"evil.example:7401", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example"})
    EXPECT_EQ(status_for(other), "403") << other;
}

/// One of this machine's own addresses that is not its loopback: who connects to it comes from it.
std::optional<asio::ip::address> network_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype([](ifaddrs* each) { ::freeifaddrs(each); })> owned(all);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    const auto* const in = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    const asio::ip::address_v4 address(ntohl(in->sin_addr.s_addr));
    if (!address.is_loopback()) return address;
  }
  return std::nullopt;
}

TEST_F(AdminServerTest, WithoutAPolicyNothingIsChangedFromBeyondTheLoopback) {
  const auto address = network_address();
  if (!address) GTEST_SKIP() << "this machine has no address beside its loopback";
  int changes = 0, denied = 0;
  AdminPages pages = {[] { return std::string(); }, [] { return true; }};
  pages.answer = [&](const AdminQuestion& question, PeerAccess& peer) {
    if (const std::string why = peer.denial(question.path, rule_for(question.path)); !why.empty()) {
      ++denied;
      return AdminAnswer{.why = Failure(Errc::kPermissionDenied, why)};
    }
    ++changes;
    return AdminAnswer{.json = "{}"};
  };
  server = AdminServer::start("0.0.0.0", 0, std::move(pages)).value();
  const auto ask = [&](const asio::ip::address& at, const std::string& line) {
    tcp::socket socket(io);
    socket.connect({at, server->port()});
    asio::write(socket, asio::buffer(line + " HTTP/1.1\r\nHost: localhost\r\nX-Kvstore-Config: 1\r\n"
                                            "Connection: close\r\n\r\n"));
    std::string answer;
    boost::system::error_code end;
    asio::read(socket, asio::dynamic_buffer(answer), end);
    return answer;
  };
  const std::string refused = ask(*address, "POST /config/set?log-level=debug");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(refused, HasSubstr("policy-file"));
  EXPECT_EQ(changes, 0);
  EXPECT_EQ(denied, 1);
  EXPECT_THAT(ask(*address, "GET /metrics"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask(asio::ip::make_address("127.0.0.1"), "POST /config/set?log-level=debug"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(changes, 1);
}

/// What the shipped liveness probe did: six of them failed, and the node was killed.
TEST_F(AdminServerTest, ConnectionsThatSayNothingKeepNoProbeFromItsAnswer) {
  std::vector<tcp::socket> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(connect());
    if (i % 2 == 0) asio::write(silent.back(), asio::buffer(std::string("GET /heal")));
  }
  for (int i = 0; i < 60; ++i) {
    ASSERT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200")) << i;
    ASSERT_THAT(get("/readyz"), StartsWith("HTTP/1.1 200")) << i;
    silent.push_back(connect());
  }
}

TEST_F(AdminServerTest, WhileTheNodeStartsItIsAliveAndSaysHowFarItIs) {
  std::atomic<int> percent = 7;
  server = AdminServer::start("127.0.0.1", 0,
                              {.metrics = nullptr,
                               .is_ready = [] { return false; },
                               .why_not_ready = [&] { return std::to_string(percent) + " percent"; }})
               .value();
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get("/readyz"), testing::AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("not ready: 7 percent\n")));
  percent = 50;
  EXPECT_THAT(get("/readyz"), HasSubstr("not ready: 50 percent\n"));
  for (const std::string page : {"/metrics", "/status", "/config/list.json", "/events.json", "/"})
    EXPECT_THAT(get(page), testing::AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("50 percent"))) << page;
  EXPECT_THAT(get("/nowhere"), StartsWith("HTTP/1.1 404"));
  server->open({[] { return std::string("kvstore_up 1\n"); }, [] { return true; }});
  EXPECT_THAT(get("/readyz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get("/metrics"), HasSubstr("kvstore_up 1\n"));
}

TEST_F(AdminServerTest, PagesThatAreWaitedForAreBounded) {
  std::promise<void> go_on;
  const std::shared_future<void> may_go_on = go_on.get_future().share();
  server = AdminServer::start("127.0.0.1", 0,
                              {[may_go_on] {
                                 may_go_on.wait();
                                 return std::string("kvstore_up 1\n");
                               },
                               [] { return true; }})
               .value();
  std::vector<tcp::socket> scrapers;
  for (int i = 0; i < 16; ++i) {
    scrapers.push_back(connect());
    asio::write(scrapers.back(), asio::buffer(std::string("GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")));
  }
  // They were not all read yet when this one is, perhaps; then it is one of the sixteen, and the next one is not.
  int asked = 0;
  while (true) {
    tcp::socket one_more = connect();
    asio::write(one_more, asio::buffer(std::string("GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")));
    EXPECT_THAT(get("/healthz"), HasSubstr("ok\n")) << "nor does a probe wait for a scrape";
    if (one_more.available() > 0) break;
    scrapers.push_back(std::move(one_more));
    ASSERT_LT(++asked, 17);
  }
  go_on.set_value();
  int served = 0;
  for (tcp::socket& each : scrapers) {
    std::string answer;
    boost::system::error_code end;
    asio::read(each, asio::dynamic_buffer(answer), end);
    served += answer.find("kvstore_up 1") != std::string::npos;
  }
  EXPECT_EQ(served, 16);
}

TEST_F(AdminServerTest, NoProbeWaitsForAStatusPage) {
  std::promise<void> asked, go_on;
  AdminPages pages = {[] { return std::string(); }, [] { return true; }};
  pages.answer = [&](const AdminQuestion&, PeerAccess&) {
    asked.set_value();
    go_on.get_future().wait();
    return AdminAnswer{.json = "[]"};
  };
  server = AdminServer::start("127.0.0.1", 0, std::move(pages)).value();
  auto slow = std::async(std::launch::async, [&, port = server->port()] {
    asio::io_context own;
    tcp::socket socket(own);
    socket.connect({asio::ip::make_address("127.0.0.1"), port});
    asio::write(socket, asio::buffer(std::string("GET /status/now.json HTTP/1.1\r\nConnection: close\r\n\r\n")));
    std::string answer;
    boost::system::error_code end;
    asio::read(socket, asio::dynamic_buffer(answer), end);
    return answer;
  });
  asked.get_future().wait();
  EXPECT_THAT(get("/healthz"), HasSubstr("ok\n"));
  go_on.set_value();
  EXPECT_TRUE(slow.get().ends_with("\r\n\r\n[]"));
}

TEST_F(AdminServerTest, HeadHasNoBody) {
  const std::string answer = get("/healthz", "HEAD");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << answer;
}

TEST_F(AdminServerTest, AConnectionIsUsedAgain) {
  tcp::socket socket = connect();
  for (int i = 0; i < 3; ++i) {
    asio::write(socket, asio::buffer(std::string("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")));
    std::string answer;
    while (!answer.ends_with("ok\n")) {
      char part[256];
      answer.append(part, socket.read_some(asio::buffer(part)));
    }
  }
}

TEST_F(AdminServerTest, NonsenseIsRefused) {
  EXPECT_EQ(exchange("KVS1 this is no HTTP at all\r\n\r\n").find("200"), std::string::npos);
  EXPECT_EQ(exchange("GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\n\r\n").find("200"), std::string::npos);
  EXPECT_EQ(exchange("GET /healthz HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + std::string(10'000, 'x')).find("200"),
            std::string::npos);
  EXPECT_THAT(get("/healthz"), HasSubstr("ok")) << "and the server serves on";
}

TEST_F(AdminServerTest, ItEndsWhileConnectionsAreOpen) {
  tcp::socket idle = connect();
  tcp::socket half = connect();
  asio::write(half, asio::buffer(std::string("GET /met")));
  server.reset();
  boost::system::error_code error;
  char byte;
  idle.read_some(asio::buffer(&byte, 1), error);
  EXPECT_TRUE(error);
}

TEST_F(AdminServerTest, APortInUseIsAnError) {
  EXPECT_FALSE(AdminServer::start("127.0.0.1", server->port(), {[] { return std::string(); }, [] { return true; }}));
}

}  // namespace
}  // namespace kv
