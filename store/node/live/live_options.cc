#include "store/node/live/live_options.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "base/text/printable.h"
#include "store/node/access/audit.h"

namespace kv {
namespace {

std::string take_limits(const LiveParts& parts, const NodeOptions& next) {
  parts.node.store.with([&](Store& store) { store.set_limits(next.store); });
  return "";
}

std::string take_capacity(const LiveParts& parts, const NodeOptions& next) {
  const std::uint64_t bytes = next.store.arena.capacity_bytes;
  if (parts.access != nullptr) {
    // The policy's guarantees to tenants must fit, now and when the policy is read again.
    if (std::string wrong = parts.access->set_room({bytes, next.store.disk.capacity_bytes}); !wrong.empty())
      return wrong;
  }
  std::string wrong = parts.capacity->aim(bytes);
  if (!wrong.empty() && parts.access != nullptr)
    static_cast<void>(parts.access->set_room({parts.capacity->target_bytes(), next.store.disk.capacity_bytes}));
  return wrong;
}

std::string take_disk(const LiveParts& parts, const NodeOptions& next) {
  if (parts.access != nullptr) {
    const AccessControl::Room room{next.store.arena.capacity_bytes, next.store.disk.capacity_bytes};
    if (std::string wrong = parts.access->set_room(room); !wrong.empty()) return wrong;
  }
  parts.disk_worker->set_limits(next.disk_threads);
  return take_limits(parts, next);
}

std::string take_directories(const LiveParts& parts, const NodeOptions& next) {
  if (const std::string wrong = parts.disk_worker->set_directories(next.disk_paths); !wrong.empty())
    return "disk-path: " + wrong;
  parts.disk_worker->set_limits(next.disk_threads);  // a call's time limit depends on the number of directories
  parts.directories_changed(next.disk_paths);
  return "";
}

}  // namespace

void wire_up(Settings& settings, const LiveParts& parts) {
  const auto on = [&settings](std::initializer_list<const char*> names, auto apply) {  // which refuses nothing
    settings.on(names, [apply](const NodeOptions& next) {
      apply(next);
      return std::string();
    });
  };
  const auto limit_sessions = [parts](const NodeOptions& next) { parts.node.limits.set(next.session); };
  on({"log-level"}, [](const NodeOptions& next) { spdlog::set_level(spdlog::level::from_str(next.log_level)); });
  on({"requests-max", "region-bytes-max", "queued-bytes-max", "hello-seconds", "frame-seconds", "write-seconds",
      "read-rate-min", "tls-grace-seconds", "get-seconds", "put-seconds"},
     limit_sessions);
  on({"session-count-max", "session-share-max", "session-idle-seconds", "tls-handshakes-max",
      "tls-handshakes-per-second"},
     [parts](const NodeOptions& next) {
       parts.server.set_limits(next.sessions, next.handshakes_max, next.handshakes_per_second);
     });
  settings.on({"index-bytes-max", "namespace-count-max", "lease-count-max", "lease-count-per-session-max",
               "retained-fraction-max", "leased-fraction-max"},
              [parts](const NodeOptions& next) { return take_limits(parts, next); });
  on({"slow-log-seconds", "slow-log-count"}, [parts](const NodeOptions& next) { parts.node.slow.set(next.slow_log); });
  settings.on_demand({"drain-seconds"});
  if (parts.capacity != nullptr)
    settings.on({"capacity", "capacity-blocks"},
                [parts](const NodeOptions& next) { return take_capacity(parts, next); });
  if (parts.disk_worker == nullptr) return;
  on({"spill-put-wait-seconds", "disk-drop-wait-seconds"}, limit_sessions);
  settings.on({"disk-capacity", "disk-capacity-blocks", "spill-policy", "spill-reserve", "spill-chance-min",
               "disk-promote-reads", "disk-write-rate", "disk-drain-rate", "disk-scrub-rate", "disk-stop-seconds"},
              [parts](const NodeOptions& next) { return take_disk(parts, next); });
  settings.on({"disk-path"}, [parts](const NodeOptions& next) { return take_directories(parts, next); });
  if (parts.warmer != nullptr) {
    on({"disk-warm-rate"}, [parts](const NodeOptions& next) { parts.warmer->set_rate(next.warm_bytes_per_second); });
  }
  settings.on_demand({"spill-save"});
}

AdminAnswer answer_set(Settings& settings, std::string_view query, const std::string& who) {
  constexpr std::string_view kWrite = "_write";
  Settings::Outcome outcome;
  auto assignments = parse_assignments(query);
  bool writes = false;
  if (assignments) {
    writes = std::erase_if(*assignments, [&](const auto& each) { return each.name == kWrite; }) > 0;
    outcome = settings.set(*assignments, writes, who);
    for (const Settings::Assignment& each : *assignments) {
      std::string values;
      for (const std::string& value : each.values) values += (values.empty() ? "" : ",") + value;
      audit_page(
          "config_set", who,
          "option=" + printable(each.name) + " value='" + printable(values) + "'" + (writes ? " write=true" : ""),
          outcome.wrong.empty() ? "ok" : "refused");
    }
  } else {
    outcome.wrong = "not NAME=VALUE, percent-encoded, at most 256";
  }
  nlohmann::json document = {{"changed", outcome.changed}, {"notes", outcome.notes}};
  if (!outcome.wrong.empty()) document["wrong"] = outcome.wrong;
  AdminAnswer answer{.json = document.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace)};
  if (!outcome.wrong.empty()) answer.why = Failure(Errc::kBadRequest, outcome.wrong);
  return answer;
}

}  // namespace kv
