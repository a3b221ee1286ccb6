// transport/verbs/verbs_messages.h: short requests and their answers over a queue pair of their own. They bypass the
// kernel and never wait behind a long move. A few blocks may go right before the answer that reports them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/owner.h"
#include "transport/verbs/completion_loop.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_mover.h"

namespace kv::verbs {

struct MessagesOptions {
  std::uint32_t count = 16;  ///< In flight at once, in each direction.
  std::uint32_t bytes_max = 8 * 1024;
  std::uint32_t write_count_max = 0;  ///< Most WRITEs before one message.
  /// If outgoing messages make no progress for this long, the device counts as broken.
  Duration timeout = 10s;
  std::uint8_t port = 1;
  Access remote;  ///< The peer's rights besides sending: remote_write if it writes before its messages.
};

/// One side asks and the other answers: each request is one SEND, its answer one SEND, or none if it went elsewhere.
///   1. As long as the asking side has at most `count` unanswered requests, every request and every answer finds a RECV
///      posted. So no credits are exchanged.
///   2. Memory: 2 count bytes_max, registered without remote access.
///   3. When a message arrives, the blocks written before it have landed, since one queue pair carries its requests out
///      in order. When a write fails, later requests do not arrive.
///   4. `owner` is held as long as the device may touch the memory of a write: until the message behind it has left, or
///      the queue pair is destroyed.
///   5. The first failure breaks it for good. Make a new one.
/// Thread safety: none; create() on any thread, all else on the loop's executor.
class VerbsMessages {
 public:
  /// Registers the memory and posts the RECVs. `queue` outlives it, with room for count (2 + write_count_max). Errors:
  /// those of register_memory and create_queue_pair.
  static Result<std::unique_ptr<VerbsMessages>, Failure> create(ProtectionDomain& domain, CompletionQueue& queue,
                                                                const MessagesOptions& options);
  ~VerbsMessages();

  QueuePair& queue_pair() { return *pair_; }  ///< To be connected, before the first message.

  /// A message has come. Its bytes begin at a multiple of 8 and are valid during the call.
  using OnMessage = std::function<void(std::span<const std::byte> message)>;
  /// Called once if it breaks other than by fail().
  using OnBroken = std::function<void(error_code why)>;
  /// Takes completions from `loop`, which has create()'s queue and outlives this. Either call may destroy this.
  void attach(CompletionLoop& loop, Clock& clock, OnMessage on_message, OnBroken on_broken);

  /// Writes `before`, at most write_count_max, and then sends; the message's bytes are copied. Requires attach().
  /// Errors: kTooLarge; kBusy: `count` are still in flight; kUnavailable: it is broken; the device's.
  Result<void> send(std::span<const std::byte> message, std::span<const Stretch> before = {}, Owner owner = {});
  bool has_room() const { return !is_broken_ && !free_.empty(); }  ///< send() is neither busy nor unavailable.
  void fail();                                                     ///< Ends it. Idempotent.
  bool is_idle() const { return is_broken_ || free_.size() == options_.count; }  ///< No outgoing message is in flight.

 private:
  struct Listener {
    OnMessage on_message;
    OnBroken on_broken;
  };
  explicit VerbsMessages(const MessagesOptions& options);
  std::span<std::byte> buffer(std::uint64_t index);
  Result<void> post_receive(std::uint64_t index);
  void on_completion(const Completion& completion);
  void broke(error_code why);
  void watch();

  MessagesOptions options_;
  std::unique_ptr<std::byte[]> memory_;  ///< `count` buffers for RECVs, then `count` for SENDs.
  std::vector<Owner> owners_;            ///< By buffer, for buffers in use.
  std::unique_ptr<MemoryRegion> region_;
  std::unique_ptr<QueuePair> pair_;  ///< Destroyed before the memory that it touches.
  CompletionLoop* loop_ = nullptr;
  Clock* clock_ = nullptr;
  std::unique_ptr<Alarm> alarm_;
  TimePoint progress_{};     ///< When a message last left, or the first after a pause was posted.
  bool is_watched_ = false;  ///< alarm_ is armed.
  std::shared_ptr<Listener> listener_;
  std::vector<std::uint64_t> free_;                ///< Buffers for SENDs.
  std::shared_ptr<std::vector<std::byte>> inbox_;  ///< The message in progress, while its RECV is posted again.
  std::vector<Piece> pieces_;                      ///< Of the current send(); kept for their memory, like requests_.
  std::vector<Request> requests_;
  bool is_broken_ = false;
};

}  // namespace kv::verbs
