// store/node/rdma/: a node's RDMA devices, opened and kept open. Start here.
//
// Opens the devices, registers the arena with each, opens a device again that was gone, and hands the completions of
// each device to the I/O thread that waits for them. Knows no session and no wire: queue pairs and what travels over
// them are the lanes' (store/node/session/session_lanes.h). Files, in reading order:
//   verbs_node.h     what all sessions share: the devices, which of them are left out, what clients may use up
//   verbs_thread.h   the completions of one I/O thread
//   verbs_opener.h   when devices are opened: at the start, later if their links come later, and again
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
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
  std::uint32_t lane_count_max = 4;           ///< Of a session: 1..32; besides the one for messages.
  std::uint32_t message_count_max = 16;       ///< Requests of a session on their way as messages; 0: no messages.
  std::uint32_t queue_pair_count_max = 2048;  ///< Of the node.
  /// Queue pairs of the node that are being connected; more are refused. Connecting takes about a millisecond, and
  /// seconds to an address that nobody answers for: a rush of clients gets through, a flood of such addresses does not
  /// make the others wait for hours.
  std::uint32_t connect_count_max = 1024;
  std::uint64_t slice_bytes_max = 0;  ///< Of one registration; 0: what the devices take.
  Duration move_timeout = 10s;        ///< Of one move, those before it on its lane included.
  verbs::MoverOptions mover;
  std::size_t verify_thread_count = 0;  ///< For large puts. 0: the session's own thread verifies.
  bool in_place = false;                ///< The provider is not thread-safe: nothing is done on another thread.
};

/// A device from one opening to the next, with the arena registered. A device that was gone and came back is another
/// NodeDevice. Held by everything that is made of it.
struct NodeDevice {
  verbs::OpenDevice open;
  std::unique_ptr<verbs::RegisteredMemory> arena;  ///< Ours alone: no remote access.
};

/// The node's devices, and what its sessions share of them.
///   1. A device is in use or left out. One that is left out is tried again after a pause that grows from 5 s to 5 min,
///      and begins anew once the device has been in use for 5 min.
///   2. A device that was left out is closed by check_devices(), once nobody holds it.
///   3. At most queue_pair_count_max queue pairs exist, and at most connect_count_max are being connected.
///   4. A client's queue pair has one lane at most.
/// Thread safety: any thread, once open. Outlives all sessions and what is made of its devices.
class VerbsNode {
 public:
  /// Opens the devices and registers `arena` with each. A device that cannot be used is left out, as long as there is
  /// another. Errors: kUnavailable (no device can be used), those of registering; the text says what to do. May take
  /// long. `provider`, `arena` and `clock` outlive it.
  static Result<std::unique_ptr<VerbsNode>, Failure> open(verbs::Provider& provider, VerbsConfig config,
                                                          std::span<std::byte> arena, Clock& clock);

  const VerbsConfig& config() const { return config_; }
  /// Devices in use, and devices that are left out for now. Never changes.
  std::size_t device_count() const { return entries_.size(); }
  std::size_t device_of(std::size_t lane) const { return lane % entries_.size(); }
  const verbs::DeviceWish& wish(std::size_t device) const;
  /// Errors: kUnavailable: it is left out; the text says why. Never nullptr.
  Result<std::shared_ptr<NodeDevice>, Failure> device(std::size_t index) const;
  /// `device` is gone. Does nothing if that is known. Lanes through it stay until they break.
  void leave_out(std::size_t index, const NodeDevice& device, const std::string& why);
  /// Leaves out what is gone, opens what is left out and due, closes what was left out and is held by nobody. May take
  /// long; ends early once `is_stopped`. Thread safety: one thread; with `in_place`, the provider's.
  void check_devices(const std::function<bool()>& is_stopped = [] { return false; });
  /// What open_devices() said of devices that it did not open at the start.
  const std::string& unused() const { return unused_; }

  /// While it lives, `left_out` is called on `executor` with the index of each device that is left out, so that whoever
  /// keeps something of a device lets go of it. Made and destroyed on the executor; the node outlives it.
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
    const std::shared_ptr<LeftOut> left_out_;  ///< Weakly held by calls that are on their way.
  };

  Clock& clock() const { return clock_; }
  SlowCalls& slow_calls() { return slow_calls_; }
  /// Verify what large puts bring. The thread that posts their READs has the next ones to post meanwhile.
  SlowCalls& verifiers() { return verifiers_; }
  void finish_calls();  ///< Waits for slow calls and verifiers; from then on they do nothing.

  /// One queue pair that is being connected, from the client's offer to the answer.
  class ConnectTurn {
   public:
    ConnectTurn(ConnectTurn&&) noexcept = default;
    ConnectTurn& operator=(ConnectTurn&& other) noexcept {
      std::swap(count_, other.count_);  // what this one held ends with `other`
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
  /// Errors: kBusy at the limit; the client is told the text.
  Result<ConnectTurn, Failure> take_connect_turn();

  /// Queue pairs are counted, so that clients cannot use up the devices. False at the limit.
  bool take_queue_pair();
  void give_queue_pair();
  /// Whom packets reach: a GID or a LID, and the number there. Nothing else of what a client says of itself, or one
  /// queue pair would have many names.
  using Peer = std::tuple<verbs::Gid, std::uint16_t, std::uint32_t>;
  static Peer peer_of(const verbs::Attachment& ours, const verbs::QueuePairAddress& peer);
  /// A client's queue pair is connected to once. Otherwise a client could name another client's queue pair and have the
  /// node send there, with nothing but a packet number to guess. False: some lane is connected to it, or is being.
  bool take_peer(const Peer& peer);
  void give_peer(const Peer& peer);

  /// Of all sessions. `lanes` is now; the others are counted since the start.
  struct Counters {
    std::atomic<std::uint64_t> lanes{0}, lanes_connected{0}, lanes_broken{0}, lanes_refused{0}, messages{0};
  };
  Counters& counters() { return counters_; }
  std::vector<NodeMetrics::Value> stats() const;

 private:
  struct Entry {
    verbs::DeviceWish wish;              ///< Never changes.
    std::shared_ptr<NodeDevice> device;  ///< nullptr: left out.
    std::string why;                     ///< Of a device that is left out.
    BackOff tries;                       ///< Between tries to open it.
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
  mutable std::mutex devices_mutex_;  ///< Of the entries' contents, but not their number, and of the list below.
  std::vector<Entry> entries_;
  /// Left out, and perhaps still held. Closed by check_devices(): to unregister an arena takes long.
  std::vector<std::shared_ptr<NodeDevice>> left_out_;
  std::mutex watches_mutex_;  ///< Held while a watch is told: its executor is there as long as the watch is.
  std::vector<const Watch*> watches_;
  std::atomic<std::uint32_t> queue_pair_count_{0};
  const std::shared_ptr<std::atomic<std::uint32_t>> connect_count_ = std::make_shared<std::atomic<std::uint32_t>>(0);
  std::mutex peers_mutex_;
  std::set<Peer> peers_;
  Counters counters_;
  SlowCalls slow_calls_, verifiers_;
};

}  // namespace kv
