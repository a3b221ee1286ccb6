// store/node/session/misses.h: the answer to who asks why a chain ends where it does.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <deque>
#include <memory>
#include <span>

#include "store/node/session/session_core.h"
#include "store/node/session/space_handles.h"

namespace kv {

/// Answers matches that have `why` set. What it tells of other namespaces: of those with the same `tenant` in their
/// record; to who may read the node's counters, and belongs to no tenant, of all. What a salt is it never tells.
///   1. A look into all namespaces goes in turns of Store::kLookedInPerCall, and between two turns others have theirs.
///   2. One look of a session is under way at a time; requests_max wait at most.
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
