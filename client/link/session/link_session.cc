#include "client/link/session/link_session.h"

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "base/assert.h"
#include "transport/frames/frame_message.h"
#include "transport/token.h"

namespace kv {
namespace {

constexpr std::uint32_t kTableBytesMax = 32 << 20;  // The largest answer: stats of 1024 namespaces of 16 KiB records.
constexpr std::uint64_t kPayloadBytesMax = 1ull << 40;  // If swallowed; a wanted one is as long as its targets.
constexpr std::size_t kErrorTextMax = 512;
constexpr std::size_t kBytesPerTurn = 2 << 20;
constexpr std::size_t kCallLoadBytes = 4096;  // A call's weight besides its data when sessions are compared.

std::span<const std::byte> table_of(const flatbuffers::FlatBufferBuilder& builder) {
  return std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
}

FrameHeader header_of(FrameType type, std::uint64_t request_id) {
  FrameHeader header;
  header.type = type;
  header.request_id = request_id;
  return header;
}

}  // namespace

LinkSession::LinkSession(std::shared_ptr<ClientShared> shared, Listener& listener, std::unique_ptr<Stream> stream)
    : shared_(std::move(shared)),
      listener_(&listener),
      stream_(std::move(stream)),
      inline_path_(stream_->protection() == Stream::Protection::kTls ? ClientPath::kTls
                   : stream_->can_pass_descriptors()                 ? ClientPath::kUnix
                                                                     : ClientPath::kTcp),
      reader_(*stream_),
      writer_(*stream_, shared_->executor),
      requests_(shared_->memory),
      spaces_(*this),
      regions_(*this, /*by_memfd=*/stream_->can_pass_descriptors()) {}

LinkSession::~LinkSession() = default;

// -- the stream

void LinkSession::start() {
  if (const Failure failed = send_hello(); failed.code) return end(failed.code, failed.text, Node::kHasClosed);
  writer_.flush();
  // An exception here is a bug (an assertion, see AssertPolicy) or the end of memory: this session ends, others go on.
  const auto failed = [self = shared_from_this()](std::exception_ptr exception) {
    if (!exception) return;
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& e) {
      self->end(Errc::kBadFrame, std::string("internal error: ") + e.what(), Node::kMayWrite);
      self->stream_->close();
    }
  };
  asio::co_spawn(shared_->executor, read_loop(shared_from_this()), failed);
  asio::co_spawn(shared_->executor, write_loop(shared_from_this()), failed);
}

/// Memory with the token goes to the stream and no further: the builder is overwritten.
Failure LinkSession::send_hello() {
  Secret token = shared_->config.token;
  if (const std::string& file = shared_->config.token_file; !file.empty()) {
    auto read = read_token_file(file);
    if (!read) return read.error();
    token = std::move(*read);
  }
  // The endpoints in a cluster's map come from nodes, not from the configuration.
  if (!token.empty() && stream_->protection() == Stream::Protection::kNone)
    return {Errc::kPermissionDenied, "token: not sent, since this connection is plain text over a network"};
  auto& builder = shared_->new_request();
  const auto identity = builder.CreateString(shared_->config.identity);
  flatbuffers::Offset<flatbuffers::String> secret;
  if (!token.empty()) secret = builder.CreateString(token.text().data(), token.text().size());
  builder.Finish(wire::CreateHelloRequest(builder, kWireVersion, kWireVersion, identity, secret));
  send_frame(FrameType::kHello, 1, builder);
  if (!token.empty()) ::explicit_bzero(builder.GetBufferPointer(), builder.GetSize());
  return {};
}

asio::awaitable<void> LinkSession::write_loop(std::shared_ptr<LinkSession> self) {
  // The reader detects a broken stream: it may still hold the node's last frames.
  co_await self->writer_.run();
}

asio::awaitable<void> LinkSession::read_loop(std::shared_ptr<LinkSession> self) {
  co_await self->read_frames();
  if (self->state_ == State::kDraining) co_await self->drain_stream();
}

/// After any co_await the session may have ended, by a deadline, a lane or its link: has_stopped() follows each. Frames
/// are handled here, one at a time, so their handlers need no lock.
asio::awaitable<void> LinkSession::read_frames() {
  while (!has_stopped()) {
    auto frame = co_await reader_.next();
    if (has_stopped()) co_return;
    if (!frame) {
      const error_code why = frame.error();
      // A stream that ends within a frame means a dead node, not a malformed frame.
      if (why.category() == errc_category() && !stream_has_ended()) {
        end(Errc::kBadFrame, reader_.why(), Node::kMayWrite);
      } else {
        end(Errc::kUnavailable, "connection lost: " + why.message(), Node::kHasClosed);
      }
      co_return;
    }
    payload_.begin_frame();
    if (!dispatch(*frame)) {
      end(Errc::kBadFrame, violation_, Node::kMayWrite);
      co_return;
    }
    if (has_stopped()) co_return;
    if (turn_bytes_ >= kBytesPerTurn) {
      turn_bytes_ = 0;
      co_await asio::post(shared_->executor, asio::use_awaitable);
      if (has_stopped()) co_return;
    }
    if (frame->header.payload_bytes == 0) continue;
    Result<void> payload;
    if (payload_.is_landing()) {
      payload = co_await reader_.read_payload(payload_.sink());
    } else {
      payload = co_await reader_.skip_payload();
    }
    if (has_stopped()) co_return;
    if (!payload) {
      end(Errc::kUnavailable, "connection lost: " + payload.error().message(), Node::kHasClosed);
      co_return;
    }
    payload_.arrived();
  }
}

/// Tells a node that died within a frame from one that sent a bad frame: behind the former the stream has ended.
bool LinkSession::stream_has_ended() {
  std::byte byte;
  const asio::mutable_buffer buffer(&byte, 1);
  const auto got = stream_->try_read(std::span(&buffer, 1));
  return !got && got.error() != asio::error::would_block;
}

/// After a violation, while the node may still copy into lent memory: waits for the end of the stream.
asio::awaitable<void> LinkSession::drain_stream() {
  std::array<std::byte, 4096> scratch;
  const std::array<asio::mutable_buffer, 1> buffers{asio::buffer(scratch)};
  while (state_ == State::kDraining) {
    const auto got = stream_->try_read(buffers);
    if (got) continue;
    if (got.error() != asio::error::would_block) break;
    const auto readable = co_await stream_->wait_readable();
    if (!readable) break;
  }
  if (state_ != State::kDraining) co_return;  // close() came first: quarantines last until the memory is freed
  state_ = State::kEnded;
  requests_.free_all();
  stream_->close();
}

// -- frames in

bool LinkSession::violation(std::string what) {
  violation_ = std::move(what);
  return false;
}

/// False: the node has broken the protocol, as violation_ describes. The session then ends; a faulty peer cannot be
/// trusted with memory that it may write.
bool LinkSession::dispatch(const FrameReader::Frame& frame) {
  const FrameHeader& header = frame.header;
  if ((header.flags & kFrameResponse) == 0) return violation("a frame that is no response");
  const bool is_error = (header.flags & kFrameError) != 0, more = (header.flags & kFrameMore) != 0;
  if (is_error && more) return violation("an error that is not the last frame");
  if (!more && header.payload_bytes > 0) return violation("a last frame with a payload");
  const LinkRequests::Entry* const entry = requests_.find(header.request_id);
  if (is_error) return on_error_frame(frame, entry);
  if (state_ == State::kHello) return on_hello(frame);
  if (entry == nullptr) return violation("unknown request id " + std::to_string(header.request_id));
  if (header.type != entry->type) return violation(std::string("an answer of type ") + frame_type_name(header.type));
  if (more) return entry->call == nullptr || on_part(frame, *entry->call);  // or its payload is swallowed
  if (entry->call != nullptr) {
    std::string what = entry->call->last_came(frame);
    if (!what.empty()) return violation(std::move(what));
  }
  answered(*entry, {}, {});
  return true;
}

bool LinkSession::on_part(const FrameReader::Frame& frame, Call& call) {
  std::string what = call.part_came(frame);
  if (what.empty()) what = payload_.begin_payload(call, frame.header.payload_bytes);
  return what.empty() || violation(std::move(what));
}

/// The last frame of a request came, and is valid.
void LinkSession::answered(const LinkRequests::Entry& entry, error_code why, std::string text) {
  Call* const call = entry.call;
  requests_.free(entry);  // before the call's end, which may start the next call
  if (call != nullptr) call->end(why, std::move(text), /*is_answered=*/true);
  if (listener_ != nullptr) listener_->pump();
  close_if_retired();
}

bool LinkSession::on_error_frame(const FrameReader::Frame& frame, const LinkRequests::Entry* entry) {
  const auto* error = read_table<wire::Error>(frame.table);
  if (error == nullptr || error->code() == 0) return violation("an error frame without an error");
  if (error->code() >= kErrcLocal) return violation("error " + std::to_string(error->code()) + " is no node's");
  const error_code why = make_error_code(static_cast<Errc>(error->code()));
  std::string text = error->message() == nullptr ? why.message() : error->message()->str().substr(0, kErrorTextMax);
  if (entry == nullptr) {  // About the whole session, which the node now closes.
    end(is_up() ? make_error_code(Errc::kUnavailable) : why, std::move(text), Node::kMayWrite);
    return true;
  }
  if (frame.header.type != entry->type) return violation("an error of another type");
  cut_lanes(error->broken_lanes());  // before its memory is free
  answered(*entry, why, std::move(text));
  return true;
}

bool LinkSession::on_hello(const FrameReader::Frame& frame) {
  if (frame.header.type != FrameType::kHello || (frame.header.flags & kFrameMore) != 0) {
    return violation("the first frame is no hello");
  }
  std::string what = read_hello(frame.table, &terms_);
  if (what.empty()) what = listener_->refuses(terms_);
  if (!what.empty()) return violation(std::move(what));
  if (terms_.lanes_max > 0 && !stream_->can_pass_descriptors() && shared_->config.rdma != ClientConfig::Rdma::kOff) {
    const auto messages = terms_.has_messages ? static_cast<std::uint32_t>(shared_->config.rdma_messages) : 0;
    lanes_ = std::make_unique<LinkLanes>(*this, terms_.lanes_max, messages);
    regions_.set_lanes(lanes_.get());
  }
  reader_.set_limits({.table_bytes_max = kTableBytesMax, .payload_bytes_max = kPayloadBytesMax});
  state_ = State::kUp;
  listener_->session_up(*this);
  return true;
}

/// All frames of one answer. They are unordered relative to a payload arriving by the stream.
void LinkSession::message_came(std::span<const std::byte> message) {
  const auto self = shared_from_this();
  requests_.message_came();
  message_bytes_ += message.size();
  if (message.empty()) return end(Errc::kBadFrame, "by SEND: nothing", Node::kMayWrite);
  while (!message.empty() && !has_stopped()) {
    const auto frame = take_frame(message);
    if (!frame) return end(Errc::kBadFrame, "by SEND: " + frame.error().text, Node::kMayWrite);
    if (!dispatch_message(*frame)) return end(Errc::kBadFrame, violation_, Node::kMayWrite);
  }
}

bool LinkSession::dispatch_message(const FrameReader::Frame& frame) {
  const FrameHeader& header = frame.header;
  const LinkRequests::Entry* const entry = requests_.find(header.request_id);
  if (entry == nullptr || !entry->is_message) {
    return violation("by SEND: an answer to request " + std::to_string(header.request_id) + ", which did not go so");
  }
  if (entry->call != nullptr && payload_.is_of(*entry->call)) {
    return violation("by SEND: a frame of an answer whose payload is arriving by the stream");
  }
  if ((header.flags & kFrameMore) == 0 || (header.flags & kFrameError) != 0) return dispatch(frame);
  if ((header.flags & kFrameResponse) == 0 || header.type != entry->type) {
    return violation("by SEND: a part of another answer");
  }
  if (entry->call == nullptr) return true;
  std::string what = entry->call->part_came(frame);  // its bytes are in lent memory
  return what.empty() || violation(std::move(what));
}

void LinkSession::messages_broke(error_code why) {
  lost_messages_ = true;
  give_up("the lane for messages broke: " + why.message());
}

// -- requests out

/// A call that cannot be sent ends at once, after its entry is released, because its end may start the next call.
void LinkSession::send_call(Call& call) {
  KV_ASSERT(can_take_call());
  const std::uint64_t id = take_entry(call.type, &call, call.data_bytes + kCallLoadBytes);
  const error_code error = call.send_on(*this, id, call.space == Call::kNoSpace ? 0 : spaces_.handle(call.space));
  if (error) {
    requests_.free(*requests_.find(id));
    call.end(error);
    return;
  }
  flush_soon();
}

void LinkSession::start_own(Call& call, Duration limit) {
  KV_ASSERT(can_take_call() && listener_ != nullptr);
  call.begin(*listener_);
  shared_->deadlines.add(call, shared_->clock.now() + limit);
  send_call(call);
}

void LinkSession::send_and_forget(FrameType type, const flatbuffers::FlatBufferBuilder& builder) {
  if (!can_take_call()) return;
  send_frame(type, take_entry(type, nullptr, kCallLoadBytes), builder);
  flush_soon();
}

void LinkSession::send_frame(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                             int fd) {
  KV_ASSERT(fd < 0 || stream_->can_pass_descriptors());
  writer_.send(header_of(type, request_id), table_of(builder), {}, nullptr, fd);
}

void LinkSession::send_lent(FrameType type, const Call& lender, const flatbuffers::FlatBufferBuilder& builder,
                            std::span<const std::span<const std::byte>> payload, std::function<void(bool)> done) {
  writer_.send(header_of(type, lender.request_id()), table_of(builder), payload, std::move(done), /*fd=*/-1,
               OwnerId(&lender));
}

bool LinkSession::take_back(const Call& lender, std::size_t bytes_max) {
  return writer_.take_back(OwnerId(&lender), bytes_max);
}

/// By SEND if the message lane has room and the answer will fit a message; else through the socket. Also through the
/// socket while an earlier message is late: the lane may be dead, which only its timeout shows.
void LinkSession::send_small(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                             std::size_t answer_bytes) {
  if (lanes_ && !requests_.messages_are_late() && requests_.message_count() < lanes_->message_count() &&
      answer_bytes <= kMessageBytesMax && message_frame_bytes(builder.GetSize()) <= kMessageBytesMax) {
    message_.clear();
    append_frame(message_, header_of(type, request_id), table_of(builder));
    KV_ASSERT(message_.size() <= kMessageBytesMax);  // before it is posted
    if (lanes_->send_message(message_)) return requests_.went_by_send(*requests_.find(request_id));
  }
  send_frame(type, request_id, builder);
}

void LinkSession::send_cancel(std::uint64_t request_id) {
  auto& builder = shared_->new_request();
  builder.Finish(wire::CreateCancelRequest(builder, request_id));
  send_frame(FrameType::kCancel, request_id, builder);
  flush_soon();
}

/// One system call for all requests of one turn of the executor; but a lone transfer goes at once.
void LinkSession::flush_soon() {
  if (requests_.in_flight() == 1 && requests_.load_bytes() > kCallLoadBytes) {
    writer_.flush();
  } else if (!flush_posted_) {
    flush_posted_ = true;
    asio::post(shared_->executor, [self = shared_from_this()] {
      self->flush_posted_ = false;
      self->writer_.flush();
    });
  }
}

std::uint64_t LinkSession::take_entry(FrameType type, Call* call, std::size_t load_bytes) {
  if (requests_.in_flight() == 0) silence_.begin(shared_->clock.now(), bytes_received());
  return requests_.take(type, call, load_bytes);
}

// -- calls that leave early

/// The caller gets its answer now, at its deadline or on giving up. The request stays without a call: until the node
/// answers, the memory that it may still write is quarantined.
void LinkSession::abandon(Call& call, error_code why) {
  const std::uint64_t id = call.request_id();
  const LinkRequests::Entry* const entry = requests_.find(id);
  KV_ASSERT(entry != nullptr && entry->call == &call);
  if (payload_.is_of(call)) payload_.stop();
  requests_.abandon(*entry, call.destinations_left());
  send_cancel(id);

  const bool nothing_came = silence_.look(shared_->clock.now(), bytes_received(), shared_->config.connect_timeout);
  // A verbs_connect may take the node long: it waits for the network.
  const bool is_silent = nothing_came && call.type != FrameType::kVerbsConnect;
  const auto self = shared_from_this();  // the call's end may close this session
  call.end(why);
  if (is_silent && listener_ != nullptr) listener_->session_silent(*this);
  close_if_retired();
}

void LinkSession::forget(Call& call) {
  payload_.forget(call);
  const LinkRequests::Entry* const entry = requests_.find(call.request_id());
  // Destructors must not throw, and an end cut short by an exception may have abandoned the call already.
  if (entry != nullptr && entry->call == &call) requests_.let_go(*entry);
}

// -- the end

void LinkSession::close() {
  listener_ = nullptr;
  end(Errc::kUnavailable, "closed", Node::kMayWrite);
  state_ = State::kEnded;
  stream_->close();
}

/// In this order: sending stops; lanes are cut, so that devices stop writing; calls leave, with quarantines on memory
/// that the node may still write; the link is notified; last the calls end, which may start new ones elsewhere.
void LinkSession::end(error_code why, std::string text, Node node) {
  if (has_stopped()) return;
  const auto self = shared_from_this();
  state_ = State::kDraining;  // until quarantines are known; refuses calls from here on
  // When the message lane breaks the node ends the session too, perhaps before this side notices.
  lost_messages_ = lost_messages_ || requests_.message_count() > 0;
  writer_.close();
  regions_.set_lanes(nullptr);
  const std::unique_ptr<LinkLanes> lanes = std::move(lanes_);
  if (lanes) {  // stops all writing, whether the node has closed or not
    lanes->cut_all();
    node = Node::kHasClosed;
  }
  payload_.stop();
  std::vector<Call*> calls;
  requests_.for_each([&](const LinkRequests::Entry& entry) {
    if (entry.call == nullptr) return;
    calls.push_back(entry.call);
    requests_.abandon(
        entry, node == Node::kHasClosed ? std::vector<std::span<const std::byte>>() : entry.call->destinations_left());
  });
  if (node == Node::kHasClosed) requests_.free_all();
  if (requests_.quarantine_count() == 0) {
    state_ = State::kEnded;
    stream_->close();
  }
  if (lost_messages_ && listener_ != nullptr) listener_->messages_broke();
  if (Listener* const listener = std::exchange(listener_, nullptr)) {
    listener->session_ended(*this, why, std::move(text));  // 3
  }
  for (Call* const call : calls) call->end(why);
}

/// The node has restarted, and this session is of its former life: refuses calls, and closes when it is idle.
void LinkSession::retire() {
  is_retired_ = true;
  close_if_retired();
}

void LinkSession::close_if_retired() {
  if (!is_retired_ || has_stopped() || requests_.call_count() > 0) return;
  // Memory that the node may still write must stay quarantined here; but lanes can be cut.
  if (requests_.quarantine_count() > 0 && !lanes_) return;
  Listener* const listener = listener_;
  const auto self = shared_from_this();
  close();
  if (listener != nullptr) listener->retired_ended(*this);
}

// -- namespaces and lent memory

void LinkSession::open_ended(std::uint32_t space, error_code why, const std::string& text) {
  if (listener_ != nullptr) listener_->open_ended(space, why, text);
}

void LinkSession::lend_ended() {
  if (listener_ != nullptr) listener_->pump();
}

std::string LinkSession::lanes_why() const {
  if (lanes_) return lanes_->why();
  if (shared_->config.rdma == ClientConfig::Rdma::kOff) return "rdma is off in this client's configuration";
  if (stream_->can_pass_descriptors()) return "over a Unix socket memory is shared instead";
  return "the node offers no RDMA; its log says why";
}

}  // namespace kv
