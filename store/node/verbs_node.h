// store/node/verbs_node.h: what a node has for RDMA, besides its sessions' lanes: open devices, the arena registered
// with them, and for each I/O thread a loop that takes their completions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "store/node/metrics.h"
#include "transport/completion_loop.h"
#include "transport/verbs_devices.h"
#include "transport/verbs_mover.h"

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

class VerbsThread;

/// Thread safety: any thread, once open. Outlives its threads' loops and all sessions.
class VerbsNode {
 public:
  /// Registers `arena`, which stays ours alone: no remote access. Errors: kUnavailable (no device that can be used),
  /// system errors; `why` says what to do. May take long.
  static Result<std::unique_ptr<VerbsNode>> open(verbs::Provider& provider, VerbsConfig config,
                                                 std::span<std::byte> arena, Clock& clock, std::string* why);

  const VerbsConfig& config() const { return config_; }
  std::span<const verbs::OpenDevice> devices() const { return devices_; }
  std::size_t device_of(std::size_t lane) const { return lane % devices_.size(); }
  const verbs::RegisteredMemory& arena() const { return *arena_; }
  const std::string& left_out() const { return left_out_; }  ///< Devices that are not used, and why.
  Clock& clock() const { return clock_; }
  verbs::SlowCalls& slow_calls() { return slow_calls_; }
  /// Verifies what large puts bring. The thread that posts their READs has the next ones to post meanwhile.
  verbs::SlowCalls& verifiers() { return verifiers_; }
  void finish_calls();  ///< Waits for slow calls and verifiers; from then on they do nothing.

  /// Loops of one I/O thread, running. nullptr if a device gives no completion queue; `why` says which.
  std::shared_ptr<VerbsThread> make_thread(const asio::any_io_executor& executor, std::string* why);

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
  VerbsNode(VerbsConfig config, Clock& clock);

  VerbsConfig config_;
  Clock& clock_;
  std::vector<verbs::OpenDevice> devices_;
  std::string left_out_;
  std::unique_ptr<verbs::RegisteredMemory> arena_;
  std::atomic<std::uint32_t> queue_pair_count_{0};
  std::mutex peers_mutex_;
  std::set<Peer> peers_;
  Counters counters_;
  verbs::SlowCalls slow_calls_, verifiers_;
};

/// One I/O thread's completion loops, one for each device. Thread safety: none; on its executor.
class VerbsThread {
 public:
  explicit VerbsThread(VerbsNode& node) : node_(node) {}
  ~VerbsThread();
  VerbsNode& node() { return node_; }
  verbs::CompletionLoop& loop(std::size_t device) { return *loops_[device]; }
  void stop();  ///< The loops end; completions that come later are taken by nobody.

 private:
  friend class VerbsNode;
  static asio::awaitable<void> take_completions(std::shared_ptr<VerbsThread> self, std::size_t device);

  VerbsNode& node_;
  std::vector<std::unique_ptr<verbs::CompletionLoop>> loops_;
};

}  // namespace kv
