// transport/tls/file_stamp.h: detects whether a file has changed since it was read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace kv {

/// Identity, length and time of change of the file at a path. All missing files compare equal.
struct FileStamp {
  ::dev_t device = 0;
  ::ino_t number = 0;
  ::off_t bytes = -1;
  std::int64_t changed_ns = 0;

  static FileStamp of(const std::string& path);
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

}  // namespace kv
