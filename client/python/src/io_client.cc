#include "client/python/src/io_client.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <new>

#include "base/assert.h"
#include "client/python/src/errors.h"
#include "client/types/reason.h"

namespace kv::python {
// -- ReadyQueue

ReadyQueue::ReadyQueue() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw failure_of(last_errno());
}
ReadyQueue::~ReadyQueue() { ::close(fd_); }

void ReadyQueue::expect() {
  if (is_forked()) return;  // before the lock, which may be held for ever
  const std::lock_guard lock(mutex_);
  // Space is reserved when a call is registered, on a thread that can still raise MemoryError. push() then does not
  // allocate: an unreported end would be an await that never returns.
  const std::size_t needed = ends_.size() + expected_ + 1;
  if (needed > ends_.capacity()) ends_.reserve(std::max(needed, 2 * ends_.capacity()));
  ++expected_;
}

void ReadyQueue::expect_no_longer() {
  if (is_forked()) return;
  const std::lock_guard lock(mutex_);
  KV_ASSERT(expected_ > 0);
  --expected_;
}

void ReadyQueue::push(std::uint64_t id) {
  if (is_forked()) return;
  bool is_first;
  {
    const std::lock_guard lock(mutex_);
    KV_ASSERT(expected_ > 0 && ends_.size() < ends_.capacity());
    is_first = ends_.empty() && progress_.empty();
    ends_.push_back(id);
    --expected_;
  }
  if (is_first) wake();
}

void ReadyQueue::push_progress(std::uint64_t id) {
  if (is_forked()) return;
  bool is_first;
  try {
    const std::lock_guard lock(mutex_);
    is_first = ends_.empty() && progress_.empty();
    progress_.push_back(id);
  } catch (const std::bad_alloc&) {
    // Lost progress is harmless: the next mark, or the end, carries as much.
    return;
  }
  if (is_first) wake();
}

void ReadyQueue::wake() {
  const std::uint64_t one = 1;
  // Any other failure means that the counter is full, and the eventfd readable already.
  while (::write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

std::vector<std::uint64_t> ReadyQueue::drain() {
  if (is_forked()) return {};
  std::vector<std::uint64_t> told;
  const std::lock_guard lock(mutex_);
  told.reserve(ends_.size() + progress_.size());  // before any id is taken
  std::uint64_t count;
  // The first in writes after it released the lock: perhaps only now, which makes a harmless empty drain.
  while (::read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
  }
  // Progress before ends: a listener forgets a call once it has ended.
  told.insert(told.end(), progress_.begin(), progress_.end());
  told.insert(told.end(), ends_.begin(), ends_.end());
  progress_.clear();
  ends_.clear();  // keeps its capacity: invariant 1
  return told;
}

// -- Call

bool Call::wait(std::chrono::nanoseconds time) const {
  // A local node often answers before a sleep begins. A yield (1 us) lets the I/O thread run if it shares this core.
  for (int i = 0; i < 4 && !is_done(); ++i) ::sched_yield();
  const auto until = std::chrono::steady_clock::now() + time;
  while (!is_done()) {
    // Read before the state: a change in between makes the futex return at once.
    const std::uint32_t seen = changes_.load(std::memory_order_acquire);
    const auto left = until - std::chrono::steady_clock::now();
    if (is_done() || left <= 0ns) break;
    wait_for_change(seen, left);
  }
  return is_done();
}

std::size_t Call::wait_segments(std::size_t count, std::chrono::nanoseconds time) const {
  const auto until = std::chrono::steady_clock::now() + time;
  for (;;) {
    const std::uint32_t seen = changes_.load(std::memory_order_acquire);
    const std::size_t landed = segments().size();
    const auto left = until - std::chrono::steady_clock::now();
    if (landed >= count || is_done() || left <= 0ns) return landed;
    wait_for_change(seen, left);
  }
}

void Call::wait_for_change(std::uint32_t seen, std::chrono::nanoseconds time) const {
  static_assert(sizeof changes_ == sizeof(std::uint32_t));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec timeout{seconds.count(), (time - seconds).count()};
  // In one order with changes_: either changed() sees the waiter, or the kernel sees the new value of `changes_`.
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares again, so a change since `seen` is not slept through.
  ::syscall(SYS_futex, &changes_, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void Call::changed() {
  changes_.fetch_add(1, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

std::vector<std::size_t> Call::segments() const {
  const std::lock_guard lock(mutex_);
  return segments_;
}

bool Call::tell(std::shared_ptr<ReadyQueue> queue, std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (is_done()) return false;
  const auto listener = std::ranges::find(listeners_, queue, &Listener::queue);
  if (listener == listeners_.end()) {
    // Throwing calls first: an expectation without a listener would never be taken back.
    listeners_.reserve(listeners_.size() + 1);
    queue->expect();
    listeners_.push_back({std::move(queue), id});
  } else {
    listener->id = id;
  }
  return true;
}

void Call::stop_telling(ReadyQueue& queue) {
  const std::lock_guard lock(mutex_);
  if (std::erase_if(listeners_, [&](const Listener& each) { return each.queue.get() == &queue; }) > 0)
    queue.expect_no_longer();
}

void Call::end(error_code error, Outcome outcome, std::string reason) {
  std::vector<Listener> listeners;
  {
    const std::lock_guard lock(mutex_);
    KV_ASSERT(!is_done());
    error_ = error;
    outcome_ = std::move(outcome);
    reason_ = std::move(reason);
    is_done_.store(true, std::memory_order_release);
    // Notified after the lock is released: a queue takes its own lock, and its reader may query this call at once.
    listeners.swap(listeners_);
  }
  changed();
  for (const Listener& each : listeners) each.queue->push(each.id);
}

void Call::land_segment(std::size_t block_count) {
  {
    const std::lock_guard lock(mutex_);
    segments_.push_back(block_count);
    for (const Listener& each : listeners_) each.queue->push_progress(each.id);
  }
  changed();
}

// -- IoClient

namespace {

/// All live clients, for the end of the process. Never destroyed: threads may outlive static objects.
struct Living {
  std::mutex mutex;  ///< Taken with Python's GIL held, as is os.fork(): a child never finds it locked.
  std::vector<std::weak_ptr<IoClient>> clients;
};
Living& living() {
  static auto* const made = new Living;
  return *made;
}

}  // namespace

std::shared_ptr<IoClient> IoClient::make(ClientConfig config, std::chrono::microseconds busy_poll) {
  auto thread = std::make_shared<ClientThread>(std::move(config), busy_poll, socket_network());
  std::shared_ptr<IoClient> made(new IoClient);
  made->thread_ = thread.get();
  made->owned_ = std::move(thread);
  made->numa_place_ = made->thread_->numa_place();
  if (!made->thread_->attach(made)) made->is_disabled_ = true;  // otherwise the thread may have reported it already
  try {
    const std::lock_guard lock(living().mutex);
    std::erase_if(living().clients, [](const auto& each) { return each.expired(); });
    living().clients.emplace_back(made);
  } catch (...) {  // out of memory; the caller has no client to close
    made->close();
    throw;
  }
  return made;
}

std::vector<std::shared_ptr<IoClient>> IoClient::all() {
  std::vector<std::shared_ptr<IoClient>> found;
  const std::lock_guard lock(living().mutex);
  for (const auto& each : living().clients) {
    if (auto client = each.lock()) found.push_back(std::move(client));
  }
  return found;
}

IoClient::~IoClient() { KV_ASSERT(is_over_ || is_forked()); }

void IoClient::close() {
  if (is_forked()) {
    // In a child of fork() the thread is the parent's, and joining it would never end.
    never_destroy(std::move(owned_));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (is_over_.exchange(true)) return;
  }
  owned_.reset();  // calls client_closes(), and waits for the thread
}

void IoClient::abandon() {
  if (is_forked()) return;
  {
    const std::lock_guard lock(mutex_);
    if (is_over_.exchange(true)) return;
  }
  // At the end of the process, when Python may be gone and a slow node must not delay the exit.
  thread_->abandon();
  never_destroy(std::move(owned_));
}

void IoClient::client_closes(std::function<void()> done) {
  std::vector<CallPtr> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.assign(calls_.begin(), calls_.end());
  }
  closed_ = std::move(done);
  // With calls left, leave() closes after the last: until then nodes may write into the callers' memory.
  if (calls.empty()) return be_closed();
  for (const CallPtr& call : calls) call->cancellation.cancel();
}

// An assertion failed on the I/O thread: calls there no longer end by themselves, so each is ended here.
void IoClient::client_disabled() {
  std::unordered_set<CallPtr> calls;
  {
    const std::lock_guard lock(mutex_);
    is_disabled_ = true;
    calls.swap(calls_);
    call_count_ = 0;
  }
  for (const CallPtr& call : calls) call->end(Errc::kUnavailable, std::monostate());
}

void IoClient::cancel_all() {
  if (is_forked()) return;
  const std::lock_guard lock(mutex_);
  for (const CallPtr& call : calls_) post_cancel(call);
}

void IoClient::cancel(const CallPtr& call) {
  if (is_forked()) return;
  const std::lock_guard lock(mutex_);  // while this is held and is_over_ is false, the thread exists
  post_cancel(call);
}

void IoClient::post_cancel(const CallPtr& call) {
  if (is_over_ || is_disabled_) return;
  try {
    asio::post(thread_->io(), [call] { call->cancellation.cancel(); });
  } catch (const std::bad_alloc&) {
    // It ends by its deadline.
  }
}

namespace {

/// Why the call, or a part, failed.
error_code why_of(const error_code& error, const Outcome& outcome) {
  if (error) return error;
  return std::visit(
      [](const auto& value) -> error_code {
        if constexpr (requires { value.why; }) return value.why;
        if constexpr (requires { value.get.why; }) return value.get.why;
        return {};
      },
      outcome);
}

/// Computed now: the node's last error may change before it is read. Empty if memory runs out.
std::string reason_in(Client& client, const error_code& why) {
  try {
    return why ? reason_of(why, client.nodes()) : "";
  } catch (const std::bad_alloc&) {
    return "";
  }
}

}  // namespace

void IoClient::leave(const CallPtr& call, error_code error, Outcome outcome) {
  std::string reason = reason_in(thread_->client(), why_of(error, outcome));
  {
    const std::lock_guard lock(mutex_);
    calls_.erase(call);
    --call_count_;
  }
  // Off the list first: a woken thread may close the client, and must not find the call there.
  call->end(error, std::move(outcome), std::move(reason));
  thread_->linger(/*is_busy=*/call_count() > 0);
  if (closed_ && call_count() == 0) be_closed();
}

void IoClient::be_closed() {
  thread_->detach(*this);
  std::exchange(closed_, nullptr)();
}

}  // namespace kv::python
