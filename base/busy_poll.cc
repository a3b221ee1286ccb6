#include "base/busy_poll.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace kv {

asio::execution_context::id SpinWatch::id;

void SpinWatch::add(std::unique_ptr<SpinWait> wait, const void* whose) {
  KV_ASSERT(has_room() && wait && whose);
  waits_.push_back({std::move(wait), whose});
}

std::unique_ptr<SpinWait> SpinWatch::take_at(std::size_t index) {
  KV_ASSERT(index < waits_.size());
  auto wait = std::move(waits_[index].wait);
  waits_.erase(waits_.begin() + static_cast<std::ptrdiff_t>(index));
  return wait;
}

std::unique_ptr<SpinWait> SpinWatch::take(const void* whose) {
  for (std::size_t i = 0; i < waits_.size(); ++i) {
    if (waits_[i].whose == whose) return take_at(i);
  }
  return nullptr;
}

void SpinWatch::spin(bool is_spinning) {
  is_spinning_ = is_spinning;
  if (!is_spinning) rest();
}

bool SpinWatch::look() {
  for (std::size_t looks = 0; looks < kLooksAtATime && !waits_.empty(); ++looks) {
    next_ = next_ < waits_.size() ? next_ : 0;
    Entry& entry = waits_[next_];
    if (entry.wait->is_over()) {
      take_at(next_)->complete({});  // may add and take waits
      return true;
    }
    if (--entry.looks_left == 0) {
      take_at(next_)->leave_to_reactor();
    } else {
      ++next_;
    }
  }
  return false;
}

void SpinWatch::rest() {
  while (!waits_.empty()) take_at(waits_.size() - 1)->leave_to_reactor();
}

/// The waits own their coroutines, and these own streams, which come here to take their waits out.
void SpinWatch::shutdown() {
  is_spinning_ = false;
  const auto waits = std::exchange(waits_, {});
}

BusyPoll::BusyPoll(asio::io_context& context, Duration spin)
    : context_(context), watch_(asio::use_service<SpinWatch>(context)), spin_(spin) {
  KV_ASSERT(spin >= Duration::zero());
  watch_.spin(spin > Duration::zero());
}

/// After a handler's exception the waits' state is unknown, and the context does not run again.
BusyPoll::~BusyPoll() {
  if (std::uncaught_exceptions() == 0) watch_.spin(false);
}

/// A poll is a handler of the context like any other: resumed code runs in its usual place and order.
bool BusyPoll::poll_one() {
  if (watch_.is_empty()) return context_.poll_one() > 0;
  if (!look_ || *look_ != Look::kPosted) {
    if (!look_) look_ = std::make_shared<Look>();
    *look_ = Look::kPosted;
    asio::post(context_, [watch = &watch_, look = look_] { *look = watch->look() ? Look::kFound : Look::kNothing; });
  }
  return context_.poll_one() > 0 && *look_ != Look::kNothing;
}

std::size_t BusyPoll::run_some() {
  const TimePoint until = std::chrono::steady_clock::now() + spin_;
  while (std::chrono::steady_clock::now() < until) {
    if (poll_one()) return 1;
    if (context_.stopped()) return 0;
    // The answering process may have been given the same core: without this, the spin would keep it from answering.
    std::this_thread::yield();
  }
  watch_.rest();
  return context_.run_one();
}

}  // namespace kv
