// client/client.cc: the short calls. Each asks some nodes and sums up their answers. The long calls are get.cc, put.cc
// and match.cc; memory.cc lends memory.
#include "client/client.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "base/assert.h"
#include "client/client_impl.h"
#include "client/link/ping_call.h"

namespace kv {
namespace {

Clock& steady_clock() {
  static SteadyClock clock;
  return clock;
}

/// Whether a node rejects the record or the client, which needs a person.
bool is_about_the_record(error_code why) {
  return why == Errc::kPermissionDenied || why == Errc::kMismatch || why == Errc::kBadRequest ||
         why == Errc::kUnsupported || why == Errc::kTooLarge;
}

ClientCall counted_as(FrameType verb) {
  switch (verb) {
    case FrameType::kTouch: return ClientCall::kTouch;
    case FrameType::kRetain: return ClientCall::kPin;
    case FrameType::kUnretain: return ClientCall::kUnpin;
    default: return ClientCall::kDrop;
  }
}

/// touch, retain, unretain, drop.
class CountCall final : public Call {
 public:
  Hashes hashes;
  std::uint64_t count = 0;
  bool until_restart = false;  ///< For drop.

 private:
  error_code send(CallSession& session) override {
    const LinkTerms& terms = session.terms();
    if (hashes.size() > terms.chain_blocks_max ||
        hashes.size() * sizeof(BlockHash) + kTableOverheadBytes > terms.table_bytes_max) {
      return Errc::kTooLarge;  // half a chain would be a different request
    }
    auto& builder = session.shared().new_request();
    const auto list = builder.CreateVectorOfStructs(wire_hashes(hashes), hashes.size());
    builder.Finish(wire::CreatePrefixRequest(builder, space_handle(), list, space_check()));
    if (type == FrameType::kTouch) {  // the others depend on the order of requests
      session.send_small(type, request_id(), builder, kSmallAnswerBytes);
    } else {
      session.send_frame(type, request_id(), builder);
    }
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::CountResponse>(frame.table);
    if (response == nullptr) return std::string(frame_type_name(type)) + ": malformed";
    count = response->count();
    until_restart = response->until_restart();
    return {};
  }
};

class StatsCall final : public Call {
 public:
  StatsCall() { type = FrameType::kStats; }
  NodeStats answer;
  std::vector<std::uint8_t> next;  ///< From the answer: more namespaces follow. Repeat the call with it.

 private:
  error_code send(CallSession& session) override {
    auto& builder = session.shared().new_request();
    const auto after = next.empty() ? 0 : builder.CreateVector(next);
    builder.Finish(wire::CreateStatsRequest(builder, /*learned=*/false, /*slow=*/0, after));
    session.send_frame(type, request_id(), builder);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::StatsResponse>(frame.table);
    if (response == nullptr) return "stats: malformed";
    next.clear();
    if (response->next() != nullptr) next.assign(response->next()->begin(), response->next()->end());
    if (response->stats() != nullptr) {
      for (const wire::Stat* stat : *response->stats()) {
        if (stat->name() == nullptr) return "stats: a value without a name";
        answer.values.emplace_back(stat->name()->str(), stat->value());
      }
    }
    if (response->namespaces() != nullptr) {
      for (const wire::NamespaceStat* one : *response->namespaces()) {
        if (one->record() == nullptr) return "stats: a namespace without a record";
        answer.namespaces.push_back({one->record()->str(), one->block_count(), one->total_bytes(), one->stored_blocks(),
                                     one->lookups(), one->empty_lookups(), one->roots(), one->roots_stored_only(),
                                     one->roots_asked_only()});
      }
    }
    if (response->tenants() != nullptr) {
      for (const wire::TenantStat* one : *response->tenants()) {
        if (one->name() == nullptr) return "stats: a tenant without a name";
        NodeStats::Tenant& tenant = answer.tenants.emplace_back();
        tenant.name = one->name()->str();
        if (one->stats() == nullptr) continue;
        for (const wire::Stat* stat : *one->stats()) {
          if (stat->name() == nullptr) return "stats: a value without a name";
          tenant.values.emplace_back(stat->name()->str(), stat->value());
        }
      }
    }
    return {};
  }
};

class EraseCall final : public Call {
 public:
  EraseCall() { type = FrameType::kErase; }
  std::string owner;  ///< As sent in the request.
  NodeErasure answer;

 private:
  error_code send(CallSession& session) override {
    auto& builder = session.shared().new_request();
    builder.Finish(wire::CreateOpenRequest(builder, builder.CreateString(owner)));
    session.send_frame(type, request_id(), builder);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::StatsResponse>(frame.table);
    if (response == nullptr || response->stats() == nullptr) return "erase: malformed";
    for (const wire::Stat* stat : *response->stats()) {
      if (stat->name() == nullptr) return "erase: a value without a name";
      answer.values.emplace_back(stat->name()->str(), stat->value());
    }
    return {};
  }
};

class SlowLogCall final : public Call {
 public:
  SlowLogCall() { type = FrameType::kStats; }
  bool empties = false;
  NodeSlowLog answer;

 private:
  error_code send(CallSession& session) override {
    auto& builder = session.shared().new_request();
    builder.Finish(wire::CreateStatsRequest(builder, /*learned=*/false, /*slow=*/empties ? 2 : 1));
    session.send_frame(type, request_id(), builder);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::StatsResponse>(frame.table);
    if (response == nullptr) return "stats: malformed";
    answer = {};
    const auto* const slow = response->slow();
    if (slow == nullptr) return {};  // an answer to plain stats
    const auto time = [](std::uint64_t us) {
      return std::chrono::microseconds(std::min<std::uint64_t>(us, std::uint64_t{1} << 62));
    };
    const auto text = [](const flatbuffers::String* of) { return of == nullptr ? std::string() : of->str(); };
    answer.is_kept = true;
    answer.threshold = time(slow->threshold_us());
    answer.count = slow->count();
    if (slow->requests() == nullptr) return {};
    for (const wire::SlowRequest* const one : *slow->requests()) {
      NodeSlowLog::Request& request = answer.requests.emplace_back();
      request.number = one->number();
      request.began = time(one->began_us());
      request.took = time(one->took_us());
      request.lock = time(one->lock_us());
      request.store = time(one->store_us());
      request.room = time(one->room_us());
      request.disk = time(one->disk_us());
      request.move = time(one->move_us());
      request.client = time(one->client_us());
      request.other = time(one->other_us());
      request.verb = text(one->verb());
      request.model = text(one->model());
      request.tenant = text(one->tenant());
      request.identity = text(one->identity());
      request.peer = text(one->peer());
      if (one->trace() != nullptr) request.traceparent = TraceContext::from_bytes(one->trace()->bytes()->data()).text();
      if (const auto* id = one->namespace_id())
        request.namespace_id = to_hex(std::as_bytes(std::span(id->data(), id->size())));
      request.blocks = one->blocks();
      request.bytes = one->bytes();
      request.session = one->session();
      request.failed = one->failed();
    }
    return {};
  }
};

class LearnedCall final : public Call {
 public:
  LearnedCall() { type = FrameType::kStats; }
  NodeLearned answer;

 private:
  error_code send(CallSession& session) override {
    auto& builder = session.shared().new_request();
    builder.Finish(wire::CreateStatsRequest(builder, /*learned=*/true));
    session.send_frame(type, request_id(), builder);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::StatsResponse>(frame.table);
    if (response == nullptr) return "stats: malformed";
    if (const auto* bytes = response->learned())
      answer.learned.assign(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    return {};
  }
};

/// A first answer may name a cluster, or a later map: before that map arrives, puts and lookups would use other places.
/// So its nodes are asked again.
template <class Impl>
asio::awaitable<std::vector<PingCall>> ping_members(Impl& impl, std::uint32_t space, TimePoint until,
                                                    CallControl control) {
  while (true) {
    const std::uint64_t epoch = impl.shared->map_epoch;
    CallGroup group(impl.shared->executor, control);
    std::vector<PingCall> calls(impl.members.size());
    for (PingCall& call : calls) call.space = space;
    impl.start_on_each(calls, group, until);
    co_await wait_all(group);
    co_await impl.wait_for_map(until);
    const bool is_over = impl.shared->clock.now() >= until || control.is_cancelled();
    if (impl.shared->map_epoch == epoch || is_over) co_return calls;
  }
}

}  // namespace

Client::Client(asio::any_io_executor executor, ClientConfig config, Network& network)
    : Client(std::move(executor), std::move(config), network, steady_clock()) {}

Client::Client(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock,
               verbs::Provider* verbs)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(config), network, clock, verbs)) {}

Client::~Client() = default;

// -- namespaces

/// Equal records are one space, found by their text. Spaces are never freed, because callers keep a Space as an index;
/// kSpacesMax bounds a caller with a new record for each request.
Async<Space> Client::open(NamespaceRecord record, std::chrono::microseconds deadline, CallControl control) {
  auto& spaces = impl_->shared->spaces;
  std::size_t index = 0;
  while (index < spaces.size() && spaces[index]->record.text() != record.text()) ++index;
  if (index == spaces.size()) {
    if (spaces.size() >= kSpacesMax) co_return error_code(Errc::kBusy);
    auto info = std::make_unique<ClientShared::SpaceInfo>();
    info->record = std::move(record);
    info->id = info->record.callers_id();
    spaces.push_back(std::move(info));
  }
  const Space space{static_cast<std::uint32_t>(index)};
  if (const error_code refused = impl_->refuses(space, deadline, control)) co_return refused;
  if (deadline <= 0us) {  // a request without time would count against the nodes
    for (const std::size_t node : impl_->members) impl_->links[node]->prepare_space(static_cast<std::uint32_t>(space));
    co_return space;
  }
  const auto opened = co_await wait_open(space, deadline, control);
  // A worker may start while the store is away: only a record refused by the nodes is an error.
  if (!opened && is_about_the_record(opened.error())) co_return opened.error();
  co_return space;
}

/// A ping that names the namespace is sent only where it is open, so its answer proves both.
Async<void> Client::wait_open(Space space, std::chrono::microseconds deadline, CallControl control) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(space, deadline, control)) co_return refused;
  const VerbInProgress verb(impl.shared);
  if (!impl.find_space(space)->record.is_set()) impl.meet_hot_roots(space);  // so the first match has them
  const auto calls =
      co_await ping_members(impl, static_cast<std::uint32_t>(space), impl.deadline_after(deadline), control);
  // One node with the namespace is enough. Otherwise errors that need a person precede transient ones.
  error_code why;
  for (const PingCall& call : calls) {
    if (!call.error()) co_return Result<void>();
    if (!why || (!is_about_the_record(why) && (is_about_the_record(call.error()) || why == Errc::kUnavailable))) {
      why = call.error();
    }
  }
  co_return why;
}

std::size_t Client::block_bytes(Space space) const {
  const auto* info = impl_->find_space(space);
  return info == nullptr ? 0 : info->record.block_bytes();
}

// -- touch, retain, unretain, drop: one request to each owner, one number back

/// Asks the owner of each chain, and sums up the answers. Errors: of the first that failed, after all were asked.
Async<DropResult> Client::Impl::count(FrameType verb, Space space, std::vector<OwnedChain> chains, TimePoint until,
                                      CallControl control) {
  const VerbInProgress in_progress(shared, counted_as(verb));
  CallGroup group(shared->executor, control);
  std::vector<CountCall> calls(chains.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].type = verb;
    calls[i].hashes = chains[i].hashes;
    start(calls[i], chains[i].node, space, group, until);
  }
  co_await wait_all(group);
  DropResult sum;
  for (const CountCall& call : calls) {
    // A partial sum would pass for the whole. The other owners are done all the same.
    if (call.error()) {
      in_progress.done(call.error());
      co_return call.error();
    }
    sum.block_count += call.count;
    sum.until_restart = sum.until_restart || call.until_restart;
  }
  in_progress.done({});
  co_return sum;
}

Async<std::size_t> Client::Impl::count_prefix(FrameType verb, Space space, Hashes hashes,
                                              std::chrono::microseconds deadline, CallControl control) {
  if (const error_code refused = refuses(space, deadline, control)) co_return refused;
  if (hashes.empty()) co_return std::size_t{0};
  const TimePoint until = deadline_after(deadline);
  auto copies = other_copies(verb, space, hashes);
  auto chains = split(space, hashes);
  const auto counted = co_await count(verb, space, std::move(chains), until, control);
  error_code why = counted ? error_code() : counted.error();
  if (!copies.empty()) {
    // After the chain, even if that failed: blocks unretained before would be missing from its count. Copies are not
    // counted: the result is about the chain. A copy that a node could not keep or mark as used is one copy less; but
    // one that would stay kept for ever is an error.
    const auto done = co_await count(verb, space, std::move(copies), until, control);
    if (!done && !why && verb == FrameType::kUnretain) why = done.error();
  }
  if (why) co_return why;
  co_return counted->block_count;
}

/// Copies besides those of split(): of the chain's present root for touch and retain, of all places for unretain.
std::vector<OwnedChain> Client::Impl::other_copies(FrameType verb, Space space, Hashes hashes) const {
  if (!has_hot_roots() || find_space(space)->record.is_set()) return {};
  if (verb == FrameType::kUnretain) return split_copies(space, hashes);
  std::vector<OwnedChain> copies;
  const Hashes root = hashes.first(hot_roots(space, hashes).now);
  if (root.empty()) return copies;
  const std::size_t primary = map->extents(hashes, root.size()).front().node;
  for (const std::size_t node : members) {
    if (node == primary) continue;
    OwnedChain& copy = copies.emplace_back();
    copy.node = node;
    copy.hashes = root;
  }
  return copies;
}

Async<std::size_t> Client::touch(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control) {
  return impl_->count_prefix(FrameType::kTouch, space, hashes, deadline, control);
}

Async<std::size_t> Client::retain(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control) {
  return impl_->count_prefix(FrameType::kRetain, space, hashes, deadline, control);
}

Async<std::size_t> Client::unretain(Space space, Hashes hashes, std::chrono::microseconds deadline,
                                    CallControl control) {
  return impl_->count_prefix(FrameType::kUnretain, space, hashes, deadline, control);
}

Async<DropResult> Client::drop(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(space, deadline, control)) co_return refused;
  std::vector<OwnedChain> chains;
  if (hashes.empty()) {  // the whole namespace, everywhere
    chains.resize(impl.members.size());
    for (std::size_t i = 0; i < chains.size(); ++i) chains[i].node = impl.members[i];
  } else {
    chains = impl.split_copies(space, hashes);
    impl.hot_sets.forget(hashes.back());
  }
  if (!hashes.empty() && !impl.find_space(space)->record.is_set()) {
    // Blocks below the last one on other nodes become unreachable, and age out.
    const auto has_last = [&](const OwnedChain& chain) {
      return chain.position(chain.hashes.size() - 1) == hashes.size() - 1;
    };
    std::erase_if(chains, [&](const OwnedChain& chain) { return !has_last(chain); });
    KV_ASSERT(!chains.empty() && (chains.size() == 1 || impl.has_hot_roots()));
  }
  const TimePoint until = impl.deadline_after(deadline);
  const auto dropped = co_await impl.count(FrameType::kDrop, space, std::move(chains), until, control);
  co_return dropped;
}

// -- about the nodes

namespace {

/// An answer for each node, in node order: a failed node has an error instead of values. The call itself succeeds, so
/// that a tool sees the nodes that answer. `prepare` is applied to each call before sending. `Impl`: Client's.
template <class AnyCall, class Impl>
Async<std::vector<decltype(AnyCall::answer)>> ask_each(
    Impl& impl, std::chrono::microseconds deadline, CallControl control,
    std::function<void(AnyCall&)> prepare = [](AnyCall&) {}) {
  if (const error_code refused = impl.refuses(deadline, control)) co_return refused;
  const VerbInProgress verb(impl.shared);
  CallGroup group(impl.shared->executor, control);
  std::vector<std::string> names;  // the map may change meanwhile
  for (const std::size_t node : impl.members) names.push_back(impl.links[node]->config().name);
  std::vector<AnyCall> calls(impl.members.size());
  for (AnyCall& call : calls) prepare(call);
  impl.start_on_each(calls, group, impl.deadline_after(deadline));
  co_await wait_all(group);
  std::vector<decltype(AnyCall::answer)> answers;
  for (std::size_t node = 0; node < calls.size(); ++node) {
    if (calls[node].error()) calls[node].answer = {};  // discards a partial answer
    answers.push_back(std::move(calls[node].answer));
    answers.back().name = names[node];
    answers.back().error = calls[node].error();
  }
  co_return answers;
}

}  // namespace

Async<std::vector<NodeStats>> Client::stats(std::chrono::microseconds deadline, CallControl control) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(deadline, control)) co_return refused;
  const VerbInProgress verb(impl.shared);
  const TimePoint until = impl.deadline_after(deadline);
  struct Asked {
    std::size_t link;
    NodeStats answer;
    std::vector<std::uint8_t> next;
    bool is_done = false;
  };
  std::vector<Asked> nodes;
  for (const std::size_t link : impl.members)
    nodes.push_back({.link = link, .answer = {.name = impl.links[link]->config().name}, .next = {}});
  // An answer has some of the namespaces, so that each request is quick; further requests get the rest.
  while (std::ranges::any_of(nodes, [](const Asked& node) { return !node.is_done; })) {
    CallGroup group(impl.shared->executor, control);
    std::vector<StatsCall> calls(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].is_done) continue;
      calls[i].group = &group;
      calls[i].next = nodes[i].next;
      calls[i].answer = std::move(nodes[i].answer);
      impl.links[nodes[i].link]->start(calls[i], until);
    }
    co_await wait_all(group);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      Asked& node = nodes[i];
      if (node.is_done) continue;
      const std::string name = calls[i].answer.name;
      if (calls[i].error()) calls[i].answer = {};  // discards a partial answer
      node.answer = std::move(calls[i].answer);
      node.answer.name = name;
      node.answer.error = calls[i].error();
      node.next = std::move(calls[i].next);
      constexpr std::size_t kNamespacesMax = 1 << 17;  // stops a node that never ends
      node.is_done = node.answer.error || node.next.empty() || node.answer.namespaces.size() >= kNamespacesMax;
    }
  }
  std::vector<NodeStats> answers;
  for (Asked& node : nodes) answers.push_back(std::move(node.answer));
  co_return answers;
}

Async<std::vector<NodeErasure>> Client::erase(TenantOrShare owner, std::chrono::microseconds deadline,
                                              CallControl control) {
  return ask_each<EraseCall>(
      *impl_, deadline, control,
      [said = (owner.is_share ? "share=" : "tenant=") + owner.name + "\n"](EraseCall& call) { call.owner = said; });
}

Async<std::vector<NodeSlowLog>> Client::slow_log(bool empties, std::chrono::microseconds deadline,
                                                 CallControl control) {
  return ask_each<SlowLogCall>(*impl_, deadline, control, [empties](SlowLogCall& call) { call.empties = empties; });
}

Async<std::vector<NodeLearned>> Client::learned(std::chrono::microseconds deadline, CallControl control) {
  return ask_each<LearnedCall>(*impl_, deadline, control);
}

Async<std::vector<std::chrono::nanoseconds>> Client::ping(std::chrono::microseconds deadline, CallControl control) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(deadline, control)) co_return refused;
  const VerbInProgress verb(impl.shared);
  CallGroup group(impl.shared->executor, control);
  std::vector<PingCall> calls(impl.members.size());
  impl.start_on_each(calls, group, impl.deadline_after(deadline));
  co_await wait_all(group);
  std::vector<std::chrono::nanoseconds> round_trips;
  for (const PingCall& call : calls) {
    KV_ASSERT(call.error() || call.round_trip.count() >= 0);  // negative means a missing answer
    round_trips.push_back(call.error() ? std::chrono::nanoseconds(-1) : call.round_trip);
  }
  co_return round_trips;
}

Async<void> Client::drain_node(std::string_view id, bool drain, std::chrono::microseconds deadline,
                               CallControl control) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(deadline, control)) co_return refused;
  const auto at = std::ranges::find(impl.cluster.nodes, id, &ClusterStatus::Node::id);
  if (at == impl.cluster.nodes.end()) co_return error_code(Errc::kNotFound);
  const VerbInProgress verb(impl.shared);
  CallGroup group(impl.shared->executor, control);
  ClusterDrainCall call;
  call.id = id;
  call.drain = drain;
  call.group = &group;
  const std::size_t node = impl.members[static_cast<std::size_t>(at - impl.cluster.nodes.begin())];
  impl.links[node]->start(call, impl.deadline_after(deadline));
  co_await wait_all(group);
  if (call.error()) co_return call.error();
  co_return Result<void>();
}

std::vector<NodeStatus> Client::nodes() const {
  std::vector<NodeStatus> nodes;
  for (const std::size_t node : impl_->members) {
    nodes.push_back(impl_->links[node]->status());
    const Hedger::Node& reads = impl_->hedger.node(node);
    nodes.back().hedges = reads.hedges;
    nodes.back().hedge_wins = reads.wins;
  }
  return nodes;
}

std::string Client::metrics_text() const {
  const ClientShared& shared = *impl_->shared;
  return shared.metrics.text(nodes(), {.identity = shared.config.identity,
                                       .call_count = shared.call_count,
                                       .calls_max = shared.config.calls_max,
                                       .lent_bytes = shared.memory.bytes(),
                                       .numa = numa()});
}

void Client::tell_prefill_speed(double tokens_per_second) {
  impl_->shared->metrics.set_prefill_speed(tokens_per_second);
}

Async<void> Client::learn_hot_roots(Space space, std::chrono::microseconds deadline, CallControl control) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(space, deadline, control)) co_return refused;
  if (!impl.has_hot_roots() || impl.find_space(space)->record.is_set()) co_return Result<void>();
  const VerbInProgress verb(impl.shared);
  CallGroup group(impl.shared->executor, control);
  std::deque<HotRootsCall> calls;
  for (const std::size_t node : impl.members) {
    HotRootsCall& call = calls.emplace_back(impl.hot_sets, node);
    impl.start(call, node, space, group, impl.deadline_after(deadline));
  }
  co_await wait_all(group);
  co_return Result<void>();
}

std::size_t Client::hot_block_count(Space space, Hashes hashes) const {
  return impl_->find_space(space) == nullptr ? 0 : impl_->hot_roots(space, hashes).now;
}

std::vector<BlockHash> Client::hot_blocks(Space space, std::optional<std::size_t> unless) const {
  return impl_->hot_sets.hot_blocks(static_cast<std::uint32_t>(space), unless);
}

ClusterStatus Client::cluster() const { return impl_->cluster; }

Async<ClusterStatus> Client::learn_cluster(std::chrono::microseconds deadline, CallControl control) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(deadline, control)) co_return refused;
  const VerbInProgress verb(impl.shared);
  const auto calls = co_await ping_members(impl, Call::kNoSpace, impl.deadline_after(deadline), control);
  const bool has_answer = std::ranges::any_of(calls, [](const PingCall& call) { return !call.error(); });
  if (!has_answer && impl.cluster.epoch == 0) co_return calls.front().error();
  co_return impl.cluster;
}

}  // namespace kv
