// store/node/session/dispatcher.cc: a block enters as a frame that requests it (get) or offers it (put), and leaves in
// a Get or Put that carries the request out. In between, every length, handle and offset was checked.
#include "store/node/session/dispatcher.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "base/assert.h"
#include "store/node/session/core/request_kinds.h"
#include "store/node/session/requests/contexts.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr std::size_t kInlineGetsMax = 4;
constexpr std::size_t kLargeRequestBytes = 64 * 1024;  ///< From here on the node's bound counts.
constexpr std::size_t kPrefetchesMax = 16;             ///< Further ones are skipped: a get still reads the blocks.

}  // namespace

Dispatcher::Dispatcher(SessionCore& session, FrameReader& reader, SessionRdma& rdma, MessageAnswers& messages)
    : session_(session),
      node_(session.node),
      reader_(reader),
      rdma_(rdma),
      messages_(messages),
      spaces_(session),
      regions_(session, rdma),
      lookups_(session, spaces_),
      questions_(session),
      drops_(session),
      draining_(session.executor),
      inline_ended_(session.executor) {}

Dispatcher::~Dispatcher() { KV_ASSERT(puts_.empty() && gets_.empty()); }

// -- requests

asio::awaitable<bool> Dispatcher::take(const Frame& frame) {
  const FrameType type = frame.header.type;
  if (type == FrameType::kPutData) {
    if (permit(frame)) co_return co_await on_put_data(frame);
    const auto skipped = co_await reader_.skip_payload();
    co_return skipped.has_value();
  }
  if (frame.header.payload_bytes != 0) {
    refuse(frame, Errc::kBadRequest,
           count_text("payload_bytes", frame.header.payload_bytes, 0) + " with " + frame_type_name(type));
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
  room_.reset();
  co_return true;
}

void Dispatcher::serve(const Frame& frame) {
  const FrameType type = frame.header.type;
  const TimePoint began = node_.clock.now();
  session_.phases = {};
  if (!permit(frame)) return;
  if (node_.draining && is_of_blocks(type)) return refuse(frame, Errc::kDraining, "the node is shutting down");
  switch (type) {
    case FrameType::kHello: refuse(frame, Errc::kBadRequest, "hello: said already"); break;
    case FrameType::kOpen: spaces_.on_open(frame); break;
    case FrameType::kMatch:
    case FrameType::kSetMatch: on_match(frame); break;
    case FrameType::kGet: return on_get(frame);  // observed when its last byte is on its way
    case FrameType::kSetGet: return on_set_get(frame);
    case FrameType::kPut: return on_put<wire::PutRequest>(frame, NamespaceKind::kChain);
    case FrameType::kSetPut: return on_put<wire::SetPutRequest>(frame, NamespaceKind::kSet);
    case FrameType::kPutData: break;  // take() has it
    case FrameType::kCancel: on_cancel(frame); break;
    case FrameType::kRelease: lookups_.on_release(frame); break;
    case FrameType::kTouch:
    case FrameType::kRetain:
    case FrameType::kUnretain:
    case FrameType::kDrop: on_prefix(frame); break;
    case FrameType::kRegionAdd: regions_.on_add(frame); break;
    case FrameType::kRegionRemove: on_region_remove(frame); break;
    case FrameType::kVerbsConnect: rdma_.on_connect(frame); break;
    case FrameType::kAdmin: questions_.on_admin(frame); break;
    case FrameType::kHotRoots: lookups_.on_hot_roots(frame); break;
    case FrameType::kClusterMap: lookups_.on_cluster_map(frame); break;
    case FrameType::kContext: answer_context(session_, spaces_, frame); break;
    case FrameType::kPing: session_.replies.reply_empty(type, frame.header.request_id); break;
  }
  const Duration took = node_.clock.now() - began;
  node_.metrics.observe_request(type, took, false);
  if (node_.slow.is_slow(took)) tell_slow(session_, details_of(frame, spaces_, session_.phases), took, false);
}

/// The only check whether the policy permits the request. False after refusing it.
bool Dispatcher::permit(const Frame& frame) {
  const FrameType type = frame.header.type;
  const std::uint64_t request_id = frame.header.request_id;
  PeerAccess& access = session_.access;
  const Rule rule = rule_for(type);
  if (const std::string why = access.denial(frame_type_name(type), rule); !why.empty()) {
    if (type != FrameType::kPutData) {
      session_.deny(frame, rule.right, why);
      return false;
    }
    node_.metrics.request_denied(rule.right);
    session_.warn(LogKind::kDenied, [&] { return why; });
    if (const auto put = puts_.find(request_id); put != puts_.end()) {
      const std::shared_ptr<Put> keep = put->second;  // its failure removes it from the table
      keep->fail(Errc::kPermissionDenied, why);
    }  // else the put is over, and its data are read and silently discarded
    return false;
  }
  if (counts_for_tenant(type)) {
    if (const std::string why = access.take_request(node_.clock.now()); !why.empty()) {
      refuse(frame, Errc::kOverQuota, std::string(frame_type_name(type)) + ": " + why);
      return false;
    }
  }
  if (rule.right == Right::kOperate && access.is_watched()) {
    session_.audit.begin(
        type, request_id, access.who(),
        fmt::format("peer={} session={}", session_.stream->peer(), static_cast<std::uint64_t>(session_.id)));
  }
  return true;
}

// -- transfers

/// What all transfers begin with. nullopt after refusing the request.
template <class Request>
std::optional<Dispatcher::Admitted<Request>> Dispatcher::admit(const Frame& frame, NamespaceKind kind) {
  const auto* request = read_request<Request>(session_, frame);
  if (request == nullptr) return std::nullopt;
  const OpenSpace* const space = spaces_.find(frame, request->space(), request->namespace_check(), kind);
  if (space == nullptr) return std::nullopt;
  if (const Failure wrong = check_request(*request, *space, node_); wrong.code) {
    session_.refuse(frame, wrong);
    return std::nullopt;
  }
  const RegionTarget target = target_of(*request);
  auto region = regions_.find(frame, target, hashes_of(request->hashes()).size(), space->block_bytes);
  if (!region || !may_begin(frame)) return std::nullopt;
  return Admitted<Request>{request, space, BlockPath(rdma_, std::move(*region), target, space->block_bytes)};
}

/// False after refusing the request.
bool Dispatcher::may_begin(const Frame& frame) {
  const std::uint64_t request_id = frame.header.request_id;
  const std::uint32_t requests_max = node_.limits->requests_max;
  // Gets waiting to be sent hold pins, puts hold slots: this bounds both.
  if (session_.sending_count + puts_.size() >= requests_max) {
    refuse(frame, Errc::kBusy, count_text("requests in flight", requests_max, requests_max));
    return false;
  }
  if (const std::string why = session_.access.may_move(node_.clock.now()); !why.empty()) {
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
bool Dispatcher::hold(const Frame& frame) {
  if (frame.table.size() <= kLargeRequestBytes) return true;
  room_ = std::make_unique<TableBudget::Account>(*node_.requests, session_.stream->peer_group(), [] {});
  if (room_->resize(frame.table.size())) return true;
  refuse(frame, Errc::kBusy,
         count_text("table_bytes", frame.table.size(), kLargeRequestBytes) +
             " just now: transfers in flight fill the memory that the node has for large requests");
  return false;
}

void Dispatcher::on_get(const Frame& frame) {
  auto admitted = admit<wire::GetRequest>(frame, NamespaceKind::kChain);
  if (!admitted) return;
  const auto hashes = hashes_of(admitted->request->hashes());
  const auto get = std::make_shared<Get>(session_.shared_from_this(), *admitted->space, frame.header.request_id,
                                         *admitted->request, std::move(admitted->path));
  if (const error_code error = get->pin(hashes)) {
    return refuse(frame, error,
                  "get: " + error.message() + " (" + count_text("hashes", hashes.size(), node_.chain_blocks_max) + ")");
  }
  // From the cheapest to the dearest: with the answer, at once, or by a coroutine.
  if (messages_.contains(get->request_id()) && get->send_with_answer(messages_)) return;
  if (!get->send_at_once()) start(get);
}

void Dispatcher::on_set_get(const Frame& frame) {
  auto admitted = admit<wire::SetGetRequest>(frame, NamespaceKind::kSet);
  if (!admitted) return;
  const auto get = std::make_shared<SetGet>(session_.shared_from_this(), *admitted->space, frame.header.request_id,
                                            *admitted->request, std::move(admitted->path));
  if (const error_code error = get->pin()) return refuse(frame, error, "set_get: " + error.message());
  if (!get->send_at_once()) start(get);
}

void Dispatcher::start(const std::shared_ptr<GetInProgress>& get) {
  inline_count_ += get->is_inline();
  gets_.emplace(get->request_id(), get);
  get->keep(std::move(room_));
  asio::co_spawn(session_.executor, carry_out(get, SessionJob(session_.shared_from_this())), BorderOf{NodeThread::kIo});
}

asio::awaitable<void> Dispatcher::carry_out(std::shared_ptr<GetInProgress> get, [[maybe_unused]] SessionJob job) {
  co_await get->deliver();
  // Removed before the answer: with its last frame the client may reuse the id.
  gets_.erase(get->request_id());
  inline_count_ -= get->is_inline();
  inline_ended_.set();
  get->finish();
  session_.writer.flush();
}

bool Dispatcher::has_inline_room() const { return inline_count_ <= kInlineGetsMax; }

asio::awaitable<void> Dispatcher::wait_for_inline() {
  inline_ended_.reset();
  co_await inline_ended_.wait();
}

template <class Request>
void Dispatcher::on_put(const Frame& frame, NamespaceKind kind) {
  auto admitted = admit<Request>(frame, kind);
  if (!admitted) return;
  const PutOrder order = order_of(*admitted->request);
  Put::Listener& listener = *this;
  const auto put = std::make_shared<Put>(session_.shared_from_this(), listener, draining_, *admitted->space,
                                         frame.header.request_id, order, std::move(admitted->path));
  if (!put->offer(frame, order)) return;
  // Before begin(), in which a put of stored blocks ends and removes itself from the table.
  puts_.emplace(put->request_id(), put);
  put->keep(std::move(room_));
  put->begin();
}

asio::awaitable<bool> Dispatcher::on_put_data(const Frame& frame) {
  const auto found = puts_.find(frame.header.request_id);
  if (found == puts_.end()) {
    // The put may just have failed, with its data still on the way: the client was answered.
    const auto skipped = co_await reader_.skip_payload();
    co_return skipped.has_value();
  }
  std::shared_ptr<Put> put = found->second;
  co_return co_await Put::take_data(std::move(put), frame, reader_);
}

void Dispatcher::on_match(const Frame& frame) {
  const auto wanted =
      frame.header.type == FrameType::kSetMatch ? lookups_.on_set_match(frame) : lookups_.on_match(frame);
  if (!wanted || !node_.disk_worker->can_read() || prefetches_.size() >= kPrefetchesMax) return;
  // The match has been answered, so the prefetch runs without a request and its failure is not reported.
  const auto prefetch =
      std::make_shared<Prefetch>(session_.shared_from_this(), *wanted->space, wanted->hashes, wanted->group_counts);
  if (prefetch->pin() || !prefetch->has_work()) return;
  prefetches_.push_back(prefetch);
  asio::co_spawn(session_.executor, carry_out_ahead(prefetch, SessionJob(session_.shared_from_this())),
                 BorderOf{NodeThread::kIo});
}

asio::awaitable<void> Dispatcher::carry_out_ahead(std::shared_ptr<Prefetch> prefetch, [[maybe_unused]] SessionJob job) {
  co_await prefetch->run();
  std::erase(prefetches_, prefetch);
}

void Dispatcher::on_prefix(const Frame& frame) {
  const auto* request = read_request<wire::PrefixRequest>(session_, frame);
  if (request == nullptr) return;
  const OpenSpace* const space = spaces_.find(frame, request->space(), request->namespace_check());
  if (space == nullptr) return;
  const auto hashes = hashes_of(request->hashes());
  session_.audit.on(frame.header.type, frame.header.request_id,
                    fmt::format("namespace={} hashes={}", to_hex(space->shown_name.bytes), hashes.size()));
  if (frame.header.type == FrameType::kDrop) return drops_.drop(frame, *space, hashes);
  lookups_.on_prefix(frame, *space, hashes);
}

// -- their end

void Dispatcher::on_cancel(const Frame& frame) {
  const auto* request = read_request<wire::CancelRequest>(session_, frame);
  if (request == nullptr) return;
  // A cancel has no answer of its own: the cancelled request's last frame is the answer, or was. It stays in the table:
  // the get ends by itself, once copies and devices are done with the client's memory.
  if (const auto get = gets_.find(request->request_id()); get != gets_.end()) get->second->cancel();
  if (const auto put = puts_.find(request->request_id()); put != puts_.end()) {
    const std::shared_ptr<Put> keep = put->second;  // its failure removes it from the table
    keep->fail(Errc::kCancelled, "put: cancelled");
  }
}

void Dispatcher::on_region_remove(const Frame& frame) {
  const std::shared_ptr<Region> region = regions_.on_remove(frame);
  if (!region) return;
  for (auto& [request_id, get] : gets_) {
    // The removal is answered once the region is unused. Gets are cancelled; puts run to their end.
    if (get->uses(*region)) get->cancel();
  }
}

void Dispatcher::end_late_transfers(TimePoint now) {
  for (auto& [request_id, get] : gets_) {
    if (get->is_cancelled() || now - get->began() < node_.limits->get_timeout) continue;
    node_.metrics.deadline_missed();
    get->cancel_late();
  }
  std::vector<std::shared_ptr<Put>> late;  // first: a failing put leaves puts_
  for (const auto& [request_id, put] : puts_) {
    if (put->is_late(now)) late.push_back(put);
  }
  for (const auto& put : late) {
    node_.metrics.deadline_missed();
    put->fail(Errc::kStaleLease, "put: the bytes did not come in time; its memory is freed");
  }
  if (!late.empty()) session_.writer.flush();
}

bool Dispatcher::is_moving() const {
  return !gets_.empty() || !puts_.empty() || !prefetches_.empty() || session_.sending_count > 0;
}

void Dispatcher::stop() {
  regions_.abandon();
  inline_ended_.set();
  for (auto& [request_id, get] : gets_) get->cancel();
  for (const auto& prefetch : prefetches_) prefetch->cancel();
  for (auto& [request_id, put] : puts_) put->stop();
  rdma_.fail_all();
}

void Dispatcher::end() {
  KV_ASSERT(gets_.empty() && prefetches_.empty());
  for (const auto& [request_id, put] : std::exchange(puts_, {})) put->finish();
  rdma_.end();  // first: devices release the puts' slots; a put must end in the store before its session
  node_.store.with([&](Store& store) { store.end_session(session_.id); });
  regions_.clear();
}

}  // namespace kv
