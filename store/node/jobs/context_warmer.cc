#include "store/node/jobs/context_warmer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "store/node/session/transfers/read_ahead.h"
#include "store/node/store_guards.h"

namespace kv {
namespace {

/// Warmed blocks count as used a moment ago, to tell them from blocks stored by a client (Store::offer).
constexpr Duration kWarmedIdle = std::chrono::microseconds(1);
constexpr Duration kWarmBurst = 5ms;  ///< Lead over the rate: a pause for each small block would cost more.

}  // namespace

ContextWarmer::ContextWarmer(asio::any_io_executor executor, NodeContext& node, std::uint64_t bytes_per_second)
    : executor_(std::move(executor)),
      node_(node),
      bytes_per_second_(bytes_per_second),
      alarm_(node.clock.make_alarm(executor_)),
      rung_(executor_) {
  KV_ASSERT(node_.disk_worker != nullptr);
}

void ContextWarmer::stop() {
  stops_ = true;
  rung_.set();
  if (reading_ != nullptr) reading_->set();
}

asio::awaitable<void> ContextWarmer::pause_until(TimePoint when) {
  while (!stops_ && node_.clock.now() < when) {
    rung_.reset();
    alarm_->arm(when, [this] { rung_.set(); });
    co_await rung_.wait();
  }
  alarm_->disarm();
}

asio::awaitable<void> ContextWarmer::run() {
  while (!stops_) {
    bool is_progress = false;
    if (bytes_per_second_ > 0 && node_.disk_worker->can_read()) {
      auto work = node_.store.with([&](Store& store) { return store.next_to_warm(kPartBytes, node_.clock.now()); });
      if (work) is_progress = co_await bring(std::move(*work));
    }
    if (!is_progress) co_await pause_until(node_.clock.now() + kIdlePause);
  }
}

/// True: progress was made.
asio::awaitable<bool> ContextWarmer::bring(ContextDesk::WarmWork work) {
  const auto prefix = std::make_shared<PinnedPrefixGuard>(node_.store, std::move(work.pinned));
  const auto chain = work.chain();
  const std::uint32_t first = prefix->on_disk().front().index;
  PutDesk::OfferOptions options;
  options.idle = kWarmedIdle;
  options.may_lose = false;
  options.is_admitted = true;
  // The put keeps its prefix and its incoming blocks until it ends.
  auto plan =
      node_.store.with([&](Store& store) { return store.offer(work.space, chain, options, node_.clock.now()); });
  if (!plan || plan->put == PutId{}) co_return false;
  const PutId put = plan->put;
  const PutGuard guard(node_.store, put);
  std::vector<IncomingBlock> incoming = std::move(plan->incoming);
  while (plan && plan->again) {
    plan = node_.store.with([&](Store& store) { return store.offer_more(put, node_.clock.now(), /*may_lose=*/false); });
    if (plan) incoming.insert(incoming.end(), plan->incoming.begin(), plan->incoming.end());
  }
  node_.disk_worker->notify();  // memory was taken
  // Blocks above may have left memory, or arrived, since the search: then the next search sees that.
  if (incoming.empty() || incoming.front().index != first) co_return false;
  const std::size_t count = std::min(incoming.size(), prefix->on_disk().size());
  ReadAhead ahead(executor_, node_, SessionId{}, {work.space, work.space_name, NamespaceKind::kChain, chain}, prefix,
                  count);
  reading_ = &ahead.progress();
  std::size_t committed = 0;
  while (committed < count && !stops_) {
    if (next_at_ > node_.clock.now() + kWarmBurst) co_await pause_until(next_at_);
    ahead.start();
    // Per block: a slow disk is waited for, a hanging one is not.
    const TimePoint until = node_.clock.now() + node_.limits->disk_timeout;
    ahead.wake_at(until);
    while (!ahead.is_ready() && !stops_ && node_.clock.now() < until) {
      ahead.progress().reset();
      co_await ahead.progress().wait();
    }
    if (!ahead.is_ready() || stops_) break;
    DiskBlock block;
    const ReadAhead::Taken taken = ahead.take(&block);
    if (taken == ReadAhead::Taken::kAgain) continue;
    if (taken == ReadAhead::Taken::kEnd) break;
    KV_ASSERT(incoming[committed].bytes.size() == block.bytes.size());
    std::memcpy(incoming[committed].bytes.data(), block.bytes.data(), block.bytes.size());
    const BlockId on_disk = prefix->on_disk()[committed].id;
    const bool goes_on = node_.store.with([&](Store& store) {
      // Warming may have been cancelled, and a block that was dropped meanwhile must not come back this way.
      if (!store.is_warming(work.context) || !store.is_on_disk(on_disk)) return false;
      return store.commit(put, block.checksums, node_.clock.now()) != CommitStatus::kRefused;
    });
    if (!goes_on) break;
    ++committed;
    ++blocks_;
    bytes_ += block.bytes.size();
    const std::uint64_t rate = std::max<std::uint64_t>(1, bytes_per_second_);
    next_at_ = std::max(next_at_, node_.clock.now()) +
               std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(block.bytes.size()) * 1e9 /
                                                                  static_cast<double>(rate)));
  }
  reading_ = nullptr;
  // Before the put lets go of the blocks.
  while (node_.store.with([&](Store& store) { return store.keep_context(work.context, node_.clock.now()); })) {
  }
  co_return committed > 0;
}

std::vector<NodeMetrics::Value> ContextWarmer::stats() const {
  const std::size_t warming = node_.store.with([](Store& store) { return store.warming_count(); });
  return {{"contexts_warming", warming, false, "Contexts of which blocks are brought from disk to memory"},
          {"context_warmed_blocks", blocks_, true, "Blocks of contexts brought from disk to memory ahead of need"},
          {"context_warmed_bytes", bytes_, true, "Bytes of these"}};
}

}  // namespace kv
