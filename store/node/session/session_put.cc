// store/node/session/session_put.cc: a block enters: its slot is staged under the lock (offer), filled from the socket
// or the region and verified against what the client claims (drain), and made visible (commit). Memory registered for
// RDMA is read by the device, and verified on another thread, while the session goes on (drain_by_verbs).

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/checksum.h"
#include "store/node/session/session.h"

namespace kv {
namespace {

constexpr std::size_t kTurnBytes = 4 << 20;          ///< Copied from a region before others get a turn.
constexpr std::size_t kVerifyHereBytes = 256 << 10;  ///< Another thread would take longer to wake.
/// Of a session's puts, fetched by RDMA at once: enough to keep several lanes busy.
constexpr std::uint64_t kDrainingBytesMax = 16 << 20;
constexpr std::size_t kDrainsMax = 64;
constexpr std::size_t kCommitsPerLock = 256;  ///< So that thousands of small blocks do not hold it for milliseconds.

/// How many of the leading slots hold what the client claims. They count, not what lies at the client's by now.
std::size_t count_sound(std::span<const Store::StagedBlock> staged, std::span<const std::uint64_t> claimed,
                        std::size_t stripes) {
  std::size_t sound = 0;
  while (sound < staged.size() &&
         verify_block(staged[sound].seed, staged[sound].bytes, claimed.subspan(sound * stripes, stripes)))
    ++sound;
  return sound;
}

}  // namespace

void Session::on_put(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const auto* request = read_table<wire::PutRequest>(frame.table);
  if (request == nullptr) return refuse(FrameType::kPut, id, Errc::kBadRequest, "put: the table fails verification");
  const OpenSpace* const space = find_space(frame, request->space(), request->namespace_check());
  if (space == nullptr) return;
  const auto hashes = hashes_of(request->hashes());
  const auto offsets = numbers_of(request->offsets());
  if (!check_target(frame, request->region(), hashes.size(), offsets, space->block_bytes)) return;
  if (gets_.contains(id) || puts_.contains(id)) {
    return refuse(FrameType::kPut, id, Errc::kBadRequest, "request_id: " + std::to_string(id) + ", in use");
  }
  if (sending_count_ + puts_.size() >= node_.limits.requests_max) {
    return refuse(FrameType::kPut, id, Errc::kBusy,
                  count_text("requests in flight", node_.limits.requests_max, node_.limits.requests_max));
  }
  const auto job = std::make_shared<PutJob>();
  job->request_id = id;
  job->began = node_.clock.now();
  const auto wait_us = std::min<std::uint64_t>(
      request->deadline_us(),
      static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::microseconds>(node_.limits.put_wait_max).count()));
  job->deadline = job->began + std::chrono::microseconds(wait_us);
  job->block_bytes = space->block_bytes;
  job->hash_count = hashes.size();
  if (version_ < 2) {
    job->space_name = space->name;
    job->hashes.assign(hashes.begin(), hashes.end());
  }
  Store::OfferOptions options;
  options.session = id_;
  options.positions = numbers_of(request->positions());
  options.token_ids = numbers_of(request->token_ids());
  options.extras = extras_of(request->extras());
  bool is_short = false;
  options.may_lose =
      node_.spill == nullptr || wait_us == 0 || node_.limits.spill_wait == Duration::zero() || !node_.spill->keeps_up();
  if (!options.may_lose) {  // at most half of the time there is: room that can be made is better than a refusal
    job->spill_deadline =
        job->began + std::min<Duration>(node_.limits.spill_wait, std::chrono::microseconds(wait_us) / 2);
  }
  auto plan = node_.store.with([&](Store& store) {
    auto offered = store.offer(space->id, hashes, options, job->began);
    is_short = store.wants_spill();
    return offered;
  });
  if (is_short && node_.spill != nullptr) node_.spill->notify();
  if (!plan) {
    return refuse(FrameType::kPut, id, plan.error(),
                  "put: " + plan.error().message() + " (hashes: " + std::to_string(hashes.size()) + " of 1.." +
                      std::to_string(node_.chain_blocks_max) +
                      ", positions: " + std::to_string(options.positions.size()) +
                      ", token_ids: " + std::to_string(options.token_ids.size()) +
                      ", extras: " + std::to_string(options.extras.size()) + ")");
  }
  job->plan = std::move(*plan);
  job->staged = std::shared_ptr<void>(nullptr, [self = shared_from_this(), put = job->plan.put](void*) {
    if (put != PutId{}) self->node_.store.with([&](Store& store) { store.end_put(put); });
  });
  if (request->region() != 0) {
    job->region = regions_.at(request->region());
    ++job->region->user_count;
    job->offsets.assign(offsets.begin(), offsets.end());
    job->lanes = request->lanes() & job->region->lanes;
  }
  puts_.emplace(id, job);
  if (job->plan.refused_count > 0 && (job->plan.again || wait_us > 0) && job->plan.put != PutId{}) {
    ++job_count_;
    asio::co_spawn(executor_, wait_for_memory(shared_from_this(), job), asio::detached);
    return;
  }
  send_want(*job);
}

asio::awaitable<void> Session::wait_for_memory(std::shared_ptr<Session> self, std::shared_ptr<PutJob> job) {
  constexpr Duration kRetry = 1ms;
  NodeContext& node = self->node_;
  Event retry(self->executor_);
  const auto alarm = node.clock.make_alarm(self->executor_);
  while (job->plan.refused_count > 0 && !job->is_over && !self->ending_) {
    const TimePoint now = node.clock.now();
    if (!job->plan.again && now >= job->deadline) {
      node.metrics.deadline_missed();
      break;
    }
    if (job->plan.again) {
      co_await asio::post(self->executor_, asio::use_awaitable);
    } else {  // pinned blocks become free when moves and leases end; there is no one event for that
      retry.reset();
      alarm->arm(now + kRetry, [&retry] { retry.set(); });
      co_await retry.wait();
    }
    if (job->is_over || self->ending_) break;
    const bool may_lose = node.clock.now() >= job->spill_deadline;
    if (node.spill != nullptr) node.spill->notify();
    auto more =
        node.store.with([&](Store& store) { return store.offer_more(job->plan.put, node.clock.now(), may_lose); });
    if (!more) break;
    job->plan.staged.insert(job->plan.staged.end(), more->staged.begin(), more->staged.end());
    job->plan.refused_count = more->refused_count;
    job->plan.again = more->again;
    if (may_lose && job->spill_deadline != TimePoint{} && !more->staged.empty()) {
      node.spill->fell_behind(4 * node.limits.spill_wait);  // so that puts do not all wait for nothing
      job->spill_deadline = {};
    }
  }
  if (!job->is_over && !self->ending_) self->send_want(*job);
  self->writer_.flush();
  self->job_ended();
}

void Session::send_want(PutJob& job) {
  job.is_waiting = false;
  if (job.plan.staged.empty()) return finish_put(job);
  use_seeds_v1(job);
  reply(FrameType::kPut, job.request_id, kFrameMore, [&](FlatBufferBuilder& builder) {
    return wire::CreatePutWant(builder, static_cast<std::uint32_t>(job.plan.stored_count),
                               static_cast<std::uint32_t>(job.plan.staged.size()));
  });
}

asio::awaitable<bool> Session::on_put_data(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const auto found = puts_.find(id);
  if (found == puts_.end() || found->second->is_waiting || found->second->is_over) {
    // The put may just have failed, with its data still on the way: the client knows already.
    if (found != puts_.end()) fail_put(*found->second, Errc::kBadRequest, "put_data: before put_want");
    const auto skipped = co_await reader_.skip_payload();
    co_return skipped.has_value();
  }
  const std::shared_ptr<PutJob> job = found->second;
  const auto* request = read_table<wire::PutData>(frame.table);
  const std::uint64_t stripes = stripe_count(job->block_bytes);
  const std::size_t left = job->plan.staged.size() - job->announced;
  std::string why;
  if (request == nullptr) {
    why = "put_data: the table fails verification";
  } else if (request->block_count() == 0 || request->block_count() > left) {
    why =
        "put_data.block_count: " + std::to_string(request->block_count()) + ", 1.." + std::to_string(left) + " are due";
  } else if (request->checksums() == nullptr || request->checksums()->size() != request->block_count() * stripes) {
    why = "put_data.checksums: " + std::to_string(request->checksums() == nullptr ? 0 : request->checksums()->size()) +
          ", " + std::to_string(request->block_count() * stripes) + " are due";
  } else if (frame.header.payload_bytes != (job->region ? 0 : request->block_count() * job->block_bytes)) {
    why = "put_data payload_bytes: " + std::to_string(frame.header.payload_bytes) + ", " +
          std::to_string(job->region ? 0 : request->block_count() * job->block_bytes) + " are due";
  }
  if (!why.empty()) {
    fail_put(*job, Errc::kBadRequest, why);
    const auto skipped = co_await reader_.skip_payload();
    co_return skipped.has_value();
  }
  const auto sums = numbers_of(request->checksums());
  const std::uint32_t count = request->block_count();
  std::vector<std::uint64_t> claimed(sums.begin(), sums.end());
  const std::size_t first = std::exchange(job->announced, job->announced + count);
  if (job->region && !job->region->mapped) {
    if ((job->lanes & lanes_->up()) == 0) {
      fail_put(*job, Errc::kUnavailable, "put_data: no lane is up");
      co_return true;
    }
    ++job_count_;
    ++drain_count_;
    draining_bytes_ += count * job->block_bytes;
    asio::co_spawn(executor_, drain_by_verbs(shared_from_this(), job, first, count, std::move(claimed)),
                   asio::detached);
    // The next data may be announced while these are fetched, within bounds. A move ends, at the latest by its
    // deadline, and what it brought is verified in bounded time.
    while (is_draining_enough()) {
      writer_.flush();
      drained_.reset();
      co_await drained_.wait();
      read_progress_.since = node_.clock.now();  // it was not the client who was slow
    }
    co_return !ending_;
  }
  co_return co_await drain(job, count, std::move(claimed));
}

bool Session::is_draining_enough() const { return drain_count_ >= kDrainsMax || draining_bytes_ >= kDrainingBytesMax; }

asio::awaitable<void> Session::drain_by_verbs(std::shared_ptr<Session> self, std::shared_ptr<PutJob> job,
                                              std::size_t first, std::size_t count,
                                              std::vector<std::uint64_t> claimed) {
  const auto staged = std::span(job->plan.staged).subspan(first, count);
  std::vector<Placement> placements;
  for (const auto& each : staged) placements.push_back({each.bytes, job->offsets[each.index]});
  const std::shared_ptr<Event> before = job->last_drain;
  const auto own_end = std::make_shared<Event>(self->executor_);
  job->last_drain = own_end;
  const auto fetched = std::make_shared<Event>(self->executor_);
  const auto outcome = std::make_shared<SessionLanes::Outcome>();
  const std::shared_ptr<Lent> region = job->region;
  ++region->user_count;
  if (!job->move_owner) job->move_owner = std::make_shared<std::shared_ptr<void>>(job->staged);
  self->lanes_->move(verbs::Direction::kFromPeer, placements, region->slices, job->lanes, job->move_owner,
                     [fetched, outcome](const SessionLanes::Outcome& ended) {
                       *outcome = ended;
                       fetched->set();
                     });
  while (!fetched->is_set()) co_await fetched->wait();

  const std::size_t stripes = stripe_count(job->block_bytes);
  const std::size_t turn = std::max<std::size_t>(1, kTurnBytes / job->block_bytes);
  std::size_t good = 0;
  while (!outcome->error && good < count && !job->is_over) {
    const std::size_t part = std::min(turn, count - good);
    const std::size_t sound =
        co_await self->verify(*job, first + good, part, std::span(claimed).subspan(good * stripes, part * stripes));
    good += sound;
    if (sound < part) break;
  }
  while (before && !before->is_set()) co_await before->wait();
  if (!job->is_over && outcome->error) {
    self->fail_put(*job, Errc::kUnavailable, "put_data: the transfer broke: " + outcome->error.message(),
                   outcome->broken_lanes);
  } else if (!job->is_over) {
    self->node_.metrics.add_bytes_in(Path::kVerbs, good * job->block_bytes);
    self->commit(*job, good, count, claimed);
  }
  own_end->set();
  --self->drain_count_;
  self->draining_bytes_ -= count * job->block_bytes;
  self->drained_.set();
  self->release(region);
  self->writer_.flush();
  self->job_ended();
}

/// How many of these staged blocks are sound. The caller keeps `job` and `claimed` until it has returned.
asio::awaitable<std::size_t> Session::verify(const PutJob& job, std::size_t first, std::size_t count,
                                             std::span<const std::uint64_t> claimed) {
  const auto staged = std::span(job.plan.staged).subspan(first, count);
  const std::size_t stripes = stripe_count(job.block_bytes);
  if (count * job.block_bytes <= kVerifyHereBytes) co_return count_sound(staged, claimed, stripes);
  struct Verification {
    Event over;
    std::size_t sound = 0;
  };
  const auto verification = std::make_shared<Verification>(Verification{Event(executor_)});
  const auto read = [=, slots = job.move_owner] { verification->sound = count_sound(staged, claimed, stripes); };
  lanes_->verifiers().run(read, executor_, [verification] { verification->over.set(); });
  while (!verification->over.is_set()) co_await verification->over.wait();
  co_return verification->sound;
}

asio::awaitable<bool> Session::drain(std::shared_ptr<PutJob> job, std::uint32_t count,
                                     std::vector<std::uint64_t> claimed) {
  const std::size_t stripes = stripe_count(job->block_bytes);
  const auto staged = std::span(job->plan.staged).subspan(job->committed, count);
  std::size_t good = 0;
  if (!job->region) {
    std::vector<BlockTarget> targets(count);
    for (std::size_t i = 0; i < count; ++i) {
      targets[i] = {staged[i].bytes, staged[i].seed, 0, std::span(claimed).subspan(i * stripes, stripes)};
    }
    BlockSink sink(targets);
    job->sink = &sink;
    const auto read = co_await reader_.read_payload(sink);
    job->sink = nullptr;
    if (!read) co_return false;
    node_.metrics.add_bytes_in(Path::kInline, count * job->block_bytes);
    good = sink.good_count();
  } else {
    std::vector<std::uint64_t> sums(stripes);
    std::size_t since_turn = 0;
    for (; good < count && !job->is_over; ++good) {
      if (has_hole(*job->region)) {
        fail_put(*job, Errc::kNoRegion, "put_data: region: memory was taken out of the memfd after it was lent");
        break;
      }
      const std::byte* const from = job->region->mapped->bytes().data() + job->offsets[staged[good].index];
      // The sums are of what lies in the slot: the client may change its memory at any moment.
      copy_with_checksums(staged[good].seed, staged[good].bytes, std::span(from, job->block_bytes), sums);
      if (!std::equal(sums.begin(), sums.end(), claimed.begin() + static_cast<std::ptrdiff_t>(good * stripes))) break;
      since_turn += job->block_bytes;
      if (since_turn >= kTurnBytes) {
        since_turn = 0;
        co_await asio::post(executor_, asio::use_awaitable);
      }
    }
    node_.metrics.add_bytes_in(Path::kMemfd, good * job->block_bytes);
  }
  if (job->is_over) co_return !ending_;  // timed out or cancelled meanwhile; its end was told
  commit(*job, good, count, claimed);
  co_return true;
}

/// What a client of version 1 claims is verified with its seeds.
void Session::use_seeds_v1(PutJob& job) {
  if (job.hashes.empty()) return;
  for (Store::StagedBlock& staged : job.plan.staged)
    staged.seed = checksum_seed_v1(job.space_name, job.hashes[staged.index]);
}

/// Makes the next `good` of `count` announced blocks visible; the one after them, if there is one, was not what the
/// client said.
void Session::commit(PutJob& job, std::size_t good, std::size_t count, std::span<const std::uint64_t> claimed) {
  const std::size_t stripes = stripe_count(job.block_bytes);
  std::vector<std::uint64_t> own;
  if (!job.hashes.empty()) {  // those of version 1 were right; stored are ours, of the same bytes
    own.resize(good * stripes);
    for (std::size_t i = 0; i < good; ++i) {
      const Store::StagedBlock& staged = job.plan.staged[job.committed + i];
      block_checksums(checksum_seed(job.space_name, job.hashes[staged.index]), staged.bytes,
                      std::span(own).subspan(i * stripes, stripes));
    }
    claimed = own;
  }
  for (std::size_t i = 0; i < good;) {
    node_.store.with([&](Store& store) {
      for (const std::size_t end = std::min(i + kCommitsPerLock, good); i < end; ++i) {
        switch (store.commit(job.plan.put, claimed.subspan(i * stripes, stripes), node_.clock.now())) {
          case Store::CommitStatus::kStored: ++job.stored; break;
          case Store::CommitStatus::kAlreadyStored: ++job.already_stored; break;
          default: ++job.refused_late; break;
        }
      }
    });
  }
  job.committed += good;
  if (good < count) {
    node_.metrics.checksum_failed();
    fail_put(job, Errc::kCorruptBlock,
             "put_data: block " + std::to_string(job.plan.staged[job.committed].index) +
                 " of the chain does not match its checksums");
  } else if (job.committed == job.plan.staged.size()) {
    finish_put(job);
  }
}

void Session::finish_put(PutJob& job) {
  if (job.move_owner) {
    const auto owner = std::exchange(job.move_owner, nullptr);
    lanes_->stop(owner.get());
  }
  job.staged.reset();
  // One that failed was answered, also if it still waited for memory, with nothing staged that could be missing.
  const bool whole = !std::exchange(job.is_over, true) && job.committed == job.plan.staged.size();
  node_.metrics.observe_verb(FrameType::kPut, node_.clock.now() - job.began, !whole);
  if (job.region) release(job.region);
  if (whole) {
    const auto refused = static_cast<std::uint32_t>(job.plan.refused_count + job.refused_late);
    reply(FrameType::kPut, job.request_id, 0, [&](FlatBufferBuilder& builder) {
      return wire::CreatePutResponse(
          builder, job.stored, static_cast<std::uint32_t>(job.plan.stored_count + job.already_stored), refused,
          refused > 0 ? static_cast<std::uint16_t>(Errc::kOutOfMemory) : std::uint16_t{0}, broken_lanes(job.lanes));
    });
  }
  puts_.erase(job.request_id);  // last: it may hold the only reference to `job`
}

void Session::fail_put(PutJob& job, Errc code, std::string message, std::uint32_t broken) {
  if (job.sink != nullptr) job.sink->cancel();  // its slots are freed below
  refuse(FrameType::kPut, job.request_id, code, message, broken | broken_lanes(job.lanes));
  const std::shared_ptr<PutJob> keep = puts_.at(job.request_id);
  // A copy from the region into the slots may be waiting for its turn: drain() sees is_over before it touches them
  // again.
  job.is_over = true;
  finish_put(job);
}

}  // namespace kv
