// Question: how long does a call that never blocks take its caller's thread, while the I/O thread is busy with large
// gets? Budget: 5 us at p99 with 64 gets of 2 MiB x 16 in flight. Through the C ABI, as engines call it.
#include "client/tools/bench/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/kvstore.h"
#include "client/tools/bench/block_pattern.h"
#include "client/tools/bench/touched_memory.h"
#include "client/tools/json_text.h"
#include "client/tools/latency_histogram.h"
#include "client/tools/options.h"
#include "client/tools/text_table.h"
#include "client/tools/tool_client.h"

namespace kv {
namespace {

constexpr std::size_t kProbeHashes = 256;  // Of a match: 4,096 tokens in blocks of 16.
constexpr Duration kProbePause = 1ms;      // A scheduler's step is longer.

struct SubmitOptions {
  ConnectionOptions node;
  Transport transport = Transport::kUnix;  ///< Parsed from `node`.
  std::size_t block_bytes = 2u << 20;
  std::size_t batch = 16;
  std::size_t concurrency = 64;
  std::size_t connections = 2;
  std::size_t chain_count = 8;
  std::chrono::milliseconds duration{3000}, warm_up{500};
  std::chrono::microseconds busy_poll{0};
  bool json = false;
  std::string salt = "0";
};

struct Measured {
  LatencyHistogram get, match, reap, cancel;
  std::uint64_t blocks = 0, missing_blocks = 0;
};

void check(int status, const char* what) {
  if (status != KVS_OK) throw std::runtime_error(std::string(what) + ": " + kvs_last_error());
}

struct CloseClient {
  void operator()(kvs_client* client) const { kvs_client_close(client); }
};
struct CloseQueue {
  void operator()(kvs_queue* queue) const { kvs_queue_close(queue); }
};

/// One thread that submits and reaps, as a scheduler does; gets keep the I/O thread busy and the lock contended.
class SubmitBench {
 public:
  explicit SubmitBench(const SubmitOptions& options) : options_(options) {
    open();
    make_memory();
    fill();
  }

  Measured run() {
    // Measured after a warm-up: the first gets lack warm sockets and mapped regions.
    const TimePoint begin = now() + options_.warm_up;
    const TimePoint end = begin + options_.duration;
    for (std::size_t place = 0; place < options_.concurrency; ++place) submit_get(place);
    TimePoint next_probe = now();
    // As many as can be in flight, so that one reap empties the queue.
    std::vector<kvs_completion> ended(options_.concurrency + 2);
    while (now() < end) {
      // Outside the timed part: reading the clock costs a notable part of the measured time.
      is_measuring_ = now() >= begin;
      std::size_t count = 0;
      const TimePoint before = now();
      check(kvs_reap(queue_.get(), ended.data(), sizeof(kvs_completion), ended.size(), 0, 0, &count), "reap");
      if (count > 0) record(measured_.reap, before);
      for (std::size_t i = 0; i < count; ++i) take(ended[i]);
      if (now() >= next_probe) {
        probe();
        next_probe = now() + kProbePause;
      } else if (count == 0) {
        // Idle: wait in the queue, or this thread would take a core from the I/O thread and measure that.
        check(kvs_reap(queue_.get(), ended.data(), sizeof(kvs_completion), ended.size(), 1, 1000, &count), "reap");
        for (std::size_t i = 0; i < count; ++i) take(ended[i]);
      }
    }
    return measured_;
  }

 private:
  static TimePoint now() { return std::chrono::steady_clock::now(); }
  void record(LatencyHistogram& histogram, TimePoint before) {
    if (is_measuring_) histogram.record(now() - before);
  }

  kvs_request request(std::uint32_t op) const {
    kvs_request made = KVS_REQUEST_INIT(op);
    made.deadline_us = deadline_us_;
    if (op != KVS_OP_OPEN && op != KVS_OP_LEND) made.space = space_;
    return made;
  }
  kvs_request of_blocks(std::uint32_t op, const kvs_hash* hashes, std::size_t count, void* const* blocks) const {
    kvs_request made = request(op);
    made.hashes = hashes;
    made.count = count;
    made.blocks = blocks;
    return made;
  }
  kvs_completion run(const kvs_request& request, const char* what) {
    kvs_completion ended;
    check(kvs_run(client_.get(), &request, &ended, sizeof ended), what);
    return ended;
  }

  void open() {
    std::string endpoints;
    for (const std::string& each : options_.node.endpoints) endpoints += each + ",";
    kvs_options own = KVS_OPTIONS_INIT;
    const TlsConfig& tls = options_.node.tls;
    const auto text_or_null = [](const std::string& text) { return text.empty() ? nullptr : text.c_str(); };
    own.tls_cert_file = text_or_null(tls.cert_file);
    own.tls_key_file = text_or_null(tls.key_file);
    own.tls_ca_file = text_or_null(tls.ca_file);
    own.tls_crl_file = text_or_null(tls.crl_file);
    own.tls_server_name = text_or_null(tls.server_name);
    own.numa_nodes = text_or_null(options_.node.numa_nodes);
    own.token_file = text_or_null(options_.node.token_file);
    own.token = token_of_environment(options_.node);
    own.endpoints = endpoints.c_str();
    own.identity = "kvstore-bench submit";
    own.connections_per_node = static_cast<std::uint32_t>(options_.connections);
    // Twice the need: the working set's puts have no memory of their own, but a quarantined region would count.
    own.region_bytes_max = 2 * options_.concurrency * place_bytes();
    own.busy_poll_us = static_cast<std::uint64_t>(options_.busy_poll.count());
    // The node maps lent memory page by page, which may exceed the default second for large memory.
    own.connect_timeout_us = deadline_us_;
    own.rdma_off = options_.transport == Transport::kVerbs ? 0 : 1;
    kvs_client* client = nullptr;
    check(kvs_client_open(&own, &client), "cannot make a client");
    client_.reset(client);
    const std::string record =
        "model=kvstore-bench-submit\nblock_size=16\nblock_bytes=" + std::to_string(options_.block_bytes) +
        "\nsalt=" + options_.salt + "\n";
    kvs_request open = request(KVS_OP_OPEN);
    open.record = record.c_str();
    space_ = run(open, "cannot open a namespace").space;
    static_cast<void>(run(request(KVS_OP_WAIT_OPEN), "cannot open a namespace at the node"));
    kvs_queue_options bounds = KVS_QUEUE_OPTIONS_INIT;
    bounds.calls_max = static_cast<std::uint32_t>(options_.concurrency + 2);  // the probe, and a cancelled one
    // A get counts its blocks and the copies of its lists; the bound must never become the bottleneck.
    bounds.bytes_max = 2 * options_.concurrency * (place_bytes() + 4096) + (1 << 20);
    kvs_queue* queue = nullptr;
    check(kvs_queue_open(client, &bounds, &queue), "cannot make a queue");
    queue_.reset(queue);
  }

  std::size_t place_bytes() const { return options_.batch * options_.block_bytes; }

  void make_memory() {
    const std::size_t bytes = options_.concurrency * place_bytes();
    if (options_.transport == Transport::kShm || options_.transport == Transport::kVerbs) {
      void* lent = nullptr;
      check(kvs_allocate(client_.get(), bytes, &lent), "cannot make memory");
      memory_ = {static_cast<std::byte*>(lent), bytes};
      kvs_request lend = request(KVS_OP_LEND);
      lend.memory = lent;
      lend.bytes = bytes;
      if (run(lend, "cannot lend memory").block_count == 0) throw std::runtime_error("no node takes the memory");
    } else {
      // Touched before: the first gets would otherwise pay for page faults, which engines' pages do not have.
      ordinary_ = std::make_unique<TouchedMemory>(bytes);
      memory_ = ordinary_->bytes();
    }
    for (std::size_t block = 0; block < options_.concurrency * options_.batch; ++block) {
      addresses_.push_back(memory_.data() + block * options_.block_bytes);
    }
    probe_hashes_.resize(kProbeHashes);
    fill_pattern(0x5EED, std::as_writable_bytes(std::span(probe_hashes_)));
  }

  void fill() {
    // All chains get the same bytes under different names; bytes are not compared here.
    fill_pattern(1, memory_.first(place_bytes()));
    for (std::size_t c = 0; c < options_.chain_count; ++c) {
      auto& chain = chains_.emplace_back(options_.batch);
      fill_pattern(0xC4A1 + c, std::as_writable_bytes(std::span(chain)));
      const kvs_request put = of_blocks(KVS_OP_PUT, chain.data(), options_.batch, addresses_.data());
      if (run(put, "cannot fill the working set").refused > 0)
        throw std::runtime_error("cannot fill the working set: the node refused blocks");
    }
  }

  void submit_get(std::size_t place) {
    const auto& chain = chains_[next_chain_++ % chains_.size()];
    void* const* const to = addresses_.data() + place * options_.batch;
    kvs_request get = of_blocks(KVS_OP_GET, chain.data(), options_.batch, to);
    get.tag = place;
    const TimePoint before = now();
    check(kvs_submit(queue_.get(), &get, nullptr), "submit a get");
    record(measured_.get, before);
  }

  void probe() {
    kvs_request match = of_blocks(KVS_OP_MATCH, probe_hashes_.data(), kProbeHashes, nullptr);
    match.tag = kProbe;
    kvs_call call = 0;
    const TimePoint before = now();
    const int status = kvs_submit(queue_.get(), &match, &call);
    if (status == KVS_BUSY) return;  // the last two are still running
    check(status, "submit a match");
    record(measured_.match, before);
    // One in eight is cancelled: an engine gives up few requests.
    if (++probe_count_ % 8 != 0) return;
    const TimePoint before_cancel = now();
    check(kvs_cancel(queue_.get(), call), "cancel");
    record(measured_.cancel, before_cancel);
  }

  void take(const kvs_completion& ended) {
    if (ended.tag == kProbe) return;
    check(ended.status, "get");
    if (is_measuring_) {
      measured_.blocks += ended.block_count;
      measured_.missing_blocks += options_.batch - ended.block_count;
    }
    submit_get(ended.tag);
  }

  static constexpr std::uint64_t kProbe = ~std::uint64_t{0};  ///< The tag of probes; a get's is its place.

  const SubmitOptions& options_;
  const std::uint64_t deadline_us_ = static_cast<std::uint64_t>(options_.node.deadline.count());
  std::unique_ptr<kvs_client, CloseClient> client_;
  std::unique_ptr<TouchedMemory> ordinary_;
  std::unique_ptr<kvs_queue, CloseQueue> queue_;  ///< Closed first: it uses the memory above until then.
  kvs_space space_ = 0;
  std::span<std::byte> memory_;  ///< A place for each get in flight.
  std::vector<void*> addresses_;
  std::vector<std::vector<kvs_hash>> chains_;
  std::vector<kvs_hash> probe_hashes_;
  std::size_t next_chain_ = 0, probe_count_ = 0;
  bool is_measuring_ = false;
  Measured measured_;
};

void print(const SubmitOptions& options, const Measured& measured) {
  const double seconds = std::chrono::duration<double>(options.duration).count();
  const double gigabytes =
      static_cast<double>(measured.blocks) * static_cast<double>(options.block_bytes) / seconds / 1e9;
  const struct {
    const char *name, *about;
    const LatencyHistogram& latency;
  } rows[] = {{"submit_get", "submit a get", measured.get},
              {"submit_match", "submit a match of 256 blocks", measured.match},
              {"cancel", "cancel it", measured.cancel},
              {"reap", "reap what has ended", measured.reap}};
  if (options.json) {
    nlohmann::json document = {{"command", "submit"},
                               {"transport", transport_name(options.transport)},
                               {"block_bytes", options.block_bytes},
                               {"batch", options.batch},
                               {"concurrency", options.concurrency},
                               {"bytes_per_second", gigabytes * 1e9},
                               {"missing_blocks", measured.missing_blocks}};
    for (const auto& row : rows) {
      document[row.name] = {{"count", row.latency.count()},
                            {"p50_us", row.latency.quantile_us(0.5)},
                            {"p99_us", row.latency.quantile_us(0.99)},
                            {"p999_us", row.latency.quantile_us(0.999)},
                            {"max_us", row.latency.max_us()}};
    }
    std::cout << json_text(document) << '\n';
    return;
  }
  std::cout << "With " << options.concurrency << " gets of " << format_bytes(options.block_bytes) << " x "
            << options.batch << " in flight over " << transport_name(options.transport) << ", at "
            << format_number(gigabytes, 2) << " GB/s:\n\n";
  TextTable table({"what", "count", "p50 us", "p99 us", "p99.9 us", "max us"});
  for (const auto& row : rows) {
    table.add({row.about, format_count(row.latency.count()), format_number(row.latency.quantile_us(0.5), 2),
               format_number(row.latency.quantile_us(0.99), 2), format_number(row.latency.quantile_us(0.999), 2),
               format_number(row.latency.max_us(), 1)});
  }
  table.print(std::cout);
  if (measured.missing_blocks > 0) {
    std::cout << '\n' << format_count(measured.missing_blocks) << " blocks were not there; is the node large enough?\n";
  }
}

}  // namespace

void add_submit_command(CLI::App& app) {
  auto options = std::make_shared<SubmitOptions>();
  CLI::App* command =
      app.add_subcommand("submit", "What a call that never blocks costs its caller while large gets are in flight");
  add_node_options(*command, options->node, /*with_transport=*/true);
  add_bytes_option(*command, "--block-bytes", options->block_bytes, "Size of a block");
  add_count_option(*command, "--batch", options->batch, 65'536, "Blocks per get");
  add_count_option(*command, "--concurrency", options->concurrency, 4096, "Gets in flight");
  add_count_option(*command, "--connections", options->connections, 64, "Connections to each node");
  add_duration_option(*command, "--duration", options->duration, "Measured time");
  add_duration_option(*command, "--warm-up", options->warm_up, "Time before it that does not count");
  add_busy_poll_option(*command, options->busy_poll, "work");
  command->add_option("--salt", options->salt, "Part of every name")->capture_default_str();
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  command->footer(
      "First puts 8 chains. Takes memory for all gets in flight.\n\n"
      "Example:\n"
      "  kvstore-bench submit --endpoint unix:///tmp/kvstore.sock --transport shm\n");
  command->callback([options] {
    options->transport = complete(options->node);
    print(*options, SubmitBench(*options).run());
    check_all_answer(options->node);
  });
}

}  // namespace kv
