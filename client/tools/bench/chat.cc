#include "client/tools/bench/bench.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "base/assert.h"
#include "client/tools/bench/prompt.h"
#include "client/tools/bench/work_memory.h"
#include "client/tools/json_text.h"
#include "client/tools/options.h"
#include "client/tools/tool_client.h"

namespace kv {
namespace {

struct ChatOptions {
  ConnectionOptions node;
  std::size_t session_count = 8, turn_count = 6;
  std::size_t block_bytes = 2u << 20;
  std::size_t block_size = 16;
  std::size_t system_block_count = 32, turn_block_count = 8;
  std::string salt;
  bool json = false;
};

/// Tokens of a vocabulary of 128,000, as in present models.
void append_tokens(std::vector<std::uint32_t>& tokens, std::size_t count, std::mt19937& random) {
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::uint32_t>(random() % 128'000));
}

void print_json(const ChatOptions& options, Transport transport, const std::vector<PromptTotals>& turns) {
  nlohmann::json document = {
      {"command", "chat"}, {"transport", transport_name(transport)}, {"sessions", options.session_count}};
  std::uint64_t wrong_bytes = 0;
  for (const PromptTotals& turn : turns) {
    wrong_bytes += turn.wrong_bytes;
    document["turns"].push_back({{"references", turn.references},
                                 {"hits", turn.hits},
                                 {"hit_rate", turn.hit_rate()},
                                 {"get_bytes_per_second", call_rate(turn.hits, options.block_bytes, turn.get_time)},
                                 {"tokens_not_recomputed", turn.hits * options.block_size},
                                 {"wrong_bytes", turn.wrong_bytes},
                                 {"reasons", turn.reasons}});
  }
  document["wrong_bytes"] = wrong_bytes;
  std::cout << json_text(document) << '\n';
}

void print_table(const ChatOptions& options, Transport transport, const std::vector<PromptTotals>& turns) {
  std::cout << options.session_count << " conversations behind one system prompt of "
            << options.system_block_count * options.block_size << " tokens, blocks of " << options.block_size
            << " tokens and " << format_bytes(options.block_bytes) << ", over " << transport_name(transport) << "\n\n";
  TextTable table({"turn", "tokens", "not recomputed", "hit rate", "get GB/s", "get p50 ms", "wrong bytes"});
  PromptTotals sum;
  const auto add = [&](const std::string& name, const PromptTotals& totals) {
    table.add({name, format_count(totals.references * options.block_size),
               format_count(totals.hits * options.block_size), format_number(totals.hit_rate(), 3),
               format_number(call_rate(totals.hits, options.block_bytes, totals.get_time) / 1e9, 2),
               format_number(totals.get_latency.quantile_us(0.5) / 1000, 2), format_count(totals.wrong_bytes)});
  };
  for (std::size_t i = 0; i < turns.size(); ++i) {
    add(std::to_string(i + 1), turns[i]);
    sum.references += turns[i].references;
    sum.hits += turns[i].hits;
    sum.wrong_bytes += turns[i].wrong_bytes;
    sum.get_time += turns[i].get_time;
    sum.get_latency.add(turns[i].get_latency);
    for (const auto& [reason, count] : turns[i].reasons) sum.reasons[reason] += count;
  }
  add("all", sum);
  table.print(std::cout);
  for (const auto& [reason, count] : sum.reasons) std::cout << format_count(count) << " x " << reason << "\n";
}

void run_chat(ChatOptions options) {
  const Transport transport = complete(options.node);
  // Each run has its own names: on a busy node the first turn must be cold, or its hit rate is meaningless.
  if (options.salt.empty()) options.salt = std::to_string(std::random_device()());
  const NamespaceRecord record = prompt_record("chat", options.block_size, options.block_bytes, options.salt);
  ToolClient client(client_config(options.node, "kvstore-bench chat"));
  const Space space = answer_of(client.open(record, options.node.deadline), "cannot open a namespace at the node");
  const std::size_t longest = options.system_block_count + options.turn_count * options.turn_block_count;
  WorkMemory memory(client, transport, longest * options.block_bytes);
  const PromptContext context{*client, space, record.id(), options.block_bytes, options.node.deadline};

  std::mt19937 random(1);  // the same conversations in every run
  std::vector<std::vector<std::uint32_t>> conversations(1);
  append_tokens(conversations[0], options.system_block_count * options.block_size, random);
  // Copies of the system prompt: equal tokens, equal hashes, so the node holds these blocks once.
  conversations.resize(options.session_count, conversations[0]);
  std::vector<PromptTotals> turns(options.turn_count);
  for (PromptTotals& turn : turns) {
    // Conversations take turns: between two turns of one, all others touch the cache.
    for (auto& tokens : conversations) {
      append_tokens(tokens, options.turn_block_count * options.block_size, random);
      // From the start each turn, as in an engine without state of its own.
      const std::vector<BlockHash> chain = hash_chain(record.digest(), tokens, options.block_size);
      KV_ASSERT(chain.size() <= longest);  // or the prompt would not fit the lent memory
      memory.renew_if_quarantined();
      answer_of(client.run(run_prompt(context, chain, memory.bytes(), turn)));
    }
  }
  options.json ? print_json(options, transport, turns) : print_table(options, transport, turns);
  for (const PromptTotals& turn : turns) {
    if (turn.wrong_bytes > 0) throw std::runtime_error(format_count(turn.wrong_bytes) + " wrong bytes");
  }
  check_all_answer(options.node);
}

}  // namespace

void add_chat_command(CLI::App& app) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Conversations that grow turn by turn: what a node spares a model");
  add_node_options(*command, options->node, /*with_transport=*/true);
  add_count_option(*command, "--sessions", options->session_count, 100'000, "Conversations, taking turns");
  add_count_option(*command, "--turns", options->turn_count, 100'000, "Turns of each");
  add_count_option(*command, "--system-blocks", options->system_block_count, 100'000,
                   "Blocks of the system prompt that all share");
  add_count_option(*command, "--turn-blocks", options->turn_block_count, 100'000,
                   "Blocks by which a turn grows its conversation");
  add_count_option(*command, "--block-tokens", options->block_size, 100'000, "Tokens of a block");
  add_bytes_option(*command, "--block-bytes", options->block_bytes,
                   "Bytes of a block: 2 MiB is 16 tokens of a 8B model");
  command->add_option("--salt", options->salt, "Part of every name; default: a new one, so that the cache starts cold");
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  command->footer(
      "Needs room for (system + sessions * turns * turn) blocks on the node, 832 MiB with the defaults.\n\n"
      "Example:\n"
      "  kvstore-bench chat --endpoint unix:///run/kvstore/kvstore.sock --sessions 4\n");
  command->callback([options] { run_chat(*options); });
}

}  // namespace kv
