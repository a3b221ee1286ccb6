#include "store/disk/disk_tier.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kEntriesPerCall = 4096;  ///< Visited under the lock by one call.
constexpr std::uint64_t kSegmentBytesMin = 64 << 20, kSegmentBytesMax = 1 << 30;

constexpr std::uint32_t to_int(BlockId block) { return static_cast<std::uint32_t>(block); }

/// The element for `block`, made when this id first appears.
template <class T>
T& side(StableTable<T>& table, BlockId block) {
  while (table.size() <= to_int(block)) table.add();
  return table[to_int(block)];
}

}  // namespace

DiskTier::DiskTier(const DiskTierConfig& config) : config_(config), index_(config.hash_seed) {
  if (config_.segment_bytes == 0)
    config_.segment_bytes = std::clamp(config_.capacity_bytes / 64, kSegmentBytesMin, kSegmentBytesMax);
}

TreeId DiskTier::add_tree(const NamespaceId& name, std::size_t block_bytes, TreeKind kind, std::uint32_t cohort,
                          const std::optional<NamespaceId>& seeds) {
  const TreeId tree = index_.add_tree(cohort, kind);
  if (static_cast<std::size_t>(tree) == trees_.size()) trees_.emplace_back();
  trees_[static_cast<std::size_t>(tree)] = {name, seeds.value_or(name), block_bytes};
  return tree;
}

std::uint64_t DiskTier::seed(BlockId block) const {
  const TreeId tree = index_.tree(block);
  const NamespaceId& seeds = trees_[static_cast<std::size_t>(tree)].seeds;
  return index_.is_set(tree) ? set_checksum_seed(seeds, index_.hash(block), index_.position(block))
                             : checksum_seed(seeds, index_.hash(block));
}

bool DiskTier::is_plausible(TreeId tree, const DiskRecord& record) const {
  if (!index_.is_set(tree)) return record.block_bytes == block_bytes(tree);
  return record.block_bytes > 0 && record.block_bytes <= block_bytes(tree) && record.position == record.block_bytes &&
         record.parent == BlockHash{};
}

// -- blocks

BlockId DiskTier::insert(TreeId tree, BlockId parent, const BlockHash& hash, std::uint32_t position, DiskKey key,
                         Tick tick) {
  const BlockId block = index_.insert(tree, parent,
                                      {.hash = hash,
                                       .slot = SlotId{static_cast<std::uint64_t>(key)},
                                       .position = position,
                                       .cohort = tenants_ == nullptr ? 0 : tenants_->disk_cohort(tenants_->of(tree))},
                                      tick);
  side(disk_sides_, block) = DiskSide{};
  live_bytes_ += block_bytes(block);
  count_in_place(key, block_bytes(block), /*is_more=*/true);
  count_only(block, /*is_more=*/true);
  if (events_ != nullptr) {
    const BlockHash* const above = parent == kNoBlock ? nullptr : &index_.hash(parent);
    events_->stored(BlockTier::kDisk, tree, hash, above, position);
  }
  return block;
}

void DiskTier::append(DiskKey key, BlockId block) {
  KV_ASSERT(key < next_key() && index_.is_linked(block));
  if (segments_.empty() || segments_.back().bytes >= config_.segment_bytes) segments_.push_back({.first_key = key});
  segments_.back().entries.push_back({key, block});
  count_written(segments_.back(), key, block_bytes(block));
}

void DiskTier::count_written(Segment& segment, DiskKey key, std::uint64_t bytes) {
  segment.bytes += bytes;
  segment.place_bytes[place_of(key)] += bytes;
  log_in_place_[place_of(key)] += bytes;
  log_bytes_ += bytes;
}

void DiskTier::count_in_place(DiskKey key, std::uint64_t bytes, bool is_more) {
  PlaceUse& use = in_place_[place_of(key)];
  KV_ASSERT(is_more || (use.block_count > 0 && use.bytes >= bytes));
  use.block_count += is_more ? 1 : std::uint64_t{0} - 1;
  use.bytes += is_more ? bytes : std::uint64_t{0} - bytes;
}

BlockId DiskTier::add(TreeId tree, BlockId parent, const BlockHash& hash, std::uint32_t position, DiskKey key,
                      Tick tick) {
  const BlockId block = insert(tree, parent, hash, position, key, tick);
  append(key, block);
  // Spilling pays for rewriting: each block adds a share of its bytes to the budget, which is capped at one segment.
  const double credit = config_.rewrite_share * static_cast<double>(block_bytes(block));
  rewrite_credit_ = std::min(rewrite_credit_ + credit, static_cast<double>(config_.segment_bytes));
  ++counters_.spilled_blocks;
  return block;
}

/// The entry under the old key stays in its segment and is now dead (4).
void DiskTier::move(BlockId block, DiskKey key, bool is_paid) {
  count_in_place(this->key(block), block_bytes(block), /*is_more=*/false);
  count_in_place(key, block_bytes(block), /*is_more=*/true);
  index_.set_slot(block, SlotId{static_cast<std::uint64_t>(key)});
  append(key, block);
  if (is_paid) rewrite_credit_ -= static_cast<double>(block_bytes(block));
  ++counters_.rewritten_blocks;
  counters_.rewritten_bytes += block_bytes(block);
}

void DiskTier::start_epoch(std::uint32_t epoch) {
  KV_ASSERT(next_key_ <= first_key(epoch));
  next_key_ = first_key(epoch);
}

void DiskTier::set_places(std::vector<DiskPlace> places, std::span<const DiskPlace> leaving) {
  KV_ASSERT(!places.empty());
  places_ = std::move(places);
  leaving_.assign(leaving.begin(), leaving.end());
  is_short_ = is_short_ && !leaving_.empty();
}

DiskKey DiskTier::new_key(const BlockHash& hash) {
  KV_ASSERT(!places_.empty());
  const std::uint64_t key = next_key_ + places_[short_hash(hash) % places_.size()];
  next_key_ += kPlaceCount;
  return DiskKey{key};
}

/// Before the front segment's first key, or in a new segment in front of that: the log is rebuilt from its new end.
void DiskTier::load_key(DiskKey key, std::uint64_t bytes) {
  KV_ASSERT(segments_.empty() || key < segments_.front().first_key);
  if (segments_.empty() || segments_.front().bytes >= config_.segment_bytes) segments_.push_front({.first_key = key});
  segments_.front().first_key = key;
  count_written(segments_.front(), key, bytes);
}

BlockId DiskTier::load(TreeId tree, BlockId parent, const BlockHash& hash, std::uint32_t position, DiskKey key,
                       Tick tick) {
  KV_ASSERT(!segments_.empty());  // load_key() has made one
  const BlockId block = insert(tree, parent, hash, position, key, tick);
  segments_.front().entries.push_back({key, block});
  return block;
}

void DiskTier::count_removal(BlockId block) {
  KV_ASSERT(live_bytes_ >= block_bytes(block));
  live_bytes_ -= block_bytes(block);
  count_in_place(key(block), block_bytes(block), /*is_more=*/false);
  if (copy_in_memory(block) == kNoBlock) count_only(block, /*is_more=*/false);
}

/// Counts bytes that lie only on disk.
void DiskTier::count_only(BlockId block, bool is_more) {
  const std::uint64_t bytes = block_bytes(block);
  KV_ASSERT(is_more || only_bytes_ >= bytes);
  only_bytes_ = is_more ? only_bytes_ + bytes : only_bytes_ - bytes;
  if (tenants_ == nullptr) return;
  if (is_more) {
    tenants_->came_to_disk(index_.tree(block), bytes);
  } else {
    tenants_->went_from_disk(index_.tree(block), bytes);
  }
}

std::size_t DiskTier::remove(BlockId block, std::vector<DiskKey>& keys, MissKind why) {
  constexpr std::size_t kRememberedMax = 1024;  // each is a cache miss, under the lock
  constexpr std::size_t kToldOfDiskMax = 512;
  const std::size_t before = keys.size();
  const TreeId tree = index_.tree(block);
  index_.unlink_subtree(block, [&](BlockId below) {
    if (copy_in_memory(below) == kNoBlock && keys.size() - before < kRememberedMax) remember(below, why);
    if (events_ != nullptr && keys.size() - before < kToldOfDiskMax)
      events_->removed(BlockTier::kDisk, index_.tree(below), index_.hash(below));
    keys.push_back(key(below));
    count_removal(below);
    // A copy in memory stays there; it only loses its link to the disk.
    const BlockId memory = copy_in_memory(below);
    if (memory == kNoBlock) return;
    memory_sides_[to_int(memory)].disk = kNoBlock;
    disk_sides_[to_int(below)].memory = kNoBlock;
    index_.unpin(below);
  });
  if (events_ != nullptr && keys.size() - before > kToldOfDiskMax) events_->lose(tree);
  return keys.size() - before;
}

void DiskTier::remember(BlockId block, MissKind why, Duration idle) const {
  if (departed_ != nullptr) departed_->add(index_.tree(block), index_.hash(block), why, departed_->now(), idle);
}

void DiskTier::evict(BlockId block) {
  if (departed_ != nullptr) {
    const auto used = static_cast<std::int64_t>(index_.recency(block));
    remember(block, MissKind::kEvicted, departed_->now() - TimePoint(std::chrono::nanoseconds(used)));
  }
  if (events_ != nullptr) events_->removed(BlockTier::kDisk, index_.tree(block), index_.hash(block));
  count_removal(block);
  index_.remove_leaf_end(block);
  ++counters_.evicted_blocks;
}

/// The next to go; kNoBlock: all remaining blocks are being read, or have a copy in memory.
BlockId DiskTier::oldest_leaf_end() {
  const BlockId oldest = tenants_ == nullptr ? kNoBlock : index_.oldest_in_band(0, nullptr);
  return oldest != kNoBlock ? oldest : index_.oldest_leaf_end();
}

void DiskTier::trim() {
  if (tenants_ != nullptr && !tenants_->over_disk_max().empty()) trim_tenants();
  for (std::size_t left = kEntriesPerCall / 4; left > 0; --left) {
    if (only_bytes_ <= config_.capacity_bytes && !is_index_full()) return;
    const BlockId oldest = oldest_leaf_end();
    if (oldest == kNoBlock) return;
    evict(oldest);
  }
}

std::size_t DiskTier::evict_oldest(std::uint64_t bytes) {
  is_short_ = true;
  std::size_t count = 0;
  for (std::uint64_t gone = 0; gone < bytes && count < kEntriesPerCall / 4; ++count) {
    const BlockId oldest = oldest_leaf_end();
    if (oldest == kNoBlock) break;
    gone += block_bytes(oldest);
    evict(oldest);
  }
  return count;
}

void DiskTier::set_limits(std::uint64_t capacity_bytes, std::uint8_t promote_reads) {
  KV_ASSERT(capacity_bytes > 0);
  config_.capacity_bytes = capacity_bytes;
  config_.promote_reads = promote_reads;
}

/// Tenants over their maxima lose their least recently used blocks. After a lowered maximum that takes several calls.
void DiskTier::trim_tenants() {
  std::size_t left = kEntriesPerCall / 16;
  const std::vector<TenantId> over = tenants_->over_disk_max();
  for (const TenantId tenant : over) {
    for (; left > 0 && tenants_->is_over_disk_max(tenant); --left) {
      const BlockId oldest = index_.oldest_leaf_end(tenants_->disk_cohort(tenant), nullptr);
      if (oldest == kNoBlock) break;
      evict(oldest);
    }
  }
}

void DiskTier::unpin(BlockId block) {
  index_.unpin(block);
  if (index_.pin_count(block) == 0 && !index_.is_linked(block)) index_.forget(block);  // dropped during the read
}

bool DiskTier::count_read(BlockId block) {
  std::uint8_t& reads = disk_sides_[to_int(block)].reads;
  if (reads < 255) ++reads;  // one byte: saturates instead of wrapping
  return reads >= config_.promote_reads;
}

// -- copies in memory

BlockId DiskTier::copy_on_disk(BlockId memory) const {
  return to_int(memory) < memory_sides_.size() ? memory_sides_[to_int(memory)].disk : kNoBlock;
}

BlockId DiskTier::copy_in_memory(BlockId disk) const { return disk_sides_[to_int(disk)].memory; }

void DiskTier::add_copy(BlockId memory, BlockId disk) {
  BlockId& own = side(memory_sides_, memory).disk;
  BlockId& other = disk_sides_[to_int(disk)].memory;
  KV_ASSERT(own == kNoBlock && other == kNoBlock);
  own = disk;
  other = memory;
  disk_sides_[to_int(disk)].reads = 0;  // counted anew when the block has left memory again
  count_only(disk, /*is_more=*/false);
  index_.pin(disk);
}

void DiskTier::remove_copy(BlockId memory, Tick recency) {
  const BlockId disk = copy_on_disk(memory);
  if (disk == kNoBlock) return;
  KV_ASSERT(copy_in_memory(disk) == memory);
  memory_sides_[to_int(memory)].disk = kNoBlock;
  disk_sides_[to_int(disk)].memory = kNoBlock;
  count_only(disk, /*is_more=*/true);
  index_.touch(disk, recency);
  unpin(disk);
  trim();
}

// -- the log

bool DiskTier::is_log_full() const {
  if (segments_.size() < 2) return false;  // the segment being written stays
  // Copies need room besides the capacity: they let memory release blocks without a write.
  const std::uint64_t own_max = is_short_ ? std::min(only_bytes_, config_.capacity_bytes) : config_.capacity_bytes;
  const auto alive_max = static_cast<double>(own_max + (live_bytes_ - only_bytes_));
  std::uint64_t bytes = log_bytes_;
  for (const DiskPlace place : leaving_) bytes -= log_in_place_[place];
  return static_cast<double>(bytes) > config_.log_factor * alive_max + 2 * static_cast<double>(config_.segment_bytes);
}

std::vector<BlockId> DiskTier::live_in_oldest(std::uint64_t bytes_max) {
  KV_ASSERT(!segments_.empty());
  std::vector<BlockId> live;
  std::uint64_t bytes = 0;
  const Segment& oldest = segments_.front();
  const std::size_t end = std::min(oldest.entries.size(), dead_entries_ + kEntriesPerCall);
  // Live bytes beyond the budget for rewriting: this many have to be evicted.
  double uncovered = -rewrite_credit_;
  for (std::size_t i = dead_entries_; i < end; ++i)
    if (is_live(oldest.entries[i])) uncovered += static_cast<double>(block_bytes(oldest.entries[i].block));
  // From the back, where the last descendants of a block are. A block without descendants in newer segments becomes a
  // leaf end on the way, and can go too.
  for (std::size_t i = end; i > dead_entries_ && uncovered > 0; --i) {
    const Entry& entry = oldest.entries[i - 1];
    if (!is_live(entry) || !index_.is_leaf_end(entry.block) || index_.pin_count(entry.block) > 0) continue;
    // Writing a tenant's guaranteed blocks again exceeds the budget; losing them is not allowed.
    if (tenants_ != nullptr && !tenants_->is_over_on_disk(index_.tree(entry.block))) continue;
    uncovered -= static_cast<double>(block_bytes(entry.block));
    evict(entry.block);
  }
  for (std::size_t i = dead_entries_; i < end; ++i) {
    const Entry& entry = oldest.entries[i];
    if (is_live(entry)) {
      if (!live.empty() && bytes + block_bytes(entry.block) > bytes_max) break;
      live.push_back(entry.block);
      bytes += block_bytes(entry.block);
    } else if (live.empty()) {
      dead_entries_ = i + 1;
    }
  }
  return live;
}

DiskKey DiskTier::end_segment() {
  KV_ASSERT(segments_.size() >= 2 && is_oldest_dead());
  log_bytes_ -= segments_.front().bytes;
  for (std::size_t place = 0; place < kPlaceCount; ++place)
    log_in_place_[place] -= segments_.front().place_bytes[place];
  segments_.pop_front();
  dead_entries_ = 0;
  return segments_.front().first_key;
}

void DiskTier::forget_place(DiskPlace place) {
  KV_ASSERT(in_place_[place].block_count == 0);
  for (Segment& segment : segments_) segment.bytes -= std::exchange(segment.place_bytes[place], 0);
  log_bytes_ -= std::exchange(log_in_place_[place], 0);
}

std::vector<BlockId> DiskTier::live_from(Cursor& cursor, std::size_t entries_max) const {
  std::vector<BlockId> live;
  walk(cursor, entries_max, [&](BlockId block) {
    live.push_back(block);
    return true;
  });
  return live;
}

std::vector<BlockId> DiskTier::live_in_place(Cursor& cursor, DiskPlace place, std::uint64_t bytes_max,
                                             std::size_t entries_max) const {
  std::vector<BlockId> live;
  std::uint64_t bytes = 0;
  walk(cursor, entries_max, [&](BlockId block) {
    if (place_of(key(block)) != place) return true;
    if (!live.empty() && bytes + block_bytes(block) > bytes_max) return false;
    live.push_back(block);
    bytes += block_bytes(block);
    return true;
  });
  return live;
}

/// `visit` returns false at the block from which the next walk is to go on.
template <class Visit>
void DiskTier::walk(Cursor& cursor, std::size_t entries_max, const Visit& visit) const {
  // The cursor's segment may have been given back since: go on with the first one behind it.
  auto segment = std::ranges::lower_bound(segments_, cursor.segment, {}, &Segment::first_key);
  if (segment != segments_.end() && segment->first_key != cursor.segment) cursor = {segment->first_key, 0};
  for (; segment != segments_.end(); ++segment, cursor.entry = 0) {
    cursor.segment = segment->first_key;
    for (; cursor.entry < segment->entries.size(); ++cursor.entry) {
      if (entries_max-- == 0) return;
      const Entry& entry = segment->entries[cursor.entry];
      if (is_live(entry) && !visit(entry.block)) return;
    }
  }
  cursor = {};
}

DiskTier::Stats DiskTier::stats() const {
  Stats stats = counters_;
  stats.block_count = index_.block_count();
  stats.only_bytes = only_bytes_;
  stats.log_bytes = log_bytes_;
  stats.live_bytes = live_bytes_;
  stats.index_bytes = index_.memory_bytes() + disk_sides_.heap_bytes() + memory_sides_.heap_bytes();
  for (const Segment& segment : segments_) stats.index_bytes += segment.entries.capacity() * sizeof(Entry);
  return stats;
}

}  // namespace kv
