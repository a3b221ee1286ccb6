// store/node/session/transfers/put.cc: a block enters as a hash that the client offers. A slot is taken (offer), filled
// and verified (receive, copy_in, fetch), and the block is visible to all when it leaves (commit).
#include "store/node/session/transfers/put.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "base/checksum.h"
#include "index/name_groups.h"
#include "store/node/session/transfers/verification.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr std::size_t kTurnBytes = 4 << 20;   ///< Copied from a region before others get a turn.
constexpr std::size_t kOfferedPerLock = 512;  ///< Of a set: each is looked up separately.
static_assert(kOfferedPerLock >= kGroupNamesMax);
constexpr std::size_t kCommitsPerLock = 256;  ///< Else thousands of small blocks hold it for milliseconds.

/// SetPutResponse.results.
enum Outcome : std::uint8_t { kResultRefused = 0, kResultStored = 1, kResultAlready = 2, kResultConflict = 3 };

}  // namespace

// -- the offer

Put::Put(std::shared_ptr<SessionCore> session, Listener& listener, DrainBound& draining, const OpenSpace& space,
         std::uint64_t request_id, const PutOrder& order, BlockPath path)
    : session_(std::move(session)),
      listener_(listener),
      draining_(draining),
      request_id_(request_id),
      space_(space.id),
      is_set_(space.kind == NamespaceKind::kSet),
      has_groups_(!order.group_counts.empty()),
      type_(is_set_ ? FrameType::kSetPut : FrameType::kPut),
      began_(session_->node.clock.now()),
      deadline_(began_ + std::min<Duration>(order.wait, session_->node.limits->put_wait_max)),
      path_(std::move(path)),
      about_{.space = space_,
             .space_name = space.shown_name,
             .type = type_,
             .block_count = order.hashes.size(),
             .trace = order.trace,
             .rest = &RequestPhases::client} {}

bool Put::offer(const Frame& frame, const PutOrder& order) {
  NodeContext& node = session_->node;
  const Duration wait = deadline_ - began_;
  PutDesk::OfferOptions options = order.chain;
  options.session = session_->id;
  options.hint = order.hint;
  options.may_lose = node.disk_worker == nullptr || wait == Duration::zero() ||
                     node.limits->spill_wait == Duration::zero() || !node.disk_worker->keeps_up();
  // At most half of the available time, since evicting for room is better than a refusal.
  if (!options.may_lose) spill_deadline_ = began_ + std::min<Duration>(node.limits->spill_wait, wait / 2);
  bool is_short = false;
  auto plan =
      is_set_ ? offer_set(order, options.may_lose, is_short) : node.store.with(&about_.phases, [&](Store& store) {
        auto offered = store.offer(space_, order.hashes, options, began_);
        is_short = store.wants_spill();
        return offered;
      });
  // Outside the lock: it wakes a thread that will want it.
  if (is_short && node.disk_worker != nullptr) node.disk_worker->notify();
  if (!plan) {
    session_->refuse(
        frame, plan.error(),
        fmt::format("{}: {} (hashes: {} of 1..{}, positions: {}, chain_blocks: {}, token_ids: {}, extras: {})",
                    frame_type_name(type_), plan.error().message(), order.hashes.size(), node.chain_blocks_max,
                    options.positions.size(), options.chain.block_count, options.token_ids.size(),
                    options.extras.size()));
    return false;
  }
  plan_ = std::move(*plan);
  guard_ = std::make_shared<PutGuard>(node.store, plan_.put);
  if (is_set_) {
    results_.assign(order.hashes.size(), kResultAlready);
    for (const std::uint32_t index : plan_.wanted) results_[index] = kResultRefused;  // until committed
  }
  return true;
}

Result<OfferPlan> Put::offer_set(const PutOrder& order, bool may_lose, bool& is_short) {
  NodeContext& node = session_->node;
  KV_ASSERT(order.lengths.size() == order.hashes.size());
  OfferPlan whole;
  std::size_t at = 0;
  auto groups = order.group_counts;
  do {
    const GroupPart leading = leading_part(groups, order.hashes.size() - at, kOfferedPerLock);
    const auto part = order.hashes.subspan(at, leading.name_count);
    // If the disk is unreadable, new copies of its blocks are welcome.
    const SetPuts::OfferOptions options{.session = session_->id,
                                        .lengths = order.lengths.subspan(at, part.size()),
                                        .may_lose = may_lose,
                                        .promote = node.disk_worker == nullptr || !node.disk_worker->can_read(),
                                        .put = whole.put,
                                        .first = static_cast<std::uint32_t>(at),
                                        .is_part = at + part.size() < order.hashes.size(),
                                        .group_counts = groups.first(leading.group_count),
                                        .hint = order.hint};
    auto plan = node.store.with(&about_.phases, [&](Store& store) {
      auto offered = store.offer_set(space_, part, options, began_);
      if (!offered && whole.put != PutId{}) store.end_put(whole.put);
      is_short = store.wants_spill();
      return offered;
    });
    if (!plan) return plan.error();
    plan->stored_count += whole.stored_count;
    whole.wanted.insert(whole.wanted.end(), plan->wanted.begin(), plan->wanted.end());
    plan->wanted = std::move(whole.wanted);
    whole = std::move(*plan);  // the last part has all incoming blocks
    at += part.size();
    groups = groups.subspan(leading.group_count);
  } while (at < order.hashes.size());
  return whole;
}

void Put::begin() {
  KV_ASSERT(guard_ && is_waiting_ && !is_over_);
  if (plan_.refused_count > 0 && (plan_.again || deadline_ > began_) && plan_.put != PutId{} && may_pass()) {
    asio::co_spawn(session_->executor, wait_for_memory(shared_from_this(), SessionJob(session_)),
                   BorderOf{NodeThread::kIo});
    return;
  }
  send_want();
}

asio::awaitable<void> Put::wait_for_memory(std::shared_ptr<Put> self, [[maybe_unused]] SessionJob job) {
  constexpr Duration kRetry = 1ms;
  const std::shared_ptr<SessionCore> session = self->session_;
  NodeContext& node = session->node;
  OfferPlan& plan = self->plan_;
  Event retry(session->executor);
  const auto alarm = node.clock.make_alarm(session->executor);
  const TimePoint waits_since = node.clock.now();
  while (plan.refused_count > 0 && self->may_pass() && !self->is_over_ && !session->is_ending) {
    const TimePoint now = node.clock.now();
    if (!plan.again && now >= self->deadline_) {
      node.metrics.deadline_missed();
      break;
    }
    if (plan.again) {
      co_await asio::post(session->executor, asio::use_awaitable);
    } else {  // pinned blocks become free when moves and leases end, without a common event
      retry.reset();
      alarm->arm(now + kRetry, [&retry] { retry.set(); });
      co_await retry.wait();
    }
    if (self->is_over_ || session->is_ending) break;
    // Until then the disk has a chance to write the victims; afterwards they are evicted unwritten.
    const bool may_lose = node.clock.now() >= self->spill_deadline_;
    if (node.disk_worker != nullptr) node.disk_worker->notify();
    auto more = node.store.with([&](Store& store) { return store.offer_more(plan.put, node.clock.now(), may_lose); });
    if (!more) break;
    plan.incoming.insert(plan.incoming.end(), more->incoming.begin(), more->incoming.end());
    plan.refused_count = more->refused_count;
    plan.refused_why = more->refused_why;
    plan.again = more->again;
    if (may_lose && self->spill_deadline_ != TimePoint{} && !more->incoming.empty()) {
      node.disk_worker->fell_behind(4 * node.limits->spill_wait);  // so that puts do not all wait in vain
      self->spill_deadline_ = {};
    }
  }
  self->about_.phases.room += node.clock.now() - waits_since;  // includes the tries, which are not counted separately
  if (!self->is_over_ && !session->is_ending) self->send_want();
  session->writer.flush();
}

void Put::count_bytes(Path way, std::uint64_t bytes) {
  about_.moved_bytes += bytes;
  session_->node.metrics.add_bytes_in(way, bytes);
}

void Put::send_want() {
  KV_ASSERT(is_waiting_);
  is_waiting_ = false;
  if (plan_.incoming.empty()) return finish();
  session_->access.moved(bytes_of(0, plan_.incoming.size()));
  if (is_set_) {
    session_->replies.reply(type_, request_id_, kFrameMore, [&](FlatBufferBuilder& builder) {
      std::uint32_t* index = nullptr;
      const auto blocks = builder.CreateUninitializedVector(plan_.incoming.size(), &index);
      for (const IncomingBlock& block : plan_.incoming) *index++ = block.index;
      return wire::CreateSetPutWant(builder, blocks);
    });
    return;
  }
  session_->replies.reply(type_, request_id_, kFrameMore, [&](FlatBufferBuilder& builder) {
    return wire::CreatePutWant(builder, static_cast<std::uint32_t>(plan_.stored_count),
                               static_cast<std::uint32_t>(plan_.incoming.size()));
  });
}

// -- the data

std::string Put::check_data(const Frame& frame, const wire::PutData* data) const {
  if (is_waiting_) return "put_data: before put_want";
  if (data == nullptr) return "put_data: the table fails verification";
  // Counts announced rather than committed blocks: data may be announced while earlier data is being fetched.
  const std::size_t left = plan_.incoming.size() - announced_;
  const std::uint64_t count = data->block_count();
  if (count == 0 || count > left) return fmt::format("put_data.block_count: {}, 1..{} are due", count, left);
  const std::size_t sums = data->checksums() == nullptr ? 0 : data->checksums()->size();
  const std::size_t sums_due = sum_count(announced_, count);
  if (sums != sums_due) return fmt::format("put_data.checksums: {}, {} are due", sums, sums_due);
  const std::uint64_t payload_bytes = path_.has_region() ? 0 : bytes_of(announced_, count);
  if (frame.header.payload_bytes != payload_bytes)
    return fmt::format("put_data payload_bytes: {}, {} are due", frame.header.payload_bytes, payload_bytes);
  return {};
}

asio::awaitable<bool> Put::take_data(std::shared_ptr<Put> self, const Frame& frame, FrameReader& reader) {
  const auto* data = read_table<wire::PutData>(frame.table);
  const std::string why = self->check_data(frame, data);
  if (!why.empty()) {
    self->fail(Errc::kBadRequest, why);
    // The put has failed, the session has not: the bytes that follow belong to this frame and must be read off.
    const auto skipped = co_await reader.skip_payload();
    co_return skipped.has_value();
  }
  const auto sums = numbers_of(data->checksums());
  const std::size_t count = data->block_count();
  Claimed claimed(sums.begin(), sums.end());  // the table is gone once the payload is read
  const std::size_t first = std::exchange(self->announced_, self->announced_ + count);
  const std::shared_ptr<SessionCore> session = self->session_;
  if (!self->path_.has_region()) co_return co_await receive(self, count, std::move(claimed), reader);
  if (self->path_.is_shared_memory()) {
    co_await copy_in(self, count, std::move(claimed));
    co_return !session->is_ending;
  }
  if (self->path_.way() != Path::kVerbs) {
    self->fail(Errc::kUnavailable, "put_data: no lane is up");
    co_return true;
  }
  self->draining_.begin(self->bytes_of(first, count));  // before the next data is read
  asio::co_spawn(session->executor, fetch(self, first, count, std::move(claimed), SessionJob(session)),
                 BorderOf{NodeThread::kIo});
  // More data may be announced during this fetch, within bounds. A move and its verification end in bounded time.
  DrainBound& draining = self->draining_;
  // While this waits, the put may end, so it must not keep the slots.
  self.reset();
  while (draining.is_reached()) {
    session->writer.flush();
    co_await draining.wait();
    session->was_kept_waiting();
  }
  co_return !session->is_ending;
}

std::span<const IncomingBlock> Put::incoming(std::size_t first, std::size_t count) const {
  KV_ASSERT(first <= plan_.incoming.size() && count <= plan_.incoming.size() - first);
  return std::span(plan_.incoming).subspan(first, count);
}

std::uint64_t Put::bytes_of(std::size_t first, std::size_t count) const {
  std::uint64_t bytes = 0;
  for (const IncomingBlock& block : incoming(first, count)) bytes += block.bytes.size();
  return bytes;
}

std::size_t Put::sum_count(std::size_t first, std::size_t count) const {
  std::size_t sums = 0;
  for (const IncomingBlock& block : incoming(first, count)) sums += stripe_count(block.bytes.size());
  return sums;
}

/// From the stream. False: it broke.
asio::awaitable<bool> Put::receive(std::shared_ptr<Put> self, std::size_t count, Claimed claimed, FrameReader& reader) {
  const auto blocks = self->incoming(self->committed_, count);
  std::vector<BlockTarget> targets(count);
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t stripes = stripe_count(blocks[i].bytes.size());
    KV_ASSERT(stripes <= claimed.size() - at);
    targets[i] = {blocks[i].bytes, blocks[i].seed, 0, std::span(claimed).subspan(at, stripes)};
    at += stripes;
  }
  BlockSink sink(targets);
  self->sink_ = &sink;
  const auto read = co_await reader.read_payload(sink);
  self->sink_ = nullptr;
  if (!read) co_return false;
  self->count_bytes(Path::kInline, self->bytes_of(self->committed_, count));
  // The sink was cancelled then, and discarded the rest: freed slots stayed untouched.
  if (self->is_over_) co_return !self->session_->is_ending;  // timed out or cancelled meanwhile, and answered then
  self->commit(sink.good_count(), count, claimed);
  co_return true;
}

/// From shared memory.
asio::awaitable<void> Put::copy_in(std::shared_ptr<Put> self, std::size_t count, Claimed claimed) {
  NodeContext& node = self->session_->node;
  const std::size_t first = self->committed_;
  const auto blocks = self->incoming(first, count);
  Claimed sums;
  std::size_t good = 0, since_turn = 0, at = 0;
  const TimePoint moves_since = node.clock.now();
  for (; good < count && !self->is_over_; ++good) {
    if (self->path_.has_hole(*node.lent, node.clock.now())) {
      self->fail(Errc::kNoRegion, "put_data: region: memory was taken out of the memfd after it was lent");
      break;
    }
    const IncomingBlock& block = blocks[good];
    const std::size_t length = block.bytes.size();
    sums.resize(stripe_count(length));
    KV_ASSERT(sums.size() <= claimed.size() - at);
    // The sums are of the slot's bytes: the client may change its memory at any moment.
    copy_with_checksums(block.seed, block.bytes, self->path_.at_client(block.index, 0, length), sums);
    if (!std::equal(sums.begin(), sums.end(), claimed.begin() + static_cast<std::ptrdiff_t>(at))) break;
    at += sums.size();
    since_turn += length;
    if (since_turn >= kTurnBytes) {
      since_turn = 0;
      co_await asio::post(self->session_->executor, asio::use_awaitable);
    }
  }
  self->about_.phases.move += node.clock.now() - moves_since;
  self->count_bytes(Path::kMemfd, self->bytes_of(first, good));
  if (!self->is_over_) self->commit(good, count, claimed);
}

/// By RDMA, while the session goes on. Concurrent fetches commit in their order.
asio::awaitable<void> Put::fetch(std::shared_ptr<Put> self, std::size_t first, std::size_t count, Claimed claimed,
                                 [[maybe_unused]] SessionJob job) {
  const std::shared_ptr<SessionCore> session = self->session_;
  const std::uint64_t bytes = self->bytes_of(first, count);
  std::shared_ptr<Region> region = self->path_.region();  // held: the put may end before the move
  const auto blocks = self->incoming(first, count);
  const TimePoint moves_since = session->node.clock.now();
  const auto own_end = std::make_shared<Event>(session->executor);
  const std::shared_ptr<Event> before = std::exchange(self->last_fetch_, own_end);
  MoveOutcome outcome{.error = Errc::kUnavailable};
  std::size_t good = 0;
  if (!self->is_over_ && self->path_.way() == Path::kVerbs) {  // else the lanes broke since the data was announced
    SessionRdma& rdma = self->path_.rdma();
    std::vector<Placement> placements;
    for (const IncomingBlock& block : blocks) placements.push_back(self->path_.placement(block.index, 0, block.bytes));
    outcome = co_await self->path_.moved(session->executor, verbs::Direction::kFromPeer, placements, self->guard_);
    if (!outcome.error) good = co_await count_sound(*session, rdma, self->guard_, blocks, claimed, self->is_over_);
  }
  // Verified in any order, committed in the order of the chain: a block becomes visible only below a visible one.
  while (before && !before->is_set()) co_await before->wait();
  if (!self->is_over_ && outcome.error) {
    self->fail(Errc::kUnavailable, "put_data: the transfer broke: " + outcome.error.message(), outcome.broken);
  } else if (!self->is_over_) {
    KV_ASSERT(self->committed_ == first);
    self->about_.phases.move += session->node.clock.now() - moves_since;
    self->count_bytes(Path::kVerbs, self->bytes_of(first, good));
    self->commit(good, count, claimed);
  }
  own_end->set();
  self->draining_.end(bytes);
  region.reset();  // first: a removal of the region may be waiting for that
  session->writer.flush();
}

/// Makes the next `good` of `count` announced blocks visible; the one after them, if any, failed its checksums.
void Put::commit(std::size_t good, std::size_t count, std::span<const std::uint64_t> claimed) {
  KV_ASSERT(!is_over_ && good <= count && committed_ + count <= announced_ &&
            claimed.size() == sum_count(committed_, count));
  NodeContext& node = session_->node;
  for (std::size_t i = committed_, all = committed_ + good; i < all;) {
    const std::size_t end = std::min(i + kCommitsPerLock, all);
    if (has_groups_) {
      i = commit_groups(i, end, claimed);
      continue;
    }
    node.store.with(&about_.phases, [&](Store& store) {
      for (; i < end; ++i) {
        const std::size_t stripes = stripe_count(plan_.incoming[i].bytes.size());
        count_result(i, store.commit(plan_.put, claimed.first(stripes), node.clock.now()));
        claimed = claimed.subspan(stripes);
      }
    });
  }
  committed_ += good;
  if (good < count) {
    node.metrics.checksum_failed();
    fail(Errc::kCorruptBlock,
         fmt::format("put_data: block {}{} does not match its checksums", plan_.incoming[committed_].index,
                     is_set_ ? " of the request" : " of the chain"));
  } else if (committed_ == plan_.incoming.size()) {
    finish();
  }
}

/// Commits complete groups among the verified blocks [first, end), with checksums at `claimed`'s front. Returns `end`.
std::size_t Put::commit_groups(std::size_t first, std::size_t end, std::span<const std::uint64_t>& claimed) {
  NodeContext& node = session_->node;
  node.store.with(&about_.phases, [&](Store& store) {
    for (std::size_t i = first; i < end; ++i) {
      const auto sums = claimed.first(stripe_count(plan_.incoming[i].bytes.size()));
      claimed = claimed.subspan(sums.size());
      waiting_sums_.insert(waiting_sums_.end(), sums.begin(), sums.end());
      ++waiting_;
      KV_ASSERT(waiting_ <= kGroupNamesMax);
      if (!plan_.incoming[i].completes_group) continue;
      const auto statuses = store.commit_group(plan_.put, waiting_sums_, node.clock.now());
      KV_ASSERT(statuses.size() == waiting_);
      for (std::size_t k = 0; k < waiting_; ++k) count_result(i + 1 - waiting_ + k, statuses[k]);
      waiting_ = 0;
      waiting_sums_.clear();
    }
  });
  return end;
}

/// Records the result of incoming block i.
void Put::count_result(std::size_t i, CommitStatus status) {
  Outcome result = kResultRefused;
  switch (status) {
    case CommitStatus::kStored: result = kResultStored, ++stored_; break;
    case CommitStatus::kAlreadyStored: result = kResultAlready, ++already_stored_; break;
    case CommitStatus::kConflict: result = kResultConflict, ++refused_late_; break;
    case CommitStatus::kRefused: ++refused_late_; break;
  }
  if (is_set_) results_[plan_.incoming[i].index] = result;
}

// -- the end

void Put::finish() {
  const std::shared_ptr<Put> keep = shared_from_this();
  path_.stop(OwnerId(guard_.get()));
  guard_.reset();
  // A failed put was answered already, also one that still waited for memory and has no incoming blocks.
  const bool is_whole = !std::exchange(is_over_, true) && committed_ == plan_.incoming.size();
  const Duration took = session_->node.clock.now() - began_;
  session_->node.metrics.observe_request(type_, took, !is_whole);
  if (session_->node.slow.is_slow(took)) tell_slow(*session_, about_, took, !is_whole);
  const std::uint32_t broken = path_.broken();
  path_ = {};
  KV_ASSERT(!is_whole || waiting_ == 0);
  if (is_whole && is_set_) {
    const bool has_refused = std::ranges::find(results_, kResultRefused) != results_.end();
    // If memory was never short, another block of the group was stored meanwhile with other bytes, or one has gone.
    const bool has_conflict = std::ranges::find(results_, kResultConflict) != results_.end();
    const Errc of_group = has_conflict ? Errc::kMismatch : Errc::kNotFound;
    const Errc refused_why = has_groups_ && plan_.refused_count == 0 ? of_group : plan_.refused_why;
    session_->replies.reply(type_, request_id_, 0, [&](FlatBufferBuilder& builder) {
      const auto results = builder.CreateVector(results_);
      const auto why = has_refused ? static_cast<std::uint16_t>(refused_why) : std::uint16_t{0};
      return wire::CreateSetPutResponse(builder, results, why, broken, session_->node.cluster.epoch());
    });
  } else if (is_whole) {
    const auto refused = static_cast<std::uint32_t>(plan_.refused_count + refused_late_);
    session_->replies.reply(type_, request_id_, 0, [&](FlatBufferBuilder& builder) {
      return wire::CreatePutResponse(builder, stored_, static_cast<std::uint32_t>(plan_.stored_count + already_stored_),
                                     refused,
                                     refused > 0 ? static_cast<std::uint16_t>(plan_.refused_why) : std::uint16_t{0},
                                     broken, session_->node.cluster.epoch());
    });
  }
  listener_.put_ended(request_id_);
}

void Put::fail(Errc code, const std::string& message, std::uint32_t broken) {
  if (is_over_) return;
  if (sink_ != nullptr) sink_->cancel();  // its slots are freed below
  session_->replies.refuse(type_, request_id_, code, message, broken | path_.broken());
  // A copy from the region into the slots may be waiting for its turn: it checks is_over_ before it uses them again.
  is_over_ = true;
  finish();
}

void Put::stop() {
  if (sink_ != nullptr) sink_->cancel();
  is_over_ = true;
}

}  // namespace kv
