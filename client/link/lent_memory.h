// client/link/lent_memory.h: memory that can be lent, and which parts of it a node may still write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "client/numa_place.h"
#include "transport/shared_memory.h"
#include "transport/stream.h"

namespace kv {

/// Regions that a client can lend: memory of Client::allocate(), or a device's. A range is quarantined when a get with
/// this destination ends before the node's last word: a copy of that get may still land there.
///   1. bytes() <= bytes_max.
///   2. A quarantined range is in no call's destination until its quarantine ends.
///   3. Regions do not overlap.
///   4. The addresses of a device's region are compared and told to others, never read or written.
///   5. A region that a call in progress uses is not freed, and does not begin to leave.
/// Our own memory can be freed while it is quarantined: the node writes to the pages of the memfd, not to our
/// addresses. A device's memory is the caller's, and so leaves in steps. While it is leaving no call may name it. Once
/// no RDMA device can reach it any more it is gone. Once its owner was told so it is forgotten. Thread safety: none.
/// Cost: O(log regions) to find one; is_quarantined() is O(quarantines), which are rare.
class LentMemory {
 public:
  struct Region {
    std::uint64_t id = 0;
    std::unique_ptr<SharedMemory> memory;      ///< Null: a device's region. Only such a one has what follows.
    std::span<std::byte> addresses;            ///< The caller's.
    Descriptor dmabuf;                         ///< If the device exports its memory.
    std::uint64_t dmabuf_offset = 0;           ///< Of `addresses` in the dma-buf.
    bool is_leaving = false, is_gone = false;  ///< In this order.

    std::size_t call_count = 0;  ///< Calls in progress that a node carries out on this region.
    bool is_device() const { return memory == nullptr; }
    std::span<std::byte> bytes() const { return memory ? memory->bytes() : addresses; }
  };
  enum class QuarantineId : std::uint64_t {};

  explicit LentMemory(std::size_t bytes_max, NumaPlace place = {}) : place_(std::move(place)), bytes_max_(bytes_max) {}

  /// Errors: as reserve() and make_memory(), which it calls.
  Result<std::span<std::byte>> allocate(std::size_t bytes);
  /// Counts `bytes` that are about to be made, perhaps on another thread. adopt() must follow. Errors: kBusy over
  /// bytes_max, kBadRequest for zero bytes.
  Result<void> reserve(std::size_t bytes);
  /// Takes the memory that was made of `bytes` reserved ones, or the error that it was not; then they are free again.
  Result<std::span<std::byte>> adopt(std::size_t bytes, Result<std::unique_ptr<SharedMemory>> memory);
  /// Forgets the region that is exactly `memory`. The memory is unmapped with the last reference to what is returned.
  /// Errors: kBadRequest if there is no such region, or it is a device's; kBusy while a call uses it.
  Result<std::shared_ptr<Region>> free(std::span<std::byte> memory);
  /// Errors: kBusy over bytes_max; kBadRequest for no bytes, and for bytes of another region.
  Result<void> add_device(std::span<std::byte> addresses, Descriptor dmabuf, std::uint64_t dmabuf_offset);
  /// The device's region that is exactly `memory`, leaving from now on. set_gone() follows once no RDMA device can
  /// reach it, then end_removal() when its owner is told. A region that is leaving already is no error. Errors: as
  /// free().
  Result<std::shared_ptr<Region>> begin_removal(std::span<std::byte> memory);
  static void set_gone(Region& region);
  void end_removal(const Region& region);  ///< Requires that it is gone. Does nothing the second time.
  /// The region that holds all of `memory`, or nullptr.
  std::shared_ptr<Region> find(std::span<const std::byte> memory) const;
  /// Whether our processor must leave a part of `memory` alone.
  bool is_device(std::span<const std::byte> memory) const;

  QuarantineId quarantine(std::vector<std::span<const std::byte>> ranges);
  void end_quarantine(QuarantineId id);
  bool is_quarantined(std::span<const std::byte> memory) const;  ///< Or leaving.

  std::size_t bytes() const { return bytes_; }
  std::vector<std::span<const std::byte>> made() const;  ///< All that is no device's.

 private:
  void forget(const Region& region);
  template <class Is>
  bool any_of(std::span<const std::byte> memory, Is is) const;

  std::map<const std::byte*, std::shared_ptr<Region>> regions_;  ///< By first byte.
  std::map<QuarantineId, std::vector<std::span<const std::byte>>> quarantines_;
  NumaPlace place_;
  std::size_t bytes_max_, bytes_ = 0;
  std::size_t device_count_ = 0;  ///< Regions of devices: without any, nothing is looked for.
  std::uint64_t next_id_ = 1;
};

}  // namespace kv
