// store/node/access/space_owner.h: whose a namespace is.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "index/namespace_record.h"

namespace kv {

/// Whose a namespace is, by the record under which it is stored.
struct SpaceOwner {
  std::string tenant = {};  ///< That the node found out; without a secret, that the record has.
  std::string share = {};   ///< Of the policy; then there is no tenant.
  bool is_salted = false;   ///< Named by a secret as well: no client without a tenant comes to it by its record.
  std::uint64_t epoch = 0;  ///< Of that secret.

  auto operator<=>(const SpaceOwner&) const = default;
};

SpaceOwner owner_of(const NamespaceRecord& stored);
/// Of a name as NamespaceRecord::owner() gives: a tenant, or "share:NAME".
SpaceOwner owner_named(std::string_view name);

}  // namespace kv
