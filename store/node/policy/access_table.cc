#include "store/node/policy/access_table.h"

#include <algorithm>

namespace kv {
namespace {

constexpr bool is_whole() {
  for (std::size_t i = 0; i < kRequestRules.size(); ++i) {
    if (kRequestRules[i].type != static_cast<FrameType>(i + 1) || kRequestRules[i].rule.right == Right::kNobody)
      return false;
  }
  for (const PageRule& each : kPageRules) {
    if (each.path.empty() || each.rule.right == Right::kNobody) return false;
  }
  return true;
}
static_assert(is_whole(), "each frame type has its row, in the order of the numbers, and each row a right");
static_assert(rule_for(FrameType::kHello).right == Right::kEverybody, "nobody has a role before hello");

}  // namespace

const char* right_name(Right right) {
  switch (right) {
    case Right::kNobody: return "nobody";
    case Right::kEverybody: return "everybody";
    case Right::kMember: return "member";
    case Right::kBlocks: return "blocks";
    case Right::kRead: return "read";
    case Right::kWrite: return "write";
    case Right::kOperate: return "operate";
    case Right::kObserve: return "observe";
    case Right::kForTenants: return "for_tenants";
  }
  return "?";
}

const char* policy_role_name(PolicyRole role) {
  switch (role) {
    case PolicyRole::kReader: return "reader";
    case PolicyRole::kWriter: return "writer";
    case PolicyRole::kOperator: return "operator";
    case PolicyRole::kMetrics: return "metrics";
    case PolicyRole::kNode: return "node";
  }
  return "?";
}

std::optional<PolicyRole> find_role(std::string_view name) {
  const auto found = std::ranges::find_if(kEachRole, [&](PolicyRole role) { return name == policy_role_name(role); });
  return found == kEachRole.end() ? std::nullopt : std::optional(*found);
}

std::string roles_text(Roles roles) {
  std::string text;
  for (const PolicyRole role : kEachRole) {
    if ((roles & static_cast<Roles>(role)) != 0)
      text += (text.empty() ? "" : ", ") + std::string(policy_role_name(role));
  }
  return text.empty() ? "none" : text;
}

}  // namespace kv
