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
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "client/blocking_client.h"
#include "client/load.h"
#include "client/queue/call_entry.h"
#include "client/queue/call_table.h"
#include "client/queue/completions.h"
#include "client/queue/handoff_list.h"
#include "client/thread/client_thread.h"
#include "client/types/reason.h"
#include "transport/forked.h"

namespace kv {
namespace {

/// Takes over a call's result. Returns why it failed, or kCancelled if it was cut short.
template <class T>
error_code keep(Result<T>&& result, T& to) {
  if (!result) return result.error();
  to = *std::move(result);
  if constexpr (requires { to.why; }) return to.why == Errc::kCancelled ? to.why : error_code();
  return {};
}
template <class T>
error_code keep(Result<T>&& result, T SetResults::*member, Completion& end) {
  if (!result) return result.error();
  SetResults sets;
  const error_code error = keep(std::move(result), sets.*member);
  end.sets = std::make_shared<const SetResults>(std::move(sets));
  return error;
}

/// Calls started per turn of the I/O thread: starting one takes some microseconds.
constexpr std::size_t kStartsPerTurn = 16;

CompletionQueueOptions checked(CompletionQueueOptions options) {
  if (options.calls_max < 1 || options.calls_max > 65536) throw std::invalid_argument("calls_max: must be 1..65536");
  if (options.bytes_max < 1 || options.bytes_max > PTRDIFF_MAX) {
    throw std::invalid_argument("bytes_max: must be positive, and not larger than memory can be");
  }
  return options;
}

template <class Byte>
std::size_t total_bytes(std::span<const std::span<Byte>> blocks) {
  std::size_t bytes = 0;
  for (const std::span<Byte> block : blocks) {
    if (block.size() > PTRDIFF_MAX - bytes) return PTRDIFF_MAX;  // over any bytes_max, even with the copies
    bytes += block.size();
  }
  return bytes;
}

/// Memory that a submit of `request` counts, besides copies: its blocks, and results by name.
std::size_t data_bytes(const Request& request) {
  const std::size_t blocks = total_bytes(request.to) + total_bytes(request.from);
  switch (request.op) {
    case Op::kMatchSet: return request.hashes.size() * (sizeof(Held) + sizeof(std::uint32_t));
    case Op::kGetSet: return blocks + request.hashes.size() * sizeof(SetGetBlock);
    case Op::kPutSet: return blocks + request.hashes.size() * sizeof(SetPutBlock);
    default: return blocks;
  }
}

/// Whether each hash has its block, if the operation moves blocks.
bool has_blocks(const Request& request) {
  switch (request.op) {
    case Op::kGet:
    case Op::kLoad:
    case Op::kGetSet: return request.to.size() == request.hashes.size();
    case Op::kPut:
    case Op::kPutSet: return request.from.size() == request.hashes.size();
    default: return true;
  }
}

/// Calls visit(list) for each list that a submit copies.
template <class AnyRequest, class Visit>
void for_each_list(AnyRequest& request, Visit visit) {
  visit(request.hashes);
  visit(request.to);
  visit(request.from);
  visit(request.token_ids);
  visit(request.extras);
  visit(request.segment_ends);
  visit(request.group_counts);
}

/// For gets with segments and without a callback: a callback that makes completions.
SegmentCallback to_tell(CallEntry& entry) {
  const auto tell = [](void* context, std::size_t segment, std::size_t block_count) {
    auto& told = *static_cast<CallEntry*>(context);
    told.completions->tell_segment(told, segment, block_count);
  };
  return {tell, &entry};
}

/// The end of a call whose deadline passed before any node was asked.
error_code end_late(Op op, std::size_t count, Completion& end) {
  const error_code why = asio::error::timed_out;
  SetResults sets;
  switch (op) {
    case Op::kMatch:
    case Op::kGet:
    case Op::kLoad:
    case Op::kPut:
      end.match.why = end.get.why = end.put.why = why;
      end.put.refused = count;
      return {};
    case Op::kMatchSet:
      sets.match.held.resize(count, Held::kNowhere);
      sets.match.block_bytes.resize(count, 0);
      sets.match.why = why;
      break;
    case Op::kGetSet:
      sets.get.blocks.resize(count, {.why = why});
      sets.get.why = why;
      break;
    case Op::kPutSet:
      sets.put.blocks.resize(count, SetPutBlock::kRefused);
      sets.put.refused = count;
      sets.put.why = why;
      break;
    default: return why;
  }
  end.sets = std::make_shared<const SetResults>(std::move(sets));
  return {};
}

/// The text for Completion::reason. Told now, since a node's last error may change; empty if that fails.
std::string reason_in(const Completion& end, Client& client) {
  error_code why = end.error;
  for (const error_code& each : {end.match.why, end.get.why, end.put.why}) why = why ? why : each;
  if (!why && end.sets) {
    for (const error_code& each : {end.sets->match.why, end.sets->get.why, end.sets->put.why}) why = why ? why : each;
  }
  try {
    return why ? reason_of(why, client.nodes()) : std::string();
  } catch (const std::exception&) {
    return {};
  }
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
    const auto copied = copied_bytes(request);
    if (!copied) return copied.error();
    // Before an entry is taken: these may throw.
    std::optional<NamespaceRecord> record;
    if (request.record != nullptr) record = *request.record;
    Work work;
    if (request.work != nullptr) work = *request.work;
    const auto taken = take_entry(request, *copied + data_bytes(request));
    if (!taken) return taken.error();
    CallEntry& entry = **taken;
    if (!entry.arguments.reserve(*copied)) {
      table.give_back(entry);
      return error_code(boost::system::errc::not_enough_memory, boost::system::generic_category());
    }
    for_each_list(entry.request, [&](auto& list) { list = entry.arguments.copy(list); });
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
    return !submitted_.is_empty() || !cancelled_.is_empty() || starting_ != nullptr ||
           (is_closed_.load(std::memory_order_seq_cst) && !has_closed_);
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
    if (is_closed_.load(std::memory_order_seq_cst) && !std::exchange(has_closed_, true)) {
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
  /// Of a request's lists that a submit copies. Errors: kTooLarge for a list beyond any limit; shorter sums fit.
  Result<std::size_t> copied_bytes(const Request& request) const {
    const std::size_t bytes_max = std::min<std::size_t>(options.bytes_max, PTRDIFF_MAX / 16);
    std::size_t bytes = request.record != nullptr ? request.record->text().size() : 0;
    bool fits = true;
    for_each_list(request, [&](const auto& list) {
      fits &= list.size() <= bytes_max / sizeof(list[0]);
      bytes += fits ? ArgumentStore::bytes_of(list) : 0;
    });
    return fits ? Result<std::size_t>(bytes) : error_code(Errc::kTooLarge);
  }

  error_code why_closed() const { return why_closed_.load(std::memory_order_acquire); }

  /// An entry for a checked call, which borrows its arguments.
  Result<CallEntry*> take_entry(const Request& request, std::size_t bytes) {
    if (is_closed_.load(std::memory_order_acquire)) return why_closed();
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
    if (is_closed_.load(std::memory_order_seq_cst)) refuse_submitted_if_over();
  }

  void close(Errc why) {
    Errc none{};
    why_closed_.compare_exchange_strong(none, why, std::memory_order_acq_rel);
    is_closed_.store(true, std::memory_order_seq_cst);
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
    const error_code error = co_await self->serve(entry);
    const bool has_waiter = entry.waiter != nullptr;
    KV_ASSERT(self->running_count_ > 0);
    --self->running_count_;
    self->end(entry, error);  // 3: serve() has been destroyed
    if (self->thread_ != nullptr) {
      has_waiter ? self->thread_->expect_caller() : self->thread_->linger(/*is_busy=*/self->running_count_ > 0);
    }
    self->end_if_idle();
  }

  /// Makes the call, with its results in entry.end.
  asio::awaitable<error_code> serve(CallEntry& entry);
  asio::awaitable<error_code> serve_list(CallEntry& entry, std::chrono::microseconds left, CallControl control);
  asio::awaitable<error_code> load(CallEntry& entry, std::chrono::microseconds left, CallControl control);
  static std::chrono::microseconds time_left(const CallEntry& entry) {
    return std::chrono::duration_cast<std::chrono::microseconds>(entry.until - std::chrono::steady_clock::now());
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
    if (!is_closed_.load(std::memory_order_relaxed) || running_count_ > 0 || starting_ != nullptr) return;
    if (thread_ == nullptr) return;
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

  void refuse_submitted_if_over() {
    {
      const std::lock_guard lock(over_mutex_);
      if (!is_over_) return;  // the I/O thread will look again
    }
    refuse_submitted();
  }

  /// 1: ends calls pushed too late for the I/O thread.
  void refuse_submitted() {
    for (CallEntry* entry = submitted_.take_all(); entry != nullptr;) {
      CallEntry* const next = entry->next_submitted;
      end(*entry, why_closed());
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
  std::atomic<bool> is_closed_{false}, is_disabled_{false};
  std::atomic<Errc> why_closed_{};

  // The I/O thread's.
  CallEntry* starting_ = nullptr;  ///< Taken and not started, linked by next_submitted.
  CallEntry* starting_last_ = nullptr;
  std::size_t running_count_ = 0;
  bool has_closed_ = false;  ///< It has seen is_closed_, and cancelled all calls.
  std::function<void()> done_;

  std::mutex over_mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
};

// -- what a call does

namespace {

/// Of `Options`, what most kinds have, from the request.
template <class Options>
Options options_of(const Request& request, std::chrono::microseconds left, CallControl control) {
  Options options{};
  options.deadline = left;
  options.control = control;
  if constexpr (requires { options.reuse; }) options.reuse = request.reuse;
  if constexpr (requires { options.prefetch; }) {
    options.lease = request.wants_lease;
    options.prefetch = request.prefetch;
  } else if constexpr (requires { options.lease; }) {
    options.lease = request.lease;
  }
  if constexpr (requires { options.memory_only; }) options.memory_only = request.memory_only;
  if constexpr (requires { options.token_ids; }) {
    options.token_ids = request.token_ids;
    options.extras = request.extras;
  }
  if constexpr (requires { options.segment_ends; }) {
    options.segment_ends = request.segment_ends;
    options.on_segment = request.on_segment;
    options.checksums = request.checksums;
  }
  if constexpr (requires { options.group_counts; }) options.group_counts = request.group_counts;
  return options;
}

}  // namespace

asio::awaitable<error_code> CompletionQueue::Impl::serve(CallEntry& entry) {
  const Request& request = entry.request;
  Client& client = thread_->client();
  Completion& end = entry.end;
  const bool is_late = time_left(entry) <= std::chrono::microseconds(0);
  const auto left = std::max(time_left(entry), std::chrono::microseconds(0));
  CallControl control;
  control.at_once = !options.wait_while_away;
  control.cancellation = &*entry.cancellation;
  control.trace = request.trace;
  if (control.is_cancelled()) co_return Errc::kCancelled;
  if (request.work != nullptr) {
    auto made = (*request.work)(client, control);
    auto done = co_await std::move(made);
    co_return keep(std::move(done), end.count);
  }
  if (request.op == Op::kRelease) {
    client.release(request.lease);
    co_return error_code();
  }
  if (request.op == Op::kOpen) {
    if (request.record == nullptr) co_return Errc::kBadRequest;
    control.at_once = false;  // may wait for a node until its deadline
    NamespaceRecord record = *request.record;
    auto opened = co_await thread_->open(std::move(record), left, control);
    co_return keep(std::move(opened), end.space);
  }
  // The call's turn came too late. Asking the nodes would count against them.
  if (is_late && entry.waiter == nullptr) co_return end_late(request.op, request.hashes.size(), end);
  switch (request.op) {
    case Op::kWaitOpen: {
      control.at_once = false;
      const auto waited = co_await client.wait_open(request.space, left, control);
      co_return waited ? error_code() : waited.error();
    }
    case Op::kLend: co_return keep(co_await client.lend(request.memory, left, control), end.count);
    case Op::kRemoveDeviceMemory: {
      const auto removed = co_await client.remove_device_memory(request.memory, left, control);
      co_return removed ? error_code() : removed.error();
    }
    default: {
      const error_code error = co_await serve_list(entry, left, control);
      co_return error;
    }
  }
}

/// Calls on a list of hashes.
asio::awaitable<error_code> CompletionQueue::Impl::serve_list(CallEntry& entry, std::chrono::microseconds left,
                                                              CallControl control) {
  const Request& request = entry.request;
  const Space space = request.space;
  const Hashes hashes = request.hashes;
  Client& client = thread_->client();
  Completion& end = entry.end;
  switch (request.op) {
    case Op::kMatch: {
      const auto given = options_of<MatchOptions>(request, left, control);
      co_return keep(co_await client.match(space, hashes, given), end.match);
    }
    case Op::kGet: {
      const auto given = options_of<GetOptions>(request, left, control);
      co_return keep(co_await client.get(space, hashes, request.to, given), end.get);
    }
    case Op::kLoad: {
      const error_code error = co_await load(entry, left, control);
      co_return error;
    }
    case Op::kPut: {
      auto given = options_of<PutOptions>(request, left, control);
      given.checksums = request.checksums_of_from;
      co_return keep(co_await client.put(space, hashes, request.from, given), end.put);
    }
    case Op::kMatchSet: {
      const auto given = options_of<MatchOptions>(request, left, control);
      co_return keep(co_await client.match_set(space, hashes, given), &SetResults::match, end);
    }
    case Op::kGetSet: {
      const auto given = options_of<GetOptions>(request, left, control);
      co_return keep(co_await client.get_set(space, hashes, request.to, given), &SetResults::get, end);
    }
    case Op::kPutSet: {
      const auto given = options_of<PutOptions>(request, left, control);
      co_return keep(co_await client.put_set(space, hashes, request.from, given), &SetResults::put, end);
    }
    case Op::kTouch: co_return keep(co_await client.touch(space, hashes, left, control), end.count);
    case Op::kRetain: co_return keep(co_await client.retain(space, hashes, left, control), end.count);
    case Op::kUnretain: co_return keep(co_await client.unretain(space, hashes, left, control), end.count);
    case Op::kDrop: co_return keep(co_await client.drop(space, hashes, left, control), end.drop);
    default: co_return Errc::kBadRequest;  // without `work`
  }
}

asio::awaitable<error_code> CompletionQueue::Impl::load(CallEntry& entry, std::chrono::microseconds left,
                                                        CallControl control) {
  const Request& request = entry.request;
  auto given = options_of<LoadOptions>(request, left, control);
  given.block_count_min = request.block_count_min;
  const std::function<void(const MatchResult&)> on_match = [this, &entry](const MatchResult& match) {
    entry.end.match = match;
    entry.end.get.why = match.why;
    if (entry.request.tell_match && entry.waiter == nullptr) completions.tell_matched(entry, match);
  };
  auto loaded = co_await kv::load(thread_->client(), request.space, request.hashes, request.to, given, &on_match);
  if (!loaded) co_return loaded.error();
  entry.end.get = loaded->get;
  co_return entry.end.get.why == Errc::kCancelled ? entry.end.get.why : error_code();
}

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
