// store/node/main.cc: kvstore-node. Builds the parts, waits for a signal, and takes them down.
//
// run() declares parts in the order of their dependencies, and so destroys them in reverse: the Store outlives the disk
// tier, both outlive RDMA, and all of them outlive the server with its sessions.

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string_view>
#include <thread>

#include "base/numa.h"
#include "store/node/access/tenant_figures.h"
#include "store/node/admin.h"
#include "store/node/config.h"
#include "store/node/context_keeper.h"
#include "store/node/context_warmer.h"
#include "store/node/disk/disk_opener.h"
#include "store/node/disk/kept_file.h"
#include "store/node/disk/spill_directory.h"
#include "store/node/disk/spill_keys.h"
#include "store/node/events/event_answers.h"
#include "store/node/learned_keeper.h"
#include "store/node/live/capacity.h"
#include "store/node/live/live_options.h"
#include "store/node/locked_store.h"
#include "store/node/log_format.h"
#include "store/node/machine/autotune.h"
#include "store/node/machine/room.h"
#include "store/node/machine/spill_place.h"
#include "store/node/membership/membership_thread.h"
#include "store/node/metrics.h"
#include "store/node/mover/mover_thread.h"
#include "store/node/pool/pool_thread.h"
#include "store/node/rdma/verbs_opener.h"
#include "store/node/server.h"
#include "store/node/session/contexts.h"
#include "store/node/spill/spill_tool.h"
#include "store/node/start_watch.h"
#include "store/node/status/status.h"
#include "store/node/tenant_eraser.h"
#include "store/node/thread_border.h"
#include "transport/tls/tls_network.h"

namespace kv {
namespace {

constexpr Duration kLearnPauseMin = 5ms, kLearnPauseMax = 40ms;  ///< Between rounds of learning, by the work left.
constexpr int kLearnedAtOnce = 64;                               ///< Slices of a round, at most; some 30 us each.
constexpr std::size_t kPagesLookedAt = 1024;  ///< Of the arena, to see which NUMA node they are on: 0.2 ms.
constexpr std::chrono::milliseconds kContextFilePatience{10'000};
constexpr Duration kFileCheckPause = 2s;  ///< Between two checks of the certificate and policy files.

/// Runs on the main thread at the start, or later on the opener's. Sessions get RDMA through the server, which posts to
/// their threads; node.verbs is atomic for the metrics.
void begin_verbs(VerbsNode& opened, NodeContext& node, Server& server) {
  for (std::size_t i = 0; i < opened.device_count(); ++i) {
    const auto device = opened.device(i);
    const auto at = device ? (*device)->open.attach() : Result<verbs::Attachment, Failure>(device.error());
    if (at) {
      spdlog::info("rdma: device={} port={} gid={} index={} mtu_bytes={}", at->device, at->port,
                   verbs::text_of(at->gid.gid), at->gid.index, at->mtu_bytes);
    } else {
      spdlog::warn("rdma: waiting for device={}: {}", opened.wish(i).device, at.error().text);
    }
  }
  if (!opened.unused().empty()) spdlog::info("rdma: not used: {}", opened.unused());
  node.verbs = &opened;
  server.begin_verbs(opened);
}

/// Opens RDMA if wanted, now or when a device appears. False: the node must not start without it.
bool open_verbs(const NodeOptions& options, VerbsOpener& opener, NodeContext& node, Server& server) {
  constexpr Duration kPause = 5s;
  if (options.rdma == NodeOptions::Rdma::kOff) return true;
  const auto made = opener.open();
  if (made) {
    begin_verbs(**made, node, server);
  } else if (options.rdma == NodeOptions::Rdma::kOn) {
    std::cerr << "kvstore-node: rdma: on, but " << made.error().text << "\n";
    return false;
  } else {
    spdlog::info("rdma: not available, blocks move by TCP and shared memory: {}", made.error().text);
  }
  opener.keep_trying(kPause, [&node, &server](VerbsNode& opened) { begin_verbs(opened, node, server); });
  return true;
}

/// Each session is a descriptor, and RocksDB keeps its files open: raises the limit to the maximum allowed.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

/// Flushed with each line from info on: the last lines before a crash matter most.
void set_up_log(const NodeOptions& options) {
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  spdlog::set_formatter(std::make_unique<LogFormatter>(options.log_json));
  spdlog::flush_on(spdlog::level::info);
}

/// Exits if the disk does not answer: the threads that wait for it cannot be joined.
void stop_spill(SpillDriver& spill, bool save) {
  if (spill.stop(save)) return;
  spdlog::error("stopped without the disk, which does not answer{}", save ? ": what was only in memory is lost" : "");
  spdlog::shutdown();
  std::_Exit(1);
}

/// However run() ends, the opener stops before the server is destroyed: it reports devices to the server.
struct StopVerbs {
  void operator()(VerbsOpener* opener) const { opener->stop(); }
};

/// However run() ends: threads that wait for a hanging disk would block the destructor for ever.
struct EndSpill {
  void operator()(SpillDriver* spill) const {
    stop_spill(*spill, /*save=*/false);
    delete spill;
  }
};

bool is_serving(const ClusterView& view, const std::string& id) {
  const auto self = std::ranges::find(view.members, id, &Member::id);
  return self != view.members.end() && self->state == Member::State::kServing;
}

/// Settings that operators want to see if they differ between nodes. Version 1.2.3 is 1,002,003.
std::vector<std::pair<std::string, double>> cluster_settings(const NodeOptions& options) {
  unsigned major = 0, minor = 0, patch = 0;
  static_cast<void>(std::sscanf(KV_VERSION, "%u.%u.%u", &major, &minor, &patch));
  const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
  std::vector<std::pair<std::string, double>> settings = {
      {"version", major * 1e6 + minor * 1e3 + patch},
      {"policy", static_cast<double>(options.store.policy)},
      {"pool-seconds", seconds(options.pool_period)},
      {"lease-seconds", seconds(options.store.lease_duration)},
  };
  if (options.etcd.endpoints.empty()) return settings;
  settings.emplace_back("etcd-lease-seconds", static_cast<double>(options.membership.lease.count()));
  settings.emplace_back("copy-uses", static_cast<double>(options.copy_uses));
  settings.emplace_back("move-rate", static_cast<double>(options.move_rate));
  return settings;
}

/// The node keeps serving meanwhile. A second signal ends the hand-over.
void hand_over(MoverThread& mover, Duration most, asio::io_context& context, asio::signal_set& signals) {
  const auto until = std::chrono::steady_clock::now() + most;
  mover.leave();
  bool is_hurried = false;
  signals.async_wait([&](const boost::system::error_code& error, int) { is_hurried = is_hurried || !error; });
  context.restart();
  while (!mover.has_left() && !is_hurried && std::chrono::steady_clock::now() < until) context.run_for(50ms);
  if (!mover.has_left()) spdlog::warn("cluster: leaving without having handed over all");
  signals.cancel();
}

/// Places blocks and binds the node to processors; threads started later inherit the binding. nullopt: stderr says why.
std::optional<NumaChoice> settle_on_nodes(const NumaTopology& topology, const std::string& wish) {
  const auto refuse = [](const std::string& why) {
    std::cerr << "kvstore-node: numa-nodes: " << why << "\n";
    return std::nullopt;
  };
  auto choice = choose_numa(topology, wish);
  if (!choice) return refuse(choice.error().text);  // the machine has changed since the options were read
  if (wish == "auto" && !choice->memory.empty() && has_memory_policy()) {
    spdlog::info("numa: memory lies where numactl, or what started this node, has said");
    choice->memory.clear();
  }
  if (!choice->processors.empty()) {
    if (const error_code why = keep_to_processors(choice->processors))
      return refuse("their processors " + number_list_text(choice->processors) + " may not be used: " + why.message());
  }
  if (const MemoryPlacement trial(choice->memory); trial.error()) {
    if (wish != "auto") return refuse("memory may not be placed: " + trial.error().message());
    spdlog::warn("numa: blocks are not spread over the nodes: {}", trial.error().message());
    choice->memory.clear();
  }
  if (!choice->memory.empty()) {
    spdlog::info("numa: blocks lie on nodes {} in turns; threads keep to {}", number_list_text(choice->memory),
                 choice->processors.empty() ? "no processors in particular"
                                            : "processors " + number_list_text(choice->processors));
  }
  return *std::move(choice);
}

NumaLook look_at_arena(LockedStore& store, const NumaTopology& topology, const NumaChoice& choice) {
  NumaLook look{.node_count = topology.with_memory().size(), .chosen = choice.memory, .spread = std::nullopt};
  if (look.node_count < 2) return look;
  const auto memory = store.with([](Store& each) { return each.memory(); });
  if (auto spread = look_where_pages_lie(memory, kPagesLookedAt)) look.spread = *std::move(spread);
  return look;
}

std::vector<NodeMetrics::Value> numa_values(const NumaLook& look) {
  std::vector<NodeMetrics::Value> values = {
      {"numa_nodes", static_cast<double>(look.node_count), false, "NUMA nodes of this machine that have memory"}};
  if (look.node_count < 2) return values;
  values.push_back({"arena_numa_nodes", static_cast<double>(look.chosen.size()), false,
                    "Of them, those that memory for blocks was asked of; 0: the kernel places it"});
  if (const auto share = look.largest_share())
    values.push_back({"arena_numa_largest_ratio", *share, false,
                      "Share of the memory for blocks on the node that has most of it, by a sample"});
  if (const auto share = look.misplaced_share())
    values.push_back(
        {"arena_numa_misplaced_ratio", *share, false, "Share of it on nodes that it was not asked of, by a sample"});
  return values;
}

std::vector<NodeMetrics::Value> spill_key_values(const SpillKeys& keys) {
  const SpillKeys::Stats stats = keys.stats();
  return {{"spill_encrypted", 1, false, "1: what is written to disk is encrypted (spill-key-file, spill-key-command)"},
          {"spill_key_file_exposed", keys.is_exposed() ? 1.0 : 0.0, false,
           "1: others than its owner may read or write spill-key-file"},
          {"spill_key_reloads", static_cast<double>(stats.reloads), true, "Times that the keys were asked for again"},
          {"spill_key_reload_failed", stats.last_failed ? 1.0 : 0.0, false,
           "1: the last reload of the keys failed, or not all keys on disk are wrapped by the first one"}};
}

std::vector<NodeMetrics::Value> request_memory_values(const NodeContext& node) {
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  return {{"request_memory_max_bytes", number(node.tables->bytes_max()), false,
           "That all sessions may hold for each of: large requests that arrive, such in flight, answers not taken"},
          {"request_receiving_bytes", number(node.tables->bytes()), false, "Of large requests that are arriving"},
          {"request_in_flight_bytes", number(node.requests->bytes()), false, "Of large requests that are in flight"},
          {"answers_queued_bytes", number(node.queued_bytes), false, "Of answers that clients have not taken yet"},
          {"request_memory_refused", number(node.tables->refused_count() + node.requests->refused_count()), true,
           "Large requests refused as busy, since others held that memory"}};
}

/// Keeps contexts over a restart. Rewrapped with the keys on disk.
ContextKeeper::File context_file(const std::shared_ptr<KeptFile>& file) {
  return {.read =
              [file] {
                std::vector<ContextKeeper::File::Found> all;
                for (KeptFile::Found& each : file->read()) all.push_back({each.directory, std::move(each.text)});
                return all;
              },
          .write = [file](const std::string& text) { return file->write(text); },
          .set_aside = [file](std::size_t directory) { file->set_aside(directory); },
          .forget_aside = [file] { return file->forget_aside(); }};
}

/// A node may be told to stop before its disk is open. Orders given in that time are worth some seconds.
void wait_for_disk(const SpillDriver& spill) {
  const auto until = std::chrono::steady_clock::now() + 5s;
  while (!spill.can_read() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(10ms);
}

/// Afterwards the keys on disk are wrapped by the first key of the file, or the log says why not.
void reload_spill_keys(SpillKeys& keys, NodeMetrics& metrics) {
  const Failure failure = keys.reload();
  metrics.set_spill_key(keys.current_id());
  if (failure.code)
    spdlog::error("spill keys: {}", failure.text);
  else
    spdlog::info("spill keys: read again, key='{}'", keys.current_id());
}

int run(const NodeOptions& options, GivenOptions given, Settings::Read read) {
  set_up_log(options);
  raise_descriptor_limit();  // before any code reads the limit
  const NumaTopology topology = NumaTopology::read();
  const std::optional<NumaChoice> numa = settle_on_nodes(topology, options.numa_nodes);
  if (!numa) return 1;
  // Signals first, so that one during the touching of memory is not lost.
  asio::io_context signals_context{1};
  asio::signal_set signals(signals_context, SIGTERM, SIGINT);
  asio::signal_set hangup(signals_context);
  // Without files to read again, SIGHUP keeps its default action.
  if (options.tls.is_given() || !options.policy_file.empty() || options.spill_keys.is_given() || !given.file().empty())
    hangup.add(SIGHUP);
  const bool has_config_file = !given.file().empty();
  for (const std::string& variable : given.unknown_variables()) spdlog::warn("config: {}", variable);
  Settings settings(std::move(given), options, std::move(read));

  NodeMetrics metrics(KV_VERSION);
  StoreConfig store_config = options.store;
  const std::size_t capacity = store_config.arena.capacity_bytes;
  // Clients choose the hashes. With this seed they could make all fall into one bucket.
  store_config.hash_seed = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32;
  store_config.disk.hash_seed = store_config.hash_seed;
  const MachineFacts memory_facts = read_memory_facts();
  if (const std::string refused = capacity_refusal(memory_facts, RoomOf::kNow, capacity, store_config.arena.huge_pages);
      !refused.empty()) {
    std::cerr << "kvstore-node: " << refused << "\n";
    return 1;
  }
  if (const HugeRoom huge = huge_room(memory_facts, RoomOf::kNow, capacity);
      store_config.arena.huge_pages && !huge.is_enough && !huge.why_not.empty()) {
    spdlog::warn("huge pages: {}, and the capacity is {}: it takes ordinary pages", huge.why_not, capacity);
    store_config.arena.huge_pages = false;
  }
  StartWatch watch(capacity);
  store_config.arena.progress = [&watch](std::size_t touched) { watch.touched(touched); };
  auto opened_access =
      AccessControl::open(options.policy_file, {options.store.arena.capacity_bytes, options.store.disk.capacity_bytes},
                          options.tenant_secret_file);
  if (!opened_access) {
    std::cerr << "kvstore-node: " << opened_access.error().text << "\n";
    return 1;
  }
  const std::unique_ptr<AccessControl> access = std::move(*opened_access);
  // --check-config has read them; the files may have changed since.
  std::shared_ptr<TlsSource> tls;
  if (options.tls.is_given()) {
    auto opened = TlsSource::open(options.tls, TlsSide::kNode);
    if (!opened) {
      std::cerr << "kvstore-node: " << opened.error().text << "\n";
      return 1;
    }
    tls = std::move(*opened);
  }
  // Before the memory, which takes minutes to touch: a probe would otherwise report the starting node as dead.
  std::unique_ptr<AdminServer> early_admin;
  if (!options.admin_host.empty()) {
    auto started = AdminServer::start(options.admin_host, options.admin_port,
                                      {.metrics = nullptr,
                                       .is_ready = [] { return false; },
                                       .why_not_ready = [&watch] { return watch.text(); },
                                       .denied = [&metrics](Right right) { metrics.request_denied(right); }},
                                      options.admin_tls ? tls : nullptr, access.get());
    if (!started) {
      std::cerr << "kvstore-node: admin " << options.admin_host << ":" << options.admin_port << ": "
                << started.error().message() << "\n";
      return 1;
    }
    early_admin = std::move(*started);
  }
  const std::string admin_text = early_admin ? std::string(" admin=") + (options.admin_tls ? "https://" : "") +
                                                   options.admin_host + ":" + std::to_string(early_admin->port())
                                             : "";
  spdlog::info("starting: node_id={} version={} capacity_bytes={} threads={}{}", options.node_id, KV_VERSION, capacity,
               options.threads, admin_text);
  auto made = [&] {
    const MemoryPlacement placement(numa->memory);
    return Store::create(store_config);
  }();
  if (!made) {
    std::cerr << "kvstore-node: cannot get " << capacity << " bytes for blocks: " << made.error().message()
              << ". Lower --capacity, or free memory.\n";
    return 1;
  }
  // Before the disk is loaded: its blocks count from the first on.
  if (options.store.has_tenants) (*made)->set_tenants(access->tenant_limits());
  LockedStore store(std::move(*made), metrics);
  SteadyClock clock;
  NodeContext node{.store = store, .clock = clock, .metrics = metrics, .limits = options.session};
  node.chain_blocks_max = static_cast<std::uint32_t>(options.store.chain_blocks_max);
  node.lease_duration = options.store.lease_duration;
  node.node_id = options.node_id;
  node.instance = draw_instance_id();
  node.started = clock.now();
  node.settings = cluster_settings(options);
  node.slow.set(options.slow_log);
  const std::uint64_t shared_bytes = std::max<std::uint64_t>(TableBudget::kBytesMaxLeast, capacity / 64);
  node.tables = std::make_unique<TableBudget>(shared_bytes);
  node.requests = std::make_unique<TableBudget>(shared_bytes);
  node.queued_bytes_max = shared_bytes;
  metrics.watch([&node] { return request_memory_values(node); });
  // Each lent region is a descriptor too: a quarter of them all; the rest is for sessions and the disk tier.
  rlimit descriptors{};
  ::getrlimit(RLIMIT_NOFILE, &descriptors);
  node.lent = std::make_unique<LentRegions>(
      LentRegionsConfig{.bytes_max = options.region_bytes_max_node,
                        .count_max = std::clamp<std::size_t>(descriptors.rlim_cur / 4, 64, 1 << 20),
                        .in_place = false});
  metrics.watch([&node] { return node.lent->stats(); });
  metrics.watch([&node] {
    return std::vector<NodeMetrics::Value>{{"log_lines_suppressed", static_cast<double>(node.log.suppressed_count()),
                                            true, "Log lines that clients caused and that were not written"}};
  });
  std::shared_ptr<SpillKeys> spill_keys;
  if (options.spill_keys.is_given()) {
    watch.begins("asking for the keys of the disk tier");
    auto opened = SpillKeys::open(options.spill_keys);
    if (!opened) {
      std::cerr << "kvstore-node: " << opened.error().text << "\n";
      return 1;
    }
    spill_keys = std::move(*opened);
    metrics.set_spill_key(spill_keys->current_id());
    spdlog::info("spill: what is written to disk is encrypted, key='{}'", spill_keys->current_id());
  }
  asio::io_context warm_context{1};  // outlives the disk tier, whose reads complete on it
  std::unique_ptr<SpillDriver, EndSpill> spill;
  if (!options.spill_paths.empty()) {
    spill.reset(new SpillDriver(store, disk_opener(options.spill_paths, clock, options.spill_hang, spill_keys), clock,
                                options.spill));
    if (const std::string refused = spill->start(); !refused.empty()) {
      std::cerr << "kvstore-node: spill-path " << refused << "\n";
      return 1;
    }
    node.spill = spill.get();
    metrics.watch([&spill] { return spill->stats(); });
  }
  std::unique_ptr<LearnedKeeper> learned;
  std::shared_ptr<LearnedPlace> learned_in;  // shared with a thread that may outlive this function
  if (spill) {
    learned_in = std::make_shared<LearnedPlace>(options.spill_paths.front());
    learned = std::make_unique<LearnedKeeper>(
        store,
        LearnedKeeper::File{
            .read = [learned_in] { return read_small_file(learned_in->file(), kLearnedBytesMax); },
            .write = [learned_in](const std::string& bytes) { return replace_file(learned_in->file(), bytes); }});
  }
  // Before the node listens, so that the first client finds them.
  std::shared_ptr<KeptFile> context_in;
  std::unique_ptr<ContextKeeper> contexts;
  std::unique_ptr<ContextWarmerThread> warmer;
  if (spill) {
    context_in = std::make_shared<KeptFile>(options.spill_paths, "CONTEXTS", kContextFileBytesMax + 1024, spill_keys);
    if (spill_keys) spill_keys->add(context_in);
    contexts = std::make_unique<ContextKeeper>(store, clock, context_file(context_in), wall_us);
    contexts->start();
    metrics.watch([&contexts] { return contexts->stats(); });
    warmer = std::make_unique<ContextWarmerThread>(warm_context, node, options.warm_bytes_per_second);
    metrics.watch([&warmer] { return warmer->stats(); });
  }
  // After the disk, which it uses until its end.
  TenantEraser eraser(store, clock, node.spill,
                      [&contexts] { return contexts ? contexts->forget(kContextFilePatience) : std::string(); });
  node.eraser = &eraser;
  // The same certificate files for this node's own connections, opened once: bad replacements are ignored.
  std::shared_ptr<TlsSource> tls_to_others;
  if (options.tls.is_given() && (!options.etcd.endpoints.empty() || options.pools())) {
    TlsConfig own = options.tls;
    own.allowed_names.clear();  // they restrict this node's clients
    auto opened = TlsSource::open(own, TlsSide::kClient);
    if (!opened) {
      std::cerr << "kvstore-node: " << opened.error().text << "\n";
      return 1;
    }
    tls_to_others = std::move(*opened);
  }
  access->set_network_listeners(options.network_count);
  node.access = access.get();
  NodeSecurity security(tls, options.plain_network_count, access.get());
  if (spill_keys) security.watch([&spill_keys] { return spill_key_values(*spill_keys); });
  node.security = &security;
  if (options.store.has_tenants) {
    security.on_policy([&] { store.with([&](Store& each) { each.set_tenants(access->tenant_limits()); }); });
    metrics.watch_tenants([&] {
      return bounded_tenant_figures(store.with([](Store& each) { return each.tenants(); }), access->tenants().stats());
    });
  }
  metrics.watch_tenants(
      [&store] { return context_figures(store.with([](Store& each) { return each.context_totals(); })); });
  metrics.watch([&security] { return security.stats(); });
  if (options.plain_network_count > 0) {
    spdlog::warn(
        "plaintext-on-trusted-network: {} listeners beyond loopback neither encrypt nor authenticate: whoever reaches "
        "them may read, write and drop every block",
        options.plain_network_count);
  }
  const auto look_where_blocks_lie = [&] { return look_at_arena(store, topology, *numa); };
  metrics.watch([look_where_blocks_lie] { return numa_values(look_where_blocks_lie()); });
  metrics.watch_store([&store] { return store.with([](Store& each) { return each.stats(); }); });
  metrics.watch_curve([&store] { return store.with([](Store& each) { return each.curve(); }); });

  metrics.watch([&node] {
    VerbsNode* const verbs = node.verbs;
    return verbs == nullptr ? std::vector<NodeMetrics::Value>() : verbs->stats();
  });
  VerbsOpener verbs_opener(options.verbs, store.with([](Store& each) { return each.memory(); }), clock);

  // Before RDMA, whose registering may take minutes: /readyz says "not ready" meanwhile.
  std::atomic<bool> ready = false;
  const bool has_cluster = !options.etcd.endpoints.empty();
  std::atomic<MembershipThread*> membership = nullptr;  // set once the node listens
  const auto joined = [&membership, &node] {
    const MembershipThread* const at_work = membership;
    return at_work != nullptr && at_work->status().is_joined && is_serving(*node.cluster.view(), node.node_id);
  };
  if (has_cluster) {
    metrics.watch([&membership] {
      const MembershipThread* const at_work = membership;
      return at_work == nullptr ? std::vector<NodeMetrics::Value>() : at_work->stats();
    });
    metrics.watch([&node] { return node.moves.stats(); });
  }
  const auto is_ready = [&] { return ready && !node.draining && (!has_cluster || joined()); };
  StatusAnswers status(node,
                       {.version = KV_VERSION,
                        .disk_capacity_bytes = options.store.disk.capacity_bytes,
                        .disk_capacity_now = [&settings] { return settings.in_force().store.disk.capacity_bytes; },
                        .numa = look_where_blocks_lie,
                        .is_ready = is_ready});
  const EventAnswers events(store, node.instance);
  metrics.watch([&node] { return node.pool.stats(node.clock.now()); });
  metrics.watch([&settings] { return settings.stats(); });
  std::unique_ptr<CapacityKeeper> keeper;  // outlives the admin server, whose scrapes read it
  if (options.store.arena.capacity_bytes_max > 0) {
    keeper = std::make_unique<CapacityKeeper>(store, spill.get(), numa->memory);
    metrics.watch([&keeper] { return keeper->stats(); });
  }
  std::unique_ptr<AdminServer> admin = std::move(early_admin);  // ends before the objects its pages read
  if (admin) {
    admin->open(
        {.metrics = [&metrics] { return metrics.text(); },
         .is_ready = is_ready,
         .why_not_ready = [&] { return ready ? std::string("draining, or not on the map yet") : watch.text(); },
         .denied = [&metrics](Right right) { metrics.request_denied(right); },
         .status = [&status](std::string_view path, std::string_view query,
                             PeerAccess& peer) { return status.answer(path, query, peer); },
         .events =
             options.store.event_count_max == 0
                 ? AdminPages::Answer()
                 : [&events](std::string_view path, std::string_view query, PeerAccess& peer) {
                     return events.answer(path, query, [&peer](const NamespaceRecord& stored) {
                       return peer.sees_blocks(owner_of(stored));
                     });
                   },
         .config = [&settings] { return settings.list_json(); },
         .set_config = [&settings](std::string_view query,
                                   const std::string& who) { return answer_set(settings, query, who); }});
  }
  const std::unique_ptr<Network> tls_network = tls ? make_tls_network(socket_network(), tls) : nullptr;
  Server server(node, {.threads = options.threads,
                       .busy_poll = options.busy_poll,
                       .sessions = options.sessions,
                       .handshakes = {.count_max = options.handshakes_max, .peer_share_max = 0.5},
                       .handshake_timeout = options.handshake_timeout,
                       .handshakes_per_second = options.handshakes_per_second});
  const std::unique_ptr<VerbsOpener, StopVerbs> stop_verbs(&verbs_opener);
  watch.begins("opening what blocks move by");
  if (!open_verbs(options, verbs_opener, node, server)) return 1;
  std::string listening;
  std::vector<std::string> endpoints;
  for (const Endpoint& endpoint : options.listen) {
    const auto real = server.listen(tls_network ? *tls_network : socket_network(), endpoint);
    if (!real) {
      std::cerr << "kvstore-node: listen " << endpoint.to_string() << ": " << real.error().message() << "\n";
      return 1;
    }
    endpoints.push_back(real->to_string());
    listening += " listen=" + endpoints.back();
  }
  server.start();
  ready = true;
  // Starts last and ends first: a node on the map takes requests.
  std::unique_ptr<MembershipThread> cluster;
  std::unique_ptr<MoverThread> mover;
  if (has_cluster) {
    MembershipConfig config = options.membership;
    config.self.instance = to_hex(node.instance);
    config.self.version = KV_VERSION;
    if (config.self.endpoints.empty()) config.self.endpoints = endpoints;
    if (options.move_rate > 0) {
      config.self.state = Member::State::kDraining;
      config.self.phase = Member::Phase::kJoining;
    }
    cluster = std::make_unique<MembershipThread>(options.etcd, std::move(config), clock, node.cluster);
    membership = cluster.get();
    if (options.move_rate > 0) {
      mover = std::make_unique<MoverThread>(
          clock, store, *node.hot_roots, node.cluster, node.moves,
          MoverConfig{.node_id = node.node_id,
                      .bytes_per_second = options.move_rate,
                      .tls = tls_to_others,
                      .join_max = options.join_max,
                      .copy_uses = options.copy_uses},
          [&cluster](Member::State state, Member::Phase phase) { cluster->tell(state, phase); });
    }
  }
  std::unique_ptr<PoolThread> pool;
  if (options.pools()) {
    PoolConfig config{
        .node_id = node.node_id, .peers = options.peers, .period = options.pool_period, .tls = tls_to_others};
    std::ranges::transform(node.instance, config.instance.begin(),
                           [](std::byte each) { return std::to_integer<std::uint8_t>(each); });
    pool = std::make_unique<PoolThread>(clock, store, node.cluster, node.pool, std::move(config));
  }
  settings.open([&] {
    wire_up(settings, {.node = node,
                       .server = server,
                       .capacity = keeper.get(),
                       .spill = spill.get(),
                       .access = access.get(),
                       .directories_changed =
                           [&](const std::vector<std::string>& directories) {
                             learned_in->set(directories.front());
                             context_in->move_to(directories);
                             // Not awaited. Without it, a kill before the next change would lose contexts.
                             static_cast<void>(contexts->write_now(std::chrono::milliseconds(0)));
                           },
                       .warmer = warmer.get()});
    if (mover) {
      settings.on({"move-rate", "copy-uses"}, [&](const NodeOptions& next) {
        if (next.move_rate == 0)
          return std::string("move-rate: '0'; with 0 nothing is handed over, which needs a restart");
        mover->set_limits(next.move_rate, next.copy_uses);
        return std::string();
      });
      settings.on_demand({"hand-over-seconds"});
    }
    if (pool) {
      settings.on({"pool-seconds"}, [&](const NodeOptions& next) {
        if (next.pool_period <= Duration::zero())
          return std::string("pool-seconds: '0'; with 0 the node learns alone, which needs a restart");
        pool->set_period(next.pool_period);
        return std::string();
      });
    }
  });
  watch.finish();
  sd_notify(0, "READY=1\nSTATUS=serving");
  spdlog::info("ready{}{}", listening, admin_text);

  signals.async_wait([&](const boost::system::error_code& error, int signal) {
    if (!error) spdlog::info("signal {}: draining", signal);
  });
  // Leases must end by time even if the Store is idle.
  asio::steady_timer housekeeping(signals_context);
  std::function<void()> tick = [&] {
    within_border(NodeThread::kMain, [&] {
      store.with([&](Store& each) { each.expire_leases(clock.now()); });
      const auto news = store.with([&](Store& each) { return each.tend_contexts(clock.now()); });
      for (const Store::ContextNews& each : news)
        node.log.warn(LogKind::kContext, clock.now(), [&] { return context_news_text(each); });
      if (learned) learned->tick(clock.now(), spill->can_read());
      if (contexts) contexts->tick(spill->can_read());
    });
    housekeeping.expires_after(250ms);
    housekeeping.async_wait([&](const boost::system::error_code& error) {
      if (!error) tick();
    });
  };
  tick();
  // Runs background learning left by requests in slices, so that callers of the Store get in between.
  asio::steady_timer learning(signals_context);
  Duration learn_pause = kLearnPauseMin;
  std::function<void()> learn = [&] {
    int slices = 0;
    within_border(NodeThread::kMain, [&] {
      while (slices < kLearnedAtOnce && store.with([](Store& each) { return each.learn(); })) ++slices;
    });
    learn_pause = slices > 0 ? kLearnPauseMin : std::min(2 * learn_pause, kLearnPauseMax);
    learning.expires_after(learn_pause);
    learning.async_wait([&](const boost::system::error_code& error) {
      if (!error) learn();
    });
  };
  learn();
  asio::steady_timer history(signals_context);
  std::function<void()> sample = [&] {
    within_border(NodeThread::kMain, [&] { status.sample(); });
    history.expires_after(History::kStep);
    history.async_wait([&](const boost::system::error_code& error) {
      if (!error) sample();
    });
  };
  if (admin) sample();
  asio::steady_timer file_check(signals_context);
  std::function<void()> wait_for_hangup = [&] {
    hangup.async_wait([&](const boost::system::error_code& error, int) {
      if (error) return;
      // One by one: an unexpected failure with one file must not keep the others from being read.
      within_border(NodeThread::kMain, [&] {
        if (has_config_file) settings.reload();
      });
      within_border(NodeThread::kMain, [&] { security.reload(); });
      within_border(NodeThread::kMain, [&] {
        if (spill_keys) reload_spill_keys(*spill_keys, metrics);
      });
      wait_for_hangup();
    });
  };
  std::function<void()> check_files = [&] {
    file_check.expires_after(kFileCheckPause);
    file_check.async_wait([&](const boost::system::error_code& error) {
      if (error) return;
      within_border(NodeThread::kMain, [&] { security.check_files(); });
      check_files();
    });
  };
  if (security.has_files() || has_config_file || spill_keys) wait_for_hangup();
  if (security.has_files()) check_files();
  signals.async_wait([&](const boost::system::error_code&, int) { signals_context.stop(); });
  run_within_border(NodeThread::kMain, signals_context);
  if (mover) {
    hand_over(*mover, settings.in_force().hand_over_max, signals_context, signals);
  }

  // From here on options cannot change: the parts that would apply them are about to go.
  const NodeOptions last = settings.close();
  mover.reset();
  pool.reset();
  // In reverse: stop opening devices, end sessions, then write memory to disk undisturbed.
  sd_notify(0, "STOPPING=1\nSTATUS=draining");
  // An opener without a device might still bring RDMA to the stopping server, so it stops first. One with devices only
  // checks them: stopping it may take as long as registering an arena, and can wait.
  if (node.verbs == nullptr) verbs_opener.stop();
  if (cluster) cluster->tell(Member::State::kDraining, Member::Phase::kNone);
  server.stop(last.drain_timeout);
  // Scrapes may read the cluster object, so the admin server goes first.
  if (cluster) admin.reset();
  cluster.reset();
  const std::size_t count = store.with([](Store& each) { return each.context_changes().count; });
  if (!contexts && count > 0)
    spdlog::warn("contexts: {} named contexts end with this process, which has no disk tier; create them anew", count);
  if (warmer) warmer->stop();  // blocks staged now would not be written
  // While the directory is still this node's, and before blocks are released.
  if (contexts) {
    if (count > 0) wait_for_disk(*spill);
    contexts->stop(spill->can_read());
  }
  if (learned) learned->stop(spill->can_read());
  if (spill) stop_spill(*spill, last.spill_save);
  spdlog::info("stopped");
  return 0;
}

}  // namespace
}  // namespace kv

int main(int argc, char** argv) {
  // For the spill files: RocksDB has no mode for its own. The Unix socket gets its mode explicitly (socket_network.cc).
  ::umask(0077);
  if (argc > 1 && std::string_view(argv[1]) == "spill")
    return kv::run_spill_tool(argc - 1, argv + 1, std::cout, std::cerr);
  int exit_code = 0;
  const auto options = kv::parse_options(argc, argv, &exit_code);
  if (!options) return exit_code;
  const auto read = [argc, argv](std::string* wrong) {
    int ignored = 0;
    return kv::GivenOptions::read(argc, argv, &ignored, wrong);
  };
  std::string wrong;
  auto given = read(&wrong);
  if (options->check_only) {
    if (options->spill_keys.is_given()) {
      if (const auto keys = kv::SpillKeys::open(options->spill_keys); !keys) {
        std::cerr << "kvstore-node: " << keys.error().text << "\n";
        return 2;
      }
    }
    const auto& arena = options->store.arena;
    if (const std::string refused =
            kv::capacity_refusal(kv::read_memory_facts(), kv::RoomOf::kMachine, arena.capacity_bytes, arena.huge_pages);
        !refused.empty()) {
      std::cerr << "kvstore-node: " << (given ? given->explained(refused) : refused) << "\n";
      return 2;
    }
    std::cout << "configuration is valid: node-id " << options->node_id << ", capacity "
              << options->store.arena.capacity_bytes << " bytes, " << options->threads << " I/O threads, listening on";
    for (const auto& endpoint : options->listen) std::cout << " " << endpoint.to_string();
    std::cout << "\n";
    for (const std::string& path : options->spill_paths) {
      if (const std::string place = kv::new_spill_place(path); !place.empty())
        std::cout << "spill-path " << path << " " << place << "\n";
    }
    return 0;
  }
  if (options->autotune.is_asked) {
    if (given) return kv::run_autotune(*options, *given, std::cout, std::cerr);
    std::cerr << "kvstore-node: " << wrong << "\n";  // the file has changed since
    return 2;
  }
  try {
    if (!given) throw std::runtime_error(wrong);  // the file has changed since
    return kv::run(*options, *std::move(given), read);
  } catch (const std::exception& error) {
    std::cerr << "kvstore-node: " << error.what() << "\n";
    return 1;
  }
}
