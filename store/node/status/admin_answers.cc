#include "store/node/status/admin_answers.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/text/hex.h"
#include "base/text/printable.h"
#include "store/node/access/audit.h"
#include "store/node/access/tenant_eraser.h"
#include "store/node/access/tenant_figures.h"
#include "store/node/membership/member_text.h"
#include "store/node/rdma/verbs_node.h"
#include "store/node/session/core/node_context.h"
#include "store/node/status/figures.h"
#include "store/node/status/query.h"
#include "transport/frames/frame.h"

namespace kv {
namespace {

using nlohmann::json;

/// The line of the log about an act: the answer adds to both.
struct ActLine {
  std::string target;
  std::string result = "ok";  ///< Of an act that is not refused.
};

AdminAnswer given(const json& document) {
  return {.json = document.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace)};
}
AdminAnswer refused(error_code code, std::string why) { return {.why = Failure(code, std::move(why))}; }

AdminAnswer bad_query(const AdminQuestion& question, const std::string& allowed) {
  return refused(Errc::kBadRequest, question.path + ": the query is not understood; allowed: " + allowed);
}

template <class Values>
json object_of(const Values& values) {
  json object = json::object();
  for (const NodeMetrics::Value& each : values) object[each.name] = each.value;
  return object;
}

json curve_json(const LearningDesk::Curve& curve) {
  const HitCurve::Report& report = curve.report;
  json points = json::array();
  for (const HitCurve::Point& point : report.points) {
    json& row = points.emplace_back(json{{"blocks", point.block_count},
                                         {"scale", point.scale},
                                         {"has_disk", point.has_disk},
                                         {"lru", point.lru.hit_rate},
                                         {"lru_error", point.lru.error}});
    if (!report.has_policy) continue;
    row["own"] = point.policy.hit_rate;
    row["own_error"] = point.policy.error;
  }
  return {{"block_bytes", curve.block_bytes},
          {"one_in", report.one_in},
          {"asked_blocks", report.asked_blocks},
          {"sampled_blocks", report.sampled_blocks},
          {"memory_hit_rate", report.memory_hit_rate},
          {"hit_rate", report.hit_rate},
          {"points", points}};
}

/// The most common beginnings of matches that the peer sees, most used first; names by their first 12 digits.
json hot_json(const HotRoots& roots, PeerAccess& peer) {
  constexpr std::size_t kBeginningsMax = 32, kDigits = 12;
  json rows = json::array();
  for (const HotRoots::Beginning& one : roots.most_used(kBeginningsMax)) {
    if (!peer.sees_blocks(one.owner)) continue;
    rows.push_back({{"blocks", one.block_count},
                    {"share", one.share},
                    {"is_hot", one.is_hot},
                    {"last", to_hex(one.last.bytes).substr(0, kDigits)},
                    {"namespace", to_hex(one.space.bytes).substr(0, kDigits)},
                    {"version", roots.version(one.space) >> 16}});
  }
  return rows;
}

/// Some of the namespaces that the peer sees, behind `after`: as many as one look at the store returns and one answer
/// carries. *next: more follow this one.
json spaces_json(NodeContext& node, PeerAccess& peer, const NamespaceId* after, std::optional<NamespaceId>* next) {
  constexpr std::size_t kTextBytesMax = 64 << 10;
  const auto views = node.store.with([&](Store& store) { return store.list_spaces(after); });
  json rows = json::array();
  std::size_t text_bytes = 0;
  for (const SpaceDesk::View& view : views) {
    if (text_bytes > kTextBytesMax) return rows;
    *next = view.name;
    if (!peer.sees(owner_of(*view.record))) continue;
    text_bytes += view.record->text().size();
    rows.push_back({{"record", view.record->unsalted_text()},
                    {"block_count", view.block_count},
                    {"total_bytes", view.total_bytes},
                    {"stored_blocks", view.traffic.stored_blocks},
                    {"lookups", view.traffic.lookups},
                    {"empty_lookups", view.traffic.empty_lookups},
                    {"roots", view.roots.roots},
                    {"roots_stored_only", view.roots.stored_only},
                    {"roots_asked_only", view.roots.asked_only}});
  }
  if (views.size() < SpaceDesk::kViewsPerCall) next->reset();
  return rows;
}

/// Figures of each tenant that the peer sees. Beyond kTenantsMax those outside the policy are summed up as one: a
/// client without a tenant may invent as many as there are namespaces.
json tenants_json(NodeContext& node, PeerAccess& peer) {
  constexpr std::size_t kTenantsMax = 1024;
  auto held = node.store.with([](Store& store) { return store.tenants(); });
  auto rates = node.access == nullptr ? std::vector<TenantRates::Stats>() : node.access->tenants().stats();
  const auto is_hidden = [&](const std::string& name) { return !peer.sees(owner_named(name)); };
  std::erase_if(held, [&](const TenantStats& each) { return is_hidden(each.limits.name); });
  std::erase_if(rates, [&](const TenantRates::Stats& each) { return is_hidden(each.policy.holds.name); });
  json rows = json::array();
  for (const NodeMetrics::OfTenant& each :
       held.size() > kTenantsMax ? bounded_tenant_figures(held, rates) : tenant_figures(held, rates))
    rows.push_back({{"name", each.name}, {"values", object_of(each.values)}});
  return rows;
}

/// Adds the figures of the whole node, for observers outside all tenants.
void add_node(NodeContext& node, json& document) {
  json& values = document["values"];
  const auto add_all = [&](const std::vector<NodeMetrics::Value>& more) {
    for (const NodeMetrics::Value& each : more) values[each.name] = each.value;
  };
  const StoreStats stats = node.store.with([](Store& store) { return store.stats(); });
  // Of this process, user and kernel: a load generator uses it for a request's cost to the node. Of all threads, since
  // the sockets' share is part of that cost.
  values["cpu_seconds"] = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  for (const auto& [name, value] : node.settings) values["setting/" + name] = value;
  if (const auto left = node.cluster.lease_left(node.clock.now()))
    values["cluster_lease_left_seconds"] = std::chrono::duration<double>(*left).count();
  values["hot_blocks"] = node.hot_roots->hot_block_count();
  if (node.moves.is_here) {
    values["cluster_settled"] = node.moves.settled.load();
    add_all(node.moves.stats());
    for (const MoveBoard::Peer& peer : node.moves.peers()) {
      values["cluster_node/" + peer.id + "/reached"] = peer.is_reached ? 1 : 0;
      if (peer.is_refused_by_tls()) values["cluster_node/" + peer.id + "/refused_by_tls"] = 1;
    }
    for (const auto& [why, paths] : node.moves.unmoved()) values["cluster_unmoved/" + why] = paths;
  }
  const NodeMetrics::Totals totals = node.metrics.totals();
  values["sessions"] = totals.sessions;
  values["sessions_refused"] = totals.sessions_refused;
  values["checksum_failures"] = totals.checksum_failures;
  values["eviction_age_p50_seconds"] = eviction_age_p50_seconds(stats).value_or(0);
  for (const StoreStatName& stat : kStoreStatNames) values[stat.name] = stats.*stat.value;
  if (node.disk_worker != nullptr) add_all(node.disk_worker->stats());
  add_all(node.lent->stats());
  if (VerbsNode* const verbs = node.verbs) add_all(verbs->stats());
  if (node.security != nullptr) add_all(node.security->stats());
  add_all(node.exchange.stats(node.clock.now()));
  const LookedUp lookups = lookups_between({}, lookup_counts(stats));
  document["hit_rate"] = lookups.asked() > 0 ? json(lookups.found() / lookups.asked()) : json();
  if (const auto curve = node.store.with([](Store& store) { return store.curve(); }))
    document["curve"] = curve_json(*curve);
  json& exchange = document["exchange"] = json::array();
  for (const CombinedCounts::Peer& peer : node.exchange.peers(node.clock.now())) {
    exchange.push_back({{"name", peer.name},
                        {"uses", peer.uses},
                        {"weight", peer.weight},
                        {"age_seconds", std::chrono::duration<double>(peer.age).count()}});
  }
}

/// Every observer gets the clocks, the cluster, hot beginnings, and what it sees of tenants and namespaces; one without
/// a tenant gets everything. With `after` the answer has more namespaces alone.
AdminAnswer tell_stats(NodeContext& node, const AdminQuestion& question, PeerAccess& peer, ActLine&) {
  Query query(question.query);
  const std::string digits = query.take("after").value_or("");
  NamespaceId after{};
  if (!query.is_read() || (!digits.empty() && !from_hex(digits, after.bytes)))
    return bad_query(question, "after=ID, the `next` of an earlier answer");
  json document = json::object();
  std::optional<NamespaceId> next;
  document["namespaces"] = spaces_json(node, peer, digits.empty() ? nullptr : &after, &next);
  if (next) document["next"] = to_hex(next->bytes);
  if (!digits.empty()) return given(document);
  json& values = document["values"] = json::object();
  values["uptime_seconds"] = std::chrono::duration<double>(node.clock.now() - node.started).count();
  values["wall_seconds"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (const auto view = node.cluster.view(); view->epoch > 0) {
    values["cluster_epoch"] = view->epoch;
    values["cluster_digest"] = digest_of(*view) >> 11;  // 53 bits: all that a double holds
    values["cluster_members"] = view->members.size();
    values["cluster_etcd_is_writable"] = node.cluster.is_writable() ? 1 : 0;
  }
  document["hot"] = hot_json(*node.hot_roots, peer);
  document["tenants"] = tenants_json(node, peer);
  if (peer.tenant().empty()) add_node(node, document);
  return given(document);
}

/// A line names the requester and its address: a tenant sees only its own clients.
AdminAnswer tell_slow_log(NodeContext& node, const AdminQuestion& question, PeerAccess& peer, ActLine&) {
  if (!question.query.empty()) return bad_query(question, "none");
  SlowLog::Told told = node.slow.told();
  if (is_act(question.path)) node.slow.clear();
  if (const std::string& own = peer.tenant(); !own.empty()) {
    std::erase_if(told.requests, [&](const SlowRequest& each) { return each.asker != own; });
    told.count = told.requests.size();
  }
  const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
  json rows = json::array();
  for (const SlowRequest& each : told.requests) {
    const RequestPhases& phases = each.phases;
    rows.push_back({{"number", each.number},
                    {"began", std::chrono::duration<double>(each.began.time_since_epoch()).count()},
                    {"took_seconds", seconds(each.took)},
                    {"phases",
                     {{"lock", seconds(phases.lock)},
                      {"store", seconds(phases.store)},
                      {"room", seconds(phases.room)},
                      {"disk", seconds(phases.disk)},
                      {"move", seconds(phases.move)},
                      {"client", seconds(phases.client)},
                      {"other", seconds(std::max(Duration::zero(), each.took - phases.sum()))}}},
                    {"op", frame_type_name(each.type)},
                    {"blocks", each.block_count},
                    {"bytes", each.moved_bytes},
                    {"failed", each.has_failed},
                    {"namespace_id", each.space ? to_hex(each.space->bytes) : ""},
                    {"model", printable(each.model)},
                    {"tenant", printable(each.tenant)},
                    {"session", each.session},
                    {"identity", each.identity},
                    {"peer", printable(each.peer)},
                    {"traceparent", each.trace.is_set() ? each.trace.text() : ""}});
  }
  return given({{"threshold_seconds", seconds(told.threshold)}, {"count", told.count}, {"requests", rows}});
}

AdminAnswer tell_learned(NodeContext& node, const AdminQuestion& question, PeerAccess&, ActLine&) {
  if (!question.query.empty()) return bad_query(question, "none");
  const auto told = node.exchange.told();
  return given({{"learned", to_hex(std::as_bytes(std::span(*told)))}});
}

/// Records the request for the mover, which checks periodically.
AdminAnswer drain(NodeContext& node, const AdminQuestion& question, PeerAccess&, ActLine& line) {
  Query query(question.query);
  const std::string wanted = query.take("node").value_or(""), how = query.take("drain").value_or("");
  line.target += "drain=" + printable(how.substr(0, 8));
  if (!query.is_read() || (how != "true" && how != "false"))
    return bad_query(question, "node=ID&drain=true, or drain=false");
  if (wanted != node.node_id) {  // another one behind a shared address
    return refused(Errc::kBadRequest, fmt::format("/drain: node '{}', this node is '{}'",
                                                  printable(std::string_view(wanted).substr(0, 128)), node.node_id));
  }
  if (!node.moves.is_here) {
    return refused(Errc::kUnsupported, "/drain: this node hands nothing over; it has no --etcd, or a --move-rate of 0");
  }
  node.moves.drain_wanted = how == "true";
  return given(json::object());
}

/// Begins the erasure, or reports its progress: it may take as long as reading the whole disk, so requests do not wait.
AdminAnswer erase(NodeContext& node, const AdminQuestion& question, PeerAccess& peer, ActLine& line) {
  constexpr std::size_t kNameBytesMax = 1024;  // of a record's value
  Query query(question.query);
  const std::string tenant = query.take("tenant").value_or(""), share = query.take("share").value_or("");
  const std::string& name = share.empty() ? tenant : share;
  if (!query.is_read() || tenant.empty() == share.empty() || name.size() > kNameBytesMax ||
      name.find('\n') != std::string::npos)
    return bad_query(question, "tenant=NAME or share=NAME");
  const std::string owner = (share.empty() ? "" : "share:") + name;
  line.target += fmt::format("owner='{}'", printable(owner));
  if (const std::string why = peer.erase_denial(owner_named(owner)); !why.empty()) {
    node.metrics.request_denied(Right::kOperate);
    return refused(Errc::kPermissionDenied, "/erase: " + why);
  }
  if (node.eraser == nullptr) return refused(Errc::kUnsupported, "/erase: not by this node");
  const auto progress = node.eraser->ask(owner);
  if (!progress) return refused(progress.error(), "/erase: what too many others have waits to be erased");
  if (!progress->trouble.empty()) return refused(Errc::kDiskFailed, "/erase: " + progress->trouble);
  line.result += fmt::format(" done={} blocks={}", progress->is_done, progress->blocks);
  return given(object_of(progress->values(node.clock.now())));
}

/// The questions that every node answers.
struct Own {
  std::string_view path;
  AdminAnswer (*answer)(NodeContext& node, const AdminQuestion& question, PeerAccess& peer, ActLine& line);
};
constexpr Own kOwn[] = {{"/stats.json", tell_stats},
                        {"/slowlog.json", tell_slow_log},
                        {"/slowlog/reset", tell_slow_log},
                        {"/learned.json", tell_learned},
                        {"/drain", drain},
                        {"/erase", erase}};

const Own* find_own(std::string_view path) {
  const auto* const found = std::ranges::find(kOwn, path, &Own::path);
  return found == std::end(kOwn) ? nullptr : found;
}

/// The part of the daemon that answers this path; nullptr: none.
const AdminPart* find_part(const NodeContext& node, std::string_view path) {
  const auto found = node.admin_parts.find(path.substr(0, path.find_first_of("/.", 1)));
  return found == node.admin_parts.end() ? nullptr : &found->second;
}

}  // namespace

bool is_slow(std::string_view path) {
  return path.starts_with("/status/") || path.starts_with("/config/") || path.starts_with("/events");
}

AdminAnswer answer_admin(NodeContext& node, const AdminQuestion& question, PeerAccess& peer) {
  const Rule rule = rule_for(question.path);
  const Own* const own = find_own(question.path);
  const AdminPart* const part = find_part(node, question.path);
  if (!is_question(question.path) || (own == nullptr && part == nullptr)) {
    return refused(Errc::kNotFound, question.path.starts_with("/events")
                                        ? "the node keeps no list of changes: --events-count"
                                        : printable(question.path.substr(0, 128)) +
                                              ": not found; docs/wire.md lists what a node answers");
  }
  if (std::string why = peer.denial(question.path, rule); !why.empty()) {
    node.metrics.request_denied(rule.right);
    return refused(Errc::kPermissionDenied, std::move(why));
  }
  AdminAnswer answer;
  if (own != nullptr) {
    ActLine line{.target = question.from};
    answer = own->answer(node, question, peer, line);
    if (is_act(question.path) && peer.is_watched()) {
      audit_page(question.path.substr(1), peer.who(), line.target,
                 answer.json.empty() ? "refused why='" + answer.why.text + "'" : line.result);
    }
  } else {
    answer = (*part)(question, peer);
  }
  if (answer.json.size() > kAdminAnswerBytesMax)
    return refused(Errc::kTooLarge, question.path + ": the answer is longer than 8 MiB");
  return answer;
}

}  // namespace kv
