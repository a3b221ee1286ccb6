// transport/tls/file_stamp.h: whether a file is still the one that was read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace kv {

/// Which file lies at a path, how long it is and when it was changed. Equal to that of no file if there is none.
struct FileStamp {
  ::dev_t device = 0;
  ::ino_t number = 0;
  ::off_t bytes = -1;
  std::int64_t changed_ns = 0;

  static FileStamp of(const std::string& path);
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

}  // namespace kv
