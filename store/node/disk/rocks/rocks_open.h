// store/node/disk/rocks/rocks_open.h: from a directory in any state to an open database, with the least loss.
//
// First, tables with a damaged end are taken out (table_footer.h), before RocksDB can see them. Then these steps
// follow, each logged, until RocksDB opens and its small families can be read:
//   as it is      the normal case, also after kill -9; not when a table was taken out
//   salvaged      CURRENT pointed at the newest MANIFEST; files that are missing or lack a readable index dropped, with
//                 their blocks; damaged stretches of records and state dropped
//   repaired      RocksDB's RepairDB reads every file and writes a new MANIFEST; unreadable files go to damaged-*/
//   empty         everything goes to damaged-*/
// An unusable disk (full, read-only, not readable by us) is an error, never a reason to give up data.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "store/disk/disk.h"
#include "store/node/disk/files/disk_directory.h"
#include "store/node/disk/rocks/rocks_options.h"

namespace kv {

enum class DiskRecovery { kNone, kSalvaged, kRepaired, kStartedEmpty };

struct DiskOpening {
  DiskRecovery recovery = DiskRecovery::kNone;
  std::string text;  ///< For the operator: the damage and the losses. Empty: undamaged.
};

/// An open database. The handles are destroyed before it.
struct RocksHandles {
  std::unique_ptr<rocksdb::DB> db;
  std::unique_ptr<rocksdb::ColumnFamilyHandle> fallback;  // RocksDB's `default`, empty
  std::unique_ptr<rocksdb::ColumnFamilyHandle> state, records, blocks;
  std::shared_ptr<rocksdb::Statistics> statistics;

  void close();  ///< Call before assigning another: assignment would close the database under its handles.
  /// Writes all of the batch without WAL, or fails without writing. While memtables are full it waits here, trying
  /// again each millisecond, up to `patience`. Inside the library the wait is unbounded: a hanging device holds a write
  /// there in every release, and RocksDB 9 waits there until a full disk has room.
  rocksdb::Status write(rocksdb::WriteBatch& batch, std::chrono::milliseconds patience) const;
  std::vector<rocksdb::ColumnFamilyHandle*> all() const {
    return {fallback.get(), state.get(), records.get(), blocks.get()};
  }
};

/// A file of blocks. It holds all keys from first to last ever written, except those that a purge removed.
struct BlockFile {
  std::uint64_t number = 0;
  DiskKey first{}, last{};
  std::uint64_t bytes = 0;
  int level = 0;
};
std::vector<BlockFile> block_files(const RocksHandles& rocks);  ///< Smallest keys first.

enum class Remedies { kAllowed, kNone };
/// `Remedies::kNone`: opens it as it is or fails. For a database open a moment ago: its problem is the disk, not data.
Result<RocksHandles, Failure> open_rocks(const DiskDirectory& directory, const RocksDiskConfig& config,
                                         DiskOpening* opening, Remedies remedies = Remedies::kAllowed);

}  // namespace kv
