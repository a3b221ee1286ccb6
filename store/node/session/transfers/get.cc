// store/node/session/transfers/get.cc: a block enters as a hash. It is pinned in the arena (pin_window) or read from
// disk (read_from_disk), sent, copied or moved to the client (deliver_some), announced with its checksums (tell_of),
// and unpinned when its last byte is on its way.
#include "store/node/session/transfers/get.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "transport/frames/frame_message.h"

namespace kv {
namespace {

constexpr std::uint64_t kMovingBytesMax = 16 << 20;  ///< Of one get by RDMA: enough to keep several lanes busy.
/// With several segments every block is needed until the last: a get reads at most this much from disk, and ends there.
constexpr std::uint64_t kSegmentedBytesMax = 256 << 20;

}  // namespace

Get::Get(std::shared_ptr<SessionCore> session, const OpenSpace& space, std::uint64_t request_id,
         const wire::GetRequest& request, BlockPath path)
    : GetInProgress(session, space, FrameType::kGet, GetOrder(request_id, request, session->node), std::move(path)),
      block_bytes_(space.block_bytes),
      first_block_(request.first_block()),
      block_(first_block_) {
  const auto ends = numbers_of(request.segment_ends());
  segment_ends_.assign(ends.begin(), ends.end());
  if (segment_ends_.empty()) segment_ends_.push_back(block_bytes_);
  KV_ASSERT(segment_ends_.back() == block_bytes_);
  KV_ASSERT(first_block_ == 0 || (is_inline_ && is_streamed()));
}

Get::~Get() { KV_ASSERT(move_count_ == 0); }

Failure check_request(const wire::GetRequest& request, const OpenSpace& space, const NodeContext&) {
  const auto ends = numbers_of(request.segment_ends());
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const bool is_last = i + 1 == ends.size();
    if (ends[i] <= (i == 0 ? 0 : ends[i - 1]) || ends[i] > space.block_bytes ||
        (is_last ? ends[i] != space.block_bytes : ends[i] % kStripeBytes != 0)) {
      return {Errc::kBadRequest,
              fmt::format("segment_ends[{}]: {}, must increase in multiples of 65536 and end with block_bytes {}", i,
                          ends[i], space.block_bytes)};
    }
  }
  const std::size_t first = request.first_block(), count = hashes_of(request.hashes()).size();
  if (first == 0 || (first <= count && request.region() == 0 && ends.size() <= 1)) return {};
  return {Errc::kBadRequest,
          fmt::format("get.first_block: {} of {} hashes; goes with one segment, inline", first, count)};
}

// -- pinning

error_code Get::pin(std::span<const BlockHash> hashes) {
  // All blocks of a segmented get are needed until its last segment, and a region is filled at memory speed.
  has_more_windows_ = is_inline_ && is_streamed();
  // The first window takes all of a small get. A list beyond the limit is refused before it is copied.
  const bool needs_windows = has_more_windows_ && hashes.size() * block_bytes_ > node_.limits->inline_window_bytes;
  if (hashes.size() <= node_.chain_blocks_max && needs_windows) hashes_.assign(hashes.begin(), hashes.end());
  return first_pinned(pin_window(hashes));
}

/// Pins everything up to the end of the next window. Blocks above one that is being sent cannot be evicted anyway; a
/// slow reader must not hold the blocks after the window.
error_code Get::pin_window(std::span<const BlockHash> hashes) {
  // Each window walks the chain from its root, so their number is bounded for any length.
  constexpr std::size_t kWindowsMax = 16;
  const std::size_t length = std::max<std::size_t>(
      {node_.limits->inline_window_bytes / block_bytes_, hashes.size() / kWindowsMax, std::size_t{1}});
  const std::size_t before = blocks_.size();
  const TimePoint now = node_.clock.now();
  const bool is_last =
      !has_more_windows_ || hashes.size() - std::min(before, hashes.size()) <= length || hashes_.empty();
  auto pinned = node_.store.with(&in_flight_->about.phases, [&](Store& store) -> Result<PinnedPrefix> {
    if (!is_last) {
      ReadDesk::GetOptions options{.session = session_->id};
      options.is_part = true;
      auto part = store.pin_prefix(space_, hashes.first(before + length), options, now);
      if (!part || part->blocks.size() == before + length) return part;
      store.unpin(*part);  // memory ends within this window: the rest is on disk, or missing
    }
    has_more_windows_ = false;
    return store.pin_prefix(space_, hashes, {.session = session_->id, .lease = order_.lease, .disk = order_.disk}, now);
  });
  if (!pinned) return pinned.error();
  window_ = std::make_shared<Window>(in_flight_, node_.store, std::move(*pinned));
  const auto in_memory = window_->pins.blocks();
  const auto on_disk = window_->pins.on_disk();
  for (std::size_t i = before; i < in_memory.size(); ++i) {
    KV_ASSERT(in_memory[i].bytes.size() == block_bytes_);
    blocks_.push_back({in_memory[i].index, in_memory[i].bytes, in_memory[i].checksums, {}});
  }
  if (in_memory.size() > before) session_->access.moved((sent_of(in_memory.size()) - sent_of(before)) * block_bytes_);
  // If sent blocks have been dropped since, the blocks found now do not continue them.
  const bool goes_on = in_memory.size() >= before;
  has_more_windows_ = has_more_windows_ && goes_on;
  is_complete_ = (on_disk.empty() || !goes_on) && !has_more_windows_;
  if (!on_disk.empty() && hashes_.empty()) {
    const auto wanted = hashes.first(in_memory.size() + on_disk.size());
    hashes_.assign(wanted.begin(), wanted.end());
  }
  return {};
}

// -- the ways out

bool Get::send_with_answer(MessageAnswers& messages) {
  KV_ASSERT(in_flight_ && messages.contains(request_id()));
  // Answers that wait for the disk go by the stream: at the client's deadline a landed part counts only if announced.
  if (!is_complete_) messages.stream(request_id());
  const std::size_t count = blocks_.size();
  if (!is_complete_ || !path_.has_region() || path_.is_shared_memory() || count == 0 ||
      count > SessionRdma::kCargoBlocksMax || count * block_bytes_ > kMessageGetBytesMax || !is_streamed())
    return false;
  const std::uint64_t sums_bytes = count * stripe_count(block_bytes_) * sizeof(std::uint64_t);
  if (sums_bytes > kMessageBytesMax / 2) return false;  // the rest is ample for two tables
  const Part part{.segment = 0, .first = 0, .count = count, .way = Path::kVerbs};
  auto stretches = path_.cargo(placements(part));
  if (!stretches) return false;

  // Held until the device has sent the bytes: then the slots are reusable, and the region can be given back.
  struct CargoOwner {
    std::shared_ptr<SessionCore> session;
    BlockPath path;
    std::shared_ptr<Window> window;
    ~CargoOwner() {
      window.reset();
      path = {};
      session->writer.flush();  // the client may be waiting for its region
    }
  };
  const auto owner = std::make_shared<CargoOwner>();
  owner->session = session_;
  owner->path = path_;
  owner->window = window_;
  messages.add_cargo(request_id(), {std::move(*stretches), owner});
  tell_of(part);
  block_ = count;
  end_segment();
  finish();
  return true;
}

bool Get::send_at_once() {
  if (!is_complete_ || !goes_at_once(blocks_.size() * block_bytes_)) return false;
  is_at_once_ = true;
  deliver_all();
  finish();
  return true;
}

asio::awaitable<void> Get::deliver() {
  while (has_more_windows_) {
    co_await deliver_pinned();
    const bool is_over = is_stopped() || session_->writer.is_closed();
    if (is_over || pin_window(hashes_)) {  // a namespace that is gone ends the answer here
      has_more_windows_ = false;
      is_complete_ = true;
    }
  }
  if (is_inline_) co_await deliver_pinned();
  if (!is_complete_) co_await read_from_disk();
  complete();
  co_await deliver_pinned();
}

/// Marks the ready blocks as final, also when the disk had no more blocks to add.
void Get::complete() {
  is_complete_ = true;
  end_segment();
}

/// Moves on to the next segment, if this one is complete.
void Get::end_segment() {
  if (!is_complete_ || block_ < blocks_.size()) return;
  block_ = 0;
  ++segment_;
}

/// Delivers the ready blocks as fast as the client takes them.
asio::awaitable<void> Get::deliver_pinned() {
  Event moved(session_->executor);
  wake_ = &moved;
  while (true) {
    moved.reset();
    const bool more = deliver_some();
    session_->writer.flush();
    if (more) {
      co_await asio::post(session_->executor, asio::use_awaitable);  // others get a turn; a cancel is seen
    } else if (move_count_ > 0) {
      co_await moved.wait();
    } else if (!has_undelivered()) {
      break;
    } else if (session_->writer.queued_bytes() >= ahead_bytes_max()) {  // else the flush has made room just now
      co_await session_->writer.wait_for_room();
    }
  }
  wake_ = nullptr;
}

/// Whether more blocks wait only for the client or for a move under way.
bool Get::has_undelivered() const {
  return !is_stopped() && !session_->writer.is_closed() && segment_ < segment_ends_.size() && block_ < blocks_.size();
}

/// Appends readable blocks to blocks_; with one segment they are delivered as they come.
asio::awaitable<void> Get::read_from_disk() {
  const std::size_t on_disk_count = window_->pins.on_disk().size();
  const std::size_t count =
      is_streamed()
          ? on_disk_count
          : std::min<std::size_t>(on_disk_count, std::max<std::uint64_t>(1, kSegmentedBytesMax / block_bytes_));
  // The prefix's guard, sharing ownership of the window, which also counts the get.
  const std::shared_ptr<PinnedPrefixGuard> prefix(window_, &window_->pins);
  const std::size_t skipped = std::min(count, first_block_ - std::min(first_block_, blocks_.size()));
  blocks_.resize(blocks_.size() + skipped);  // counted, but not sent
  ReadAhead ahead(*session_, {space_, space_name_, NamespaceKind::kChain, hashes_}, prefix, count, skipped);
  wake_ = &ahead.progress();
  while (!ahead.is_at_end() && !is_stopped()) {
    ahead.start();
    if (is_streamed()) {
      deliver_all();
      session_->writer.flush();
      co_await session_->writer.wait_below(ReadAhead::kBytesMax);
    }
    const TimePoint until = std::min(node_.clock.now() + node_.limits->disk_timeout, order_.deadline);
    ahead.wake_at(until);
    const TimePoint waits_since = node_.clock.now();
    // Also while earlier reads wait for a move: a get may hold only this much.
    while ((!ahead.is_ready() || (is_streamed() && read_bytes_ >= ReadAhead::kBytesMax)) && !is_stopped() &&
           node_.clock.now() < until) {
      ahead.progress().reset();
      if (is_streamed()) {  // a landed move makes room for the next
        deliver_all();
        session_->writer.flush();
      }
      co_await ahead.progress().wait();
    }
    in_flight_->about.phases.disk += node_.clock.now() - waits_since;
    if (!ahead.is_ready() || is_stopped()) break;
    const std::uint32_t index = ahead.next_index();
    DiskBlock block;
    const ReadAhead::Taken taken = ahead.take(&block);
    if (taken == ReadAhead::Taken::kEnd) break;
    if (taken == ReadAhead::Taken::kAgain) continue;
    blocks_.push_back({index, block.bytes, block.checksums, block.owner});
    read_bytes_ += block_bytes_;
    session_->access.moved(block_bytes_);
    if (ahead.wants_promotion()) ahead.promote(block);
  }
  wake_ = nullptr;
}

/// The blocks from the next one on that go the same way in one step.
Get::Part Get::next_part() const {
  Part part{.segment = segment_, .first = block_};
  part.way = path_.way(/*is_in_arena=*/!blocks_[block_].owner);
  const std::uint64_t bytes_max = part.way == Path::kInline ? node_.limits->inline_frame_bytes : kMarkBytes;
  const std::size_t count_max = std::min<std::size_t>(blocks_.size() - part.first,
                                                      std::max<std::uint64_t>(1, bytes_max / segment_bytes(segment_)));
  do {
    ++part.count;
  } while (part.count < count_max && (part.way != Path::kVerbs || !blocks_[part.first + part.count].owner));
  return part;
}

/// Delivers up to a mark's worth of ready blocks, or begins to; false when it cannot continue now.
bool Get::deliver_some() {
  if (is_stopped() || segment_ == segment_ends_.size() || block_ >= blocks_.size() || moving_bytes_ >= kMovingBytesMax)
    return false;
  Part part = next_part();
  // Blocks from disk are bounded where they are read.
  if (part.way == Path::kInline && !is_at_once_ && !blocks_[part.first].owner &&
      session_->writer.queued_bytes() >= ahead_bytes_max())
    return false;
  if (part.way == Path::kMemfd && !copy(part)) {
    met_hole_ = true;
    return false;
  }
  const std::size_t count = part.count;
  const bool is_move = part.way == Path::kVerbs;
  parts_.push_back(std::move(part));
  if (is_move) begin_move(parts_.back());
  block_ += count;
  KV_ASSERT(block_ <= blocks_.size());
  end_segment();
  tell_of_parts();
  return segment_ < segment_ends_.size() && block_ < blocks_.size();
}

/// Into shared memory. False: its memory was removed after it was lent, and touching it would allocate node memory.
bool Get::copy(const Part& part) {
  if (path_.has_hole(*node_.lent, node_.clock.now())) return false;
  const std::uint64_t begin = segment_begin(part.segment), length = segment_bytes(part.segment);
  for (std::size_t i = part.first; i < part.first + part.count; ++i)
    copy_in_pieces(path_.at_client(i, begin, length), blocks_[i].bytes.subspan(begin, length));
  return true;
}

// -- moves by RDMA

std::vector<Placement> Get::placements(const Part& part) const {
  const std::uint64_t begin = segment_begin(part.segment), length = segment_bytes(part.segment);
  std::vector<Placement> all;
  for (std::size_t i = part.first; i < part.first + part.count; ++i) {
    KV_ASSERT(!blocks_[i].owner && begin + length <= blocks_[i].bytes.size());
    // The device reads memory that stays constant: a pinned block never changes.
    auto* const slot = const_cast<std::byte*>(blocks_[i].bytes.data());
    all.push_back(path_.placement(i, begin, {slot + begin, length}));
  }
  return all;
}

void Get::begin_move(Part& part) {
  const std::uint64_t bytes = part.count * segment_bytes(part.segment);
  const std::uint64_t move = part.move = ++move_last_;
  part.window = window_;
  const std::vector<Placement> moved = placements(part);
  moving_bytes_ += bytes;
  ++move_count_;
  // `part` may be announced, and gone, when this returns.
  path_.move(
      verbs::Direction::kToPeer, moved, window_,
      [self = shared_from_this(), move, bytes](const MoveOutcome& outcome) { self->move_ended(move, bytes, outcome); });
}

void Get::move_ended(std::uint64_t move, std::uint64_t bytes, const MoveOutcome& outcome) {
  KV_ASSERT(move_count_ > 0 && moving_bytes_ >= bytes);
  moving_bytes_ -= bytes;
  --move_count_;
  const auto part = std::ranges::find(parts_, move, &Part::move);
  KV_ASSERT(part != parts_.end());
  part->move = 0;
  if (outcome.error) {
    // The error that broke a lane is more useful than those of the moves stopped for it.
    if (!outcome_.error || outcome_.error == Errc::kCancelled) outcome_.error = outcome.error;
    outcome_.broken |= outcome.broken;
    stop_moves();
  } else {
    tell_of_parts();
    // The last mark and the end of the answer, which follows at once, leave in one system call.
    if (move_count_ > 0) session_->writer.flush();
  }
  if (wake_ != nullptr) wake_->set();
}

/// Moves under way still land, and then the last frame goes out.
void Get::stop_moves() {
  std::vector<std::shared_ptr<Window>> windows;  // first: a move may end within stop()
  for (const Part& part : parts_) {
    const auto window = part.move != 0 ? part.window.lock() : nullptr;
    if (window && (windows.empty() || windows.back() != window)) windows.push_back(window);
  }
  for (const auto& window : windows) path_.stop(OwnerId(window.get()));
}

// -- announcements

/// Announces the parts at the front whose bytes are in place; after a failed move, none.
void Get::tell_of_parts() {
  while (!parts_.empty() && parts_.front().move == 0 && !outcome_.error) {
    const Part part = std::move(parts_.front());
    parts_.pop_front();
    tell_of(part);
  }
}

void Get::tell_of(const Part& part) {
  KV_ASSERT(part.move == 0 && part.first + part.count <= blocks_.size());
  const std::uint64_t begin = segment_begin(part.segment), length = segment_bytes(part.segment);
  const auto blocks = std::span(blocks_).subspan(part.first, part.count);
  std::vector<std::span<const std::byte>> payload;
  std::function<void(bool)> done;
  if (part.way == Path::kInline) {
    for (const ReadyBlock& block : blocks) payload.push_back(block.bytes.subspan(begin, length));
    done = kept(blocks);
  }
  const std::size_t stripes = stripe_count(length);
  session_->replies.reply(
      FrameType::kGet, request_id(), kFrameMore,
      [&](FlatBufferBuilder& builder) {
        std::uint64_t* sums = nullptr;
        const auto checksums = builder.CreateUninitializedVector(part.count * stripes, &sums);
        write_sums(part, sums);
        return wire::CreateGetPart(builder, static_cast<std::uint32_t>(part.segment),
                                   static_cast<std::uint32_t>(part.first), static_cast<std::uint32_t>(part.count),
                                   checksums);
      },
      payload, std::move(done), OwnerId(in_flight_.get()));
  count_bytes(part.way, part.count * length);
  if (!is_streamed()) return;
  // With one segment a block is needed once: a block from disk may go as soon as it has left.
  for (ReadyBlock& block : blocks) {
    if (!std::exchange(block.owner, nullptr)) continue;
    KV_ASSERT(read_bytes_ >= block_bytes_);
    read_bytes_ -= block_bytes_;
  }
}

void Get::write_sums(const Part& part, std::uint64_t* sums) const {
  const std::size_t first_stripe = segment_begin(part.segment) / kStripeBytes;
  const std::size_t stripes = stripe_count(segment_bytes(part.segment));
  for (std::size_t i = part.first; i < part.first + part.count; ++i, sums += stripes) {
    const ReadyBlock& block = blocks_[i];
    KV_ASSERT(first_stripe + stripes <= block.checksums.size());
    std::memcpy(sums, block.checksums.data() + first_stripe, stripes * sizeof *sums);
  }
}

// -- the end

LeaseId Get::unused_lease() const { return is_cancelled_ && !hashes_.empty() ? order_.lease : LeaseId{}; }

void Get::answer(std::uint32_t broken) {
  // Invariant 3. A closed writer sends no answer.
  KV_ASSERT(session_->writer.is_closed() || (parts_.empty() && !has_undelivered()));
  const auto count = static_cast<std::uint32_t>(blocks_.size());
  session_->replies.reply(FrameType::kGet, request_id(), 0,
                          [&](FlatBufferBuilder& builder) { return wire::CreateGetResponse(builder, count, broken); });
}

}  // namespace kv
