// The request for named contexts, over the wire: what is created, listed, extended and deleted, by whom, and what is
// refused in which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <set>
#include <sstream>

#include "store/node/access/access.h"
#include "store/node/access/tenant_figures.h"
#include "store/node/session/requests/contexts.h"
#include "tests/node/node_world.h"

namespace kv {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint8_t kCreate = 1, kList = 2, kExtend = 3, kDelete = 4, kWarm = 5, kStopWarming = 6, kTell = 7;

std::string token_for(const std::string& name) { return name + std::string(32, '-'); }
std::string hash_text(const std::string& token) {
  std::ostringstream text;
  for (const unsigned char byte : token_hash(token)) text << std::hex << std::setw(2) << std::setfill('0') << int{byte};
  return text.str();
}

struct Asked {
  std::uint8_t act = kList;
  std::string name = {};
  std::vector<BlockHash> hashes = {};
  std::vector<std::uint32_t> chain_counts = {};
  std::vector<std::string> tags = {};
  std::uint64_t ttl_us = 0, until_us = 0;
  bool sliding = false;
  std::string after = {};
  std::uint8_t priority = 255;
  std::uint32_t prefix_blocks = 0;
  std::vector<std::uint32_t> positions = {};
  std::uint32_t first = 0;
};

class SessionContextTest : public NodeTest {
 protected:
  SessionContextTest() {
    has_tenants = true;
    start(32);
    static int count = 0;
    policy_file = std::filesystem::temp_directory_path() /
                  ("kvstore-contexts-" + std::to_string(::getpid()) + "-" + std::to_string(++count));
    logger_before = spdlog::default_logger();
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(log);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  }
  ~SessionContextTest() override {
    spdlog::set_default_logger(logger_before);
    std::filesystem::remove(policy_file);
  }
  static std::string section(const std::string& name, const std::string& roles, const std::string& tenant = "") {
    return "[" + name + "]\ntoken-sha256 = [\"" + hash_text(token_for(name)) + "\"]\nroles = [" + roles + "]\n" +
           (tenant.empty() ? "" : "tenant = \"" + tenant + "\"\n");
  }
  void use(const std::string& policy) {
    std::ofstream(policy_file, std::ios::trunc) << policy;
    if (access) {
      EXPECT_FALSE(access->reload().code);
    } else {
      access = AccessControl::open(policy_file).value();
      node->access = access.get();
    }
    store->with([&](Store& each) { each.set_tenants(access->tenant_limits()); });
  }
  std::unique_ptr<RawClient> as(const std::string& name) {
    auto client = connect();
    const std::string token = token_for(name);
    EXPECT_FALSE(client
                     ->ask(FrameType::kHello, 1,
                           [&](FlatBufferBuilder& b) {
                             return wire::CreateHelloRequestDirect(b, 1, kWireVersion, "test", token.c_str());
                           })
                     .is_error());
    return client;
  }
  static NamespaceRecord record_for(const std::string& tenant) {
    return make_record("m", kBlockBytes).with({{"tenant", tenant}}).value();
  }
  void speak_of(RawClient& client, const NamespaceRecord& which) {
    record = which;
    space = open(client, which);
  }
  Answer ask(RawClient& client, const Asked& asked) {
    return client.ask(FrameType::kContext, 50, [&](FlatBufferBuilder& b) {
      const auto hashes = wire_hashes(asked.hashes);
      std::vector<flatbuffers::Offset<flatbuffers::String>> tags;
      for (const std::string& tag : asked.tags) tags.push_back(b.CreateString(tag));
      return wire::CreateContextRequestDirect(
          b, asked.act, asked.name.empty() ? nullptr : asked.name.c_str(), space, check(), &hashes,
          asked.chain_counts.empty() ? nullptr : &asked.chain_counts, tags.empty() ? nullptr : &tags, asked.ttl_us,
          asked.until_us, asked.sliding, asked.after.empty() ? nullptr : asked.after.c_str(), asked.priority,
          asked.prefix_blocks, asked.positions.empty() ? nullptr : &asked.positions, asked.first);
    });
  }
  static std::uint64_t wall_us() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count());
  }
  static std::vector<std::string> names_in(const Answer& answer) {
    std::vector<std::string> names;
    for (const auto* each : *answer.as<wire::ContextResponse>().contexts()) names.push_back(each->name()->str());
    return names;
  }

  std::string policy_file;
  std::ostringstream log;
  std::shared_ptr<spdlog::logger> logger_before;
  std::unique_ptr<AccessControl> access;
};

TEST_F(SessionContextTest, OneIsCreatedListedExtendedAndDeleted) {
  const auto client = greet();
  const auto about = chain(1, 4);
  put(*client, std::span(about).first(3));
  const std::uint64_t before = wall_us();
  const Answer made = ask(
      *client, {.act = kCreate, .name = "prompt", .hashes = about, .tags = {"a b", "team=x"}, .ttl_us = 60'000'000});
  ASSERT_FALSE(made.is_error()) << made.message();
  const auto& one = *made.as<wire::ContextResponse>().contexts()->Get(0);
  EXPECT_EQ(one.name()->str(), "prompt");
  EXPECT_EQ(one.wanted_blocks(), 4u);
  EXPECT_EQ(one.kept_blocks(), 3u);
  EXPECT_EQ(one.kept_bytes(), 3 * kBlockBytes);
  EXPECT_EQ(static_cast<Errc>(one.why()), Errc::kNotFound);
  EXPECT_EQ(one.written_tokens(), 3 * kBlockSize);
  EXPECT_EQ(one.tags()->size(), 2u);
  EXPECT_EQ(one.tags()->Get(0)->str(), "a b");
  EXPECT_EQ(one.model()->str(), "m");
  EXPECT_EQ(one.ttl_us(), 60'000'000u);
  EXPECT_FALSE(one.sliding());
  EXPECT_GE(one.created_us(), before);
  EXPECT_EQ(one.expires_us(), one.created_us() + 60'000'000);
  EXPECT_EQ(to_hex(std::as_bytes(std::span(one.namespace_id()->data(), 16))), to_hex(record.id().bytes));

  get(*client, std::span(about).first(3));
  const Answer listed = ask(*client, {});
  EXPECT_EQ(listed.as<wire::ContextResponse>().contexts()->Get(0)->read_tokens(), 3 * kBlockSize);
  EXPECT_GT(listed.as<wire::ContextResponse>().contexts()->Get(0)->used_us(), 0u);
  EXPECT_FALSE(listed.as<wire::ContextResponse>().more());

  const Answer extended = ask(*client, {.act = kExtend, .name = "prompt", .until_us = wall_us() + 3'600'000'000});
  const auto& longer = *extended.as<wire::ContextResponse>().contexts()->Get(0);
  EXPECT_NEAR(static_cast<double>(longer.expires_us() - wall_us()), 3.6e9, 60e6);
  EXPECT_FALSE(ask(*client, {.act = kDelete, .name = "prompt"}).is_error());
  EXPECT_EQ(names_in(ask(*client, {})).size(), 0u);
  for (const std::uint8_t act : std::to_array<std::uint8_t>({kList, kExtend, kDelete, kWarm, kStopWarming})) {
    const Answer gone = ask(*client, {.act = act, .name = "prompt", .ttl_us = act == kExtend ? 1u : 0u});
    EXPECT_EQ(gone.error(), Errc::kNotFound);
    EXPECT_THAT(gone.message(), HasSubstr("no context 'prompt'"));
  }
}

TEST_F(SessionContextTest, WhatIsNoGoodRequestIsRefusedInWordsAndChangesNothing) {
  const auto client = greet();
  const auto about = chain(1, 2);
  put(*client, about);
  const auto refused = [&](Errc code, const std::string& words, const Asked& asked) {
    const Answer answer = ask(*client, asked);
    ASSERT_TRUE(answer.is_error()) << words;
    EXPECT_EQ(answer.error(), code) << answer.message();
    EXPECT_THAT(answer.message(), AllOf(HasSubstr("context"), HasSubstr(words)));
  };
  for (const std::uint8_t act : std::to_array<std::uint8_t>({0, 8, 254}))
    refused(Errc::kUnsupported, "context.act", {.act = act, .name = "a"});
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a\n"), std::string(129, 'a'), std::string("\xC3\xA9")})
    refused(Errc::kBadRequest, "name", {.act = kCreate, .name = name, .hashes = about, .ttl_us = 1});
  refused(Errc::kBadRequest, "tags", {.act = kCreate, .name = "a", .hashes = about, .tags = {"\n"}, .ttl_us = 1});
  refused(Errc::kBadRequest, "tags",
          {.act = kCreate, .name = "a", .hashes = about, .tags = std::vector<std::string>(17, "t"), .ttl_us = 1});
  refused(Errc::kBadRequest, "ttl_us", {.act = kCreate, .name = "a", .hashes = about});
  refused(Errc::kBadRequest, "ttl_us", {.act = kCreate, .name = "a", .hashes = about, .ttl_us = ~0ull});
  refused(Errc::kBadRequest, "until_us", {.act = kCreate, .name = "a", .hashes = about, .until_us = 1});
  refused(Errc::kBadRequest, "until_us", {.act = kCreate, .name = "a", .hashes = about, .until_us = ~0ull});
  refused(Errc::kBadRequest, "sliding",
          {.act = kCreate, .name = "a", .hashes = about, .until_us = wall_us() + 1'000'000'000, .sliding = true});
  refused(Errc::kBadRequest, "one of both",
          {.act = kCreate, .name = "a", .hashes = about, .ttl_us = 5, .until_us = wall_us() + 1'000'000'000});
  refused(Errc::kBadRequest, "hashes", {.act = kCreate, .name = "a", .ttl_us = 1});
  refused(Errc::kBadRequest, "priority: 10, allowed are 0 to 9",
          {.act = kCreate, .name = "a", .hashes = about, .ttl_us = 1, .priority = 10});
  refused(Errc::kBadRequest, "priority: 254", {.act = kExtend, .name = "a", .ttl_us = 1, .priority = 254});
  using Positions = std::vector<std::uint32_t>;
  for (const Positions& positions :
       {Positions{0}, Positions{1, 1}, Positions{2, 1}, Positions{1, 3}, Positions{0, 1, 2}}) {
    refused(Errc::kBadRequest, "positions",
            {.act = kCreate, .name = "a", .hashes = about, .ttl_us = 1, .prefix_blocks = 3, .positions = positions});
  }
  refused(Errc::kBadRequest, "positions",
          {.act = kCreate, .name = "a", .hashes = about, .ttl_us = 1, .prefix_blocks = 1});
  refused(Errc::kBadRequest, "positions",
          {.act = kCreate, .name = "a", .hashes = about, .ttl_us = 1, .positions = {0, 1}});
  refused(Errc::kBadRequest, "chain_counts",
          {.act = kCreate, .name = "a", .hashes = about, .chain_counts = {1, 2}, .ttl_us = 1});
  refused(Errc::kBadRequest, "chain_counts",
          {.act = kCreate, .name = "a", .hashes = about, .chain_counts = {0, 2}, .ttl_us = 1});
  refused(Errc::kBadRequest, "chain_counts",
          {.act = kCreate, .name = "a", .hashes = about, .chain_counts = {0xFFFFFFFF, 3}, .ttl_us = 1});
  const std::uint32_t right = space;
  space = 77;
  refused(Errc::kNoNamespace, "space", {.act = kCreate, .name = "a", .hashes = about, .ttl_us = 1});
  space = right;
  node->draining = true;
  EXPECT_EQ(ask(*client, {.act = kCreate, .name = "a", .hashes = about, .ttl_us = 1}).error(), Errc::kDraining);
  node->draining = false;
  EXPECT_TRUE(names_in(ask(*client, {})).empty());
}

TEST_F(SessionContextTest, ALongListComesInPages) {
  const auto client = greet();
  const auto about = chain(1, 1);
  put(*client, about);
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) names.push_back("c" + std::to_string(1000 + i));
  for (const std::string& name : names)
    ASSERT_FALSE(ask(*client, {.act = kCreate, .name = name, .hashes = about, .ttl_us = 1'000'000'000}).is_error());
  std::vector<std::string> listed;
  bool has_more = true;
  for (int pages = 0; has_more && pages < 10; ++pages) {
    const Answer page = ask(*client, {.after = listed.empty() ? "" : listed.back()});
    const auto more = names_in(page);
    EXPECT_LE(more.size(), kContextsPerAnswer);
    listed.insert(listed.end(), more.begin(), more.end());
    has_more = page.as<wire::ContextResponse>().more();
  }
  EXPECT_EQ(listed, names);
}

TEST_F(SessionContextTest, OneTenantCanDoNothingWithAnothers) {
  const std::string all = R"("reader", "writer", "operator")";
  use(section("blue", all, "blue") + section("red", all, "red") + section("keeper", all));
  const auto blue = as("blue"), red = as("red"), keeper = as("keeper");
  const auto about = chain(1, 2);
  speak_of(*blue, record_for("blue"));
  const std::uint32_t of_blue = space;
  put(*blue, about);
  ASSERT_FALSE(ask(*blue, {.act = kCreate, .name = "mine", .hashes = about, .tags = {"secret"}, .ttl_us = 60'000'000})
                   .is_error());
  speak_of(*red, record_for("red"));
  for (RawClient* const other : {red.get(), keeper.get()}) {
    EXPECT_TRUE(names_in(ask(*other, {})).empty());
    const Answer shown = ask(*other, {.name = "mine"});
    const Answer never = ask(*other, {.name = "none"});
    EXPECT_EQ(shown.error(), Errc::kNotFound);
    EXPECT_EQ(shown.message(), "context list: no context 'mine'");
    EXPECT_EQ(never.message(), "context list: no context 'none'") << "the same words";
    EXPECT_EQ(ask(*other, {.act = kExtend, .name = "mine", .ttl_us = 1}).error(), Errc::kNotFound);
    for (const std::uint8_t act : std::to_array<std::uint8_t>({kDelete, kWarm, kStopWarming, kTell}))
      EXPECT_EQ(ask(*other, {.act = act, .name = "mine"}).error(), Errc::kNotFound);
  }
  // Of another's blocks: the namespace is not its own.
  space = of_blue;
  record = record_for("blue");
  EXPECT_TRUE(ask(*red, {.act = kCreate, .name = "theirs", .hashes = about, .ttl_us = 1}).is_error());
  // The same name is another context.
  speak_of(*red, record_for("red"));
  put(*red, about);
  ASSERT_FALSE(ask(*red, {.act = kCreate, .name = "mine", .hashes = about, .ttl_us = 60'000'000}).is_error());
  ASSERT_FALSE(ask(*red, {.act = kDelete, .name = "mine"}).is_error());
  EXPECT_EQ(names_in(ask(*blue, {})), std::vector<std::string>{"mine"});
  const auto totals = store->with([](Store& each) { return each.context_totals(); });
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].owner, "blue");
  EXPECT_EQ(totals[0].count, 1u);
  EXPECT_EQ(totals[1].count, 0u);
  metrics.watch_tenants([&] { return context_figures(totals); });
  const std::string text = metrics.text();
  EXPECT_THAT(text,
              AllOf(HasSubstr("kvstore_contexts{tenant=\"blue\"} 1"), HasSubstr("kvstore_contexts{tenant=\"\"} 0"),
                    HasSubstr("kvstore_context_created_total{tenant=\"red\"} 1"),
                    HasSubstr("kvstore_context_deleted_total{tenant=\"red\"} 1"), Not(HasSubstr("mine"))));
}

TEST_F(SessionContextTest, EachActNeedsTheRightToOperateAndIsAudited) {
  for (const PolicyRole role : kEachRole) {
    use(section("one", std::string("\"") + policy_role_name(role) + "\""));
    const auto client = as("one");
    for (std::uint8_t act = kCreate; act <= kTell; ++act) {
      const Answer answer = ask(*client, {.act = act, .name = "x", .hashes = chain(1, 1), .ttl_us = 1});
      const bool is_denied = answer.is_error() && answer.error() == Errc::kPermissionDenied;
      EXPECT_EQ(is_denied, role != PolicyRole::kOperator) << policy_role_name(role) << " " << int{act};
    }
  }
  log.str("");
  use(section("one", R"("reader", "writer", "operator")", "blue"));
  const auto client = as("one");
  speak_of(*client, record_for("blue"));
  const auto about = chain(1, 2);
  put(*client, std::span(about).first(1));
  ask(*client, {.act = kCreate, .name = "x", .hashes = about, .ttl_us = 60'000'000});
  ask(*client, {});
  ask(*client, {.act = kDelete, .name = "y"});
  EXPECT_THAT(log.str(),
              AllOf(HasSubstr("audit: act=context"), HasSubstr("context=create name='x' namespace="),
                    HasSubstr("result=ok kept=1 wanted=2 why='the rest is not in memory'"),
                    HasSubstr("context=list result=ok count=1"),
                    HasSubstr("context=delete name='y' result=refused why='context delete: no context 'y''")));
}

TEST_F(SessionContextTest, TheBoundThatIsReachedIsNamedWithItsValue) {
  const auto client = greet();
  const auto about = chain(1, 2);
  for (int i = 0; i < 1024; ++i)
    ASSERT_FALSE(
        ask(*client, {.act = kCreate, .name = "c" + std::to_string(i), .hashes = about, .ttl_us = 1'000'000'000})
            .is_error());
  const Answer full = ask(*client, {.act = kCreate, .name = "one-more", .hashes = about, .ttl_us = 1'000'000'000});
  EXPECT_EQ(full.error(), Errc::kOverQuota);
  EXPECT_EQ(full.message(),
            "context create: the tenant has 1024 contexts, 1 more are asked for, and at most 1024 are allowed");
  const Answer counts = ask(*client, {.act = kCreate, .name = "c1", .hashes = about, .chain_counts = {1}, .ttl_us = 1});
  EXPECT_EQ(counts.message(),
            "context create: chain_counts: 1 that do not cut 2 hashes into chains of at least one; at most 512 are "
            "allowed");
}

TEST_F(SessionContextTest, WhereThereIsNoDiskThereIsNothingToWarm) {
  const auto client = greet();
  const auto about = chain(1, 4);
  put(*client, std::span(about).first(3));
  ASSERT_FALSE(ask(*client, {.act = kCreate, .name = "x", .hashes = about, .ttl_us = 60'000'000}).is_error());
  for (const std::uint8_t act : std::to_array<std::uint8_t>({kWarm, kStopWarming, kList})) {
    const Answer answer = ask(*client, {.act = act, .name = "x"});
    ASSERT_FALSE(answer.is_error()) << answer.message();
    const auto& one = *answer.as<wire::ContextResponse>().contexts()->Get(0);
    EXPECT_FALSE(one.warming());
    EXPECT_TRUE(one.looked());
    EXPECT_EQ(one.memory_blocks(), 3u);
    EXPECT_EQ(one.disk_blocks(), 0u);
  }
  EXPECT_FALSE(ask(*client, {}).as<wire::ContextResponse>().contexts()->Get(0)->looked())
      << "of a list it would be dear";
}

TEST_F(SessionContextTest, WhatItIsOfIsToldInPagesAndWithoutWhatTheNodeAdds) {
  const std::string all = R"("reader", "writer", "operator")";
  chain_blocks_max = 20'000;
  start(32);
  use(section("blue", all, "blue"));
  const auto blue = as("blue");
  speak_of(*blue, record_for("blue"));
  const std::size_t count = 2 * kContextHashesPerAnswer + 5;
  const auto about = chain(1, count);
  std::vector<std::uint32_t> positions(count);
  for (std::size_t i = 0; i < count; ++i) positions[i] = static_cast<std::uint32_t>(2 * i + 1);
  const Answer made = ask(*blue, {.act = kCreate,
                                  .name = "x",
                                  .hashes = about,
                                  .ttl_us = 60'000'000,
                                  .prefix_blocks = static_cast<std::uint32_t>(2 * count),
                                  .positions = positions});
  ASSERT_FALSE(made.is_error()) << made.message();
  std::vector<BlockHash> told;
  std::vector<std::uint32_t> places;
  bool has_more = true;
  std::set<std::uint64_t> ids;
  for (int pages = 0; has_more && pages < 10; ++pages) {
    const Answer page = ask(*blue, {.act = kTell, .name = "x", .first = static_cast<std::uint32_t>(told.size())});
    ASSERT_FALSE(page.is_error()) << page.message();
    const auto& response = page.as<wire::ContextResponse>();
    EXPECT_EQ(response.contexts()->size(), 1u);
    EXPECT_EQ(response.record()->str(), record_for("blue").text());
    EXPECT_EQ(response.prefix_blocks(), 2 * count);
    ASSERT_LE(response.hashes()->size(), kContextHashesPerAnswer);
    ids.insert(response.context());
    for (const wire::Hash* each : *response.hashes()) {
      BlockHash hash;
      std::memcpy(hash.bytes.data(), each, sizeof hash);
      told.push_back(hash);
    }
    for (const std::uint32_t each : *response.positions()) places.push_back(each);
    has_more = response.more();
  }
  EXPECT_EQ(told, about);
  EXPECT_EQ(places, positions);
  EXPECT_EQ(ids.size(), 1u);
  const Answer past = ask(*blue, {.act = kTell, .name = "x", .first = 1 << 30});
  EXPECT_EQ(past.as<wire::ContextResponse>().hashes()->size(), 0u);
  // One of an older client: in which order it stands, nobody has said.
  ASSERT_FALSE(ask(*blue, {.act = kCreate, .name = "x", .hashes = chain(1, 3), .ttl_us = 60'000'000}).is_error());
  const Answer other = ask(*blue, {.act = kTell, .name = "x"});
  EXPECT_EQ(other.as<wire::ContextResponse>().prefix_blocks(), 0u);
  EXPECT_EQ(other.as<wire::ContextResponse>().positions(), nullptr);
  EXPECT_FALSE(ids.contains(other.as<wire::ContextResponse>().context()));
}

TEST_F(SessionContextTest, APriorityIsToldAndKeptOverAnExtension) {
  const auto client = greet();
  const auto about = chain(1, 2);
  const auto priority_in = [&](const Asked& asked) {
    const Answer answer = ask(*client, asked);
    EXPECT_FALSE(answer.is_error()) << answer.message();
    return answer.as<wire::ContextResponse>().contexts()->Get(0)->priority();
  };
  EXPECT_EQ(priority_in({.act = kCreate, .name = "a", .hashes = about, .ttl_us = 60'000'000}), 5u);
  EXPECT_EQ(priority_in({.act = kCreate, .name = "b", .hashes = about, .ttl_us = 60'000'000, .priority = 0}), 0u);
  EXPECT_EQ(priority_in({.act = kExtend, .name = "b", .ttl_us = 60'000'000}), 0u);
  EXPECT_EQ(priority_in({.act = kExtend, .name = "b", .ttl_us = 60'000'000, .priority = 9}), 9u);
  EXPECT_EQ(priority_in({.name = "b"}), 9u);
}

TEST_F(SessionContextTest, WhatIsNotKeptIsALineOfTheLog) {
  EXPECT_EQ(context_news_text({"blue", "x", 10, 4, 3, 0, Errc::kNotFound}),
            "context 'x' of tenant 'blue' keeps 4 of 10 blocks: the rest is not in memory; 3 were dropped since it was "
            "created");
  EXPECT_EQ(context_news_text({"", "x", 10, 4, 0, 0, Errc::kOverQuota}),
            "context 'x' keeps 4 of 10 blocks: the tenant's retained-bytes-max is reached");
  EXPECT_EQ(
      context_news_text({"", "x", 10, 4, 0, 6, Errc::kBusy}),
      "context 'x' keeps 4 of 10 blocks: retained-fraction-max is reached; 6 were given up for contexts of higher "
      "priority");
}

}  // namespace
}  // namespace kv
