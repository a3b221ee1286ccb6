// transport/verbs/: RDMA. Start here.
//
// Independent of frames, sessions and blocks; handles memory and queue pairs only. Files, in reading order:
//   verbs.h            the subset of RDMA verbs that kvstore needs (this file)
//   verbs_choice.h     choice of device, port and address, and the values that two sides agree on
//   verbs_devices.h    the devices of this process, opened, and memory registered with them
//   verbs_wire.h       queue pair addresses as tables of the wire
//   completion_loop.h  dispatches completions to their owners
//   verbs_mover.h      moves blocks into or out of a peer's memory
//   verbs_messages.h   short requests and answers, without a stream
// and the providers behind verbs.h:
//   verbs_module.h     the devices of this machine, through a module loaded on demand (../ibverbs/)
//
// tests/transport/verbs_conformance_test.cc holds both providers to this interface. Every handle is a unique_ptr that
// destroys its object; children die first:
//
//   Provider -> Device -> ProtectionDomain -> MemoryRegion, QueuePair
//                      -> CompletionQueue
//
// Errors: system errors as the driver gives them; Errc::kBadRequest for an invalid value, kTooLarge for one over a
// limit. A Failure's text names the field, its value and the allowed values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "base/result.h"

namespace kv::verbs {

using Gid = std::array<std::uint8_t, 16>;  ///< In network order.
enum class GidType : std::uint8_t { kInfiniband, kRoceV1, kRoceV2 };
struct GidEntry {
  std::uint32_t index = 0;  ///< In the port's table. Moves when addresses do: never kept in a configuration.
  Gid gid{};
  GidType type = GidType::kInfiniband;
};

struct PortInfo {
  std::uint8_t number = 1;
  bool is_active = false;    ///< The link is up.
  bool is_ethernet = false;  ///< RoCE; else InfiniBand.
  std::uint16_t lid = 0;     ///< InfiniBand only.
  std::uint32_t mtu_bytes = 0;
  std::vector<GidEntry> gids;
};

struct DeviceLimits {
  std::uint64_t region_bytes_max = 0;  ///< Of one registration.
  std::uint32_t queue_pair_count_max = 0;
  std::uint32_t request_count_max = 0;     ///< Outstanding on one queue pair.
  std::uint32_t completion_count_max = 0;  ///< Of one completion queue.
  std::uint32_t piece_count_max = 0;       ///< Of one request's gather list.
  std::uint32_t read_count_max = 0;        ///< READs in flight on one queue pair, either way.
};

struct DeviceInfo {
  std::string name;
  int numa_node = -1;  ///< -1: unknown.
  DeviceLimits limits;
  std::vector<PortInfo> ports;
};

/// Rights on registered memory, or through a queue pair, besides local reads. A remote access must be allowed by both
/// the memory and the queue pair; a node's arena and its queue pairs allow none.
struct Access {
  bool local_write = false;  ///< Needed for a READ's target, a RECV, and for remote_write.
  bool remote_write = false;
  bool remote_read = false;
};

/// Memory that a device may touch, until destruction. Requires: no request is outstanding on it by then.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual std::uint32_t lkey() const = 0;  ///< For our own requests.
  virtual std::uint32_t rkey() const = 0;  ///< For the peer's requests. Not a secret: few bits, and easy to guess.
};

/// How a request ended. The values are those of ibv_wc_status; name_of() also tells those without a name here.
enum class Status : std::uint8_t {
  kSuccess = 0,
  kLocalLength = 1,  ///< A message is longer than its RECV.
  kLocalQueuePair = 2,
  kLocalProtection = 4,  ///< lkey, bounds or access of our own memory.
  kFlushed = 5,          ///< The queue pair entered ERROR before the request was carried out.
  kBadResponse = 7,
  kLocalAccess = 8,
  kRemoteRequest = 9,  ///< The peer cannot carry out such a request.
  kRemoteAccess = 10,  ///< rkey, bounds or access of the peer's memory.
  kRemoteOperation = 11,
  kRetryExceeded = 12,     ///< The peer does not answer.
  kNotReadyExceeded = 13,  ///< The peer had no RECV posted.
  kFatal = 19,
  kGeneral = 21,
};
inline constexpr std::uint8_t kStatusCount = 22;
std::string_view name_of(Status status);  ///< "success", "remote access error", ...

/// Status as an error_code; its message is name_of().
const boost::system::error_category& status_category() noexcept;
inline error_code make_error_code(Status status) noexcept { return {static_cast<int>(status), status_category()}; }

struct Completion {
  std::uint64_t id = 0;          ///< Of the batch or the RECV.
  std::uint32_t queue_pair = 0;  ///< Its number.
  Status status = Status::kSuccess;
  bool is_receive = false;
  /// The last completion of its batch. Successful batches have only this; failed ones up to one per request.
  bool is_last = true;
  std::uint32_t bytes = 0;  ///< Of a successful RECV.
};

/// Collects completions, in posting order per queue pair. Thread safety: none, but each may have its own thread.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  /// Fills `to` from its front, returns the count.
  virtual std::size_t poll(std::span<Completion> to) = 0;
  /// The next completion to arrive makes descriptor() readable; earlier ones do not: poll once more, then sleep.
  virtual Result<void> arm() = 0;
  /// Non-blocking, for an event loop to wait on. Owned by the queue.
  virtual int descriptor() const = 0;
  /// Makes descriptor() unreadable again. An error: the device was pulled out or reset; completions have ended.
  virtual Result<void> take_events() = 0;
};

/// Part of a gather or scatter list, in registered memory.
struct Piece {
  std::byte* data = nullptr;
  std::uint32_t bytes = 0;
  std::uint32_t lkey = 0;
};

enum class Opcode : std::uint8_t { kWrite, kRead, kSend };
struct Request {
  Opcode opcode = Opcode::kWrite;
  /// post() copies the bytes: they may be reused at once, and their lkey is ignored. Not for a READ.
  bool is_inline = false;
  std::span<const Piece> pieces;  ///< Read by post() only; the named memory stays until the batch has completed.
  std::uint64_t remote_address = 0;
  std::uint32_t rkey = 0;
};

inline constexpr std::string_view kMtusAllowed = ", allowed are 256, 512, 1024, 2048 and 4096";
constexpr bool is_mtu(std::uint32_t bytes) { return bytes >= 256 && bytes <= 4096 && (bytes & (bytes - 1)) == 0; }

/// One side's data for the other's connect(). Trusted as much as the session that it travels over.
struct QueuePairAddress {
  std::uint32_t number = 0;
  std::uint32_t first_psn = 0;  ///< 24 bits, of this side's first packet. Random, to keep intruders from guessing it.
  std::uint16_t lid = 0;
  Gid gid{};
  std::uint32_t mtu_bytes = 0;
  std::uint32_t read_count_max = 0;
};

/// The way to the peer, as chosen by this side in verbs_choice.h.
struct Path {
  std::uint8_t port = 1;
  std::uint32_t gid_index = 0;
  bool is_global = true;           ///< With a GID; required on RoCE.
  std::uint8_t traffic_class = 0;  ///< Of a global path; on RoCE the packets' DSCP is its upper six bits.
  std::uint32_t first_psn = 0;     ///< Of our first packet, as in our QueuePairAddress.
  std::uint32_t mtu_bytes = 1024;
  std::uint32_t read_count = 1;
  /// An unanswered request is sent again after 4.096 us * 2^timeout_exponent, retry_count times. Not 0: one lost packet
  /// would fail a healthy transfer. Not 7: some devices retry for ever then.
  std::uint8_t timeout_exponent = 16;
  std::uint8_t retry_count = 6;
  std::uint8_t not_ready_retry_count = 6;  ///< For a SEND without a posted RECV. 0: fails at once.
};

struct QueuePairOptions {
  std::uint32_t request_count_max = 64;
  std::uint32_t receive_count_max = 16;
  std::uint32_t piece_count_max = 4;
  std::uint32_t inline_bytes_max = 0;  ///< Requested. QueuePair::inline_bytes_max() is the granted size, perhaps 0.
  std::uint8_t port = 1;
  Access remote;  ///< The peer's rights through it; local_write is ignored.
};

/// A reliable connection to a peer's queue pair. Made in INIT, where receives may be posted. An error puts it into
/// ERROR for good, with all requests flushed: make a new one. Thread safety: none; its completion queue's thread.
class QueuePair {
 public:
  enum class State : std::uint8_t { kInit, kReady, kError };
  virtual ~QueuePair() = default;

  virtual std::uint32_t number() const = 0;
  virtual State state() const = 0;  ///< Queries the device: not for the fast path.
  virtual std::uint32_t inline_bytes_max() const = 0;

  /// INIT to ready to receive and to send. May take long on Ethernet (the neighbour is resolved): not on an event loop.
  virtual Result<void, Failure> connect(const QueuePairAddress& peer, const Path& path) = 0;
  /// To ERROR. Idempotent. May be called while another thread is in connect(): once both have returned, the queue pair
  /// is in ERROR. Outstanding requests complete with kFlushed; then the device leaves this side's memory alone. The
  /// peer's memory may still change until the peer ends its own queue pair.
  virtual Result<void> fail() = 0;

  /// Posts the whole `batch` or fails. Requests are carried out in order, but those behind a READ may overtake it: post
  /// a WRITE or SEND of bytes that a READ brings, or a WRITE to its source, only after the READ has completed. One
  /// completion with `id` (below 2^62) when the last request has succeeded. Errors: kBadRequest (an empty batch, a list
  /// too long, too many bytes for inline, an INIT state), kBusy (more outstanding than request_count_max: poll first).
  virtual Result<void> post(std::span<const Request> batch, std::uint64_t id) = 0;
  /// One RECV. Errors as post().
  virtual Result<void> post_receive(std::span<const Piece> pieces, std::uint64_t id) = 0;
};

/// Memory and queue pairs work together within one domain: one for each client of a process; a node has one.
class ProtectionDomain {
 public:
  virtual ~ProtectionDomain() = default;
  /// Requires: `memory` stays mapped as long as the region. Errors: kBadRequest (empty, or remote_write without
  /// local_write), kTooLarge (over region_bytes_max); ENOMEM over the memlock limit, where the text says what to set.
  virtual Result<std::unique_ptr<MemoryRegion>, Failure> register_memory(std::span<std::byte> memory,
                                                                         Access access) = 0;
  /// Device memory behind a dma-buf, addressed by the peer from `address` on. `fd` is borrowed for the call. Errors:
  /// kUnsupported where the device or the kernel lacks support.
  virtual Result<std::unique_ptr<MemoryRegion>, Failure> register_dmabuf(int fd, std::uint64_t offset,
                                                                         std::uint64_t bytes, std::uint64_t address,
                                                                         Access access) = 0;
  /// `queue` takes completions of both directions. Errors: kBadRequest, kTooLarge (also if `queue` is too small).
  virtual Result<std::unique_ptr<QueuePair>, Failure> create_queue_pair(CompletionQueue& queue,
                                                                        const QueuePairOptions& options) = 0;
};

/// An open device. Thread safety: calls from any thread, except for the tests' fake device.
class Device {
 public:
  virtual ~Device() = default;
  virtual Result<DeviceInfo> query() const = 0;  ///< Its state now.
  virtual Result<std::unique_ptr<ProtectionDomain>> create_domain() = 0;
  virtual Result<std::unique_ptr<CompletionQueue>> create_completion_queue(std::uint32_t count) = 0;
};

class Provider {
 public:
  virtual ~Provider() = default;
  virtual std::vector<std::string> device_names() const = 0;
  /// Errors: kBadRequest: unknown device.
  virtual Result<std::unique_ptr<Device>> open(const std::string& name) = 0;
};

/// Counts outstanding requests of a queue pair, by batch, until its last completion is polled. Full: kBusy.
class Outstanding {
 public:
  explicit Outstanding(std::uint32_t count_max) : count_max_(count_max) {}
  bool has_room(std::size_t count) const { return count <= count_max_ - count_; }
  void add(std::size_t count) {
    KV_ASSERT(count > 0 && has_room(count));
    batches_.push_back(static_cast<std::uint32_t>(count));
    count_ += static_cast<std::uint32_t>(count);
  }
  bool is_empty() const { return batches_.empty(); }
  void end_first();  ///< Requires !is_empty().

 private:
  std::deque<std::uint32_t> batches_;
  std::uint32_t count_max_, count_ = 0;
};

// Checks that both providers make before they use a device.
Result<void, Failure> check_access(std::uint64_t bytes, std::uint64_t bytes_max, Access access);
Result<void, Failure> check_options(const QueuePairOptions& options, const DeviceInfo& device);
Result<void, Failure> check_path(const QueuePairAddress& peer, const Path& path, const DeviceLimits& limits);
Result<void> check_batch(std::span<const Request> batch, std::uint64_t id, std::uint32_t piece_count_max,
                         std::uint32_t inline_bytes_max);

}  // namespace kv::verbs

namespace boost::system {
template <>
struct is_error_code_enum<kv::verbs::Status> : std::true_type {};
}  // namespace boost::system
