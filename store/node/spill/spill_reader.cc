#include "store/node/spill/spill_reader.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <utility>

namespace kv {

void SpillReader::read(const Disk& disk, DiskKey key, std::uint64_t seed, std::size_t block_bytes,
                       std::weak_ptr<const void> waiter, Spill::ReadDone done) {
  if (is_refusing_ || *held_bytes_ > held_bytes_max_) {
    ++refusals_;
    return done(Errc::kBusy);
  }
  *held_bytes_ += block_bytes;
  queued_bytes_ += block_bytes;
  watch_.begin();
  asio::post(threads_, [this, &disk, key, seed, block_bytes, waiter = std::move(waiter),
                        done = std::move(done)]() mutable {
    const TimePoint began = clock_.now();
    const bool is_unwanted = is_refusing_ || waiter.expired();
    auto block = is_unwanted ? Result<DiskBlock>(Errc::kBusy) : read_verified(disk, key, seed, block_bytes);
    if (block) {
      read_bytes_ += block_bytes;
      const double seconds = std::chrono::duration<double>(clock_.now() - began).count();
      const double before = seconds_per_byte_;
      seconds_per_byte_ = before + (seconds / static_cast<double>(block_bytes) - before) / 16;
    } else if (!is_unwanted) {
      ++failures_;
      spdlog::debug("spill: block under key {:x} of epoch {}: {}", static_cast<std::uint64_t>(key) & ((1ull << 40) - 1),
                    static_cast<std::uint64_t>(key) >> 40, block.error().message());
    }
    queued_bytes_ -= block_bytes;
    if (block) {
      const void* const memory = block->owner.get();
      block->owner = std::shared_ptr<const void>(
          memory, [owner = std::move(block->owner), held = held_bytes_, block_bytes](const void*) mutable {
            owner.reset();
            *held -= block_bytes;
          });
    } else {
      *held_bytes_ -= block_bytes;
    }
    std::exchange(done, nullptr)(std::move(block));
    watch_.end();  // last: stop() waits for it
  });
}

std::chrono::microseconds SpillReader::estimate(std::uint64_t bytes) const {
  const double seconds =
      seconds_per_byte_ * static_cast<double>(bytes + queued_bytes_) / static_cast<double>(thread_count_);
  return std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6));
}

}  // namespace kv
