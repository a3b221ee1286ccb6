// The daemon and the tools with TLS: the project's own programs, and openssl and curl as anybody has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/e2e/node_process.h"
#include "tests/transport/tls_certificates.h"

namespace kv::e2e {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class E2eTlsTest : public testing::Test {
 protected:
  TestCa ca;
  CertificateFiles files;
  TlsConfig node_files = files.write("node", ca.issue(), ca.pem());
  TlsConfig worker = files.write("worker", ca.issue({.names = {"URI:spiffe://test/worker/1"}}), ca.pem());

  std::vector<std::string> node_options(std::vector<std::string> more = {}) const {
    std::vector<std::string> options = {"--capacity=64MiB",
                                        "--threads=2",
                                        "--listen=tls://127.0.0.1:0",
                                        "--tls-cert=" + node_files.cert_file,
                                        "--tls-key=" + node_files.key_file,
                                        "--tls-ca=" + node_files.ca_file};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }
  static std::vector<std::string> environment(const TlsConfig& tls, const std::string& endpoint) {
    return {"KVSTORE_ENDPOINTS=" + endpoint, "KVSTORE_TLS_CERT=" + tls.cert_file, "KVSTORE_TLS_KEY=" + tls.key_file,
            "KVSTORE_TLS_CA=" + tls.ca_file};
  }
  static Finished ctl(std::vector<std::string> arguments, const std::vector<std::string>& with) {
    arguments.insert(arguments.begin(), ctl_program());
    return run_program(arguments, with);
  }
  static std::string port_of(const std::string& address) { return address.substr(address.rfind(':') + 1); }
  /// Through a shell, for a program that reads what it should say from its input.
  static Finished shell(const std::string& line) { return run_program({"/bin/sh", "-c", line}); }
  static bool has(const std::string& program) { return shell("command -v " + program).status == 0; }
};

TEST_F(E2eTlsTest, BlocksTravelBothWaysAndEveryByteIsRight) {
  NodeProcess node(node_options());
  for (const std::string op : {"put", "get", "match"}) {
    const Finished run =
        run_program({bench_program(), "run", "--op", op, "--block-bytes=65536", "--batch=16", "--blocks=256", "--check",
                     "--memory=8MiB", "--duration=300ms", "--warm-up=0", "--json"},
                    environment(worker, node.tls()));
    ASSERT_EQ(run.status, 0) << op << run.err;
    const json document = json::parse(run.out);
    EXPECT_EQ(document["transport"], "tls");
  }
  const Finished submit = run_program({bench_program(), "submit", "--duration=300ms", "--block-bytes=65536", "--json"},
                                      environment(worker, node.tls()));
  EXPECT_EQ(submit.status, 0) << "the C library: " << submit.err;
  EXPECT_GT(node.metric("kvstore_tls_handshakes_total"), 0);
  EXPECT_GT(node.metric("kvstore_bytes_out_total{path=\"inline\"}"), 0);
  node.signal(SIGTERM);
  EXPECT_EQ(node.wait(), 0);
}

TEST_F(E2eTlsTest, ToolsSayWhyAHandshakeFails) {
  const NodeProcess node(node_options({"--tls-allowed-name=spiffe://test/worker/*"}));
  const auto ping = [&](const TlsConfig& tls) {
    return ctl({"ping", "--count=1", "--deadline=2s"}, environment(tls, node.tls()));
  };
  EXPECT_EQ(ping(worker).status, 0) << ping(worker).err;
  EXPECT_THAT(ctl({"status"}, environment(worker, node.tls())).out, HasSubstr("64"));
  TestCa other;
  const auto expect_refused = [&](const TlsConfig& tls, const std::string& words) {
    const Finished finished = ping(tls);
    EXPECT_EQ(finished.status, 1);
    EXPECT_THAT(finished.out + finished.err, HasSubstr(words));
  };
  expect_refused(files.write("stranger", other.issue(), ca.pem()), "the peer refused this side");
  expect_refused(files.write("router", ca.issue({.names = {"URI:spiffe://test/router"}}), ca.pem()),
                 "not among those it allows");
  TlsConfig sceptic = files.write("sceptic", ca.issue({.names = {"URI:spiffe://test/worker/2"}}), other.pem());
  expect_refused(sceptic, "no chain leads from it to tls-ca");
  sceptic.ca_file = worker.ca_file;
  EXPECT_EQ(ping(sceptic).status, 0);
  const Finished named = ctl({"ping", "--count=1", "--tls-server-name=other.example"}, environment(worker, node.tls()));
  EXPECT_EQ(named.status, 1);
  EXPECT_THAT(named.out + named.err, HasSubstr("its names do not have the one that was asked for"));
  const Finished without = run_program({ctl_program(), "ping", "--endpoint", node.tls()});
  EXPECT_NE(without.status, 0);
  EXPECT_THAT(without.out + without.err, HasSubstr("needs tls-cert, tls-key and tls-ca"));
  EXPECT_TRUE(node.logs("handshake with tcp:127.0.0.1:")) << node.log();
  EXPECT_TRUE(node.logs("uri:spiffe://test/router")) << node.log();
}

TEST_F(E2eTlsTest, DoctorKnowsWhenCertificatesEnd) {
  node_files = files.write("node", ca.issue({.ends = std::chrono::hours(24 * 5)}), ca.pem());
  const NodeProcess node(node_options({"--admin=https://127.0.0.1:0"}));
  const Finished doctor = ctl({"doctor", "--json", "--admin=" + node.admin()}, environment(worker, node.tls()));
  SCOPED_TRACE(doctor.out + doctor.err);
  std::map<std::string, json> findings;
  const json document = json::parse(doctor.out);
  for (const json& finding : document["findings"]) findings[finding["check"]] = finding;
  const json& certificate = findings["certificate of " + node.tls()];
  EXPECT_EQ(certificate["verdict"], "warning");
  EXPECT_THAT(std::string(certificate["found"]), HasSubstr("ends in 5.0 days"));
  EXPECT_EQ(findings["CA of " + node.tls()]["verdict"], "warning") << "two days";
  EXPECT_EQ(findings["admin /readyz"]["verdict"], "ok") << findings["admin /readyz"];
}

/// As cert-manager, Vault and step-ca write them: without the root, and the intermediate certificate may end first.
TEST_F(E2eTlsTest, FilesWithoutTheRootWorkAndTheirEndIsTold) {
  TestCa middle(ca, "middle", std::chrono::hours(24 * 6));
  IssuedCertificate own = middle.issue({.ends = std::chrono::hours(24 * 90)});
  own.cert += middle.pem();
  node_files = files.write("node", own, middle.pem());
  worker = files.write("worker", middle.issue(), middle.pem());
  const NodeProcess node(node_options({"--admin=https://127.0.0.1:0"}));
  EXPECT_EQ(ctl({"ping", "--count=1"}, environment(worker, node.tls())).status, 0);
  const Finished doctor = ctl({"doctor", "--json", "--admin=" + node.admin()}, environment(worker, node.tls()));
  SCOPED_TRACE(doctor.out + doctor.err);
  std::map<std::string, json> findings;
  const json document = json::parse(doctor.out);
  for (const json& finding : document["findings"]) findings[finding["check"]] = finding;
  EXPECT_THAT(std::string(findings["CA of " + node.tls()]["found"]), HasSubstr("ends in 6.0 days"));
  EXPECT_THAT(std::string(findings["certificate of " + node.tls()]["found"]), HasSubstr("ends in 90.0 days"));

  TestCa ended(ca, "ended", std::chrono::hours(-1));
  own = ended.issue();
  own.cert += ended.pem();
  node_files = files.write("node", own, ca.pem());
  std::vector<std::string> check = node_options({"--check-config"});
  check.insert(check.begin(), node_program());
  const Finished refused = run_program(check);
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.out + refused.err, HasSubstr("certificate 2 of the chain expired at"));
}

TEST_F(E2eTlsTest, PlainTextBeyondLoopbackIsToldAtEveryPlace) {
  const NodeProcess node({"--capacity=16MiB", "--listen=tcp://0.0.0.0:0", "--plaintext-on-trusted-network=true"});
  EXPECT_TRUE(node.logs("plaintext-on-trusted-network: 1 listeners beyond loopback")) << node.log();
  EXPECT_EQ(node.metric("kvstore_plaintext_network_listeners"), 1);
  const Finished doctor = ctl({"doctor", "--admin=none"}, {"KVSTORE_ENDPOINTS=" + node.tcp()});
  EXPECT_EQ(doctor.status, 0) << "a warning";
  EXPECT_THAT(doctor.out, HasSubstr("neither encrypt nor authenticate"));
  const Finished refused = run_program({node_program(), "--listen=tcp://0.0.0.0:0", "--check-config"});
  EXPECT_EQ(refused.status, 2);
  const NodeProcess plain({"--capacity=16MiB"});
  EXPECT_EQ(plain.metric("kvstore_plaintext_network_listeners"), -1) << "nothing to tell";
  EXPECT_THAT(plain.log(), Not(HasSubstr("plaintext")));
}

/// New certificates of the same CA, again and again, by signal and by the files alone, while blocks travel: no call
/// fails, no session ends, and new connections see the new ones.
TEST_F(E2eTlsTest, CertificatesAreReplacedUnderLoad) {
  const NodeProcess node(node_options());
  const std::string log = files.path("bench.log");
  const auto with = environment(worker, node.tls());
  std::vector<std::string> load = {"/usr/bin/env"};
  load.insert(load.end(), with.begin(), with.end());
  for (const char* word : {"run", "--op=get", "--connections=2", "--block-bytes=65536", "--batch=8", "--blocks=128",
                           "--check", "--memory=4MiB", "--duration=4s", "--warm-up=0", "--json"})
    load.emplace_back(word);
  load.insert(load.begin() + 1 + static_cast<std::ptrdiff_t>(with.size()), bench_program());
  const pid_t bench = start_child(load, log);
  // Two connections for blocks. The client that asks for counters may be done before its second one is open.
  ASSERT_TRUE(eventually([&] {
    return node.metric("kvstore_bytes_out_total{path=\"inline\"}") > 0 && node.metric("kvstore_sessions") >= 3;
  })) << node.metric("kvstore_sessions");
  const double opened = node.metric("kvstore_sessions_opened_total");
  for (int round = 1; round <= 5; ++round) {
    node_files = files.write("node", ca.issue(), ca.pem());
    if (round % 2 == 1) node.signal(SIGHUP);
    ASSERT_TRUE(eventually([&] { return node.metric("kvstore_tls_reloads_total") >= round; })) << node.log();
    EXPECT_EQ(ctl({"ping", "--count=1"}, with).status, 0);
  }
  files.write("node.pem", "nonsense");
  node.signal(SIGHUP);
  ASSERT_TRUE(eventually([&] { return node.metric("kvstore_tls_reload_failed") == 1; }));
  EXPECT_TRUE(node.logs("tls-cert: " + node_files.cert_file + ": holds no certificate in PEM form")) << node.log();
  EXPECT_EQ(ctl({"ping", "--count=1"}, with).status, 0);
  EXPECT_EQ(wait_for_child(bench), 0);
  std::ifstream file(log);
  const json result = json::parse(file, nullptr, false);
  ASSERT_FALSE(result.is_discarded());
  EXPECT_EQ(result["missing_blocks"], 0) << result;
  EXPECT_EQ(result["wrong_bytes"], 0) << result;
  EXPECT_TRUE(result["reasons"].empty()) << result;
  EXPECT_LE(node.metric("kvstore_sessions_opened_total"), opened + 6 * 2 + 3)
      << "two for each ping, three for the benchmark's look at its end: no client had to connect again";
}

TEST_F(E2eTlsTest, OpensslSeesTls13AndNothingElse) {
  if (!has("openssl")) GTEST_SKIP() << "no openssl program (package openssl)";
  const NodeProcess node(node_options({"--admin=https://127.0.0.1:0"}));
  for (const std::string& port : {port_of(node.tls()), port_of(node.admin())}) {
    const std::string connect = "timeout 20 openssl s_client -connect 127.0.0.1:" + port + " -CAfile " +
                                worker.ca_file + " -verify_return_error -verify_ip 127.0.0.1 ";
    const std::string cert = "-cert " + worker.cert_file + " -key " + worker.key_file;
    const Finished good = shell("(sleep 1; echo Q) | " + connect + cert);
    EXPECT_THAT(good.out, AllOf(HasSubstr("TLSv1.3"), HasSubstr("Verify return code: 0 (ok)"))) << good.err;
    const Finished nobody = shell("(sleep 2; echo Q) | " + connect);
    EXPECT_THAT(nobody.out + nobody.err, HasSubstr("certificate required"));
    for (const char* version : {"-tls1_2", "-tls1_1"}) {
      const Finished old = shell("echo Q | " + connect + cert + " " + version);
      EXPECT_NE(old.status, 0) << version;
    }
    const Finished wrong = shell("echo Q | timeout 20 openssl s_client -connect 127.0.0.1:" + port + " -CAfile " +
                                 worker.ca_file + " -verify_return_error -verify_hostname other.example " + cert);
    EXPECT_NE(wrong.status, 0);
  }
}

TEST_F(E2eTlsTest, CurlReadsMetricsWithACertificateOnly) {
  if (!has("curl")) GTEST_SKIP() << "no curl program (package curl)";
  const NodeProcess node(node_options({"--admin=https://127.0.0.1:0"}));
  const std::string curl = "curl -sS --max-time 20 --cacert " + worker.ca_file + " ";
  const std::string cert = "--cert " + worker.cert_file + " --key " + worker.key_file + " ";
  const Finished good = shell(curl + cert + node.admin() + "/metrics");
  EXPECT_EQ(good.status, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("kvstore_tls_cert_expiry_timestamp_seconds"));
  const Finished nobody = shell(curl + node.admin() + "/metrics");
  EXPECT_NE(nobody.status, 0);
  EXPECT_THAT(nobody.out, Not(HasSubstr("kvstore_")));
  const Finished plain = shell("curl -sS --max-time 20 http://127.0.0.1:" + port_of(node.admin()) + "/metrics");
  EXPECT_THAT(plain.out, Not(HasSubstr("kvstore_")));
}

}  // namespace
}  // namespace kv::e2e
