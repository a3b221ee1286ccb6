// store/node/disk/spill_directory.h: the directory given by --spill-path, before RocksDB sees it: whether it is ours,
// whether somebody else uses it, whether it can be written.
//
//     FORMAT             two lines of text: which format this is
//     LOCK               held (flock) by the process that uses the directory; its number is in it
//     db/                RocksDB
//     damaged-<time>/    at most one: what the last repair took out of use; may be deleted at any time
//
// Blocks are other people's prompts: the directory is made with mode 0700, files with 0600, and one that another user
// owns, may write or can redirect is refused. Looked at is the directory that was opened, never a path a second time.
// Its parents are the operator's affair: whoever may write there can take the directory away, as in every file system.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/result.h"

namespace kv {

/// Owns the lock. Thread safety: none.
class SpillDirectory {
 public:
  /// Takes the directory, making it if need be; `read_only` changes nothing in it, and requires that it is there.
  /// Errors, each with `*why` for the operator and the directory left as it was: kUnsupported (newer format), kMismatch
  /// (not a spill directory), kBusy (another process has it), EPERM or ELOOP (another user's, open to other users'
  /// writes, or a symbolic link; owner and mode do not matter for `read_only`), kDiskFailed or what the system said
  /// (cannot be used).
  static Result<SpillDirectory> open(const std::filesystem::path& path, bool read_only, std::string* why);
  SpillDirectory(SpillDirectory&& other) noexcept;
  SpillDirectory& operator=(SpillDirectory&&) = delete;
  ~SpillDirectory();

  std::filesystem::path database() const { return path_ / "db"; }
  std::uint32_t format() const { return format_; }
  error_code upgrade();  ///< From now on the directory has format kSpillFormat. Durable.
  /// Whether files here can be read and written past the page cache. Tries it with a file of its own.
  bool allows_direct_io() const;
  /// One 4 KiB write that reaches the device: a full, read-only or failing disk is found out here and not inside
  /// RocksDB, where it would look like damage.
  error_code try_writing() const;
  /// Moves `what` (below the directory) to damaged-<time>/, in place of what was there before. Errors: the system's.
  error_code set_aside(const std::filesystem::path& what) const;

 private:
  SpillDirectory(std::filesystem::path path, int directory) : path_(std::move(path)), directory_(directory) {}
  error_code take_lock(bool read_only, std::string* why);

  std::filesystem::path path_;
  std::uint32_t format_ = 0;
  int directory_ = -1;
  int lock_ = -1;
};

/// Names of what is in a directory, as many as can be read; `failed` (may be null): why not all.
std::vector<std::string> names_in(const std::filesystem::path& path, std::error_code* failed = nullptr);
/// Replaces a small file by another text, durably: it is the old or the new one after a power cut.
error_code replace_file(const std::filesystem::path& file, const std::string& text);
std::string read_small_file(const std::filesystem::path& file);  ///< At most 4 KiB of it; empty if it cannot be read.

}  // namespace kv
