// client/link/call.h: one request to one node, and what it needs of those who carry it.
//
// Three parties have a call in turn: the verb that owns it (client.cc, get.cc, put.cc), the link that finds it a
// session, and the session that sends it. This file knows none of them: it says what a call may ask of each.
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
#include "client/call_control.h"
#include "client/link/client_shared.h"
#include "client/link/deadline_queue.h"
#include "client/link/lent_memory.h"
#include "client/link/session/link_terms.h"
#include "transport/block_sink.h"
#include "transport/frame_reader.h"

namespace kv {

class Call;

/// A session as its calls see it.
class CallSession {
 public:
  virtual ClientShared& shared() = 0;
  virtual const LinkTerms& terms() const = 0;
  virtual bool can_take_call() const = 0;
  /// For who wants just this session later, though it may have ended by then.
  virtual std::weak_ptr<CallSession> handle() = 0;

  // Requests.
  /// For a request that a part of the session makes. Requires can_take_call().
  virtual void start_own(Call& call, Duration limit) = 0;
  /// A request whose answer nobody waits for; dropped if the session is full.
  virtual void send_and_forget(FrameType type, const flatbuffers::FlatBufferBuilder& builder) = 0;
  /// Sends the table that `builder` has finished.
  virtual void send_frame(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder) = 0;
  /// With a file descriptor, which is duplicated. Only over a stream that passes descriptors.
  virtual void send_descriptor(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                               int fd) = 0;
  /// With a payload, borrowed from `lender` until `done` is called or take_back() has returned.
  virtual void send_lent(FrameType type, const Call& lender, const flatbuffers::FlatBufferBuilder& builder,
                         std::span<const std::span<const std::byte>> payload, std::function<void(bool)> done) = 0;
  /// Gives `lender` its payloads back, copying up to `bytes_max` of a frame that has begun. False: that frame has more;
  /// then the session has to be given up.
  [[nodiscard]] virtual bool take_back(const Call& lender, std::size_t bytes_max) = 0;
  /// A request without payload, whose answer has no payload and at most `answer_bytes` in its tables, and whose order
  /// among other requests does not matter: it goes by SEND if it can.
  virtual void send_small(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                          std::size_t answer_bytes) = 0;
  virtual void send_cancel(std::uint64_t request_id) = 0;
  virtual void flush() = 0;

  // The payload of the frame given to Call::on_more.
  virtual std::vector<BlockTarget>& land() = 0;  ///< Where it goes; the session keeps the list.
  virtual void swallow() = 0;                    ///< Instead: nowhere.
  /// How bytes travel: between `region`, which is lent, and the node; or inline (nullptr).
  ClientPath path_of(const LentMemory::Region* region) const {
    if (region == nullptr) return inline_path();
    return lanes_for(*region) != 0 ? ClientPath::kVerbs : ClientPath::kMemfd;
  }
  virtual ClientPath inline_path() const = 0;
  virtual void verified(std::size_t bytes) = 0;  ///< Where they lie: others get a turn before the next frame.

  // Lent memory.
  virtual std::uint32_t region_handle(const LentMemory::Region& region) const = 0;  ///< Requires that it is lent.
  /// Lanes that the node may use for `region`, which is lent; 0 without RDMA. Bit i: lane i.
  virtual std::uint32_t lanes_for(const LentMemory::Region& region) const = 0;
  /// The node says that these are not up on its side: their memory is ours from here on.
  virtual void cut_lanes(std::uint32_t lanes) = 0;

  virtual void give_up(std::string why) = 0;  ///< Ends the session at once, as if it had broken.

  // From Call itself.
  /// Its deadline has come, or the caller gave it up: ends it for `why`, now, and keeps the request's entry.
  virtual void abandon(Call& call, error_code why) = 0;
  virtual void forget(Call& call) = 0;  ///< It is being destroyed.

 protected:
  ~CallSession() = default;
};

/// Who answers for a call from its begin() to its end: its link.
class CallOwner {
 public:
  /// The call has left `session`, which answered or was given up, for `why`. True: the owner has taken it again, to
  /// send it anew; by then it may even have ended, or be gone.
  virtual bool try_again(Call& call, error_code why, CallSession& session) = 0;
  virtual void call_ended(const Call& call, bool is_answered) = 0;  ///< Its error() is set.
  virtual void call_destroyed(const Call& call) = 0;                ///< While it waited.

 protected:
  ~CallOwner() = default;
};

/// The calls of one verb that asked several nodes: wakes its coroutine, and ends them all if the caller gives up.
///   1. `running` holds each call from its begin() to its end().
class CallGroup final : private Cancellable {
 public:
  explicit CallGroup(const asio::any_io_executor& executor, CallControl control = {});
  ~CallGroup();
  CallGroup(const CallGroup&) = delete;
  CallGroup& operator=(const CallGroup&) = delete;

  Event event;                                       ///< Set whenever one of the calls made progress or ended.
  boost::container::small_vector<Call*, 8> running;  ///< That have not ended.
  const CallControl control;

 private:
  void cancel() override;
};

/// One request to one node. Owned by the verb that starts it; may be destroyed in any state.
///
///              begin()              send_on()
///     kEnded ----------> kWaiting ----------> kSent
///        ^                  |  ^                |
///        +---- end() -------+  +---- end() -----+   if the owner tries again; else to kEnded as well
///
///   1. begin(), send_on() and end() alone change the state, and each asserts where it starts.
///   2. on_end() is called exactly once per begin(), by the deadline at the latest. Before that on_leave(), once for
///      each session on which the call was sent.
///   3. It has a session exactly in kSent.
/// Thread safety: none; on the client's executor.
class Call : public DeadlineEntry {
 public:
  static constexpr std::uint32_t kNoSpace = ~std::uint32_t{0};

  ~Call() override;

  // What the link arranges before the request can be sent. Set before it is started.
  FrameType type{};
  std::uint32_t space = kNoSpace;               ///< Opened first.
  std::shared_ptr<LentMemory::Region> region;   ///< Lent first; reset if the node cannot have it: then inline.
  std::shared_ptr<CallSession> session_wanted;  ///< Only this session will do (leases); any other if it has ended.
  std::size_t data_bytes = 0;                   ///< That the call will move: spreads calls over sessions.
  CallGroup* group = nullptr;                   ///< Told of the end.
  std::uint64_t map_epoch = 0;                  ///< Set by its answer: of the cluster map that the node knows.
  bool at_once = false;                         ///< Ends with kUnavailable where it would wait for a connection.

  bool has_ended() const { return state_ == State::kEnded; }
  bool is_sent() const { return state_ == State::kSent; }  ///< And neither answered nor to be sent anew.
  // After the end.
  error_code error() const { return error_; }                    ///< None: the last frame came and was no error.
  const std::string& error_text() const { return error_text_; }  ///< Of an error frame.
  bool was_answered() const { return was_answered_; }            ///< The node's last frame came, if only of an error.

  // For the owner and the session.
  void begin(CallOwner& owner);
  /// Lets the call queue its frames on `session` under `request_id`. An error is for the session to end() it with: then
  /// the call has not been on that session.
  [[nodiscard]] error_code send_on(CallSession& session, std::uint64_t request_id, std::uint32_t space_handle);
  /// A frame that more will follow. Returns an empty string, or what is wrong with the frame.
  std::string part_came(const FrameReader::Frame& frame);
  void payload_came(const BlockSink& sink);
  std::string last_came(const FrameReader::Frame& frame);
  /// Out of the session's table, or of the owner's queue. `is_answered`: by a last frame of its own.
  void end(error_code why, std::string text = {}, bool is_answered = false);
  /// Ends it for kCancelled, wherever it is. Requires that it has not ended.
  void cancel();
  /// Asks the node to end it early. The call goes on until then, so that after its end was_answered() tells whether the
  /// node touches no lent memory for it any more. Requires that it has been sent and has not ended.
  void ask_to_stop();
  std::vector<std::span<const std::byte>> destinations_left() const { return unfinished_destinations(); }

  std::uint64_t request_id() const { return request_id_; }
  std::uint32_t space_handle() const { return space_handle_; }  ///< On the session where it was sent last.
  bool has_begun() const { return has_begun_; }                 ///< A part of the answer came from that session.
  std::size_t send_count() const { return send_count_; }        ///< Since begin().

 protected:
  Call() = default;

  /// Queues the request's frames on `session`, where request_id() is valid now. Errors end the call (a request that is
  /// over a limit of the node, for example).
  virtual error_code send(CallSession& session) = 0;
  /// A frame that more will follow, and its payload if it has one: then session.land() must be told where.
  /// Returns an empty string, or what is wrong with the frame, which ends the session.
  virtual std::string on_more(CallSession& session, const FrameReader::Frame& frame);
  /// The payload has landed as far as `sink` says; or, at the deadline, will not land further.
  virtual void on_payload(const BlockSink& sink) { (void)sink; }
  /// The last frame, no error. Returns as on_more.
  virtual std::string on_last(const FrameReader::Frame& frame) = 0;
  /// The call leaves `session`, to end or to be sent again: nothing of the caller's memory may stay with it.
  virtual void on_leave(CallSession& session) { (void)session; }
  /// The call has ended; `session` is where it was sent, or nullptr. It may be started again from here.
  virtual void on_end(CallSession* session) { (void)session; }
  /// Memory that the node may still write when the call ends now.
  virtual std::vector<std::span<const std::byte>> unfinished_destinations() const { return {}; }

  /// Within send(): what the request says of its namespace.
  std::uint64_t space_check() const;
  /// Within send(): whose request this is, in `room`; nullptr: nobody said.
  const wire::Trace* wire_trace(wire::Trace& room) const;
  CallSession* session() const { return session_; }  ///< nullptr before it is sent and after its end.

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
