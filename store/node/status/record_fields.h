// store/node/status/record_fields.h: the fields of a namespace's record, as shown to observers of the node.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "index/namespace_record.h"

namespace kv {

/// Values are cut at `chars_max` characters. A salt keeps tenants apart, so it is their secret: shown as "(set)".
std::map<std::string, std::string> shown_fields(const NamespaceRecord& record, std::size_t chars_max);

}  // namespace kv
