// store/node/session/requests/misses.h: explains why a chain ends where it does.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <deque>
#include <memory>
#include <span>

#include "store/node/session/core/session_core.h"
#include "store/node/session/tables/space_handles.h"

namespace kv {

/// Answers matches that have `why` set. Other namespaces are included if their record has the same `tenant`; a peer
/// that may read the node's counters and belongs to no tenant gets all. Salts are never revealed.
///   1. A look into all namespaces takes turns of LookDesk::kLookedInPerCall, with other work in between.
///   2. A session runs one look at a time; at most requests_max wait.
/// Thread safety: none; on the session's executor.
class Misses {
 public:
  using Frame = SessionCore::Frame;
  explicit Misses(SessionCore& session) : session_(session) {}

  void answer_why(const Frame& frame, const OpenSpace& space, std::span<const BlockHash> hashes);

 private:
  struct Question;
  static asio::awaitable<void> look(std::shared_ptr<SessionCore> session, Misses& self, SessionJob job);
  void answer(const Question& question);

  SessionCore& session_;
  std::deque<std::shared_ptr<Question>> waiting_;  ///< The first one is under way.
};

}  // namespace kv
