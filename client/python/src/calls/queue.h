// client/python/src/calls/queue.h: Python's calls in flight, on a completion queue of the C++ client.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/completion_queue.h"
#include "client/python/src/calls/caller.h"
#include "client/python/src/calls/results.h"

namespace kv::python {

/// One call, from its submit until Python drops it and it has ended.
struct CallState {
  CallId id{};
  std::size_t name_count = 0;         ///< Hashes of its request.
  Holds holds;                        ///< Memory that the library uses, until it has ended.
  std::vector<nb::object> told;       ///< Each called once, at the next event.
  std::vector<std::size_t> segments;  ///< Block count of each landed one.
  bool has_ended = false;
  Completion end;
};

class Future;

/// A CompletionQueue whose completions reach their calls.
///   1. Completions are taken with the GIL held, and all at once: a call that has left the queue has ended.
///   2. An end is passed on without allocating.
///   3. A call keeps the buffers that Python lent it until its end has been taken, also if Python drops it.
/// Thread safety: used with the GIL held, but for end_calls().
class Queue final : public Caller, public std::enable_shared_from_this<Queue> {
 public:
  /// `waits`: calls wait for a node that is being connected, until their deadline. `is_shared`: each call of the client
  /// frees the buffers of this queue's dropped calls; else completions stay, and the descriptor readable, until reap()
  /// or a question about one of the calls. Throws StatusError.
  static std::shared_ptr<Queue> open(const std::shared_ptr<ClientCore>& core, bool waits, bool is_shared);
  Queue(std::shared_ptr<ClientCore> core, bool waits, bool is_shared);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  const std::shared_ptr<ClientCore>& core() const override { return core_; }
  const CompletionQueue& native() const { return *queue_; }
  bool is_shared() const { return is_shared_; }
  /// Neither waits for an answer nor gets one: the process is a child of fork(), or at its end.
  bool is_lost() const { return queue_->is_forked() || core_->is_abandoned(); }

  /// Begins a call. Refused, it has ended with that error. `then`, if not None, makes the future's result of the
  /// call's.
  Future begin(Request request, Holds holds, nb::object then = nb::none());
  nb::object make(const Request& request, Holds holds) override;

  /// Passes on all completions, which may run Python.
  void reap();
  void cancel(const CallState& call) { static_cast<void>(queue_->cancel(call.id)); }
  /// Waits, without the GIL, until `count` of the calls have ended.
  bool wait(const std::vector<std::shared_ptr<CallState>>& calls, std::size_t count, std::optional<double> timeout);
  std::size_t wait_segments(const CallState& call, std::size_t count, std::optional<double> timeout);
  /// Refuses new calls, gives up those in flight, and waits until they have ended. Without the GIL.
  void end_calls();

 private:
  const std::shared_ptr<ClientCore> core_;
  const bool is_shared_;
  std::unique_ptr<CompletionQueue> queue_;
  std::unordered_map<std::uint64_t, std::shared_ptr<CallState>> in_flight_;  ///< By tag.
  std::uint64_t last_tag_ = 0;
  static constexpr std::size_t kTakenAtOnce = 16;
  std::array<Completion, kTakenAtOnce> taken_;  ///< By reap(), until it runs Python.
};

/// A call as Python sees it; kvstore/futures.py adds what event loops need. In a child of fork() a call in flight has
/// ended, with kForked. Times are in seconds; none: for ever.
class Future {
 public:
  Future(std::shared_ptr<Queue> queue, std::shared_ptr<CallState> state, nb::object then)
      : queue_(std::move(queue)), state_(std::move(state)), then_(std::move(then)) {}

  const std::shared_ptr<Queue>& queue() const { return queue_; }
  const std::shared_ptr<CallState>& state() const { return state_; }
  bool has_ended() const;
  bool wait(std::optional<double> timeout) const;
  void cancel() const { queue_->cancel(*state_); }
  nb::object result(std::optional<double> timeout) const;
  std::vector<std::size_t> segments() const;
  std::size_t wait_segments(std::size_t count, std::optional<double> timeout) const;
  /// Calls `told` at the next event: a landed segment, or the end. False: the call has ended.
  bool tell(nb::object told) const;

 private:
  std::shared_ptr<Queue> queue_;
  std::shared_ptr<CallState> state_;
  nb::object then_;
};

}  // namespace kv::python
