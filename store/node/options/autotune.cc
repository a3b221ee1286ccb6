#include "store/node/options/autotune.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/text/printable.h"
#include "store/node/options/config_file.h"

namespace kv {
namespace {

/// Keeps a path on one line, since a comment after '#' must end there.
std::string words_of(const std::string& text) { return printable(text); }

bool is_given(const GivenOptions& given, const std::string& name) {
  return std::ranges::any_of(given.list(), [&](const GivenOptions::Entry& entry) {
    return entry.name == name && entry.source != GivenOptions::Source::kDefault;
  });
}

std::uint64_t given_count(const GivenOptions& given, const std::string& name) {
  for (const GivenOptions::Entry& entry : given.list()) {
    if (entry.name == name && entry.source != GivenOptions::Source::kDefault)
      return std::strtoull(entry.values.front().c_str(), nullptr, 10);
  }
  return 0;
}

std::string toml_line_of(const Advice& advice) {
  return with_options("", {{.name = advice.option, .values = {advice.value}, .is_list = false}});
}

/// Tries the advised settings. Returns "", or why the node would refuse them.
std::string try_out(const std::vector<Advice>& advices, const GivenOptions& given) {
  GivenOptions next = given;
  for (const Advice& advice : advices) {
    if (advice.kind != Advice::Kind::kSet) continue;
    if (std::string wrong = next.set(advice.option, {advice.value}, GivenOptions::Source::kSet); !wrong.empty())
      return wrong;
  }
  std::string wrong;
  static_cast<void>(next.options(&wrong));
  return wrong;
}

void print_advices(const std::vector<Advice>& advices, std::ostream& out) {
  std::size_t width = 0;
  for (const Advice& advice : advices) width = std::max(width, words_of(advice.subject).size());
  for (const Advice& advice : advices) {
    const std::string kind = kind_name(advice.kind), subject = words_of(advice.subject);
    const std::string indent(8 + width + 2, ' ');
    out << kind << std::string(9 - kind.size(), ' ') << subject << std::string(width + 1 - subject.size(), ' ') << " "
        << words_of(advice.measured) << "\n";
    if (!advice.option.empty()) out << indent << " -> " << toml_line_of(advice);
    if (!advice.command.empty()) out << indent << " -> " << advice.command << "\n";
    if (!advice.reason.empty()) out << indent << "    " << advice.reason << "\n";
  }
}

nlohmann::json json_of(const std::vector<Advice>& advices) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Advice& advice : advices) {
    nlohmann::json row = {{"subject", advice.subject}, {"kind", kind_name(advice.kind)}, {"measured", advice.measured}};
    if (!advice.reason.empty()) row["reason"] = advice.reason;
    if (!advice.option.empty()) {
      row["option"] = advice.option;
      row["value"] = advice.value;
    }
    if (!advice.command.empty()) row["command"] = advice.command;
    rows.push_back(std::move(row));
  }
  return {{"advice", std::move(rows)}, {"toml", toml_of(advices)}};
}

}  // namespace

NodeWishes wishes_of(const NodeOptions& options, const GivenOptions& given) {
  NodeWishes wishes;
  const ArenaConfig& arena = options.store.arena;
  wishes.capacity_bytes = arena.capacity_bytes;
  const bool has_blocks = given_count(given, "capacity-blocks") > 0;
  if (has_blocks) wishes.capacity_block_bytes = arena.granule_bytes;
  wishes.has_default_capacity = !has_blocks && !is_given(given, "capacity") && arena.capacity_bytes_max == 0;
  wishes.index_bytes_max = options.store.index_bytes_max;
  wishes.huge_pages = arena.huge_pages;
  wishes.threads = options.threads;
  wishes.numa_nodes = options.numa_nodes;
  wishes.rdma = options.rdma != NodeOptions::Rdma::kOff;
  for (const Endpoint& endpoint : options.listen) {
    const bool is_unix = endpoint.scheme == Endpoint::Scheme::kUnix;
    wishes.has_unix = wishes.has_unix || is_unix;
    wishes.has_tcp = wishes.has_tcp || !is_unix;
  }
  wishes.session_count_max = options.sessions.count_max;
  wishes.disk_paths = options.disk_paths;
  wishes.disk_capacity_bytes = options.store.disk.capacity_bytes;
  if (const std::uint64_t blocks = given_count(given, "disk-capacity-blocks"); blocks > 0)
    wishes.disk_block_bytes = wishes.disk_capacity_bytes / blocks;
  wishes.disk_hang_seconds = std::chrono::duration<double>(options.disk_hang).count();
  return wishes;
}

std::string toml_of(const std::vector<Advice>& advices) {
  std::string text =
      "# Measured by kvstore-node --autotune. These lines take the place of those with the same names in the node's "
      "file.\n";
  bool has_any = false;
  for (const Advice& advice : advices) {
    const bool is_machine = advice.kind == Advice::Kind::kMachine, is_set = advice.kind == Advice::Kind::kSet;
    if (!is_machine && !is_set && advice.kind != Advice::Kind::kMay) continue;
    has_any = true;
    text += "\n# " + words_of(advice.subject) + ": " + words_of(advice.measured) + "\n# " + advice.reason + "\n";
    text += is_machine ? "# on the machine: " + advice.command + "\n" : (is_set ? "" : "# ") + toml_line_of(advice);
  }
  return has_any ? text : text + "# Nothing has to be set.\n";
}

int run_autotune(const NodeOptions& options, const GivenOptions& given, std::ostream& out, std::ostream& err) {
  MachineFacts facts = read_machine_facts();
  for (const std::string& path : options.disk_paths) facts.disks.push_back(measure_disk(path));
  const std::vector<Advice> advices = advise(facts, wishes_of(options, given));
  if (const std::string wrong = try_out(advices, given); !wrong.empty()) {
    err << "kvstore-node: --autotune: the node would not take what this machine has room for: " << wrong << "\n";
    return 1;
  }
  if (options.autotune.as_json) {
    out << json_of(advices).dump(2, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) << "\n";
  } else if (options.autotune.as_toml) {
    out << toml_of(advices);
  } else {
    print_advices(advices, out);
  }
  return 0;
}

}  // namespace kv
