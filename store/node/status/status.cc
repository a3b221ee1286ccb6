#include "store/node/status/status.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "store/node/status/figures.h"
#include "store/node/status/record_fields.h"
#include "store/node/status/tree_query.h"
#include "store/tree_sums.h"

namespace kv {
namespace {

using nlohmann::json;

constexpr std::size_t kKeptAnswers = 16;
constexpr std::size_t kFieldChars = 200;  ///< Shown of a record's value.
constexpr std::size_t kMembersShown = 256;
/// Between two holds of the Store's lock.
constexpr std::chrono::microseconds kBetweenLooks(100);

double to_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

/// For text from any source, UTF-8 or not.
std::string dump(const json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

json space_json(const SpaceDesk::View& space) {
  return {{"id", static_cast<std::uint64_t>(space.id)},
          {"fields", shown_fields(*space.record, kFieldChars)},
          {"is_set", space.record->is_set()},
          {"block_size", space.record->block_size()},
          {"block_bytes", space.record->block_bytes()},
          {"blocks", space.block_count},
          {"bytes", space.total_bytes},
          {"disk_blocks", space.disk_block_count}};
}

/// Some in each hold of the lock.
std::vector<SpaceDesk::View> spaces_of(LockedStore& store, std::size_t count_max, bool& is_whole) {
  std::vector<SpaceDesk::View> spaces;
  for (is_whole = false; spaces.size() < count_max;) {
    const NamespaceId after = spaces.empty() ? NamespaceId{} : spaces.back().name;
    auto next = store.with([&](Store& each) { return each.list_spaces(spaces.empty() ? nullptr : &after); });
    is_whole = next.size() < SpaceDesk::kViewsPerCall;
    std::ranges::move(next, std::back_inserter(spaces));
    if (is_whole) break;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return spaces;
}

std::int64_t microseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

json part_json(const TreeSums::Part& part, TimePoint now) {
  json row = {{"parent", part.parent == TreeSums::Part::kNone ? json(-1) : json(part.parent)},
              {"space", static_cast<std::uint64_t>(part.edge.space)},
              {"blocks", part.block_count},
              {"bytes", part.bytes},
              {"copied", part.copied_count},
              {"uses", std::round(part.uses)},
              {"age_s", std::max(0.0, std::round(to_seconds(now - part.edge.used) * 10) / 10)}};
  if (part.hidden_count > 0) row["hidden"] = part.hidden_count;
  if (part.is_space) return row;
  row["top"] = static_cast<std::uint32_t>(part.edge.first);
  row["name"] = hex(part.edge.name);
  row["own_blocks"] = part.edge.block_count;
  row["position"] = part.edge.position;
  row["children"] = part.edge.child_count;
  return row;
}

/// Removes edges of hidden namespaces, and renumbers the parents of the others.
template <class IsHidden>
void leave_out(std::vector<LookDesk::EdgeView>& edges, const IsHidden& is_hidden) {
  std::vector<std::uint32_t> place(edges.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (is_hidden(edges[i].space)) continue;
    LookDesk::EdgeView edge = edges[i];  // a parent always comes before it, and is of the same namespace
    if (edge.parent != LookDesk::EdgeView::kNoParent) edge.parent = place[edge.parent];
    place[i] = static_cast<std::uint32_t>(count);
    edges[count++] = edge;
  }
  edges.resize(count);
}

const char* state_name(const Member& member) {
  if (member.phase == Member::Phase::kJoining) return "joining";
  if (member.phase == Member::Phase::kLeaving) return "leaving";
  return member.state == Member::State::kServing ? "serving" : "draining";
}

json cluster_json(const ClusterView& view, const std::string& self) {
  if (view.epoch == 0) return nullptr;
  json members = json::array();
  for (const Member& member : view.members) {
    if (members.size() == kMembersShown) break;
    members.push_back({{"id", member.id},
                       {"is_self", member.id == self},
                       {"endpoints", member.endpoints},
                       {"weight", member.weight},
                       {"zone", member.zone},
                       {"version", member.version},
                       {"state", state_name(member)}});
  }
  return {{"epoch", view.epoch}, {"count", view.members.size()}, {"members", members}};
}

json numa_json(const NumaLook& look) {
  json shares = nullptr;
  if (look.spread) {
    double pages = 0;
    shares = json::object();
    for (const auto& [node, count] : *look.spread) pages += static_cast<double>(count);
    for (const auto& [node, count] : *look.spread) shares[std::to_string(node)] = static_cast<double>(count) / pages;
  }
  return {{"nodes", look.node_count}, {"chosen", look.chosen}, {"shares", shares}};
}

json node_json(const NodeContext& node, const StatusConfig& config) {
  const NodeMetrics::Totals totals = node.metrics.totals();
  return {{"id", node.node_id},
          {"version", config.version},
          {"uptime_s", to_seconds(node.clock.now() - node.started)},
          {"state", node.draining       ? "draining"
                    : config.is_ready() ? "serving"
                                        : "starting"},
          {"sessions", totals.sessions},
          {"region_bytes", node.lent ? node.lent->bytes() : 0},
          {"has_rdma", node.verbs != nullptr},
          {"checksum_failures", totals.checksum_failures},
          {"deadline_misses", totals.deadline_misses},
          {"denials", totals.denials}};
}

json memory_json(const StoreStats& stats) {
  const std::optional<double> age = eviction_age_p50_seconds(stats);
  return {{"capacity_bytes", stats.capacity_bytes},   {"used_bytes", stats.allocated_bytes},
          {"slab_bytes", stats.slab_bytes},           {"blocks", stats.block_count},
          {"set_blocks", stats.set_block_count},      {"pinned_blocks", stats.pinned_count},
          {"incoming_blocks", stats.incoming_count},  {"leases", stats.lease_count},
          {"leased_bytes", stats.leased_bytes},       {"index_used_bytes", stats.index_used_bytes},
          {"index_bytes_max", stats.index_bytes_max}, {"stored_blocks", stats.stored_blocks},
          {"evicted_blocks", stats.evicted_blocks},   {"eviction_age_s", age ? json(*age) : json()}};
}

json disk_json(const NodeContext& node, const StatusConfig& config, const StoreStats& stats) {
  const auto is_on = [](const NodeMetrics::Value& each) {
    return std::string_view(each.name) == "disk_is_on" && each.value > 0;
  };
  return {{"is_on", std::ranges::any_of(node.disk_worker->stats(), is_on)},
          {"capacity_bytes", config.disk_capacity_now ? config.disk_capacity_now() : config.disk_capacity_bytes},
          {"used_bytes", stats.disk_only_bytes},
          {"log_bytes", stats.disk_log_bytes},
          {"blocks", stats.disk_block_count},
          {"lost_blocks", stats.lost_blocks},
          {"lost_unspilled_blocks", stats.lost_unspilled_blocks}};
}

json classes_json(const StoreStats& stats) {
  json classes = json::array();
  for (const StoreStats::SizeClass& each : stats.classes) {
    classes.push_back({{"block_bytes", each.block_bytes},
                       {"slots", each.slot_count},
                       {"used", each.used_count},
                       {"slabs", each.slab_count}});
  }
  return classes;
}

/// Namespaces of one owner, or those beyond what is shown.
struct SpaceSums {
  std::uint64_t spaces = 0, blocks = 0, bytes = 0;
  void add(const SpaceDesk::View& space) {
    ++spaces;
    blocks += space.block_count;
    bytes += space.total_bytes;
  }
};

json tenants_json(const std::map<std::string, SpaceSums>& tenants) {
  std::vector<std::pair<std::string, SpaceSums>> by_size(tenants.begin(), tenants.end());
  std::ranges::sort(by_size, std::greater(), [](const auto& each) { return each.second.bytes; });
  json rows = json::array();
  for (const auto& [name, sums] : by_size) {
    if (rows.size() == StatusAnswers::kSpacesShown) break;
    rows.push_back({{"name", name}, {"spaces", sums.spaces}, {"blocks", sums.blocks}, {"bytes", sums.bytes}});
  }
  return rows;
}

/// What the peer sees of namespaces, their owners, and hot beginnings.
void add_spaces(NodeContext& node, const StoreStats& stats, PeerAccess& peer, json& result) {
  bool is_whole = false;
  std::vector<SpaceDesk::View> spaces = spaces_of(node.store, StatusAnswers::kSpacesMax, is_whole);
  std::ranges::sort(spaces, std::greater(), &SpaceDesk::View::total_bytes);
  std::map<std::string, SpaceSums> tenants;
  std::map<NamespaceId, const SpaceDesk::View*> by_name;
  SpaceSums others;
  json shown = json::array(), hot = json::array();
  for (const SpaceDesk::View& space : spaces) {
    if (!peer.sees(owner_of(*space.record))) continue;
    by_name.emplace(space.name, &space);
    tenants[space.record->owner().substr(0, kFieldChars)].add(space);
    if (shown.size() < StatusAnswers::kSpacesShown) {
      shown.push_back(space_json(space));
    } else {
      others.add(space);
    }
  }
  for (const HotRoots::Beginning& each : node.hot_roots->most_used(StatusAnswers::kHotShown)) {
    const auto space = by_name.find(each.space);
    if (space == by_name.end() || !peer.sees_blocks(each.owner)) continue;  // or forgotten meanwhile
    const SpaceDesk::View& of = *space->second;
    hot.push_back({{"space", static_cast<std::uint64_t>(of.id)},
                   {"model", std::string(of.record->field("model").substr(0, kFieldChars))},
                   {"name", hex(short_hash(each.last))},
                   {"blocks", each.block_count},
                   {"tokens", each.block_count * of.record->block_size()},
                   {"share", each.share},
                   {"is_hot", each.is_hot}});
  }
  result["spaces"] = {{"count", stats.namespace_count},
                      {"is_whole", is_whole},
                      {"shown", shown},
                      {"others", {{"count", others.spaces}, {"blocks", others.blocks}, {"bytes", others.bytes}}}};
  result["tenants"] = tenants_json(tenants);
  result["hot"] = hot;
}

}  // namespace

StatusAnswers::StatusAnswers(NodeContext& node, StatusConfig config) : node_(node), config_(std::move(config)) {}

void StatusAnswers::sample() {
  const StoreStats stats = node_.store.with([](Store& each) { return each.stats(); });
  history_.add(stats, node_.metrics.totals(), node_.clock.now());
}

std::optional<std::string> StatusAnswers::answer(std::string_view path, std::string_view query, PeerAccess& peer) {
  const std::lock_guard lock(mutex_);
  const TimePoint now = node_.clock.now();
  const bool is_tree = path == "/status/tree.json";
  const std::string asked = std::string(path) + "?" + std::string(query) + " " + peer.sight();
  const auto found = kept_.find(asked);
  if (found != kept_.end() && now - found->second.made < (is_tree ? kTreeKeptFor : kKeptFor))
    return found->second.text;  // 4
  std::optional<std::string> text;
  if (path == "/status/now.json" && query.empty()) text = now_json(peer);
  if (path == "/status/history.json" && (query.empty() || query == "span=day")) text = history_.json(!query.empty());
  if (is_tree) text = tree_json(query, peer);
  if (!text) return std::nullopt;
  if (kept_.size() >= kKeptAnswers) kept_.clear();
  kept_.insert_or_assign(asked, Kept{now, *text});
  return text;
}

std::string StatusAnswers::now_json(PeerAccess& peer) {
  const StoreStats stats = node_.store.with([](Store& each) { return each.stats(); });
  json result = {{"node", node_json(node_, config_)}, {"memory", memory_json(stats)}, {"classes", classes_json(stats)}};
  if (config_.numa) result["numa"] = numa_json(config_.numa());
  if (node_.disk_worker != nullptr) result["disk"] = disk_json(node_, config_, stats);
  add_spaces(node_, stats, peer, result);
  result["cluster"] = cluster_json(*node_.cluster.view(), node_.node_id);
  result["last"] = json::parse(history_.last_json());
  return dump(result);
}

std::optional<std::string> StatusAnswers::tree_json(std::string_view query, PeerAccess& peer) {
  const auto scope = read_tree_query(query);
  if (!scope) return std::nullopt;
  const auto began = std::chrono::steady_clock::now();
  TreeSums sums;
  std::vector<LookDesk::EdgeView> edges;
  std::chrono::steady_clock::duration held_max{};
  std::uint32_t hold_count = 0;
  const auto hold = [&](auto&& look) {  // 3
    auto result = node_.store.with([&](Store& store) {
      const auto locked = std::chrono::steady_clock::now();
      auto inside = look(store);
      held_max = std::max(held_max, std::chrono::steady_clock::now() - locked);
      return inside;
    });
    ++hold_count;
    std::this_thread::sleep_for(kBetweenLooks);
    return result;
  };
  bool has_all_spaces = false;
  const std::vector<SpaceDesk::View> known = spaces_of(node_.store, kSpacesMax, has_all_spaces);
  // A tree shows the names of its blocks, so it leaves out blocks that the peer may not see.
  std::set<SpaceId> seen;
  for (const SpaceDesk::View& each : known) {
    if (peer.sees_blocks(owner_of(*each.record))) seen.insert(each.id);
  }
  const auto is_hidden = [&, is_watched = peer.is_watched()](SpaceId id) { return is_watched && !seen.contains(id); };
  LookDesk::SampleCursor cursor{.is_done = true};
  bool is_gone = scope->space && is_hidden(*scope->space), is_whole = false;
  if (scope->space && !is_gone) {
    const auto listed = hold([&](Store& store) { return store.list_edges(*scope, edges); });
    is_gone = !listed;
    is_whole = listed && *listed;
    sums.add(edges);
  }
  if (!is_gone && !is_whole) {
    const std::uint32_t looks = scope->space ? kLooksInside : kLooks;
    cursor = hold([&](Store& store) { return store.sample_cursor(scope->tier, looks, std::random_device{}()); });
    is_whole = cursor.stride == 1;
  }
  while (!cursor.is_done) {
    edges.clear();
    hold([&](Store& store) {
      store.sample_edges(*scope, cursor, edges);
      return true;
    });
    leave_out(edges, is_hidden);
    sums.add(edges);
  }
  const TimePoint now = node_.clock.now();
  json parts = json::array(), spaces = json::object();
  for (const TreeSums::Part& part : sums.select(kPartsMax)) {
    parts.push_back(part_json(part, now));
    if (!part.is_space) continue;
    const auto of = std::ranges::find(known, part.edge.space, &SpaceDesk::View::id);
    if (of != known.end()) spaces[std::to_string(static_cast<std::uint64_t>(part.edge.space))] = space_json(*of);
  }
  return dump({{"tier", scope->tier == BlockTier::kDisk ? "disk" : "memory"},
               {"is_gone", is_gone},
               {"is_exact", is_whole},
               {"blocks_per_sample", cursor.stride},
               {"part_count", sums.part_count()},
               {"parts", parts},
               {"spaces", spaces},
               {"took_us", microseconds(std::chrono::steady_clock::now() - began)},
               {"lock_holds", hold_count},
               {"lock_held_max_us", microseconds(held_max)}});
}

}  // namespace kv
