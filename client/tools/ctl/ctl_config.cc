// kvstorectl config: the options of a running node, over its admin server, separate from the data port.
#include <iostream>

#include "client/tools/ctl/admin_http.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/node_stats.h"
#include "client/tools/text_table.h"
#include "transport/token.h"

namespace kv {
namespace {

struct ConfigOptions : CtlOptions {
  ConfigOptions() { node.deadline = 10s; }
  bool all = false, writes = false;
  std::string admin = "127.0.0.1:7401";
  std::string name;
  std::vector<std::string> assignments;
};

HttpAnswer ask_admin(const ConfigOptions& options, const std::string& method, const std::string& target) {
  std::string token;
  if (!options.node.token_file.empty()) {
    const auto read = read_token_file(options.node.token_file);
    if (!read) throw ToolFailed(read.error().text);
    token = std::string(read->text());
  } else if (const char* const own = token_of_environment(options.node); own != nullptr) {
    token = own;
  }
  if (!token.empty() && !is_https(options.admin) && !is_loopback(options.admin))
    throw ToolFailed("a token goes over https:// and loopback only, not to " + options.admin);
  if (const std::string wrong = token.empty() ? "" : check_token(token); !wrong.empty())
    throw ToolFailed("token: " + wrong);
  std::string fields = "X-Kvstore-Config: kvstorectl\r\n";
  if (!token.empty()) fields += "Authorization: Bearer " + token + "\r\n";
  HttpAnswer answer = ask_http(options.node, options.admin, method, target, fields);
  if (answer.status == 0)
    throw ToolFailed(options.admin + ": " + answer.reason + "; --admin names the node's admin server");
  return answer;
}

nlohmann::json read_answer(const HttpAnswer& answer) {
  nlohmann::json document = nlohmann::json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (document.is_object() && (answer.status == 200 || answer.status == 400)) return document;
  if (answer.status == 404) throw ToolFailed("this node is older than its kvstorectl: it has no such page");
  std::string text = answer.body.substr(0, 500);
  text.erase(text.find_last_not_of("\r\n") + 1);
  throw ToolFailed(text.empty() ? "the node answered " + std::to_string(answer.status) : text);
}

std::string cell(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string text;
  for (const auto& each : value) text += (text.empty() ? "" : ", ") + each.get<std::string>();
  return text;
}

void run_list(const ConfigOptions& options) {
  const nlohmann::json document = read_answer(ask_admin(options, "GET", "/config/list.json"));
  TextTable table({"option", "value", "from", "while running"});
  for (const auto& each : document.at("options")) {
    const bool is_live = each.at("is_live").get<bool>();
    const bool is_default = each.at("source") == "default";
    if (!options.all && !is_live && is_default) continue;
    table.add({each.at("name").get<std::string>(), cell(each.at("value")), each.at("source").get<std::string>(),
               is_live ? "yes" : "no: " + each.at("why_not").get<std::string>()});
  }
  print_answer(options.json, document, [&] {
    table.print(std::cout);
    const std::string file = document.at("file").get<std::string>();
    std::cout << (file.empty() ? "started without a file" : "file: " + file) << "\n";
  });
}

void run_get(const ConfigOptions& options) {
  const nlohmann::json document = read_answer(ask_admin(options, "GET", "/config/list.json"));
  for (const auto& each : document.at("options")) {
    if (each.at("name") != options.name) continue;
    return print_answer(options.json, each, [&value = each.at("value")] {
      for (const auto& line : value.is_array() ? value : nlohmann::json::array({value}))
        std::cout << line.get<std::string>() << "\n";
    });
  }
  throw ToolFailed(options.name + ": there is no such option; `kvstorectl config list --all` shows all");
}

void run_set(const ConfigOptions& options) {
  std::string query;
  for (const std::string& each : options.assignments) {
    const std::size_t equals = each.find('=');
    if (equals == std::string::npos || equals == 0) throw CLI::ValidationError("NAME=VALUE", "'" + each + "' is none");
    query += (query.empty() ? "" : "&") + parameter(each.substr(0, equals), each.substr(equals + 1));
  }
  if (options.writes) query += "&_write=1";
  const nlohmann::json document = read_answer(ask_admin(options, "POST", "/config/set?" + query));
  const std::string wrong = document.value("wrong", "");
  print_answer(options.json, document, [&] {
    for (const auto& name : document.at("changed")) std::cout << name.get<std::string>() << ": changed\n";
    if (wrong.empty() && document.at("changed").empty()) std::cout << "nothing to change\n";
    for (const auto& note : document.at("notes")) std::cout << note.get<std::string>() << "\n";
  });
  if (!wrong.empty()) throw ToolFailed(wrong);
}

template <class Run>
std::pair<CLI::App*, ConfigOptions*> add_config_command(CLI::App& config, const char* name, const char* about,
                                                        Run run) {
  const auto command = add_ctl_command<ConfigOptions>(config, name, about, run);
  command.first->add_option("--admin", command.second->admin, "The node's admin server: HOST:PORT or https://HOST:PORT")
      ->capture_default_str()
      ->type_name("ADDRESS")
      ->envname("KVSTORE_ADMIN_ADDRESS");
  return command;
}

}  // namespace

void add_config_commands(CLI::App& app) {
  CLI::App* const config = app.add_subcommand("config", "The options of a running node: shown, and changed");
  config->require_subcommand(1);
  const auto [list, listed] = add_config_command(
      *config, "list", "Each option: its value, where that came from, and whether it can be changed", run_list);
  list->add_flag("--all", listed->all, "Also those that need a restart and have their defaults");
  const auto [get, got] = add_config_command(*config, "get", "The value of one option", run_get);
  get->add_option("name", got->name, "Of the option, without dashes")->required();
  const auto [set, changed] = add_config_command(*config, "set", "Changes options while the node serves", run_set);
  set->add_option("assignment", changed->assignments,
                  "NAME=VALUE, as in the node's TOML file, without quotes; of a list, several")
      ->required()
      ->type_name("NAME=VALUE");
  set->add_flag("--write", changed->writes, "Also write them to the node's file, so that a restart keeps them");
  set->footer(
      "Values are checked as at the start, together with all others. What needs a restart is refused. Without --write "
      "a\nchange lasts until the node ends. On a node with a policy it needs the role operator.\n\n"
      "Examples:\n"
      "  kvstorectl config set log-level=debug\n"
      "  kvstorectl config set capacity=96GiB --write\n"
      "  kvstorectl config set get-seconds=30 put-seconds=10\n");
}

}  // namespace kv
