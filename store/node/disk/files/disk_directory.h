// store/node/disk/files/disk_directory.h: the directory of --disk-path, checked before RocksDB: ours, unused,
// writable.
//
//     FORMAT             two lines of text with the number of the format
//     LOCK               held (flock) by the process that uses the directory; contains its number
//     DROPS              dropped names (drop_log.h)
//     LEARNED            learned statistics on when blocks are used again (learned_keeper.h); only in the first
//     CONTEXTS           named contexts (kept_file.h, store/contexts/context_file.h); only in the first
//     KEYS               the keys of blocks, if they are encrypted (data_keys.h)
//     db/                RocksDB
//     damaged-<time>/    at most one: files that the last repair took out of use; may be deleted at any time
//
// Blocks are other people's prompts. The directory is made with mode 0700 and files with 0600. A directory that another
// user owns, may write or can redirect is refused. The checks look at the opened directory, and never open its path a
// second time. Its parents are the operator's affair: a user who may write there can remove the directory.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/result.h"
#include "store/node/disk/files/disk_format.h"
#include "store/node/machine/file.h"

namespace kv {

/// Owns the lock. Thread safety: none.
class DiskDirectory {
 public:
  /// Takes the directory, and creates it if missing. `read_only` changes nothing, and requires that it exists. A
  /// directory with encrypted blocks is refused (kUnsupported) unless `has_keys`. Errors, each with a text for the
  /// operator and the directory left as it was:
  ///   kUnsupported     a newer format
  ///   kMismatch        not a disk directory
  ///   kBusy            in use by another process
  ///   EPERM, ELOOP     another user's, or writable by others, or a symbolic link (`read_only` ignores owner and mode)
  ///   kDiskFailed, or the system's error: unusable
  static Result<DiskDirectory, Failure> open(const std::filesystem::path& path, bool read_only, bool has_keys = false);

  std::filesystem::path database() const { return path_ / "db"; }
  std::uint32_t format() const { return format_; }
  /// Gives the directory the format kDiskFormatSealed. Durable.
  error_code mark_sealed();
  /// Whether files here can be read and written past the page cache. Tries it with a file of its own.
  bool allows_direct_io() const;
  /// One 4 KiB write to the device: reveals a full, read-only or failing disk, which RocksDB would report as damage.
  error_code try_writing() const;
  /// Moves `what` (below the directory) to damaged-<time>/, replacing an earlier one. Errors: the system's.
  error_code set_aside(const std::filesystem::path& what) const;

 private:
  DiskDirectory(std::filesystem::path path, File directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}
  Result<void, Failure> take_lock(bool read_only);

  std::filesystem::path path_;
  std::uint32_t format_ = 0;
  File directory_;
  File lock_;  ///< Closed first: the lock goes before the directory that it protects.
};

/// The readable names in a directory; `failed` (may be null) gets the reason if some are missing.
std::vector<std::string> names_in(const std::filesystem::path& path, std::error_code* failed = nullptr);
/// Replaces a small file durably: after a power cut it has its old text or the new one.
error_code replace_file(const std::filesystem::path& file, const std::string& text);
/// At most `bytes_max` bytes of the file; empty if unreadable.
std::string read_small_file(const std::filesystem::path& file, std::size_t bytes_max = 4096);

}  // namespace kv
