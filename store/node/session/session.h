// store/node/session/session.h: one client's session: reads requests, decides under the Store's lock, moves bytes
// outside it, answers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/event.h"
#include "store/node/locked_store.h"
#include "store/node/log_limit.h"
#include "store/node/metrics.h"
#include "store/node/session/lent_regions.h"
#include "store/node/session/session_lanes.h"
#include "store/node/session/session_table.h"
#include "store/node/session/session_wire.h"
#include "store/node/session/space_handles.h"
#include "store/node/spill/spill.h"
#include "store/store.h"
#include "transport/block_sink.h"
#include "transport/frame_reader.h"
#include "transport/frame_writer.h"
#include "transport/stream.h"

namespace kv {

/// What one session may ask for. Told to the client at hello, as far as it can act on it.
struct SessionLimits {
  std::uint32_t table_bytes_max = 4 << 20;
  std::uint64_t payload_bytes_max = 1ull << 30;  ///< Of one PutData; and so of a block.
  std::uint32_t requests_max = 1024;             ///< Gets being moved and puts, in flight.
  std::uint64_t region_bytes_max = 64ull << 30;  ///< Lent by one session.
  std::uint32_t region_count_max = 256;
  std::uint64_t queued_bytes_max = 64 << 20;  ///< Answers not yet taken by the client; then no further request is read.
  Duration hello_timeout = 10s;
  Duration frame_timeout = 5s;   ///< For a header and table to arrive, and for each further 64 KiB of payload.
  Duration write_timeout = 30s;  ///< Without the client taking a byte.
  /// A client that takes less a second of what is queued for it, over write_timeout, loses its session; 0: no bound.
  std::uint64_t read_rate_min = 1 << 20;
  Duration get_timeout = 120s;  ///< From request to last byte; then it is ended as if cancelled.
  // Of a get whose bytes follow its answer: what goes into one frame, is queued ahead of the socket, is pinned ahead.
  std::uint64_t inline_frame_bytes = 8 << 20;  ///< At least one block.
  std::uint64_t inline_ahead_bytes = 16 << 20;
  std::uint64_t inline_window_bytes = 64 << 20;  ///< Or 1/16 of what was asked for, if that is more.
  Duration put_timeout = 30s;                    ///< From offer to last byte; staged memory is freed then.
  Duration put_wait_max = 5s;                    ///< For memory, whatever the client asks for.
  Duration spill_wait = 50ms;                    ///< A put waits so long for the disk before blocks are lost for it.
  Duration drop_wait = 2s;  ///< For the disk to keep a drop; then the answer says that it holds until the next start.
  Duration disk_timeout = 2s;  ///< For each block of a get that is on disk; then the answer ends before it.
};

/// What all sessions of a node share. Outlives them.
struct NodeContext {
  LockedStore& store;
  Clock& clock;
  NodeMetrics& metrics;
  SessionLimits limits;
  std::uint32_t chain_blocks_max = 65536;
  Duration lease_duration = 10s;
  std::string node_id;    ///< For people: the same in every life.
  InstanceId instance{};  ///< Of this life.
  TimePoint started{};
  std::atomic<bool> draining{false};
  Spill* spill = nullptr;                  ///< nullptr: no disk tier.
  std::atomic<VerbsNode*> verbs{nullptr};  ///< nullptr: no RDMA, so far.
  LogLimit log;
  std::unique_ptr<LentRegions> lent = std::make_unique<LentRegions>();
  NodeHandles handles{};  ///< Of sessions that speak version 1.
};

/// Nothing that the peer sends is trusted: each length, count, offset and handle is checked before it is used.
///   1. A slot stays pinned (get) or staged (put) until no move touches it.
///   2. The stream is closed only after the last copy into or out of the session's regions: a client that sees the end
///      of the stream may reuse the memory it lent, of kind verbs once it has ended its own queue pairs.
///   3. Memory held for a session is bounded by SessionLimits.
///   4. A request is carried out in the namespace that the client means: under a handle that this session opened, and
///      with the check of that namespace (version 2 of the wire).
/// Thread safety: none; all calls on the executor.
class Session final : public std::enable_shared_from_this<Session> {
 public:
  /// `verbs`: of the thread that the executor runs on; nullptr: no RDMA.
  Session(NodeContext& node, SessionId id, std::unique_ptr<Stream> stream, asio::any_io_executor executor,
          std::shared_ptr<VerbsThread> verbs = nullptr);
  ~Session();
  /// Before run(): its place among the node's sessions, which it leaves when it ends. The table outlives it.
  void sit(SessionTable& table, std::shared_ptr<SessionTable::Seat> seat);

  /// Serves until the peer leaves, breaks a rule or terminate() is called; then everything of the session is released.
  asio::awaitable<void> run();
  /// Ends the session as soon as no copy is running.
  void terminate(SessionEnd why);
  void terminate_if_idle();  ///< terminate(kDrained), unless a transfer is in progress.

 private:
  using Frame = FrameReader::Frame;

  /// Memory that the client lent. Lives until removed and no job uses it.
  struct Lent {
    std::uint64_t bytes = 0;
    std::shared_ptr<LentRegions::Loan> mapped;  ///< Of kind memfd.
    TimePoint looked{};                         ///< For holes that were punched since it was lent.
    std::vector<RemoteSlice> slices;            ///< Of kind verbs.
    std::uint32_t lanes = 0;                    ///< Bit i: lane i has keys for it.
    std::size_t user_count = 0;                 ///< Jobs that copy, and moves.
    std::uint64_t removal_request = 0;          ///< Answered when the last user is gone.
    bool removing = false;
  };

  /// A block of a get, ready to go: in the arena, or read from disk.
  struct ReadyBlock {
    std::span<const std::byte> bytes;
    std::span<const std::uint64_t> checksums;
    std::shared_ptr<const void> owner;  ///< Of what was read from disk.
  };

  /// Some blocks of one segment.
  struct Part {
    std::size_t segment = 0, first = 0, count = 0;
    bool is_inline = true;
    const void* move_owner = nullptr;  ///< Of the move by RDMA into the region, until it ends.
  };

  struct GetJob {
    std::uint64_t request_id = 0;
    TimePoint began;
    SpaceId space{};
    NamespaceId space_name{};
    std::uint64_t block_bytes = 0;
    TimePoint deadline = TimePoint::max();  ///< Of the client: for what is on disk.
    std::vector<BlockHash> hashes;          ///< Only if some blocks are on disk, or in windows, or in version 1.
    Store::GetOptions options;
    std::shared_ptr<Store::PinnedPrefix> prefix;
    std::shared_ptr<void> pins;  ///< The prefix is unpinned when all who move its bytes have let this go.
    std::shared_ptr<void> life;  ///< Held by the pins of all windows: the get is observed when its last byte has left.
    bool has_more_windows = false;
    bool is_inline = false;          ///< Its bytes follow its answer.
    bool goes_at_once = false;       ///< All of it is queued, whatever is queued already.
    std::vector<ReadyBlock> blocks;  ///< In order, as far as they are ready.
    bool is_complete = true;         ///< No more will be.
    bool is_prefetch = false;        ///< Only brings blocks from disk to memory.
    std::vector<std::uint64_t> segment_ends;
    std::shared_ptr<Lent> region;        ///< Null: inline.
    std::vector<std::uint64_t> offsets;  ///< In the region, one per block.
    std::uint32_t lanes = 0;             ///< Bit i: lane i may be used; of a verbs region.
    std::size_t segment = 0, block = 0;  ///< Next to deliver.
    bool is_late = false;                ///< It took longer than get_timeout.
    std::deque<Part> parts;              ///< Begun and not told of yet: their marks go out in order.
    std::uint64_t moving_bytes = 0;      ///< Of `parts`.
    std::uint64_t read_bytes = 0;        ///< Read from disk and not told of.
    std::size_t move_count = 0;          ///< That have not ended.
    SessionLanes::Outcome outcome;       ///< Of moves that failed.
    bool cancelled = false;
    bool failed = false;    ///< Some of it did not leave.
    bool met_hole = false;  ///< In the region: its memory was taken out after it was lent.
    Event* wake = nullptr;  ///< While it waits, for the disk or for moves.

    std::uint64_t segment_begin(std::size_t i) const { return i == 0 ? 0 : segment_ends[i - 1]; }
    std::uint64_t segment_bytes(std::size_t i) const { return segment_ends[i] - segment_begin(i); }
    /// On to the next segment, if this one is delivered whole. Also when the disk had nothing to add to what was.
    void end_segment() {
      if (!is_complete || block < blocks.size()) return;
      block = 0;
      ++segment;
    }
  };
  struct DiskReads;

  /// To a request that came as a message.
  struct MessageAnswer {
    std::vector<std::byte> frames;  ///< So far.
    SessionLanes::Cargo cargo;
    bool goes_by_stream = false;
  };

  struct PutJob {
    std::uint64_t request_id = 0;
    TimePoint began, deadline;
    TimePoint spill_deadline{};  ///< From then on blocks that the disk does not have yet may be evicted.
    std::uint64_t block_bytes = 0;
    std::size_t hash_count = 0;
    NamespaceId space_name{};       ///< With `hashes`.
    std::vector<BlockHash> hashes;  ///< Only in a session of version 1: its seeds are in `plan`.
    Store::OfferPlan plan;
    std::shared_ptr<void> staged;  ///< The put is over, and its slots free, when all who fill them have let this go.
    std::size_t announced = 0;     ///< Staged blocks whose data the client has said to be there.
    std::size_t committed = 0;     ///< Of them: done with, in order.
    std::uint32_t stored = 0, already_stored = 0, refused_late = 0;
    std::shared_ptr<Lent> region;            ///< Null: inline.
    std::vector<std::uint64_t> offsets;      ///< In the region, one per hash.
    std::uint32_t lanes = 0;                 ///< Bit i: lane i may be used; of a verbs region.
    BlockSink* sink = nullptr;               ///< While a payload is being read into staged slots.
    std::shared_ptr<const void> move_owner;  ///< Of all moves of this put; holds `staged`.
    std::shared_ptr<Event> last_drain;       ///< Set when the data announced last has been taken from a verbs region.
    bool is_waiting = true;                  ///< For memory; PutWant not sent yet.
    bool is_over = false;
  };

  asio::awaitable<bool> handle(const Frame& frame);  ///< False: the session is over.
  void serve(const Frame& frame);                    ///< What needs no bytes besides the frame's.
  void on_message(std::span<const std::byte> message);
  void on_lane_broken(std::uint32_t lane, error_code why);
  bool on_hello(const Frame& frame);
  void on_open(const Frame& frame);
  void on_match(const Frame& frame);
  void on_get(const Frame& frame);
  void on_put(const Frame& frame);
  asio::awaitable<bool> on_put_data(const Frame& frame);
  void on_cancel(const Frame& frame);
  void on_release(const Frame& frame);
  void on_prefix(const Frame& frame);  ///< touch, pin, unpin, drop
  void answer_drop(std::uint64_t request_id, std::size_t count, const DiskDrop& drop);
  void end_drop(std::uint64_t number, bool is_kept);
  void on_region_add(const Frame& frame);
  void region_is_ready(std::uint64_t request_id, std::shared_ptr<Lent> region, std::optional<std::uint64_t> hole);
  void on_region_remove(const Frame& frame);
  void on_verbs_connect(const Frame& frame);
  /// The slices of a region of kind verbs; empty after refusing the request.
  std::vector<RemoteSlice> read_slices(const Frame& frame, const wire::RegionAddRequest& request);
  void on_stats(const Frame& frame);

  /// Pins the longest prefix for `job`. False after refusing the request.
  bool pin(const Frame& frame, const std::shared_ptr<GetJob>& job, std::span<const BlockHash> hashes,
           const Store::GetOptions& options, bool in_windows = false);
  /// Pins up to the end of the next window, and all above: what is above a block that is being sent cannot be evicted
  /// anyway. It is what comes after that a slow reader must not hold.
  error_code pin_window(const std::shared_ptr<GetJob>& job, std::span<const BlockHash> hashes);
  /// Delivers up to a mark's worth of what is ready, or begins to; false when nothing more can be now.
  bool deliver_some(const std::shared_ptr<GetJob>& job);
  void begin_move(const std::shared_ptr<GetJob>& job, Part& part);
  static std::vector<Placement> placements(const GetJob& job, const Part& part);
  void stop_moves(const GetJob& job);
  /// Of these, those that the client believes to be up and that are not: it is told with every last frame.
  std::uint32_t broken_lanes(std::uint32_t lanes) const { return lanes_ ? lanes & ~lanes_->up() : 0; }
  void write_sums(const GetJob& job, const Part& part, std::uint64_t* sums);
  void use_seeds_v1(PutJob& job);
  void tell_of_parts(const std::shared_ptr<GetJob>& job);
  void tell_of(const std::shared_ptr<GetJob>& job, const Part& part);
  static asio::awaitable<void> deliver(std::shared_ptr<Session> self, std::shared_ptr<GetJob> job);
  asio::awaitable<void> read_from_disk(const std::shared_ptr<GetJob>& job);
  void start_read(const std::shared_ptr<DiskReads>& reads, const GetJob& job, std::size_t i);
  void promote(const GetJob& job, std::size_t block_count, const DiskBlock& last);
  void prefetch(const Frame& frame, const OpenSpace& space, std::span<const BlockHash> hashes);
  asio::awaitable<void> deliver_pinned(std::shared_ptr<GetJob> job);
  bool has_undelivered(const GetJob& job) const;
  /// So much may be queued before a get waits with its next frame; more would keep a cancel from being read.
  std::uint64_t ahead_bytes_max() const {
    return std::min<std::uint64_t>(node_.limits.inline_ahead_bytes, node_.limits.queued_bytes_max / 2);
  }
  void cancel(GetJob& job);
  void finish_get(const std::shared_ptr<GetJob>& job);

  static asio::awaitable<void> finish_drop(std::shared_ptr<Session> self, std::uint64_t request_id, std::size_t count,
                                           DiskDrop drop);
  static asio::awaitable<void> wait_for_memory(std::shared_ptr<Session> self, std::shared_ptr<PutJob> job);
  void send_want(PutJob& job);
  bool is_draining_enough() const;  ///< No more is announced until something has been fetched.
  asio::awaitable<bool> drain(std::shared_ptr<PutJob> job, std::uint32_t count, std::vector<std::uint64_t> claimed);
  static asio::awaitable<void> drain_by_verbs(std::shared_ptr<Session> self, std::shared_ptr<PutJob> job,
                                              std::size_t first, std::size_t count, std::vector<std::uint64_t> claimed);
  asio::awaitable<std::size_t> verify(const PutJob& job, std::size_t first, std::size_t count,
                                      std::span<const std::uint64_t> claimed);
  void commit(PutJob& job, std::size_t good, std::size_t count, std::span<const std::uint64_t> claimed);
  void finish_put(PutJob& job);
  void fail_put(PutJob& job, Errc code, std::string message, std::uint32_t broken = 0);

  /// Queues an answer whose table `build` makes with the builder it is given.
  template <class Build>
  void reply(FrameType type, std::uint64_t request_id, std::uint16_t flags, Build&& build,
             std::span<const std::span<const std::byte>> payload = {}, std::function<void(bool)> done = nullptr,
             const void* owner = nullptr);
  /// Keeps a frame that answers a message, and sends them all with the last. False: it goes by the stream, as then do
  /// those that were kept.
  bool answer_by_message(const FrameHeader& header, std::span<const std::byte> table, bool has_payload);
  void stream_answer(MessageAnswer& answer);
  /// Whether the blocks of this get go right before its answer, which then is made at once.
  bool send_with_answer(const std::shared_ptr<GetJob>& job);
  /// Queues an error as the last answer.
  void refuse(FrameType type, std::uint64_t request_id, error_code code, const std::string& message,
              std::uint32_t broken = 0);
  /// The namespace that a request is about, or nullptr after refusing the request. Valid until the next call.
  const OpenSpace* find_space(const Frame& frame, std::uint32_t handle, std::uint64_t check);
  /// Checks what get and put say about a region; false after refusing the request.
  bool check_target(const Frame& frame, std::uint32_t region, std::size_t hash_count,
                    std::span<const std::uint64_t> offsets, std::uint64_t block_bytes);
  void release(const std::shared_ptr<Lent>& region);
  /// Whether memory was taken out of a memfd since it was lent: what is touched there would become the node's.
  bool has_hole(Lent& region);
  void unmap(Lent& region);
  void job_ended();
  void close_stream();
  void watch();  ///< Runs every so often: ends what takes too long.
  void cancel_jobs();
  bool is_idle() const;  ///< Nobody loses anything if it ends.
  void make_room();
  template <class Make>
  void warn(LogKind kind, Make&& make) {
    node_.log.warn(kind, node_.clock.now(), [&] {
      return "session " + std::to_string(static_cast<std::uint64_t>(id_)) + " of '" + identity_ + "' (" +
             stream_->peer() + "): " + make();
    });
  }

  NodeContext& node_;
  SessionId id_;
  asio::any_io_executor executor_;
  std::unique_ptr<Stream> stream_;
  FrameReader reader_;
  FrameWriter writer_;
  std::unique_ptr<SessionLanes> lanes_;  ///< nullptr: no RDMA.
  std::unique_ptr<Alarm> alarm_;
  Event jobs_done_;
  std::string identity_;
  SessionTable* table_ = nullptr;
  std::shared_ptr<SessionTable::Seat> seat_;
  TimePoint last_request_{}, lease_until_{}, idle_told_{};
  bool greeted_ = false;
  std::uint8_t version_ = 0;  ///< Of the wire, agreed at hello.
  bool ending_ = false;
  SessionEnd end_ = SessionEnd::kPeerClosed;
  std::size_t dropping_count_ = 0;  ///< Drops of many blocks under way.
  std::size_t job_count_ = 0;       ///< Coroutines and calls that still use this session's memory, slots or lanes.

  SessionSpaces spaces_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Lent>> regions_;
  std::uint32_t region_last_ = 0;
  std::size_t regions_coming_ = 0;  ///< Being prepared; their bytes are in region_bytes_.
  std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
  std::uint64_t region_bytes_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<GetJob>> gets_;  ///< By request id; those that copy.
  std::unordered_map<std::uint64_t, std::shared_ptr<PutJob>> puts_;  ///< By request id.
  std::vector<std::shared_ptr<GetJob>> prefetches_;
  std::unordered_map<std::uint64_t, MessageAnswer> by_message_;  ///< By request id, of those that came as messages.
  std::deque<std::uint64_t> streamed_answers_;  ///< Of these: where in the stream each ends that went so.
  std::size_t inline_count_ = 0;                ///< Gets that wait for the client to take their bytes.
  Event inline_ended_;
  std::uint64_t sending_count_ = 0;   ///< Gets whose bytes have not all left.
  std::uint64_t draining_bytes_ = 0;  ///< Of puts: announced, and on their way by RDMA or being verified.
  std::size_t drain_count_ = 0;
  Event drained_;
  std::map<std::uint32_t, std::string> lane_refusals_;  ///< Why, as the log has it; empty: it was connected.

  /// Answered once the disk has kept it, or has taken too long.
  struct PendingDrop {
    std::uint64_t request_id;
    std::size_t count;
    std::unique_ptr<Alarm> alarm;
  };
  std::map<std::uint64_t, PendingDrop> drops_;  ///< By the session's own number.
  std::uint64_t drop_last_ = 0;

  struct Progress {
    std::uint64_t bytes = 0;
    TimePoint since{};
  } read_progress_, write_progress_;  ///< `bytes` of the latter: what must have left by write_timeout from then.
};

template <class Build>
void Session::reply(FrameType type, std::uint64_t request_id, std::uint16_t flags, Build&& build,
                    std::span<const std::span<const std::byte>> payload, std::function<void(bool)> done,
                    const void* owner) {
  flatbuffers::FlatBufferBuilder& builder = cleared_builder();
  builder.Finish(build(builder));
  FrameHeader header;
  header.type = type;
  header.flags = static_cast<std::uint16_t>(kFrameResponse | flags);
  header.request_id = request_id;
  const auto table = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  if (!by_message_.empty() && answer_by_message(header, table, !payload.empty())) return;
  writer_.send(header, table, payload, std::move(done), -1, owner);
}

}  // namespace kv
