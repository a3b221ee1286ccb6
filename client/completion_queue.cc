// client/completion_queue.cc: a call enters as arguments on any thread, and leaves as a completion.
//
//   submitter         takes a slot, copies the arguments into it, hands it over without a lock
//   I/O thread        starts handed-over calls as coroutines of the client, and reports their events
//   reaper            takes the completions (queue/completions.h)
#include "client/completion_queue.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "base/assert.h"
#include "client/load.h"
#include "client/queue/call_slot.h"
#include "client/queue/call_slots.h"
#include "client/queue/completions.h"
#include "client/queue/handoff_list.h"
#include "client/thread/client_thread.h"
#include "transport/forked.h"

namespace kv {
namespace {

/// A call's options with the queue's deadline and control, of which only the trace is the caller's.
template <class Options>
const Options& in_time(Options& options, std::chrono::microseconds left, CallControl control) {
  options.deadline = left;
  control.trace = options.control.trace;
  options.control = control;
  return options;
}

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

}  // namespace

/// Both ends of a queue, and the I/O thread's work between them.
///   1. Every pushed slot gets an end from the I/O thread; or, once the queue is over, from its submitter.
///   2. Once is_over_, the client and its thread are not used: they may be gone.
///   3. A call's end is reported after its coroutine has released the caller's memory.
class CompletionQueue::Impl final : public ClientThread::Guest, public std::enable_shared_from_this<Impl> {
 public:
  Impl(ClientThread& thread, CompletionQueueOptions o)
      : options(checked(o)),
        slots(options.calls_max, options.bytes_max),
        completions(slots),
        space_sizes(thread.space_sizes()),
        waker_(thread.waker()),
        thread_(&thread) {}

  void attach() {
    if (!thread_->attach(shared_from_this())) client_disabled();  // a forked child is detected earlier
  }

  /// Size of the copies of one call's lists. Errors: kTooLarge for a list beyond any limit; shorter sums fit.
  template <class... T>
  Result<std::size_t> copied_bytes(std::span<T>... lists) const {
    const std::size_t bytes_max = std::min<std::size_t>(options.bytes_max, PTRDIFF_MAX / 16);
    if (((lists.size() > bytes_max / sizeof(T)) || ...)) return error_code(Errc::kTooLarge);
    return (ArgumentStore::bytes_of(lists) + ...);
  }

  bool is_forked() const { return generation_ != fork_generation(); }
  bool is_disabled() const { return is_disabled_.load(std::memory_order_acquire); }

  // -- any thread

  /// Takes a slot for a call of `data_bytes`, lets `fill` write `copied_bytes` of arguments into it, and hands it over.
  template <class Fill>
  Result<CallId> submit(Verb verb, std::chrono::microseconds deadline, std::size_t data_bytes, std::size_t copied_bytes,
                        std::uint64_t tag, Fill&& fill) {
    if (is_forked()) return error_code(Errc::kForked);
    if (is_closed_.load(std::memory_order_acquire)) return why_closed();
    if (deadline > kDeadlineMax) return error_code(Errc::kBadRequest);
    const auto taken = slots.take(data_bytes + copied_bytes);
    if (!taken) return taken.error();
    CallSlot& slot = **taken;
    if (!slot.arguments.reserve(copied_bytes)) {
      slots.give_back(slot);
      return error_code(boost::system::errc::not_enough_memory, boost::system::generic_category());
    }
    slot.tag = tag;
    slot.verb = verb;
    slot.until = std::chrono::steady_clock::now() + std::max(deadline, std::chrono::microseconds(0));
    fill(slot);
    completions.begun();
    const CallId id = slots.name(slot);
    hand_over(slot);
    return id;  // the slot may already belong to another call
  }

  /// As submit(), for a call on `hashes`, which are copied as are `lists`.
  template <class Fill, class... T>
  Result<CallId> submit_hashes(Verb verb, Space space, Hashes hashes, std::chrono::microseconds deadline,
                               std::size_t data_bytes, std::uint64_t tag, Fill&& fill, std::span<T>... lists) {
    const auto copied = copied_bytes(hashes, lists...);
    if (!copied) return copied.error();
    return submit(verb, deadline, data_bytes, *copied, tag, [&](CallSlot& slot) {
      slot.space = space;
      slot.hashes = slot.arguments.copy(hashes);
      fill(slot);
    });
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
      if (slots[i].stage != CallSlot::Stage::kNone) end(slots[i], Errc::kUnavailable);
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
  error_code why_closed() const { return why_closed_.load(std::memory_order_acquire); }

  void hand_over(CallSlot& slot) {
    if (submitted_.push(slot)) waker_->wake();
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
    KV_ASSERT(self->running_count_ > 0);
    --self->running_count_;
    self->end(slot, error);  // 3: serve() has been destroyed
    if (self->thread_ != nullptr) self->thread_->linger(/*is_busy=*/self->running_count_ > 0);
    self->end_if_idle();
  }

  /// Makes the call, with its results in slot.end.
  asio::awaitable<error_code> serve(CallSlot& slot);
  asio::awaitable<error_code> load(CallSlot& slot, std::chrono::microseconds left, CallControl control);
  static std::chrono::microseconds time_left(const CallSlot& slot) {
    return std::chrono::duration_cast<std::chrono::microseconds>(slot.until - std::chrono::steady_clock::now());
  }

  void end(CallSlot& slot, error_code error) {
    slot.end.error = error;
    slot.stage = CallSlot::Stage::kNone;
    slot.cancellation.reset();
    slot.work = nullptr;
    slot.record.reset();
    if (slot.lists.write != nullptr) slot.lists.write(std::exchange(slot.lists, {}), slot.end);
    completions.tell_end(slot);  // afterwards the slot may belong to another call
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
  ClientThread* thread_;  ///< The I/O thread's; null once the queue is over.
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

asio::awaitable<error_code> CompletionQueue::Impl::serve(CallSlot& slot) {
  Client& client = thread_->client();
  Completion& end = slot.end;
  const auto left = time_left(slot);
  CallControl control;
  control.at_once = !options.wait_while_away;
  control.cancellation = &*slot.cancellation;
  if (control.is_cancelled()) co_return Errc::kCancelled;
  const bool has_deadline = slot.verb != Verb::kOpen && slot.verb != Verb::kRelease && slot.verb != Verb::kOther;
  // The call's turn came too late. Asking the nodes would count against them.
  if (has_deadline && left <= std::chrono::microseconds(0)) co_return end_late(slot.verb, slot.hashes.size(), end);
  switch (slot.verb) {
    case Verb::kOpen: {
      control.at_once = false;  // may wait for a node until its deadline
      NamespaceRecord record = *std::exchange(slot.record, std::nullopt);
      auto opened = co_await thread_->open(std::move(record), std::max(left, std::chrono::microseconds(0)), control);
      co_return keep(std::move(opened), end.space);
    }
    case Verb::kWaitOpen: {
      control.at_once = false;
      const auto waited = co_await client.wait_open(slot.space, left, control);
      co_return waited ? error_code() : waited.error();
    }
    case Verb::kMatch:
      co_return keep(co_await client.match(slot.space, slot.hashes, in_time(slot.match, left, control)), end.match);
    case Verb::kGet:
      co_return keep(co_await client.get(slot.space, slot.hashes, slot.to, in_time(slot.get, left, control)), end.get);
    case Verb::kLoad: {
      const error_code error = co_await load(slot, left, control);
      co_return error;
    }
    case Verb::kPut:
      co_return keep(co_await client.put(slot.space, slot.hashes, slot.from, in_time(slot.put, left, control)),
                     end.put);
    case Verb::kMatchSet:
      co_return keep(co_await client.match_set(slot.space, slot.hashes, in_time(slot.match_set, left, control)),
                     &SetResults::match, end);
    case Verb::kGetSet:
      co_return keep(co_await client.get_set(slot.space, slot.hashes, slot.to, in_time(slot.get_set, left, control)),
                     &SetResults::get, end);
    case Verb::kPutSet:
      co_return keep(co_await client.put_set(slot.space, slot.hashes, slot.from, in_time(slot.put_set, left, control)),
                     &SetResults::put, end);
    case Verb::kTouch:
    case Verb::kRetain:
    case Verb::kUnretain: {
      auto asked = slot.verb == Verb::kTouch    ? client.touch(slot.space, slot.hashes, left, control)
                   : slot.verb == Verb::kRetain ? client.retain(slot.space, slot.hashes, left, control)
                                                : client.unretain(slot.space, slot.hashes, left, control);
      auto counted = co_await std::move(asked);
      co_return keep(std::move(counted), end.count);
    }
    case Verb::kDrop: co_return keep(co_await client.drop(slot.space, slot.hashes, left, control), end.drop);
    case Verb::kRelease: client.release(slot.lease); co_return error_code();
    case Verb::kLend: co_return keep(co_await client.lend(slot.memory, left, control), end.count);
    case Verb::kRemoveDeviceMemory: {
      const auto removed = co_await client.remove_device_memory(slot.memory, left, control);
      co_return removed ? error_code() : removed.error();
    }
    case Verb::kOther: {
      auto made = slot.work(client, control);
      auto done = co_await std::move(made);
      co_return keep(std::move(done), end.count);
    }
  }
  KV_ASSERT(false);
  co_return Errc::kBadRequest;
}

asio::awaitable<error_code> CompletionQueue::Impl::load(CallSlot& slot, std::chrono::microseconds left,
                                                        CallControl control) {
  slot.load.deadline = left;
  control.trace = slot.load.trace;
  const std::function<void(const MatchResult&)> on_match = [this, &slot](const MatchResult& match) {
    slot.end.match = match;
    slot.end.get.why = match.why;
    if (slot.load.tell_match) completions.tell_matched(slot, match);
  };
  auto loaded = co_await kv::load(thread_->client(), slot.space, slot.hashes, slot.to, slot.load, control, &on_match);
  if (!loaded) co_return loaded.error();
  slot.end.get = loaded->get;
  co_return slot.end.get.why == Errc::kCancelled ? slot.end.get.why : error_code();
}

// -- the interface

CompletionQueue::CompletionQueue(BlockingClient& client, CompletionQueueOptions options)
    : impl_(std::make_shared<Impl>(*client.thread_, options)) {
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

Result<CallId> CompletionQueue::submit_open(NamespaceRecord record, std::chrono::microseconds deadline,
                                            std::uint64_t tag) {
  const std::size_t bytes = record.text().size();
  return impl_->submit(Verb::kOpen, deadline, bytes, 0, tag,
                       [&](CallSlot& slot) { slot.record.emplace(std::move(record)); });
}

Result<CallId> CompletionQueue::submit_wait_open(Space space, std::chrono::microseconds deadline, std::uint64_t tag) {
  return impl_->submit(Verb::kWaitOpen, deadline, 0, 0, tag, [&](CallSlot& slot) { slot.space = space; });
}

Result<CallId> CompletionQueue::submit_match(Space space, Hashes hashes, MatchOptions options, std::uint64_t tag) {
  const auto fill = [&](CallSlot& slot) {
    slot.match = options;
    slot.match.token_ids = slot.arguments.copy(options.token_ids);
    slot.match.extras = slot.arguments.copy(options.extras);
  };
  return impl_->submit_hashes(Verb::kMatch, space, hashes, options.deadline, 0, tag, fill, options.token_ids,
                              options.extras);
}

namespace {

/// For gets with segments and without a callback: a callback that makes completions.
SegmentCallback tell_segments(CallSlot& slot) {
  const auto tell = [](void* context, std::size_t segment, std::size_t block_count) {
    auto& told = *static_cast<CallSlot*>(context);
    told.completions->tell_segment(told, segment, block_count);
  };
  return {tell, &slot};
}

/// What a get and a load keep: where blocks go, and `given` as the slot's `own`, with a copy of its segments.
template <class Options>
void keep_segments(CallSlot& slot, TargetBlocks blocks, const Options& given, Options& own) {
  slot.to = slot.arguments.copy(blocks);
  own = given;
  own.segment_ends = slot.arguments.copy(given.segment_ends);
  if (!given.segment_ends.empty() && given.on_segment.call == nullptr) own.on_segment = tell_segments(slot);
}

}  // namespace

Result<CallId> CompletionQueue::submit_get(Space space, Hashes hashes, TargetBlocks blocks, GetOptions options,
                                           std::uint64_t tag) {
  if (blocks.size() != hashes.size()) return error_code(Errc::kBadRequest);
  const auto fill = [&](CallSlot& slot) { keep_segments(slot, blocks, options, slot.get); };
  return impl_->submit_hashes(Verb::kGet, space, hashes, options.deadline, total_bytes(blocks), tag, fill, blocks,
                              options.segment_ends);
}

Result<CallId> CompletionQueue::submit_load(Space space, Hashes hashes, TargetBlocks blocks, LoadOptions options,
                                            std::uint64_t tag) {
  if (blocks.size() != hashes.size()) return error_code(Errc::kBadRequest);
  const auto fill = [&](CallSlot& slot) { keep_segments(slot, blocks, options, slot.load); };
  return impl_->submit_hashes(Verb::kLoad, space, hashes, options.deadline, total_bytes(blocks), tag, fill, blocks,
                              options.segment_ends);
}

Result<CallId> CompletionQueue::submit_put(Space space, Hashes hashes, SourceBlocks blocks, PutOptions options,
                                           std::uint64_t tag) {
  if (blocks.size() != hashes.size()) return error_code(Errc::kBadRequest);
  const auto fill = [&](CallSlot& slot) {
    slot.from = slot.arguments.copy(blocks);
    slot.put = options;
    slot.put.token_ids = slot.arguments.copy(options.token_ids);
    slot.put.extras = slot.arguments.copy(options.extras);
  };
  return impl_->submit_hashes(Verb::kPut, space, hashes, options.deadline, total_bytes(blocks), tag, fill, blocks,
                              options.token_ids, options.extras);
}

Result<CallId> CompletionQueue::submit_match_set(Space set, Hashes hashes, SetMatchOptions options, std::uint64_t tag,
                                                 SetLists lists) {
  const std::size_t result_bytes = hashes.size() * (sizeof(Held) + sizeof(std::uint32_t));
  const auto fill = [&](CallSlot& slot) {
    slot.match_set = options;
    slot.match_set.group_counts = slot.arguments.copy(options.group_counts);
    slot.lists = lists;
  };
  return impl_->submit_hashes(Verb::kMatchSet, set, hashes, options.deadline, result_bytes, tag, fill,
                              options.group_counts);
}

Result<CallId> CompletionQueue::submit_get_set(Space set, Hashes hashes, TargetBlocks blocks, SetGetOptions options,
                                               std::uint64_t tag, SetLists lists) {
  if (blocks.size() != hashes.size()) return error_code(Errc::kBadRequest);
  const std::size_t result_bytes = hashes.size() * sizeof(SetGetBlock);
  const auto fill = [&](CallSlot& slot) {
    slot.to = slot.arguments.copy(blocks);
    slot.get_set = options;
    slot.get_set.group_counts = slot.arguments.copy(options.group_counts);
    slot.lists = lists;
  };
  return impl_->submit_hashes(Verb::kGetSet, set, hashes, options.deadline, total_bytes(blocks) + result_bytes, tag,
                              fill, blocks, options.group_counts);
}

Result<CallId> CompletionQueue::submit_put_set(Space set, Hashes hashes, SourceBlocks blocks, SetPutOptions options,
                                               std::uint64_t tag, SetLists lists) {
  if (blocks.size() != hashes.size()) return error_code(Errc::kBadRequest);
  const std::size_t result_bytes = hashes.size() * sizeof(SetPutBlock);
  const auto fill = [&](CallSlot& slot) {
    slot.from = slot.arguments.copy(blocks);
    slot.put_set = options;
    slot.put_set.group_counts = slot.arguments.copy(options.group_counts);
    slot.lists = lists;
  };
  return impl_->submit_hashes(Verb::kPutSet, set, hashes, options.deadline, total_bytes(blocks) + result_bytes, tag,
                              fill, blocks, options.group_counts);
}

Result<CallId> CompletionQueue::submit_touch(Space space, Hashes hashes, std::chrono::microseconds deadline,
                                             std::uint64_t tag) {
  return impl_->submit_hashes(Verb::kTouch, space, hashes, deadline, 0, tag, [](CallSlot&) {});
}

Result<CallId> CompletionQueue::submit_retain(Space space, Hashes hashes, std::chrono::microseconds deadline,
                                              std::uint64_t tag) {
  return impl_->submit_hashes(Verb::kRetain, space, hashes, deadline, 0, tag, [](CallSlot&) {});
}

Result<CallId> CompletionQueue::submit_unretain(Space space, Hashes hashes, std::chrono::microseconds deadline,
                                                std::uint64_t tag) {
  return impl_->submit_hashes(Verb::kUnretain, space, hashes, deadline, 0, tag, [](CallSlot&) {});
}

Result<CallId> CompletionQueue::submit_drop(Space space, Hashes hashes, std::chrono::microseconds deadline,
                                            std::uint64_t tag) {
  return impl_->submit_hashes(Verb::kDrop, space, hashes, deadline, 0, tag, [](CallSlot&) {});
}

Result<CallId> CompletionQueue::submit_release(Lease lease, std::uint64_t tag) {
  return impl_->submit(Verb::kRelease, {}, 0, 0, tag, [&](CallSlot& slot) { slot.lease = lease; });
}

Result<CallId> CompletionQueue::submit_lend(std::span<std::byte> memory, std::chrono::microseconds deadline,
                                            std::uint64_t tag) {
  return impl_->submit(Verb::kLend, deadline, 0, 0, tag, [&](CallSlot& slot) { slot.memory = memory; });
}

Result<CallId> CompletionQueue::submit_remove_device_memory(std::span<std::byte> memory,
                                                            std::chrono::microseconds deadline, std::uint64_t tag) {
  return impl_->submit(Verb::kRemoveDeviceMemory, deadline, 0, 0, tag, [&](CallSlot& slot) { slot.memory = memory; });
}

Result<CallId> CompletionQueue::submit_other(Work work, std::uint64_t tag) {
  return impl_->submit(Verb::kOther, {}, 0, 0, tag, [&](CallSlot& slot) { slot.work = std::move(work); });
}

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
std::size_t CompletionQueue::block_bytes(Space space) const { return impl_->space_sizes->find(space); }

}  // namespace kv
