// tests/sim/sim_member.h: a simulated node that belongs to a cluster: with it live its membership and its mover.
#pragma once

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "index/block_hash.h"
#include "store/node/membership/member_text.h"
#include "store/node/membership/membership.h"
#include "store/node/mover/mover.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/sim/sim_etcd.h"
#include "tests/sim/sim_node.h"

namespace kv::sim {

struct SimMemberConfig {
  std::chrono::seconds lease{10};
  std::uint32_t extent_blocks = 8;
  std::uint64_t move_rate = 1 << 30;
  Duration join_max = 300s;
  std::size_t copy_uses = 0;
  double weight = 1;
};

/// What store/node/daemon/ puts together, without its threads. A life's counts are kept until the end of the world.
class SimMember {
 public:
  using Failed = std::function<void(std::exception_ptr)>;

  SimMember(asio::io_context& context, SimNetwork& network, VirtualClock& clock, SimEtcd& etcd, std::string name,
            StoreConfig store, SimMemberConfig config, DiskFaults disk, std::uint64_t seed, Failed failed)
      : context_(context),
        network_(network),
        clock_(clock),
        etcd_(etcd),
        config_(config),
        seed_(seed | 1),
        failed_(std::move(failed)),
        node_(context, network, clock, std::move(name), std::move(store), disk, seed) {
    begin();
  }
  ~SimMember() { kill(); }

  void start() {
    if (is_alive()) return;
    node_.start();
    lies_ = false;
    begin();
  }
  /// A life in which it tells clients of this map, and goes by the real one itself.
  void start_lying(ClusterView told) {
    if (is_alive()) return;
    node_.start();
    lies_ = true;
    begin();
    node_.set_cluster(std::move(told));
  }
  bool lies() const { return lies_; }
  void kill() { end(&SimNode::kill); }
  void lose_power() { end(&SimNode::lose_power); }
  /// SIGTERM: hands over for at most so long, and goes. look() does it.
  void leave(Duration most) {
    if (!is_alive() || is_leaving_) return;
    is_leaving_ = true;
    leave_until_ = clock_.now() + most;
    works_.back()->mover.leave();
  }
  /// To be called every so often.
  void look() {
    if (!is_alive() || !is_leaving_) return;
    Work& work = *works_.back();
    if (!work.mover.has_left() && clock_.now() < leave_until_) return;
    has_left_whole_ = work.mover.has_left();
    work.mover.stop();
    work.membership.tell(Member::State::kDraining, Member::Phase::kNone);
    work.membership.stop();  // and gives up its lease
    node_.stop();
    is_leaving_ = false;
  }

  bool is_alive() const { return node_.is_alive(); }
  bool is_leaving() const { return is_leaving_; }
  bool has_left_whole() const { return has_left_whole_; }  ///< The last time that it left.
  SimNode& node() { return node_; }
  const SimNode& node() const { return node_; }
  std::shared_ptr<const ClusterView> view() { return works_.back()->known.view(); }  ///< What it goes by.
  /// On its own list: serving, and about nothing else.
  bool is_serving() {
    const auto known = view();
    const auto self = std::ranges::find(known->members, node_.name(), &Member::id);
    return self != known->members.end() && self->state == Member::State::kServing &&
           self->phase == Member::Phase::kNone && self->instance == to_hex(node_.context().instance);
  }
  /// By its own list clients place blocks here.
  bool is_owner() {
    const auto known = view();
    const auto self = std::ranges::find(known->members, node_.name(), &Member::id);
    return self != known->members.end() && self->state == Member::State::kServing;
  }
  bool is_settled() {
    const MoveBoard& moves = node_.context().moves;
    return is_serving() && moves.settled == digest_of(*view()) >> 11 && moves.remaining_paths == 0;
  }
  Membership::Status status() const { return works_.back()->membership.status(); }

  /// Over all lives.
  template <class Count>
  std::uint64_t sum(Count count) const {
    std::uint64_t total = 0;
    for (const auto& work : works_) total += count(*work->node);
    return total;
  }

 private:
  struct Work {
    Work(SimMember& member)
        : node(member.node_.share_context()),
          known(member.lies_ ? hidden : node->cluster),
          keys(member.etcd_, member.node_.name()),
          membership(member.context_.get_executor(), keys, member.clock_, known, member.membership_config()),
          mover(member.context_.get_executor(), member.network_.from(member.node_.name()), member.clock_, node->store,
                *node->hot_roots, known, node->moves, member.mover_config(),
                [this](Member::State state, Member::Phase phase) { membership.tell(state, phase); }) {}
    std::shared_ptr<NodeContext> node;
    ClusterBoard hidden;  ///< Of one that lies.
    ClusterBoard& known;
    SimKeys keys;
    Membership membership;
    Mover mover;
  };

  MembershipConfig membership_config() {
    MembershipConfig config;
    config.self.id = node_.name();
    config.self.instance = to_hex(node_.context().instance);
    config.self.endpoints = {"sim://" + node_.name()};
    config.self.weight = config_.weight;
    config.self.state = Member::State::kDraining;
    config.self.phase = Member::Phase::kJoining;
    config.lease = config_.lease;
    config.extent_blocks = config_.extent_blocks;
    config.wall_seconds = [this] {
      constexpr std::uint64_t kMidnight = 1'800'000'000;
      return kMidnight + static_cast<std::uint64_t>(
                             std::chrono::duration_cast<std::chrono::seconds>(clock_.now().time_since_epoch()).count());
    };
    return config;
  }
  MoverConfig mover_config() const {
    MoverConfig config;
    config.node_id = node_.name();
    config.bytes_per_second = config_.move_rate;
    config.join_max = config_.join_max;
    config.copy_uses = config_.copy_uses;
    config.seed = seed_;
    return config;
  }
  void begin() {
    works_.push_back(std::make_shared<Work>(*this));
    asio::co_spawn(context_, run_membership(works_.back()), failed_);
    asio::co_spawn(context_, run_mover(works_.back()), failed_);
  }
  static asio::awaitable<void> run_membership(std::shared_ptr<Work> work) { co_await work->membership.run(); }
  static asio::awaitable<void> run_mover(std::shared_ptr<Work> work) { co_await work->mover.run(); }

  /// What the two are in the middle of comes to nothing, and they notice.
  void end(void (SimNode::*how)()) {
    if (!is_alive()) return;
    Work& work = *works_.back();
    work.keys.die();
    (node_.*how)();
    work.mover.stop();
    work.membership.stop();
    is_leaving_ = false;
  }

  asio::io_context& context_;
  SimNetwork& network_;
  VirtualClock& clock_;
  SimEtcd& etcd_;
  const SimMemberConfig config_;
  const std::uint64_t seed_;
  const Failed failed_;
  SimNode node_;
  std::vector<std::shared_ptr<Work>> works_;  ///< Of all lives; the last is this one, or was.
  bool is_leaving_ = false, has_left_whole_ = false, lies_ = false;
  TimePoint leave_until_{};
};

}  // namespace kv::sim
