// store/node/machine/disk_probe.h: how fast a directory's disk is, measured with a file that has no name there.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace kv {

struct DiskFacts {
  std::string path;  ///< As it was asked for.
  std::string
      probed;  ///< The directory that was measured: `path`, or what there is above it as long as it is not there.
  std::string wrong;             ///< Why the rates could not be measured; empty: they were.
  std::uint64_t free_bytes = 0;  ///< That this user may take, what lies below `path` already included.
  std::uint64_t device = 0;      ///< Equal for directories of one file system.
  std::uint64_t probe_bytes = 0;
  bool direct_io = false;
  double write_rate = 0, read_rate = 0;  ///< Bytes a second, one call after the other; with the sync at the end.
  double slowest_seconds = 0;            ///< The longest of all calls, of the sync too.
};

struct DiskProbe {
  std::uint64_t bytes_max = 256 << 20;
  Duration time_max = 2s;  ///< Of writing; of reading again as much.
};

/// Writes and reads, in MiB, past the page cache where the file system allows it. Leaves nothing behind, however it
/// ends. Takes an eighth of the free space at most.
DiskFacts measure_disk(const std::string& path, const DiskProbe& probe = {});

}  // namespace kv
