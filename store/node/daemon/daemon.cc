#include "store/node/daemon/daemon.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string_view>
#include <utility>

#include "store/node/access/tenant_eraser.h"
#include "store/node/access/tenant_figures.h"
#include "store/node/daemon/cannot_start.h"
#include "store/node/daemon/cluster_part.h"
#include "store/node/daemon/disk_part.h"
#include "store/node/daemon/main_loop.h"
#include "store/node/daemon/numa_placement.h"
#include "store/node/daemon/rdma_part.h"
#include "store/node/events/event_answers.h"
#include "store/node/listen/admin.h"
#include "store/node/listen/server.h"
#include "store/node/live/capacity.h"
#include "store/node/live/live_options.h"
#include "store/node/locked_store.h"
#include "store/node/log/log_format.h"
#include "store/node/log/log_writer.h"
#include "store/node/log/start_watch.h"
#include "store/node/machine/room.h"
#include "store/node/membership/membership_thread.h"
#include "store/node/metrics.h"
#include "store/node/options/config.h"
#include "store/node/session/requests/contexts.h"
#include "store/node/status/status.h"
#include "store/node/threads/thread_border.h"
#include "transport/tls/tls_network.h"

namespace kv {
namespace {

constexpr Duration kLearnPauseMin = 5ms, kLearnPauseMax = 40ms;  ///< Between rounds of learning, by the work left.
constexpr int kLearnedAtOnce = 64;                               ///< Slices of a round, at most; some 30 us each.
constexpr Duration kHousekeepingPause = 250ms;                   ///< Leases must end by time even if the Store is idle.
constexpr Duration kStalledFrom = 20s;    ///< Longer than any step of an I/O thread, however busy the machine.
constexpr Duration kFileCheckPause = 2s;  ///< Between two checks of the certificate and policy files.

/// Each session is a descriptor, and RocksDB keeps its files open: raises the limit to the maximum allowed.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

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
      {"exchange-seconds", seconds(options.exchange_period)},
      {"lease-seconds", seconds(options.store.lease_duration)},
  };
  if (options.etcd.endpoints.empty()) return settings;
  settings.emplace_back("etcd-lease-seconds", static_cast<double>(options.membership.lease.count()));
  settings.emplace_back("copy-uses", static_cast<double>(options.copy_uses));
  settings.emplace_back("move-rate", static_cast<double>(options.move_rate));
  return settings;
}

std::vector<NodeMetrics::Value> request_memory_values(const NodeContext& node) {
  return {{"request_memory_max_bytes", node.tables->bytes_max(), false,
           "That all sessions may hold for each of: large requests that arrive, such in flight, answers not taken"},
          {"request_receiving_bytes", node.tables->bytes(), false, "Of large requests that are arriving"},
          {"request_in_flight_bytes", node.requests->bytes(), false, "Of large requests that are in flight"},
          {"answers_queued_bytes", node.queued_bytes, false, "Of answers that clients have not taken yet"},
          {"request_memory_refused", node.tables->refused_count() + node.requests->refused_count(), true,
           "Large requests refused as busy, since others held that memory"}};
}

}  // namespace

Daemon::Daemon(const NodeOptions& options) : options_(options), learn_pause_(kLearnPauseMin) {}

Daemon::~Daemon() = default;

void Daemon::StopRdma::operator()(RdmaPart* part) const { part->stop(); }

int Daemon::run(GivenOptions given, ReadOptions read) {
  if (!start(std::move(given), std::move(read))) return 1;
  serve();
  stop();
  return 0;
}

/// Metrics show their values in the order in which parts add them here.
bool Daemon::start(GivenOptions given, ReadOptions read) {
  if (!prepare(std::move(given), std::move(read))) return false;
  const std::optional<StoreConfig> config = plan_store();
  if (!config || !open_access() || !open_tls()) return false;
  // Before the memory, which takes minutes to touch: a probe would otherwise report the starting node as dead.
  if (!start_admin()) return false;
  spdlog::info("starting: node_id={} version={} capacity_bytes={} threads={} ({}){}", options_.node_id, KV_VERSION,
               config->arena.capacity_bytes, options_.threads, options_.threads_why, admin_text_);
  if (!make_store(*config)) return false;
  make_context();
  if (!open_disk()) return false;
  make_eraser();
  if (!open_tls_to_others()) return false;
  secure();
  watch_memory();
  watch_rdma();
  rdma_ = std::make_unique<RdmaPart>(options_, *node_);
  // Before RDMA is opened, whose registering may take minutes: /readyz says "not ready" meanwhile.
  watch_cluster();
  make_status();
  keep_capacity();
  open_admin();
  make_server();
  watch_->begins("opening what blocks move by");
  if (!rdma_->open(*server_) || !listen()) return false;
  server_->start();
  ready_ = true;
  join_others();
  open_settings();
  watch_->finish();
  report_ready();
  return true;
}

/// Catches signals before anything that takes long, so that none is lost meanwhile.
bool Daemon::prepare(GivenOptions given, ReadOptions read) {
  spdlog::set_level(spdlog::level::from_str(options_.log_level));
  log_ = std::make_unique<LogWriter>(STDOUT_FILENO, std::make_unique<LogFormatter>(options_.log_json));
  raise_descriptor_limit();  // before any code reads the limit
  numa_ = NumaPlacement::settle(options_.numa_nodes);
  if (!numa_) return false;
  has_config_file_ = !given.file().empty();
  // Without files to read again, SIGHUP keeps its default action.
  loop_ = std::make_unique<MainLoop>(options_.tls.is_given() || !options_.policy_file.empty() ||
                                     options_.operator_keys.is_given() || has_config_file_);
  for (const std::string& variable : given.unknown_variables()) spdlog::warn("config: {}", variable);
  settings_ = std::make_unique<Settings>(std::move(given), options_, std::move(read));
  metrics_ = std::make_unique<NodeMetrics>(KV_VERSION);
  return true;
}

/// nullopt: stderr says why there is no room.
std::optional<StoreConfig> Daemon::plan_store() {
  StoreConfig config = options_.store;
  const std::size_t capacity = config.arena.capacity_bytes;
  // Clients choose the hashes. With this seed they could make all fall into one bucket.
  config.hash_seed = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32;
  config.disk.hash_seed = config.hash_seed;
  const MachineFacts facts = read_memory_facts();
  if (const std::string refused = capacity_refusal(facts, RoomOf::kNow, capacity, config.arena.huge_pages);
      !refused.empty()) {
    cannot_start(refused);
    return std::nullopt;
  }
  if (const HugeRoom huge = huge_room(facts, RoomOf::kNow, capacity);
      config.arena.huge_pages && !huge.is_enough && !huge.why_not.empty()) {
    spdlog::warn("huge pages: {}, and the capacity is {}: it takes ordinary pages", huge.why_not, capacity);
    config.arena.huge_pages = false;
  }
  watch_ = std::make_unique<StartWatch>(capacity, *log_);
  config.arena.progress = [this](std::size_t touched) { watch_->touched(touched); };
  return config;
}

bool Daemon::open_access() {
  auto opened = AccessControl::open(options_.policy_file,
                                    {options_.store.arena.capacity_bytes, options_.store.disk.capacity_bytes},
                                    options_.tenant_secret_file);
  if (!opened) return cannot_start(opened.error().text);
  access_ = std::move(*opened);
  return true;
}

/// --check-config has read the files; they may have changed since.
bool Daemon::open_tls() {
  if (!options_.tls.is_given()) return true;
  auto opened = TlsSource::open(options_.tls, TlsSide::kNode);
  if (!opened) return cannot_start(opened.error().text);
  tls_ = std::move(*opened);
  return true;
}

/// Serves health pages only, until open_admin().
bool Daemon::start_admin() {
  if (options_.admin_host.empty()) return true;
  auto started = AdminServer::start(options_.admin_host, options_.admin_port,
                                    {.metrics = nullptr,
                                     .is_ready = [] { return false; },
                                     .why_not_ready = [this] { return watch_->text(); },
                                     .denied = [this](Right right) { metrics_->request_denied(right); }},
                                    options_.admin_tls ? tls_ : nullptr, access_.get());
  if (!started)
    return cannot_start(
        fmt::format("admin {}:{}: {}", options_.admin_host, options_.admin_port, started.error().message()));
  early_admin_ = std::move(*started);
  admin_text_ =
      fmt::format(" admin={}{}:{}", options_.admin_tls ? "https://" : "", options_.admin_host, early_admin_->port());
  return true;
}

bool Daemon::make_store(const StoreConfig& config) {
  auto made = [&] {
    const MemoryPlacement placement(numa_->memory());
    return Store::create(config);
  }();
  if (!made)
    return cannot_start(fmt::format("cannot get {} bytes for blocks: {}. Lower --capacity, or free memory.",
                                    config.arena.capacity_bytes, made.error().message()));
  // Before the disk is loaded: its blocks count from the first on.
  if (options_.store.has_tenants) (*made)->set_tenants(access_->tenant_limits());
  store_ = std::make_unique<LockedStore>(std::move(*made), *metrics_);
  return true;
}

void Daemon::make_context() {
  node_.reset(new NodeContext{.store = *store_, .clock = clock_, .metrics = *metrics_, .limits = options_.session});
  node_->chain_blocks_max = static_cast<std::uint32_t>(options_.store.chain_blocks_max);
  node_->lease_duration = options_.store.lease_duration;
  node_->node_id = options_.node_id;
  node_->instance = draw_instance_id();
  node_->started = clock_.now();
  node_->settings = cluster_settings(options_);
  node_->slow.set(options_.slow_log);
  bound_request_memory();
  watch_requests();
}

void Daemon::bound_request_memory() {
  const std::uint64_t shared_bytes =
      std::max<std::uint64_t>(TableBudget::kBytesMaxLeast, options_.store.arena.capacity_bytes / 64);
  node_->tables = std::make_unique<TableBudget>(shared_bytes);
  node_->requests = std::make_unique<TableBudget>(shared_bytes);
  node_->queued_bytes_max = shared_bytes;
  // Each lent region is a descriptor too: a quarter of them all; the rest is for sessions and the disk tier.
  rlimit descriptors{};
  ::getrlimit(RLIMIT_NOFILE, &descriptors);
  node_->lent = std::make_unique<LentRegions>(
      LentRegionsConfig{.bytes_max = options_.region_bytes_max_node,
                        .count_max = std::clamp<std::size_t>(descriptors.rlim_cur / 4, 64, 1 << 20),
                        .in_place = false});
}

void Daemon::watch_requests() {
  metrics_->watch([this] { return request_memory_values(*node_); });
  metrics_->watch([this] { return node_->lent->stats(); });
  metrics_->watch([this] {
    return std::vector<NodeMetrics::Value>{{"log_lines_suppressed", node_->log.suppressed_count(), true,
                                            "Log lines that clients caused and that were not written"},
                                           {"io_stalled_seconds", std::chrono::duration<double>(stalled_for()).count(),
                                            false, "Since the I/O thread that is furthest behind last took new work"},
                                           {"log_lines_lost", log_->lost_count(), true,
                                            "Log lines that did not fit behind a reader that stalls or is gone"}};
  });
}

bool Daemon::open_disk() {
  disk_ = std::make_unique<DiskPart>(options_, *node_, *log_);
  return disk_->open_keys(*watch_) && disk_->start();
}

void Daemon::make_eraser() {
  eraser_ =
      std::make_unique<TenantEraser>(*store_, clock_, node_->disk_worker, [this] { return disk_->forget_contexts(); });
  node_->eraser = eraser_.get();
}

/// The same certificate files for this node's own connections, opened once: bad replacements are ignored.
bool Daemon::open_tls_to_others() {
  if (!options_.tls.is_given() || (!has_cluster() && !options_.exchanges())) return true;
  TlsConfig own = options_.tls;
  own.allowed_names.clear();  // they restrict this node's clients
  auto opened = TlsSource::open(own, TlsSide::kClient);
  if (!opened) return cannot_start(opened.error().text);
  tls_to_others_ = std::move(*opened);
  return true;
}

void Daemon::secure() {
  access_->set_network_listeners(options_.network_count);
  node_->access = access_.get();
  security_ = std::make_unique<NodeSecurity>(tls_, options_.plain_network_count, access_.get());
  if (disk_->keys()) security_->watch([this] { return disk_->key_values(); });
  node_->security = security_.get();
  watch_tenants();
  metrics_->watch([this] { return security_->stats(); });
  if (options_.plain_network_count > 0) {
    spdlog::warn(
        "plaintext-on-trusted-network: {} listeners beyond loopback neither encrypt nor authenticate: whoever reaches "
        "them may read, write and drop every block",
        options_.plain_network_count);
  }
}

void Daemon::watch_tenants() {
  if (options_.store.has_tenants) {
    security_->on_policy([this] { store_->with([this](Store& each) { each.set_tenants(access_->tenant_limits()); }); });
    metrics_->watch_tenants([this] {
      return bounded_tenant_figures(store_->with([](Store& each) { return each.tenants(); }),
                                    access_->tenants().stats());
    });
  }
  metrics_->watch_tenants(
      [this] { return context_figures(store_->with([](Store& each) { return each.context_totals(); })); });
}

void Daemon::watch_memory() {
  metrics_->watch([this] { return numa_->values(*store_); });
  metrics_->watch_store([this] { return store_->with([](Store& each) { return each.stats(); }); });
  metrics_->watch_curve([this] { return store_->with([](Store& each) { return each.curve(); }); });
}

void Daemon::watch_rdma() {
  metrics_->watch([this] {
    VerbsNode* const verbs = node_->verbs;
    return verbs == nullptr ? std::vector<NodeMetrics::Value>() : verbs->stats();
  });
}

void Daemon::watch_cluster() {
  if (!has_cluster()) return;
  metrics_->watch([this] {
    const MembershipThread* const at_work = membership_;
    return at_work == nullptr ? std::vector<NodeMetrics::Value>() : at_work->stats();
  });
  metrics_->watch([this] { return node_->moves.stats(); });
}

void Daemon::make_status() {
  status_ = std::make_unique<StatusAnswers>(
      *node_, StatusConfig{.version = KV_VERSION,
                           .disk_capacity_bytes = options_.store.disk.capacity_bytes,
                           .disk_capacity_now = [this] { return settings_->in_force().store.disk.capacity_bytes; },
                           .numa = [this] { return numa_->look(*store_); },
                           .is_ready = [this] { return is_ready(); }});
  events_ = std::make_unique<EventAnswers>(*store_, node_->instance);
  open_answers();
  metrics_->watch([this] { return node_->exchange.stats(clock_.now()); });
  metrics_->watch([this] { return settings_->stats(); });
}

/// What the node alone cannot answer; on the wire they are slow.
void Daemon::open_answers() {
  node_->aside = std::make_unique<asio::thread_pool>(1);
  const auto given = [](std::optional<std::string> json) {
    if (json) return AdminAnswer{.json = *std::move(json)};
    return AdminAnswer{.why = Failure(Errc::kBadRequest, "the page does not know what stands behind the '?'")};
  };
  node_->admin_parts["/status"] = [this, given](const AdminQuestion& asked, PeerAccess& peer) {
    return given(status_->answer(asked.path, asked.query, peer));
  };
  node_->admin_parts["/config"] = [this](const AdminQuestion& asked, PeerAccess& peer) {
    return is_act(asked.path) ? answer_set(*settings_, asked.query, peer.who())
                              : AdminAnswer{.json = settings_->list_json()};
  };
  if (options_.store.event_count_max == 0) return;
  node_->admin_parts["/events"] = [this, given](const AdminQuestion& asked, PeerAccess& peer) {
    return given(events_->answer(asked.path, asked.query, [&peer](const NamespaceRecord& stored) {
      return peer.sees_blocks(owner_of(stored));
    }));
  };
}

void Daemon::keep_capacity() {
  if (options_.store.arena.capacity_bytes_max == 0) return;
  keeper_ = std::make_unique<CapacityKeeper>(*store_, disk_->tier(), numa_->memory());
  metrics_->watch([this] { return keeper_->stats(); });
}

void Daemon::open_admin() {
  admin_ = std::move(early_admin_);
  if (!admin_) return;
  AdminPages pages{.metrics = [this] { return metrics_->text(); },
                   .is_ready = [this] { return is_ready(); },
                   .why_not_ready = [this] { return why_not_ready(); },
                   .why_unhealthy = [this] { return why_unhealthy(); },
                   .denied = [this](Right right) { metrics_->request_denied(right); },
                   .answer = [this](const AdminQuestion& question,
                                    PeerAccess& peer) { return answer_admin(*node_, question, peer); }};
  admin_->open(std::move(pages));
}

void Daemon::make_server() {
  if (tls_) tls_network_ = make_tls_network(socket_network(), tls_);
  server_ = std::make_unique<Server>(
      *node_, ServerConfig{.threads = options_.threads,
                           .busy_poll = options_.busy_poll,
                           .sessions = options_.sessions,
                           .handshakes = {.count_max = options_.handshakes_max, .peer_share_max = 0.5},
                           .handshake_timeout = options_.handshake_timeout,
                           .handshakes_per_second = options_.handshakes_per_second});
  stop_rdma_.reset(rdma_.get());
}

bool Daemon::listen() {
  for (const Endpoint& endpoint : options_.listen) {
    const auto real = server_->listen(tls_network_ ? *tls_network_ : socket_network(), endpoint);
    if (!real) return cannot_start("listen " + endpoint.to_string() + ": " + real.error().message());
    endpoints_.push_back(real->to_string());
  }
  return true;
}

void Daemon::join_others() {
  cluster_ = std::make_unique<ClusterPart>(options_, *node_, tls_to_others_);
  if (has_cluster()) {
    membership_ = &cluster_->join(endpoints_);
    cluster_->start_mover();
  }
  cluster_->start_exchange();
}

void Daemon::open_settings() {
  settings_->open([this] {
    wire_up(*settings_, {.node = *node_,
                         .server = *server_,
                         .capacity = keeper_.get(),
                         .disk_worker = disk_->tier(),
                         .access = access_.get(),
                         .directories_changed =
                             [this](const std::vector<std::string>& directories) { disk_->move_to(directories); },
                         .warmer = disk_->warmer()});
    cluster_->wire_up(*settings_);
  });
}

void Daemon::report_ready() {
  std::string listening;
  for (const std::string& endpoint : endpoints_) listening += " listen=" + endpoint;
  sd_notify(0, "READY=1\nSTATUS=serving");
  spdlog::info("ready{}{}", listening, admin_text_);
}

void Daemon::serve() {
  loop_->repeat([this] { return keep_house(); });
  loop_->repeat([this] { return learn(); });
  if (admin_) {
    loop_->repeat([this] {
      within_border(NodeThread::kMain, [this] { status_->sample(); });
      return History::kStep;
    });
  }
  if (security_->has_files() || has_config_file_ || disk_->keys()) loop_->on_hangup([this] { reload(); });
  if (security_->has_files()) {
    loop_->repeat_after(kFileCheckPause, [this] {
      within_border(NodeThread::kMain, [this] { security_->check_files(); });
      return kFileCheckPause;
    });
  }
  loop_->run();
}

Duration Daemon::keep_house() {
  within_border(NodeThread::kMain, [this] {
    store_->with([this](Store& each) { each.expire_leases(clock_.now()); });
    const auto news = store_->with([this](Store& each) { return each.tend_contexts(clock_.now()); });
    for (const ContextDesk::News& each : news)
      node_->log.warn(LogKind::kContext, clock_.now(), [&] { return context_news_text(each); });
    disk_->tick();
  });
  return kHousekeepingPause;
}

/// Runs background learning left by requests in slices, so that callers of the Store get in between.
Duration Daemon::learn() {
  int slices = 0;
  within_border(NodeThread::kMain, [&] {
    while (slices < kLearnedAtOnce && store_->with([](Store& each) { return each.learn(); })) ++slices;
  });
  learn_pause_ = slices > 0 ? kLearnPauseMin : std::min(2 * learn_pause_, kLearnPauseMax);
  return learn_pause_;
}

/// One by one: an unexpected failure with one file must not keep the others from being read.
void Daemon::reload() {
  within_border(NodeThread::kMain, [this] {
    if (has_config_file_) settings_->reload();
  });
  within_border(NodeThread::kMain, [this] { security_->reload(); });
  within_border(NodeThread::kMain, [this] { disk_->reload_keys(); });
}

/// In reverse: stops opening devices, ends sessions, then writes memory to disk undisturbed.
void Daemon::stop() {
  cluster_->hand_over(*loop_, settings_->in_force().hand_over_max);
  // From here on options cannot change: the parts that would apply them are about to go.
  const NodeOptions last = settings_->close();
  cluster_->stop_work();
  sd_notify(0, "STOPPING=1\nSTATUS=draining");
  // An opener without a device might still bring RDMA to the stopping server, so it stops first. One with devices only
  // checks them: stopping it may take as long as registering an arena, and can wait.
  if (node_->verbs == nullptr) rdma_->stop();
  cluster_->drain();
  server_->stop(last.drain_timeout);
  // Scrapes may read the membership, so the admin server goes first.
  if (has_cluster()) admin_.reset();
  cluster_->leave();
  disk_->stop(last.spill_save);
  spdlog::info("stopped");
}

bool Daemon::has_cluster() const { return !options_.etcd.endpoints.empty(); }

bool Daemon::has_joined() const {
  const MembershipThread* const at_work = membership_;
  return at_work != nullptr && at_work->status().is_joined && is_serving(*node_->cluster.view(), node_->node_id);
}

std::string Daemon::why_not_ready() const {
  if (!ready_) return watch_->text();
  const MembershipThread* const at_work = membership_;
  const std::string refused = at_work == nullptr ? "" : at_work->why_not_written();
  return "draining, or not on the map yet" + (refused.empty() ? "" : ": etcd refuses this node's changes: " + refused);
}

Duration Daemon::stalled_for() const { return ready_ ? server_->stalled_for() : Duration::zero(); }

std::string Daemon::why_unhealthy() const {
  const Duration stalled = stalled_for();
  if (stalled < kStalledFrom) return "";
  return fmt::format("an I/O thread has taken no work for {} s",
                     std::chrono::floor<std::chrono::seconds>(stalled).count());
}

bool Daemon::is_ready() const { return ready_ && !node_->draining && (!has_cluster() || has_joined()); }

}  // namespace kv
