// store/node/disk/purge_filter.h: leaves blocks that nobody wants out of a file that is written anew.
#pragma once

#include <rocksdb/compaction_filter.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "store/disk.h"

namespace kv {

/// RocksDB asks it for each compaction of blocks. At rest it has nothing to say, and files are only moved (a filter
/// keeps RocksDB from that in compactions that were asked for by hand, not in its own).
/// Thread safety: all from any thread.
class PurgeFilter final : public rocksdb::CompactionFilterFactory {
 public:
  /// From now on what is in [first, last] and not among `wanted` (sorted) is left out. The rest is none of its
  /// business.
  void use(std::vector<DiskKey> wanted, DiskKey first, DiskKey last);
  void rest();

  std::unique_ptr<rocksdb::CompactionFilter> CreateCompactionFilter(
      const rocksdb::CompactionFilter::Context& context) override;
  const char* Name() const override { return "kvstore-purge"; }

 private:
  struct Wanted {
    std::vector<DiskKey> keys;
    DiskKey first{}, last{};
  };
  class OfOneFile;

  std::mutex mutex_;
  std::shared_ptr<const Wanted> wanted_;
};

}  // namespace kv
