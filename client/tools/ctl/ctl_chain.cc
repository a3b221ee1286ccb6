#include "client/tools/ctl/ctl_chain.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>

#include "base/text/quantity.h"
#include "client/tools/ctl/ctl.h"

namespace kv {
namespace {

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream file(path);
  if (!file) throw ToolFailed(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

NamespaceRecord parse_record(const std::string& text, const std::string& origin) {
  auto record = NamespaceRecord::parse(text);
  if (!record) throw ToolFailed(origin + ": " + record.error().text);
  return *std::move(record);
}

}  // namespace

/// The namespace of --record or --namespace. Only a whole record opens a namespace; --namespace (the beginning of its
/// id, or its model) selects among the nodes' records. Two candidates are an error, since drop may follow.
NamespaceRecord find_record(ToolClient& client, const ConnectionOptions& node, const ChainOptions& options) {
  if (!options.record_file.empty()) return parse_record(read_text(options.record_file), options.record_file);
  const auto stats = answer_of(ask_stats(client, node.deadline));
  std::map<std::string, NamespaceRecord> found;  // by text, since several nodes may hold the same record
  for (const NodeStats& each : stats) {
    // A warning, not an error: another node may have the namespace. Drop asks every node again.
    if (each.error) std::cerr << "kvstorectl: " << each.name << ": " << describe(each.error) << '\n';
    for (const nlohmann::json& space : rows_in(each.said, "namespaces")) {
      const std::string text = text_in(space, "record");
      NamespaceRecord record = parse_record(text, each.name);
      if (to_hex(record.id().bytes).starts_with(options.space) || record.field("model") == options.space) {
        found.emplace(text, std::move(record));
      }
    }
  }
  if (found.empty()) throw ToolFailed("no namespace '" + options.space + "'; see kvstorectl namespaces");
  if (found.size() > 1) {
    throw ToolFailed("'" + options.space + "' names " + std::to_string(found.size()) +
                     " namespaces; give more of the id, see kvstorectl namespaces");
  }
  return found.begin()->second;
}

std::vector<BlockHash> parse_hashes(const ChainOptions& options) {
  std::vector<std::string> words = options.hashes;
  if (!options.hash_file.empty()) {
    std::istringstream text(read_text(options.hash_file));
    for (std::string word; text >> word;) words.push_back(word);
  }
  std::vector<BlockHash> hashes;
  for (const std::string& word : words) {
    const auto hash = block_hash_from_hex(word);
    if (!hash) throw CLI::ValidationError("HASH", "'" + word + "' is no block hash: 64 hex digits");
    hashes.push_back(*hash);
  }
  return hashes;
}

std::vector<std::uint32_t> parse_tokens(const ChainOptions& options) {
  std::vector<std::uint32_t> tokens;
  std::istringstream text(read_text(options.token_file));
  for (std::string word; text >> word;) {
    const auto token = parse_number<std::uint32_t>(word);
    if (!token) throw CLI::ValidationError("--tokens", "'" + word + "' is no token id: a number of 32 bits");
    tokens.push_back(*token);
  }
  return tokens;
}

std::vector<BlockHash> hash_tokens(const NamespaceRecord& record, std::span<const std::uint32_t> tokens) {
  if (!record.has_own_chain())
    throw ToolFailed("the namespace has hashes of '" + std::string(record.field("hash")) + "': give them, not tokens");
  auto hashes = hash_chain(record.digest(), tokens, record.block_size());
  if (hashes.empty()) throw ToolFailed("fewer tokens than one block has: " + std::to_string(record.block_size()));
  return hashes;
}

std::vector<BlockHash> chain_of(const NamespaceRecord& record, const ChainOptions& options) {
  return options.token_file.empty() ? parse_hashes(options) : hash_tokens(record, parse_tokens(options));
}

void add_chain_options(CLI::App& command, ChainOptions& options) {
  command.add_option("--namespace", options.space, "Namespace: the beginning of its id, or its model")->type_name("ID");
  command.add_option("--record", options.record_file, "Namespace: a file with its record; - reads it from stdin")
      ->type_name("FILE");
  command.add_option("--hashes", options.hash_file, "A file of block hashes in chain order; - reads them from stdin")
      ->type_name("FILE");
  command.add_option("hash", options.hashes, "Block hashes in chain order, 64 hex digits each")->type_name("HASH");
}

}  // namespace kv
