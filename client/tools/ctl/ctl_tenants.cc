// kvstorectl tenants: usage, limits and refusals of each tenant on each node.
#include <algorithm>
#include <iostream>
#include <optional>
#include <utility>

#include "client/tools/ctl/ctl.h"
#include "client/tools/json_text.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

/// A tenant's value; nullopt if the node does not report it, such as an unset limit.
std::optional<double> value_of(const NodeStats::Tenant& tenant, std::string_view name) {
  const auto found = std::ranges::find(tenant.values, name, [](const auto& value) { return value.first; });
  return found == tenant.values.end() ? std::nullopt : std::optional(found->second);
}

/// "3 GiB, 2 GiB to 10 GiB": held, guaranteed and at most.
std::string bytes_cell(const NodeStats::Tenant& tenant, const std::string& what) {
  const auto text = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); };
  std::string cell = text(value_of(tenant, "tenant_" + what + "_bytes").value_or(0));
  const auto least = value_of(tenant, "tenant_" + what + "_guaranteed_bytes");
  const auto most = value_of(tenant, "tenant_" + what + "_max_bytes");
  if (least && *least > 0) cell += ", " + text(*least);
  if (most) cell += " to " + text(*most);
  return cell;
}

/// "3 of 10".
std::string count_of_cell(const NodeStats::Tenant& tenant, const std::string& what) {
  const auto count = value_of(tenant, "tenant_" + what);
  if (!count) return "-";
  const auto most = value_of(tenant, "tenant_" + what + "_max");
  return format_count(static_cast<std::uint64_t>(*count)) +
         (most ? " of " + format_count(static_cast<std::uint64_t>(*most)) : "");
}

/// Refusals by limit, without zero counts.
std::string refused_cell(const NodeStats::Tenant& tenant) {
  constexpr std::pair<const char*, const char*> kRefusals[] = {
      {"tenant_refused_memory_blocks", "blocks (memory)"},
      {"tenant_refused_leases", "leases"},
      {"tenant_refused_pins", "pins"},
      {"tenant_refused_namespaces", "namespaces"},
      {"tenant_refused_requests", "requests (rate)"},
      {"tenant_refused_transfers", "transfers (bytes a second)"},
      {"tenant_refused_sessions", "sessions"}};
  std::string cell;
  for (const auto& [name, word] : kRefusals) {
    const auto count = static_cast<std::uint64_t>(value_of(tenant, name).value_or(0));
    if (count > 0) cell += (cell.empty() ? "" : ", ") + format_count(count) + " " + word;
  }
  return cell.empty() ? "nothing" : cell;
}

void run_tenants(CtlOptions options) {
  ToolClient client(ctl_config(options.node));
  const auto stats = answer_of(client.run(client->stats(options.node.deadline)));
  nlohmann::json document = {{"tenants", nlohmann::json::array()}};
  TextTable table({"node", "tenant", "memory", "disk", "pinned", "namespaces", "leases", "sessions", "refused"});
  bool is_silent = false;
  for (const NodeStats& node : stats) {
    for (const NodeStats::Tenant& tenant : node.tenants) {
      const std::string name = tenant.name.empty() ? "(none)" : tenant.name;
      table.add({node.name, name, bytes_cell(tenant, "memory"), bytes_cell(tenant, "disk"),
                 bytes_cell(tenant, "pinned"), count_of_cell(tenant, "namespaces"), count_of_cell(tenant, "leases"),
                 count_of_cell(tenant, "sessions"), refused_cell(tenant)});
      nlohmann::json values = nlohmann::json::object();
      for (const auto& [value_name, value] : tenant.values) values[value_name] = value;
      document["tenants"].push_back({{"node", node.name}, {"tenant", tenant.name}, {"values", std::move(values)}});
    }
    if (node.error) {
      std::cerr << node.name << ": " << describe(node.error) << '\n';
    } else if (node.tenants.empty() && !options.json) {
      std::cerr << node.name << ": no policy-file, so tenants are not told apart; or nothing was opened yet\n";
    }
    is_silent = is_silent || node.error;
  }
  print_answer(options.json, document, table);
  if (is_silent) throw ToolFailed::said();
}

}  // namespace

void add_tenants_command(CLI::App& app) {
  add_ctl_command<CtlOptions>(app, "tenants", "What each tenant holds, may hold and was refused", run_tenants);
}

}  // namespace kv
