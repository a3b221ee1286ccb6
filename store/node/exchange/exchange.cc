#include "store/node/exchange/exchange.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/text/hex.h"
#include "base/text/printable.h"
#include "store/node/counts_copy.h"
#include "store/node/membership/member_text.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr Duration kTellFirst = 200ms;  ///< Between publishing and asking: by then the others have published theirs.

NodeConfig to_ask(const std::string& name, const std::string& endpoint) {
  NodeConfig node;
  node.name = name;
  node.endpoint = endpoint;
  return node;
}

/// The bytes of an answer to /learned.json; empty: the node does not learn, or does not share. Other answers are bytes
/// that read_yield_counts() refuses.
std::string learned_in(const std::string& answer) {
  const auto said = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!said.is_object() || !said.contains("learned") || !said["learned"].is_string()) return "?";
  const auto& digits = said["learned"].get_ref<const std::string&>();
  std::string bytes(digits.size() / 2, '\0');
  return from_hex(digits, std::as_writable_bytes(std::span(bytes))) ? bytes : "?";
}

}  // namespace

Exchange::Exchange(asio::any_io_executor executor, Network& network, Clock& clock, LockedStore& store,
                   const ClusterBoard& cluster, ExchangeBoard& board, ExchangeConfig config)
    : executor_(std::move(executor)),
      network_(network),
      clock_(clock),
      store_(store),
      cluster_(cluster),
      board_(board),
      config_(std::move(config)),
      wake_(executor_),
      alarm_(clock.make_alarm(executor_)) {
  KV_ASSERT(config_.period > Duration::zero());
}

Exchange::~Exchange() = default;

void Exchange::stop() {
  stops_ = true;
  wake_.set();
}

void Exchange::set_period(Duration period) {
  KV_ASSERT(period > Duration::zero());
  config_.period = period;
  wake_.set();
}

asio::awaitable<void> Exchange::run() {
  while (!stops_) {
    const auto wall = std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch());
    const Duration period = config_.period;
    co_await pause(period - wall % period);            // 1
    if (stops_ || period != config_.period) continue;  // woken for a new period
    const bool is_through = co_await within_border(NodeThread::kExchange, exchange());
    if (is_through) continue;
    client_.reset();  // the next round makes it again
    others_.clear();
  }
  client_.reset();
}

asio::awaitable<void> Exchange::pause(Duration most) {
  if (stops_) co_return;
  alarm_->arm(clock_.now() + most, [this] { wake_.set(); });
  co_await wake_.wait();
  wake_.reset();
}

YieldCounts Exchange::own_counts() {
  YieldCounts counts = copy_counts(store_, /*with_before=*/false);  // the others have received those already
  counts.instance = config_.instance;
  return counts;
}

/// Updates others_ and client_ from the list of nodes.
void Exchange::meet() {
  std::vector<NodeConfig> others;
  if (config_.peers.empty()) {
    const auto view = cluster_.view();
    for (const Member& member : view->members) {
      if (member.id == config_.node_id || others.size() >= CombinedCounts::kPeersMax) continue;
      others.push_back(to_ask(member.id, endpoint_for_others(member, config_.tls != nullptr)));
    }
  } else {
    for (const std::string& peer : config_.peers) others.push_back(to_ask(peer, peer));
  }
  const auto same = [](const NodeConfig& a, const NodeConfig& b) {
    return a.name == b.name && a.endpoint == b.endpoint;
  };
  if (std::ranges::equal(others, others_, same)) return;
  client_.reset();
  others_ = std::move(others);
  std::vector<std::string> names;
  for (const NodeConfig& node : others_) names.push_back(node.name);
  counts_.keep_only(names);
  if (others_.empty()) return;
  ClientConfig config;
  config.nodes = others_;
  config.follow_cluster = false;
  config.identity = "exchange of " + config_.node_id.substr(0, 100);
  config.connections_per_node = 1;
  config.rdma = ClientConfig::Rdma::kOff;
  config.are_nodes_told = true;
  config.tls_source = config_.tls;  // a node proves that it is the host of its endpoint
  client_ = std::make_unique<Client>(executor_, config, network_, clock_);
}

void Exchange::put_in_force(YieldTable::Combined combined, double unit) {
  if (!combined) return;  // other nodes have not sent counts, now or before
  store_.with([&](Store& store) {
    const YieldTable* const table = store.yield_table();
    if (table != nullptr && table->unit() == unit) store.set_combined(std::move(combined));
  });
}

asio::awaitable<void> Exchange::exchange() {
  const YieldCounts own = own_counts();
  board_.tell(write_yield_counts(own));
  meet();
  ExchangeBoard::Round round;
  round.asked = others_.size();
  round.own_uses = own.uses();
  if (client_) {
    co_await pause(std::min<Duration>(kTellFirst, config_.period / 4));
    if (stops_) co_return;
    NodeQuestion question{.path = "/learned.json"};
    const auto answers = co_await client_->ask(std::move(question), kDeadline);
    const TimePoint now = clock_.now();
    if (answers) {
      for (const NodeAnswer& answer : *answers) {
        round.failed += answer.error ? 1 : 0;
        const std::string learned = answer.error ? std::string() : learned_in(answer.json);
        if (learned.empty()) continue;
        auto counts = read_yield_counts(learned);
        if (!counts) {
          ++round.refused;
          spdlog::warn("exchange: node {}: {}", printable(answer.name), counts.error().text);
        } else if (counts->instance == config_.instance) {
          --round.asked;  // the list includes this node
        } else {
          counts_.hear(answer.name, std::move(*counts), own.clock, now);
        }
      }
    }
    put_in_force(counts_.combine(own, now), own.unit);
    round.peers = counts_.peers(now);
  } else {
    put_in_force(std::make_shared<std::vector<YieldTable::Counts>>(), own.unit);  // this is the only node
  }
  board_.set(std::move(round), clock_.now());
}

}  // namespace kv
