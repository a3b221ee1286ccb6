// kvstorectl contexts: prefixes that nodes keep in memory for a time, each under a name.
#include "client/tools/ctl/ctl_contexts.h"

#include <array>
#include <chrono>
#include <ctime>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text/quantity.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/ctl_chain.h"
#include "client/tools/json_text.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

using WallTime = std::chrono::system_clock::time_point;

struct ContextCtlOptions : CtlOptions, ChainOptions, ContextKeepOptions {
  std::string name;
  std::vector<std::string> tags;
  bool warms = false, waits = false, stops = false;
};

/// UTC, since nodes and billing have no time zone.
WallTime parse_date(const std::string& text) {
  constexpr std::array kForms = {"%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d"};
  for (const char* const form : kForms) {
    std::tm parts{};
    const char* const end = ::strptime(text.c_str(), form, &parts);
    if (end == nullptr || *end != '\0') continue;
    const std::time_t seconds = ::timegm(&parts);
    if (seconds > 0 && seconds < 9'000'000'000) return std::chrono::system_clock::from_time_t(seconds);
  }
  throw CLI::ValidationError("--until", "'" + text + "' is no date: 2026-12-31 or 2026-12-31T23:59:00Z, in UTC");
}

std::string utc_text(std::chrono::microseconds since_1970) { return since_1970 < 1s ? "-" : format_utc(since_1970); }

ContextTime life_of(const ContextKeepOptions& options) {
  const auto life = time_of(options);
  if (!life) throw CLI::ValidationError("contexts", "give --ttl, or --until");
  return *life;
}

/// Why only a part is kept, in an operator's words.
std::string shortfall_of(const NamedContext& context) {
  if (context.kept_blocks == context.wanted_blocks) return "";
  if (context.why == Errc::kNotFound) return "not in memory";
  if (context.why == Errc::kBusy) return "the node keeps as much as retained-fraction-max allows";
  if (context.why == Errc::kOverQuota) return "the tenant keeps as much as its retained-bytes-max allows";
  return context.why ? describe(context.why) : "not told";
}

}  // namespace

std::optional<ContextTime> time_of(const ContextKeepOptions& options) {
  const bool has_ttl = options.ttl.count() > 0;
  if (has_ttl && !options.until.empty()) throw CLI::ValidationError("contexts", "give --ttl, or --until");
  if (options.is_sliding && !has_ttl) throw CLI::ValidationError("--sliding", "goes with --ttl");
  if (!has_ttl && options.until.empty()) return std::nullopt;
  ContextTime life;
  life.ttl = options.ttl;
  life.is_sliding = options.is_sliding;
  if (!has_ttl) life.until = parse_date(options.until);
  return life;
}

nlohmann::json json_of(const NamedContext& context) {
  const auto if_told = [](const std::optional<std::uint64_t>& count) {
    return count ? nlohmann::json(*count) : nlohmann::json();
  };
  const auto seconds = [](std::chrono::microseconds time) { return std::chrono::duration<double>(time).count(); };
  return {{"name", context.name},
          {"tags", context.tags},
          {"namespace_id", context.namespace_id},
          {"model", context.model},
          {"block_size", context.block_size},
          {"wanted_blocks", context.wanted_blocks},
          {"kept_blocks", context.kept_blocks},
          {"kept_bytes", context.kept_bytes},
          {"why", shortfall_of(context)},
          {"lost_blocks", context.lost_blocks},
          {"priority", context.priority},
          {"yielded_blocks", context.yielded_blocks},
          {"sliding", context.is_sliding},
          {"ttl_seconds", seconds(context.ttl)},
          {"created", utc_text(context.created)},
          {"expires", utc_text(context.expires)},
          {"used", context.used.count() == 0 ? nlohmann::json() : nlohmann::json(utc_text(context.used))},
          {"written_tokens", context.written_tokens},
          {"read_tokens", context.read_tokens},
          {"stored_token_seconds", context.stored_token_seconds},
          {"warming", context.is_warming},
          {"memory_blocks", if_told(context.memory_blocks)},
          {"disk_blocks", if_told(context.disk_blocks)}};
}

namespace {

void print_table(const std::vector<NamedContext>& contexts) {
  TextTable table({"context", "namespace", "model", "priority", "kept", "of", "tokens", "bytes", "expires", "written",
                   "read", "token-hours", "tags"});
  for (const NamedContext& context : contexts) {
    std::string tags;
    for (const std::string& tag : context.tags) tags += (tags.empty() ? "" : ", ") + tag;
    table.add({context.name, context.namespace_id.substr(0, 8), context.model, std::to_string(context.priority),
               format_count(context.kept_blocks), format_count(context.wanted_blocks),
               format_count(context.kept_blocks * context.block_size), format_bytes(context.kept_bytes),
               utc_text(context.expires) + (context.is_sliding ? ", or later if used" : ""),
               format_count(context.written_tokens), format_count(context.read_tokens),
               format_number(context.stored_token_seconds / 3600, 1), tags.empty() ? "-" : tags});
  }
  table.print(std::cout);
}

}  // namespace

void print_one(const NamedContext& context, bool as_json) {
  if (as_json) {
    std::cout << json_text(json_of(context)) << '\n';
    return;
  }
  print_table({context});
  if (const std::string why = shortfall_of(context); !why.empty())
    std::cout << "not all of it is kept: " << why << '\n';
  if (context.disk_blocks && *context.disk_blocks > 0) {
    std::cout << format_count(*context.disk_blocks) << " blocks of it are on disk"
              << (context.is_warming ? ", and are being brought to memory" : "; to bring them to memory: warm") << '\n';
  }
  if (context.lost_blocks > 0)
    std::cout << format_count(context.lost_blocks) << " blocks of it were dropped since it was created\n";
  if (context.yielded_blocks > 0) {
    std::cout << format_count(context.yielded_blocks)
              << " blocks of it were given up for contexts of higher priority since it was created\n";
  }
}

namespace {

void run_create(ContextCtlOptions options) {
  if (options.record_file.empty() == options.space.empty())
    throw CLI::ValidationError("contexts create", "name the namespace with --namespace or --record");
  const bool has_hashes = !options.hash_file.empty() || !options.hashes.empty();
  if (has_hashes == !options.token_file.empty())
    throw CLI::ValidationError("contexts create", "give the hashes of a chain, first block first, or --tokens");
  const ContextTime life = life_of(options);
  ToolClient client(ctl_config(options.node));
  const NamespaceRecord record = find_record(client, options.node, options);
  if (record.is_set()) throw ToolFailed("a set's blocks stand alone: contexts are of chains");
  const std::vector<BlockHash> hashes = chain_of(record, options);
  const auto space = answer_of(client.open(record, options.node.deadline), "cannot open the namespace");
  const ContextOptions asked{.deadline = options.node.deadline,
                             .name = options.name,
                             .life = life,
                             .tags = options.tags,
                             .priority = options.priority.value_or(ContextOptions{}.priority)};
  const auto created = answer_of(client.run(client->create_context(space, hashes, asked)), "contexts create");
  if (!options.warms) return print_one(created, options.json);
  print_one(answer_of(client.run(client->warm_context(options.name, options.node.deadline)),
                      "contexts create: created, and cannot be warmed"),
            options.json);
}

void run_contexts_list(ContextCtlOptions options) {
  ToolClient client(ctl_config(options.node));
  const auto list = answer_of(client.run(client->list_contexts(options.name, options.node.deadline)));
  for (const auto& [node, error] : list.silent) std::cerr << "kvstorectl: " << node << ": " << describe(error) << '\n';
  if (!options.name.empty()) {  // show
    if (list.contexts.empty()) {
      if (!list.silent.empty()) throw ToolFailed::said();
      throw ToolFailed("no context '" + options.name + "'");
    }
    print_one(list.contexts.front(), options.json);
  } else if (options.json) {
    nlohmann::json document = {{"contexts", nlohmann::json::array()}, {"silent", nlohmann::json::array()}};
    for (const NamedContext& context : list.contexts) document["contexts"].push_back(json_of(context));
    for (const auto& [node, error] : list.silent)
      document["silent"].push_back({{"node", node}, {"error", describe(error)}});
    std::cout << json_text(document) << '\n';
  } else {
    print_table(list.contexts);
  }
  if (!list.silent.empty()) throw ToolFailed::said();  // the figures lack these nodes' blocks
}

void run_extend(ContextCtlOptions options) {
  const ContextTime life = life_of(options);
  ToolClient client(ctl_config(options.node));
  print_one(
      answer_of(client.run(client->extend_context(options.name, life, options.node.deadline, {}, options.priority)),
                "contexts extend"),
      options.json);
}

void run_delete(ContextCtlOptions options) {
  ToolClient client(ctl_config(options.node));
  print_one(answer_of(client.run(client->delete_context(options.name, options.node.deadline)), "contexts delete"),
            options.json);
}

/// The context of that name, from all nodes: a silent node's part would be missing.
NamedContext look_at(ToolClient& client, const ContextCtlOptions& options) {
  const auto list = answer_of(client.run(client->list_contexts(options.name, options.node.deadline)), "contexts warm");
  for (const auto& [node, error] : list.silent) throw ToolFailed("contexts warm: " + node + ": " + describe(error));
  if (list.contexts.empty()) throw ToolFailed("contexts warm: '" + options.name + "' has ended");
  return list.contexts.front();
}

void run_warm(ContextCtlOptions options) {
  if (options.waits && options.stops)
    throw CLI::ValidationError("contexts warm", "--wait and --stop exclude each other");
  ToolClient client(ctl_config(options.node));
  NamedContext now =
      answer_of(client.run(options.stops ? client->stop_warming_context(options.name, options.node.deadline)
                                         : client->warm_context(options.name, options.node.deadline)),
                "contexts warm");
  std::uint64_t told = ~std::uint64_t{0};
  while (options.waits && now.is_warming) {
    if (!options.json && now.disk_blocks && std::exchange(told, *now.disk_blocks) != *now.disk_blocks) {
      std::cerr << format_count(now.memory_blocks.value_or(0)) << " of " << format_count(now.wanted_blocks)
                << " blocks in memory, " << format_count(*now.disk_blocks) << " on disk\n";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    now = look_at(client, options);
  }
  print_one(now, options.json);
  if (options.waits && now.kept_blocks < now.wanted_blocks) throw ToolFailed::said();
}

/// Adds a command about one context, or with `has_life` its time to live too.
template <class Run>
std::pair<CLI::App*, ContextCtlOptions*> add_named_command(CLI::App& contexts, const std::string& name,
                                                           const std::string& about, Run run, bool has_life = false) {
  const auto [command, options] = add_ctl_command<ContextCtlOptions>(contexts, name, about, run);
  command->add_option("name", options->name, "Of the context: 1 to 128 visible ASCII characters")->required();
  if (has_life) add_keep_options(*command, *options, name == "extend" ? "as it was" : "5");
  return {command, options};
}

}  // namespace

void add_keep_options(CLI::App& command, ContextKeepOptions& options, const std::string& priority_default) {
  command
      .add_option_function<std::string>(
          "--ttl",
          [&options](const std::string& text) {
            double seconds = 0;
            if (!parse_seconds(text, &seconds) || seconds <= 0 || seconds > 3e8)
              throw CLI::ValidationError("--ttl", "'" + text + "' is no duration; write for example 90s, 30min or 12h");
            options.ttl = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::duration<double>(seconds));
          },
          "How long it is kept, from now: 90s, 30min, 12h")
      ->type_name("TIME");
  command.add_flag("--sliding", options.is_sliding, "With --ttl: and from each use");
  command.add_option("--until", options.until, "Instead of --ttl: a date in UTC, 2026-12-31 or 2026-12-31T23:59:00Z")
      ->type_name("DATE");
  command
      .add_option("--priority", options.priority,
                  "0 to 9: where not all contexts can be kept, the highest are first. Default: " + priority_default)
      ->check(CLI::Range(0, 9))
      ->type_name("NUMBER");
}

void add_contexts_commands(CLI::App& app) {
  CLI::App* const contexts =
      app.add_subcommand("contexts", "Prefixes that are kept in memory for a time, each under a name");
  contexts->require_subcommand(1);
  const auto [create, created] = add_named_command(
      *contexts, "create", "Keep a prefix under a name; one of that name is replaced", run_create, /*has_life=*/true);
  add_chain_options(*create, *created);
  create->add_option("--tokens", created->token_file, "Instead of hashes: a file of token ids; - reads them from stdin")
      ->type_name("FILE");
  create->add_option("--tag", created->tags, "A word to find it by; several times")->type_name("TEXT");
  create->add_flag("--warm", created->warms, "And bring what the disks have of it to memory");
  create->footer(
      "What is in memory is kept at once, what comes later when it comes, within retained-fraction-max and the "
      "tenant's\n"
      "retained-bytes-max. The answer says how much that is. On a node with a policy it needs the role operator.\n\n"
      "Examples:\n"
      "  kvstorectl contexts create support-prompt --namespace my-model --tokens prompt.txt --ttl 1h --sliding\n"
      "  kvstorectl contexts create contract-17 --namespace 3fa9 --hashes chain.txt --until 2026-12-31 --tag legal\n");
  add_ctl_command<ContextCtlOptions>(*contexts, "list", "All contexts of one's tenant, and what they came to",
                                     run_contexts_list);
  add_named_command(*contexts, "show", "One context", run_contexts_list);
  add_named_command(*contexts, "extend", "Give a context another time to live, from now on", run_extend,
                    /*has_life=*/true)
      .first->footer("Example:\n  kvstorectl contexts extend support-prompt --ttl 2h\n");
  const auto [warm, warmed] = add_named_command(
      *contexts, "warm", "Bring what the disks have of a context to memory, in the background", run_warm);
  warm->add_flag("--wait", warmed->waits, "Until it is over. Exit status 1: not all of it is kept then");
  warm->add_flag("--stop", warmed->stops, "Bring no more of it; what has come stays");
  warm->footer(
      "At most disk-warm-rate bytes a second, and what the bounds on what is kept have room for.\n\n"
      "Example:\n  kvstorectl contexts warm support-prompt --wait\n");
  add_named_command(*contexts, "delete", "End a context; what else keeps its blocks goes on doing so", run_delete);
  add_context_archive_commands(*contexts);
}

}  // namespace kv
