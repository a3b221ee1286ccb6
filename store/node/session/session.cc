#include "store/node/session/session.h"

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "base/assert.h"
#include "store/node/session/core/greeting.h"
#include "store/node/session/core/request_kinds.h"
#include "store/node/threads/thread_border.h"
#include "transport/frames/frame_message.h"

namespace kv {
namespace {

constexpr Duration kWatchInterval = 1s;
constexpr std::uint64_t kProgressBytes = 64 * 1024;
/// A turn ends after so many frames or bytes: reads from a busy peer never suspend, and sessions share the thread.
constexpr std::size_t kTurnFrames = 64;
constexpr std::uint64_t kTurnBytes = 1 << 20;
constexpr std::size_t kQueuedBytesShort = 256 * 1024;  ///< Of answers, while the node is over its bound.
constexpr Duration kWantedTableMax = 1s;               ///< For a table to arrive, once others want its room.
constexpr Duration kCertificateTimeMax = std::chrono::hours(24 * 3650);  ///< Later ends count as this.

}  // namespace

Session::Session(NodeContext& node_context, SessionId session_id, std::unique_ptr<Stream> client,
                 asio::any_io_executor io, std::shared_ptr<VerbsThread> verbs)
    : SessionCore(node_context, session_id, std::move(client), std::move(io)),
      reader_(*stream),
      rdma_(*this, std::move(verbs), [this](std::span<const std::byte> message) { on_message(message); }),
      messages_(rdma_, writer),
      dispatcher_(*this, reader_, rdma_, messages_),
      table_room_(*node.tables, stream->peer_group(),
                  [this] {
                    asio::post(executor, [weak = weak_from_this()] {
                      if (const auto session = weak.lock()) static_cast<Session&>(*session).room_is_wanted();
                    });
                  }),
      alarm_(node.clock.make_alarm(executor)),
      jobs_done_(executor) {
  replies.use(messages_);
  replies.use(audit);
  reader_.set_room(&table_room_);
  writer.count_in(node.queued_bytes);
}

Session::~Session() { KV_ASSERT(job_count_ == 0 && sending_count == 0); }

// -- a session's life

asio::awaitable<void> Session::run() {
  const std::shared_ptr<Session> keep = self();
  node.metrics.session_opened();
  read_progress_.since = write_progress_.since = last_request_ = node.clock.now();
  watch();
  asio::co_spawn(executor, write(keep, SessionJob(keep)), BorderOf{NodeThread::kIo});
  co_await within_border(NodeThread::kIo, read());

  // The order of this end matters. New requests are refused; transfers stop, and each running job gets a turn to notice
  // that; only then are the resources that jobs use released.
  is_ending = true;
  writer.flush();  // a last error, if there is room for it
  writer.close();
  dispatcher_.stop();
  if (!dispatcher_.is_copying())
    close_stream();  // the writer may sleep in it; while copies run, the last of them closes
  while (job_count_ > 0) {
    jobs_done_.reset();
    co_await jobs_done_.wait();
  }
  dispatcher_.end();
  alarm_->disarm();
  close_stream();  // invariant 1
  node.metrics.session_closed(end_);
  audit.end();
  if (seat_) table_->leave(seat_);
}

asio::awaitable<void> Session::write(std::shared_ptr<Session> self, [[maybe_unused]] SessionJob job) {
  // A coroutine of its own: the reader must not wait while a slow client takes its answers.
  co_await self->writer.run();
  // The writer ends first when the stream breaks while sending: then the reader must not wait for a silent peer.
  if (!self->is_ending) self->terminate(SessionEnd::kBroken);
}

asio::awaitable<void> Session::read() {
  std::size_t frames_in_turn = 0;
  std::uint64_t turn_began = 0;  // in bytes
  while (!is_ending) {
    if (++frames_in_turn > kTurnFrames || reader_.bytes_read() >= turn_began + kTurnBytes) {
      frames_in_turn = 0;
      turn_began = reader_.bytes_read();
      co_await asio::post(executor, asio::use_awaitable);
      if (is_ending) break;
    }
    auto frame = co_await reader_.next();
    if (frame && is_ending) break;  // the session ended meanwhile, and so did its transfers
    if (!frame) {
      reading_failed(frame.error());
      break;
    }
    bool goes_on = follows_rules(*frame);
    if (goes_on && is_greeted_) {
      request_came();
      goes_on = co_await dispatcher_.take(*frame);
    } else if (goes_on) {
      goes_on = on_hello(*frame);
    }
    if (!goes_on) break;
    if (frame->header.type == FrameType::kAdmin)
      frames_in_turn = kTurnFrames;            // its answer took as long as many others
    if (!reader_.has_frame()) writer.flush();  // the answers to requests that came together leave together
    if (writer.queued_bytes() > queued_bytes_max()) {
      writer.flush();
      co_await writer.wait_below(queued_bytes_max() / 2);
    }
    while (!dispatcher_.has_inline_room() && !is_ending) {
      writer.flush();
      co_await dispatcher_.wait_for_inline();
    }
  }
}

void Session::reading_failed(error_code error) {
  if (error.category() == errc_category()) {  // the peer's bytes, not the connection
    end_ = SessionEnd::kBadFrame;
    replies.refuse(reader_.last_header().type, reader_.last_header().request_id, error, reader_.why());
    warn(LogKind::kBadFrame, [&] { return reader_.why(); });
  } else if (!is_ending) {
    end_ = error == asio::error::eof ? SessionEnd::kPeerClosed : SessionEnd::kBroken;
  }
}

void Session::sit(SessionTable& table, std::shared_ptr<SessionTable::Seat> seat) {
  table_ = &table;
  seat_ = std::move(seat);
  table.set_end(seat_, [weak = weak_from_this(), io = executor] {
    asio::post(io, [weak] {
      if (const auto session = weak.lock()) static_cast<Session&>(*session).make_room();
    });
  });
}

bool Session::is_idle() const {
  constexpr std::size_t kOwnJobs = 1;  // the writer
  return !dispatcher_.is_moving() && job_count_ <= kOwnJobs && !dispatcher_.is_lent() && writer.queued_bytes() == 0 &&
         messages_.empty() && (!is_greeted_ || !reader_.in_frame()) && node.clock.now() >= dispatcher_.lease_until();
}

void Session::make_room() {
  if (is_ending) return;
  // The table decided by watch()'s report, up to a second old. A request since then keeps the session.
  if (!is_idle() || idle_told_ != last_request_) return table_->stay(seat_);
  terminate(SessionEnd::kMadeRoom);
}

void Session::terminate(SessionEnd why) {
  if (is_ending) return;
  is_ending = true;
  end_ = why;
  dispatcher_.stop();
  writer.close();
  // The reader may sleep in the stream: closing wakes it. While copies run, the last of them closes (invariant 1).
  if (!dispatcher_.is_copying()) close_stream();
}

void Session::terminate_if_idle(SessionEnd why) {
  if (!dispatcher_.is_moving() && writer.queued_bytes() == 0 && rdma_.has_sent_messages()) terminate(why);
}

void Session::close_stream() {
  // TCP answers unread input with a reset, which would overtake a last error on its way to the client: read some first.
  std::array<std::byte, 4096> scratch;
  const asio::mutable_buffer buffer = asio::buffer(scratch);
  for (int i = 0; i < 256 && stream->try_read(std::span(&buffer, 1)); ++i) {
  }
  stream->close();
}

void Session::job_ended() {
  KV_ASSERT(job_count_ > 0);
  if (is_ending && !dispatcher_.is_copying()) close_stream();
  if (--job_count_ == 0) jobs_done_.set();
}

// -- overdue work

void Session::was_kept_waiting() { read_progress_.since = node.clock.now(); }

void Session::watch() {
  const TimePoint now = node.clock.now();
  if (!is_greeted_ && now - read_progress_.since >= node.limits->hello_timeout)
    return terminate(SessionEnd::kHelloTimeout);
  if (seat_) {
    idle_told_ = last_request_;
    if (is_idle()) {
      seat_->set_idle(last_request_);
    } else {
      seat_->set_busy();
    }
  }
  if (sends_too_slowly(now)) return terminate(SessionEnd::kSlowFrame);
  if (reads_too_slowly(now)) return terminate(SessionEnd::kSlowReader);
  dispatcher_.end_late_transfers(now);
  if (now >= certificate_end_) {  // a client with a renewed certificate reconnects and is checked anew
    terminate_if_idle(SessionEnd::kCertificateEnded);
    if (now - certificate_end_ >= node.limits->certificate_grace) terminate(SessionEnd::kCertificateEnded);
    if (is_ending) return;
  }
  alarm_->arm(now + kWatchInterval, [weak = weak_from_this()] {
    if (const auto session = weak.lock()) static_cast<Session&>(*session).watch();
  });
}

/// A frame has frame_timeout to arrive, and for each further 64 KiB.
bool Session::sends_too_slowly(TimePoint now) {
  if (!reader_.in_frame()) {
    read_progress_ = {reader_.bytes_read(), is_greeted_ ? now : read_progress_.since};
    reader_.shrink();
    return false;
  }
  if (reader_.bytes_read() >= read_progress_.bytes + kProgressBytes) {
    read_progress_ = {reader_.bytes_read(), now};
    return false;
  }
  // Except while we do not read: waiting for our answers to be taken, or for blocks being fetched.
  const bool waits_for_us = writer.queued_bytes() > queued_bytes_max() / 2 || dispatcher_.keeps_waiting();
  return !waits_for_us && now - read_progress_.since >= node.limits->frame_timeout;
}

/// Another request was refused for lack of room. Gives back idle room; an unfinished table has a time limit.
void Session::room_is_wanted() {
  table_room_.was_told();
  if (is_ending || !reader_.holds_room()) return;
  if (!reader_.in_frame()) return reader_.shrink();
  if (!reader_.in_table()) return;  // being served, or its payload is coming
  if (std::exchange(wanted_in_frame_, reader_.frame_count()) != reader_.frame_count()) {
    wanted_since_ = node.clock.now();
  } else if (node.clock.now() - wanted_since_ >= kWantedTableMax) {
    terminate(SessionEnd::kSlowFrame);
  }
}

/// Queued answers above this stop the reading of requests. Lower while all sessions together have many.
std::size_t Session::queued_bytes_max() const {
  const std::size_t own = node.limits->queued_bytes_max;
  return node.queued_bytes <= node.queued_bytes_max ? own : std::min(own, kQueuedBytesShort);
}

/// The client has write_timeout to take the queued bytes, or as many as the minimum rate demands; and then again.
bool Session::reads_too_slowly(TimePoint now) {
  const SessionLimits& limits = *node.limits;
  if (writer.queued_bytes() > 0 && writer.bytes_written() < write_progress_.bytes)
    return now - write_progress_.since >= limits.write_timeout;
  const auto seconds = std::chrono::duration<double>(limits.write_timeout).count();
  const auto due = static_cast<std::uint64_t>(static_cast<double>(limits.read_rate_min) * seconds);
  const std::uint64_t queued = std::max<std::uint64_t>(writer.queued_bytes(), 1);
  write_progress_ = {writer.bytes_written() + std::clamp<std::uint64_t>(due, 1, queued), now};
  return false;
}

// -- requests

bool Session::follows_rules(const Frame& frame) {
  const FrameType type = frame.header.type;
  // After a broken frame rule the input is ambiguous: the following bytes may be a payload.
  const auto bad = [&](Errc code, const std::string& why) {
    refuse(frame, code, why);
    end_ = SessionEnd::kBadFrame;
    return false;
  };
  if ((frame.header.flags & (kFrameResponse | kFrameError | kFrameMore)) != 0)
    return bad(Errc::kBadFrame, fmt::format("flags: {}, a request has none", frame.header.flags));
  if (!is_greeted_ && type != FrameType::kHello)
    return bad(Errc::kBadRequest, "the first frame must be hello, not " + std::string(frame_type_name(type)));
  // Or answers would take each other's way.
  if (type != FrameType::kCancel && messages_.contains(frame.header.request_id))
    return bad(Errc::kBadRequest, fmt::format("request_id: {}, in use by SEND", frame.header.request_id));
  return true;
}

bool Session::on_hello(const Frame& frame) {
  is_greeted_ = greet(*this, reader_, rdma_, frame);
  if (!is_greeted_) {
    end_ = SessionEnd::kBadFrame;
    return false;
  }
  if (const auto end = stream->peer_certificate_end()) {
    const auto left = std::chrono::duration_cast<Duration>(*end - std::chrono::system_clock::now());
    certificate_end_ = node.clock.now() + std::min(left, kCertificateTimeMax);
  }
  if (seat_) seat_->set_greeted();
  request_came();
  return true;
}

void Session::request_came() {
  last_request_ = node.clock.now();
  if (seat_) seat_->set_busy();  // until watch() finds it idle
}

/// A request over the message lane. Breaking a rule ends the session: such a client may lack a RECV for the answer.
void Session::on_message(std::span<const std::byte> message) {
  if (is_ending) return;
  const auto bad = [&](FrameType type, std::uint64_t request_id, const std::string& why) {
    warn(LogKind::kBadMessage, [&] { return "by SEND: " + why; });
    messages_.forget(request_id);
    replies.refuse(type, request_id, Errc::kBadFrame, "by SEND: " + why);
    writer.flush();
    terminate(SessionEnd::kBadFrame);
  };
  const auto frame = take_frame(message);
  if (!frame) return bad(FrameType::kHello, 0, frame.error().text);
  const FrameType type = frame->header.type;
  const std::uint64_t request_id = frame->header.request_id;
  if (frame->header.flags != 0)
    return bad(type, request_id, fmt::format("flags: {}, a request has none", frame->header.flags));
  if (!message.empty()) return bad(type, request_id, fmt::format("{} bytes after the request", message.size()));
  if (!goes_by_message(type))
    return bad(type, request_id, std::string(frame_type_name(type)) + ": goes by the stream only");
  const std::size_t pending = messages_.pending();
  if (pending >= rdma_.message_count_max() || messages_.contains(request_id)) {
    return bad(type, request_id,
               count_text("requests without an answer", pending + 1, rdma_.message_count_max()) + ", and no id twice");
  }
  // Before serving: an answer checks here which way it goes.
  messages_.expect(request_id);
  request_came();
  dispatcher_.serve(*frame);
  writer.flush();  // an answer too long for a message
}

}  // namespace kv
