#include "store/node/options/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/transport/tls_certificates.h"

namespace kv {
namespace {

using testing::HasSubstr;

class ConfigTest : public testing::Test {
 protected:
  ~ConfigTest() override {
    for (const auto& name : environment_) ::unsetenv(name.c_str());
    if (!file_.empty()) std::filesystem::remove(file_);
  }
  void set_environment(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    environment_.push_back(name);
  }
  std::string file_with(const std::string& text) {
    file_ = "/tmp/kvstore-config-test-" + std::to_string(::getpid()) + ".toml";
    std::ofstream(file_) << text;
    return file_;
  }
  std::optional<NodeOptions> parse(std::vector<std::string> arguments) {
    std::vector<const char*> argv = {"kvstore-node"};
    for (const auto& each : arguments) argv.push_back(each.c_str());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    exit_code = -1;
    auto options = parse_options(static_cast<int>(argv.size()), argv.data(), &exit_code);
    out = testing::internal::GetCapturedStdout();
    error = testing::internal::GetCapturedStderr();
    return options;
  }
  NodeOptions good(std::vector<std::string> arguments) {
    const auto options = parse(std::move(arguments));
    if (!options) throw std::runtime_error(error);
    EXPECT_EQ(error, "");
    return *options;
  }
  void expect_refused(std::vector<std::string> arguments, std::vector<std::string> words) {
    EXPECT_FALSE(parse(arguments)) << arguments[0];
    EXPECT_NE(exit_code, 0);
    EXPECT_NE(exit_code, -1);
    for (const auto& word : words) EXPECT_THAT(error, HasSubstr(word)) << arguments[0];
  }

  int exit_code = -1;
  std::string out, error;

 private:
  std::vector<std::string> environment_;
  std::string file_;
};

TEST_F(ConfigTest, WithoutOptionsTheNodeIsOnLoopbackWithFourGiB) {
  const NodeOptions options = good({});
  ASSERT_EQ(options.listen.size(), 1u);
  EXPECT_EQ(options.listen[0].to_string(), "tcp://127.0.0.1:7400");
  EXPECT_EQ(options.admin_host, "127.0.0.1");
  EXPECT_EQ(options.admin_port, 7401);
  EXPECT_EQ(options.store.arena.capacity_bytes, 4ull << 30);
  EXPECT_TRUE(options.store.arena.huge_pages);
  EXPECT_GE(options.threads, 1u);
  EXPECT_FALSE(options.node_id.empty());
  EXPECT_FALSE(options.check_only);
  EXPECT_FALSE(options.autotune.is_asked);
  EXPECT_EQ(options.numa_nodes, "auto");
  EXPECT_EQ(options.store.lease_duration, 10s);
  EXPECT_EQ(options.session.hello_timeout, 10s);
}

TEST_F(ConfigTest, FlagsSetWhatTheySay) {
  const NodeOptions options = good({"--node-id",
                                    "n7",
                                    "--listen",
                                    "unix:///tmp/a.sock",
                                    "--listen",
                                    "tcp://[::1]:0",
                                    "--admin",
                                    "none",
                                    "--capacity",
                                    "64MiB",
                                    "--threads",
                                    "3",
                                    "--busy-poll-us",
                                    "50",
                                    "--session-count-max",
                                    "77",
                                    "--chain-blocks-max",
                                    "100",
                                    "--lease-seconds",
                                    "2.5",
                                    "--retained-fraction-max",
                                    "0.25",
                                    "--leased-fraction-max",
                                    "0.75",
                                    "--requests-max",
                                    "9",
                                    "--region-bytes-max",
                                    "1GiB",
                                    "--region-bytes-max-node",
                                    "3GiB",
                                    "--queued-bytes-max",
                                    "1MiB",
                                    "--hello-seconds",
                                    "1",
                                    "--frame-seconds",
                                    "2",
                                    "--write-seconds",
                                    "3",
                                    "--put-seconds",
                                    "4",
                                    "--read-rate-min",
                                    "2MiB",
                                    "--get-seconds",
                                    "7",
                                    "--drain-seconds",
                                    "0.5",
                                    "--log-level",
                                    "debug",
                                    "--no-huge-pages",
                                    "true",
                                    "--check-config"});
  EXPECT_EQ(options.node_id, "n7");
  ASSERT_EQ(options.listen.size(), 2u);
  EXPECT_EQ(options.listen[0].to_string(), "unix:///tmp/a.sock");
  EXPECT_EQ(options.listen[1].to_string(), "tcp://[::1]:0");
  EXPECT_TRUE(options.admin_host.empty());
  EXPECT_EQ(options.store.arena.capacity_bytes, 64u << 20);
  EXPECT_FALSE(options.store.arena.huge_pages);
  EXPECT_EQ(options.threads, 3u);
  EXPECT_EQ(options.busy_poll.count(), 50);
  EXPECT_EQ(options.sessions.count_max, 77u);
  EXPECT_EQ(options.store.chain_blocks_max, 100u);
  EXPECT_EQ(options.store.lease_duration, 2500ms);
  EXPECT_EQ(options.store.retained_fraction_max, 0.25);
  EXPECT_EQ(options.store.leased_fraction_max, 0.75);
  EXPECT_EQ(options.session.requests_max, 9u);
  EXPECT_EQ(options.session.region_bytes_max, 1u << 30);
  EXPECT_EQ(options.region_bytes_max_node, 3ull << 30);
  EXPECT_EQ(options.session.read_rate_min, 2u << 20);
  EXPECT_EQ(options.session.get_timeout, 7s);
  EXPECT_EQ(options.session.queued_bytes_max, 1u << 20);
  EXPECT_EQ(options.session.hello_timeout, 1s);
  EXPECT_EQ(options.session.frame_timeout, 2s);
  EXPECT_EQ(options.session.write_timeout, 3s);
  EXPECT_EQ(options.session.put_timeout, 4s);
  EXPECT_EQ(options.drain_timeout, 500ms);
  EXPECT_EQ(options.log_level, "debug");
  EXPECT_TRUE(options.check_only);
}

TEST_F(ConfigTest, AutotuneHasFormsAndNodesOfMemoryAreThoseOfTheMachine) {
  const NodeOptions json = good({"--autotune", "--json"});
  EXPECT_TRUE(json.autotune.is_asked && json.autotune.as_json && !json.autotune.as_toml);
  expect_refused({"--toml"}, {"--autotune"});
  EXPECT_EQ(good({"--numa-nodes", "off"}).numa_nodes, "off");
  expect_refused({"--numa-nodes", "8000"}, {"numa-nodes", "8000", "not there"});
}

TEST_F(ConfigTest, TheCurveIsToldUnlessItIsTurnedOff) {
  EXPECT_TRUE(good({}).store.curve.is_on);
  EXPECT_FALSE(good({"--curve=false"}).store.curve.is_on);
}

TEST_F(ConfigTest, DiskOptionsReachTheTier) {
  const NodeOptions options =
      good({"--disk-path=/tmp/a", "--disk-path=/tmp/b", "--disk-capacity=2GiB", "--spill-policy=write-through",
            "--spill-reserve=0.25", "--spill-put-wait-seconds=0.5", "--spill-skip-unused=true",
            "--disk-write-rate=3MiB", "--disk-scrub-rate=4MiB", "--disk-drain-rate=5MiB", "--disk-promote-reads=255",
            "--disk-read-threads=9", "--disk-retry-seconds=1.5", "--disk-hang-seconds=3", "--disk-drop-wait-seconds=0",
            "--disk-stop-seconds=7", "--spill-save=false"});
  EXPECT_EQ(options.disk_paths, (std::vector<std::string>{"/tmp/a", "/tmp/b"}));
  EXPECT_EQ(options.disk_threads.drain_bytes_per_second, 5ull << 20);
  EXPECT_EQ(options.disk_threads.drain_give_up_after, 90s);
  EXPECT_EQ(options.store.disk.capacity_bytes, 2ull << 30);
  EXPECT_TRUE(options.store.spill.write_through);
  EXPECT_EQ(options.store.spill.reserve, 0.25);
  EXPECT_EQ(options.session.spill_wait, 500ms);
  EXPECT_TRUE(options.store.spill.skip_unused);
  EXPECT_EQ(options.disk_threads.write_bytes_per_second, 3u << 20);
  EXPECT_EQ(options.disk_threads.scrub_bytes_per_second, 4u << 20);
  EXPECT_EQ(options.store.disk.promote_reads, 255);
  EXPECT_EQ(options.disk_threads.read_threads, 9u);
  EXPECT_EQ(options.disk_threads.retry_after, 1500ms);
  EXPECT_EQ(options.disk_hang, 3s);
  EXPECT_EQ(options.disk_threads.stuck_after, 6s);  // of two directories, one may be left out first
  EXPECT_EQ(options.session.drop_wait, 0s);
  EXPECT_EQ(options.disk_threads.give_up_after, 7s);
  EXPECT_FALSE(options.spill_save);
  EXPECT_EQ(
      good({"--disk-path=/a", "--disk-capacity-blocks=5", "--capacity-block-bytes=8192"}).store.disk.capacity_bytes,
      5u * 8192);
}

TEST_F(ConfigTest, ClusterOptionsReachMembership) {
  const NodeOptions options = good({"--etcd=http://127.0.0.1:2379", "--etcd=https://[::1]:2379", "--etcd-prefix=/a/b",
                                    "--etcd-lease-seconds=2.5", "--node-id=n7", "--advertise=tcp://10.0.0.1:7400",
                                    "--weight=3.5", "--zone=z1", "--cluster-extent-blocks=64"});
  EXPECT_EQ(options.etcd.endpoints, (std::vector<std::string>{"http://127.0.0.1:2379", "https://[::1]:2379"}));
  EXPECT_EQ(options.membership.prefix, "/a/b");
  EXPECT_EQ(options.membership.lease, 3s) << "etcd counts whole seconds";
  EXPECT_EQ(options.membership.self.id, "n7");
  EXPECT_EQ(options.membership.self.endpoints, (std::vector<std::string>{"tcp://10.0.0.1:7400"}));
  EXPECT_EQ(options.membership.self.weight, 3.5);
  EXPECT_EQ(options.membership.self.zone, "z1");
  EXPECT_EQ(options.membership.extent_blocks, 64u);
  EXPECT_EQ(good({"--etcd=http://h:1", "--capacity=3GiB"}).membership.self.weight, 3.0) << "GiB";
  EXPECT_TRUE(good({}).etcd.endpoints.empty());
}

TEST_F(ConfigTest, WrongClusterOptionsAreRefusedWithOptionAndReason) {
  expect_refused({"--etcd=127.0.0.1:2379"}, {"etcd: '127.0.0.1:2379'", "http://HOST:PORT"});
  expect_refused({"--etcd=http://h"}, {"etcd: 'http://h'", "http://HOST:PORT"});
  expect_refused({"--advertise=tcp://10.0.0.1:7400"}, {"advertise", "given without etcd"});
  expect_refused({"--etcd=http://h:1", "--advertise=http://x:1"}, {"advertise", "http://x:1"});
  expect_refused({"--etcd=http://h:1", "--etcd-prefix=kvstore"}, {"etcd-prefix: 'kvstore'", "begin with '/'"});
  expect_refused({"--etcd=http://h:1", "--etcd-prefix=/kvstore/"}, {"etcd-prefix"});
  expect_refused({"--etcd=http://h:1", "--etcd-cert=/dev/null"}, {"etcd-cert", "etcd-key"});
  expect_refused({"--etcd=http://h:1", "--etcd-user=a"}, {"etcd-user", "etcd-password-file"});
  expect_refused({"--etcd=http://h:1", "--etcd-ca=/not/there"}, {"etcd-ca", "/not/there", "cannot be read"});
  expect_refused({"--etcd=http://h:1", "--node-id=a/b"}, {"node-id", "without '/'"});
  expect_refused({"--etcd=http://h:1", "--zone=a b"}, {"zone"});
  expect_refused({"--etcd=http://h:1", "--etcd-lease-seconds=1"}, {"etcd-lease-seconds"});
  expect_refused({"--etcd=http://h:1", "--weight=-1"}, {"weight"});
}

TEST_F(ConfigTest, CapacityInBlocksIsExact) {
  const NodeOptions options = good({"--capacity-blocks", "10000", "--capacity-block-bytes", "2MiB"});
  EXPECT_EQ(options.store.arena.capacity_bytes, 10000ull * (2 << 20));
  EXPECT_EQ(options.store.arena.granule_bytes, 2u << 20);
  EXPECT_EQ(good({"--capacity-blocks", "3", "--capacity-block-bytes", "4096"}).store.arena.capacity_bytes, 3u * 4096);
}

TEST_F(ConfigTest, AddressesBeyondLoopbackAreRefusedWithTheReason) {
  for (const char* address : {"tcp://0.0.0.0:7400", "tcp://10.1.2.3:7400", "tcp://[::]:7400", "tcp://example.org:7400",
                              "tcp://127.example.org:7400"}) {
    expect_refused({"--listen", address}, {address, "loopback", "TLS", "unix://", "plaintext-on-trusted-network"});
    EXPECT_EQ(good({"--listen", address, "--plaintext-on-trusted-network=true"}).plain_network_count, 1u) << address;
  }
  expect_refused({"--admin", "0.0.0.0:7401"}, {"admin", "0.0.0.0:7401", "loopback", "https://"});
  EXPECT_EQ(good({"--admin", "0.0.0.0:7401", "--plaintext-on-trusted-network=true"}).plain_network_count, 1u);
  EXPECT_EQ(good({"--plaintext-on-trusted-network=true"}).plain_network_count, 0u) << "the default listens on loopback";
}

TEST_F(ConfigTest, TlsNeedsItsFilesAndFilesNeedTls) {
  TestCa ca;
  const CertificateFiles files;
  const TlsConfig tls = files.write("node", ca.issue(), ca.pem());
  const std::vector<std::string> given = {"--tls-cert=" + tls.cert_file, "--tls-key=" + tls.key_file,
                                          "--tls-ca=" + tls.ca_file};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), given.begin(), given.end());
    return more;
  };
  const NodeOptions options = good(with({"--listen", "tls://0.0.0.0:7400", "--admin", "https://0.0.0.0:7401",
                                         "--tls-allowed-name=spiffe://a/*", "--tls-allowed-name=*.b.org"}));
  EXPECT_EQ(options.listen[0].to_string(), "tls://0.0.0.0:7400");
  EXPECT_TRUE(options.admin_tls);
  EXPECT_EQ(options.admin_host, "0.0.0.0");
  EXPECT_EQ(options.plain_network_count, 0u);
  EXPECT_EQ(options.tls.allowed_names.size(), 2u);
  EXPECT_FALSE(good(with({"--listen=tls://[::]:1"})).admin_tls);

  expect_refused({"--listen", "tls://0.0.0.0:7400"}, {"tls-cert", "needed"});
  expect_refused({"--admin", "https://127.0.0.1:7401"}, {"tls-cert", "needed"});
  expect_refused(given, {"nothing uses it", "tls://HOST:PORT"});
  expect_refused(with({"--listen=tls://0.0.0.0:1", "--tls-crl=/nowhere"}), {"tls-crl", "/nowhere", "No such file"});
  expect_refused(with({"--listen=tls://0.0.0.0:1", "--tls-allowed-name=*"}), {"tls-allowed-name", "'*'", "allowed"});
  expect_refused(with({"--listen=tcp://0.0.0.0:1", "--admin=https://0.0.0.0:1"}), {"tcp://0.0.0.0:1", "loopback"});
}

TEST_F(ConfigTest, APolicyIsReadAndListenersOfANetworkAreCounted) {
  const CertificateFiles files;
  const std::string good_file = files.write("good.toml", "[a]\nmatch = [\"unix\"]\nroles = [\"reader\"]\n");
  const std::string bad_file = files.write("bad.toml", "[a]\nmatch = [\"unix\"]\nroles = [\"admin\"]\n");
  EXPECT_EQ(good({"--policy-file", good_file}).policy_file, good_file);
  EXPECT_EQ(good({}).network_count, 0u);
  EXPECT_EQ(
      good({"--listen=tcp://0.0.0.0:1", "--admin=0.0.0.0:2", "--plaintext-on-trusted-network=true"}).network_count, 2u);
  expect_refused({"--policy-file", bad_file}, {"policy-file: [a] roles: 'admin'", "allowed are reader, writer"});
  expect_refused({"--policy-file", "/nowhere"}, {"policy-file: /nowhere", "No such file"});
}

TEST_F(ConfigTest, BadValuesAreRefusedWithOptionAndReason) {
  expect_refused({"--listen", "7400"}, {"listen", "7400", "tcp://HOST:PORT"});
  expect_refused({"--listen", "sim://x"}, {"listen", "sim://x"});
  expect_refused({"--admin", "nowhere"}, {"admin"});
  expect_refused({"--capacity", "lots"}, {"capacity", "lots"});
  expect_refused({"--capacity", "-1"}, {"capacity"});
  expect_refused({"--region-bytes-max", "-5"}, {"region-bytes-max"});
  expect_refused({"--region-bytes-max-node", "-5"}, {"region-bytes-max-node"});
  expect_refused({"--capacity", "4096"}, {"capacity", "4096", "1MiB"});
  expect_refused({"--capacity", "1GiB", "--capacity-blocks", "7"}, {"capacity"});
  expect_refused({"--capacity-blocks", "7", "--capacity-block-bytes", "5000"},
                 {"capacity-block-bytes", "5000", "4096"});
  expect_refused({"--capacity-blocks", "99999999999999999", "--capacity-block-bytes", "4096"}, {"capacity-blocks"});
  expect_refused({"--threads", "5000"}, {"threads"});
  expect_refused({"--threads", "some"}, {"threads", "some"});
  expect_refused({"--chain-blocks-max", "80001"}, {"chain-blocks-max"});
  expect_refused({"--lease-seconds", "0"}, {"lease-seconds"});
  expect_refused({"--retained-fraction-max", "1.5"}, {"retained-fraction-max"});
  expect_refused({"--leased-fraction-max", "1.5"}, {"leased-fraction-max"});
  expect_refused({"--log-level", "loud"}, {"log-level", "loud"});
  expect_refused({"--node-id", std::string(129, 'x')}, {"node-id", "128"});
  expect_refused({"--no-such-option", "1"}, {"no-such-option"});
  expect_refused({"stray"}, {"stray"});
}

// Each mistake is told with its option, its value, where it stands and what is allowed.
TEST_F(ConfigTest, EveryMistakeIsToldWithOptionValuePlaceAndWhatIsAllowed) {
  constexpr const char* kFile = "FILE";  // its path
  struct Mistake {
    std::vector<std::string> flags;
    std::string file;  ///< Of two lines: the first is a comment.
    std::string variable, value;
    std::vector<std::string> told;
  };
  const CertificateFiles files;
  const std::string empty_file = files.write("empty.pem", "");
  const std::string bad_policy = files.write("bad.toml", "[a]\nmatch = [\"unix\"]\nroles = [\"admin\"]\n");
  const std::string sized = "disk-capacity = \"1GiB\"\n";
  const std::vector<Mistake> mistakes = {
      // Values that are none.
      {{}, "capacity = \"64QiB\"", "", "", {"capacity: '64QiB'", "FILE, line 2", "allowed: 1 byte to 64 TiB"}},
      {{}, "capacity = -1", "", "", {"capacity: '-1'", "FILE, line 2", "allowed: 1 byte to 64 TiB"}},
      {{"--capacity", "lots"}, "", "", "", {"capacity: 'lots'", "flag --capacity", "such as 64GiB"}},
      {{}, "", "KVSTORE_NODE_CAPACITY", "65TiB", {"capacity: '65TiB'", "variable KVSTORE_NODE_CAPACITY", "64 TiB"}},
      {{"--capacity=4096"}, "", "", "", {"capacity: 4096", "flag --capacity", "allowed: 1MiB"}},
      {{}, "lease-seconds = \"soon\"", "", "", {"lease-seconds: 'soon'", "FILE, line 2", "0.001 to 3600 seconds"}},
      {{}, "lease-seconds = \"2h\"", "", "", {"lease-seconds: '2h'", "FILE, line 2", "such as 10s or 500ms"}},
      {{"--busy-poll-us=2s"}, "", "", "", {"busy-poll-us: '2s'", "flag --busy-poll-us", "such as 50us or 1ms"}},
      {{"--threads", "some"}, "", "", "", {"threads: 'some'", "flag --threads", "allowed: 0 to 1024"}},
      {{}, "threads = 2.5", "", "", {"threads: '2.5'", "FILE, line 2", "allowed: 0 to 1024"}},
      {{}, "", "KVSTORE_NODE_CHAIN_BLOCKS_MAX", "80001", {"chain-blocks-max: '80001'", "variable", "1 to 80000"}},
      {{}, "retained-fraction-max = 1.5", "", "", {"retained-fraction-max: '1.5'", "FILE, line 2", "allowed: 0 to 1"}},
      {{}, "weight = nan", "", "", {"weight: 'nan'", "FILE, line 2", "allowed: 0 to 1"}},
      {{}, "curve = maybe", "", "", {"curve: 'maybe'", "FILE, line 2", "allowed: true or false"}},
      {{}, "log-level = \"wran\"", "", "", {"log-level: 'wran'", "FILE, line 2", "allowed: trace", "mean 'warn'?"}},
      {{"--rdma=maybe"}, "", "", "", {"rdma: 'maybe'", "flag --rdma", "allowed: auto, on or off"}},
      {{}, "capacity = [\"1GiB\", \"2GiB\"]", "", "", {"capacity: '1GiB', '2GiB'", "FILE, line 2", "allowed", "one"}},
      {{}, "capacity = []", "", "", {"capacity: no value", "FILE, line 2", "allowed: 1 byte to 64 TiB"}},
      {{"--capacity=1GiB", "--capacity=2GiB"}, "", "", "", {"'1GiB', '2GiB'", "flag --capacity", "allowed"}},
      {{"--threads"}, "", "", "", {"threads: no value", "flag --threads", "allowed: 0 to 1024"}},
      {{"--node-id", std::string(129, 'x')},
       "",
       "",
       "",
       {"node-id: 'xxx", "flag --node-id", "allowed: 1 to 128 bytes"}},
      // Names that are none.
      {{}, "capcity = \"1GiB\"", "", "", {"capcity: there is no such option", "FILE, line 2", "mean 'capacity'?"}},
      {{"--dik-path=/x"}, "", "", "", {"'--dik-path=/x'", "no such option", "mean 'disk-path'?", "command line"}},
      {{}, "check-config = true", "", "", {"check-config", "command line only", "FILE, line 2"}},
      {{"stray"}, "", "", "", {"'stray'", "allowed: --NAME VALUE"}},
      // Files that are none.
      {{"--config=/no/such.toml"}, "", "", "", {"config: /no/such.toml", "No such file", "allowed", "flag --config"}},
      {{}, "", "KVSTORE_NODE_CONFIG", "/tmp", {"config: /tmp: is a directory", "allowed", "KVSTORE_NODE_CONFIG"}},
      {{}, "[cache]", "", "", {"FILE, line 2", "'[cache]'", "no sections", "allowed: NAME = VALUE"}},
      {{}, "capacity 64GiB", "", "", {"FILE, line 2", "'capacity 64GiB'", "allowed: NAME = VALUE"}},
      {{}, "capacity = \"64GiB", "", "", {"FILE, line 2", "capacity", "a quote is not closed"}},
      {{}, "listen = [\"unix:///a\"", "", "", {"FILE, line 2", "listen", "'[' is not closed"}},
      {{},
       "threads = 1\nthreads = 2",
       "",
       "",
       {"threads: stands there twice", "FILE, line 3", "line 2", "allowed: once"}},
      {{}, "capacity =", "", "", {"FILE, line 2", "capacity: a value is missing", "allowed"}},
      // Addresses.
      {{}, "listen = [\"7400\"]", "", "", {"listen", "7400", "FILE, line 2", "tcp://HOST:PORT"}},
      {{},
       "listen = \"tcp://0.0.0.0:7400\"",
       "",
       "",
       {"listen: tcp://0.0.0.0:7400", "FILE, line 2", "allowed: tls://"}},
      {{"--admin=0.0.0.0:7401"}, "", "", "", {"admin: 0.0.0.0:7401", "flag --admin", "allowed: https://"}},
      {{"--admin=127.0.0.1:99999"}, "", "", "", {"admin", "127.0.0.1:99999", "flag --admin", "allowed: HOST:PORT"}},
      {{}, "etcd = \"127.0.0.1:2379\"", "", "", {"etcd: '127.0.0.1:2379'", "FILE, line 2", "http://HOST:PORT"}},
      {{}, "advertise = \"tcp://10.0.0.1:7400\"", "", "", {"advertise", "tcp://10.0.0.1:7400", "line 2", "allowed"}},
      {{"--peer=tcp://h:1", "--peer=tcp://h:1"}, "", "", "", {"peer: tcp://h:1", "flag --peer", "allowed: each"}},
      // Options that do not fit together.
      {{"--capacity-blocks=7"},
       "capacity = \"1GiB\"",
       "",
       "",
       {"capacity-blocks: '7'", "flag", "'1GiB'", "FILE, line 2", "allowed: one"}},
      {{"--capacity-blocks=7", "--capacity-block-bytes=5000"},
       "",
       "",
       "",
       {"capacity-block-bytes: 5000", "flag", "allowed: multiples of 4096"}},
      {{"--capacity=2GiB"},
       "capacity-max = \"1GiB\"",
       "",
       "",
       {"capacity: 2147483648", "flag --capacity", "allowed: up to 1073741824"}},
      {{}, sized, "", "", {"disk-capacity: given without disk-path", "'1GiB'", "FILE, line 2", "allowed: both"}},
      {{"--disk-path=/tmp"}, "", "", "", {"disk-path: given without disk-capacity", "'/tmp'", "flag", "allowed: both"}},
      {{"--disk-path=/no/such/kv"},
       sized,
       "",
       "",
       {"disk-path: '/no/such/kv': /no/such is not there", "mounted?", "flag --disk-path", "allowed: a directory"}},
      {{},
       sized + "disk-path = \"/dev/null\"",
       "",
       "",
       {"disk-path: '/dev/null': is no directory", "FILE, line 3", "allowed: a directory"}},
      {{},
       sized,
       "KVSTORE_NODE_DISK_PATH",
       "/dev/null/kv",
       {"disk-path: '/dev/null/kv': /dev/null is no directory", "variable KVSTORE_NODE_DISK_PATH", "allowed"}},
      {{"--rdma=on", "--capacity-max=8GiB"},
       "",
       "",
       "",
       {"rdma: on", "flag --rdma", "allowed: rdma without capacity-max"}},
      {{"--etcd=http://h:1", "--etcd-user=root"},
       "",
       "",
       "",
       {"etcd-user: given alone", "'root'", "flag --etcd-user", "allowed"}},
      // Files that options name.
      {{"--listen=tls://0.0.0.0:1", "--tls-cert=/no.pem", "--tls-key=/no.key", "--tls-ca=/no.ca"},
       "",
       "",
       "",
       {"tls-", "/no.", "flag --tls-", "allowed: a file in PEM form"}},
      {{"--listen=tls://0.0.0.0:1", "--tls-cert=" + empty_file, "--tls-key=" + empty_file, "--tls-ca=" + empty_file},
       "",
       "",
       "",
       {"tls-", empty_file, "flag --tls-", "allowed: a file in PEM form"}},
      {{}, "tls-cert = \"/a.pem\"", "", "", {"tls-cert: nothing uses it", "'/a.pem'", "FILE, line 2", "allowed"}},
      {{},
       "policy-file = \"" + bad_policy + "\"",
       "",
       "",
       {"policy-file: [a] roles: 'admin'", bad_policy, "FILE, line 2", "allowed"}},
      {{"--policy-file=/nowhere"}, "", "", "", {"policy-file: /nowhere", "flag --policy-file", "allowed"}},
      {{"--numa-nodes=8000"}, "", "", "", {"numa-nodes", "8000", "flag --numa-nodes", "allowed: auto, off"}},
      {{"--etcd=http://h:1"}, "zone = \"a b\"", "", "", {"zone", "'a b'", "FILE, line 2", "allowed"}},
      // Variables that mean nothing.
      {{"--check-config"},
       "",
       "KVSTORE_NODE_CAPCITY",
       "1GiB",
       {"KVSTORE_NODE_CAPCITY", "environment", "mean 'KVSTORE_NODE_CAPACITY'?"}},
      {{"--check-config"}, "", "KVSTORE_CAPACITY", "1GiB", {"KVSTORE_CAPACITY", "mean 'KVSTORE_NODE_CAPACITY'?"}},
  };
  EXPECT_GE(mistakes.size(), 41u);
  for (const Mistake& each : mistakes) {
    std::vector<std::string> flags = each.flags;
    const std::string path = each.file.empty() ? "" : file_with("# of a hand\n" + each.file + "\n");
    if (!path.empty()) flags.insert(flags.end(), {"--config", path});
    if (!each.variable.empty()) ::setenv(each.variable.c_str(), each.value.c_str(), 1);
    EXPECT_FALSE(parse(flags)) << testing::PrintToString(each.told);
    if (!each.variable.empty()) ::unsetenv(each.variable.c_str());
    // A supervisor reads a file again later: it may be on a disk that is not there yet.
    const bool is_of_file = each.told[0].starts_with("tls-") || each.told[0].starts_with("policy-file") ||
                            each.told[0].starts_with("disk-path: '/no/such") ||
                            each.told[0].starts_with("disk-path: '/dev/null");
    EXPECT_EQ(exit_code, is_of_file ? kExitNotNow : kExitBadConfig) << testing::PrintToString(each.told);
    for (std::string word : each.told) {
      if (word.starts_with(kFile)) word.replace(0, std::string(kFile).size(), path);
      EXPECT_THAT(error, HasSubstr(word));
    }
    EXPECT_EQ(error.find("INI"), std::string::npos) << "a library's own words: " << error;
  }
}

TEST_F(ConfigTest, SizesAndTimesAreTakenAsPeopleWriteThem) {
  const NodeOptions options = good({"--config",
                                    file_with("capacity = \"2G\"  # of blocks\nget-seconds = '2m'\nput-seconds = "
                                              "\"500ms\"\nlisten = [ # two\n  \"unix:///a#b\",\n  'tcp://127.0.0.1:0', "
                                              "]\nbusy-poll-us = \"1ms\"\nlog-json = on\r\n"),
                                    "--hello-seconds=2s"});
  EXPECT_EQ(options.store.arena.capacity_bytes, 2ull << 30);
  EXPECT_EQ(options.session.get_timeout, 120s);
  EXPECT_EQ(options.session.put_timeout, 500ms);
  EXPECT_EQ(options.session.hello_timeout, 2s);
  EXPECT_EQ(options.busy_poll.count(), 1000);
  ASSERT_EQ(options.listen.size(), 2u);
  EXPECT_EQ(options.listen[0].to_string(), "unix:///a#b");
  EXPECT_TRUE(options.log_json);
}

TEST_F(ConfigTest, AMisspeltVariableIsNoErrorAtAStartAndToldThere) {
  set_environment("KVSTORE_NODE_CAPCITY", "1GiB");
  EXPECT_EQ(good({}).store.arena.capacity_bytes, 4ull << 30);
  const std::array<const char*, 1> argv = {"kvstore-node"};
  int ignored = 0;
  std::string wrong;
  const auto given = GivenOptions::read(1, argv.data(), &ignored, &wrong);
  ASSERT_TRUE(given) << wrong;
  EXPECT_THAT(given->unknown_variables(), testing::ElementsAre(HasSubstr("'KVSTORE_NODE_CAPACITY'")));
}

TEST_F(ConfigTest, AClientsVariablesAreNoOptionsOfTheNode) {
  set_environment("KVSTORE_TLS_CERT", "/client.pem");
  set_environment("KVSTORE_ZONE", "of-a-client");
  EXPECT_FALSE(good({"--check-config"}).tls.is_given());
  set_environment("KVSTORE_NODE_ZONE", "of-a-node");
  EXPECT_EQ(good({}).membership.self.zone, "of-a-node");
}

TEST_F(ConfigTest, AFileSetsEverythingUnderItsLongName) {
  const std::string file = file_with(
      "# a comment\n"
      "node-id = \"from-file\"\n"
      "listen = [\"unix:///tmp/b.sock\", \"tcp://127.0.0.1:0\"]\n"
      "capacity = \"32MiB\"\n"
      "lease-seconds = 7\n"
      "log-json = true\n");
  const NodeOptions options = good({"--config", file});
  EXPECT_EQ(options.node_id, "from-file");
  ASSERT_EQ(options.listen.size(), 2u);
  EXPECT_EQ(options.listen[0].to_string(), "unix:///tmp/b.sock");
  EXPECT_EQ(options.store.arena.capacity_bytes, 32u << 20);
  EXPECT_EQ(options.store.lease_duration, 7s);
  EXPECT_TRUE(options.log_json);
}

TEST_F(ConfigTest, FlagsWinOverTheEnvironmentAndThatOverTheFile) {
  const std::string file = file_with("node-id = \"file\"\nlease-seconds = 1\nput-seconds = 1\n");
  set_environment("KVSTORE_NODE_LEASE_SECONDS", "2");
  set_environment("KVSTORE_NODE_PUT_SECONDS", "2");
  const NodeOptions options = good({"--config", file, "--put-seconds", "3"});
  EXPECT_EQ(options.node_id, "file");
  EXPECT_EQ(options.store.lease_duration, 2s);
  EXPECT_EQ(options.session.put_timeout, 3s);
}

TEST_F(ConfigTest, TheEnvironmentNamesTheFileAndTheListeners) {
  set_environment("KVSTORE_NODE_CONFIG", file_with("node-id = \"by-env\"\n"));
  set_environment("KVSTORE_NODE_CAPACITY", "16MiB");
  set_environment("KVSTORE_NODE_LISTEN", "tcp://127.0.0.1:9");
  const NodeOptions options = good({});
  EXPECT_EQ(options.node_id, "by-env");
  EXPECT_EQ(options.store.arena.capacity_bytes, 16u << 20);
  ASSERT_EQ(options.listen.size(), 1u);
  EXPECT_EQ(options.listen[0].to_string(), "tcp://127.0.0.1:9");
}

TEST_F(ConfigTest, FilesThatAreMissingMisspeltOrBrokenAreRefused) {
  expect_refused({"--config", "/no/such/file.toml"}, {"/no/such/file.toml"});
  expect_refused({"--config", file_with("capacitty = \"1GiB\"\n")}, {"capacitty"});
  expect_refused({"--config", file_with("lease-seconds = \"soon\"\n")}, {"lease-seconds"});
  expect_refused({"--config", file_with("listen = [\"tcp://0.0.0.0:1\"]\n")}, {"tcp://0.0.0.0:1", "loopback"});
}

TEST_F(ConfigTest, HelpTeachesAndEndsWithSuccess) {
  EXPECT_FALSE(parse({"--help"}));
  EXPECT_EQ(exit_code, 0);
  for (const char* word : {"Examples", "--capacity", "--listen", "KVSTORE_NODE_CAPACITY", "SIGTERM", "--config"}) {
    EXPECT_THAT(out, HasSubstr(word));
  }
}

TEST_F(ConfigTest, VersionEndsWithSuccess) {
  EXPECT_FALSE(parse({"--version"}));
  EXPECT_EQ(exit_code, 0);
  EXPECT_THAT(out, HasSubstr("kvstore-node "));
}

TEST_F(ConfigTest, RdmaOptionsReachTheDevicesAndTheirRangesAreKept) {
  const NodeOptions options = good({"--rdma", "on", "--rdma-device", "mlx5_0@10.0.0.1", "--rdma-lanes-max", "2",
                                    "--rdma-messages-max", "0", "--rdma-traffic-class", "104"});
  EXPECT_EQ(options.rdma, NodeOptions::Rdma::kOn);
  EXPECT_EQ(options.verbs.devices.names, std::vector<std::string>{"mlx5_0@10.0.0.1"});
  EXPECT_EQ(options.verbs.lane_count_max, 2u);
  EXPECT_EQ(options.verbs.message_count_max, 0u);
  EXPECT_EQ(options.verbs.devices.traffic_class, 104);
  expect_refused({"--rdma-device", "mlx5_0@here"}, {"rdma-device", "mlx5_0@here", "mlx5_0@10.0.0.1"});
  expect_refused({"--rdma-traffic-class", "256"}, {"rdma-traffic-class", "256"});
  expect_refused({"--rdma-messages-max", "65"}, {"rdma-messages-max", "65"});
  expect_refused({"--rdma", "maybe"}, {"rdma", "maybe"});
}

}  // namespace
}  // namespace kv
