// store/node/session/core/admin_part.h: a question of people and tools, its answer, and who answers for a part of the
// node.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "store/node/access/access.h"

namespace kv {

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

}  // namespace kv
