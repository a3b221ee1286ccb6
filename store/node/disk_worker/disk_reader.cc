#include "store/node/disk_worker/disk_reader.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>

#include "base/assert.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

/// Owned by a delivered block: its bytes, and its share of the bound, which is released after them.
struct HeldBlock {
  HeldBytes held;
  Owner memory;
};

}  // namespace

HeldBytes::~HeldBytes() {
  if (!counter_) return;
  const std::uint64_t before = counter_->fetch_sub(bytes_);
  KV_ASSERT(before >= bytes_);
}

void DiskReader::read(const Disk& disk, DiskKey key, std::uint64_t seed, std::size_t block_bytes, Waiter waiter,
                      DiskWorker::ReadDone done) {
  if (is_refusing_ || *held_bytes_ > held_bytes_max_) {
    ++refusals_;
    return done(Errc::kBusy);
  }
  KV_ASSERT(block_bytes > 0 && done != nullptr);
  HeldBytes held(held_bytes_, block_bytes);
  queued_bytes_ += block_bytes;
  watch_.begin();
  asio::post(threads_, [this, &disk, key, seed, block_bytes, held = std::move(held), waiter = std::move(waiter),
                        done = std::move(done)]() mutable {
    const TimePoint began = clock_.now();
    // Checked here rather than at the request: under load a read waits longer in the queue than many clients do.
    const bool is_unwanted = is_refusing_ || waiter.is_gone();
    Result<DiskBlock> block(is_unwanted ? Errc::kBusy : Errc::kDiskFailed);
    if (!is_unwanted) within_border(NodeThread::kDisk, [&] { block = read_verified(disk, key, seed, block_bytes); });
    if (block) {
      read_bytes_ += block_bytes;
      const double seconds = std::chrono::duration<double>(clock_.now() - began).count();
      const double before = seconds_per_byte_;
      // A mean of about the last 16 reads. Two threads may lose an update to each other, which is harmless.
      seconds_per_byte_ = before + (seconds / static_cast<double>(block_bytes) - before) / 16;
    } else if (!is_unwanted) {
      ++failures_;
      spdlog::debug("disk: block under key {:x} of epoch {}: {}", static_cast<std::uint64_t>(key) & ((1ull << 40) - 1),
                    static_cast<std::uint64_t>(key) >> 40, block.error().message());
    }
    queued_bytes_ -= block_bytes;
    if (block) {
      KV_ASSERT(block->bytes.size() == block_bytes);
      block->owner = std::make_shared<const HeldBlock>(HeldBlock{std::move(held), std::move(block->owner)});
    } else {
      held = {};
    }
    std::exchange(done, nullptr)(std::move(block));
    watch_.end();  // last: stop() waits until all calls have ended
  });
}

/// Queued reads share the threads, so a new read waits for its part of the queue. A mean of recent reads is enough: the
/// answer only decides whether a worker waits or recomputes.
std::chrono::microseconds DiskReader::estimate(std::uint64_t bytes) const {
  const double seconds =
      seconds_per_byte_ * static_cast<double>(bytes + queued_bytes_) / static_cast<double>(thread_count_);
  return std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6));
}

}  // namespace kv
