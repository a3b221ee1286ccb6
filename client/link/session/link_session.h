// client/link/session/link_session.h: one connection to a node: sends requests, checks frames and passes each to its
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/link/call.h"
#include "client/link/client_shared.h"
#include "client/link/link_lanes.h"
#include "client/link/link_terms.h"
#include "client/link/session/link_payload.h"
#include "client/link/session/link_regions.h"
#include "client/link/session/link_requests.h"
#include "client/link/session/link_spaces.h"
#include "client/link/session/silence_watch.h"
#include "transport/frames/frame_reader.h"
#include "transport/frames/frame_writer.h"

namespace kv {

/// Every received byte is checked before use; a frame that breaks the protocol ends the session with kBadFrame.
///   1. Each request ends with exactly one frame without kFrameMore, or with the session. After a call has left the
///      session, to end or to be resent, the session has no reference to its caller's memory.
///   2. A call past its deadline is completed at once; its entry is kept, its bytes are swallowed, and its unfinished
///      destinations in lent memory are quarantined until its last frame, or until the node has closed the connection.
///      With RDMA the session, on ending, ends the quarantine itself by cutting its lanes.
///   3. The listener is notified of the end once, by session_ended() or retired_ended(), its last notification. That
///      precedes the end of the session's calls, so that a call started by one of them does not come here again.
/// Thread safety: none; on the client's executor. Two coroutines, reader and writer, hold it until the stream ends.
class LinkSession final : public CallSession, public std::enable_shared_from_this<LinkSession> {
 public:
  /// The session's link; it also owns the calls that the session itself makes.
  class Listener : public CallOwner {
   public:
    /// Why a node with these hello terms is the wrong one, or "".
    virtual std::string refuses(const LinkTerms& terms) const = 0;
    virtual void session_up(LinkSession& session) = 0;  ///< After hello.
    virtual void session_ended(LinkSession& session, error_code why, std::string text) = 0;
    /// A retired session has finished its business.
    virtual void retired_ended(LinkSession& session) = 0;
    /// The node accepts requests and does not answer: the session should be retired.
    virtual void session_silent(LinkSession& session) = 0;
    virtual void open_ended(std::uint32_t space, error_code why, const std::string& text) = 0;
    virtual void pump() = 0;  ///< There may be room or lent memory for waiting calls.
    virtual void messages_broke() = 0;
    virtual bool may_try_messages() const = 0;

   protected:
    ~Listener() = default;
  };

  /// `listener` outlives the session's end, or close().
  LinkSession(std::shared_ptr<ClientShared> shared, Listener& listener, std::unique_ptr<Stream> stream);
  ~LinkSession();

  void start();  ///< Sends hello; Listener::session_up() follows, or session_ended().
  void close();  ///< For the listener, which is not notified.

  /// Gives `call` a request id and lets it queue its frames, or ends it on an error. Requires can_take_call().
  void send_call(Call& call);
  bool can_take_call() const override {
    return state_ == State::kUp && !is_retired_ && requests_.in_flight() < terms_.requests_max;
  }

  LinkSpaces& spaces() { return spaces_; }
  const LinkSpaces& spaces() const { return spaces_; }
  LinkRegions::State lend(const std::shared_ptr<LentMemory::Region>& region) { return regions_.lend(region); }
  void take_back(const LentMemory::Region& region) { regions_.take_back(region); }
  bool shares_memory() const { return !lanes_ && regions_.has_any(); }  ///< As memfds.
  std::uint32_t lanes_up() const { return lanes_ ? lanes_->up() : 0; }  ///< Bit i: lane i.
  std::string lanes_why() const;  ///< Why some are down. Empty: all are up, or not tried.

  /// Refuses new calls; closes once its calls and quarantines have ended.
  void retire();

  bool is_up() const { return state_ == State::kUp; }
  bool is_serving() const { return is_up() && !is_retired_; }  ///< Accepts calls, if there is room.
  /// Also: the node cannot write any more.
  bool has_ended() const { return state_ == State::kEnded; }
  /// The session may have ended because of its message lane.
  bool lost_messages() const { return lost_messages_; }
  std::size_t load_bytes() const { return requests_.load_bytes(); }
  bool is_flush_due() const { return flush_posted_; }  ///< Another request of this turn leaves in the same write.

  // CallSession
  ClientShared& shared() override { return *shared_; }
  const LinkTerms& terms() const override { return terms_; }
  std::weak_ptr<CallSession> handle() override { return weak_from_this(); }
  void start_own(Call& call, Duration limit) override;
  void send_and_forget(FrameType type, const flatbuffers::FlatBufferBuilder& builder) override;
  void send_frame(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                  int fd = -1) override;
  void send_lent(FrameType type, const Call& lender, const flatbuffers::FlatBufferBuilder& builder,
                 std::span<const std::span<const std::byte>> payload, std::function<void(bool)> done) override;
  [[nodiscard]] bool take_back(const Call& lender, std::size_t bytes_max) override;
  void send_small(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                  std::size_t answer_bytes) override;
  void send_cancel(std::uint64_t request_id) override;
  void flush() override { writer_.flush(); }
  std::vector<BlockTarget>& land() override { return payload_.land(); }
  void swallow() override { payload_.swallow(); }
  ClientPath inline_path() const override { return inline_path_; }
  void verified(std::size_t bytes) override { turn_bytes_ += bytes; }
  std::uint32_t region_handle(const LentMemory::Region& region) const override { return regions_.handle(region); }
  std::uint32_t lanes_for(const LentMemory::Region& region) const override { return regions_.lanes_for(region); }
  void cut_lanes(std::uint32_t lanes) override {
    if (lanes_ && lanes != 0) lanes_->cut(lanes);
  }
  void give_up(std::string why) override { end(Errc::kUnavailable, std::move(why), Node::kMayWrite); }
  void abandon(Call& call, error_code why) override;
  void forget(Call& call) override;

 private:
  enum class State : std::uint8_t {
    kHello,  ///< Waits for the node's hello.
    kUp,
    kDraining,  ///< Has ended; waits for the node, which may still write to quarantined memory, to close.
    kEnded
  };
  /// Whether the node may still write to lent memory when the session ends.
  enum class Node : std::uint8_t { kMayWrite, kHasClosed };

  // From its parts.
  void open_ended(std::uint32_t space, error_code why, const std::string& text) override;
  void lend_ended() override;
  void message_came(std::span<const std::byte> message) override;
  void messages_broke(error_code why) override;
  bool may_try_messages() const override { return listener_ != nullptr && listener_->may_try_messages(); }

  static asio::awaitable<void> read_loop(std::shared_ptr<LinkSession> self);
  static asio::awaitable<void> write_loop(std::shared_ptr<LinkSession> self);
  asio::awaitable<void> read_frames();
  asio::awaitable<void> drain_stream();
  bool stream_has_ended();
  bool dispatch(const FrameReader::Frame& frame);
  bool dispatch_message(const FrameReader::Frame& frame);
  Failure send_hello();
  bool on_hello(const FrameReader::Frame& frame);
  bool on_part(const FrameReader::Frame& frame, Call& call);
  bool on_error_frame(const FrameReader::Frame& frame, const LinkRequests::Entry* entry);
  void answered(const LinkRequests::Entry& entry, error_code why, std::string text);
  bool violation(std::string what);
  std::uint64_t take_entry(FrameType type, Call* call, std::size_t load_bytes);
  void end(error_code why, std::string text, Node node);
  bool has_stopped() const { return state_ == State::kDraining || state_ == State::kEnded; }
  void close_if_retired();
  void flush_soon();
  std::uint64_t bytes_received() const { return reader_.bytes_taken() + message_bytes_; }

  std::shared_ptr<ClientShared> shared_;
  Listener* listener_;  ///< nullptr once notified of the end.
  std::unique_ptr<Stream> stream_;
  const ClientPath inline_path_;
  FrameReader reader_;
  FrameWriter writer_;
  State state_ = State::kHello;
  bool is_retired_ = false;
  LinkTerms terms_;
  std::string violation_;

  LinkRequests requests_;
  LinkPayload payload_;
  SilenceWatch silence_;
  LinkSpaces spaces_;
  LinkRegions regions_;
  std::unique_ptr<LinkLanes> lanes_;  ///< nullptr: without RDMA.
  bool lost_messages_ = false;
  std::uint64_t message_bytes_ = 0;  ///< Received by SEND.
  std::vector<std::byte> message_;   ///< Being sent.
  std::size_t turn_bytes_ = 0;       ///< Verified since the last yield.
  bool flush_posted_ = false;
};

}  // namespace kv
