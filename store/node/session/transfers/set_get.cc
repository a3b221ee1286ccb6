// store/node/session/transfers/set_get.cc: a block of a set enters as a hash. It is pinned in the arena (pin_window) or
// read from disk (read_from_disk), sent, copied or moved to the client (deliver_ready), announced with its length and
// checksums (tell_of), and unpinned when its last byte is on its way.
#include "store/node/session/transfers/set_get.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "index/name_groups.h"

namespace kv {
namespace {

constexpr std::size_t kMoveBytes = 16 << 20;   ///< By RDMA at once: enough to keep several lanes busy.
constexpr std::size_t kPartBlocksMax = 16384;  ///< So that the table of a part stays far below every limit.

}  // namespace

SetGet::SetGet(std::shared_ptr<SessionCore> session, const OpenSpace& space, std::uint64_t request_id,
               const wire::SetGetRequest& request, BlockPath path)
    : GetInProgress(session, space, FrameType::kSetGet, GetOrder(request_id, request, session->node), std::move(path)) {
  const auto copy = [](auto& to, auto from) { to.assign(from.begin(), from.end()); };
  copy(hashes_, hashes_of(request.hashes()));
  copy(rooms_, numbers_of(request.rooms()));
  copy(group_counts_, numbers_of(request.group_counts()));
  KV_ASSERT(rooms_.size() == hashes_.size());
}

Failure check_request(const wire::SetGetRequest& request, const OpenSpace&, const NodeContext& node) {
  const auto hashes = hashes_of(request.hashes());
  const std::size_t rooms = numbers_of(request.rooms()).size();
  if (hashes.size() > node.chain_blocks_max)
    return {Errc::kTooLarge, "set_get." + count_text("hashes", hashes.size(), node.chain_blocks_max)};
  if (rooms != hashes.size())
    return {Errc::kBadRequest, fmt::format("set_get.rooms: {}, one per hash ({}) is due", rooms, hashes.size())};
  const std::string why = check_groups(hashes, numbers_of(request.group_counts()));
  return why.empty() ? Failure() : Failure(Errc::kBadRequest, "set_get." + why);
}

// -- pinning

error_code SetGet::pin() { return first_pinned(pin_window()); }

error_code SetGet::pin_window() {
  const auto hashes = std::span(hashes_).subspan(pinned_);
  const SetPinning::Options options{.session = session_->id,
                                    .lease = order_.lease,
                                    .disk = order_.disk,
                                    .rooms = std::span(rooms_).subspan(pinned_),
                                    .bytes_max = node_.limits->inline_window_bytes,
                                    .count_max = kLookupsPerLock,
                                    .group_counts = std::span(group_counts_).subspan(pinned_groups_)};
  auto set = node_.store.with(&in_flight_->about.phases,
                              [&](Store& store) { return store.pin_set(space_, hashes, options, node_.clock.now()); });
  if (!set) return set.error();
  KV_ASSERT(set->looked_count > 0 || hashes.empty());
  window_ = std::make_shared<Window>(in_flight_, node_.store, std::move(set->pinned));
  window_first_ = pinned_;
  pinned_ += set->looked_count;
  pinned_groups_ += set->looked_group_count;
  const auto first = static_cast<std::uint32_t>(window_first_);
  ready_.clear();
  next_ = 0;
  for (const PinnedBlock& block : window_->pins.blocks())
    ready_.push_back({first + block.index, block.bytes, block.checksums, {}});
  for (const auto& [index, length] : set->too_long) {
    too_long_.push_back(first + index);
    too_long_bytes_.push_back(length);
  }
  return {};
}

// -- the ways out

bool SetGet::send_at_once() {
  if (!is_last_window() || !window_->pins.on_disk().empty()) return false;
  std::uint64_t bytes = 0;
  for (const ReadyBlock& block : ready_) bytes += block.bytes.size();
  // Everything fits into one part: the whole get ends before the next request is read, without a coroutine.
  if (!goes_at_once(bytes) || ready_.size() > kPartBlocksMax) return false;
  const Path way = path_.way();
  if (way == Path::kMemfd && !copy(ready_)) {
    met_hole_ = true;
  } else if (!ready_.empty()) {
    tell_of(ready_, way);
  }
  finish();
  return true;
}

asio::awaitable<void> SetGet::deliver() {
  for (;;) {
    co_await deliver_ready();
    if (!is_stopped() && !window_->pins.on_disk().empty()) co_await read_from_disk();
    // One window at a time: other puts could not evict thousands of blocks pinned at once.
    if (is_stopped() || is_last_window() || pin_window()) break;  // a namespace that is gone ends the answer here
  }
}

/// Delivers the ready blocks as fast as the client takes them.
asio::awaitable<void> SetGet::deliver_ready() {
  while (next_ < ready_.size() && !is_stopped()) {
    const Path way = path_.way(/*is_in_arena=*/!ready_[next_].owner);
    if (way == Path::kInline && session_->writer.queued_bytes() >= ahead_bytes_max()) {
      session_->writer.flush();
      // The flush may have made room: without checking again, this would wait for a change that has happened.
      if (session_->writer.queued_bytes() >= ahead_bytes_max()) co_await session_->writer.wait_for_room();
      continue;
    }
    const auto part = std::span(ready_).subspan(next_, next_part(way));
    if (way == Path::kVerbs) {
      co_await move(part);
      if (outcome_.error) break;
    } else if (way == Path::kMemfd && !copy(part)) {
      met_hole_ = true;
      break;
    }
    tell_of(part, way);
    next_ += part.size();
    session_->writer.flush();
    if (next_ < ready_.size())
      co_await asio::post(session_->executor, asio::use_awaitable);  // others get a turn; a cancel is seen
  }
}

/// How many of the next blocks go the same way in one step; at least one.
std::size_t SetGet::next_part(Path way) const {
  const std::uint64_t bytes_max = way == Path::kInline  ? node_.limits->inline_frame_bytes
                                  : way == Path::kVerbs ? kMoveBytes
                                                        : kMarkBytes;
  const bool is_owned = bool(ready_[next_].owner);
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (; next_ + count < ready_.size() && count < kPartBlocksMax; ++count) {
    const ReadyBlock& block = ready_[next_ + count];
    bytes += block.bytes.size();
    // Blocks read from disk lie outside the arena, out of devices' reach, so they go another way than pinned ones.
    if (count > 0 && (bytes > bytes_max || (bool(block.owner)) != is_owned)) break;
  }
  return count;
}

/// Into shared memory. False: its memory was removed after it was lent, and touching it would allocate node memory.
bool SetGet::copy(std::span<const ReadyBlock> part) {
  if (path_.has_hole(*node_.lent, node_.clock.now())) return false;
  for (const ReadyBlock& block : part) {
    KV_ASSERT(block.bytes.size() <= rooms_[block.index]);  // invariant 2
    copy_in_pieces(path_.at_client(block.index, 0, block.bytes.size()), block.bytes);
  }
  return true;
}

asio::awaitable<void> SetGet::move(std::span<const ReadyBlock> part) {
  std::vector<Placement> placements;
  for (const ReadyBlock& block : part) {
    KV_ASSERT(!block.owner && block.bytes.size() <= rooms_[block.index]);  // invariant 2
    // The device reads memory that stays constant: a pinned block never changes.
    auto* const slot = const_cast<std::byte*>(block.bytes.data());
    placements.push_back(path_.placement(block.index, 0, {slot, block.bytes.size()}));
  }
  is_moving_ = true;
  const MoveOutcome outcome = co_await path_.moved(session_->executor, verbs::Direction::kToPeer, placements, window_);
  is_moving_ = false;
  if (outcome.error) outcome_ = outcome;
}

asio::awaitable<void> SetGet::read_from_disk() {
  const std::shared_ptr<PinnedPrefixGuard> pinned(window_, &window_->pins);
  const auto hashes = std::span<const BlockHash>(hashes_).subspan(window_first_);
  const auto first = static_cast<std::uint32_t>(window_first_);
  ReadAhead ahead(*session_, {space_, space_name_, NamespaceKind::kSet, hashes}, pinned, pinned->on_disk().size());
  wake_ = &ahead.progress();
  while (!ahead.is_at_end() && !is_stopped()) {
    ahead.start();
    const TimePoint until = std::min(node_.clock.now() + node_.limits->disk_timeout, order_.deadline);
    ahead.wake_at(until);
    const TimePoint waits_since = node_.clock.now();
    while (!ahead.is_ready() && !is_stopped() && node_.clock.now() < until) {
      ahead.progress().reset();
      co_await ahead.progress().wait();
    }
    in_flight_->about.phases.disk += node_.clock.now() - waits_since;
    if (!ahead.is_ready() || is_stopped()) break;
    ready_.clear();
    next_ = 0;
    std::uint64_t bytes = 0;
    while (!ahead.is_at_end() && ahead.is_ready() && bytes < node_.limits->inline_frame_bytes) {
      const std::uint32_t index = first + ahead.next_index();
      DiskBlock block;
      const ReadAhead::Taken taken = ahead.take(&block);
      // It was started once more, from its new place: the ready blocks are delivered meanwhile.
      if (taken == ReadAhead::Taken::kAgain) break;
      if (taken == ReadAhead::Taken::kEnd) {
        unread_.push_back(index);
        ahead.skip();
        continue;
      }
      ready_.push_back({index, block.bytes, block.checksums, block.owner});
      bytes += block.bytes.size();
      if (ahead.wants_promotion()) ahead.promote(block);
    }
    co_await deliver_ready();
    // Blocks from disk take separate memory until they are sent: at most that of one read-ahead.
    if (is_inline_) co_await session_->writer.wait_below(ReadAhead::kBytesMax);
  }
  wake_ = nullptr;
  if (is_stopped()) co_return;
  // Unread at the deadline: the blocks exist, and the client may ask again.
  for (const PinnedDiskBlock& block : ahead.rest()) unread_.push_back(first + block.index);
}

// -- announcements

void SetGet::tell_of(std::span<const ReadyBlock> part, Path way) {
  std::vector<std::span<const std::byte>> payload;
  std::function<void(bool)> done;
  std::uint64_t bytes = 0;
  std::size_t sum_count = 0;
  for (const ReadyBlock& block : part) {
    bytes += block.bytes.size();
    sum_count += block.checksums.size();
    KV_ASSERT(block.checksums.size() == stripe_count(block.bytes.size()));
  }
  if (way == Path::kInline) {
    for (const ReadyBlock& block : part) payload.push_back(block.bytes);
    done = kept(part);
  }
  session_->replies.reply(
      FrameType::kSetGet, request_id(), kFrameMore,
      [&](FlatBufferBuilder& builder) {
        std::uint64_t* sums = nullptr;
        const auto checksums = builder.CreateUninitializedVector(sum_count, &sums);
        for (const ReadyBlock& block : part) sums = std::ranges::copy(block.checksums, sums).out;
        std::uint32_t *index = nullptr, *length = nullptr;
        const auto lengths = builder.CreateUninitializedVector(part.size(), &length);
        for (const ReadyBlock& block : part) *length++ = static_cast<std::uint32_t>(block.bytes.size());
        const auto blocks = builder.CreateUninitializedVector(part.size(), &index);
        for (const ReadyBlock& block : part) *index++ = block.index;
        return wire::CreateSetGetPart(builder, blocks, lengths, checksums);
      },
      payload, std::move(done), OwnerId(in_flight_.get()));
  delivered_ += static_cast<std::uint32_t>(part.size());
  count_bytes(way, bytes);
  session_->access.moved(bytes);
}

// -- the end

void SetGet::stop_moves() {
  // The move still ends through its callback: the device may be writing, and the pins stay until it has finished.
  if (is_moving_) path_.stop(OwnerId(window_.get()));
}

void SetGet::answer(std::uint32_t broken) {
  session_->replies.reply(FrameType::kSetGet, request_id(), 0, [&](FlatBufferBuilder& builder) {
    const auto too_long = builder.CreateVector(too_long_);
    const auto too_long_bytes = builder.CreateVector(too_long_bytes_);
    const auto unread = builder.CreateVector(unread_);
    return wire::CreateSetGetResponse(builder, delivered_, too_long, too_long_bytes, unread, broken);
  });
}

}  // namespace kv
