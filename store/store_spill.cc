// store/store_spill.cc: the disk tier's part of Store: finding blocks on disk, spilling and loading.

#include <algorithm>

#include "base/assert.h"
#include "store/store_impl.h"

namespace kv {
namespace {

constexpr std::size_t kPlacedPerCall = 128;  ///< For a load: some hundred microseconds.
constexpr std::size_t kGivenUpPerCall = 64;  ///< Entries of the log; each block goes with all below it.

}  // namespace

/// Adds the blocks that follow `pinned` on disk to it.
void Store::Impl::pin_spilled(const Found& found, std::span<const BlockHash> hashes, PinnedPrefix& pinned) {
  std::vector<BlockId> blocks(found.disk.block_count);
  tier->index().blocks_of(found.disk, blocks);
  KV_ASSERT(pinned.blocks.size() < blocks.size());
  bool promote = true;  // a block goes to memory only with all above it: otherwise it could not be linked
  for (std::size_t i = pinned.blocks.size(); i < blocks.size(); ++i) {
    pinned.spilled.push_back(pin_on_disk(*found.space, blocks[i], hashes[i], static_cast<std::uint32_t>(i)));
    promote = pinned.spilled.back().promote = pinned.spilled.back().promote && promote;
  }
}

Store::SpilledBlock Store::Impl::pin_on_disk(const Space& space, BlockId block, const BlockHash& hash,
                                             std::uint32_t index) {
  tier->pin(block);
  const std::size_t length = tier->block_bytes(block);
  return {.id = block,
          .index = index,
          .key = tier->key(block),
          .seed = space.record->checksum_seed(hash, length),
          .block_bytes = static_cast<std::uint32_t>(length),
          .promote = tier->count_read(block)};
}

/// `block` was just linked in memory. If it lies on disk as well, memory can later release it without a write.
void Store::Impl::add_copy(TreeId tree, BlockId block, BlockId parent) {
  const BlockId above = parent == kNoBlock ? kNoBlock : tier->copy_on_disk(parent);
  if (parent != kNoBlock && above == kNoBlock) return;  // the disk needs the parent (invariant 1)
  const BlockId disk = tier->index().find_child(tree, above, pool.index().hash(block));
  if (disk != kNoBlock && tier->copy_in_memory(disk) == kNoBlock) tier->add_copy(block, disk);
}

/// The part of Store::drop for the disk. Returns the number of blocks that were only on disk.
std::size_t Store::Impl::drop_spilled(TreeId tree, std::span<const BlockHash> hashes) {
  if (tier->index().is_set(tree)) {
    std::size_t count = 0;
    for (const BlockId top : tops_of(tier->index(), tree, hashes)) {
      count += tier->copy_in_memory(top) == kNoBlock;
      spiller->remove(top);
    }
    return count;
  }
  // By bytes: blocks with a copy in memory are counted when they leave memory.
  const std::uint64_t before = tier->only_bytes();
  const std::size_t block_bytes = tier->block_bytes(tree);
  for (const BlockId top : tops_of(tier->index(), tree, hashes)) spiller->remove(top);
  return static_cast<std::size_t>((before - tier->only_bytes()) / block_bytes);
}

void Store::set_disk_places(std::vector<DiskPlace> places, std::span<const DiskPlace> leaving) {
  KV_ASSERT(impl_->tier != nullptr && !places.empty());
  const std::vector<DiskPlace>& before = impl_->tier->places();
  const auto is_known = [&](DiskPlace place) { return std::ranges::find(before, place) != before.end(); };
  if (!std::ranges::all_of(places, is_known)) impl_->spiller->tell_records_again();
  impl_->tier->set_places(std::move(places), leaving);
}

SpillWork Store::drain_work(DiskPlace place, std::uint64_t bytes_max, TimePoint now) {
  impl_->departed.tell_time(now);
  return impl_->spiller->drain(place, bytes_max, now);
}

DiskTier::PlaceUse Store::disk_place_use(DiskPlace place) const { return impl_->tier->in_place(place); }

std::size_t Store::evict_from_disk(std::uint64_t bytes, TimePoint now) {
  impl_->departed.tell_time(now);
  return impl_->tier->evict_oldest(bytes);
}

std::size_t Store::give_up_disk_place(DiskPlace place, TimePoint now) {
  impl_->departed.tell_time(now);
  return impl_->spiller->give_up_place(place, kGivenUpPerCall);
}

void Store::forget_disk_place(DiskPlace place) { impl_->tier->forget_place(place); }

bool Store::wants_spill() const { return impl_->tier && impl_->spiller->is_memory_short(); }

SpillWork Store::spill_work(std::uint64_t bytes_max, TimePoint now, bool everything) {
  impl_->departed.tell_time(now);
  return impl_->tier ? impl_->spiller->next(bytes_max, now, everything) : SpillWork{};
}

std::size_t Store::finish_spill(const SpillWork& work, const SpillOutcome& outcome) {
  KV_ASSERT(impl_->spiller != nullptr);
  return impl_->spiller->finish(work, outcome);
}

void Store::begin_load(TimePoint now, std::uint32_t epoch, std::span<const DiskDrop> drops) {
  KV_ASSERT(impl_->loader != nullptr);
  impl_->tier->start_epoch(epoch);
  impl_->loader->begin(impl_->pool.tick(now), drops);
  impl_->spiller->keep_log();  // the log's old end is about to grow backwards
}

void Store::load_namespace(const NamespaceRecord& record) {
  KV_ASSERT(impl_->loader != nullptr);
  impl_->loader->add_space(record.id(), std::make_shared<const NamespaceRecord>(record));
}

/// False once the tier is full.
bool Store::Impl::load(const DiskRecord& record) {
  const Space* space = spaces.find(record.space);
  if (space == nullptr) {
    auto known = loader->space(record.space);
    if (known == nullptr) return loader->skip(record, /*is_for_good=*/false);
    const auto opened = open(std::move(known));
    // With too many namespaces, the last used ones come back first, as with blocks. A skipped namespace must not come
    // back with a later start either: it may have been dropped by then.
    const bool is_for_good = !opened && (opened.error() == Errc::kBusy || opened.error() == Errc::kOverQuota);
    if (!opened) return loader->skip(record, is_for_good);
    space = *opened;
  }
  return loader->add(space->tree, record);
}

Store::Loaded Store::load_spilled(std::span<const DiskRecord> records) {
  KV_ASSERT(impl_->loader != nullptr);
  Loaded loaded;
  // One record may release a million waiting ones: so the bound is on placing, not on records.
  std::size_t left = records.size() + kPlacedPerCall;
  for (std::size_t i = 0; i < records.size() && loaded.has_room; ++i) {
    loaded.has_room = impl_->load(records[i]);
    left -= impl_->loader->place_some(left);
  }
  impl_->loader->place_some(left);
  loaded.again = impl_->loader->has_more();
  impl_->spiller->erase_later(impl_->loader->take_erased());
  return loaded;
}

std::uint64_t Store::end_load(bool is_whole) {
  Impl& impl = *impl_;
  KV_ASSERT(impl.loader != nullptr);
  const std::uint64_t count = impl.loader->loaded_count();
  if (is_whole) impl.spiller->erase_later(impl.loader->orphans());
  impl.spiller->end_keep_log(is_whole);
  for (const auto& [name, record] : impl.loader->spaces()) {
    if (!is_whole || (record != nullptr && !impl.pool.arena().fits(record->block_bytes()))) {
      impl.unseen_spaces.insert(name);
    } else if (const Space* const space = impl.spaces.find(name)) {
      impl.spiller->found_record(space->tree);
    } else {
      impl.spiller->remove_record(name);  // all its blocks are gone
    }
  }
  impl.loader.reset();
  // While the loader existed, namespaces with blocks still to come were not idle.
  impl.spaces.for_each([&](Space& space) { impl.spaces.may_be_idle(space); });
  impl.tier->trim();
  return count;
}

std::vector<Store::ScrubBlock> Store::blocks_to_scrub(DiskTier::Cursor& cursor, std::size_t entries_max) const {
  KV_ASSERT(impl_->tier != nullptr);
  const DiskTier& tier = *impl_->tier;
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

bool Store::is_on_disk(BlockId block) const {
  KV_ASSERT(impl_->tier != nullptr);
  return impl_->tier->index().is_linked(block);
}

Store::FailedRead Store::read_failed(BlockId block, DiskKey key) {
  KV_ASSERT(impl_->tier != nullptr);
  DiskTier& tier = *impl_->tier;
  // Between the read and this call the block may have been dropped, or moved: the key shows it.
  if (!tier.index().is_linked(block)) return {};
  if (tier.key(block) != key) return {.moved_to = tier.key(block)};
  impl_->spiller->remove(block, MissKind::kLost);
  ++impl_->counters.lost_blocks;
  return {.is_forgotten = true};
}

}  // namespace kv
