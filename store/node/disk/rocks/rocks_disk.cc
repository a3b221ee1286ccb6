#include "store/node/disk/rocks/rocks_disk.h"

#include <rocksdb/convenience.h>
#include <rocksdb/statistics.h>
#include <rocksdb/write_batch.h>
#include <spdlog/spdlog.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <thread>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/node/disk/files/disk_format.h"
#include "store/node/disk/rocks/purge_filter.h"
#include "store/node/disk/rocks/rocks_scan.h"

namespace kv {
namespace {

using rocksdb::Slice;
using rocksdb::Status;

constexpr const char* kEpochKey = "epoch";
constexpr const char* kPlaceKey = "place";
constexpr char kNamespaceTag = 'n';

Slice slice(const DiskKeyText& key) { return {key.data(), key.size()}; }
Slice slice(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::string namespace_key(const NamespaceId& id) { return kNamespaceTag + slice(id.bytes).ToString(); }

/// Memory of a DiskBlock: the value, or its unsealed text. The checksums are copied, for their alignment.
struct ReadValue {
  rocksdb::PinnableSlice value;
  OpenedValue opened;
  std::vector<std::uint64_t> checksums;
};

/// Bytes written to the device: blocks and records, without the MANIFEST and other small files.
std::uint64_t device_bytes(const rocksdb::Statistics& statistics) {
  std::uint64_t bytes = 0;
  for (const auto ticker : {rocksdb::FLUSH_WRITE_BYTES, rocksdb::COMPACT_WRITE_BYTES})
    bytes += statistics.getTickerCount(ticker);
  return bytes;
}

}  // namespace

Result<std::unique_ptr<RocksDisk>, Failure> RocksDisk::open(const RocksDiskConfig& config, DiskOpening* opening,
                                                            const std::function<void()>& accepted) {
  KV_ASSERT(config.memtable_count >= 2 && config.memtable_bytes > 0);
  DiskOpening ignored;
  DiskOpening& told = opening != nullptr ? *opening : ignored;
  told = {};
  auto directory = DiskDirectory::open(config.path, config.read_only, config.keys != nullptr);
  if (!directory) return directory.error();
  std::shared_ptr<DataKeys> data_keys;
  // Before the database is opened: a wrong key must not lead to a repair or a loss.
  if (directory->format() == kDiskFormatSealed) {
    KV_ASSERT(config.keys != nullptr);
    auto opened = DataKeys::open(config.path, config.keys);
    if (!opened) return opened.error();
    data_keys = std::move(*opened);
  }
  if (accepted) accepted();
  RocksDiskConfig own = config;
  own.purge_filter = std::make_shared<PurgeFilter>();
  auto rocks = open_rocks(*directory, own, &told, config.epoch == 0 ? Remedies::kAllowed : Remedies::kNone);
  if (!rocks) return rocks.error();
  std::unique_ptr<RocksDisk> disk(new RocksDisk(own, std::move(*directory), std::move(*rocks)));
  disk->data_keys_ = std::move(data_keys);
  const error_code error = disk->start_epoch(config.read_only);
  if (error == Errc::kMismatch && config.epoch > 0) {
    return Failure(error,
                   fmt::format("{}: was used by another node, or by this one under a later start ({}, and this one is "
                               "{}). Its blocks are left as they are. Empty it, or restart the node with it",
                               config.path.string(), disk->epoch_, config.epoch));
  }
  if (error)
    return Failure(error, config.path.string() + ": the epoch of this start cannot be written: " + error.message());
  return disk;
}

RocksDisk::~RocksDisk() = default;

/// The epoch of this start is above the recorded one, and above every key found in case the record was lost: a key
/// given out twice would return the wrong block.
error_code RocksDisk::start_epoch(bool read_only) {
  files_at_open_ = kv::block_files(rocks_);
  KV_ASSERT(std::ranges::is_sorted(files_at_open_, {}, &BlockFile::first));
  std::string value;
  const Status status = rocks_.db->Get(rocksdb::ReadOptions(), rocks_.state.get(), kEpochKey, &value);
  if (!status.ok() && !status.IsNotFound() && !status.IsCorruption()) return to_error(status);
  std::string place;
  if (rocks_.db->Get(rocksdb::ReadOptions(), rocks_.state.get(), kPlaceKey, &place).ok()) place_ = decode_place(place);
  std::uint32_t last = status.ok() ? decode_epoch(value).value_or(0) : 0;
  if (!place_ && !files_at_open_.empty() && place_of(files_at_open_.back().last) != 0)
    place_ = place_of(files_at_open_.back().last);  // the recorded place was lost
  if (!files_at_open_.empty()) last = std::max(last, epoch_of(files_at_open_.back().last));
  const auto newest_record = [&](std::string_view key, std::string_view) {
    if (const auto decoded = decode_key(key)) last = std::max(last, epoch_of(*decoded));
    return false;
  };
  if (const ScanResult scan = scan_backwards(*rocks_.db, rocks_.records.get(), newest_record); !scan.status.ok())
    return to_error(scan.status);
  epoch_ = last;
  if (config_.epoch > 0 && last > config_.epoch) return make_error_code(Errc::kMismatch);
  if (read_only) return {};
  if (last >= kEpochMax) return make_error_code(Errc::kUnsupported);  // after 16 million starts
  error_code error = begin(config_.epoch > 0 ? config_.epoch : last + 1);
  if (!error && config_.keys) error = begin_sealing();
  if (error || !config_.keys) return error;
  return directory_.mark_sealed();  // last, after everything that could still fail
}

/// FORMAT is written after this, and the first sealed block after FORMAT: a build without key support never meets one.
/// A KEYS file in a directory of the plain format is left over from a start that sealed no block, and is replaced.
error_code RocksDisk::begin_sealing() {
  if (!data_keys_) {
    auto made = DataKeys::make(config_.path, config_.keys, epoch_);
    if (!made) return made.error().code;
    data_keys_ = std::move(*made);
    return {};
  }
  // The operator's key may have changed since the last start.
  if (const error_code error = data_keys_->rewrap()) return error;
  return data_keys_->destroy_before(files_at_open_.empty() ? DiskKey{std::uint64_t{epoch_} << 40}
                                                           : files_at_open_.front().first);
}

/// Makes `epoch` durable before its first key is given out, or the start after a crash could give out the same keys.
error_code RocksDisk::begin(std::uint32_t epoch) {
  KV_ASSERT(epoch >= epoch_ && epoch <= kEpochMax);
  KV_ASSERT(!place_ || *place_ < kPlaceCount);
  epoch_ = epoch;
  next_key_ = std::uint64_t{epoch_} << 40;
  rocksdb::WriteBatch batch;
  Status status = batch.Put(rocks_.state.get(), kEpochKey, encode_epoch(epoch_));
  if (status.ok() && place_) status = batch.Put(rocks_.state.get(), kPlaceKey, encode_place(*place_));
  if (status.ok()) status = rocks_.write(batch, config_.write_patience);
  return status.ok() ? flush() : to_error(status);
}

error_code RocksDisk::join(DiskPlace place, std::uint32_t epoch) {
  KV_ASSERT(place < kPlaceCount && epoch >= epoch_ && next_key_ == std::uint64_t{epoch_} << 40);
  if (place_ == place && epoch_ == epoch) return {};
  place_ = place;
  return begin(epoch);
}

error_code RocksDisk::write(std::span<const DiskWrite> blocks) {
  if (blocks.empty()) return {};
  if (const error_code error = ready()) return error;
  // One batch for all: a crash leaves all blocks or none, each with its record (1).
  batch_.Clear();
  std::uint64_t bytes = 0;
  for (const DiskWrite& block : blocks) {
    const DiskRecord& record = block.record;
    KV_ASSERT(static_cast<std::uint64_t>(record.key) >= next_key_);  // files are disjoint only if keys grow
    KV_ASSERT(epoch_of(record.key) == epoch_);
    KV_ASSERT(record.block_bytes == block.bytes.size() && block.checksums.size() == stripe_count(block.bytes.size()));
    next_key_ = static_cast<std::uint64_t>(record.key) + 1;
    const DiskKeyText key = encode_key(record.key);
    const std::string checksums = encode_checksums(block.checksums);
    const Slice key_part = slice(key);
    std::array<Slice, 2> value_parts = {checksums, slice(block.bytes)};
    int part_count = 2;
    if (data_keys_) {
      const auto data_key = data_keys_->for_writing(record.space, record.key);
      if (!data_key) return data_key.error();
      seal_block(**data_key, record.key, checksums, block.bytes, sealed_);
      value_parts[0] = sealed_;
      part_count = 1;
    }
    Status status = batch_.Put(rocks_.blocks.get(), {&key_part, 1}, {value_parts.data(), part_count});
    if (status.ok()) status = batch_.Put(rocks_.records.get(), key_part, encode_record(record));
    if (!status.ok()) return report(status, "batch");
    bytes += checksums.size() + block.bytes.size();
  }
  const Status status = rocks_.write(batch_, config_.write_patience);
  if (status.ok()) written_bytes_ += bytes;
  return report(status, "write");
}

error_code RocksDisk::ready() { return rocks_.db && !has_failed_ ? error_code() : heal(); }

/// After an error RocksDB is asked to resume. It recovers from a full disk by itself: it checks for room every few
/// seconds, and returns "busy" until then, so the next write is the test. After other errors it is closed and reopened.
error_code RocksDisk::heal() {
  const Status resumed = rocks_.db ? rocks_.db->Resume() : Status::Aborted("closed");
  if (resumed.ok() || resumed.IsBusy()) return {};
  if (resumed.IsNoSpace()) return to_error(resumed);
  // A closed database cannot even be read, so it is closed only when it is likely to reopen. Readers hold the lock
  // shared while they use the handles, so all of them are done before the database goes.
  if (const error_code error = directory_.try_writing()) return error;
  const std::unique_lock lock(reopening_);
  if (rocks_.db) earlier_device_bytes_ += device_bytes(*rocks_.statistics);
  rocks_.close();
  DiskOpening opening;
  auto again = open_rocks(directory_, config_, &opening, Remedies::kNone);
  if (!again) return again.error().code;
  rocks_ = std::move(*again);
  KV_ASSERT(rocks_.db != nullptr && rocks_.blocks != nullptr);
  // The memtables are lost with their records; the store does not repeat namespaces or erasures.
  for (const auto& [id, record] : spaces_) {
    if (const error_code error = put_namespace(id, record)) return error;
  }
  return unflushed_.empty() ? error_code() : erase_records(unflushed_);
}

Result<DiskBlock> RocksDisk::read(DiskKey key) const {
  const std::shared_lock lock(reopening_);
  if (!rocks_.db) return make_error_code(Errc::kDiskFailed);
  // A file with keys on both sides of the bound is still there, but dropped blocks must not be found.
  if (static_cast<std::uint64_t>(key) < first_key_) return make_error_code(Errc::kNotFound);
  const DiskKeyText text = encode_key(key);
  auto read = std::make_shared<ReadValue>();
  const Status status = rocks_.db->Get(rocksdb::ReadOptions(), rocks_.blocks.get(), slice(text), &read->value);
  if (status.IsNotFound()) return make_error_code(Errc::kNotFound);
  if (!status.ok()) return to_error(status);
  // RocksDB's own checksum vouches for the value as written; the reader checks by the name that it is the right block.
  read_bytes_ += read->value.size();
  std::string_view plain = read->value.ToStringView();
  if (is_sealed(key)) {
    auto opened = open_block(*data_keys_, key, plain);
    if (!opened) return opened.error();
    read->opened = std::move(*opened);
    read->value.Reset();
    plain = {reinterpret_cast<const char*>(read->opened.text.get()), read->opened.size};
  }
  const auto block_bytes = block_bytes_of_value(plain.size());
  if (!block_bytes) return make_error_code(Errc::kCorruptBlock);
  KV_ASSERT(*block_bytes < plain.size());
  const std::size_t checksum_bytes = plain.size() - *block_bytes;
  read->checksums = decode_checksums(plain.substr(0, checksum_bytes));
  KV_ASSERT(read->checksums.size() == stripe_count(*block_bytes));
  DiskBlock block;
  block.bytes = std::as_bytes(std::span(plain.substr(checksum_bytes)));
  block.checksums = read->checksums;
  block.owner = std::move(read);
  return block;
}

error_code RocksDisk::erase(std::span<const DiskKey> keys) {
  if (const error_code error = ready()) return error;
  // Only records: a block without its record is dead, and its file is dropped as a whole some day.
  if (const error_code error = erase_records(keys)) return error;
  unflushed_.insert(unflushed_.end(), keys.begin(), keys.end());
  return {};
}

error_code RocksDisk::erase_records(std::span<const DiskKey> keys) {
  rocksdb::WriteBatch batch;
  for (const DiskKey key : keys) {
    if (const Status status = batch.Delete(rocks_.records.get(), slice(encode_key(key))); !status.ok())
      return report(status, "batch");
  }
  return report(rocks_.write(batch, config_.write_patience), "erase");
}

error_code RocksDisk::drop_before(DiskKey end) {
  if (const error_code error = ready()) return error;
  const auto until = static_cast<std::uint64_t>(end);
  const DiskKeyText from = encode_key(DiskKey{0}), to = encode_key(end);
  if (until > first_key_) {
    // Records first: in the other order a crash in between would leave records of missing blocks.
    rocksdb::WriteBatch batch;
    Status status = batch.DeleteRange(rocks_.records.get(), slice(from), slice(to));
    if (status.ok()) status = rocks_.write(batch, config_.write_patience);
    if (!status.ok()) return report(status, "drop");
    first_key_ = until;
    // On failure, keys without blocks remain until the next drop.
    if (data_keys_) static_cast<void>(data_keys_->destroy_before(end));
  }
  const Slice end_slice = slice(to);
  return report(
      rocksdb::DeleteFilesInRange(rocks_.db.get(), rocks_.blocks.get(), nullptr, &end_slice, /*include_end=*/false),
      "drop");
}

/// Records first, as in drop_before(): a crash in between leaves unnamed blocks.
error_code RocksDisk::clear() {
  if (const error_code error = ready()) return error;
  const DiskKeyText from = encode_key(DiskKey{0}), to = encode_key(DiskKey{~std::uint64_t{0}});
  const char first_space = kNamespaceTag, behind_spaces = kNamespaceTag + 1;
  rocksdb::WriteBatch batch;
  Status status = batch.DeleteRange(rocks_.records.get(), slice(from), slice(to));
  if (status.ok()) status = batch.DeleteRange(rocks_.state.get(), Slice(&first_space, 1), Slice(&behind_spaces, 1));
  if (status.ok()) status = rocks_.write(batch, config_.write_patience);
  if (!status.ok()) return report(status, "clear");
  spaces_.clear();
  if (const error_code error = flush()) return error;
  if (data_keys_) {
    if (const error_code error = data_keys_->destroy_before(DiskKey{(std::uint64_t{epoch_} + 1) << 40})) return error;
  }
  if (const error_code error = drops_.forget(DiskKey{~std::uint64_t{0}})) return error;
  return drop_files(DiskKey{0}, DiskKey{~std::uint64_t{0}});
}

/// New blocks of a dropped namespace get a new data key, so that a purge can destroy the old one.
error_code RocksDisk::add_drops(std::span<const DiskDrop> drops) {
  if (data_keys_) {
    for (const DiskDrop& drop : drops) {
      if (drop.hash == BlockHash{}) data_keys_->retire(drop.space);
    }
  }
  return drops_.add(drops);
}

error_code RocksDisk::add_namespace(const NamespaceId& id, const std::string& record) {
  if (const error_code error = ready()) return error;
  spaces_.try_emplace(id, record);
  return put_namespace(id, record);
}

/// Flushed with the blocks around it, and after them: a crash may leave one namespace too many, never one too few.
error_code RocksDisk::remove_namespaces(std::span<const NamespaceId> ids) {
  if (const error_code error = ready()) return error;
  rocksdb::WriteBatch batch;
  for (const NamespaceId& id : ids) {
    spaces_.erase(id);
    const std::string key = namespace_key(id);
    std::string old;
    if (rocks_.db->Get(rocksdb::ReadOptions(), rocks_.state.get(), key, &old).IsNotFound()) continue;
    if (const Status status = batch.Delete(rocks_.state.get(), key); !status.ok()) return report(status, "batch");
  }
  const error_code error = report(rocks_.write(batch, config_.write_patience), "remove_namespaces");
  if (error || !data_keys_) return error;
  std::vector<std::pair<NamespaceId, DiskKey>> gone;
  for (const NamespaceId& id : ids) gone.emplace_back(id, DiskKey{next_key_});
  // Keys of dead blocks. After a failure they remain until destroy_before().
  static_cast<void>(data_keys_->destroy(gone));
  return {};
}

error_code RocksDisk::put_namespace(const NamespaceId& id, const std::string& record) {
  const std::string key = namespace_key(id);
  std::string old;
  const bool has_old = rocks_.db->Get(rocksdb::ReadOptions(), rocks_.state.get(), key, &old).ok();
  // Nearly every start adds namespaces already recorded: skip the write, unless a plain-text record must be sealed.
  const bool is_there = data_keys_ ? old != record && data_keys_->open_record(id, old) == record : old == record;
  if (has_old && is_there) return {};
  rocksdb::WriteBatch batch;
  Status status = batch.Put(rocks_.state.get(), key, data_keys_ ? data_keys_->seal_record(id, record) : record);
  if (status.ok()) status = rocks_.write(batch, config_.write_patience);
  return report(status, "add_namespace");
}

/// Records can outlive a block file that a salvage dropped. Such a record would be a hit that every read misses.
bool RocksDisk::is_in_a_file(DiskKey key) const {
  if (epoch_of(key) == epoch_) return true;  // written since this start: in a memtable or in a newer file
  const auto after = std::ranges::upper_bound(files_at_open_, key, {}, &BlockFile::first);
  return after != files_at_open_.begin() && std::prev(after)->last >= key;
}

error_code RocksDisk::load(const std::function<void(const NamespaceId& id, const std::string& record)>& space,
                           const std::function<bool(const DiskRecord& block)>& block) const {
  const std::shared_lock lock(reopening_);
  if (!rocks_.db) return make_error_code(Errc::kDiskFailed);
  ScanResult scan = scan_backwards(*rocks_.db, rocks_.state.get(), [&](std::string_view key, std::string_view value) {
    NamespaceId id;
    if (key.size() != 1 + id.bytes.size() || key[0] != kNamespaceTag) return true;
    std::memcpy(id.bytes.data(), key.data() + 1, id.bytes.size());
    // A record that fails to open is skipped, like an unreadable one.
    const auto record = data_keys_ ? data_keys_->open_record(id, value) : std::optional(std::string(value));
    if (record) space(id, *record);
    return true;
  });
  if (!scan.status.ok()) return to_error(scan.status);
  const auto known = data_keys_ ? data_keys_->known() : std::set<std::pair<NamespaceId, std::uint32_t>>();
  scan = scan_backwards(*rocks_.db, rocks_.records.get(), [&](std::string_view key, std::string_view value) {
    // An unusable record is skipped: one block less is a miss.
    const auto decoded = decode_key(key);
    if (!decoded || !is_in_a_file(*decoded)) return true;
    const auto record = decode_record(*decoded, value);
    if (!record) return true;
    // The block's key was destroyed, and a crash has restored its record.
    if (is_sealed(*decoded) && !known.contains({record->space, epoch_of(*decoded)})) return true;
    return block(*record);
  });
  if (scan.damaged_places > 0)
    spdlog::warn("disk: {}: {} damaged places among the records were stepped over: {}", config_.path.string(),
                 scan.damaged_places, scan.damage.ToString());
  return to_error(scan.status);
}

/// Keys in the file that are to stay. Its keys are a range of their own, since files are disjoint.
Result<std::vector<DiskKey>> RocksDisk::wanted_keys(const BlockFile& file, std::span<const DiskDrop> dropped) const {
  std::vector<DiskKey> wanted;
  const DiskKeyText first = encode_key(file.first);
  const std::unique_ptr<rocksdb::Iterator> at(rocks_.db->NewIterator(rocksdb::ReadOptions(), rocks_.records.get()));
  for (at->Seek(slice(first)); at->Valid(); at->Next()) {
    const auto key = decode_key(at->key().ToStringView());
    if (!key) continue;
    if (*key > file.last) break;
    const auto record = decode_record(*key, at->value().ToStringView());
    if (!record) continue;  // load() skips it as well
    const bool is_dropped = std::ranges::any_of(
        dropped, [&](const DiskDrop& drop) { return drop.space == record->space && *key < drop.before; });
    if (!is_dropped) wanted.push_back(*key);
  }
  if (!at->status().ok()) return to_error(at->status());
  return wanted;
}

/// All blocks in the file, including dead ones. From the file itself: RocksDB's in-memory count is 0 after a start.
Result<std::uint64_t> RocksDisk::count_blocks(const BlockFile& file) const {
  const DiskKeyText first = encode_key(file.first), last = encode_key(file.last);
  const rocksdb::Range range(slice(first), slice(last));
  rocksdb::TablePropertiesCollection properties;
  const Status status = rocks_.db->GetPropertiesOfTablesInRange(rocks_.blocks.get(), &range, 1, &properties);
  if (!status.ok()) return to_error(status);
  std::uint64_t count = 0;
  for (const auto& [name, table] : properties) count += table->num_entries;
  return count;
}

error_code RocksDisk::purge_file(BlockFile file, std::span<const DiskDrop> dropped, DiskPurge* purge) {
  constexpr int kTries = 100;
  constexpr std::chrono::milliseconds kPause{50};
  Status status;
  for (int i = 0; i < kTries; ++i) {
    if (i > 0) std::this_thread::sleep_for(kPause);
    const std::shared_lock lock(reopening_);
    if (!rocks_.db) return make_error_code(Errc::kDiskFailed);
    const auto files = kv::block_files(rocks_);
    const auto now = std::ranges::find(files, file.number, &BlockFile::number);
    if (now == files.end()) return {};  // given back meanwhile
    // Wait until the file has moved to level 1: a rewrite during the move would include its neighbours.
    if (now->level == 0 && i + 1 < kTries) continue;
    const auto wanted = wanted_keys(*now, dropped);
    if (!wanted) return wanted.error();
    const auto count = count_blocks(*now);
    if (!count) return count.error();
    if (wanted->size() >= *count) return {};
    config_.purge_filter->use(*wanted, now->first, now->last);
    rocksdb::CompactionOptions options;
    options.compression = rocksdb::kNoCompression;
    status = rocks_.db->CompactFiles(options, rocks_.blocks.get(), {fmt::format("/{:06}.sst", file.number)},
                                     /*output_level=*/1);
    config_.purge_filter->rest();
    if (!status.ok() && !status.IsCorruption() && !status.IsNoSpace() && !status.IsIOError()) continue;  // in use
    if (!status.ok()) return to_error(status);
    ++purge->rewritten_count;
    std::uint64_t left = 0;
    for (const BlockFile& each : kv::block_files(rocks_))
      left += each.first >= now->first && each.last <= now->last ? each.bytes : 0;
    purge->given_back_bytes += now->bytes - std::min(now->bytes, left);
    return {};
  }
  spdlog::warn("disk: {}: a file is not rewritten: {}", config_.path.string(), status.ToString());
  return make_error_code(Errc::kBusy);
}

/// Runs beside the writer: RocksDB's calls are safe for that, and an early flush is harmless.
Result<DiskPurge> RocksDisk::purge(std::span<const DiskDrop> dropped,
                                   const std::function<bool(const DiskPurge&)>& goes_on) {
  DiskPurge purge;
  std::vector<BlockFile> files;
  const auto compact = [this](rocksdb::ColumnFamilyHandle* family) {
    rocksdb::CompactRangeOptions options;
    options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
    return rocks_.db->CompactRange(options, family, nullptr, nullptr);
  };
  {
    const std::shared_lock lock(reopening_);
    if (!rocks_.db) return make_error_code(Errc::kDiskFailed);
    if (const Status status = rocks_.db->Flush(rocksdb::FlushOptions(), rocks_.all()); !status.ok())
      return to_error(status);
    files = kv::block_files(rocks_);
  }
  purge.file_count = files.size();
  // As when drops are kept: a drop without a key covers everything that earlier starts wrote.
  std::vector<DiskDrop> bounded(dropped.begin(), dropped.end());
  for (DiskDrop& drop : bounded) drop.before = std::max(drop.before, DiskKey{std::uint64_t{epoch_} << 40});
  if (data_keys_) {  // first: makes dropped blocks unreadable at once, though rewriting files may take hours
    std::vector<std::pair<NamespaceId, DiskKey>> gone;
    for (const DiskDrop& drop : bounded) {
      if (drop.hash == BlockHash{}) gone.emplace_back(drop.space, drop.before);
    }
    if (const error_code error = data_keys_->destroy(gone)) return error;
  }
  for (const BlockFile& file : files) {
    if (!goes_on(purge)) return make_error_code(Errc::kCancelled);
    if (const error_code error = purge_file(file, bounded, &purge)) return error;
    ++purge.looked_count;
  }
  // Erased names stay in the small families' files until these are rewritten.
  const std::shared_lock lock(reopening_);
  if (!rocks_.db) return make_error_code(Errc::kDiskFailed);
  Status status = rocks_.db->Flush(rocksdb::FlushOptions(), rocks_.all());
  if (status.ok()) status = compact(rocks_.records.get());
  if (status.ok()) status = compact(rocks_.state.get());
  if (!status.ok()) return to_error(status);
  return purge;
}

/// Flushes all families at once (1). Erasures up to here survive a crash, so a reopening need not repeat them.
error_code RocksDisk::flush() {
  if (const error_code error = ready()) return error;
  const Status status = rocks_.db->Flush(rocksdb::FlushOptions(), rocks_.all());
  if (status.ok()) unflushed_.clear();
  return report(status, "flush");
}

DiskStats RocksDisk::stats() const {
  const std::shared_lock lock(reopening_);
  DiskStats stats;
  stats.written_bytes = written_bytes_;
  stats.read_bytes = read_bytes_;
  struct statvfs room {};
  if (::statvfs(config_.path.c_str(), &room) == 0) stats.free_bytes = std::uint64_t{room.f_bavail} * room.f_frsize;
  if (!rocks_.db) return stats;
  for (rocksdb::ColumnFamilyHandle* family : rocks_.all()) {
    std::uint64_t bytes = 0;
    if (rocks_.db->GetIntProperty(family, rocksdb::DB::Properties::kTotalSstFilesSize, &bytes))
      stats.file_bytes += bytes;
  }
  stats.device_written_bytes = earlier_device_bytes_ + device_bytes(*rocks_.statistics);
  return stats;
}

std::vector<BlockFile> RocksDisk::block_files() const {
  return rocks_.db ? kv::block_files(rocks_) : std::vector<BlockFile>();
}

error_code RocksDisk::drop_files(DiskKey first, DiskKey last) {
  KV_ASSERT(first <= last);
  if (!rocks_.db) return make_error_code(Errc::kDiskFailed);
  const DiskKeyText from = encode_key(first), to = encode_key(last);
  const Slice begin = slice(from), end = slice(to);
  // Files can be dropped from level 1 on only, so the newest files are moved there first.
  rocksdb::CompactRangeOptions move;
  move.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kSkip;
  if (const Status moved = rocks_.db->CompactRange(move, rocks_.blocks.get(), &begin, &end); !moved.ok())
    return report(moved, "move");
  return report(rocksdb::DeleteFilesInRange(rocks_.db.get(), rocks_.blocks.get(), &begin, &end), "drop");
}

/// Converts a status to an error, and logs the first of a series in RocksDB's own words: a full disk fails often.
error_code RocksDisk::report(const Status& status, const char* doing) {
  if (status.ok()) {
    if (has_failed_) spdlog::info("disk: {}: the disk can be written again", config_.path.string());
    has_failed_ = false;
    return {};
  }
  if (!has_failed_) spdlog::error("disk: {}: {} failed: {}", config_.path.string(), doing, status.ToString());
  has_failed_ = true;
  return to_error(status);
}

}  // namespace kv
