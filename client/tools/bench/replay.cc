#include "client/tools/bench/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "client/tools/bench/metrics_page.h"
#include "client/tools/bench/prompt.h"
#include "client/tools/bench/replay_nodes.h"
#include "client/tools/bench/trace/trace_hints.h"
#include "client/tools/bench/trace/trace_reader.h"
#include "client/tools/bench/work_memory.h"
#include "client/tools/json_text.h"
#include "client/tools/options.h"
#include "client/tools/progress_line.h"
#include "client/tools/tool_client.h"

namespace kv {
namespace {

struct ReplayOptions {
  ConnectionOptions node;
  std::string trace;
  std::string salt = "0";
  std::size_t block_bytes = 4096;
  std::size_t block_size = 512;
  std::size_t split = 1;
  std::size_t request_count_max = 0;
  std::string fail, window;
  std::string metrics_listen;
  double prefill_speed = 0;
  std::size_t every = 0;
  std::string hint_kind = "none";
  double wrong_hints = 0;
  std::uint64_t hint_seed = 0;
  double requests_per_second = 0;
  std::chrono::microseconds busy_poll{0};
  bool json = false;
};

/// An id of the trace already names a whole prefix. So each block's hash is a chain of one, rooted in the namespace:
/// equal ids are equal blocks, and the trace's prefixes stay prefixes. Split, an id stands for that many blocks.
std::vector<BlockHash> chain_of(const TraceRequest& request, const BlockHash& root, std::size_t split) {
  std::vector<BlockHash> chain;
  chain.reserve(request.hash_ids.size() * split);
  for (const std::uint64_t id : request.hash_ids) {
    const std::array<std::uint32_t, 2> words = {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32)};
    chain.push_back(hash_chain(root, words, words.size()).front());
    // Chained on the first part, so that a part is found only with the parts before it, as cut blocks would be.
    for (std::uint32_t part = 1; part < split; ++part) {
      chain.push_back(hash_chain(chain.back(), std::span(&part, 1), 1).front());
    }
  }
  return chain;
}

struct WindowTotals {
  RequestWindow window;
  std::uint64_t references = 0, hits = 0;
  double hit_rate() const { return references == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(references); }
};

/// Hits of each `count` requests, to show a change in progress.
struct SeriesEntry {
  std::size_t first, count;
  double seconds;  ///< From the start to the last request.
  std::uint64_t references, hits;
};

struct MapChange {
  std::uint64_t epoch;
  std::size_t request;  ///< The last request before it was seen.
  double seconds, unix_seconds;
};

struct ReplayReport {
  Transport transport;
  PromptTotals totals;
  std::vector<MapChange> map_changes;
  std::vector<SeriesEntry> series;
  std::optional<WindowTotals> window;
  std::optional<NodeShares> shares;
  double seconds = 0;

  double nodes_per_match() const { return per_call(totals.match_nodes, totals.match_latency.count()); }
  double nodes_per_get() const { return per_call(totals.get_nodes, totals.get_latency.count()); }

 private:
  static double per_call(std::uint64_t nodes, std::uint64_t calls) {
    return calls == 0 ? 0 : static_cast<double>(nodes) / static_cast<double>(calls);
  }
};

void print_json(const ReplayOptions& options, const ReplayReport& report) {
  const PromptTotals& totals = report.totals;
  const auto latency = [](const LatencyHistogram& histogram) {
    return nlohmann::json{
        {"count", histogram.count()}, {"p50_us", histogram.quantile_us(0.5)}, {"p99_us", histogram.quantile_us(0.99)}};
  };
  nlohmann::json document = {{"command", "replay"},
                             {"transport", transport_name(report.transport)},
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
                             {"seconds", report.seconds},
                             {"nodes_per_match", report.nodes_per_match()},
                             {"nodes_per_get", report.nodes_per_get()},
                             {"get_bytes_per_second", call_rate(totals.hits, options.block_bytes, totals.get_time)},
                             {"put_bytes_per_second", call_rate(totals.stored, options.block_bytes, totals.put_time)},
                             {"match", latency(totals.match_latency)},
                             {"get", latency(totals.get_latency)},
                             {"put", latency(totals.put_latency)}};
  document.update(report.shares->json());
  for (const MapChange& each : report.map_changes) {
    document["map_changes"].push_back({{"epoch", each.epoch},
                                       {"request", each.request},
                                       {"seconds", each.seconds},
                                       {"unix_seconds", each.unix_seconds}});
  }
  for (const SeriesEntry& each : report.series) {
    document["series"].push_back({{"first", each.first},
                                  {"count", each.count},
                                  {"seconds", each.seconds},
                                  {"references", each.references},
                                  {"hits", each.hits}});
  }
  if (report.window) {
    document["window"] = {{"first", report.window->window.first},
                          {"count", report.window->window.count},
                          {"references", report.window->references},
                          {"hits", report.window->hits},
                          {"hit_rate", report.window->hit_rate()}};
  }
  std::cout << json_text(document) << '\n';
}

void print_table(const ReplayOptions& options, const ReplayReport& report) {
  const PromptTotals& totals = report.totals;
  std::cout << format_count(totals.prompts) << " requests, " << format_count(totals.references)
            << " block references of " << format_bytes(options.block_bytes) << ", over "
            << transport_name(report.transport) << " in " << format_seconds(report.seconds) << "\n"
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
  add("get", totals.get_latency, format_number(call_rate(totals.hits, options.block_bytes, totals.get_time) / 1e9, 3));
  add("put", totals.put_latency,
      format_number(call_rate(totals.stored, options.block_bytes, totals.put_time) / 1e9, 3));
  table.print(std::cout);
  report.shares->print(std::cout);
  if (options.node.endpoints.size() > 1) {
    std::cout << "nodes asked: by a match " << format_number(report.nodes_per_match(), 2) << ", by a get "
              << format_number(report.nodes_per_get(), 2) << "\n";
  }
  if (report.window) {
    std::cout << "requests " << report.window->window.first << " to before "
              << report.window->window.first + report.window->window.count << ": " << format_count(report.window->hits)
              << " hits of " << format_count(report.window->references) << " references, hit rate "
              << format_number(report.window->hit_rate(), 4) << "\n";
  }
  for (const MapChange& each : report.map_changes) {
    std::cout << "map of epoch " << each.epoch << " from request " << each.request << " on, at "
              << format_seconds(each.seconds) << "\n";
  }
  if (!report.series.empty()) {
    TextTable series({"requests from", "at", "references", "hits", "hit rate"});
    for (const SeriesEntry& each : report.series) {
      const double share =
          each.references == 0 ? 0 : static_cast<double>(each.hits) / static_cast<double>(each.references);
      series.add({format_count(each.first), format_seconds(each.seconds), format_count(each.references),
                  format_count(each.hits), format_number(share, 4)});
    }
    std::cout << "\n";
    series.print(std::cout);
  }
  for (const auto& [reason, count] : totals.reasons) std::cout << "\n" << format_count(count) << " x " << reason;
  std::cout << (totals.reasons.empty() ? "\n" : "\n\n") << "wrong bytes: " << format_count(totals.wrong_bytes) << "\n";
}

/// A client with its memory, recreated for a simulated death. Memory goes before the client that lent it.
struct ReplayClient {
  ReplayClient(const ReplayOptions& options, ClientConfig config, const NamespaceRecord& record, Transport transport,
               std::size_t memory_bytes)
      : client(std::move(config), options.busy_poll),
        space(answer_of(client.open(record, options.node.deadline), "cannot open a namespace at the node")),
        memory(client, transport, memory_bytes) {}
  std::vector<NodeStats> stats(const ReplayOptions& options) {
    return answer_of(ask_stats(client, options.node.deadline), "stats");
  }

  ToolClient client;
  const Space space;
  WorkMemory memory;
};

/// Notes the course of a replay in its report and shows it, request by request.
class ReplayCourse {
 public:
  ReplayCourse(const ReplayOptions& options, ReplayReport& report, std::size_t request_count, std::uint64_t epoch)
      : options_(options), report_(report), request_count_(request_count), epoch_(epoch) {
    if (!options.metrics_listen.empty()) page_.emplace(options.metrics_listen);
  }
  TimePoint start() const { return start_; }
  void add(std::size_t request, Client& client);
  void end() {
    line_.clear();
    report_.seconds = seconds_until(std::chrono::steady_clock::now());
  }

 private:
  double seconds_until(TimePoint now) const { return std::chrono::duration<double>(now - start_).count(); }

  const ReplayOptions& options_;
  ReplayReport& report_;
  const std::size_t request_count_;
  std::optional<MetricsPage> page_;
  ProgressLine line_;
  const TimePoint start_ = std::chrono::steady_clock::now();
  TimePoint told_{};
  std::uint64_t references_told_ = 0, hits_told_ = 0, epoch_;
};

void ReplayCourse::add(std::size_t request, Client& client) {
  const PromptTotals& totals = report_.totals;
  const TimePoint now = std::chrono::steady_clock::now();
  if (page_ && now - told_ > 100ms) {
    told_ = now;
    client.tell_prefill_speed(options_.prefill_speed);
    page_->set(client.metrics_text());
  }
  if (const std::uint64_t epoch_now = client.cluster().epoch; std::exchange(epoch_, epoch_now) != epoch_now) {
    const std::chrono::duration<double> unix_time = std::chrono::system_clock::now().time_since_epoch();
    report_.map_changes.push_back({epoch_, request, seconds_until(now), unix_time.count()});
  }
  if (options_.every > 0 && ((request + 1) % options_.every == 0 || request + 1 == request_count_)) {
    const std::size_t count = request % options_.every + 1;
    report_.series.push_back({request + 1 - count, count, seconds_until(now),
                              totals.references - std::exchange(references_told_, totals.references),
                              totals.hits - std::exchange(hits_told_, totals.hits)});
  }
  line_.tell([&] {
    return std::to_string(totals.prompts) + " of " + std::to_string(request_count_) + " requests, hit rate " +
           format_number(totals.hit_rate(), 4) + ", wrong bytes " + std::to_string(totals.wrong_bytes);
  });
}

void run_replay(ReplayOptions options) {
  ReplayReport report{.transport = complete(options.node)};
  if (options.split == 0 || options.block_size % options.split != 0) {
    throw CLI::ValidationError("--split", std::to_string(options.split) + " does not divide the " +
                                              std::to_string(options.block_size) + " tokens of --block-tokens");
  }
  const NamespaceRecord record =
      prompt_record("replay", options.block_size / options.split, options.block_bytes, options.salt);
  const std::vector<TraceRequest> trace = read_trace(options.trace, options.request_count_max);
  const std::vector<ReuseHint> hints =
      trace_hints(trace, hint_kind(options.hint_kind), options.wrong_hints, options.hint_seed);
  std::size_t longest = 1;
  for (const TraceRequest& request : trace) longest = std::max(longest, request.hash_ids.size() * options.split);
  const auto death = parse_death(options.fail, options.node.endpoints, trace.size());
  if (!options.window.empty()) {
    report.window.emplace(parse_window(options.window, trace.size()));
  } else if (death) {
    // A death is judged by 200 requests: after those the lost blocks have been computed again.
    report.window.emplace(RequestWindow{death->request, std::min<std::size_t>(200, trace.size() - death->request)});
  }

  ClientConfig config = client_config(options.node, "kvstore-bench replay");
  const std::size_t memory_bytes = longest * options.block_bytes;
  std::optional<ReplayClient> replay;
  replay.emplace(options, config, record, report.transport, memory_bytes);
  report.shares.emplace(replay->stats(options));
  std::optional<RefusingPort> nobody;
  ReplayCourse course(options, report, trace.size(), replay->client->cluster().epoch);

  // One request after the other, so that the same trace on a fresh node gives the same numbers each time.
  PromptTotals& totals = report.totals;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (death && i == death->request) {
      // The name, and so the node's blocks in rendezvous hashing, stays, but the endpoint refuses connections.
      config.nodes[death->node].name = config.nodes[death->node].endpoint;
      config.nodes[death->node].endpoint = nobody.emplace().endpoint();
      // The old one first: both together would lend twice the memory.
      replay.reset();
      replay.emplace(options, config, record, report.transport, memory_bytes);
    }
    if (report.window && report.window->window.begins_at(i)) {
      report.window->references = totals.references;
      report.window->hits = totals.hits;
    }
    if (options.requests_per_second > 0) {
      const std::chrono::duration<double> due(static_cast<double>(i) / options.requests_per_second);
      std::this_thread::sleep_until(course.start() + std::chrono::duration_cast<Duration>(due));
    }
    // After a get that missed its deadline the node may still write there. A connector would take other pages.
    replay->memory.renew_if_quarantined();
    const std::vector<BlockHash> chain = chain_of(trace[i], record.digest(), options.split);
    KV_ASSERT(chain.size() <= longest);
    const PromptContext context{*replay->client,     replay->space,         record.id(),
                                options.block_bytes, options.node.deadline, hints[i]};
    answer_of(replay->client.run(run_prompt(context, chain, replay->memory.bytes(), totals)),
              "request " + std::to_string(i + 1));
    if (report.window && report.window->window.ends_at(i + 1)) {
      report.window->references = totals.references - report.window->references;
      report.window->hits = totals.hits - report.window->hits;
    }
    course.add(i, *replay->client);
  }
  course.end();
  report.shares->end(replay->stats(options), death);
  options.json ? print_json(options, report) : print_table(options, report);
  if (totals.wrong_bytes > 0) throw std::runtime_error(format_count(totals.wrong_bytes) + " wrong bytes");
  check_all_answer(options.node);
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
  command
      ->add_option("--split", options->split,
                   "Blocks that each block of the trace is cut into: 32 makes blocks of 16 tokens out of 512. "
                   "--block-bytes is the size of one of them")
      ->capture_default_str();
  command->add_option("--limit-requests", options->request_count_max, "Stop after this many; 0: all")
      ->capture_default_str();
  command
      ->add_option("--salt", options->salt, "Part of every name. Another salt starts with a cold cache on a used node")
      ->capture_default_str();
  command
      ->add_option("--fail", options->fail,
                   "Play a death: from request N on (counted from 0) nothing is sent to node NODE, an endpoint or its "
                   "number in the list from 0. The node itself is not touched, and still owns its blocks")
      ->type_name("NODE@N");
  command
      ->add_option("--window", options->window,
                   "Also tell the hits of COUNT requests (200) from request FIRST on. Default: from --fail's on")
      ->type_name("FIRST[+COUNT]");
  command
      ->add_option("--requests-per-second", options->requests_per_second,
                   "At most so many, for what takes its time beside the load; 0: each at once after the one before")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_hint_options(*command, options->hint_kind, options->wrong_hints);
  command->add_option("--hint-seed", options->hint_seed, "Which requests say something wrong")->capture_default_str();
  command->add_option("--every", options->every, "Also tell the hits of each so many requests, and when; 0: do not")
      ->capture_default_str();
  add_duration_option(*command, "--busy-poll", options->busy_poll, "Spin this long for an answer before sleeping");
  command
      ->add_option("--metrics-listen", options->metrics_listen,
                   "While it runs, what the client has seen, for Prometheus (kvstore_client_...)")
      ->type_name("HOST:PORT");
  command->add_option("--prefill-speed", options->prefill_speed,
                      "Tokens a second that an engine would compute, for the estimate of what is saved; 0: none");
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  command->footer(
      "Each line has timestamp, input_length, output_length and hash_ids, one id per block of the input. For each\n"
      "request: match under a lease, get the hit, compare every byte with what its block's name says, put the rest.\n"
      "One request at a time. A fresh node with --eviction-policy lru gives the same numbers every time; one that "
      "learns\nsamples by a seed of its own, and differs in the third digit. Exit status 1 after a wrong byte.\n"
      "With several nodes each one's share is told, and how many nodes a match and a get ask. A death that --fail "
      "plays\nis one before anybody has a new list of nodes: what the node owns is missed, and moves nowhere.\n\n"
      "Examples:\n"
      "  kvstore-node --listen tcp://127.0.0.1:7400 --capacity-blocks 10000 --capacity-block-bytes 4096\n"
      "  kvstore-bench replay --trace conversation_trace.jsonl.gz --endpoint tcp://127.0.0.1:7400\n"
      "  kvstore-bench replay --trace conversation_trace.jsonl.gz --split 32 --block-bytes 64 --fail 1@6015 \\\n"
      "    --endpoint tcp://a:7400,tcp://b:7400,tcp://c:7400\n");
  command->callback([options] { run_replay(*options); });
}

}  // namespace kv
