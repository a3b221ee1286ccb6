// store/node/session_get.cc: a block leaves: pinned under the lock (pin_prefix), then sent inline straight from its
// slot (send_inline) or copied into the client's region (copy_some), and unpinned when its last byte is on its way.

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <cstring>

#include "base/checksum.h"
#include "store/node/session.h"

namespace kv {
namespace {

constexpr std::size_t kMarkBytes = 4 << 20;  ///< Copied between two progress marks: 0.25 ms, then others get a turn.
constexpr std::size_t kInlineFrameBytes = 8 << 20;    ///< Payload of one GetPart, at least one block's segment.
constexpr std::size_t kCopyAtOnceBytes = 256 * 1024;  ///< A get into a region up to this size is not worth a coroutine.

}  // namespace

void Session::on_get(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const auto* request = read_table<wire::GetRequest>(frame.table);
  if (request == nullptr) return refuse(FrameType::kGet, id, Errc::kBadRequest, "get: the table fails verification");
  const NamespaceRecord* record = find_space(frame, request->space());
  if (record == nullptr) return;
  const auto hashes = hashes_of(request->hashes());
  const auto offsets = numbers_of(request->offsets());
  const std::uint64_t block_bytes = record->block_bytes();
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
  if (gets_.size() + sending_count_ + puts_.size() >= node_.limits.requests_max) {
    return refuse(FrameType::kGet, id, Errc::kBusy,
                  count_text("requests in flight", node_.limits.requests_max, node_.limits.requests_max));
  }
  if (gets_.contains(id) || puts_.contains(id)) {
    return refuse(FrameType::kGet, id, Errc::kBadRequest, "request_id: " + std::to_string(id) + ", in use");
  }

  const auto job = std::make_shared<GetJob>();
  job->request_id = id;
  job->began = node_.clock.now();
  job->space = SpaceId(request->space());
  job->block_bytes = block_bytes;
  auto prefix = node_.store.with(
      [&](Store& store) { return store.pin_prefix(job->space, hashes, id_, LeaseId(request->lease()), job->began); });
  if (!prefix) {
    return refuse(
        FrameType::kGet, id, prefix.error(),
        "get: " + prefix.error().message() + " (" + count_text("hashes", hashes.size(), node_.chain_blocks_max) + ")");
  }
  job->prefix = std::move(*prefix);
  job->segment_ends.assign(ends.begin(), ends.end());
  if (job->segment_ends.empty()) job->segment_ends.push_back(block_bytes);
  if (request->region() == 0) return send_inline(job);

  job->region = regions_.at(request->region());
  job->offsets.assign(offsets.begin(), offsets.end());
  if (job->prefix.blocks.size() * block_bytes <= kCopyAtOnceBytes) {
    while (copy_some(*job)) {
    }
    return finish_get(*job);
  }
  ++job->region->user_count;
  ++job_count_;
  gets_.emplace(id, job);
  asio::co_spawn(executor_, deliver(shared_from_this(), job), asio::detached);
}

void Session::send_inline(const std::shared_ptr<GetJob>& job) {
  const auto& blocks = job->prefix.blocks;
  const std::size_t segment_count = blocks.empty() ? 0 : job->segment_ends.size();
  ++sending_count_;
  // Unpins when the last payload has left. Small payloads are copied, and the last send() below calls it at once.
  const auto done = [self = shared_from_this(), job](bool sent) {
    (void)sent;
    self->node_.store.with([&](Store& store) { store.unpin(job->prefix); });
    --self->sending_count_;
    self->node_.metrics.observe_verb(FrameType::kGet, self->node_.clock.now() - job->began, !sent);
  };
  std::uint64_t begin = 0;
  std::vector<std::span<const std::byte>> payload;
  for (std::size_t segment = 0; segment < segment_count; begin = job->segment_ends[segment++]) {
    const std::uint64_t length = job->segment_ends[segment] - begin;
    const std::size_t batch = std::max<std::size_t>(1, kInlineFrameBytes / length);
    const std::size_t first_stripe = begin / kStripeBytes, stripes = stripe_count(length);
    for (std::size_t first = 0; first < blocks.size(); first += batch) {
      const std::size_t count = std::min(batch, blocks.size() - first);
      payload.clear();
      for (std::size_t i = 0; i < count; ++i) payload.push_back(blocks[first + i].bytes.subspan(begin, length));
      const bool is_last = segment + 1 == segment_count && first + count == blocks.size();
      reply(
          FrameType::kGet, job->request_id, kFrameMore,
          [&](FlatBufferBuilder& builder) {
            std::uint64_t* sums = nullptr;
            const auto checksums = builder.CreateUninitializedVector(count * stripes, &sums);
            for (std::size_t i = 0; i < count; ++i) {
              std::memcpy(sums + i * stripes, blocks[first + i].checksums.data() + first_stripe,
                          stripes * sizeof *sums);
            }
            return wire::CreateGetPart(builder, static_cast<std::uint32_t>(segment), static_cast<std::uint32_t>(first),
                                       static_cast<std::uint32_t>(count), checksums);
          },
          payload, is_last ? std::function<void(bool)>(done) : nullptr);
    }
  }
  node_.metrics.add_bytes_out(Path::kInline, blocks.size() * job->block_bytes);
  reply(FrameType::kGet, job->request_id, 0, [&](FlatBufferBuilder& builder) {
    return wire::CreateGetResponse(builder, static_cast<std::uint32_t>(blocks.size()));
  });
  if (blocks.empty()) done(true);
}

bool Session::copy_some(GetJob& job) {
  const auto& blocks = job.prefix.blocks;
  if (blocks.empty() || job.segment == job.segment_ends.size() || job.cancelled) return false;
  const std::uint64_t begin = job.segment == 0 ? 0 : job.segment_ends[job.segment - 1];
  const std::uint64_t length = job.segment_ends[job.segment] - begin;
  const std::size_t first = job.block;
  std::size_t copied = 0;
  while (job.block < blocks.size() && copied < kMarkBytes) {
    // check_target saw that offset + block_bytes lies in the region, and regions only shrink by being removed, after
    // us.
    std::memcpy(job.region->mapped->bytes().data() + job.offsets[job.block] + begin,
                blocks[job.block].bytes.data() + begin, length);
    copied += length;
    ++job.block;
  }
  const std::size_t first_stripe = begin / kStripeBytes, stripes = stripe_count(length);
  reply(FrameType::kGet, job.request_id, kFrameMore, [&](FlatBufferBuilder& builder) {
    std::uint64_t* sums = nullptr;
    const auto checksums = builder.CreateUninitializedVector((job.block - first) * stripes, &sums);
    for (std::size_t i = first; i < job.block; ++i, sums += stripes) {
      std::memcpy(sums, blocks[i].checksums.data() + first_stripe, stripes * sizeof *sums);
    }
    return wire::CreateGetPart(builder, static_cast<std::uint32_t>(job.segment), static_cast<std::uint32_t>(first),
                               static_cast<std::uint32_t>(job.block - first), checksums);
  });
  node_.metrics.add_bytes_out(Path::kMemfd, copied);
  if (job.block == blocks.size()) {
    job.block = 0;
    ++job.segment;
  }
  return job.segment < job.segment_ends.size();
}

asio::awaitable<void> Session::deliver(std::shared_ptr<Session> self, std::shared_ptr<GetJob> job) {
  while (self->copy_some(*job)) {
    self->writer_.flush();
    co_await asio::post(self->executor_, asio::use_awaitable);  // others get a turn; a cancel or a dead peer is seen
  }
  self->gets_.erase(job->request_id);
  self->finish_get(*job);
  self->release(job->region);
  self->writer_.flush();
  self->job_ended();
}

void Session::finish_get(GetJob& job) {
  node_.store.with([&](Store& store) { store.unpin(job.prefix); });
  node_.metrics.observe_verb(FrameType::kGet, node_.clock.now() - job.began, job.cancelled);
  if (job.cancelled) return refuse(FrameType::kGet, job.request_id, Errc::kCancelled, "get: cancelled");
  reply(FrameType::kGet, job.request_id, 0, [&](FlatBufferBuilder& builder) {
    return wire::CreateGetResponse(builder, static_cast<std::uint32_t>(job.prefix.blocks.size()));
  });
}

}  // namespace kv
