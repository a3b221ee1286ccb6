#include "store/node/session/transfers/prefetch.h"

#include <utility>

#include "base/assert.h"
#include "store/node/session/transfers/set_get.h"

namespace kv {

Prefetch::Prefetch(std::shared_ptr<SessionCore> session, const OpenSpace& space, std::span<const BlockHash> hashes,
                   std::span<const std::uint32_t> group_counts)
    : session_(std::move(session)),
      space_(space.id),
      space_name_(space.name),
      kind_(space.kind),
      // Copied: the request's frame is gone when this runs.
      hashes_(hashes.begin(), hashes.end()),
      group_counts_(group_counts.begin(), group_counts.end()) {}

error_code Prefetch::pin() {
  NodeContext& node = session_->node;
  auto pinned = kind_ == NamespaceKind::kSet ? pin_set() : node.store.with([&](Store& store) {
    return store.pin_prefix(space_, hashes_, {.session = session_->id, .disk = true}, node.clock.now());
  });
  if (!pinned) return pinned.error();
  prefix_ = std::make_shared<PinnedPrefixGuard>(node.store, std::move(*pinned));
  return {};
}

/// One part at a time. Pins of blocks in memory are released at once: in a set, other blocks do not depend on them.
Result<PinnedPrefix> Prefetch::pin_set() {
  NodeContext& node = session_->node;
  PinnedPrefix all{.blocks = {}, .on_disk = {}, .kind = NamespaceKind::kSet};
  auto groups = std::span<const std::uint32_t>(group_counts_);
  for (std::size_t at = 0; at < hashes_.size();) {
    const auto rest = std::span<const BlockHash>(hashes_).subspan(at);
    const SetPinning::Options options{
        .session = session_->id, .disk = true, .count_max = SetGet::kLookupsPerLock, .group_counts = groups};
    error_code error;
    node.store.with([&](Store& store) {
      auto part = store.pin_set(space_, rest, options, node.clock.now());
      if (!part) {
        error = part.error();
        return store.unpin(all);
      }
      for (PinnedDiskBlock& block : part->pinned.on_disk) {
        block.index += static_cast<std::uint32_t>(at);
        all.on_disk.push_back(block);
      }
      part->pinned.on_disk.clear();
      store.unpin(part->pinned);
      at += part->looked_count;
      groups = groups.subspan(part->looked_group_count);
    });
    if (error) return error;
  }
  return all;
}

asio::awaitable<void> Prefetch::run() {
  KV_ASSERT(has_work() && wake_ == nullptr);
  NodeContext& node = session_->node;
  // Runs to the end or the first failure, which is neither retried nor reported: the next get reads missing blocks.
  ReadAhead ahead(*session_, {space_, space_name_, kind_, hashes_}, prefix_, prefix_->on_disk().size());
  wake_ = &ahead.progress();
  while (!ahead.is_at_end() && !is_cancelled_) {
    ahead.start();
    // Anew for each block: a slow disk is waited for, a hanging one is not.
    const TimePoint until = node.clock.now() + node.limits->disk_timeout;
    ahead.wake_at(until);
    while (!ahead.is_ready() && !is_cancelled_ && node.clock.now() < until) {
      ahead.progress().reset();
      co_await ahead.progress().wait();
    }
    if (!ahead.is_ready() || is_cancelled_) break;
    DiskBlock block;
    const ReadAhead::Taken taken = ahead.take(&block);
    // Behind a missing block, the rest of a chain is unreachable. The rest of a set is not.
    if (taken == ReadAhead::Taken::kEnd && kind_ == NamespaceKind::kChain) break;
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
