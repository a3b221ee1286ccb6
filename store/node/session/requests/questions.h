// store/node/session/requests/questions.h: the request admin: questions of people and tools, answered as on the admin
// port.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "store/node/session/core/session_core.h"
#include "store/node/status/admin_answers.h"

namespace kv {

/// Quick answers are made at once, slow ones on the thread NodeContext::aside; at most kAsideMax of these at a time.
/// Thread safety: none; on the session's executor.
class Questions {
 public:
  static constexpr std::size_t kAsideMax = 4;
  explicit Questions(SessionCore& session) : session_(session) {}

  /// `self`: the session, which lives until the answer is made.
  void on_admin(const SessionCore::Frame& frame);

 private:
  boost::asio::awaitable<void> answer_aside(SessionJob job, std::uint64_t request_id, AdminQuestion question);
  void reply(std::uint64_t request_id, const AdminAnswer& answer);

  SessionCore& session_;
  std::size_t aside_count_ = 0;
};

}  // namespace kv
