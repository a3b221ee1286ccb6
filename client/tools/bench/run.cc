#include "client/tools/bench/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "client/tools/bench/run_thread.h"
#include "client/tools/json_text.h"
#include "client/tools/node_stats.h"
#include "client/tools/options.h"
#include "client/tools/progress_line.h"

namespace kv {
namespace {

/// Processor time of this process, and of the nodes together if they report theirs.
struct CpuTimes {
  double client = 0;
  std::optional<double> node;
};

/// The client's time is this whole process's. An older node does not report its own; the column shows "-".
CpuTimes cpu_times(ToolClient& client, std::chrono::microseconds deadline) {
  CpuTimes times;
  times.client = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  const auto stats = ask_stats(client, deadline);
  if (!stats) return times;
  for (const NodeStats& node : *stats) {
    if (has_stat(node, "cpu_seconds")) times.node = times.node.value_or(0) + stat(node, "cpu_seconds");
  }
  return times;
}

struct RunReport {
  RunResult sum;
  double seconds = 0;
  double client_cores = 0;  ///< Processor time of all threads, divided by time.
  std::optional<double> node_cores;
  double calls_per_second() const { return static_cast<double>(sum.calls) / seconds; }
  double blocks_per_second() const { return static_cast<double>(sum.blocks) / seconds; }
};

void print_json(const RunOptions& options, const RunReport& report) {
  nlohmann::json document = {
      {"command", "run"},
      {"op", options.op},
      {"transport", transport_name(options.transport)},
      {"block_bytes", options.block_bytes},
      {"batch", options.batch},
      {"set", options.is_set},
      {"concurrency", options.concurrency},
      {"connections", options.connections},
      {"threads", options.thread_count},
      {"busy_poll_us", options.busy_poll.count()},
      {"verify", !options.no_verify},
      {"check", options.check},
      {"seconds", report.seconds},
      {"calls", report.sum.calls},
      {"unmeasured_calls", report.sum.unmeasured_calls},
      {"calls_per_second", report.calls_per_second()},
      {"blocks_per_second", report.blocks_per_second()},
      {"bytes_per_second", report.blocks_per_second() * static_cast<double>(options.block_bytes)},
      {"p50_us", report.sum.latency.quantile_us(0.5)},
      {"p99_us", report.sum.latency.quantile_us(0.99)},
      {"p999_us", report.sum.latency.quantile_us(0.999)},
      {"max_us", report.sum.latency.max_us()},
      {"missing_blocks", report.sum.missing_blocks},
      {"wrong_bytes", report.sum.wrong_bytes},
      {"reasons", report.sum.reasons},
      {"client_cores", report.client_cores},
  };
  if (report.node_cores) document["node_cores"] = *report.node_cores;
  std::cout << json_text(document) << '\n';
}

void print_table(const RunOptions& options, const RunReport& report) {
  std::cout << options.op << (options.is_set ? " of a set" : "") << ", blocks of " << format_bytes(options.block_bytes)
            << ", " << options.batch << " a call, " << options.concurrency << " calls in flight on "
            << options.connections << " connections, " << options.thread_count
            << (options.thread_count == 1 ? " thread" : " threads") << ", over " << transport_name(options.transport)
            << (options.no_verify ? ", checksums not verified" : "") << (options.check ? ", every byte compared" : "")
            << "\n\n";
  TextTable table(
      {"GB/s", "calls/s", "blocks/s", "p50 us", "p99 us", "p99.9 us", "max us", "client cores", "node cores"});
  const LatencyHistogram& latency = report.sum.latency;
  const bool moves_bytes = options.call != RunCall::kMatch;
  table.add({moves_bytes ? format_number(report.blocks_per_second() * static_cast<double>(options.block_bytes) / 1e9, 2)
                         : "-",
             format_count(static_cast<std::uint64_t>(report.calls_per_second())),
             format_count(static_cast<std::uint64_t>(report.blocks_per_second())),
             format_number(latency.quantile_us(0.5), 1), format_number(latency.quantile_us(0.99), 1),
             format_number(latency.quantile_us(0.999), 1), format_number(latency.max_us(), 1),
             format_number(report.client_cores, 2), report.node_cores ? format_number(*report.node_cores, 2) : "-"});
  table.print(std::cout);
  if (report.sum.calls == 0) {
    std::cout << "\nNo call ended in the measured " << format_number(report.seconds, 3)
              << " s: " << format_count(report.sum.unmeasured_calls)
              << " ended before or after. A longer --duration measures them.\n";
  }
  if (report.sum.missing_blocks > 0) {
    std::cout << "\n"
              << format_count(report.sum.missing_blocks) << " blocks were not "
              << (options.call == RunCall::kPut ? "stored"
                                                : "there; is the node large enough for the working set of " +
                                                      format_bytes(options.block_count * options.block_bytes) + "?")
              << "\n";
  }
  for (const auto& [reason, count] : report.sum.reasons) std::cout << format_count(count) << " x " << reason << "\n";
  if (options.check) std::cout << "wrong bytes: " << format_count(report.sum.wrong_bytes) << "\n";
}

std::string progress_text(const RunOptions& options, const RunWindow& window, Duration passed) {
  const double seconds = std::chrono::duration<double>(passed).count();
  const double rate = static_cast<double>(window.done_blocks) / seconds;
  return format_number(seconds, 1) + " s: " + format_count(static_cast<std::uint64_t>(rate)) + " blocks/s, " +
         format_number(rate * static_cast<double>(options.block_bytes) / 1e9, 2) + " GB/s";
}

/// Threads fill their working sets, all reach the latch, then the window is set and they start together: an early
/// thread would be measured while others still fill. A separate client reads processor time.
RunReport measure(const RunOptions& options) {
  RunWindow window(options.thread_count);
  std::vector<RunResult> results(options.thread_count);
  std::vector<std::exception_ptr> failures(options.thread_count);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < options.thread_count; ++i) {
    threads.emplace_back([&, i] {
      try {
        results[i] = run_thread(options, i, window);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  ProgressLine progress;
  while (!window.ready.try_wait()) {
    progress.tell([&] { return "filling the node: " + format_count(window.filled_blocks) + " blocks"; });
    std::this_thread::sleep_for(100ms);
  }
  RunReport report;
  std::optional<ToolClient> observer;
  CpuTimes before, after;
  if (!window.is_cancelled) {
    observer.emplace(client_config(options.node, "kvstore-bench observer"));
    before = cpu_times(*observer, options.node.deadline);
  }
  const TimePoint start = std::chrono::steady_clock::now();
  window.begin = start + options.warm_up;
  window.end = window.begin + options.duration;
  window.go.count_down();
  // This thread only watches: five wake-ups a second do not affect the measurement.
  for (TimePoint now = start; now < window.end && !window.is_cancelled; now = std::chrono::steady_clock::now()) {
    if (now > start) progress.tell([&] { return progress_text(options, window, now - start); });
    std::this_thread::sleep_until(std::min(now + 200ms, window.end));
  }
  if (observer) {
    after = cpu_times(*observer, options.node.deadline);
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    report.client_cores = (after.client - before.client) / passed;
    if (before.node && after.node) report.node_cores = (*after.node - *before.node) / passed;
  }
  // Joins: now the results are safe to read. A thread's last call may end long after the window.
  threads.clear();
  progress.clear();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  report.seconds = std::chrono::duration<double>(options.duration).count();
  for (const RunResult& result : results) {
    report.sum.calls += result.calls;
    report.sum.unmeasured_calls += result.unmeasured_calls;
    report.sum.blocks += result.blocks;
    report.sum.missing_blocks += result.missing_blocks;
    report.sum.wrong_bytes += result.wrong_bytes;
    for (const auto& [reason, count] : result.reasons) report.sum.reasons[reason] += count;
    report.sum.latency.add(result.latency);
  }
  return report;
}

/// Number of blocks for get and match: 512 MiB, which exceeds any cache, but at most 32,768 blocks, so that filling
/// takes seconds. Rounded up to whole chains for every thread, at least four unless a number was given.
std::size_t working_set(const RunOptions& options) {
  const std::size_t chain_step = options.batch * options.thread_count;
  KV_ASSERT(chain_step > 0 && options.block_bytes > 0);
  const std::size_t wanted =
      options.block_count > 0 ? options.block_count : std::min<std::size_t>((512u << 20) / options.block_bytes, 32'768);
  return std::max<std::size_t>((wanted + chain_step - 1) / chain_step, options.block_count > 0 ? 1 : 4) * chain_step;
}

void run(RunOptions options) {
  options.transport = complete(options.node);
  options.call = options.op == "get" ? RunCall::kGet : options.op == "put" ? RunCall::kPut : RunCall::kMatch;
  options.block_count = working_set(options);
  const RunReport report = measure(options);
  options.json ? print_json(options, report) : print_table(options, report);
  if (report.sum.wrong_bytes > 0) throw std::runtime_error(format_count(report.sum.wrong_bytes) + " wrong bytes");
  check_all_answer(options.node);
}

}  // namespace

void add_run_command(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command =
      app.add_subcommand("run", "One kind of call, of one size, against a running node, as fast as possible");
  command->add_option("--op", options->op, "get, put or match")
      ->check(CLI::IsMember({"get", "put", "match"}))
      ->capture_default_str()
      ->type_name("CALL");
  add_node_options(*command, options->node, /*with_transport=*/true);
  add_bytes_option(*command, "--block-bytes", options->block_bytes, "Size of a block");
  add_count_option(*command, "--batch", options->batch, 65'536, "Blocks per call; for match, hashes per call");
  add_count_option(*command, "--concurrency", options->concurrency, 4096, "Calls in flight, per thread");
  add_count_option(*command, "--connections", options->connections, 64, "Connections to each node, per thread");
  add_count_option(*command, "--threads", options->thread_count, 256, "Threads, each with a client of its own");
  command
      ->add_option("--blocks", options->block_count,
                   "Working set of get and match; default 512 MiB, at most 32,768 blocks")
      ->type_name("N");
  command
      ->add_option("--rate", options->calls_per_second,
                   "Calls a second of each thread and call in flight, evenly spaced; 0: as fast as possible")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000))
      ->type_name("N");
  add_bytes_option(*command, "--memory", options->memory_bytes, "Buffers of each thread, used in random order");
  add_duration_option(*command, "--duration", options->duration, "Measured time");
  add_duration_option(*command, "--warm-up", options->warm_up, "Time before the measurement, which does not count");
  add_busy_poll_option(*command, options->busy_poll, "an answer");
  command->add_flag("--set", options->is_set, "Independent keys of a set instead of chains");
  command->add_flag("--no-verify", options->no_verify,
                    "Do not verify checksums of what was got, to see what they cost");
  command->add_flag("--check", options->check, "Compare every byte with what its block's name says (slow)");
  command->add_option("--salt", options->salt, "Part of every name")->capture_default_str();
  command->add_option("--tenant", options->tenant, "Whose blocks they are, where a policy asks for that")
      ->type_name("NAME");
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  command->footer(
      "get and match first put their working set. Compare with `kvstore-bench limit` in the same minute.\n\n"
      "Examples:\n"
      "  kvstore-bench run --op get --transport shm                          2 MiB x 16 through shared memory\n"
      "  kvstore-bench run --op get --transport tcp --connections 4 --concurrency 4\n"
      "  kvstore-bench run --op get --block-bytes 4KiB --batch 1 --connections 1 --busy-poll-us 50\n"
      "  kvstore-bench run --op get --block-bytes 4KiB --batch 1 --concurrency 64 --connections 16\n"
      "  kvstore-bench run --op match --block-bytes 4KiB --batch 256 --connections 1\n");
  command->callback([options] { run(*options); });
}

}  // namespace kv
