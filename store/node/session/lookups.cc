#include "store/node/session/lookups.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "index/name_groups.h"
#include "store/node/access/tenant_figures.h"
#include "store/node/membership/member_text.h"
#include "store/node/rdma/verbs_node.h"
#include "store/node/tenant_eraser.h"

namespace kv {
namespace {

constexpr std::size_t kNamesPerLock = 512;  ///< Of a set, looked up one by one: some ten microseconds, cold a hundred.

static_assert(kNamesPerLock >= kGroupNamesMax);

/// Calls body(part, its group_counts) for each part of `names` until one returns false; at least once, so that the
/// store refuses or answers an empty list like any other. Between two parts the lock is free: other lookups run, and
/// blocks found by one part may be gone by the next. So a part never cuts a group.
template <class Body>
void for_each_part(std::span<const BlockHash> names, std::span<const std::uint32_t> group_counts, Body body) {
  std::size_t at = 0;
  do {
    const GroupPart part = leading_part(group_counts, names.size() - at, kNamesPerLock);
    if (!body(names.subspan(at, part.name_count), group_counts.first(part.group_count))) return;
    at += part.name_count;
    group_counts = group_counts.subspan(part.group_count);
  } while (at < names.size());
}

/// Processor time of this process, user and kernel: a load generator uses it for a request's cost to the node. It
/// covers all threads, since the sockets' share is part of that cost.
double process_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// An unreadable disk counts as empty, and a group lies nowhere if a part of it lies there.
void forget_disk(Store::SetMatch& match, std::span<const std::uint32_t> group_counts) {
  for_each_group(group_counts, match.held.size(), [&](std::size_t first, std::size_t count) {
    const auto held = std::span(match.held).subspan(first, count);
    if (std::ranges::find(held, Store::Held::kOnDisk) != held.end()) std::ranges::fill(held, Store::Held::kNowhere);
  });
}

/// As numbers with names, like all of a node's figures; kvstorectl makes a table again.
template <class Add>
void add_curve(const Store::Curve& curve, Add&& add) {
  const HitCurve::Report& report = curve.report;
  add("curve_block_bytes", static_cast<double>(curve.block_bytes));
  add("curve_one_in", static_cast<double>(report.one_in));
  add("curve_asked_blocks", report.asked_blocks);
  add("curve_sampled_blocks", report.sampled_blocks);
  add("curve_memory_hit_rate", report.memory_hit_rate);
  add("curve_hit_rate", report.hit_rate);
  for (std::size_t i = 0; i < report.points.size(); ++i) {
    const HitCurve::Point& point = report.points[i];
    const std::string prefix = "curve_" + std::to_string(i) + "_";
    const auto add_of = [&](const char* name, double value) { add((prefix + name).c_str(), value); };
    add_of("blocks", static_cast<double>(point.block_count));
    add_of("scale", point.scale);
    add_of("has_disk", point.has_disk ? 1 : 0);
    add_of("lru", point.lru.hit_rate);
    add_of("lru_error", point.lru.error);
    if (!report.has_policy) continue;
    add_of("own", point.policy.hit_rate);
    add_of("own_error", point.policy.error);
  }
}

/// The most common beginnings of matches that the peer sees, most used first; names as 48 bits, which fit a double.
template <class Add>
void add_hot(const HotRoots& roots, PeerAccess& peer, Add&& add) {
  constexpr std::size_t kBeginningsMax = 32;
  std::vector<HotRoots::Beginning> most_used = roots.most_used(kBeginningsMax);
  std::erase_if(most_used, [&](const HotRoots::Beginning& one) { return !peer.sees_blocks(one.owner); });
  for (std::size_t i = 0; i < most_used.size(); ++i) {
    const HotRoots::Beginning& one = most_used[i];
    const auto add_of = [&](const char* name, double value) {
      add(("hot/" + std::to_string(i) + "/" + name).c_str(), value);
    };
    const auto first_48_bits = [](std::span<const std::byte> bytes) {
      std::uint64_t bits = 0;
      for (std::size_t k = 0; k < 6; ++k) bits = bits << 8 | std::to_integer<std::uint64_t>(bytes[k]);
      return static_cast<double>(bits);
    };
    add_of("blocks", static_cast<double>(one.block_count));
    add_of("share", one.share);
    add_of("is_hot", one.is_hot ? 1 : 0);
    add_of("last", first_48_bits(one.last.bytes));
    add_of("namespace", first_48_bits(one.space.bytes));
    add_of("version", static_cast<double>(roots.version(one.space) >> 16));
  }
}

/// The median age of evicted blocks since their last use, an upper bound within a factor of two; 0: none was evicted.
double eviction_age_p50_seconds(const StoreStats& stats) {
  std::uint64_t total = 0, seen = 0;
  for (const std::uint64_t count : stats.eviction_age_log2_ms) total += count;
  for (std::size_t i = 0; i < stats.eviction_age_log2_ms.size() && total > 0; ++i) {
    seen += stats.eviction_age_log2_ms[i];
    if (seen * 2 >= total) return static_cast<double>(std::uint64_t{2} << i) / 1000;
  }
  return 0;
}

/// Figures of the whole node, for observers outside all tenants.
template <class Add>
void add_node(NodeContext& node, Add&& add) {
  const auto add_all = [&](const std::vector<NodeMetrics::Value>& more) {
    for (const NodeMetrics::Value& stat : more) add(stat.name, stat.value);
  };
  const StoreStats stats = node.store.with([](Store& store) { return store.stats(); });
  const auto curve = node.store.with([](Store& store) { return store.curve(); });
  add("cpu_seconds", process_cpu_seconds());
  for (const auto& [name, value] : node.settings) add(("setting/" + name).c_str(), value);
  if (const auto left = node.cluster.lease_left(node.clock.now()))
    add("cluster_lease_left_seconds", std::chrono::duration<double>(*left).count());
  add("hot_blocks", static_cast<double>(node.hot_roots->hot_block_count()));
  if (node.moves.is_here) {
    add("cluster_settled", static_cast<double>(node.moves.settled));
    add_all(node.moves.stats());
    for (const MoveBoard::Peer& peer : node.moves.peers()) {
      add(("cluster_node/" + peer.id + "/reached").c_str(), peer.is_reached ? 1 : 0);
      if (peer.is_refused_by_tls()) add(("cluster_node/" + peer.id + "/refused_by_tls").c_str(), 1);
    }
    for (const auto& [why, paths] : node.moves.unmoved())
      add(("cluster_unmoved/" + why).c_str(), static_cast<double>(paths));
  }
  const NodeMetrics::Totals totals = node.metrics.totals();
  add("sessions", static_cast<double>(totals.sessions));
  add("sessions_refused", static_cast<double>(totals.sessions_refused));
  add("checksum_failures", static_cast<double>(totals.checksum_failures));
  add("eviction_age_p50_seconds", eviction_age_p50_seconds(stats));
  for (const StoreStatName& stat : kStoreStatNames) add(stat.name, static_cast<double>(stats.*stat.value));
  if (node.spill != nullptr) add_all(node.spill->stats());
  add_all(node.lent->stats());
  if (VerbsNode* const verbs = node.verbs) add_all(verbs->stats());
  if (node.security != nullptr) add_all(node.security->stats());
  if (curve) add_curve(*curve, add);
  add_all(node.pool.stats(node.clock.now()));
  for (const CountPool::Peer& peer : node.pool.peers(node.clock.now())) {
    const std::string prefix = "pool_node/" + peer.name + "/";
    add((prefix + "uses").c_str(), peer.uses);
    add((prefix + "weight").c_str(), peer.weight);
    add((prefix + "age_seconds").c_str(), std::chrono::duration<double>(peer.age).count());
  }
}

/// Every observer gets the clocks, the cluster, and hot beginnings; one without a tenant gets everything.
template <class Add>
void add_figures(SessionCore& session, Add&& add) {
  NodeContext& node = session.node;
  add("uptime_seconds", std::chrono::duration<double>(node.clock.now() - node.started).count());
  add("wall_seconds", std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  if (const auto view = node.cluster.view(); view->epoch > 0) {
    add("cluster_epoch", static_cast<double>(view->epoch));
    add("cluster_digest", static_cast<double>(digest_of(*view) >> 11));  // 53 bits: all that a double holds
    add("cluster_members", static_cast<double>(view->members.size()));
  }
  add_hot(*node.hot_roots, session.access, add);
  if (session.access.tenant().empty()) add_node(node, add);
}

/// Some of the namespaces that the peer sees: as many as one look at the store returns and one answer carries.
struct SpacePage {
  std::vector<Store::SpaceView> spaces;
  std::optional<NamespaceId> next;  ///< There are more behind this one.
};
SpacePage spaces_after(SessionCore& session, const std::optional<NamespaceId>& after) {
  constexpr std::size_t kTextBytesMax = 256 << 10;
  auto views = session.node.store.with([&](Store& store) { return store.list_spaces(after ? &*after : nullptr); });
  SpacePage page;
  std::size_t text_bytes = 0;
  for (Store::SpaceView& view : views) {
    if (text_bytes > kTextBytesMax) return page;
    page.next = view.name;
    if (!session.access.sees(owner_of(*view.record))) continue;
    text_bytes += view.record->text().size();
    page.spaces.push_back(std::move(view));
  }
  if (views.size() < Store::kSpacesPerCall) page.next.reset();
  return page;
}

flatbuffers::Offset<wire::NamespaceStat> build(FlatBufferBuilder& builder, const Store::SpaceView& space) {
  return wire::CreateNamespaceStatDirect(
      builder, space.record->unsalted_text().c_str(), space.block_count, space.total_bytes, space.traffic.stored_blocks,
      space.traffic.lookups, space.traffic.empty_lookups, static_cast<std::uint32_t>(space.roots.roots),
      static_cast<std::uint32_t>(space.roots.stored_only), static_cast<std::uint32_t>(space.roots.asked_only));
}

/// Figures of each tenant that the peer sees. Beyond kTenantsMax those outside the policy are summed up as one: a
/// client without a tenant may invent as many as there are namespaces.
std::vector<NodeMetrics::OfTenant> figures_of_tenants(SessionCore& session) {
  constexpr std::size_t kTenantsMax = 1024;
  NodeContext& node = session.node;
  auto held = node.store.with([](Store& store) { return store.tenants(); });
  auto rates = node.access == nullptr ? std::vector<TenantRates::Stats>() : node.access->tenants().stats();
  const auto is_hidden = [&](const std::string& name) { return !session.access.sees(owner_named(name)); };
  std::erase_if(held, [&](const TenantStats& each) { return is_hidden(each.limits.name); });
  std::erase_if(rates, [&](const TenantRates::Stats& each) { return is_hidden(each.policy.holds.name); });
  return held.size() > kTenantsMax ? bounded_tenant_figures(held, rates) : tenant_figures(held, rates);
}

}  // namespace

std::optional<Lookups::Wanted> Lookups::on_match(const Frame& frame) {
  const auto* request = read_request<wire::MatchRequest>(session_, frame);
  if (request == nullptr) return std::nullopt;
  const OpenSpace* const space =
      request->why() ? door_.find(frame, request->space(), request->namespace_check())
                     : door_.find(frame, request->space(), request->namespace_check(), SpaceKind::kChain);
  if (space == nullptr) return std::nullopt;
  NodeContext& node = session_.node;
  const auto hashes = hashes_of(request->hashes());
  if (request->nodes() > kHotNodesMax || request->beginning() > hashes.size() ||
      request->hot_blocks() > request->beginning()) {
    session_.refuse(frame, Errc::kBadRequest,
                    "match: " + count_text("nodes", request->nodes(), kHotNodesMax) + ", " +
                        count_text("beginning", request->beginning(), hashes.size()) + ", " +
                        count_text("hot_blocks", request->hot_blocks(), request->beginning()));
    return std::nullopt;
  }
  if (request->why()) {
    misses_.answer_why(frame, *space, hashes);
    return std::nullopt;
  }
  Store::MatchOptions options;
  options.session = session_.id;
  options.lease = request->lease();
  options.token_ids = numbers_of(request->token_ids());
  options.extras = extras_of(request->extras());
  options.hint = reuse_of(request->reuse());
  options.chain = {request->chain_blocks(), request->chain_first(), request->chain_last(), {}};
  options.is_elsewhere = request->elsewhere();
  sampled_.look(hashes);  // before any wait for it
  options.sampled = &sampled_;
  auto match = node.store.with(&session_.phases, [&](Store& store) {
    sampled_.set(store.sample(), store.curve_sample());  // for the next match
    return store.match(space->id, hashes, options, node.clock.now());
  });
  if (!match) {
    session_.refuse(
        frame, match.error(),
        fmt::format("match: {} (space {}, {}, extras: {}, chain_blocks: {}, chain_first: {}, chain_last: {})",
                    match.error().message(), request->space(),
                    count_text("hashes", hashes.size(), node.chain_blocks_max), options.extras.size(),
                    request->chain_blocks(), request->chain_first(), request->chain_last()));
    return std::nullopt;
  }
  // A session with an outstanding lease is not idle, and is not ended to make room for another.
  if (match->lease != LeaseId{}) lease_until_ = node.clock.now() + node.lease_duration;
  // A disk that is off may hold them but cannot supply them: promising them would make a scheduler wait in vain.
  if (node.spill == nullptr || !node.spill->can_read()) match->disk_block_count = 0;
  const std::size_t hit_count = match->memory_block_count + match->disk_block_count;
  node.metrics.add_tokens(hit_count * space->block_size, (hashes.size() - hit_count) * space->block_size);
  const auto disk_time = match->disk_block_count > 0
                             ? node.spill->estimate_read(match->disk_block_count * space->block_bytes)
                             : std::chrono::microseconds(0);
  const std::uint64_t hot_version = count_beginning(*request, *space);
  session_.replies.reply(FrameType::kMatch, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    wire::Hash partial;
    std::memcpy(&partial, match->partial_block.bytes.data(), sizeof partial);
    const auto lease_us = std::chrono::duration_cast<std::chrono::microseconds>(node.lease_duration).count();
    return wire::CreateMatchResponse(
        builder, static_cast<std::uint32_t>(match->memory_block_count),
        static_cast<std::uint32_t>(match->disk_block_count), static_cast<std::uint64_t>(match->lease),
        match->lease == LeaseId{} ? 0 : static_cast<std::uint64_t>(lease_us),
        static_cast<std::uint16_t>(match->lease_error), static_cast<std::uint32_t>(match->partial_token_count),
        match->partial_token_count > 0 ? &partial : nullptr, static_cast<std::uint64_t>(disk_time.count()), hot_version,
        node.cluster.epoch(), static_cast<std::uint32_t>(match->known_block_count));
  });
  // After the answer, which does not wait for the disk.
  if (!request->prefetch() || match->disk_block_count == 0) return std::nullopt;
  return Wanted{space, hashes};
}

std::uint64_t Lookups::count_beginning(const wire::MatchRequest& request, const OpenSpace& space) {
  if (request.nodes() == 0) return 0;  // the client does not use hot roots
  HotRoots& roots = *session_.node.hot_roots;
  if (request.beginning() == 0) return roots.version(space.stored_name);
  const auto beginning = hashes_of(request.hashes()).first(request.beginning());
  // In a cluster the node has this number; otherwise the client supplies it.
  const std::size_t known = session_.node.cluster.view()->members.size();
  const auto nodes = known == 0 ? request.nodes() : std::min(request.nodes(), static_cast<std::uint32_t>(known));
  return roots.count(space.stored_name, beginning, request.hot_blocks(), nodes, space.owner);
}

void Lookups::on_hot_roots(const Frame& frame) {
  const auto* request = read_request<wire::HotRootsRequest>(session_, frame);
  if (request == nullptr) return;
  const OpenSpace* const space = door_.find(frame, request->space(), request->namespace_check(), SpaceKind::kChain);
  if (space == nullptr) return;
  const auto list = session_.node.hot_roots->list(space->stored_name);
  session_.replies.reply(FrameType::kHotRoots, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    const auto* blocks = reinterpret_cast<const wire::Hash*>(list->blocks.data());
    return wire::CreateHotRootsResponse(builder, list->version,
                                        builder.CreateVectorOfStructs(blocks, list->blocks.size()));
  });
}

void Lookups::on_cluster_map(const Frame& frame) {
  if (read_request<wire::ClusterMapRequest>(session_, frame) == nullptr) return;
  const auto view = session_.node.cluster.view();
  session_.replies.reply(FrameType::kClusterMap, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    std::vector<flatbuffers::Offset<wire::ClusterNode>> nodes;
    for (const Member& member : view->members) {
      const auto endpoints = builder.CreateVectorOfStrings(member.endpoints);
      const auto id = builder.CreateString(member.id);
      const auto zone = builder.CreateString(member.zone);
      nodes.push_back(wire::CreateClusterNode(builder, id, endpoints, member.weight,
                                              static_cast<std::uint8_t>(member.state), zone,
                                              static_cast<std::uint8_t>(member.phase)));
    }
    return wire::CreateClusterMapResponse(builder, view->epoch, view->extent_blocks, builder.CreateVector(nodes));
  });
}

/// Records the request for the mover, which checks periodically.
void Lookups::on_cluster_drain(const Frame& frame) {
  const auto* request = read_request<wire::ClusterDrainRequest>(session_, frame);
  if (request == nullptr) return;
  NodeContext& node = session_.node;
  session_.audit.on(FrameType::kClusterDrain, frame.header.request_id,
                    std::string("drain=") + (request->drain() ? "true" : "false"));
  const std::string_view wanted = request->node_id() == nullptr ? "" : request->node_id()->string_view();
  if (wanted != node.node_id) {
    return session_.refuse(
        frame, Errc::kBadRequest,
        "cluster_drain.node_id: '" + printable(wanted.substr(0, 128)) + "', this node is '" + node.node_id + "'");
  }
  if (!node.moves.is_here) {
    return session_.refuse(frame, Errc::kUnsupported,
                           "cluster_drain: this node hands nothing over; it has no --etcd, or a --move-rate of 0");
  }
  node.moves.drain_wanted = request->drain();
  session_.replies.reply_empty(FrameType::kClusterDrain, frame.header.request_id);
}

/// Begins the erasure, or reports its progress: it may take as long as reading the whole disk, so requests do not wait.
void Lookups::on_erase(const Frame& frame) {
  const auto* request = read_request<wire::OpenRequest>(session_, frame);
  if (request == nullptr) return;
  const std::string_view asked = request->record() == nullptr ? "" : request->record()->string_view();
  constexpr std::string_view kTenant = "tenant=", kShare = "share=";
  constexpr std::size_t kNameBytesMax = 1024;  // of a record's value
  const bool is_share = asked.starts_with(kShare);
  const std::string_view name =
      is_share || asked.starts_with(kTenant) ? asked.substr((is_share ? kShare : kTenant).size()) : std::string_view();
  if (name.size() < 2 || name.size() > kNameBytesMax + 1 || name.find('\n') != name.size() - 1) {
    return session_.refuse(
        frame, Errc::kBadRequest,
        "erase.record: '" + printable(asked.substr(0, 128)) + "', allowed is one line, tenant=NAME or share=NAME");
  }
  const std::string owner = std::string(is_share ? "share:" : "") + std::string(name.substr(0, name.size() - 1));
  session_.audit.on(FrameType::kErase, frame.header.request_id, "owner='" + printable(owner) + "'");
  NodeContext& node = session_.node;
  if (const std::string why = session_.access.erase_denial(owner_named(owner)); !why.empty())
    return session_.deny(frame, Right::kOperate, "erase: " + why);
  if (node.eraser == nullptr) return session_.refuse(frame, Errc::kUnsupported, "erase: not by this node");
  const auto progress = node.eraser->ask(owner);
  if (!progress) return session_.refuse(frame, progress.error(), "erase: what too many others have waits to be erased");
  if (!progress->trouble.empty()) return session_.refuse(frame, Errc::kDiskFailed, "erase: " + progress->trouble);
  session_.audit.answered(FrameType::kErase, frame.header.request_id,
                          fmt::format("ok done={} blocks={}", progress->is_done ? "true" : "false", progress->blocks));
  session_.replies.reply(FrameType::kErase, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    std::vector<flatbuffers::Offset<wire::Stat>> values;
    for (const NodeMetrics::Value& each : progress->values(node.clock.now()))
      values.push_back(wire::CreateStatDirect(builder, each.name, each.value));
    return wire::CreateStatsResponseDirect(builder, &values);
  });
}

std::optional<Lookups::Wanted> Lookups::on_set_match(const Frame& frame) {
  const auto* request = read_request<wire::SetMatchRequest>(session_, frame);
  if (request == nullptr) return std::nullopt;
  const OpenSpace* const space = door_.find(frame, request->space(), request->namespace_check(), SpaceKind::kSet);
  if (space == nullptr) return std::nullopt;
  NodeContext& node = session_.node;
  const auto hashes = hashes_of(request->hashes());
  const auto group_counts = numbers_of(request->group_counts());
  if (hashes.size() > node.chain_blocks_max) {  // before the groups are examined
    session_.refuse(frame, Errc::kTooLarge, "set_match." + count_text("hashes", hashes.size(), node.chain_blocks_max));
    return std::nullopt;
  }
  if (const std::string why = check_groups(hashes, group_counts); !why.empty()) {
    session_.refuse(frame, Errc::kBadRequest, "set_match." + why);
    return std::nullopt;
  }
  auto match = match_set(*space, hashes, group_counts, {.lease = request->lease(), .hint = reuse_of(request->reuse())});
  if (!match) {
    session_.refuse(frame, match.error(),
                    fmt::format("set_match: {} (space {}, {})", match.error().message(), request->space(),
                                count_text("hashes", hashes.size(), node.chain_blocks_max)));
    return std::nullopt;
  }
  if (match->lease != LeaseId{}) lease_until_ = node.clock.now() + node.lease_duration;
  if (node.spill == nullptr || !node.spill->can_read()) forget_disk(*match, group_counts);
  std::vector<std::uint8_t> held((hashes.size() + 7) / 8), on_disk(held.size());
  std::vector<std::uint32_t> lengths;
  std::uint64_t disk_bytes = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const auto bit = static_cast<std::uint8_t>(1u << i % 8);
    // Only held blocks have lengths: the client counts the bits to assign them.
    if (match->held[i] == Store::Held::kNowhere) continue;
    held[i / 8] |= bit;
    lengths.push_back(match->lengths[i]);
    if (match->held[i] != Store::Held::kOnDisk) continue;
    on_disk[i / 8] |= bit;
    disk_bytes += match->lengths[i];
  }
  const auto disk_time = disk_bytes > 0 ? node.spill->estimate_read(disk_bytes) : std::chrono::microseconds(0);
  session_.replies.reply(FrameType::kSetMatch, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    const auto lease_us = std::chrono::duration_cast<std::chrono::microseconds>(node.lease_duration).count();
    const auto of_held = builder.CreateVector(held);
    const auto of_disk = disk_bytes > 0 ? builder.CreateVector(on_disk) : 0;
    const auto of_lengths = builder.CreateVector(lengths);
    return wire::CreateSetMatchResponse(builder, of_held, of_disk, of_lengths, static_cast<std::uint64_t>(match->lease),
                                        match->lease == LeaseId{} ? 0 : static_cast<std::uint64_t>(lease_us),
                                        static_cast<std::uint16_t>(match->lease_error),
                                        static_cast<std::uint64_t>(disk_time.count()), node.cluster.epoch());
  });
  if (!request->prefetch() || disk_bytes == 0) return std::nullopt;
  return Wanted{space, hashes, group_counts};
}

Result<Store::SetMatch> Lookups::match_set(const OpenSpace& space, std::span<const BlockHash> hashes,
                                           std::span<const std::uint32_t> group_counts,
                                           Store::SetMatchOptions options) {
  NodeContext& node = session_.node;
  if (hashes.size() > node.chain_blocks_max) return error_code(Errc::kTooLarge);
  Store::SetMatch whole;
  options.session = session_.id;
  error_code error;
  for_each_part(hashes, group_counts, [&](std::span<const BlockHash> part, std::span<const std::uint32_t> counts) {
    options.group_counts = counts;
    auto found = node.store.with(
        &session_.phases, [&](Store& store) { return store.match_set(space.id, part, options, node.clock.now()); });
    if (!found) {
      error = found.error();
      return false;
    }
    // All parts under one lease: the client has one id to release.
    options.rest = found->lease;
    if (found->lease_error != Errc{}) {
      whole.lease_error = found->lease_error;
      options.lease = false;  // later parts would give half of the request
    }
    if (part.size() == hashes.size()) {
      whole = std::move(*found);
      return false;
    }
    whole.held.insert(whole.held.end(), found->held.begin(), found->held.end());
    whole.lengths.insert(whole.lengths.end(), found->lengths.begin(), found->lengths.end());
    whole.lease = found->lease;
    return true;
  });
  if (error) {
    // The client gets an error without the lease's id, so end the lease here.
    if (options.rest != LeaseId{})
      node.store.with([&](Store& store) { static_cast<void>(store.release(session_.id, options.rest)); });
    return error;
  }
  return whole;
}

void Lookups::on_release(const Frame& frame) {
  const auto* request = read_request<wire::ReleaseRequest>(session_, frame);
  if (request == nullptr) return;
  const auto lease = LeaseId(request->lease());
  const auto released = session_.node.store.with([&](Store& store) { return store.release(session_.id, lease); });
  if (!released) {
    return session_.refuse(frame, released.error(),
                           fmt::format("lease: {}, not a live lease of this session", request->lease()));
  }
  session_.replies.reply_empty(FrameType::kRelease, frame.header.request_id);
}

void Lookups::on_prefix(const Frame& frame, const OpenSpace& space, std::span<const BlockHash> hashes) {
  const FrameType type = frame.header.type;
  const auto count =
      space.kind == SpaceKind::kSet ? count_in_set(type, space, hashes) : this->count(type, space.id, hashes, nullptr);
  if (!count) {
    return session_.refuse(
        frame, count.error(),
        fmt::format("{}: {} (hashes: {})", frame_type_name(type), count.error().message(), hashes.size()));
  }
  session_.replies.reply_count(type, frame.header.request_id, *count);
}

Result<std::size_t> Lookups::count(FrameType type, SpaceId space, std::span<const BlockHash> hashes,
                                   std::vector<BlockHash>* fresh) {
  return session_.node.store.with(&session_.phases, [&](Store& store) {
    switch (type) {
      case FrameType::kTouch: return store.touch(space, hashes, session_.node.clock.now());
      case FrameType::kRetain: return store.retain(space, hashes, fresh);
      default: return store.unretain(space, hashes);
    }
  });
}

/// As count(), one part at a time. A retain refused midway is undone: all or nothing.
Result<std::size_t> Lookups::count_in_set(FrameType type, const OpenSpace& space, std::span<const BlockHash> hashes) {
  if (hashes.size() > session_.node.chain_blocks_max) return error_code(Errc::kTooLarge);
  std::vector<BlockHash> fresh;
  std::size_t sum = 0;
  error_code error;
  for_each_part(hashes, {}, [&](std::span<const BlockHash> part, auto) {
    const auto counted = count(type, space.id, part, &fresh);
    error = counted ? error_code() : counted.error();
    sum += counted ? *counted : 0;
    return !error;
  });
  if (!error) return sum;
  // Only those that this request retained: earlier retained blocks stay so.
  for_each_part(fresh, {}, [&](std::span<const BlockHash> part, auto) {
    return count(FrameType::kUnretain, space.id, part, nullptr).has_value();
  });
  return error;
}

void Lookups::on_stats(const Frame& frame) {
  const auto* request = read_request<wire::StatsRequest>(session_, frame);
  if (request == nullptr) return;
  if (request->learned()) return permits(frame, ExtraAct::kReadLearned) ? tell_learned(frame) : void();
  if (request->slow() > 0) return tell_slow_log(frame, /*empties=*/request->slow() >= 2);
  std::optional<NamespaceId> after;
  if (request->after() != nullptr) {
    if (request->after()->size() != sizeof(NamespaceId)) {
      return session_.refuse(frame, Errc::kBadRequest,
                             "stats.after: " + std::to_string(request->after()->size()) + " bytes, allowed are 16");
    }
    std::memcpy(&after.emplace().bytes, request->after()->data(), sizeof(NamespaceId));
  }
  const SpacePage page = spaces_after(session_, after);
  session_.replies.reply(FrameType::kStats, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    std::vector<flatbuffers::Offset<wire::Stat>> values;
    std::vector<flatbuffers::Offset<wire::TenantStat>> of_tenants;
    if (!after) {
      add_figures(session_, [&](const char* name, double value) {
        values.push_back(wire::CreateStatDirect(builder, name, value));
      });
      for (const NodeMetrics::OfTenant& tenant : figures_of_tenants(session_)) {
        std::vector<flatbuffers::Offset<wire::Stat>> figures;
        for (const NodeMetrics::Value& each : tenant.values)
          figures.push_back(wire::CreateStatDirect(builder, each.name, each.value));
        of_tenants.push_back(wire::CreateTenantStatDirect(builder, tenant.name.c_str(), &figures));
      }
    }
    std::vector<flatbuffers::Offset<wire::NamespaceStat>> namespaces;
    for (const Store::SpaceView& space : page.spaces) namespaces.push_back(build(builder, space));
    const auto next = page.next ? create_bytes(builder, page.next->bytes) : 0;
    const auto list = builder.CreateVector(namespaces);
    const auto figures = builder.CreateVector(values);
    const auto tenants = builder.CreateVector(of_tenants);
    return wire::CreateStatsResponse(builder, figures, list, 0, tenants, 0, next);
  });
}

/// Whether the policy permits this act of the peer in addition to its verb. Refuses the request otherwise.
bool Lookups::permits(const Frame& frame, ExtraAct act) {
  const ExtraRule& extra = rule_for(act);
  const std::string why = session_.access.denial(extra.name, extra.rule);
  if (!why.empty()) session_.deny(frame, extra.rule.right, why);
  return why.empty();
}

void Lookups::tell_slow_log(const Frame& frame, bool empties) {
  if (!permits(frame, ExtraAct::kReadSlowLog) || (empties && !permits(frame, ExtraAct::kEmptySlowLog))) return;
  NodeContext& node = session_.node;
  SlowLog::Told told = node.slow.told();
  if (empties) node.slow.clear();
  // A line names the requester and its address: a tenant sees only its own clients.
  if (const std::string& own = session_.access.tenant(); !own.empty()) {
    std::erase_if(told.requests, [&](const SlowRequest& each) { return each.asker != own; });
    told.count = told.requests.size();
  }
  const auto microseconds = [](Duration time) {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  };
  session_.replies.reply(FrameType::kStats, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    std::vector<flatbuffers::Offset<wire::SlowRequest>> requests;
    for (const SlowRequest& each : told.requests) {
      const auto verb = builder.CreateString(frame_type_name(each.verb));
      const auto name = each.space ? create_bytes(builder, each.space->bytes) : 0;
      const auto model = builder.CreateString(printable(each.model)),
                 tenant = builder.CreateString(printable(each.tenant));
      const auto identity = builder.CreateString(each.identity), peer = builder.CreateString(printable(each.peer));
      wire::Trace trace;
      const auto trace_bytes = each.trace.bytes();
      std::memcpy(&trace, trace_bytes.data(), sizeof trace);
      const Duration other = std::max(Duration::zero(), each.took - each.phases.sum());
      const auto began = std::chrono::duration_cast<std::chrono::microseconds>(each.began.time_since_epoch()).count();
      requests.push_back(wire::CreateSlowRequest(
          builder, each.number, static_cast<std::uint64_t>(began), microseconds(each.took),
          microseconds(each.phases.lock), microseconds(each.phases.store), microseconds(each.phases.room),
          microseconds(each.phases.disk), microseconds(each.phases.move), microseconds(each.phases.client),
          microseconds(other), verb, static_cast<std::uint32_t>(each.block_count), each.moved_bytes, each.has_failed,
          name, model, tenant, each.session, identity, peer, each.trace.is_set() ? &trace : nullptr));
    }
    const auto list = builder.CreateVector(requests);
    const auto slow = wire::CreateSlowLog(builder, microseconds(told.threshold), told.count, list);
    return wire::CreateStatsResponse(builder, 0, 0, 0, 0, slow);
  });
}

void Lookups::tell_learned(const Frame& frame) {
  const auto told = session_.node.pool.told();
  session_.replies.reply(FrameType::kStats, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(told->data());
    flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>> learned;
    if (!told->empty()) learned = builder.CreateVector(bytes, told->size());
    return wire::CreateStatsResponse(builder, 0, 0, learned);
  });
}

}  // namespace kv
