// client/python/src/calls/device_memory.h: a GPU's memory that a client lends to nodes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "client/python/src/buffers.h"

namespace kv::python {

/// Device memory that RDMA devices may reach, of one client.
///   1. Memory is listed from before the client hears of it until after the client forgot it, and its owner is held
///      for as long: a program that drops its tensor does not give the memory to somebody else.
///   2. A call that names device memory names one lent part alone, which is not being taken back. The client knows only
///      lent addresses; all others it would take for the host's, and touch.
/// Used with the GIL held.
class DeviceRegions {
 public:
  struct Region {
    std::span<std::byte> bytes;
    std::vector<Array> owner;  ///< None for a bare address: its memory is the caller's concern.
    int device = -1;
    bool has_dmabuf = false;  ///< The driver exported it; else RDMA devices register its addresses.
    bool is_leaving = false;
  };
  using RegionPtr = std::shared_ptr<Region>;

  /// Throws if a part is lent already.
  RegionPtr add(Region region);
  void remove(const RegionPtr& region);
  void clear();
  bool has(const RegionPtr& region) const;
  /// Where a call's blocks may lie.
  Place place() const { return regions_.empty() ? Place::kHost : Place::kHostOrCuda; }

  /// Whether `blocks`, which lie in `arrays`, are a device's. Throws where invariant 2 does not hold.
  bool covers(std::span<const Array> arrays, std::span<const std::span<std::byte>> blocks) const;

 private:
  std::vector<RegionPtr> regions_;
};

}  // namespace kv::python
