// store/node/session/transfers/put.h: one put: blocks enter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/event.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/core/slow_requests.h"
#include "store/node/session/tables/space_handles.h"
#include "store/node/session/tables/table_budget.h"
#include "store/node/session/transfers/block_path.h"
#include "store/node/session/transfers/put_order.h"
#include "store/node/store_guards.h"
#include "transport/frames/block_sink.h"
#include "transport/frames/frame_reader.h"

namespace kv {

/// Bounds the bytes that all puts of a session fetch by RDMA at once: enough to keep several lanes busy. At the bound,
/// reads of further data wait until a fetch has been verified. Thread safety: none.
class DrainBound {
 public:
  explicit DrainBound(const asio::any_io_executor& executor) : drained_(executor) {}
  bool is_reached() const { return count_ >= kCountMax || bytes_ >= kBytesMax; }
  void begin(std::uint64_t bytes) {
    ++count_;
    bytes_ += bytes;
  }
  void end(std::uint64_t bytes) {
    KV_ASSERT(count_ > 0 && bytes_ >= bytes);
    --count_;
    bytes_ -= bytes;
    drained_.set();
  }
  asio::awaitable<void> wait() {  ///< Until one has ended; may be spurious.
    drained_.reset();
    co_await drained_.wait();
  }

 private:
  static constexpr std::uint64_t kBytesMax = 16 << 20;
  static constexpr std::size_t kCountMax = 64;
  std::uint64_t bytes_ = 0;  ///< Announced, and on their way or being verified.
  std::size_t count_ = 0;
  Event drained_;
};

/// On entry the client has a block that the store may lack. A slot is taken for it (offer), filled from the socket,
/// from shared memory, or by RDMA, and verified against the checksums that the client claims. On exit the block is in
/// the tree, visible to all (commit), or its slot is free again.
///   1. A taken slot stays the put's until all copies and moves into it have ended (PutGuard).
///   2. Blocks are committed in the order of the chain, or of the request in a set, each after the bytes in its slot
///      were verified. The client's memory may change at any moment and is never trusted.
///   3. One last frame has the result or the error. Data after an error is skipped.
///   4. Blocks of a group named by the client are committed in one step, once the last was verified.
/// Blocks of a set differ in length, and the client gets a result for each; the rest is common to both kinds.
/// Thread safety: none; on the session's executor.
class Put : public std::enable_shared_from_this<Put> {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void put_ended(std::uint64_t request_id) = 0;  ///< Answered. Perhaps within any call of Put.
  };
  Put(std::shared_ptr<SessionCore> session, Listener& listener, DrainBound& draining, const OpenSpace& space,
      std::uint64_t request_id, const PutOrder& order, BlockPath path);

  /// Takes slots for the missing blocks. False after refusing the request; the put is then unusable.
  bool offer(const SessionCore::Frame& frame, const PutOrder& order);
  /// Requests the data from the client; first waits for memory if it is short and the client allows time.
  void begin();
  /// The client announced data, which follows in the stream unless there is a region. False: the session is over.
  static asio::awaitable<bool> take_data(std::shared_ptr<Put> self, const SessionCore::Frame& frame,
                                         FrameReader& reader);

  /// Ignored if the put is over.
  void fail(Errc code, const std::string& message, std::uint32_t broken = 0);
  void stop();    ///< The session ends: stops filling slots, without an answer.
  void finish();  ///< Answers if all is committed; frees its slots.

  void keep(RequestRoom room) { room_ = std::move(room); }
  std::uint64_t request_id() const { return request_id_; }
  bool is_late(TimePoint now) const {
    return !is_waiting_ && !is_over_ && now - began_ >= session_->node.limits->put_timeout;
  }

 private:
  using Frame = SessionCore::Frame;
  using Claimed = std::vector<std::uint64_t>;  ///< Checksums, as the client claims them.

  /// One part at a time. `is_short`: as Store::wants_spill() after the last.
  Result<OfferPlan> offer_set(const PutOrder& order, bool may_lose, bool& is_short);
  bool may_pass() const {
    return plan_.refused_why == Errc::kOutOfMemory || plan_.refused_why == Errc::kOverQuota;
  }  ///< Whether the refusal may be temporary.
  static asio::awaitable<void> wait_for_memory(std::shared_ptr<Put> self, SessionJob job);
  void send_want();
  std::string check_data(const Frame& frame, const wire::PutData* data) const;
  static asio::awaitable<bool> receive(std::shared_ptr<Put> self, std::size_t count, Claimed claimed,
                                       FrameReader& reader);
  static asio::awaitable<void> copy_in(std::shared_ptr<Put> self, std::size_t count, Claimed claimed);
  static asio::awaitable<void> fetch(std::shared_ptr<Put> self, std::size_t first, std::size_t count, Claimed claimed,
                                     SessionJob job);
  void commit(std::size_t good, std::size_t count, std::span<const std::uint64_t> claimed);
  std::size_t commit_groups(std::size_t first, std::size_t end, std::span<const std::uint64_t>& claimed);
  void count_result(std::size_t i, CommitStatus status);
  std::span<const IncomingBlock> incoming(std::size_t first, std::size_t count) const;
  void count_bytes(Path way, std::uint64_t bytes);                     ///< For bytes that have arrived.
  std::uint64_t bytes_of(std::size_t first, std::size_t count) const;  ///< Of incoming blocks.
  std::size_t sum_count(std::size_t first, std::size_t count) const;   ///< Checksums of these.

  const std::shared_ptr<SessionCore> session_;
  Listener& listener_;
  DrainBound& draining_;
  const std::uint64_t request_id_;
  const SpaceId space_;
  const bool is_set_;
  const bool has_groups_;
  const FrameType type_;  ///< Of the request and its answers.
  const TimePoint began_;
  const TimePoint deadline_;    ///< For memory.
  TimePoint spill_deadline_{};  ///< From then on blocks that are not yet on disk may be evicted.
  BlockPath path_;
  TransferDetails about_;  ///< For the slow log.

  OfferPlan plan_;
  std::shared_ptr<PutGuard> guard_;
  std::size_t announced_ = 0;  ///< Incoming blocks whose data the client has announced.
  std::size_t committed_ = 0;  ///< Verified, in order; and committed, except the last `waiting_`.
  std::size_t waiting_ = 0;    ///< Waiting for the rest of their group,
  Claimed waiting_sums_;       ///< with these checksums.
  std::uint32_t stored_ = 0, already_stored_ = 0, refused_late_ = 0;
  std::vector<std::uint8_t> results_;  ///< For a set: one per hash, as in SetPutResponse.
  BlockSink* sink_ = nullptr;          ///< Set while a payload is read into its slots.
  std::shared_ptr<Event> last_fetch_;  ///< Set when RDMA has fetched the data announced last.
  bool is_waiting_ = true;             ///< For memory; PutWant not sent yet.
  bool is_over_ = false;
  RequestRoom room_;
};

}  // namespace kv
