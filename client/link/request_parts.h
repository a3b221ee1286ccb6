// client/link/request_parts.h: what requests to a node consist of: names, lent memory, room in a table, time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "client/link/call.h"
#include "client/link/client_shared.h"
#include "client/link/lent_memory.h"
#include "index/block_hash.h"

namespace kv {

/// Keeps a region from being freed while a node works on it for this call. A null region is allowed.
class RegionUse {
 public:
  explicit RegionUse(std::shared_ptr<LentMemory::Region> region) : region_(std::move(region)) {
    if (region_) ++region_->call_count;
  }
  ~RegionUse() {
    if (region_) --region_->call_count;
  }
  RegionUse(const RegionUse&) = delete;
  RegionUse& operator=(const RegionUse&) = delete;

 private:
  std::shared_ptr<LentMemory::Region> region_;
};

/// Where a call's blocks lie: the region that holds all of them; nullptr: none does, and their bytes go inline. Errors:
/// kQuarantined; kBadRequest if some are in a device's memory but not all in one region, since this processor would
/// have to touch the rest. Requires at least one block.
template <class Byte>
Result<std::shared_ptr<LentMemory::Region>> region_of(const LentMemory& memory,
                                                      std::span<const std::span<Byte>> blocks) {
  std::shared_ptr<LentMemory::Region> region = memory.bytes() > 0 ? memory.find(blocks[0]) : nullptr;
  for (const std::span<Byte> block : blocks) {
    if (memory.is_quarantined(block)) return error_code(Errc::kQuarantined);
    if (!region) continue;
    const std::byte* const end = region->bytes().data() + region->bytes().size();
    const bool is_in = block.data() >= region->bytes().data() && block.data() <= end &&
                       block.size() <= static_cast<std::size_t>(end - block.data());
    if (!is_in) region = nullptr;
  }
  const auto is_device = [&](std::span<Byte> block) { return memory.is_device(block); };
  if (!region && std::ranges::any_of(blocks, is_device)) return error_code(Errc::kBadRequest);
  return region;
}

/// Offset of `block` in `region`, as requests give it.
inline std::uint64_t offset_in(const LentMemory::Region& region, std::span<const std::byte> block) {
  const std::span<const std::byte> bytes = region.bytes();
  const auto offset = static_cast<std::size_t>(block.data() - bytes.data());
  KV_ASSERT(offset <= bytes.size() && block.size() <= bytes.size() - offset);  // before a node may touch it
  return offset;
}

/// How a request names the caller's blocks in a region.
struct NamedRegion {
  std::uint32_t handle = 0, lanes = 0;
  flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>> offsets;
};
/// For `count` blocks; block(i) is the i-th. Without a region: empty.
template <class Block>
NamedRegion name_region(const CallSession& session, flatbuffers::FlatBufferBuilder& builder,
                        const LentMemory::Region* region, std::size_t count, Block&& block) {
  NamedRegion named;
  if (region == nullptr) return named;
  named.handle = session.region_handle(*region);
  named.lanes = session.lanes_for(*region);
  std::uint64_t* list = nullptr;
  named.offsets = builder.CreateUninitializedVector(count, &list);
  for (std::size_t i = 0; i < count; ++i) list[i] = offset_in(*region, block(i));
  return named;
}

/// Adds `block` to `ranges`, extending the last range if it is adjacent, as it usually is.
inline void append_range(std::vector<std::span<const std::byte>>& ranges, std::span<const std::byte> block) {
  if (!ranges.empty() && ranges.back().data() + ranges.back().size() == block.data()) {
    ranges.back() = {ranges.back().data(), ranges.back().size() + block.size()};
  } else if (!block.empty()) {
    ranges.push_back(block);
  }
}

/// Time until a deadline, at least 1: a node treats 0 as its own limit.
inline std::uint64_t time_left_us(TimePoint until, const Clock& clock) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(until - clock.now()).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(left, 1));
}

inline const wire::Hash* wire_hashes(Hashes hashes) {
  static_assert(sizeof(wire::Hash) == sizeof(BlockHash) && alignof(wire::Hash) == alignof(BlockHash));
  return reinterpret_cast<const wire::Hash*>(hashes.data());
}

inline const wire::ExtraDigest* wire_extras(std::span<const ExtraDigest> extras) {
  static_assert(sizeof(wire::ExtraDigest) == sizeof(ExtraDigest));
  return reinterpret_cast<const wire::ExtraDigest*>(extras.data());
}

/// Size of a request's table, besides the parts that grow with the chain.
inline constexpr std::size_t kTableOverheadBytes = 512;
/// How many of `block_count` blocks fit in one request to a node, with this many table bytes per block and in addition.
inline std::size_t blocks_in_request(const LinkTerms& terms, std::size_t block_count, std::size_t bytes_per_block,
                                     std::size_t other_bytes = 0) {
  const std::size_t overhead = kTableOverheadBytes + other_bytes;
  const std::size_t room = terms.table_bytes_max - std::min<std::size_t>(terms.table_bytes_max, overhead);
  return std::min({block_count, std::size_t{terms.chain_blocks_max}, room / bytes_per_block});
}
inline constexpr std::chrono::microseconds kLeaseMax = std::chrono::hours(1);     ///< Upper bound on a node's lease_us.
inline constexpr std::chrono::microseconds kDiskTimeMax = std::chrono::hours(1);  ///< The same for its disk_us.
/// Size limit of an answer with a few numbers, as for match and touch.
inline constexpr std::size_t kSmallAnswerBytes = 256;

}  // namespace kv
