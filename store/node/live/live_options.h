// store/node/live/live_options.h: connects live options to the parts of the node, and answers requests for changes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/node/disk_worker/disk_threads.h"
#include "store/node/jobs/context_warmer.h"
#include "store/node/listen/server.h"
#include "store/node/live/capacity.h"
#include "store/node/options/settings.h"
#include "store/node/session/core/admin_part.h"

namespace kv {

/// The parts of a node that apply changes; nullptr: absent. All outlive Settings::close().
struct LiveParts {
  NodeContext& node;
  Server& server;
  CapacityKeeper* capacity = nullptr;
  DiskThreads* disk_worker = nullptr;
  AccessControl* access = nullptr;
  std::function<void(const std::vector<std::string>&)> directories_changed = {};  ///< Of the disk tier.
  ContextWarmer* warmer = nullptr;
};
void wire_up(Settings& settings, const LiveParts& parts);

/// Answers /config/set: "NAME=VALUE&...", with `_write=1` to write the file too. Each requested option is a line
/// of the audit log. JSON: `changed`, `notes`, and `wrong` after an error.
AdminAnswer answer_set(Settings& settings, std::string_view query, const std::string& who);

}  // namespace kv
