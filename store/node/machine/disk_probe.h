// store/node/machine/disk_probe.h: measures the speed of a directory's disk, with an unnamed file there.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace kv {

struct DiskFacts {
  std::string path;  ///< As requested.
  /// The measured directory: `path`, or its nearest existing parent.
  std::string probed;
  std::string wrong;             ///< Why the rates could not be measured; empty: they were.
  std::uint64_t free_bytes = 0;  ///< Available to this user, including the present contents of `path`.
  std::uint64_t device = 0;      ///< Equal for directories of one file system.
  std::uint64_t probe_bytes = 0;
  bool direct_io = false;
  double write_rate = 0, read_rate = 0;  ///< Bytes a second, one call after the other; with the sync at the end.
  double slowest_seconds = 0;            ///< The longest call, including the sync.
};

struct DiskProbe {
  std::uint64_t bytes_max = 256 << 20;
  Duration time_max = 2s;  ///< Of writing; the same again for reading.
};

/// Writes and reads in calls of 1 MiB, past the page cache where the file system allows it. Always leaves the directory
/// as it was. Takes an eighth of the free space at most.
DiskFacts measure_disk(const std::string& path, const DiskProbe& probe = {});

}  // namespace kv
