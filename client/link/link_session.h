// client/link/link_session.h: one connection to a node: requests out, each frame that comes back checked and given to
// its call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/link/deadline_queue.h"
#include "client/link/lent_memory.h"
#include "client/link/link_lanes.h"
#include "client/link/verbs_lender.h"
#include "transport/block_sink.h"
#include "transport/frame_reader.h"
#include "transport/frame_writer.h"
#include "transport/wire_generated.h"

namespace kv {

class Call;
class LinkSession;
class NodeLink;

/// What all links and sessions of a client share. They hold it by shared_ptr, since their coroutines end a little later
/// than the client; after DeadlineQueue::close() nothing touches `network` or `clock` again.
struct ClientShared {
  ClientShared(asio::any_io_executor e, ClientConfig c, Network& n, Clock& k, verbs::Provider* v);
  ~ClientShared();

  asio::any_io_executor executor;
  ClientConfig config;
  Network& network;
  Clock& clock;
  DeadlineQueue deadlines;
  LentMemory memory;
  VerbsLender verbs;
  flatbuffers::FlatBufferBuilder builder{4096};  ///< For the request being built; no one keeps it over a suspension.
  std::mt19937_64 random;
  struct SpaceInfo {
    NamespaceRecord record;
    NamespaceId id;
  };
  std::vector<std::unique_ptr<const SpaceInfo>> spaces;  ///< By Space.
  std::size_t call_count = 0;                            ///< Verbs in progress, at most calls_max.
  std::vector<std::unique_ptr<Call>> idle_gets;          ///< GetCall objects with their memory, for the next get.
};

/// Wakes the coroutine of a verb that asked several nodes.
struct CallGroup {
  explicit CallGroup(const asio::any_io_executor& executor) : event(executor) {}
  Event event;              ///< Set whenever one of the calls made progress or ended.
  std::size_t running = 0;  ///< Calls that have not ended.
};

/// One request to one node, from NodeLink::start() to its end: a last frame, an error, or its deadline. Owned by who
/// starts it; detaches itself when destroyed. on_end() is called exactly once per start, by the end of the deadline.
class Call : public DeadlineEntry {
 public:
  static constexpr std::uint32_t kNoSpace = ~std::uint32_t{0};

  ~Call() override;

  // What NodeLink has to arrange before the request can be sent. Set before start().
  FrameType type{};
  std::uint32_t space = kNoSpace;               ///< Opened first.
  std::shared_ptr<LentMemory::Region> region;   ///< Lent first; reset if the node cannot have it: then inline.
  std::shared_ptr<LinkSession> session_wanted;  ///< Only this session will do (leases); any other if it has ended.
  std::size_t data_bytes = 0;                   ///< That the call will move: spreads calls over sessions.
  CallGroup* group = nullptr;                   ///< Told of the end.

  // After the end.
  bool ended = true;
  error_code error;        ///< None if the last frame came and was no error.
  std::string error_text;  ///< Of an error frame.

 protected:
  Call() = default;

  /// Queues the request's frames on `session`, where request_id() is valid now. Errors end the call (a request that is
  /// over a limit of the node, for example).
  virtual error_code send(LinkSession& session) = 0;
  /// A frame that more will follow, and its payload if it has one: then session.land() must be told where.
  /// Returns an empty string, or what is wrong with the frame, which ends the session.
  virtual std::string on_more(LinkSession& session, const FrameReader::Frame& frame);
  /// The payload has landed as far as `sink` says; or, at the deadline, will not land further.
  virtual void on_payload(const BlockSink& sink) { (void)sink; }
  /// The last frame, no error. Returns as on_more.
  virtual std::string on_last(const FrameReader::Frame& frame) = 0;
  /// The call leaves `session`, to end or to be sent again: nothing of the caller's memory may stay with it. Before
  /// on_end(), and as often as the call was sent.
  virtual void on_leave(LinkSession& session) { (void)session; }
  /// The call has ended; `session` is where it was sent, or nullptr. It may be started again from here.
  virtual void on_end(LinkSession* session) { (void)session; }
  /// Memory that the node may still write when the call ends now.
  virtual std::vector<std::span<const std::byte>> unfinished_destinations() const { return {}; }

  std::uint64_t request_id() const { return request_id_; }
  // Within send(): what the request says of its namespace.
  std::uint32_t space_handle() const { return handle_; }
  std::uint64_t space_check() const;
  LinkSession* session() const { return session_; }  ///< nullptr before it is sent and after its end.

 private:
  friend class LinkSession;
  friend class NodeLink;
  void on_deadline() final;
  void end(error_code why);  ///< Requires: out of link's queue and of the session's slots.

  NodeLink* link_ = nullptr;
  LinkSession* session_ = nullptr;  ///< While it is sent and not ended.
  std::uint64_t request_id_ = 0;
  std::uint32_t handle_ = 0;  ///< Of `space` on this session, as sent.
  bool has_begun_ = false;    ///< A part of the answer came: it is not sent again.
  bool answered_ = false;     ///< Ended by a last frame of its own.
  bool retried_ = false;
};

/// One connection to a node. Every byte that comes is the node's word and is checked before use; a frame that breaks
/// the protocol ends the session, and its calls fail with kBadFrame.
///   1. Each request ends with exactly one frame without kFrameMore, or with the session. A call that has left the
///      session, to end or to be sent on another, has left nothing of its caller's memory with it.
///   2. A call that passed its deadline is completed at once; its slot is kept, its bytes are swallowed, and its
///      unfinished destinations in lent memory are quarantined until its last frame or until the node has closed the
///      connection. With RDMA the session can end it by itself, and does when it ends: it cuts its lanes.
/// Thread safety: none; on the client's executor. Two coroutines, reader and writer, hold it until the stream ends.
class LinkSession : public std::enable_shared_from_this<LinkSession> {
 public:
  LinkSession(std::shared_ptr<ClientShared> shared, NodeLink& link, std::unique_ptr<Stream> stream);
  ~LinkSession();

  void start();  ///< Sends hello; NodeLink::session_up() follows, or session_ended().
  void close();  ///< By our own wish. No word to the link.

  /// Gives `call` a request id and lets it queue its frames. Requires can_take_call(). Ends it if it cannot be sent.
  void send_call(Call& call);
  bool can_take_call() const { return is_up_ && !ended_ && !retired_ && in_flight_ < requests_max_; }
  /// A request whose answer nobody waits for; dropped if the session is full.
  void send_and_forget(FrameType type, flatbuffers::FlatBufferBuilder& builder);

  // For Call::send and Call::on_more.
  /// Sends the table that `builder` has finished. `payload` and all after it as FrameWriter::send has them.
  void send_frame(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                  std::span<const std::span<const std::byte>> payload = {}, std::function<void(bool)> done = nullptr,
                  int fd = -1, const void* owner = nullptr);
  /// The same for a request without payload, whose answer has no payload and at most `answer_bytes` in its tables, and
  /// whose order among other requests does not matter: it goes by SEND if it can.
  void send_small(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                  std::size_t answer_bytes);
  void flush() { writer_.flush(); }
  /// Where the payload of the frame given to Call::on_more goes; the session keeps the list.
  std::vector<BlockTarget>& land();
  void swallow() { swallowing_ = true; }  ///< Instead: the payload goes nowhere.
  /// So many bytes were verified where they lie: others on the executor get a turn before the next frame.
  void verified(std::size_t bytes) { turn_bytes_ += bytes; }
  void send_cancel(std::uint64_t request_id);
  FrameWriter& writer() { return writer_; }
  ClientShared& shared() { return *shared_; }
  std::uint32_t table_bytes_max() const { return table_bytes_max_; }
  std::uint32_t chain_blocks_max() const { return chain_blocks_max_; }

  // Namespaces. A handle is this session's: another session, or another life of the node, means another by it.
  enum class Opened { kNo, kPending, kYes };
  Opened opened(std::uint32_t space) const {
    return space < spaces_.size() && spaces_[space] ? state_of(*spaces_[space]) : Opened::kNo;
  }
  /// Asks the node; NodeLink::open_ended() follows. Does nothing if it is open or being opened, if the session is full,
  /// or if it failed a short while ago and `must` is false.
  void open(std::uint32_t space, bool must);
  bool can_open(std::uint32_t space) const;               ///< Or its record is over the node's limit.
  std::uint32_t space_handle(std::uint32_t space) const;  ///< Requires opened() == kYes.
  /// The node no longer takes the handle; without one: whichever it is. False: it was forgotten before.
  bool forget_space(std::uint32_t space, std::optional<std::uint32_t> handle = std::nullopt);

  // Lent memory.
  enum class Lent {
    kNotNow,   ///< By RDMA: devices are being opened, memory registered, lanes connected. Calls go inline.
    kPending,  ///< The node is being asked; NodeLink::pump() is called when that is decided.
    kYes,
    kRefused
  };
  /// Asks for `region` to be lent if it was not.
  Lent lend(const std::shared_ptr<LentMemory::Region>& region);
  /// The node says that these are not up on its side: their memory is ours from here on.
  void cut_lanes(std::uint32_t lanes) {
    if (lanes_ && lanes != 0) lanes_->cut(lanes);
  }
  void on_message(std::span<const std::byte> message);  ///< Answers came by SEND.
  void messages_broke(error_code why);                  ///< Ends the session.
  bool may_try_messages() const;
  std::uint32_t lanes_up() const { return lanes_ ? lanes_->up() : 0; }  ///< Bit i: lane i.
  /// Those of them that the node may use for `region`, which is lent; 0 without RDMA.
  std::uint32_t lanes_for(const LentMemory::Region& region) const;
  std::string lanes_why() const;  ///< Why not all are up. Empty: they are, or were not tried.
  /// For a request that the session itself makes. Requires can_take_call().
  void start_own(Call& call, Duration limit);
  std::uint32_t region_handle(const LentMemory::Region& region) const;  ///< Requires lend() == kYes.
  void take_back(const LentMemory::Region& region);

  /// No new calls; closes once its calls have ended and no quarantine hangs on it.
  void retire();
  /// Ends the session at once, as if it had broken.
  void give_up(std::string why) { end(Errc::kUnavailable, std::move(why), /*node_closed=*/false); }
  /// Whether requests are waiting and no whole frame, and no byte of a payload, came for `silence_max`.
  bool is_silent(TimePoint now, Duration silence_max) const;
  bool lost_messages() const { return lost_messages_; }

  const std::string& node_id() const { return node_id_; }
  std::uint8_t version() const { return version_; }  ///< Of the wire, agreed at hello. 0 before.
  /// Of the node: another one after each start, where node_id() is the same. Zeros from a node that speaks version 1.
  const std::array<std::byte, kInstanceBytes>& instance() const { return instance_; }
  bool is_same_life(const LinkSession& other) const {
    return node_id_ == other.node_id_ && instance_ == other.instance_;
  }
  bool is_up() const { return is_up_ && !ended_; }
  bool has_ended() const { return ended_ && !draining_; }
  std::size_t load_bytes() const { return load_bytes_; }
  bool has_lent_memory() const;  ///< Of kind memfd.

 private:
  friend class Call;
  class Open;
  struct OpenedSpace;
  class RegionAdd;
  struct LentRegion;
  struct Slot {
    std::uint32_t generation = 0;
    bool in_use = false;
    FrameType type{};
    Call* call = nullptr;  ///< nullptr: nobody waits for it any more.
    std::size_t load_bytes = 0;
    bool is_message = false;  ///< The request went by SEND.
    std::optional<LentMemory::QuarantineId> quarantine;
  };

  static asio::awaitable<void> read_loop(std::shared_ptr<LinkSession> self);
  static asio::awaitable<void> write_loop(std::shared_ptr<LinkSession> self);
  asio::awaitable<void> read_frames();
  asio::awaitable<void> drain_stream();
  bool stream_has_ended();
  Lent lend_by_verbs(const std::shared_ptr<LentMemory::Region>& region);
  Lent add_region(const std::shared_ptr<LentMemory::Region>& region);
  static Opened state_of(const OpenedSpace& space);
  LentRegion* find_lent(const LentMemory::Region& region) const;
  void remove_region(LentRegion& lent);
  bool dispatch(const FrameReader::Frame& frame);
  bool begin_payload(const FrameReader::Frame& frame, Call& call);
  bool on_hello(const FrameReader::Frame& frame);
  bool on_error_frame(const FrameReader::Frame& frame, Slot* slot);
  bool violation(std::string what);
  void abandon(Call& call);  ///< The caller of `call` waits no longer: its deadline has come.
  void forget(Call& call);   ///< The same for a call that is being destroyed.
  std::uint64_t take_slot(FrameType type, Call* call, std::size_t load_bytes);
  Slot* find_slot(std::uint64_t request_id);
  void free_slot(Slot& slot);
  void end(error_code why, std::string text, bool node_closed);
  void close_if_retired();
  void flush_soon();
  std::uint64_t bytes_received() const { return reader_.bytes_taken() + message_bytes_; }

  std::shared_ptr<ClientShared> shared_;
  NodeLink* link_;  ///< nullptr once it is told of the end.
  std::unique_ptr<Stream> stream_;
  FrameReader reader_;
  FrameWriter writer_;

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::size_t in_flight_ = 0, active_ = 0;  ///< Slots in use; those with a call.
  std::size_t quarantine_count_ = 0, load_bytes_ = 0;
  std::vector<std::unique_ptr<OpenedSpace>> spaces_;  ///< By Space; nullptr: not asked for yet.
  std::vector<std::unique_ptr<LentRegion>> lent_;
  std::unique_ptr<LinkLanes> lanes_;  ///< nullptr: no RDMA with this node.
  std::size_t message_count_ = 0;     ///< Slots in use whose request went by SEND.
  bool messages_are_late_ = false;    ///< One of them missed its deadline, and nothing came by SEND since.
  bool lost_messages_ = false;        ///< The session ended, perhaps, for its lane for messages.
  std::uint64_t message_bytes_ = 0;   ///< That came by SEND.
  std::vector<std::byte> message_;    ///< Being sent.

  std::size_t turn_bytes_ = 0;  ///< Verified since others had a turn.
  std::vector<BlockTarget> targets_;
  std::optional<BlockSink> sink_;
  Call* payload_call_ = nullptr;  ///< Whose payload is arriving.
  bool landing_ = false;          ///< sink_ takes the payload of this frame.
  bool swallowing_ = false;       ///< Nobody does.

  std::string node_id_, violation_;
  std::uint8_t version_ = 0;
  std::array<std::byte, kInstanceBytes> instance_{};
  std::uint32_t table_bytes_max_ = 4096, chain_blocks_max_ = 0, requests_max_ = 0;
  std::uint64_t region_bytes_max_ = 0, lent_bytes_ = 0;
  // Silence, looked at only when a call misses its deadline: no byte since quiet_since_ if bytes_received() is
  // bytes_seen_.
  TimePoint quiet_since_{};
  std::uint64_t bytes_seen_ = 0;
  bool is_up_ = false, ended_ = false, retired_ = false, draining_ = false, flush_posted_ = false;
};

}  // namespace kv
