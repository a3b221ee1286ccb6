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
#include <map>
#include <random>
#include <sstream>

#include "store/node/access/audit.h"
#include "store/node/access/tenant_figures.h"
#include "tests/node/admin_question.h"
#include "tests/node/node_world.h"
#include "tests/node/policy_parts.h"
#include "transport/token.h"

namespace kv {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kToken = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const std::string kNextToken = "another-token-that-is-long-enough-for-this";

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

TEST(AccessPolicyTest, TenantsHaveLimits) {
  const auto parsed = AccessPolicy::parse(R"(
[workers]
match = ["unix"]
tenant = "blue"
roles = ["reader"]

[tenants.blue]   # a comment
memory-bytes = "2GiB"
memory-bytes-max = "3 GiB"
disk-bytes = 4096
disk-bytes-max = "1TiB"
leases-max = 10
retained-bytes-max = 0
namespaces-max = 3
sessions-max = 7
requests-per-second = 500
bytes-per-second = "100MiB"

[more]
match = ["loopback"]
roles = []

[tenants.red]
memory-bytes = "1MiB"
)");
  ASSERT_TRUE(parsed) << parsed.error();
  const auto& tenants = (*parsed)->tenants();
  ASSERT_EQ(tenants.size(), 2u);
  TenantPolicy blue;
  blue.holds = {.name = "blue",
                .memory_bytes = std::uint64_t{2} << 30,
                .memory_bytes_max = std::uint64_t{3} << 30,
                .disk_bytes = 4096,
                .disk_bytes_max = std::uint64_t{1} << 40,
                .lease_count_max = 10,
                .retained_bytes_max = 0,
                .namespace_count_max = 3};
  blue.requests_per_second = 500;
  blue.bytes_per_second = 100 << 20;
  blue.session_count_max = 7;
  EXPECT_EQ(tenants[0], blue);
  EXPECT_EQ(tenants[1].holds.name, "red");
  EXPECT_EQ(tenants[1].holds.memory_bytes_max, TenantLimits::kNoLimit);
  EXPECT_EQ((*parsed)->find(kLoopback)->section, "more");
  EXPECT_FALSE((*parsed)->check_room((std::uint64_t{2} << 30) + (1 << 20), 4096).code);
  EXPECT_THAT((*parsed)->check_room((std::uint64_t{2} << 30) + (1 << 20) - 1, 4096).text,
              HasSubstr("memory-bytes: 2148532224 in all, more than the 2148532223 of this node's capacity"));
  EXPECT_THAT((*parsed)->check_room(~0ull, 4095).text, HasSubstr("disk-bytes: 4096 in all"));
}

TEST(AccessPolicyTest, AMistakeInATenantIsRefused) {
  const std::string good = "[a]\nmatch = [\"unix\"]\nroles = []\n";
  const auto expect = [&](const std::string& tenant, const std::string& words) {
    for (const std::string& text : {good + tenant, tenant + good}) {
      const auto parsed = AccessPolicy::parse(text);
      ASSERT_FALSE(parsed) << text;
      EXPECT_THAT(parsed.error().text, HasSubstr(words)) << text;
    }
  };
  expect("[tenants.a]\nmemory-bytes = \"1 GB\"\n", "[tenants.a] memory-bytes: '1 GB', allowed is a whole number, with");
  expect("[tenants.a]\nmemory-bytes = -1\n", "memory-bytes: '-1'");
  expect("[tenants.a]\nmemory-bytes = \"99999999TiB\"\n", "memory-bytes");
  expect("[tenants.a]\nleases-max = \"1KiB\"\n", "leases-max: '1KiB', allowed is a whole number");
  expect("[tenants.a]\nleases-max = [1, 2]\n", "leases-max: a list");
  expect("[tenants.a]\nrequests-per-second = 0\n", "from 1 on");
  expect("[tenants.a]\nmemory = 5\n", "'memory': allowed are memory-bytes, memory-bytes-max, disk-bytes");
  expect("[tenants.a]\nroles = []\n", "'roles': allowed are memory-bytes");
  expect("[tenants.a]\nleases-max = 1\nleases-max = 2\n", "leases-max");
  expect("[tenants.a]\nmemory-bytes = 2\nmemory-bytes-max = 1\n", "more than memory-bytes-max");
  expect("[tenants.a]\nleases-max = 1\n[tenants.a]\nsessions-max = 1\n", "[tenants.a]: stands there twice");
  expect("[tenants]\nleases-max = 1\n", "stands in no section");
  expect("[tenants.\"a b\"]\nleases-max = 1\n", "a tenant's section is [tenants.NAME]");
  expect("[tenants.a.b]\nleases-max = 1\n", "a tenant's section is [tenants.NAME]");
  std::string many;
  for (std::size_t i = 0; i <= AccessPolicy::kTenantsMax; ++i) many += "[tenants.t" + std::to_string(i) + "]\n";
  expect(many, "more than 256 tenants");
}

TEST(TenantRatesTest, InAnyTimeThereAreNoMoreRequestsThanTheRateAllows) {
  std::mt19937_64 random(std::random_device{}());
  const auto seed = random();
  std::printf("KV_SEED=%llu\n", static_cast<unsigned long long>(seed));
  random.seed(seed);
  for (const double rate : {1.0, 3.0, 100.0, 12345.0}) {
    TenantRates rates("t");
    TenantPolicy policy;
    policy.holds.name = "t";
    policy.requests_per_second = rate;
    rates.set(policy);
    TimePoint now{100s};
    std::vector<TimePoint> taken;
    for (int i = 0; i < 20000; ++i) {
      const double longest = 2e9 / rate / static_cast<double>(1 + random() % 20);
      now += std::chrono::nanoseconds(random() % static_cast<std::uint64_t>(longest));
      const std::string why = rates.take_request(now);
      if (why.empty()) {
        taken.push_back(now);
      } else {
        EXPECT_THAT(why, HasSubstr("tenant 't' is at its requests-per-second, "));
      }
    }
    ASSERT_GT(taken.size(), 2000u);
    for (int i = 0; i < 2000; ++i) {
      const std::size_t first = random() % taken.size(), last = first + random() % (taken.size() - first);
      const double seconds = std::chrono::duration<double>(taken[last] - taken[first]).count();
      ASSERT_LE(static_cast<double>(last - first + 1), rate * (seconds + 1) + 1e-3);
    }
  }
}

TEST(TenantRatesTest, ADebtOfBytesIsWaitedFor) {
  TenantRates rates("t");
  TenantPolicy policy;
  policy.holds.name = "t";
  policy.bytes_per_second = 1000;
  rates.set(policy);
  TimePoint now{100s};
  EXPECT_EQ(rates.may_move(now), "");
  rates.moved(3500);  // 1000 were saved up
  EXPECT_EQ(rates.may_move(now), "tenant 't' is at its bytes-per-second, 1000; again in 2501 ms");
  EXPECT_NE(rates.may_move(now + 2500ms), "");
  EXPECT_EQ(rates.may_move(now + 2501ms), "");
  EXPECT_EQ(rates.stats().refusals[static_cast<std::size_t>(TenantRates::Limit::kBytes)], 2u);
  policy.bytes_per_second = 0;
  rates.set(policy);
  rates.moved(1'000'000);
  EXPECT_EQ(rates.may_move(now), "");
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
  static NamespaceRecord record_for(const std::string& tenant, const std::string& model = "m") {
    return NamespaceRecord::from_fields({{"model", model},
                                         {"block_size", std::to_string(kBlockSize)},
                                         {"block_bytes", std::to_string(kBlockBytes)},
                                         {"tenant", tenant}})
        .value();
  }
  static auto hello_with(const std::string& token) {
    return [token](FlatBufferBuilder& b) {
      return wire::CreateHelloRequestDirect(b, 1, kWireVersion, "test", token.c_str());
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
        EXPECT_THAT(answer.message(),
                    AllOf(HasSubstr(frame_type_name(type)),
                          HasSubstr(std::string("'") + right_name(rule_for(type).right) + "'"),
                          HasSubstr(roles_text(roles_with(rule_for(type).right))), HasSubstr("loopback")));
      }
    }
    return metric(denials(type)) != before;
  }
  static std::string denials(FrameType type) {
    return std::string("kvstore_requests_denied_total{right=\"") + right_name(rule_for(type).right) + "\"}";
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
    for (const RequestRule& rule : kRequestRules) {
      EXPECT_EQ(is_denied(*client, rule.type), !has_right(roles, rule.rule.right))
          << frame_type_name(rule.type) << " with " << roles_text(roles);
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
  EXPECT_FALSE(keeper->ask(FrameType::kAdmin, 8, admin_request("/stats.json")).is_error());
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
  const auto record_of = [](const std::string& tenant) { return record_for(tenant); };
  const auto about = chain(1, 2);
  grant(kTenantRoles, "tenant = \"blue\"\n");
  const auto client = connect();
  ASSERT_FALSE(client->ask(FrameType::kHello, 1, hello_request()).is_error());
  const Answer red = client->ask(FrameType::kOpen, 2, open_request(record_of("red")));
  EXPECT_EQ(red.error(), Errc::kPermissionDenied);
  EXPECT_THAT(red.message(), AllOf(HasSubstr("'red'"), HasSubstr("belongs to 'blue'")));
  EXPECT_EQ(client->ask(FrameType::kOpen, 3, open_request(record)).error(), Errc::kPermissionDenied) << "of nobody";
  record = record_of("blue");
  space = open(*client, record);
  EXPECT_EQ(put(*client, about), 2u);
  // The session is now another tenant's: what it has open, and what it was given before, is not.
  grant(kTenantRoles, "tenant = \"red\"\n");
  EXPECT_EQ(client->ask(FrameType::kMatch, 4, match_request(about)).error(), Errc::kPermissionDenied);
  EXPECT_EQ(client->ask(FrameType::kDrop, 5, prefix_request(about)).error(), Errc::kPermissionDenied);
  const auto other = connect();  // under the number of another session
  ASSERT_FALSE(other->ask(FrameType::kHello, 1, hello_request()).is_error());
  const Answer guess = other->ask(FrameType::kMatch, 4, match_request(about));
  EXPECT_EQ(guess.error(), Errc::kNoNamespace);
  grant(kTenantRoles, "tenant = \"blue\"\n");
  EXPECT_EQ(matched(*client, about), 2u);
}

TEST_F(AccessTest, ATenantOverItsRatesIsToldWhichAndHowLongAndGoesOnAfterwards) {
  const auto about = chain(1, 2);
  record = record_for("blue");
  const std::string own = "tenant = \"blue\"\n";
  grant(kTenantRoles, own + "[tenants.blue]\nrequests-per-second = 2\n");
  const auto client = connect();
  ASSERT_FALSE(client->ask(FrameType::kHello, 1, hello_request()).is_error());
  space = open(*client, record);
  EXPECT_EQ(matched(*client, about), 0u);
  const Answer refused = client->ask(FrameType::kMatch, 4, match_request(about));
  EXPECT_EQ(refused.error(), Errc::kOverQuota);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("match: tenant 'blue' is at its requests-per-second, 2; again in "), HasSubstr(" ms")));
  EXPECT_FALSE(client->ask(FrameType::kPing, 5, ping()).is_error()) << "a ping is free";
  world.run_for(500ms);
  EXPECT_EQ(matched(*client, about), 0u);
  EXPECT_EQ(client->ask(FrameType::kMatch, 6, match_request(about)).error(), Errc::kOverQuota);

  grant(kTenantRoles, own + "[tenants.blue]\nbytes-per-second = " + std::to_string(kBlockBytes) + "\n");
  EXPECT_EQ(put(*client, about), 2u) << "with a new policy; and what is saved up is enough to begin";
  EXPECT_EQ(client->ask(FrameType::kPut, 7, put_request(chain(2, 1))).error(), Errc::kOverQuota);
  const Answer late = client->ask(FrameType::kGet, 8, get_request(about));
  EXPECT_EQ(late.error(), Errc::kOverQuota);
  EXPECT_THAT(late.message(), HasSubstr("bytes-per-second"));
  EXPECT_EQ(matched(*client, about), 2u) << "no bytes";
  world.run_for(1100ms);
  EXPECT_EQ(get(*client, about).bytes, blocks(about));
  EXPECT_EQ(client->ask(FrameType::kGet, 9, get_request(about)).error(), Errc::kOverQuota);
  grant(kTenantRoles, own);
  EXPECT_EQ(get(*client, about).bytes, blocks(about)) << "without limits";
  record = make_record("m", kBlockBytes);
}

TEST_F(AccessTest, ATenantHasSoManySessionsAndNoMore) {
  grant(kTenantRoles, "tenant = \"blue\"\n[tenants.blue]\nsessions-max = 2\n");
  const auto first = connect();
  ASSERT_FALSE(first->ask(FrameType::kHello, 1, hello_request()).is_error());
  {
    const auto second = connect();
    ASSERT_FALSE(second->ask(FrameType::kHello, 1, hello_request()).is_error());
    const auto third = connect();
    const Answer refused = third->ask(FrameType::kHello, 1, hello_request());
    EXPECT_EQ(refused.error(), Errc::kOverQuota);
    EXPECT_THAT(refused.message(), HasSubstr("hello: tenant 'blue' is at its sessions-max, 2"));
  }
  world.run_until([&] { return session_count == 1; }, 100s);
  const auto fourth = connect();
  EXPECT_FALSE(fourth->ask(FrameType::kHello, 1, hello_request()).is_error());
  // They become another tenant's, of which there may be one only: those that are here stay.
  grant(kTenantRoles, "tenant = \"red\"\n[tenants.blue]\nsessions-max = 2\n[tenants.red]\nsessions-max = 1\n");
  EXPECT_FALSE(is_denied(*first, FrameType::kAdmin));
  EXPECT_FALSE(is_denied(*fourth, FrameType::kAdmin));
  EXPECT_EQ(access->tenants().find("blue")->stats().session_count, 0u);
  EXPECT_EQ(access->tenants().find("red")->stats().session_count, 2u);
}

TEST_F(AccessTest, WhatATenantHoldsIsToldAndRefusalsNameTheLimit) {
  has_tenants = true;
  start(8);
  grant(kTenantRoles, "tenant = \"blue\"\n[tenants.blue]\nnamespaces-max = 1\nmemory-bytes-max = " +
                          std::to_string(2 * kBlockBytes) + "\n");
  store->with([&](Store& each) { each.set_tenants(access->tenant_limits()); });
  record = record_for("blue");
  const auto client = greet();
  const auto about = chain(1, 2);
  EXPECT_EQ(put(*client, about), 2u);
  ASSERT_FALSE(client->ask(FrameType::kRetain, 4, prefix_request(about)).is_error());
  const Answer answer = client->ask(FrameType::kPut, 5, put_request(chain(2, 2)));
  EXPECT_EQ(answer.as<wire::PutResponse>().refused(), 2u);
  EXPECT_EQ(static_cast<Errc>(answer.as<wire::PutResponse>().refused_why()), Errc::kOverQuota);
  const Answer second = client->ask(FrameType::kOpen, 6, open_request(record_for("blue", "second")));
  EXPECT_EQ(second.error(), Errc::kOverQuota);
  EXPECT_THAT(second.message(), HasSubstr("namespaces-max"));
  const nlohmann::json stats = json_of(client->ask(FrameType::kAdmin, 7, admin_request("/stats.json")));
  ASSERT_EQ(stats.at("tenants").size(), 1u);
  EXPECT_EQ(stats["tenants"][0]["name"], "blue");
  nlohmann::json values = stats["tenants"][0]["values"];
  EXPECT_EQ(values["tenant_memory_bytes"], 2.0 * kBlockBytes);
  EXPECT_EQ(values["tenant_memory_max_bytes"], 2.0 * kBlockBytes);
  EXPECT_EQ(values["tenant_refused_memory_blocks"], 2);
  EXPECT_EQ(values["tenant_refused_namespaces"], 1);
  EXPECT_EQ(values["tenant_sessions"], 1);
  EXPECT_FALSE(values.contains("tenant_disk_max_bytes"));
  EXPECT_FALSE(client->ask(FrameType::kUnretain, 8, prefix_request(about)).is_error());
  record = make_record("m", kBlockBytes);
}

TEST_F(AccessTest, LabelsOfMetricsAreThoseOfThePolicy) {
  const std::vector<TenantStats> held = {
      {.limits = {.name = "blue"}, .usage = {.memory_bytes = 1}, .has_limits = true},
      {.limits = {.name = "x1"}, .usage = {.memory_bytes = 2}},
      {.limits = {.name = "x2"}, .usage = {.memory_bytes = 4}},
  };
  const auto figures = bounded_tenant_figures(held, {});
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].name, "blue");
  EXPECT_EQ(figures[1].name, "(other)");
  EXPECT_EQ(figures[1].values[0].value, 6);
  metrics.watch_tenants([&] { return bounded_tenant_figures(held, {}); });
  EXPECT_EQ(metric("kvstore_tenant_memory_bytes{tenant=\"(other)\"}"), 6);
  EXPECT_EQ(metric("kvstore_tenant_memory_bytes{tenant=\"blue\"}"), 1);
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
  client->ask(FrameType::kAdmin, 10, admin_request("/drain", "node=another&drain=true"));
  const std::string name = "namespace=" + to_hex(record.id().bytes) + " hashes=2";
  const std::string who = " who='loopback' (section all) peer=sim:node session=1 ";
  EXPECT_THAT(log.str(), AllOf(HasSubstr("audit: act=retain" + who + name + " result=ok count=2"),
                               HasSubstr("audit: act=unretain" + who + name + " result=ok count=2"),
                               HasSubstr("audit: act=drop" + who + name + " result=ok count=1"),
                               HasSubstr("audit: act=drop" + who + "result=refused why='"),
                               HasSubstr("audit: act=drain" + who + "drain=true result=refused why='")));
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
  for (const RequestRule& rule : kRequestRules)
    EXPECT_FALSE(is_denied(*client, rule.type)) << frame_type_name(rule.type);
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
