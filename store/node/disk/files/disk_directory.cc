#include "store/node/disk/files/disk_directory.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/assert.h"
#include "store/node/machine/disk_path.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormatFile = "FORMAT";
constexpr const char* kLockFile = "LOCK";
constexpr const char* kProbeFile = ".probe";
constexpr const char* kDatabase = "db";
constexpr const char* kKeysFile = "KEYS";
constexpr std::string_view kDamaged = "damaged-";
constexpr mode_t kDirectoryMode = 0700, kFileMode = 0600;

error_code as_error_code(const std::error_code& error) { return {error.value(), boost::system::generic_category()}; }

error_code sync_directory(const fs::path& path) {
  const File directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.is_open() || ::fsync(directory.number()) != 0) return last_errno();
  return {};
}

bool is_our_name(const std::string& name) {
  return name == kFormatFile || name == kLockFile || name == "db" || name == "DROPS" || name == "DROPS.new" ||
         name == kKeysFile || name == "KEYS.new" || name == "LEARNED" || name == "LEARNED.new" || name == "CONTEXTS" ||
         name == "CONTEXTS.new" || name == "CONTEXTS.damaged" || name == "lost+found" || name.starts_with(".") ||
         name.starts_with(std::string(kFormatFile) + ".") || name.starts_with(kDamaged);
}

/// A name that is foreign to disk directories, or "". So a home directory named by mistake stays untouched.
std::string foreign_name(const fs::path& path) {
  for (const std::string& name : names_in(path)) {
    if (!is_our_name(name)) return name;
  }
  return "";
}

/// Writes all bytes, durably. O_NOFOLLOW: the directory is ours alone, but a link in it may be older than that.
error_code write_file(const fs::path& path, std::string_view bytes) {
  const File file(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, kFileMode));
  if (!file.is_open()) return last_errno();
  const ssize_t written = ::write(file.number(), bytes.data(), bytes.size());
  if (written < 0 || ::fsync(file.number()) != 0) return last_errno();
  if (static_cast<std::size_t>(written) < bytes.size()) return {ENOSPC, boost::system::generic_category()};
  return {};
}

error_code system_error(int number) { return {number, boost::system::generic_category()}; }

/// Creates the directory with our mode if it is missing. Parents are not created (machine/disk_path.h).
error_code make_directory(const fs::path& path) {
  const std::string place = new_disk_path(path);
  if (::mkdir(path.c_str(), kDirectoryMode) != 0) return errno == EEXIST ? error_code() : last_errno();
  spdlog::info("disk: {} {}", path.string(), place);
  return {};
}

/// Whether only this user (and root) can add files to the directory or remove them.
Result<void, Failure> check_owner(int directory, const fs::path& path) {
  struct stat status {};
  if (::fstat(directory, &status) != 0) return Failure(last_errno(), path.string() + ": " + last_errno().message());
  const bool is_ours = status.st_uid == ::geteuid();
  if (is_ours && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
  return Failure(system_error(EPERM),
                 fmt::format("{}: belongs to user {} and has mode {:04o}; it must belong to this node's user {} and be "
                             "writable by no other, mode 0700 or at most 0755: {}. Nothing was changed",
                             path.string(), status.st_uid, status.st_mode & 07777, ::geteuid(),
                             is_ours ? "chmod go-w it" : "chown it, or start the node as its owner"));
}

Result<void, Failure> check_format(std::uint32_t format, bool has_keys, const fs::path& path) {
  if (format == kDiskFormatSealed && !has_keys) {
    return Failure(Errc::kUnsupported,
                   fmt::format("{}: has disk format {}: its blocks are encrypted, and no key was given. Nothing was "
                               "changed. Give --disk-key-file, the file of the key that it was used with",
                               path.string(), kDiskFormatSealed));
  }
  if (format != kDiskFormat && format != kDiskFormatSealed) {
    return Failure(Errc::kUnsupported,
                   fmt::format("{}: has disk format {}, this kvstore-node knows formats {} and {}. Nothing was "
                               "changed. Start the version that wrote it, or give --disk-path another directory",
                               path.string(), format, kDiskFormat, kDiskFormatSealed));
  }
  return {};
}

}  // namespace

std::vector<std::string> names_in(const fs::path& path, std::error_code* failed) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  if (failed != nullptr) *failed = error;
  return names;
}

error_code replace_file(const fs::path& file, const std::string& text) {
  const fs::path next = file.string() + ".new";
  if (const error_code error = write_file(next, text)) return error;
  // In this order, for durability: the bytes, the name, the directory with the name.
  if (::rename(next.c_str(), file.c_str()) != 0) return last_errno();
  return sync_directory(file.parent_path());
}

std::string read_small_file(const fs::path& file, std::size_t bytes_max) {
  const File in(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  std::string text(bytes_max, '\0');
  const ssize_t count = in.is_open() ? ::read(in.number(), text.data(), text.size()) : -1;
  KV_ASSERT(count <= static_cast<ssize_t>(text.size()));
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

Result<DiskDirectory, Failure> DiskDirectory::open(const fs::path& given, bool read_only, bool has_keys) {
  // Without the trailing slash: "link/" would follow the link.
  const fs::path path = given.has_filename() || !given.has_parent_path() ? given : given.parent_path();
  if (const std::string why = read_only ? "" : check_disk_path(path); !why.empty())
    return Failure(system_error(ENOENT), path.string() + ": " + why);
  error_code error = read_only ? error_code() : make_directory(path);
  DiskDirectory directory(path, File());
  if (!error) {
    directory.directory_ = File(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!directory.directory_.is_open()) error = last_errno();
  }
  const int opened = directory.directory_.number();
  if (error) {
    struct stat status {};
    const bool is_link = ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
    if (is_link) error = system_error(ELOOP);
    return Failure(error, fmt::format("{}{}. Give --disk-path a directory that this user may write", path.string(),
                                      is_link ? ": is a symbolic link. Name the directory itself"
                                      : read_only && error.value() == ENOENT
                                          ? ": no such directory"
                                          : ": cannot be used as a directory: " + error.message()));
  }
  if (const auto owned = read_only ? Result<void, Failure>() : check_owner(opened, path); !owned) return owned.error();
  // All checks come before the first change: a foreign directory is left exactly as it is.
  const std::optional<std::uint32_t> format = parse_format_text(read_small_file(path / kFormatFile));
  // Keys are written before FORMAT requires them. Without FORMAT they are the safer sign.
  struct stat keys {};
  const bool has_key_file = ::fstatat(opened, kKeysFile, &keys, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(keys.st_mode);
  directory.format_ = format.value_or(has_key_file ? kDiskFormatSealed : kDiskFormat);
  if (const auto known = check_format(directory.format_, has_keys, path); !known) return known.error();
  const std::string foreign = format ? "" : foreign_name(path);
  const File database(::openat(opened, kDatabase, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const bool has_database = database.is_open() || errno != ENOENT;
  if (!foreign.empty() || (read_only && !format && !has_database)) {
    return Failure(
        Errc::kMismatch,
        fmt::format("{}: is not a disk directory{}. Nothing was changed. Give --disk-path a directory of its own, "
                    "empty or not there yet",
                    path.string(), foreign.empty() ? "" : ": it holds '" + foreign + "' and no valid FORMAT"));
  }
  if (has_database && !read_only) {
    if (!database.is_open()) {
      return Failure(system_error(ENOTDIR),
                     directory.database().string() + ": is not a directory, or a symbolic link. Nothing was changed");
    }
    if (const auto owned = check_owner(database.number(), directory.database()); !owned) return owned.error();
  }

  // Here at the latest: the following steps write, and another process may be at work.
  if (const auto locked = directory.take_lock(read_only); !locked) return locked.error();
  if (read_only) return directory;
  // Earlier versions left the mode of db/ to the umask.
  if (database.is_open() && ::fchmod(database.number(), kDirectoryMode) != 0) error = last_errno();
  if (!error) error = directory.try_writing();
  if (!error && !format) {
    if (has_database) spdlog::warn("disk: {}: FORMAT was damaged or missing; written anew", path.string());
    error = replace_file(path / kFormatFile, format_text(directory.format_));
  }
  if (!error && !has_database && ::mkdir(directory.database().c_str(), kDirectoryMode) != 0) error = last_errno();
  if (error) {
    return Failure(error, fmt::format("{}: cannot be written: {}. Check free space, the mount and the device",
                                      path.string(), error.message()));
  }
  return directory;
}

/// A reader continues without a lock that it cannot open: a tool may lack write permission.
Result<void, Failure> DiskDirectory::take_lock(bool read_only) {
  const int flags = (read_only ? 0 : O_CREAT) | O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  lock_ = File(::openat(directory_.number(), kLockFile, flags, kFileMode));
  if (!lock_.is_open() && !read_only) {
    const error_code error = last_errno();
    return Failure(error, fmt::format("{}: cannot be written: {}. Check its owner, its mode and the mount",
                                      path_.string(), error.message()));
  }
  if (lock_.is_open() && ::flock(lock_.number(), LOCK_EX | LOCK_NB) != 0) {
    return Failure(Errc::kBusy, fmt::format("{}: is in use by process {}. Each node needs a disk directory of its own",
                                            path_.string(), std::atol(read_small_file(path_ / kLockFile).c_str())));
  }
  if (read_only) return {};
  const std::string owner = fmt::format("{}\n", ::getpid());
  KV_ASSERT(lock_.is_open());
  if (::ftruncate(lock_.number(), 0) != 0 || ::pwrite(lock_.number(), owner.data(), owner.size(), 0) < 0) {
    // The number only helps an operator find the lock's holder.
    spdlog::debug("disk: {}: the lock holds no process number", path_.string());
  }
  return {};
}

error_code DiskDirectory::mark_sealed() {
  if (format_ == kDiskFormatSealed) return {};
  const error_code error = replace_file(path_ / kFormatFile, format_text(kDiskFormatSealed));
  if (!error) spdlog::info("disk: {}: blocks are encrypted from now on", path_.string());
  if (!error) format_ = kDiskFormatSealed;
  return error;
}

bool DiskDirectory::allows_direct_io() const {
  const fs::path probe = path_ / kProbeFile;
  const File file(::open(probe.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_DIRECT | O_CLOEXEC | O_NOFOLLOW, kFileMode));
  if (!file.is_open()) return false;
  // Some file systems accept the flag and refuse the calls.
  alignas(4096) char page[4096] = {};
  const bool is_written = ::pwrite(file.number(), page, sizeof page, 0) == sizeof page;
  const bool is_read = ::pread(file.number(), page, sizeof page, 0) == sizeof page;
  ::unlink(probe.c_str());
  return is_written && is_read;
}

error_code DiskDirectory::try_writing() const {
  const fs::path probe = path_ / kProbeFile;
  const error_code error = write_file(probe, std::string(4096, 'x'));
  ::unlink(probe.c_str());
  return error;
}

/// Damaged files are kept for inspection or a repair by hand. Only one such copy is kept, since it counts against no
/// capacity, and a disk that is damaged repeatedly would fill with them.
error_code DiskDirectory::set_aside(const fs::path& what) const {
  std::error_code error;
  for (const std::string& name : names_in(path_)) {
    if (name.starts_with(kDamaged)) fs::remove_all(path_ / name, error);
  }
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  const fs::path aside = path_ / (std::string(kDamaged) + std::to_string(now.count()));
  fs::rename(what, aside, error);
  if (!error)
    fs::permissions(aside, fs::perms::owner_all, error);  // RocksDB's repair makes directories with its own mode
  if (error) return as_error_code(error);
  return sync_directory(path_);
}

}  // namespace kv
