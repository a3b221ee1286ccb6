#include "client/queue/completions.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/assert.h"

namespace kv {

Completions::Completions(CallSlots& slots)
    : slots_(slots),
      readable_(make_eventfd()),
      closed_in_child_(readable_.get()) {  // a child that read it would take the parent's signal
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].completions = this;
}

// -- the I/O thread

void Completions::tell_matched(CallSlot& slot, const MatchResult& match) {
  const std::lock_guard lock(mutex_);
  KV_ASSERT(!slot.has_ended && !slot.matched);
  slot.matched = match;
  add(slot);
}

void Completions::tell_segment(CallSlot& slot, std::size_t segment, std::size_t block_count) {
  const std::lock_guard lock(mutex_);
  KV_ASSERT(!slot.has_ended && (slot.segments.empty() || slot.segments.back().segment < segment));
  slot.segments.push_back({segment, block_count});
  add(slot);
}

void Completions::tell_end(CallSlot& slot) {
  const std::lock_guard lock(mutex_);
  KV_ASSERT(!slot.has_ended && unended_ > 0);
  slot.end.call = CallId{slot.id.load(std::memory_order_relaxed)};
  slot.end.tag = slot.request.tag;
  slot.end.verb = slot.request.verb;
  slot.has_ended = true;
  unended_.fetch_sub(1, std::memory_order_relaxed);
  add(slot);
}

void Completions::add(CallSlot& slot) {
  ++count_;
  // A call is listed once, however many completions it has, by its own link: listing does not allocate.
  if (!slot.listed.is_linked()) {
    if (list_.empty()) {
      const std::uint64_t one = 1;
      KV_ASSERT(::write(readable_.get(), &one, sizeof one) == sizeof one);  // 2
    }
    list_.push_back(slot);
  }
  // Wakes waiters only at the lowest number that one of them wants, or if all calls have ended.
  if (least_wanted_ == kNobody || (count_ < least_wanted_ && unended_ > 0)) return;
  least_wanted_ = kNobody;  // a thread that wants more sets it again
  told_.notify_all();
}

// -- who reaps

std::size_t Completions::reap(std::span<Completion> into, std::size_t count_min, std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  const std::size_t wanted = into.empty() ? count_min : std::min(count_min, into.size());
  wait_until(lock, timeout, wanted, [&] { return count_ >= wanted || unended_ == 0; });
  const std::size_t count = std::min(count_, into.size());
  for (std::size_t i = 0; i < count; ++i) take_next(into[i]);
  return count;
}

Result<std::size_t> Completions::wait(std::span<const CallId> calls, std::size_t count_min,
                                      std::chrono::microseconds timeout, std::span<Completion> into) {
  if ((!into.empty() && into.size() < calls.size()) || count_min > calls.size()) return error_code(Errc::kBadRequest);
  std::unique_lock lock(mutex_);
  bool all_known = true;
  std::size_t ended = 0;
  wait_until(lock, timeout, 0, [&] {
    ended = 0;
    for (const CallId call : calls) {
      CallSlot* const slot = slots_.find(call);
      if (slot == nullptr || slot->id.load(std::memory_order_acquire) != static_cast<std::uint64_t>(call)) {
        all_known = false;  // reaped, perhaps by another thread just now
        return true;
      }
      ended += slot->has_ended;
    }
    return ended >= count_min;
  });
  if (!all_known) return error_code(Errc::kNotFound);
  if (into.empty()) return ended;
  std::size_t count = 0;
  for (const CallId call : calls) {
    CallSlot& slot = *slots_.find(call);
    // A call named twice counts once.
    if (slot.id.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(call) || !slot.has_ended) continue;
    // All unreported completions: its segments, a match, and the end.
    count_ -= slot.segments.size() - slot.segments_told + (slot.matched ? 1 : 0) + 1;
    into[count++] = std::exchange(slot.end, {});
    unlist(slot);
    free(slot);
  }
  return count;
}

template <class Done>
void Completions::wait_until(std::unique_lock<std::mutex>& lock, std::chrono::microseconds timeout, std::size_t wanted,
                             Done done) {
  if (done() || timeout <= std::chrono::microseconds(0)) return;
  // Distant ends are cut, since a time point beyond the clock's range would lie in the past.
  const auto until =
      std::chrono::steady_clock::now() + std::min<std::chrono::microseconds>(timeout, std::chrono::hours(24 * 365));
  do {
    least_wanted_ = std::min(least_wanted_, wanted);
    if (told_.wait_until(lock, until) == std::cv_status::timeout) {
      (void)done();
      return;
    }
  } while (!done());
}

/// The oldest completion of the first slot.
void Completions::take_next(Completion& into) {
  KV_ASSERT(count_ > 0 && !list_.empty());
  CallSlot& slot = list_.front();
  --count_;
  into = {};
  into.call = CallId{slot.id.load(std::memory_order_relaxed)};
  into.tag = slot.request.tag;
  into.verb = slot.request.verb;
  if (slot.matched) {
    into.kind = Completion::Kind::kMatched;
    into.match = *std::exchange(slot.matched, std::nullopt);
  } else if (slot.segments_told < slot.segments.size()) {
    const CallSlot::SegmentMark mark = slot.segments[slot.segments_told++];
    into.kind = Completion::Kind::kSegment;
    into.segment = mark.segment;
    into.get.block_count = mark.block_count;
  } else {
    KV_ASSERT(slot.has_ended);  // 1
    into = std::exchange(slot.end, {});
    unlist(slot);
    free(slot);
    return;
  }
  // Until its next completion.
  if (!slot.has_ended && slot.segments_told == slot.segments.size()) unlist(slot);
}

void Completions::unlist(CallSlot& slot) {
  list_.erase(list_.iterator_to(slot));
  if (!list_.empty()) return;
  std::uint64_t ignored;
  // 2. Nothing to read: the owner of an event loop that reads its descriptors has done so.
  KV_ASSERT(::read(readable_.get(), &ignored, sizeof ignored) == sizeof ignored || errno == EAGAIN);
}

void Completions::free(CallSlot& slot) {
  slot.has_ended = false;
  slot.matched.reset();
  slot.segments.clear();
  slot.segments_told = 0;
  slots_.give_back(slot);
}

}  // namespace kv
