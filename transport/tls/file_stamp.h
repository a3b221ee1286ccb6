// transport/tls/file_stamp.h: detects whether a file has changed since it was read.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace kv {

/// Identity, length and time of change of the file at a path. All missing files compare equal.
struct FileStamp {
  ::dev_t device = 0;
  ::ino_t number = 0;
  ::off_t bytes = -1;
  std::int64_t changed_ns = 0;

  /// Follows links: Kubernetes replaces a mounted secret by changing a link.
  static FileStamp of(const std::string& path) {
    struct stat status {};
    if (path.empty() || ::stat(path.c_str(), &status) != 0) return {};
    return {status.st_dev, status.st_ino, status.st_size,
            static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec};
  }
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

}  // namespace kv
