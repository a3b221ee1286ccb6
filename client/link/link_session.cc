#include "client/link/link_session.h"

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "client/link/node_link.h"
#include "transport/frame_message.h"

namespace kv {
namespace {

constexpr std::uint32_t kTableBytesMax = 32 << 20;  // The largest answer: stats of 1024 namespaces of 16 KiB records.
constexpr std::uint64_t kPayloadBytesMax = 1ull
                                           << 40;  // Of a swallowed payload; a wanted one is as long as its targets.
constexpr std::size_t kErrorTextMax = 512;
constexpr std::size_t kBytesPerTurn = 2 << 20;
constexpr std::size_t kOpenOverheadBytes = 64;  // Of an OpenRequest, besides the record.
constexpr std::size_t kCallLoadBytes = 4096;    // What a call counts besides its data when sessions are compared.

std::uint64_t random_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace

ClientShared::ClientShared(asio::any_io_executor e, ClientConfig c, Network& n, Clock& k, verbs::Provider* v)
    : executor(std::move(e)),
      config(std::move(c)),
      network(n),
      clock(k),
      deadlines(k, executor),
      memory(config.region_bytes_max),
      verbs(executor, k, {.names = config.rdma_devices, .traffic_class = config.rdma_traffic_class}, v),
      random(config.seed != 0 ? config.seed : random_seed()) {}

ClientShared::~ClientShared() = default;

// -- Call

Call::~Call() {
  if (session_ != nullptr) {
    session_->forget(*this);
  } else if (!ended && link_ != nullptr) {
    link_->unqueue(*this);
  }
}

std::string Call::on_more(LinkSession&, const FrameReader::Frame& frame) {
  return std::string("a partial answer to ") + frame_type_name(frame.header.type);
}

void Call::on_deadline() {
  if (session_ != nullptr) {
    LinkSession* const session = session_;
    session->abandon(*this);
  } else {
    end(asio::error::timed_out);
  }
}

void Call::end(error_code why) {
  KV_ASSERT(!ended);
  LinkSession* const session = std::exchange(session_, nullptr);
  if (session != nullptr) on_leave(*session);  // before another session has the call
  if (link_ != nullptr && link_->retry(*this, why, session)) return;
  if (is_linked()) unlink();  // from the deadlines
  error = why;
  ended = true;
  if (link_ != nullptr) link_->call_ended(*this);
  if (group != nullptr) {
    --group->running;
    group->event.set();
  }
  on_end(session);
}

std::uint64_t Call::space_check() const { return namespace_check(session_->shared().spaces[space]->id); }

// -- LinkSession

/// Opens a namespace on the session's node.
class LinkSession::Open final : public Call {
 public:
  Open(LinkSession& session, OpenedSpace& opened) : session_of_(session), opened_(opened) { type = FrameType::kOpen; }

 private:
  error_code send(LinkSession& session) override;
  std::string on_last(const FrameReader::Frame& frame) override;
  void on_end(LinkSession* session) override;

  LinkSession& session_of_;
  OpenedSpace& opened_;
};

struct LinkSession::OpenedSpace {
  OpenedSpace(LinkSession& session, std::uint32_t s) : space(s), open(session, *this) {}
  const std::uint32_t space;
  Opened state = Opened::kNo;
  std::uint32_t handle = 0;
  error_code mismatch;   ///< What is wrong with the node's answer.
  TimePoint retry_at{};  ///< After a failure; unless there is no other way.
  Open open;
};

/// Lends a region to the session's node.
class LinkSession::RegionAdd final : public Call {
 public:
  RegionAdd(LinkSession& session, LentRegion& lent) : session_of_(session), lent_(lent) {
    type = FrameType::kRegionAdd;
  }

 private:
  error_code send(LinkSession& session) override;
  std::string on_last(const FrameReader::Frame& frame) override;
  void on_end(LinkSession* session) override;

  LinkSession& session_of_;
  LentRegion& lent_;
};

struct LinkSession::LentRegion {
  std::shared_ptr<LentMemory::Region> region;  ///< Null: freed while it was pending.
  std::size_t bytes = 0;
  Lent state = Lent::kPending;
  std::uint32_t handle = 0;
  TimePoint retry_at = TimePoint::max();  ///< If refused.
  std::unique_ptr<RegionAdd> add;
};

error_code LinkSession::RegionAdd::send(LinkSession& session) {
  auto& builder = session.shared().builder;
  builder.Clear();
  const LentMemory::Region& lent = *lent_.region;
  if (session.stream_->can_pass_descriptors()) {
    builder.Finish(wire::CreateRegionAddRequest(builder, lent.bytes().size()));
    session.send_frame(FrameType::kRegionAdd, request_id(), builder, {}, nullptr, lent.memory->fd());
    return {};
  }
  const verbs::RegisteredMemory& memory = session.shared_->verbs.registered(lent);
  std::vector<flatbuffers::Offset<wire::RegionSlice>> slices;
  for (std::size_t slice = 0; slice < memory.slice_count(); ++slice) {
    const auto rkeys = session.lanes_->rkeys(memory, slice);
    const auto bytes = memory.within_slice(memory.memory().data() + slice * memory.slice_bytes(), memory.slice_bytes());
    slices.push_back(
        wire::CreateRegionSliceDirect(builder, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size(), &rkeys));
  }
  builder.Finish(wire::CreateRegionAddRequestDirect(builder, lent.bytes().size(), &slices));
  if (builder.GetSize() > session.table_bytes_max()) return Errc::kTooLarge;
  session.send_frame(FrameType::kRegionAdd, request_id(), builder);
  return {};
}

error_code LinkSession::Open::send(LinkSession& session) {
  const NamespaceRecord& record = session.shared().spaces[opened_.space]->record;
  auto& builder = session.shared().builder;
  builder.Clear();
  builder.Finish(wire::CreateOpenRequest(builder, builder.CreateString(record.text())));
  session.send_frame(FrameType::kOpen, request_id(), builder);
  return {};
}

std::string LinkSession::Open::on_last(const FrameReader::Frame& frame) {
  const auto* response = read_table<wire::OpenResponse>(frame.table);
  if (response == nullptr) return "open: malformed";
  const ClientShared::SpaceInfo& asked = *session_of_.shared_->spaces[opened_.space];
  opened_.mismatch = {};
  if (response->block_bytes() != asked.record.block_bytes()) opened_.mismatch = Errc::kMismatch;
  if (session_of_.version_ >= 2) {  // the node has read the record as it was meant
    const auto* name = response->namespace_id();
    if (name == nullptr || name->size() != asked.id.bytes.size()) return "open: no namespace_id";
    if (std::memcmp(name->data(), asked.id.bytes.data(), asked.id.bytes.size()) != 0)
      opened_.mismatch = Errc::kMismatch;
  }
  opened_.handle = response->space();
  return {};
}

void LinkSession::Open::on_end(LinkSession*) {
  const error_code why = error ? error : opened_.mismatch;
  opened_.state = why ? Opened::kNo : Opened::kYes;
  if (why) opened_.retry_at = session_of_.shared_->clock.now() + session_of_.shared_->config.backoff_max;
  if (session_of_.link_ != nullptr) session_of_.link_->open_ended(opened_.space, why, error_text);
}

std::string LinkSession::RegionAdd::on_last(const FrameReader::Frame& frame) {
  const auto* response = read_table<wire::RegionResponse>(frame.table);
  if (response == nullptr || response->region() == 0) return "region_add: no region handle";
  lent_.handle = response->region();
  return {};
}

void LinkSession::RegionAdd::on_end(LinkSession* session) {
  lent_.state = !error && session != nullptr ? Lent::kYes : Lent::kRefused;
  if (lent_.state == Lent::kRefused) {
    session_of_.lent_bytes_ -= lent_.bytes;
    const bool may_pass = error == asio::error::timed_out || error == Errc::kBusy || error == Errc::kUnavailable;
    if (may_pass) lent_.retry_at = session_of_.shared_->clock.now() + session_of_.shared_->config.backoff_max;
  } else if (!lent_.region) {
    session_of_.remove_region(lent_);
  }
  if (session_of_.link_ != nullptr) session_of_.link_->pump();
}

LinkSession::LinkSession(std::shared_ptr<ClientShared> shared, NodeLink& link, std::unique_ptr<Stream> stream)
    : shared_(std::move(shared)),
      link_(&link),
      stream_(std::move(stream)),
      reader_(*stream_),
      writer_(*stream_, shared_->executor) {}

LinkSession::~LinkSession() = default;

void LinkSession::start() {
  auto& builder = shared_->builder;
  builder.Clear();
  builder.Finish(
      wire::CreateHelloRequest(builder, kWireVersionMin, kWireVersion, builder.CreateString(shared_->config.identity)));
  send_frame(FrameType::kHello, 1, builder);
  writer_.flush();
  // An exception here is a bug (an assertion that throws, see AssertPolicy) or no memory: this session ends, others go
  // on.
  const auto failed = [self = shared_from_this()](std::exception_ptr exception) {
    if (!exception) return;
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& e) {
      self->end(Errc::kBadFrame, std::string("internal error: ") + e.what(), /*node_closed=*/false);
      self->stream_->close();
    }
  };
  asio::co_spawn(shared_->executor, read_loop(shared_from_this()), failed);
  asio::co_spawn(shared_->executor, write_loop(shared_from_this()), failed);
}

void LinkSession::close() {
  link_ = nullptr;
  end(Errc::kUnavailable, "closed", /*node_closed=*/false);
  draining_ = false;
  stream_->close();
}

asio::awaitable<void> LinkSession::write_loop(std::shared_ptr<LinkSession> self) {
  // A broken stream is left to the reader to notice: the node's last words may still be there.
  co_await self->writer_.run();
}

asio::awaitable<void> LinkSession::read_loop(std::shared_ptr<LinkSession> self) {
  co_await self->read_frames();
  if (self->draining_) co_await self->drain_stream();
}

asio::awaitable<void> LinkSession::read_frames() {
  while (!ended_) {
    auto frame = co_await reader_.next();
    if (ended_) co_return;
    if (!frame) {
      const error_code why = frame.error();
      // A stream that ends within a frame is a node that died, not one that talks nonsense.
      const bool is_violation = why.category() == errc_category() && !stream_has_ended();
      end(is_violation ? make_error_code(Errc::kBadFrame) : make_error_code(Errc::kUnavailable),
          is_violation ? reader_.why() : "connection lost: " + why.message(), !is_violation);
      co_return;
    }
    landing_ = swallowing_ = false;
    if (!dispatch(*frame)) {
      end(Errc::kBadFrame, violation_, /*node_closed=*/false);
      co_return;
    }
    if (ended_) co_return;
    if (turn_bytes_ >= kBytesPerTurn) {
      turn_bytes_ = 0;
      co_await asio::post(shared_->executor, asio::use_awaitable);
      if (ended_) co_return;
    }
    if (frame->header.payload_bytes == 0) continue;
    Result<void> payload;
    if (landing_) {
      payload = co_await reader_.read_payload(*sink_);
    } else {
      payload = co_await reader_.skip_payload();
    }
    if (ended_) co_return;
    if (!payload) {
      end(Errc::kUnavailable, "connection lost: " + payload.error().message(), /*node_closed=*/true);
      co_return;
    }
    if (Call* const call = std::exchange(payload_call_, nullptr)) call->on_payload(*sink_);
  }
}

bool LinkSession::stream_has_ended() {
  std::byte byte;
  const asio::mutable_buffer buffer(&byte, 1);
  const auto got = stream_->try_read(std::span(&buffer, 1));
  return !got && got.error() != asio::error::would_block;
}

/// After a violation, while the node may still copy into lent memory: only the end of the stream is of interest.
asio::awaitable<void> LinkSession::drain_stream() {
  std::array<std::byte, 4096> scratch;
  const std::array<asio::mutable_buffer, 1> buffers{asio::buffer(scratch)};
  while (draining_) {
    const auto got = stream_->try_read(buffers);
    if (got) continue;
    if (got.error() != asio::error::would_block) break;
    const auto readable = co_await stream_->wait_readable();
    if (!readable) break;
  }
  if (!draining_) co_return;  // close() came first: the quarantines stay until the memory is freed
  draining_ = false;
  for (Slot& slot : slots_) {
    if (slot.in_use) free_slot(slot);
  }
  stream_->close();
}

bool LinkSession::violation(std::string what) {
  violation_ = std::move(what);
  return false;
}

bool LinkSession::dispatch(const FrameReader::Frame& frame) {
  const FrameHeader& header = frame.header;
  if ((header.flags & kFrameResponse) == 0) return violation("a frame that is no response");
  const bool is_error = (header.flags & kFrameError) != 0, more = (header.flags & kFrameMore) != 0;
  if (is_error && more) return violation("an error that is not the last frame");
  if (!more && header.payload_bytes > 0) return violation("a last frame with a payload");
  Slot* const slot = find_slot(header.request_id);
  if (is_error) return on_error_frame(frame, slot);
  if (!is_up_) return on_hello(frame);
  if (slot == nullptr) return violation("unknown request id " + std::to_string(header.request_id));
  if (header.type != slot->type) return violation(std::string("an answer of type ") + frame_type_name(header.type));

  if (more) return slot->call == nullptr || begin_payload(frame, *slot->call);  // or it is swallowed

  Call* const call = slot->call;
  if (call != nullptr) {
    std::string what = call->on_last(frame);
    if (!what.empty()) return violation(std::move(what));
  }
  free_slot(*slot);
  if (call != nullptr) {
    call->answered_ = true;
    call->end({});
  }
  if (link_ != nullptr) link_->pump();
  close_if_retired();
  return true;
}

bool LinkSession::begin_payload(const FrameReader::Frame& frame, Call& call) {
  const std::uint64_t payload_bytes = frame.header.payload_bytes;
  targets_.clear();
  call.has_begun_ = true;
  std::string what = call.on_more(*this, frame);
  if (!what.empty()) return violation(std::move(what));
  std::uint64_t wanted_bytes = 0;
  for (const BlockTarget& target : targets_) wanted_bytes += target.bytes.size();
  if (swallowing_) return true;
  if (payload_bytes != (landing_ ? wanted_bytes : 0)) {
    return violation("payload of " + std::to_string(payload_bytes) + " bytes, not " +
                     std::to_string(landing_ ? wanted_bytes : 0));
  }
  if (landing_ && wanted_bytes > 0) {
    sink_.emplace(targets_);
    payload_call_ = &call;
  }
  return true;
}

/// All frames of one answer. Between them and a payload that is arriving by the stream there is no order.
void LinkSession::on_message(std::span<const std::byte> message) {
  const auto self = shared_from_this();
  messages_are_late_ = false;
  message_bytes_ += message.size();
  if (message.empty()) return end(Errc::kBadFrame, "by SEND: nothing", /*node_closed=*/false);
  while (!message.empty() && !ended_) {
    std::string why;
    const auto frame = take_frame(message, &why);
    if (!frame) return end(Errc::kBadFrame, "by SEND: " + why, /*node_closed=*/false);
    const Slot* const slot = find_slot(frame->header.request_id);
    bool is_good = false;
    if (slot == nullptr || !slot->is_message) {
      violation("by SEND: an answer to request " + std::to_string(frame->header.request_id) + ", which did not go so");
    } else if (slot->call != nullptr && slot->call == payload_call_) {
      violation("by SEND: a frame of an answer whose payload is arriving by the stream");
    } else if ((frame->header.flags & kFrameMore) == 0 || (frame->header.flags & kFrameError) != 0) {
      is_good = dispatch(*frame);
    } else if ((frame->header.flags & kFrameResponse) == 0 || frame->header.type != slot->type) {
      violation("by SEND: a part of another answer");
    } else {  // its bytes are in lent memory
      if (slot->call != nullptr) slot->call->has_begun_ = true;
      std::string what = slot->call == nullptr ? "" : slot->call->on_more(*this, *frame);
      is_good = what.empty() || violation(std::move(what));
    }
    if (!is_good) return end(Errc::kBadFrame, violation_, /*node_closed=*/false);
  }
}

void LinkSession::messages_broke(error_code why) {
  lost_messages_ = true;
  give_up("the lane for messages broke: " + why.message());
}

bool LinkSession::may_try_messages() const { return link_ != nullptr && link_->may_try_messages(); }

bool LinkSession::on_error_frame(const FrameReader::Frame& frame, Slot* slot) {
  const auto* error = read_table<wire::Error>(frame.table);
  if (error == nullptr || error->code() == 0) return violation("an error frame without an error");
  if (error->code() >= kErrcLocal) return violation("error " + std::to_string(error->code()) + " is no node's");
  const error_code why = make_error_code(static_cast<Errc>(error->code()));
  std::string text = error->message() == nullptr ? why.message() : error->message()->str().substr(0, kErrorTextMax);
  if (slot == nullptr) {  // About the session as a whole; the node closes it now.
    end(is_up_ ? make_error_code(Errc::kUnavailable) : why, std::move(text), /*node_closed=*/false);
    return true;
  }
  if (frame.header.type != slot->type) return violation("an error of another type");
  cut_lanes(error->broken_lanes());  // before its memory is free
  Call* const call = slot->call;
  free_slot(*slot);
  if (call != nullptr) {
    call->error_text = std::move(text);
    call->answered_ = true;
    call->end(why);
  }
  if (link_ != nullptr) link_->pump();
  close_if_retired();
  return true;
}

bool LinkSession::on_hello(const FrameReader::Frame& frame) {
  if (frame.header.type != FrameType::kHello || (frame.header.flags & kFrameMore) != 0) {
    return violation("the first frame is no hello");
  }
  const auto* hello = read_table<wire::HelloResponse>(frame.table);
  if (hello == nullptr) return violation("hello: malformed");
  if (hello->version() < kWireVersionMin || hello->version() > kWireVersion) {
    return violation("hello: version " + std::to_string(hello->version()) + " was not offered");
  }
  if (hello->node_id() == nullptr || hello->node_id()->size() == 0 || hello->node_id()->size() > 256) {
    return violation("hello: node_id must be 1 to 256 bytes");
  }
  if (hello->table_bytes_max() < 4096 || hello->chain_blocks_max() == 0 || hello->requests_max() == 0) {
    return violation("hello: a limit is too small");
  }
  version_ = hello->version();
  node_id_ = hello->node_id()->str();
  if (version_ >= 2) {
    const auto* instance = hello->instance();
    if (instance == nullptr || instance->size() != instance_.size())
      return violation("hello: instance must be 16 bytes");
    std::memcpy(instance_.data(), instance->data(), instance_.size());
  }
  table_bytes_max_ = hello->table_bytes_max();
  chain_blocks_max_ = hello->chain_blocks_max();
  requests_max_ = std::min<std::uint32_t>(hello->requests_max(), 0xFFFF);
  region_bytes_max_ = hello->region_bytes_max();
  if ((hello->features() & kFeatureVerbs) != 0 && hello->lanes_max() > 0 && !stream_->can_pass_descriptors() &&
      shared_->config.rdma != ClientConfig::Rdma::kOff) {
    const bool has_messages = (hello->features() & kFeatureMessages) != 0;
    lanes_ = std::make_unique<LinkLanes>(shared_, *this, std::min<std::uint32_t>(hello->lanes_max(), 32),
                                         has_messages ? static_cast<std::uint32_t>(shared_->config.rdma_messages) : 0);
  }
  reader_.set_limits({.table_bytes_max = kTableBytesMax, .payload_bytes_max = kPayloadBytesMax});
  is_up_ = true;
  link_->session_up(*this);
  return true;
}

// -- requests

void LinkSession::send_call(Call& call) {
  KV_ASSERT(can_take_call() && !call.ended && call.session_ == nullptr);
  call.session_ = this;
  call.has_begun_ = false;
  call.request_id_ = take_slot(call.type, &call, call.data_bytes + kCallLoadBytes);
  const error_code error = call.send(*this);
  if (error) {
    free_slot(*find_slot(call.request_id_));
    call.session_ = nullptr;
    call.end(error);
    return;
  }
  flush_soon();
}

void LinkSession::send_and_forget(FrameType type, flatbuffers::FlatBufferBuilder& builder) {
  if (!can_take_call()) return;
  send_frame(type, take_slot(type, nullptr, kCallLoadBytes), builder);
  flush_soon();
}

void LinkSession::send_frame(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                             std::span<const std::span<const std::byte>> payload, std::function<void(bool)> done,
                             int fd, const void* owner) {
  FrameHeader header;
  header.type = type;
  header.request_id = request_id;
  const std::span<const std::byte> table(reinterpret_cast<const std::byte*>(builder.GetBufferPointer()),
                                         builder.GetSize());
  writer_.send(header, table, payload, std::move(done), fd, owner);
}

void LinkSession::send_small(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                             std::size_t answer_bytes) {
  if (lanes_ && !messages_are_late_ && message_count_ < lanes_->message_count() && answer_bytes <= kMessageBytesMax &&
      message_frame_bytes(builder.GetSize()) <= kMessageBytesMax) {
    message_.clear();
    append_frame(message_, {.type = type, .request_id = request_id},
                 std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())));
    if (lanes_->send_message(message_)) {
      find_slot(request_id)->is_message = true;
      ++message_count_;
      return;
    }
  }
  send_frame(type, request_id, builder);
}

std::vector<BlockTarget>& LinkSession::land() {
  landing_ = true;
  return targets_;
}

/// One system call for all requests of one turn of the executor; but a request that is alone goes at once.
void LinkSession::flush_soon() {
  if (in_flight_ == 1) {
    writer_.flush();
  } else if (!flush_posted_) {
    flush_posted_ = true;
    asio::post(shared_->executor, [self = shared_from_this()] {
      self->flush_posted_ = false;
      self->writer_.flush();
    });
  }
}

void LinkSession::abandon(Call& call) {
  const std::uint64_t id = call.request_id_;
  Slot& slot = *find_slot(id);
  if (payload_call_ == &call) {
    sink_->cancel();
    call.on_payload(*sink_);
    payload_call_ = nullptr;
  }
  auto ranges = call.unfinished_destinations();
  if (!ranges.empty()) {
    slot.quarantine = shared_->memory.quarantine(std::move(ranges));
    ++quarantine_count_;
  }
  slot.call = nullptr;
  --active_;
  messages_are_late_ = messages_are_late_ || slot.is_message;

  send_cancel(id);

  const TimePoint now = shared_->clock.now();
  // A node may be long at a verbs_connect: it waits for the network, not for us.
  const bool silent = call.type != FrameType::kVerbsConnect && is_silent(now, shared_->config.connect_timeout);
  if (bytes_received() != bytes_seen_) {
    bytes_seen_ = bytes_received();
    quiet_since_ = now;
  }
  const auto self = shared_from_this();  // the call's end may close this session
  call.end(asio::error::timed_out);
  if (silent && link_ != nullptr) link_->retire(*this);
  close_if_retired();
}

void LinkSession::send_cancel(std::uint64_t request_id) {
  auto& builder = shared_->builder;
  builder.Clear();
  builder.Finish(wire::CreateCancelRequest(builder, request_id));
  send_frame(FrameType::kCancel, request_id, builder);
  flush_soon();
}

void LinkSession::forget(Call& call) {
  if (payload_call_ == &call) {
    sink_->cancel();
    payload_call_ = nullptr;
  }
  find_slot(call.request_id_)->call = nullptr;
  --active_;
}

std::uint64_t LinkSession::take_slot(FrameType type, Call* call, std::size_t load_bytes) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  ++slot.generation;
  slot.in_use = true;
  slot.type = type;
  slot.call = call;
  slot.load_bytes = load_bytes;
  slot.is_message = false;
  if (in_flight_++ == 0) {
    quiet_since_ = shared_->clock.now();
    bytes_seen_ = bytes_received();
  }
  if (call != nullptr) ++active_;
  load_bytes_ += load_bytes;
  return (std::uint64_t{slot.generation} << 32) | index;
}

LinkSession::Slot* LinkSession::find_slot(std::uint64_t request_id) {
  const auto index = static_cast<std::uint32_t>(request_id);
  if (index >= slots_.size()) return nullptr;
  Slot& slot = slots_[index];
  if (!slot.in_use || slot.generation != request_id >> 32) return nullptr;
  return &slot;
}

void LinkSession::free_slot(Slot& slot) {
  if (slot.call != nullptr) --active_;
  if (slot.quarantine) {
    shared_->memory.end_quarantine(*slot.quarantine);
    --quarantine_count_;
  }
  --in_flight_;
  if (slot.is_message && --message_count_ == 0) messages_are_late_ = false;  // nothing would come that tells otherwise
  load_bytes_ -= slot.load_bytes;
  slot.call = nullptr;
  slot.quarantine.reset();
  slot.in_use = false;
  free_slots_.push_back(static_cast<std::uint32_t>(&slot - slots_.data()));
}

bool LinkSession::is_silent(TimePoint now, Duration silence_max) const {
  return in_flight_ > 0 && bytes_received() == bytes_seen_ && now - quiet_since_ >= silence_max;
}

// -- the end

void LinkSession::end(error_code why, std::string text, bool node_closed) {
  if (ended_) return;
  const auto self = shared_from_this();
  ended_ = true;
  // The node ends the session too when that lane breaks, and may have been the one to notice.
  lost_messages_ = lost_messages_ || message_count_ > 0;
  writer_.close();
  const std::unique_ptr<LinkLanes> lanes = std::move(lanes_);
  if (lanes) {  // then nothing is written any more, whether the node has closed or not
    lanes->cut_all();
    node_closed = true;
  }
  if (payload_call_ != nullptr) {
    sink_->cancel();
    payload_call_->on_payload(*sink_);
    payload_call_ = nullptr;
  }
  std::vector<Call*> calls;
  for (Slot& slot : slots_) {
    if (!slot.in_use || slot.call == nullptr) continue;
    if (!node_closed) {
      auto ranges = slot.call->unfinished_destinations();
      if (!ranges.empty()) {
        slot.quarantine = shared_->memory.quarantine(std::move(ranges));
        ++quarantine_count_;
      }
    }
    calls.push_back(slot.call);
    slot.call = nullptr;
    --active_;
  }
  if (node_closed) {
    for (Slot& slot : slots_) {
      if (slot.in_use) free_slot(slot);
    }
  }
  draining_ = quarantine_count_ > 0;
  if (!draining_) stream_->close();
  if (lost_messages_ && link_ != nullptr) link_->messages_broke();
  // The link first, so that no call that is started by the end of another comes here again.
  if (NodeLink* const link = std::exchange(link_, nullptr)) link->session_ended(*this, why, std::move(text));
  for (Call* const call : calls) call->end(why);
}

void LinkSession::retire() {
  retired_ = true;
  close_if_retired();
}

void LinkSession::close_if_retired() {
  if (retired_ && !ended_ && active_ == 0 && (quarantine_count_ == 0 || lanes_)) {
    NodeLink* const link = link_;
    const auto self = shared_from_this();
    close();
    if (link != nullptr) link->retired_ended(*this);
  }
}

// -- namespaces

LinkSession::Opened LinkSession::state_of(const OpenedSpace& space) { return space.state; }

bool LinkSession::can_open(std::uint32_t space) const {
  return shared_->spaces[space]->record.text().size() + kOpenOverheadBytes <= table_bytes_max_;
}

void LinkSession::open(std::uint32_t space, bool must) {
  if (space >= spaces_.size()) spaces_.resize(shared_->spaces.size());
  auto& opened = spaces_[space];
  if (!opened) opened = std::make_unique<OpenedSpace>(*this, space);
  if (opened->state != Opened::kNo || !can_take_call() || !can_open(space)) return;
  if (!must && shared_->clock.now() < opened->retry_at) return;
  opened->state = Opened::kPending;
  start_own(opened->open, shared_->config.connect_timeout);
}

std::uint32_t LinkSession::space_handle(std::uint32_t space) const {
  KV_ASSERT(opened(space) == Opened::kYes);
  return spaces_[space]->handle;
}

bool LinkSession::forget_space(std::uint32_t space, std::optional<std::uint32_t> handle) {
  if (opened(space) != Opened::kYes || (handle && spaces_[space]->handle != *handle)) return false;
  spaces_[space]->state = Opened::kNo;
  spaces_[space]->retry_at = {};
  return true;
}

// -- lent memory

LinkSession::LentRegion* LinkSession::find_lent(const LentMemory::Region& region) const {
  const auto found = std::ranges::find_if(lent_, [&](const auto& lent) { return lent->region.get() == &region; });
  return found == lent_.end() ? nullptr : found->get();
}

LinkSession::Lent LinkSession::lend(const std::shared_ptr<LentMemory::Region>& region) {
  std::erase_if(lent_, [&](const auto& lent) {  // what was refused for a while, and what has gone
    return lent->state == Lent::kRefused && (!lent->add || lent->add->ended) &&
           (!lent->region || (lent->region == region && shared_->clock.now() >= lent->retry_at));
  });
  if (!stream_->can_pass_descriptors()) return lend_by_verbs(region);
  if (region->is_device()) return Lent::kRefused;  // it has no memfd
  if (const LentRegion* const lent = find_lent(*region)) return lent->state;
  return add_region(region);
}

std::uint32_t LinkSession::lanes_for(const LentMemory::Region& region) const {
  return lanes_ ? lanes_->reaching(shared_->verbs.registered(region)) : 0;
}

std::string LinkSession::lanes_why() const {
  if (lanes_) return lanes_->why();
  if (shared_->config.rdma == ClientConfig::Rdma::kOff) return "rdma is off in this client's configuration";
  if (stream_->can_pass_descriptors()) return "over a Unix socket memory is shared instead";
  return "the node offers no RDMA; its log says why";
}

/// Nothing is waited for: a call that finds memory not lent yet, or the lanes broken, goes inline.
LinkSession::Lent LinkSession::lend_by_verbs(const std::shared_ptr<LentMemory::Region>& region) {
  if (!lanes_) return Lent::kRefused;
  lanes_->connect_missing();
  VerbsLender& lender = shared_->verbs;
  if (lender.state() == VerbsLender::State::kUnavailable) return Lent::kRefused;
  if (lender.state() != VerbsLender::State::kReady) return Lent::kNotNow;
  const LentRegion* const lent = find_lent(*region);
  if (lent != nullptr && lent->state == Lent::kRefused) return Lent::kRefused;
  const auto registration = lender.registration(region);
  if (registration == VerbsLender::Registration::kFailed) return Lent::kRefused;
  if (registration != VerbsLender::Registration::kReady || lanes_for(*region) == 0) return Lent::kNotNow;
  const Lent state = lent != nullptr ? lent->state : add_region(region);
  return state == Lent::kPending ? Lent::kNotNow : state;
}

LinkSession::Lent LinkSession::add_region(const std::shared_ptr<LentMemory::Region>& region) {
  if (!can_take_call()) return Lent::kPending;
  auto lent = std::make_unique<LentRegion>();
  lent->region = region;
  const std::size_t bytes = lent->bytes = region->bytes().size();
  if (bytes > region_bytes_max_ - std::min(lent_bytes_, region_bytes_max_)) {
    lent->state = Lent::kRefused;
    lent_.push_back(std::move(lent));
    return Lent::kRefused;
  }
  lent_bytes_ += bytes;
  lent->add = std::make_unique<RegionAdd>(*this, *lent);
  RegionAdd& add = *lent->add;
  lent_.push_back(std::move(lent));
  start_own(add, shared_->config.connect_timeout);
  return Lent::kPending;
}

void LinkSession::start_own(Call& call, Duration limit) {
  call.ended = false;
  call.answered_ = false;
  call.error = {};
  call.error_text.clear();
  call.link_ = link_;
  shared_->deadlines.add(call, shared_->clock.now() + limit);
  send_call(call);
}

std::uint32_t LinkSession::region_handle(const LentMemory::Region& region) const {
  for (const auto& lent : lent_) {
    if (lent->region.get() == &region && lent->state == Lent::kYes) return lent->handle;
  }
  KV_ASSERT(false);
  return 0;
}

void LinkSession::take_back(const LentMemory::Region& region) {
  const auto found = std::ranges::find_if(lent_, [&](const auto& lent) { return lent->region.get() == &region; });
  if (found == lent_.end()) return;
  LentRegion& lent = **found;
  if (lent.state == Lent::kPending) {
    lent.region.reset();  // now: to unmap it later would hold up this thread
    return;
  }
  if (lent.state == Lent::kYes) remove_region(lent);
  lent_.erase(found);
}

void LinkSession::remove_region(LentRegion& lent) {
  lent_bytes_ -= lent.bytes;
  lent.state = Lent::kRefused;
  auto& builder = shared_->builder;
  builder.Clear();
  builder.Finish(wire::CreateRegionRemoveRequest(builder, lent.handle));
  send_and_forget(FrameType::kRegionRemove, builder);
}

bool LinkSession::has_lent_memory() const {
  return !lanes_ && std::ranges::any_of(lent_, [](const auto& lent) { return lent->state == Lent::kYes; });
}

}  // namespace kv
