// client/reason.h: what a client's nodes know of an error, in words for whoever has to mend something.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "client/client.h"

namespace kv {

/// Which of the nodes last had that error, and what each said of it: "tcp://a:7400: connect: Connection refused". Of
/// kUnavailable those that are not connected. Empty if none had; at most three are named.
std::string reason_of(error_code why, std::span<const NodeStatus> nodes);

}  // namespace kv
