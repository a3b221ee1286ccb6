#include "store/node/spill_directory.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "store/node/spill_format.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormatFile = "FORMAT";
constexpr const char* kLockFile = "LOCK";
constexpr const char* kProbeFile = ".probe";
constexpr std::string_view kDamaged = "damaged-";

error_code as_error_code(const std::error_code& error) { return {error.value(), boost::system::generic_category()}; }

/// A descriptor that closes itself.
struct File {
  explicit File(int opened) : number(opened) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (number >= 0) ::close(number);
  }
  int number;
};

error_code sync_directory(const fs::path& path) {
  const File directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.number < 0 || ::fsync(directory.number) != 0) return last_errno();
  return {};
}

bool is_our_name(const std::string& name) {
  return name == kFormatFile || name == kLockFile || name == "db" || name == "lost+found" || name.starts_with(".") ||
         name.starts_with(std::string(kFormatFile) + ".") || name.starts_with(kDamaged);
}

/// The name of something in the directory that no spill directory has, or "".
std::string foreign_name(const fs::path& path) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!is_our_name(name)) return name;
  }
  return "";
}

/// One 4 KiB write that reaches the device: a full, read-only or failing disk is found out here and not inside RocksDB,
/// where it would look like damage.
error_code try_writing(const fs::path& path) {
  const fs::path probe = path / kProbeFile;
  const File file(::open(probe.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
  if (file.number < 0) return last_errno();
  const std::string page(4096, 'x');
  error_code error;
  if (::write(file.number, page.data(), page.size()) != static_cast<ssize_t>(page.size()) || ::fsync(file.number) != 0)
    error = last_errno();
  ::unlink(probe.c_str());
  return error;
}

}  // namespace

error_code replace_file(const fs::path& file, const std::string& text) {
  const fs::path next = file.string() + ".new";
  {
    const File out(::open(next.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
    if (out.number < 0 || ::write(out.number, text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(out.number) != 0)
      return last_errno();
  }
  if (::rename(next.c_str(), file.c_str()) != 0) return last_errno();
  return sync_directory(file.parent_path());
}

std::string read_small_file(const fs::path& file) {
  const File in(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text(4096, '\0');
  const ssize_t count = in.number < 0 ? -1 : ::read(in.number, text.data(), text.size());
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

Result<SpillDirectory> SpillDirectory::open(const fs::path& path, bool read_only, std::string* why) {
  std::error_code failed;
  if (!read_only) fs::create_directories(path, failed);
  const bool is_there = fs::is_directory(path);
  if (!is_there) {
    *why = path.string() + (read_only ? ": no such directory" : ": cannot be made a directory: " + failed.message()) +
           ". Give --spill-path a directory that this user may write";
    return failed ? as_error_code(failed) : make_error_code(Errc::kDiskFailed);
  }
  // Look before touching anything: what is not ours is left exactly as it is.
  const std::optional<std::uint32_t> format = parse_format_text(read_small_file(path / kFormatFile));
  if (format && *format != kSpillFormat) {
    *why = path.string() + ": has spill format " + std::to_string(*format) + ", this kvstore-node knows format " +
           std::to_string(kSpillFormat) +
           ". Nothing was changed. Start the version that wrote it, or give --spill-path another directory";
    return make_error_code(Errc::kUnsupported);
  }
  const std::string foreign = format ? "" : foreign_name(path);
  if (!foreign.empty() || (read_only && !format && !fs::exists(path / "db"))) {
    *why = path.string() + ": is not a spill directory" +
           (foreign.empty() ? "" : ": it holds '" + foreign + "' and no valid FORMAT") +
           ". Nothing was changed. Give --spill-path a directory of its own, empty or not there yet";
    return make_error_code(Errc::kMismatch);
  }

  SpillDirectory directory(path,
                           ::open((path / kLockFile).c_str(), (read_only ? 0 : O_CREAT) | O_RDWR | O_CLOEXEC, 0644));
  if (directory.lock_ < 0 && !read_only) {
    const error_code error = last_errno();
    *why = path.string() + ": cannot be written: " + error.message() + ". Check its owner, its mode and the mount";
    return error;
  }
  if (directory.lock_ >= 0 && ::flock(directory.lock_, LOCK_EX | LOCK_NB) != 0) {
    *why = path.string() + ": is in use by process " +
           std::to_string(std::atol(read_small_file(path / kLockFile).c_str())) +
           ". Each node needs a spill directory of its own";
    return make_error_code(Errc::kBusy);
  }
  if (read_only) return directory;
  const std::string owner = std::to_string(::getpid()) + "\n";
  if (::ftruncate(directory.lock_, 0) != 0 || ::pwrite(directory.lock_, owner.data(), owner.size(), 0) < 0) {
    spdlog::debug("spill: {}: the lock holds no process number", path.string());  // it says who, no more
  }
  error_code error = try_writing(path);
  if (!error && !format) {
    if (fs::exists(path / "db")) spdlog::warn("spill: {}: FORMAT was damaged or missing; written anew", path.string());
    error = replace_file(path / kFormatFile, format_text(kSpillFormat));
  }
  if (error) {
    *why = path.string() + ": cannot be written: " + error.message() + ". Check free space, the mount and the device";
    return error;
  }
  return directory;
}

SpillDirectory::SpillDirectory(SpillDirectory&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

SpillDirectory::~SpillDirectory() {
  if (lock_ >= 0) ::close(lock_);  // and with it goes the lock
}

bool SpillDirectory::allows_direct_io() const {
  const fs::path probe = path_ / kProbeFile;
  const File file(::open(probe.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_DIRECT | O_CLOEXEC, 0644));
  if (file.number < 0) return false;
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(4096, 4096), &std::free);
  std::memset(page.get(), 0, 4096);
  const bool is_written = ::pwrite(file.number, page.get(), 4096, 0) == 4096;
  const bool is_read = ::pread(file.number, page.get(), 4096, 0) == 4096;
  ::unlink(probe.c_str());
  return is_written && is_read;
}

error_code SpillDirectory::set_aside(const fs::path& what) const {
  std::error_code error;
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    if (entry.path().filename().string().starts_with(kDamaged)) old.push_back(entry.path());
  }
  for (const fs::path& each : old) fs::remove_all(each, error);
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  fs::rename(what, path_ / (std::string(kDamaged) + std::to_string(now.count())), error);
  if (error) return as_error_code(error);
  return sync_directory(path_);
}

}  // namespace kv
