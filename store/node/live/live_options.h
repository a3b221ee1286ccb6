// store/node/live/live_options.h: which part of the node takes up which option, and how a change is asked for.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/node/admin.h"
#include "store/node/context_warmer.h"
#include "store/node/live/capacity.h"
#include "store/node/live/settings.h"
#include "store/node/server.h"
#include "store/node/spill/spill_driver.h"

namespace kv {

/// The parts of a node that take up changes. Those that are nullptr it has not. All outlive Settings::close().
struct LiveParts {
  NodeContext& node;
  Server& server;
  CapacityKeeper* capacity = nullptr;
  SpillDriver* spill = nullptr;
  AccessControl* access = nullptr;
  std::function<void(const std::vector<std::string>&)> directories_changed = {};  ///< Of the disk tier.
  ContextWarmerThread* warmer = nullptr;
};
void wire_up(Settings& settings, const LiveParts& parts);

/// Of POST /config/set: "NAME=VALUE&...", and `_write=1` to write the file as well. Each asked option is a line of the
/// audit log. JSON: `changed`, `notes`, and `wrong` where it is.
AdminPages::Changed answer_set(Settings& settings, std::string_view query, const std::string& who);

}  // namespace kv
