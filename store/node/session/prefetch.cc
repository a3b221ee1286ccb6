#include "store/node/session/prefetch.h"

#include <utility>

#include "base/assert.h"

namespace kv {

Prefetch::Prefetch(std::shared_ptr<SessionCore> session, const OpenSpace& space, std::span<const BlockHash> hashes)
    : session_(std::move(session)),
      space_(space.id),
      space_name_(space.name),
      kind_(space.kind),
      hashes_(hashes.begin(), hashes.end()) {}

error_code Prefetch::pin() {
  NodeContext& node = session_->node;
  auto pinned = node.store.with([&](Store& store) -> Result<Store::PinnedPrefix> {
    if (kind_ == SpaceKind::kChain)
      return store.pin_prefix(space_, hashes_, {.session = session_->id, .disk = true}, node.clock.now());
    auto set = store.pin_set(space_, hashes_, {.session = session_->id, .disk = true}, node.clock.now());
    if (!set) return set.error();
    return std::move(set->pinned);
  });
  if (!pinned) return pinned.error();
  prefix_ = std::make_shared<PinnedPrefixGuard>(node.store, std::move(*pinned));
  return {};
}

asio::awaitable<void> Prefetch::run() {
  KV_ASSERT(has_work() && wake_ == nullptr);
  NodeContext& node = session_->node;
  ReadAhead ahead(*session_, {space_, space_name_, kind_, hashes_}, prefix_, prefix_->spilled().size());
  wake_ = &ahead.progress();
  while (!ahead.is_at_end() && !is_cancelled_) {
    ahead.start();
    const TimePoint until = node.clock.now() + node.limits.disk_timeout;
    ahead.wake_at(until);
    while (!ahead.is_ready() && !is_cancelled_ && node.clock.now() < until) {
      ahead.progress().reset();
      co_await ahead.progress().wait();
    }
    if (!ahead.is_ready() || is_cancelled_) break;
    DiskBlock block;
    const ReadAhead::Taken taken = ahead.take(&block);
    if (taken == ReadAhead::Taken::kEnd && kind_ == SpaceKind::kChain) break;
    if (taken == ReadAhead::Taken::kEnd) ahead.skip();
    if (taken == ReadAhead::Taken::kBlock) ahead.promote(block);
  }
  wake_ = nullptr;
}

void Prefetch::cancel() {
  is_cancelled_ = true;
  if (wake_ != nullptr) wake_->set();
}

}  // namespace kv
