// store/node/disk_worker/disk_report.h: the results of `kvstore-node disk` and how they are printed.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "store/node/disk/rocks/rocks_disk.h"

namespace kv {

/// Totals of one namespace's blocks in a directory.
struct NamespaceTotals {
  std::string record;  ///< Empty: blocks name the namespace, but its record is lost.
  std::uint64_t blocks = 0, bytes = 0;
  std::uint64_t block_bytes = 0;
};
struct DiskReport {
  std::uint32_t epoch = 0;
  DiskStats stats;
  std::vector<BlockFile> files;
  std::map<NamespaceId, NamespaceTotals> spaces;
  std::uint64_t blocks = 0, bytes = 0;
  std::uint64_t dead_files = 0, dead_file_bytes = 0;  ///< Files that hold only unnamed blocks.
};

struct DiskDamage {
  DiskRecord record;
  std::string why;
};
struct DiskVerification {
  std::uint64_t blocks = 0, bytes = 0;  ///< Names, and the sum of their recorded sizes.
  /// Names whose blocks were given back with their file, or were unwritten when the node ended; not damage.
  std::uint64_t dangling = 0;
  std::vector<DiskDamage> damages;
  double seconds = 0;
};

void print_report(const std::string& path, const DiskReport& report, bool json, std::ostream& out);
void print_verification(const std::string& path, const DiskVerification& result, bool json, std::ostream& out);

}  // namespace kv
