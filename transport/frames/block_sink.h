// transport/frames/block_sink.h: lands blocks from a stream, verified stripe by stripe while the bytes are in cache.
//
// In: payload bytes in block order. Out: the same bytes at their targets, and the count of verified blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "transport/frames/frame_reader.h"

namespace kv {

/// Destination of one block, or of one segment of a block.
struct BlockTarget {
  std::span<std::byte> bytes;                ///< Whole stripes, except the block's last. Not empty.
  std::uint64_t seed = 0;                    ///< checksum_seed of the block.
  std::size_t first_stripe = 0;              ///< Of the segment, in its block.
  std::span<const std::uint64_t> checksums;  ///< Expected, one per stripe of `bytes`; empty: not verified.
};

/// Whether all of a landed target has its checksums. Without any it passes.
[[nodiscard]] bool passes(const BlockTarget& target);

/// Fills targets one after the other. After cancel() the remaining payload is discarded, and targets stay untouched.
class BlockSink final : public PayloadSink {
 public:
  /// `targets`, and what they point to, live until the payload is read or cancel() is called.
  explicit BlockSink(std::span<const BlockTarget> targets) : targets_(targets) {}

  std::size_t next(std::span<asio::mutable_buffer> buffers) override;
  void filled(std::size_t bytes) override;

  void cancel() { cancelled_ = true; }
  /// Blocks that landed whole and passed, up to the first that failed.
  std::size_t good_count() const { return good_count_; }
  bool failed() const { return failed_; }  ///< Some stripe did not match its checksum.

 private:
  static constexpr std::size_t kReadBytes = 256 * 1024;  ///< Most bytes per read, still in the L2 cache when verified.

  std::span<const BlockTarget> targets_;
  std::size_t block_ = 0, offset_ = 0;  ///< Position of the next byte.
  std::size_t good_count_ = 0;
  bool failed_ = false, cancelled_ = false;
  std::vector<std::byte> discarded_;
};

}  // namespace kv
