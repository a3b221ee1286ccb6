// store/node/disk/rocks/rocks_disk.h: one directory as a disk. Blocks enter with their records, lie in RocksDB under
// growing keys, and come back unverified: the reader compares them with their name-bound checksums.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "store/disk/disk.h"
#include "store/node/disk/files/data_keys.h"
#include "store/node/disk/files/disk_directory.h"
#include "store/node/disk/files/drop_log.h"
#include "store/node/disk/rocks/rocks_open.h"

namespace kv {

/// kv::Disk on one directory. How it keeps the interface's promises:
///   1. A block and its record are one write without WAL, and all column families are flushed together (atomic_flush):
///      after kill -9 both are there or neither is, and the surviving writes are a prefix of all writes.
///   2. load() names a record only if a live file of the block family covers its key. Files are never merged: they are
///      moved, dropped whole, or rewritten one by one by a purge, without blocks that lack a record: covered means
///      present.
///   3. After a failed write, the next write call reopens the database if RocksDB cannot resume by itself. Memtables
///      are then lost together with their records, as in 1.
///   4. The WAL is unused. Erasures and namespaces are flushed with the blocks around them, or by flush(); the epoch is
///      durable before open() returns. (With a WAL, RocksDB 7.8 makes a new one whenever memtables are full. If that
///      fails, it loses count of its column families and ends the process when it is closed.)
///   5. With keys (config), the calling thread seals new blocks and namespace records (data_keys.h); earlier ones are
///      read as they were written.
/// Thread safety: as kv::Disk says. Cost: a write copies each block twice (into the batch, into the memtable) and waits
/// while memtable_count memtables are full, up to write_patience; a read is one pread of the block and two copies.
class RocksDisk final : public Disk {
 public:
  /// Succeeds on every directory that is ours, or can become ours, despite any damage; `opening` (may be null) receives
  /// the losses. `accepted` (may be empty) is called once the directory is ours, before any slow step. Errors: those of
  /// DiskDirectory::open, and an unusable disk; the text names the problem and the remedy.
  static Result<std::unique_ptr<RocksDisk>, Failure> open(const RocksDiskConfig& config, DiskOpening* opening = nullptr,
                                                          const std::function<void()>& accepted = {});
  ~RocksDisk() override;  ///< Without an earlier flush(), memtables are lost, as after kill -9.

  /// This directory's place among several. nullopt: it was always alone, and can take any place.
  std::optional<DiskPlace> recorded_place() const { return place_; }
  bool is_new() const { return files_at_open_.empty(); }  ///< Or without blocks, which is equivalent for its place.
  /// Joins several: from now on its keys have this place and epoch, durably. Requires: epoch >= its own; no write yet.
  error_code join(DiskPlace place, std::uint32_t epoch);

  std::vector<DiskPlace> places() const override { return {place_.value_or(0)}; }
  error_code write(std::span<const DiskWrite> blocks) override;
  Result<DiskBlock> read(DiskKey key) const override;
  error_code erase(std::span<const DiskKey> keys) override;
  error_code drop_before(DiskKey end) override;
  error_code add_drops(std::span<const DiskDrop> drops) override;
  std::vector<DiskDrop> drops() const override { return drops_.drops(); }
  error_code forget_drops(DiskKey before) override { return drops_.forget(before); }
  error_code add_namespace(const NamespaceId& id, const std::string& record) override;
  error_code remove_namespaces(std::span<const NamespaceId> ids) override;
  error_code load(const std::function<void(const NamespaceId& id, const std::string& record)>& space,
                  const std::function<bool(const DiskRecord& block)>& block) const override;
  std::uint32_t epoch() const override { return epoch_; }
  Result<DiskPurge> purge(std::span<const DiskDrop> dropped,
                          const std::function<bool(const DiskPurge&)>& goes_on) override;
  error_code clear() override;
  error_code flush() override;
  DiskStats stats() const override;

  /// The files that hold blocks, smallest keys first; without blocks in memtables. For tools and tests.
  std::vector<BlockFile> block_files() const;
  /// Gives back whole files in [first, last]. Requires that all blocks in that range are unnamed.
  error_code drop_files(DiskKey first, DiskKey last);

 private:
  RocksDisk(RocksDiskConfig config, DiskDirectory directory, RocksHandles rocks)
      : config_(std::move(config)), directory_(std::move(directory)), drops_(config_.path), rocks_(std::move(rocks)) {}
  error_code start_epoch(bool read_only);
  error_code begin_sealing();
  bool is_sealed(DiskKey key) const { return data_keys_ != nullptr && data_keys_->is_sealed(key); }
  error_code begin(std::uint32_t epoch);
  error_code ready();
  error_code heal();
  error_code put_namespace(const NamespaceId& id, const std::string& record);
  error_code erase_records(std::span<const DiskKey> keys);
  bool is_in_a_file(DiskKey key) const;
  Result<std::vector<DiskKey>> wanted_keys(const BlockFile& file, std::span<const DiskDrop> dropped) const;
  Result<std::uint64_t> count_blocks(const BlockFile& file) const;
  error_code purge_file(BlockFile file, std::span<const DiskDrop> dropped, DiskPurge* purge);
  error_code report(const rocksdb::Status& status, const char* doing);

  const RocksDiskConfig config_;
  DiskDirectory directory_;  // first: its lock is released last
  DropLog drops_;
  std::shared_ptr<DataKeys> data_keys_;  // null: no sealing
  mutable std::shared_mutex reopening_;  // shared by calls that may run beside heal(): read(), load() and stats()
  RocksHandles rocks_;                   // closed (db is null) if heal() failed to reopen it
  std::uint32_t epoch_ = 0;
  std::optional<DiskPlace> place_;
  std::vector<BlockFile> files_at_open_;       // sorted, disjoint
  std::atomic<std::uint64_t> first_key_ = 0;   // smaller keys were dropped
  std::uint64_t next_key_ = 0;                 // the smallest key that write() accepts
  bool has_failed_ = false;                    // RocksDB refuses writes until heal()
  std::map<NamespaceId, std::string> spaces_;  // added since the start, and not removed
  std::vector<DiskKey> unflushed_;             // erased, and not yet flushed
  rocksdb::WriteBatch batch_;                  // reused, to keep its memory
  std::string sealed_;                         // likewise
  std::atomic<std::uint64_t> written_bytes_ = 0;
  std::uint64_t earlier_device_bytes_ = 0;  // of databases closed by heal()
  mutable std::atomic<std::uint64_t> read_bytes_ = 0;
};

}  // namespace kv
