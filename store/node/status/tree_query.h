// store/node/status/tree_query.h: which part of the trees a request of the status page asks for.
#pragma once

#include <optional>
#include <string_view>

#include "store/store.h"

namespace kv {

/// "tier=disk&space=12&top=345&name=0123456789abcdef", each of them once or not at all, in any order. `top` and `name`
/// come together, and with `space`. Nothing for all else: whoever reaches the admin port may have written it.
std::optional<Store::TreeScope> read_tree_query(std::string_view query);

}  // namespace kv
