// store/node/rdma/: a node's RDMA devices, kept open, and the lanes of its sessions. Start here.
//
// The device files open the devices, register the arena with each, reopen devices that went away, and route each
// device's completions to the I/O thread that waits for them. Queue pairs belong to the lanes. In reading order:
//   verbs_node.h     shared by all sessions: the devices, which are disabled, limits on what clients use
//   verbs_thread.h   the completions of one I/O thread
//   verbs_opener.h   opens the devices: at the start, later if their links come later, and again
//   session_lanes.h  one session's queue pairs, over which blocks move
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/back_off.h"
#include "base/clock.h"
#include "store/node/metrics.h"
#include "transport/slow_calls.h"
#include "transport/verbs/verbs_devices.h"
#include "transport/verbs/verbs_mover.h"

namespace kv {

struct VerbsConfig {
  verbs::DevicesConfig devices;
  std::uint32_t lane_count_max = 4;           ///< Per session, besides the message lane: 1..32.
  std::uint32_t message_count_max = 16;       ///< Open message requests of a session; 0: off.
  std::uint32_t queue_pair_count_max = 2048;  ///< Of the node.
  /// Queue pairs of the node that are being connected; more are refused. Connecting takes about a millisecond, or
  /// seconds to a dead address: a flood of dead addresses cannot block others for hours.
  std::uint32_t connect_count_max = 1024;
  std::uint64_t slice_bytes_max = 0;  ///< Of one registration; 0: the devices' limit.
  Duration move_timeout = 10s;        ///< Of one move, including earlier moves on its lane.
  verbs::MoverOptions mover;
  std::size_t verify_thread_count = 0;  ///< For large puts. 0: the session's own thread verifies.
  bool in_place = false;                ///< The provider is not thread-safe: use no other thread.
};

/// A device during one opening, with the arena registered. Reopening makes another. Held by all objects made from it.
struct NodeDevice {
  verbs::OpenDevice open;
  std::unique_ptr<verbs::RegisteredMemory> arena;  ///< For local access only.
};

/// The node's devices and the limits its sessions share.
///   1. A device is in use or disabled. A disabled one is tried again after a pause that grows from 5 s to 5 min; the
///      pause starts over once the device has been in use for 5 min.
///   2. check_devices() closes a disabled device once it has no holder.
///   3. At most queue_pair_count_max queue pairs exist, and at most connect_count_max are being connected.
///   4. A client's queue pair has one lane at most.
/// Thread safety: any thread, once open. Outlives all sessions and all objects made from its devices.
class VerbsNode {
 public:
  /// Opens the devices and registers `arena` with each. An unusable device is disabled as long as there is another.
  /// Errors: kUnavailable (no usable device), registration errors; the text says how to fix it. May take long.
  /// `provider`, `arena` and `clock` outlive the node.
  static Result<std::unique_ptr<VerbsNode>, Failure> open(verbs::Provider& provider, VerbsConfig config,
                                                          std::span<std::byte> arena, Clock& clock);

  const VerbsConfig& config() const { return config_; }
  /// Devices in use and disabled ones together. Never changes.
  std::size_t device_count() const { return entries_.size(); }
  std::size_t device_of(std::size_t lane) const { return lane % entries_.size(); }
  const verbs::DeviceWish& wish(std::size_t device) const;
  /// Errors: kUnavailable: disabled; the text says why. Never nullptr.
  Result<std::shared_ptr<NodeDevice>, Failure> device(std::size_t index) const;
  /// Disables `device`, which is gone. Ignored if already disabled. Its lanes stay until they break.
  void leave_out(std::size_t index, const NodeDevice& device, const std::string& why);
  /// Disables failed devices, closes disabled ones without holders, and reopens disabled ones whose retry is due. May
  /// take long; ends early once `is_stopped`. Thread safety: one thread; with `in_place`, the provider's.
  void check_devices(const std::function<bool()>& is_stopped = [] { return false; });
  /// The report of open_devices() on devices it did not open at the start.
  const std::string& unused() const { return unused_; }

  /// While it lives, `left_out` is called on `executor` with the index of each device that is disabled, so that holders
  /// of the device let go. Made and destroyed on the executor; the node outlives it.
  class Watch {
   public:
    using LeftOut = std::function<void(std::size_t device)>;
    Watch(VerbsNode& node, asio::any_io_executor executor, LeftOut left_out);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    friend class VerbsNode;
    VerbsNode& node_;
    const asio::any_io_executor executor_;
    const std::shared_ptr<LeftOut> left_out_;  ///< Posted calls hold it weakly.
  };

  Clock& clock() const { return clock_; }
  SlowCalls& slow_calls() { return slow_calls_; }
  /// Verifiers of large puts: meanwhile the thread that posts the READs can post the next ones.
  SlowCalls& verifiers() { return verifiers_; }
  void finish_calls();  ///< Waits for slow calls and verifiers; afterwards they are idle.

  /// One queue pair being connected, from the client's offer to the answer.
  class ConnectTurn {
   public:
    ConnectTurn(ConnectTurn&&) noexcept = default;
    ConnectTurn& operator=(ConnectTurn&& other) noexcept {
      std::swap(count_, other.count_);  // `other` ends the turn held here before
      return *this;
    }
    ~ConnectTurn() {
      if (count_) --*count_;
    }

   private:
    friend class VerbsNode;
    explicit ConnectTurn(std::shared_ptr<std::atomic<std::uint32_t>> count) : count_(std::move(count)) {}
    std::shared_ptr<std::atomic<std::uint32_t>> count_;  ///< Shared: a turn may end after the node.
  };
  /// Errors: kBusy at the limit; the client receives the text.
  Result<ConnectTurn, Failure> take_connect_turn();

  /// Counts queue pairs, so that clients cannot use up the devices. False at the limit.
  bool take_queue_pair();
  void give_queue_pair();
  /// The receiver of packets: a GID or a LID, and the queue pair number there. Other fields of the client's address are
  /// left out, or one queue pair would have many names.
  using Peer = std::tuple<verbs::Gid, std::uint16_t, std::uint32_t>;
  static Peer peer_of(const verbs::Attachment& ours, const verbs::QueuePairAddress& peer);
  /// Reserves a client's queue pair, so that only one lane connects to it. Otherwise a client could name another
  /// client's queue pair and have the node send there, with only a packet number to guess. False: reserved already.
  bool take_peer(const Peer& peer);
  void give_peer(const Peer& peer);

  /// Of all sessions. `lanes` is the present count; the others count since the start.
  struct Counters {
    std::atomic<std::uint64_t> lanes{0}, lanes_connected{0}, lanes_broken{0}, lanes_refused{0}, messages{0};
  };
  Counters& counters() { return counters_; }
  std::vector<NodeMetrics::Value> stats() const;

 private:
  struct Entry {
    verbs::DeviceWish wish;
    std::shared_ptr<NodeDevice> device;  ///< nullptr: disabled.
    std::string why;                     ///< Why the device is disabled.
    BackOff tries;                       ///< Times the tries to reopen it.
    TimePoint opened{};
  };

  VerbsNode(verbs::Provider& provider, VerbsConfig config, std::span<std::byte> arena, Clock& clock);
  Result<std::shared_ptr<NodeDevice>, Failure> equip(verbs::OpenDevice device) const;
  Result<std::shared_ptr<NodeDevice>, Failure> open_one(const verbs::DeviceWish& wish) const;
  Entry& add_entry(verbs::DeviceWish wish);
  void put_off(Entry& entry, std::string why) const;
  void tell_watches(std::size_t index);
  void leave_out_gone(const std::function<bool()>& is_stopped);
  void open_due(Entry& entry);
  void close_unheld();

  verbs::Provider& provider_;
  const VerbsConfig config_;
  const std::span<std::byte> arena_;
  Clock& clock_;
  std::string unused_;
  mutable std::mutex devices_mutex_;  ///< Guards the entries' contents (their number is fixed) and left_out_.
  std::vector<Entry> entries_;
  /// Disabled, and perhaps still held. check_devices() closes them: unregistering an arena takes long.
  std::vector<std::shared_ptr<NodeDevice>> left_out_;
  std::mutex watches_mutex_;  ///< Held while watches are notified: a watch's executor lives as long as the watch.
  std::vector<const Watch*> watches_;
  std::atomic<std::uint32_t> queue_pair_count_{0};
  const std::shared_ptr<std::atomic<std::uint32_t>> connect_count_ = std::make_shared<std::atomic<std::uint32_t>>(0);
  std::mutex peers_mutex_;
  std::set<Peer> peers_;
  Counters counters_;
  SlowCalls slow_calls_, verifiers_;
};

}  // namespace kv
