#include "transport/verbs/completion_loop.h"

#include <array>
#include <boost/asio/post.hpp>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace kv::verbs {

CompletionLoop::CompletionLoop(const asio::any_io_executor& executor, std::unique_ptr<CompletionQueue> queue)
    : executor_(executor), queue_(std::move(queue)), waiting_(executor, queue_->descriptor()) {}

CompletionLoop::~CompletionLoop() {
  KV_ASSERT(handlers_.empty());  // a mover outlived its loop
  waiting_.release();            // the queue owns and closes the descriptor
}

void CompletionLoop::add(std::uint32_t queue_pair, Handler handler) {
  const bool is_new = handlers_.emplace(queue_pair, std::make_shared<Handler>(std::move(handler))).second;
  KV_ASSERT(is_new);
}

void CompletionLoop::remove(std::uint32_t queue_pair) { handlers_.erase(queue_pair); }

/// When the device stops reporting, every handler gets a fatal completion, to end its transfers early.
Async<void> CompletionLoop::run() {
  const auto ended = co_await take_all();
  if (ended) co_return ended;
  // A copy of the numbers: handlers add and remove during the calls.
  std::vector<std::uint32_t> all;
  for (const auto& [queue_pair, handler] : handlers_) all.push_back(queue_pair);
  for (const std::uint32_t each : all) hand({.queue_pair = each, .status = Status::kFatal, .is_last = false});
  co_return ended;
}

void CompletionLoop::hand(const Completion& completion) {
  const auto found = handlers_.find(completion.queue_pair);
  if (found == handlers_.end()) return;                    // removed after this completion was polled
  const std::shared_ptr<Handler> handler = found->second;  // it may remove itself
  (*handler)(completion);
}

/// Verbs demand the order poll, arm, poll again, wait: an event comes only for a completion after arming, so one
/// between the first poll and the arming would be missed for ever.
Async<void> CompletionLoop::take_all() {
  std::array<Completion, kTurnCount> some;
  bool is_armed = false;
  while (!is_stopped_) {
    const std::size_t count = queue_->poll(some);
    KV_ASSERT(count <= some.size());
    for (std::size_t i = 0; i < count; ++i) hand(some[i]);
    if (count > 0) {
      is_armed = false;
      co_await asio::post(executor_, asio::use_awaitable);  // a turn for others on this thread
    } else if (!is_armed) {
      // Completions before the arming make no event: poll once more.
      const auto armed = queue_->arm();
      if (!armed) co_return armed.error();
      is_armed = true;
    } else {
      const auto [error] =
          co_await waiting_.async_wait(asio::posix::stream_descriptor::wait_read, asio::as_tuple(asio::use_awaitable));
      if (is_stopped_) break;
      if (error) co_return error;
      const auto taken = queue_->take_events();
      if (!taken) co_return taken.error();  // the descriptor stays readable: this loop would spin
      is_armed = false;
    }
  }
  co_return Result<void>();
}

void CompletionLoop::stop() {
  is_stopped_ = true;
  waiting_.cancel();
}

}  // namespace kv::verbs
