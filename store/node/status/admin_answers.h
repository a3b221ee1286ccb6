// store/node/status/admin_answers.h: what people and tools ask of a node, and the answers, as JSON: the same over HTTP
// (store/node/listen/admin.h) and by the wire's verb admin (store/node/session).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "store/node/access/access.h"

namespace kv {

struct NodeContext;

/// A path of kPageRules, and the query behind it.
struct AdminQuestion {
  std::string path, query;
  std::string from = {};  ///< For the line in the log about an act: the connection, with a space behind it.
};
struct AdminAnswer {
  std::string json = {};  ///< ASCII, at most kAdminAnswerBytesMax. Empty: refused, see `why`.
  /// kBadRequest (a bad query, or a change of options that was refused: `json` has more), kPermissionDenied, kNotFound
  /// (no such path on this node), kTooLarge; an act's own.
  Failure why = {};
};
/// Answers the questions of one part of the node.
using AdminPart = std::function<AdminAnswer(const AdminQuestion& question, PeerAccess& peer)>;

/// Checks the peer's right to the path, and answers: the only way to an answer. Quick, unless is_slow().
/// Thread safety: any thread; `peer` is the caller's.
AdminAnswer answer_admin(NodeContext& node, const AdminQuestion& question, PeerAccess& peer);
/// Whether the answer may take longer than a request on an I/O thread should.
bool is_slow(std::string_view path);

}  // namespace kv
