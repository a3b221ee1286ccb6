#include "store/node/session/requests/drops.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/assert.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr std::size_t kErasedPerLock = 256;  ///< Blocks of a set: some tens of microseconds.
/// Drops of one request in the disk's queue, which all sessions share. Each batch costs one sync.
constexpr std::size_t kToldAtOnce = 1024;

}  // namespace

void Drops::drop(const Frame& frame, const OpenSpace& space, std::span<const BlockHash> hashes) {
  NodeContext& node = session_.node;
  const std::uint64_t id = frame.header.request_id;
  if (freeing_count_ >= node.limits->requests_max)
    return session_.refuse(frame, Errc::kBusy,
                           count_text("drops in flight", freeing_count_, node.limits->requests_max));
  if (space.kind == NamespaceKind::kSet && !hashes.empty()) {
    if (hashes.size() > node.chain_blocks_max)
      return session_.refuse(frame, Errc::kTooLarge,
                             "drop." + count_text("hashes", hashes.size(), node.chain_blocks_max));
    ++freeing_count_;
    asio::co_spawn(session_.executor,
                   erase(session_.shared_from_this(), id, space.id, {hashes.begin(), hashes.end()},
                         SessionJob(session_.shared_from_this())),
                   BorderOf{NodeThread::kIo});
    return;
  }
  bool has_rest = false;
  DiskDrop dropped;
  const auto count = node.store.with([&](Store& store) {
    auto dropped_now = store.drop(space.id, hashes, &dropped);
    has_rest = store.is_dropping();
    return dropped_now;
  });
  if (!count) {
    return session_.refuse(frame, count.error(),
                           fmt::format("drop: {} (hashes: {})", count.error().message(), hashes.size()));
  }
  if (!has_rest) return keep(id, *count, {dropped});
  ++freeing_count_;
  asio::co_spawn(session_.executor,
                 free_rest(session_.shared_from_this(), id, *count, {dropped}, SessionJob(session_.shared_from_this())),
                 BorderOf{NodeThread::kIo});
}

asio::awaitable<void> Drops::free_rest(std::shared_ptr<SessionCore> session, std::uint64_t request_id,
                                       std::size_t count, std::vector<DiskDrop> drops,
                                       [[maybe_unused]] SessionJob job) {
  for (bool has_rest = true; has_rest && !session->is_ending;) {
    co_await asio::post(session->executor, asio::use_awaitable);  // others get a turn
    session->node.store.with([&](Store& store) {
      count += store.drop_more(session->node.clock.now());
      has_rest = store.is_dropping();
    });
  }
  if (!session->is_ending) keep(request_id, count, std::move(drops));
  KV_ASSERT(freeing_count_ > 0);
  --freeing_count_;
  session->writer.flush();
}

/// Erases blocks of a set, some at a time, and then frees those that pins had kept.
asio::awaitable<void> Drops::erase(std::shared_ptr<SessionCore> session, std::uint64_t request_id, SpaceId set,
                                   std::vector<BlockHash> hashes, SessionJob job) {
  NodeContext& node = session->node;
  std::vector<DiskDrop> drops;
  std::size_t count = 0;
  error_code error;
  for (std::size_t at = 0; at < hashes.size() && !error && !session->is_ending; at += kErasedPerLock) {
    if (at > 0) co_await asio::post(session->executor, asio::use_awaitable);  // others get a turn
    const auto part = std::span<const BlockHash>(hashes).subspan(at, std::min(kErasedPerLock, hashes.size() - at));
    const auto erased = node.store.with([&](Store& store) { return store.erase(set, part, &drops, node.clock.now()); });
    error = erased ? error_code() : erased.error();
    count += erased ? *erased : 0;
  }
  if (error && !session->is_ending) {
    session->replies.refuse(FrameType::kDrop, request_id, error,
                            fmt::format("drop: {} (hashes: {})", error.message(), hashes.size()));
    --freeing_count_;
    session->writer.flush();
    co_return;
  }
  co_await free_rest(session, request_id, count, std::move(drops), std::move(job));
}

void Drops::keep(std::uint64_t request_id, std::size_t count, std::vector<DiskDrop> drops) {
  NodeContext& node = session_.node;
  const std::uint64_t number = ++last_;
  const bool is_full = pending_.size() >= node.limits->requests_max;
  Pending& drop = pending_[number] = {request_id, count, node.clock.make_alarm(session_.executor), std::move(drops)};
  if (node.disk_worker == nullptr) return end(number, true);
  if (is_full) return end(number, false);
  const auto late = [this, weak = session_.weak_from_this(), number] {
    if (const auto session = weak.lock()) end(number, false);
  };
  drop.alarm->arm(node.clock.now() + node.limits->drop_wait,
                  [late, executor = session_.executor] { asio::post(executor, late); });
  tell_disk(number, drop);
}

void Drops::tell_disk(std::uint64_t number, Pending& drop) {
  // Posted: ending a drop destroys its alarm, and this runs on the disk's thread.
  const auto ended = [this, weak = session_.weak_from_this(), number, executor = session_.executor](bool is_kept) {
    asio::post(executor, [this, weak, number, is_kept] {
      if (const auto session = weak.lock()) one_ended(number, is_kept);
    });
  };
  KV_ASSERT(drop.waiting == 0 && drop.told < drop.drops.size());
  drop.waiting = std::min(kToldAtOnce, drop.drops.size() - drop.told);
  for (std::size_t left = drop.waiting; left > 0; --left)
    session_.node.disk_worker->keep_drop(drop.drops[drop.told++], ended);
}

void Drops::one_ended(std::uint64_t number, bool is_kept) {
  const auto found = pending_.find(number);
  if (found == pending_.end()) return;  // it took too long, and was answered then
  Pending& drop = found->second;
  KV_ASSERT(drop.waiting > 0);
  drop.is_kept = drop.is_kept && is_kept;
  if (--drop.waiting > 0) return;
  if (drop.told < drop.drops.size()) return tell_disk(number, drop);
  end(number, drop.is_kept);
}

void Drops::end(std::uint64_t number, bool is_kept) {
  const auto found = pending_.find(number);
  if (found == pending_.end()) return;
  const auto answered = pending_.extract(found);
  const Pending& drop = answered.mapped();
  if (session_.is_ending) return;
  session_.replies.reply_count(FrameType::kDrop, drop.request_id, drop.count, /*until_restart=*/!is_kept);
  session_.writer.flush();
}

}  // namespace kv
