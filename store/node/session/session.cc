// store/node/session/session.cc: a block enters as a frame that requests it (get) or offers it (put), and leaves in a
// Get or Put that carries the request out. In between, every length, handle and offset was checked.
#include "store/node/session/session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "base/assert.h"
#include "index/name_groups.h"
#include "store/node/session/core/request_kinds.h"
#include "store/node/session/requests/contexts.h"
#include "store/node/threads/thread_border.h"
#include "transport/frames/frame_message.h"
#include "transport/token.h"

namespace kv {
namespace {

constexpr Duration kWatchInterval = 1s;
constexpr std::uint64_t kProgressBytes = 64 * 1024;
/// A turn ends after so many frames or bytes: reads from a busy peer never suspend, and sessions share the thread.
constexpr std::size_t kTurnFrames = 64;
constexpr std::uint64_t kTurnBytes = 1 << 20;
constexpr std::size_t kInlineGetsMax = 4;
constexpr std::size_t kLargeRequestBytes = 64 * 1024;  ///< From here on the node's bound counts.
constexpr std::size_t kQueuedBytesShort = 256 * 1024;  ///< Of answers, while the node is over its bound.
constexpr Duration kWantedTableMax = 1s;               ///< For a table to arrive, once others want its room.
constexpr std::size_t kPrefetchesMax = 16;             ///< Further ones are skipped: a get still reads the blocks.
constexpr Duration kCertificateTimeMax = std::chrono::hours(24 * 3650);  ///< Later ends count as this.
constexpr std::uint64_t kDeadlineUsMax = 3'600'000'000;                  ///< Longer ones count as unlimited.

}  // namespace

Session::Session(NodeContext& node_context, SessionId session_id, std::unique_ptr<Stream> client,
                 asio::any_io_executor io, std::shared_ptr<VerbsThread> verbs)
    : SessionCore(node_context, session_id, std::move(client), std::move(io)),
      reader_(*stream),
      rdma_(*this, std::move(verbs), [this](std::span<const std::byte> message) { on_message(message); }),
      messages_(rdma_, writer),
      spaces_(*this),
      regions_(*this, rdma_),
      lookups_(*this, spaces_),
      questions_(*this),
      drops_(*this),
      draining_(executor),
      table_room_(*node.tables, stream->peer_group(),
                  [this] {
                    asio::post(executor, [weak = weak_from_this()] {
                      if (const auto session = weak.lock()) static_cast<Session&>(*session).room_is_wanted();
                    });
                  }),
      inline_ended_(executor),
      alarm_(node.clock.make_alarm(executor)),
      jobs_done_(executor) {
  replies.use(messages_);
  replies.use(audit);
  reader_.set_room(&table_room_);
  writer.count_in(node.queued_bytes);
}

Session::~Session() { KV_ASSERT(job_count_ == 0 && sending_count == 0 && puts_.empty() && gets_.empty()); }

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
  cancel_jobs();
  if (gets_.empty()) close_stream();  // the writer may sleep in it; while copies run, the last of them closes
  while (job_count_ > 0) {
    jobs_done_.reset();
    co_await jobs_done_.wait();
  }
  KV_ASSERT(gets_.empty() && prefetches_.empty());
  for (const auto& [request_id, put] : std::exchange(puts_, {})) put->finish();
  rdma_.end();  // first: devices release the puts' slots; a put must end in the store before its session
  node.store.with([&](Store& store) { store.end_session(id); });
  regions_.clear();
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
      const error_code error = frame.error();
      if (error.category() == errc_category()) {  // the peer's bytes, not the connection
        end_ = SessionEnd::kBadFrame;
        replies.refuse(reader_.last_header().type, reader_.last_header().request_id, error, reader_.why());
        warn(LogKind::kBadFrame, [&] { return reader_.why(); });
      } else if (!is_ending) {
        end_ = error == asio::error::eof ? SessionEnd::kPeerClosed : SessionEnd::kBroken;
      }
      break;
    }
    const bool goes_on = co_await handle(*frame);  // named: GCC 12 miscompiles `if (!co_await ...)` in a loop
    if (!goes_on) break;
    if (frame->header.type == FrameType::kAdmin)
      frames_in_turn = kTurnFrames;            // its answer took as long as many others
    if (!reader_.has_frame()) writer.flush();  // the answers to requests that came together leave together
    if (writer.queued_bytes() > queued_bytes_max()) {
      writer.flush();
      co_await writer.wait_below(queued_bytes_max() / 2);
    }
    // Each holds a window of blocks, so their number is bounded; and a cancel still gets read.
    while (inline_count_ > kInlineGetsMax && !is_ending) {
      writer.flush();
      inline_ended_.reset();
      co_await inline_ended_.wait();
    }
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
  return gets_.empty() && puts_.empty() && prefetches_.empty() && sending_count == 0 && job_count_ <= kOwnJobs &&
         regions_.empty() && writer.queued_bytes() == 0 && messages_.empty() && (!is_greeted_ || !reader_.in_frame()) &&
         node.clock.now() >= lookups_.lease_until();
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
  cancel_jobs();
  writer.close();
  // The reader may sleep in the stream: closing wakes it. While copies run, the last of them closes (invariant 1).
  if (gets_.empty()) close_stream();
}

void Session::terminate_if_idle(SessionEnd why) {
  if (gets_.empty() && puts_.empty() && prefetches_.empty() && sending_count == 0 && writer.queued_bytes() == 0 &&
      rdma_.has_sent_messages())
    terminate(why);
}

void Session::cancel_jobs() {
  regions_.abandon();
  inline_ended_.set();
  for (auto& [request_id, get] : gets_) get->cancel();
  for (const auto& prefetch : prefetches_) prefetch->cancel();
  for (auto& [request_id, put] : puts_) put->stop();
  rdma_.fail_all();
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
  if (is_ending && gets_.empty()) close_stream();
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
  end_late_transfers(now);
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
  const bool waits_for_us =
      writer.queued_bytes() > queued_bytes_max() / 2 || draining_.is_reached() || inline_count_ > kInlineGetsMax;
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

void Session::end_late_transfers(TimePoint now) {
  for (auto& [request_id, get] : gets_) {
    if (get->is_cancelled() || now - get->began() < node.limits->get_timeout) continue;
    node.metrics.deadline_missed();
    get->cancel_late();
  }
  std::vector<std::shared_ptr<Put>> late;  // first: a failing put leaves puts_
  for (const auto& [request_id, put] : puts_) {
    if (put->is_late(now)) late.push_back(put);
  }
  for (const auto& put : late) {
    node.metrics.deadline_missed();
    put->fail(Errc::kStaleLease, "put: the bytes did not come in time; its memory is freed");
  }
  if (!late.empty()) writer.flush();
}

// -- requests

asio::awaitable<bool> Session::handle(const Frame& frame) {
  const FrameType type = frame.header.type;
  const std::uint64_t request_id = frame.header.request_id;
  // After a broken frame rule the input is ambiguous: the following bytes may be a payload.
  const auto bad = [&](Errc code, const std::string& why) {
    refuse(frame, code, why);
    end_ = SessionEnd::kBadFrame;
    return false;
  };
  if ((frame.header.flags & (kFrameResponse | kFrameError | kFrameMore)) != 0)
    co_return bad(Errc::kBadFrame, fmt::format("flags: {}, a request has none", frame.header.flags));
  if (!is_greeted_) {
    if (type != FrameType::kHello)
      co_return bad(Errc::kBadRequest, "the first frame must be hello, not " + std::string(frame_type_name(type)));
    co_return on_hello(frame);
  }
  if (type != FrameType::kCancel && messages_.contains(request_id))  // or answers would take each other's way
    co_return bad(Errc::kBadRequest, fmt::format("request_id: {}, in use by SEND", request_id));
  if (type != FrameType::kPutData && frame.header.payload_bytes != 0) {
    refuse(frame, Errc::kBadRequest,
           count_text("payload_bytes", frame.header.payload_bytes, 0) + " with " + frame_type_name(type));
    const auto skipped = co_await reader_.skip_payload();
    co_return skipped.has_value();
  }
  if (type == FrameType::kPutData) {
    if (permit(frame)) co_return co_await on_put_data(frame);
    const auto skipped = co_await reader_.skip_payload();
    co_return skipped.has_value();
  }
  if (frame.is_skipped) {
    const auto skipped = co_await reader_.skip_payload();
    refuse(frame, Errc::kBusy,
           count_text("table_bytes", frame.header.table_bytes, kLargeRequestBytes) +
               " just now: other large requests fill the memory that the node has for such as they arrive");
    co_return skipped.has_value();
  }
  serve(frame);
  held_now_.reset();
  co_return true;
}

void Session::serve(const Frame& frame) {
  const FrameType type = frame.header.type;
  const TimePoint began = node.clock.now();
  last_request_ = began;
  phases = {};
  if (seat_) seat_->set_busy();  // until watch() finds it idle
  if (!permit(frame)) return;
  if (node.draining && is_of_blocks(type)) return refuse(frame, Errc::kDraining, "the node is shutting down");
  switch (type) {
    case FrameType::kHello: refuse(frame, Errc::kBadRequest, "hello: said already"); break;
    case FrameType::kOpen: spaces_.on_open(frame); break;
    case FrameType::kMatch:
    case FrameType::kSetMatch: on_match(frame); break;
    case FrameType::kGet: return on_get(frame);  // observed when its last byte is on its way
    case FrameType::kSetGet: return on_set_get(frame);
    case FrameType::kPut: return on_put(frame);
    case FrameType::kSetPut: return on_set_put(frame);
    case FrameType::kPutData: break;  // handle() has it
    case FrameType::kCancel: on_cancel(frame); break;
    case FrameType::kRelease: lookups_.on_release(frame); break;
    case FrameType::kTouch:
    case FrameType::kRetain:
    case FrameType::kUnretain:
    case FrameType::kDrop: on_prefix(frame); break;
    case FrameType::kRegionAdd: regions_.on_add(frame); break;
    case FrameType::kRegionRemove: on_region_remove(frame); break;
    case FrameType::kVerbsConnect: rdma_.on_connect(frame); break;
    case FrameType::kAdmin: questions_.on_admin(frame, self()); break;
    case FrameType::kHotRoots: lookups_.on_hot_roots(frame); break;
    case FrameType::kClusterMap: lookups_.on_cluster_map(frame); break;
    case FrameType::kContext: answer_context(*this, spaces_, frame); break;
    case FrameType::kPing: replies.reply_empty(type, frame.header.request_id); break;
  }
  const Duration took = node.clock.now() - began;
  node.metrics.observe_request(type, took, false);
  if (node.slow.is_slow(took)) tell_slow(*this, details_of(frame, spaces_, phases), took, false);
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
  serve(*frame);
  writer.flush();  // an answer too long for a message
}

/// Keeps only the hash of hello's token, and overwrites the frame.
Failure Session::take_token(const Frame& frame, const wire::HelloRequest& request, PeerIdentity& peer) {
  if (request.token() == nullptr) return {};
  const std::string_view token = request.token()->string_view();
  const std::string wrong = check_token(token);
  const bool is_heard = peer.protection == Stream::Protection::kNone;
  if (wrong.empty()) peer.token = token_hash(token);
  reader_.wipe_table(frame);
  if (is_heard) {  // even if tokens are not required here: its owner has to know
    return {
        Errc::kPermissionDenied,
        "hello.token: came in plain text over a network, where others may have read it. Replace it, and use tls://, "
        "unix:// or loopback"};
  }
  return wrong.empty() ? Failure() : Failure(Errc::kBadRequest, "hello.token: " + wrong);
}

bool Session::on_hello(const Frame& frame) {
  const auto fail = [&](error_code code, const std::string& message) {
    refuse(frame, code, message);
    end_ = SessionEnd::kBadFrame;
    return false;
  };
  const auto* request = read_table<wire::HelloRequest>(frame.table);
  if (request == nullptr) return fail(Errc::kBadRequest, "hello: the table fails verification");
  const auto* name = request->identity();
  if (name != nullptr && name->size() > 128)
    return fail(Errc::kBadRequest, count_text("hello.identity bytes", name->size(), 128));
  if (request->version_min() > kWireVersion || request->version_max() < kWireVersion) {
    return fail(Errc::kUnsupported, fmt::format("hello.version: {}..{}, spoken here: {}", request->version_min(),
                                                request->version_max(), kWireVersion));
  }
  if (name != nullptr) {
    for (const char c : *name) identity += c >= ' ' && c < 127 ? c : '?';  // it goes to the log
  }
  PeerIdentity peer = PeerIdentity::of(*stream);
  Failure bad_token = take_token(frame, *request, peer);  // wipes the frame: the request is unreadable from here on
  const bool has_token = peer.token.has_value();
  access.identify(std::move(peer));
  // A client with a token wants to be known by it: continuing under another identity would hide the mistake.
  if (!bad_token.code && has_token && access.is_watched() && access.grant().section.empty())
    bad_token = {Errc::kPermissionDenied, "hello.token: the node's policy does not have it"};
  if (bad_token.code) {
    if (node.access != nullptr) node.access->token_refused();
    warn(LogKind::kDenied, [&] { return bad_token.text; });
    return fail(bad_token.code, bad_token.text);
  }
  if (const std::string why = access.begin_session(); !why.empty()) {
    warn(LogKind::kDenied, [&] { return why; });
    return fail(Errc::kOverQuota, "hello: " + why);
  }
  is_greeted_ = true;
  last_request_ = node.clock.now();
  if (const auto end = stream->peer_certificate_end()) {
    const auto left = std::chrono::duration_cast<Duration>(*end - std::chrono::system_clock::now());
    certificate_end_ = last_request_ + std::min(left, kCertificateTimeMax);
  }
  if (seat_) {
    seat_->set_greeted();
    seat_->set_busy();
  }
  const SessionLimits& limits = *node.limits;
  reader_.set_limits({limits.table_bytes_max, limits.payload_bytes_max});
  replies.reply(FrameType::kHello, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    const auto node_id = builder.CreateString(node.node_id);
    const auto instance = create_bytes(builder, node.instance);
    return wire::CreateHelloResponse(builder, kWireVersion, node_id, node.cluster.epoch(), limits.table_bytes_max,
                                     node.chain_blocks_max, limits.requests_max, limits.region_bytes_max, rdma_.width(),
                                     rdma_.takes_messages(), instance);
  });
  spdlog::debug("session {} of '{}' ({}) opened", static_cast<std::uint64_t>(id), identity, stream->peer());
  return true;
}

// -- permissions

bool Session::permit(const Frame& frame) {
  const FrameType type = frame.header.type;
  const std::uint64_t request_id = frame.header.request_id;
  const Rule rule = rule_for(type);
  const Right right = rule.right;
  if (const std::string why = access.denial(frame_type_name(type), rule); !why.empty()) {
    if (type != FrameType::kPutData) {
      deny(frame, right, why);
      return false;
    }
    node.metrics.request_denied(right);
    warn(LogKind::kDenied, [&] { return why; });
    if (const auto put = puts_.find(request_id); put != puts_.end()) {
      const std::shared_ptr<Put> keep = put->second;  // its failure removes it from the table
      keep->fail(Errc::kPermissionDenied, why);
    }  // else the put is over, and its data are read and silently discarded
    return false;
  }
  if (counts_for_tenant(type)) {
    if (const std::string why = access.take_request(node.clock.now()); !why.empty()) {
      refuse(frame, Errc::kOverQuota, std::string(frame_type_name(type)) + ": " + why);
      return false;
    }
  }
  if (right == Right::kOperate && access.is_watched()) {
    audit.begin(type, request_id, access.who(),
                fmt::format("peer={} session={}", stream->peer(), static_cast<std::uint64_t>(id)));
  }
  return true;
}

// -- transfers

bool Session::admit(const Frame& frame) {
  const std::uint64_t request_id = frame.header.request_id;
  const std::uint32_t requests_max = node.limits->requests_max;
  // Gets waiting to be sent hold pins, puts hold slots: this bounds both.
  if (sending_count + puts_.size() >= requests_max) {
    refuse(frame, Errc::kBusy, count_text("requests in flight", requests_max, requests_max));
    return false;
  }
  if (const std::string why = access.may_move(node.clock.now()); !why.empty()) {
    refuse(frame, Errc::kOverQuota, std::string(frame_type_name(frame.header.type)) + ": " + why);
    return false;
  }
  if (gets_.contains(request_id) || puts_.contains(request_id)) {
    refuse(frame, Errc::kBadRequest, fmt::format("request_id: {}, in use", request_id));
    return false;
  }
  return hold(frame);
}

/// A waiting transfer (for memory, the disk or its client) keeps its hashes: a request's size for as long.
bool Session::hold(const Frame& frame) {
  if (frame.table.size() <= kLargeRequestBytes) return true;
  held_now_ = std::make_unique<TableBudget::Account>(*node.requests, stream->peer_group(), [] {});
  if (held_now_->resize(frame.table.size())) return true;
  refuse(frame, Errc::kBusy,
         count_text("table_bytes", frame.table.size(), kLargeRequestBytes) +
             " just now: transfers in flight fill the memory that the node has for large requests");
  return false;
}

void Session::on_get(const Frame& frame) {
  const auto* request = read_request<wire::GetRequest>(*this, frame);
  if (request == nullptr) return;
  const OpenSpace* const space =
      spaces_.find(frame, request->space(), request->namespace_check(), NamespaceKind::kChain);
  if (space == nullptr) return;
  const auto hashes = hashes_of(request->hashes());
  const RegionTarget target = target_of(*request);
  auto region = regions_.find(frame, target, hashes.size(), space->block_bytes);
  if (!region) return;
  const auto ends = numbers_of(request->segment_ends());
  const std::string why = Get::check_segments(ends, space->block_bytes);
  if (!why.empty()) return refuse(frame, Errc::kBadRequest, why);
  const std::size_t first_block = request->first_block();
  if (first_block > 0 && (first_block > hashes.size() || target.region != 0 || ends.size() > 1)) {
    return refuse(
        frame, Errc::kBadRequest,
        fmt::format("get.first_block: {} of {} hashes; goes with one segment, inline", first_block, hashes.size()));
  }
  if (!admit(frame)) return;

  GetOrder order;
  order.request_id = frame.header.request_id;
  order.options = {.session = id, .lease = LeaseId(request->lease())};
  order.options.disk = reads_disk(request->max_tier());
  order.segment_ends.assign(ends.begin(), ends.end());
  order.deadline = deadline_of(request->deadline_us());
  order.block_count = hashes.size();
  order.first_block = first_block;
  order.trace = trace_of(request->trace());
  BlockPath path(rdma_, std::move(*region), target, space->block_bytes);
  const auto get = std::make_shared<Get>(shared_from_this(), *space, std::move(order), std::move(path));
  if (const error_code error = get->pin(hashes)) {
    return refuse(frame, error,
                  "get: " + error.message() + " (" + count_text("hashes", hashes.size(), node.chain_blocks_max) + ")");
  }
  // From the cheapest to the dearest: with the answer, at once, or by a coroutine.
  if (messages_.contains(get->request_id()) && get->send_with_answer(messages_)) return;
  if (get->send_at_once()) return;
  start(get);
}

bool Session::reads_disk(std::uint8_t max_tier) const {
  return node.disk_worker != nullptr && max_tier >= 2 && node.disk_worker->can_read();
}

TimePoint Session::deadline_of(std::uint64_t deadline_us) const {
  const bool is_told = deadline_us > 0 && deadline_us < kDeadlineUsMax;
  return is_told ? node.clock.now() + std::chrono::microseconds(deadline_us) : TimePoint::max();
}

void Session::on_set_get(const Frame& frame) {
  const auto* request = read_request<wire::SetGetRequest>(*this, frame);
  if (request == nullptr) return;
  const OpenSpace* const space = spaces_.find(frame, request->space(), request->namespace_check(), NamespaceKind::kSet);
  if (space == nullptr) return;
  const auto hashes = hashes_of(request->hashes());
  const auto rooms = numbers_of(request->rooms());
  if (hashes.size() > node.chain_blocks_max)
    return refuse(frame, Errc::kTooLarge, "set_get." + count_text("hashes", hashes.size(), node.chain_blocks_max));
  if (rooms.size() != hashes.size()) {
    return refuse(frame, Errc::kBadRequest,
                  fmt::format("set_get.rooms: {}, one per hash ({}) is due", rooms.size(), hashes.size()));
  }
  const auto group_counts = numbers_of(request->group_counts());
  if (const std::string why = check_groups(hashes, group_counts); !why.empty())
    return refuse(frame, Errc::kBadRequest, "set_get." + why);
  RegionTarget target = target_of(*request);
  target.lengths = rooms;
  auto region = regions_.find(frame, target, hashes.size(), space->block_bytes);
  if (!region || !admit(frame)) return;

  SetGetOrder order;
  order.request_id = frame.header.request_id;
  order.lease = LeaseId(request->lease());
  order.disk = reads_disk(request->max_tier());
  order.deadline = deadline_of(request->deadline_us());
  order.hashes.assign(hashes.begin(), hashes.end());
  order.rooms.assign(rooms.begin(), rooms.end());
  order.group_counts.assign(group_counts.begin(), group_counts.end());
  order.trace = trace_of(request->trace());
  BlockPath path(rdma_, std::move(*region), target, space->block_bytes);
  const auto get = std::make_shared<SetGet>(shared_from_this(), *space, std::move(order), std::move(path));
  if (const error_code error = get->pin()) return refuse(frame, error, "set_get: " + error.message());
  if (get->send_at_once()) return;
  start(get);
}

void Session::start(const std::shared_ptr<GetInProgress>& get) {
  inline_count_ += get->is_inline();
  gets_.emplace(get->request_id(), get);
  if (held_now_) held_.emplace(get->request_id(), std::move(held_now_));
  asio::co_spawn(executor, carry_out(self(), get, SessionJob(self())), BorderOf{NodeThread::kIo});
}

asio::awaitable<void> Session::carry_out(std::shared_ptr<Session> self, std::shared_ptr<GetInProgress> get,
                                         [[maybe_unused]] SessionJob job) {
  co_await get->deliver();
  // Removed before the answer: with its last frame the client may reuse the id.
  self->gets_.erase(get->request_id());
  self->held_.erase(get->request_id());
  self->inline_count_ -= get->is_inline();
  self->inline_ended_.set();
  get->finish();
  self->writer.flush();
}

void Session::on_put(const Frame& frame) {
  const auto* request = read_request<wire::PutRequest>(*this, frame);
  if (request == nullptr) return;
  const OpenSpace* const space =
      spaces_.find(frame, request->space(), request->namespace_check(), NamespaceKind::kChain);
  if (space == nullptr) return;
  PutOrder order;
  order.request_id = frame.header.request_id;
  order.wait = std::chrono::microseconds(std::min<std::uint64_t>(request->deadline_us(), kDeadlineUsMax));
  order.hashes = hashes_of(request->hashes());
  order.positions = numbers_of(request->positions());
  order.token_ids = numbers_of(request->token_ids());
  order.extras = extras_of(request->extras());
  order.idle = std::chrono::microseconds(
      std::min<std::uint64_t>(request->idle_us(), PutDesk::kIdleMax / std::chrono::microseconds(1)));
  order.hint = reuse_of(request->reuse());
  order.chain_blocks = request->chain_blocks();
  if (request->chain_known() > 0) order.chain_known = request->chain_known() - 1;
  order.trace = trace_of(request->trace());
  start(frame, *space, order, target_of(*request));
}

void Session::on_set_put(const Frame& frame) {
  const auto* request = read_request<wire::SetPutRequest>(*this, frame);
  if (request == nullptr) return;
  const OpenSpace* const space = spaces_.find(frame, request->space(), request->namespace_check(), NamespaceKind::kSet);
  if (space == nullptr) return;
  PutOrder order;
  order.request_id = frame.header.request_id;
  order.wait = std::chrono::microseconds(std::min<std::uint64_t>(request->deadline_us(), kDeadlineUsMax));
  order.hashes = hashes_of(request->hashes());
  order.lengths = numbers_of(request->block_bytes());
  if (order.hashes.size() > node.chain_blocks_max)
    return refuse(frame, Errc::kTooLarge,
                  "set_put." + count_text("hashes", order.hashes.size(), node.chain_blocks_max));
  if (order.lengths.size() != order.hashes.size()) {
    return refuse(
        frame, Errc::kBadRequest,
        fmt::format("set_put.block_bytes: {}, one per hash ({}) is due", order.lengths.size(), order.hashes.size()));
  }
  for (const std::uint32_t length : order.lengths) {
    if (length > 0 && length <= space->block_bytes) continue;
    return refuse(frame, Errc::kBadRequest,
                  fmt::format("set_put.block_bytes: {}, 1..{} in this namespace", length, space->block_bytes));
  }
  order.group_counts = numbers_of(request->group_counts());
  order.hint = reuse_of(request->reuse());
  order.trace = trace_of(request->trace());
  if (const std::string why = check_groups(order.hashes, order.group_counts); !why.empty())
    return refuse(frame, Errc::kBadRequest, "set_put." + why);
  RegionTarget target = target_of(*request);
  target.lengths = order.lengths;
  start(frame, *space, order, target);
}

void Session::start(const Frame& frame, const OpenSpace& space, const PutOrder& order, const RegionTarget& target) {
  auto region = regions_.find(frame, target, order.hashes.size(), space.block_bytes);
  if (!region || !admit(frame)) return;
  BlockPath path(rdma_, std::move(*region), target, space.block_bytes);
  Put::Listener& listener = *this;
  const auto put = std::make_shared<Put>(shared_from_this(), listener, draining_, space, order, std::move(path));
  if (!put->offer(frame, order)) return;
  // Before begin(), in which a put of stored blocks ends and removes itself from the table.
  puts_.emplace(put->request_id(), put);
  if (held_now_) held_.emplace(put->request_id(), std::move(held_now_));
  put->begin();
}

asio::awaitable<bool> Session::on_put_data(const Frame& frame) {
  const auto found = puts_.find(frame.header.request_id);
  if (found == puts_.end()) {
    // The put may just have failed, with its data still on the way: the client was answered.
    const auto skipped = co_await reader_.skip_payload();
    co_return skipped.has_value();
  }
  std::shared_ptr<Put> put = found->second;
  co_return co_await Put::take_data(std::move(put), frame, reader_);
}

void Session::on_match(const Frame& frame) {
  const auto wanted =
      frame.header.type == FrameType::kSetMatch ? lookups_.on_set_match(frame) : lookups_.on_match(frame);
  if (!wanted || !node.disk_worker->can_read() || prefetches_.size() >= kPrefetchesMax) return;
  // The match has been answered, so the prefetch runs without a request and its failure is not reported.
  const auto prefetch =
      std::make_shared<Prefetch>(shared_from_this(), *wanted->space, wanted->hashes, wanted->group_counts);
  if (prefetch->pin() || !prefetch->has_work()) return;
  prefetches_.push_back(prefetch);
  asio::co_spawn(executor, carry_out_ahead(self(), prefetch, SessionJob(self())), BorderOf{NodeThread::kIo});
}

asio::awaitable<void> Session::carry_out_ahead(std::shared_ptr<Session> self, std::shared_ptr<Prefetch> prefetch,
                                               [[maybe_unused]] SessionJob job) {
  co_await prefetch->run();
  std::erase(self->prefetches_, prefetch);
}

void Session::on_prefix(const Frame& frame) {
  const auto* request = read_request<wire::PrefixRequest>(*this, frame);
  if (request == nullptr) return;
  const OpenSpace* const space = spaces_.find(frame, request->space(), request->namespace_check());
  if (space == nullptr) return;
  const auto hashes = hashes_of(request->hashes());
  audit.on(frame.header.type, frame.header.request_id,
           fmt::format("namespace={} hashes={}", to_hex(space->shown_name.bytes), hashes.size()));
  if (frame.header.type == FrameType::kDrop) return drops_.drop(frame, *space, hashes);
  lookups_.on_prefix(frame, *space, hashes);
}

void Session::on_cancel(const Frame& frame) {
  const auto* request = read_request<wire::CancelRequest>(*this, frame);
  if (request == nullptr) return;
  // A cancel has no answer of its own: the cancelled request's last frame is the answer, or was. It stays in the table:
  // the get ends by itself, once copies and devices are done with the client's memory.
  if (const auto get = gets_.find(request->request_id()); get != gets_.end()) get->second->cancel();
  if (const auto put = puts_.find(request->request_id()); put != puts_.end()) {
    const std::shared_ptr<Put> keep = put->second;  // its failure removes it from the table
    keep->fail(Errc::kCancelled, "put: cancelled");
  }
}

void Session::on_region_remove(const Frame& frame) {
  const std::shared_ptr<Region> region = regions_.on_remove(frame);
  if (!region) return;
  for (auto& [request_id, get] : gets_) {
    // The removal is answered once the region is unused. Gets are cancelled; puts run to their end.
    if (get->uses(*region)) get->cancel();
  }
}

}  // namespace kv
