// store/node/session/session_disk.cc: blocks that lie on disk: read ahead of their turn on spill threads, verified
// there, handed to the get in order; and put back into memory when they are used often enough, or were asked for in
// advance.

#include <spdlog/spdlog.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <optional>

#include "store/node/session/session.h"

namespace kv {
namespace {

constexpr std::uint64_t kReadAheadBytes = 64 << 20;  ///< Of one get, read and not delivered.
/// With several segments every block is needed until the last segment: a get has at most so much from disk, and the
/// answer ends there.
constexpr std::uint64_t kSegmentedBytesMax = 256 << 20;

constexpr std::size_t kPrefetchesMax = 16;  ///< Of a session; more are forgotten: a get still reads the blocks.

}  // namespace

struct Session::DiskReads {
  DiskReads(const asio::any_io_executor& executor, std::size_t count) : results(count), progress(executor) {}
  std::vector<std::optional<Result<DiskBlock>>> results;
  Event progress;
};

void Session::start_read(const std::shared_ptr<DiskReads>& reads, const GetJob& job, std::size_t i) {
  const Store::SpilledBlock& block = job.prefix->spilled[i];
  // Not kept alive by what is read for it: a get that has ended waits for nothing.
  const auto done = [weak = std::weak_ptr(reads), i, executor = executor_](Result<DiskBlock> read) {
    asio::post(executor, [weak, i, read = std::move(read)]() mutable {
      const auto waiting = weak.lock();
      if (!waiting) return;
      waiting->results[i] = std::move(read);
      waiting->progress.set();
    });
  };
  node_.spill->read(block.key, block.seed, job.block_bytes, reads, done);
}

/// Appends what can be read to job->blocks; with one segment it is delivered as it comes.
asio::awaitable<void> Session::read_from_disk(const std::shared_ptr<GetJob>& job) {
  auto& spilled = job->prefix->spilled;
  const std::size_t window = std::max<std::uint64_t>(1, kReadAheadBytes / job->block_bytes);
  const bool is_streamed = job->segment_ends.size() == 1;
  const std::size_t count =
      is_streamed
          ? spilled.size()
          : std::min<std::size_t>(spilled.size(), std::max<std::uint64_t>(1, kSegmentedBytesMax / job->block_bytes));
  const auto reads = std::make_shared<DiskReads>(executor_, count);
  const auto alarm = node_.clock.make_alarm(executor_);
  job->wake = &reads->progress;
  std::size_t started = 0;
  bool is_retry = false;
  for (std::size_t i = 0; i < count && !job->cancelled && !job->outcome.error;) {
    for (; started < std::min(count, i + window); ++started) start_read(reads, *job, started);
    if (is_streamed) {
      while (deliver_some(job)) {
      }
      writer_.flush();
      co_await writer_.wait_below(kReadAheadBytes);
    }
    const TimePoint until = std::min(node_.clock.now() + node_.limits.disk_timeout, job->deadline);
    alarm->arm(until, [reads] { reads->progress.set(); });
    const auto is_stopped = [&] { return job->cancelled || job->outcome.error; };
    // Also while what was read before waits for a move: more would be held than a get may.
    while ((!reads->results[i] || (is_streamed && job->read_bytes >= kReadAheadBytes)) && !is_stopped() &&
           node_.clock.now() < until) {
      reads->progress.reset();
      if (is_streamed) {  // a move that has landed makes room for the next
        while (deliver_some(job)) {
        }
        writer_.flush();
      }
      co_await reads->progress.wait();
    }
    if (!reads->results[i] || is_stopped()) break;
    const Result<DiskBlock> block = std::move(*reads->results[i]);
    reads->results[i].reset();
    if (!block) {
      // Moved within the log since it was pinned, or lost; a disk that fails now may give it later.
      if (is_retry || !is_lost(block.error())) break;
      const Store::FailedRead failed =
          node_.store.with([&](Store& store) { return store.read_failed(spilled[i].id, spilled[i].key); });
      if (failed.is_forgotten) {
        spdlog::warn("spill: block {} of namespace {} is forgotten: {}",
                     to_hex(job->hashes[job->prefix->blocks.size() + i].bytes), to_hex(job->space_name.bytes),
                     block.error().message());
      }
      if (failed.moved_to == DiskKey{}) break;
      spilled[i].key = failed.moved_to;
      is_retry = true;
      start_read(reads, *job, i);
      continue;
    }
    is_retry = false;
    job->blocks.push_back({block->bytes, block->checksums, block->owner});
    job->read_bytes += job->block_bytes;
    if (spilled[i].promote || job->is_prefetch) promote(*job, job->blocks.size(), *block);
    if (job->is_prefetch) {
      job->blocks.back() = {};
      job->read_bytes = 0;
    }
    ++i;
  }
  job->wake = nullptr;
  alarm->disarm();
}

/// Stores the `block_count`-th block of the chain in memory, if there is room and all blocks above it are there.
void Session::promote(const GetJob& job, std::size_t block_count, const DiskBlock& last) {
  const auto hashes = std::span(job.hashes).first(block_count);
  Store::OfferOptions options{.session = id_};
  options.may_lose = false;  // not at the price of blocks that are nowhere else
  auto plan =
      node_.store.with([&](Store& store) { return store.offer(job.space, hashes, options, node_.clock.now()); });
  if (!plan || plan->put == PutId{}) return;
  const bool fits = plan->staged.size() == 1 && plan->staged[0].index == block_count - 1;
  if (fits) std::memcpy(plan->staged[0].bytes.data(), last.bytes.data(), last.bytes.size());
  const BlockId on_disk = job.prefix->spilled[block_count - 1 - job.prefix->blocks.size()].id;
  node_.store.with([&](Store& store) {
    // One that was dropped while it was read must not come back this way.
    if (fits && store.is_on_disk(on_disk))
      static_cast<void>(store.commit(plan->put, last.checksums, node_.clock.now()));
    store.end_put(plan->put);
  });
}

void Session::prefetch(const Frame& frame, const OpenSpace& space, std::span<const BlockHash> hashes) {
  if (!node_.spill->can_read() || prefetches_.size() >= kPrefetchesMax) return;
  const auto job = std::make_shared<GetJob>();
  job->request_id = frame.header.request_id;
  job->space = space.id;
  job->space_name = space.name;
  job->is_prefetch = true;
  job->block_bytes = space.block_bytes;
  job->segment_ends = {job->block_bytes};
  if (!pin(frame, job, hashes, {.session = id_, .disk = true})) return;
  if (job->is_complete) return finish_get(job);
  ++job_count_;
  prefetches_.push_back(job);  // its request has been answered: the id may serve the next
  asio::co_spawn(executor_, deliver(shared_from_this(), job), asio::detached);
}

}  // namespace kv
