#include "store/node/rdma/verbs_node.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "base/assert.h"

namespace kv {
namespace {

/// Threads that connect queue pairs. A client with a dead address keeps one busy for seconds.
constexpr std::size_t kConnectThreadCount = 4;
/// Between two tries to open a device. Opening registers the arena, which takes long and costs memory bandwidth.
constexpr BackOffConfig kTries{.min = 5s, .max = 5min};

}  // namespace

VerbsNode::VerbsNode(verbs::Provider& provider, VerbsConfig config, std::span<std::byte> arena, Clock& clock)
    : provider_(provider),
      config_(std::move(config)),
      arena_(arena),
      clock_(clock),
      slow_calls_(config_.in_place, kConnectThreadCount),
      verifiers_(config_.verify_thread_count == 0, config_.verify_thread_count) {
  KV_ASSERT(!arena_.empty());
  KV_ASSERT(config_.lane_count_max >= 1 && config_.lane_count_max <= 32);  // lanes are bits of 32
}

Result<std::unique_ptr<VerbsNode>, Failure> VerbsNode::open(verbs::Provider& provider, VerbsConfig config,
                                                            std::span<std::byte> arena, Clock& clock) {
  std::unique_ptr<VerbsNode> node(new VerbsNode(provider, std::move(config), arena, clock));
  auto devices = verbs::open_devices(provider, node->config_.devices);
  if (!devices) return devices.error();
  node->unused_ = std::move(devices->left_out);
  error_code refused = Errc::kUnavailable;
  const auto fill = [&](Entry& entry, Result<std::shared_ptr<NodeDevice>, Failure> device) {
    if (device) {
      entry.device = std::move(*device);
    } else {
      // The error of a device that refuses the arena says more than that of a missing one.
      if (refused == Errc::kUnavailable) refused = device.error().code;
      node->put_off(entry, device.error().text);
    }
  };
  for (verbs::OpenDevice& each : devices->devices) {
    Entry& entry = node->add_entry(each.wish);
    fill(entry, node->equip(std::move(each)));
  }
  // Named devices that are missing come last. They have entries, so that lane numbers stay the same when they appear.
  for (const std::string& name : node->config_.devices.names) {
    const auto wish = verbs::parse_device_wish(name);
    const auto is_same = [&](const Entry& each) { return each.wish.device == wish->device; };
    if (!wish || std::ranges::any_of(node->entries_, is_same)) continue;
    Entry& entry = node->add_entry(*wish);
    fill(entry, node->open_one(*wish));
  }
  if (std::ranges::any_of(node->entries_, [](const Entry& each) { return each.device != nullptr; })) return node;
  std::string reasons;
  for (const Entry& each : node->entries_) reasons += (reasons.empty() ? "" : "; ") + each.why;
  return Failure(refused, std::move(reasons));
}

VerbsNode::Entry& VerbsNode::add_entry(verbs::DeviceWish wish) {
  return entries_.emplace_back(Entry{.wish = std::move(wish), .tries = BackOff(kTries)});
}

Result<std::shared_ptr<NodeDevice>, Failure> VerbsNode::equip(verbs::OpenDevice device) const {
  auto equipped = std::make_shared<NodeDevice>(NodeDevice{std::move(device), nullptr});
  auto arena = verbs::RegisteredMemory::make(std::span(&equipped->open, 1), arena_, {.local_write = true},
                                             config_.slice_bytes_max);
  if (!arena) return arena.error();
  equipped->arena = std::move(*arena);
  KV_ASSERT(equipped->arena->has(0) && equipped->arena->memory().data() == arena_.data());
  return equipped;
}

Result<std::shared_ptr<NodeDevice>, Failure> VerbsNode::open_one(const verbs::DeviceWish& wish) const {
  auto device = verbs::open_device(provider_, wish, config_.devices.traffic_class);
  if (!device) return device.error();
  return equip(std::move(*device));
}

void VerbsNode::put_off(Entry& entry, std::string why) const {
  KV_ASSERT(!entry.device);
  entry.why = std::move(why);
  entry.tries.failed(clock_.now());
}

const verbs::DeviceWish& VerbsNode::wish(std::size_t device) const {
  KV_ASSERT(device < entries_.size());
  return entries_[device].wish;
}

Result<std::shared_ptr<NodeDevice>, Failure> VerbsNode::device(std::size_t index) const {
  KV_ASSERT(index < entries_.size());
  const std::scoped_lock lock(devices_mutex_);
  const Entry& entry = entries_[index];
  if (!entry.device) return Failure(Errc::kUnavailable, "left out: " + entry.why);
  return entry.device;
}

/// Several threads may notice at once that a device is gone. The first takes it out of its entry; later calls and
/// calls for an earlier opening, change nothing. It is closed later, without holders.
void VerbsNode::leave_out(std::size_t index, const NodeDevice& device, const std::string& why) {
  KV_ASSERT(index < entries_.size());
  {
    const std::scoped_lock lock(devices_mutex_);
    Entry& entry = entries_[index];
    if (entry.device.get() != &device) return;
    spdlog::error("rdma: {} is left out: {}; it is opened again as soon as possible", entry.wish.device, why);
    left_out_.push_back(std::move(entry.device));
    // Only long use proves that the device works: a flapping device also opens, at the cost of a registration.
    if (clock_.now() - entry.opened >= kTries.max) entry.tries.succeeded();
    put_off(entry, entry.wish.device + ": " + why);
  }
  tell_watches(index);
}

VerbsNode::Watch::Watch(VerbsNode& node, asio::any_io_executor executor, LeftOut left_out)
    : node_(node), executor_(std::move(executor)), left_out_(std::make_shared<LeftOut>(std::move(left_out))) {
  const std::scoped_lock lock(node_.watches_mutex_);
  node_.watches_.push_back(this);
}

VerbsNode::Watch::~Watch() {
  const std::scoped_lock lock(node_.watches_mutex_);
  const std::size_t erased = std::erase(node_.watches_, this);
  KV_ASSERT(erased == 1);
}

/// Posted, not called here: a watch belongs to its session thread, and may end before the post runs.
void VerbsNode::tell_watches(std::size_t index) {
  const std::scoped_lock lock(watches_mutex_);
  for (const Watch* const each : watches_) {
    asio::post(each->executor_, [index, left_out = std::weak_ptr(each->left_out_)] {
      if (const auto held = left_out.lock()) (*held)(index);
    });
  }
}

void VerbsNode::check_devices(const std::function<bool()>& is_stopped) {
  leave_out_gone(is_stopped);
  close_unheld();
  for (Entry& entry : entries_) {
    if (is_stopped()) return;
    open_due(entry);
  }
}

/// Queries each device: a failure of one without lanes would go unnoticed otherwise.
void VerbsNode::leave_out_gone(const std::function<bool()>& is_stopped) {
  for (std::size_t i = 0; i < entries_.size() && !is_stopped(); ++i) {
    const auto open = device(i);
    if (!open) continue;
    const auto info = (*open)->open.device->query();
    if (!info && verbs::is_gone(info.error())) leave_out(i, **open, info.error().message());
  }
}

void VerbsNode::open_due(Entry& entry) {
  {
    const std::scoped_lock lock(devices_mutex_);
    if (entry.device || !entry.tries.is_due(clock_.now())) return;
  }
  // Without the lock, since opening takes long. Only this thread fills entries.
  auto device = open_one(entry.wish);
  const std::scoped_lock lock(devices_mutex_);
  KV_ASSERT(!entry.device);
  if (device) {
    entry.device = std::move(*device);
    entry.opened = clock_.now();
    spdlog::info("rdma: {} is in use", entry.wish.device);
  } else {
    std::string why = device.error().text;
    if (why != entry.why) spdlog::warn("rdma: {} is still left out: {}", entry.wish.device, why);
    put_off(entry, std::move(why));
  }
}

/// Closing a failed device may take seconds in the driver, so only the list changes under the lock.
void VerbsNode::close_unheld() {
  std::vector<std::shared_ptr<NodeDevice>> unheld;
  {
    const std::scoped_lock lock(devices_mutex_);
    // A device held only by this list cannot gain a holder.
    const auto found = std::ranges::partition(left_out_, [](const auto& each) { return each.use_count() > 1; });
    std::ranges::move(found, std::back_inserter(unheld));
    left_out_.erase(found.begin(), found.end());
  }
}

/// Called after the sessions have ended. Both pools post results to the I/O threads, which must still exist.
void VerbsNode::finish_calls() {
  slow_calls_.finish();
  verifiers_.finish();
}

Result<VerbsNode::ConnectTurn, Failure> VerbsNode::take_connect_turn() {
  ConnectTurn turn(connect_count_);  // returns its count when destroyed, also at the limit
  if (connect_count_->fetch_add(1) < config_.connect_count_max) return turn;
  return Failure(
      Errc::kBusy,
      fmt::format("connecting: the node's limit of {} queue pairs at once is reached; offer the lane again later",
                  config_.connect_count_max));
}

/// Counts before it compares, so that two callers cannot both get the last one.
bool VerbsNode::take_queue_pair() {
  if (queue_pair_count_.fetch_add(1) < config_.queue_pair_count_max) return true;
  --queue_pair_count_;
  return false;
}

void VerbsNode::give_queue_pair() {
  const std::uint32_t before = queue_pair_count_.fetch_sub(1);
  KV_ASSERT(before > 0);
}

VerbsNode::Peer VerbsNode::peer_of(const verbs::Attachment& ours, const verbs::QueuePairAddress& peer) {
  // Ethernet routes packets by GID, and the LID is meaningless; an InfiniBand subnet routes by LID.
  return ours.is_ethernet ? Peer{peer.gid, 0, peer.number} : Peer{{}, peer.lid, peer.number};
}

bool VerbsNode::take_peer(const Peer& peer) {
  const std::scoped_lock lock(peers_mutex_);
  return peers_.insert(peer).second;
}

void VerbsNode::give_peer(const Peer& peer) {
  const std::scoped_lock lock(peers_mutex_);
  const std::size_t erased = peers_.erase(peer);
  KV_ASSERT(erased == 1);
}

std::vector<NodeMetrics::Value> VerbsNode::stats() const {
  std::uint64_t in_use = 0;
  {
    const std::scoped_lock lock(devices_mutex_);
    for (const Entry& each : entries_) in_use += each.device != nullptr;
  }
  return {
      {"rdma_devices", in_use, false, "RDMA devices in use"},
      {"rdma_devices_left_out", entries_.size() - in_use, false,
       "RDMA devices that are gone or cannot be used, and are tried again"},
      {"rdma_registered_bytes", arena_.size(), false, "Bytes of the arena registered with each"},
      {"rdma_lanes", counters_.lanes, false, "Queue pairs connected to clients, for blocks"},
      {"rdma_lanes_connected", counters_.lanes_connected, true,
       "Queue pairs that were connected, for blocks or messages"},
      {"rdma_lanes_broken", counters_.lanes_broken, true,
       "Queue pairs that broke under a transfer: a link, a device, or a client's memory that was gone"},
      {"rdma_lanes_refused", counters_.lanes_refused, true, "Queue pairs that clients asked for and did not get"},
      {"rdma_messages", counters_.messages, true, "Requests that came and were answered by SEND"},
  };
}

}  // namespace kv
