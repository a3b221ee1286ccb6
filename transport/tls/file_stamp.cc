#include "transport/tls/file_stamp.h"

#include <sys/stat.h>

namespace kv {

/// Follows links: Kubernetes replaces a mounted secret by changing a link.
FileStamp FileStamp::of(const std::string& path) {
  struct stat status {};
  if (path.empty() || ::stat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, status.st_size,
          static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec};
}

}  // namespace kv
