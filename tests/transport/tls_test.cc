// TLS over the simulated network: what is good, what is refused and why, and that no byte is lost or changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <random>

#include "tests/transport/memory_stream.h"
#include "tests/transport/sim_world.h"
#include "tests/transport/tls_certificates.h"
#include "transport/frames/frame_writer.h"
#include "transport/slow_calls.h"
#include "transport/tls/tls_identity.h"
#include "transport/tls/tls_network.h"
#include "transport/tls/tls_stream.h"

namespace kv {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// -- names

TEST(TlsNamesTest, OnlyAWholeNameOrWhatAStarStandsForIsAllowed) {
  const auto allows = [](const std::string& pattern, const std::string& name) {
    EXPECT_EQ(check_name_pattern(pattern), "") << pattern;
    const std::vector<std::string> names = {name}, patterns = {pattern};
    return is_allowed(names, patterns);
  };
  EXPECT_TRUE(allows("spiffe://a/worker", "uri:spiffe://a/worker"));
  EXPECT_FALSE(allows("spiffe://a/worker", "uri:spiffe://a/worker2"));
  EXPECT_FALSE(allows("spiffe://a/worker", "uri:spiffe://a/Worker"));
  EXPECT_TRUE(allows("spiffe://a/w/*", "uri:spiffe://a/w/1/2"));
  EXPECT_FALSE(allows("spiffe://a/w/*", "uri:spiffe://a/w/")) << "something has to follow";
  EXPECT_FALSE(allows("spiffe://a/w/*", "uri:spiffe://a/w2/1"));
  EXPECT_TRUE(allows("w.example.org", "dns:w.example.org"));
  EXPECT_TRUE(allows("W.Example.org", "dns:w.example.org"));
  EXPECT_FALSE(allows("w.example.org", "dns:ww.example.org"));
  EXPECT_FALSE(allows("w.example.org", "uri:w.example.org")) << "a URI is no DNS name";
  EXPECT_TRUE(allows("*.example.org", "dns:w.example.org"));
  EXPECT_FALSE(allows("*.example.org", "dns:a.w.example.org")) << "one label";
  EXPECT_FALSE(allows("*.example.org", "dns:example.org"));
  EXPECT_FALSE(allows("*.example.org", "dns:.example.org"));
}

TEST(TlsNamesTest, ACertificateIsOfTheHostsThatItWouldProve) {
  const std::vector<std::string> names = {"uri:spiffe://a/node", "dns:*.kv.example.org", "dns:kv.example.org"};
  EXPECT_TRUE(is_host_of(names, "n0.kv.example.org"));
  EXPECT_TRUE(is_host_of(names, "N0.KV.example.org"));
  EXPECT_TRUE(is_host_of(names, "kv.example.org"));
  EXPECT_FALSE(is_host_of(names, "a.n0.kv.example.org"));
  EXPECT_FALSE(is_host_of(names, "example.org"));
  EXPECT_FALSE(is_host_of(names, "spiffe://a/node"));
  EXPECT_THAT(split_patterns(" a.example ,spiffe://b/*,, "), ElementsAre("a.example", "spiffe://b/*"));
}

TEST(TlsNamesTest, PatternsThatWouldAllowMoreThanTheySeemToAreRefused) {
  for (const char* pattern :
       {"", "*", "*.", "w*", "*w.example.org", "*.*.org", "spiffe://a/*/b", "spiffe://*", "spiffe://", "a b"})
    EXPECT_THAT(check_name_pattern(pattern), HasSubstr("allowed are")) << pattern;
}

// -- files

class TlsFilesTest : public testing::Test {
 protected:
  TestCa ca;
  CertificateFiles files;

  TlsConfig good(const std::string& name, const CertificateOrder& order = {}) {
    return files.write(name, ca.issue(order), ca.pem());
  }
  static std::string why_not(const TlsConfig& config, TlsSide side = TlsSide::kNode) {
    const auto read = TlsCredentials::read(config, side);
    return read ? "" : read.error().text;
  }
};

TEST_F(TlsFilesTest, EachBadFileIsNamedWithWhatIsWrongInIt) {
  const TlsConfig fine = good("fine");
  EXPECT_EQ(why_not(fine), "");
  const auto expect_bad = [&](std::string TlsConfig::*field, const std::string& path, const std::string& option,
                              const std::string& words) {
    TlsConfig config = fine;
    config.*field = path;
    EXPECT_THAT(why_not(config), AllOf(HasSubstr(option + ": " + path), HasSubstr(words)));
  };
  const std::string empty = files.write("empty", ""), noise = files.write("noise", "not a certificate\n");
  const std::string cut = files.write("cut", ca.issue().cert.substr(0, 200) + "\n-----END CERTIFICATE-----\n");
  for (const auto& [field, option, what] :
       {std::tuple(&TlsConfig::cert_file, "tls-cert", "certificate"),
        std::tuple(&TlsConfig::ca_file, "tls-ca", "certificate"),
        std::tuple(&TlsConfig::crl_file, "tls-crl", "list of revoked certificates (CRL)")}) {
    expect_bad(field, files.path("absent"), option, "No such file or directory");
    expect_bad(field, empty, option, std::string("holds no ") + what + " in PEM form");
    expect_bad(field, noise, option, std::string("holds no ") + what + " in PEM form");
  }
  expect_bad(&TlsConfig::cert_file, cut, "tls-cert", "damaged certificate");
  expect_bad(&TlsConfig::cert_file, "/", "tls-cert", "cannot be read");
  expect_bad(&TlsConfig::key_file, files.path("absent"), "tls-key", "No such file or directory");
  expect_bad(&TlsConfig::key_file, noise, "tls-key", "holds no private key in PEM form without a passphrase");
  expect_bad(&TlsConfig::key_file, files.write("locked", with_passphrase(ca.issue().key)), "tls-key", "passphrase");
  expect_bad(&TlsConfig::key_file, files.write("other", ca.issue().key), "tls-key",
             "is not the key of the certificate in");
  expect_bad(&TlsConfig::cert_file, files.write("past", ca.issue({.ends = std::chrono::seconds(-60)}).cert), "tls-cert",
             "expired at 2");
  expect_bad(&TlsConfig::cert_file, files.write("future", ca.issue({.begins = std::chrono::hours(1)}).cert), "tls-cert",
             "is valid from 2");
  expect_bad(&TlsConfig::cert_file, files.write("weak", ca.issue({.key = CertificateOrder::Key::kRsa1024}).cert),
             "tls-cert", "RSA of 2048 bits");
  expect_bad(&TlsConfig::ca_file, files.write("leaf", ca.issue().cert), "tls-ca", "no CA's");
  expect_bad(&TlsConfig::crl_file, files.write("old", ca.crl({}, std::chrono::seconds(-60))), "tls-crl",
             "had to be replaced by 2");
}

TEST_F(TlsFilesTest, HalfAConfigurationIsRefused) {
  for (const auto field : {&TlsConfig::cert_file, &TlsConfig::key_file, &TlsConfig::ca_file}) {
    TlsConfig config = good("half");
    (config.*field).clear();
    EXPECT_THAT(why_not(config), HasSubstr("not given, needed"));
  }
  TlsConfig config = good("half");
  config.allowed_names = {"*"};
  EXPECT_THAT(why_not(config), HasSubstr("tls-allowed-name: '*'"));
}

TEST_F(TlsFilesTest, DatesAreThoseOfTheFiles) {
  TlsConfig config = good("dates", {.ends = std::chrono::hours(10)});
  config.crl_file = files.write("crl", ca.crl({}, std::chrono::hours(5)));
  const auto read = TlsCredentials::read(config, TlsSide::kNode).value();
  const auto hours = [](TlsCredentials::Time time) {
    return std::chrono::round<std::chrono::hours>(time - std::chrono::system_clock::now()).count();
  };
  EXPECT_EQ(hours(read->cert_ends()), 10);
  EXPECT_EQ(hours(read->ca_ends()), 48);
  EXPECT_EQ(hours(read->crl_ends().value()), 5);
}

TEST_F(TlsFilesTest, TheEndIsThatOfTheChainInUse) {
  using std::chrono::hours;
  TestCa middle(ca, "middle", hours(5)), past(ca, "past", hours(-1)), other("other CA", hours(1));
  const auto ends = [](TlsCredentials::Time time) {
    return std::chrono::round<hours>(time - std::chrono::system_clock::now()).count();
  };
  IssuedCertificate chain = middle.issue();
  const std::string own = chain.cert;
  chain.cert = own + middle.pem() + other.pem();  // the last one is of no use, and ends first
  const auto to_root = TlsCredentials::read(files.write("root", chain, other.pem() + ca.pem()), TlsSide::kNode).value();
  EXPECT_EQ(ends(to_root->cert_ends()), 5) << "the intermediate certificate";
  EXPECT_EQ(ends(to_root->ca_ends()), 48) << "the one in use";
  const auto to_middle =
      TlsCredentials::read(files.write("middle", chain, other.pem() + middle.pem()), TlsSide::kNode).value();
  EXPECT_EQ(ends(to_middle->cert_ends()), 24) << "peers trust the intermediate one";
  EXPECT_EQ(ends(to_middle->ca_ends()), 5);
  const auto to_other = TlsCredentials::read(files.write("other", chain, other.pem()), TlsSide::kNode).value();
  EXPECT_EQ(ends(to_other->cert_ends()), 5) << "peers have another CA";
  EXPECT_EQ(ends(to_other->ca_ends()), 1);
  chain = past.issue();
  chain.cert += past.pem();
  EXPECT_THAT(why_not(files.write("ended", chain, ca.pem())), HasSubstr("certificate 2 of the chain expired at 2"));
}

TEST_F(TlsFilesTest, ChangedFilesAreReadAgainAndBadOnesChangeNothing) {
  const TlsConfig config = good("node");
  const auto source = TlsSource::open(config, TlsSide::kNode).value();
  const auto first = source->current();
  EXPECT_FALSE(source->reload_if_changed()) << "nothing has changed";
  EXPECT_EQ(source->current(), first);

  const IssuedCertificate next = ca.issue();
  files.write("node.pem", next.cert);  // its key comes later
  const auto half = source->reload_if_changed();
  ASSERT_TRUE(half && half->code);
  EXPECT_THAT(half->text, HasSubstr("is not the key"));
  EXPECT_EQ(source->current(), first) << "what was good stays";
  EXPECT_TRUE(source->stats().last_failed);
  EXPECT_FALSE(source->reload_if_changed()) << "a bad file is not read again and again";

  files.write("node.key", next.key);
  const auto whole = source->reload_if_changed();
  ASSERT_TRUE(whole);
  EXPECT_FALSE(whole->code) << whole->text;
  EXPECT_NE(source->current(), first);
  EXPECT_FALSE(source->stats().last_failed);
  EXPECT_EQ(source->stats().reloads, 1u);
  EXPECT_EQ(source->stats().failures, 1u);
}

// -- streams

struct Pair {
  std::unique_ptr<TlsStream> client, node;
  Result<void> client_up, node_up;
};

class TlsStreamTest : public TlsFilesTest {
 protected:
  SimWorld world{seed_or(1)};
  CertificateOrder node_order{.names = {"DNS:node.example", "IP:10.0.0.1", "URI:spiffe://a/node"}};
  TlsConfig node_config = good("node", node_order);
  TlsConfig client_config = good("client", {.names = {"URI:spiffe://a/worker/1", "DNS:Worker.Example"}});

  static asio::awaitable<Result<void>> shake_hands(TlsStream& stream) { co_return co_await stream.handshake(nullptr); }

  std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> connect() {
    const Endpoint endpoint{Endpoint::Scheme::kSim, "node", ""};
    if (!listener) listener = world.network.listen(endpoint, world.io.get_executor()).value();
    std::unique_ptr<Stream> accepted;
    asio::co_spawn(world.io, listener->accept(world.io.get_executor()),
                   [&](std::exception_ptr, Result<std::unique_ptr<Stream>> result) { accepted = std::move(*result); });
    auto connected = world.await(world.network.connect(endpoint, world.io.get_executor())).value().value();
    EXPECT_TRUE(world.run_until([&] { return accepted != nullptr; }));
    return {std::move(connected), std::move(accepted)};
  }

  Pair shake_hands(const std::string& server_name = "node.example") {
    auto [near, far] = connect();
    Pair pair;
    pair.client = std::make_unique<TlsStream>(
        std::move(near), TlsCredentials::read(client_config, TlsSide::kClient).value(), server_name);
    pair.node = std::make_unique<TlsStream>(std::move(far), TlsCredentials::read(node_config, TlsSide::kNode).value());
    int done = 0;
    const auto take = [&](Result<void>& to) {
      return [&to, &done](std::exception_ptr, Result<void> result) {
        to = result;
        ++done;
      };
    };
    asio::co_spawn(world.io, shake_hands(*pair.client), take(pair.client_up));
    asio::co_spawn(world.io, shake_hands(*pair.node), take(pair.node_up));
    EXPECT_TRUE(world.run_until([&] { return done == 2; }));
    return pair;
  }
  /// What the client hears next; it is up before the node has looked at its certificate.
  error_code first_word(Pair& pair) {
    std::byte byte;
    const asio::mutable_buffer buffer(&byte, 1);
    error_code error;
    world.run_until([&] {
      const auto got = pair.client->try_read(std::span(&buffer, 1));
      error = got ? error_code() : got.error();
      return error != asio::error::would_block;
    });
    return error;
  }

  std::unique_ptr<Listener> listener;
};

TEST_F(TlsStreamTest, BothSidesLearnWhoTheOtherIs) {
  Pair pair = shake_hands();
  ASSERT_TRUE(pair.client_up && pair.node_up);
  EXPECT_THAT(pair.node->peer_names(), ElementsAre("uri:spiffe://a/worker/1", "dns:worker.example"));
  EXPECT_THAT(pair.client->peer_names(), ElementsAre("dns:node.example", "uri:spiffe://a/node"));
  EXPECT_THAT(pair.node->peer(), HasSubstr("uri:spiffe://a/worker/1"));
  EXPECT_EQ(first_word(pair), asio::error::would_block);
}

TEST_F(TlsStreamTest, ANodeIsTakenOnlyUnderANameThatItsCertificateHas) {
  for (const char* name : {"node.example", "NODE.example", "10.0.0.1", "spiffe://a/node"}) {
    const Pair pair = shake_hands(name);
    EXPECT_TRUE(pair.client_up && pair.node_up) << name;
  }
  for (const char* name : {"other.example", "example", "10.0.0.2", "spiffe://a/node2", "spiffe://a", "::1"}) {
    const Pair pair = shake_hands(name);
    ASSERT_FALSE(pair.client_up) << name;
    EXPECT_THAT(pair.client_up.error().message(), HasSubstr("the peer's certificate is refused")) << name;
    EXPECT_THAT(pair.node_up ? "" : pair.node_up.error().message(), HasSubstr("the peer refused this side")) << name;
  }
}

TEST_F(TlsStreamTest, ACommonNameIsNoName) {
  node_config = good("cn", {.names = {}, .common_name = "node.example"});
  EXPECT_FALSE(shake_hands("node.example").client_up);
}

TEST_F(TlsStreamTest, ACertificateOfAnotherCaIsRefusedOnEitherSide) {
  TestCa other("test CA");  // the same name, another key
  {
    const TlsConfig mine = client_config;
    client_config = files.write("stranger", other.issue(), ca.pem());
    Pair pair = shake_hands();
    ASSERT_FALSE(pair.node_up);
    EXPECT_EQ(pair.node_up.error().category(), tls_category());
    EXPECT_THAT(pair.node_up.error().message(), HasSubstr("the peer's certificate is refused"));
    EXPECT_THAT(first_word(pair).message(), HasSubstr("the peer refused this side"));
    client_config = mine;
  }
  node_config = files.write("impostor", other.issue(node_order), ca.pem());
  EXPECT_FALSE(shake_hands().client_up);
}

TEST_F(TlsStreamTest, ACertificateIsGoodForItsSideOnly) {
  client_config = good("serveronly", {.usage = "serverAuth"});
  EXPECT_FALSE(shake_hands().node_up);
  client_config = good("clientonly", {.usage = "clientAuth"});
  EXPECT_TRUE(shake_hands().node_up);
  node_order.usage = "clientAuth";
  node_config = good("node2", node_order);
  EXPECT_FALSE(shake_hands().client_up);
}

TEST_F(TlsStreamTest, ANameThatIsNotAllowedIsRefusedAndLogged) {
  node_config.allowed_names = {"spiffe://a/operator", "*.example"};
  EXPECT_TRUE(shake_hands().node_up) << "worker.example";
  node_config.allowed_names = {"spiffe://a/operator"};
  Pair pair = shake_hands();
  ASSERT_FALSE(pair.node_up);
  EXPECT_THAT(pair.node_up.error().message(), HasSubstr("no name in it is allowed"));
  EXPECT_THAT(pair.node->peer(), HasSubstr("uri:spiffe://a/worker/1")) << "the log says who it was";
  EXPECT_THAT(first_word(pair).message(), HasSubstr("not among those it allows"));
}

TEST_F(TlsStreamTest, ARevokedCertificateIsRefused) {
  const IssuedCertificate bad = ca.issue(), good_one = ca.issue();
  node_config.crl_file = files.write("crl", ca.crl({bad.serial}));
  client_config = files.write("bad", bad, ca.pem());
  Pair pair = shake_hands();
  ASSERT_FALSE(pair.node_up);
  EXPECT_THAT(pair.node_up.error().message(), HasSubstr("revoked"));
  client_config = files.write("good", good_one, ca.pem());
  EXPECT_TRUE(shake_hands().node_up);
  TestCa other;
  node_config.crl_file = files.write("crl2", other.crl({}));
  EXPECT_FALSE(shake_hands().node_up) << "a list of another CA says nothing";
}

TEST_F(TlsStreamTest, AnIntermediateCaSuffices) {
  TestCa middle(ca, "middle", std::chrono::hours(5)), beside(ca, "beside", std::chrono::hours(5));
  const IssuedCertificate worker = middle.issue(), revoked = middle.issue(), stranger = beside.issue();
  node_config = files.write("node", middle.issue(node_order), middle.pem());
  client_config = files.write("worker", worker, middle.pem());
  EXPECT_TRUE(shake_hands().node_up);
  node_config.crl_file = files.write("crl", middle.crl({revoked.serial}));
  EXPECT_TRUE(shake_hands().node_up) << "the list of the intermediate CA is enough";
  client_config = files.write("revoked", revoked, middle.pem());
  Pair pair = shake_hands();
  ASSERT_FALSE(pair.node_up);
  EXPECT_THAT(pair.node_up.error().message(), HasSubstr("revoked"));
  node_config.crl_file.clear();
  client_config = files.write("stranger", stranger, middle.pem());
  pair = shake_hands();
  ASSERT_FALSE(pair.node_up) << "another CA below the same root";
  EXPECT_THAT(pair.node_up.error().message(), HasSubstr("no chain leads from it to tls-ca"));
  EXPECT_THAT(first_word(pair).message(), HasSubstr("no chain leads from this side's tls-cert to its CA file"));
}

TEST_F(TlsStreamTest, ARootWithoutItsListIsRefusedWhereListsAreChecked) {
  TestCa middle(ca, "middle", std::chrono::hours(5));
  IssuedCertificate worker = middle.issue();
  worker.cert += middle.pem();
  client_config = files.write("worker", worker, ca.pem());
  node_config.crl_file = files.write("crl", middle.crl({}));
  EXPECT_FALSE(shake_hands().node_up) << "the root could have revoked the intermediate CA";
  node_config.ca_file = files.write("both", middle.pem() + ca.pem());
  EXPECT_FALSE(shake_hands().node_up) << "and is known, though the intermediate CA is trusted itself";
  node_config.crl_file = files.write("crl", middle.crl({}) + ca.crl({}));
  EXPECT_TRUE(shake_hands().node_up);
}

TEST_F(TlsStreamTest, WhatIsNoTlsIsRefusedInWords) {
  auto [near, far] = connect();
  TlsStream node(std::move(far), TlsCredentials::read(node_config, TlsSide::kNode).value());
  const std::string hello = "GET / HTTP/1.1\r\nHost: node\r\n\r\n";
  const asio::const_buffer buffer(hello.data(), hello.size());
  ASSERT_TRUE(near->try_write(std::span(&buffer, 1)));
  const auto up = world.await(node.handshake(nullptr)).value();
  EXPECT_EQ(up.error(), TlsErrc::kNotTls);
  EXPECT_THAT(up.error().message(), HasSubstr("does not speak TLS"));
}

TEST_F(TlsStreamTest, AClosedStreamEndsItsHandshake) {
  auto [near, far] = connect();
  TlsStream node(std::move(far), TlsCredentials::read(node_config, TlsSide::kNode).value());
  std::optional<Result<void>> up;
  asio::co_spawn(world.io, node.handshake(nullptr), [&](std::exception_ptr, Result<void> result) { up = result; });
  world.poll();
  ASSERT_FALSE(up);
  node.close();
  world.poll();
  ASSERT_TRUE(up);
  EXPECT_EQ(up->error(), asio::error::operation_aborted);
}

/// Steps that a helper takes: the same handshake, and a stream that is closed meanwhile is closed after the step.
TEST_F(TlsStreamTest, HelpersCalculateAHandshake) {
  SlowCalls helpers(/*in_place=*/true);
  auto [near, far] = connect();
  TlsStream client(std::move(near), TlsCredentials::read(client_config, TlsSide::kClient).value(), "node.example");
  TlsStream node(std::move(far), TlsCredentials::read(node_config, TlsSide::kNode).value());
  std::optional<Result<void>> client_up, node_up;
  asio::co_spawn(world.io, client.handshake(nullptr), [&](std::exception_ptr, Result<void> up) { client_up = up; });
  asio::co_spawn(world.io, node.handshake(&helpers), [&](std::exception_ptr, Result<void> up) { node_up = up; });
  ASSERT_TRUE(world.run_until([&] { return client_up && node_up; }));
  EXPECT_TRUE(*client_up) << client_up->error().message();
  EXPECT_TRUE(*node_up) << node_up->error().message();
  EXPECT_THAT(node.peer_names(), ::testing::Contains("uri:spiffe://a/worker/1"));
}

TEST_F(TlsStreamTest, AStreamThatIsClosedWhileAHelperCalculatesIsClosedAfterThat) {
  SlowCalls helpers(/*in_place=*/false);
  std::promise<void> gate;
  helpers.run([&] { gate.get_future().wait(); }, world.io.get_executor(), [] {});
  auto [near, far] = connect();
  TlsStream node(std::move(far), TlsCredentials::read(node_config, TlsSide::kNode).value());
  std::optional<Result<void>> up;
  asio::co_spawn(world.io, node.handshake(&helpers), [&](std::exception_ptr, Result<void> result) { up = result; });
  world.poll();
  node.close();  // the step is in the queue
  std::byte byte;
  const asio::mutable_buffer buffer(&byte, 1);
  world.poll();
  EXPECT_EQ(near->try_read(std::span(&buffer, 1)).error(), asio::error::would_block) << "not closed yet";
  gate.set_value();
  while (!up) world.poll();
  EXPECT_EQ(up->error(), asio::error::operation_aborted);
  EXPECT_TRUE(world.run_until([&] { return near->try_read(std::span(&buffer, 1)).error() == asio::error::eof; }))
      << "the peer sees the end";
}

TEST_F(TlsStreamTest, HelpersThatHaveFinishedEndAHandshake) {
  SlowCalls helpers(/*in_place=*/false);
  helpers.finish();
  auto [near, far] = connect();
  TlsStream node(std::move(far), TlsCredentials::read(node_config, TlsSide::kNode).value());
  EXPECT_EQ(world.await(node.handshake(&helpers)).value().error(), asio::error::operation_aborted);
}

asio::awaitable<void> write_all(Stream& stream, std::span<const std::byte> bytes, std::mt19937_64& random) {
  while (!bytes.empty()) {
    std::vector<asio::const_buffer> pieces;  // of all sizes, small ones in between
    std::size_t offset = 0;
    for (int i = 0; i < 8 && offset < bytes.size(); ++i) {
      const std::size_t size =
          std::min<std::size_t>(bytes.size() - offset, i % 2 == 0 ? random() % 200 : random() % 90'000);
      pieces.emplace_back(bytes.data() + offset, size);
      offset += size;
    }
    const auto count = stream.try_write(pieces);
    if (count) {
      bytes = bytes.subspan(*count);
    } else {
      EXPECT_EQ(count.error(), asio::error::would_block);
      const auto ready = co_await stream.wait_writable();
      if (!ready) co_return;
    }
  }
  while (stream.held_bytes() > 0) {
    const auto flushed = stream.try_flush();
    if (flushed) break;
    const auto ready = co_await stream.wait_writable();
    if (!ready) co_return;
  }
}

/// Until the end of the stream, in pieces of all sizes, with a wait after each short read, as FrameReader does, and
/// after some others.
asio::awaitable<void> read_all(Stream& stream, std::vector<std::byte>& to, error_code& end, std::mt19937_64& random) {
  while (true) {
    std::vector<std::byte> first(1 + random() % 5000), second(1 + random() % 200'000);
    const std::array<asio::mutable_buffer, 2> buffers{asio::buffer(first), asio::buffer(second)};
    const auto count = stream.try_read(buffers);
    if (count) {
      const std::size_t head = std::min(*count, first.size());
      to.insert(to.end(), first.begin(), first.begin() + static_cast<std::ptrdiff_t>(head));
      to.insert(to.end(), second.begin(), second.begin() + static_cast<std::ptrdiff_t>(*count - head));
      // There may be more: a caller may try again at once, or wait, which then is no wait.
      if (*count == first.size() + second.size() && random() % 3 != 0) continue;
    } else if (count.error() != asio::error::would_block) {
      end = count.error();
      co_return;
    }
    const auto ready = co_await stream.wait_readable();
    if (!ready) {
      end = ready.error();
      co_return;
    }
  }
}

std::vector<std::byte> random_bytes(std::size_t count, std::mt19937_64& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

TEST_F(TlsStreamTest, EveryByteArrivesBothWaysWhateverTheSocketTakes) {
  for (std::uint64_t seed = seed_or(1), last = seed + 30; seed < last; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    world.network.set_faults({.chunk_bytes_max = 1 + random() % 100'000,
                              .capacity_bytes = 1 + random() % 300'000,
                              .full_probability = random() % 2 == 0 ? 0.0 : 0.2,
                              .stall_probability = 0.01});
    Pair pair = shake_hands();
    ASSERT_TRUE(pair.client_up && pair.node_up);
    const auto there = random_bytes(random() % 1'500'000, random), back = random_bytes(random() % 1'500'000, random);
    std::vector<std::byte> at_node, at_client;
    error_code node_end, client_end;
    asio::co_spawn(world.io, write_all(*pair.client, there, random), asio::detached);
    asio::co_spawn(world.io, write_all(*pair.node, back, random), asio::detached);
    asio::co_spawn(world.io, read_all(*pair.node, at_node, node_end, random), asio::detached);
    asio::co_spawn(world.io, read_all(*pair.client, at_client, client_end, random), asio::detached);
    ASSERT_TRUE(world.run_until([&] { return at_node.size() == there.size() && at_client.size() == back.size(); }));
    EXPECT_TRUE(at_node == there);
    EXPECT_TRUE(at_client == back);
    EXPECT_FALSE(node_end || client_end);
    pair.client->close();
    ASSERT_TRUE(world.run_until([&] { return bool(node_end) && bool(client_end); }));
    EXPECT_EQ(node_end, asio::error::eof);
  }
}

TEST_F(TlsStreamTest, AChangedByteEndsTheStreamAndNoneIsDelivered) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    world.network.set_faults({});
    Pair pair = shake_hands();
    ASSERT_TRUE(pair.client_up && pair.node_up);
    world.network.set_faults({.flip_probability = 0.3});
    const auto there = random_bytes(2'000'000, random);
    std::vector<std::byte> at_node;
    error_code end;
    asio::co_spawn(world.io, write_all(*pair.client, there, random), asio::detached);
    asio::co_spawn(world.io, read_all(*pair.node, at_node, end, random), asio::detached);
    world.run_until([&] { return bool(end) || at_node.size() == there.size(); });
    ASSERT_LE(at_node.size(), there.size());
    EXPECT_TRUE(std::equal(at_node.begin(), at_node.end(), there.begin())) << "of what was changed nothing came";
    pair.client->close();
    pair.node->close();
    world.poll();
  }
}

TEST_F(TlsStreamTest, AWriterSendsWhatTheStreamHoldsBack) {
  world.network.set_faults({.chunk_bytes_max = 3000, .capacity_bytes = 3000});
  Pair pair = shake_hands();
  ASSERT_TRUE(pair.client_up && pair.node_up);
  FrameWriter writer(*pair.node, world.io.get_executor());
  std::mt19937_64 random(7);
  const auto block = random_bytes(100'000, random);
  const std::span<const std::byte> payload = block;
  bool sent = false;
  writer.send({}, {}, std::span(&payload, 1), [&](bool good) { sent = good; });
  writer.flush();
  EXPECT_TRUE(sent) << "the stream took it whole";
  EXPECT_GT(pair.node->held_bytes(), 90'000u);
  EXPECT_EQ(writer.queued_bytes(), pair.node->held_bytes()) << "not sent yet, and so it counts";
  asio::co_spawn(world.io, writer.run(), asio::detached);
  std::vector<std::byte> got;
  error_code end;
  asio::co_spawn(world.io, read_all(*pair.client, got, end, random), asio::detached);
  ASSERT_TRUE(world.run_until([&] { return got.size() == kFrameHeaderBytes + block.size(); }));
  EXPECT_TRUE(std::equal(block.begin(), block.end(), got.begin() + kFrameHeaderBytes));
  EXPECT_TRUE(world.run_until([&] { return writer.queued_bytes() == 0; }));
  writer.close();
  pair.node->close();
  pair.client->close();
  world.poll();
}

// -- endpoints

TEST_F(TlsStreamTest, AClientOfTlsEndpointsConnectsToNoPlainOne) {
  const auto source = TlsSource::open(client_config, TlsSide::kClient).value();
  const auto strict = make_tls_network(world.network, source, {.allows_plain = false});
  const Endpoint tcp{Endpoint::Scheme::kTcp, "127.0.0.1", "1"};
  EXPECT_EQ(world.await(strict->connect(tcp, world.io.get_executor()))->error(), TlsErrc::kPlainRefused);
  const auto lax = make_tls_network(world.network, source);
  EXPECT_EQ(world.await(lax->connect(tcp, world.io.get_executor()))->error(), Errc::kUnsupported) << "the simulation's";
}

/// An entry in etcd may name any host: this was an assertion once.
TEST_F(TlsStreamTest, ANameThatNoCertificateCanHaveIsTheHandshakesError) {
  const auto credentials = TlsCredentials::read(client_config, TlsSide::kClient).value();
  for (const std::string& name : {std::string(256, '1'), std::string("a\0b", 3)}) {
    TlsStream stream(std::make_unique<MemoryStream>(), credentials, name);
    EXPECT_EQ(world.await(stream.handshake(nullptr))->error(), TlsErrc::kBadName);
  }
  TlsConfig config = client_config;
  config.server_name = std::string(254, 'a');
  EXPECT_FALSE(check_tls_config(config).empty());
  config.server_name = "a\nb";
  EXPECT_FALSE(check_tls_config(config).empty());
}

}  // namespace
}  // namespace kv
