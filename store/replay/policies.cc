// store/replay/policies.cc: kvstore-policies: which eviction policy and which capacity suit a trace, without a node.
//
// Files, in reading order:
//   block_trace.h  the trace as lists of blocks
//   policy_run.h   one policy at one size: the trace through a Store in this process
//   optimum.h      the most hits that any cache could have had
//   svg_plot.h     the picture
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "base/numa.h"
#include "client/tools/bench/trace/trace_hints.h"
#include "client/tools/bench/trace/trace_reader.h"
#include "client/tools/json_text.h"
#include "client/tools/text_table.h"
#include "client/tools/tool_main.h"
#include "store/replay/block_trace.h"
#include "store/replay/optimum.h"
#include "store/replay/policy_run.h"
#include "store/replay/svg_plot.h"

namespace kv {
namespace {

constexpr std::uint64_t kCapacityMax = 100'000'000;  ///< In blocks, each of which is tracked.
constexpr const char* kOptimum = "optimum";

struct PoliciesOptions {
  std::string trace, plot;
  std::vector<std::uint64_t> capacities = {3'000, 5'000, 10'000, 30'000, 100'000};
  std::vector<std::string> policies;
  BlockTraceOptions blocks;
  std::size_t request_count_max = 0;
  std::string hint_kind = "none";
  double wrong_hints = 0;
  std::vector<ReuseHint> hints;  ///< Of each request.
  std::uint64_t seed = 0;
  unsigned thread_count = static_cast<unsigned>(std::max<std::size_t>(1, allowed_processors().size()));
  bool json = false;
  HitCurveConfig curve{.is_on = false, .one_in = 100, .block_count_max = 16'384};
};

struct Cell {
  std::string policy;
  std::uint64_t capacity;
  CacheTotals totals;
  double seconds = 0;
  HitCurve::Report curve = {};
};

std::vector<std::string> policy_names() {
  std::vector<std::string> names(std::begin(kPolicyNames), std::end(kPolicyNames));
  names.push_back(kOptimum);
  return names;
}

PolicyKind kind_of(const std::string& policy) {
  return static_cast<PolicyKind>(std::ranges::find(kPolicyNames, policy) - std::begin(kPolicyNames));
}

CacheTotals run_cell(Cell& cell, const BlockTrace& trace, const PoliciesOptions& options,
                     std::atomic<std::uint64_t>& done) {
  if (cell.policy == kOptimum) return optimum(trace, cell.capacity, done);
  return run_policy(trace,
                    {.policy = kind_of(cell.policy),
                     .capacity = cell.capacity,
                     .block_tokens = options.blocks.block_tokens / options.blocks.split,
                     .seed = options.seed,
                     .hints = options.hints,
                     .curve = options.curve},
                    done, &cell.curve);
}

/// All cells, a few at a time. They share only the trace, so their results are independent.
void run_cells(std::vector<Cell>& cells, const BlockTrace& trace, const PoliciesOptions& options) {
  const std::size_t thread_count = std::min<std::size_t>(options.thread_count, cells.size());
  std::atomic<std::size_t> next = 0, ended = 0, running = thread_count;
  std::atomic<std::uint64_t> done = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < cells.size(); ++ended) {
      const auto start = std::chrono::steady_clock::now();
      try {
        cells[i].totals = run_cell(cells[i], trace, options, done);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
        next = cells.size();
      }
      cells[i].seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    --running;
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < thread_count; ++i) threads.emplace_back(work);
  if (::isatty(STDERR_FILENO) != 0) {
    const double all = static_cast<double>(cells.size()) * static_cast<double>(trace.request_count());
    for (; running > 0; std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
      std::cerr << "\r\033[K" << ended << " of " << cells.size() << " runs, "
                << format_number(100 * static_cast<double>(done) / all, 0) << " %" << std::flush;
    }
    std::cerr << "\r\033[K";
  }
  threads.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

std::vector<const Cell*> cells_of(const std::vector<Cell>& cells, const std::string& policy) {
  std::vector<const Cell*> of;
  for (const Cell& cell : cells)
    if (cell.policy == policy) of.push_back(&cell);
  return of;
}

double stored_per_request(const Cell& cell, const BlockTrace& trace) {
  return static_cast<double>(cell.totals.stored) / static_cast<double>(trace.request_count());
}

/// Each cache's own estimate for larger and smaller sizes, from its sample.
void print_curves(const std::vector<Cell>& cells) {
  for (const Cell& cell : cells) {
    if (cell.policy == kOptimum) continue;
    std::cout << "\nfrom a sample of one in " << cell.curve.one_in << " in a cache of " << format_count(cell.capacity)
              << " blocks, " << cell.policy << ", which hits " << format_number(cell.totals.hit_rate(), 4) << "\n";
    TextTable table({"blocks", "lru", "+-", cell.policy == "lru" ? "" : cell.policy, "+-"});
    for (const HitCurve::Point& point : cell.curve.points) {
      const auto cells_of = [](const HitCurve::Estimate& estimate, bool is_known) {
        return std::pair(is_known ? format_number(estimate.hit_rate, 4) : "-",
                         is_known ? format_number(estimate.error, 4) : "-");
      };
      const auto lru = cells_of(point.lru, true), own = cells_of(point.policy, cell.curve.has_policy);
      table.add({format_count(point.block_count), lru.first, lru.second, own.first, own.second});
    }
    table.print(std::cout);
  }
}

void print_json(const PoliciesOptions& options, const BlockTrace& trace, const std::vector<Cell>& cells,
                double infinite) {
  nlohmann::json results = nlohmann::json::array();
  for (const Cell& cell : cells) {
    results.push_back({{"policy", cell.policy},
                       {"capacity", cell.capacity},
                       {"hits", cell.totals.hits},
                       {"hit_rate", cell.totals.hit_rate()},
                       {"stored", cell.totals.stored},
                       {"stored_per_request", stored_per_request(cell, trace)},
                       {"seconds", cell.seconds}});
    if (!options.curve.is_on || cell.policy == kOptimum) continue;
    nlohmann::json& points = results.back()["curve"] = nlohmann::json::array();
    for (const HitCurve::Point& point : cell.curve.points) {
      points.push_back({{"capacity", point.block_count}, {"lru", point.lru.hit_rate}, {"lru_error", point.lru.error}});
      if (!cell.curve.has_policy) continue;
      points.back()["own"] = point.policy.hit_rate;
      points.back()["own_error"] = point.policy.error;
    }
  }
  std::cout << json_text({{"command", "policies"},
                          {"trace", options.trace},
                          {"requests", trace.request_count()},
                          {"references", trace.reference_count()},
                          {"distinct_blocks", trace.block_count()},
                          {"block_tokens", options.blocks.block_tokens / options.blocks.split},
                          {"seed", options.seed},
                          {"infinite_hit_rate", infinite},
                          {"results", results}})
            << '\n';
}

void print_table(const PoliciesOptions& options, const BlockTrace& trace, const std::vector<Cell>& cells,
                 double infinite) {
  std::cout << format_count(trace.request_count()) << " requests, " << format_count(trace.reference_count())
            << " references to blocks of " << options.blocks.block_tokens / options.blocks.split
            << " tokens; hit rate without a bound " << format_number(infinite, 4) << "\n";
  const auto print = [&](const char* heading, auto value) {
    std::cout << "\n" << heading << "\n";
    std::vector<std::string> headings = {"blocks"};
    headings.insert(headings.end(), options.policies.begin(), options.policies.end());
    TextTable table(headings);
    for (std::size_t i = 0; i < options.capacities.size(); ++i) {
      std::vector<std::string> row = {format_count(options.capacities[i])};
      for (const std::string& policy : options.policies) row.push_back(value(*cells_of(cells, policy)[i]));
      table.add(std::move(row));
    }
    table.print(std::cout);
  };
  print("hit rate", [](const Cell& cell) { return format_number(cell.totals.hit_rate(), 4); });
  print("blocks stored a request", [&](const Cell& cell) { return format_number(stored_per_request(cell, trace), 1); });
}

void write_plot(const PoliciesOptions& options, const BlockTrace& trace, const std::vector<Cell>& cells) {
  PlotPanel hits{
      .title = "Hit rate", .x_label = "capacity, blocks", .y_label = "share of block references", .lines = {}};
  PlotPanel stored{.title = "Blocks stored a request", .x_label = "capacity, blocks", .y_label = "blocks", .lines = {}};
  for (const std::string& policy : options.policies) {
    const bool is_bound = policy == kOptimum;
    PlotLine& rate = hits.lines.emplace_back(PlotLine{policy, {}, is_bound});
    PlotLine& count = stored.lines.emplace_back(PlotLine{policy, {}, is_bound});
    for (const Cell* cell : cells_of(cells, policy)) {
      rate.points.emplace_back(static_cast<double>(cell->capacity), cell->totals.hit_rate());
      count.points.emplace_back(static_cast<double>(cell->capacity), stored_per_request(*cell, trace));
    }
  }
  const std::string name = options.trace.substr(options.trace.find_last_of('/') + 1);
  std::ofstream file(options.plot, std::ios::binary);
  file << svg_plot(
      name + ", blocks of " + std::to_string(options.blocks.block_tokens / options.blocks.split) + " tokens",
      {hits, stored});
  file.close();
  if (!file) throw std::runtime_error(options.plot + ": cannot be written");
}

void check(PoliciesOptions& options) {
  BlockTraceOptions& blocks = options.blocks;
  if (blocks.block_tokens == 0) throw CLI::ValidationError("--block-tokens", "0 tokens; at least 1");
  if (blocks.split == 0 || blocks.block_tokens % blocks.split != 0) {
    throw CLI::ValidationError("--split", std::to_string(blocks.split) + " does not divide the " +
                                              std::to_string(blocks.block_tokens) + " tokens of --block-tokens");
  }
  for (const std::uint64_t capacity : options.capacities) {
    if (capacity == 0 || capacity > kCapacityMax) {
      throw CLI::ValidationError("--capacity",
                                 std::to_string(capacity) + " blocks; allowed are 1 to " + format_count(kCapacityMax));
    }
  }
  std::ranges::sort(options.capacities);
  options.capacities.erase(std::unique(options.capacities.begin(), options.capacities.end()), options.capacities.end());
  if (options.policies.empty()) options.policies = policy_names();
  std::vector<std::string> wanted;
  for (const std::string& name : policy_names())
    if (std::ranges::count(options.policies, name) > 0) wanted.push_back(name);
  options.policies = std::move(wanted);
}

void run_policies(PoliciesOptions options) {
  check(options);
  const auto trace = [&] {
    const std::vector<TraceRequest> requests = read_trace(options.trace, options.request_count_max);
    options.hints = trace_hints(requests, hint_kind(options.hint_kind), options.wrong_hints, options.seed);
    try {
      return BlockTrace(requests, options.blocks);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(options.trace + ": " + error.what());
    }
  }();
  std::vector<Cell> cells;
  for (const std::string& policy : options.policies)
    for (const std::uint64_t capacity : options.capacities) cells.push_back({policy, capacity, {}, 0});
  run_cells(cells, trace, options);
  std::atomic<std::uint64_t> done = 0;
  const double infinite = optimum(trace, trace.block_count(), done).hit_rate();
  options.json ? print_json(options, trace, cells, infinite) : print_table(options, trace, cells, infinite);
  if (options.curve.is_on && !options.json) print_curves(cells);
  if (!options.plot.empty()) write_plot(options, trace, cells);
}

void add_options(CLI::App& app, PoliciesOptions& options) {
  app.add_option("--trace", options.trace, "JSON lines, plain or gzip")->required()->type_name("FILE");
  app.add_option("--capacity", options.capacities, "Sizes of the cache in blocks (after --split), with commas")
      ->delimiter(',')
      ->type_name("N,...")
      ->capture_default_str();
  app.add_option("--policy", options.policies, "Only these, with commas. Default: all")
      ->delimiter(',')
      ->check(CLI::IsMember(policy_names()))
      ->type_name("NAME,...");
  app.add_option("--block-tokens", options.blocks.block_tokens, "Tokens of a block, as in the trace")
      ->capture_default_str();
  app.add_option("--split", options.blocks.split,
                 "Blocks that each block of the trace is cut into: 32 makes blocks of 16 tokens out of 512")
      ->capture_default_str();
  app.add_flag("--full-blocks", options.blocks.full_only,
               "Leave out the blocks at the end that the input does not fill, as engines do");
  app.add_option("--limit-requests", options.request_count_max, "Stop after this many; 0: all")->capture_default_str();
  app.add_option("--seed", options.seed, "Of the blocks' names: which blocks a policy samples")->capture_default_str();
  add_hint_options(app, options.hint_kind, options.wrong_hints);
  app.add_option("--threads", options.thread_count, "Runs at a time; each needs some 150 bytes a block")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  app.add_flag("--curve", options.curve.is_on,
               "Also what each cache says of larger and smaller ones, as kvstorectl curve");
  app.add_option("--curve-one-in", options.curve.one_in, "Blocks of its sample; 0: as a node chooses")
      ->capture_default_str();
  app.add_option("--plot", options.plot, "Also draw it, as SVG")->type_name("FILE");
  app.add_flag("--json", options.json, "One JSON document, for scripts");
  app.footer(
      "Each line of the trace has timestamp, input_length, output_length and hash_ids, one id per block of the input.\n"
      "Each policy of the node (docs/cache-quality.md) runs in the node's own Store, here in this process; blocks "
      "have\n"
      "no bytes. Each request is matched, and what was not there is offered, one request after the other. 'optimum'\n"
      "knows the whole trace, and keeps what is used soonest: no cache of that size hits more. The same trace and "
      "seed\ngive the same numbers every time.\n\n"
      "Examples:\n"
      "  kvstore-policies --trace conversation_trace.jsonl.gz --plot conversation.svg\n"
      "  kvstore-policies --trace conversation_trace.jsonl.gz --split 32 --full-blocks --capacity 96000,320000\n"
      "  kvstore-bench generate --kind mixed --out mixed.jsonl.gz\n"
      "  kvstore-policies --trace mixed.jsonl.gz --policy lru,yield --json\n");
  app.callback([&options] { run_policies(options); });
}

}  // namespace
}  // namespace kv

int main(int argc, char** argv) {
  CLI::App app("kvstore-policies: hit rates of each eviction policy on a trace, and the best possible; no node");
  app.set_version_flag("--version", "kvstore-policies " KV_VERSION);
  app.get_formatter()->column_width(36);
  kv::PoliciesOptions options;
  kv::add_options(app, options);
  return kv::run_tool("kvstore-policies", app, argc, argv);
}
