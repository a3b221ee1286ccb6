// store/node/status/record_fields.h: the fields of a namespace's record, as whoever may observe the node is shown them.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "index/namespace_record.h"

namespace kv {

/// Values of `chars_max` characters at most, the rest cut off. A salt keeps tenants apart, so it is a secret of theirs:
/// that there is one is told, as "(set)".
std::map<std::string, std::string> shown_fields(const NamespaceRecord& record, std::size_t chars_max);

}  // namespace kv
