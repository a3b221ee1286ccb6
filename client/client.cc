#include "client/client.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "base/assert.h"
#include "client/client_impl.h"
#include "transport/frame_message.h"

namespace kv {
namespace {

constexpr std::size_t kSpacesMax = 65536;
constexpr std::size_t kLeasesMax = 65536;
constexpr Duration kPause = 1ms;  // Between looks at what another thread or a node has to do first.
constexpr std::chrono::microseconds kLeaseMax = std::chrono::hours(1);  // What we believe of a node's lease_us.

Clock& steady_clock() {
  static SteadyClock clock;
  return clock;
}

void check(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

ClientConfig checked(ClientConfig config) {
  check(!config.nodes.empty(), "nodes: at least one is needed");
  for (NodeConfig& node : config.nodes) {
    std::string why;
    check(parse_endpoint(node.endpoint, &why).has_value(), "nodes: endpoint '" + node.endpoint + "': " + why);
    if (node.name.empty()) node.name = node.endpoint;
  }
  check(config.identity.size() <= 128, "identity: at most 128 bytes");
  check(config.connections_per_node >= 1 && config.connections_per_node <= 64, "connections_per_node: must be 1..64");
  check(config.connect_timeout > Duration::zero(), "connect_timeout: must be positive");
  check(config.backoff_min > Duration::zero() && config.backoff_min <= config.backoff_max,
        "backoff_min: must be positive and at most backoff_max");
  check(config.breaker_failures >= 1, "breaker_failures: must be at least 1");
  check(config.breaker_open >= Duration::zero(), "breaker_open: must not be negative");
  check(config.calls_max >= 1, "calls_max: must be at least 1");
  for (const std::string& name : config.rdma_devices) {
    std::string why;
    check(verbs::parse_device_wish(name, &why).has_value(), "rdma_devices: " + why);
  }
  check(config.rdma_lanes <= 32, "rdma_lanes: must be at most 32");
  check(config.rdma_messages <= kMessageCountMax, "rdma_messages: must be at most 64");
  return config;
}

constexpr std::size_t kSmallAnswerBytes = 256;  ///< Of match and touch, at most.

ClusterMap make_map(const ClientConfig& config) {
  std::vector<ClusterMap::Node> nodes;
  for (const NodeConfig& node : config.nodes) nodes.push_back({node.name, node.weight});
  return ClusterMap(nodes);
}

/// Whether it is the record that a node does not take, which is for a person to mend.
bool is_about_the_record(error_code why) {
  return why == Errc::kMismatch || why == Errc::kBadRequest || why == Errc::kUnsupported || why == Errc::kTooLarge;
}

/// Ends when the link is connected and the namespace is open on the node.
class ReadyCall final : public Call {
 public:
  ReadyCall() { type = FrameType::kPing; }

 private:
  error_code send(CallSession& session) override {
    auto& builder = session.shared().new_request();
    builder.Finish(wire::CreatePingRequest(builder));
    session.send_frame(type, request_id(), builder);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    return read_table<wire::EmptyResponse>(frame.table) != nullptr ? "" : "ping: malformed";
  }
};

class PingCall final : public Call {
 public:
  PingCall() { type = FrameType::kPing; }
  std::chrono::nanoseconds round_trip{-1};

 private:
  error_code send(CallSession& session) override {
    clock_ = &session.shared().clock;
    sent_ = clock_->now();
    auto& builder = session.shared().new_request();
    builder.Finish(wire::CreatePingRequest(builder));
    session.send_frame(type, request_id(), builder);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    if (read_table<wire::EmptyResponse>(frame.table) == nullptr) return "ping: malformed";
    round_trip = clock_->now() - sent_;
    return {};
  }

  Clock* clock_ = nullptr;
  TimePoint sent_{};
};

class MatchCall final : public Call {
 public:
  MatchCall() { type = FrameType::kMatch; }
  const OwnedChain* chain = nullptr;
  const MatchOptions* options = nullptr;
  std::size_t asked = 0;
  std::size_t block_count = 0, disk_block_count = 0, partial_tokens = 0;
  std::uint64_t disk_us = 0;
  BlockHash partial_block{};
  std::uint64_t lease = 0, lease_us = 0;
  error_code lease_error;
  std::weak_ptr<CallSession> answered_by;

  error_code reason() const {
    if (error()) return error();
    return block_count == asked && asked < chain->hashes.size() ? make_error_code(Errc::kTooLarge) : error_code();
  }

 private:
  error_code send(CallSession& session) override {
    const std::size_t token_bytes = options->token_ids.size() * sizeof(std::uint32_t);
    const std::size_t extra_bytes = token_bytes > 0 ? options->extras.size_bytes() : 0;
    const std::size_t room =
        session.terms().table_bytes_max -
        std::min<std::size_t>(session.terms().table_bytes_max, kTableOverheadBytes + token_bytes + extra_bytes);
    asked = std::min({chain->hashes.size(), std::size_t{session.terms().chain_blocks_max}, room / sizeof(BlockHash)});
    if (asked == 0 && !chain->hashes.empty()) return Errc::kTooLarge;
    auto& builder = session.shared().new_request();
    const auto hashes = builder.CreateVectorOfStructs(wire_hashes(chain->hashes), asked);
    flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> tokens;
    flatbuffers::Offset<flatbuffers::Vector<const wire::ExtraDigest*>> extras;
    if (token_bytes > 0 && asked == chain->hashes.size()) {
      tokens = builder.CreateVector(options->token_ids.data(), options->token_ids.size());
      if (extra_bytes > 0) extras = builder.CreateVectorOfStructs(wire_extras(options->extras), options->extras.size());
    }
    builder.Finish(wire::CreateMatchRequest(builder, space_handle(), hashes, tokens, options->lease, options->prefetch,
                                            space_check(), extras));
    session.send_small(type, request_id(), builder, kSmallAnswerBytes);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::MatchResponse>(frame.table);
    if (response == nullptr) return "match: malformed";
    if (response->host_blocks() > asked || response->disk_blocks() > asked - response->host_blocks()) {
      return "match: host_blocks " + std::to_string(response->host_blocks()) + " and disk_blocks " +
             std::to_string(response->disk_blocks()) + " of " + std::to_string(asked);
    }
    if (response->lease_error() >= kErrcLocal) return "match: lease_error " + std::to_string(response->lease_error());
    disk_block_count = response->disk_blocks();
    block_count = response->host_blocks() + disk_block_count;
    disk_us = response->disk_us();
    lease = response->lease();
    lease_us = response->lease_us();
    if (response->lease_error() != 0) lease_error = make_error_code(static_cast<Errc>(response->lease_error()));
    if (response->partial_tokens() > 0) {
      if (response->partial_block() == nullptr) return "match: partial_tokens without partial_block";
      if (response->partial_tokens() > options->token_ids.size()) return "match: too many partial_tokens";
      partial_tokens = response->partial_tokens();
      std::memcpy(partial_block.bytes.data(), response->partial_block(), partial_block.bytes.size());
    }
    return {};
  }
  void on_end(CallSession* session) override {
    if (session != nullptr) answered_by = session->handle();
  }
};

/// touch, pin, unpin, drop.
class CountCall final : public Call {
 public:
  std::span<const BlockHash> hashes;
  std::uint64_t count = 0;
  bool until_restart = false;  ///< Of a drop.

 private:
  error_code send(CallSession& session) override {
    if (hashes.size() > session.terms().chain_blocks_max ||
        hashes.size() * sizeof(BlockHash) + kTableOverheadBytes > session.terms().table_bytes_max) {
      return Errc::kTooLarge;
    }
    auto& builder = session.shared().new_request();
    const auto list = builder.CreateVectorOfStructs(wire_hashes(hashes), hashes.size());
    builder.Finish(wire::CreatePrefixRequest(builder, space_handle(), list, space_check()));
    if (type == FrameType::kTouch) {
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
  NodeStats stats;

 private:
  error_code send(CallSession& session) override {
    auto& builder = session.shared().new_request();
    builder.Finish(wire::CreateStatsRequest(builder));
    session.send_frame(type, request_id(), builder);
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::StatsResponse>(frame.table);
    if (response == nullptr) return "stats: malformed";
    if (response->stats() != nullptr) {
      for (const wire::Stat* stat : *response->stats()) {
        if (stat->name() == nullptr) return "stats: a value without a name";
        stats.values.emplace_back(stat->name()->str(), stat->value());
      }
    }
    if (response->namespaces() != nullptr) {
      for (const wire::NamespaceStat* one : *response->namespaces()) {
        if (one->record() == nullptr) return "stats: a namespace without a record";
        stats.namespaces.push_back({one->record()->str(), one->block_count(), one->total_bytes()});
      }
    }
    return {};
  }
};

/// Lets the executor work for kPause, or until the call's deadline.
class Pause {
 public:
  explicit Pause(ClientShared& shared)
      : clock_(shared.clock), event_(shared.executor), alarm_(shared.clock.make_alarm(shared.executor)) {}
  asio::awaitable<void> wait(TimePoint until) {
    event_.reset();
    alarm_->arm(std::min<TimePoint>(clock_.now() + kPause, until), [this] { event_.set(); });
    co_await event_.wait();
  }

 private:
  Clock& clock_;
  Event event_;
  std::unique_ptr<Alarm> alarm_;
};

/// Until every call of the group has ended.
asio::awaitable<void> wait_all(CallGroup& group) {
  while (group.running > 0) {
    group.event.reset();
    co_await group.event.wait();
  }
}

}  // namespace

std::vector<OwnedChain> split_chain(const ClusterMap& map, std::span<const BlockHash> chain) {
  std::vector<OwnedChain> owned;
  if (map.node_count() == 1) {
    owned.emplace_back().hashes = chain;
    return owned;
  }
  auto positions = map.split(chain);
  owned.reserve(positions.size());
  for (std::size_t node = 0; node < positions.size(); ++node) {
    if (positions[node].empty()) continue;
    OwnedChain& part = owned.emplace_back();
    part.node = node;
    part.own_positions = std::move(positions[node]);
    part.own_hashes.reserve(part.own_positions.size());
    for (const std::uint32_t position : part.own_positions) part.own_hashes.push_back(chain[position]);
    part.hashes = part.own_hashes;
    part.positions = part.own_positions;
  }
  return owned;
}

// -- Client::Impl

Client::Impl::Impl(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock,
                   verbs::Provider* verbs)
    : shared(std::make_shared<ClientShared>(std::move(executor), checked(std::move(config)), network, clock, verbs)),
      map(make_map(shared->config)),
      idle_gets(make_idle_gets()) {
  for (const NodeConfig& node : shared->config.nodes) {
    std::string why;
    links.push_back(std::make_unique<NodeLink>(shared, node, parse_endpoint(node.endpoint, &why).value()));
  }
}

Client::Impl::~Impl() {
  for (const auto& link : links) link->close();
  shared->deadlines.close();
}

const ClientShared::SpaceInfo* Client::Impl::find_space(Space space) const {
  const auto index = static_cast<std::size_t>(space);
  return index < shared->spaces.size() ? shared->spaces[index].get() : nullptr;
}

error_code Client::Impl::refuses(Space space, std::chrono::microseconds deadline) const {
  if (find_space(space) == nullptr || deadline > kDeadlineMax) return Errc::kBadRequest;
  if (shared->call_count >= shared->config.calls_max) return Errc::kBusy;
  return {};
}

std::vector<Client::Impl::LeasePart> Client::Impl::take_lease(Lease lease) {
  const auto found = leases.find(static_cast<std::uint64_t>(lease));
  if (found == leases.end()) return {};
  auto parts = std::move(found->second.parts);
  leases.erase(found);
  return parts;
}

// -- Client

Client::Client(asio::any_io_executor executor, ClientConfig config, Network& network)
    : Client(std::move(executor), std::move(config), network, steady_clock()) {}

Client::Client(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock,
               verbs::Provider* verbs)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(config), network, clock, verbs)) {}

Client::~Client() = default;

Async<Space> Client::open(NamespaceRecord record, std::chrono::microseconds deadline) {
  auto& spaces = impl_->shared->spaces;
  std::size_t index = 0;
  while (index < spaces.size() && spaces[index]->record.text() != record.text()) ++index;
  if (index == spaces.size()) {
    if (spaces.size() >= kSpacesMax) co_return error_code(Errc::kBusy);
    auto info = std::make_unique<ClientShared::SpaceInfo>();
    info->record = std::move(record);
    info->id = info->record.id();
    spaces.push_back(std::move(info));
  }
  const Space space{static_cast<std::uint32_t>(index)};
  if (const error_code refused = impl_->refuses(space, deadline)) co_return refused;
  const auto opened = co_await wait_open(space, deadline);
  if (!opened && is_about_the_record(opened.error())) co_return opened.error();
  co_return space;
}

Async<void> Client::wait_open(Space space, std::chrono::microseconds deadline) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(space, deadline)) co_return refused;
  const VerbInProgress verb(impl.shared);
  const TimePoint until = impl.deadline_after(deadline);
  CallGroup group(impl.shared->executor);
  std::vector<ReadyCall> calls(impl.links.size());
  for (std::size_t node = 0; node < calls.size(); ++node) {
    calls[node].space = static_cast<std::uint32_t>(space);
    calls[node].group = &group;
    impl.links[node]->start(calls[node], until);
  }
  co_await wait_all(group);
  error_code why;
  for (const ReadyCall& call : calls) {
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

Async<MatchResult> Client::match(Space space, std::span<const BlockHash> hashes, MatchOptions options) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(space, options.deadline)) co_return refused;
  const std::size_t block_size = impl.find_space(space)->record.block_size();
  const std::size_t token_count = options.token_ids.size();
  if (token_count > 0 && (token_count < hashes.size() * block_size || token_count > (hashes.size() + 1) * block_size)) {
    co_return error_code(Errc::kBadRequest);
  }
  if (!options.extras.empty() && (options.extras.size() < hashes.size() || options.extras.size() > hashes.size() + 1)) {
    co_return error_code(Errc::kBadRequest);
  }
  if (hashes.empty() && token_count == 0) co_return MatchResult{};
  if (impl.links.size() > 1) {
    options.token_ids = {};
    if (hashes.empty()) co_return MatchResult{};
  }

  const VerbInProgress verb(impl.shared);
  const TimePoint until = impl.deadline_after(options.deadline);
  CallGroup group(impl.shared->executor);
  const std::vector<OwnedChain> chains = split_chain(impl.map, hashes);
  std::vector<MatchCall> calls(chains.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].space = static_cast<std::uint32_t>(space);
    calls[i].group = &group;
    calls[i].chain = &chains[i];
    calls[i].options = &options;
    impl.links[chains[i].node]->start(calls[i], until);
  }
  co_await wait_all(group);

  MatchResult result;
  result.block_count = hashes.size();
  Impl::LeaseEntry lease{TimePoint::max(), {}};
  for (const MatchCall& call : calls) {
    if (call.block_count < call.chain->hashes.size()) {
      const std::size_t gap = call.chain->position(call.block_count);
      if (gap < result.block_count) {
        result.block_count = gap;
        result.why = call.reason();
      }
    }
    if (call.lease != 0) {
      const auto granted = std::chrono::microseconds(
          std::min<std::uint64_t>(call.lease_us, static_cast<std::uint64_t>(kLeaseMax.count())));
      lease.until = std::min(lease.until, impl.shared->clock.now() + granted);
      lease.parts.push_back({call.chain->node, call.answered_by, call.lease});
    }
  }
  for (const MatchCall& call : calls) {
    if (call.lease_error && !result.why) result.why = call.lease_error;
    std::size_t on_disk = 0;
    for (std::size_t i = call.block_count - call.disk_block_count; i < call.block_count; ++i)
      on_disk += call.chain->position(i) < result.block_count;
    result.disk_block_count += on_disk;
    const auto time = std::chrono::microseconds(std::min<std::uint64_t>(call.disk_us, 3'600'000'000));
    if (on_disk > 0) result.disk_time = std::max(result.disk_time, time);
  }
  if (calls.size() == 1) {
    result.partial_token_count = calls[0].partial_tokens;
    result.partial_block = calls[0].partial_block;
  }
  if (!lease.parts.empty()) {
    // Leases of one client end in about the order in which they were granted.
    const TimePoint now = impl.shared->clock.now();
    while (!impl.leases.empty() && (impl.leases.begin()->second.until < now || impl.leases.size() >= kLeasesMax)) {
      impl.leases.erase(impl.leases.begin());
    }
    result.lease = Lease{++impl.last_lease};
    impl.leases.emplace(impl.last_lease, std::move(lease));
  }
  co_return result;
}

void Client::release(Lease lease) {
  for (const Impl::LeasePart& part : impl_->take_lease(lease)) {
    const auto session = part.session.lock();
    if (!session) continue;
    auto& builder = impl_->shared->new_request();
    builder.Finish(wire::CreateReleaseRequest(builder, part.id));
    session->send_and_forget(FrameType::kRelease, builder);
  }
}

// -- touch, pin, unpin, drop: one request to each owner, one number back

/// Asks the owner of each chain, and sums up what they say. Errors: of the first that failed, after all were asked.
Async<DropResult> Client::Impl::count(FrameType verb, Space space, std::vector<OwnedChain> chains, TimePoint until) {
  const VerbInProgress in_progress(shared);
  CallGroup group(shared->executor);
  std::vector<CountCall> calls(chains.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].type = verb;
    calls[i].space = static_cast<std::uint32_t>(space);
    calls[i].group = &group;
    calls[i].hashes = chains[i].hashes;
    links[chains[i].node]->start(calls[i], until);
  }
  co_await wait_all(group);
  DropResult sum;
  for (const CountCall& call : calls) {
    if (call.error()) co_return call.error();
    sum.block_count += call.count;
    sum.until_restart = sum.until_restart || call.until_restart;
  }
  co_return sum;
}

Async<std::size_t> Client::Impl::count_prefix(FrameType verb, Space space, std::span<const BlockHash> hashes,
                                              std::chrono::microseconds deadline) {
  if (const error_code refused = refuses(space, deadline)) co_return refused;
  if (hashes.empty()) co_return std::size_t{0};
  auto chains = split_chain(map, hashes);
  const auto counted = co_await count(verb, space, std::move(chains), deadline_after(deadline));
  if (!counted) co_return counted.error();
  co_return counted->block_count;
}

Async<std::size_t> Client::touch(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline) {
  return impl_->count_prefix(FrameType::kTouch, space, hashes, deadline);
}

Async<std::size_t> Client::pin(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline) {
  return impl_->count_prefix(FrameType::kPin, space, hashes, deadline);
}

Async<std::size_t> Client::unpin(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline) {
  return impl_->count_prefix(FrameType::kUnpin, space, hashes, deadline);
}

Async<DropResult> Client::drop(Space space, std::span<const BlockHash> hashes, std::chrono::microseconds deadline) {
  Impl& impl = *impl_;
  if (const error_code refused = impl.refuses(space, deadline)) co_return refused;
  std::vector<OwnedChain> chains;
  if (hashes.empty()) {  // the whole namespace, everywhere
    chains.resize(impl.links.size());
    for (std::size_t node = 0; node < chains.size(); ++node) chains[node].node = node;
  } else {
    // What lies below the last block on other nodes can no longer be reached, and ages out.
    chains = split_chain(impl.map, hashes);
    const std::size_t owner = impl.map.owner(hashes.back());
    std::erase_if(chains, [&](const OwnedChain& chain) { return chain.node != owner; });
    KV_ASSERT(chains.size() == 1);
  }
  const TimePoint until = impl.deadline_after(deadline);
  const auto dropped = co_await impl.count(FrameType::kDrop, space, std::move(chains), until);
  co_return dropped;
}

Async<std::vector<NodeStats>> Client::stats(std::chrono::microseconds deadline) {
  Impl& impl = *impl_;
  if (deadline > kDeadlineMax) co_return error_code(Errc::kBadRequest);
  if (impl.shared->call_count >= impl.shared->config.calls_max) co_return error_code(Errc::kBusy);
  const VerbInProgress verb(impl.shared);
  CallGroup group(impl.shared->executor);
  std::vector<StatsCall> calls(impl.links.size());
  const TimePoint until = impl.deadline_after(deadline);
  for (std::size_t node = 0; node < calls.size(); ++node) {
    calls[node].group = &group;
    impl.links[node]->start(calls[node], until);
  }
  co_await wait_all(group);
  std::vector<NodeStats> stats;
  for (std::size_t node = 0; node < calls.size(); ++node) {
    if (calls[node].error()) calls[node].stats = {};
    stats.push_back(std::move(calls[node].stats));
    stats.back().name = impl.shared->config.nodes[node].name;
    stats.back().error = calls[node].error();
  }
  co_return stats;
}

Async<std::vector<std::chrono::nanoseconds>> Client::ping(std::chrono::microseconds deadline) {
  Impl& impl = *impl_;
  if (deadline > kDeadlineMax) co_return error_code(Errc::kBadRequest);
  if (impl.shared->call_count >= impl.shared->config.calls_max) co_return error_code(Errc::kBusy);
  const VerbInProgress verb(impl.shared);
  CallGroup group(impl.shared->executor);
  std::vector<PingCall> calls(impl.links.size());
  const TimePoint until = impl.deadline_after(deadline);
  for (std::size_t node = 0; node < calls.size(); ++node) {
    calls[node].group = &group;
    impl.links[node]->start(calls[node], until);
  }
  co_await wait_all(group);
  std::vector<std::chrono::nanoseconds> round_trips;
  for (const PingCall& call : calls)
    round_trips.push_back(call.error() ? std::chrono::nanoseconds(-1) : call.round_trip);
  co_return round_trips;
}

std::vector<NodeStatus> Client::nodes() const {
  std::vector<NodeStatus> nodes;
  for (const auto& link : impl_->links) nodes.push_back(link->status());
  return nodes;
}

Result<std::span<std::byte>> Client::allocate(std::size_t bytes) { return impl_->shared->memory.allocate(bytes); }

Result<void> Client::reserve_memory(std::size_t bytes) { return impl_->shared->memory.reserve(bytes); }

Result<std::span<std::byte>> Client::adopt_memory(std::size_t reserved_bytes,
                                                  Result<std::unique_ptr<SharedMemory>> memory) {
  return impl_->shared->memory.adopt(reserved_bytes, std::move(memory));
}

Async<std::size_t> Client::lend(std::span<std::byte> memory, std::chrono::microseconds deadline) {
  Impl& impl = *impl_;
  const std::shared_ptr<ClientShared> shared = impl.shared;
  const auto region = shared->memory.find(memory);
  if (!region || memory.empty() || deadline > kDeadlineMax) co_return error_code(Errc::kBadRequest);
  if (region->is_leaving) co_return error_code(Errc::kQuarantined);
  const VerbInProgress verb(shared);
  const RegionUse region_use(region);
  const TimePoint until = impl.deadline_after(deadline);
  Pause pause(*shared);
  NodeLink::LendState all;
  while (true) {
    all = {};
    for (const auto& link : impl.links) {
      const NodeLink::LendState state = link->lend(region);
      all.lent += state.lent;
      all.pending += state.pending;
    }
    if (all.pending == 0 || shared->clock.now() >= until) break;
    co_await pause.wait(until);
  }
  co_return all.lent;
}

Result<void> Client::free_memory(std::span<std::byte> memory) {
  const auto released = release_memory(memory);
  if (!released) return released.error();
  return {};
}

Result<std::shared_ptr<const void>> Client::release_memory(std::span<std::byte> memory) {
  const auto region = impl_->shared->memory.free(memory);
  if (!region) return region.error();
  for (const auto& link : impl_->links) link->take_back(**region);
  impl_->shared->verbs.forget(**region);
  return std::shared_ptr<const void>(*region);
}

Result<void> Client::add_device_memory(DeviceMemory memory) {
  Descriptor dmabuf;
  if (memory.dmabuf_fd >= 0) {
    dmabuf = Descriptor(::fcntl(memory.dmabuf_fd, F_DUPFD_CLOEXEC, 0));
    if (!dmabuf) return error_code(errno, boost::system::system_category());
  }
  return impl_->shared->memory.add_device(memory.bytes, std::move(dmabuf), memory.dmabuf_offset);
}

Async<void> Client::remove_device_memory(std::span<std::byte> memory, std::chrono::microseconds deadline) {
  Impl& impl = *impl_;
  const std::shared_ptr<ClientShared> shared = impl.shared;
  if (deadline > kDeadlineMax) co_return error_code(Errc::kBadRequest);
  const auto found = shared->memory.find(memory);
  const bool is_new = found && !found->is_leaving;
  const auto begun = shared->memory.begin_removal(memory);
  if (!begun) co_return begun.error();
  const std::shared_ptr<LentMemory::Region> region = *begun;
  const VerbInProgress verb(shared);
  const TimePoint until = impl.deadline_after(deadline);
  if (is_new) {
    for (const auto& link : impl.links) link->take_back(*region);
    shared->verbs.forget(*region, [region] { LentMemory::set_gone(*region); });
  }
  Pause pause(*shared);
  while (!region->is_gone) {
    if (shared->clock.now() >= until) co_return error_code(asio::error::timed_out);
    co_await pause.wait(until);
  }
  shared->memory.end_removal(*region);
  co_return Result<void>();
}

bool Client::is_quarantined(std::span<const std::byte> memory) const {
  return impl_->shared->memory.is_quarantined(memory);
}

}  // namespace kv
