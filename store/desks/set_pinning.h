// store/desks/set_pinning.h: pins blocks of a set for a move: name by name, or group by group.
#pragma once

#include "store/desks/disk_desk.h"

namespace kv {

/// One ReadDesk::pin_set().
///   1. A group is pinned only as a whole: not if a member is absent, on disk without `disk`, or longer than its room.
///   2. A group is never cut: its first members could be gone before the next call asks for the others.
class SetPinning {
 public:
  struct Options {
    SessionId session{};
    LeaseId lease{};  ///< Released once all hashes were looked up. As ReadDesk::GetOptions::lease.
    bool disk = false;
    std::span<const std::uint32_t> rooms = {};  ///< Per hash: a longer block is not pinned. Empty: unbounded.
    std::uint64_t bytes_max = ~0ull;            ///< Stop behind the block, or group, that reaches this sum.
    std::size_t count_max = ~std::size_t{0};    ///< Stop before the number of hashes exceeds this. A first group is
                                                ///< always looked up whole.
    std::span<const std::uint32_t> group_counts = {};
  };
  struct Pinned {
    PinnedPrefix pinned;                 ///< In the order of the hashes, memory and disk each.
    std::size_t looked_count = 0;        ///< Hashes looked up so far. Go on with the rest.
    std::size_t looked_group_count = 0;  ///< The number of groups among them; 0 without group_counts.
    struct TooLong {
      std::uint32_t index, length;
    };
    std::vector<TooLong> too_long;  ///< Held, but longer than their rooms.
  };

  SetPinning(Shelf& shelf, DiskDesk& disk, const SpaceTable::Space& space, std::span<const BlockHash> hashes,
             const Options& options, Tick tick);
  Pinned pin();
  std::size_t miss_count() const { return miss_count_; }

 private:
  struct Member {
    BlockId memory, disk;  ///< disk only where memory has none.
  };

  void pin_group(std::size_t first, std::size_t count);
  void look_up(std::size_t first, std::size_t count);
  void use(const Member& member);
  bool has_room(std::size_t i, const Member& member);
  void pin(std::uint32_t i, const Member& member);

  Shelf& shelf_;
  DiskDesk& disk_;
  const SpaceTable::Space& space_;
  const std::span<const BlockHash> hashes_;
  const Options& options_;
  const Tick tick_;
  bool has_disk_ = false;
  std::vector<Member> members_;
  std::uint64_t bytes_ = 0;  ///< Pinned, and to be read from disk.
  std::size_t miss_count_ = 0;
  Pinned result_{.pinned = {.blocks = {}, .on_disk = {}, .kind = NamespaceKind::kSet}};
};

}  // namespace kv
