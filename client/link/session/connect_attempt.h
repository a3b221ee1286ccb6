// client/link/session/connect_attempt.h: one try to connect to a node, hello included.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <memory>
#include <string>

#include "client/link/client_shared.h"
#include "client/link/deadline_queue.h"
#include "transport/stream.h"

namespace kv {

/// In progress from begin() until its listener calls end() or is notified of the failure.
///   1. Ends by connect_timeout, hello included: the stream is handed over before, but the deadline stays set.
///   2. After end(), and after the failure, the listener is not called. The coroutine may still hold the attempt.
/// Thread safety: none; on the client's executor.
class ConnectAttempt final : public DeadlineEntry, public std::enable_shared_from_this<ConnectAttempt> {
 public:
  class Listener {
   public:
    virtual void connected(ConnectAttempt& attempt, std::unique_ptr<Stream> stream) = 0;  ///< Hello comes next.
    /// The attempt has failed, perhaps after connected().
    virtual void connect_failed(ConnectAttempt& attempt, error_code why, std::string text) = 0;

   protected:
    ~Listener() = default;
  };

  /// `listener` outlives the attempt's end.
  ConnectAttempt(std::shared_ptr<ClientShared> shared, Listener& listener);

  /// `is_told`: as in NodeConfig.
  void begin(const Endpoint& endpoint, bool is_told);  ///< Once. May call the listener before returning.
  void end();  ///< Called by the listener: hello has come, or the link is closed.

 private:
  static asio::awaitable<void> run(std::shared_ptr<ConnectAttempt> self, Endpoint endpoint, bool is_told);
  void on_deadline() override;
  void fail(error_code why, std::string text);
  void stop_coroutine();

  std::shared_ptr<ClientShared> shared_;
  Listener* listener_;         ///< nullptr: over.
  bool is_connected_ = false;  ///< The coroutine is done.
  asio::cancellation_signal cancel_;
};

}  // namespace kv
