// tests/node/policy_parts.h: parts of the access policies that tests write.
#pragma once

#include <iomanip>
#include <sstream>
#include <string>

#include "store/node/policy/access_policy.h"
#include "transport/token.h"

namespace kv {

/// A token as a policy names it.
inline std::string hex_hash(const std::string& token) {
  std::ostringstream text;
  for (const unsigned char byte : token_hash(token)) text << std::hex << std::setw(2) << std::setfill('0') << int{byte};
  return text.str();
}

/// All roles that a section with a tenant may have: nodes belong to none.
inline constexpr Roles kTenantRoles = kAllRoles & ~static_cast<Roles>(PolicyRole::kNode);

}  // namespace kv
