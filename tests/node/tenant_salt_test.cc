// Names that the node makes itself, by a secret and by whom it knows a client to be: tenants with one record never
// meet, shares are for those on their lists, and nodes store for all and read for none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "store/node/access/access.h"
#include "tests/node/admin_question.h"
#include "tests/node/node_world.h"
#include "tests/node/policy_parts.h"

namespace kv {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kDigits = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const std::string kOtherDigits = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

std::string scratch_file(const std::string& what) {
  static int count = 0;
  return std::filesystem::temp_directory_path() /
         ("kvstore-salt-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + "-" + what);
}

void write_secret(const std::string& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path, std::ios::trunc) << text;
  ASSERT_EQ(::chmod(path.c_str(), mode), 0);
}

/// HMAC-SHA256, as any other program computes it:
///   printf 'tenant\0blue' | openssl dgst -sha256 -mac HMAC -macopt hexkey:000102...1f
TEST(TenantSecretTest, GoldenSaltsHold) {
  const auto secret = TenantSecret::parse(kDigits).value();
  EXPECT_EQ(secret.salt_of_tenant("blue"), "cf4dea1d9f170b24c9272b4e8203fd3e8b4f9f97d5148b6af5dc1aba8a71c2cb");
  EXPECT_EQ(secret.salt_of_share("blue"), "227332914891f844355ce71792cd7991e27bb9b53e68a9b183c290e928ccc36c");
  EXPECT_NE(secret.salt_of_tenant(""), secret.salt_of_share(""));
  const auto other = TenantSecret::parse(kOtherDigits).value();
  EXPECT_NE(other.salt_of_tenant("blue"), secret.salt_of_tenant("blue"));
  EXPECT_NE(other.epoch(), secret.epoch());
  EXPECT_EQ(secret.epoch(), TenantSecret::parse(kDigits).value().epoch());
}

TEST(TenantSecretTest, AFileThatOthersMayReadOrThatHoldsAnythingElseIsRefusedAndNothingOfItIsTold) {
  const std::string path = scratch_file("secret");
  write_secret(path, kDigits + "\n");
  ASSERT_TRUE(TenantSecret::read(path)) << TenantSecret::read(path).error();
  EXPECT_EQ(TenantSecret::read(path)->epoch(), TenantSecret::parse(kDigits)->epoch());
  for (const mode_t mode : std::to_array<mode_t>({0400, 0600, 0500})) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(TenantSecret::read(path));
  }
  const bool is_root = ::geteuid() == 0;
  for (const mode_t mode : std::to_array<mode_t>({0604, 0602, 0620, 0644, 0640})) {
    if (is_root && mode == 0640) continue;  // a group may read what root owns
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const auto refused = TenantSecret::read(path);
    ASSERT_FALSE(refused) << std::oct << mode;
    EXPECT_THAT(refused.error().text, AllOf(StartsWith("tenant-secret-file: " + path + ": has mode 0"),
                                            HasSubstr("chmod 400"), Not(HasSubstr("0c0d0e"))));
  }
  for (const std::string& bad : {std::string(), kDigits.substr(1), kDigits + "0", kDigits + "\n" + kDigits,
                                 kDigits.substr(1) + "g", std::string(5000, '0'), "0x" + kDigits.substr(2)}) {
    write_secret(path, bad);
    const auto refused = TenantSecret::read(path);
    ASSERT_FALSE(refused) << bad;
    EXPECT_THAT(refused.error().text,
                AllOf(HasSubstr("characters, allowed are 64 hexadecimal digits"), Not(HasSubstr("0c0d0e"))));
  }
  std::filesystem::remove(path);
  EXPECT_THAT(TenantSecret::read(path).error().text, HasSubstr("cannot be read: No such file"));
  EXPECT_THAT(TenantSecret::read("/").error().text, HasSubstr("is no file"));
}

std::string token_of(const std::string& name) { return name + std::string(32, '-'); }

/// Sections by token, so that several tenants are here at once.
class TenantSaltTest : public NodeTest {
 protected:
  TenantSaltTest() {
    policy_file = scratch_file("policy");
    secret_file = scratch_file("secret");
    has_tenants = true;
    start(32);
    write_secret(secret_file, kDigits);
    use();
  }
  ~TenantSaltTest() override {
    std::filesystem::remove(policy_file);
    std::filesystem::remove(secret_file);
  }
  static std::string section(const std::string& name, const std::string& roles, const std::string& tenant = "") {
    return "[" + name + "]\ntoken-sha256 = [\"" + hex_hash(token_of(name)) + "\"]\nroles = [" + roles + "]\n" +
           (tenant.empty() ? "" : "tenant = \"" + tenant + "\"\n");
  }
  static std::string tenants() {
    const std::string all = R"("reader", "writer", "operator")";
    return section("blue", all, "blue") + section("red", all, "red") + section("gray", all, "gray") +
           section("node", R"("node")") + section("nosy", R"("node", "reader", "writer")") + section("all", all) +
           section("keeper", R"("operator")") + section("loose", R"("reader", "writer")");
  }
  void use(const std::string& more = "") {
    std::ofstream(policy_file, std::ios::trunc) << tenants() + more;
    if (access) {
      EXPECT_FALSE(access->reload().code) << access->reload().text;
    } else {
      access = AccessControl::open(policy_file, {}, has_secret ? secret_file : "").value();
      node->access = access.get();
    }
  }
  std::unique_ptr<RawClient> as(const std::string& name) {
    auto client = connect();
    const std::string token = token_of(name);
    const auto hello = [&](FlatBufferBuilder& b) {
      return wire::CreateHelloRequestDirect(b, 1, kWireVersion, "test", token.c_str());
    };
    EXPECT_FALSE(client->ask(FrameType::kHello, 1, hello).is_error());
    return client;
  }
  static NamespaceRecord with(const NamespaceRecord& which, const std::string& key, const std::string& value) {
    return which.with({{key, value}}).value();
  }
  /// Opens what the tests' requests then speak of.
  void speak_of(RawClient& client, const NamespaceRecord& which) {
    record = with(which, "node_tenant", "");  // what clients compute with
    space = open(client, which);
  }
  Answer refused(RawClient& client, const NamespaceRecord& which) {
    return client.ask(FrameType::kOpen, 2, open_request(which));
  }
  std::uint64_t count_of(RawClient& client, FrameType type, std::span<const BlockHash> hashes) {
    return client.ask(type, 7, prefix_request(hashes)).as<wire::CountResponse>().count();
  }

  std::string policy_file, secret_file;
  std::unique_ptr<AccessControl> access;
  bool has_secret = true;
  const NamespaceRecord plain = make_record("m", kBlockBytes);
};

TEST_F(TenantSaltTest, TenantsWithOneRecordAndTheSameTokensNeverMeet) {
  const auto about = chain(1, 3);
  const auto blue = as("blue"), red = as("red");
  speak_of(*blue, plain);
  EXPECT_EQ(put(*blue, about), 3u);
  const std::uint32_t of_blue = space;
  speak_of(*red, plain);
  EXPECT_EQ(matched(*red, about), 0u);
  EXPECT_EQ(get(*red, about).block_count, 0u);
  for (const FrameType type : {FrameType::kTouch, FrameType::kRetain, FrameType::kUnretain, FrameType::kDrop})
    EXPECT_EQ(count_of(*red, type, about), 0u) << frame_type_name(type);
  EXPECT_EQ(put(*red, std::span(about).first(2)), 2u) << "none is there already";
  EXPECT_EQ(count_of(*red, FrameType::kDrop, std::span(about).first(1)), 2u);
  EXPECT_EQ(put(*red, std::span(about).first(2)), 2u);
  space = of_blue;
  EXPECT_EQ(matched(*blue, about), 3u) << "another's drop is none of it";
  EXPECT_EQ(get(*blue, about).bytes, blocks(about));
  EXPECT_EQ(store->with([](Store& each) { return each.namespace_count(); }), 2u);
}

TEST_F(TenantSaltTest, ARecordNeedNotSayItsTenantAndMayNotSayAnother) {
  const auto about = chain(1, 2);
  const auto blue = as("blue");
  speak_of(*blue, with(plain, "tenant", "blue"));
  EXPECT_EQ(put(*blue, about), 2u);
  speak_of(*blue, plain);
  EXPECT_EQ(matched(*blue, about), 0u) << "another record is another namespace";
  const Answer other = refused(*blue, with(plain, "tenant", "red"));
  EXPECT_EQ(other.error(), Errc::kPermissionDenied);
  EXPECT_THAT(other.message(), AllOf(StartsWith("open: "), HasSubstr("'red'"), HasSubstr("belongs to 'blue'")));
  for (const TenantStats& each : store->with([](Store& inner) { return inner.tenants(); })) {
    if (each.usage.memory_bytes == 0) continue;
    EXPECT_EQ(each.limits.name, "blue");
    EXPECT_GE(each.usage.memory_bytes, 2 * kBlockBytes);
  }
}

TEST_F(TenantSaltTest, WhatNodesAddIsRefusedFromEverybodyElse) {
  const std::string salt = TenantSecret::parse(kDigits)->salt_of_tenant("blue");
  for (const char* name : {"blue", "red", "all", "node", "nosy", "keeper"}) {
    const auto client = as(name);
    const Answer salted = refused(*client, plain.with({{"node_salt", salt}, {"node_tenant", "blue"}}).value());
    EXPECT_EQ(salted.error(), Errc::kBadRequest) << name;
    EXPECT_THAT(salted.message(), AllOf(HasSubstr("node_salt"), Not(HasSubstr(salt))));
    EXPECT_EQ(refused(*client, with(plain, "node_salt", "x")).error(), Errc::kBadRequest) << name;
    const Answer vouched = refused(*client, with(plain, "node_tenant", "blue"));
    const bool may = std::string(name) == "node" || std::string(name) == "nosy" || std::string(name) == "all" ||
                     std::string(name) == "keeper" || std::string(name) == "blue";
    EXPECT_EQ(vouched.is_error(), !may) << name;
    if (!may) {
      EXPECT_EQ(vouched.error(), Errc::kPermissionDenied) << name;
    }
  }
  AccessControl none;
  node->access = &none;
  const auto client = connect();
  ASSERT_FALSE(client->ask(FrameType::kHello, 1, hello_request()).is_error());
  EXPECT_EQ(refused(*client, with(plain, "node_salt", salt)).error(), Errc::kBadRequest);
  EXPECT_EQ(refused(*client, with(plain, "node_tenant", "blue")).error(), Errc::kBadRequest);
  node->access = access.get();
}

TEST_F(TenantSaltTest, NodesStoreForATenantAndReadNothingOfIt) {
  const auto about = chain(1, 2), more = chain(2, 2);
  const auto blue = as("blue");
  speak_of(*blue, plain);
  EXPECT_EQ(put(*blue, about), 2u);
  for (const char* name : {"node", "nosy"}) {
    const auto other = as(name);
    speak_of(*other, with(plain, "node_tenant", "blue"));
    EXPECT_EQ(put(*other, about), 0u) << "they are there";
    EXPECT_EQ(put(*other, more), name == std::string("node") ? 2u : 0u);
    for (const FrameType type : {FrameType::kMatch, FrameType::kGet, FrameType::kTouch}) {
      const Answer answer = type == FrameType::kMatch ? other->ask(type, 9, match_request(about))
                            : type == FrameType::kGet ? other->ask(type, 9, get_request(about))
                                                      : other->ask(type, 9, prefix_request(about));
      EXPECT_EQ(answer.error(), Errc::kPermissionDenied) << name << " " << frame_type_name(type);
    }
  }
  speak_of(*blue, plain);
  EXPECT_EQ(get(*blue, more).bytes, blocks(more));
  // Who has no tenant, and reads and writes, meets what is nobody's only.
  const auto all = as("all");
  speak_of(*all, plain);
  EXPECT_EQ(matched(*all, about), 0u);
  speak_of(*all, with(plain, "node_tenant", "blue"));
  EXPECT_EQ(all->ask(FrameType::kMatch, 9, match_request(about)).error(), Errc::kPermissionDenied);
  const Answer stored = all->ask(FrameType::kPut, 9, put_request(about));
  EXPECT_EQ(stored.error(), Errc::kPermissionDenied);
  EXPECT_THAT(stored.message(), HasSubstr("the right 'for_tenants' is missing (roles with it: node)"));
  const auto keeper = as("keeper");
  speak_of(*keeper, with(plain, "node_tenant", "blue"));
  EXPECT_EQ(count_of(*keeper, FrameType::kDrop, std::span(about).first(1)), 2u) << "operators see to all";
}

TEST_F(TenantSaltTest, AShareIsForThoseOnItsLists) {
  const std::string share = "[shares.prompts]\nreaders = [\"blue\", \"red\"]\nwriters = [\"red\"]\n";
  use(share + "memory-bytes-max = " + std::to_string(4 * kBlockBytes) + "\n");
  store->with([&](Store& each) { each.set_tenants(access->tenant_limits()); });
  const NamespaceRecord shared = with(plain, "share", "prompts");
  const auto about = chain(1, 3);
  const auto red = as("red"), blue = as("blue"), gray = as("gray"), loose = as("loose"), nodes = as("node");
  speak_of(*red, shared);
  EXPECT_EQ(put(*red, about), 3u);
  const std::uint32_t of_red = space;
  speak_of(*blue, shared);
  EXPECT_EQ(get(*blue, about).bytes, blocks(about));
  for (const FrameType type : {FrameType::kPut, FrameType::kDrop, FrameType::kRetain}) {
    const Answer answer =
        type == FrameType::kPut ? blue->ask(type, 9, put_request(about)) : blue->ask(type, 9, prefix_request(about));
    EXPECT_EQ(answer.error(), Errc::kPermissionDenied) << frame_type_name(type);
    EXPECT_THAT(answer.message(), HasSubstr("the right 'write' in the share 'prompts' is missing"));
  }
  for (RawClient* const client : {gray.get(), loose.get()}) {
    const Answer answer = refused(*client, shared);
    EXPECT_EQ(answer.error(), Errc::kPermissionDenied);
    EXPECT_THAT(answer.message(), HasSubstr("the right 'read or write' in the share 'prompts' is missing"));
    const Answer unknown = refused(*client, with(plain, "share", "nothing"));
    EXPECT_EQ(unknown.error(), Errc::kPermissionDenied);
  }
  EXPECT_EQ(refused(*red, with(shared, "tenant", "red")).error(), Errc::kBadRequest);
  EXPECT_EQ(refused(*nodes, with(shared, "node_tenant", "red")).error(), Errc::kBadRequest);
  speak_of(*nodes, shared);
  EXPECT_EQ(put(*nodes, chain(2, 1)), 1u) << "as the mover does";
  EXPECT_EQ(nodes->ask(FrameType::kMatch, 9, match_request(about)).error(), Errc::kPermissionDenied);
  // It holds what it may, whoever writes.
  for (const TenantStats& each : store->with([](Store& inner) { return inner.tenants(); })) {
    if (each.usage.memory_bytes == 0) continue;
    EXPECT_EQ(each.limits.name, "share:prompts");
    EXPECT_EQ(each.limits.memory_bytes_max, 4 * kBlockBytes);
  }
  // What is shared is not what the tenant has under the same record.
  speak_of(*red, plain);
  EXPECT_EQ(matched(*red, about), 0u);
  // A changed list holds for the next request.
  use("[shares.prompts]\nreaders = [\"gray\"]\nwriters = [\"*\"]\n");
  record = shared;
  space = of_red;
  const Answer late = red->ask(FrameType::kMatch, 9, match_request(about));
  EXPECT_EQ(late.error(), Errc::kPermissionDenied);
  EXPECT_THAT(late.message(), HasSubstr("the right 'read' in the share 'prompts' is missing"));
  speak_of(*gray, shared);
  EXPECT_EQ(matched(*gray, about), 3u);
  EXPECT_EQ(refused(*loose, shared).error(), Errc::kPermissionDenied) << "all tenants: it has none";
}

TEST_F(TenantSaltTest, WithAnotherSecretATenantBeginsAnew) {
  const auto about = chain(1, 2);
  const auto blue = as("blue");
  speak_of(*blue, plain);
  EXPECT_EQ(put(*blue, about), 2u);
  write_secret(secret_file, kOtherDigits);
  use();
  const Answer stale = blue->ask(FrameType::kMatch, 9, match_request(about));
  EXPECT_EQ(stale.error(), Errc::kNoNamespace);
  EXPECT_THAT(stale.message(), HasSubstr("open the namespace again"));
  speak_of(*blue, plain);
  EXPECT_EQ(matched(*blue, about), 0u);
  write_secret(secret_file, kDigits + "0");
  EXPECT_TRUE(access->reload().code) << "a bad one changes nothing";
  EXPECT_EQ(matched(*blue, about), 0u);
  write_secret(secret_file, kDigits);
  use();
  speak_of(*blue, plain);
  EXPECT_EQ(matched(*blue, about), 2u) << "it was only renamed";
}

TEST_F(TenantSaltTest, WithoutASecretAPolicyStoresUnderTheRecordAsItIs) {
  has_secret = false;
  access.reset();
  use("[shares.prompts]\nreaders = [\"blue\"]\nwriters = [\"red\"]\n");
  const auto blue = as("blue"), gray = as("gray");
  const NamespaceRecord own = with(plain, "tenant", "blue"), shared = with(plain, "share", "prompts");
  speak_of(*blue, own);
  EXPECT_EQ(put(*blue, chain(1, 1)), 1u);
  EXPECT_EQ(store->with([](Store& each) { return each.list_spaces(nullptr).at(0).record->text(); }), own.text());
  EXPECT_EQ(refused(*blue, plain).error(), Errc::kPermissionDenied) << "as ever: of nobody";
  EXPECT_EQ(refused(*gray, shared).error(), Errc::kPermissionDenied) << "its lists hold all the same";
  speak_of(*blue, shared);
  EXPECT_EQ(matched(*blue, chain(1, 1)), 0u);
  EXPECT_THAT(AccessControl::open("", {}, secret_file).error().text, HasSubstr("no policy-file says who"));
}

TEST_F(TenantSaltTest, WhatPromptsBeginWithIsToldToTheirTenantOnly) {
  const auto about = chain(1, 4);
  const auto blue = as("blue"), red = as("red");
  const auto hot_blocks = [&](RawClient& client) {
    const Answer answer = client.ask(
        FrameType::kHotRoots, 8, [&](FlatBufferBuilder& b) { return wire::CreateHotRootsRequest(b, space, check()); });
    return answer.as<wire::HotRootsResponse>().blocks()->size();
  };
  speak_of(*blue, plain);
  for (int i = 0; i < 100; ++i) {
    const Answer matched = blue->ask(FrameType::kMatch, 9, [&, all = wire_hashes(about)](FlatBufferBuilder& b) {
      return wire::CreateMatchRequestDirect(b, space, &all, nullptr, false, false, check(), nullptr, 1,
                                            static_cast<std::uint32_t>(all.size()), 0);
    });
    ASSERT_FALSE(matched.is_error());
  }
  EXPECT_EQ(hot_blocks(*blue), 4u);
  speak_of(*red, plain);
  EXPECT_EQ(hot_blocks(*red), 0u);
}

TEST_F(TenantSaltTest, TheSaltIsShownToNobody) {
  const auto blue = as("blue"), keeper = as("keeper");
  speak_of(*blue, plain);
  put(*blue, chain(1, 1));
  const nlohmann::json stats = json_of(keeper->ask(FrameType::kAdmin, 7, admin_request("/stats.json")));
  ASSERT_EQ(stats.at("namespaces").size(), 1u);
  const auto text = stats["namespaces"][0]["record"].get<std::string>();
  EXPECT_THAT(text, AllOf(HasSubstr("node_tenant=blue"), Not(HasSubstr("node_salt"))));
  // And by what is shown an operator drops it.
  const auto shown = NamespaceRecord::parse(text).value();
  speak_of(*keeper, shown);
  EXPECT_EQ(count_of(*keeper, FrameType::kDrop, {}), 1u);
}

TEST(SharePolicyTest, AMistakeInAShareIsRefused) {
  const std::string good = "[a]\nmatch = [\"unix\"]\nroles = []\n";
  const auto expect = [&](const std::string& share, const std::string& words) {
    for (const std::string& text : {good + share, share + good}) {
      const auto parsed = AccessPolicy::parse(text);
      ASSERT_FALSE(parsed) << text;
      EXPECT_THAT(parsed.error().text, AllOf(StartsWith("policy-file: "), HasSubstr(words))) << text;
    }
  };
  expect("[shares.a]\n", "[shares.a] readers: none, and no writers");
  expect("[shares.a]\nreaders = [\"a b\"]\n", "[shares.a] readers: 'a b', allowed are names of tenants, and * for all");
  expect("[shares.a]\nreaders = [\"x\"]\nsessions-max = 3\n", "'sessions-max': allowed are readers, writers, memory-");
  expect("[shares.a]\nreaders = [\"x\"]\nbytes-per-second = 3\n", "'bytes-per-second': allowed are readers");
  expect("[shares.a]\nreaders = [\"x\"]\nmemory-bytes = 2\nmemory-bytes-max = 1\n", "more than memory-bytes-max");
  expect("[shares.a]\nreaders = [\"x\"]\n[shares.a]\nreaders = [\"x\"]\n", "[shares.a]: stands there twice");
  expect("[shares.\"a b\"]\nreaders = [\"x\"]\n", "a share's section is [shares.NAME]");
  expect("[shares]\nreaders = [\"x\"]\n", "stands in no section");
  expect("[tenants.a]\nreaders = [\"x\"]\n", "'readers': allowed are memory-bytes");
  const auto mixed = AccessPolicy::parse("[n]\nmatch = [\"unix\"]\nroles = [\"node\"]\ntenant = \"x\"\n");
  ASSERT_FALSE(mixed);
  EXPECT_THAT(mixed.error().text, HasSubstr("[n] roles: node, which stores for all tenants"));
  const auto parsed =
      AccessPolicy::parse(good + "[shares.a]\nreaders = [\"*\"]\nwriters = [\"x\", \"y\"]\n[tenants.a]\n");
  ASSERT_TRUE(parsed) << parsed.error();
  const SharePolicy* const share = (*parsed)->find_share("a");
  ASSERT_NE(share, nullptr);
  EXPECT_TRUE(share->is_reader("anybody") && share->is_writer("x") && share->is_writer("y"));
  EXPECT_FALSE(share->is_writer("z") || share->is_reader("") || share->is_writer(""));
  EXPECT_EQ((*parsed)->find_share("b"), nullptr);
}

}  // namespace
}  // namespace kv
