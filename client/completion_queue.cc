// client/completion_queue.cc: a call enters as arguments on any thread, and leaves as a completion.
//
//   submitter         takes an entry, copies the arguments into it, hands it over without a lock
//   I/O thread        starts handed-over calls as coroutines of the client, and reports their events
//   reaper            takes the completions (queue/completions.h)
#include "client/completion_queue.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "client/blocking_client.h"
#include "client/queue/call_entry.h"
#include "client/queue/call_table.h"
#include "client/queue/completions.h"
#include "client/queue/handoff_list.h"
#include "client/queue/serve_call.h"
#include "client/thread/client_thread.h"
#include "transport/forked.h"

namespace kv {
namespace {

/// Calls started per turn of the I/O thread: starting one takes some microseconds.
constexpr std::size_t kStartsPerTurn = 16;

CompletionQueueOptions checked(CompletionQueueOptions options) {
  if (options.calls_max < 1 || options.calls_max > 65536) throw std::invalid_argument("calls_max: must be 1..65536");
  if (options.bytes_max < 1 || options.bytes_max > PTRDIFF_MAX) {
    throw std::invalid_argument("bytes_max: must be positive, and not larger than memory can be");
  }
  return options;
}

/// For gets with segments and without a callback: a callback that makes completions.
SegmentCallback to_tell(CallEntry& entry) {
  const auto tell = [](void* context, std::size_t segment, std::size_t block_count) {
    auto& told = *static_cast<CallEntry*>(context);
    told.completions->tell_segment(told, segment, block_count);
  };
  return {tell, &entry};
}

}  // namespace

/// Both ends of a queue, and the I/O thread's work between them.
///   1. Every pushed entry gets an end from the I/O thread; or, once the queue is over, from its submitter.
///   2. Once is_over_, the client and its thread are not used: they may be gone.
///   3. A call's end is reported after its coroutine has released the caller's memory.
class CompletionQueue::Impl final : public ClientThread::Guest, public std::enable_shared_from_this<Impl> {
 public:
  Impl(ClientThread& thread, CompletionQueueOptions o, bool copies)
      : options(checked(o)),
        table(options.calls_max, options.bytes_max, copies),
        completions(table),
        space_sizes(thread.space_sizes()),
        waker_(thread.waker()),
        busy_poll_(thread.busy_poll()),
        host_(&thread),
        thread_(&thread) {}

  void attach() {
    if (!thread_->attach(shared_from_this())) client_disabled();  // a forked child is detected earlier
  }

  bool is_forked() const { return generation_ != fork_generation(); }
  bool is_disabled() const { return is_disabled_.load(std::memory_order_acquire); }

  // -- any thread

  Result<CallId> submit(const Request& request) {
    if (is_forked()) return error_code(Errc::kForked);
    const auto copied = ArgumentStore::bytes_of(request, options.bytes_max);
    if (!copied) return copied.error();
    // Before an entry is taken: these may throw.
    std::optional<NamespaceRecord> record;
    if (request.record != nullptr) record = *request.record;
    Work work;
    if (request.work != nullptr) work = *request.work;
    const auto taken = take_entry(request, *copied + data_bytes(request));
    if (!taken) return taken.error();
    CallEntry& entry = **taken;
    if (!entry.arguments.take_over(entry.request, *copied)) {
      table.give_back(entry);
      return error_code(boost::system::errc::not_enough_memory, boost::system::generic_category());
    }
    entry.record = std::move(record);
    entry.work = std::move(work);
    if (entry.record) entry.request.record = &*entry.record;
    if (entry.work) entry.request.work = &entry.work;
    if (!request.segment_ends.empty() && request.on_segment.call == nullptr) entry.request.on_segment = to_tell(entry);
    completions.begun();
    const CallId id = table.name(entry);
    if (submitted_.push(entry)) waker_->wake();
    end_if_over();
    return id;  // the entry may already belong to another call
  }

  /// The call is made by this thread if nobody else does I/O for the client, else by the I/O thread.
  Completion run(const Request& request, const Interrupt* interrupt) {
    CallWaiter waiter;
    CallEntry* entry = nullptr;
    if (const error_code refused = begin(request, waiter, entry)) return not_made(request, refused);
    const CallId id{entry->id.load(std::memory_order_relaxed)};
    const TimePoint until =
        interrupt != nullptr ? std::chrono::steady_clock::now() + interrupt->interval : TimePoint::max();
    const bool is_here = waiter.is_in_charge = host_->take_charge();
    const bool is_first = submitted_.push(*entry);
    if (waiter.is_in_charge && host_->run_here(waiter.has_ended, waiter.is_in_charge, until))
      return std::move(waiter.end);
    if (is_forked()) return not_made(request, Errc::kForked);  // in a callback, and this is the child
    if (is_first) waker_->wake();
    end_if_over();
    if (ends_soon(waiter)) return std::move(waiter.end);
    const auto self = interrupt != nullptr ? shared_from_this() : nullptr;  // the client may go
    for (bool has_waited = is_here; interrupt != nullptr; has_waited = false) {
      if (has_waited ? waiter.done.try_acquire() : waiter.done.try_acquire_for(interrupt->interval))
        return std::move(waiter.end);
      const bool is_wanted = interrupt->is_wanted(interrupt->context);
      if (is_forked()) return not_made(request, Errc::kForked);
      if (!is_wanted) continue;
      interrupt = nullptr;
      static_cast<void>(cancel(id));
    }
    waiter.done.acquire();
    return std::move(waiter.end);
  }

  Result<void> cancel(CallId call) {
    if (is_forked()) return error_code(Errc::kForked);
    const auto id = static_cast<std::uint64_t>(call);
    CallEntry* const entry = table.find(call);
    if (entry == nullptr || entry->id.load(std::memory_order_acquire) != id) return error_code(Errc::kNotFound);
    // Ids of an entry only grow. A late wish must not hide one for the entry's next call.
    std::uint64_t seen = entry->cancel_id.load(std::memory_order_relaxed);
    while (seen < id && !entry->cancel_id.compare_exchange_weak(seen, id, std::memory_order_release)) {
    }
    if (!entry->is_cancel_queued.exchange(true, std::memory_order_acq_rel) && cancelled_.push(*entry)) waker_->wake();
    return {};
  }

  void cancel_all() {
    for (std::size_t i = 0; i < table.size(); ++i) static_cast<void>(cancel(CallId{table[i].id.load()}));
  }

  void shutdown() {
    close(Errc::kCancelled);
    waker_->wake();
  }

  void wait_until_over() {
    std::unique_lock lock(over_mutex_);
    over_.wait(lock, [&] { return is_over_; });
  }

  // -- the I/O thread

  bool has_work() const override {
    return !submitted_.is_empty() || !cancelled_.is_empty() || starting_ != nullptr || (is_closed() && !has_closed_);
  }

  bool is_running() const override { return running_count_ > 0 || starting_ != nullptr; }

  /// Handles pending work: new calls, wishes to cancel, the end of the queue.
  void work() override {
    const auto self = shared_from_this();  // it may detach itself
    // In this order: a call is handed over before any wish to cancel it.
    CallEntry* wishes = cancelled_.take_all();
    take_submitted();
    while (wishes != nullptr) {
      CallEntry& entry = *wishes;
      wishes = entry.next_cancelled;
      entry.is_cancel_queued.exchange(false, std::memory_order_acq_rel);  // from here on it may be pushed again
      if (entry.progress == CallEntry::Progress::kNone) continue;
      if (is_wished_away(entry)) entry.cancellation->cancel();
    }
    if (is_closed() && !std::exchange(has_closed_, true)) {
      for (std::size_t i = 0; i < table.size(); ++i) {
        if (table[i].progress != CallEntry::Progress::kNone) table[i].cancellation->cancel();
      }
    }
    for (std::size_t i = 0; i < kStartsPerTurn && starting_ != nullptr; ++i) {
      CallEntry& entry = *starting_;
      starting_ = entry.next_submitted;
      start(entry);
    }
    end_if_idle();
  }

  void client_closes(std::function<void()> done) override {
    close(Errc::kCancelled);
    KV_ASSERT(!done_);
    done_ = std::move(done);
    work();
  }

  void client_disabled() override {
    is_disabled_.store(true, std::memory_order_release);
    close(Errc::kUnavailable);
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (table[i].progress == CallEntry::Progress::kNone) continue;
      table[i].end = {};  // may be half of a result
      end(table[i], Errc::kUnavailable);
    }
    starting_ = nullptr;
    running_count_ = 0;
    be_over();
    refuse_submitted();
  }

  const CompletionQueueOptions options;
  CallTable table;
  Completions completions;
  const std::shared_ptr<const SpaceSizes> space_sizes;

 private:
  bool is_closed() const { return why_closed_.load(std::memory_order_seq_cst) != Errc{}; }

  /// An entry for a checked call, which borrows its arguments.
  Result<CallEntry*> take_entry(const Request& request, std::size_t bytes) {
    if (is_closed()) return error_code(why_closed_.load());
    if (request.deadline > kDeadlineMax || !has_blocks(request)) return error_code(Errc::kBadRequest);
    const auto taken = table.take(bytes);
    if (!taken) return taken.error();
    CallEntry& entry = **taken;
    entry.request = request;
    entry.until = std::chrono::steady_clock::now() + std::max(request.deadline, std::chrono::microseconds(0));
    return &entry;
  }

  error_code begin(const Request& request, CallWaiter& waiter, CallEntry*& entry) {
    if (is_forked()) return Errc::kForked;
    if (host_->is_current()) return Errc::kBadRequest;  // it would wait for itself
    const auto taken = take_entry(request, 0);
    if (!taken) return taken.error();
    entry = *taken;
    entry->waiter = &waiter;
    table.name(*entry);
    return {};
  }

  void end_if_over() {
    // The queue closes before the I/O thread's last look, and this look follows the push: one of the two sees the
    // other.
    if (!is_closed()) return;
    {
      const std::lock_guard lock(over_mutex_);
      if (!is_over_) return;  // the I/O thread will look again
    }
    refuse_submitted();
  }

  void close(Errc why) {
    Errc none{};
    why_closed_.compare_exchange_strong(none, why, std::memory_order_seq_cst);
  }

  static bool is_wished_away(const CallEntry& entry) {
    return entry.cancel_id.load(std::memory_order_acquire) == entry.id.load(std::memory_order_relaxed);
  }

  /// Does not allocate: a call taken but in no list would never get its end (1).
  void take_submitted() {
    for (CallEntry* entry = submitted_.take_all(); entry != nullptr;) {
      CallEntry* const next = std::exchange(entry->next_submitted, nullptr);
      KV_ASSERT(entry->progress == CallEntry::Progress::kNone);
      entry->progress = CallEntry::Progress::kTaken;
      entry->cancellation.emplace();
      // Pushed while the others were being cancelled; or its wish came while a late one for the entry's last call was
      // still queued, which stood for both and was handled before this call arrived.
      if (has_closed_ || is_wished_away(*entry)) entry->cancellation->cancel();
      (starting_ == nullptr ? starting_ : starting_last_->next_submitted) = entry;
      starting_last_ = entry;
      entry = next;
    }
  }

  void start(CallEntry& entry) {
    KV_ASSERT(entry.progress == CallEntry::Progress::kTaken);
    entry.progress = CallEntry::Progress::kRunning;
    ++running_count_;
    asio::co_spawn(thread_->io(), run(shared_from_this(), entry), [](std::exception_ptr exception) {
      if (exception) std::rethrow_exception(exception);
    });
  }

  static asio::awaitable<void> run(std::shared_ptr<Impl> self, CallEntry& entry) {
    const error_code error = co_await serve_call(*self->thread_, entry, self->options.wait_while_away);
    const bool has_waiter = entry.waiter != nullptr;
    KV_ASSERT(self->running_count_ > 0);
    --self->running_count_;
    self->end(entry, error);  // 3: serve_call() has been destroyed
    if (self->thread_ != nullptr) {
      has_waiter ? self->thread_->expect_caller() : self->thread_->linger(/*is_busy=*/self->running_count_ > 0);
    }
    self->end_if_idle();
  }

  /// Polls for the end of a call that another thread makes, as BlockingOptions::busy_poll asks.
  bool ends_soon(CallWaiter& waiter) const {
    if (busy_poll_.count() == 0) return false;
    const TimePoint until = std::chrono::steady_clock::now() + busy_poll_;
    while (std::chrono::steady_clock::now() < until) {
      if (waiter.done.try_acquire()) return true;
      std::this_thread::yield();
    }
    return false;
  }

  /// The end of a call that was never in progress.
  static Completion not_made(const Request& request, error_code why) {
    Completion end;
    end.error = why;
    end.tag = request.tag;
    end.op = request.op;
    if (request.lists.write != nullptr) request.lists.write(request.lists, end);
    return end;
  }

  void end(CallEntry& entry, error_code error) {
    entry.end.error = error;
    entry.cancellation.reset();
    entry.work = nullptr;
    entry.record.reset();
    // A disabled client's state is unknown.
    if (options.tells_reason && thread_ != nullptr && !is_disabled())
      entry.end.reason = reason_in(entry.end, thread_->client());
    if (entry.request.lists.write != nullptr) entry.request.lists.write(entry.request.lists, entry.end);
    entry.progress = CallEntry::Progress::kNone;  // only now: what throws above is ended by client_disabled()
    CallWaiter* const waiter = std::exchange(entry.waiter, nullptr);
    if (waiter == nullptr) return completions.tell_end(entry);  // afterwards the entry may belong to another call
    entry.end.tag = entry.request.tag;
    entry.end.op = entry.request.op;
    waiter->end = std::exchange(entry.end, {});
    table.give_back(entry);
    waiter->has_ended = true;
    if (!waiter->is_in_charge) waiter->done.release();
  }

  void end_if_idle() {
    if (!is_closed() || running_count_ > 0 || starting_ != nullptr || thread_ == nullptr) return;
    thread_->detach(*this);
    const auto done = std::exchange(done_, nullptr);
    be_over();
    refuse_submitted();
    if (done) done();
  }

  void be_over() {
    thread_ = nullptr;
    const std::lock_guard lock(over_mutex_);
    is_over_ = true;
    over_.notify_all();
  }

  /// 1: ends calls pushed too late for the I/O thread.
  void refuse_submitted() {
    for (CallEntry* entry = submitted_.take_all(); entry != nullptr;) {
      CallEntry* const next = entry->next_submitted;
      end(*entry, why_closed_.load());
      entry = next;
    }
  }

  const std::uint32_t generation_ = fork_generation();
  const std::shared_ptr<Waker> waker_;
  const std::chrono::microseconds busy_poll_;
  ClientThread* const host_;  ///< For run(), whose callers keep the client.
  ClientThread* thread_;      ///< The I/O thread's; null once the queue is over.
  HandoffList<CallEntry, &CallEntry::next_submitted> submitted_;
  HandoffList<CallEntry, &CallEntry::next_cancelled> cancelled_;
  std::atomic<Errc> why_closed_{};  ///< Errc{}: open.
  std::atomic<bool> is_disabled_{false};

  // The I/O thread's.
  CallEntry* starting_ = nullptr;  ///< Taken and not started, linked by next_submitted.
  CallEntry* starting_last_ = nullptr;
  std::size_t running_count_ = 0;
  bool has_closed_ = false;  ///< It has seen is_closed(), and cancelled all calls.
  std::function<void()> done_;

  std::mutex over_mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
};

// -- the interface

CompletionQueue::CompletionQueue(BlockingClient& client, CompletionQueueOptions options)
    : impl_(std::make_shared<Impl>(*client.thread_, options, /*copies=*/true)) {
  impl_->attach();
}

CompletionQueue::CompletionQueue(ClientThread& thread, const BlockingOptions& options)
    : impl_(std::make_shared<Impl>(
          thread,
          CompletionQueueOptions{
              .calls_max = options.calls_max, .wait_while_away = true, .tells_reason = options.tells_reason},
          /*copies=*/false)) {
  impl_->attach();
}

CompletionQueue::~CompletionQueue() {
  if (impl_->is_forked()) {
    never_destroy(std::move(impl_));
    return;
  }
  impl_->shutdown();
  impl_->wait_until_over();
}

Result<CallId> CompletionQueue::submit(const Request& request) { return impl_->submit(request); }
Completion CompletionQueue::run(const Request& request, const Interrupt* interrupt) {
  return impl_->run(request, interrupt);
}
void CompletionQueue::cancel_all() { impl_->cancel_all(); }

Result<void> CompletionQueue::cancel(CallId call) { return impl_->cancel(call); }

Result<std::size_t> CompletionQueue::reap(std::span<Completion> into, std::size_t count_min,
                                          std::chrono::microseconds timeout) {
  if (impl_->is_forked()) return error_code(Errc::kForked);
  return impl_->completions.reap(into, count_min, timeout);
}

Result<std::size_t> CompletionQueue::wait(std::span<const CallId> calls, std::size_t count_min,
                                          std::chrono::microseconds timeout, std::span<Completion> into) {
  if (impl_->is_forked()) return error_code(Errc::kForked);
  return impl_->completions.wait(calls, count_min, timeout, into);
}

int CompletionQueue::fd() const { return impl_->is_forked() ? -1 : impl_->completions.fd(); }
std::size_t CompletionQueue::calls_in_flight() const { return impl_->table.calls(); }
std::size_t CompletionQueue::bytes_in_flight() const { return impl_->table.bytes(); }

void CompletionQueue::shutdown() {
  if (!impl_->is_forked()) impl_->shutdown();
}

bool CompletionQueue::is_disabled() const { return impl_->is_disabled(); }
bool CompletionQueue::is_forked() const { return impl_->is_forked(); }
SpaceSize CompletionQueue::size_of(Space space) const { return impl_->space_sizes->find(space); }

}  // namespace kv
