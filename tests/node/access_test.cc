// Who may do what: the policy's file, and the whole table of roles and requests tried in sessions.
#include "store/node/access/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>

#include "store/node/access/audit.h"
#include "tests/node/node_world.h"
#include "transport/token.h"

namespace kv {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kToken = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const std::string kNextToken = "another-token-that-is-long-enough-for-this";

std::string hex_hash(const std::string& token) {
  std::ostringstream text;
  for (const unsigned char byte : token_hash(token)) text << std::hex << std::setw(2) << std::setfill('0') << int{byte};
  return text.str();
}

PeerIdentity certificate(std::vector<std::string> names) {
  return {.protection = Stream::Protection::kTls, .names = std::move(names)};
}
PeerIdentity unix_user(std::uint32_t uid, std::uint32_t gid) {
  return {.protection = Stream::Protection::kLocal, .user = Stream::User{uid, gid}};
}
PeerIdentity with_token(const std::string& token, PeerIdentity peer = {}) {
  peer.token = token_hash(token);
  return peer;
}
const PeerIdentity kLoopback{.protection = Stream::Protection::kLocal}, kNetwork{};

/// "SECTION: ROLES" of who a peer is by the policy.
std::string found(const std::string& policy, const PeerIdentity& peer) {
  const auto parsed = AccessPolicy::parse(policy);
  if (!parsed) return parsed.error().text;
  const AccessGrant* const grant = (*parsed)->find(peer);
  return grant == nullptr ? "nobody" : grant->section + ": " + roles_text(grant->roles);
}

TEST(AccessPolicyTest, ThePeerIsOfTheFirstSectionThatFits) {
  const std::string policy = R"(
# a comment
[first-worker]
match = ["spiffe://a/worker/1"]
roles = ["reader", "writer", "operator"]
[workers]
match = [
  "spiffe://a/worker/*",
  "*.b.org", "unix:uid=7",
]
roles = ["reader", "writer"]   # each line may end so
tenant = "research"
[group]
match = "unix:gid=8"
roles = ["operator"]
[users]
match = ["unix"]
roles = []
[machine]  # this one
match = ["loopback"]
roles = ["metrics"]
[closed-network]
match = ["network"]
roles = ["reader"]
[others]
match = ["certificate"]
roles = ["metrics"]
)";
  EXPECT_EQ(found(policy, certificate({"uri:spiffe://a/worker/1"})), "first-worker: reader, writer, operator");
  EXPECT_EQ(found(policy, certificate({"uri:spiffe://a/worker/2"})), "workers: reader, writer");
  EXPECT_EQ(found(policy, certificate({"dns:other", "dns:x.b.org"})), "workers: reader, writer");
  EXPECT_EQ(found(policy, certificate({"uri:spiffe://a/router"})), "others: metrics");
  EXPECT_EQ(found(policy, certificate({})), "others: metrics") << "a certificate that names nobody";
  EXPECT_EQ(found(policy, unix_user(7, 8)), "workers: reader, writer");
  EXPECT_EQ(found(policy, unix_user(77, 8)), "group: operator");
  EXPECT_EQ(found(policy, unix_user(77, 88)), "users: none");
  EXPECT_EQ(found(policy, kLoopback), "machine: metrics");
  EXPECT_EQ(found(policy, kNetwork), "closed-network: reader");
  for (const char* name : {"loopback", "network", "unix", "unix:uid=7"}) {
    EXPECT_EQ(found(policy, certificate({std::string("dns:") + name})), "others: metrics")
        << "a name in a certificate is no other kind of identity";
  }
  EXPECT_EQ((*AccessPolicy::parse(policy))->find(unix_user(7, 0))->tenant, "research");
  EXPECT_EQ(found("", kLoopback), "nobody") << "an empty policy";
}

TEST(AccessPolicyTest, WhoShowsATokenIsWhoTheTokenSaysOrNobody) {
  const std::string policy = "[old]\ntoken-sha256 = [\"" + hex_hash(kToken) + "\", \"" + hex_hash(kNextToken) +
                             "\"]\nroles = [\"writer\"]\n[all]\nmatch = [\"loopback\", \"certificate\"]\nroles = "
                             "[\"reader\"]\n";
  EXPECT_EQ(found(policy, with_token(kToken)), "old: writer");
  EXPECT_EQ(found(policy, with_token(kNextToken, kLoopback)), "old: writer") << "two are good while they are rotated";
  EXPECT_EQ(found(policy, kLoopback), "all: reader");
  EXPECT_EQ(found(policy, with_token(kToken.substr(1) + "0", kLoopback)), "nobody");
  EXPECT_EQ(found(policy, with_token(kToken + "0", certificate({}))), "nobody");
  // A hash that differs in its last bit, or its first one.
  for (const std::size_t at : {std::size_t{0}, std::size_t{31}}) {
    PeerIdentity near = with_token(kToken);
    (*near.token)[at] ^= 1;
    EXPECT_EQ(found(policy, near), "nobody");
  }
}

TEST(AccessPolicyTest, EveryMistakeIsRefusedWithItsPlaceAndWhatIsAllowed) {
  const auto why_not = [](const std::string& text) {
    const auto parsed = AccessPolicy::parse(text);
    EXPECT_FALSE(parsed) << text;
    return parsed ? "" : parsed.error().text;
  };
  const auto expect = [&](const std::string& text, std::vector<std::string> words) {
    const std::string why = why_not(text);
    EXPECT_THAT(why, StartsWith("policy-file: "));
    for (const std::string& word : words) EXPECT_THAT(why, HasSubstr(word)) << text;
  };
  const std::string good = "[a]\nmatch = [\"unix\"]\nroles = [\"reader\"]\n";
  expect("roles = [\"reader\"]\n" + good, {"'roles'", "stands in no section"});
  expect("[default]\nmatch = [\"unix\"]\n", {"'match'", "stands in no section"});
  expect(good + good, {"[a]: stands there twice"});
  expect("[[a]]\nmatch = [\"unix\"]\nroles = []\n[[a]]\nmatch = [\"unix\"]\nroles = []\n", {"twice"});
  expect("[a.b]\nmatch = [\"unix\"]\nroles = []\n", {"[a]"});
  expect("[a b]\nmatch = [\"unix\"]\nroles = []\n", {"[a b]", "1 to 64 letters"});
  expect("[a]\nroles = [\"reader\"]\n", {"[a] match", "fits nobody"});
  expect("[a]\nmatch = [\"unix\"]\n" + good.substr(0, 0) + "[b]\nmatch = [\"unix\"]\nroles = []\n",
         {"[a] roles", "not given", "reader, writer, operator, metrics"});
  expect(good + "role = [\"writer\"]\n", {"[a] 'role'", "match, token-sha256, tenant and roles"});
  expect(good + "b.roles = [\"writer\"]\n", {"stands in no section"});
  expect(good + "[b]\nmatch = [\"unix\"]\nroles = [\"admin\"]\n",
         {"[b] roles: 'admin', allowed are reader, writer, operator, metrics"});
  expect("[a]\nmatch = [\"*\"]\nroles = []\n", {"[a] match", "'*'", "spiffe://", "unix:uid=NUMBER", "loopback"});
  expect("[a]\nmatch = [\"unix:uid=root\"]\nroles = []\n", {"'unix:uid=root'", "unix:uid=NUMBER"});
  expect("[a]\nmatch = [\"unix:uid=4294967296\"]\nroles = []\n", {"unix:uid=4294967296"});
  expect("[a]\nmatch = [\"unix:user=1\"]\nroles = []\n", {"unix:user=1"});
  expect("[a]\nmatch = [\"spiffe://a\nroles = [\"reader\"]\n[b]\nmatch = [\"unix\"]\nroles = []\n", {"[a] match"});
  expect("[a]\nmatch = [\n  \"unix\",\n  \"loopback\",  # here\n  \"network\"]\nroles = []\n", {"lines of their own"});
  expect("[a]\nmatch = [\"unix\"]\nroles = []\ntenant = \"a b\"\n", {"[a] tenant: 'a b'", "letters, digits"});
  expect("[a]\nmatch = [\"unix\"]\nroles = []\ntenant = [\"a\", \"b\"]\n", {"[a] tenant: 2 values"});
  expect("[a]\ntoken-sha256 = [\"" + hex_hash(kToken) + "\", \"" + hex_hash(kToken) + "\"]\nroles = []\n", {"twice"});
  const std::string told = why_not("[a]\ntoken-sha256 = [\"" + kNextToken + "\"]\nroles = []\n");
  EXPECT_THAT(told, AllOf(HasSubstr("42 characters"), HasSubstr("64 hexadecimal"), Not(HasSubstr("another"))))
      << "somebody may have put the token itself there";
  expect(std::string(AccessPolicy::kTextBytesMax + 1, '#'), {"longer than 1 MiB"});
}

TEST(AccessTableTest, IsWhatIsDocumented) {
  std::string matrix;
  for (const VerbRule& rule : kVerbRules) {
    const Roles roles = roles_with(rule.right);
    matrix += std::string(frame_type_name(rule.verb)) + ": " + right_name(rule.right) + ", " +
              (rule.right == Right::kEverybody ? "everybody" : roles_text(roles)) + "\n";
  }
  for (const PageRule& rule : kPageRules) matrix += std::string(rule.path) + ": " + right_name(rule.right) + "\n";
  // A change here is a change of docs/security.md, and of what people rely on.
  EXPECT_EQ(matrix,
            "hello: everybody, everybody\nopen: blocks, reader, writer, operator\nmatch: read, reader\n"
            "get: read, reader\nput: write, writer\nput_data: write, writer\ncancel: everybody, everybody\n"
            "release: blocks, reader, writer, operator\ntouch: read, reader\npin: operate, operator\n"
            "unpin: operate, operator\ndrop: operate, operator\nregion_add: blocks, reader, writer, operator\n"
            "region_remove: blocks, reader, writer, operator\nstats: observe, operator, metrics\n"
            "ping: everybody, everybody\nverbs_connect: blocks, reader, writer, operator\nset_match: read, reader\n"
            "set_get: read, reader\nset_put: write, writer\nhot_roots: blocks, reader, writer, operator\n"
            "cluster_map: member, reader, writer, operator, metrics\ncluster_drain: operate, operator\n"
            "/metrics: observe\n/status: everybody\n/status/now.json: observe\n/status/history.json: observe\n"
            "/status/tree.json: observe\n/healthz: everybody\n/readyz: everybody\n/: everybody\n");
  EXPECT_EQ(right_for("/secret"), Right::kNobody);
  EXPECT_EQ(right_for(static_cast<FrameType>(kFrameTypeMax + 1)), Right::kNobody);
  EXPECT_FALSE(has_right(kAllRoles, Right::kNobody));
}

TEST(TokenTest, AFileHoldsOneAndErrorsShowNothingOfIt) {
  const std::string path = std::filesystem::temp_directory_path() / ("kvstore-token-" + std::to_string(::getpid()));
  const auto read = [&](const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    return read_token_file(path);
  };
  EXPECT_EQ(read(kToken + "\n").value().text(), kToken);
  EXPECT_EQ(read(kToken).value().text(), kToken);
  for (const std::string& bad : {std::string(), std::string("short"), kToken + "\n" + kToken, std::string(600, 'x'),
                                 std::string(5000, 'x'), kToken + "\x01"}) {
    const auto got = read(bad);
    ASSERT_FALSE(got) << bad;
    EXPECT_THAT(got.error().text, AllOf(HasSubstr(path), Not(HasSubstr(kToken)), Not(HasSubstr("xxx"))));
  }
  std::filesystem::remove(path);
  EXPECT_THAT(read_token_file(path).error().text, HasSubstr("No such file"));
  EXPECT_FALSE(read_token_file("/"));
}

/// Clients of the simulation are "loopback" to a policy, unless they show a token.
class AccessTest : public NodeTest {
 protected:
  AccessTest() {
    static int count = 0;
    file = std::filesystem::temp_directory_path() /
           ("kvstore-policy-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + ".toml");
    logger_before = spdlog::default_logger();
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(log);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  }
  ~AccessTest() override {
    spdlog::set_default_logger(logger_before);
    std::filesystem::remove(file);
  }
  void write(const std::string& text) const { std::ofstream(file, std::ios::trunc) << text; }
  void use(const std::string& policy) {
    write(policy);
    if (!access) {
      access = AccessControl::open(file).value();
      node->access = access.get();
    } else {
      EXPECT_FALSE(access->reload().code);
    }
  }
  static std::string section(const std::string& name, const std::string& who, Roles roles,
                             const std::string& more = "") {
    std::string list;
    for (const PolicyRole role : kEachRole) {
      if ((roles & static_cast<Roles>(role)) != 0)
        list += (list.empty() ? "\"" : ", \"") + std::string(policy_role_name(role)) + "\"";
    }
    return "[" + name + "]\n" + who + "\nroles = [" + list + "]\n" + more;
  }
  void grant(Roles roles, const std::string& more = "") { use(section("all", "match = [\"loopback\"]", roles, more)); }
  static auto hello_with(const std::string& token) {
    return [token](FlatBufferBuilder& b) {
      return wire::CreateHelloRequestDirect(b, 1, kWireVersion, "test", 0, token.c_str());
    };
  }
  /// Whether a request of this type is denied: an empty table is no good request, but that is found out later.
  bool is_denied(RawClient& client, FrameType type) {
    const double before = metric(denials(type));
    const std::uint64_t id = ++id_last;
    client.send(type, id, ping());
    client.send(FrameType::kPing, ++id_last, ping());
    while (true) {  // put_data and cancel have no answer of their own; ping has one
      const Answer answer = client.answer();
      if (answer.header.request_id == id_last) break;
      EXPECT_EQ(answer.header.request_id, id);
      const bool says_so = answer.is_error() && answer.error() == Errc::kPermissionDenied;
      EXPECT_EQ(says_so, metric(denials(type)) == before + 1) << "each denial is counted";
      if (says_so) {
        EXPECT_THAT(answer.message(), AllOf(HasSubstr(frame_type_name(type)),
                                            HasSubstr(std::string("'") + right_name(right_for(type)) + "'"),
                                            HasSubstr(roles_text(roles_with(right_for(type)))), HasSubstr("loopback")));
      }
    }
    return metric(denials(type)) != before;
  }
  static std::string denials(FrameType type) {
    return std::string("kvstore_requests_denied_total{right=\"") + right_name(right_for(type)) + "\"}";
  }

  std::string file;
  std::ostringstream log;
  std::shared_ptr<spdlog::logger> logger_before;
  std::unique_ptr<AccessControl> access;
  std::uint64_t id_last = 10;
};

TEST_F(AccessTest, EveryCellOfTheTableHolds) {
  for (Roles roles = 0; roles <= kAllRoles; ++roles) {
    grant(roles);
    const auto client = connect();
    ASSERT_FALSE(client->ask(FrameType::kHello, 1, hello_request()).is_error()) << "a denied client is told, not cut";
    for (const VerbRule& rule : kVerbRules) {
      EXPECT_EQ(is_denied(*client, rule.verb), !has_right(roles, rule.right))
          << frame_type_name(rule.verb) << " with " << roles_text(roles);
    }
  }
}

TEST_F(AccessTest, TheRolesAreEnoughForWhatTheyAreFor) {
  grant(static_cast<Roles>(PolicyRole::kWriter));
  const auto about = chain(1, 2);
  const auto writer = greet();
  EXPECT_EQ(put(*writer, about), 2u);
  grant(static_cast<Roles>(PolicyRole::kReader));
  const auto reader = greet();
  EXPECT_EQ(get(*reader, about).bytes, blocks(about));
  grant(static_cast<Roles>(PolicyRole::kOperator));
  const auto keeper = greet();
  EXPECT_FALSE(keeper->ask(FrameType::kRetain, 5, prefix_request(about)).is_error());
  EXPECT_FALSE(keeper->ask(FrameType::kUnretain, 6, prefix_request(about)).is_error());
  EXPECT_EQ(keeper->ask(FrameType::kDrop, 7, prefix_request(about)).as<wire::CountResponse>().count(), 1u)
      << "the last one named, and what is behind it";
  EXPECT_FALSE(keeper->ask(FrameType::kStats, 8, ping()).is_error());
}

TEST_F(AccessTest, AChangedPolicyHoldsForTheNextRequestAndABadOneChangesNothing) {
  grant(Roles{3});
  const auto client = greet();
  const auto about = chain(1, 2);
  EXPECT_EQ(put(*client, about), 2u);
  grant(static_cast<Roles>(PolicyRole::kReader));
  EXPECT_TRUE(is_denied(*client, FrameType::kPut));
  EXPECT_FALSE(is_denied(*client, FrameType::kMatch));
  write("nonsense");
  EXPECT_TRUE(access->reload().code);
  EXPECT_TRUE(is_denied(*client, FrameType::kPut));
  EXPECT_FALSE(is_denied(*client, FrameType::kMatch));
  EXPECT_FALSE(access->reload_if_changed()) << "it was read already";
  std::filesystem::remove(file);
  const auto gone = access->reload_if_changed();
  ASSERT_TRUE(gone);
  EXPECT_THAT(gone->text, AllOf(HasSubstr(file), HasSubstr("No such file")));
  EXPECT_TRUE(is_denied(*client, FrameType::kPut)) << "a file that is away opens nothing";
  const auto stats = access->stats();
  const auto value = [&](const std::string& name) {
    for (const auto& each : stats) {
      if (each.name == name) return each.value;
    }
    return -1.0;
  };
  EXPECT_EQ(value("policy_reload_failed"), 1);
  EXPECT_EQ(value("policy_reload_failures"), 2);
  write(section("all", "match = [\"loopback\"]", static_cast<Roles>(PolicyRole::kWriter)));
  const auto changed = access->reload_if_changed();
  ASSERT_TRUE(changed);
  EXPECT_FALSE(changed->code) << changed->text;
  EXPECT_FALSE(is_denied(*client, FrameType::kPut));
  EXPECT_TRUE(is_denied(*client, FrameType::kMatch));
}

TEST_F(AccessTest, APutWhoseRightIsTakenAwayEndsWithTheReason) {
  grant(static_cast<Roles>(PolicyRole::kWriter));
  const auto client = greet();
  const auto about = chain(1, 2);
  EXPECT_FALSE(client->ask(FrameType::kPut, 100, put_request(about)).is_last()) << "wanted";
  grant(static_cast<Roles>(PolicyRole::kReader));
  const Answer answer = client->ask(FrameType::kPutData, 100, put_data(2, sums(about)), blocks(about));
  EXPECT_EQ(answer.error(), Errc::kPermissionDenied);
  client->send(FrameType::kPutData, 100, put_data(2, sums(about)), blocks(about));
  EXPECT_FALSE(is_denied(*client, FrameType::kMatch)) << "the rest is read, and the session goes on";
}

TEST_F(AccessTest, ATokenGivesItsRolesAsLongAsThePolicyHasIt) {
  const std::string all = section("all", "match = [\"loopback\"]", static_cast<Roles>(PolicyRole::kReader));
  use(all + section("job", "token-sha256 = [\"" + hex_hash(kToken) + "\"]", static_cast<Roles>(PolicyRole::kWriter)));
  auto client = connect();
  ASSERT_FALSE(client->ask(FrameType::kHello, 1, hello_with(kToken)).is_error());
  space = open(*client, record);
  EXPECT_EQ(put(*client, chain(1, 1)), 1u);
  EXPECT_EQ(client->ask(FrameType::kMatch, 3, ping()).error(), Errc::kPermissionDenied) << "it is not who loopback is";
  use(all);
  const Answer answer = client->ask(FrameType::kPut, 4, put_request(chain(1, 1)));
  EXPECT_EQ(answer.error(), Errc::kPermissionDenied);
  EXPECT_THAT(answer.message(), AllOf(HasSubstr("a token (no section of the policy)"), Not(HasSubstr(kToken))));
  EXPECT_THAT(log.str(), Not(HasSubstr(kToken)));
}

TEST_F(AccessTest, AWrongTokenIsRefusedAtHelloAndNothingOfItIsTold) {
  use(section("all", "match = [\"loopback\"]", kAllRoles) +
      section("job", "token-sha256 = [\"" + hex_hash(kToken) + "\"]", kAllRoles));
  std::string other = kToken;
  other.back() = 'e';
  for (const std::string& wrong : {kToken.substr(0, 32), kToken.substr(0, 63), kToken + "0", other, kNextToken}) {
    auto client = connect();
    const Answer answer = client->ask(FrameType::kHello, 1, hello_with(wrong));
    EXPECT_EQ(answer.error(), Errc::kPermissionDenied) << wrong;
    EXPECT_THAT(answer.message(), AllOf(HasSubstr("hello.token"), Not(HasSubstr(wrong))));
    EXPECT_TRUE(client->ended());
  }
  for (const std::string& bad : {std::string(), std::string("short"), std::string(513, 'x'), kToken + " "}) {
    auto client = connect();
    const Answer answer = client->ask(FrameType::kHello, 1, hello_with(bad));
    EXPECT_EQ(answer.error(), Errc::kBadRequest) << bad;
    EXPECT_TRUE(client->ended());
  }
  EXPECT_THAT(log.str(), AllOf(HasSubstr("hello.token"), Not(HasSubstr(kToken.substr(0, 32))), Not(HasSubstr("xxx"))));
}

TEST_F(AccessTest, ATokenThatOthersMayHaveReadIsRefusedWithAndWithoutAPolicy) {
  world.network.set_protection(Stream::Protection::kNone);
  const auto refused = [&] {
    auto client = connect();
    const Answer answer = client->ask(FrameType::kHello, 1, hello_with(kToken));
    EXPECT_EQ(answer.error(), Errc::kPermissionDenied);
    EXPECT_THAT(answer.message(), AllOf(HasSubstr("plain text"), HasSubstr("tls://")));
    EXPECT_TRUE(client->ended());
  };
  refused();
  use(section("job", "token-sha256 = [\"" + hex_hash(kToken) + "\"]", kAllRoles));
  refused();
  world.network.set_protection(Stream::Protection::kTls);
  auto client = connect();
  EXPECT_FALSE(client->ask(FrameType::kHello, 1, hello_with(kToken)).is_error());
}

TEST_F(AccessTest, ATenantMeetsItsOwnNamespacesOnly) {
  const auto record_of = [&](const std::string& tenant) {
    return NamespaceRecord::from_fields({{"model", "m"},
                                         {"block_size", std::to_string(kBlockSize)},
                                         {"block_bytes", std::to_string(kBlockBytes)},
                                         {"tenant", tenant}})
        .value();
  };
  const auto about = chain(1, 2);
  grant(kAllRoles, "tenant = \"blue\"\n");
  for (const auto version : std::to_array<std::uint8_t>({1, 2})) {
    const auto client = connect();
    ASSERT_FALSE(client->ask(FrameType::kHello, 1, hello_request(1, version)).is_error());
    const Answer red = client->ask(FrameType::kOpen, 2, open_request(record_of("red")));
    EXPECT_EQ(red.error(), Errc::kPermissionDenied);
    EXPECT_THAT(red.message(), AllOf(HasSubstr("'red'"), HasSubstr("belongs to 'blue'")));
    EXPECT_EQ(client->ask(FrameType::kOpen, 3, open_request(record)).error(), Errc::kPermissionDenied) << "of nobody";
    record = record_of("blue");
    space = open(*client, record);
    EXPECT_EQ(put(*client, about, version), version == 1 ? 2u : 0u);
    // The session is now another tenant's: what it has open, and what it was given before, is not.
    grant(kAllRoles, "tenant = \"red\"\n");
    EXPECT_EQ(client->ask(FrameType::kMatch, 4, match_request(about)).error(), Errc::kPermissionDenied);
    EXPECT_EQ(client->ask(FrameType::kDrop, 5, prefix_request(about)).error(), Errc::kPermissionDenied);
    const auto other = connect();  // under the number of another session, which in version 1 is the node's
    ASSERT_FALSE(other->ask(FrameType::kHello, 1, hello_request(1, version)).is_error());
    const Answer guess = other->ask(FrameType::kMatch, 4, match_request(about));
    EXPECT_EQ(guess.error(), version == 1 ? Errc::kPermissionDenied : Errc::kNoNamespace);
    grant(kAllRoles, "tenant = \"blue\"\n");
    EXPECT_EQ(matched(*client, about), 2u);
    record = make_record("m", kBlockBytes);
  }
}

TEST_F(AccessTest, OperatorsActsAreLogged) {
  grant(kAllRoles);
  const auto client = greet();
  const auto about = chain(1, 2);
  put(*client, about);
  client->ask(FrameType::kRetain, 5, prefix_request(about));
  client->ask(FrameType::kUnretain, 6, prefix_request(about));
  client->ask(FrameType::kTouch, 7, prefix_request(about));
  client->ask(FrameType::kDrop, 8, prefix_request(about));
  client->ask(FrameType::kDrop, 9, ping());
  client->ask(FrameType::kClusterDrain, 10,
              [](FlatBufferBuilder& b) { return wire::CreateClusterDrainRequestDirect(b, "another", true); });
  const std::string name = "namespace=" + to_hex(record.id().bytes) + " hashes=2";
  const std::string who = " who='loopback' (section all) peer=sim:node session=1 ";
  EXPECT_THAT(log.str(), AllOf(HasSubstr("audit: act=pin" + who + name + " result=ok count=2"),
                               HasSubstr("audit: act=unpin" + who + name + " result=ok count=2"),
                               HasSubstr("audit: act=drop" + who + name + " result=ok count=1"),
                               HasSubstr("audit: act=drop" + who + "result=refused why='"),
                               HasSubstr("audit: act=cluster_drain" + who + "drain=true result=refused why='")));
  EXPECT_THAT(log.str(), AllOf(Not(HasSubstr("act=touch")), Not(HasSubstr("act=put"))));
  grant(static_cast<Roles>(PolicyRole::kReader));
  EXPECT_TRUE(is_denied(*client, FrameType::kDrop));
  EXPECT_THAT(log.str(), HasSubstr("drop: the right 'operate' is missing (roles with it: operator); 'loopback'"));
}

TEST_F(AccessTest, WithoutAPolicyEverythingIsAsItWas) {
  AccessControl none;
  node->access = &none;
  const auto client = connect();
  ASSERT_FALSE(client->ask(FrameType::kHello, 1, hello_with(kToken)).is_error()) << "nobody asked for it";
  space = open(*client, record);
  for (const VerbRule& rule : kVerbRules) EXPECT_FALSE(is_denied(*client, rule.verb)) << frame_type_name(rule.verb);
  client->ask(FrameType::kDrop, 5000, prefix_request(chain(1, 1)));
  EXPECT_THAT(log.str(), Not(HasSubstr("audit:")));
  EXPECT_TRUE(none.stats().empty());
  none.set_network_listeners(2);
  ASSERT_EQ(none.stats().size(), 1u);
  EXPECT_EQ(none.stats()[0].value, 2);
  EXPECT_EQ(none.grant_of(kNetwork).roles, kAllRoles);
}

}  // namespace
}  // namespace kv
