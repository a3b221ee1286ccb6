// store/node/disk/files/drop_log.h: the file DROPS of a disk directory: dropped names whose blocks may still lie on
// disk.
//
//     kvstore-drops 1\n                                                        16 bytes
//     | namespace id 16 | block hash 32 | before 8 | checksum 8 |   one drop; a hash of zeros: the whole namespace
//
// A file, not a database entry, because an answer waits for it: one small append and one sync, beside other writes.
#pragma once

#include <filesystem>
#include <mutex>
#include <span>
#include <vector>

#include "store/disk/disk.h"
#include "store/node/machine/file.h"

namespace kv {

inline constexpr std::size_t kDropLogCountMax = 262'144;  ///< 16 MiB.

/// Drops enter with add(), which makes them durable, and leave with forget(), once their blocks are off the disk.
///   1. After add() without an error, the drops are in the file, and survive a kill or a power cut.
///   2. A torn end loses only drops that were never acknowledged; a damaged drop inside is skipped and counted.
///   3. At most kDropLogCountMax drops are kept. Beyond that, the drops of the namespace with the most become one drop
///      of the whole namespace: a restart then loses more of it than was dropped, while other namespaces keep their
///      drops. Only if hardly any namespace has more than one, the oldest are forgotten, with a line in the log.
/// Thread safety: all from any thread; a thread that waits for the disk blocks the others.
class DropLog {
 public:
  /// Reads the file, if there is one. Changes nothing.
  explicit DropLog(const std::filesystem::path& directory);

  std::vector<DiskDrop> drops() const;
  error_code add(std::span<const DiskDrop> drops);
  error_code forget(DiskKey before);  ///< Drops whose bound is at most `before`. Durable.

 private:
  void shorten();
  error_code rewrite();
  error_code append(std::span<const DiskDrop> drops);

  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  std::vector<DiskDrop> drops_;
  File append_to_;         ///< file_, once it was rewritten.
  bool is_whole_ = false;  ///< The file holds exactly drops_. Otherwise it is rewritten before a drop is added.
};

}  // namespace kv
