// store/desks/disk_desk.h: the disk tier's work: spilling, reading, loading, draining and scrubbing.
#pragma once

#include <set>

#include "store/desks/space_desk.h"
#include "store/disk/disk.h"
#include "store/disk/pinned_blocks.h"
#include "store/spill/disk_loader.h"
#include "store/spill/spiller.h"

namespace kv {

/// Hands out the disk's work and takes its results. Without a disk tier there is none, and only calls that ask for work
/// or tell of blocks are allowed.
///   1. At most one SpillWork is under way.
///   2. Until end_load(), blocks may lie on disk that are not in the index yet; their namespaces are not idle.
///   3. A forgotten namespace's record leaves the disk once none of its blocks can be found there: not while a load is
///      under way, and not after one that broke off.
class DiskDesk final : private TreeListener {
 public:
  DiskDesk(Shelf& shelf, SpaceDesk& spaces);

  // -- directories
  /// Disk::places() and leaving(), on each change.
  void set_places(std::vector<DiskPlace> places, std::span<const DiskPlace> leaving);
  /// As spill_work(), for blocks in a leaving directory (Spiller::drain).
  SpillWork drain_work(DiskPlace place, std::uint64_t bytes_max, TimePoint now);
  DiskTier::PlaceUse place_use(DiskPlace place) const { return shelf_.tier->in_place(place); }
  std::size_t evict(std::uint64_t bytes, TimePoint now);  ///< As DiskTier::evict_oldest.
  /// Drops some of its blocks, with those below them, and returns how many. Call until place_use() is 0.
  std::size_t give_up_place(DiskPlace place, TimePoint now);
  void forget_place(DiskPlace place) { shelf_.tier->forget_place(place); }

  // -- spilling
  /// Whether memory is short of bytes, or of slots of some size, so that spill_work() has work.
  bool wants_spill() const { return spiller_ && spiller_->is_memory_short(); }
  /// The next disk work, as Spiller::next; finish_spill() must follow.
  SpillWork spill_work(std::uint64_t bytes_max, TimePoint now, bool everything);
  std::size_t finish_spill(const SpillWork& work, const SpillOutcome& outcome);  ///< Returns the number of lost blocks.

  // -- reading
  bool has(BlockId block) const;  ///< For a pinned block of the disk tier: false once it was dropped.
  struct FailedRead {
    DiskKey moved_to{};         ///< Not 0: the block was moved meanwhile and lies here; read again.
    bool is_forgotten = false;  ///< It still lay under `key`; now it is forgotten, with all blocks below it.
  };
  /// A block on disk was not found under `key`, or was damaged.
  FailedRead read_failed(BlockId block, DiskKey key);
  struct ScrubBlock {
    BlockId id;
    DiskKey key;
    NamespaceId space;
    BlockHash hash;
    std::uint64_t seed;
    std::size_t block_bytes;
  };
  /// Blocks on disk due for reading and verification, oldest first; call read_failed() for damaged ones. Moves the
  /// cursor on, and after the last one back to its default. Visits `entries_max` keys, live or dead: may be empty
  /// midway.
  std::vector<ScrubBlock> blocks_to_scrub(DiskTier::Cursor& cursor, std::size_t entries_max) const;

  // -- loading
  /// Puts a disk's blocks into the index, while the node serves. In this order: begin_load(), before any spill_work(),
  /// with the disk's epoch; load_namespace() for each namespace on the disk; load_records() with the records newest
  /// first, some hundred a call, until the tier is full or there are no more; end_load(). A load that broke off may
  /// start again from the newest record. A namespace is opened with the first of its blocks; when there are too many,
  /// those used longest ago are lost. `drops`: Disk::drops().
  void begin_load(TimePoint now, std::uint32_t epoch, std::span<const DiskDrop> drops);
  void load_namespace(const NamespaceRecord& record);
  struct Loaded {
    bool has_room = true;
    bool again = false;  ///< One call could not place all blocks: call without records until this is false.
  };
  Loaded load_records(std::span<const DiskRecord> records);
  /// `is_whole`: the load saw everything, or as much as there is room for; unseen blocks are dropped. Not whole, after
  /// an error or a stop: unseen blocks stay for the next start. Returns how many blocks came back.
  std::uint64_t end_load(bool is_whole);

  // -- for other desks
  bool is_loading() const { return loader_ != nullptr; }
  /// Pin blocks of the tier for a read, which is counted; of a chain, all that follow `pinned` on disk.
  PinnedDiskBlock pin(const SpaceTable::Space& space, BlockId block, const BlockHash& hash, std::uint32_t index);
  void pin_rest(const FoundChain& found, std::span<const BlockHash> hashes, PinnedPrefix& pinned);
  /// `block` was just linked in memory: if it is on disk too, it can leave memory without a write. Requires a tier.
  void stored(TreeId tree, BlockId block, BlockId parent, Tick tick);
  /// Drops the last of `hashes` and all below it; without hashes, the namespace. Returns the number of blocks that were
  /// only on disk. `*kept` (may be nullptr): as Store::drop.
  std::size_t drop(const SpaceTable::Space& space, std::span<const BlockHash> hashes, DiskDrop* kept);
  void set_limits(const StoreConfig& config);
  std::uint64_t skipped_count() const { return spiller_->skipped_count(); }
  std::uint64_t lost_count() const { return spiller_->lost_count(); }
  std::string check(Shelf::Tally& tally) const;

 private:
  using Space = SpaceTable::Space;

  void was_opened(const SpaceTable::Space& space) override;
  bool expects_blocks(TreeId tree) const override { return loader_ && loader_->needs(tree); }
  void was_closed(const SpaceTable::Space& space) override;
  bool load(const DiskRecord& record);
  std::size_t remove(TreeId tree, std::span<const BlockHash> hashes);

  Shelf& shelf_;
  SpaceDesk& spaces_;
  std::unique_ptr<Spiller> spiller_;     ///< nullptr without a disk tier.
  std::unique_ptr<DiskLoader> loader_;   ///< Until the disk is loaded.
  std::set<NamespaceId> unseen_spaces_;  ///< A load broke off: the next start loads the rest of these.
};

}  // namespace kv
