#include "store/node/config.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "transport/frame_message.h"

namespace kv {
namespace {

constexpr const char* kAbout =
    R"(kvstore-node: keeps the KV blocks of LLM prefixes in memory and gives them to workers.

Examples:
  kvstore-node                                            4 GiB, tcp://127.0.0.1:7400, metrics on 127.0.0.1:7401
  kvstore-node --capacity 64GiB --listen unix:///run/kvstore/kvstore.sock --listen tcp://127.0.0.1:7400
  kvstore-node --config /etc/kvstore/kvstore-node.toml --check-config
  kvstore-node --capacity-blocks 10000 --capacity-block-bytes 2MiB      exactly 10,000 blocks of 2 MiB

Each option can stand in the TOML file under its long name (capacity = "64GiB") and in the environment
as KVSTORE_ and its name in capitals (KVSTORE_CAPACITY=64GiB). A flag wins over the environment, that over the file.
Signals: SIGTERM and SIGINT drain and exit 0.)";

std::string default_node_id() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "node";
  return name;
}

std::string environment_name(const std::string& option) {
  std::string name = "KVSTORE_";
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

std::optional<NodeOptions> parse_options(int argc, const char* const* argv, int* exit_code) {
  NodeOptions options;
  options.store.arena.capacity_bytes = 4ull << 30;
  std::vector<std::string> listen = {"tcp://127.0.0.1:7400"};
  std::string admin = "127.0.0.1:7401";
  std::size_t capacity_blocks = 0, capacity_block_bytes = 2 << 20, busy_poll_us = 0;
  double lease_seconds = 10, drain_seconds = 5, hello_seconds = 10, frame_seconds = 5, write_seconds = 30,
         put_seconds = 30, get_seconds = 120, session_idle_seconds = 60;
  bool no_huge_pages = false;
  std::size_t spill_capacity_blocks = 0, promote_reads = 2;
  std::string spill_policy = "eviction", rdma = "auto";
  unsigned rdma_traffic_class = 0;
  double spill_wait_seconds = 0.05, spill_retry_seconds = 5, spill_stop_seconds = 30, spill_hang_seconds = 2,
         spill_drop_seconds = 2;

  CLI::App app(kAbout, "kvstore-node");
  app.set_version_flag("--version", "kvstore-node " KV_VERSION);
  app.set_config("--config", "", "TOML file with any of these options");
  app.allow_config_extras(false);  // a misspelt key is an error, not a default in silence
  std::vector<std::string> names = {"config"};
  const auto add = [&](const char* name, auto& value, const char* help) {
    names.push_back(name);
    return app.add_option(std::string("--") + name, value, help)
        ->envname(environment_name(name))
        ->capture_default_str();
  };
  const CLI::AsSizeValue size(false);  // 4GiB = 4 * 2^30
  const CLI::Range rate_range(std::size_t{0}, std::size_t{1} << 46, "0 to 64 TiB");
  const CLI::Range size_range(std::size_t{1}, std::size_t{1} << 46, "1 byte to 64 TiB");  // "-1" would be 2^64 - 1
  add("node-id", options.node_id, "Name of this node in logs and answers (default: the host name)");
  add("listen", listen,
      "Where clients connect: tcp://HOST:PORT or unix:///PATH; may be repeated. Port 0 picks a free one");
  add("admin", admin, "HOST:PORT of the admin HTTP server (/metrics, /healthz, /readyz); 'none' for no server");
  auto* const capacity = add("capacity", options.store.arena.capacity_bytes, "Memory for blocks, such as 64GiB")
                             ->transform(size)
                             ->check(size_range);
  add("capacity-blocks", capacity_blocks, "Memory for exactly this many blocks of --capacity-block-bytes instead")
      ->excludes(capacity);
  add("capacity-block-bytes", capacity_block_bytes, "Size of those blocks, a multiple of 4096")
      ->transform(size)
      ->check(size_range);
  add("no-huge-pages", no_huge_pages, "Do not use reserved huge pages even if there are enough");
  add("spill-path", options.spill_paths,
      "Directory of the disk tier, one node's own; none: memory only. May be repeated, one for each device")
      ->group("Disk tier");
  auto* const spill_capacity =
      add("spill-capacity", options.store.disk.capacity_bytes,
          "Blocks kept on disk besides those in memory, such as 800GiB. The files take up to 1.25 x (this + capacity)")
          ->transform(size)
          ->check(size_range)
          ->group("Disk tier");
  add("spill-capacity-blocks", spill_capacity_blocks, "Exactly this many blocks of --capacity-block-bytes instead")
      ->excludes(spill_capacity)
      ->group("Disk tier");
  add("spill-policy", spill_policy,
      "When a block is written: eviction (its memory is wanted soon), write-through (it was stored)")
      ->check(CLI::IsMember({"eviction", "write-through"}))
      ->group("Disk tier");
  add("spill-reserve", options.store.spill.reserve, "Share of memory kept free by writing ahead of puts")
      ->check(CLI::Range(0.001, 0.5))
      ->group("Disk tier");
  add("spill-put-wait-seconds", spill_wait_seconds,
      "A put waits so long for the disk before blocks that are not on it are evicted; 0: never")
      ->check(CLI::Range(0.0, 5.0))
      ->group("Disk tier");
  add("spill-skip-unused", options.store.spill.skip_unused,
      "While the disk or spill-write-rate is behind: evict blocks that were never used again unwritten")
      ->group("Disk tier");
  add("spill-write-rate", options.spill.write_bytes_per_second,
      "Bytes a second written at most, such as 500MiB; 0: no limit")
      ->transform(size)
      ->check(rate_range)
      ->group("Disk tier");
  add("spill-scrub-rate", options.spill.scrub_bytes_per_second,
      "Bytes a second read and verified while nobody reads, such as 16MiB; 0: none")
      ->transform(size)
      ->check(rate_range)
      ->group("Disk tier");
  add("spill-promote-reads", promote_reads, "A block goes back to memory with its n-th read from disk")
      ->check(CLI::Range(1, 255))
      ->group("Disk tier");
  add("spill-read-threads", options.spill.read_threads, "Threads that wait for reads")
      ->check(CLI::Range(1, 256))
      ->group("Disk tier");
  add("spill-retry-seconds", spill_retry_seconds, "A disk that failed is left alone so long, then tried again")
      ->check(CLI::Range(0.01, 3600.0))
      ->group("Disk tier");
  add("spill-hang-seconds", spill_hang_seconds,
      "Of several directories, one that does not answer for so long is left out until it does")
      ->check(CLI::Range(0.1, 3600.0));
  add("spill-drop-wait-seconds", spill_drop_seconds,
      "A drop's answer waits so long to be durable on disk; then it says that it holds until the next start")
      ->check(CLI::Range(0.0, 3600.0));
  add("spill-stop-seconds", spill_stop_seconds, "A stop ends without a disk that finishes nothing for so long")
      ->check(CLI::Range(0.01, 3600.0))
      ->group("Disk tier");
  add("spill-save", options.spill_save, "At a clean stop, write what is in memory, for the next start")
      ->group("Disk tier");
  add("rdma", rdma,
      "Move blocks by RDMA: auto (if there is a device), on (do not start without), off. "
      "`kvstorectl doctor --rdma` checks a machine for it")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->group("RDMA");
  add("rdma-device", options.verbs.devices.names,
      "A device to use, such as mlx5_0, or mlx5_0@10.0.0.1 for one of its addresses; may be repeated. Its link may "
      "come later. None: those nearest to this node's processor whose link is up, at most 4")
      ->group("RDMA");
  add("rdma-lanes-max", options.verbs.lane_count_max, "Queue pairs of one session; lane i is on device i")
      ->check(CLI::Range(1, 32))
      ->group("RDMA");
  add("rdma-messages-max", options.verbs.message_count_max,
      "Small requests of one session that come by SEND and have no answer yet; 0: they come through the socket")
      ->check(CLI::Range(0, static_cast<int>(kMessageCountMax)))
      ->group("RDMA");
  add("rdma-queue-pairs-max", options.verbs.queue_pair_count_max, "Queue pairs of all sessions")
      ->check(CLI::Range(1, 1000000))
      ->group("RDMA");
  add("rdma-traffic-class", rdma_traffic_class,
      "Of the node's packets; on RoCE 4 x DSCP, such as 104 for the lossless class 26")
      ->check(CLI::Range(0, 255))
      ->group("RDMA");
  add("rdma-slice-bytes", options.verbs.slice_bytes_max,
      "Memory registered at once, such as 64GiB; 0: as much as the devices take")
      ->transform(size)
      ->check(rate_range)
      ->group("RDMA");
  add("threads", options.threads, "I/O threads (default: one per core)")->check(CLI::Range(0, 1024));
  add("busy-poll-us", busy_poll_us, "Spin this long for the next request before sleeping; costs CPU, saves wake-ups")
      ->check(CLI::Range(0, 1000000));
  add("session-count-max", options.sessions.count_max, "Sessions at once; more are refused")
      ->check(CLI::Range(1, 1000000));
  add("session-share-max", options.sessions.peer_share_max,
      "Share of them that one peer (a Unix user, a TCP address) may hold while alone; some stay free for others; 1: "
      "all")
      ->check(CLI::Range(0.01, 1.0));
  add("session-idle-seconds", session_idle_seconds,
      "A session that did nothing for so long, lends no memory and holds no lease may be closed to make room")
      ->check(CLI::Range(1.0, 1e9));
  add("index-bytes-max", options.store.index_bytes_max,
      "Memory for what is kept of blocks besides their bytes, token ids too; 0: 256MiB and a 16th of the capacity")
      ->transform(size);
  add("namespace-count-max", options.store.namespace_count_max, "Namespaces at once; idle ones make room for others")
      ->check(CLI::Range(1, 1000000));
  add("chain-blocks-max", options.store.chain_blocks_max, "Hashes in one request")->check(CLI::Range(1, 80000));
  add("lease-count-max", options.store.lease_count_max, "Leases at once")->check(CLI::Range(1, 100000000));
  add("lease-count-per-session-max", options.store.lease_count_per_session_max, "Leases of one session")
      ->check(CLI::Range(1, 100000000));
  add("lease-seconds", lease_seconds, "How long a match may keep its blocks")->check(CLI::Range(0.001, 3600.0));
  add("pinned-fraction-max", options.store.pinned_fraction_max, "Share of the memory that pin may hold")
      ->check(CLI::Range(0.0, 1.0));
  add("leased-fraction-max", options.store.leased_fraction_max,
      "Share of the memory that leases may keep, shared blocks counted once")
      ->check(CLI::Range(0.0, 1.0));
  add("requests-max", options.session.requests_max, "Transfers in flight in one session")
      ->check(CLI::Range(1, 1000000));
  add("region-bytes-max", options.session.region_bytes_max, "Memory one session may lend")
      ->transform(size)
      ->check(size_range);
  add("region-bytes-max-node", options.region_bytes_max_node,
      "Memory all sessions together may lend as memfds, each counted once; 0: what the machine has besides the "
      "capacity")
      ->transform(size)
      ->check(rate_range);
  add("queued-bytes-max", options.session.queued_bytes_max, "Answers queued for one session before its requests wait")
      ->transform(size)
      ->check(size_range);
  add("hello-seconds", hello_seconds, "For a connection to say hello")->check(CLI::Range(0.1, 3600.0));
  add("frame-seconds", frame_seconds, "For a started request to arrive, and for each further 64 KiB of payload")
      ->check(CLI::Range(0.1, 3600.0));
  add("write-seconds", write_seconds, "For a client to take a byte of its answers")->check(CLI::Range(0.1, 3600.0));
  add("read-rate-min", options.session.read_rate_min,
      "Bytes a second that a client takes of what is queued for it, such as 1MiB, over write-seconds; 0: any")
      ->transform(size)
      ->check(rate_range);
  add("get-seconds", get_seconds, "From request to last byte of a get")->check(CLI::Range(0.1, 86400.0));
  add("put-seconds", put_seconds, "From offer to last byte of a put")->check(CLI::Range(0.1, 3600.0));
  add("drain-seconds", drain_seconds, "For running transfers to end after SIGTERM")->check(CLI::Range(0.0, 3600.0));
  add("log-level", options.log_level, "trace, debug, info, warn or error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
  add("log-json", options.log_json, "One JSON object a line instead of text");
  app.add_flag("--check-config", options.check_only, "Check the options, print the result and exit");

  const auto fail = [&](const std::string& message) -> std::optional<NodeOptions> {
    std::cerr << "kvstore-node: " << message << "\nRun with --help for more information.\n";
    *exit_code = 2;
    return std::nullopt;
  };
  // CLI11 asks the environment after the file, so that the file would win: hand it over as flags instead.
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto is_given = [&](const std::string& flag) {
    return std::any_of(argv + 1, argv + argc,
                       [&](const std::string& each) { return each == flag || each.starts_with(flag + "="); });
  };
  for (const std::string& name : names) {
    const char* const value = std::getenv(environment_name(name).c_str());
    if (value != nullptr && !is_given("--" + name)) arguments.push_back("--" + name + "=" + value);
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
  try {
    app.parse(arguments);
  } catch (const CLI::Success& done) {  // --help, --version
    *exit_code = app.exit(done);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return fail(error.what());
  }

  if (options.node_id.empty()) options.node_id = default_node_id();
  if (options.node_id.size() > 128) return fail("node-id: longer than 128 bytes");
  for (const std::string& text : listen) {
    std::string why;
    const auto endpoint = parse_endpoint(text, &why);
    if (!endpoint) return fail("listen: " + why);
    if (endpoint->scheme == Endpoint::Scheme::kSim) return fail("listen: " + text + ": allowed are tcp:// and unix://");
    if (!endpoint->is_loopback()) {
      return fail(
          "listen: " + text +
          ": refused, because sessions are neither encrypted nor authenticated yet. "
          "Allowed until TLS exists: loopback addresses (tcp://127.0.0.1:7400, tcp://[::1]:7400) and unix:// sockets");
    }
    options.listen.push_back(*endpoint);
  }
  if (options.listen.empty()) return fail("listen: none given, at least one is needed");
  if (admin == "none") {
    options.admin_host.clear();
  } else {
    std::string why;
    const auto endpoint = parse_endpoint("tcp://" + admin, &why);
    if (!endpoint) return fail("admin: " + why);
    if (!endpoint->is_loopback())
      return fail("admin: " + admin + ": refused, allowed until TLS exists: loopback addresses such as 127.0.0.1:7401");
    options.admin_host = endpoint->host == "localhost" ? "127.0.0.1" : endpoint->host;
    options.admin_port = static_cast<std::uint16_t>(std::stoi(endpoint->port));
  }
  if (capacity_blocks > 0) {
    if (capacity_block_bytes == 0 || capacity_block_bytes % 4096 != 0) {
      return fail("capacity-block-bytes: " + std::to_string(capacity_block_bytes) + ", must be a multiple of 4096");
    }
    if (capacity_blocks > (std::size_t{1} << 46) / capacity_block_bytes)
      return fail("capacity-blocks: " + std::to_string(capacity_blocks) + ", more than 64 TiB in all");
    options.store.arena.capacity_bytes = capacity_blocks * capacity_block_bytes;
    options.store.arena.granule_bytes = capacity_block_bytes;
  }
  if (options.store.arena.capacity_bytes < (1 << 20) && capacity_blocks == 0) {
    return fail("capacity: " + std::to_string(options.store.arena.capacity_bytes) + " bytes, at least 1MiB is needed");
  }
  if (spill_capacity_blocks > (std::size_t{1} << 46) / std::max<std::size_t>(capacity_block_bytes, 1))
    return fail("spill-capacity-blocks: " + std::to_string(spill_capacity_blocks) + ", more than 64 TiB in all");
  if (spill_capacity_blocks > 0) options.store.disk.capacity_bytes = spill_capacity_blocks * capacity_block_bytes;
  for (std::size_t i = 1; i < options.spill_paths.size(); ++i) {
    if (std::find(options.spill_paths.begin(), options.spill_paths.begin() + static_cast<std::ptrdiff_t>(i),
                  options.spill_paths[i]) != options.spill_paths.begin() + static_cast<std::ptrdiff_t>(i))
      return fail("spill-path: " + options.spill_paths[i] + " is given twice");
  }
  if (options.spill_paths.size() > kPlaceCount)
    return fail("spill-path: " + std::to_string(options.spill_paths.size()) + " directories, at most " +
                std::to_string(kPlaceCount));
  if (options.spill_paths.empty() != (options.store.disk.capacity_bytes == 0)) {
    return fail(options.spill_paths.empty() ? "spill-path: not given, needed with spill-capacity"
                                            : "spill-capacity: not given, needed with spill-path (for example 100GiB)");
  }
  options.store.spill.write_through = spill_policy == "write-through";
  options.store.disk.promote_reads = static_cast<std::uint8_t>(promote_reads);
  options.verbs.devices.traffic_class = static_cast<std::uint8_t>(rdma_traffic_class);
  options.rdma = rdma == "on"     ? NodeOptions::Rdma::kOn
                 : rdma == "auto" ? NodeOptions::Rdma::kAuto
                                  : NodeOptions::Rdma::kOff;
  for (const std::string& name : options.verbs.devices.names) {
    std::string why;
    if (!verbs::parse_device_wish(name, &why)) return fail("rdma-" + why);
  }
  // One reads about as fast as two devices of 100 Gbit/s write.
  options.verbs.verify_thread_count = std::clamp(std::thread::hardware_concurrency() / 4, 1u, 8u);
  if (options.threads == 0) options.threads = std::max(1u, std::thread::hardware_concurrency());
  const auto duration = [](double seconds) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  };
  if (options.region_bytes_max_node == 0) {
    // Clients have touched what they lend, so that all of it fits there; what does not is not what it says.
    const auto machine_bytes =
        static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t capacity_bytes = options.store.arena.capacity_bytes;
    options.region_bytes_max_node =
        std::max<std::uint64_t>(machine_bytes - std::min(machine_bytes, capacity_bytes), 1ull << 30);
  }
  options.busy_poll = std::chrono::microseconds(busy_poll_us);
  options.store.arena.huge_pages = !no_huge_pages;
  options.store.lease_duration = duration(lease_seconds);
  options.drain_timeout = duration(drain_seconds);
  options.session.hello_timeout = duration(hello_seconds);
  options.session.frame_timeout = duration(frame_seconds);
  options.session.write_timeout = duration(write_seconds);
  options.session.put_timeout = duration(put_seconds);
  options.sessions.idle_min = duration(session_idle_seconds);
  options.session.get_timeout = duration(get_seconds);
  options.session.spill_wait = duration(spill_wait_seconds);
  options.spill.batch_bytes =
      std::min<std::uint64_t>(options.spill.batch_bytes, options.store.arena.capacity_bytes / 8);
  options.spill.retry_after = duration(spill_retry_seconds);
  options.spill.give_up_after = duration(spill_stop_seconds);
  options.spill_hang = duration(spill_hang_seconds);
  // The whole tier counts as stuck only when leaving a directory out has not helped.
  options.spill.stuck_after = options.spill_hang * (options.spill_paths.size() > 1 ? 2 : 1);
  options.session.drop_wait = duration(spill_drop_seconds);
  return options;
}

}  // namespace kv
