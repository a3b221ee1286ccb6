#include "store/node/session/transfers/read_ahead.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace kv {

ReadAhead::ReadAhead(asio::any_io_executor executor, NodeContext& node, SessionId session, Chain chain,
                     std::shared_ptr<PinnedPrefixGuard> prefix, std::size_t count, std::size_t skipped)
    : executor_(std::move(executor)),
      node_(node),
      session_(session),
      chain_(chain),
      prefix_(std::move(prefix)),
      count_(count),
      reads_(std::make_shared<Reads>(executor_, count)),
      alarm_(node.clock.make_alarm(executor_)),
      started_(skipped),
      next_(skipped) {
  KV_ASSERT(skipped <= count_ && count_ <= prefix_->on_disk().size());
  KV_ASSERT(count_ == 0 || prefix_->on_disk()[count_ - 1].index < chain_.hashes.size());
}

ReadAhead::~ReadAhead() { alarm_->disarm(); }

void ReadAhead::start() {
  KV_ASSERT(!is_at_end());
  for (; started_ < count_; ++started_) {
    const std::uint64_t bytes = prefix_->on_disk()[started_].block_bytes;
    // The next one is always read, even a large one, or reading would stall.
    if (started_ > next_ && ahead_bytes_ + bytes > kBytesMax) break;  // invariant 1
    ahead_bytes_ += bytes;
    start_one(started_);
  }
}

void ReadAhead::start_one(std::size_t i) {
  const PinnedDiskBlock& block = prefix_->on_disk()[i];
  const auto done = [weak = std::weak_ptr(reads_), i, executor = executor_](Result<DiskBlock> read) {
    asio::post(executor, [weak, i, read = std::move(read)]() mutable {
      // On the reader's thread. If the reader has gone, drop the late block.
      const auto waiting = weak.lock();
      if (!waiting) return;  // invariant 3
      waiting->results[i] = std::move(read);
      waiting->progress.set();
    });
  };
  node_.disk_worker->read(block.key, block.seed, block.block_bytes, reads_, done);
}

void ReadAhead::wake_at(TimePoint when) {
  alarm_->arm(when, [weak = std::weak_ptr(reads_)] {
    if (const auto waiting = weak.lock()) waiting->progress.set();
  });
}

ReadAhead::Taken ReadAhead::take(DiskBlock* block) {
  KV_ASSERT(!is_at_end() && is_ready());
  const Result<DiskBlock> read = std::move(*std::exchange(reads_->results[next_], std::nullopt));
  if (read) {
    KV_ASSERT(read->bytes.size() == prefix_->on_disk()[next_].block_bytes);
    *block = *read;
    step();
    return Taken::kBlock;
  }
  // A failing disk may return the block later. A lost block is forgotten, or has moved within the log: then it is read
  // from its new place, but only once, since a block that keeps moving is in a log rewritten faster than it is read.
  if (is_retry_ || !is_lost(read.error())) return Taken::kEnd;
  PinnedDiskBlock& of_disk = prefix_->on_disk()[next_];
  const DiskDesk::FailedRead failed =
      node_.store.with([&](Store& store) { return store.read_failed(of_disk.id, of_disk.key); });
  if (failed.is_forgotten) {
    spdlog::warn("disk: block {} of namespace {} is forgotten: {}", to_hex(chain_.hashes[of_disk.index].bytes),
                 to_hex(chain_.space_name.bytes), read.error().message());
  }
  if (failed.moved_to == DiskKey{}) return Taken::kEnd;
  of_disk.key = failed.moved_to;
  is_retry_ = true;
  start_one(next_);
  return Taken::kAgain;
}

void ReadAhead::skip() {
  KV_ASSERT(chain_.kind == NamespaceKind::kSet && !is_at_end());
  step();
}

void ReadAhead::step() {
  KV_ASSERT(next_ < started_ && ahead_bytes_ >= prefix_->on_disk()[next_].block_bytes);
  ahead_bytes_ -= prefix_->on_disk()[next_].block_bytes;
  is_retry_ = false;
  ++next_;
}

void ReadAhead::promote(const DiskBlock& block) {
  KV_ASSERT(next_ > 0);
  const PinnedDiskBlock& of_disk = prefix_->on_disk()[next_ - 1];
  const bool is_set = chain_.kind == NamespaceKind::kSet;
  const auto hashes = is_set ? chain_.hashes.subspan(of_disk.index, 1) : chain_.hashes.first(of_disk.index + 1);
  // For both kinds, only without evicting unwritten blocks.
  auto plan = node_.store.with([&](Store& store) {
    if (!is_set) {
      PutDesk::OfferOptions options{.session = session_};
      options.may_lose = false;
      return store.offer(chain_.space, hashes, options, node_.clock.now());
    }
    const SetPuts::OfferOptions options{
        .session = session_, .lengths = {&of_disk.block_bytes, 1}, .may_lose = false, .promote = true};
    return store.offer_set(chain_.space, hashes, options, node_.clock.now());
  });
  if (!plan || plan->put == PutId{}) return;
  // The blocks above it may have left memory meanwhile; then the offer wants those too.
  const bool fits = plan->incoming.size() == 1 && plan->incoming[0].index == hashes.size() - 1;
  if (fits) {
    KV_ASSERT(plan->incoming[0].bytes.size() == block.bytes.size());
    std::memcpy(plan->incoming[0].bytes.data(), block.bytes.data(), block.bytes.size());
  }
  node_.store.with([&](Store& store) {
    // A block that was dropped during the read must not come back this way.
    if (fits && store.is_on_disk(of_disk.id))
      static_cast<void>(store.commit(plan->put, block.checksums, node_.clock.now()));
    store.end_put(plan->put);
  });
}

}  // namespace kv
