#include "client/tools/bench/replay.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/assert.h"
#include "client/tools/bench/prompt.h"
#include "client/tools/bench/trace_reader.h"
#include "client/tools/bench/work_memory.h"
#include "client/tools/json_text.h"
#include "client/tools/options.h"
#include "client/tools/tool_client.h"

namespace kv {
namespace {

struct ReplayOptions {
  ConnectionOptions node;
  std::string trace;
  std::string salt = "0";
  std::size_t block_bytes = 4096;
  std::size_t block_size = 512;
  std::size_t request_count_max = 0;
  std::chrono::microseconds busy_poll{0};
  bool json = false;
};

/// An id of the trace already names a whole prefix. So each block's hash is a chain of one, rooted in the namespace:
/// equal ids are equal blocks, and the trace's prefixes stay prefixes.
std::vector<BlockHash> chain_of(const TraceRequest& request, const BlockHash& root) {
  std::vector<BlockHash> chain;
  chain.reserve(request.hash_ids.size());
  for (const std::uint64_t id : request.hash_ids) {
    const std::array<std::uint32_t, 2> words = {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32)};
    chain.push_back(hash_chain(root, words, words.size()).front());
  }
  return chain;
}

NamespaceRecord replay_record(const ReplayOptions& options) {
  auto record = NamespaceRecord::from_fields({{"model", "kvstore-bench-replay"},
                                              {"block_size", std::to_string(options.block_size)},
                                              {"block_bytes", std::to_string(options.block_bytes)},
                                              {"salt", options.salt}});
  if (!record) throw CLI::ValidationError("replay", record.error().text);
  return *std::move(record);
}

/// Bytes a second over the time spent in calls, not over the run: pauses between requests are the trace's.
double rate(std::uint64_t blocks, std::size_t block_bytes, Duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return seconds > 0 ? static_cast<double>(blocks * block_bytes) / seconds : 0;
}

void print_json(const ReplayOptions& options, Transport transport, const PromptTotals& totals, double seconds) {
  const auto latency = [](const LatencyHistogram& histogram) {
    return nlohmann::json{
        {"count", histogram.count()}, {"p50_us", histogram.quantile_us(0.5)}, {"p99_us", histogram.quantile_us(0.99)}};
  };
  const nlohmann::json document = {{"command", "replay"},
                                   {"transport", transport_name(transport)},
                                   {"block_bytes", options.block_bytes},
                                   {"requests", totals.prompts},
                                   {"references", totals.references},
                                   {"hits", totals.hits},
                                   {"memory_hits", totals.hits - totals.disk_hits},
                                   {"disk_hits", totals.disk_hits},
                                   {"hit_rate", totals.hit_rate()},
                                   {"stored", totals.stored},
                                   {"already_stored", totals.already_stored},
                                   {"refused", totals.refused},
                                   {"promised_not_got", totals.promised_not_got},
                                   {"wrong_bytes", totals.wrong_bytes},
                                   {"reasons", totals.reasons},
                                   {"seconds", seconds},
                                   {"get_bytes_per_second", rate(totals.hits, options.block_bytes, totals.get_time)},
                                   {"put_bytes_per_second", rate(totals.stored, options.block_bytes, totals.put_time)},
                                   {"match", latency(totals.match_latency)},
                                   {"get", latency(totals.get_latency)},
                                   {"put", latency(totals.put_latency)}};
  std::cout << json_text(document) << '\n';
}

void print_table(const ReplayOptions& options, Transport transport, const PromptTotals& totals, double seconds) {
  std::cout << format_count(totals.prompts) << " requests, " << format_count(totals.references)
            << " block references of " << format_bytes(options.block_bytes) << ", over " << transport_name(transport)
            << " in " << format_seconds(seconds) << "\n"
            << format_count(totals.hits) << " hits, hit rate " << format_number(totals.hit_rate(), 4) << "; "
            << format_count(totals.hits - totals.disk_hits) << " from memory, " << format_count(totals.disk_hits)
            << " from disk\n"
            << format_count(totals.stored) << " blocks stored, " << format_count(totals.refused) << " refused, "
            << format_count(totals.promised_not_got) << " promised and not delivered\n\n";
  TextTable table({"call", "count", "p50 us", "p99 us", "GB/s"});
  const auto add = [&](const char* name, const LatencyHistogram& latency, std::string speed) {
    table.add({name, format_count(latency.count()), format_number(latency.quantile_us(0.5), 1),
               format_number(latency.quantile_us(0.99), 1), std::move(speed)});
  };
  add("match", totals.match_latency, "-");
  add("get", totals.get_latency, format_number(rate(totals.hits, options.block_bytes, totals.get_time) / 1e9, 3));
  add("put", totals.put_latency, format_number(rate(totals.stored, options.block_bytes, totals.put_time) / 1e9, 3));
  table.print(std::cout);
  for (const auto& [reason, count] : totals.reasons) std::cout << "\n" << format_count(count) << " x " << reason;
  std::cout << (totals.reasons.empty() ? "\n" : "\n\n") << "wrong bytes: " << format_count(totals.wrong_bytes) << "\n";
}

void run_replay(ReplayOptions options) {
  const Transport transport = complete(options.node);
  const NamespaceRecord record = replay_record(options);
  const std::vector<TraceRequest> trace = read_trace(options.trace, options.request_count_max);
  std::size_t longest = 1;
  for (const TraceRequest& request : trace) longest = std::max(longest, request.hash_ids.size());

  ToolClient client(client_config(options.node, "kvstore-bench replay"), options.busy_poll);
  const auto space = client.open(record, options.node.deadline);
  if (!space) throw std::runtime_error("cannot open a namespace at the node: " + describe(space.error()));
  WorkMemory memory(client, transport, longest * options.block_bytes);

  // One request after the other, so that the same trace on a fresh node gives the same numbers each time.
  const PromptContext context{*client, *space, record.id(), options.block_bytes, options.node.deadline};
  PromptTotals totals;
  const bool progress = ::isatty(STDERR_FILENO) != 0;
  const TimePoint start = std::chrono::steady_clock::now();
  TimePoint shown = start;
  for (const TraceRequest& request : trace) {
    memory.renew_if_quarantined();
    const std::vector<BlockHash> chain = chain_of(request, record.digest());
    KV_ASSERT(chain.size() <= longest);
    const auto done = client.run(run_prompt(context, chain, memory.bytes(), totals));
    if (!done) throw std::runtime_error("request " + std::to_string(totals.prompts) + ": " + describe(done.error()));
    const TimePoint now = std::chrono::steady_clock::now();
    if (progress && now - shown > 200ms) {
      shown = now;
      std::cerr << "\r\033[K" << totals.prompts << " of " << trace.size() << " requests, hit rate "
                << format_number(totals.hit_rate(), 4) << ", wrong bytes " << totals.wrong_bytes << std::flush;
    }
  }
  if (progress) std::cerr << "\r\033[K";
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  options.json ? print_json(options, transport, totals, seconds) : print_table(options, transport, totals, seconds);
  if (totals.wrong_bytes > 0) throw std::runtime_error(format_count(totals.wrong_bytes) + " wrong bytes");
}

}  // namespace

void add_replay_command(CLI::App& app) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* command = app.add_subcommand("replay", "Recorded requests against a running node; every byte is checked");
  command->add_option("--trace", options->trace, "JSON lines, plain or gzip")->required()->type_name("FILE");
  add_node_options(*command, options->node, /*with_transport=*/true);
  add_bytes_option(*command, "--block-bytes", options->block_bytes, "Size of a block");
  command->add_option("--block-tokens", options->block_size, "Tokens of a block, as in the trace")
      ->capture_default_str();
  command->add_option("--limit-requests", options->request_count_max, "Stop after this many; 0: all")
      ->capture_default_str();
  command
      ->add_option("--salt", options->salt, "Part of every name. Another salt starts with a cold cache on a used node")
      ->capture_default_str();
  add_duration_option(*command, "--busy-poll", options->busy_poll, "Spin this long for an answer before sleeping");
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  command->footer(
      "Each line has timestamp, input_length, output_length and hash_ids, one id per block of the input. For each\n"
      "request: match under a lease, get the hit, compare every byte with what its block's name says, put the rest.\n"
      "One request at a time, so a fresh node gives the same numbers every time. Exit status 1 after a wrong byte.\n\n"
      "Examples:\n"
      "  kvstore-node --listen tcp://127.0.0.1:7400 --capacity-blocks 10000 --capacity-block-bytes 4096\n"
      "  kvstore-bench replay --trace conversation_trace.jsonl.gz --endpoint tcp://127.0.0.1:7400\n");
  command->callback([options] { run_replay(*options); });
}

}  // namespace kv
