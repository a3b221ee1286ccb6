#include "store/node/disk_worker/disk_scrubber.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/assert.h"
#include "index/block_hash.h"

namespace kv {
namespace {

constexpr std::size_t kEntriesPerLock = 256;  ///< Some microseconds under the lock.
constexpr Duration kCatchUp = 50ms;           ///< The longest backlog, from reading that was due while sessions read.
constexpr Duration kIdleLook = 1s;            ///< Between checks while the rate is 0, since it may change.
constexpr Duration kRoundPause = 1s;          ///< At least, so that a small tier is not read all day.

}  // namespace

/// One block at a time, so that a concurrent get waits for one read at most. The Store supplies a batch of names under
/// its lock; some blocks of the batch may be gone by their turn, which verify() notices.
TimePoint DiskScrubber::step(const Disk& disk) {
  const std::uint64_t rate = bytes_per_second_;
  if (rate == 0) return clock_.now() + kIdleLook;
  if (clock_.now() < next_) return next_;
  if (due_.empty()) {
    due_ = store_.with([this](Store& store) { return store.blocks_to_scrub(cursor_, kEntriesPerLock); });
    KV_ASSERT(due_.size() <= kEntriesPerLock);
    std::ranges::reverse(due_);
    if (cursor_ == DiskTier::Cursor()) {
      ++rounds_;
      next_ = clock_.now() + kRoundPause;
    }
    if (due_.empty()) return next_;
  }
  const DiskDesk::ScrubBlock block = due_.back();
  due_.pop_back();
  KV_ASSERT(block.block_bytes > 0);
  verify(block, disk);
  const std::chrono::duration<double> pause(static_cast<double>(block.block_bytes) / static_cast<double>(rate));
  // The rate is a mean: reading postponed by session reads is made up for, up to kCatchUp.
  next_ = std::max(next_, clock_.now() - kCatchUp) + std::chrono::duration_cast<Duration>(pause);
  return next_;
}

void DiskScrubber::verify(const DiskDesk::ScrubBlock& block, const Disk& disk) {
  const auto read = read_verified(disk, block.key, block.seed, block.block_bytes);
  ++blocks_;
  if (read || !is_lost(read.error())) return;
  const DiskDesk::FailedRead failed = store_.with([&](Store& store) { return store.read_failed(block.id, block.key); });
  // The Store compares the key: during the read the block may have been evicted, or written under another key.
  if (!failed.is_forgotten) return;
  ++damaged_;
  spdlog::warn("disk: block {} of namespace {} is damaged or gone; it is forgotten", to_hex(block.hash.bytes),
               to_hex(block.space.bytes));
}

}  // namespace kv
