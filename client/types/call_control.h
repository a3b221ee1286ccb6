// client/types/call_control.h: controls of a call of Client besides its deadline.
#pragma once

#include <type_traits>

#include "transport/trace_context.h"

namespace kv {

/// An object that a Cancellation can end.
class Cancellable {
 public:
  virtual void cancel() = 0;

 protected:
  ~Cancellable() = default;
};

/// Ends a call before its deadline, with the same effects as a missed deadline: landed blocks count, memory that a node
/// may still write is quarantined, and the call completes at once, whatever the node does. It does not count against
/// the node. Serves one call, and outlives it.
/// Thread safety: none; on the client's executor.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  /// A call that has not begun ends with kCancelled when it begins; a call that has ended is unaffected.
  void cancel() {
    is_cancelled_ = true;
    if (target_ != nullptr) target_->cancel();
  }
  bool is_cancelled() const { return is_cancelled_; }
  void set_target(Cancellable* target) { target_ = target; }  ///< Set by the call itself; null: idle.

 private:
  Cancellable* target_ = nullptr;
  bool is_cancelled_ = false;
};

struct CallControl {
  /// A node without a connection is not waited for: its part ends with kUnavailable at once, while a connection for
  /// later calls is made in the background.
  bool at_once = false;
  Cancellation* cancellation = nullptr;
  /// The request's trace, for the nodes' slow logs; empty: ClientConfig::trace.
  TraceContext trace = {};

  bool is_cancelled() const { return cancellation != nullptr && cancellation->is_cancelled(); }
};
static_assert(std::is_trivially_destructible_v<CallControl>);  // so `{...}` is safe inside co_await

}  // namespace kv
