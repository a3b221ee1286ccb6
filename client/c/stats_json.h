// client/c/stats_json.h: the documents that kvs_stats() and kvs_why() write.
#pragma once

#include <string>
#include <vector>

#include "client/client.h"

namespace kv::c_api {

/// One JSON document: {"nodes":[{"name":...,"values":{...},"namespaces":[...]}]}, with "error" where a node did not
/// answer. Pure ASCII, whatever nodes say of themselves.
std::string stats_json(const std::vector<NodeStats>& nodes);
/// {"blocks":...,"whole":...,"reason":...,"text":[...],"others":[...],...}; times in seconds. As pure.
std::string miss_json(const MissReport& report);

}  // namespace kv::c_api
