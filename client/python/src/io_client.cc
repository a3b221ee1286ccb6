#include "client/python/src/io_client.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/assert.h"
#include "client/python/src/errors.h"
#include "transport/forked.h"

namespace kv::python {
namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// -- ReadyQueue

ReadyQueue::ReadyQueue() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw failure_of(last_errno());
}
ReadyQueue::~ReadyQueue() { ::close(fd_); }

void ReadyQueue::push(std::uint64_t id) {
  bool is_first;
  {
    const std::lock_guard lock(mutex_);
    is_first = ids_.empty();
    ids_.push_back(id);
  }
  if (is_first) {
    const std::uint64_t one = 1;
    while (::write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }
}

std::vector<std::uint64_t> ReadyQueue::drain() {
  std::uint64_t count;
  // Read first: what is pushed between the two makes the eventfd ready again, and an empty drain is harmless.
  while (::read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex_);
  return std::exchange(ids_, {});
}

// -- Call

bool Call::wait(std::chrono::nanoseconds time) {
  if (is_done()) return true;
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return is_done(); });
}

std::size_t Call::wait_segments(std::size_t count, std::chrono::nanoseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return is_done() || segments_.size() >= count; });
  return segments_.size();
}

std::vector<std::size_t> Call::segments() const {
  const std::lock_guard lock(mutex_);
  return segments_;
}

bool Call::tell(std::shared_ptr<ReadyQueue> queue, std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (is_done()) return false;
  queue_ = std::move(queue);
  id_ = id;
  return true;
}

void Call::end(error_code error, Outcome outcome) {
  std::shared_ptr<ReadyQueue> queue;
  {
    const std::lock_guard lock(mutex_);
    KV_ASSERT(!is_done());
    error_ = error;
    outcome_ = std::move(outcome);
    is_done_.store(true, std::memory_order_release);
    queue = std::move(queue_);
    changed_.notify_all();
  }
  if (queue) queue->push(id_);
}

void Call::land_segment(std::size_t block_count) {
  const std::lock_guard lock(mutex_);
  segments_.push_back(block_count);
  changed_.notify_all();
  if (queue_) queue_->push(id_);
}

// -- IoClient

IoClient::IoClient(ClientConfig config, std::chrono::microseconds busy_poll)
    : generation_(fork_generation()),
      busy_poll_(busy_poll),
      client_(std::make_unique<Client>(io_->get_executor(), std::move(config))),
      thread_(std::make_unique<std::thread>([this] { run_thread(); })) {}

IoClient::~IoClient() {
  if (is_forked()) {
    // The thread does not exist here, and the event queue is the parent's: see BlockingClient's destructor.
    (void)client_.release();
    (void)io_.release();
    (void)thread_.release();
    new std::optional(std::move(work_));
    return;
  }
  if (is_abandoned_) {
    (void)client_.release();
    work_.reset();
    (void)io_.release();
    return;
  }
  while (call_count() > 0) ::usleep(50);  // mostly none, or one whose end was just told
  asio::post(*io_, [this] { client_.reset(); });
  work_.reset();
  thread_->join();
  if (is_disabled()) {  // what is left cannot be trusted to destroy itself
    (void)client_.release();
    (void)io_.release();
  }
}

void IoClient::abandon() {
  if (is_forked() || is_abandoned_.exchange(true)) return;
  io_->stop();
  if (thread_->joinable()) thread_->join();
}

void IoClient::run_thread() {
  try {
    if (busy_poll_.count() == 0) {
      io_->run();
      return;
    }
    auto idle_since = std::chrono::steady_clock::now();
    while (!io_->stopped()) {
      if (io_->poll() > 0) {
        idle_since = std::chrono::steady_clock::now();
      } else if (std::chrono::steady_clock::now() - idle_since < busy_poll_) {
        relax();
      } else {
        io_->run_one();
        idle_since = std::chrono::steady_clock::now();
      }
    }
    return;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kvstore: client disabled: %s\n", e.what());
  } catch (...) {
    std::fprintf(stderr, "kvstore: client disabled\n");
  }
  std::unordered_set<CallPtr> calls;
  {
    const std::lock_guard lock(mutex_);
    is_disabled_ = true;
    calls.swap(calls_);
    call_count_ = 0;
  }
  for (const CallPtr& call : calls) call->end(Errc::kUnavailable, std::monostate());
}

bool IoClient::is_forked() const { return generation_ != fork_generation(); }

error_code IoClient::why_not() const { return is_forked() ? Errc::kForked : Errc::kUnavailable; }

bool IoClient::enter(const CallPtr& call) {
  if (!is_forked()) {  // before anything is locked: in a child the lock may be held for ever
    const std::lock_guard lock(mutex_);
    if (!is_disabled_ && !is_abandoned_) {
      calls_.insert(call);
      ++call_count_;
      return true;
    }
  }
  call->end(why_not(), std::monostate());
  return false;
}

void IoClient::leave(const CallPtr& call, error_code error, Outcome outcome) {
  call->end(error, std::move(outcome));
  // After the end: whoever sees no call in flight may destroy what the calls used.
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
  --call_count_;
}

}  // namespace kv::python
