// client/client.cc: opening, and what a client tells of its nodes. All other calls are in client/calls.
#include "client/client.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/assert.h"
#include "base/text/printable.h"
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
    return send_table(session, wire::CreateAdminRequest(builder, path, query));
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
asio::awaitable<std::vector<PingCall>> ping_members(ClientCore& core, std::uint32_t space, TimePoint until,
                                                    CallControl control) {
  while (true) {
    const std::uint64_t epoch = core.shared->map_epoch;
    CallBundle bundle(core.shared->executor, control);
    std::vector<PingCall> calls(core.members.size());
    for (PingCall& call : calls) call.space = space;
    core.start_on_each(calls, bundle, until);
    co_await wait_all(bundle);
    co_await core.wait_for_map(until);
    const bool is_over = core.shared->clock.now() >= until || control.is_cancelled();
    if (core.shared->map_epoch == epoch || is_over) co_return calls;
  }
}

}  // namespace

Client::Client(asio::any_io_executor executor, ClientConfig config, Network& network)
    : Client(std::move(executor), std::move(config), network, steady_clock()) {}

Client::Client(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock,
               verbs::Provider* verbs)
    : core_(std::make_unique<ClientCore>(std::move(executor), std::move(config), network, clock, verbs)) {}

Client::~Client() = default;

// -- namespaces

/// Equal records are one space, found by their text. Spaces are never freed, because callers keep a Space as an index;
/// kSpacesMax bounds a caller with a new record for each request.
Async<Space> Client::open(NamespaceRecord record, std::chrono::microseconds deadline, CallControl control) {
  auto& spaces = core_->shared->spaces;
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
  if (const error_code refused = core_->refuses(space, deadline, control)) co_return refused;
  if (deadline <= 0us) {  // a request without time would count against the nodes
    for (const std::size_t node : core_->members) core_->links[node]->prepare_space(static_cast<std::uint32_t>(space));
    co_return space;
  }
  const auto opened = co_await wait_open(space, deadline, control);
  // A worker may start while the store is away: only a record refused by the nodes is an error.
  if (!opened && is_about_the_record(opened.error())) co_return opened.error();
  co_return space;
}

/// A ping that names the namespace is sent only where it is open, so its answer proves both.
Async<void> Client::wait_open(Space space, std::chrono::microseconds deadline, CallControl control) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(space, deadline, control)) co_return refused;
  const CallInProgress in_progress(core.shared);
  if (!core.find_space(space)->record.is_set()) core.meet_hot_roots(space);  // so the first match has them
  const auto calls =
      co_await ping_members(core, static_cast<std::uint32_t>(space), core.deadline_after(deadline), control);
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
  const auto* info = core_->find_space(space);
  return info == nullptr ? 0 : info->record.block_bytes();
}

// -- about the nodes

/// A failed node has an error in place of its answer; the call itself succeeds, so that a tool sees the nodes that
/// answer.
Async<std::vector<NodeAnswer>> Client::ask(NodeQuestion question, std::chrono::microseconds deadline,
                                           CallControl control) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(deadline, control)) co_return refused;
  const CallInProgress in_progress(core.shared);
  const ClusterStatus& cluster = core.cluster;
  std::vector<std::size_t> links;
  for (std::size_t i = 0; i < core.members.size(); ++i) {
    const bool is_meant = question.node.empty() || core.links[core.members[i]]->config().name == question.node ||
                          (i < cluster.nodes.size() && cluster.nodes[i].id == question.node);
    if (is_meant) links.push_back(core.members[i]);
  }
  if (links.empty()) co_return error_code(Errc::kNotFound);
  CallBundle bundle(core.shared->executor, control);
  std::vector<AdminCall> calls(links.size());
  const TimePoint until = core.deadline_after(deadline);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].answer.name = core.links[links[i]]->config().name;  // the map may change meanwhile
    calls[i].question = &question;
    core.start(calls[i], links[i], bundle, until);
  }
  co_await wait_all(bundle);
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
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(deadline, control)) co_return refused;
  const CallInProgress in_progress(core.shared);
  CallBundle bundle(core.shared->executor, control);
  std::vector<PingCall> calls(core.members.size());
  core.start_on_each(calls, bundle, core.deadline_after(deadline));
  co_await wait_all(bundle);
  std::vector<std::chrono::nanoseconds> round_trips;
  for (const PingCall& call : calls) {
    KV_ASSERT(call.error() || call.round_trip.count() >= 0);  // negative means a missing answer
    round_trips.push_back(call.error() ? std::chrono::nanoseconds(-1) : call.round_trip);
  }
  co_return round_trips;
}

std::vector<NodeStatus> Client::nodes() const {
  std::vector<NodeStatus> nodes;
  for (const std::size_t node : core_->members) {
    nodes.push_back(core_->links[node]->status());
    const Hedger::Node& reads = core_->hedger.node(node);
    nodes.back().hedges = reads.hedges;
    nodes.back().hedge_wins = reads.wins;
  }
  return nodes;
}

std::string Client::reason_of(error_code why) const {
  constexpr std::size_t kNamedMax = 3;
  std::string text;
  std::size_t count = 0;
  for (const NodeStatus& node : nodes()) {
    const bool is_meant = why == Errc::kUnavailable ? !node.connected : bool(node.last_error) && node.last_error == why;
    if (!is_meant || ++count > kNamedMax) continue;
    text += text.empty() ? "" : "; ";
    text +=
        node.endpoint + ": " + (node.last_error_text.empty() ? "not connected yet" : printable(node.last_error_text));
  }
  if (count > kNamedMax) text += "; and " + std::to_string(count - kNamedMax) + " more nodes";
  return text;
}

bool Client::is_connecting() const {
  return std::ranges::any_of(core_->members, [&](std::size_t node) { return core_->links[node]->is_connecting(); });
}

std::string Client::metrics_text() const {
  const ClientShared& shared = *core_->shared;
  return shared.metrics.text(nodes(), {.identity = shared.config.identity,
                                       .call_count = shared.call_count,
                                       .calls_max = shared.config.calls_max,
                                       .lent_bytes = shared.memory.bytes(),
                                       .numa = numa(),
                                       .certificates = shared.certificates.get()});
}

void Client::tell_prefill_speed(double tokens_per_second) {
  core_->shared->metrics.set_prefill_speed(tokens_per_second);
}

Async<void> Client::learn_hot_roots(Space space, std::chrono::microseconds deadline, CallControl control) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(space, deadline, control)) co_return refused;
  if (!core.has_hot_roots() || core.find_space(space)->record.is_set()) co_return Result<void>();
  const CallInProgress in_progress(core.shared);
  CallBundle bundle(core.shared->executor, control);
  std::deque<HotRootsCall> calls;
  for (const std::size_t node : core.members) {
    HotRootsCall& call = calls.emplace_back(core.hot_sets, node);
    core.start(call, node, space, bundle, core.deadline_after(deadline));
  }
  co_await wait_all(bundle);
  co_return Result<void>();
}

std::size_t Client::hot_block_count(Space space, Hashes hashes) const {
  return core_->find_space(space) == nullptr ? 0 : core_->hot_roots(space, hashes).now;
}

std::vector<BlockHash> Client::hot_blocks(Space space, std::optional<std::size_t> unless) const {
  return core_->hot_sets.hot_blocks(static_cast<std::uint32_t>(space), unless);
}

ClusterStatus Client::cluster() const { return core_->cluster; }

Async<ClusterStatus> Client::learn_cluster(std::chrono::microseconds deadline, CallControl control) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(deadline, control)) co_return refused;
  const CallInProgress in_progress(core.shared);
  const auto calls = co_await ping_members(core, Call::kNoSpace, core.deadline_after(deadline), control);
  const bool has_answer = std::ranges::any_of(calls, [](const PingCall& call) { return !call.error(); });
  if (!has_answer && core.cluster.epoch == 0) co_return calls.front().error();
  co_return core.cluster;
}

}  // namespace kv
