#include "base/text/variables.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "base/text/printable.h"
#include "base/text/spelling.h"

namespace kv {
namespace {

constexpr std::string_view kAll = "KVSTORE_", kNode = "KVSTORE_NODE_";

/// For the tools, the Python package, and the scripts in deploy/.
const std::vector<std::string> kClientVariables = {
    "KVSTORE_ADMIN_ADDRESS",   "KVSTORE_ADMIN_PORT", "KVSTORE_ARCHIVE_KEY_FILE",
    "KVSTORE_ENDPOINTS",       "KVSTORE_HOOK_TIMES", "KVSTORE_PORT",
    "KVSTORE_SGLANG_ENCODER",  "KVSTORE_TLS_CA",     "KVSTORE_TLS_CERT",
    "KVSTORE_TLS_CRL",         "KVSTORE_TLS_KEY",    "KVSTORE_TLS_NAMES",
    "KVSTORE_TLS_SERVER_NAME", "KVSTORE_TOKEN",      "KVSTORE_TOKEN_FILE",
    "KVSTORE_TRACES",          "KVSTORE_ZONE"};

/// Kubernetes sets these in each pod for a Service named kvstore or kvstore-node.
bool is_service_link(std::string_view name) {
  return name.ends_with("_SERVICE_HOST") || name.find("_SERVICE_PORT") != std::string_view::npos ||
         name.ends_with("_PORT") || name.find("_PORT_") != std::string_view::npos;
}

std::vector<std::string_view> names_of(const char* const* environment) {
  std::vector<std::string_view> names;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const std::string_view name = entry.substr(0, entry.find('='));
    if (name.starts_with(kAll)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

bool is_client_variable(std::string_view name) {
  return std::ranges::find(kClientVariables, name) != kClientVariables.end();
}

std::string meaningless(std::string_view name, std::string_view to, const std::vector<std::string>& words) {
  return printable(std::string(name)) + ": an environment variable that means nothing to " + std::string(to) +
         did_you_mean(name, words);
}

}  // namespace

std::string node_variable(std::string_view option) {
  if (option.starts_with("node-")) option.remove_prefix(5);
  std::string name(kNode);
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::vector<std::string> unknown_client_variables(const char* const* environment) {
  std::vector<std::string> unknown;
  for (const std::string_view name : names_of(environment)) {
    if (name.starts_with(kNode) || is_client_variable(name) || is_service_link(name)) continue;
    unknown.push_back(meaningless(name, "kvstore's programs", kClientVariables));
  }
  return unknown;
}

std::vector<std::string> unknown_node_variables(const char* const* environment, std::span<const std::string> options) {
  std::vector<std::string> words, unknown;
  std::ranges::transform(options, std::back_inserter(words),
                         [](const std::string& each) { return node_variable(each); });
  for (const std::string_view name : names_of(environment)) {
    if (std::ranges::find(words, name) != words.end() || is_client_variable(name) || is_service_link(name)) continue;
    if (name.starts_with(kNode)) {
      unknown.push_back(meaningless(name, "kvstore-node", words));
      continue;
    }
    // KVSTORE_CAPACITY, exact or misspelt: a node's option without NODE. Clients handle names nearer to theirs.
    if (!nearest_word(name, kClientVariables).empty()) continue;
    const std::string meant = nearest_word(std::string(kNode) + std::string(name.substr(kAll.size())), words);
    if (!meant.empty()) unknown.push_back(meaningless(name, "kvstore-node", {}) + "; did you mean '" + meant + "'?");
  }
  return unknown;
}

}  // namespace kv
