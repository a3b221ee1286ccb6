// A cluster of real nodes, of which one, or somebody who may write to etcd, or a person with the certificates' files,
// says what is not true. No node ends of it, and what works finds its blocks again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <fstream>

#include "store/node/membership/etcd.h"
#include "tests/e2e/etcd_process.h"
#include "tests/e2e/test_client.h"
#include "tests/transport/tls_certificates.h"

namespace kv::attack {
namespace {

using e2e::eventually;
using e2e::NodeProcess;
using testing::HasSubstr;

constexpr std::size_t kBlockBytes = 4096, kBlocks = 200;

class HostileClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = e2e::EtcdProcesses::lacks(); !why.empty()) GTEST_SKIP() << why;
    etcd = std::make_unique<e2e::EtcdProcesses>();
  }
  void TearDown() override {
    for (const auto& node : nodes) {
      if (node == nullptr) continue;
      node->signal(SIGTERM);
      EXPECT_EQ(node->wait(), 0) << node->log();
      EXPECT_THAT(node->log(), testing::Not(HasSubstr("assertion failed")));
    }
  }
  std::string socket(std::size_t number) const { return directory.path() + "/n" + std::to_string(number); }
  void start(std::size_t number, const std::vector<std::string>& more = {}) {
    std::vector<std::string> options = etcd->node_options();
    for (const char* each : {"--etcd-lease-seconds=2", "--capacity=64MiB", "--threads=1", "--cluster-extent-blocks=16",
                             "--exchange-seconds=1", "--hand-over-seconds=5"})
      options.emplace_back(each);
    options.push_back("--node-id=n" + std::to_string(number));
    options.insert(options.end(), more.begin(), more.end());
    if (nodes.size() <= number) nodes.resize(number + 1);
    nodes[number] = std::make_unique<NodeProcess>(options, socket(number));
  }
  void stop(std::size_t number) {
    nodes[number]->signal(SIGTERM);
    EXPECT_EQ(nodes[number]->wait(), 0) << nodes[number]->log();
    nodes[number].reset();
  }
  bool know(const char* metric, std::size_t count) const {
    return std::ranges::all_of(
        nodes, [&](const auto& node) { return node == nullptr || node->metric(metric) == static_cast<double>(count); });
  }
  void wait_for_serving(std::size_t count) {
    EXPECT_TRUE(eventually([&] { return know("kvstore_cluster_members_serving", count); }));
  }
  /// Whoever may write to etcd writes this.
  void write_to_etcd(const std::string& key, const std::string& value) {
    asio::io_context context;
    EtcdKeyStore keys(context.get_executor(), {.endpoints = {etcd->url()}});
    bool is_put = false;
    asio::co_spawn(context, keys.put_new(key, value),
                   [&](std::exception_ptr, const Result<bool, Failure>& put) { is_put = put && *put; });
    context.run();
    ASSERT_TRUE(is_put) << key;
  }
  void put_and_find(e2e::TestClient& client, const std::string& when) {
    const auto chain = e2e::make_chain(seed++, kBlocks);
    EXPECT_TRUE(eventually([&] {
      const PutResult put = client.put(chain);
      const GetResult got = client.get(chain);
      EXPECT_EQ(client.wrong_bytes(chain, got.block_count), 0u) << when;
      return put.refused == 0 && got.block_count == kBlocks;
    })) << when;
  }
  static std::string member(const std::string& id, const std::string& endpoint, const std::string& state = "serving") {
    return R"({"id":")" + id + R"(","instance":")" + std::string(32, 'a') + R"(","endpoints":[")" + endpoint +
           R"("],"weight":1,"state":")" + state + R"("})";
  }

  e2e::TempDir directory;
  std::unique_ptr<e2e::EtcdProcesses> etcd;
  std::vector<std::unique_ptr<NodeProcess>> nodes;
  std::uint64_t seed = 1;
};

/// Whoever makes a client of the map's nodes must neither throw nor assert for what one of them says.
TEST_F(HostileClusterTest, NoMemberOfTheListEndsANodeByWhatItAdvertises) {
  for (std::size_t i = 0; i < 2; ++i) start(i);
  wait_for_serving(2);
  write_to_etcd("/kvstore/nodes/tls", member("tls", "tls://127.0.0.1:1"));
  write_to_etcd("/kvstore/nodes/long", member("long", "tls://" + std::string(256, '1') + ":1"));
  write_to_etcd("/kvstore/nodes/almost", member("almost", "tls://" + std::string(253, '1') + ":1", "draining"));
  write_to_etcd("/kvstore/nodes/socket", member("socket", "unix:///nowhere", "draining"));
  write_to_etcd("/kvstore/nodes/none", "no json");
  write_to_etcd("/kvstore/nodes/bytes", "{\"id\":\"\xff\xfe\"}");
  EXPECT_TRUE(eventually([&] { return know("kvstore_cluster_members", 5); }));
  EXPECT_TRUE(eventually([&] { return nodes[0]->metric("kvstore_cluster_bad_entries_total") > 0; }));
  start(2);  // the others hand over to it, and to those who are not there
  EXPECT_TRUE(eventually([&] { return know("kvstore_cluster_members", 6); }));
  EXPECT_TRUE(eventually([&] { return nodes[2]->metric("kvstore_cluster_members_serving") >= 4; })) << nodes[2]->log();
  for (const auto& node : nodes) {
    EXPECT_EQ(node->http_get("/healthz").status, 200);
    EXPECT_EQ(node->metric("kvstore_thread_failures_total{thread=\"mover\"}"), 0) << node->log();
    EXPECT_EQ(node->metric("kvstore_thread_failures_total{thread=\"exchange\"}"), 0) << node->log();
  }
}

TEST_F(HostileClusterTest, APasswordThatIsNoTextIsAFailureThatIsTriedAgain) {
  const std::string file = directory.path() + "/password";
  std::ofstream(file) << "\xff\xfe\xfd\n";
  start(0, {"--etcd-user=root", "--etcd-password-file=" + file});
  EXPECT_TRUE(eventually([&] { return nodes[0]->metric("kvstore_cluster_etcd_failures_total") >= 2; }));
  EXPECT_TRUE(nodes[0]->logs("is not UTF-8")) << nodes[0]->log();
}

class HostileTlsClusterTest : public HostileClusterTest {
 protected:
  TestCa ca, other_ca;
  CertificateFiles files;
  TlsConfig worker = files.write("worker", ca.issue({.names = {"URI:spiffe://test/worker"}}), ca.pem());
  TlsConfig own = files.write("node", ca.issue(), ca.pem());

  std::vector<std::string> with_tls() const {
    return {"--listen=tls://127.0.0.1:0", "--tls-cert=" + own.cert_file, "--tls-key=" + own.key_file,
            "--tls-ca=" + own.ca_file};
  }
  /// And nothing else, to other nodes. Clients of this machine have its Unix socket still.
  std::vector<std::string> with_tls_alone(std::size_t number) const {
    const std::string endpoint = "tls://127.0.0.1:" + e2e::free_ports(1)[0];
    std::vector<std::string> options = with_tls();
    options[0] = "--listen=" + endpoint;
    options.insert(options.end(), {"--advertise=" + endpoint, "--advertise=unix://" + socket(number)});
    return options;
  }
  ClientConfig client_config() const {
    ClientConfig config;
    config.tls = worker;
    return config;
  }
};

TEST_F(HostileTlsClusterTest, TlsIsTurnedOnNodeByNodeUnderLoad) {
  for (std::size_t i = 0; i < 3; ++i) start(i);
  wait_for_serving(3);
  ClientConfig config = client_config();
  for (std::size_t i = 0; i < 2; ++i) config.nodes.push_back({.endpoint = "unix://" + socket(i), .name = ""});
  e2e::TestClient client("unix://" + socket(2), Transport::kUnix, kBlockBytes, kBlocks, config);
  put_and_find(client, "at first");
  for (std::size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    stop(i);
    put_and_find(client, "while one is away");
    start(i, with_tls_alone(i));
    // A plain node does not reach one that speaks TLS alone; it goes on, and so does whoever waits for it.
    EXPECT_TRUE(eventually([&] { return nodes[i]->http_get("/readyz").status == 200; })) << nodes[i]->log();
    put_and_find(client, "when it is back");
  }
  wait_for_serving(3);
  put_and_find(client, "at last");
}

TEST_F(HostileTlsClusterTest, CertificatesThatAreRotatedBadlyChangeNothing) {
  for (std::size_t i = 0; i < 3; ++i) start(i, with_tls());
  wait_for_serving(3);
  e2e::TestClient client(nodes[0]->tls(), Transport::kTls, kBlockBytes, kBlocks, client_config());
  put_and_find(client, "at first");
  const std::vector<std::pair<std::string, IssuedCertificate>> bad = {
      {"a certificate without its key", {ca.issue().cert, ca.issue().key, 0}},
      {"one that has ended", ca.issue({.begins = std::chrono::hours(-48), .ends = std::chrono::hours(-24)})},
      {"half a file", {ca.issue().cert.substr(0, 200), ca.issue().key, 0}},
      {"nothing", {"", "", 0}}};
  for (const auto& [what, issued] : bad) {
    SCOPED_TRACE(what);
    files.write("node", issued, ca.pem());
    EXPECT_TRUE(eventually([&] { return nodes[0]->metric("kvstore_tls_reload_failed") == 1; }));
    // The map changes: all make their clients of one another anew, from the certificates that are in use.
    stop(2);
    wait_for_serving(2);
    put_and_find(client, "with two");
    files.write("node", ca.issue(), ca.pem());
    start(2, with_tls());
    wait_for_serving(3);
    put_and_find(client, "with three");
    for (const auto& node : nodes) EXPECT_EQ(node->metric("kvstore_thread_failures_total{thread=\"mover\"}"), 0);
  }
}

}  // namespace
}  // namespace kv::attack
