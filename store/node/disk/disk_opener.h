// store/node/disk/: the disk tier's disk (store/disk.h), on RocksDB. Start here.
//
// Takes the directories that an operator names and makes one disk of them, whatever state they are in. Knows no
// session, no Store and no network: blocks come in and go out as bytes with their records. Files, in reading order:
//   disk_opener.h       from directories to the one disk
//   rocks_disk.h        one directory: blocks enter with their records and come back unverified
//   spill_format.h      every byte in a directory that is not RocksDB's own (docs/spill-format.md)
//   spill_directory.h   the directory before RocksDB sees it: ours or not, locked, writable
//   file.h              a descriptor that closes itself
//   spill_keys.h        the operator's keys
//   data_keys.h         the keys that blocks are sealed with, wrapped by those
//   sealing.h           AES-256-GCM
//   kept_file.h         a small file that is replaced as a whole, sealed where there are keys
//   rocks_options.h     how RocksDB is set up, and why
//   purge_filter.h      leaves blocks that nobody wants out of a file that is written anew
//   write_behind.h      a table is built while the part that is built already is written
//   rocks_open.h        from a directory in any state to an open database
//   table_footer.h      the parts of a table that RocksDB believes unchecked, checked
//   rocks_scan.h        a walk over small entries that steps over damage
//   drop_log.h          what was dropped, durably
//   striped_disk.h      several directories as one disk, of which some may fail or hang
//   call_threads.h      calls that may hang, on threads of their own
//   call_watch.h        notices that a disk does not answer
//   record_stream.h     a load to be pulled instead of pushed
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/disk.h"

namespace kv {

class SpillKeys;

/// Opens a RocksDisk in each directory, all at the same time; they are striped (striped_disk.h), and others can be
/// added later. A directory keeps the place in the keys that it was first given, whatever the order of `paths`; a new
/// one takes the lowest that is free. `patience`: of several directories, one whose call takes longer is left out until
/// it answers. `keys`: blocks are sealed; nullptr: they are not. Requires: 1 to kPlaceCount paths. Keeps a reference to
/// the clock. Errors: those of RocksDisk::open, of any directory; kMismatch if two have the same place, since they come
/// from two nodes then.
OpenDisk disk_opener(std::vector<std::string> paths, Clock& clock, Duration patience = 2s,
                     std::shared_ptr<SpillKeys> keys = nullptr);

}  // namespace kv
