#include "client/link/session/node_link.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"
#include "base/text/printable.h"

namespace kv {
namespace {

constexpr Duration kMessagesBackoffMin = 1s, kMessagesBackoffMax = 60s;
// Sessions kept only for unfinished business. At this limit connecting stops, to bound a bad node's memory use here.
constexpr std::size_t kRetiredMax = 16;
constexpr std::size_t kJoinedBytesMax = 64 << 10;  // The load up to which a lookup joins others.

}  // namespace

NodeLink::NodeLink(std::shared_ptr<ClientShared> shared, NodeConfig config, Endpoint endpoint)
    : shared_(std::move(shared)),
      config_(std::move(config)),
      endpoint_(std::move(endpoint)),
      connections_(shared_->config.connections_per_node),
      connect_back_off_({.min = shared_->config.backoff_min, .max = shared_->config.backoff_max, .jitter = 1}),
      // A lane that lasted longer than twice the longest pause has proved that the fabric carries messages.
      messages_back_off_(
          {.min = kMessagesBackoffMin, .max = kMessagesBackoffMax, .forget_after = 2 * kMessagesBackoffMax}),
      breaker_(shared_->config.breaker_failures, shared_->config.breaker_open) {}

NodeLink::~NodeLink() = default;

// -- calls

void NodeLink::start(Call& call, TimePoint deadline) {
  call.begin(*this);
  ++calls_;
  if (closed_ || !breaker_.admits(call, shared_->clock.now())) return call.end(why_not_connected());
  shared_->deadlines.add(call, deadline);
  LinkSession* session = nullptr;
  // Most calls find everything ready and skip the queue. Calls do not overtake waiting ones.
  if (waiting_.empty() && !pumping_ && prepare(call, session) == Prepared::kReady) {
    session->send_call(call);
  } else {
    waiting_.push_back(&call);
    pump();
  }
}

void NodeLink::prepare_space(std::uint32_t space) {
  if (closed_ || breaker_.is_open()) return;
  if (up_count_ < connections_.size()) connect_missing();
  for (const Connection& each : connections_) {
    if (each.is_up()) each.session->spaces().open(space, /*must=*/false);
  }
}

/// Passes waiting calls to sessions, in order. Preparing a call opens namespaces and lends memory, which may end other
/// calls and call pump() again: the inner call only sets pump_again_, and the outer loop repeats.
void NodeLink::pump() {
  if (waiting_.empty()) return;
  if (pumping_) {  // called while preparing or ending calls
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
      // In order of start: later calls wait too, unless all wait for a connection, since some calls refuse to.
      if (prepared == Prepared::kNoRoom && up_count_ > 0) break;
      if (prepared == Prepared::kWait || prepared == Prepared::kNoRoom) {
        ++i;
        continue;
      }
      if (std::erase(waiting_, &call) == 0) continue;  // it has ended meanwhile
      if (prepared == Prepared::kReady) {
        session->send_call(call);
      } else {
        call.end(prepared == Prepared::kNotLent    ? make_error_code(Errc::kNoRegion)
                 : prepared == Prepared::kTooLarge ? make_error_code(Errc::kTooLarge)
                                                   : why_not_connected());
      }
    }
  } while (pump_again_ && !waiting_.empty());
  pumping_ = false;
}

/// Prepares the rest that the call needs: a session, its namespace open there, its memory lent there. Starts each as
/// needed; each pumps again when it completes.
NodeLink::Prepared NodeLink::prepare(Call& call, LinkSession*& session) {
  if (up_count_ < connections_.size()) connect_missing();
  session = pick(call);
  if (session == nullptr) {
    // The lease is valid only in that session: while it lasts, other sessions are excluded.
    const LinkSession* const wanted = find(call.session_wanted.get());
    if (wanted != nullptr && wanted->is_serving()) return Prepared::kWait;
    // An at_once call does not wait for a new connection.
    return up_count_ + (call.at_once ? 0 : connecting_count_) > 0 ? Prepared::kNoRoom : Prepared::kFailed;
  }
  if (call.space != Call::kNoSpace && session->spaces().state(call.space) != LinkSpaces::State::kYes) {
    // Opening takes one round trip; kTooLarge: the record exceeds the node's limit.
    return session->spaces().can_open(call.space) ? Prepared::kWait : Prepared::kTooLarge;
  }
  if (call.region) {
    const LinkRegions::State lent = session->lend(call.region);
    if (lent == LinkRegions::State::kPending) return Prepared::kWait;  // one round trip
    // A device's memory is reached by RDMA only; other memory falls back to inline transfer.
    if (lent != LinkRegions::State::kYes && call.region->is_device()) {
      return lent == LinkRegions::State::kRefused ? Prepared::kNotLent : Prepared::kFailed;
    }
    if (lent != LinkRegions::State::kYes) call.region.reset();
    if (!session->can_take_call()) return Prepared::kWait;  // lending took the last place, or failed
  }
  return Prepared::kReady;
}

/// The session with the least data in flight: a lookup does not wait behind a transfer. But a session with the
/// namespace open comes first, so that calls wait for the round trip of opening only if all sessions lack it; the
/// others open it meanwhile. For a device's memory, a session that has lent it comes before all. Lookups of one turn,
/// such as those of a chain's extents, share a session and so a write, up to a limit.
LinkSession* NodeLink::pick(const Call& call) {
  if (LinkSession* const wanted = find(call.session_wanted.get()); wanted != nullptr && wanted->is_serving()) {
    if (!wanted->can_take_call()) return nullptr;
    if (call.space != Call::kNoSpace) wanted->spaces().open(call.space, /*must=*/true);
    return wanted;
  }
  const bool must_open = call.space != Call::kNoSpace && !is_opened_somewhere(call.space);
  const bool needs_region = call.region && call.region->is_device();
  const auto load = [&call](const LinkSession& session) {
    const bool joins = call.data_bytes == 0 && session.is_flush_due() && session.load_bytes() <= kJoinedBytesMax;
    return joins ? 0 : session.load_bytes();
  };
  LinkSession* best = nullptr;
  int best_rank = 0;
  for (const Connection& connection : connections_) {
    if (!connection.is_up() || !connection.session->can_take_call()) continue;
    LinkSession& session = *connection.session;
    int rank = 0;
    if (call.space != Call::kNoSpace) {
      session.spaces().open(call.space, must_open);
      if (session.spaces().state(call.space) == LinkSpaces::State::kYes) rank += 1;
    }
    if (needs_region && session.lend(call.region) == LinkRegions::State::kYes) rank += 2;
    if (best != nullptr) {
      const bool is_better = rank != best_rank ? rank > best_rank : load(session) < load(*best);
      if (!is_better) continue;
    }
    best = &session;
    best_rank = rank;
  }
  return best;
}

LinkSession* NodeLink::find(const CallSession* session) const {
  if (session == nullptr) return nullptr;
  for (const Connection& connection : connections_) {
    if (connection.session.get() == session) return connection.session.get();
  }
  for (const auto& retired : retired_) {
    if (retired.get() == session) return retired.get();
  }
  return nullptr;  // 5
}

/// A call is sent again, once, only for a namespace that the node has forgotten, as in every session's first answer
/// after a node's restart. Other failures are not repeated here, since the caller knows best how to use its deadline.
bool NodeLink::try_again(Call& call, error_code why, CallSession& left) {
  if (call.space == Call::kNoSpace || closed_) return false;
  if (why != Errc::kNoNamespace && why != Errc::kMismatch) return false;
  LinkSession* const session = find(&left);
  const bool was_open = session != nullptr && session->spaces().forget(call.space, call.space_handle());
  if (was_open && why == Errc::kNoNamespace) {
    // The node has forgotten the namespace, and so most likely its handles in the other sessions: the next try must
    // not fail there in the same way.
    for (const Connection& connection : connections_) {
      if (connection.session && connection.session.get() != session) connection.session->spaces().forget(call.space);
    }
  }
  // A mismatch is a mistake on one of the two sides: report it, and let the next call open anew. A node that has
  // begun to answer knew the namespace, so its new answer is not trusted.
  if (why != Errc::kNoNamespace || call.send_count() > 1 || call.has_begun()) return false;
  waiting_.push_back(&call);
  pump();
  return true;
}

void NodeLink::call_ended(const Call& call, bool is_answered) {
  unqueue(call);
  if (is_answered) {
    breaker_.succeeded();
    count_away();
    connect_back_off_.succeeded();
    shared_->hear_map_epoch(*this, call.map_epoch);
    // kNotFound is an answer; any other refusal needs repair.
    if (call.error() && call.error() != Errc::kNotFound && !call.error_text().empty())
      note_error(call.error(), std::string(frame_type_name(call.type)) + ": " + call.error_text());
  } else if (call.error() == asio::error::timed_out && call.type != FrameType::kVerbsConnect) {
    ++timeouts_;
    note_error(call.error(), std::string(frame_type_name(call.type)) + " missed its deadline");
    failure();
  }
}

void NodeLink::unqueue(const Call& call) {
  breaker_.let_go(call);
  if (waiting_.empty()) return;
  const auto found = std::find(waiting_.begin(), waiting_.end(), &call);
  if (found == waiting_.end()) return;
  waiting_.erase(found);
  if (pumping_) pump_again_ = true;
}

// -- away

void NodeLink::count_away() {
  const bool is_away = !closed_ && breaker_.is_open();
  if (is_away == is_counted_away_) return;
  is_counted_away_ = is_away;
  if (is_away) {
    ++openings_;
    ++shared_->away_count;
  } else {
    --shared_->away_count;
  }
}

void NodeLink::probe() {
  constexpr Duration kProbeDeadline = 1s;
  if (probe_.has_ended()) start(probe_, shared_->clock.now() + kProbeDeadline);
}

// -- namespaces

bool NodeLink::is_opened_somewhere(std::uint32_t space) const {
  return std::ranges::any_of(connections_, [&](const Connection& connection) {
    return connection.is_up() && connection.session->spaces().state(space) != LinkSpaces::State::kNo;
  });
}

/// A session's failure does not matter while another has the namespace or is opening it. After the last one, calls that
/// wait for it end here with the node's reason instead of at their deadlines.
void NodeLink::open_ended(std::uint32_t space, error_code why, const std::string& text) {
  if (!why || is_opened_somewhere(space)) return pump();
  std::vector<Call*> failed;
  std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(failed),
               [&](const Call* call) { return call->space == space; });
  for (Call* const call : failed) {
    // The end of one call may end another, which may then be destroyed.
    if (std::find(waiting_.begin(), waiting_.end(), call) == waiting_.end()) continue;
    unqueue(*call);
    call->end(why, text);
  }
}

// -- connections

/// Opens all missing connections at once, after the back-off, which spreads the clients of a restarting node.
void NodeLink::connect_missing() {
  if (closed_ || up_count_ + connecting_count_ == connections_.size()) return;
  std::erase_if(retired_, [](const auto& session) { return session->has_ended(); });
  if (!connect_back_off_.is_due(shared_->clock.now()) || retired_.size() >= kRetiredMax) return;
  for (Connection& connection : connections_) {
    if (!connection.is_empty()) continue;
    connection.attempt = std::make_shared<ConnectAttempt>(shared_, static_cast<ConnectAttempt::Listener&>(*this));
    ++connecting_count_;
    connection.attempt->begin(endpoint_, config_.is_told);
  }
}

NodeLink::Connection* NodeLink::find_connection(const ConnectAttempt& attempt) {
  const auto found = std::ranges::find_if(
      connections_, [&](const Connection& connection) { return connection.attempt.get() == &attempt; });
  return found == connections_.end() ? nullptr : &*found;
}

void NodeLink::connected(ConnectAttempt& attempt, std::unique_ptr<Stream> stream) {
  Connection* const connection = find_connection(attempt);
  KV_ASSERT(connection != nullptr && !connection->session && !closed_);
  connection->session =
      std::make_shared<LinkSession>(shared_, static_cast<LinkSession::Listener&>(*this), std::move(stream));
  connection->session->start();
}

void NodeLink::connect_failed(ConnectAttempt& attempt, error_code why, std::string text) {
  Connection* const connection = find_connection(attempt);
  KV_ASSERT(connection != nullptr);
  if (connection->session) connection->session->close();  // without a hello
  failed_to_connect(*connection, why, std::move(text));
}

void NodeLink::failed_to_connect(Connection& connection, error_code why, std::string text) {
  KV_ASSERT(connection.attempt && connecting_count_ > 0);
  connection.attempt->end();
  connection = {};
  --connecting_count_;
  note_error(why, std::move(text));
  connect_back_off_.failed(shared_->clock.now(), shared_->random);
  // A node that reports the tenant's session limit does serve, only not this client.
  if (up_count_ == 0 && why != Errc::kOverQuota) failure();
  pump();  // calls that wait may now end
}

/// The address may now belong to another node: a path that exists on each machine, a reassigned address.
std::string NodeLink::refuses(const LinkTerms& terms) const {
  if (config_.node_id.empty() || terms.node_id == config_.node_id) return "";
  return "hello: node '" + printable(terms.node_id) + "' answers there, not '" + config_.node_id + "'";
}

void NodeLink::session_up(LinkSession& session) {
  for (Connection& connection : connections_) {
    if (connection.session.get() != &session) continue;
    KV_ASSERT(connection.attempt && connecting_count_ > 0);
    connection.attempt->end();
    connection.attempt.reset();
    --connecting_count_;
    ++up_count_;
  }
  ++connects_;
  node_id_ = session.terms().node_id;
  shared_->hear_map_epoch(*this, session.terms().map_epoch);
  // Retire sessions of another life: of a process that is ending while its successor already listens.
  for (const Connection& connection : connections_) {
    const auto other = connection.session;
    if (connection.is_up() && !other->terms().is_same_life(session.terms())) retire(*other);
  }
  pump();
}

/// A session that still quarantines memory stays among the retired ones until the node closes its side: the record of
/// that memory is in the session.
void NodeLink::session_ended(LinkSession& session, error_code why, std::string text) {
  std::erase_if(retired_, [&](const auto& other) { return other.get() == &session; });
  if (!session.has_ended()) retired_.push_back(session.shared_from_this());  // it waits for the node to close: 5
  for (Connection& connection : connections_) {
    if (connection.session.get() != &session) continue;
    if (connection.attempt) return failed_to_connect(connection, why, std::move(text));
    KV_ASSERT(up_count_ > 0);
    connection = {};
    --up_count_;
    note_error(why, std::move(text));
    connect_back_off_.failed(shared_->clock.now(), shared_->random);
    if (!session.lost_messages()) failure();  // a lost message lane does not count against the node
    break;
  }
  pump();
}

void NodeLink::retire(LinkSession& session) {
  for (Connection& connection : connections_) {
    if (connection.session.get() != &session || !connection.is_up()) continue;
    KV_ASSERT(up_count_ > 0);
    retired_.push_back(std::move(connection.session));
    connection = {};
    --up_count_;
    session.retire();  // may end it, and take it out of the list
    return;
  }
}

void NodeLink::retired_ended(LinkSession& session) {
  KV_ASSERT(session.has_ended());
  std::erase_if(retired_, [&](const auto& other) { return other.get() == &session; });
  pump();  // too many retired ones may have blocked a connection
}

/// A node that refuses the client is reachable, and gives the reason.
error_code NodeLink::why_not_connected() const {
  const bool is_said = last_error_ == Errc::kPermissionDenied || last_error_ == Errc::kOverQuota;
  return is_said && !closed_ && up_count_ == 0 ? last_error_ : make_error_code(Errc::kUnavailable);
}

/// Kept until the next error, even after the link recovers: the last error, not the present state.
void NodeLink::note_error(error_code why, std::string text) {
  last_error_ = why;
  last_error_text_ = std::move(text);
}

/// A sign that the node does not serve. An error answered by the node itself does not count.
void NodeLink::failure() {
  ++failures_;
  breaker_.failed(shared_->clock.now());
  count_away();
  if (shared_->on_node_failure) shared_->on_node_failure();
}

/// Sessions first: since closed_ is set, calls they end are not requeued. Then the waiting calls.
void NodeLink::close() {
  closed_ = true;
  count_away();
  for (Connection& connection : connections_) {
    Connection closed = std::exchange(connection, {});
    if (closed.attempt) closed.attempt->end();
    if (closed.session) closed.session->close();
  }
  for (const auto& session : std::exchange(retired_, {})) session->close();
  // One by one: the end of a call may end other waiting calls.
  while (!waiting_.empty()) {
    Call* const call = waiting_.back();
    waiting_.pop_back();
    call->end(Errc::kUnavailable);
  }
}

void NodeLink::take_back(const LentMemory::Region& region) {
  for (const Connection& connection : connections_) {
    if (connection.is_up()) connection.session->take_back(region);
  }
  for (const auto& session : retired_) session->take_back(region);
}

NodeLink::LendState NodeLink::lend(const std::shared_ptr<LentMemory::Region>& region) {
  if (up_count_ < connections_.size()) connect_missing();
  LendState state;
  state.pending = connecting_count_;
  for (const Connection& connection : connections_) {
    if (!connection.is_up()) continue;
    const LinkRegions::State lent = connection.session->lend(region);
    state.lent += lent == LinkRegions::State::kYes;
    state.pending += lent == LinkRegions::State::kPending || lent == LinkRegions::State::kNotNow;
  }
  return state;
}

NodeStatus NodeLink::status() const {
  NodeStatus status;
  status.name = config_.name;
  status.endpoint = config_.endpoint;
  status.node_id = node_id_;
  status.connected = up_count_ > 0;
  status.breaker_open = breaker_.is_open();
  switch (endpoint_.scheme) {
    case Endpoint::Scheme::kTcp: status.peer_transport = "tcp"; break;
    case Endpoint::Scheme::kTls: status.peer_transport = "tls"; break;
    case Endpoint::Scheme::kUnix: status.peer_transport = "unix"; break;
    case Endpoint::Scheme::kSim: status.peer_transport = "sim"; break;
  }
  status.rdma_text = shared_->verbs.why();
  bool has_lent = false;
  for (const Connection& connection : connections_) {
    if (!connection.is_up()) continue;
    has_lent = has_lent || connection.session->shares_memory();
    status.rdma_lanes += std::popcount(connection.session->lanes_up());
    if (const std::string why = connection.session->lanes_why(); !why.empty()) status.rdma_text = why;
  }
  if (has_lent) status.peer_transport += "+memfd";
  if (status.rdma_lanes > 0) status.peer_transport += "+verbs";
  status.calls = calls_;
  status.failures = failures_;
  status.timeouts = timeouts_;
  status.breaker_openings = openings_;
  status.reconnects = connects_ > connections_.size() ? connects_ - connections_.size() : 0;
  status.last_error = last_error_;
  status.last_error_text = last_error_text_;
  return status;
}

}  // namespace kv
