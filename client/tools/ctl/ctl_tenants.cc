// kvstorectl tenants: usage, limits and refusals of each tenant on each node.
#include <iostream>
#include <utility>

#include "client/tools/ctl/ctl.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

/// "3 GiB, 2 GiB to 10 GiB": held, guaranteed and at most. A node does not report a limit that is not set.
std::string bytes_cell(const nlohmann::json& tenant, const std::string& what) {
  const std::string least = "tenant_" + what + "_guaranteed_bytes", most = "tenant_" + what + "_max_bytes";
  return bytes_text(tenant, "tenant_" + what + "_bytes") +
         (number_in(tenant, least) > 0 ? ", " + bytes_text(tenant, least) : "") +
         (tenant.contains(most) ? " to " + bytes_text(tenant, most) : "");
}

/// "3 of 10".
std::string count_of_cell(const nlohmann::json& tenant, const std::string& what) {
  const std::string count = "tenant_" + what, most = count + "_max";
  if (!tenant.contains(count)) return "-";
  return count_text(tenant, count) + (tenant.contains(most) ? " of " + count_text(tenant, most) : "");
}

/// Refusals by limit, without zero counts.
std::string refused_cell(const nlohmann::json& tenant) {
  constexpr std::pair<const char*, const char*> kRefusals[] = {
      {"tenant_refused_memory_blocks", "blocks (memory)"},
      {"tenant_refused_leases", "leases"},
      {"tenant_refused_retains", "retains"},
      {"tenant_refused_namespaces", "namespaces"},
      {"tenant_refused_requests", "requests (rate)"},
      {"tenant_refused_transfers", "transfers (bytes a second)"},
      {"tenant_refused_sessions", "sessions"}};
  std::string cell;
  for (const auto& [name, word] : kRefusals) {
    if (number_in(tenant, name) > 0) cell += (cell.empty() ? "" : ", ") + count_text(tenant, name) + " " + word;
  }
  return cell.empty() ? "nothing" : cell;
}

void run_tenants(CtlOptions options) {
  ToolClient client(ctl_config(options.node));
  const auto stats = answer_of(ask_stats(client, options.node.deadline));
  nlohmann::json document = {{"tenants", nlohmann::json::array()}, {"silent", nlohmann::json::array()}};
  TextTable table({"node", "tenant", "memory", "disk", "retained", "namespaces", "leases", "sessions", "refused"});
  for (const NodeStats& node : stats) {
    const std::vector<nlohmann::json> tenants = rows_in(node.said, "tenants");
    for (const nlohmann::json& tenant : tenants) {
      const std::string name = text_in(tenant, "name");
      const nlohmann::json values = tenant.value("values", nlohmann::json::object());
      table.add({node.name, name.empty() ? "(none)" : name, bytes_cell(values, "memory"), bytes_cell(values, "disk"),
                 bytes_cell(values, "retained"), count_of_cell(values, "namespaces"), count_of_cell(values, "leases"),
                 count_of_cell(values, "sessions"), refused_cell(values)});
      document["tenants"].push_back({{"node", node.name}, {"tenant", name}, {"values", values}});
    }
    note_if_silent(node, document);
    if (!node.error && tenants.empty() && !options.json) {
      std::cerr << node.name << ": no policy-file, so tenants are not told apart; or nothing was opened yet\n";
    }
  }
  print_answer(options.json, document, table);
  fail_if_silent(stats);
}

}  // namespace

void add_tenants_command(CLI::App& app) {
  add_ctl_command<CtlOptions>(app, "tenants", "What each tenant holds, may hold and was refused", run_tenants);
}

}  // namespace kv
