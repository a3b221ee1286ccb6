#include "transport/frames/block_sink.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

bool passes(const BlockTarget& target) {
  return target.checksums.empty() ||
         verify_block(target.seed + target.first_stripe * kStripeStep, target.bytes, target.checksums);
}

/// At most kReadBytes at once: then the bytes are still in the cache when filled() computes their checksums.
std::size_t BlockSink::next(std::span<asio::mutable_buffer> buffers) {
  if (cancelled_) {  // the payload must still leave the stream, or the next frame could not be read
    discarded_.resize(16 * 1024);
    buffers[0] = asio::buffer(discarded_);
    return 1;
  }
  std::size_t count = 0, bytes = 0, offset = offset_;
  for (std::size_t i = block_; i < targets_.size() && count < buffers.size() && bytes < kReadBytes; ++i, offset = 0) {
    KV_ASSERT(offset < targets_[i].bytes.size());
    const std::size_t n = std::min(targets_[i].bytes.size() - offset, kReadBytes - bytes);
    buffers[count++] = asio::mutable_buffer(targets_[i].bytes.data() + offset, n);
    bytes += n;
  }
  KV_ASSERT(count > 0);  // more payload than targets: the frame's reader checked its length
  return count;
}

void BlockSink::filled(std::size_t bytes) {
  if (cancelled_) return;
  while (bytes > 0) {
    KV_ASSERT(block_ < targets_.size());
    const BlockTarget& target = targets_[block_];
    const std::size_t begin = offset_;
    const std::size_t end = std::min(target.bytes.size(), begin + bytes);
    bytes -= end - begin;
    offset_ = end;
    const bool whole = end == target.bytes.size();
    if (!target.checksums.empty()) {
      // The stripes that these bytes complete. A failed one does not end the loop, since the stream goes on.
      KV_ASSERT(target.checksums.size() == stripe_count(target.bytes.size()));
      const std::size_t last = whole ? target.checksums.size() : end / kStripeBytes;
      for (std::size_t stripe = begin / kStripeBytes; stripe < last; ++stripe) {
        const std::size_t at = stripe * kStripeBytes;
        const auto part = target.bytes.subspan(at, std::min(kStripeBytes, target.bytes.size() - at));
        if (stripe_checksum(target.seed, target.first_stripe + stripe, part) != target.checksums[stripe]) {
          failed_ = true;
        }
      }
    }
    if (!whole) continue;
    if (!failed_) ++good_count_;  // a hit is a prefix: blocks after a bad one do not count
    ++block_;
    offset_ = 0;
  }
}

}  // namespace kv
