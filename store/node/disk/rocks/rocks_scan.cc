#include "store/node/disk/rocks/rocks_scan.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "base/assert.h"
#include "store/node/disk/files/disk_format.h"

namespace kv {
namespace {

using rocksdb::Slice;

/// The first 8 bytes of a key as a number. A shorter key counts as followed by zeros.
std::uint64_t number_of(std::string_view key) {
  std::string padded(key.substr(0, kDiskKeyBytes));
  padded.resize(kDiskKeyBytes, '\0');
  return static_cast<std::uint64_t>(*decode_key(padded));
}

/// Seeks the largest entry with a number of at most `number`. False: damage. True, but not Valid(): all are larger.
bool seek(rocksdb::Iterator& it, std::uint64_t number) {
  const DiskKeyText text = encode_key(DiskKey{number});
  std::string key(text.data(), text.size());
  key.append(32, '\xff');  // behind every longer key with these first bytes
  it.SeekForPrev(key);
  return it.Valid() || it.status().ok();
}

/// Positions `it` at the largest readable entry below `damaged` (exclusive). False if all below is unreadable.
bool seek_below_damage(rocksdb::Iterator& it, std::uint64_t damaged) {
  std::uint64_t bad = damaged;  // a seek to here fails
  std::uint64_t step = 1;
  // Down in doubling steps until a seek succeeds: damage is a data block or two, and keys are dense.
  while (bad > 0) {
    const std::uint64_t next = bad > step ? bad - step : 0;
    if (!seek(it, next)) {
      bad = next;
      step *= 2;
      continue;
    }
    std::uint64_t good = next;
    KV_ASSERT(good < bad);
    while (bad - good > 1) {  // then the border between the two
      const std::uint64_t middle = good + (bad - good) / 2;
      (seek(it, middle) ? good : bad) = middle;
    }
    seek(it, good);
    return it.Valid();
  }
  return false;
}

}  // namespace

ScanResult scan_backwards(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family,
                          const std::function<bool(std::string_view key, std::string_view value)>& visit) {
  // An iterator that meets damage becomes invalid and cannot step over it. So the walk seeks anew below the damage, and
  // loses only the damaged data block, not everything before it.
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(db.NewIterator(options, family));
  ScanResult result;
  std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  it->SeekToLast();
  while (true) {
    for (; it->Valid(); it->Prev()) {
      last = number_of(it->key().ToStringView());
      if (!visit(it->key().ToStringView(), it->value().ToStringView())) return result;
    }
    const rocksdb::Status status = it->status();
    if (status.ok()) return result;
    if (!status.IsCorruption() && !status.IsPathNotFound()) {
      result.status = status;
      return result;
    }
    if (result.damaged_places++ == 0) result.damage = status;
    if (!seek_below_damage(*it, last)) return result;
    KV_ASSERT(number_of(it->key().ToStringView()) < last);  // or the walk would not end
  }
}

}  // namespace kv
