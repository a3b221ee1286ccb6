// client/types/reason.h: an error's description from the client's nodes, for people.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "client/types/node_status.h"

namespace kv {

/// The nodes that last had that error, with their texts: "tcp://a:7400: connect: Connection refused". For kUnavailable,
/// the unconnected ones. At most three nodes; may be empty.
std::string reason_of(error_code why, std::span<const NodeStatus> nodes);

}  // namespace kv
