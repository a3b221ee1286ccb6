#include "client/link/call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace kv {

CallBundle::CallBundle(const asio::any_io_executor& executor, CallControl c) : event(executor), control(c) {
  if (control.cancellation == nullptr) return;
  KV_ASSERT(!control.cancellation->is_cancelled());  // a cancelled call would have ended before asking a node
  // One target at a time: a call that makes several rounds has one bundle after the other.
  control.cancellation->set_target(this);
}

CallBundle::~CallBundle() {
  if (control.cancellation != nullptr) control.cancellation->set_target(nullptr);
}

void CallBundle::cancel() {
  // One by one: the end of a call may end others.
  while (!running.empty()) {
    const std::size_t count = running.size();
    running.back()->cancel();
    KV_ASSERT(running.size() < count);
  }
}

const wire::Trace* Call::wire_trace(wire::Trace& room) const {
  static_assert(sizeof room == TraceContext::kBytes);
  const TraceContext& own = bundle == nullptr ? TraceContext() : bundle->control.trace;
  const TraceContext trace = own.is_set() ? own : session_->shared().config.trace;
  if (!trace.is_set()) return nullptr;
  const auto bytes = trace.bytes();
  std::memcpy(&room, bytes.data(), sizeof room);
  return &room;
}

Call::~Call() {
  // The coroutine was destroyed within its call: the session must not touch this object again.
  if (session_ != nullptr) {
    session_->forget(*this);
  } else if (!has_ended()) {
    owner_->call_destroyed(*this);
  }
}

std::string Call::on_more(CallSession&, const FrameReader::Frame& frame) {
  return std::string("a partial answer to ") + frame_type_name(frame.header.type);
}

void Call::begin(CallOwner& owner) {
  KV_ASSERT(state_ == State::kEnded && session_ == nullptr && !is_linked());
  state_ = State::kWaiting;
  owner_ = &owner;
  has_begun_ = was_answered_ = false;
  send_count_ = 0;
  map_epoch = 0;
  error_ = {};
  error_text_.clear();
  if (bundle != nullptr) {
    bundle->running.push_back(this);
    at_once = bundle->control.at_once;
  }
}

error_code Call::send_on(CallSession& session, std::uint64_t request_id, std::uint32_t space_handle) {
  KV_ASSERT(state_ == State::kWaiting && session_ == nullptr);
  state_ = State::kSent;
  session_ = &session;
  request_id_ = request_id;
  space_handle_ = space_handle;
  // A resent call starts over: frames from the last session do not count.
  has_begun_ = false;
  ++send_count_;
  const error_code error = send(session);
  if (error) {
    state_ = State::kWaiting;
    session_ = nullptr;
  }
  return error;
}

std::string Call::part_came(const FrameReader::Frame& frame) {
  KV_ASSERT(state_ == State::kSent);
  has_begun_ = true;
  return on_more(*session_, frame);
}

void Call::payload_came(const BlockSink& sink) {
  KV_ASSERT(state_ == State::kSent && has_begun_);
  on_payload(sink);
}

std::string Call::last_came(const FrameReader::Frame& frame) {
  KV_ASSERT(state_ == State::kSent);
  return on_last(frame);
}

void Call::cancel() {
  KV_ASSERT(!has_ended());
  if (is_linked()) unlink();  // its deadline must not find it ended
  give_up(Errc::kCancelled);
}

void Call::ask_to_stop() {
  KV_ASSERT(state_ == State::kSent);
  session_->send_cancel(request_id_);
}

void Call::give_up(error_code why) {
  if (session_ != nullptr) {
    session_->abandon(*this, why);
  } else {
    end(why);
  }
}

/// The order matters. The call leaves its session first, so that memory is given back before the end is visible. The
/// owner may then resend it, which is not an end. Otherwise the books are closed, the bundle is notified, and on_end()
/// comes last: it may start the next call, or destroy this one.
void Call::end(error_code why, std::string text, bool is_answered) {
  KV_ASSERT(state_ != State::kEnded && (session_ != nullptr) == (state_ == State::kSent));  // 3
  CallSession* const session = std::exchange(session_, nullptr);
  state_ = State::kWaiting;
  if (session != nullptr) {
    on_leave(*session);  // before another session has the call
    if (owner_->try_again(*this, why, *session)) return;
  }
  if (is_linked()) unlink();  // from the deadlines
  error_ = why;
  error_text_ = std::move(text);
  was_answered_ = is_answered;
  state_ = State::kEnded;
  owner_->call_ended(*this, is_answered);
  if (bundle != nullptr) {
    const auto found = std::ranges::find(bundle->running, this);
    KV_ASSERT(found != bundle->running.end());
    // The list is unordered: the last one fills the gap.
    *found = bundle->running.back();
    bundle->running.pop_back();
    bundle->event.set();
  }
  on_end(session);
}

std::uint64_t Call::space_check() const { return namespace_check(session_->shared().spaces[space]->id); }

/// The event is reset before each wait and the count checked after it: a call that ends in between sets the event
/// again, so every end is seen.
asio::awaitable<void> wait_all(CallBundle& bundle) {
  while (!bundle.running.empty()) {
    bundle.event.reset();
    co_await bundle.event.wait();
  }
}

}  // namespace kv
