#include "transport/verbs/verbs_mover.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/assert.h"

namespace kv::verbs {

struct VerbsMover::Job {
  explicit Job(const asio::any_io_executor& executor) : ended(executor) {}

  Direction direction{};
  std::vector<Stretch> stretches;
  std::vector<std::size_t> segment_ends;
  Owner owner;
  OnSegment on_segment;
  std::unique_ptr<Alarm> alarm;
  std::size_t stretch = 0, offset = 0;  ///< Next to post.
  std::size_t segment = 0;              ///< Segment of that stretch.
  std::deque<std::size_t> batches;      ///< Outstanding, in order: the count of complete segments after each.
  std::size_t landed = 0;               ///< Segments that have landed whole.
  bool is_stopped = false;              ///< Posting has ended.
  Event ended;
  error_code result;
};

Result<std::unique_ptr<VerbsMover>, Failure> VerbsMover::create(CompletionLoop& loop, Clock& clock,
                                                                ProtectionDomain& domain, const MoverOptions& options) {
  KV_ASSERT(options.chunk_bytes > 0 && options.piece_count_max > 0);
  // A batch is posted whole or refused: one larger than the queue would wait for ever.
  KV_ASSERT(options.batch_request_count > 0 && options.batch_request_count <= options.request_count_max);
  auto pair = domain.create_queue_pair(loop.queue(), {.request_count_max = options.request_count_max,
                                                      .receive_count_max = 0,
                                                      .piece_count_max = options.piece_count_max,
                                                      .port = options.port});
  if (!pair) return pair.error();
  std::unique_ptr<VerbsMover> mover(new VerbsMover(loop, clock, options));
  mover->pair_ = std::move(*pair);
  loop.add(mover->pair_->number(),
           [raw = mover.get()](const Completion& completion) { raw->on_completion(completion); });
  return mover;
}

VerbsMover::VerbsMover(CompletionLoop& loop, Clock& clock, const MoverOptions& options)
    : loop_(loop), clock_(clock), options_(options) {}

/// The device may write until the queue pair is destroyed: first completions stop, last memory is released.
VerbsMover::~VerbsMover() {
  if (!pair_) return;
  loop_.remove(pair_->number());
  pair_.reset();  // the device no longer touches the memory; only now do the owners go
  for (const auto& [id, batch] : batches_) {
    end(*batch.job, asio::error::operation_aborted);
    batch.job->owner.reset();
  }
  for (const auto& job : waiting_) {
    end(*job, asio::error::operation_aborted);
    job->owner.reset();
  }
}

/// A deadline or a cancellation ends the caller's wait and breaks the queue pair: a device cannot be stopped otherwise,
/// and the call must not return while it goes on. The owner keeps the memory until the flush is reported (1).
Async<void> VerbsMover::move(Direction direction, std::vector<Stretch> stretches, std::vector<std::size_t> segment_ends,
                             Owner owner, TimePoint deadline, OnSegment on_segment) {
  KV_ASSERT(std::is_sorted(segment_ends.begin(), segment_ends.end()));
  KV_ASSERT((segment_ends.empty() ? 0 : segment_ends.back()) == stretches.size());
  for (const Stretch& each : stretches) KV_ASSERT(!each.local.empty() && each.local.size() < 1ull << 32);
  if (broken_) co_return error_code(Errc::kUnavailable);
  if (clock_.now() >= deadline) co_return error_code(asio::error::timed_out);

  const auto job = std::make_shared<Job>(loop_.executor());
  job->direction = direction;
  job->stretches = std::move(stretches);
  job->segment_ends = std::move(segment_ends);
  job->owner = std::move(owner);
  job->on_segment = std::move(on_segment);
  job->alarm = clock_.make_alarm(loop_.executor());
  // `this` and `raw` live when it rings: a job that ends disarms its alarm, and all jobs end before this mover does.
  job->alarm->arm(deadline, [this, raw = job.get()] {
    end(*raw, asio::error::timed_out);
    fail(asio::error::timed_out);
  });
  waiting_.push_back(job);
  post_all();
  while (!job->ended.is_set()) {
    co_await job->ended.wait();
    if (job->ended.is_set()) break;
    // Cancelled. This mover still exists: its destructor would have ended the job.
    end(*job, asio::error::operation_aborted);
    fail(asio::error::operation_aborted);
  }
  if (job->result) co_return job->result;
  co_return Result<void>();
}

void VerbsMover::end(Job& job, error_code why) {
  if (job.ended.is_set()) return;
  job.result = why;
  job.alarm->disarm();
  job.on_segment = nullptr;
  job.ended.set();
}

/// Posts one batch of requests, all of one segment, and records the segments that it completes. The job changes only
/// after the queue pair has accepted the batch; a refused batch is rebuilt later.
bool VerbsMover::post_next(const std::shared_ptr<Job>& job) {
  std::vector<Request> requests;
  std::vector<Piece> pieces;
  // Reserved once: requests hold spans into this vector, so it must not grow.
  pieces.reserve(std::size_t{options_.batch_request_count} * options_.piece_count_max);
  std::size_t stretch = job->stretch, offset = job->offset, segment = job->segment;
  std::uint64_t batch_bytes = 0;
  const std::size_t end_of_segment = segment < job->segment_ends.size() ? job->segment_ends[segment] : 0;
  const bool is_to_peer = job->direction == Direction::kToPeer;
  while (stretch < end_of_segment && requests.size() < options_.batch_request_count) {
    Request request{.opcode = is_to_peer ? Opcode::kWrite : Opcode::kRead,
                    .remote_address = job->stretches[stretch].remote_address + offset,
                    .rkey = job->stretches[stretch].rkey};
    const std::size_t first_piece = pieces.size();
    // Stretches that adjoin at the peer, wherever they lie here, become one request: fewer packets and requests.
    std::uint64_t bytes = 0;
    while (stretch < end_of_segment && bytes < options_.chunk_bytes &&
           pieces.size() - first_piece < options_.piece_count_max) {
      const Stretch& next = job->stretches[stretch];
      if (next.rkey != request.rkey || next.remote_address + offset != request.remote_address + bytes) break;
      KV_ASSERT(offset < next.local.size());
      const std::size_t count = std::min<std::uint64_t>(next.local.size() - offset, options_.chunk_bytes - bytes);
      pieces.push_back({next.local.data() + offset, static_cast<std::uint32_t>(count), next.lkey});
      bytes += count;
      offset += count;
      if (offset == next.local.size()) {
        ++stretch;
        offset = 0;
      }
    }
    const std::uint64_t total = outstanding_bytes_ + batch_bytes + bytes;
    // This request would exceed the limit, unless it is the only one. Go back to the end of the last one.
    if (total > options_.outstanding_bytes_max && total > bytes) {
      stretch = job->stretch, offset = job->offset;
      for (const Request& kept : requests) {
        for (const Piece& piece : kept.pieces) {
          offset += piece.bytes;
          if (offset == job->stretches[stretch].local.size()) ++stretch, offset = 0;
        }
      }
      break;
    }
    KV_ASSERT(bytes > 0 && bytes <= options_.chunk_bytes && pieces.size() - first_piece <= options_.piece_count_max);
    request.pieces = std::span(pieces).subspan(first_piece);
    requests.push_back(request);
    batch_bytes += bytes;
  }
  if (requests.empty() && stretch < end_of_segment) return false;
  // Empty segments complete together with the stretch before them.
  while (segment < job->segment_ends.size() && job->segment_ends[segment] <= stretch && offset == 0) ++segment;
  if (!requests.empty()) {
    KV_ASSERT(requests.size() <= options_.batch_request_count);
    KV_ASSERT(pieces.size() <= std::size_t{options_.batch_request_count} * options_.piece_count_max);
    // Invariant 2.
    KV_ASSERT(outstanding_bytes_ + batch_bytes <= options_.outstanding_bytes_max || requests.size() == 1);
    const auto posted = pair_->post(requests, batch_last_ + 1);
    if (!posted && posted.error() == Errc::kBusy) return false;
    if (!posted) {
      fail(posted.error());
      return false;
    }
    batches_.emplace(++batch_last_, Batch{job, batch_bytes});
    outstanding_bytes_ += batch_bytes;
    counters_.requests += requests.size();
    ++counters_.batches;
    job->batches.push_back(segment);
  }
  job->stretch = stretch;
  job->offset = offset;
  job->segment = segment;
  return true;
}

/// One job after the other: the first without room holds up those behind it, so that none starves.
void VerbsMover::post_all() {
  while (!broken_ && !waiting_.empty()) {
    const std::shared_ptr<Job> job = waiting_.front();
    if (job->segment < job->segment_ends.size()) {
      if (!post_next(job)) return;
      if (job->segment < job->segment_ends.size()) continue;
    }
    waiting_.pop_front();
    batch_ended(job);  // a job without bytes has ended already
  }
}

void VerbsMover::on_completion(const Completion& completion) {
  // Only posted batches complete. Peers cannot violate that; a failing device can, and then its reports on other
  // batches are worthless too. It costs this queue pair, never the node: owners are kept until the queue pair is gone.
  const bool is_known =
      batches_.contains(completion.id) || (completion.status == Status::kFatal && !completion.is_last);
  if (completion.is_receive || !is_known) return fail(make_error_code(Status::kGeneral));
  const bool is_good = completion.status == Status::kSuccess;
  if (!is_good) {
    // The first failure has the reason; the others are flushed. (kFatal without a batch comes from the loop itself.)
    fail(make_error_code(completion.status));
    // The device may never report the rest. Calls end now, but their memory stays owned: it may still be touched.
    if (completion.status == Status::kFatal) {
      for (const auto& [id, batch] : batches_) end(*batch.job, broken_);
      if (on_gone_) asio::post(loop_.executor(), std::exchange(on_gone_, nullptr));
    }
  }
  if (!completion.is_last) return;
  const auto found = batches_.find(completion.id);
  KV_ASSERT(found != batches_.end());
  const std::shared_ptr<Job> job = found->second.job;
  KV_ASSERT(outstanding_bytes_ >= found->second.bytes && !job->batches.empty());
  if (is_good) counters_.bytes += found->second.bytes;
  outstanding_bytes_ -= found->second.bytes;
  batches_.erase(found);
  // Batches of one queue pair complete in posting order, so this is the job's first.
  const std::size_t complete_segments = job->batches.front();
  KV_ASSERT(complete_segments <= job->segment_ends.size());
  job->batches.pop_front();
  while (is_good && job->landed < complete_segments) {
    const std::size_t segment = job->landed++;
    if (job->on_segment) job->on_segment(segment);
  }
  batch_ended(job);
  post_all();
}

/// Ends the job once it has no batch outstanding or left. Here and in the destructor, the owner is released (1).
void VerbsMover::batch_ended(const std::shared_ptr<Job>& job) {
  const bool is_posted = job->segment == job->segment_ends.size() || job->is_stopped;
  if (!job->batches.empty() || (!is_posted && !broken_)) return;
  job->owner.reset();
  if (job->is_stopped && !broken_) return end(*job, Errc::kCancelled);
  while (!broken_ && job->landed < job->segment_ends.size()) {  // only empty segments are left
    const std::size_t segment = job->landed++;
    if (job->on_segment) job->on_segment(segment);
  }
  end(*job, job->landed == job->segment_ends.size() ? error_code() : broken_);
}

/// Stops unposted requests; posted ones end normally, since the queue pair is shared with other moves.
void VerbsMover::stop(OwnerId owner) {
  std::vector<std::shared_ptr<Job>> stopped;
  std::erase_if(waiting_, [&](const auto& job) {
    if (job->owner.id() != owner) return false;
    stopped.push_back(job);
    return true;
  });
  for (const auto& job : stopped) {
    job->is_stopped = true;
    batch_ended(job);
  }
  if (!stopped.empty()) post_all();  // a stopped one may have blocked the queue
}

void VerbsMover::fail(error_code why) {
  if (broken_) return;
  broken_ = why;
  // A device that refuses even this is gone. Then the memory stays owned until the queue pair is destroyed.
  [[maybe_unused]] const auto failed = pair_->fail();
  std::deque<std::shared_ptr<Job>> waiting = std::exchange(waiting_, {});
  for (const auto& job : waiting) batch_ended(job);  // jobs with outstanding batches end when these are flushed
}

}  // namespace kv::verbs
