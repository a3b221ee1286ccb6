// The table of rights, cell by cell: roles, requests and pages, and whose blocks they concern; with a session's frames
// and over HTTP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "store/node/access/access.h"
#include "store/node/events/event_answers.h"
#include "store/node/listen/admin.h"
#include "store/node/status/status.h"
#include "tests/node/admin_question.h"
#include "tests/node/node_world.h"
#include "tests/node/policy_parts.h"

namespace kv {
namespace {

using testing::HasSubstr;
using testing::Not;

/// The access of peers without a tenant, and of peers of a tenant.
std::string_view scope_of_all(Scope scope) {
  switch (scope) {
    case Scope::kNobody: return "yes";
    case Scope::kOwner: return "of all, see below";
    case Scope::kShown:
    case Scope::kNode: return "of the whole node";
  }
  return "?";
}

std::string_view scope_of_tenant(Scope scope) {
  switch (scope) {
    case Scope::kNobody: return "yes";
    case Scope::kOwner:
    case Scope::kShown: return "of its own tenant";
    case Scope::kNode: return "no";
  }
  return "?";
}

/// The table as Markdown.
std::string rights_table() {
  std::string text =
      "| request or page | right | roles that have it | without a tenant | with a tenant |\n"
      "| --- | --- | --- | --- | --- |\n";
  const auto add = [&](std::string_view name, const Rule& rule) {
    text += "| `";
    text += name;
    text += std::string("` | `") + right_name(rule.right) + "` | " +
            (rule.right == Right::kEverybody ? "whoever is connected" : roles_text(roles_with(rule.right))) + " | ";
    text += scope_of_all(rule.scope);
    text += " | ";
    text += scope_of_tenant(rule.scope);
    text += " |\n";
  };
  for (const RequestRule& each : kRequestRules) add(frame_type_name(each.type), each.rule);
  for (const PageRule& each : kPageRules) add(each.path, each.rule);
  return text;
}

TEST(RightsTableTest, IsWhatTheDocumentationHas) {
  std::ostringstream page;
  page << std::ifstream(KV_DOCS_DIR "/security.md").rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("\n\n" + rights_table() + "\n"))
      << "docs/security.md, section Rights, has to have this table";
}

TEST(RightsTableTest, WhatStandsInNoTableIsForNobody) {
  EXPECT_EQ(rule_for("/secret").right, Right::kNobody);
  EXPECT_EQ(rule_for(static_cast<FrameType>(kFrameTypeMax + 1)).right, Right::kNobody);
  EXPECT_FALSE(has_right(kAllRoles, Right::kNobody));
}

/// A node with namespaces of the tenants blue and red. Clients are "loopback" to the policy.
class RightsTest : public NodeTest {
 protected:
  RightsTest() {
    has_tenants = true;
    event_count_max = 1000;
    start(64);
    const std::string stem = std::filesystem::temp_directory_path() / ("kvstore-rights-" + std::to_string(::getpid()));
    file_ = stem + ".toml";
    secret_file_ = stem + ".secret";
  }
  ~RightsTest() override {
    admin_.reset();
    std::filesystem::remove(file_);
    std::filesystem::remove(secret_file_);
  }

  void give(Roles roles, const std::string& tenant, bool has_secret = false) {
    std::string list;
    for (const PolicyRole role : kEachRole) {
      if ((roles & static_cast<Roles>(role)) != 0)
        list += (list.empty() ? "\"" : ", \"") + std::string(policy_role_name(role)) + "\"";
    }
    std::ofstream(file_, std::ios::trunc) << "[all]\nmatch = [\"loopback\"]\nroles = [" << list << "]\n"
                                          << (tenant.empty() ? "" : "tenant = \"" + tenant + "\"\n");
    if (access_) {
      EXPECT_FALSE(access_->reload().code);
      return;
    }
    if (has_secret) {
      std::ofstream(secret_file_) << std::string(64, 'a') << "\n";
      std::filesystem::permissions(secret_file_, std::filesystem::perms::owner_read);
    }
    access_ = AccessControl::open(file_, {}, has_secret ? secret_file_ : "").value();
    node->access = access_.get();
  }
  static NamespaceRecord record_for(const std::string& tenant) {
    return NamespaceRecord::from_fields({{"model", "m"},
                                         {"block_size", std::to_string(kBlockSize)},
                                         {"block_bytes", std::to_string(kBlockBytes)},
                                         {"tenant", tenant}})
        .value();
  }
  /// Requests are of this tenant's namespace from now on.
  void turn_to(const std::string& tenant) {
    record = record_for(tenant);
    space = spaces_[tenant];
  }
  /// Each tenant has blocks, a hot root, and a line in the slow log.
  std::unique_ptr<RawClient> fill(const std::function<void(const std::string&)>& become) {
    std::unique_ptr<RawClient> client;
    for (const std::string tenant : {"blue", "red"}) {
      become(tenant);
      if (!client) {
        client = connect();
        EXPECT_FALSE(client->ask(FrameType::kHello, 1, hello_request()).is_error());
      }
      spaces_[tenant] = open(*client, record_for(tenant));
      turn_to(tenant);
      EXPECT_EQ(put(*client, chain(1, 3)), 3u);
      node->slow.add({.took = 1s, .asker = tenant, .identity = "slow-of-" + tenant});
    }
    const auto views = store->with([](Store& each) { return each.list_spaces(nullptr); });
    for (const auto& view : views) {
      if (view.record->owner() != "red") continue;
      for (int i = 0; i < 600; ++i) node->hot_roots->count(view.name, chain(1, 3), 0, 1, owner_of(*view.record));
    }
    return client;
  }

  // -- the table
  static bool is_allowed(Roles roles, const std::string& tenant, const Rule& rule, const std::string& owner) {
    if (!has_right(roles, rule.right)) return false;
    if (tenant.empty() || rule.scope == Scope::kNobody || rule.scope == Scope::kShown) return true;
    return rule.scope == Scope::kOwner && owner == tenant;
  }
  static bool is_shown(const std::string& tenant, const std::string& owner) {
    return tenant.empty() || tenant == owner;
  }
  static void expect_own(const std::string& answer, std::string_view path, const std::string& tenant,
                         const std::string& who) {
    for (const std::string owner : {"blue", "red"}) {
      EXPECT_EQ(answer.find(mark_of(path, owner)) != std::string::npos, is_shown(tenant, owner))
          << path << " by " << who << ": " << answer;
    }
  }

  // -- over the wire
  struct Cell {
    bool is_denied = false;
    std::optional<Answer> answer;
  };
  template <class Build>
  Cell ask_cell(RawClient& client, FrameType type, Right right, Build build) {
    const std::string count = std::string("kvstore_requests_denied_total{right=\"") + right_name(right) + "\"}";
    const double before = metric(count);
    const std::uint64_t id = ++id_last_;
    client.send(type, id, build);
    client.send(FrameType::kPing, ++id_last_, ping());  // put_data and cancel have no answer of their own
    Cell cell;
    for (Answer answer = client.answer(); answer.header.request_id != id_last_; answer = client.answer()) {
      if (answer.header.request_id == id) cell.answer = std::move(answer);
    }
    cell.is_denied = metric(count) != before;
    EXPECT_EQ(cell.is_denied, type == FrameType::kPutData
                                  ? cell.is_denied
                                  : cell.answer && cell.answer->error() == Errc::kPermissionDenied)
        << "each denial is counted and told";
    return cell;
  }
  /// As far as it has to be right for the question whether it may be asked.
  Cell ask_request(RawClient& client, FrameType type, const std::string& owner) {
    turn_to(owner);
    const Right right = rule_for(type).right;
    const auto of_space = [&](auto build) { return ask_cell(client, type, right, build); };
    switch (type) {
      case FrameType::kOpen: return of_space(open_request(record));
      case FrameType::kMatch: return of_space(match_request({}));
      case FrameType::kGet: return of_space(get_request({}));
      case FrameType::kPut: return of_space(put_request({}));
      case FrameType::kTouch:
      case FrameType::kRetain:
      case FrameType::kUnretain:
      case FrameType::kDrop: return of_space(prefix_request(chain(9, 1)));
      case FrameType::kSetMatch:
        return of_space([&](FlatBufferBuilder& b) {
          wire::SetMatchRequestBuilder request(b);
          request.add_space(space);
          request.add_namespace_check(check());
          return request.Finish();
        });
      case FrameType::kSetGet:
        return of_space([&](FlatBufferBuilder& b) {
          wire::SetGetRequestBuilder request(b);
          request.add_space(space);
          request.add_namespace_check(check());
          return request.Finish();
        });
      case FrameType::kSetPut:
        return of_space([&](FlatBufferBuilder& b) {
          wire::SetPutRequestBuilder request(b);
          request.add_space(space);
          request.add_namespace_check(check());
          return request.Finish();
        });
      case FrameType::kHotRoots:
        return of_space([&](FlatBufferBuilder& b) { return wire::CreateHotRootsRequest(b, space, check()); });
      case FrameType::kContext:
        return of_space([&](FlatBufferBuilder& b) {
          const auto name = b.CreateString("c");
          wire::ContextRequestBuilder request(b);
          request.add_act(1);
          request.add_name(name);
          request.add_space(space);
          request.add_namespace_check(check());
          request.add_ttl_us(1'000'000);
          return request.Finish();
        });
      default: return of_space(ping());  // an empty table: what is wrong with it is found out later
    }
  }
  /// A query that is right, so that a refusal is about rights.
  std::string query_for(std::string_view path, const std::string& owner) const {
    if (path == "/drain") return "node=" + node->node_id + "&drain=true";
    return path == "/erase" ? "tenant=" + owner : "";
  }
  /// Words in an answer that is about this tenant too.
  static std::string mark_of(std::string_view path, const std::string& owner) {
    if (path == "/slowlog.json") return "slow-of-" + owner;
    return path == "/stats.json" ? "tenant=" + owner : "\"tenant\":\"" + owner + "\"";
  }
  void log_slow_requests() {
    node->slow.clear();
    for (const std::string owner : {"blue", "red"})
      node->slow.add({.took = 1s, .asker = owner, .identity = "slow-of-" + owner});
  }

  /// Over HTTP, and by the request admin if it answers the path at once.
  void ask_page(RawClient& client, const PageRule& each, Roles roles, const std::string& tenant,
                const std::string& owner, const std::string& who) {
    const bool is_here = is_allowed(roles, tenant, each.rule, owner);
    const std::string path(each.path), query = query_for(path, owner);
    log_slow_requests();
    if (is_question(path) && !is_slow(path)) {
      const Cell cell = ask_cell(client, FrameType::kAdmin, each.rule.right, admin_request(path, query));
      EXPECT_NE(cell.is_denied, is_here) << path << " by " << who << ", of " << owner;
      if (path == "/slowlog/reset") {
        EXPECT_EQ(node->slow.told().requests.empty(), is_here) << who;
        log_slow_requests();
      }
      if (is_here && each.rule.scope == Scope::kShown) expect_own(json_of(*cell.answer).dump(), path, tenant, who);
      if (is_here && path == "/stats.json") expect_own_figures(json_of(*cell.answer), tenant, who);
    }
    const std::string answer = page(path, query);
    EXPECT_NE(answer.starts_with("HTTP/1.1 403"), is_here) << path << " by " << who << ", of " << owner << answer;
    if (path == "/slowlog/reset") {
      EXPECT_EQ(node->slow.told().requests.empty(), is_here) << who;
    }
    if (is_here && each.rule.scope == Scope::kShown) expect_own(answer, path, tenant, who);
  }
  static void expect_own_figures(const nlohmann::json& told, const std::string& tenant, const std::string& who) {
    EXPECT_EQ(told.at("values").contains("capacity_bytes"), tenant.empty()) << who << told;
    EXPECT_EQ(told.at("hot").empty(), !is_shown(tenant, "red")) << who << told;
    for (const std::string owner : {"blue", "red"}) {
      bool has_figures = false;
      for (const nlohmann::json& one : told.at("tenants")) has_figures |= one.at("name") == owner;
      EXPECT_EQ(has_figures, is_shown(tenant, owner)) << who << told;
    }
  }

  // -- over HTTP
  void serve_pages() {
    AdminPages pages{.metrics = [] { return std::string("kvstore_up 1\n"); }, .is_ready = [] { return true; }};
    pages.answer = [this](const AdminQuestion& question, PeerAccess& peer) {
      return answer_admin(*node, question, peer);
    };
    node->admin_parts["/status"] = [this](const AdminQuestion& asked, PeerAccess& peer) {
      return AdminAnswer{.json = status_->answer(asked.path, asked.query, peer).value()};
    };
    node->admin_parts["/events"] = [this](const AdminQuestion& asked, PeerAccess& peer) {
      const auto may_see = [&](const NamespaceRecord& stored) { return peer.sees_blocks(owner_of(stored)); };
      return AdminAnswer{.json = events_->answer(asked.path, asked.query, may_see).value()};
    };
    node->admin_parts["/config"] = [](const AdminQuestion&, PeerAccess&) { return AdminAnswer{.json = "{}"}; };
    StatusConfig config;
    config.is_ready = [] { return true; };
    status_ = std::make_unique<StatusAnswers>(*node, config);
    events_ = std::make_unique<EventAnswers>(*store, node->instance);
    admin_ = AdminServer::start("127.0.0.1", 0, std::move(pages), nullptr, access_.get()).value();
  }
  std::string page(std::string_view path, const std::string& query = "") {
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    socket.connect({asio::ip::make_address("127.0.0.1"), admin_->port()});
    const std::string request = (is_act(path) ? "POST " : "GET ") + std::string(path) + (query.empty() ? "" : "?") +
                                query +
                                " HTTP/1.1\r\nHost: localhost\r\nX-Kvstore-Config: test\r\nConnection: close\r\n\r\n";
    boost::system::error_code ignored;
    asio::write(socket, asio::buffer(request), ignored);
    std::string answer;
    asio::read(socket, asio::dynamic_buffer(answer), ignored);
    return answer;
  }

  std::unique_ptr<AccessControl> access_;

 private:
  std::string file_, secret_file_;
  std::map<std::string, std::uint32_t> spaces_;
  std::uint64_t id_last_ = 1000;
  std::unique_ptr<StatusAnswers> status_;
  std::unique_ptr<EventAnswers> events_;
  std::unique_ptr<AdminServer> admin_;
};

constexpr Roles role(PolicyRole one) { return static_cast<Roles>(one); }
constexpr Roles kNodeRole = role(PolicyRole::kNode);
const std::vector<Roles> kRoleSets = {0,
                                      role(PolicyRole::kReader),
                                      role(PolicyRole::kWriter),
                                      role(PolicyRole::kOperator),
                                      role(PolicyRole::kMetrics),
                                      kNodeRole,
                                      kAllRoles};

TEST_F(RightsTest, EveryCellOfTheTableHoldsForOnesOwnTenantAndForOthers) {
  give(kAllRoles, "");
  const auto client = fill([](const std::string&) {});
  serve_pages();
  for (const std::string tenant : {"", "blue"}) {
    for (Roles roles : kRoleSets) {
      if (!tenant.empty() && (roles & kNodeRole) != 0) roles &= kTenantRoles;
      give(roles, tenant);
      const std::string who = roles_text(roles) + (tenant.empty() ? "" : " of " + tenant);
      for (const std::string owner : {"blue", "red"}) {
        for (const RequestRule& each : kRequestRules) {
          EXPECT_NE(ask_request(*client, each.type, owner).is_denied, is_allowed(roles, tenant, each.rule, owner))
              << frame_type_name(each.type) << " by " << who << ", of " << owner;
        }
      }
      for (const PageRule& each : kPageRules) {
        const bool is_of_owner = each.rule.scope == Scope::kOwner;
        for (const std::string& owner :
             is_of_owner ? std::vector<std::string>{"blue", "red"} : std::vector{std::string()})
          ask_page(*client, each, roles, tenant, owner, who);
      }
    }
  }
  record = make_record("m", kBlockBytes);
}

/// With a secret, what tenants have stored is no business of a scraper's: the tree draws what the list of changes
/// hides.
TEST_F(RightsTest, NamesOfBlocksThatChangesHideAreInNoOtherPage) {
  give(kTenantRoles, "blue", /*has_secret=*/true);
  const auto client = fill([&](const std::string& tenant) { give(kTenantRoles, tenant, /*has_secret=*/true); });
  serve_pages();
  for (const PolicyRole one : {PolicyRole::kMetrics, PolicyRole::kOperator}) {
    give(role(one), "");
    for (const std::string path : {"/events.json", "/events/blocks.json", "/status/tree.json"}) {
      const std::string answer = page(path);
      EXPECT_THAT(answer, testing::StartsWith("HTTP/1.1 200"));
      EXPECT_THAT(answer, Not(HasSubstr("\"tenant\":\"blue\""))) << path;
    }
    const std::string now = page("/status/now.json");
    EXPECT_THAT(now, HasSubstr("\"hot\":[]")) << "names of blocks";
    EXPECT_THAT(now, HasSubstr("\"tenant\":\"blue\"")) << "whoever may observe the node is told of all namespaces";
    const nlohmann::json stats = json_of(client->ask(FrameType::kAdmin, 5, admin_request("/stats.json")));
    EXPECT_TRUE(stats.at("hot").empty()) << stats;
  }
  give(kNodeRole, "");
  EXPECT_THAT(page("/status/tree.json"), HasSubstr("\"tenant\":\"blue\"")) << "a node hands all of it on";
  give(kTenantRoles, "red", true);
  const std::string own = page("/status/tree.json");
  EXPECT_THAT(own, HasSubstr("\"tenant\":\"red\""));
  EXPECT_THAT(own, Not(HasSubstr("\"tenant\":\"blue\"")));
  record = make_record("m", kBlockBytes);
}

TEST_F(RightsTest, ARefusalSaysThatItIsForThoseWhoBelongToNoTenant) {
  give(kTenantRoles, "blue");
  const auto client = connect();
  client->ask(FrameType::kHello, 1, hello_request());
  const Answer drain = client->ask(FrameType::kAdmin, 2, admin_request("/drain"));
  EXPECT_EQ(drain.error(), Errc::kPermissionDenied);
  EXPECT_THAT(drain.message(), HasSubstr("/drain: concerns the whole node, which is for those who belong to no "
                                         "tenant; 'loopback' (section all) belongs to 'blue'"));
}

}  // namespace
}  // namespace kv
