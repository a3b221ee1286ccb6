// Who may do what, with the real daemon and the real tools: the whole table over sockets and HTTP, tokens, Unix users,
// certificates, and policies that change while blocks travel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "store/node/policy/access_table.h"
#include "tests/e2e/node_process.h"
#include "tests/e2e/raw_session.h"
#include "tests/transport/tls_certificates.h"

namespace kv::e2e {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string hex_hash(const std::string& token) {
  std::array<unsigned char, 32> hash;
  EVP_Digest(token.data(), token.size(), hash.data(), nullptr, EVP_sha256(), nullptr);
  std::string text;
  for (const unsigned char byte : hash) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}
std::string token_of(int number) { return "token-for-tests-that-is-long-enough-" + std::to_string(100 + number); }

std::string section(const std::string& name, const std::string& who, Roles roles) {
  std::string list;
  for (const PolicyRole role : kEachRole) {
    if ((roles & static_cast<Roles>(role)) != 0)
      list += (list.empty() ? "\"" : ", \"") + std::string(policy_role_name(role)) + "\"";
  }
  return "[" + name + "]\n" + who + "\nroles = [" + list + "]\n";
}
std::string token_section(const std::string& name, const std::string& token, Roles roles) {
  return section(name, "token-sha256 = [\"" + hex_hash(token) + "\"]", roles);
}
constexpr Roles kReader = static_cast<Roles>(PolicyRole::kReader), kWriter = static_cast<Roles>(PolicyRole::kWriter),
                kOperator = static_cast<Roles>(PolicyRole::kOperator),
                kMetrics = static_cast<Roles>(PolicyRole::kMetrics);

class E2eAccessTest : public testing::Test {
 protected:
  /// By renaming, as an operator should: no reader sees half a file.
  void write(const std::string& text, const std::string& name = "policy.toml") const {
    std::ofstream(path("fresh")) << text;
    std::filesystem::rename(path("fresh"), path(name));
  }
  std::string path(const std::string& name) const { return directory.path() + "/" + name; }
  std::vector<std::string> options(std::vector<std::string> more = {}) const {
    more.insert(more.end(),
                {"--capacity=64MiB", "--threads=2", "--events-count=100", "--policy-file=" + path("policy.toml")});
    return more;
  }
  std::string token_file(const std::string& token) const {
    const std::string name = path("token-" + token.substr(token.size() - 3));
    std::ofstream(name) << token << "\n";
    return name;
  }
  static Finished ctl(std::vector<std::string> arguments, std::vector<std::string> with) {
    arguments.insert(arguments.begin(), ctl_program());
    return run_program(arguments, with);
  }
  static double denials(const NodeProcess& node, Right right) {
    return node.metric(std::string("kvstore_requests_denied_total{right=\"") + right_name(right) + "\"}");
  }
  static bool send_empty(RawSession& session, FrameType type, std::uint64_t id) {
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(wire::CreatePingRequest(builder));
    return session.send_frame(type, id, builder);
  }
  /// The status of an HTTP answer: to a POST for an act, else to a GET.
  static int status_of(const NodeProcess& node, const std::string& page, const std::string& header) {
    RawSession session("tcp://" + node.admin());
    const bool changes = is_act(page.substr(0, page.find('?')));
    const std::string request = (changes ? "POST " : "GET ") + page +
                                " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + header +
                                (changes ? "X-Kvstore-Config: a test\r\n" : "") + "\r\n";
    EXPECT_TRUE(session.send_bytes(std::as_bytes(std::span(request))));
    std::array<char, 13> line{};
    std::size_t count = 0;
    while (count + 1 < line.size()) {
      const ssize_t got = ::read(session.fd(), line.data() + count, line.size() - 1 - count);
      if (got <= 0) break;
      count += static_cast<std::size_t>(got);
    }
    return std::atoi(line.data() + 9);
  }

  TempDir directory;
};

TEST_F(E2eAccessTest, EveryCellOfTheTableHoldsOverTheWire) {
  std::string policy = section("scrape", "match = [\"loopback\"]", kMetrics);
  for (Roles roles = 0; roles <= kAllRoles; ++roles)
    policy += token_section("roles-" + std::to_string(roles), token_of(roles), roles);
  write(policy);
  const NodeProcess node(options());
  for (const std::string& endpoint : {node.tcp(), node.unix_socket()}) {
    for (Roles roles = 0; roles <= kAllRoles; ++roles) {
      RawSession session(endpoint);
      ASSERT_TRUE(session.send_hello(kWireVersion, token_of(roles))) << roles_text(roles);
      std::uint64_t id = 10;
      for (const RequestRule& rule : kRequestRules) {
        const bool has_no_answer = rule.type == FrameType::kPutData || rule.type == FrameType::kCancel;
        const double before = has_no_answer ? denials(node, rule.rule.right) : 0;
        const std::uint64_t asked = ++id, after = ++id;
        ASSERT_TRUE(send_empty(session, rule.type, asked) && send_empty(session, FrameType::kPing, after));
        bool is_denied = false;
        while (true) {
          const auto answer = session.read_answer();
          ASSERT_TRUE(answer) << frame_type_name(rule.type) << " ended the session";
          if (answer->header.request_id == after) break;
          is_denied = answer->is_error() && answer->error_code() == Errc::kPermissionDenied;
          if (is_denied) {
            EXPECT_THAT(answer->error_text(),
                        AllOf(HasSubstr(std::string("'") + right_name(rule.rule.right) + "'"),
                              HasSubstr("(section roles-" + std::to_string(roles) + ") has: " + roles_text(roles))));
          }
        }
        if (has_no_answer) is_denied = denials(node, rule.rule.right) > before;
        EXPECT_EQ(is_denied, !has_right(roles, rule.rule.right))
            << frame_type_name(rule.type) << " with " << roles_text(roles) << " at " << endpoint;
      }
    }
  }
  for (Roles roles = 0; roles <= kAllRoles; ++roles) {
    for (const PageRule& rule : kPageRules) {
      const std::string page = std::string(rule.path) + (rule.path == "/config/set" ? "?log-level=info" : "");
      const int allowed =
          rule.path == "/drain" || rule.path == "/erase" ? 400 : 200;  // of which node, of whose blocks?
      EXPECT_EQ(status_of(node, page, "Authorization: Bearer " + token_of(roles) + "\r\n"),
                has_right(roles, rule.rule.right) ? allowed : 403)
          << rule.path << " with " << roles_text(roles);
    }
  }
  EXPECT_EQ(status_of(node, "/metrics", "Authorization: Bearer " + token_of(77) + "\r\n"), 401);
  EXPECT_EQ(status_of(node, "/healthz", "Authorization: Bearer " + token_of(0) + "x\r\n"), 401);
  EXPECT_EQ(status_of(node, "/metrics", ""), 200) << "loopback has the role";
  EXPECT_EQ(status_of(node, "/secret", ""), 404);
  EXPECT_THAT(node.log(), Not(HasSubstr("token-for-tests")));
}

TEST_F(E2eAccessTest, ToolsShowTheirTokenAndSayWhatTheyMayNotDo) {
  write(token_section("jobs", token_of(1), kReader | kWriter) + token_section("operators", token_of(2), kOperator));
  const NodeProcess node(options());
  const std::string endpoint = "KVSTORE_ENDPOINTS=" + node.tcp();
  const std::string job = "KVSTORE_TOKEN_FILE=" + token_file(token_of(1)), keeper = "KVSTORE_TOKEN=" + token_of(2);
  for (const std::string op : {"put", "get", "match"}) {
    const Finished run =
        run_program({bench_program(), "run", "--op", op, "--block-bytes=65536", "--batch=16", "--blocks=64", "--check",
                     "--memory=8MiB", "--duration=200ms", "--warm-up=0", "--token-file=" + token_file(token_of(1))},
                    {endpoint});
    EXPECT_EQ(run.status, 0) << op << run.out << run.err;
  }
  const Finished submit =
      run_program({bench_program(), "submit", "--duration=200ms", "--block-bytes=65536"}, {endpoint, job});
  EXPECT_EQ(submit.status, 0) << "the C library: " << submit.out << submit.err;
  EXPECT_EQ(ctl({"ping", "--count=1"}, {endpoint}).status, 0) << "whoever is connected";
  const Finished nobody = ctl({"namespaces"}, {endpoint});
  EXPECT_NE(nobody.status, 0);
  EXPECT_THAT(nobody.out + nobody.err, HasSubstr("permission denied"));
  const Finished reader = ctl({"namespaces"}, {endpoint, job});
  EXPECT_NE(reader.status, 0);
  EXPECT_EQ(ctl({"namespaces"}, {endpoint, keeper}).status, 0);
  const Finished wrong = ctl({"ping", "--count=1"}, {endpoint, "KVSTORE_TOKEN=" + token_of(3)});
  EXPECT_NE(wrong.status, 0);
  EXPECT_THAT(wrong.out + wrong.err, AllOf(HasSubstr("hello.token"), Not(HasSubstr("token-for-tests"))));
  const Finished heard = ctl({"ping", "--endpoint=tcp://192.0.2.1:7400"}, {job});
  EXPECT_THAT(heard.out + heard.err, HasSubstr("a token goes over tls://, unix:// and loopback only"));
  const Finished absent = ctl({"ping", "--token-file=/nowhere"}, {endpoint});
  EXPECT_THAT(absent.out + absent.err, HasSubstr("token file /nowhere: No such file"));
  const Finished doctor = ctl({"doctor", "--admin=" + node.admin()}, {endpoint, job});
  EXPECT_THAT(doctor.out, HasSubstr("the role metrics or operator shows them"));
  EXPECT_THAT(node.log(), Not(HasSubstr("token-for-tests")));
}

TEST_F(E2eAccessTest, UnixUsersAndCertificatesAreKnown) {
  TestCa ca;
  const CertificateFiles files;
  const TlsConfig own = files.write("node", ca.issue(), ca.pem());
  const TlsConfig worker = files.write("worker", ca.issue({.names = {"URI:spiffe://test/worker/1"}}), ca.pem());
  const TlsConfig router = files.write("router", ca.issue({.names = {"URI:spiffe://test/router"}}), ca.pem());
  write(section("me", "match = [\"unix:uid=" + std::to_string(::getuid()) + "\"]", kOperator) +
        section("workers", "match = [\"spiffe://test/worker/*\"]", kAllRoles));
  const NodeProcess node(
      options({"--listen=tls://127.0.0.1:0", "--tls-cert=" + own.cert_file, "--tls-key=" + own.key_file,
               "--tls-ca=" + own.ca_file, "--admin=https://127.0.0.1:0"}));
  EXPECT_EQ(ctl({"namespaces"}, {"KVSTORE_ENDPOINTS=" + node.unix_socket()}).status, 0);
  EXPECT_NE(ctl({"namespaces"}, {"KVSTORE_ENDPOINTS=" + node.tcp()}).status, 0) << "loopback is in no section";
  const auto with = [&](const TlsConfig& tls) {
    return std::vector<std::string>{"KVSTORE_ENDPOINTS=" + node.tls(), "KVSTORE_TLS_CERT=" + tls.cert_file,
                                    "KVSTORE_TLS_KEY=" + tls.key_file, "KVSTORE_TLS_CA=" + tls.ca_file};
  };
  EXPECT_EQ(ctl({"namespaces"}, with(worker)).status, 0);
  const Finished denied = ctl({"namespaces"}, with(router));
  EXPECT_NE(denied.status, 0);
  EXPECT_TRUE(node.logs("/stats.json: the right 'observe' is missing")) << node.log();
  EXPECT_TRUE(node.logs("'uri:spiffe://test/router' (no section of the policy) has: none")) << node.log();
  if (run_program({"/bin/sh", "-c", "command -v curl"}).status != 0) GTEST_SKIP() << "no curl program (package curl)";
  const auto curl = [&](const TlsConfig& tls) {
    return run_program({"/bin/sh", "-c",
                        "curl -sS --max-time 20 -o /dev/null -w '%{http_code}' --cacert " + tls.ca_file + " --cert " +
                            tls.cert_file + " --key " + tls.key_file + " " + node.admin() + "/metrics"})
        .out;
  };
  EXPECT_EQ(curl(worker), "200");
  EXPECT_EQ(curl(router), "403");
}

/// Policies that give the load what it needs, one after the other, and bad ones in between: no call fails, no session
/// ends. Then one that takes the right away: calls fail at once, sessions stay.
TEST_F(E2eAccessTest, PoliciesAreReplacedUnderLoad) {
  const auto good = [](int round) {
    return section("scrape", "match = [\"loopback\"]", kMetrics) + "[jobs]\ntoken-sha256 = [\"" +
           hex_hash(token_of(1)) + "\", \"" + hex_hash(token_of(50 + round)) +
           "\"]\nroles = [\"reader\", \"writer\", \"metrics\"]\n";
  };
  write(good(0));
  const NodeProcess node(options());
  const std::string log = path("bench.log");
  const pid_t bench =
      start_child({"/usr/bin/env", "KVSTORE_ENDPOINTS=" + node.tcp(), bench_program(), "run", "--op=get",
                   "--connections=2", "--block-bytes=65536", "--batch=8", "--blocks=128", "--check", "--memory=4MiB",
                   "--duration=4s", "--warm-up=0", "--json", "--token-file=" + token_file(token_of(1))},
                  log);
  ASSERT_TRUE(eventually([&] { return node.metric("kvstore_bytes_out_total{path=\"inline\"}") > 0; }));
  const double opened = node.metric("kvstore_sessions_opened_total");
  for (int round = 1; round <= 6; ++round) {
    write(good(round));
    if (round % 2 == 1) node.signal(SIGHUP);
    ASSERT_TRUE(eventually([&] { return node.metric("kvstore_policy_reloads_total") >= round; })) << node.log();
    if (round % 3 != 0) continue;
    write("[jobs]\nroles = [\"everything\"]\n");
    node.signal(SIGHUP);
    ASSERT_TRUE(eventually([&] { return node.metric("kvstore_policy_reload_failed") == 1; })) << node.log();
  }
  EXPECT_EQ(wait_for_child(bench), 0);
  std::ifstream file(log);
  const json result = json::parse(file, nullptr, false);
  ASSERT_FALSE(result.is_discarded());
  EXPECT_EQ(result["missing_blocks"], 0) << result;
  EXPECT_EQ(result["wrong_bytes"], 0) << result;
  EXPECT_TRUE(result["reasons"].empty()) << result;
  // At its end the benchmark asks with two sessions of their own whether all nodes answer.
  EXPECT_EQ(node.metric("kvstore_sessions_opened_total"), opened + 2) << "nobody had to connect again";
  EXPECT_TRUE(
      node.logs("policy: not reloaded, the one in use stays: policy-file: [jobs] roles: "
                "'everything', allowed are reader, writer, operator, metrics"))
      << node.log();
  EXPECT_TRUE(node.logs("audit: act=policy_reload file=")) << node.log();
  RawSession session(node.tcp());
  ASSERT_TRUE(session.send_hello(kWireVersion, token_of(1)));
  write(section("scrape", "match = [\"loopback\"]", kMetrics));
  node.signal(SIGHUP);
  ASSERT_TRUE(eventually([&] { return node.metric("kvstore_policy_reload_failed") == 0; }));
  ASSERT_TRUE(send_empty(session, FrameType::kMatch, 9));
  EXPECT_EQ(session.read_answer()->error_code(), Errc::kPermissionDenied);
  ASSERT_TRUE(send_empty(session, FrameType::kPing, 10));
  EXPECT_FALSE(session.read_answer()->is_error());
}

TEST_F(E2eAccessTest, ABadPolicyIsNoStartAndNoneIsToldBeyondLoopback) {
  write("[jobs]\nmatch = [\"unix\"]\nroles = [\"admin\"]\n");
  const Finished refused = run_program({node_program(), "--policy-file=" + path("policy.toml"), "--check-config"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("policy-file: [jobs] roles: 'admin', allowed are reader, writer, operator"));
  const Finished absent = run_program({node_program(), "--policy-file=/nowhere", "--check-config"});
  EXPECT_EQ(absent.status, 2);
  EXPECT_THAT(absent.err, HasSubstr("policy-file: /nowhere: cannot be read: No such file"));
  const std::vector<std::string> plain = {"--capacity=16MiB", "--listen=tcp://0.0.0.0:0",
                                          "--plaintext-on-trusted-network=true"};
  {
    const NodeProcess node(plain);
    EXPECT_EQ(node.metric("kvstore_network_listeners_without_policy"), 1);
    EXPECT_THAT(ctl({"doctor", "--admin=none"}, {"KVSTORE_ENDPOINTS=" + node.tcp()}).out,
                HasSubstr("1 listeners beyond loopback, and no policy-file"));
  }
  write(section("all", "match = [\"network\", \"loopback\"]", kAllRoles));
  const NodeProcess node(options({plain[1], plain[2]}));
  EXPECT_EQ(node.metric("kvstore_network_listeners_without_policy"), 0);
  EXPECT_THAT(ctl({"doctor", "--admin=none"}, {"KVSTORE_ENDPOINTS=" + node.tcp()}).out,
              Not(HasSubstr("no policy-file")));
  const NodeProcess local({"--capacity=16MiB"});
  EXPECT_EQ(local.metric("kvstore_network_listeners_without_policy"), -1) << "nothing to tell";
  EXPECT_EQ(local.metric("kvstore_policy_reloads_total"), -1);
}

}  // namespace
}  // namespace kv::e2e
