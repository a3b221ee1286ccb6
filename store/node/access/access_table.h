// store/node/access/: who may do what. Start here.
//
//     certificate, token, Unix user, or nobody in particular -> the section of the policy that fits -> roles
//     request, or page of the admin server -> the one right that it needs, which some roles have -> done, or denied
//
// Files, in reading order:
//   access_table.h   the one table: each request and page, and the right that it needs; each role, and its rights
//   access_policy.h  a policy file as it was read: who belongs to which section, with which roles and tenant
//   tenant_secret.h  the secret by which names of different tenants are kept apart
//   tenant_rates.h   how much a tenant may ask for in a time, and how many sessions it may have
//   tenant_figures.h what each tenant holds, may hold and was refused, for metrics and tools
//   access.h         the policy in force, read again when the file changes; what one peer may do
//   audit.h          what operators did, as lines of the log
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "transport/frame.h"

namespace kv {

/// What a request needs, one each. Labels of a metric: never renamed.
enum class Right : std::uint8_t {
  kNobody,     ///< Of what stands in no table.
  kEverybody,  ///< Whoever is connected.
  kMember,     ///< To know the cluster.
  kBlocks,     ///< To speak of blocks: open namespaces, lend memory.
  kRead,       ///< To look blocks up, and to have them.
  kWrite,      ///< To store them.
  kOperate,    ///< To change what is kept for all, and whether the node serves.
  kObserve,    ///< To read counters, and the names of namespaces.
  kForTenants  ///< To store blocks for any tenant, as the nodes of a cluster do.
};
inline constexpr std::size_t kRightCount = 9;
const char* right_name(Right right);

/// What a policy gives, any number of them. None contains another.
enum class PolicyRole : std::uint8_t { kReader = 1, kWriter = 2, kOperator = 4, kMetrics = 8, kNode = 16 };
using Roles = std::uint8_t;  ///< A set of them.
inline constexpr std::array kEachRole = {PolicyRole::kReader, PolicyRole::kWriter, PolicyRole::kOperator,
                                         PolicyRole::kMetrics, PolicyRole::kNode};
inline constexpr Roles kAllRoles = 31;
const char* policy_role_name(PolicyRole role);
std::optional<PolicyRole> find_role(std::string_view name);
std::string roles_text(Roles roles);  ///< "reader, writer"; "none".

/// The roles that have a right, each alone.
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

struct VerbRule {
  FrameType verb{};
  Right right = Right::kNobody;
};
struct PageRule {
  std::string_view path;
  Right right = Right::kNobody;
};

/// By the numbers of the types, so that a type without a row does not compile (access_table.cc).
// clang-format off
inline constexpr std::array<VerbRule, kFrameTypeMax> kVerbRules = {{
    {FrameType::kHello, Right::kEverybody},
    {FrameType::kOpen, Right::kBlocks},
    {FrameType::kMatch, Right::kRead},
    {FrameType::kGet, Right::kRead},
    {FrameType::kPut, Right::kWrite},
    {FrameType::kPutData, Right::kWrite},
    {FrameType::kCancel, Right::kEverybody},  // of what was allowed
    {FrameType::kRelease, Right::kBlocks},
    {FrameType::kTouch, Right::kRead},
    {FrameType::kRetain, Right::kOperate},
    {FrameType::kUnretain, Right::kOperate},
    {FrameType::kDrop, Right::kOperate},
    {FrameType::kRegionAdd, Right::kBlocks},
    {FrameType::kRegionRemove, Right::kBlocks},
    {FrameType::kStats, Right::kObserve},
    {FrameType::kPing, Right::kEverybody},
    {FrameType::kVerbsConnect, Right::kBlocks},
    {FrameType::kSetMatch, Right::kRead},
    {FrameType::kSetGet, Right::kRead},
    {FrameType::kSetPut, Right::kWrite},
    {FrameType::kHotRoots, Right::kBlocks},
    {FrameType::kClusterMap, Right::kMember},
    {FrameType::kClusterDrain, Right::kOperate},
    {FrameType::kErase, Right::kOperate},
    {FrameType::kContext, Right::kOperate},
}};
// clang-format on
/// Pages of the admin server. A path without a row is not served.
inline constexpr std::array<PageRule, 12> kPageRules = {{
    {"/metrics", Right::kObserve},
    {"/status", Right::kEverybody},  // the same of every node: what it shows comes from the three below
    {"/status/now.json", Right::kObserve},
    {"/status/history.json", Right::kObserve},
    {"/status/tree.json", Right::kObserve},
    {"/events.json", Right::kObserve},  // of the namespaces that the peer may read, or hands on
    {"/events/blocks.json", Right::kObserve},
    {"/config/list.json", Right::kObserve},
    {"/config/set", Right::kOperate},
    {"/healthz", Right::kEverybody},
    {"/readyz", Right::kEverybody},
    {"/", Right::kEverybody},
}};

constexpr Right right_for(FrameType verb) {
  const auto number = static_cast<std::size_t>(verb);
  return number == 0 || number > kVerbRules.size() ? Right::kNobody : kVerbRules[number - 1].right;
}
constexpr Right right_for(std::string_view path) {
  for (const PageRule& rule : kPageRules) {
    if (rule.path == path) return rule.right;
  }
  return Right::kNobody;
}

}  // namespace kv
