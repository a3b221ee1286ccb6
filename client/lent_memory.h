// client/lent_memory.h: the memory of Client::allocate(), and which parts of it a node may still write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "transport/shared_memory.h"

namespace kv {

/// Regions that a client can lend. A range is quarantined when a get with this destination ended before the node said
/// its last word: a copy of that get may still land there.
///   1. bytes() <= bytes_max.
///   2. A quarantined range is in no call's destination until its quarantine ends.
/// Freeing quarantined memory is safe: the node writes to the pages of the memfd, not to our addresses.
/// Thread safety: none.
class LentMemory {
 public:
  struct Region {
    std::uint64_t id;
    std::unique_ptr<SharedMemory> memory;
    std::size_t call_count = 0;  ///< Calls in progress that a node carries out on it.
    std::span<std::byte> bytes() const { return memory->bytes(); }
  };
  enum class QuarantineId : std::uint64_t {};

  explicit LentMemory(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  /// Errors: kBusy over bytes_max, kBadRequest for zero bytes, system errors.
  Result<std::span<std::byte>> allocate(std::size_t bytes);
  /// Forgets the region that is exactly `memory`; it is unmapped with its last reference. Errors: kBadRequest if there
  /// is none, kBusy while a call uses it.
  Result<std::shared_ptr<Region>> free(std::span<std::byte> memory);
  /// The region that holds all of `memory`, or nullptr.
  std::shared_ptr<Region> find(std::span<const std::byte> memory) const;

  QuarantineId quarantine(std::vector<std::span<const std::byte>> ranges);
  void end_quarantine(QuarantineId id);
  bool is_quarantined(std::span<const std::byte> memory) const;

  std::size_t bytes() const { return bytes_; }

 private:
  std::map<const std::byte*, std::shared_ptr<Region>> regions_;  ///< By first byte.
  std::map<QuarantineId, std::vector<std::span<const std::byte>>> quarantines_;
  std::size_t bytes_max_, bytes_ = 0;
  std::uint64_t next_id_ = 1;
};

}  // namespace kv
