#include "client/link/node_link.h"

#include <algorithm>
#include <bit>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

constexpr Duration kMessagesBackoffMin = 1s, kMessagesBackoffMax = 60s;
constexpr std::size_t kRetiredMax = 16;  // Sessions kept only for their unfinished business; then no new ones are made.

}  // namespace

/// One of the connections.
struct NodeLink::Slot final : DeadlineEntry {
  enum class State { kEmpty, kConnecting, kUp };
  explicit Slot(NodeLink& l) : link(l) {}
  void on_deadline() override {  // connect and hello took too long
    give_up();
    if (session) session->close();
    link.connect_failed(*this, asio::error::timed_out, "no connection within connect_timeout");
  }

  /// Ends the coroutine that connects. Posted: emit() acts at once only on the executor, and the signal must live that
  /// long.
  void give_up() {
    if (state != State::kConnecting || session) return;
    asio::post(link.shared_->executor, [signal = cancel] { signal->emit(asio::cancellation_type::terminal); });
  }

  NodeLink& link;
  State state = State::kEmpty;
  std::shared_ptr<LinkSession> session;               ///< When connecting: waiting for hello.
  std::uint64_t attempt = 0;                          ///< Tells a late end of an attempt that was given up.
  std::shared_ptr<asio::cancellation_signal> cancel;  ///< Of this attempt; the coroutine of an earlier one may live on.
};

NodeLink::NodeLink(std::shared_ptr<ClientShared> shared, NodeConfig config, Endpoint endpoint)
    : shared_(std::move(shared)), config_(std::move(config)), endpoint_(std::move(endpoint)) {
  for (std::size_t i = 0; i < shared_->config.connections_per_node; ++i)
    slots_.push_back(std::make_unique<Slot>(*this));
}

NodeLink::~NodeLink() = default;

// -- calls

void NodeLink::start(Call& call, TimePoint deadline) {
  call.link_ = this;
  call.ended = false;
  call.has_begun_ = call.answered_ = call.retried_ = false;
  call.error = {};
  if (!call.error_text.empty()) call.error_text.clear();
  if (call.group != nullptr) ++call.group->running;
  ++calls_;
  if (closed_) return call.end(Errc::kUnavailable);
  if (breaker_is_open()) {
    if (probe_ != nullptr || shared_->clock.now() < breaker_until_) return call.end(Errc::kUnavailable);
    probe_ = &call;
  }
  shared_->deadlines.add(call, deadline);
  LinkSession* session = nullptr;
  if (waiting_.empty() && !pumping_ && prepare(call, session) == Prepared::kReady) {
    session->send_call(call);
  } else {
    waiting_.push_back(&call);
    pump();
  }
}

void NodeLink::pump() {
  if (waiting_.empty()) return;
  if (pumping_) {
    pump_again_ = true;
    return;
  }
  pumping_ = true;
  do {
    pump_again_ = false;
    for (std::size_t i = 0; i < waiting_.size();) {
      Call& call = *waiting_[i];
      LinkSession* session = nullptr;
      const Prepared prepared = prepare(call, session);
      if (prepared == Prepared::kNoRoom) break;
      if (prepared == Prepared::kWait) {
        ++i;
        continue;
      }
      if (std::erase(waiting_, &call) == 0) continue;  // it has ended meanwhile
      if (prepared == Prepared::kReady) {
        session->send_call(call);
      } else {
        call.end(prepared == Prepared::kNotLent    ? Errc::kNoRegion
                 : prepared == Prepared::kTooLarge ? Errc::kTooLarge
                                                   : Errc::kUnavailable);
      }
    }
  } while (pump_again_ && !waiting_.empty());
  pumping_ = false;
}

NodeLink::Prepared NodeLink::prepare(Call& call, LinkSession*& session) {
  if (up_count_ < slots_.size()) connect_missing();
  session = pick(call);
  if (session == nullptr) {
    if (call.session_wanted && call.session_wanted->is_up()) return Prepared::kWait;
    return up_count_ + connecting_count_ > 0 ? Prepared::kNoRoom : Prepared::kFailed;
  }
  if (call.space != Call::kNoSpace) {
    if (session->opened(call.space) != LinkSession::Opened::kYes) {  // one round trip, or no session that takes it
      return session->can_open(call.space) ? Prepared::kWait : Prepared::kTooLarge;
    }
    call.handle_ = session->space_handle(call.space);
  }
  if (call.region) {
    const LinkSession::Lent lent = session->lend(call.region);
    if (lent == LinkSession::Lent::kPending) return Prepared::kWait;  // one round trip
    // A device's memory is reached by RDMA or not at all; everything else goes inline then.
    if (lent != LinkSession::Lent::kYes && call.region->is_device()) {
      return lent == LinkSession::Lent::kRefused ? Prepared::kNotLent : Prepared::kFailed;
    }
    if (lent != LinkSession::Lent::kYes) call.region.reset();
    if (!session->can_take_call()) return Prepared::kWait;  // lending took the last place, or failed
  }
  return Prepared::kReady;
}

/// The session with the least data under way: a lookup does not wait behind a transfer. First of all one that has the
/// namespace open, so that the round trip of opening is waited for only where no session has; the others open it
/// meanwhile. For a device's memory one that has it, since the others are no way at all.
LinkSession* NodeLink::pick(const Call& call) const {
  const bool must_open = call.space != Call::kNoSpace && !is_opened_somewhere(call.space);
  if (call.session_wanted && call.session_wanted->is_up()) {
    if (!call.session_wanted->can_take_call()) return nullptr;
    if (call.space != Call::kNoSpace) call.session_wanted->open(call.space, /*must=*/true);
    return call.session_wanted.get();
  }
  const bool needs_region = call.region && call.region->is_device();
  LinkSession* best = nullptr;
  int best_rank = 0;
  for (const auto& slot : slots_) {
    if (slot->state != Slot::State::kUp || !slot->session->can_take_call()) continue;
    LinkSession& session = *slot->session;
    int rank = 0;
    if (call.space != Call::kNoSpace) {
      session.open(call.space, must_open);
      if (session.opened(call.space) == LinkSession::Opened::kYes) rank += 1;
    }
    if (needs_region && session.lend(call.region) == LinkSession::Lent::kYes) rank += 2;
    if (best != nullptr) {
      const bool is_better = rank != best_rank ? rank > best_rank : session.load_bytes() < best->load_bytes();
      if (!is_better) continue;
    }
    best = &session;
    best_rank = rank;
  }
  return best;
}

bool NodeLink::retry(Call& call, error_code why, LinkSession* session) {
  if (call.space == Call::kNoSpace || closed_ || session == nullptr) return false;
  if (why != Errc::kNoNamespace && why != Errc::kMismatch) return false;
  if (session->forget_space(call.space, call.handle_) && why == Errc::kNoNamespace) {
    // The node has forgotten the namespace, and so most likely what it told the other sessions: the next try must not
    // meet the same there.
    for (const auto& slot : slots_) {
      if (slot->session && slot->session.get() != session) slot->session->forget_space(call.space);
    }
  }
  // A mismatch is a mistake on one of the two sides: the caller is told, and the next call opens anew. And a node that
  // has begun to answer knew the namespace: what it says now is not to be built upon.
  if (why != Errc::kNoNamespace || call.retried_ || call.has_begun_) return false;
  call.retried_ = true;
  call.answered_ = false;
  call.error_text.clear();
  waiting_.push_back(&call);
  pump();
  return true;
}

void NodeLink::call_ended(const Call& call) {
  unqueue(call);
  if (call.answered_) {
    failures_in_row_ = 0;
    backoff_ = {};
  } else if (call.error == asio::error::timed_out && call.type != FrameType::kVerbsConnect) {
    ++timeouts_;
    last_error_ = call.error;
    last_error_text_ = std::string(frame_type_name(call.type)) + " missed its deadline";
    failure();
  }
}

void NodeLink::unqueue(const Call& call) {
  if (probe_ == &call) probe_ = nullptr;
  if (waiting_.empty()) return;
  const auto found = std::find(waiting_.begin(), waiting_.end(), &call);
  if (found == waiting_.end()) return;
  waiting_.erase(found);
  if (pumping_) pump_again_ = true;
}

// -- namespaces

bool NodeLink::is_opened_somewhere(std::uint32_t space) const {
  return std::ranges::any_of(slots_, [&](const auto& slot) {
    return slot->state == Slot::State::kUp && slot->session->opened(space) != LinkSession::Opened::kNo;
  });
}

void NodeLink::open_ended(std::uint32_t space, error_code why, const std::string& text) {
  if (!why || is_opened_somewhere(space)) return pump();
  if (why != asio::error::timed_out) {  // that is in the books already
    last_error_ = why;
    last_error_text_ = text.empty() ? why.message() : text;
  }
  std::vector<Call*> failed;
  std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(failed),
               [&](const Call* call) { return call->space == space; });
  for (Call* const call : failed) {
    // The end of one may be the end of another, which may be gone by now.
    if (std::find(waiting_.begin(), waiting_.end(), call) == waiting_.end()) continue;
    unqueue(*call);
    call->error_text = text;
    call->end(why);
  }
}

// -- connections

void NodeLink::connect_missing() {
  if (closed_ || up_count_ + connecting_count_ == slots_.size()) return;
  std::erase_if(retired_, [](const auto& session) { return session->has_ended(); });
  const TimePoint now = shared_->clock.now();
  if (now < next_attempt_ || retired_.size() >= kRetiredMax) return;
  for (const auto& slot : slots_) {
    if (slot->state != Slot::State::kEmpty) continue;
    slot->state = Slot::State::kConnecting;
    ++connecting_count_;
    const std::uint64_t attempt = ++slot->attempt;
    shared_->deadlines.add(*slot, now + shared_->config.connect_timeout);
    slot->cancel = std::make_shared<asio::cancellation_signal>();
    const auto ended = [self = shared_from_this(), &slot = *slot, attempt,
                        cancel = slot->cancel](std::exception_ptr exception) {
      if (exception && slot.attempt == attempt && !slot.session && !self->closed_) {
        self->connect_failed(slot, asio::error::operation_aborted, "connecting failed");
      }
    };
    asio::co_spawn(shared_->executor, connect(shared_from_this(), *slot, attempt),
                   asio::bind_cancellation_slot(slot->cancel->slot(), ended));
  }
}

asio::awaitable<void> NodeLink::connect(std::shared_ptr<NodeLink> self, Slot& slot, std::uint64_t attempt) {
  const Endpoint endpoint = self->endpoint_;
  const asio::any_io_executor executor = self->shared_->executor;
  auto stream = co_await self->shared_->network.connect(endpoint, executor);
  if (self->closed_ || slot.attempt != attempt) co_return;
  if (!stream) {
    const error_code why = stream.error();
    self->connect_failed(slot, why, "connect: " + why.message());
    co_return;
  }
  slot.session = std::make_shared<LinkSession>(self->shared_, *self, std::move(*stream));
  slot.session->start();
}

void NodeLink::connect_failed(Slot& slot, error_code why, std::string text) {
  KV_ASSERT(slot.state == Slot::State::kConnecting);
  shared_->deadlines.remove(slot);
  slot.state = Slot::State::kEmpty;
  slot.session.reset();
  ++slot.attempt;
  --connecting_count_;
  last_error_ = why;
  last_error_text_ = std::move(text);
  back_off();
  if (up_count_ == 0) failure();
  pump();  // what waits has nothing to wait for, perhaps
}

void NodeLink::session_up(LinkSession& session) {
  for (const auto& slot : slots_) {
    if (slot->session.get() != &session) continue;
    shared_->deadlines.remove(*slot);
    slot->state = Slot::State::kUp;
    --connecting_count_;
    ++up_count_;
  }
  ++connects_;
  node_id_ = session.node_id();
  // What is left of another life: a process that ends while its successor listens already.
  for (const auto& slot : slots_) {
    const auto other = slot->session;
    if (slot->state == Slot::State::kUp && !other->is_same_life(session)) retire(*other);
  }
  pump();
}

void NodeLink::session_ended(LinkSession& session, error_code why, std::string text) {
  std::erase_if(retired_, [&](const auto& other) { return other.get() == &session; });
  if (!session.has_ended()) retired_.push_back(session.shared_from_this());  // it waits for the node to close
  for (const auto& slot : slots_) {
    if (slot->session.get() != &session) continue;
    if (slot->state == Slot::State::kConnecting) return connect_failed(*slot, why, std::move(text));
    slot->session.reset();
    slot->state = Slot::State::kEmpty;
    --up_count_;
    last_error_ = why;
    last_error_text_ = std::move(text);
    back_off();
    if (!session.lost_messages()) failure();  // the node is well, as far as this goes
    break;
  }
  pump();
}

void NodeLink::retire(LinkSession& session) {
  for (const auto& slot : slots_) {
    if (slot->session.get() != &session || slot->state != Slot::State::kUp) continue;
    retired_.push_back(std::move(slot->session));
    slot->session.reset();
    slot->state = Slot::State::kEmpty;
    --up_count_;
    retired_.back()->retire();
    return;
  }
}

void NodeLink::retired_ended(LinkSession& session) {
  std::erase_if(retired_, [&](const auto& other) { return other.get() == &session; });
}

void NodeLink::failure() {
  ++failures_;
  ++failures_in_row_;
  if (breaker_is_open()) breaker_until_ = shared_->clock.now() + shared_->config.breaker_open;
}

void NodeLink::back_off() {
  const TimePoint now = shared_->clock.now();
  if (now < next_attempt_) return;  // several connections failed together: once is enough
  const ClientConfig& config = shared_->config;
  backoff_ = std::clamp(backoff_ * 2, config.backoff_min, config.backoff_max);
  std::uniform_int_distribution<Duration::rep> jitter(0, backoff_.count());
  next_attempt_ = now + Duration(jitter(shared_->random));
}

void NodeLink::messages_broke() {
  const TimePoint now = shared_->clock.now();
  if (now < next_messages_) return;  // several sessions lost theirs together: once is enough
  const bool lasted = now >= next_messages_ + 2 * kMessagesBackoffMax;
  messages_backoff_ =
      lasted ? kMessagesBackoffMin : std::clamp(messages_backoff_ * 2, kMessagesBackoffMin, kMessagesBackoffMax);
  next_messages_ = now + messages_backoff_;
}

void NodeLink::close() {
  closed_ = true;
  for (const auto& slot : slots_) {
    shared_->deadlines.remove(*slot);
    ++slot->attempt;
    slot->give_up();
    if (const auto session = std::exchange(slot->session, nullptr)) session->close();
  }
  for (const auto& session : std::exchange(retired_, {})) session->close();
  while (!waiting_.empty()) {
    Call* const call = waiting_.back();
    waiting_.pop_back();
    call->end(Errc::kUnavailable);
  }
}

void NodeLink::take_back(const LentMemory::Region& region) {
  for (const auto& slot : slots_) {
    if (slot->state == Slot::State::kUp) slot->session->take_back(region);
  }
  for (const auto& session : retired_) session->take_back(region);
}

NodeLink::LendState NodeLink::lend(const std::shared_ptr<LentMemory::Region>& region) {
  if (up_count_ < slots_.size()) connect_missing();
  LendState state;
  state.pending = connecting_count_;
  for (const auto& slot : slots_) {
    if (slot->state != Slot::State::kUp) continue;
    const LinkSession::Lent lent = slot->session->lend(region);
    state.lent += lent == LinkSession::Lent::kYes;
    state.pending += lent == LinkSession::Lent::kPending || lent == LinkSession::Lent::kNotNow;
  }
  return state;
}

NodeStatus NodeLink::status() const {
  NodeStatus status;
  status.name = config_.name;
  status.endpoint = config_.endpoint;
  status.node_id = node_id_;
  status.connected = up_count_ > 0;
  status.breaker_open = breaker_is_open();
  switch (endpoint_.scheme) {
    case Endpoint::Scheme::kTcp: status.peer_transport = "tcp"; break;
    case Endpoint::Scheme::kUnix: status.peer_transport = "unix"; break;
    case Endpoint::Scheme::kSim: status.peer_transport = "sim"; break;
  }
  status.rdma_text = shared_->verbs.why();
  bool has_lent = false;
  for (const auto& slot : slots_) {
    if (slot->state != Slot::State::kUp) continue;
    has_lent = has_lent || slot->session->has_lent_memory();
    status.rdma_lanes += std::popcount(slot->session->lanes_up());
    if (const std::string why = slot->session->lanes_why(); !why.empty()) status.rdma_text = why;
  }
  if (has_lent) status.peer_transport += "+memfd";
  if (status.rdma_lanes > 0) status.peer_transport += "+verbs";
  status.calls = calls_;
  status.failures = failures_;
  status.timeouts = timeouts_;
  status.reconnects = connects_ > slots_.size() ? connects_ - slots_.size() : 0;
  status.last_error = last_error_;
  status.last_error_text = last_error_text_;
  return status;
}

}  // namespace kv
