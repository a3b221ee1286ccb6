#include "store/node/machine/disk_path.h"

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

namespace kv {
namespace {

namespace fs = std::filesystem;

/// Absolute, without a slash at its end: parent_path() is then the directory above.
fs::path whole(const fs::path& path) {
  std::error_code ignored;
  const fs::path all = fs::absolute(path, ignored).lexically_normal();
  return all.has_filename() ? all : all.parent_path();
}

bool is_missing(int why) { return why == ENOENT || why == ENOTDIR; }

/// The highest parent directory on the same device.
fs::path mount_point(fs::path path) {
  struct stat own {
  }, above{};
  if (::stat(path.c_str(), &own) != 0) return path;
  while (path != path.parent_path() && ::stat(path.parent_path().c_str(), &above) == 0 && above.st_dev == own.st_dev)
    path = path.parent_path();
  return path;
}

std::string look(const fs::path& path) {
  const fs::path all = whole(path);
  struct stat status {};
  if (::stat(all.c_str(), &status) == 0) return S_ISDIR(status.st_mode) ? "" : "is no directory";
  if (!is_missing(errno)) return "";
  const fs::path above = all.parent_path();
  if (::stat(above.c_str(), &status) == 0) return S_ISDIR(status.st_mode) ? "" : above.string() + " is no directory";
  return is_missing(errno) ? above.string() +
                                 " is not there: is the name right, is its disk mounted? The node makes "
                                 "the directory itself, and none above it"
                           : "";
}

}  // namespace

/// Runs on its own thread, which a hanging device keeps.
std::string check_disk_path(const fs::path& path) {
  constexpr std::chrono::seconds kPatience{2};
  std::packaged_task<std::string()> task([path] { return look(path); });
  auto answer = task.get_future();
  std::thread(std::move(task)).detach();
  return answer.wait_for(kPatience) == std::future_status::ready ? answer.get() : "";
}

std::string new_disk_path(const fs::path& path) {
  const fs::path all = whole(path);
  struct stat status {};
  if (::stat(all.c_str(), &status) == 0 || !is_missing(errno)) return "";
  return "is not there yet; the node makes it, on the file system that is mounted at " +
         mount_point(all.parent_path()).string();
}

}  // namespace kv
