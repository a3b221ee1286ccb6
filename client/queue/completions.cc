#include "client/queue/completions.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/assert.h"

namespace kv {

Completions::Completions(CallTable& table)
    : table_(table),
      readable_(make_eventfd()),
      closed_in_child_(readable_.get()) {  // a child that read it would take the parent's signal
  for (std::size_t i = 0; i < table_.size(); ++i) table_[i].completions = this;
}

// -- the I/O thread

void Completions::tell_matched(CallEntry& entry, const MatchResult& match) {
  const std::lock_guard lock(mutex_);
  KV_ASSERT(!entry.has_ended && !entry.matched);
  entry.matched = match;
  add(entry);
}

void Completions::tell_segment(CallEntry& entry, std::size_t segment, std::size_t block_count) {
  const std::lock_guard lock(mutex_);
  KV_ASSERT(!entry.has_ended && (entry.segments.empty() || entry.segments.back().segment < segment));
  entry.segments.push_back({segment, block_count});
  add(entry);
}

void Completions::tell_end(CallEntry& entry) {
  const std::lock_guard lock(mutex_);
  KV_ASSERT(!entry.has_ended && unended_ > 0);
  entry.end.call = CallId{entry.id.load(std::memory_order_relaxed)};
  entry.end.tag = entry.request.tag;
  entry.end.op = entry.request.op;
  entry.has_ended = true;
  unended_.fetch_sub(1, std::memory_order_relaxed);
  add(entry);
}

void Completions::add(CallEntry& entry) {
  ++count_;
  // A call is listed once, however many completions it has, by its own link: listing does not allocate.
  if (!entry.listed.is_linked()) {
    if (list_.empty()) {
      const std::uint64_t one = 1;
      KV_ASSERT(::write(readable_.get(), &one, sizeof one) == sizeof one);  // 2
    }
    list_.push_back(entry);
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
      CallEntry* const entry = table_.find(call);
      if (entry == nullptr || entry->id.load(std::memory_order_acquire) != static_cast<std::uint64_t>(call)) {
        all_known = false;  // reaped, perhaps by another thread just now
        return true;
      }
      ended += entry->has_ended;
    }
    return ended >= count_min;
  });
  if (!all_known) return error_code(Errc::kNotFound);
  if (into.empty()) return ended;
  std::size_t count = 0;
  for (const CallId call : calls) {
    CallEntry& entry = *table_.find(call);
    // A call named twice counts once.
    if (entry.id.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(call) || !entry.has_ended) continue;
    // All unreported completions: its segments, a match, and the end.
    count_ -= entry.segments.size() - entry.segments_told + (entry.matched ? 1 : 0) + 1;
    into[count++] = std::exchange(entry.end, {});
    unlist(entry);
    free(entry);
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

/// The oldest completion of the first entry.
void Completions::take_next(Completion& into) {
  KV_ASSERT(count_ > 0 && !list_.empty());
  CallEntry& entry = list_.front();
  --count_;
  into = {};
  into.call = CallId{entry.id.load(std::memory_order_relaxed)};
  into.tag = entry.request.tag;
  into.op = entry.request.op;
  if (entry.matched) {
    into.kind = Completion::Kind::kMatched;
    into.match = *std::exchange(entry.matched, std::nullopt);
  } else if (entry.segments_told < entry.segments.size()) {
    const CallEntry::SegmentMark mark = entry.segments[entry.segments_told++];
    into.kind = Completion::Kind::kSegment;
    into.segment = mark.segment;
    into.get.block_count = mark.block_count;
  } else {
    KV_ASSERT(entry.has_ended);  // 1
    into = std::exchange(entry.end, {});
    unlist(entry);
    free(entry);
    return;
  }
  // Until its next completion.
  if (!entry.has_ended && entry.segments_told == entry.segments.size()) unlist(entry);
}

void Completions::unlist(CallEntry& entry) {
  list_.erase(list_.iterator_to(entry));
  if (!list_.empty()) return;
  std::uint64_t ignored;
  // 2. Nothing to read: the owner of an event loop that reads its descriptors has done so.
  KV_ASSERT(::read(readable_.get(), &ignored, sizeof ignored) == sizeof ignored || errno == EAGAIN);
}

void Completions::free(CallEntry& entry) {
  entry.has_ended = false;
  entry.matched.reset();
  entry.segments.clear();
  entry.segments_told = 0;
  table_.give_back(entry);
}

}  // namespace kv
