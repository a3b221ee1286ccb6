// client/link/call.h: one request to one node, and its interface to the parties that carry it.
//
// A call is handled in turn by the operation that owns it (client.cc, get.cc, put.cc), the link that finds it a
// session, and the session that sends it. This file does not depend on them: it defines the functions a call may use.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "client/link/client_shared.h"
#include "client/link/deadline_queue.h"
#include "client/link/lent_memory.h"
#include "client/link/link_terms.h"
#include "client/types/call_control.h"
#include "transport/frames/block_sink.h"
#include "transport/frames/frame_reader.h"

namespace kv {

class Call;

/// A session, from its calls' view.
class CallSession {
 public:
  virtual ClientShared& shared() = 0;
  virtual const LinkTerms& terms() const = 0;
  virtual bool can_take_call() const = 0;
  /// For later use of this very session, which may have ended by then.
  virtual std::weak_ptr<CallSession> handle() = 0;

  // Requests.
  /// For a request made by a part of the session. Requires can_take_call().
  virtual void start_own(Call& call, Duration limit) = 0;
  /// A request without an awaited answer; dropped if the session is full.
  virtual void send_and_forget(FrameType type, const flatbuffers::FlatBufferBuilder& builder) = 0;
  /// Sends the table that `builder` has finished. `fd` >= 0: with that descriptor, which is duplicated; only over a
  /// stream that passes descriptors.
  virtual void send_frame(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                          int fd = -1) = 0;
  /// With a payload, borrowed from `lender` until `done` is called or take_back() has returned.
  virtual void send_lent(FrameType type, const Call& lender, const flatbuffers::FlatBufferBuilder& builder,
                         std::span<const std::span<const std::byte>> payload, std::function<void(bool)> done) = 0;
  /// Returns `lender` its payloads, copying up to `bytes_max` of a started frame. False: not enough; end the session.
  [[nodiscard]] virtual bool take_back(const Call& lender, std::size_t bytes_max) = 0;
  /// A request without payload, whose answer has no payload and at most `answer_bytes` in its tables, and whose order
  /// among other requests is irrelevant: it goes by SEND if possible.
  virtual void send_small(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                          std::size_t answer_bytes) = 0;
  virtual void send_cancel(std::uint64_t request_id) = 0;
  virtual void flush() = 0;

  // The payload of the frame given to Call::on_more.
  virtual std::vector<BlockTarget>& land() = 0;  ///< Its destinations; the session keeps the list.
  virtual void swallow() = 0;                    ///< Discards it instead.
  /// The path of bytes between a lent `region` and the node; nullptr: inline.
  ClientPath path_of(const LentMemory::Region* region) const {
    if (region == nullptr) return inline_path();
    return lanes_for(*region) != 0 ? ClientPath::kVerbs : ClientPath::kMemfd;
  }
  virtual ClientPath inline_path() const = 0;
  virtual void verified(std::size_t bytes) = 0;  ///< In place; after many bytes, other calls get a turn.

  // Lent memory.
  virtual std::uint32_t region_handle(const LentMemory::Region& region) const = 0;  ///< Requires a lent region.
  /// Lanes that the node may use for the lent `region`; 0 without RDMA. Bit i: lane i.
  virtual std::uint32_t lanes_for(const LentMemory::Region& region) const = 0;
  /// The node reports these lanes as down: it no longer uses their memory.
  virtual void cut_lanes(std::uint32_t lanes) = 0;

  virtual void give_up(std::string why) = 0;  ///< Ends the session at once, as if it had broken.

  // From its own parts, which make calls too: the namespaces, the lent memory and the lanes.
  /// An open request has ended. `text`: the node's reason for a refusal.
  virtual void open_ended(std::uint32_t space, error_code why, const std::string& text) = 0;
  virtual void lend_ended() = 0;                                      ///< A pending region was decided.
  virtual void message_came(std::span<const std::byte> message) = 0;  ///< May destroy the lanes.
  virtual void messages_broke(error_code why) = 0;                    ///< Likewise.
  /// False if the message lane broke a short while ago, perhaps on another session.
  virtual bool may_try_messages() const = 0;

  // From Call itself.
  /// Ends the call for `why` now, after its deadline or at the caller's request, and keeps the request's entry.
  virtual void abandon(Call& call, error_code why) = 0;
  virtual void forget(Call& call) = 0;  ///< The call is being destroyed.

 protected:
  ~CallSession() = default;
};

/// The link that is responsible for a call from its begin() to its end.
class CallOwner {
 public:
  /// The call has left `session`, which answered or was given up, for `why`. True: the owner will send it anew; on
  /// return it may already have ended, or be destroyed.
  virtual bool try_again(Call& call, error_code why, CallSession& session) = 0;
  virtual void call_ended(const Call& call, bool is_answered) = 0;  ///< error() is set.
  virtual void call_destroyed(const Call& call) = 0;                ///< While waiting.

 protected:
  ~CallOwner() = default;
};

/// One operation's calls to several nodes: wakes its coroutine, and ends all calls if the caller gives up.
///   1. `running` holds each call from its begin() to its end().
class CallBundle final : private Cancellable {
 public:
  explicit CallBundle(const asio::any_io_executor& executor, CallControl control = {});
  ~CallBundle();
  CallBundle(const CallBundle&) = delete;
  CallBundle& operator=(const CallBundle&) = delete;

  Event event;                                       ///< Set when a call made progress or ended.
  boost::container::small_vector<Call*, 8> running;  ///< Calls that have not ended.
  const CallControl control;

 private:
  void cancel() override;
};

asio::awaitable<void> wait_all(CallBundle& bundle);  ///< Until all its calls have ended.

/// One request to one node. Owned by the operation that starts it; may be destroyed in any state.
///
///              begin()              send_on()
///     kEnded ----------> kWaiting ----------> kSent
///        ^                  |  ^                |
///        +---- end() -------+  +---- end() -----+   if the owner tries again; else to kEnded as well
///
///   1. Only begin(), send_on() and end() change the state, and each asserts its starting state.
///   2. on_end() is called exactly once per begin(), by the deadline at the latest; before it on_leave(), once for each
///      session on which the call was sent.
///   3. It has a session exactly in kSent.
/// Thread safety: none; on the client's executor.
class Call : public DeadlineEntry {
 public:
  static constexpr std::uint32_t kNoSpace = ~std::uint32_t{0};

  ~Call() override;

  // Prepared by the link before the request is sent. Set before start.
  FrameType type{};
  std::uint32_t space = kNoSpace;               ///< Opened first.
  std::shared_ptr<LentMemory::Region> region;   ///< Lent first; reset if the node cannot have it: then inline.
  std::shared_ptr<CallSession> session_wanted;  ///< The only possible session (leases); any other after its end.
  std::size_t data_bytes = 0;                   ///< Bytes to move: balances calls over sessions.
  CallBundle* bundle = nullptr;                 ///< Notified of the end.
  std::uint64_t map_epoch = 0;                  ///< Set by the answer: epoch of the node's cluster map.
  bool at_once = false;                         ///< Ends with kUnavailable instead of waiting for a connection.

  bool has_ended() const { return state_ == State::kEnded; }
  bool is_sent() const { return state_ == State::kSent; }  ///< Without an answer, and not to be resent.
  // After the end.
  error_code error() const { return error_; }                    ///< Success: the last frame came without an error.
  const std::string& error_text() const { return error_text_; }  ///< From an error frame.
  bool was_answered() const { return was_answered_; }            ///< The node's last frame came, even with an error.

  // For the owner and the session.
  void begin(CallOwner& owner);
  /// Lets the call queue its frames on `session` under `request_id`. After an error the session must end() the call,
  /// which then has not been on that session.
  [[nodiscard]] error_code send_on(CallSession& session, std::uint64_t request_id, std::uint32_t space_handle);
  /// A frame followed by more. Returns an empty string, or the fault in the frame.
  std::string part_came(const FrameReader::Frame& frame);
  void payload_came(const BlockSink& sink);
  std::string last_came(const FrameReader::Frame& frame);
  /// Removes it from the session's table, or the owner's queue. `is_answered`: by its own last frame.
  void end(error_code why, std::string text = {}, bool is_answered = false);
  /// Ends it with kCancelled, in any state but kEnded.
  void cancel();
  /// Asks the node to end it early. The call lasts until then; at its end was_answered() tells whether the node has
  /// stopped touching lent memory for it. Requires a sent call.
  void ask_to_stop();
  std::vector<std::span<const std::byte>> destinations_left() const { return unfinished_destinations(); }

  std::uint64_t request_id() const { return request_id_; }
  std::uint32_t space_handle() const { return space_handle_; }  ///< In the session that last sent it.
  bool has_begun() const { return has_begun_; }                 ///< That session received a part of the answer.
  std::size_t send_count() const { return send_count_; }        ///< Since begin().

 protected:
  Call() = default;

  /// Queues the request's frames on `session`, where request_id() is now valid. Errors end the call, for example a
  /// request over a limit of the node.
  virtual error_code send(CallSession& session) = 0;
  /// A frame followed by more, and its payload if any: then pass the destinations to session.land(). Returns an empty
  /// string, or the fault in the frame, which ends the session.
  virtual std::string on_more(CallSession& session, const FrameReader::Frame& frame);
  /// The payload has landed up to `sink`'s count; or, at the deadline, will land no further.
  virtual void on_payload(const BlockSink& sink) { (void)sink; }
  /// The last frame, without an error. Returns as on_more.
  virtual std::string on_last(const FrameReader::Frame& frame) = 0;
  /// The call leaves `session`, to end or to be resent: the session must not keep references to the caller's memory.
  virtual void on_leave(CallSession& session) { (void)session; }
  /// The call has ended; `session` sent it last, or is nullptr. It may be restarted from here.
  virtual void on_end(CallSession* session) { (void)session; }
  /// Memory that the node may still write if the call ends now.
  virtual std::vector<std::span<const std::byte>> unfinished_destinations() const { return {}; }

  /// Within send(), as its end: queues the table, made with ClientShared::new_request(), as the request.
  template <class Table>
  error_code send_table(CallSession& session, flatbuffers::Offset<Table> table) {
    session.shared().builder.Finish(table);
    session.send_frame(type, request_id_, session.shared().builder);
    return {};
  }
  /// Within send(): the request's check value of its namespace.
  std::uint64_t space_check() const;
  /// Within send(): the request's trace, stored in `room`; nullptr: without one.
  const wire::Trace* wire_trace(wire::Trace& room) const;
  CallSession* session() const { return session_; }  ///< nullptr before sending and after the end.

 private:
  enum class State : std::uint8_t { kEnded, kWaiting, kSent };

  void on_deadline() final { give_up(asio::error::timed_out); }
  void give_up(error_code why);

  State state_ = State::kEnded;
  bool has_begun_ = false, was_answered_ = false;
  CallOwner* owner_ = nullptr;      ///< Not in kEnded.
  CallSession* session_ = nullptr;  ///< In kSent.
  std::uint64_t request_id_ = 0;
  std::uint32_t space_handle_ = 0;
  std::uint32_t send_count_ = 0;
  error_code error_;
  std::string error_text_;
};

}  // namespace kv
