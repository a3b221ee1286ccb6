// transport/verbs/verbs_messages.h: short requests and their answers over a queue pair of their own, so that neither
// crosses the kernel nor waits behind many blocks. A few blocks may go right before the answer that tells of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "transport/verbs/completion_loop.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_mover.h"

namespace kv::verbs {

struct MessagesOptions {
  std::uint32_t count = 16;  ///< On their way at once, in each direction.
  std::uint32_t bytes_max = 8 * 1024;
  std::uint32_t write_count_max = 0;  ///< That may go before one message.
  Duration timeout = 10s;  ///< Without any message leaving, while some are to: the device is not to be trusted.
  std::uint8_t port = 1;
  Access remote;  ///< What the peer may do, besides sending: remote_write where he writes before his messages.
};

/// One side asks and the other answers: each request is one SEND, its answer one SEND or none (it went elsewhere).
///   1. Who has at most `count` requests without an answer finds a RECV posted for each message, his own and the
///   answers: there are no credits to exchange.
///   2. Memory: 2 count bytes_max, registered with no remote access.
///   3. A message that arrives says that what was written before it has landed: one queue pair carries its requests out
///   in order. When a write fails, nothing after it arrives.
///   4. The device touches the memory of a write only as long as its `owner` is held: until its message has gone, or
///   the queue pair is gone.
///   5. After the first failure it is broken and carries nothing any more. Make a new one.
/// Thread safety: none; create() on any thread, all else on the loop's executor.
class VerbsMessages {
 public:
  /// Registers the memory and posts the RECVs. `queue` outlives it, with room for count (2 + write_count_max). Errors:
  /// those of register_memory and create_queue_pair.
  static Result<std::unique_ptr<VerbsMessages>> create(ProtectionDomain& domain, CompletionQueue& queue,
                                                       const MessagesOptions& options, std::string* why = nullptr);
  ~VerbsMessages();

  QueuePair& queue_pair() { return *pair_; }  ///< To be connected, before the first message.

  /// A message has come; its bytes, aligned to 8, are valid during the call.
  using OnMessage = std::function<void(std::span<const std::byte> message)>;
  /// It broke other than by fail(), once.
  using OnBroken = std::function<void(error_code why)>;
  /// From now on completions are taken from `loop`, whose queue is the one given to create(). Both calls may destroy
  /// this. `loop` outlives it.
  void attach(CompletionLoop& loop, Clock& clock, OnMessage on_message, OnBroken on_broken);

  /// Writes `before`, at most write_count_max, and then sends; the message's bytes are copied. Requires attach().
  /// Errors: kTooLarge; kBusy: `count` have not arrived yet; kUnavailable: it is broken; the device's.
  Result<void> send(std::span<const std::byte> message, std::span<const Stretch> before = {},
                    std::shared_ptr<const void> owner = nullptr);
  bool has_room() const { return !is_broken_ && !free_.empty(); }  ///< send() is neither busy nor unavailable.
  void fail();                                                     ///< Ends it. Idempotent.
  bool is_broken() const { return is_broken_; }
  bool is_idle() const { return is_broken_ || free_.size() == options_.count; }  ///< All messages have left.

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
  std::unique_ptr<std::byte[]> memory_;              ///< `count` buffers for RECVs, then `count` for SENDs.
  std::vector<std::shared_ptr<const void>> owners_;  ///< By buffer, of those that are not free.
  std::unique_ptr<MemoryRegion> region_;
  std::unique_ptr<QueuePair> pair_;  ///< Goes before the memory that it touches.
  CompletionLoop* loop_ = nullptr;
  Clock* clock_ = nullptr;
  std::unique_ptr<Alarm> alarm_;
  TimePoint progress_{};     ///< A message left, or the first of several was begun.
  bool is_watched_ = false;  ///< alarm_ is armed.
  std::shared_ptr<Listener> listener_;
  std::vector<std::uint64_t> free_;                ///< Buffers for SENDs.
  std::shared_ptr<std::vector<std::byte>> inbox_;  ///< The message being handled, while its RECV is posted again.
  std::vector<Piece> pieces_;                      ///< Of send(), which reads them only.
  std::vector<Request> requests_;                  ///< The same.
  bool is_broken_ = false;
};

}  // namespace kv::verbs
