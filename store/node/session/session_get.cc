// store/node/session/session_get.cc: a block leaves: pinned under the lock (pin_prefix), then sent inline straight from
// its slot, copied into the client's region, or moved there by RDMA (deliver_some), and unpinned when its last byte is
// on its way. A small get that came as a message takes its blocks along with its answer (session_message.cc). A block
// on disk is read first (session_disk.cc) and then goes the same way, but never by RDMA: where it was read to is
// registered with no device.

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "store/node/session/session.h"

namespace kv {
namespace {

constexpr std::size_t kMarkBytes = 4 << 20;  ///< Copied between two progress marks: 0.25 ms, then others get a turn.
constexpr std::size_t kPieceBytes = 256 * 1024;
constexpr std::uint64_t kDeadlineUsMax = 3'600'000'000;  ///< Longer is as good as none.
constexpr std::uint64_t kMovingBytesMax = 16 << 20;      ///< By RDMA, of one get: enough to keep several lanes busy.
constexpr std::size_t kCopyAtOnceBytes = 256 * 1024;  ///< A get into a region up to this size is not worth a coroutine.

/// memcpy() in pieces that fit a core's second-level cache: glibc moves those with `rep movsb`, which does not read the
/// lines it is about to overwrite. 1.2 times as fast as one call for 2 MiB, and a reader on another core costs it
/// nothing.
void copy_in_pieces(std::span<std::byte> to, std::span<const std::byte> from) {
  for (std::size_t at = 0; at < from.size(); at += kPieceBytes) {
    std::memcpy(to.data() + at, from.data() + at, std::min(kPieceBytes, from.size() - at));
  }
}

}  // namespace

void Session::on_get(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const auto* request = read_table<wire::GetRequest>(frame.table);
  if (request == nullptr) return refuse(FrameType::kGet, id, Errc::kBadRequest, "get: the table fails verification");
  const OpenSpace* const space = find_space(frame, request->space(), request->namespace_check());
  if (space == nullptr) return;
  const auto hashes = hashes_of(request->hashes());
  const auto offsets = numbers_of(request->offsets());
  const std::uint64_t block_bytes = space->block_bytes;
  if (!check_target(frame, request->region(), hashes.size(), offsets, block_bytes)) return;
  const auto ends = numbers_of(request->segment_ends());
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const bool is_last = i + 1 == ends.size();
    if (ends[i] <= (i == 0 ? 0 : ends[i - 1]) || ends[i] > block_bytes ||
        (is_last ? ends[i] != block_bytes : ends[i] % kStripeBytes != 0)) {
      return refuse(FrameType::kGet, id, Errc::kBadRequest,
                    "segment_ends[" + std::to_string(i) + "]: " + std::to_string(ends[i]) +
                        ", must increase in multiples of 65536 and end with block_bytes " +
                        std::to_string(block_bytes));
    }
  }
  if (sending_count_ + puts_.size() >= node_.limits.requests_max) {
    return refuse(FrameType::kGet, id, Errc::kBusy,
                  count_text("requests in flight", node_.limits.requests_max, node_.limits.requests_max));
  }
  if (gets_.contains(id) || puts_.contains(id)) {
    return refuse(FrameType::kGet, id, Errc::kBadRequest, "request_id: " + std::to_string(id) + ", in use");
  }

  const auto job = std::make_shared<GetJob>();
  job->request_id = id;
  job->space = space->id;
  job->space_name = space->name;
  job->block_bytes = block_bytes;
  job->segment_ends.assign(ends.begin(), ends.end());
  if (job->segment_ends.empty()) job->segment_ends.push_back(block_bytes);
  if (request->deadline_us() > 0 && request->deadline_us() < kDeadlineUsMax) {
    job->deadline = node_.clock.now() + std::chrono::microseconds(request->deadline_us());
  }
  const bool disk = node_.spill != nullptr && request->max_tier() >= 2 && node_.spill->can_read();
  // Blocks of several segments are all needed until the last of them, and a region is filled as fast as memory allows.
  const bool is_inline =
      request->region() == 0 || (!regions_.at(request->region())->mapped && (request->lanes() & lanes_->up()) == 0);
  const bool in_windows = is_inline && job->segment_ends.size() == 1;
  if (!pin(frame, job, hashes, {.session = id_, .lease = LeaseId(request->lease()), .disk = disk}, in_windows)) return;
  if (request->region() != 0) {
    job->region = regions_.at(request->region());
    job->offsets.assign(offsets.begin(), offsets.end());
    job->lanes = request->lanes() & job->region->lanes;
  }
  if (send_with_answer(job)) return;
  const std::uint64_t bytes = job->blocks.size() * block_bytes;
  const bool at_once = job->region
                           ? job->region->mapped && bytes <= kCopyAtOnceBytes
                           : bytes <= node_.limits.inline_frame_bytes && writer_.queued_bytes() < ahead_bytes_max();
  if (job->is_complete && at_once) {
    job->goes_at_once = true;
    while (deliver_some(job)) {
    }
    return finish_get(job);
  }
  if (job->region) ++job->region->user_count;
  ++job_count_;
  inline_count_ += is_inline;
  job->is_inline = is_inline;
  gets_.emplace(id, job);
  asio::co_spawn(executor_, deliver(shared_from_this(), job), asio::detached);
}

bool Session::pin(const Frame& frame, const std::shared_ptr<GetJob>& job, std::span<const BlockHash> hashes,
                  const Store::GetOptions& options, bool in_windows) {
  job->began = node_.clock.now();
  job->options = options;
  job->has_more_windows = in_windows;
  // The first window takes all of a small get. What is longer than a request may be is refused before it is copied.
  const bool needs_windows = in_windows && hashes.size() * job->block_bytes > node_.limits.inline_window_bytes;
  if (hashes.size() <= node_.chain_blocks_max && (needs_windows || version_ < 2))
    job->hashes.assign(hashes.begin(), hashes.end());
  job->life = std::shared_ptr<void>(nullptr, [self = shared_from_this(), job = job.get()](void*) {
    --self->sending_count_;
    if (!job->is_prefetch && job->prefix)
      self->node_.metrics.observe_verb(FrameType::kGet, self->node_.clock.now() - job->began,
                                       job->failed || job->cancelled || job->outcome.error);
  });
  ++sending_count_;
  if (const error_code error = pin_window(job, hashes)) {
    job->life.reset();
    refuse(frame.header.type, frame.header.request_id, error,
           std::string(frame_type_name(frame.header.type)) + ": " + error.message() + " (" +
               count_text("hashes", hashes.size(), node_.chain_blocks_max) + ")");
    return false;
  }
  return true;
}

error_code Session::pin_window(const std::shared_ptr<GetJob>& job, std::span<const BlockHash> hashes) {
  // Each window walks the chain from its root: their number is bounded, whatever the length.
  constexpr std::size_t kWindowsMax = 16;
  const std::size_t window = std::max<std::size_t>(
      {node_.limits.inline_window_bytes / job->block_bytes, hashes.size() / kWindowsMax, std::size_t{1}});
  const std::size_t before = job->blocks.size();
  const TimePoint now = node_.clock.now();
  const bool is_last =
      !job->has_more_windows || hashes.size() - std::min(before, hashes.size()) <= window || job->hashes.empty();
  auto pinned = node_.store.with([&](Store& store) -> Result<Store::PinnedPrefix> {
    if (!is_last) {
      Store::GetOptions options{.session = job->options.session};
      options.is_part = true;
      auto part = store.pin_prefix(job->space, hashes.first(before + window), options, now);
      if (!part || part->blocks.size() == before + window) return part;
      store.unpin(*part);  // memory ends within this window: the rest is on disk, or nowhere
    }
    job->has_more_windows = false;
    return store.pin_prefix(job->space, hashes, job->options, now);
  });
  if (!pinned) return pinned.error();
  job->prefix = std::make_shared<Store::PinnedPrefix>(std::move(*pinned));
  job->pins =
      std::shared_ptr<void>(nullptr, [self = shared_from_this(), prefix = job->prefix, life = job->life](void*) {
        self->node_.store.with([&](Store& store) { store.unpin(*prefix); });
      });
  for (std::size_t i = before; i < job->prefix->blocks.size(); ++i) {
    const Store::PinnedBlock& block = job->prefix->blocks[i];
    job->blocks.push_back({block.bytes, block.checksums, {}});
  }
  // If some of what was sent was dropped, what follows it now does not follow what was sent.
  const bool goes_on = job->prefix->blocks.size() >= before;
  job->has_more_windows = job->has_more_windows && goes_on;
  job->is_complete = (job->prefix->spilled.empty() || !goes_on) && !job->has_more_windows;
  if (!job->prefix->spilled.empty() && job->hashes.empty()) {
    job->hashes.assign(hashes.begin(), hashes.begin() + static_cast<std::ptrdiff_t>(job->prefix->blocks.size() +
                                                                                    job->prefix->spilled.size()));
  }
  return {};
}

bool Session::deliver_some(const std::shared_ptr<GetJob>& job) {
  auto& blocks = job->blocks;
  if (job->cancelled || job->outcome.error || job->met_hole || job->is_prefetch ||
      job->segment == job->segment_ends.size() || job->block == blocks.size() || job->moving_bytes >= kMovingBytesMax)
    return false;
  const std::uint64_t begin = job->segment_begin(job->segment), length = job->segment_bytes(job->segment);
  Part part{.segment = job->segment, .first = job->block};
  part.is_inline = !job->region;
  if (job->region && !job->region->mapped)
    part.is_inline = blocks[part.first].owner || (job->lanes & lanes_->up()) == 0;
  const std::uint64_t bytes_max = part.is_inline ? node_.limits.inline_frame_bytes : kMarkBytes;
  // What was read from disk is bounded where it is read.
  if (part.is_inline && !job->goes_at_once && !blocks[part.first].owner && writer_.queued_bytes() >= ahead_bytes_max())
    return false;
  const std::size_t count_max =
      std::min<std::size_t>(blocks.size() - part.first, std::max<std::uint64_t>(1, bytes_max / length));
  do {
    ++part.count;
  } while (part.count < count_max && (part.is_inline || !blocks[part.first + part.count].owner || job->region->mapped));
  if (!part.is_inline && job->region->mapped) {
    if (has_hole(*job->region)) {
      job->met_hole = true;
      return false;
    }
    for (std::size_t i = part.first; i < part.first + part.count; ++i) {
      // check_target saw that offset + block_bytes lies in the region, and regions only shrink by being removed, after
      // us.
      copy_in_pieces(job->region->mapped->bytes().subspan(job->offsets[i] + begin, length),
                     blocks[i].bytes.subspan(begin, length));
    }
  }
  job->parts.push_back(part);
  if (!part.is_inline && !job->region->mapped) begin_move(job, job->parts.back());
  job->block += part.count;
  job->end_segment();
  tell_of_parts(job);
  return job->segment < job->segment_ends.size() && job->block < blocks.size();
}

std::vector<Placement> Session::placements(const GetJob& job, const Part& part) {
  const std::uint64_t begin = job.segment_begin(part.segment), length = job.segment_bytes(part.segment);
  std::vector<Placement> all;
  for (std::size_t i = part.first; i < part.first + part.count; ++i) {
    // The device reads what nobody may write: a pinned block never changes.
    auto* const slot = const_cast<std::byte*>(job.blocks[i].bytes.data());
    all.push_back({{slot + begin, length}, job.offsets[i] + begin});
  }
  return all;
}

void Session::begin_move(const std::shared_ptr<GetJob>& job, Part& part) {
  struct Owner {  // the pins end first: they tell of the job
    std::shared_ptr<GetJob> job;
    std::shared_ptr<void> pins;
  };
  const auto owner = std::make_shared<Owner>(Owner{job, job->pins});
  part.move_owner = owner.get();
  const std::uint64_t bytes = part.count * job->segment_bytes(part.segment);
  job->moving_bytes += bytes;
  ++job->move_count;
  lanes_->move(verbs::Direction::kToPeer, placements(*job, part), job->region->slices, job->lanes, owner,
               [self = shared_from_this(), job, bytes, owner = owner.get()](const SessionLanes::Outcome& outcome) {
                 job->moving_bytes -= bytes;
                 --job->move_count;
                 const auto part_of_it = std::ranges::find(job->parts, owner, &Part::move_owner);
                 if (part_of_it != job->parts.end()) part_of_it->move_owner = nullptr;  // another may get this address
                 if (outcome.error) {
                   if (!job->outcome.error || job->outcome.error == Errc::kCancelled)
                     job->outcome.error = outcome.error;
                   job->outcome.broken_lanes |= outcome.broken_lanes;
                   self->stop_moves(*job);
                 } else {
                   self->tell_of_parts(job);
                   // The last mark and the end of the answer, which follows at once, leave in one system call.
                   if (job->move_count > 0) self->writer_.flush();
                 }
                 if (job->wake != nullptr) job->wake->set();
               });
}

/// Of those at the front whose bytes are where they belong; of none any more after a move that failed.
void Session::tell_of_parts(const std::shared_ptr<GetJob>& job) {
  while (!job->parts.empty() && job->parts.front().move_owner == nullptr && !job->outcome.error) {
    const Part part = job->parts.front();
    job->parts.pop_front();
    tell_of(job, part);
  }
}

/// The checksums of a part. For a client of version 1 they are computed over the bytes, with its seeds; of bytes that
/// are not what was stored they come out wrong, as they should.
void Session::write_sums(const GetJob& job, const Part& part, std::uint64_t* sums) {
  const std::uint64_t begin = job.segment_begin(part.segment), length = job.segment_bytes(part.segment);
  const std::size_t first_stripe = begin / kStripeBytes, stripes = stripe_count(length);
  for (std::size_t i = part.first; i < part.first + part.count; ++i, sums += stripes) {
    const ReadyBlock& block = job.blocks[i];
    std::memcpy(sums, block.checksums.data() + first_stripe, stripes * sizeof *sums);
    if (version_ >= 2) continue;
    const std::uint64_t seed = checksum_seed(job.space_name, job.hashes[i]);
    const std::uint64_t seed_v1 = checksum_seed_v1(job.space_name, job.hashes[i]);
    for (std::size_t s = 0; s < stripes; ++s) {
      const std::size_t stripe = first_stripe + s, at = begin + s * kStripeBytes;
      const auto bytes = block.bytes.subspan(at, std::min<std::uint64_t>(kStripeBytes, begin + length - at));
      const bool is_sound = stripe_checksum(seed, stripe, bytes) == sums[s];
      const std::uint64_t sum = stripe_checksum(seed_v1, stripe, bytes);
      sums[s] = is_sound ? sum : ~sum;
    }
  }
}

void Session::tell_of(const std::shared_ptr<GetJob>& job, const Part& part) {
  auto& blocks = job->blocks;
  const std::uint64_t begin = job->segment_begin(part.segment), length = job->segment_bytes(part.segment);
  std::vector<std::span<const std::byte>> payload;
  std::function<void(bool)> done;
  if (part.is_inline) {
    std::vector<std::shared_ptr<const void>> owners;
    for (std::size_t i = part.first; i < part.first + part.count; ++i) {
      payload.push_back(blocks[i].bytes.subspan(begin, length));
      if (blocks[i].owner) owners.push_back(blocks[i].owner);
    }
    // Keeps what is sent where it is until it has left.
    done = [job, pins = job->pins, owners = std::move(owners)](bool sent) { job->failed = job->failed || !sent; };
  }
  const std::size_t stripes = stripe_count(length);
  reply(
      FrameType::kGet, job->request_id, kFrameMore,
      [&](FlatBufferBuilder& builder) {
        std::uint64_t* sums = nullptr;
        const auto checksums = builder.CreateUninitializedVector(part.count * stripes, &sums);
        write_sums(*job, part, sums);
        return wire::CreateGetPart(builder, static_cast<std::uint32_t>(part.segment),
                                   static_cast<std::uint32_t>(part.first), static_cast<std::uint32_t>(part.count),
                                   checksums);
      },
      payload, std::move(done), job.get());
  const Path path = part.is_inline ? Path::kInline : job->region->mapped ? Path::kMemfd : Path::kVerbs;
  node_.metrics.add_bytes_out(path, part.count * length);
  // With one segment a block is not needed again: what was read from disk may go as soon as it has left.
  if (job->segment_ends.size() == 1) {
    for (std::size_t i = part.first; i < part.first + part.count; ++i) {
      if (std::exchange(blocks[i].owner, nullptr)) job->read_bytes -= job->block_bytes;
    }
  }
}

asio::awaitable<void> Session::deliver(std::shared_ptr<Session> self, std::shared_ptr<GetJob> job) {
  while (job->has_more_windows) {
    co_await self->deliver_pinned(job);
    const bool is_over = job->cancelled || job->outcome.error || self->writer_.is_closed();
    if (is_over || self->pin_window(job, job->hashes)) {  // a namespace that is gone ends the answer where it is
      job->has_more_windows = false;
      job->is_complete = true;
    }
  }
  if (job->is_inline) co_await self->deliver_pinned(job);
  if (!job->is_complete) co_await self->read_from_disk(job);
  job->is_complete = true;
  job->end_segment();
  co_await self->deliver_pinned(job);
  if (job->is_prefetch) {
    std::erase(self->prefetches_, job);
  } else {
    self->gets_.erase(job->request_id);
  }
  self->inline_count_ -= job->is_inline;
  self->inline_ended_.set();
  self->finish_get(job);
  if (job->region) self->release(job->region);
  self->writer_.flush();
  self->job_ended();
}

/// What is pinned so far, as fast as the client takes it.
asio::awaitable<void> Session::deliver_pinned(std::shared_ptr<GetJob> job) {
  Event moved(executor_);
  job->wake = &moved;
  while (true) {
    moved.reset();
    const bool more = deliver_some(job);
    writer_.flush();
    if (more) {
      co_await asio::post(executor_, asio::use_awaitable);  // others get a turn; a cancel is seen
    } else if (job->move_count > 0) {
      co_await moved.wait();
    } else if (!has_undelivered(*job)) {
      break;
    } else if (writer_.queued_bytes() >= ahead_bytes_max()) {  // else the flush has made room just now
      co_await writer_.wait_for_room();
    }
  }
  job->wake = nullptr;
}

/// Whether there is more to send, and nothing but the client's slowness can be in its way.
bool Session::has_undelivered(const GetJob& job) const {
  return !job.cancelled && !job.outcome.error && !job.met_hole && !job.is_prefetch && !writer_.is_closed() &&
         job.segment < job.segment_ends.size() && job.block < job.blocks.size();
}

void Session::cancel(GetJob& job) {
  job.cancelled = true;
  stop_moves(job);
  writer_.withdraw(&job);
  if (job.wake != nullptr) job.wake->set();
}

/// What was begun still lands, and then the last frame goes out.
void Session::stop_moves(const GetJob& job) {
  std::vector<const void*> owners;  // first: a move may end within stop()
  for (const Part& part : job.parts) {
    if (part.move_owner != nullptr) owners.push_back(part.move_owner);
  }
  for (const void* owner : owners) lanes_->stop(owner);
}

void Session::finish_get(const std::shared_ptr<GetJob>& job) {
  const auto count = static_cast<std::uint32_t>(job->blocks.size());
  job->pins.reset();
  job->life.reset();
  if (job->cancelled && job->options.lease != LeaseId{} && !job->hashes.empty()) {
    // The window that would have taken it over was not pinned.
    node_.store.with([&](Store& store) { static_cast<void>(store.release(id_, job->options.lease)); });
  }
  if (job->is_prefetch) return;
  const std::uint32_t broken = job->outcome.broken_lanes | broken_lanes(job->lanes);
  if (job->outcome.error && !(job->cancelled && job->outcome.error == Errc::kCancelled)) {
    return refuse(FrameType::kGet, job->request_id, Errc::kUnavailable,
                  "get: the transfer broke: " + job->outcome.error.message(), broken);
  }
  if (job->is_late) {
    return refuse(FrameType::kGet, job->request_id, Errc::kStaleLease,
                  "get: took longer than get-seconds; what was sent so far is good", broken);
  }
  if (job->met_hole) {
    return refuse(FrameType::kGet, job->request_id, Errc::kNoRegion,
                  "get: region: memory was taken out of the memfd after it was lent");
  }
  if (job->cancelled) return refuse(FrameType::kGet, job->request_id, Errc::kCancelled, "get: cancelled", broken);
  reply(FrameType::kGet, job->request_id, 0,
        [&](FlatBufferBuilder& builder) { return wire::CreateGetResponse(builder, count, broken); });
}

}  // namespace kv
