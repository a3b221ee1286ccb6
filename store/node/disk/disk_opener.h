// store/node/disk/: the disk tier's disk (store/disk/disk.h), on RocksDB. Start here.
//
// Makes one disk of the directories that an operator names, in any state. Independent of sessions, Store and network:
// blocks come in and go out as bytes with their records. Files, in reading order:
//   disk_opener.h       from directories to the one disk
//   rocks_disk.h        one directory: blocks enter with their records and come back unverified
//   disk_format.h      every byte in a directory that is not RocksDB's own (docs/disk-format.md)
//   disk_directory.h   the directory before RocksDB opens it: ours or not, locked, writable
//   file.h              a descriptor that closes itself
//   operator_keys.h        the operator's keys
//   data_keys.h         the keys that seal blocks, wrapped by the operator's
//   sealing.h           AES-256-GCM
//   kept_file.h         a small file that is replaced as a whole, sealed if there are keys
//   rocks_options.h     how RocksDB is set up, and why
//   purge_filter.h      omits unwanted blocks from a rewritten file
//   write_behind.h      builds a table while its finished part is being written
//   rocks_open.h        from a directory in any state to an open database
//   table_footer.h      checks the parts of a table that RocksDB trusts unchecked
//   rocks_scan.h        a walk over small entries that steps over damage
//   drop_log.h          a durable log of drops
//   striped_disk.h      several directories as one disk, some of which may fail or hang
//   call_threads.h      calls that may hang, on threads of their own
//   call_watch.h        notices that a disk does not answer
//   record_stream.h     a load that is pulled instead of pushed
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/disk/disk.h"

namespace kv {

class OperatorKeys;

/// Opens a RocksDisk in each directory, all at the same time, and stripes them (striped_disk.h); directories can be
/// added later. A directory keeps the place in the keys that it was first given, in any order of `paths`; a new one
/// gets the lowest free place. `patience`: if one of several directories takes longer to answer a call, it is left out
/// until it answers. `keys`: seal blocks; nullptr: plain text. Requires: 1 to kPlaceCount paths. Keeps a reference to
/// the clock. Errors: those of RocksDisk::open, for any directory; kMismatch if two from different nodes share a place.
OpenDisk disk_opener(std::vector<std::string> paths, Clock& clock, Duration patience = 2s,
                     std::shared_ptr<OperatorKeys> keys = nullptr);

}  // namespace kv
