#include "store/desks/disk_desk.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kPlacedPerCall = 128;  ///< For a load: some hundred microseconds.
constexpr std::size_t kGivenUpPerCall = 64;  ///< Entries of the log; each block goes with all below it.

/// The top blocks that a drop removes, each with all below: the last of `hashes`; without, every first block.
std::vector<BlockId> tops_of(const PrefixIndex& index, TreeId tree, std::span<const BlockHash> hashes) {
  std::vector<BlockId> tops;
  if (!hashes.empty()) {
    const PrefixIndex::Prefix prefix = index.match(tree, hashes);
    if (prefix.block_count == hashes.size()) tops.push_back(prefix.last);
  } else {
    index.for_each(tree, [&](BlockId block) {
      if (index.parent(block) == kNoBlock) tops.push_back(block);
    });
  }
  return tops;
}

}  // namespace

DiskDesk::DiskDesk(Shelf& shelf, SpaceDesk& spaces) : shelf_(shelf), spaces_(spaces) {
  if (!shelf.tier) return;
  spiller_ = std::make_unique<Spiller>(shelf.config.spill, shelf.pool, shelf.evictor, *shelf.tier);
  loader_ = std::make_unique<DiskLoader>(*shelf.tier, shelf.pool);
  spaces.tell(*this);
}

void DiskDesk::was_opened(const SpaceTable::Space& space) {
  const NamespaceRecord& record = *space.record;
  const std::uint32_t cohort = shelf_.tenants ? shelf_.tenants->disk_cohort(space.owner) : 0;
  const TreeKind kind = record.is_set() ? TreeKind::kSet : TreeKind::kChain;
  const TreeId tree = shelf_.tier->add_tree(space.name, record.block_bytes(), kind, cohort, record.callers_id());
  KV_ASSERT(tree == space.tree);
  spiller_->add_tree(tree, space.record);
}

void DiskDesk::was_closed(const SpaceTable::Space& space) {
  shelf_.tier->remove_tree(space.tree);
  const bool may_be_on_disk = spiller_->remove_tree(space.tree);
  if (loader_) {
    if (may_be_on_disk) loader_->keep_space(space.name);
  } else if (may_be_on_disk && !unseen_spaces_.contains(space.name)) {
    spiller_->remove_record(space.name);
  }
}

void DiskDesk::set_places(std::vector<DiskPlace> places, std::span<const DiskPlace> leaving) {
  KV_ASSERT(shelf_.tier != nullptr && !places.empty());
  const std::vector<DiskPlace>& before = shelf_.tier->places();
  const auto is_known = [&](DiskPlace place) { return std::ranges::find(before, place) != before.end(); };
  if (!std::ranges::all_of(places, is_known)) spiller_->tell_records_again();
  shelf_.tier->set_places(std::move(places), leaving);
}

SpillWork DiskDesk::drain_work(DiskPlace place, std::uint64_t bytes_max, TimePoint now) {
  shelf_.departed.tell_time(now);
  return spiller_->drain(place, bytes_max, now);
}

std::size_t DiskDesk::evict(std::uint64_t bytes, TimePoint now) {
  shelf_.departed.tell_time(now);
  return shelf_.tier->evict_oldest(bytes);
}

std::size_t DiskDesk::give_up_place(DiskPlace place, TimePoint now) {
  shelf_.departed.tell_time(now);
  return spiller_->give_up_place(place, kGivenUpPerCall);
}

SpillWork DiskDesk::spill_work(std::uint64_t bytes_max, TimePoint now, bool everything) {
  shelf_.departed.tell_time(now);
  return shelf_.tier ? spiller_->next(bytes_max, now, everything) : SpillWork{};
}

std::size_t DiskDesk::finish_spill(const SpillWork& work, const SpillOutcome& outcome) {
  KV_ASSERT(spiller_ != nullptr);
  return spiller_->finish(work, outcome);
}

bool DiskDesk::has(BlockId block) const {
  KV_ASSERT(shelf_.tier != nullptr);
  return shelf_.tier->index().is_linked(block);
}

DiskDesk::FailedRead DiskDesk::read_failed(BlockId block, DiskKey key) {
  KV_ASSERT(shelf_.tier != nullptr);
  DiskTier& tier = *shelf_.tier;
  // Between the read and this call the block may have been dropped, or moved: the key shows it.
  if (!tier.index().is_linked(block)) return {};
  if (tier.key(block) != key) return {.moved_to = tier.key(block)};
  spiller_->remove(block, MissKind::kLost);
  ++shelf_.counters.lost_blocks;
  return {.is_forgotten = true};
}

std::vector<DiskDesk::ScrubBlock> DiskDesk::blocks_to_scrub(DiskTier::Cursor& cursor, std::size_t entries_max) const {
  KV_ASSERT(shelf_.tier != nullptr);
  const DiskTier& tier = *shelf_.tier;
  std::vector<ScrubBlock> blocks;
  for (const BlockId block : tier.live_from(cursor, entries_max)) {
    blocks.push_back({.id = block,
                      .key = tier.key(block),
                      .space = tier.name(tier.index().tree(block)),
                      .hash = tier.index().hash(block),
                      .seed = tier.seed(block),
                      .block_bytes = tier.block_bytes(block)});
  }
  return blocks;
}

void DiskDesk::begin_load(TimePoint now, std::uint32_t epoch, std::span<const DiskDrop> drops) {
  KV_ASSERT(loader_ != nullptr);
  shelf_.tier->start_epoch(epoch);
  loader_->begin(shelf_.pool.tick(now), drops);
  spiller_->keep_log();  // the log's old end is about to grow backwards
}

void DiskDesk::load_namespace(const NamespaceRecord& record) {
  KV_ASSERT(loader_ != nullptr);
  loader_->add_space(record.id(), std::make_shared<const NamespaceRecord>(record));
}

/// False once the tier is full.
bool DiskDesk::load(const DiskRecord& record) {
  const Space* space = spaces_.find(record.space);
  if (space == nullptr) {
    auto known = loader_->space(record.space);
    if (known == nullptr) return loader_->skip(record, /*is_for_good=*/false);
    const auto opened = spaces_.open(std::move(known));
    // With too many namespaces, the last used ones come back first, as with blocks. A skipped namespace must not come
    // back with a later start either: it may have been dropped by then.
    const bool is_for_good = !opened && (opened.error() == Errc::kBusy || opened.error() == Errc::kOverQuota);
    if (!opened) return loader_->skip(record, is_for_good);
    space = *opened;
  }
  return loader_->add(space->tree, record);
}

DiskDesk::Loaded DiskDesk::load_records(std::span<const DiskRecord> records) {
  KV_ASSERT(loader_ != nullptr);
  Loaded loaded;
  // One record may release a million waiting ones: so the bound is on placing, not on records.
  std::size_t left = records.size() + kPlacedPerCall;
  for (std::size_t i = 0; i < records.size() && loaded.has_room; ++i) {
    loaded.has_room = load(records[i]);
    left -= loader_->place_some(left);
  }
  loader_->place_some(left);
  loaded.again = loader_->has_more();
  spiller_->erase_later(loader_->take_erased());
  return loaded;
}

std::uint64_t DiskDesk::end_load(bool is_whole) {
  KV_ASSERT(loader_ != nullptr);
  const std::uint64_t count = loader_->loaded_count();
  if (is_whole) spiller_->erase_later(loader_->orphans());
  spiller_->end_keep_log(is_whole);
  for (const auto& [name, record] : loader_->spaces()) {
    if (!is_whole || (record != nullptr && !shelf_.pool.arena().fits(record->block_bytes()))) {
      unseen_spaces_.insert(name);
    } else if (const Space* const space = spaces_.find(name)) {
      spiller_->found_record(space->tree);
    } else {
      spiller_->remove_record(name);  // all its blocks are gone
    }
  }
  loader_.reset();
  // While the loader existed, namespaces with blocks still to come were not idle.
  spaces_.for_each([&](Space& space) { spaces_.may_be_idle(space); });
  shelf_.tier->trim();
  return count;
}

PinnedDiskBlock DiskDesk::pin(const Space& space, BlockId block, const BlockHash& hash, std::uint32_t index) {
  shelf_.tier->pin(block);
  const std::size_t length = shelf_.tier->block_bytes(block);
  return {.id = block,
          .index = index,
          .key = shelf_.tier->key(block),
          .seed = space.record->checksum_seed(hash, length),
          .block_bytes = static_cast<std::uint32_t>(length),
          .promote = shelf_.tier->count_read(block)};
}

void DiskDesk::pin_rest(const FoundChain& found, std::span<const BlockHash> hashes, PinnedPrefix& pinned) {
  std::vector<BlockId> blocks(found.disk.block_count);
  shelf_.tier->index().blocks_of(found.disk, blocks);
  KV_ASSERT(pinned.blocks.size() < blocks.size());
  bool promote = true;  // a block goes to memory only with all above it: otherwise it could not be linked
  for (std::size_t i = pinned.blocks.size(); i < blocks.size(); ++i) {
    pinned.on_disk.push_back(pin(*found.space, blocks[i], hashes[i], static_cast<std::uint32_t>(i)));
    promote = pinned.on_disk.back().promote = pinned.on_disk.back().promote && promote;
  }
}

void DiskDesk::stored(TreeId tree, BlockId block, BlockId parent, Tick tick) {
  DiskTier& tier = *shelf_.tier;
  const BlockId above = parent == kNoBlock ? kNoBlock : tier.copy_on_disk(parent);
  if (parent == kNoBlock || above != kNoBlock) {  // the disk needs the parent (DiskTier, invariant 1)
    const BlockId disk = tier.index().find_child(tree, above, shelf_.pool.index().hash(block));
    if (disk != kNoBlock && tier.copy_in_memory(disk) == kNoBlock) tier.add_copy(block, disk);
  }
  spiller_->stored(block, tick);
}

std::size_t DiskDesk::drop(const Space& space, std::span<const BlockHash> hashes, DiskDrop* kept) {
  const std::size_t count = shelf_.tier ? remove(space.tree, hashes) : 0;
  if (loader_) loader_->drop(space.tree, hashes);
  shelf_.counters.dropped_blocks += count;
  if (kept != nullptr) {
    *kept = {.space = space.name, .hash = hashes.empty() ? BlockHash{} : hashes.back()};
    if (shelf_.tier) kept->before = shelf_.tier->next_key();  // covers writes under way too
  }
  return count;
}

std::size_t DiskDesk::remove(TreeId tree, std::span<const BlockHash> hashes) {
  const DiskTier& tier = *shelf_.tier;
  const std::vector<BlockId> tops = tops_of(tier.index(), tree, hashes);
  if (tier.index().is_set(tree)) {
    std::size_t count = 0;
    for (const BlockId top : tops) {
      count += tier.copy_in_memory(top) == kNoBlock;
      spiller_->remove(top);
    }
    return count;
  }
  // By bytes: blocks with a copy in memory are counted when they leave memory.
  const std::uint64_t before = tier.only_bytes();
  for (const BlockId top : tops) spiller_->remove(top);
  return static_cast<std::size_t>((before - tier.only_bytes()) / tier.block_bytes(tree));
}

void DiskDesk::set_limits(const StoreConfig& config) {
  if (!shelf_.tier) return;
  shelf_.config.disk.capacity_bytes = config.disk.capacity_bytes;
  shelf_.config.spill = config.spill;
  shelf_.tier->set_limits(config.disk.capacity_bytes, config.disk.promote_reads);
  spiller_->set_limits(config.spill);
}

}  // namespace kv
