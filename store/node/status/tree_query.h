// store/node/status/tree_query.h: the part of the trees that a request of the status page asks for.
#pragma once

#include <optional>
#include <string_view>

#include "store/store.h"

namespace kv {

/// "tier=disk&space=12&top=345&name=0123456789abcdef", each at most once, in any order. `top` and `name` come together,
/// and with `space`. nullopt for all else: the query may come from anybody who reaches the admin port.
std::optional<LookDesk::TreeScope> read_tree_query(std::string_view query);

}  // namespace kv
