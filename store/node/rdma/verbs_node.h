// store/node/rdma/verbs_node.h: what a node has for RDMA, besides its sessions' lanes: open devices with the arena
// registered, which of them are left out and tried again, and what all sessions share.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "store/node/metrics.h"
#include "transport/verbs/verbs_devices.h"
#include "transport/verbs/verbs_mover.h"

namespace kv {

struct VerbsConfig {
  verbs::DevicesConfig devices;
  std::uint32_t lane_count_max = 4;           ///< Of a session: 1..32; besides the one for messages.
  std::uint32_t message_count_max = 16;       ///< Requests of a session on their way as messages; 0: no messages.
  std::uint32_t queue_pair_count_max = 2048;  ///< Of the node.
  std::uint64_t slice_bytes_max = 0;          ///< Of one registration; 0: what the devices take.
  Duration move_timeout = 10s;                ///< Of one move, those before it on its lane included.
  verbs::MoverOptions mover;
  std::size_t verify_thread_count = 0;  ///< For large puts. 0: the session's own thread verifies.
  bool in_place = false;                ///< The provider is not thread-safe: nothing is done on another thread.
};

/// A device from one opening to the next, with the arena registered. One that is gone does not come back: there is
/// another then. Held by all that is made of it.
struct NodeDevice {
  verbs::OpenDevice open;
  std::unique_ptr<verbs::RegisteredMemory> arena;  ///< Ours alone: no remote access.
};

/// Thread safety: any thread, once open. Outlives all sessions and what is made of its devices.
class VerbsNode {
 public:
  /// Opens the devices and registers `arena` with each. A device that cannot do its part is left out, as long as there
  /// is another. Errors: kUnavailable (no device that can be used), those of registering; `why` says what to do. May
  /// take long. `provider`, `arena` and `clock` outlive it.
  static Result<std::unique_ptr<VerbsNode>> open(verbs::Provider& provider, VerbsConfig config,
                                                 std::span<std::byte> arena, Clock& clock, std::string* why);

  const VerbsConfig& config() const { return config_; }
  /// Those in use, and those that are named, or were in use, and are left out for now. Never changes.
  std::size_t device_count() const { return slots_.size(); }
  std::size_t device_of(std::size_t lane) const { return lane % slots_.size(); }
  const verbs::DeviceWish& wish(std::size_t device) const { return slots_[device].wish; }
  /// nullptr: it is left out, and `why` says why.
  std::shared_ptr<NodeDevice> device(std::size_t index, std::string* why) const;
  /// It is gone. Nothing if that is known. What is connected through it stays until it breaks.
  void leave_out(std::size_t index, const NodeDevice& device, const std::string& why);
  /// Leaves out what is gone, opens what is left out, each at growing intervals, and closes what was left out and
  /// nobody holds any more. May take long; ends early once `is_stopped`. Thread safety: one thread; with `in_place`,
  /// the provider's.
  void check_devices(const std::function<bool()>& is_stopped = [] { return false; });
  /// What open_devices() said of those that it did not open at the start.
  const std::string& unused() const { return unused_; }
  Clock& clock() const { return clock_; }
  verbs::SlowCalls& slow_calls() { return slow_calls_; }
  /// Verifies what large puts bring. The thread that posts their READs has the next ones to post meanwhile.
  verbs::SlowCalls& verifiers() { return verifiers_; }
  void finish_calls();  ///< Waits for slow calls and verifiers; from then on they do nothing.

  /// Queue pairs are counted, so that clients cannot use up the devices. False at the limit.
  bool take_queue_pair();
  void give_queue_pair() { --queue_pair_count_; }
  /// Whom packets reach: a GID or a LID, and the number there. Nothing else of what a client says of itself, or one
  /// queue pair would have many names.
  using Peer = std::tuple<verbs::Gid, std::uint16_t, std::uint32_t>;
  static Peer peer_of(const verbs::Attachment& ours, const verbs::QueuePairAddress& peer);
  /// A client's queue pair is connected to once. Without this, one who names another's would have the node send there,
  /// with nothing but a packet number to guess. False: some lane is connected to it, or is being.
  bool take_peer(const Peer& peer);
  void give_peer(const Peer& peer);

  /// Of all sessions. Lanes now; connected, broken and refused since start; requests that came and were answered as
  /// messages.
  struct Counters {
    std::atomic<std::uint64_t> lanes{0}, lanes_connected{0}, lanes_broken{0}, lanes_refused{0}, messages{0};
  };
  Counters& counters() { return counters_; }
  std::vector<NodeMetrics::Value> stats() const;

 private:
  struct Slot {
    verbs::DeviceWish wish;              ///< Never changes.
    std::shared_ptr<NodeDevice> device;  ///< nullptr: left out.
    std::string why;                     ///< Then.
    Duration pause{};                    ///< Between the last two tries; kept until it has been in use for long.
    TimePoint next_try{}, opened{};
  };

  VerbsNode(verbs::Provider& provider, VerbsConfig config, std::span<std::byte> arena, Clock& clock);
  Result<std::shared_ptr<NodeDevice>> equip(verbs::OpenDevice device, std::string* why) const;
  Result<std::shared_ptr<NodeDevice>> open_one(const verbs::DeviceWish& wish, std::string* why) const;
  void put_off(Slot& slot, std::string why) const;
  void close_unheld();

  verbs::Provider& provider_;
  const VerbsConfig config_;
  const std::span<std::byte> arena_;
  Clock& clock_;
  std::string unused_;
  mutable std::mutex devices_mutex_;  ///< Of the slots' contents, but not their number, and of the list below.
  std::vector<Slot> slots_;
  /// Left out, and perhaps still held. Let go by check_devices(): to unregister an arena takes long.
  std::vector<std::shared_ptr<NodeDevice>> left_out_;
  std::atomic<std::uint32_t> queue_pair_count_{0};
  std::mutex peers_mutex_;
  std::set<Peer> peers_;
  Counters counters_;
  verbs::SlowCalls slow_calls_, verifiers_;
};

}  // namespace kv
