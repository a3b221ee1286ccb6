// client/call_control.h: what steers a call of Client besides its deadline.
#pragma once

#include <type_traits>

#include "transport/trace_context.h"

namespace kv {

/// Something that a Cancellation can end.
class Cancellable {
 public:
  virtual void cancel() = 0;

 protected:
  ~Cancellable() = default;
};

/// Ends a call before its deadline. What is true of a call that missed its deadline is true of a cancelled one: what
/// landed counts, memory that a node may still write is quarantined, and the call completes at once, whatever the node
/// does. It is no mark against the node. Serves one call, and outlives it.
/// Thread safety: none; on the client's executor.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  /// A call that has not begun ends with kCancelled when it begins; one that has ended does not notice.
  void cancel() {
    is_cancelled_ = true;
    if (target_ != nullptr) target_->cancel();
  }
  bool is_cancelled() const { return is_cancelled_; }
  void set_target(Cancellable* target) { target_ = target; }  ///< Of the call itself; null: nothing is under way.

 private:
  Cancellable* target_ = nullptr;
  bool is_cancelled_ = false;
};

struct CallControl {
  /// A node without a connection is not waited for: its part ends with kUnavailable at once, while the connection is
  /// made in the background for the calls to come.
  bool at_once = false;
  Cancellation* cancellation = nullptr;
  /// Whose request this is, for the nodes' slow logs; none: ClientConfig::trace.
  TraceContext trace = {};

  bool is_cancelled() const { return cancellation != nullptr && cancellation->is_cancelled(); }
};
static_assert(std::is_trivially_destructible_v<CallControl>);  // so `{...}` is safe inside co_await

}  // namespace kv
