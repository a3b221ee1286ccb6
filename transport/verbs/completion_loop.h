// transport/verbs/completion_loop.h: hands the completions of one queue to their owners, on an I/O thread's event loop.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "base/event.h"
#include "transport/verbs/verbs.h"

namespace kv::verbs {

/// Polls while completions come, then sleeps on the queue's descriptor. One per I/O thread and device. Thread safety:
/// none; all calls on the executor. Outlives its handlers.
class CompletionLoop {
 public:
  using Handler = std::function<void(const Completion&)>;

  CompletionLoop(const asio::any_io_executor& executor, std::unique_ptr<CompletionQueue> queue);
  ~CompletionLoop();

  CompletionQueue& queue() { return *queue_; }
  const asio::any_io_executor& executor() const { return executor_; }

  /// `handler` gets the completions of that queue pair until remove(). It may add and remove handlers, even itself.
  void add(std::uint32_t queue_pair, Handler handler);
  void remove(std::uint32_t queue_pair);

  /// Runs until stop(), once. The loop outlives the call. On an error the device's reports have ended: every handler
  /// has then got one last completion with kFatal, which ends no batch.
  Async<void> run();
  void stop();

 private:
  static constexpr std::size_t kTurnCount = 64;  ///< Most handled before others on the thread get a turn.

  Async<void> take_all();
  void hand(const Completion& completion);

  asio::any_io_executor executor_;
  std::unique_ptr<CompletionQueue> queue_;
  asio::posix::stream_descriptor waiting_;  ///< Borrows the queue's descriptor, released at the end.
  std::unordered_map<std::uint32_t, std::shared_ptr<Handler>> handlers_;
  bool is_stopped_ = false;
};

}  // namespace kv::verbs
