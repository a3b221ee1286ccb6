// store/node/session/transfers/block_path.h: how blocks travel between arena and client: in the stream, shared memory,
// or RDMA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/owner.h"
#include "store/node/metrics.h"
#include "store/node/session/core/region_table.h"
#include "store/node/session/core/session_rdma.h"

namespace kv {

/// Holds the region of a transfer, and chooses each block's way.
///   1. Transfers stay within the region: every offset was checked against the region's size before (RegionTable), and
///      is asserted again here, where the bytes move.
///   2. A region is not given back while this holds it.
/// Thread safety: none; on the session's executor. Movable; an empty path is the stream.
class BlockPath {
 public:
  BlockPath() = default;
  /// `offsets`: of each block of the transfer in `region`. `region` may be nullptr: the stream.
  BlockPath(SessionRdma& rdma, std::shared_ptr<Region> region, const RegionTarget& target, std::uint64_t block_bytes);

  bool has_region() const { return region_ != nullptr; }
  bool uses(const Region& region) const { return region_.get() == &region; }
  const std::shared_ptr<Region>& region() const { return region_; }
  bool is_shared_memory() const { return region_ && region_->is_mapped(); }

  /// The way of a block at this moment. RDMA needs a block in the arena and a lane that is up; else: the stream.
  Path way(bool is_in_arena = true) const;
  /// Lanes that the client believes up but are down; sent with every last frame.
  std::uint32_t broken() const { return rdma_ != nullptr ? rdma_->broken(reach_) : 0; }

  // Shared memory. Requires is_shared_memory().
  bool has_hole(LentRegions& lent, TimePoint now) const { return region_->has_hole(lent, now); }
  /// Bytes [begin, begin + byte_count) of block `index`, in the client's memory.
  std::span<std::byte> at_client(std::size_t index, std::uint64_t begin, std::size_t byte_count) const;

  // RDMA. Requires an RDMA region.
  Placement placement(std::size_t index, std::uint64_t begin, std::span<std::byte> slot) const;
  /// As SessionRdma::move. Requires way() == Path::kVerbs.
  void move(verbs::Direction direction, std::span<const Placement> placements, Owner owner,
            std::function<void(const MoveOutcome&)> ended) const;
  /// The same, and waits for its end. The path may be released, or another one, once this waits.
  asio::awaitable<MoveOutcome> moved(const asio::any_io_executor& executor, verbs::Direction direction,
                                     std::span<const Placement> placements, Owner owner) const;
  void stop(OwnerId owner) const {
    if (rdma_ != nullptr) rdma_->stop(owner);
  }
  std::optional<std::vector<verbs::Stretch>> cargo(std::span<const Placement> placements) const;
  SessionRdma& rdma() const { return *rdma_; }

 private:
  std::uint64_t offset(std::size_t index, std::uint64_t begin, std::size_t byte_count) const;

  SessionRdma* rdma_ = nullptr;     ///< Lives as long as the session. nullptr: the stream.
  std::shared_ptr<Region> region_;  ///< nullptr: the stream.
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint32_t> lengths_;  ///< As RegionTarget's.
  std::uint64_t block_bytes_ = 0;
  std::uint32_t reach_ = 0;  ///< Lanes that the client allows and that have keys.
};

}  // namespace kv
