#include "store/node/session/transfers/block_path.h"

#include "base/assert.h"

namespace kv {

BlockPath::BlockPath(SessionRdma& rdma, std::shared_ptr<Region> region, const RegionTarget& target,
                     std::uint64_t block_bytes) {
  if (!region) return;
  rdma_ = &rdma;
  region_ = std::move(region);
  offsets_.assign(target.offsets.begin(), target.offsets.end());
  lengths_.assign(target.lengths.begin(), target.lengths.end());
  block_bytes_ = block_bytes;
  if (!region_->is_mapped()) reach_ = target.reach & region_->remote().reach;
}

Path BlockPath::way(bool is_in_arena) const {
  if (!region_) return Path::kInline;
  if (region_->is_mapped()) return Path::kMemfd;
  return is_in_arena && rdma_->up(reach_) != 0 ? Path::kVerbs : Path::kInline;
}

/// The offset of these bytes in the region. Asserts invariant 1.
std::uint64_t BlockPath::offset(std::size_t index, std::uint64_t begin, std::size_t byte_count) const {
  KV_ASSERT(region_ && index < offsets_.size());
  const std::uint64_t length = lengths_.empty() ? block_bytes_ : lengths_[index];
  KV_ASSERT(begin <= length && byte_count <= length - begin);
  KV_ASSERT(offsets_[index] <= region_->bytes() && length <= region_->bytes() - offsets_[index]);
  return offsets_[index] + begin;
}

std::span<std::byte> BlockPath::at_client(std::size_t index, std::uint64_t begin, std::size_t byte_count) const {
  KV_ASSERT(is_shared_memory());
  const std::uint64_t at = offset(index, begin, byte_count);
  const std::span<std::byte> mapped = region_->mapped();
  KV_ASSERT(at + byte_count <= mapped.size());
  return mapped.subspan(at, byte_count);
}

Placement BlockPath::placement(std::size_t index, std::uint64_t begin, std::span<std::byte> slot) const {
  return {slot, offset(index, begin, slot.size())};
}

void BlockPath::move(verbs::Direction direction, std::span<const Placement> placements, Owner owner,
                     std::function<void(const MoveOutcome&)> ended) const {
  KV_ASSERT(way() == Path::kVerbs && !placements.empty());
  rdma_->move(direction, placements, region_->remote(), reach_, std::move(owner), std::move(ended));
}

asio::awaitable<MoveOutcome> BlockPath::moved(const asio::any_io_executor& executor, verbs::Direction direction,
                                              std::span<const Placement> placements, Owner owner) const {
  struct Move {
    Event ended;
    MoveOutcome outcome;
  };
  const auto pending = std::make_shared<Move>(Move{Event(executor), {}});
  move(direction, placements, std::move(owner), [pending](const MoveOutcome& outcome) {
    pending->outcome = outcome;
    pending->ended.set();
  });
  while (!pending->ended.is_set()) co_await pending->ended.wait();
  co_return pending->outcome;
}

std::optional<std::vector<verbs::Stretch>> BlockPath::cargo(std::span<const Placement> placements) const {
  KV_ASSERT(region_ && !region_->is_mapped());
  return rdma_->cargo(placements, region_->remote(), reach_);
}

}  // namespace kv
