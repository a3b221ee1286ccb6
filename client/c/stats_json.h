// client/c/stats_json.h: what kvs_stats() writes.
#pragma once

#include <string>
#include <vector>

#include "client/client.h"

namespace kv::c_api {

/// One JSON document: {"nodes":[{"name":...,"values":{...},"namespaces":[...]}]}, with "error" where a node did not
/// answer. Pure ASCII, whatever nodes say of themselves.
std::string stats_json(const std::vector<NodeStats>& nodes);

}  // namespace kv::c_api
