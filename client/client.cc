// client/client.cc: the short calls. Each asks some nodes and sums up their answers. The long calls are get.cc, put.cc
// and match.cc; memory.cc lends memory.
#include "client/client.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/assert.h"
#include "client/core/client_core.h"
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

class AdminCall final : public Call {
 public:
  AdminCall() { type = FrameType::kAdmin; }
  const NodeQuestion* question = nullptr;
  NodeAnswer answer;

 private:
  error_code send(CallSession& session) override {
    const std::size_t bytes = question->path.size() + question->query.size();
    if (bytes > kAdminQuestionBytesMax || bytes + kTableOverheadBytes > session.terms().table_bytes_max)
      return Errc::kTooLarge;
    auto& builder = session.shared().new_request();
    const auto path = builder.CreateString(question->path), query = builder.CreateString(question->query);
    builder.Finish(wire::CreateAdminRequest(builder, path, query));
    session.send_frame(type, request_id(), builder);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::AdminResponse>(frame.table);
    if (response == nullptr || response->json() == nullptr) return "admin: malformed";
    const std::string_view json = response->json()->string_view();
    const auto is_ascii = [](char c) { return c >= ' ' && c <= '~'; };
    if (json.size() > kAdminAnswerBytesMax || !std::ranges::all_of(json, is_ascii))
      return "admin: the answer is not ASCII of at most 8 MiB";
    answer.json = json;
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

/// A failed node has an error in place of its answer; the call itself succeeds, so that a tool sees the nodes that
/// answer.
Async<std::vector<NodeAnswer>> Client::ask(NodeQuestion question, std::chrono::microseconds deadline,
                                           CallControl control) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(deadline, control)) co_return refused;
  const VerbInProgress verb(impl.shared);
  const ClusterStatus& cluster = impl.cluster;
  std::vector<std::size_t> links;
  for (std::size_t i = 0; i < impl.members.size(); ++i) {
    const bool is_meant = question.node.empty() || impl.links[impl.members[i]]->config().name == question.node ||
                          (i < cluster.nodes.size() && cluster.nodes[i].id == question.node);
    if (is_meant) links.push_back(impl.members[i]);
  }
  if (links.empty()) co_return error_code(Errc::kNotFound);
  CallGroup group(impl.shared->executor, control);
  std::vector<AdminCall> calls(links.size());
  const TimePoint until = impl.deadline_after(deadline);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].answer.name = impl.links[links[i]]->config().name;  // the map may change meanwhile
    calls[i].question = &question;
    calls[i].group = &group;
    impl.links[links[i]]->start(calls[i], until);
  }
  co_await wait_all(group);
  std::vector<NodeAnswer> answers;
  for (AdminCall& call : calls) {
    call.answer.error = call.error();
    call.answer.why = call.error_text();
    if (call.error()) call.answer.json.clear();
    answers.push_back(std::move(call.answer));
  }
  co_return answers;
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
                                       .numa = numa(),
                                       .certificates = shared.certificates.get()});
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
