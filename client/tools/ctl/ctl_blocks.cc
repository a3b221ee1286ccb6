// kvstorectl match, why, retain, unretain and drop: one request about one chain, named by a person.
#include <iostream>
#include <numeric>
#include <set>

#include "base/assert.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/ctl_chain.h"
#include "client/tools/text_table.h"
#include "index/record_differences.h"

namespace kv {
namespace {

struct BlockOptions : CtlOptions, ChainOptions {
  bool all = false, is_sure = false;
};

nlohmann::json json_of(const MissReport& report) {
  const auto seconds = [](std::chrono::microseconds time) { return std::chrono::duration<double>(time).count(); };
  nlohmann::json others = nlohmann::json::array();
  for (const MissReport::Other& other : report.others) {
    nlohmann::json differs = nlohmann::json::array();
    for (const FieldDifference& each : other.differs)
      differs.push_back({{"field", each.field}, {"here", each.here}, {"there", each.there}});
    others.push_back({{"namespace_id", to_hex(other.id.bytes)},
                      {"has_block", other.has_block},
                      {"block_count", other.block_count},
                      {"stored_blocks", other.stored_blocks},
                      {"lookups", other.lookups},
                      {"empty_lookups", other.empty_lookups},
                      {"differs", std::move(differs)}});
  }
  nlohmann::json document = {{"blocks", report.block_count},
                             {"disk_blocks", report.disk_block_count},
                             {"whole", report.is_whole},
                             {"reason", miss_kind_name(report.kind)},
                             {"node", report.node},
                             {"left_seconds", seconds(report.left)},
                             {"idle_seconds", seconds(report.idle)},
                             {"remembers_seconds", seconds(report.remembers)},
                             {"stored_blocks", report.stored_blocks},
                             {"lookups", report.lookups},
                             {"empty_lookups", report.empty_lookups},
                             {"others", std::move(others)}};
  if (report.why) document["error"] = describe(report.why);
  return document;
}

/// Finds other namespaces with the same prompt: token ids give the chain's name in every namespace.
std::vector<std::string> look_elsewhere(ToolClient& client, const BlockOptions& options, const NamespaceRecord& own,
                                        std::span<const std::uint32_t> tokens, nlohmann::json& found) {
  std::vector<std::string> lines;
  const auto stats = ask_stats(client, options.node.deadline);
  if (!stats) return lines;
  std::set<std::string> records;
  for (const NodeStats& node : *stats) {
    for (const nlohmann::json& space : rows_in(node.said, "namespaces")) records.insert(text_in(space, "record"));
  }
  for (const std::string& text : records) {
    const auto record = NamespaceRecord::parse(text);
    // The hash function of an engine's own hashes is unknown here.
    if (!record || text == own.text() || record->is_set() || !record->has_own_chain()) continue;
    const auto hashes = hash_chain(record->digest(), tokens, record->block_size());
    const auto space = client.open(*record, options.node.deadline);
    if (hashes.empty() || !space) continue;
    const auto report = client.run(client->why(*space, hashes, options.node.deadline));
    if (!report || report->block_count == 0) continue;
    const auto differences = record_differences(own, *record);
    found.push_back({{"namespace_id", to_hex(record->id().bytes)},
                     {"blocks", report->block_count},
                     {"differs", differences_text(differences)}});
    lines.push_back("namespace " + to_hex(record->id().bytes) + " has " +
                    format_count(report->block_count * record->block_size()) + " of these tokens; it differs in " +
                    differences_text(differences));
  }
  return lines;
}

void run_why(const BlockOptions& options) {
  if (options.record_file.empty() == options.space.empty())
    throw CLI::ValidationError("why", "name the namespace with --namespace or --record");
  std::vector<BlockHash> hashes = parse_hashes(options);
  if (hashes.empty() == options.token_file.empty())
    throw CLI::ValidationError("why", "give the hashes of a chain, first block first, or --tokens");
  const std::vector<std::uint32_t> tokens =
      options.token_file.empty() ? std::vector<std::uint32_t>() : parse_tokens(options);
  BlockOptions own = options;
  ToolClient client(ctl_config(own.node));
  const NamespaceRecord record = find_record(client, own.node, own);
  if (!tokens.empty()) {
    if (record.is_set()) throw ToolFailed("a set's blocks have names of their own: give these, not tokens");
    hashes = hash_tokens(record, tokens);
  }
  const auto space = answer_of(client.open(record, own.node.deadline), "cannot open the namespace");
  const auto report = answer_of(client.run(client->why(space, hashes, own.node.deadline)));
  std::vector<std::string> lines = report.text();
  nlohmann::json document = json_of(report);
  if (!tokens.empty() && !report.is_whole) {
    document["same_tokens"] = nlohmann::json::array();
    for (std::string& line : look_elsewhere(client, own, record, tokens, document["same_tokens"]))
      lines.push_back(std::move(line));
  }
  document["namespace"] = to_hex(record.id().bytes);
  document["hashes"] = hashes.size();
  document["text"] = lines;
  print_answer(own.json, document, [&] {
    for (const std::string& line : lines) std::cout << line << '\n';
  });
  if (report.why) throw ToolFailed::said();
}

/// Returns the answer in words.
std::string match_blocks(ToolClient& client, const ConnectionOptions& node, Space space, const NamespaceRecord& record,
                         Hashes hashes, nlohmann::json& document, error_code& why) {
  std::uint64_t count = 0, bytes = 0;
  std::string tokens;
  if (record.is_set()) {
    // A set's blocks differ in length, so their bytes are a sum; a chain's are a product.
    const MatchOptions options{.deadline = node.deadline};
    const auto match = answer_of(client.run(client->match_set(space, hashes, options)));
    why = match.why;
    count = match.held_count;
    bytes = std::accumulate(match.block_bytes.begin(), match.block_bytes.end(), std::uint64_t{0});
    document["disk_blocks"] = match.disk_count;
    document["block_bytes"] = match.block_bytes;
  } else {
    const MatchOptions options{.deadline = node.deadline};
    const auto match = answer_of(client.run(client->match(space, hashes, options)));
    KV_ASSERT(match.block_count <= hashes.size() && match.disk_block_count <= match.block_count);
    why = match.why;
    count = match.block_count;
    bytes = count * record.block_bytes();
    document["disk_blocks"] = match.disk_block_count;
    document["tokens"] = count * record.block_size();
    tokens = format_count(count * record.block_size()) + " tokens, ";
  }
  document["blocks"] = count;
  document["bytes"] = bytes;
  return format_count(count) + " of " + format_count(hashes.size()) + " blocks are there: " + tokens +
         format_bytes(bytes);
}

void run_command(const std::string& name, BlockOptions options) {
  if (name == "why") return run_why(options);
  if (options.record_file.empty() == options.space.empty()) {
    throw CLI::ValidationError(name, "name the namespace with --namespace or --record");
  }
  const std::vector<BlockHash> hashes = parse_hashes(options);
  // To the node an empty chain means the whole namespace. An empty hash file must not drop it, so --all is required.
  if (hashes.empty() != options.all) {
    throw CLI::ValidationError(name, name == "drop" ? "give the hashes of a chain, or --all for the whole namespace"
                                                    : "give the hashes of a chain, first block first");
  }
  ToolClient client(ctl_config(options.node));
  const NamespaceRecord record = find_record(client, options.node, options);
  if (options.all) {
    confirm(name,
            "drop all blocks of " + std::string(record.field("model")) + " (namespace " + to_hex(record.id().bytes) +
                ") on all nodes",
            options.is_sure);
  }
  // Only now, with a complete record: opening creates the namespace on a node without it.
  const auto space = answer_of(client.open(record, options.node.deadline), "cannot open the namespace");

  nlohmann::json document = {{"op", name}, {"namespace", to_hex(record.id().bytes)}, {"hashes", hashes.size()}};
  std::string sentence;
  error_code why;
  if (name == "match") {
    sentence = match_blocks(client, options.node, space, record, hashes, document, why);
  } else if (name == "drop") {
    const auto dropped = answer_of(client.run(client->drop(space, hashes, options.node.deadline)), name);
    document["blocks"] = dropped.block_count;
    document["until_restart"] = dropped.until_restart;
    sentence = format_count(dropped.block_count) + " blocks dropped";
    if (dropped.until_restart)
      sentence +=
          ", until the node next starts: its disk could not be told in time, so blocks there may come back. Drop "
          "again once `kvstorectl status` says that the disk works";
  } else {
    const auto deadline = options.node.deadline;
    const auto count = answer_of(client.run(name == "retain" ? client->retain(space, hashes, deadline)
                                                             : client->unretain(space, hashes, deadline)),
                                 name);
    document["blocks"] = count;
    sentence = format_count(count) + " blocks " + name + "ed";
  }
  if (why) document["why"] = describe(why);
  print_answer(options.json, document,
               [&] { std::cout << sentence << (why ? "; not more because: " + describe(why) : "") << '\n'; });
  if (why) throw ToolFailed::said();  // some node was silent: scripts must see that the number is a lower bound
}

void add_command(CLI::App& app, const std::string& name, const std::string& about, const std::string& footer) {
  const auto [command, options] =
      add_ctl_command<BlockOptions>(app, name, about, [name](const BlockOptions& given) { run_command(name, given); });
  add_chain_options(*command, *options);
  if (name == "why") {
    command
        ->add_option(
            "--tokens", options->token_file,
            "Instead of hashes: a file of token ids; - reads them from stdin. Then other namespaces are looked "
            "into for the same prompt")
        ->type_name("FILE");
  }
  if (name == "drop") {
    command->add_flag("--all", options->all, "The whole namespace instead of a chain");
    add_sure_flag(*command, options->is_sure);
  }
  command->footer(footer);
}

}  // namespace

void add_block_commands(CLI::App& app) {
  add_command(app, "match", "How many leading blocks of a chain are there, or how many blocks of a set",
              "Example:\n  kvstorectl match --namespace my-model --hashes chain.txt\n");
  add_command(app, "why", "Why not more of a chain is there: what the nodes remember of the first block that is missed",
              "Nothing counts as used by the question. docs/operating.md: \"Why nothing hits\".\n\nExamples:\n"
              "  kvstorectl why --namespace my-model --hashes chain.txt\n"
              "  kvstorectl why --record record.txt --tokens prompt.txt\n");
  add_command(app, "retain", "Keep the longest cached prefix of a chain until it is unretained or dropped",
              "At most half of a node can be retained.\n\nExample:\n  kvstorectl retain --namespace 3fa9 --hashes "
              "system-prompt.txt\n");
  add_command(app, "unretain", "Let a retained prefix be evicted again",
              "Example:\n  kvstorectl unretain --namespace 3fa9 --hashes system-prompt.txt\n");
  add_command(
      app, "drop",
      "Forget the last block of a chain and all blocks below it, each named block of a set, or a whole namespace",
      "The drop holds after a restart too, or the answer says that it does not (until_restart in --json).\n\n"
      "Examples:\n  kvstorectl drop --namespace 3fa9 --hashes chain.txt\n  kvstorectl drop --namespace 3fa9 --all "
      "--yes\n");
}

}  // namespace kv
