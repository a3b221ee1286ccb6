// client/c/stats_json.h: the documents that kvs_stats(), kvs_why() and kvs_context_...() write.
#pragma once

#include <string>
#include <vector>

#include "client/client.h"
#include "client/context_archive.h"

namespace kv::c_api {

/// One JSON document: {"nodes":[{"name":...,"values":{...},"namespaces":[...]}],"numa":{...}}, with "error" where a
/// node did not answer. Pure ASCII, whatever nodes say of themselves.
std::string stats_json(const std::vector<NodeStats>& nodes, const NumaStatus& numa);
/// {"blocks":...,"whole":...,"reason":...,"text":[...],"others":[...],...}; times in seconds. As pure.
std::string miss_json(const MissReport& report);

/// {"name":...,"tags":[...],"wanted_blocks":...,"kept_blocks":...,...}; times in microseconds since 1970. As pure.
std::string context_json(const NamedContext& context);
/// {"name":...,"blocks":...,"bytes":...}, and of an import more. As pure.
std::string archived_json(const ArchivedContext& archived, bool is_imported);
/// {"contexts":[...],"silent":[{"node":...,"error":...}]}. As pure.
std::string contexts_json(const ContextList& list);

}  // namespace kv::c_api
