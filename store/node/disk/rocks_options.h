// store/node/disk/rocks_options.h: how RocksDB is set up so that a block is written once, never moved, and read with
// one pread.
#pragma once

#include <rocksdb/db.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/result.h"

namespace kv {

class PurgeFilter;
class SpillKeys;

enum class DirectIo {
  kAuto,  ///< On where the file system allows it. Elsewhere the page cache is used, and the log says so.
  kOn,    ///< Opening fails where the file system refuses it.
  kOff,
};

struct RocksDiskConfig {
  std::filesystem::path path;
  DirectIo direct_io = DirectIo::kAuto;
  std::size_t memtable_bytes = 64 << 20;  ///< Also the size of a file of blocks: what drop_before() gives back at once.
  /// One is filled while the others are written out. So much memory is used, and so much is lost by kill -9.
  int memtable_count = 3;
  /// How long a write waits for room in the memtables before it fails. Longer than the slowest flush of all of them.
  std::chrono::milliseconds write_patience = std::chrono::seconds(30);
  /// 0: the next. Else this: the directory joins others that are in use. One of a later epoch is refused, and nothing
  /// is repaired: what a repair would give up is the operator's to decide.
  std::uint32_t epoch = 0;
  bool read_only = false;  ///< For tools: nothing is repaired or written, epoch() is that of the last start.
  std::shared_ptr<SpillKeys> keys = nullptr;            ///< Blocks are sealed; nullptr: they are not.
  std::shared_ptr<PurgeFilter> purge_filter = nullptr;  ///< RocksDisk's own.
};

/// Column families. `default` is RocksDB's own and stays empty, since it cannot be dropped and made again.
inline constexpr const char* kStateFamily = "state";      // "epoch", "n" + namespace id
inline constexpr const char* kRecordsFamily = "records";  // key -> DiskRecord
inline constexpr const char* kBlocksFamily = "blocks";    // key -> checksums and bytes

rocksdb::DBOptions database_options(bool direct_io);
/// default, state, records, blocks: in this order.
std::vector<rocksdb::ColumnFamilyDescriptor> column_families(const RocksDiskConfig& config);

/// What a failed call means to the caller: ENOSPC, kCorruptBlock (damaged bytes, or a file that is missing), or for all
/// else kDiskFailed.
error_code to_error(const rocksdb::Status& status);

}  // namespace kv
