// client/completion_queue.cc: a call enters as arguments on any thread, and leaves as a completion.
//
//   submitter         takes a slot, copies the arguments into it, hands it over without a lock
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
#include "client/queue/call_slot.h"
#include "client/queue/call_slots.h"
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
  switch (request.verb) {
    case Verb::kMatchSet: return request.hashes.size() * (sizeof(Held) + sizeof(std::uint32_t));
    case Verb::kGetSet: return blocks + request.hashes.size() * sizeof(SetGetBlock);
    case Verb::kPutSet: return blocks + request.hashes.size() * sizeof(SetPutBlock);
    default: return blocks;
  }
}

/// Whether each hash has its block, if the verb moves blocks.
bool has_blocks(const Request& request) {
  switch (request.verb) {
    case Verb::kGet:
    case Verb::kLoad:
    case Verb::kGetSet: return request.to.size() == request.hashes.size();
    case Verb::kPut:
    case Verb::kPutSet: return request.from.size() == request.hashes.size();
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
SegmentCallback to_tell(CallSlot& slot) {
  const auto tell = [](void* context, std::size_t segment, std::size_t block_count) {
    auto& told = *static_cast<CallSlot*>(context);
    told.completions->tell_segment(told, segment, block_count);
  };
  return {tell, &slot};
}

/// The end of a call whose deadline passed before any node was asked.
error_code end_late(Verb verb, std::size_t count, Completion& end) {
  const error_code why = asio::error::timed_out;
  SetResults sets;
  switch (verb) {
    case Verb::kMatch:
    case Verb::kGet:
    case Verb::kLoad:
    case Verb::kPut:
      end.match.why = end.get.why = end.put.why = why;
      end.put.refused = count;
      return {};
    case Verb::kMatchSet:
      sets.match.held.resize(count, Held::kNowhere);
      sets.match.block_bytes.resize(count, 0);
      sets.match.why = why;
      break;
    case Verb::kGetSet:
      sets.get.blocks.resize(count, {.why = why});
      sets.get.why = why;
      break;
    case Verb::kPutSet:
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
///   1. Every pushed slot gets an end from the I/O thread; or, once the queue is over, from its submitter.
///   2. Once is_over_, the client and its thread are not used: they may be gone.
///   3. A call's end is reported after its coroutine has released the caller's memory.
class CompletionQueue::Impl final : public ClientThread::Guest, public std::enable_shared_from_this<Impl> {
 public:
  Impl(ClientThread& thread, CompletionQueueOptions o, bool copies)
      : options(checked(o)),
        slots(options.calls_max, options.bytes_max, copies),
        completions(slots),
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
    // Before a slot is taken: these may throw.
    std::optional<NamespaceRecord> record;
    if (request.record != nullptr) record = *request.record;
    Work work;
    if (request.work != nullptr) work = *request.work;
    const auto taken = take_slot(request, *copied + data_bytes(request));
    if (!taken) return taken.error();
    CallSlot& slot = **taken;
    if (!slot.arguments.reserve(*copied)) {
      slots.give_back(slot);
      return error_code(boost::system::errc::not_enough_memory, boost::system::generic_category());
    }
    for_each_list(slot.request, [&](auto& list) { list = slot.arguments.copy(list); });
    slot.record = std::move(record);
    slot.work = std::move(work);
    if (slot.record) slot.request.record = &*slot.record;
    if (slot.work) slot.request.work = &slot.work;
    if (!request.segment_ends.empty() && request.on_segment.call == nullptr) slot.request.on_segment = to_tell(slot);
    completions.begun();
    const CallId id = slots.name(slot);
    if (submitted_.push(slot)) waker_->wake();
    end_if_over();
    return id;  // the slot may already belong to another call
  }

  /// The call is made by this thread if nobody else does I/O for the client, else by the I/O thread.
  Completion run(const Request& request, const Interrupt* interrupt) {
    CallWaiter waiter;
    CallSlot* slot = nullptr;
    if (const error_code refused = begin(request, waiter, slot)) return not_made(request, refused);
    const CallId id{slot->id.load(std::memory_order_relaxed)};
    const TimePoint until =
        interrupt != nullptr ? std::chrono::steady_clock::now() + interrupt->interval : TimePoint::max();
    const bool is_here = waiter.is_in_charge = host_->take_charge();
    const bool is_first = submitted_.push(*slot);
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
    CallSlot* const slot = slots.find(call);
    if (slot == nullptr || slot->id.load(std::memory_order_acquire) != id) return error_code(Errc::kNotFound);
    // Ids of a slot only grow. A late wish must not hide one for the slot's next call.
    std::uint64_t seen = slot->cancel_id.load(std::memory_order_relaxed);
    while (seen < id && !slot->cancel_id.compare_exchange_weak(seen, id, std::memory_order_release)) {
    }
    if (!slot->is_cancel_queued.exchange(true, std::memory_order_acq_rel) && cancelled_.push(*slot)) waker_->wake();
    return {};
  }

  void cancel_all() {
    for (std::size_t i = 0; i < slots.size(); ++i) static_cast<void>(cancel(CallId{slots[i].id.load()}));
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
    CallSlot* wishes = cancelled_.take_all();
    take_submitted();
    while (wishes != nullptr) {
      CallSlot& slot = *wishes;
      wishes = slot.next_cancelled;
      slot.is_cancel_queued.exchange(false, std::memory_order_acq_rel);  // from here on it may be pushed again
      if (slot.stage == CallSlot::Stage::kNone) continue;
      if (is_wished_away(slot)) slot.cancellation->cancel();
    }
    if (is_closed_.load(std::memory_order_seq_cst) && !std::exchange(has_closed_, true)) {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i].stage != CallSlot::Stage::kNone) slots[i].cancellation->cancel();
      }
    }
    for (std::size_t i = 0; i < kStartsPerTurn && starting_ != nullptr; ++i) {
      CallSlot& slot = *starting_;
      starting_ = slot.next_submitted;
      start(slot);
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
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].stage == CallSlot::Stage::kNone) continue;
      slots[i].end = {};  // may be half of a result
      end(slots[i], Errc::kUnavailable);
    }
    starting_ = nullptr;
    running_count_ = 0;
    be_over();
    refuse_submitted();
  }

  const CompletionQueueOptions options;
  CallSlots slots;
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

  /// A slot for a checked call, which borrows its arguments.
  Result<CallSlot*> take_slot(const Request& request, std::size_t bytes) {
    if (is_closed_.load(std::memory_order_acquire)) return why_closed();
    if (request.deadline > kDeadlineMax || !has_blocks(request)) return error_code(Errc::kBadRequest);
    const auto taken = slots.take(bytes);
    if (!taken) return taken.error();
    CallSlot& slot = **taken;
    slot.request = request;
    slot.until = std::chrono::steady_clock::now() + std::max(request.deadline, std::chrono::microseconds(0));
    return &slot;
  }

  error_code begin(const Request& request, CallWaiter& waiter, CallSlot*& slot) {
    if (is_forked()) return Errc::kForked;
    if (host_->is_current()) return Errc::kBadRequest;  // it would wait for itself
    const auto taken = take_slot(request, 0);
    if (!taken) return taken.error();
    slot = *taken;
    slot->waiter = &waiter;
    slots.name(*slot);
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

  static bool is_wished_away(const CallSlot& slot) {
    return slot.cancel_id.load(std::memory_order_acquire) == slot.id.load(std::memory_order_relaxed);
  }

  /// Does not allocate: a call taken but in no list would never get its end (1).
  void take_submitted() {
    for (CallSlot* slot = submitted_.take_all(); slot != nullptr;) {
      CallSlot* const next = std::exchange(slot->next_submitted, nullptr);
      KV_ASSERT(slot->stage == CallSlot::Stage::kNone);
      slot->stage = CallSlot::Stage::kTaken;
      slot->cancellation.emplace();
      // Pushed while the others were being cancelled; or its wish came while a late one for the slot's last call was
      // still queued, which stood for both and was handled before this call arrived.
      if (has_closed_ || is_wished_away(*slot)) slot->cancellation->cancel();
      (starting_ == nullptr ? starting_ : starting_last_->next_submitted) = slot;
      starting_last_ = slot;
      slot = next;
    }
  }

  void start(CallSlot& slot) {
    KV_ASSERT(slot.stage == CallSlot::Stage::kTaken);
    slot.stage = CallSlot::Stage::kRunning;
    ++running_count_;
    asio::co_spawn(thread_->io(), run(shared_from_this(), slot), [](std::exception_ptr exception) {
      if (exception) std::rethrow_exception(exception);
    });
  }

  static asio::awaitable<void> run(std::shared_ptr<Impl> self, CallSlot& slot) {
    const error_code error = co_await self->serve(slot);
    const bool has_waiter = slot.waiter != nullptr;
    KV_ASSERT(self->running_count_ > 0);
    --self->running_count_;
    self->end(slot, error);  // 3: serve() has been destroyed
    if (self->thread_ != nullptr) {
      has_waiter ? self->thread_->expect_caller() : self->thread_->linger(/*is_busy=*/self->running_count_ > 0);
    }
    self->end_if_idle();
  }

  /// Makes the call, with its results in slot.end.
  asio::awaitable<error_code> serve(CallSlot& slot);
  asio::awaitable<error_code> serve_list(CallSlot& slot, std::chrono::microseconds left, CallControl control);
  asio::awaitable<error_code> load(CallSlot& slot, std::chrono::microseconds left, CallControl control);
  static std::chrono::microseconds time_left(const CallSlot& slot) {
    return std::chrono::duration_cast<std::chrono::microseconds>(slot.until - std::chrono::steady_clock::now());
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
    end.verb = request.verb;
    if (request.lists.write != nullptr) request.lists.write(request.lists, end);
    return end;
  }

  void end(CallSlot& slot, error_code error) {
    slot.end.error = error;
    slot.cancellation.reset();
    slot.work = nullptr;
    slot.record.reset();
    // A disabled client's state is unknown.
    if (options.tells_reason && thread_ != nullptr && !is_disabled())
      slot.end.reason = reason_in(slot.end, thread_->client());
    if (slot.request.lists.write != nullptr) slot.request.lists.write(slot.request.lists, slot.end);
    slot.stage = CallSlot::Stage::kNone;  // only now: what throws above is ended by client_disabled()
    CallWaiter* const waiter = std::exchange(slot.waiter, nullptr);
    if (waiter == nullptr) return completions.tell_end(slot);  // afterwards the slot may belong to another call
    slot.end.tag = slot.request.tag;
    slot.end.verb = slot.request.verb;
    waiter->end = std::exchange(slot.end, {});
    slots.give_back(slot);
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
    for (CallSlot* slot = submitted_.take_all(); slot != nullptr;) {
      CallSlot* const next = slot->next_submitted;
      end(*slot, why_closed());
      slot = next;
    }
  }

  const std::uint32_t generation_ = fork_generation();
  const std::shared_ptr<Waker> waker_;
  const std::chrono::microseconds busy_poll_;
  ClientThread* const host_;  ///< For run(), whose callers keep the client.
  ClientThread* thread_;      ///< The I/O thread's; null once the queue is over.
  HandoffList<CallSlot, &CallSlot::next_submitted> submitted_;
  HandoffList<CallSlot, &CallSlot::next_cancelled> cancelled_;
  std::atomic<bool> is_closed_{false}, is_disabled_{false};
  std::atomic<Errc> why_closed_{};

  // The I/O thread's.
  CallSlot* starting_ = nullptr;  ///< Taken and not started, linked by next_submitted.
  CallSlot* starting_last_ = nullptr;
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

asio::awaitable<error_code> CompletionQueue::Impl::serve(CallSlot& slot) {
  const Request& request = slot.request;
  Client& client = thread_->client();
  Completion& end = slot.end;
  const bool is_late = time_left(slot) <= std::chrono::microseconds(0);
  const auto left = std::max(time_left(slot), std::chrono::microseconds(0));
  CallControl control;
  control.at_once = !options.wait_while_away;
  control.cancellation = &*slot.cancellation;
  control.trace = request.trace;
  if (control.is_cancelled()) co_return Errc::kCancelled;
  if (request.work != nullptr) {
    auto made = (*request.work)(client, control);
    auto done = co_await std::move(made);
    co_return keep(std::move(done), end.count);
  }
  if (request.verb == Verb::kRelease) {
    client.release(request.lease);
    co_return error_code();
  }
  if (request.verb == Verb::kOpen) {
    if (request.record == nullptr) co_return Errc::kBadRequest;
    control.at_once = false;  // may wait for a node until its deadline
    NamespaceRecord record = *request.record;
    auto opened = co_await thread_->open(std::move(record), left, control);
    co_return keep(std::move(opened), end.space);
  }
  // The call's turn came too late. Asking the nodes would count against them.
  if (is_late && slot.waiter == nullptr) co_return end_late(request.verb, request.hashes.size(), end);
  switch (request.verb) {
    case Verb::kWaitOpen: {
      control.at_once = false;
      const auto waited = co_await client.wait_open(request.space, left, control);
      co_return waited ? error_code() : waited.error();
    }
    case Verb::kLend: co_return keep(co_await client.lend(request.memory, left, control), end.count);
    case Verb::kRemoveDeviceMemory: {
      const auto removed = co_await client.remove_device_memory(request.memory, left, control);
      co_return removed ? error_code() : removed.error();
    }
    default: {
      const error_code error = co_await serve_list(slot, left, control);
      co_return error;
    }
  }
}

/// Calls on a list of hashes.
asio::awaitable<error_code> CompletionQueue::Impl::serve_list(CallSlot& slot, std::chrono::microseconds left,
                                                              CallControl control) {
  const Request& request = slot.request;
  const Space space = request.space;
  const Hashes hashes = request.hashes;
  Client& client = thread_->client();
  Completion& end = slot.end;
  switch (request.verb) {
    case Verb::kMatch: {
      const auto given = options_of<MatchOptions>(request, left, control);
      co_return keep(co_await client.match(space, hashes, given), end.match);
    }
    case Verb::kGet: {
      const auto given = options_of<GetOptions>(request, left, control);
      co_return keep(co_await client.get(space, hashes, request.to, given), end.get);
    }
    case Verb::kLoad: {
      const error_code error = co_await load(slot, left, control);
      co_return error;
    }
    case Verb::kPut: {
      auto given = options_of<PutOptions>(request, left, control);
      given.checksums = request.checksums_of_from;
      co_return keep(co_await client.put(space, hashes, request.from, given), end.put);
    }
    case Verb::kMatchSet: {
      const auto given = options_of<SetMatchOptions>(request, left, control);
      co_return keep(co_await client.match_set(space, hashes, given), &SetResults::match, end);
    }
    case Verb::kGetSet: {
      const auto given = options_of<SetGetOptions>(request, left, control);
      co_return keep(co_await client.get_set(space, hashes, request.to, given), &SetResults::get, end);
    }
    case Verb::kPutSet: {
      const auto given = options_of<SetPutOptions>(request, left, control);
      co_return keep(co_await client.put_set(space, hashes, request.from, given), &SetResults::put, end);
    }
    case Verb::kTouch: co_return keep(co_await client.touch(space, hashes, left, control), end.count);
    case Verb::kRetain: co_return keep(co_await client.retain(space, hashes, left, control), end.count);
    case Verb::kUnretain: co_return keep(co_await client.unretain(space, hashes, left, control), end.count);
    case Verb::kDrop: co_return keep(co_await client.drop(space, hashes, left, control), end.drop);
    default: co_return Errc::kBadRequest;  // without `work`
  }
}

asio::awaitable<error_code> CompletionQueue::Impl::load(CallSlot& slot, std::chrono::microseconds left,
                                                        CallControl control) {
  const Request& request = slot.request;
  auto given = options_of<LoadOptions>(request, left, control);
  given.block_count_min = request.block_count_min;
  const std::function<void(const MatchResult&)> on_match = [this, &slot](const MatchResult& match) {
    slot.end.match = match;
    slot.end.get.why = match.why;
    if (slot.request.tell_match && slot.waiter == nullptr) completions.tell_matched(slot, match);
  };
  auto loaded = co_await kv::load(thread_->client(), request.space, request.hashes, request.to, given, &on_match);
  if (!loaded) co_return loaded.error();
  slot.end.get = loaded->get;
  co_return slot.end.get.why == Errc::kCancelled ? slot.end.get.why : error_code();
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
std::size_t CompletionQueue::calls_in_flight() const { return impl_->slots.calls(); }
std::size_t CompletionQueue::bytes_in_flight() const { return impl_->slots.bytes(); }

void CompletionQueue::shutdown() {
  if (!impl_->is_forked()) impl_->shutdown();
}

bool CompletionQueue::is_disabled() const { return impl_->is_disabled(); }
bool CompletionQueue::is_forked() const { return impl_->is_forked(); }
SpaceSize CompletionQueue::size_of(Space space) const { return impl_->space_sizes->find(space); }

}  // namespace kv
