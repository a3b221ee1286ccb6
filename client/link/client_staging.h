// client/link/client_staging.h: a small buffer that nodes on this host fill and drain, for blocks in other memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/link/lent_memory.h"

namespace kv {

/// An engine's pool is often memory that its owner can shorten, which nodes refuse, so its bytes would go through a
/// socket: two copies by the kernel and a wake-up per buffer. Through this buffer two processors copy, the node's and
/// this one, at the same time and from cache.
///   1. Room belongs to a call, or is free. Free room that a node may still write is not given out.
///   2. Room is given out as near to the front as possible, to reuse the bytes in the caches.
/// Thread safety: none; on the client's executor. Allocates at the first take().
class ClientStaging {
 public:
  /// Room for one call. Returned by its destructor, even while a node may still write it.
  class Room {
   public:
    Room() = default;
    Room(Room&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}
    Room& operator=(Room&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Room() {
      if (owner_ != nullptr) owner_->give_back(bytes_);
    }
    explicit operator bool() const { return owner_ != nullptr; }
    std::span<std::byte> bytes() const { return bytes_; }

   private:
    friend class ClientStaging;
    Room(ClientStaging* owner, std::span<std::byte> bytes) : owner_(owner), bytes_(bytes) {}

    ClientStaging* owner_ = nullptr;
    std::span<std::byte> bytes_;
  };

  /// `memory` outlives this.
  ClientStaging(LentMemory& memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
  ClientStaging(const ClientStaging&) = delete;
  ClientStaging& operator=(const ClientStaging&) = delete;

  /// Whether there can be room for twice as many: one call's bytes are copied here while the node works on another's.
  bool can_hold(std::size_t bytes) const { return bytes > 0 && bytes <= room_bytes_max(); }
  std::size_t room_bytes_max() const { return bytes_ / 2 / kUnitBytes * kUnitBytes; }
  /// Empty if there is too little room now.
  Room take(std::size_t bytes);
  const std::shared_ptr<LentMemory::Region>& region() const { return region_; }  ///< Of all room. Null before take().

 private:
  static constexpr std::size_t kUnitBytes = 64 * 1024;

  bool is_made();
  void give_back(std::span<std::byte> bytes);
  std::span<std::byte> units(std::size_t first, std::size_t count) const;

  LentMemory& memory_;
  std::size_t bytes_;  ///< 0: not wanted, or allocation failed.
  std::shared_ptr<LentMemory::Region> region_;
  std::vector<bool> is_taken_;  ///< By unit.
};

}  // namespace kv
