// store/node/disk/rocks/rocks_options.h: RocksDB set up to write a block once, never move it, and read it with one
// pread.
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
class OperatorKeys;

enum class DirectIo {
  kAuto,  ///< On where the file system allows it. Elsewhere the page cache is used, with a line in the log.
  kOn,    ///< Opening fails where the file system refuses it.
  kOff,
};

struct RocksDiskConfig {
  std::filesystem::path path;
  DirectIo direct_io = DirectIo::kAuto;
  std::size_t memtable_bytes = 64 << 20;  ///< Also the size of a block file, the unit that drop_before() gives back.
  /// One is filled while the others are flushed. All of this memory is used, and lost by kill -9.
  int memtable_count = 3;
  /// How long a write waits for room in the memtables before it fails. Longer than the slowest flush of all of them.
  std::chrono::milliseconds write_patience = std::chrono::seconds(30);
  /// 0: the next. Otherwise this one: the directory joins others that are in use. A directory of a later epoch is
  /// refused, and repairs are off, because their losses are the operator's decision.
  std::uint32_t epoch = 0;
  bool read_only = false;  ///< For tools: repairs and writes are off, epoch() is that of the last start.
  std::shared_ptr<OperatorKeys> keys = nullptr;         ///< Seal blocks; nullptr: plain text.
  std::shared_ptr<PurgeFilter> purge_filter = nullptr;  ///< RocksDisk's own.
};

/// Column families. `default` is RocksDB's own and stays empty, since it cannot be dropped and recreated.
inline constexpr const char* kStateFamily = "state";      // "epoch", "n" + namespace id
inline constexpr const char* kRecordsFamily = "records";  // key -> DiskRecord
inline constexpr const char* kBlocksFamily = "blocks";    // key -> checksums and bytes

rocksdb::DBOptions database_options(bool direct_io);
/// default, state, records, blocks: in this order.
std::vector<rocksdb::ColumnFamilyDescriptor> column_families(const RocksDiskConfig& config);

/// The caller's error for a status: ENOSPC, kCorruptBlock (damaged bytes or a missing file), otherwise kDiskFailed.
error_code to_error(const rocksdb::Status& status);

}  // namespace kv
