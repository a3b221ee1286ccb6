// store/node/disk/rocks_open.h: from a directory in any state to an open database, giving up no more than must be.
//
// Before anything else, tables whose end is damaged are taken out (table_footer.h): RocksDB must not see them. Then,
// in this order, each step logged, until RocksDB opens and its small families can be read:
//   as it is      the rule, also after kill -9; not when a table was taken out
//   salvaged      CURRENT pointed at the newest MANIFEST; files that are gone or have no readable index dropped, with
//                 their blocks; damaged stretches of records and state dropped
//   repaired      RocksDB's RepairDB reads every file and writes a new MANIFEST; what it cannot read goes to damaged-*/
//   empty         everything goes to damaged-*/
// A disk that cannot be used (full, read-only, not ours to read) is an error, never a reason to give something up.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "store/disk.h"
#include "store/node/disk/rocks_options.h"
#include "store/node/disk/spill_directory.h"

namespace kv {

enum class DiskRecovery { kNone, kSalvaged, kRepaired, kStartedEmpty };

struct DiskOpening {
  DiskRecovery recovery = DiskRecovery::kNone;
  std::string text;  ///< For the operator: what was damaged and given up. Empty: nothing.
};

/// An open database. The handles are destroyed before it.
struct RocksHandles {
  std::unique_ptr<rocksdb::DB> db;
  std::unique_ptr<rocksdb::ColumnFamilyHandle> fallback;  // RocksDB's `default`, empty
  std::unique_ptr<rocksdb::ColumnFamilyHandle> state, records, blocks;
  std::shared_ptr<rocksdb::Statistics> statistics;

  void close();  ///< Before another is assigned: assignment would close the database under its handles.
  /// A write without WAL, all of it or nothing. While memtables are full it waits here, looking again each millisecond,
  /// up to `patience`. Inside the library the wait has no end: a device that hangs holds a write there in every
  /// release, and RocksDB 9 waits there until a full disk has room.
  rocksdb::Status write(rocksdb::WriteBatch& batch, std::chrono::milliseconds patience) const;
  std::vector<rocksdb::ColumnFamilyHandle*> all() const {
    return {fallback.get(), state.get(), records.get(), blocks.get()};
  }
};

/// A file of blocks. It holds all keys from first to last that were ever written, but those that a purge took out.
struct BlockFile {
  std::uint64_t number = 0;
  DiskKey first{}, last{};
  std::uint64_t bytes = 0;
  int level = 0;
};
std::vector<BlockFile> block_files(const RocksHandles& rocks);  ///< Smallest keys first.

enum class Remedies { kAllowed, kNone };
/// `Remedies::kNone`: as it is or not at all. For a database that was open a moment ago: what is wrong with it is the
/// disk, and nothing must be given up for that.
Result<RocksHandles, Failure> open_rocks(const SpillDirectory& directory, const RocksDiskConfig& config,
                                         DiskOpening* opening, Remedies remedies = Remedies::kAllowed);

}  // namespace kv
