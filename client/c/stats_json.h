// client/c/stats_json.h: the answers in words of kvs_run and kvs_submit: JSON documents.
#pragma once

#include <string>
#include <vector>

#include "client/client.h"
#include "client/types/context_archive.h"

namespace kv::c_api {

/// One JSON document: {"nodes":[{"name":...,"answer":{...}}],"numa":{...}}, with the answers to /stats.json as the
/// nodes sent them, and "error" for a node that did not answer. Pure ASCII, like the others, even for names with other
/// bytes.
std::string stats_json(const std::vector<NodeAnswer>& nodes, const NumaStatus& numa);
/// {"blocks":...,"whole":...,"reason":...,"text":[...],"others":[...],...}; times in seconds.
std::string miss_json(const MissReport& report);

/// {"name":...,"tags":[...],"wanted_blocks":...,"kept_blocks":...,...}; times in microseconds since 1970.
std::string context_json(const NamedContext& context);
/// {"name":...,"blocks":...,"bytes":...}, and more for an import.
std::string archived_json(const ArchivedContext& archived, bool is_imported);
/// {"contexts":[...],"silent":[{"node":...,"error":...}]}.
std::string contexts_json(const ContextList& list);

}  // namespace kv::c_api
