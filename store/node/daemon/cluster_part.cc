#include "store/node/daemon/cluster_part.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "index/block_hash.h"
#include "store/node/daemon/main_loop.h"
#include "store/node/exchange/exchange.h"
#include "store/node/membership/membership_thread.h"
#include "store/node/mover/mover.h"
#include "store/node/options/config.h"
#include "store/node/options/settings.h"
#include "store/node/session/core/node_context.h"
#include "store/node/threads/worker_thread.h"
#include "transport/stream.h"

namespace kv {

ClusterPart::ClusterPart(const NodeOptions& options, NodeContext& node, std::shared_ptr<TlsSource> tls)
    : options_(options), node_(node), tls_(std::move(tls)) {}

ClusterPart::~ClusterPart() = default;

MembershipThread& ClusterPart::join(const std::vector<std::string>& endpoints) {
  MembershipConfig config = options_.membership;
  config.self.instance = to_hex(node_.instance);
  config.self.version = KV_VERSION;
  if (config.self.endpoints.empty()) config.self.endpoints = endpoints;
  if (options_.move_rate > 0) {
    config.self.state = Member::State::kDraining;
    config.self.phase = Member::Phase::kJoining;
  }
  membership_ = std::make_unique<MembershipThread>(options_.etcd, std::move(config), node_.clock, node_.cluster);
  return *membership_;
}

void ClusterPart::start_mover() {
  if (options_.move_rate == 0) return;
  mover_ = std::make_unique<WorkerThread<Mover>>(
      NodeThread::kMover, socket_network(), node_.clock, node_.store, *node_.hot_roots, node_.cluster, node_.moves,
      MoverConfig{.node_id = node_.node_id,
                  .bytes_per_second = options_.move_rate,
                  .tls = tls_,
                  .join_max = options_.join_max,
                  .copy_uses = options_.copy_uses},
      [this](Member::State state, Member::Phase phase) { membership_->tell(state, phase); });
}

void ClusterPart::start_exchange() {
  if (!options_.exchanges()) return;
  ExchangeConfig config{
      .node_id = node_.node_id, .peers = options_.peers, .period = options_.exchange_period, .tls = tls_};
  std::ranges::transform(node_.instance, config.instance.begin(),
                         [](std::byte each) { return std::to_integer<std::uint8_t>(each); });
  exchange_ = std::make_unique<WorkerThread<Exchange>>(NodeThread::kExchange, socket_network(), node_.clock,
                                                       node_.store, node_.cluster, node_.exchange, std::move(config));
}

void ClusterPart::wire_up(Settings& settings) {
  if (mover_) {
    settings.on({"move-rate", "copy-uses"}, [this](const NodeOptions& next) {
      if (next.move_rate == 0)
        return std::string("move-rate: '0'; with 0 nothing is handed over, which needs a restart");
      mover_->post([rate = next.move_rate, uses = next.copy_uses](Mover& mover) { mover.set_limits(rate, uses); });
      return std::string();
    });
    settings.on_demand({"hand-over-seconds"});
  }
  if (exchange_) {
    settings.on({"exchange-seconds"}, [this](const NodeOptions& next) {
      if (next.exchange_period <= Duration::zero())
        return std::string("exchange-seconds: '0'; with 0 the node learns alone, which needs a restart");
      exchange_->post([period = next.exchange_period](Exchange& exchange) { exchange.set_period(period); });
      return std::string();
    });
  }
}

void ClusterPart::hand_over(MainLoop& loop, Duration most) {
  if (!mover_) return;
  const auto until = std::chrono::steady_clock::now() + most;
  mover_->post([](Mover& mover) { mover.leave(); });
  loop.run_on([this] { return mover_->worker().has_left(); }, until);
  if (!mover_->worker().has_left()) spdlog::warn("cluster: leaving without having handed over all");
}

void ClusterPart::stop_work() {
  mover_.reset();
  exchange_.reset();
}

void ClusterPart::drain() {
  if (membership_) membership_->tell(Member::State::kDraining, Member::Phase::kNone);
}

void ClusterPart::leave() { membership_.reset(); }

}  // namespace kv
