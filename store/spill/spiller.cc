#include "store/spill/spiller.h"

#include <algorithm>

#include "base/assert.h"
#include "base/checksum.h"

namespace kv {
namespace {

constexpr std::size_t kFreshMax = 4096;  ///< Blocks waiting to be written through; further ones are only spilled.
constexpr std::size_t kStepsPerCall = 8192;
constexpr std::size_t kEntriesPerDrain = 4096;
constexpr std::size_t kWritesMax = 512;  ///< For small blocks, so that finish() is as fast as other calls.

constexpr std::uint32_t to_int(BlockId block) { return static_cast<std::uint32_t>(block); }

bool is_full(const SpillWork& work, std::uint64_t bytes_max) {
  return work.write_bytes >= bytes_max || work.writes.size() >= kWritesMax;
}

}  // namespace

SpillOutcome carry_out(const SpillWork& work, Disk& disk) {
  KV_ASSERT(work.sources.size() == work.writes.size());
  SpillOutcome outcome{.is_written = std::vector<bool>(work.writes.size(), false), .error = {}};
  // The order matters, since the power may fail at any point: a namespace's record is written before its first block,
  // and removed after the last block is erased. So a start never finds a block without its namespace's record.
  for (const auto& [id, record] : work.spaces) {
    if (outcome.error = disk.add_namespace(id, record); outcome.error) return outcome;
  }
  if (work.drop_before != DiskKey{}) {  // first: it makes room
    if (outcome.error = disk.drop_before(work.drop_before); outcome.error) return outcome;
  }
  error_code unreadable;
  std::vector<DiskBlock> moved;
  std::vector<DiskWrite> writes;
  std::vector<std::size_t> written;
  for (std::size_t i = 0; i < work.writes.size(); ++i) {
    DiskWrite write = work.writes[i];
    if (work.sources[i] != DiskKey{}) {
      auto block = read_verified(disk, work.sources[i], write.seed, write.record.block_bytes);
      // Lost for good: skip it. Unreadable now: skip it too, and report the error at the end.
      if (!block && is_lost(block.error())) {
        ++outcome.lost_count;
        continue;
      }
      if (!block) {
        unreadable = block.error();
        outcome.unreadable.push_back(i);
        continue;
      }
      write.bytes = block->bytes;
      write.checksums = block->checksums;
      moved.push_back(std::move(*block));  // owns the bytes of the write's span
    }
    KV_ASSERT(write.bytes.size() == write.record.block_bytes);
    KV_ASSERT(write.checksums.size() == stripe_count(write.bytes.size()));
    writes.push_back(write);
    written.push_back(i);
  }
  if (!writes.empty()) outcome.error = disk.write(writes);
  if (outcome.error) return outcome;
  for (const std::size_t i : written) outcome.is_written[i] = true;
  if (!work.erased.empty()) outcome.error = disk.erase(work.erased);
  // Last: while one of its blocks may be loaded, so may its record.
  if (!outcome.error && !work.gone_spaces.empty()) outcome.error = disk.remove_namespaces(work.gone_spaces);
  if (!outcome.error) outcome.error = unreadable;
  return outcome;
}

SpillWork Spiller::next(std::uint64_t bytes_max, TimePoint now, bool everything) {
  KV_ASSERT(taken_.empty());  // the previous work is finished
  SpillWork work;
  work.erased = std::exchange(erased_, {});
  work.gone_spaces.assign(gone_spaces_.begin(), gone_spaces_.end());
  gone_spaces_.clear();
  if (std::exchange(drop_unknown_, false)) drop_before_ = std::max(drop_before_, tier_.oldest_key());
  // Blocks that were cut off but not yet freed must not be written: their parents in the tree have changed, and a pin
  // would keep a block that is being evicted. Free them all before examining any block.
  Steps steps(kStepsPerCall);
  evictor_.reap(steps, now);
  const bool are_freed = !pool_.index().has_detached();
  // At most half for moving: a log that is too long must not keep new blocks off the disk.
  if (are_freed && !keep_log_ && tier_.is_log_full()) move_live(work, bytes_max / 2);
  work.drop_before = drop_before_;
  if (!are_freed) return work;
  while (!fresh_.empty() && !is_full(work, bytes_max)) {
    const BlockId block = fresh_.back();
    // If another block has the id by now, that one is written early, which is harmless.
    if (pool_.index().is_attached(block) && !add_chain(work, block, bytes_max)) break;
    fresh_.pop_back();
  }
  // Before the oldest of all: puts of these sizes find no room, however much other sizes have.
  if (!everything) {
    evictor_.write_victims(std::max<std::uint64_t>(reserve_bytes(), 1), steps, now,
                           [&](BlockId block) { return add_chain(work, block, bytes_max); });
  }
  write_oldest(work, bytes_max, now, everything, steps);
  return work;
}

SpillWork Spiller::drain(DiskPlace place, std::uint64_t bytes_max, TimePoint now) {
  KV_ASSERT(taken_.empty());
  SpillWork work;
  work.is_drain = true;
  Steps steps(kStepsPerCall);
  evictor_.reap(steps, now);  // as in next()
  if (pool_.index().has_detached()) return work;
  for (const BlockId disk : tier_.live_in_place(drained_to_, place, bytes_max, kEntriesPerDrain))
    add(work, tier_.copy_in_memory(disk), disk);
  return work;
}

std::size_t Spiller::give_up_place(DiskPlace place, std::size_t entries_max) {
  KV_ASSERT(taken_.empty());
  std::size_t count = 0;
  for (const BlockId disk : tier_.live_in_place(drained_to_, place, ~std::uint64_t{0}, entries_max)) {
    if (!tier_.index().is_linked(disk)) continue;  // gone with one above it
    ++count;
    remove(disk, MissKind::kLost);
  }
  lost_count_ += count;
  return count;
}

void Spiller::tell_records_again() {
  for (Record& record : records_) record.is_told = false;
}

bool Spiller::is_memory_short() const {
  const Arena& arena = pool_.arena();
  return arena.free_bytes() < reserve_bytes() || evictor_.has_short_class();
}

std::uint64_t Spiller::reserve_bytes() const {
  return static_cast<std::uint64_t>(config_.reserve * static_cast<double>(pool_.arena().capacity_bytes()));
}

/// Moves the live blocks of the oldest segment to the end of the log; then drops the segment.
void Spiller::move_live(SpillWork& work, std::uint64_t bytes_max) {
  for (const BlockId disk : tier_.live_in_oldest(bytes_max)) add(work, tier_.copy_in_memory(disk), disk);
  if (work.writes.empty() && tier_.is_oldest_dead()) drop_before_ = tier_.end_segment();
}

void Spiller::write_oldest(SpillWork& work, std::uint64_t bytes_max, TimePoint now, bool everything, Steps& steps) {
  const Arena& arena = pool_.arena();
  const auto free_bytes = [&] { return arena.free_bytes(); };
  const std::uint64_t reserve = reserve_bytes();
  while (steps.are_left() && !is_full(work, bytes_max)) {
    if (free_bytes() >= (everything ? arena.capacity_bytes() : reserve)) return;
    const bool may_skip = config_.skip_unused && !everything && 2 * free_bytes() < reserve;
    const BlockId oldest = everything ? evictor_.any_victim(steps) : evictor_.next_spared(steps);
    if (oldest == kNoBlock) return;
    steps.take(Steps::kRemoval);
    const bool is_lost = tier_.copy_on_disk(oldest) == kNoBlock &&
                         ((may_skip && is_unused(oldest)) || (!everything && !is_worth_a_write(oldest)));
    if (is_lost || tier_.copy_on_disk(oldest) != kNoBlock) {
      skipped_count_ += is_lost;
      const BlockId above = is_lost ? pool_.index().parent(oldest) : kNoBlock;
      const Tick stored = is_lost && config_.skip_unused ? stored_at_[to_int(oldest)].tick : Tick{};
      const bool is_above_unused = config_.skip_unused && above != kNoBlock && is_unused(above);
      evictor_.evict(oldest, now);
      // The new leaf end has inherited the evicted block's recency, and would count as used by that alone.
      if (is_above_unused) stored_at_[to_int(above)].tick = stored;
    } else if (!add_chain(work, oldest, bytes_max)) {
      return;
    }
  }
}

/// A block's time on disk in the policy's age: the disk's blocks times the clock's progress per written block.
bool Spiller::is_worth_a_write(BlockId leaf_end) const {
  if (config_.chance_min <= 0 || !tier_.is_full()) return true;
  const std::uint64_t written = tier_.written_count();
  const double blocks = static_cast<double>(tier_.index().block_count());
  const double came = static_cast<double>(evictor_.policy().clock());
  const double per_write = came / static_cast<double>(std::max<std::uint64_t>(written, 1));
  // After a restart a full disk is still unwritten: the time is then long, capped to fit the type.
  const auto lifetime = static_cast<std::uint64_t>(std::min(blocks * std::max(1.0, per_write), 1e18));
  return evictor_.chance(leaf_end, lifetime) >= config_.chance_min;
}

bool Spiller::is_unused(BlockId block) const { return pool_.index().recency(block) <= stored_at_[to_int(block)].tick; }

/// Adds the block and those above that are not on disk, top down, so that prefixes are in order. False if some did not
/// fit.
bool Spiller::add_chain(SpillWork& work, BlockId block, std::uint64_t bytes_max) {
  std::vector<BlockId> chain;
  for (; block != kNoBlock && tier_.copy_on_disk(block) == kNoBlock && !taken_.contains(block);
       block = pool_.index().parent(block))
    chain.push_back(block);
  for (; !chain.empty(); chain.pop_back()) {
    if (is_full(work, bytes_max)) return false;
    add(work, chain.back(), kNoBlock);
  }
  return true;
}

void Spiller::add(SpillWork& work, BlockId memory, BlockId disk) {
  // Prefer memory: that saves the read, and the bytes there were verified.
  KV_ASSERT(memory != kNoBlock || disk != kNoBlock);
  const PrefixIndex& index = memory != kNoBlock ? pool_.index() : tier_.index();
  const BlockId block = memory != kNoBlock ? memory : disk;
  const BlockId parent = index.parent(block);
  DiskWrite write;
  const BlockHash& hash = index.hash(block);
  write.record = {.key = tier_.new_key(hash),
                  .space = tier_.name(index.tree(block)),
                  .hash = hash,
                  .parent = parent == kNoBlock ? BlockHash{} : index.hash(parent),
                  .position = index.position(block)};
  tell_record(work, index.tree(block));
  if (disk != kNoBlock) write.record.moved_from = tier_.key(disk);
  DiskKey source{};
  if (memory != kNoBlock) {
    write.bytes = pool_.bytes(memory);
    write.checksums = pool_.checksums(memory);
    pool_.pin(memory);  // the spans are read without the lock, until finish()
    KV_ASSERT(taken_.insert(memory).second);
  } else {
    source = tier_.key(disk);
    write.seed = tier_.seed(disk);
  }
  if (disk != kNoBlock) tier_.pin(disk);
  write.record.block_bytes =
      static_cast<std::uint32_t>(memory != kNoBlock ? write.bytes.size() : tier_.block_bytes(disk));
  work.write_bytes += write.record.block_bytes;
  work.writes.push_back(write);
  work.sources.push_back(source);
  work.items.push_back({memory, disk});
}

/// Sends a namespace's record to the disk with the first of its blocks.
void Spiller::tell_record(SpillWork& work, TreeId tree) {
  Record& record = records_[static_cast<std::size_t>(tree)];
  if (record.is_told) return;
  record.is_told = record.may_be_on_disk = true;
  work.spaces.emplace_back(record.record->id(), record.record->text());
  work.space_trees.push_back(tree);
  std::erase(work.gone_spaces, record.record->id());  // opened again since it was forgotten
}

void Spiller::add_tree(TreeId tree, std::shared_ptr<const NamespaceRecord> record) {
  const auto i = static_cast<std::size_t>(tree);
  if (i >= records_.size()) records_.resize(i + 1);
  records_[i] = {.record = std::move(record)};
}

bool Spiller::remove_tree(TreeId tree) {
  return std::exchange(records_[static_cast<std::size_t>(tree)], {}).may_be_on_disk;
}

std::size_t Spiller::finish(const SpillWork& work, const SpillOutcome& outcome) {
  const std::uint64_t lost_before = lost_count_;
  KV_ASSERT(outcome.is_written.size() == work.writes.size() && work.items.size() == work.writes.size());
  taken_.clear();
  evictor_.end_writes();
  // After an error the disk's progress is unknown: all idempotent steps are repeated.
  if (outcome.error) {
    erase_later(work.erased);
    for (const TreeId tree : work.space_trees) records_[static_cast<std::size_t>(tree)].is_told = false;
    gone_spaces_.insert(work.gone_spaces.begin(), work.gone_spaces.end());
  } else if (!work.is_drain) {
    drop_before_ = {};
  }
  // A block that failed to be read twice in a row is given up, or it would keep the log's old end for ever.
  std::unordered_set<DiskKey> suspects;
  std::vector<bool> is_given_up(work.items.size(), false);
  for (const std::size_t i : outcome.unreadable) {
    KV_ASSERT(i < work.sources.size() && work.sources[i] != DiskKey{});
    if (suspects_.contains(work.sources[i])) {
      is_given_up[i] = true;
    } else {
      suspects.insert(work.sources[i]);
    }
  }
  // Moves within the log and out of a directory take turns: each leaves the other's suspects alone.
  for (const DiskKey source : work.sources) suspects_.erase(source);
  suspects_.merge(suspects);
  for (std::size_t i = 0; i < work.items.size(); ++i) {
    const SpillWork::Item& item = work.items[i];
    if (outcome.is_written[i]) {
      finish_write(item, work.writes[i].record.key, work.is_drain);
    } else if ((!outcome.error || is_given_up[i]) && tier_.index().is_linked(item.disk)) {
      remove(item.disk, MissKind::kLost);  // lost, or given up: else it would keep its segment for ever
      ++lost_count_;
    }
    if (item.memory != kNoBlock) pool_.unpin(item.memory);
    if (item.disk != kNoBlock) tier_.unpin(item.disk);
  }
  tier_.trim();
  return static_cast<std::size_t>(lost_count_ - lost_before);
}

/// The block now lies under `key`. Enters it in the index, unless it was dropped during the write.
void Spiller::finish_write(const SpillWork::Item& item, DiskKey key, bool is_drain) {
  PrefixIndex& index = pool_.index();
  if (item.disk != kNoBlock) {
    if (tier_.index().is_linked(item.disk)) return tier_.move(item.disk, key, /*is_paid=*/!is_drain);
    erased_.push_back(key);  // dropped meanwhile
    return;
  }
  const bool is_attached = index.is_attached(item.memory);
  const BlockId parent = is_attached ? index.parent(item.memory) : kNoBlock;
  const BlockId above = parent == kNoBlock ? kNoBlock : tier_.copy_on_disk(parent);
  if (!is_attached || (parent != kNoBlock && above == kNoBlock)) {
    erased_.push_back(key);  // it, or the block above it on disk, was dropped meanwhile
    return;
  }
  const TreeId tree = index.tree(item.memory);
  BlockId disk = tier_.index().find_child(tree, above, index.hash(item.memory));
  if (disk == kNoBlock) {
    disk =
        tier_.add(tree, above, index.hash(item.memory), index.position(item.memory), key, index.recency(item.memory));
  } else {  // a restart's load found it meanwhile
    tier_.move(disk, key);
  }
  if (tier_.copy_on_disk(item.memory) == kNoBlock) tier_.add_copy(item.memory, disk);
}

void Spiller::stored(BlockId block, Tick tick) {
  if (config_.skip_unused) {
    while (stored_at_.size() <= to_int(block)) stored_at_.add();
    stored_at_[to_int(block)].tick = tick;
  }
  if (!config_.write_through || fresh_.size() >= kFreshMax) return;
  fresh_.push_back(block);
}

}  // namespace kv
