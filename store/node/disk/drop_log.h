// store/node/disk/drop_log.h: the file DROPS of a spill directory: what was dropped and may still lie on disk
// somewhere.
//
//     kvstore-drops 1\n                                                        16 bytes
//     | namespace id 16 | block hash 32 | before 8 | checksum 8 |   one drop; a hash of zeros: the whole namespace
//
// A file of its own and not an entry of the database, since an answer waits for it: one small append and one sync,
// whatever else the database is writing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "store/disk.h"

namespace kv {

inline constexpr std::size_t kDropLogCountMax = 262'144;  ///< 16 MiB.

/// Drops enter with add(), durable when it returns, and leave with forget() once nothing on disk is concerned.
///   1. After add() without an error the drops are in the file after any kill or power cut.
///   2. A file whose end is torn loses only what was never acknowledged; a damaged drop inside is skipped and counted.
///   3. At most kDropLogCountMax are kept: the oldest go first, with a line in the log.
/// Thread safety: all from any thread; one that waits for the disk makes the others wait.
class DropLog {
 public:
  /// Reads the file, if it is there. Changes nothing.
  explicit DropLog(const std::filesystem::path& directory);
  ~DropLog();
  DropLog(const DropLog&) = delete;
  DropLog& operator=(const DropLog&) = delete;

  std::vector<DiskDrop> drops() const;
  error_code add(std::span<const DiskDrop> drops);
  error_code forget(DiskKey before);  ///< Drops with a bound up to `before`. Durable.
  std::size_t damaged_count() const { return damaged_count_; }

 private:
  error_code rewrite();
  error_code append(std::span<const DiskDrop> drops);

  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  std::vector<DiskDrop> drops_;
  std::size_t damaged_count_ = 0;
  int descriptor_ = -1;
  bool is_whole_ = false;  ///< The file holds exactly drops_; else it is written anew before anything is added.
};

}  // namespace kv
