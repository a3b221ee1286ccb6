#include "client/archive/archive_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <random>

#include "index/block_hash.h"

namespace kv {
namespace {

Failure file_failure(const std::string& path, const std::string& what = {}) {
  const error_code error = last_errno();
  return {error, path + ": " + (what.empty() ? "" : what + ": ") + error.message()};
}

/// Checks that the name is free, or that of a replaceable file.
Result<void, Failure> check_place(const std::string& path, bool replaces) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    return file_failure(path);
  }
  if (!S_ISREG(status.st_mode)) return Failure(Errc::kBadRequest, path + ": it is there, and is no file");
  if (!replaces) return Failure(error_code(EEXIST, boost::system::generic_category()), path + ": it is there already");
  return {};
}

}  // namespace

Result<void, Failure> NewArchiveFile::create(const std::string& path, bool replaces) {
  if (const auto place = check_place(path, replaces); !place) return place.error();
  path_ = path;
  replaces_ = replaces;
  const std::filesystem::path whole(path);
  if (!whole.has_filename()) return Failure(Errc::kBadRequest, "'" + path + "' names no file");
  folder_ = whole.has_parent_path() ? whole.parent_path().string() : ".";
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    const std::array<std::uint32_t, 2> number = {random(), random()};
    const std::string temporary =
        folder_ + "/." + whole.filename().string() + "." + to_hex(std::as_bytes(std::span(number)));
    file_ = Descriptor(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file_) {
      temporary_ = temporary;
      return {};
    }
    if (errno != EEXIST) return file_failure(temporary);
  }
  return file_failure(path);
}

NewArchiveFile::~NewArchiveFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<void, Failure> NewArchiveFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_failure(path_);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Result<void, Failure> NewArchiveFile::commit() {
  if (::fsync(file_.get()) != 0) return file_failure(path_);
  if (const auto place = check_place(path_, replaces_); !place) return place.error();
  int named = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), replaces_ ? 0 : RENAME_NOREPLACE);
  // Not every file system supports this. A second name does not replace files either.
  if (named != 0 && errno == EINVAL && !replaces_) {
    named = ::link(temporary_.c_str(), path_.c_str());
    if (named == 0) ::unlink(temporary_.c_str());
  }
  if (named != 0) return file_failure(path_);
  temporary_.clear();
  // The name is durable once the folder is synced.
  const Descriptor folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) return file_failure(folder_);
  return {};
}

Result<void, Failure> OldArchiveFile::open(const std::string& path) {
  path_ = path;
  // Must not wait for the other end of a pipe.
  file_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file_ || ::fstat(file_.get(), &status) != 0) return file_failure(path);
  if (!S_ISREG(status.st_mode)) return Failure(Errc::kBadRequest, path + ": it is no file; it is read twice");
  return {};
}

Result<std::size_t, Failure> OldArchiveFile::read(std::span<std::byte> to) {
  for (;;) {
    const ssize_t count = ::read(file_.get(), to.data(), to.size());
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR) return file_failure(path_);
  }
}

Result<void, Failure> OldArchiveFile::go_to(std::uint64_t at) {
  if (::lseek(file_.get(), static_cast<off_t>(at), SEEK_SET) < 0) return file_failure(path_);
  return {};
}

}  // namespace kv
