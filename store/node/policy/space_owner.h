// store/node/policy/space_owner.h: the owner of a namespace.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "index/namespace_record.h"

namespace kv {

/// The owner of a namespace, by its stored record.
struct SpaceOwner {
  std::string tenant = {};  ///< As identified by the node; without a secret, as given in the record.
  std::string share = {};   ///< Of the policy; excludes a tenant.
  bool is_salted = false;   ///< Named by a secret too: clients without a tenant cannot reach it by its record.
  std::uint64_t epoch = 0;  ///< Of that secret.

  auto operator<=>(const SpaceOwner&) const = default;
};

SpaceOwner owner_of(const NamespaceRecord& stored);
/// For a name from NamespaceRecord::owner(): a tenant, or "share:NAME".
SpaceOwner owner_named(std::string_view name);

}  // namespace kv
