#include "client/tools/bench/limit/limit.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/assert.h"
#include "client/tools/bench/bench.h"
#include "client/tools/json_text.h"
#include "client/tools/options.h"
#include "client/tools/progress_line.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

struct LimitOptions {
  LimitShape shape;
  std::size_t round_count = 3;
  std::vector<std::string> only;
  bool json = false;
};

struct CaseResult {
  std::vector<double> bytes_per_second, calls_per_second, p50_us, p99_us;
};

double median(std::vector<double> values) {
  KV_ASSERT(!values.empty());  // every case is measured in every round
  std::sort(values.begin(), values.end());
  // For an even count the upper one: a measured value rather than a mean of two.
  return values[values.size() / 2];
}

nlohmann::json to_json(const std::vector<double>& values) {
  return {{"median", median(values)}, {"min", std::ranges::min(values)}, {"max", std::ranges::max(values)}};
}

void print_json(const LimitOptions& options, const std::vector<LimitCase>& cases,
                const std::vector<CaseResult>& results) {
  nlohmann::json document = {{"command", "limit"},
                             {"block_bytes", options.shape.block_bytes},
                             {"batch", options.shape.batch},
                             {"rounds", options.round_count}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    nlohmann::json entry = {{"about", cases[i].about},
                            {"bytes_per_second", to_json(results[i].bytes_per_second)},
                            {"calls_per_second", to_json(results[i].calls_per_second)}};
    if (!results[i].p50_us.empty()) {
      entry["p50_us"] = to_json(results[i].p50_us);
      entry["p99_us"] = to_json(results[i].p99_us);
    }
    document["cases"][cases[i].name] = entry;
  }
  std::cout << json_text(document) << '\n';
}

/// Medians with their range: a wide range means a busy machine and meaningless ratios.
void print_table(const LimitOptions& options, const std::vector<LimitCase>& cases,
                 const std::vector<CaseResult>& results) {
  std::cout << "\nWhat this machine allows: blocks of " << format_bytes(options.shape.block_bytes) << ", batches of "
            << options.shape.batch << ", medians of " << options.round_count << " rounds (least-most)\n\n";
  TextTable table({"case", "GB/s", "(range)", "calls/s", "p50 us", "p99 us", "what"});
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CaseResult& result = results[i];
    const bool is_stream = cases[i].is_stream;
    table.add({cases[i].name, is_stream ? format_number(median(result.bytes_per_second) / 1e9, 2) : "-",
               is_stream ? "(" + format_number(std::ranges::min(result.bytes_per_second) / 1e9, 2) + "-" +
                               format_number(std::ranges::max(result.bytes_per_second) / 1e9, 2) + ")"
                         : "-",
               format_count(static_cast<std::uint64_t>(median(result.calls_per_second))),
               result.p50_us.empty() ? "-" : format_number(median(result.p50_us), 1),
               result.p99_us.empty() ? "-" : format_number(median(result.p99_us), 1), cases[i].about});
  }
  table.print(std::cout);
}

/// A whole name selects that case alone ("tcp_stream_1" without "tcp_stream_16"), a part all that contain it.
bool is_wanted(const std::vector<LimitCase>& cases, const std::vector<std::string>& only, const std::string& name) {
  return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& part) {
           const bool is_whole = std::ranges::count(cases, part, &LimitCase::name) > 0;
           return is_whole ? name == part : name.find(part) != std::string::npos;
         });
}

void run_limit(const LimitOptions& options) {
  // The server of the sockets is forked first, while this process still has one thread and little memory.
  std::vector<LimitCase> socket_cases = socket_limits(options.shape);
  std::vector<LimitCase> cases = memory_limits(options.shape);
  std::move(socket_cases.begin(), socket_cases.end(), std::back_inserter(cases));
  std::erase_if(cases, [&, all = cases](const LimitCase& one) { return !is_wanted(all, options.only, one.name); });
  if (cases.empty()) throw CLI::ValidationError("--only", "no case has that in its name");

  std::vector<CaseResult> results(cases.size());
  ProgressLine progress;
  // Each round measures all cases, so that a slow minute of the machine affects them alike.
  for (std::size_t round = 0; round < options.round_count; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      progress.tell([&] {
        return "round " + std::to_string(round + 1) + " of " + std::to_string(options.round_count) + ": " +
               cases[i].name;
      });
      const LimitSample sample = cases[i].measure();
      results[i].bytes_per_second.push_back(sample.bytes_per_second);
      results[i].calls_per_second.push_back(sample.calls_per_second);
      if (sample.latency.count() > 0) {
        results[i].p50_us.push_back(sample.latency.quantile_us(0.5));
        results[i].p99_us.push_back(sample.latency.quantile_us(0.99));
      }
    }
  }
  progress.clear();
  options.json ? print_json(options, cases, results) : print_table(options, cases, results);
}

}  // namespace

void add_limit_command(CLI::App& app) {
  auto options = std::make_shared<LimitOptions>();
  CLI::App* command =
      app.add_subcommand("limit", "What this machine allows: memcpy and bare sockets, same shapes as run");
  add_bytes_option(*command, "--block-bytes", options->shape.block_bytes, "Size of a block");
  add_count_option(*command, "--batch", options->shape.batch, 65'536, "Blocks per request");
  command->add_option("--connections", options->shape.connection_counts, "Connections of the streams, for example 1,4")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  add_bytes_option(*command, "--memory", options->shape.memory_bytes, "Memory touched on each side");
  add_duration_option(*command, "--duration", options->shape.duration, "Measured time of each case in each round");
  add_count_option(*command, "--rounds", options->round_count, 1000,
                   "How often each case is measured; medians are shown");
  command
      ->add_option("--only", options->only,
                   "Only these cases, or those with this in their name, for example memcpy,tcp_ping")
      ->delimiter(',');
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  command->footer(
      "Needs no node. Run it right before or after `kvstore-bench run`, on a quiet machine, and compare ratios.\n\n"
      "Examples:\n"
      "  kvstore-bench limit                          everything, about a minute\n"
      "  kvstore-bench limit --only memcpy            the bound of shared memory\n"
      "  kvstore-bench limit --only tcp_stream --connections 1,2,4,8 --rounds 5\n");
  command->callback([options] { run_limit(*options); });
}

}  // namespace kv
