// store/node/status/admin_answers.h: what people and tools ask of a node, and the answers, as JSON: the same over HTTP
// (store/node/listen/admin.h) and by the wire's request admin (store/node/session).
#pragma once

#include <string_view>

#include "store/node/session/core/admin_part.h"

namespace kv {

struct NodeContext;

/// Checks the peer's right to the path, and answers: the only way to an answer. Quick, unless is_slow().
/// Thread safety: any thread; `peer` is the caller's.
AdminAnswer answer_admin(NodeContext& node, const AdminQuestion& question, PeerAccess& peer);
/// Whether the answer may take longer than a request on an I/O thread should.
bool is_slow(std::string_view path);

}  // namespace kv
