// tests/sim/sim_node.h: a node without threads: the product's sessions and Store on the simulation's one io_context.
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "store/node/session/session.h"
#include "tests/fakes/sim_network.h"
#include "tests/fakes/verbs_fake.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/node/limits_change.h"
#include "tests/sim/sim_disk_worker.h"

namespace kv::sim {

/// A node that can be killed, or asked to stop, and started again: under the same node id, and with what is on its
/// disk, as a process would be. And frozen and thawed.
class SimNode {
 public:
  /// With a disk tier if `config` has one, and RDMA over `device` of `verbs` if that is given.
  SimNode(asio::io_context& context, SimNetwork& network, VirtualClock& clock, std::string name, StoreConfig config,
          DiskFaults disk_faults = {}, std::uint64_t seed = 0, verbs::FakeVerbs* verbs = nullptr,
          std::vector<std::string> devices = {})
      : context_(context),
        network_(network),
        clock_(clock),
        name_(std::move(name)),
        config_(std::move(config)),
        disk_faults_(disk_faults),
        random_(seed),
        verbs_(verbs),
        devices_(std::move(devices)) {
    start();
  }
  ~SimNode() { kill(); }

  void start() {
    if (std::exchange(has_lost_power_, false)) {
      network_.kill(name_);  // whoever still waits for its last life is told now
      network_.thaw(name_);
    }
    network_.revive(name_);
    life_ = std::make_shared<Life>(*this);
    auto listener = network_.listen({Endpoint::Scheme::kSim, name_, ""}, context_.get_executor());
    KV_ASSERT(listener);
    life_->listener = std::move(*listener);
    asio::co_spawn(context_, accept(context_, life_), asio::detached);
  }
  /// Every connection breaks and all memory is gone at once. Its coroutines unwind later, as nobody can see.
  void kill() { end_life(/*saves=*/false); }
  /// As asked to: what is in memory goes to disk first, if there is one.
  void stop() { end_life(/*saves=*/true); }
  /// As a machine goes: nobody is told. Who was connected waits for an answer until the node starts again.
  void lose_power() {
    if (!life_) return;
    has_lost_power_ = true;
    network_.freeze(name_);
    end_life(/*saves=*/false);
  }
  bool is_alive() const { return life_ != nullptr; }
  bool is_without_power() const { return has_lost_power_; }
  const std::string& name() const { return name_; }

  /// Empty, or what is broken.
  std::string check() const {
    return life_ ? life_->store.with([](Store& store) { return store.check(); }) : std::string();
  }
  /// Blocks that it takes for hot.
  std::size_t hot_block_count() const { return life_ ? life_->context.hot_roots->hot_block_count() : 0; }
  /// What it knows of its cluster from now on; nothing after a restart, until it is told anew.
  void set_cluster(ClusterView view) {
    if (life_) life_->context.cluster.set(std::move(view));
  }
  NodeContext& context() {
    KV_ASSERT(life_);
    return life_->context;
  }
  /// The same, kept beyond its life.
  std::shared_ptr<NodeContext> share_context() {
    KV_ASSERT(life_);
    return {life_, &life_->context};
  }
  StoreStats stats() const {
    return life_ ? life_->store.with([](Store& store) { return store.stats(); }) : StoreStats{};
  }
  void expire_leases() {
    if (life_) life_->store.with([&](Store& store) { store.expire_leases(clock_.now()); });
  }
  void learn() {  ///< As a node's timer does.
    while (life_ && life_->store.with([](Store& store) { return store.learn(); })) {
    }
  }
  void check_devices() {
    if (life_ && life_->rdma) life_->rdma->check_devices();
  }
  /// Those that it had, if it began with any.
  bool has_all_devices() const {
    for (std::size_t i = 0; life_ && life_->rdma && i < life_->rdma->device_count(); ++i) {
      if (!life_->rdma->device(i)) return false;
    }
    return true;
  }
  std::vector<SpaceDesk::View> namespaces() const {
    return life_ ? life_->store.with([](Store& store) { return store.list_spaces(nullptr); })
                 : std::vector<SpaceDesk::View>{};
  }
  int life_count() const { return life_count_; }
  void set_disk_faults(DiskFaults faults) {
    disk_faults_ = faults;
    if (life_ && life_->disk_worker) life_->disk_worker->set_faults(faults);
  }
  std::size_t session_count() const { return life_ ? life_->sessions.size() : 0; }

 private:
  /// From start to kill; outlives the sessions that were open at the kill.
  struct Life {
    explicit Life(SimNode& node)
        : metrics("sim"),
          store(Store::create(node.config_).value(), metrics),
          context{store, node.clock_, metrics, {}} {
      context.lease_duration = node.config_.lease_duration;
      ++node.life_count_;
      context.node_id = node.name_;  // the same in every life, as a host name is
      for (std::byte& each : context.instance) each = std::byte(node.random_());
      change(context.limits)->queued_bytes_max = 1 << 20;
      // In every other life so little goes ahead of a reader that gets are pinned in windows, wait and are withdrawn.
      if (node.life_count_ % 2 == 0) {
        change(context.limits)->inline_frame_bytes = 16 << 10;
        change(context.limits)->inline_ahead_bytes = 32 << 10;
        change(context.limits)->inline_window_bytes = 64 << 10;
      }
      if (node.verbs_ != nullptr) {
        auto opened = VerbsNode::open(*node.verbs_, {.devices = {.names = node.devices_}, .in_place = true},
                                      store.with([](Store& each) { return each.memory(); }), node.clock_);
        if (opened) rdma = std::move(*opened);  // else its link is down: without RDMA, as a node does
      }
      if (rdma) {
        context.verbs = rdma.get();
        rdma_thread = std::make_shared<VerbsThread>(*rdma, node.context_.get_executor());
      }
      if (node.config_.disk.capacity_bytes == 0) return;
      disk_worker = std::make_unique<SimDiskWorker>(store, node.disk_, node.clock_, node.context_.get_executor(),
                                                    node.disk_faults_, node.random_());
      context.disk_worker = disk_worker.get();
    }
    ~Life() {
      if (rdma_thread) rdma_thread->stop();
    }
    NodeMetrics metrics;
    LockedStore store;
    NodeContext context;
    std::unique_ptr<VerbsNode> rdma;
    std::shared_ptr<VerbsThread> rdma_thread;
    std::unique_ptr<SimDiskWorker> disk_worker;
    std::unique_ptr<Listener> listener;
    std::set<Session*> sessions;
    std::uint64_t session_last = 0;
  };

  void end_life(bool saves) {
    if (!life_) return;
    if (!has_lost_power_) network_.kill(name_);
    if (verbs_ != nullptr) {
      for (const std::string& device : devices_) verbs_->kill(device);
    }
    life_->listener->close();
    for (Session* session : life_->sessions) session->terminate(SessionEnd::kBroken);
    if (life_->disk_worker && saves) {
      life_->disk_worker->save();
      KV_ASSERT(!disk_.flush());  // as a clean stop does: a kill right after it loses nothing
      disk_.crash_unsynced(0);
      life_->disk_worker->die();
    } else if (life_->disk_worker) {  // what was being written is gone, and some of what was
      const bool loses = disk_faults_.lost_at_kill_max > 0;
      disk_.crash_unsynced(loses ? random_() % (disk_.unsynced_count() + 1) : 0);
      life_->disk_worker->die();
    }
    life_.reset();
  }

  /// Static: a connection that was there before the kill may wake the loop after the node is gone.
  static asio::awaitable<void> accept(asio::io_context& context, std::shared_ptr<Life> life) {
    while (true) {
      auto stream = co_await life->listener->accept(context.get_executor());
      if (!stream) co_return;
      const auto session = std::make_shared<Session>(life->context, SessionId{++life->session_last}, std::move(*stream),
                                                     context.get_executor(), life->rdma_thread);
      life->sessions.insert(session.get());
      asio::co_spawn(context, run(life, session), asio::detached);
    }
  }
  static asio::awaitable<void> run(std::shared_ptr<Life> life, std::shared_ptr<Session> session) {
    co_await session->run();
    life->sessions.erase(session.get());
    session.reset();  // before its node, to which it gives back the memory that it holds
  }

  asio::io_context& context_;
  SimNetwork& network_;
  VirtualClock& clock_;
  std::string name_;
  StoreConfig config_;
  DiskFaults disk_faults_;
  MemoryDisk disk_;  ///< Survives kills.
  std::mt19937_64 random_;
  verbs::FakeVerbs* verbs_;
  std::vector<std::string> devices_;
  std::shared_ptr<Life> life_;
  int life_count_ = 0;
  bool has_lost_power_ = false;
};

}  // namespace kv::sim
