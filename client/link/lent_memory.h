// client/link/lent_memory.h: memory that can be lent, and the parts that a node may still write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "client/types/numa_place.h"
#include "transport/shared_memory.h"
#include "transport/stream.h"

namespace kv {

/// Regions that a client can lend: memory of Client::allocate(), or a device's. A range is quarantined if a get into it
/// ends before the node's last frame: the node may still write there.
///   1. bytes() <= bytes_max.
///   2. A quarantined range is not a call's destination until its quarantine ends.
///   3. Regions do not overlap.
///   4. The addresses of a device's region are only compared and passed on, never read or written.
///   5. A region used by a call in progress is not freed, and does not begin to leave.
/// The client's own memory can be freed while quarantined: the node writes to the memfd's pages, not to this process's
/// addresses. A device's memory is the caller's, and leaves in steps: leaving, when calls may not name it; gone, when
/// RDMA devices cannot reach it; forgotten, when its owner has been notified. Thread safety: none.
/// Cost: O(log regions) to find one; is_quarantined() is O(quarantines), which are rare.
class LentMemory {
 public:
  struct Region {
    std::unique_ptr<SharedMemory> memory;      ///< Null: a device's region, which has the members below.
    std::span<std::byte> addresses;            ///< The caller's.
    Descriptor dmabuf;                         ///< If the device exports its memory.
    std::uint64_t dmabuf_offset = 0;           ///< Of `addresses` in the dma-buf.
    bool is_leaving = false, is_gone = false;  ///< In this order.

    std::size_t call_count = 0;  ///< Calls in progress with a node at work on this region.
    bool is_device() const { return memory == nullptr; }
    std::span<std::byte> bytes() const { return memory ? memory->bytes() : addresses; }
  };
  enum class QuarantineId : std::uint64_t {};

  explicit LentMemory(std::size_t bytes_max, NumaPlace place = {}) : place_(std::move(place)), bytes_max_(bytes_max) {}

  /// reserve(), make_memory() and adopt(). Errors: as theirs.
  Result<std::span<std::byte>> allocate(std::size_t bytes);
  /// Counts `bytes` about to be allocated, perhaps on another thread. adopt() must follow. Errors: kBusy over
  /// bytes_max, kBadRequest for zero bytes.
  Result<void> reserve(std::size_t bytes);
  /// Takes the memory made from `bytes` reserved ones; on an error the reservation ends.
  Result<std::span<std::byte>> adopt(std::size_t bytes, Result<std::unique_ptr<SharedMemory>> memory);
  /// Removes the region that is exactly `memory`, which is unmapped with the last reference to the result. Errors:
  /// kBadRequest for an unknown or a device's region; kBusy while a call uses it.
  Result<std::shared_ptr<Region>> free(std::span<std::byte> memory);
  /// Errors: kBusy over bytes_max; kBadRequest for zero bytes, and for bytes of another region.
  Result<void> add_device(std::span<std::byte> addresses, Descriptor dmabuf, std::uint64_t dmabuf_offset);
  /// Makes the device's region that is exactly `memory` leave; idempotent. set_gone() follows once RDMA devices cannot
  /// reach it, then end_removal() when its owner is notified. Errors: as free().
  Result<std::shared_ptr<Region>> begin_removal(std::span<std::byte> memory);
  static void set_gone(Region& region);
  void end_removal(const Region& region);  ///< Requires that it is gone. Idempotent.
  /// The region that holds all of `memory`, or nullptr.
  std::shared_ptr<Region> find(std::span<const std::byte> memory) const;
  /// Whether a part of `memory` is a device's, which this processor must not touch.
  bool is_device(std::span<const std::byte> memory) const;

  QuarantineId quarantine(std::vector<std::span<const std::byte>> ranges);
  void end_quarantine(QuarantineId id);
  bool is_quarantined(std::span<const std::byte> memory) const;  ///< Or leaving.

  std::size_t bytes() const { return bytes_; }
  std::vector<std::span<const std::byte>> made() const;  ///< All memory except devices'.

 private:
  void forget(const Region& region);
  template <class Is>
  bool any_of(std::span<const std::byte> memory, Is is) const;

  std::map<const std::byte*, std::shared_ptr<Region>> regions_;  ///< By first byte.
  std::map<QuarantineId, std::vector<std::span<const std::byte>>> quarantines_;
  NumaPlace place_;
  std::size_t bytes_max_, bytes_ = 0;
  std::size_t device_count_ = 0;  ///< Regions of devices: at 0, is_device() needs no search.
  std::uint64_t next_id_ = 1;
};

}  // namespace kv
