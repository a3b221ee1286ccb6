// store/node/access/: rights and who has them. Start here.
//
//     certificate, token, Unix user or anonymous -> the first section of the policy that fits -> roles
//     request or admin page -> its rule: the right it needs, and its scope -> done or denied
//
// Some roles have the right; a peer of a tenant has only a part of the scope. Files, in reading order:
//   access_table.h   the table: each request and page with its right and scope; each role with its rights
//   space_owner.h    the owner of a namespace
//   access_policy.h  a policy file as read: the peers of each section, its roles and tenant
//   tenant_secret.h  the secret that keeps names of different tenants apart
//   tenant_rates.h   a tenant's limits on requests, bytes and sessions
//   tenant_figures.h each tenant's use, limits and refusals, for metrics and tools
//   access.h         the policy in force, read again when the file changes; one peer's rights
//   audit.h          operators' acts, as lines of the log
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "transport/frames/frame.h"

namespace kv {

/// The right that a request needs. Labels of a metric: never renamed.
enum class Right : std::uint8_t {
  kNobody,     ///< For requests and pages without a row.
  kEverybody,  ///< For every connected peer.
  kMember,     ///< To see the cluster.
  kBlocks,     ///< To name blocks: open namespaces, lend memory.
  kRead,       ///< To look up and fetch blocks.
  kWrite,      ///< To store blocks.
  kOperate,    ///< To change settings for all clients, and whether the node serves.
  kObserve,    ///< To read counters, and the names of namespaces.
  kForTenants  ///< To store blocks for any tenant, as the nodes of a cluster do.
};
inline constexpr std::size_t kRightCount = 9;
const char* right_name(Right right);

/// The part of the node that a request or page concerns, which limits a peer of a tenant.
enum class Scope : std::uint8_t {
  kNobody,  ///< No tenant's blocks: the session's own state, or facts that are the same for all peers.
  kOwner,   ///< The namespace, tenant or context that it names: its owner decides (PeerAccess).
  kShown,   ///< The whole node, as far as the peer sees it: a peer of a tenant sees its tenant's part.
  kNode     ///< The node as a whole: for peers without a tenant.
};

/// The roles of a policy, in any combination. Each is independent of the others.
enum class PolicyRole : std::uint8_t { kReader = 1, kWriter = 2, kOperator = 4, kMetrics = 8, kNode = 16 };
using Roles = std::uint8_t;  ///< A set of PolicyRole.
inline constexpr std::array kEachRole = {PolicyRole::kReader, PolicyRole::kWriter, PolicyRole::kOperator,
                                         PolicyRole::kMetrics, PolicyRole::kNode};
inline constexpr Roles kAllRoles = 31;
const char* policy_role_name(PolicyRole role);
std::optional<PolicyRole> find_role(std::string_view name);
std::string roles_text(Roles roles);  ///< "reader, writer"; "none".

constexpr Roles roles_with(Right right) {
  constexpr auto kReader = static_cast<Roles>(PolicyRole::kReader), kWriter = static_cast<Roles>(PolicyRole::kWriter),
                 kOperator = static_cast<Roles>(PolicyRole::kOperator),
                 kMetrics = static_cast<Roles>(PolicyRole::kMetrics), kNode = static_cast<Roles>(PolicyRole::kNode);
  switch (right) {
    case Right::kNobody: return 0;
    case Right::kEverybody:
    case Right::kMember: return kAllRoles;
    case Right::kBlocks: return kReader | kWriter | kOperator | kNode;
    case Right::kRead: return kReader;
    case Right::kWrite: return kWriter | kNode;
    case Right::kOperate: return kOperator;
    case Right::kObserve: return kOperator | kMetrics | kNode;
    case Right::kForTenants: return kNode;
  }
  return 0;
}
constexpr bool has_right(Roles roles, Right right) {
  return right == Right::kEverybody || (roles & roles_with(right)) != 0;
}

struct Rule {
  Right right = Right::kNobody;
  Scope scope = Scope::kNobody;
  bool is_local = false;  ///< On a node without a policy: for peers on its own machine.
};
struct RequestRule {
  FrameType type{};
  Rule rule;
};
struct PageRule {
  std::string_view path;
  Rule rule;
};

/// In the order of the type numbers: a type without a row does not compile (access_table.cc).
// clang-format off
inline constexpr std::array<RequestRule, kFrameTypeMax> kRequestRules = {{
    {FrameType::kHello, {Right::kEverybody, Scope::kNobody}},
    {FrameType::kOpen, {Right::kBlocks, Scope::kOwner}},
    {FrameType::kMatch, {Right::kRead, Scope::kOwner}},
    {FrameType::kGet, {Right::kRead, Scope::kOwner}},
    {FrameType::kPut, {Right::kWrite, Scope::kOwner}},
    {FrameType::kPutData, {Right::kWrite, Scope::kNobody}},  // belongs to a put of this session
    {FrameType::kCancel, {Right::kEverybody, Scope::kNobody}},  // of a request allowed before
    {FrameType::kRelease, {Right::kBlocks, Scope::kNobody}},  // a lease of this session
    {FrameType::kTouch, {Right::kRead, Scope::kOwner}},
    {FrameType::kRetain, {Right::kOperate, Scope::kOwner}},
    {FrameType::kUnretain, {Right::kOperate, Scope::kOwner}},
    {FrameType::kDrop, {Right::kOperate, Scope::kOwner}},
    {FrameType::kRegionAdd, {Right::kBlocks, Scope::kNobody}},
    {FrameType::kRegionRemove, {Right::kBlocks, Scope::kNobody}},
    {FrameType::kAdmin, {Right::kEverybody, Scope::kNobody}},  // each path has its own rule, below
    {FrameType::kPing, {Right::kEverybody, Scope::kNobody}},
    {FrameType::kVerbsConnect, {Right::kBlocks, Scope::kNobody}},
    {FrameType::kSetMatch, {Right::kRead, Scope::kOwner}},
    {FrameType::kSetGet, {Right::kRead, Scope::kOwner}},
    {FrameType::kSetPut, {Right::kWrite, Scope::kOwner}},
    {FrameType::kHotRoots, {Right::kBlocks, Scope::kOwner}},
    {FrameType::kClusterMap, {Right::kMember, Scope::kNobody}},
    {FrameType::kContext, {Right::kOperate, Scope::kOwner}},  // of the peer's tenant, or without a tenant
}};
// clang-format on
/// Paths of the admin server, and of the request admin. A path without a row is not served.
inline constexpr std::array<PageRule, 18> kPageRules = {{
    {"/metrics", {Right::kObserve, Scope::kNode}},
    {"/status", {Right::kEverybody, Scope::kNobody}},  // the same on every node: the three below have the data
    {"/status/now.json", {Right::kObserve, Scope::kNode}},
    {"/status/history.json", {Right::kObserve, Scope::kNode}},
    {"/status/tree.json", {Right::kObserve, Scope::kShown}},
    {"/events.json", {Right::kObserve, Scope::kShown}},
    {"/events/blocks.json", {Right::kObserve, Scope::kShown}},
    {"/stats.json", {Right::kObserve, Scope::kShown}},
    {"/slowlog.json", {Right::kObserve, Scope::kShown}},
    {"/slowlog/reset", {Right::kOperate, Scope::kNode}},
    {"/learned.json", {Right::kObserve, Scope::kNode}},
    {"/drain", {Right::kOperate, Scope::kNode}},
    {"/erase", {Right::kOperate, Scope::kOwner}},
    {"/config/list.json", {Right::kObserve, Scope::kNode}},
    {"/config/set", {Right::kOperate, Scope::kNode, /*is_local=*/true}},
    {"/healthz", {Right::kEverybody, Scope::kNobody}},
    {"/readyz", {Right::kEverybody, Scope::kNobody}},
    {"/", {Right::kEverybody, Scope::kNobody}},
}};

constexpr Rule rule_for(FrameType type) {
  const auto number = static_cast<std::size_t>(type);
  return number == 0 || number > kRequestRules.size() ? Rule() : kRequestRules[number - 1].rule;
}
constexpr Rule rule_for(std::string_view path) {
  for (const PageRule& each : kPageRules) {
    if (each.path == path) return each.rule;
  }
  return {};
}
/// Whether the path changes something: over HTTP by POST alone.
constexpr bool is_act(std::string_view path) { return rule_for(path).right == Right::kOperate; }
/// Whether the path is answered by JSON, over HTTP and by the request admin. All others are pages of the admin server
/// alone.
constexpr bool is_question(std::string_view path) {
  return is_act(path) || (path.ends_with(".json") && rule_for(path).right != Right::kNobody);
}

}  // namespace kv
