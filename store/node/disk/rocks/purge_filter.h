// store/node/disk/rocks/purge_filter.h: omits unwanted blocks from rewritten files.
#pragma once

#include <rocksdb/compaction_filter.h>

#include <memory>
#include <mutex>
#include <vector>

#include "store/disk/disk.h"

namespace kv {

/// RocksDB asks it for each compaction of blocks. At rest it supplies no filter, so files are only moved. (With a
/// filter, RocksDB rewrites files in manual compactions, though not in its own.) Thread safety: all from any thread.
class PurgeFilter final : public rocksdb::CompactionFilterFactory {
 public:
  /// From now on, keys in [first, last] that are not among `wanted` (sorted) are omitted. Other keys stay.
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
