// kvstorectl match, pin, unpin and drop: one request about one chain, named by a person.
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <numeric>
#include <sstream>

#include "base/assert.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/json_text.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

struct BlockOptions : CtlOptions {
  std::string record_file, space, hash_file;
  std::vector<std::string> hashes;
  bool all = false;
};

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

/// The namespace that --record or --space names. Only a whole record opens a namespace, and nobody types one: --space
/// (the beginning of its id, or its model) picks among the records that the nodes hold. Two candidates are an error
/// rather than a guess, since drop may follow.
NamespaceRecord find_record(ToolClient& client, const BlockOptions& options) {
  if (!options.record_file.empty()) return parse_record(read_text(options.record_file), options.record_file);
  const auto stats = client.run(client->stats(options.node.deadline));
  if (!stats) throw ToolFailed(describe(stats.error()));
  std::map<std::string, NamespaceRecord> found;  // by text, since several nodes may hold the same record
  for (const NodeStats& node : *stats) {
    // Told and not an error: the namespace may be found at another node. Drop asks every node again.
    if (node.error) std::cerr << "kvstorectl: " << node.name << ": " << describe(node.error) << '\n';
    for (const NodeStats::Namespace& space : node.namespaces) {
      NamespaceRecord record = parse_record(space.record, node.name);
      if (to_hex(record.id().bytes).starts_with(options.space) || record.field("model") == options.space) {
        found.emplace(space.record, std::move(record));
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

std::vector<BlockHash> parse_hashes(const BlockOptions& options) {
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

void run_command(const std::string& name, BlockOptions options) {
  if (options.record_file.empty() == options.space.empty()) {
    throw CLI::ValidationError(name, "name the namespace with --space or --record");
  }
  const std::vector<BlockHash> hashes = parse_hashes(options);
  // To the node an empty chain means the whole namespace. An empty hash file must not drop it, so --all has to ask.
  if (hashes.empty() != options.all) {
    throw CLI::ValidationError(name, name == "drop" ? "give the hashes of a chain, or --all for the whole namespace"
                                                    : "give the hashes of a chain, first block first");
  }
  ToolClient client(ctl_config(options.node));
  const NamespaceRecord record = find_record(client, options);
  // Only now, with a record that is complete: opening makes the namespace on a node that does not have it.
  const auto space = client.open(record, options.node.deadline);
  if (!space) throw ToolFailed("cannot open the namespace: " + describe(space.error()));

  nlohmann::json document = {{"verb", name}, {"namespace", to_hex(record.id().bytes)}, {"hashes", hashes.size()}};
  std::string sentence;
  error_code why;
  if (name == "match" && record.is_set()) {
    // A set's blocks have lengths of their own, so bytes are a sum; of a chain they are a product.
    const SetMatchOptions match_options{.deadline = options.node.deadline};
    const auto match = client.run(client->match_set(*space, hashes, match_options));
    if (!match) throw ToolFailed(describe(match.error()));
    why = match->why;
    const std::uint64_t bytes = std::accumulate(match->block_bytes.begin(), match->block_bytes.end(), std::uint64_t{0});
    document["blocks"] = match->held_count;
    document["disk_blocks"] = match->disk_count;
    document["bytes"] = bytes;
    document["block_bytes"] = match->block_bytes;
    sentence = format_count(match->held_count) + " of " + format_count(hashes.size()) +
               " blocks are there: " + format_bytes(bytes);
  } else if (name == "match") {
    const MatchOptions match_options{.deadline = options.node.deadline};
    const auto match = client.run(client->match(*space, hashes, match_options));
    if (!match) throw ToolFailed(describe(match.error()));
    KV_ASSERT(match->block_count <= hashes.size() && match->disk_block_count <= match->block_count);
    why = match->why;
    document["blocks"] = match->block_count;
    document["disk_blocks"] = match->disk_block_count;
    document["tokens"] = match->block_count * record.block_size();
    document["bytes"] = match->block_count * record.block_bytes();
    sentence = format_count(match->block_count) + " of " + format_count(hashes.size()) +
               " blocks are there: " + format_count(match->block_count * record.block_size()) + " tokens, " +
               format_bytes(match->block_count * record.block_bytes());
  } else if (name == "drop") {
    const auto dropped = client.run(client->drop(*space, hashes, options.node.deadline));
    if (!dropped) throw ToolFailed(name + ": " + describe(dropped.error()));
    document["blocks"] = dropped->block_count;
    document["until_restart"] = dropped->until_restart;
    sentence = format_count(dropped->block_count) + " blocks dropped";
    if (dropped->until_restart)
      sentence +=
          ", until the node next starts: its disk could not be told in time, so blocks there may come back. Drop "
          "again once `kvstorectl status` says that the disk works";
  } else {
    const auto deadline = options.node.deadline;
    const auto count = client.run(name == "pin" ? client->retain(*space, hashes, deadline)
                                                : client->unretain(*space, hashes, deadline));
    if (!count) throw ToolFailed(name + ": " + describe(count.error()));
    document["blocks"] = *count;
    sentence = format_count(*count) + " blocks " + name + "ned";
  }
  if (why) document["why"] = describe(why);
  if (options.json) {
    std::cout << json_text(document) << '\n';
  } else {
    std::cout << sentence << (why ? "; not more because: " + describe(why) : "") << '\n';
  }
  if (why) throw ToolFailed::said();  // not every node answered: the number is a lower bound, and scripts must see that
}

void add_command(CLI::App& app, const std::string& name, const std::string& about, const std::string& footer) {
  auto options = std::make_shared<BlockOptions>();
  CLI::App* command = add_ctl_command(app, name, about, options);
  command->add_option("--space", options->space, "Namespace: the beginning of its id, or its model")->type_name("ID");
  command->add_option("--record", options->record_file, "Namespace: a file with its record; - reads it from stdin")
      ->type_name("FILE");
  command->add_option("--hashes", options->hash_file, "A file of block hashes in chain order; - reads them from stdin")
      ->type_name("FILE");
  command->add_option("hash", options->hashes, "Block hashes in chain order, 64 hex digits each")->type_name("HASH");
  if (name == "drop") command->add_flag("--all", options->all, "The whole namespace instead of a chain");
  command->footer(footer);
  command->callback([name, options] { run_command(name, *options); });
}

}  // namespace

void add_block_commands(CLI::App& app) {
  add_command(app, "match", "How many leading blocks of a chain are there, or how many blocks of a set",
              "Example:\n  kvstorectl match --space my-model --hashes chain.txt\n");
  add_command(
      app, "pin", "Keep the longest cached prefix of a chain until it is unpinned or dropped",
      "At most half of a node can be pinned.\n\nExample:\n  kvstorectl pin --space 3fa9 --hashes system-prompt.txt\n");
  add_command(app, "unpin", "Let a pinned prefix be evicted again",
              "Example:\n  kvstorectl unpin --space 3fa9 --hashes system-prompt.txt\n");
  add_command(
      app, "drop",
      "Forget the last block of a chain and all blocks below it, each named block of a set, or a whole namespace",
      "The drop holds after a restart too, or the answer says that it does not (until_restart in --json).\n\n"
      "Examples:\n  kvstorectl drop --space 3fa9 --hashes chain.txt\n  kvstorectl drop --space 3fa9 --all\n");
}

}  // namespace kv
