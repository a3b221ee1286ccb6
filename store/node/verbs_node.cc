#include "store/node/verbs_node.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <utility>

namespace kv {
namespace {

/// Of one thread's queue on one device: room for so many lanes at once, as far as the device has it.
constexpr std::uint32_t kCompletionCountMax = 32 * 1024;
/// That connect queue pairs: a client with an address that nobody answers for keeps one busy for seconds.
constexpr std::size_t kConnectThreadCount = 4;

}  // namespace

VerbsNode::VerbsNode(VerbsConfig config, Clock& clock)
    : config_(std::move(config)),
      clock_(clock),
      slow_calls_(config_.in_place, kConnectThreadCount),
      verifiers_(config_.verify_thread_count == 0, config_.verify_thread_count) {}

Result<std::unique_ptr<VerbsNode>> VerbsNode::open(verbs::Provider& provider, VerbsConfig config,
                                                   std::span<std::byte> arena, Clock& clock, std::string* why) {
  std::unique_ptr<VerbsNode> node(new VerbsNode(std::move(config), clock));
  auto devices = verbs::open_devices(provider, node->config_.devices, &node->left_out_);
  if (!devices) {
    *why = node->left_out_;
    return devices.error();
  }
  node->devices_ = std::move(*devices);
  auto registered =
      verbs::RegisteredMemory::make(node->devices_, arena, {.local_write = true}, node->config_.slice_bytes_max, why);
  if (!registered) return registered.error();
  node->arena_ = std::move(*registered);
  return node;
}

std::shared_ptr<VerbsThread> VerbsNode::make_thread(const asio::any_io_executor& executor, std::string* why) {
  auto thread = std::make_shared<VerbsThread>(*this);
  for (const verbs::OpenDevice& each : devices_) {
    auto queue = each.device->create_completion_queue(std::min(kCompletionCountMax, each.limits.completion_count_max));
    if (!queue) {
      *why = each.wish.device + ": no completion queue: " + queue.error().message();
      return nullptr;
    }
    thread->loops_.push_back(std::make_unique<verbs::CompletionLoop>(executor, std::move(*queue)));
  }
  for (std::size_t device = 0; device < devices_.size(); ++device)
    asio::co_spawn(executor, VerbsThread::take_completions(thread, device), [](std::exception_ptr thrown) {
      if (thrown) std::rethrow_exception(thrown);  // a bug: ends the node, as in a session
    });
  return thread;
}

void VerbsNode::finish_calls() {
  slow_calls_.finish();
  verifiers_.finish();
}

bool VerbsNode::take_queue_pair() {
  if (queue_pair_count_.fetch_add(1) < config_.queue_pair_count_max) return true;
  --queue_pair_count_;
  return false;
}

VerbsNode::Peer VerbsNode::peer_of(const verbs::Attachment& ours, const verbs::QueuePairAddress& peer) {
  return ours.is_ethernet ? Peer{peer.gid, 0, peer.number} : Peer{{}, peer.lid, peer.number};
}

bool VerbsNode::take_peer(const Peer& peer) {
  const std::scoped_lock lock(peers_mutex_);
  return peers_.insert(peer).second;
}

void VerbsNode::give_peer(const Peer& peer) {
  const std::scoped_lock lock(peers_mutex_);
  peers_.erase(peer);
}

std::vector<NodeMetrics::Value> VerbsNode::stats() const {
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  return {
      {"rdma_devices", number(devices_.size()), false, "RDMA devices in use"},
      {"rdma_registered_bytes", number(arena_->memory().size()), false, "Bytes of the arena registered with each"},
      {"rdma_lanes", number(counters_.lanes), false, "Queue pairs connected to clients, for blocks"},
      {"rdma_lanes_connected", number(counters_.lanes_connected), true,
       "Queue pairs that were connected, for blocks or messages"},
      {"rdma_lanes_broken", number(counters_.lanes_broken), true,
       "Queue pairs that broke under a transfer: a link, a device, or a client's memory that was gone"},
      {"rdma_lanes_refused", number(counters_.lanes_refused), true,
       "Queue pairs that clients asked for and did not get"},
      {"rdma_messages", number(counters_.messages), true, "Requests that came and were answered by SEND"},
  };
}

VerbsThread::~VerbsThread() = default;

asio::awaitable<void> VerbsThread::take_completions(std::shared_ptr<VerbsThread> self, std::size_t device) {
  const auto ended = co_await self->loop(device).run();
  if (ended) co_return;
  spdlog::error(
      "rdma: {} tells no more of this thread's transfers: {}; each ends by its deadline. Look at the device, and "
      "restart the node",
      self->node().devices()[device].wish.device, ended.error().message());
}

void VerbsThread::stop() {
  for (const auto& loop : loops_) loop->stop();
}

}  // namespace kv
