// store/node/session/session.cc: a session's life: hello, request after request, and an end that leaves nothing behind.

#include "store/node/session/session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/assert.h"
#include "store/node/session/session_wire.h"

namespace kv {
namespace {

constexpr Duration kWatchInterval = 1s;
constexpr std::uint64_t kProgressBytes = 64 * 1024;
/// Of requests, then other sessions of this thread get a turn: a peer that sends without a pause never lets us wait.
constexpr std::size_t kTurnFrames = 64;
constexpr std::uint64_t kTurnBytes = 1 << 20;
constexpr std::size_t kInlineGetsMax = 4;

}  // namespace

Session::Session(NodeContext& node, SessionId id, std::unique_ptr<Stream> stream, asio::any_io_executor executor,
                 std::shared_ptr<VerbsThread> verbs)
    : node_(node),
      id_(id),
      executor_(executor),
      stream_(std::move(stream)),
      reader_(*stream_),
      writer_(*stream_, executor_),
      alarm_(node.clock.make_alarm(executor_)),
      jobs_done_(executor_),
      inline_ended_(executor_),
      drained_(executor_) {
  if (!verbs) return;
  SessionLanes::Listener listener;
  listener.on_broken = [this](std::uint32_t lane, error_code why) { on_lane_broken(lane, why); };
  listener.on_message = [this](std::span<const std::byte> message) { on_message(message); };
  lanes_ = std::make_unique<SessionLanes>(std::move(verbs), executor_, std::move(listener));
}

Session::~Session() { KV_ASSERT(job_count_ == 0 && sending_count_ == 0 && puts_.empty()); }

asio::awaitable<void> Session::run() {
  const auto self = shared_from_this();
  node_.metrics.session_opened();
  read_progress_.since = write_progress_.since = last_request_ = node_.clock.now();
  watch();
  ++job_count_;
  asio::co_spawn(
      executor_,
      [](std::shared_ptr<Session> session) -> asio::awaitable<void> {
        co_await session->writer_.run();
        // The writer ends first when the stream breaks while sending: then the reader must not wait for a silent peer.
        if (!session->ending_) session->terminate(SessionEnd::kBroken);
        session->job_ended();
      }(self),
      asio::detached);

  std::size_t frames_in_turn = 0;
  std::uint64_t turn_began = 0;  // in bytes
  while (!ending_) {
    if (++frames_in_turn > kTurnFrames || reader_.bytes_read() >= turn_began + kTurnBytes) {
      frames_in_turn = 0;
      turn_began = reader_.bytes_read();
      co_await asio::post(executor_, asio::use_awaitable);
      if (ending_) break;
    }
    auto frame = co_await reader_.next();
    if (!frame) {
      const error_code error = frame.error();
      if (error.category() == errc_category()) {  // the peer's bytes, not the connection
        end_ = SessionEnd::kBadFrame;
        refuse(reader_.last_header().type, reader_.last_header().request_id, error, reader_.why());
        warn(LogKind::kBadFrame, [&] { return reader_.why(); });
      } else if (!ending_) {
        end_ = error == asio::error::eof ? SessionEnd::kPeerClosed : SessionEnd::kBroken;
      }
      break;
    }
    const bool goes_on = co_await handle(*frame);  // named: GCC 12 miscompiles `if (!co_await ...)` in a loop
    if (!goes_on) break;
    if (!reader_.has_frame()) writer_.flush();  // the answers to requests that came together leave together
    if (writer_.queued_bytes() > node_.limits.queued_bytes_max) {
      writer_.flush();
      co_await writer_.wait_below(node_.limits.queued_bytes_max / 2);
    }
    // Each holds a window of blocks. Few enough that there is an end to that; and a cancel of one of them is read.
    while (inline_count_ > kInlineGetsMax && !ending_) {
      writer_.flush();
      inline_ended_.reset();
      co_await inline_ended_.wait();
    }
  }
  ending_ = true;
  writer_.flush();  // a last error, if there is room for it
  writer_.close();
  cancel_jobs();
  if (gets_.empty()) close_stream();  // the writer may sleep in it; while copies run, the last of them closes
  while (job_count_ > 0) {
    jobs_done_.reset();
    co_await jobs_done_.wait();
  }
  for (const auto& [request_id, job] : std::exchange(puts_, {})) finish_put(*job);
  lanes_.reset();
  node_.store.with([&](Store& store) { store.end_session(id_); });
  node_.metrics.add_region_bytes(-static_cast<std::int64_t>(region_bytes_));
  for (const auto& [handle, region] : regions_) unmap(*region);
  regions_.clear();
  alarm_->disarm();
  close_stream();  // invariant 2
  node_.metrics.session_closed(end_);
  if (seat_) table_->leave(seat_);
}

void Session::sit(SessionTable& table, std::shared_ptr<SessionTable::Seat> seat) {
  table_ = &table;
  seat_ = std::move(seat);
  table.set_end(seat_, [weak = weak_from_this(), executor = executor_] {
    asio::post(executor, [weak] {
      if (const auto session = weak.lock()) session->make_room();
    });
  });
}

bool Session::is_idle() const {
  constexpr std::size_t kOwnJobs = 1;  // the writer
  return gets_.empty() && puts_.empty() && prefetches_.empty() && sending_count_ == 0 && job_count_ <= kOwnJobs &&
         regions_.empty() && regions_coming_ == 0 && writer_.queued_bytes() == 0 && by_message_.empty() &&
         (!greeted_ || !reader_.in_frame()) && node_.clock.now() >= lease_until_;
}

void Session::make_room() {
  if (ending_) return;
  if (!is_idle() || idle_told_ != last_request_) return table_->stay(seat_);
  terminate(SessionEnd::kMadeRoom);
}

void Session::terminate(SessionEnd why) {
  if (ending_) return;
  ending_ = true;
  end_ = why;
  cancel_jobs();
  writer_.close();
  // The reader may sleep in the stream: closing wakes it. While copies run, the last of them closes (invariant 2).
  if (gets_.empty()) close_stream();
}

void Session::terminate_if_idle() {
  if (gets_.empty() && puts_.empty() && sending_count_ == 0 && writer_.queued_bytes() == 0 &&
      (!lanes_ || lanes_->has_sent_messages()))
    terminate(SessionEnd::kDrained);
}

void Session::cancel_jobs() {
  *abandoned_ = true;
  inline_ended_.set();
  for (auto& [request_id, job] : gets_) cancel(*job);
  for (const auto& job : prefetches_) cancel(*job);
  for (auto& [request_id, job] : puts_) {
    if (job->sink != nullptr) job->sink->cancel();
    job->is_over = true;
  }
  if (lanes_) lanes_->fail_all();  // or moves to a client that died would go on until their devices notice
}

void Session::close_stream() {
  // TCP answers unread input with a reset, which would overtake a last error on its way to the client: read some first.
  std::array<std::byte, 4096> scratch;
  const asio::mutable_buffer buffer = asio::buffer(scratch);
  for (int i = 0; i < 256 && stream_->try_read(std::span(&buffer, 1)); ++i) {
  }
  stream_->close();
}

void Session::job_ended() {
  KV_ASSERT(job_count_ > 0);
  if (ending_ && gets_.empty()) close_stream();
  if (--job_count_ == 0) jobs_done_.set();
}

void Session::watch() {
  const TimePoint now = node_.clock.now();
  const SessionLimits& limits = node_.limits;
  if (!greeted_ && now - read_progress_.since >= limits.hello_timeout) return terminate(SessionEnd::kHelloTimeout);

  if (seat_) {
    idle_told_ = last_request_;
    if (is_idle()) {
      seat_->set_idle(last_request_);
    } else {
      seat_->set_busy();
    }
  }
  if (!reader_.in_frame()) {
    read_progress_ = {reader_.bytes_read(), greeted_ ? now : read_progress_.since};
    reader_.shrink();
  } else if (reader_.bytes_read() >= read_progress_.bytes + kProgressBytes) {
    read_progress_ = {reader_.bytes_read(), now};
  } else if (now - read_progress_.since >= limits.frame_timeout &&
             writer_.queued_bytes() <= limits.queued_bytes_max / 2 && !is_draining_enough() &&
             inline_count_ <= kInlineGetsMax) {
    // Unless it is us who do not read: waiting for our answers to be taken, or for blocks that we fetch.
    return terminate(SessionEnd::kSlowFrame);
  }
  // It has write_timeout to take what is queued, or as much of it as the least rate asks for; and then again.
  if (writer_.queued_bytes() == 0 || writer_.bytes_written() >= write_progress_.bytes) {
    const auto seconds = std::chrono::duration<double>(limits.write_timeout).count();
    const auto due = static_cast<std::uint64_t>(static_cast<double>(limits.read_rate_min) * seconds);
    const std::uint64_t queued = std::max<std::uint64_t>(writer_.queued_bytes(), 1);
    write_progress_ = {writer_.bytes_written() + std::clamp<std::uint64_t>(due, 1, queued), now};
  } else if (now - write_progress_.since >= limits.write_timeout) {
    return terminate(SessionEnd::kSlowReader);
  }
  for (auto& [request_id, job] : gets_) {
    if (job->cancelled || now - job->began < limits.get_timeout) continue;
    node_.metrics.deadline_missed();
    job->is_late = true;
    cancel(*job);
  }
  std::vector<std::shared_ptr<PutJob>> late;
  for (auto& [request_id, job] : puts_) {
    if (!job->is_waiting && now - job->began >= limits.put_timeout) late.push_back(job);
  }
  for (const auto& job : late) {
    node_.metrics.deadline_missed();
    fail_put(*job, Errc::kStaleLease, "put: the bytes did not come in time; staged memory is freed");
  }
  if (!late.empty()) writer_.flush();
  alarm_->arm(now + kWatchInterval, [weak = weak_from_this()] {
    if (const auto session = weak.lock()) session->watch();
  });
}

void Session::refuse(FrameType type, std::uint64_t request_id, error_code code, const std::string& message,
                     std::uint32_t broken) {
  const auto value = code.category() == errc_category() ? code.value() : static_cast<int>(Errc::kBadRequest);
  node_.metrics.request_refused(static_cast<Errc>(value));
  reply(type, request_id, kFrameError, [&](FlatBufferBuilder& builder) {
    return wire::CreateErrorDirect(builder, static_cast<std::uint16_t>(value), message.c_str(), broken);
  });
}

const OpenSpace* Session::find_space(const Frame& frame, std::uint32_t handle, std::uint64_t check) {
  const FrameType type = frame.header.type;
  const auto fail = [&](Errc code, const std::string& message) {
    refuse(type, frame.header.request_id, code, frame_type_name(type) + ("." + message));
    return nullptr;
  };
  const OpenSpace* space = spaces_.find(handle);
  if (version_ < 2) {
    if (space != nullptr) return space;
    const auto of_node = node_.handles.find(handle);
    if (of_node) return &spaces_.remember(handle, *of_node);
  }
  if (space == nullptr) {
    return fail(Errc::kNoNamespace, "space: " + std::to_string(handle) + ", not a handle that this " +
                                        (version_ < 2 ? "node gave out" : "session was given") +
                                        "; open the namespace again");
  }
  if (check != space->check) {
    return fail(Errc::kMismatch, "namespace_check: " + std::to_string(check) + ", space " + std::to_string(handle) +
                                     " has " + std::to_string(space->check) + "; nothing was done");
  }
  return space;
}

asio::awaitable<bool> Session::handle(const Frame& frame) {
  const FrameType type = frame.header.type;
  const std::uint64_t id = frame.header.request_id;
  if ((frame.header.flags & (kFrameResponse | kFrameError | kFrameMore)) != 0) {
    refuse(type, id, Errc::kBadFrame, "flags: " + std::to_string(frame.header.flags) + ", a request has none");
    end_ = SessionEnd::kBadFrame;
    co_return false;
  }
  if (!greeted_) {
    if (type != FrameType::kHello) {
      refuse(type, id, Errc::kBadRequest, "the first frame must be hello, not " + std::string(frame_type_name(type)));
      end_ = SessionEnd::kBadFrame;
      co_return false;
    }
    co_return on_hello(frame);
  }
  if (type != FrameType::kCancel && by_message_.contains(id)) {  // or answers would take each other's way
    refuse(type, id, Errc::kBadRequest, "request_id: " + std::to_string(id) + ", in use by SEND");
    end_ = SessionEnd::kBadFrame;
    co_return false;
  }
  if (type != FrameType::kPutData && frame.header.payload_bytes != 0) {
    refuse(type, id, Errc::kBadRequest,
           count_text("payload_bytes", frame.header.payload_bytes, 0) + " with " + frame_type_name(type));
    const auto skipped = co_await reader_.skip_payload();
    co_return skipped.has_value();
  }
  if (type == FrameType::kPutData) co_return co_await on_put_data(frame);
  serve(frame);
  co_return true;
}

void Session::serve(const Frame& frame) {
  const FrameType type = frame.header.type;
  const std::uint64_t id = frame.header.request_id;
  const TimePoint began = node_.clock.now();
  last_request_ = began;
  if (seat_) seat_->set_busy();  // until watch() sees that it is not
  if (node_.draining && (type == FrameType::kMatch || type == FrameType::kGet || type == FrameType::kPut))
    return refuse(type, id, Errc::kDraining, "the node is shutting down");
  switch (type) {
    case FrameType::kHello: refuse(type, id, Errc::kBadRequest, "hello: said already"); break;
    case FrameType::kOpen: on_open(frame); break;
    case FrameType::kMatch: on_match(frame); break;
    case FrameType::kGet: return on_get(frame);  // observed when its last byte is on its way
    case FrameType::kPut: return on_put(frame);
    case FrameType::kPutData: break;  // handle() has it
    case FrameType::kCancel: on_cancel(frame); break;
    case FrameType::kRelease: on_release(frame); break;
    case FrameType::kTouch:
    case FrameType::kPin:
    case FrameType::kUnpin:
    case FrameType::kDrop: on_prefix(frame); break;
    case FrameType::kRegionAdd: on_region_add(frame); break;
    case FrameType::kRegionRemove: on_region_remove(frame); break;
    case FrameType::kVerbsConnect: on_verbs_connect(frame); break;
    case FrameType::kStats: on_stats(frame); break;
    case FrameType::kPing:
      reply(type, id, 0, [](FlatBufferBuilder& builder) { return wire::CreateEmptyResponse(builder); });
      break;
  }
  node_.metrics.observe_verb(type, node_.clock.now() - began, false);
}

void Session::on_lane_broken(std::uint32_t lane, error_code why) {
  const bool carried_messages = lane == lanes_->message_lane();
  warn(LogKind::kLane, [&] {
    return "lane " + std::to_string(lane) + " broke: " + why.message() + "; " +
           (carried_messages ? "requests were on it, so the session ends"
                             : "the client is told, and may offer it again");
  });
  if (carried_messages && !ending_) terminate(SessionEnd::kBroken);
}

bool Session::on_hello(const Frame& frame) {
  const auto fail = [&](Errc code, const std::string& message) {
    refuse(FrameType::kHello, frame.header.request_id, code, message);
    end_ = SessionEnd::kBadFrame;
    return false;
  };
  const auto* request = read_table<wire::HelloRequest>(frame.table);
  if (request == nullptr) return fail(Errc::kBadRequest, "hello: the table fails verification");
  const auto* identity = request->identity();
  if (identity != nullptr && identity->size() > 128) {
    return fail(Errc::kBadRequest, count_text("hello.identity bytes", identity->size(), 128));
  }
  if (request->version_min() > kWireVersion || request->version_max() < kWireVersionMin) {
    return fail(Errc::kUnsupported, "hello.version: " + std::to_string(request->version_min()) + ".." +
                                        std::to_string(request->version_max()) + ", spoken here: " +
                                        std::to_string(kWireVersionMin) + ".." + std::to_string(kWireVersion));
  }
  if (identity != nullptr) {
    for (const char c : *identity) identity_ += c >= ' ' && c < 127 ? c : '?';  // it goes to the log
  }
  greeted_ = true;
  last_request_ = node_.clock.now();
  if (seat_) {
    seat_->set_greeted();
    seat_->set_busy();
  }
  version_ = std::min(request->version_max(), kWireVersion);
  const SessionLimits& limits = node_.limits;
  reader_.set_limits({limits.table_bytes_max, limits.payload_bytes_max});
  reply(FrameType::kHello, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    const auto node_id = builder.CreateString(node_.node_id);
    const auto instance = version_ < 2 ? 0 : create_bytes(builder, node_.instance);
    return wire::CreateHelloResponse(
        builder, version_, node_id,
        /*epoch=*/0, lanes_ ? kFeatureVerbs | (lanes_->config().message_count_max > 0 ? kFeatureMessages : 0) : 0,
        limits.table_bytes_max, node_.chain_blocks_max, limits.requests_max, limits.region_bytes_max,
        lanes_ ? lanes_->config().lane_count_max : 0, instance);
  });
  spdlog::debug("session {} of '{}' ({}) opened", static_cast<std::uint64_t>(id_), identity_, stream_->peer());
  return true;
}

bool Session::check_target(const Frame& frame, std::uint32_t region, std::size_t hash_count,
                           std::span<const std::uint64_t> offsets, std::uint64_t block_bytes) {
  const auto fail = [&](Errc code, const std::string& message) {
    refuse(frame.header.type, frame.header.request_id, code, message);
    return false;
  };
  if (region == 0) {
    return offsets.empty() ||
           fail(Errc::kBadRequest, "offsets: " + std::to_string(offsets.size()) + ", none without a region");
  }
  const auto found = regions_.find(region);
  if (found == regions_.end() || found->second->removing) {
    return fail(Errc::kNoRegion, "region: " + std::to_string(region) + ", not lent by this session");
  }
  if (offsets.size() != hash_count) {
    return fail(Errc::kBadRequest, "offsets: " + std::to_string(offsets.size()) + ", one per hash (" +
                                       std::to_string(hash_count) + ") is due");
  }
  const std::uint64_t size = found->second->bytes;
  for (const std::uint64_t offset : offsets) {
    if (offset > size || size - offset < block_bytes) {
      return fail(Errc::kNoRegion, "offsets: " + std::to_string(offset) + " + " + std::to_string(block_bytes) +
                                       " bytes is past the region's end " + std::to_string(size));
    }
  }
  return true;
}

void Session::on_cancel(const Frame& frame) {
  const auto* request = read_table<wire::CancelRequest>(frame.table);
  if (request == nullptr) {
    return refuse(FrameType::kCancel, frame.header.request_id, Errc::kBadRequest,
                  "cancel: the table fails verification");
  }
  // No answer of its own: the last frame of the cancelled request is the answer, or was.
  if (const auto get = gets_.find(request->request_id()); get != gets_.end()) cancel(*get->second);
  if (const auto put = puts_.find(request->request_id()); put != puts_.end()) {
    fail_put(*put->second, Errc::kCancelled, "put: cancelled");
  }
}

}  // namespace kv
