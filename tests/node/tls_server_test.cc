// A node's listeners with TLS, and peers that are what they should not be: real sockets, and OpenSSL as anybody may use
// it on the other side, without this project's own checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "store/node/listen/admin.h"
#include "store/node/listen/server.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/transport/tls_certificates.h"
#include "transport/tls/tls_network.h"
#include "transport/wire_generated.h"

namespace kv {
namespace {

namespace ssl = asio::ssl;
using asio::ip::tcp;
using testing::HasSubstr;

/// Looks again and again for a minute: for what other threads do.
bool eventually(const std::function<bool()>& condition) {
  const auto give_up = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

/// A client that checks nothing and shows what it is told to.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port, const std::string& from = "127.0.0.1") : stream_(io_, context_) {
    SSL_CTX_set_security_level(context_.native_handle(), 0);
    stream_.next_layer().open(tcp::v4());
    stream_.next_layer().bind({asio::ip::make_address(from), 0});
    stream_.next_layer().connect({asio::ip::make_address("127.0.0.1"), port});
    const timeval limit{60, 0};  // a hang is a failure
    ::setsockopt(stream_.next_layer().native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  void show(const IssuedCertificate& issued) {
    SSL_set_security_level(stream_.native_handle(), 0);
    const std::unique_ptr<BIO, decltype(&BIO_free)> cert(BIO_new_mem_buf(issued.cert.data(), -1), &BIO_free);
    const std::unique_ptr<BIO, decltype(&BIO_free)> key(BIO_new_mem_buf(issued.key.data(), -1), &BIO_free);
    X509* const x509 = PEM_read_bio_X509(cert.get(), nullptr, nullptr, nullptr);
    EVP_PKEY* const pkey = PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr);
    ASSERT_EQ(SSL_use_certificate(stream_.native_handle(), x509), 1);
    ASSERT_EQ(SSL_use_PrivateKey(stream_.native_handle(), pkey), 1);
    X509_free(x509);
    EVP_PKEY_free(pkey);
  }
  void speak_at_most(int version) { SSL_set_max_proto_version(stream_.native_handle(), version); }

  boost::system::error_code shake_hands() {
    boost::system::error_code result;
    stream_.handshake(ssl::stream_base::client, result);
    return result;
  }
  /// Says hello. Whether it was answered; else `error` is why.
  bool hello() {
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(wire::CreateHelloRequestDirect(builder, 1, 1, "raw"));
    const auto table = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
    FrameHeader header;
    header.type = FrameType::kHello;
    std::vector<std::byte> bytes(kFrameHeaderBytes);
    encode_frame_header(header, table, std::span<std::byte, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
    bytes.insert(bytes.end(), table.begin(), table.end());
    // A node that refuses this side may have closed already. Its reason is there to be read all the same.
    boost::system::error_code unwritten;
    asio::write(stream_, asio::buffer(bytes), unwritten);
    std::vector<std::byte> head(kFrameHeaderBytes);
    asio::read(stream_, asio::buffer(head), error);
    return !error;
  }
  /// The first error of handshake and hello; empty: all went well.
  std::string why_not() {
    error = shake_hands();
    if (!error && hello()) return "";
    return error.message();
  }
  std::string get(const std::string& target) {
    const std::string request = "GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    asio::write(stream_, asio::buffer(request), error);
    std::string answer;
    asio::read(stream_, asio::dynamic_buffer(answer), error);
    return answer;
  }
  ssl::stream<tcp::socket>& stream() { return stream_; }

  boost::system::error_code error;

 private:
  asio::io_context io_;
  ssl::context context_{ssl::context::tls_client};
  ssl::stream<tcp::socket> stream_;
};

class TlsServerTest : public testing::Test {
 protected:
  TlsServerTest() {
    StoreConfig config;
    config.arena.capacity_bytes = 1 << 20;
    config.arena.huge_pages = false;
    store = std::make_unique<LockedStore>(Store::create(config).value(), metrics);
    node.reset(new NodeContext{.store = *store, .clock = clock, .metrics = metrics, .limits = {}});
    node_config = files.write("node", ca.issue(), ca.pem());
  }
  ~TlsServerTest() override {
    server.reset();
    admin.reset();
  }
  std::uint16_t start(ServerConfig config = {.threads = 2}) {
    security = std::make_unique<NodeSecurity>(TlsSource::open(node_config, TlsSide::kNode).value(), 0);
    node->security = security.get();
    network = make_tls_network(socket_network(), security->tls());
    server = std::make_unique<Server>(*node, config);
    const Endpoint real = server->listen(*network, {Endpoint::Scheme::kTls, "127.0.0.1", "0"}).value();
    EXPECT_EQ(real.scheme, Endpoint::Scheme::kTls) << "as it is told to the cluster";
    server->start();
    return static_cast<std::uint16_t>(std::stoi(real.port));
  }
  double value(std::string_view name) const {
    for (const NodeMetrics::Value& each : security->stats()) {
      if (each.name == name) return each.value;
    }
    return -1;
  }

  TestCa ca;
  CertificateFiles files;
  TlsConfig node_config;
  SteadyClock clock;
  NodeMetrics metrics{"test"};
  std::unique_ptr<LockedStore> store;
  std::unique_ptr<NodeContext> node;
  std::unique_ptr<NodeSecurity> security;
  std::unique_ptr<Network> network;
  std::unique_ptr<AdminServer> admin;
  std::unique_ptr<Server> server;
};

TEST_F(TlsServerTest, WhoIsLetInAndWhoIsNot) {
  const IssuedCertificate revoked = ca.issue();
  node_config.crl_file = files.write("crl", ca.crl({revoked.serial}));
  const std::uint16_t port = start();
  TestCa other;
  const auto tried = [&](const IssuedCertificate& shown) {
    RawClient client(port);
    client.show(shown);
    return client.why_not();
  };
  EXPECT_EQ(tried(ca.issue()), "");
  EXPECT_EQ(tried(ca.issue({.key = CertificateOrder::Key::kRsa2048})), "");
  EXPECT_EQ(tried(ca.issue({.names = {}, .usage = ""})), "") << "no list of names: any certificate of the CA";
  EXPECT_THAT(tried(ca.issue({.ends = std::chrono::seconds(-1)})), HasSubstr("expired"));
  EXPECT_THAT(tried(ca.issue({.begins = std::chrono::hours(1)})), HasSubstr("bad certificate"));
  EXPECT_THAT(tried(other.issue()), HasSubstr("alert"));
  EXPECT_THAT(tried(revoked), HasSubstr("revoked"));
  EXPECT_THAT(tried(ca.issue({.usage = "serverAuth"})), HasSubstr("unsupported certificate"));
  EXPECT_NE(tried(ca.issue({.key = CertificateOrder::Key::kRsa1024})), "") << "weak";
  {
    RawClient nobody(port);
    EXPECT_THAT(nobody.why_not(), HasSubstr("certificate required"));
  }
  {
    RawClient old(port);
    old.show(ca.issue());
    old.speak_at_most(TLS1_2_VERSION);
    EXPECT_THAT(old.why_not(), HasSubstr("protocol version"));
  }
  EXPECT_EQ(value("tls_handshakes"), 3);
  EXPECT_TRUE(eventually([&] { return value("tls_handshake_failures") == 8; })) << value("tls_handshake_failures");
  EXPECT_TRUE(eventually([&] { return value("tls_half_open") == 0; }));
}

TEST_F(TlsServerTest, OnlyAllowedNamesAreLetIn) {
  node_config.allowed_names = {"spiffe://a/worker/*"};
  const std::uint16_t port = start();
  RawClient worker(port), stranger(port), namesake(port);
  worker.show(ca.issue({.names = {"URI:spiffe://a/worker/7"}}));
  EXPECT_EQ(worker.why_not(), "");
  stranger.show(ca.issue({.names = {"URI:spiffe://a/router"}}));
  EXPECT_NE(stranger.why_not(), "");
  namesake.show(ca.issue({.names = {}, .common_name = "spiffe://a/worker/7"}));
  EXPECT_NE(namesake.why_not(), "") << "a common name is no name";
}

TEST_F(TlsServerTest, PlainBytesAreNoSession) {
  const std::uint16_t port = start();
  asio::io_context io;
  tcp::socket socket(io);
  socket.connect({asio::ip::make_address("127.0.0.1"), port});
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateHelloRequestDirect(builder, 1, 1, "plain"));
  const auto table = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  FrameHeader header;
  header.type = FrameType::kHello;
  std::vector<std::byte> bytes(kFrameHeaderBytes);
  encode_frame_header(header, table, std::span<std::byte, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
  bytes.insert(bytes.end(), table.begin(), table.end());
  asio::write(socket, asio::buffer(bytes));
  std::string answer;
  boost::system::error_code error;
  asio::read(socket, asio::dynamic_buffer(answer), error);  // to the end
  EXPECT_LT(answer.size(), kFrameHeaderBytes) << "an alert, and no frame";
  EXPECT_TRUE(eventually([&] { return value("tls_handshake_failures") == 1; }));
  EXPECT_EQ(metrics.session_count(), 0u);
}

TEST_F(TlsServerTest, WhoDoesNotProveWhoTheyAreHasLittleTimeAndRoom) {
  const std::uint16_t port =
      start({.threads = 2, .handshakes = {.count_max = 8, .peer_share_max = 0.5}, .handshake_timeout = 300ms});
  asio::io_context io;
  std::vector<tcp::socket> silent;
  for (int i = 0; i < 20; ++i) {
    silent.emplace_back(io).connect({asio::ip::make_address("127.0.0.1"), port});
    EXPECT_LE(value("tls_half_open"), 8);
  }
  EXPECT_TRUE(eventually([&] { return value("tls_handshakes_refused") + value("tls_handshake_failures") == 20; }));
  EXPECT_GE(value("tls_handshakes_refused"), 1) << "one address gets a part of them";
  EXPECT_EQ(value("tls_half_open"), 0);
  for (tcp::socket& each : silent) {
    char byte;
    boost::system::error_code error;
    asio::read(each, asio::buffer(&byte, 1), error);
    EXPECT_TRUE(error) << "closed";
  }
  RawClient good(port);
  good.show(ca.issue());
  EXPECT_EQ(good.why_not(), "") << "there is room again";
}

TEST_F(TlsServerTest, OneAddressBeginsOnlySoManyHandshakesInATime) {
  const std::uint16_t port = start({.threads = 2, .handshakes_per_second = 0.001});
  RawClient first(port);
  first.show(ca.issue());
  EXPECT_EQ(first.why_not(), "");
  RawClient second(port);
  second.show(ca.issue());
  EXPECT_NE(second.why_not(), "") << "a thousand seconds have to go by";
  EXPECT_EQ(value("tls_handshakes_refused"), 1);
  EXPECT_EQ(value("tls_handshakes"), 1);
}

TEST_F(TlsServerTest, SessionsOutliveAReloadAndNewOnesSeeIt) {
  const std::uint16_t port = start();
  RawClient early(port);
  const IssuedCertificate shown = ca.issue();
  early.show(shown);
  ASSERT_EQ(early.why_not(), "");

  TestCa next("next CA");
  files.write("node-ca.pem", next.pem());
  security->check_files();
  EXPECT_EQ(value("tls_reloads"), 1);
  RawClient late(port), new_one(port);
  late.show(shown);
  EXPECT_NE(late.why_not(), "") << "its CA is not believed any more";
  new_one.show(next.issue());
  EXPECT_EQ(new_one.why_not(), "");
  EXPECT_TRUE(early.hello()) << "an answer, if only that hello was said already";

  files.write("node-ca.pem", "nonsense");
  security->reload();
  EXPECT_EQ(value("tls_reload_failed"), 1);
  RawClient still(port);
  still.show(next.issue());
  EXPECT_EQ(still.why_not(), "") << "a bad file changes nothing";
}

TEST_F(TlsServerTest, AStopWaitsForNoHandshake) {
  const std::uint16_t port = start({.threads = 1, .handshake_timeout = 3600s});
  asio::io_context io;
  tcp::socket silent(io);
  silent.connect({asio::ip::make_address("127.0.0.1"), port});
  ASSERT_TRUE(eventually([&] { return value("tls_half_open") == 1; }));
  server->stop(3600s);
  EXPECT_EQ(value("tls_half_open"), 0);
}

TEST_F(TlsServerTest, TheAdminServerAsksForACertificateToo) {
  security = std::make_unique<NodeSecurity>(TlsSource::open(node_config, TlsSide::kNode).value(), 0);
  admin = AdminServer::start("127.0.0.1", 0, {[] { return std::string("kvstore_up 1\n"); }, [] { return true; }},
                             security->tls())
              .value();
  RawClient good(admin->port());
  good.show(ca.issue());
  ASSERT_FALSE(good.shake_hands());
  EXPECT_THAT(good.get("/metrics"), HasSubstr("kvstore_up 1\n"));
  RawClient nobody(admin->port());
  if (!nobody.shake_hands()) {  // a client of TLS 1.3 is done before the server has looked at its certificate
    EXPECT_EQ(nobody.get("/metrics"), "");
  }
  asio::io_context io;
  tcp::socket plain(io);
  plain.connect({asio::ip::make_address("127.0.0.1"), admin->port()});
  asio::write(plain, asio::buffer(std::string("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")));
  std::string answer;
  boost::system::error_code error;
  asio::read(plain, asio::dynamic_buffer(answer), error);
  EXPECT_EQ(answer.find("kvstore_up"), std::string::npos);
}

/// Each costs the thread that answers probes two milliseconds.
TEST_F(TlsServerTest, TheAdminServerBeginsFewHandshakesASecondAndHalfOfThemForOneAddress) {
  security = std::make_unique<NodeSecurity>(TlsSource::open(node_config, TlsSide::kNode).value(), 0);
  VirtualClock still;
  admin = AdminServer::start("127.0.0.1", 0, {[] { return std::string("kvstore_up 1\n"); }, [] { return true; }},
                             security->tls(), nullptr, &still)
              .value();
  const IssuedCertificate good = ca.issue();
  const auto is_let_in = [&](const std::string& from) {
    RawClient client(admin->port(), from);
    client.show(good);
    return !client.shake_hands();
  };
  int count = 0;
  for (int i = 0; i < 50; ++i) count += is_let_in("127.0.0.1");
  EXPECT_EQ(count, 32);
  EXPECT_TRUE(is_let_in("127.0.0.2"));
}

}  // namespace
}  // namespace kv
